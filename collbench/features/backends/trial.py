"""The contract of a backend, checked on one rank: what its calls promise beside the right bits."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from collbench.core.algorithms import list_algorithms
from collbench.core.backend_info import backend_info
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import first_line
from collbench.core.text import format_count, format_duration, format_size
from collbench.features.backends.findings import CheckRow, ContractFindings, State
from collbench.features.backends.measurable import Contract
from collbench.features.backends.rig import (
    Rig,
    read_thread_seconds,
    take_footprint,
)
from collbench.run import refusal
from collbench.run.backends import REFUSALS
from collbench.run.jobs import Job
from collbench.run.launch.board import Phase
from collbench.run.rank.bench import Bench, Sites
from collbench.run.rank.measure import clock
from collbench.run.rank.outcome import CaseOutcome, FoundCase
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, expand_axes

HELD_S = 0.05  # that the other ranks come late, where a call may not return before they do
SMALL, MIDDLE = 8, 64 << 10  # bytes of a call
GATHERING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "reduce")
BUSY = 0.05  # of a core, from which a thread counts as one that runs
BUSY_S = 0.5  # of calls in which threads are watched
OVERHEAD = 0.2  # of an 8-byte call, from which its way into the library is told of
MOST_ROUNDS = 4  # of calls, in each of which a leak grows
MIB = 1 << 20
Said = tuple[State, str]


class ContractTrial:
    """A run.runner.Trial."""

    def __init__(self, bench: Bench, job: Job, sites: Sites, emit: Callable[..., object]) -> None:
        self._bench, self._sites, self._emit, self._case = bench, sites, emit, job.case
        subject: Contract = job.subject
        self._quick, self._largest = subject.quick, subject.largest
        self._control = bench.backend.control or bench.control
        self._info = backend_info(job.case.backend)
        self._rows: list[CheckRow] = []
        self._cases: list[Case] = []  # a small one of each collective that the backend has

    def run(self) -> Generator[None, None, Sequence[CaseOutcome]]:
        """The rows of all checks, at rank 0; with a pause before each."""
        self._bench.board.enter(self._bench.rank, Phase.CHECKING)
        with self._caught_output() as count_written:
            self._cases = [case for case in self._list_cases(1 << 10) if self._is_able(case)]
            for name, check in self._list_checks():
                yield
                self._emit_so_far(name)
                self._add_row(name, *self._agree_on(check))
            written = sum(self._control.collect(count_written()))
        text = (
            f"{written:,} bytes, which collbench turns to standard error" if written else "nothing"
        )
        self._add_row("output", "note" if written else "ok", text)
        self._bench.board.enter(self._bench.rank, Phase.REPORTING)
        return [] if self._bench.rank else [self._describe_findings("")]

    def _list_checks(self) -> list[tuple[str, Callable[[], Said]]]:
        if not self._cases:
            return []
        return [
            ("first calls", self._check_first_calls),
            ("stale", self._check_stale),
            ("honest", self._check_honest),
            ("input", self._check_input),
            ("overhead", self._check_overhead),
            ("threads", self._check_threads),
            ("leaks", self._check_leaks),
            ("worlds", self._check_worlds),
        ]

    def _agree_on(self, check: Callable[[], Said]) -> Said:
        """What all ranks say of a check: the gravest, with the rank that says it, else rank 0's."""
        everyone = [tuple(said) for said in self._control.collect(check())]
        for state in ("failed", "note"):
            for rank, (own, text) in enumerate(everyone):
                if own == state:
                    alike = all(said[0] == state for said in everyone)
                    return own, text if alike else f"rank {rank}: {text}"
        return everyone[0]

    def _add_row(self, name: str, state: State, text: str) -> None:
        self._rows.append(CheckRow(check=name, state=state, text=text))

    def _describe_findings(self, at: str) -> FoundCase:
        found = ContractFindings(rows=self._rows, at=at)
        return FoundCase(msgspec.to_builtins(found), stop="cut" if at else "")

    def _emit_so_far(self, at: str) -> None:
        """Have it known which check ranks are in, should they not come out of it."""
        if self._bench.rank == 0:
            self._emit([self._describe_findings(at)])

    @contextmanager
    def _caught_output(self) -> Any:
        """Keep what is written to descriptor 1 meanwhile; gives a function that counts it."""
        with tempfile.TemporaryFile() as file:
            before = os.dup(1)
            os.dup2(file.fileno(), 1)
            try:
                yield lambda: os.fstat(file.fileno()).st_size
            finally:
                os.dup2(before, 1)
                os.close(before)

    # the calls that are checked

    def _list_cases(self, nbytes: int) -> list[Case]:
        """A case of each collective, out of place, of floats that are added."""
        found = []
        for name, row in COLLECTIVES.items():
            if not self._knows_algorithm(name):
                continue
            axes = Axes(
                collectives=(name,),
                sizes=(nbytes,),
                ranks=(self._case.world,),
                backends=(self._case.backend,),
                algorithms=(self._case.algorithm,),
                in_place=(False,),
                modes=("host",),
            )
            cases, _ = expand_axes(axes) if row.moves_data else ([], [])
            found += [msgspec.structs.replace(case, n=self._control.n) for case in cases[:1]]
        return found

    def _knows_algorithm(self, collective: str) -> bool:
        """Whether the algorithm that is checked, which may be the library's own choice, is one of
        the collective's."""
        name = self._case.algorithm
        return name == "native" or name in {each.name for each in list_algorithms(collective)}

    def _is_able(self, case: Case) -> bool:
        """Whether the backend runs the case, as INFO, the opened backend and the library have
        it."""
        if refusal.refuse_opened(case, self._bench.backend):
            return False
        try:
            rig = self._make_rig(case)
            rig.fill(0)
            rig.run()
            able = True
        except REFUSALS:
            self._bench.backend.finish()  # raises where the device is broken
            able = False
        return all(self._control.collect(able))

    def _make_rig(self, case: Case) -> Rig:
        return Rig(self._bench, self._bench.backend, self._control, case)

    def _run_filled(self, rig: Rig, number: int) -> None:
        """Make a call on data of this ``number``, once all ranks have theirs."""
        rig.fill(number)
        self._meet_ranks()
        rig.run()

    def _meet_ranks(self) -> None:
        self._bench.board.count_calls(self._bench.rank)
        self._control.barrier()

    def _resize_case(self, case: Case, nbytes: int) -> Case:
        """The case at another size that its ranks share evenly."""
        unit = case.n * case.type.size
        return msgspec.structs.replace(case, nbytes=max(unit, nbytes // unit * unit))

    # the checks

    def _check_first_calls(self) -> Said:
        """Sizes that the library has not seen, in calls that are its first ones."""
        number, calls = (6, 2) if self._quick else (20, 4)
        wrong: list[str] = []
        for index in range(number):
            case = self._cases[index % len(self._cases)]
            rig = self._make_rig(self._resize_case(case, self._largest - 4096 * (index + 1)))
            for call in range(calls):
                self._run_filled(rig, call)
                if bad := rig.count_wrong(call):
                    size = format_size(rig.case.nbytes)
                    wrong.append(f"{case.collective} of {size}, call {call + 1}: {bad:,} wrong")
        made = f"{number} sizes up to {format_size(self._largest)}, {calls} calls each"
        if not wrong:
            return "ok", made
        text = f"{len(wrong)} of {number * calls} calls gave wrong data ({made}); the first:"
        return "failed", f"{text} {wrong[0]}"

    def _check_stale(self) -> Said:
        """Without a call, nothing is to be had; after one, its result and not the last one's."""
        for case in self._cases:
            rig = self._make_rig(case)
            self._run_filled(rig, 1)
            if rig.count_wrong(1):
                return "failed", f"{case.collective}: wrong data"
            rig.fill(2)
            if not rig.is_poisoned():
                return (
                    "failed",
                    f"{case.collective}: load() was called and run() was not, yet store() brings a"
                    " result",
                )
            self._meet_ranks()
            rig.run()
            if rig.count_wrong(2):
                return "failed", f"{case.collective}: run() gave the result of earlier data"
        return "ok", format_count(len(self._cases), "collective")

    def _check_honest(self) -> Said:
        """Rank 0 calls, the others come later: its result needs their data."""
        case = next((case for case in self._cases if case.collective in GATHERING), None)
        if case is None or case.n == 1:
            return "skipped", "none of its collectives makes a rank wait for others"
        rig = self._make_rig(case)
        self._run_filled(rig, 1)
        rig.fill(2)
        self._meet_ranks()
        if self._control.rank:
            time.sleep(HELD_S)
        began = clock()
        rig.run()
        ran = clock()
        wrong = rig.count_wrong(2)
        stored = clock() - ran
        took, held = (ran - began) / 1e9, format_duration(HELD_S * 1e9)
        if wrong:
            return "failed", f"{case.collective}: wrong data, or a result that is not there yet"
        if self._control.rank == 0 and took < HELD_S / 2:
            return (
                "failed",
                f"{case.collective}: run() took {format_duration(took * 1e9)} although others came"
                f" {held} later: store() waited for them, {format_duration(stored)}",
            )
        return "ok", f"{case.collective}: run() waits for ranks that come {held} later"

    def _check_input(self) -> Said:
        """What was sent, out of place."""
        for case in self._cases:
            rig = self._make_rig(case)
            self._run_filled(rig, 1)
            rig.call.store()
            if not rig.has_kept_input(1):
                return "failed", f"{case.collective} has changed what was sent"
        return "ok", format_count(len(self._cases), "collective")

    def _check_worlds(self) -> Said:
        """A second world of the same ranks in these processes, used in turns with the first."""
        if self._info.groups == "none":
            return "skipped", "INFO.groups is none"
        if self._info.worlds == "one":
            return "skipped", "INFO.worlds is one"
        family = (tuple(range(self._bench.control.n)),)
        other = self._sites.at(family, "check")
        case = self._cases[0]
        rigs = [
            self._make_rig(case),
            Rig(self._bench, other, other.control or self._control, case),
        ]
        for first in range(0, 8, 2):
            for number, rig in enumerate(rigs, first):
                self._run_filled(rig, number)
            if any(rig.count_wrong(number) for number, rig in enumerate(rigs, first)):
                return "failed", f"{case.collective} is wrong with two worlds in one process"
        return "ok", "two worlds in one process, called in turns"

    def _check_overhead(self) -> Said:
        """The way into the library, made by rank 0 alone, beside the smallest call."""
        rig = self._make_rig(self._resize_case(self._cases[0], SMALL))
        if rig.call.bare is None:
            return "skipped", "its Call has no bare()"
        whole = self._time_calls(rig, 100)
        self._meet_ranks()
        bare, trouble = 0.0, ""
        if self._control.rank == 0:
            try:
                bare = _find_median(rig.call.bare, 100)
            except Exception as e:  # whatever it is, it is the backend's
                trouble = f"bare() raises {type(e).__name__}: {first_line(e)}"
        self._meet_ranks()
        if trouble:
            return "failed", trouble
        if self._control.rank:
            return "ok", ""
        size = format_size(rig.case.nbytes)
        text = f"{format_duration(bare)} of {format_duration(whole)} at {size}"
        share = bare / max(whole, 1.0)
        if share > OVERHEAD:
            return "note", f"{text} ({share:.0%}): {self._info.call_path or 'the way in'}"
        return "ok", text

    def _time_calls(self, rig: Rig, number: int) -> float:
        """The median ns of so many calls, one after the other."""
        rig.fill(0)
        self._meet_ranks()
        return _find_median(rig.run, number)

    def _check_leaks(self) -> Said:
        """Memory, descriptors, threads and mappings before and after many calls, and many prepared
        ones."""
        calls, prepares = (500, 20) if self._quick else (2000, 50)
        case = self._resize_case(self._cases[0], MIDDLE)
        rig = self._make_rig(case)

        def prepare() -> None:
            for _ in range(prepares):
                self._repeat_call(self._make_rig(case), 1)

        grown = [
            *self._find_growth(lambda: self._repeat_call(rig, calls), f"{calls:,} calls"),
            *self._find_growth(prepare, f"{prepares} prepared calls"),
        ]
        text = "; ".join(grown) or f"nothing after {calls:,} calls and {prepares} prepared ones"
        return ("failed" if grown else "ok"), text

    def _find_growth(self, work: Callable[[], None], what: str) -> list[str]:
        """What this rank has more of after ``work``, each time that it is done: libraries fill
        caches at first, a leak goes on."""
        grown: list[str] = []
        for _ in range(MOST_ROUNDS):
            before = take_footprint()
            work()
            grown = _list_grown(before, take_footprint(), what)
            if not any(self._control.collect(bool(grown))):
                return []
        return grown

    def _repeat_call(self, rig: Rig, number: int) -> None:
        rig.fill(0)
        self._meet_ranks()
        for _ in range(number):
            rig.run()

    def _check_threads(self) -> Said:
        """Threads of this rank that run while calls follow each other."""
        if self._info.gpu:
            return "skipped", "the work is done on GPUs"
        rig = self._make_rig(self._resize_case(self._cases[0], MIDDLE))
        took = max(self._control.collect(self._time_calls(rig, 20)))
        (number,) = self._control.decide([max(20, min(20_000, int(BUSY_S * 1e9 / max(took, 1))))])
        self._meet_ranks()
        before, began = read_thread_seconds(), time.perf_counter()
        for _ in range(number):
            rig.run()
        elapsed = time.perf_counter() - began
        after = read_thread_seconds()
        running = [name for name in after if after[name] - before.get(name, 0.0) > BUSY * elapsed]
        wanted = self._info.threads
        text = f"{format_count(len(running), 'thread')} of a rank run in calls; INFO says {wanted}"
        return ("note" if wanted and len(running) > wanted else "ok"), text


def _find_median(call: Callable[[], object], number: int) -> float:
    """The median ns of so many calls."""
    took = []
    for _ in range(number):
        began = clock()
        call()
        took.append(clock() - began)
    return float(np.median(took))


def _list_grown(before: Any, after: Any, what: str) -> list[str]:
    """What a process holds more of than it may, in words."""
    memory = max(after.resident - before.resident, after.allocated - before.allocated)
    grown = [f"{what} keep {memory / MIB:.1f} MiB"] if memory > MIB else []
    for name, most in (("descriptors", 0), ("threads", 0), ("mappings", 10)):
        more = getattr(after, name) - getattr(before, name)
        if more > most:
            grown.append(f"{what} keep {more} {name}")
    return grown
