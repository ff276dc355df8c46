"""What becomes of a run when something is broken on purpose: faults by world and moment.

``python tests/perf/faults.py --output reports/faults.md [--trials 20] [--only PATTERN]`` (make
faults).

A trial is one all_reduce of 2 or 4 ranks with a folder for TMPDIR and, as root, a /dev/shm of its
own; its processes are found by a mark in their environment. A rank drawn by the seed, its warden
(its parent process under mpirun) or another process is hit at a time drawn by the seed: while ranks
start, while they measure, or when all is measured, where each rank stays a second longer for it.
Exit code 1 where anything is not as it should be; ``--keep FOLDER``
has what was said then. ``--so-far FILE`` keeps every trial with its seed and day, and goes on with
those it has of this seed; what an older script kept there has neither, and counts as of the asked
seed and of the day that ``--date`` says. ``--minutes`` has no trial begin after that time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import sections

from collbench.core.errors import CollbenchError
from collbench.records import run_file
from collbench.run.launch import folders, mpirun

WORLDS = ("gloo", "shm", "mpi", "gloo under torchrun", "gloo under mpirun", "mpi under mpirun")
PHASES = ("starting", "measuring", "leaving")
RANKS = (2, 4)
OF_RANK = ("kill of a rank", "stop of a rank", "a rank out of memory")
OF_WARDEN = ("kill of a warden", "stop of a warden", "a warden out of memory")
TWICE = "SIGINT twice to collbench"
ASKED = {
    "SIGHUP to collbench": signal.SIGHUP,
    "SIGINT to collbench": signal.SIGINT,
    TWICE: signal.SIGINT,
    "SIGTERM to collbench": signal.SIGTERM,
}
SIGNALS = {**ASKED, "kill of collbench": signal.SIGKILL}
OF_PARENT = "kill of fork server or mpirun"
FAULTS = (*OF_RANK, *OF_WARDEN, *SIGNALS, OF_PARENT)
MARK = "COLLBENCH_TRIAL"
TIMEOUT = 10  # -T
LIMIT = TIMEOUT + 20  # seconds from the fault to the end of every process
UP = 90.0  # seconds for a world to come to its phase
SIZES = ("4K", "64K", "1M")
SWEEP = ["all_reduce", "--sizes", ",".join(SIZES), "-n", "300", "--place", "out", "-T"]
SWEEP += [str(TIMEOUT), "--order", "size", "--format", "nccl"]
LAUNCH = "collbench.run.launch."
COLLBENCH = [sys.executable, "-m", "collbench"]
LINGER = """
import time
from collbench.run.launch import join, world
def longer(kind, name, when):
    before = getattr(kind, name)
    def after(self, *arguments):
        before(self, *arguments)
        if when(*arguments):
            time.sleep(1)
    setattr(kind, name, after)
longer(world.Channel, "send", lambda said: said.done)
longer(join.MemberWatch, "end", lambda: True)
"""


class Cell(NamedTuple):
    fault: str
    world: str
    phase: str
    ranks: int = 2

    @property
    def local(self) -> bool:
        return "under" not in self.world

    @property
    def words(self) -> str:
        return f"{self.fault}, {self.world}, {self.phase}, {self.ranks} ranks"

    def why_not(self) -> str:
        """Why the cell makes no sense, or ""."""
        if self.fault == OF_PARENT and not self.local:
            return "ranks under torchrun or mpirun are not collbench's to end: they measure on"
        return ""

    def codes(self) -> set[int] | None:
        """Exit codes as documented; None for any but 0, where a launcher has its own, or for any at
        all while such a world leaves."""
        if self.fault in SIGNALS and self.local:
            ends = {-9} if self.fault == "kill of collbench" else {130}
            return ends | ({0} if self.phase == "leaving" else set())
        if self.local:  # the rank hit first may not have come to its last phase yet
            return {0, 4} if self.phase == "leaving" else {4}
        return None

    def names(self, code: int | None) -> bool:
        """Whether a rank is to be named by a command that ended so."""
        if self.phase == "leaving" and self.fault != OF_RANK[1]:
            return self.fault in OF_RANK and self.local and code == 4
        return self.fault in OF_RANK + OF_WARDEN

    def is_harmless(self, code: int | None) -> bool:
        """Whether a limit of memory did nothing, as no more was needed."""
        return self.fault in (OF_RANK[2], OF_WARDEN[2]) and code == 0

    def asks(self, code: int | None) -> set[str]:
        """The checks that a trial which ended so can fail."""
        left_out = set()
        if not self.local and self.phase == "leaving":
            left_out.add(CODE)
        if not self.names(code) or self.is_harmless(code):
            left_out.add(RIGHT)
        if self.fault in SIGNALS:
            left_out.add(OTHERS)
        return set(CHECKS) - left_out


class Seen(NamedTuple):
    """What came of a trial: of ``checks`` those that it could fail. One whose fault came too late
    ended by itself: only how is looked at."""

    hit: bool
    code: int | None
    said: str
    seconds: float
    checks: dict[str, bool]
    day: str = ""
    machine: str = ""

    @property
    def wrong(self) -> list[str]:
        return [name for name, well in self.checks.items() if not well]


class Kept(NamedTuple):
    cell: Cell
    number: int
    seen: Seen
    seed: int | None = None


CODE, RIGHT, OTHERS = "exit code", "right rank named", "nobody else named"
SHARED, WHOLE = "/dev/shm empty", "run file whole"
CHECKS = (
    "ended in time",
    CODE,
    RIGHT,
    OTHERS,
    "no process left",
    "no file left",
    SHARED,
    WHOLE,
)


def describe_machine() -> str:
    return f"{os.cpu_count()} CPUs, Python {platform.python_version()}"


@contextmanager
def shared_memory() -> Iterator[tuple[list[str], Path | None]]:
    """What to put before a command that is to have an empty /dev/shm of its own, and where that is
    seen; nothing without root."""
    if os.getuid():
        yield [], None
        return
    own = "mount -t tmpfs tmpfs /dev/shm; echo; exec sleep 600"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", own]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        place = Path(f"/proc/{holder.pid}/root/dev/shm")
        try:
            yield ["nsenter", "-t", str(holder.pid), "-m", "--"], place
        finally:
            holder.kill()


def _read_error(process: psutil.Process) -> str:
    """Where the standard error of a process goes."""
    try:
        return str(Path(f"/proc/{process.pid}/fd/2").readlink())
    except FileNotFoundError as error:
        raise psutil.NoSuchProcess(process.pid) from error


class Trial:
    """One run, from its start to whatever it leaves."""

    def __init__(self, cell: Cell, seed: str) -> None:
        self._cell, self._random = cell, random.Random(seed)
        self._mark = f"{os.getpid()}-{seed}"
        self._rank = 0 if cell.fault in SIGNALS else self._random.randrange(cell.ranks)
        self._harmed = False

    def run(self) -> Seen:
        with ExitStack() as stack:
            root = Path(tempfile.mkdtemp(prefix="faults-"))
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            stack.callback(self._end_all)
            before, shared = stack.enter_context(shared_memory())
            said = (root / "said").open("w+")
            stack.enter_context(closing(said))
            self._path, self._tmp = root / "run.jsonl", root / "tmp"
            self._tmp.mkdir()
            self._process = subprocess.Popen(
                [*before, *self._command()],
                env=self._environment(root),
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
                cwd=root,
            )
            hit = self._strike()
            began = time.monotonic()
            ended = self._ended()
            took = time.monotonic() - began
            code = self._process.poll()
            text = Path(said.name).read_text(errors="replace")
            checks = self._checks(ended, code, text, shared) if hit else self._unhit(ended, code)
            return Seen(hit, code, text, took, checks, sections.today(), describe_machine())

    def _command(self) -> list[str]:
        backend, n = self._cell.world.split()[0], str(self._cell.ranks)
        collbench = [*SWEEP, "--backend", backend, "--output", str(self._path)]
        collbench += ["--algo", "ring"] if backend == "shm" else []
        if self._cell.local:
            return [*COLLBENCH, *collbench, "-g", n]
        if "torchrun" in self._cell.world:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n]
            return [sys.executable, *torchrun, "-m", "collbench", *collbench]
        return [mpirun.find_mpirun(), "-n", n, *COLLBENCH, *collbench]

    def _environment(self, root: Path) -> dict[str, str]:
        more = {MARK: self._mark, "TMPDIR": str(self._tmp), "COLLBENCH_HOME": str(root / "home")}
        if not self._cell.local:
            more |= mpirun.SETTINGS | mpirun.AS_ROOT
        if self._cell.phase == "leaving":
            (root / "linger").mkdir()
            (root / "linger" / "sitecustomize.py").write_text(LINGER)
            paths = [str(root / "linger"), os.environ.get("PYTHONPATH")]
            more["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return {**os.environ, **more}

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def _victim(self) -> psutil.Process | None:
        """Whom the fault hits, once it is there."""
        if self._cell.fault in SIGNALS and self._cell.local:
            return psutil.Process(self._process.pid)
        mine = [process for process in self._processes() if process.is_running()]
        if self._cell.fault == OF_PARENT:
            kind = "prterun" if self._cell.world == "mpi" else LAUNCH + "forkserver"
            parents = [p for p in mine if kind in (p.name(), *p.cmdline())]
            alone = [p for p in parents if p.ppid() not in {other.pid for other in parents}]
            return alone[0] if alone else None
        if self._cell.fault in OF_WARDEN:
            return next(filter(self._is_warden, mine), None)
        ranks = [process for process in mine if self._is_rank(process)]
        if self._cell.world in ("gloo", "shm"):  # forked in their order
            ranks = sorted(ranks, key=lambda process: process.pid)[self._rank :]
        return ranks[0] if ranks else None

    def _is_warden(self, process: psutil.Process) -> bool:
        parent, place = process.parent(), process.environ().get("OMPI_COMM_WORLD_RANK")
        above = parent is not None and parent.name() in ("mpirun", "prterun")
        return above and place == str(self._rank)

    def _writes_as_rank(self, process: psutil.Process) -> bool:
        """Whether a process has the standard error of the rank's warden, as only its rank has."""
        warden = next(filter(self._is_warden, self._processes()), None)
        return warden is not None and _read_error(process) == _read_error(warden)

    def _is_rank(self, process: psutil.Process) -> bool:
        parent, command = process.parent(), process.cmdline()
        if parent is None:
            return False
        if self._cell.local:  # forked, and of one command line with who made it
            makers = {LAUNCH + "forkserver", LAUNCH + "mpirun"}
            alike = parent.cmdline() == command and not makers.isdisjoint(command)
            return alike and (self._cell.world != "mpi" or self._writes_as_rank(process))
        variable = "RANK" if "torchrun" in self._cell.world else "OMPI_COMM_WORLD_RANK"
        place = process.environ().get(variable, "")
        return "all_reduce" in command and place == str(self._rank)

    def _lines(self, kind: str) -> int:
        text = self._path.read_text() if self._path.exists() else ""
        return text.count(f'{{"line":"{kind}"')

    def _strike(self) -> bool:
        """Wait for the moment and do the harm; whether somebody was there for it."""
        phase, until = self._cell.phase, time.monotonic() + UP
        wanted = {"starting": 0, "measuring": 1, "leaving": len(SIZES)}[phase]
        victim = None
        while victim is None:
            if self._process.poll() is not None or time.monotonic() > until:
                return False
            if self._lines("record") >= wanted:
                with suppress(psutil.Error):
                    victim = self._victim()
            time.sleep(0.02)
        early = (0.3, 3.0) if self._cell.fault in SIGNALS and self._cell.local else (0.0, 0.5)
        spread = {"starting": early, "measuring": (0.0, 0.5), "leaving": (0.1, 0.4)}[phase]
        time.sleep(self._random.uniform(*spread))
        try:
            self._harm(victim)
        except (psutil.Error, ProcessLookupError):
            return False
        self._harmed = True
        return phase != "measuring" or self._lines("record") < len(SIZES)

    def _harm(self, victim: psutil.Process) -> None:
        fault = self._cell.fault
        if fault in (OF_RANK[1], OF_WARDEN[1]):
            victim.suspend()
        elif fault in (OF_RANK[2], OF_WARDEN[2]):
            victim.rlimit(resource.RLIMIT_AS, (victim.memory_info().vms + (1 << 20),) * 2)
        else:
            victim.send_signal(SIGNALS.get(fault, signal.SIGKILL))
        if fault == TWICE:
            time.sleep(self._random.uniform(0.0, 0.1))
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGINT)

    def _ended(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LIMIT + 30 * ("torchrun" in self._cell.world))
            return True
        return False

    def _end_all(self) -> None:
        for process in self._processes():
            with suppress(psutil.Error):
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def _checks(
        self, ended: bool, code: int | None, said: str, shared: Path | None
    ) -> dict[str, bool]:
        cell, named = self._cell, culprits(said, self._cell.local)
        codes, harmless = cell.codes(), cell.is_harmless(code)
        victims = {self._rank} if cell.fault in OF_RANK + OF_WARDEN else set()
        found = (
            ended,
            code in codes or harmless if codes is not None else bool(code) or harmless,
            self._rank in named,
            not named - victims,
            self._all_gone(),
            self._no_file(),
            None if shared is None else self._is_shared_empty(shared),
            self._whole(),
        )
        asked, results = cell.asks(code), zip(CHECKS, found, strict=True)
        return {name: well for name, well in results if name in asked and well is not None}

    def _unhit(self, ended: bool, code: int | None) -> dict[str, bool]:
        """The checks of a run whose fault came too late or never, as its world did not come so
        far: then it has to be ended, and well."""
        found = ended, self._harmed or code == 0, self._all_gone(), self._no_file()
        return dict(zip((*CHECKS[:2], *CHECKS[4:6]), found, strict=True))

    def _all_gone(self) -> bool:
        until = time.monotonic() + 3
        while self._processes():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def _no_file(self) -> bool:
        """Whether nothing lies in TMPDIR, once it is swept as the next start does."""
        folders.sweep_folders(self._tmp)
        return not list(self._tmp.glob("*" if self._cell.local else "collbench*"))

    def _is_shared_empty(self, shared: Path) -> bool:
        """But for what Open MPI leaves where its mpirun or launching process is killed outright."""
        outright = self._cell.fault in (OF_PARENT, "kill of collbench")
        left = [path.name for path in shared.iterdir()]
        return not left or (outright and all(name.startswith("sm_segment") for name in left))

    def _whole(self) -> bool | None:
        """Whether the run's file is; None where none has been begun."""
        if not self._path.exists():
            return None if self._cell.phase == "starting" else False
        try:
            run = run_file.read_file(self._path)
        except CollbenchError:
            return False
        # which is told of before a launcher ends all; rank 0 writes the file
        stopped = self._cell.fault == OF_RANK[1] and self._rank > 0
        killed = self._cell.fault == "kill of collbench" or not (self._cell.local or stopped)
        return self._path.read_bytes().endswith(b"\n") and (killed or run.end is not None)


def culprits(said: str, local: bool) -> set[int]:
    """Ranks that collbench blames, else those that the launcher does."""
    told = "\n".join(line for line in said.splitlines() if line.startswith(("collbench:", "rank ")))
    speaker = r"rank \d+ on \S+ lost |rank \d+ of \d+ on \S+ \([^)]*\)+ did not reach "
    said, told = (re.sub(speaker, "", text) for text in (said, told))
    told = told.split(" never came")[0]
    found = re.findall(r"\brank (\d+)", told)
    if not found and not local:
        cause = said.partition("Root Cause")[2] or said
        found = re.findall(r"\brank\s*:?\s*(\d+)|\[prterun-\S+@\d+,(\d+)\]", cause)[:1]
        found = ["".join(either) for either in found]
    return {int(rank) for rank in found}


def checked(cell: Cell, trial: Seen) -> set[str]:
    """What a trial could fail: an older script kept that it passed the rest."""
    return cell.asks(trial.code) & set(trial.checks)


def count(name: str, asked: Sequence[Seen], hit: Sequence[Seen]) -> str:
    """How many passed, bold where not all that were asked did."""
    passed = sum(trial.checks[name] for trial in asked)
    text = str(passed) if len(asked) == len(hit) else f"{passed} of {len(asked)}"
    return "-" if not asked else text if passed == len(asked) else f"**{text}**"


def table(seen: dict[Cell, list[Seen]]) -> Iterator[str]:
    yield f"| fault | world | while | ranks | trials | too late | median s | {' | '.join(CHECKS)} |"
    yield f"|---|---|---|{'--:|' * (len(CHECKS) + 4)}"
    for cell, trials in seen.items():
        if not trials:
            continue
        hit = [trial for trial in trials if trial.hit]
        took = sorted(trial.seconds for trial in hit)
        shown = [count(name, [t for t in hit if name in checked(cell, t)], hit) for name in CHECKS]
        middle = f"{took[len(took) // 2]:.1f}" if took else "-"
        unhit = [trial for trial in trials if not trial.hit]
        late = f"**{len(unhit)}**" if any(trial.wrong for trial in unhit) else str(len(unhit))
        names = " | ".join(map(str, cell))
        yield f"| {names} | {len(trials)} | {late} | {middle} | {' | '.join(shown)} |"


def describe_asked(seen: dict[Cell, list[Seen]]) -> str:
    """How many trials could fail each check."""
    hit = [(cell, trial) for cell, trials in seen.items() for trial in trials if trial.hit]
    asked = {name: sum(name in checked(*each) for each in hit) for name in CHECKS}
    numbers = ", ".join(f"{name} {number}" for name, number in asked.items())
    return f"Of {len(hit)} trials whose fault came in time, so many could fail a check: {numbers}."


def text(seen: dict[Cell, list[Seen]], left_out: Sequence[Cell], asked: argparse.Namespace) -> str:
    days = sections.between(t.day or asked.date for trials in seen.values() for t in trials)
    every = [trial for trials in seen.values() for trial in trials]
    machines = dict.fromkeys(trial.machine or describe_machine() for trial in every)
    hit = [trial for trial in every if trial.hit]
    well = sum(not trial.wrong for trial in hit)
    struck = sum(any(trial.hit for trial in trials) for trials in seen.values())
    late = f" In {len(every) - len(hit)} others it came too late." if len(every) > len(hit) else ""
    left = "; time was over before the rest" if not all(seen.values()) else ""
    why = dict.fromkeys(f"- {c.fault}, {c.world}: {c.why_not()}." for c in left_out)
    shm = "" if os.getuid() == 0 else " /dev/shm was not looked at, which takes root."
    return "\n".join(
        [
            "# What becomes of a run when something breaks",
            "",
            f"{well} of {len(hit)} trials whose fault came in time were as documented, of {struck}"
            f" of {len(seen)} cells{left}.{late} Made by `python tests/perf/faults.py --trials"
            f" {asked.trials} --seed {asked.seed} --at-once {asked.at_once}` on"
            f" {'; '.join(machines)}, {days}; -T {TIMEOUT}.{shm}",
            "",
            "A number is how many trials passed the check, of those whose fault came in time and"
            " that could fail it: `1 of 2` where not all could, bold where any failed, - where none"
            f" could. {describe_asked(seen)} Where a fault came too late, a run that did not end"
            " well by itself, or left something, makes the number of those bold. Median s: from the"
            f" fault to the end of the command, which may take {LIMIT} s, and 30 s more of"
            " torchrun, which waits that long for a stopped rank that has not reached the others."
            " Where a rank needs no more memory, its limit does nothing, and exit code 0 is right."
            " Of a launcher's world any exit code but 0 is right, and any at all while it leaves,"
            " the launcher may be who names the rank, and it is rank 0 that writes the run's file:"
            " where that is stopped or a launcher ends it, its last line may be no end, which"
            " --resume makes good. What a killed collbench leaves in TMPDIR is to be gone after the"
            " next start; Open MPI's own segments in /dev/shm are not counted then.",
            "",
            *table(seen),
            "",
            "Left out:",
            "",
            *why,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--only", default="", help="a pattern of 'fault, world, while, ranks'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no trial later")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--so-far", type=Path, default=Path(os.devnull))
    parser.add_argument("--date", default=sections.today(), help="of trials kept without one")
    asked = parser.parse_args()
    every = [Cell(*names) for names in itertools.product(FAULTS, WORLDS, PHASES, RANKS)]
    # only ranks that collbench has mpirun start have wardens, which only wait once these are there
    every = [c for c in every if c.fault not in OF_WARDEN or c[1:3] == ("mpi", "starting")]
    cells = [c for c in every if re.search(asked.only, c.words) and not c.why_not()]
    left_out = [cell for cell in every if cell.why_not()]
    seen: dict[Cell, list[Seen]] = {cell: [] for cell in cells}

    so_far = asked.so_far.read_text().splitlines() if asked.so_far.exists() else []
    kept = [Kept(*entry) for entry in map(json.loads, so_far)]
    before = {
        (Cell(*trial.cell), trial.number): Seen(*trial.seen)
        for trial in kept
        if trial.seed in (None, asked.seed)
    }

    until = time.monotonic() + 60 * asked.minutes

    def one(job: tuple[Cell, int]) -> tuple[Cell, int, Seen | None]:
        cell, number = job
        if job not in before and time.monotonic() >= until:
            return cell, number, None
        if job not in before:
            before[job] = Trial(cell, f"{asked.seed}-{cell.words}-{number}").run()
            with asked.so_far.open("a") as file:
                file.write(json.dumps(Kept(cell, number, before[job], asked.seed)) + "\n")
        return cell, number, before[job]

    with ThreadPoolExecutor(asked.at_once) as pool:
        jobs = [(cell, number) for number in range(asked.trials) for cell in cells]
        for cell, number, trial in pool.map(one, jobs):
            if trial is None:
                continue
            seen[cell].append(trial)
            if trial.wrong:
                print(f"{cell.words} ({number}): {trial.wrong}, exit {trial.code}", file=sys.stderr)
                if asked.keep:
                    asked.keep.mkdir(parents=True, exist_ok=True)
                    place = asked.keep / f"{cell.words.replace(', ', '-')}-{number}.txt"
                    place.write_text(trial.said)
            if asked.output:  # after every trial: it takes hours
                asked.output.write_text(text(seen, left_out, asked))
    if not asked.output:
        print(text(seen, left_out, asked))
    unseen = [cell for cell, trials in seen.items() if trials and not any(t.hit for t in trials)]
    for cell in unseen:
        print(f"{cell.words}: the fault never came in time", file=sys.stderr)
    return int(bool(unseen) or any(trial.wrong for trials in seen.values() for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
