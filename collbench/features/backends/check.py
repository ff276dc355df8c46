"""A backend held to its contract, from the planning process: sweeps as any user would run them, and
the checks that ranks make themselves (trial.py)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core.backend_info import backend_info, find_file
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.errors import CannotRun, CollbenchError
from collbench.core.text import format_count
from collbench.features.backends.findings import CheckRow, ContractFindings, State
from collbench.features.backends.measurable import ContractRequest
from collbench.machine import environment
from collbench.records.types import Record, World
from collbench.run import refusal, session
from collbench.run.order import Order
from collbench.run.reporter import Gathered
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

HEAVY = ("torch", "jax", "mlx", "mpi4py", "tensorflow", "paddle", "mindspore", "xgboost", "cupy")
IMPORT_MS = 50  # from which reading INFO is slow enough to be told of
RANKS, MORE_RANKS, GROUPED_RANKS = 2, (2, 3, 4), 4
FEW, MANY = (1000,), (1, 3, 1000)  # elements of each rank's share or buffer
LARGE = 1 << 20  # elements
HUNG_S, GRACE_S = 5.0, 40.0  # -T of a planted hang, and what telling of it may take beyond
SLOWER = 3.0  # times as long as before, that ranks may take to open the backend
NAMED = 3  # wrong rows, or reasons, that one line names
HOST_IPC, HOST_PID = 0xEFFFFFFF, 0xEFFFFFFC  # inodes of the first namespaces (linux/proc_ns.h)
ONCE = Policy(
    iters=1, warmup=0, batch=1, cache="hot", order="size", max_seconds=1.0, min_seconds=0.0
)
IMPORT_PROGRAM = """
import sys, time
for name in {heavy!r}:
    sys.modules[name] = None
import collbench.run.backends  # what a backend's file may import of collbench
from collbench.core.backend_info import {reader}
began = time.perf_counter()
{reader}({word!r})
print(1e3 * (time.perf_counter() - began))
"""


class Finished(NamedTuple):
    """What came of one sweep: its records, what was left out, and what broke it, if anything
    did; ``refused``: this machine could not open the backend for any of its ranks."""

    records: list[Record]
    skips: Sequence[Skip]
    worlds: list[World]
    trouble: str
    seconds: float
    refused: bool = False


def check_backend(name: str, quick: bool, tell: Callable[[str], object]) -> Iterator[CheckRow]:
    """A row for each check of the backend called ``name``, as they are done; ``tell`` hears of each
    before it begins. All checks take three minutes at most on four cores, half a minute where
    ``quick``."""
    info = backend_info(name)
    tell("import")
    yield check_import(name)
    if reason := info.here():
        yield CheckRow(check="meaning", state="skipped", text=reason)
        return
    tell("meaning")
    meaning = sweep_everything(name, quick)
    yield judge_meaning(meaning)
    right = _pick_case([record.case for record in meaning.records if record.status == "ok"])
    if right is None:
        return
    tell("checks on the ranks")
    yield from ask_ranks(name, quick)
    tell("groups")
    yield check_groups(right)
    tell("planted")
    opened = max((world.init_ns for world in meaning.worlds), default=0) / 1e9
    yield check_planted(right, max(HUNG_S, SLOWER * opened))
    tell("again")
    yield _check_again(right)


def describe_origin(name: str) -> str:
    """Where the backend comes from, in words, for a table's head."""
    from collbench.core.backend_info import find_origin

    return find_origin(name) or "collbench's own"


def _measure_suite(suite: Suite) -> Finished:
    """Run a suite of the checks, of which nothing is kept."""
    reporter = Gathered()
    reporter.worlds = {}
    began, trouble, refused = time.monotonic(), "", False
    try:
        order = Order(suite=suite, command=sys.argv, save=False, launcher="local")
        session.execute_order(order, lambda: reporter)
    except CollbenchError as e:
        trouble, refused = e.reason, isinstance(e, CannotRun)
        # which a backend that refuses everything anywhere does to itself
        refused = refused and not all(map(refusal.refuse_anywhere, suite.expand()[0]))
    records = [record for record, _ in reporter.arrived]
    seconds = time.monotonic() - began
    worlds = list(reporter.worlds.values())
    if not trouble and reporter.ended:
        trouble = reporter.ended.note
    refused = refused and not worlds
    return Finished(records, reporter.skips, worlds, trouble, seconds, refused)


def _make_axes(name: str, **values: Any) -> Axes:
    common: dict[str, Any] = {
        "backends": (name,),
        "algorithms": ("native" if backend_info(name).native else "ring",),
        "modes": ("host",),
        "in_place": (False,),
    }
    return Axes(**{**common, **values})


# the checks


def check_import(name: str) -> CheckRow:
    """INFO read in a process of its own, in which libraries cannot be imported."""
    file = find_file(name)
    reader, word = ("resolve_backend", file.word) if file else ("backend_info", name)
    program = IMPORT_PROGRAM.format(heavy=HEAVY, reader=reader, word=word)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        text = f"without {', '.join(HEAVY[:4])} and others: {last}"
        return CheckRow(check="import", state="failed", text=text)
    took = float(done.stdout.split()[-1])
    state: State = "note" if took > IMPORT_MS else "ok"
    text = f"{took:.0f} ms" + f": more than {IMPORT_MS} ms delay each command" * (state == "note")
    return CheckRow(check="import", state=state, text=text)


def sweep_everything(name: str, quick: bool) -> Finished:
    """Every collective with every datatype, reduction, root and place, in few elements; and many
    elements of a sum."""
    sweeps = []
    for width in sorted({dtype.size for dtype in DTYPES.values()}):
        dtypes = tuple(dtype.name for dtype in DTYPES.values() if dtype.size == width)
        counts = FEW if quick else MANY
        sweeps.append(
            _make_axes(
                name,
                collectives=tuple(COLLECTIVES),
                sizes=tuple(width * count * RANKS for count in counts),
                dtypes=dtypes,
                ops=tuple(OPS),
                roots=(0, 1),
                in_place=(False, True),
                ranks=(RANKS,) if quick else MORE_RANKS,
            )
        )
    if not quick:
        sizes = (4 * LARGE,)
        both = (False, True)
        sweeps.append(
            _make_axes(
                name, collectives=tuple(COLLECTIVES), sizes=sizes, in_place=both, ranks=(RANKS,)
            )
        )
    first, *others = sweeps
    return _measure_suite(Suite(name="meaning", axes=first, includes=tuple(others), policy=ONCE))


def judge_meaning(done: Finished) -> CheckRow:
    """Rows that were right, refused and wrong."""
    if done.refused:
        return CheckRow(check="meaning", state="skipped", text=done.trouble)
    by_status = Counter(record.status for record in done.records)
    wrong = [record for record in done.records if record.status == "wrong"]
    broken = [record for record in done.records if record.status not in ("ok", "wrong", "skipped")]
    reasons = [skip.reason for skip in done.skips]
    reasons += [record.note for record in done.records if record.status == "skipped"]
    right = dict.fromkeys(r.case.collective for r in done.records if r.status == "ok")
    parts = [f"{by_status['ok']:,} cases right ({', '.join(right) or 'none'})"]
    if reasons:
        parts.append(f"{len(reasons):,} refused: {_count_reasons(reasons)}")
    if done.trouble or broken:
        trouble = done.trouble or broken[0].note
        return CheckRow(check="meaning", state="failed", text="; ".join([trouble, *parts]))
    if wrong:
        named = "; ".join(map(_describe_wrong, wrong[:NAMED]))
        parts.insert(0, f"{len(wrong):,} cases wrong: {named}")
        return CheckRow(check="meaning", state="failed", text="; ".join(parts))
    state: State = "ok" if by_status["ok"] else "failed"
    return CheckRow(check="meaning", state=state, text="; ".join(parts))


def _describe_wrong(record: Record) -> str:
    case = record.case
    place = "in place" if case.in_place else "out of place"
    op = f" {case.op}" if case.row.reduces else ""
    return f"{case.collective}{op} of {case.dtype}, {case.nbytes} B, {case.n} ranks, {place}"


def _count_reasons(reasons: Sequence[str]) -> str:
    """The most frequent reasons, with how often each was given."""
    counts = Counter(reasons)
    named = [f"{reason} ({number:,})" for reason, number in counts.most_common(NAMED)]
    left = len(counts) - NAMED
    return "; ".join(named) + (f"; {format_count(left, 'other reason')}" if left > 0 else "")


def _pick_case(cases: Sequence[Case]) -> Case | None:
    """A case that came out right, by which other checks are made: an all_reduce of floats out of
    place, or what is most like it."""

    def unlike(case: Case) -> tuple[bool, ...]:
        return (
            case.in_place,
            case.row.rooted,
            case.collective != "all_reduce",
            case.dtype != "float",
            case.op not in ("sum", "none"),
        )

    fit = [case for case in cases if case.row.moves_data and not case.row.rooted]
    return min(fit or cases, key=unlike, default=None)


def ask_ranks(name: str, quick: bool) -> Iterator[CheckRow]:
    """The checks that ranks make."""
    axes = _make_axes(name, collectives=(), sizes=(), ranks=(RANKS,))
    suite = Suite(
        name="contract",
        axes=axes,
        policy=msgspec.structs.replace(ONCE, timeout=60.0),
        requests=(ContractRequest(quick=quick),),
    )
    done = _measure_suite(suite)
    found = next((record.findings for record in done.records if record.findings), None)
    findings = msgspec.convert(found, ContractFindings) if found else ContractFindings(rows=[])
    yield from findings.rows
    notes = [record.note for record in done.records if record.note]
    if findings.at or done.trouble or not findings.rows:
        where = findings.at or "contract"
        trouble = done.trouble or next(iter(notes), "the ranks reported nothing")
        yield CheckRow(check=where, state="failed", text=trouble)


def _make_similar_axes(right: Case, **values: Any) -> Axes:
    """A sweep of one case like that which came out right."""
    return _make_axes(
        right.backend,
        **{
            "collectives": (right.collective,),
            "sizes": (4096,),
            "dtypes": (right.dtype,),
            "ops": (right.op,) if right.row.reduces else ("sum",),
            "in_place": (right.in_place,),
            "ranks": (RANKS,),
            **values,
        },
    )


def check_groups(right: Case) -> CheckRow:
    """Two groups of two ranks, measured at once, each with data of its own."""
    info, gpus = backend_info(right.backend), environment.gpu_count()
    if info.groups == "none":
        return CheckRow(check="groups", state="skipped", text="INFO.groups is none")
    if info.gpu == "each" and 0 < gpus < GROUPED_RANKS:
        lack = refusal.describe_gpu_lack(GROUPED_RANKS, gpus)
        return CheckRow(check="groups", state="skipped", text=lack)
    what = f"{right.collective} with --split mod:2 on {GROUPED_RANKS} ranks"
    axes = _make_similar_axes(right, ranks=(GROUPED_RANKS,), groups="mod:2", sizes=(4096, 65536))
    done = _measure_suite(Suite(name="groups", axes=axes, policy=ONCE))
    bad = [record for record in done.records if record.status != "ok"]
    if done.trouble or bad or not done.records:
        notes = [record.note for record in bad] + [skip.reason for skip in done.skips]
        text = done.trouble or next(iter(notes), "nothing was measured")
        return CheckRow(check="groups", state="failed", text=f"{what}: {text}")
    return CheckRow(check="groups", state="ok", text=what)


def check_planted(right: Case, patience: float) -> CheckRow:
    """A corrupted result, a rank that ends and one that hangs: found, named, and in time; a hang is
    one after ``patience`` seconds, in which ranks must be able to open the backend."""
    before = _list_left()
    troubles = []
    for fault in ("corrupt:1", "drop:1", "hang:1"):
        timeout = patience if fault.startswith("hang") else None
        policy = msgspec.structs.replace(ONCE, inject=fault, iters=8, timeout=timeout)
        done = _measure_suite(Suite(name="planted", axes=_make_similar_axes(right), policy=policy))
        if trouble := judge_fault(fault, done, patience + GRACE_S):
            troubles.append(f"{fault}: {trouble}")
    if left := sorted(filter(is_abandoned, _list_left() - before)):
        troubles.append(f"left behind: {', '.join(left[:NAMED])}")
    if troubles:
        return CheckRow(check="planted", state="failed", text="; ".join(troubles))
    text = "a flipped bit, an exit and a hang of rank 1 are all reported; nothing is left behind"
    return CheckRow(check="planted", state="ok", text=text)


def judge_fault(fault: str, done: Finished, most_seconds: float) -> str:
    """What is wrong with how a planted fault was told; else an empty string."""
    notes = " ".join([done.trouble, *(record.note for record in done.records)])
    if fault.startswith("corrupt"):
        found = any(record.status == "wrong" for record in done.records)
        return "" if found else f"the flipped bit was not found ({notes.strip() or 'all right'})"
    if not notes.strip():
        return "the fault was not reported"
    if "rank 1" not in notes and "ranks 1" not in notes:
        return f"rank 1 is not named: {notes.strip()}"
    if done.seconds > most_seconds:
        return f"it took {done.seconds:.0f} s to tell, and {most_seconds:.0f} s are allowed"
    return ""


def _list_left() -> set[str]:
    """What a run may leave on this machine: shared memory, and processes that this one started."""
    shared = Path("/dev/shm")
    names = {f"/dev/shm/{path.name}" for path in shared.iterdir()} if shared.is_dir() else set()
    own = Path(f"/proc/{os.getpid()}/task")
    children = {
        f"process {pid}"
        for task in own.iterdir()
        for pid in (task / "children").read_text().split()
    }
    return names | children


def is_abandoned(name: str) -> bool:
    """Whether this is a process that this one has started, or a file of this user that no process
    uses. Shared memory counts only if the maps of all of the user's processes can be read."""
    if not name.startswith("/"):
        return True  # a process that this one has started
    try:
        if Path(name).stat().st_uid != os.getuid() or _has_unseen_sharers():
            return False
        return not any(name in maps for maps in _read_own_maps())
    except OSError:  # it has gone, or a process may not be looked into
        return False


def _read_own_maps() -> Iterator[str]:
    """What each process of this user maps. Raises PermissionError where that may not be read."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if process.stat().st_uid == os.getuid():
                yield (process / "maps").read_text()


def _has_unseen_sharers() -> bool:
    """Whether this is a container that shares the host's memory (--ipc=host) and not its
    processes."""
    pid, ipc = (Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "ipc"))
    return ipc == HOST_IPC and pid != HOST_PID


def _check_again(right: Case) -> CheckRow:
    """Two commands at once on one host, after all that was run before."""
    file = find_file(right.backend)
    word = file.word if file else right.backend
    command = [sys.executable, "-m", "collbench", right.collective, "--backend", word]
    command += ["-g", str(RANKS), "-b", "4096", "-e", "4096", "-n", "20", "-d", right.dtype]
    command += ["--algo", right.algorithm, "--no-save", "--format", "json", "--launcher", "local"]
    if right.row.reduces:
        command += ["-o", right.op]
    both = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        for _ in range(2)
    ]
    for process, said in [(process, process.communicate()[1]) for process in both]:
        if process.returncode:
            first = (said.strip().splitlines() or ["no word"])[0]
            return CheckRow(check="again", state="failed", text=f"two commands at once: {first}")
    return CheckRow(check="again", state="ok", text="two commands at once")
