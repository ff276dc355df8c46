"""What a machine with NVIDIA GPUs shows of collbench: ``python tests/perf/gpu.py --output out``
(make gpu-check).

Writes the runs, gpu-check-SLICE.json and, of all slices that are there, gpu-check.md into the
folder; each slice ends within eight minutes, and ``--slice quick`` shows first whether anything
works. Virtual ranks make one GPU do. Exit status 5 without a GPU or where nothing could be
measured, 1 where a test fails, data is wrong, or collbench hangs or crashes; nothing is asserted on
time, the table says what is met. $NCCL_TESTS may name a folder with
nccl-tests' binaries, to be measured beside.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from collbench.core.errors import CollbenchError, Exit, UsageError
from collbench.core.program import Term
from collbench.features.interop import importers
from collbench.machine import environment
from collbench.machine.gpu import TORCH_FOR
from collbench.records import derive, rows, run_file
from collbench.records.types import RunFile
from collbench.run.backends._compiled import Compiled
from collbench.run.backends._cuda import has_mps
from collbench.run.backends._torch_refusal import missing_gpu
from collbench.suite.case import Case

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("GPU_CHECK_SECONDS", "470"))  # for a slice
LARGEST = int(os.environ.get("GPU_CHECK_LARGEST") or 1 << 30)  # bytes: a fake GPU is slow
ALGORITHMS = ("ring", "tree", "double_tree", "halving_doubling", "one_shot", "two_shot")
RANKS = (2, 4, 8)
LARGE = min(
    256 << 20, LARGEST
)  # from here on an algorithm should move its bytes as fast as a copy does
SIZES = sorted(
    {min(size, LARGEST) for size in (8, 512, 32 << 10, 2 << 20, 32 << 20, LARGE, 1 << 30)}
)
FIRST = {"ranks": (2, 8), "algorithms": ("ring", "two_shot", "one_shot"), "sizes": (8, LARGE)}
BRIEFLY = ("--max-time", "0.2s", "-w", "5")  # as a hundred cases need it
ROUNDS = 3
ALIKE_NS = 50_000  # from here on a call back to back is the device's, in Python as in C
HALFWAY = 1e12  # few segments: more of them move the same bytes


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table. ``met`` is None where there is no goal, or nothing was measured and
    ``value`` says why."""

    what: str
    value: str
    goal: str = ""
    met: bool | None = None


class NotMeasured(Exception):
    """Something is missing on this machine; the message says what."""


class Failed(NotMeasured):
    """Nothing is missing: what was to be measured hangs, crashes or fails."""


# exit codes of a run that this machine or this script keeps from its end; any other is a failure
REFUSED = (Exit.USAGE, Exit.NO_VERDICT, Exit.CANNOT_RUN, Exit.INTERRUPTED)


def explain(what: str, reason: Exception) -> Figure:
    """The line of what has no figure."""
    if isinstance(reason, Failed):
        return Figure(what=what, value=f"failed: {reason}", goal="all", met=False)
    return Figure(what=what, value=f"not measured: {reason}")


class Check:
    """The folder for results, the time that is left, and ``details`` behind the figures."""

    def __init__(self, folder: Path, gpus: int, seconds: float = SECONDS) -> None:
        self.folder, self.gpus = folder, gpus
        self.details: dict[str, list[dict[str, Any]]] = {}
        self._until = time.monotonic() + seconds

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] = os.environ,
    ) -> subprocess.CompletedProcess[str]:
        """A program and what it said. Raises NotMeasured where it takes longer than there is
        time."""
        limit = self._until - time.monotonic()
        if limit < 5:
            raise NotMeasured("no time was left")
        try:
            return subprocess.run(
                list(command), capture_output=True, text=True, timeout=limit, env=env, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"not done in {limit:.0f} s") from None
        except OSError as e:
            raise NotMeasured(str(e)) from None

    def collbench(self, name: str, *options: str) -> RunFile:
        """The run that ``collbench all_reduce OPTIONS`` makes, saved as ``name``."""
        path = self.folder / f"{name}.jsonl"
        path.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "collbench",
            "all_reduce",
            *options,
            "--format",
            "csv",
            "--output",
            str(path),
        ]
        try:
            done = self.run(command)
        except NotMeasured:
            if not path.exists() or not medians(found := run_file.read_file(path)):
                raise
            return found  # what there was time for
        if done.returncode not in (0, 7):
            said = [line for line in done.stderr.splitlines() if line.startswith("collbench: ")]
            reason = said[0].partition(": ")[2] if said else ""
            if done.returncode in REFUSED:
                raise NotMeasured(reason or f"collbench ended with {done.returncode}")
            raise Failed(f"exit {done.returncode}{': ' * bool(reason)}{reason}")
        return run_file.read_file(path)


def traffic(case: Case) -> int:
    """Bytes that the memory of one GPU with all ranks must read and write for one call of a
    reference algorithm. What several ranks read in the same step of theirs counts once: the others
    may find it in the cache.
    """
    compiled = Compiled(case, HALFWAY, waits=True)
    total = 0
    for steps in itertools.zip_longest(*compiled.program.ranks):
        read: set[Term] = set()
        for rank, step in enumerate(steps):
            for bank, cell, cells, terms in step.actions if step else ():
                if terms != (Term(rank, bank, cell),):
                    total += sum(
                        _length(compiled, Term(rank, bank, cell + k)) for k in range(cells)
                    )
                    read |= {
                        Term(term.rank, term.bank, term.cell + k)
                        for term in terms
                        for k in range(cells)
                    }
        total += sum(_length(compiled, place) for place in read)
    return total


def _length(compiled: Compiled, place: Term) -> int:
    return sum(spot.stop - spot.start for spot in compiled.spots(place, 1))


def medians(file: RunFile) -> dict[tuple[str, int, int], float]:
    """Nanoseconds a call by (algorithm, ranks, bytes), of what was measured."""
    fit = rows.select_fit(rows.make_rows([file]))
    return {(row.case.algorithm, row.case.n, row.case.nbytes): row.median for row in fit}


def verified(what: str, file: RunFile) -> Iterator[Figure]:
    """Whether all data was right, of a run that was not cut short, and what was left out."""
    bad = [r for r in file.records if r.status not in ("ok", "skipped") or r.wrong]
    right = sum(r.status == "ok" and r.wrong == 0 for r in file.records)
    first = f"; {bad[0].case.key}: {bad[0].status}, {bad[0].note}" if bad else ""
    cut = ", then cut short" * (file.end is None)
    yield Figure(
        what=f"{what}: data right",
        value=f"{right} cases{cut}{first}",
        goal="all",
        met=None if cut and not bad else right > 0 and not bad,
    )
    skipped = [r.note for r in file.records if r.status == "skipped"]
    for note in dict.fromkeys(skipped):
        yield Figure(what=f"{what}: left out", value=f"{skipped.count(note)} cases: {note}")


def shares(file: RunFile, copy_rate: float) -> list[dict[str, Any]]:
    """How near each case comes to its bound: the bytes it must move, at ``copy_rate`` bytes/ns read
    and written."""
    found = []
    for row in rows.select_fit(rows.make_rows([file])):
        case, bound = row.case, traffic(row.case) / copy_rate
        about = {"algorithm": case.algorithm, "n": case.n, "nbytes": case.nbytes}
        found.append({**about, "ns": row.median, "bound_ns": bound, "share": bound / row.median})
    return found


def nearness(found: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    """The least share at large sizes; ring and two_shot have nothing to wait for there."""
    for algorithm in ALGORITHMS:
        for n in RANKS:
            large = [
                s["share"]
                for s in found
                if (s["algorithm"], s["n"]) == (algorithm, n) and s["nbytes"] >= LARGE
            ]
            wanted = algorithm in ("ring", "two_shot")
            if large:
                yield Figure(
                    what=f"{algorithm}, {n} virtual ranks, from 256 MiB: share of the copy bound",
                    value=f"{min(large):.0%}",
                    goal=">= 80 %" if wanted else "",
                    met=min(large) >= 0.8 if wanted else None,
                )


def reference_algorithms(
    check: Check,
    copy_rate: float,
    ranks: Sequence[int] = RANKS,
    algorithms: Sequence[str] = ALGORITHMS,
    sizes: Sequence[int] = SIZES,
) -> Iterator[Figure]:
    swept = ("--algo", ",".join(algorithms), "--sizes", ",".join(map(str, sizes)))
    check.details["symm"] = []
    for n in ranks:
        always = ("--backend", "symm", "--virtual-ranks", "-g", str(n), "--place", "out")
        file = check.collbench(f"symm-{n}", *always, *swept, *BRIEFLY)
        yield from verified(f"symm, {n} virtual ranks", file)
        check.details["symm"] += shares(file, copy_rate)
    yield from nearness(check.details["symm"])


def small_calls(check: Check) -> Iterator[Figure]:
    ranks = ",".join(map(str, RANKS))
    always = ("--backend", "symm", "--virtual-ranks", "-g", ranks, "--algo", "one_shot")
    file = check.collbench(
        "symm-graph",
        *always,
        "--sizes",
        "8",
        "--mode",
        "graph",
        "--place",
        "out",
        "--max-time",
        "1s",
    )
    yield from verified("symm in graph mode", file)
    for (_, n, _), ns in medians(file).items():
        what = f"one_shot of 8 B in graph mode, {n} virtual ranks"
        yield Figure(what=what, value=f"{ns / 1e3:.1f} us", goal="<= 15 us", met=ns <= 15_000)


def graphs(found: Mapping[str, Any]) -> Iterator[Figure]:
    """collbench's graphs against hand-written ones (gpu_graphs.py)."""
    if found.get("failure"):
        raise Failed(found["failure"])
    if found["why_not"]:
        raise NotMeasured(found["why_not"])
    for one in found["graphs"]:
        over, noise = (one[side] / one["bare"] - 1 for side in ("ours", "again"))
        value = (
            f"{over:+.1%} of {one['bare'] / 1e3:.2f} us a call (hand-written again: {noise:+.1%})"
        )
        yield Figure(
            what=f"harness overhead in graph mode, {one['what']}",
            value=value,
            goal="< 2 %",
            met=over < 0.02,
        )


def native(check: Check, most: int = max(RANKS)) -> Iterator[Figure]:
    """NCCL with a GPU for each rank, as far as there are."""
    ranks = [n for n in (1, *RANKS) if n <= min(check.gpus, most)]
    sweep = ("-b", "8", "-e", str(LARGEST), "-f", "8", "--place", "out", *BRIEFLY)
    yield from swept(check, "nccl", ranks, "--backend", "nccl", *sweep)


def shared(check: Check) -> Iterator[Figure]:
    """Two processes on a GPU: NCCL's ranks, and the kernels that several processes run. Right or
    wrong is all that it shows."""
    briefly = ("--share-gpu", *BRIEFLY)
    kernels = ("--sizes", "1K,1M", *briefly)
    yield from swept(
        check, "symm-shared", [2], *kernels, "--backend", "symm", "--algo", "ring,one_shot"
    )
    own = ("--backend", "torch_one_shot,torch_two_shot", "--place", "out")
    yield from swept(check, "torch-shared", [2], *kernels, *own)
    nccl = ("--backend", "nccl", "-b", "8", "-e", str(min(64 << 20, LARGEST)), "-f", "8", *briefly)
    yield from swept(check, "nccl-shared", [2], *nccl)


def swept(check: Check, name: str, ranks: Sequence[int], *options: str) -> Iterator[Figure]:
    listed = ",".join(map(str, ranks))
    what = f"{name}, {listed} ranks"
    try:
        file = check.collbench(name, "-g", listed, *options)
    except NotMeasured as e:
        yield explain(what, e)
        return
    yield from verified(what, file)
    check.details[name] = [
        {"algorithm": algorithm, "n": n, "nbytes": nbytes, "ns": ns}
        for (algorithm, n, nbytes), ns in medians(file).items()
    ]


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep that both programs can make in one cadence: in place, where torch has what NCCL has,
    or for one rank, of which NCCL does nothing in place, out of place. Small calls are captured in
    graphs by both: back to back they would show how fast Python issues them."""

    mode: str
    least: str
    most: str
    in_place: bool
    theirs: tuple[str, ...] = ()


STREAMED = Beside(mode="streaming", least="1M", most=str(LARGEST), in_place=True)
CAPTURED = Beside(mode="graph", least="8", most="1M", in_place=True, theirs=("-G", "1"))
ALONE = Beside(mode="streaming", least="1M", most=str(LARGEST), in_place=False)


def beside_nccl_tests(check: Check) -> Iterator[Figure]:
    """Rounds of both take turns, in the same cadence on the same NCCL."""
    folder = os.environ.get("NCCL_TESTS")
    if not folder:
        raise NotMeasured("$NCCL_TESTS names no folder with all_reduce_perf")
    sharing = ("--share-gpu",) if check.gpus < 2 else ()
    for n, options, way in ((1, (), ALONE), (2, sharing, STREAMED), (2, sharing, CAPTURED)):
        what = f"nccl-tests, {n} ranks{' sharing a GPU' if options else ''}, {way.mode}"
        ours, theirs, libraries = [], [], set()
        command = _nccl_tests(Path(folder) / "all_reduce_perf", n, bool(options))
        sweep = ("-b", way.least, "-e", way.most, "-f", "8")
        place = "in" if way.in_place else "out"
        mine = ("--backend", "nccl", "-g", str(n), *options, "--mode", way.mode, "--place", place)
        for turn in range(ROUNDS):
            name = f"beside-nccl-tests-{n}-{way.mode}-{turn}"
            file = check.collbench(name, *mine, *sweep, *BRIEFLY)
            ours.append({nbytes: ns for (_, _, nbytes), ns in medians(file).items()})
            asked = [*command, *sweep, "-n", "20", "-w", "5", "-c", "0", *way.theirs]
            times, library = read_nccl_tests(check.run(asked, _environment()), way.in_place)
            theirs.append(times)
            libraries |= {file.worlds[0].library.partition(" (")[0], library}
        table = [
            {
                "n": n,
                "mode": way.mode,
                "nbytes": nbytes,
                **{
                    side: statistics.median(r[nbytes] for r in rounds)
                    for side, rounds in (("ours", ours), ("theirs", theirs))
                },
            }
            for nbytes in ours[0]
            if all(nbytes in r for r in (*ours, *theirs))
        ]
        check.details.setdefault("nccl-tests", []).extend(table)
        yield compared(f"{what} ({' and '.join(sorted(libraries))})", table)


def compared(what: str, table: Sequence[Mapping[str, Any]]) -> Figure:
    """Every size's medians within 5 % or 2 us; back to back, those of calls that take so long that
    hosts have issued the next meanwhile."""
    alike = [row for row in table if row["mode"] == "graph" or row["theirs"] >= ALIKE_NS]
    if not alike:
        raise NotMeasured("no size is in both tables, or none takes long enough")
    far = [
        one for one in alike if abs(one["ours"] - one["theirs"]) > max(0.05 * one["theirs"], 2000)
    ]
    typical = statistics.median(one["ours"] / one["theirs"] - 1 for one in alike)
    value = f"{typical:+.1%} in the median of {len(alike)} sizes"
    if far:
        value += f"; off at {', '.join(str(one['nbytes']) for one in far)} B"
    return Figure(what=what, value=value, goal="each size within 5 % or 2 us", met=not far)


def _nccl_tests(binary: Path, n: int, sharing: bool) -> list[str]:
    """A process for all GPUs; ranks that share one need a process each, which takes a build with
    MPI."""
    if not binary.is_file():
        raise NotMeasured(f"there is no {binary}")
    if not sharing:
        return [str(binary), "-g", str(n)]
    mpirun = shutil.which("mpirun")
    if not mpirun:
        raise NotMeasured(
            "no mpirun on PATH, which nccl-tests needs for ranks that share a GPU (and MPI=1)"
        )
    settings = ("NCCL_TESTS_DEVICE=0", "NCCL_MULTI_RANK_GPU_ENABLE=1")
    exported = [word for setting in settings for word in ("-x", setting)]
    return [mpirun, "--oversubscribe", "-n", str(n), *exported, str(binary), "-g", "1"]


def _environment() -> dict[str, str]:
    """With torch's NCCL first in line, and Open MPI allowed to run as root, as in a container."""
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    folders = [f"{place}/lib" for place in (spec and spec.submodule_search_locations) or ()]
    path = os.pathsep.join([*folders, os.environ.get("LD_LIBRARY_PATH", "")]).strip(os.pathsep)
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **allowed, "LD_LIBRARY_PATH": path}


def read_nccl_tests(
    done: subprocess.CompletedProcess[str], in_place: bool
) -> tuple[dict[int, float], str]:
    """Nanoseconds by size, and the library."""
    try:
        reading = importers.read_log(
            done.stdout, importers.Asked(name="nccl-tests", collective="all_reduce")
        )
    except UsageError as e:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise NotMeasured(
            f"nccl-tests ended with {done.returncode}: {last[0] if last else e.message}"
        ) from e
    found = [(r, derive.derive_row(r)) for r in reading.records if r.case.in_place == in_place]
    return {r.case.nbytes: row.times.median for r, row in found if row}, reading.worlds[0].library


def gpu_tests(check: Check) -> Iterator[Figure]:
    told = check.folder / "gpu-tests.txt"
    # worlds of all GPUs would only take turns; under MPS blocks of several wait for each other
    at_once = "4" if check.gpus == 1 and not has_mps() else "1"
    workers = ["-n", at_once] if importlib.util.find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", str(HERE.parent / "gpu"), "--durations=15", *workers]
    try:
        done = check.run(
            ["sh", "-c", f"exec {shlex.join(command)} > {shlex.quote(str(told))} 2>&1"]
        )
    except NotMeasured as e:  # a test that hangs fails after pytest's own limit
        so_far = told.read_text() if told.exists() else ""
        failed = re.search(r"^[.sxR]*[FE]|Timeout", so_far, re.MULTILINE)
        yield Figure(
            what="tests/gpu", value=str(e), goal="none fails", met=False if failed else None
        )
        return
    last = (told.read_text().strip().splitlines() or [""])[-1].strip("= ")
    yield Figure(what="tests/gpu", value=last, goal="none fails", met=done.returncode == 0)


def missing() -> str:
    """What keeps torch from using a GPU, and what to do about it; or an empty string."""
    reason, hint = missing_gpu()
    if environment.gpu_count():
        hint += f"; make gpu-check TORCH='{TORCH_FOR[12]}' takes another torch"
    return f"{reason}\n  hint: {hint}" if reason else ""


Stages = dict[str, Callable[[Check, Mapping[str, Any]], Iterator[Figure]]]
SLICES: dict[str, Stages] = {
    "quick": {
        "one_shot of 8 B in graph mode": lambda check, _: small_calls(check),
        "first algorithms on symm": lambda check, inside: reference_algorithms(
            check, inside["copy_rate"], **FIRST
        ),
        "harness overhead in graph mode": lambda _, inside: graphs(inside),
        "nccl, alone": lambda check, _: native(check, 1),
    },
    "algorithms": {
        "reference algorithms on symm": lambda check, inside: reference_algorithms(
            check, inside["copy_rate"]
        ),
    },
    "nccl": {
        "nccl": lambda check, _: native(check),
        "nccl-tests": lambda check, _: beside_nccl_tests(check),
    },
    "tests": {"tests/gpu": lambda check, _: gpu_tests(check)},
    "shared": {"two processes on a GPU": lambda check, _: shared(check)},
}
"""In the order of what is to be known first; what may hang comes last."""


def measured(check: Check, inside: Mapping[str, Any], stages: Stages) -> list[Figure]:
    """All figures; what cannot be measured says why and the rest goes on."""
    figures: list[Figure] = []
    for what, stage in stages.items():
        try:
            for figure in stage(check, inside):
                figures.append(figure)
        except (NotMeasured, CollbenchError) as e:
            figures.append(explain(what, e))
        print(f"{what}: {figures[-1].value}", file=sys.stderr, flush=True)
    return figures


def page(figures_by_machine: Mapping[str, Sequence[Figure]]) -> str:
    """A table for each machine and day."""
    words = {True: "yes", False: "no", None: ""}
    lines = ["# collbench on GPUs", "", "Made by `make gpu-check`."]
    for machine, figures in figures_by_machine.items():
        lines += ["", f"## {machine}", ""]
        lines += ["| what | measured | goal | met |", "|---|---|---|---|"]
        lines += [
            f"| {f.what} | {f.value.replace('|', '/')} | {f.goal} | {words[f.met]} |"
            for f in figures
        ]
    return "\n".join(lines) + "\n"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a slice leaves: the machine and day, what it says of itself, ``inside``
    (gpu_graphs.py), the table, and what is behind it."""

    machine: str
    environment: dict[str, Any]
    inside: dict[str, Any]
    figures: list[Figure]
    details: dict[str, list[dict[str, Any]]]


def told(folder: Path) -> str:
    """The page of all slices that are there, each below the machine and day that it was made on,
    with the rate of copies that its bounds are made of."""
    tables: dict[str, list[Figure]] = {}
    for name in SLICES:
        path = folder / f"gpu-check-{name}.json"
        if path.exists():
            report = msgspec.json.decode(path.read_bytes(), type=Report)
            what = f"{name}: copies within device memory, read and written"
            copies = Figure(what=what, value=f"{report.inside['copy_rate']:.0f} GB/s")
            tables.setdefault(report.machine, []).extend([copies, *report.figures])
    return page(tables)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--slice", action="append", choices=SLICES, help="all, unless told")
    chosen = parser.parse_args()
    if why := missing():
        print(f"gpu-check: {why}; collbench doctor says more", file=sys.stderr)
        return Exit.CANNOT_RUN
    chosen.output.mkdir(parents=True, exist_ok=True)
    done = Check(chosen.output, 0).run([sys.executable, str(HERE / "gpu_graphs.py")])
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return Exit.BAD
    inside = msgspec.json.decode(done.stdout.strip().splitlines()[-1])
    about = environment.gather_facts()
    software = f"{inside['software']}, driver {about['gpus'].get('driver')}"
    machine = f"{inside['gpus']} x {inside['device']}, {software}, {datetime.now(UTC):%Y-%m-%d}"
    found: list[Figure] = []
    for name in chosen.slice or SLICES:
        check = Check(chosen.output, inside["gpus"])
        figures = measured(check, inside, SLICES[name])
        found += figures
        whole = Report(
            machine=machine,
            environment=about,
            inside=inside,
            figures=figures,
            details=check.details,
        )
        encoded = msgspec.json.format(msgspec.json.encode(whole))
        (chosen.output / f"gpu-check-{name}.json").write_bytes(encoded)
        (chosen.output / "gpu-check.md").write_text(told(chosen.output))
    print(told(chosen.output))
    return judge(found)


def judge(figures: Sequence[Figure]) -> Exit:
    """The exit status."""
    if any(figure.met is False and figure.goal in ("all", "none fails") for figure in figures):
        return Exit.BAD
    is_any_known = any(figure.met is not None or "cut short" in figure.value for figure in figures)
    return Exit.OK if is_any_known else Exit.CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
