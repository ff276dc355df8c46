"""The experiment of a verification: that of `collbench ab`, base the library's own choice, head the
same with what is advised."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from collbench.core.errors import CollbenchError, Exit, NoVerdict, RunBroken, UsageError
from collbench.core.text import plain_line, print_message
from collbench.features.advise.tune import keeping
from collbench.features.advise.tune.keeping import Choices, Fault, Nodes
from collbench.features.advise.tune.schedule import VerifyRequest, make_suite, plan_rounds
from collbench.features.advise.types import Advice, Cell
from collbench.features.compare.ab import variants
from collbench.features.compare.ab.experiment import Experiment
from collbench.features.compare.ab.experiment import Order as Pairs
from collbench.features.compare.comparison import Comparison, Rules, compare_runs
from collbench.records.derive import NO_TIME_LEFT, is_without_samples
from collbench.records.types import Choice, Record, RunFile
from collbench.run import session
from collbench.run.launch import join
from collbench.run.launch.interpreter import SideName, Variant
from collbench.run.reporter import Step
from collbench.show.live import Watch
from collbench.survive.signals import interrupts

GRACE, GRACE_SECONDS = 1.05, 10.0  # by which an experiment may be late before it is ended


class Variation(NamedTuple):
    """A head to be compared with everything as it is: what it sets, what it is called in its run,
    the rows that it has, and the cells to measure. ``is_everywhere``: what it sets holds for all
    sizes, not in its rows alone. ``heads`` is how many there are."""

    env: tuple[tuple[str, str], ...]
    text: str
    rows: tuple[Advice, ...]
    cells: tuple[Cell, ...]
    backend: str = ""
    algorithm: str = ""
    is_everywhere: bool = False
    heads: int = 1


class Outcome:
    """One experiment, and what it came to: its comparison (None where nothing could be compared),
    the files of its two runs, the exit code of its ending, and what broke it, if so."""

    def __init__(self, head: Variation, request: VerifyRequest, folder: Path) -> None:
        self.comparison: Comparison | None = None
        self.files: tuple[RunFile, ...] = ()
        self.paths: list[Path] = []
        self.code = Exit.OK
        self.broken = ""
        worlds = len({cell.series.n for cell in head.cells})
        schedule = plan_rounds(request, len(head.cells), worlds, head.heads)
        policy = msgspec.structs.replace(
            request.policy, max_seconds=request.policy.max_seconds or schedule.case_seconds
        )
        suite = make_suite(head.cells, msgspec.structs.replace(request, policy=policy))
        sides: dict[SideName, Variant] = {
            "base": Variant(text=""),
            "head": Variant(
                text=head.text, env=head.env, backend=head.backend, algorithm=head.algorithm
            ),
        }
        order = Pairs(
            suite=suite,
            variants=sides,
            command=request.command,
            rounds=(0, schedule.rounds),
            is_confirming=True,
            judge=lambda base, head: judge_files((base, head), request.rules).rows,
            budget=request.budget / head.heads,
            output=request.output,
            tag=request.tag,
        )
        with ExitStack() as stack:
            self._run(self._settle(order, request, folder, stack), request.rules)

    def _settle(
        self, order: Pairs, request: VerifyRequest, folder: Path, stack: ExitStack
    ) -> Pairs:
        """The order with a home for each side, at all places."""
        homes = variants.settle_homes(order.variants, variants.Build(""), folder)
        places = None
        if request.source:
            seconds = request.policy.timeout or join.SECONDS
            held = request.source.hold_places(order.suite, seconds)
            places = stack.enter_context(closing(held))
            homes = {name: places.resolve(home, name) for name, home in homes.items()}
        return msgspec.structs.replace(order, homes=homes, places=places)

    def _run(self, order: Pairs, rules: Rules) -> None:
        """Run the experiment and compare its sides, however far it came. Raises what broke it where
        there is nothing to compare, and head is not to blame."""
        problem: Exception | None = None
        note = ""
        latest = time.monotonic() + GRACE * (order.budget or 0.0) + GRACE_SECONDS
        with interrupts, Watch() as watch:

            def report_step(at: Step) -> None:
                interrupts.check()
                if time.monotonic() > latest:
                    raise NoVerdict(f"{NO_TIME_LEFT}: launches took longer than was foreseen")
                watch.step(at)

            experiment = Experiment(order, report_step)
            try:
                experiment.run()
            except (Exception, KeyboardInterrupt) as e:
                if not experiment.begun:
                    raise
                problem, self.code, note = session.classify_ending(e)
        self.files = experiment.files
        try:
            self.comparison = judge_files(experiment.files, rules)
        except (UsageError, NoVerdict):  # it ended before there was anything to compare
            self.code = self.code or Exit.NO_VERDICT
        self.paths = experiment.end(self.code, note)
        if problem is not None and not isinstance(problem, CollbenchError):
            raise problem
        if isinstance(problem, CollbenchError):
            self._take_problem(problem)

    def _take_problem(self, problem: CollbenchError) -> None:
        if NO_TIME_LEFT in problem.message:
            self.code = Exit.OK  # what was decided until then stands
            print_message(
                "the budget ended before all sizes were verified", "give a longer --budget"
            )
            return
        if isinstance(problem, RunBroken) and problem.message.startswith("head: "):
            self.broken = plain_line(problem.message.removeprefix("head: "))
        elif self.comparison is None:
            raise problem
        print_message(problem.message, problem.hint)

    def list_choices(self, nodes: Nodes) -> Choices:
        """What the library showed of its choice on both sides, by cell."""
        heard: list[dict[Cell, Choice]] = []
        for file in self.files:
            by_cell: dict[Cell, Choice] = {}
            for record in file.records:
                if record.chose:
                    by_cell[keeping.find_case_cell(record.case, nodes)] = record.chose
            heard.append(by_cell)
        base, head = heard or ({}, {})
        return {cell: (base.get(cell), head.get(cell)) for cell in base.keys() | head.keys()}

    def list_faults(self, nodes: Nodes) -> dict[Cell, Fault]:
        """Wrong data and failed calls with head, by cell; not where the same call fails without it,
        too. Where head broke and no call of it is known to have failed, all are to blame."""
        if not self.files:
            return {}
        base, head = (file.records for file in self.files)
        failing = {
            keeping.find_case_cell(record.case, nodes)
            for record in base
            if _find_fault(record) == "failed"
        }
        faults: dict[Cell, Fault] = {}
        for record in head:
            cell = keeping.find_case_cell(record.case, nodes)
            kind = _find_fault(record)
            if kind == "wrong" or (kind and cell not in failing and cell not in faults):
                faults[cell] = Fault(kind, plain_line(record.note or kind))
        if self.broken and not faults:
            cells = {keeping.find_case_cell(record.case, nodes) for record in head}
            faults = dict.fromkeys(cells, Fault("failed", self.broken))
        return faults


def _find_fault(record: Record) -> Literal["", "wrong", "failed"]:
    if record.status == "wrong":
        return "wrong"
    return "failed" if record.status == "failed" and not is_without_samples(record) else ""


def judge_files(files: tuple[RunFile, RunFile], rules: Rules) -> Comparison:
    """What both sides come to. A launch in which every sample of a case was disturbed is lost: the
    pair does not count, which costs the case nothing but this pair. Raises NoVerdict and
    UsageError."""
    base, head = (msgspec.structs.replace(file, records=list(_drop_lost(file))) for file in files)
    return compare_runs(base, head, rules, under_way=True)


def _drop_lost(file: RunFile) -> Iterator[Record]:
    timed = {record.case for record in file.records if record.status == "ok"}
    for record in file.records:
        if not (is_without_samples(record) and record.case in timed):
            yield record
