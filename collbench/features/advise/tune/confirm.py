"""A verification of an advice: its file against everything as it is, in turns, in fresh launches.

The best of many settings seems faster than it is, so that what proposed it never decides. The
experiment is that of `collbench ab`: base is the library's own choice, head the same with the
file, over the sizes that the file covers and those next to them, which must not change. What no
file says (formats in words) is head as variables of the environment, over all sizes, as it bears
on all of them. There is no first stage: whatever proposed the rows was one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core.errors import CollbenchError, Exit, NoVerdict, UsageError
from collbench.core.text import print_message
from collbench.features.advise.formats.files import write_files
from collbench.features.advise.tune import keeping
from collbench.features.advise.tune.keeping import Choices, Removed
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Series, Unadvised
from collbench.features.compare.ab import variants
from collbench.features.compare.ab.experiment import Experiment
from collbench.features.compare.ab.experiment import Order as Pairs
from collbench.features.compare.comparison import Comparison, Rules, compare_runs
from collbench.records import paired
from collbench.records.derive import NO_TIME_LEFT
from collbench.records.types import Choice, RunFile
from collbench.run import session
from collbench.run.launch import folders, join
from collbench.run.launch.interpreter import SideName, Variant
from collbench.run.launch.places import PlaceSource
from collbench.run.reporter import Step
from collbench.show.live import Watch
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import FIELDS, Axes, Suite, default_mode
from collbench.survive.signals import interrupts

Rivals = dict[Cell, dict[str, Gain]]

ROUNDS = 12  # the fewest paired launches
MIN_ROUNDS = 8  # where time is short
MIN_SECONDS, MAX_SECONDS = 0.05, 0.25  # of samples of a case in a launch
GUESS_START = 3.0  # seconds until two worlds have started at once
GUESS_FIXED = 0.2  # seconds of a case beside its samples: warm-up and checks
USED = 0.9  # of a budget may be planned for
GRACE, GRACE_SECONDS = 1.05, 10.0  # by which an experiment may be late before it is ended
NO_TIME = "not verified: the budget has no time for it"


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How an advice is verified. ``axes`` is the sweep that it comes from (make_axes makes it of
    cases): its sizes are those among which two are neighbours, and each case is measured with its
    backend, datatype, placement and mode. ``format`` is one of FORMATS. ``budget`` is in seconds:
    rounds and the time of a case follow from it, and rows that it has no time for are not
    verified. ``command`` is what a run keeps as its command line. ``folder`` is where the file lies
    while ranks read it, a private one where it is None: name one that all hosts see where
    ``source`` gives places on several."""

    format: Any
    axes: Axes
    command: Sequence[str]
    policy: Policy = Policy()
    budget: float = 300.0
    rules: Rules = Rules()
    despite_oversubscription: bool = False
    start_seconds: float = GUESS_START  # until a pair of worlds has started
    fixed_seconds: float = GUESS_FIXED  # of a case beside its samples
    output: Path | None = None
    tag: str = ""
    source: PlaceSource | None = None
    folder: Path | None = None


class Verified(NamedTuple):
    """What a verification comes to. ``advised`` has only rows that fresh launches confirm, with
    gains from these alone, and ``verified`` set; what went is among its ``unadvised`` as well.
    ``code`` is 0 where fresh launches decided something, 3 where nothing, 130 where it was
    interrupted (what was confirmed until then is in ``advised``). ``paths`` are the saved runs."""

    advised: Advised
    removed: tuple[Removed, ...]
    comparisons: tuple[Comparison, ...]
    paths: tuple[Path, ...]
    code: Exit


class Variation(NamedTuple):
    """A head to be compared with everything as it is: what it sets, what it is called in its run,
    the rows that it has, and the cells to measure. ``is_everywhere``: what it sets holds for all
    sizes, not in its rows alone."""

    env: tuple[tuple[str, str], ...]
    text: str
    rows: tuple[Advice, ...]
    cells: tuple[Cell, ...]
    backend: str = ""
    algorithm: str = ""
    is_everywhere: bool = False


def make_axes(cases: Iterable[Case]) -> Axes:
    """The sweep of measured cases: all collectives, sizes, ranks and forms (datatypes, in place)
    among them, with groups and alignment as the first has them."""
    every = list(cases)
    values: dict[str, Any] = {
        axis: tuple(dict.fromkeys(getattr(case, field) for case in every))
        for axis, field in FIELDS.items()
    }
    usual = all(case.mode == default_mode(case.backend, case.world) for case in every)
    values |= {
        "sizes": tuple(sorted(values["sizes"])),
        "ranks": tuple(sorted({case.world for case in every})),
        "backends": values["backends"][:1],
        "modes": () if usual else values["modes"],
        "envs": ((),),
        "algorithms": ("native",),
        "groups": every[0].groups,
        "align": every[0].align,
    }
    return Axes(**values)


def verify_advice(advised: Advised, request: VerifyRequest) -> Verified:
    """Measure the advice's file against the library's own choice, with progress on standard error,
    and keep what holds. An advice without rows is as verified as can be. Raises CannotRun and
    RunBroken, as `collbench ab` does, where no row could be judged."""
    if not advised.rows:
        return Verified(advised, (), (), (), Exit.OK)
    rows, others = fit_budget(advised.rows, request.axes.sizes, request)
    held: list[Advice] = []
    removed = [
        _skip_size(row.name, Cell(row.series, gain.nbytes)) for row in others for gain in row.gains
    ]
    comparisons: list[Comparison] = []
    paths: list[Path] = []
    rivals = advised.rivals
    code = Exit.OK
    with folders.make_private() as folder:
        trial = msgspec.structs.replace(advised, rows=tuple(rows))
        heads = list_variations(trial, request, request.folder or folder)
        for head in heads:
            share = msgspec.structs.replace(request, budget=request.budget / len(heads))
            outcome = _Outcome(head, share, folder) if not code else None
            if outcome and outcome.comparison:
                comparisons.append(outcome.comparison)
            if outcome:
                code, paths = outcome.code, [*paths, *outcome.paths]
            kept = _keep_rows(head, share, outcome)
            held += kept.rows
            removed += kept.removed
            rivals = _add_rivals(rivals, head, outcome)
    removed.sort(key=lambda each: (each.kind != "slower", each.cell))
    if not code and not held and not any(each.decided for each in removed):
        code = Exit.NO_VERDICT
    taus = [row.tau for comparison in comparisons for row in comparison.rows]
    runs = [run.id for comparison in comparisons for run in (comparison.base, comparison.head)]
    advised = msgspec.structs.replace(
        advised,
        rivals=rivals,
        runs=(*advised.runs, *runs),
        taus=(min(taus), max(taus)) if taus else advised.taus,
    )
    return Verified(
        _replace_rows(advised, held, removed),
        tuple(removed),
        tuple(comparisons),
        tuple(paths),
        code,
    )


def _add_rivals(rivals: Rivals, head: Variation, outcome: _Outcome | None) -> Rivals:
    """The gains for the map with those of fresh launches, where the setting was in force."""
    judged = outcome.comparison.rows if outcome and outcome.comparison else []
    nodes = head.rows[0].series.nodes
    merged = {cell: dict(gains) for cell, gains in rivals.items()}
    for cell, gain in keeping.measure_gains(judged, nodes).items():
        rows = [row for row in head.rows if row.series == cell.series]
        inside = [row.name for row in rows if row.low <= cell.nbytes <= row.high]
        names = inside or [row.name for row in rows if head.is_everywhere]
        if names:
            merged.setdefault(cell, {})[names[0]] = gain
    return merged


def _skip_size(name: str, cell: Cell) -> Removed:
    return Removed(cell, name, "undecided", NO_TIME, False)


def _replace_rows(advised: Advised, rows: Sequence[Advice], removed: Sequence[Removed]) -> Advised:
    """The advice with what was kept, and what went among its cells without one."""
    gone = [Unadvised(each.cell, each.why, each.decided, each.gain, each.name) for each in removed]
    cells = {each.cell for each in gone}
    others = [each for each in advised.unadvised if each.cell not in cells]
    return msgspec.structs.replace(
        advised,
        day=find_day(),
        rows=tuple(sorted(rows, key=lambda row: (row.series, row.low))),
        unadvised=tuple(sorted([*others, *gone], key=lambda each: each.cell)),
    )


def find_day() -> str:
    """Today in UTC, as 2026-11-28."""
    return datetime.now(UTC).date().isoformat()


def list_variations(advised: Advised, request: VerifyRequest, folder: Path) -> list[Variation]:
    """What is to be compared: the advice's file, written into ``folder``; where nothing reads such
    a file, each setting for itself, by the environment."""
    path = folder / f"advised{request.format.suffix}"
    if request.format.by_size:
        write_files(request.format, advised, path, shared=request.folder is not None)
        used = request.format.use(path)
        cells = list_cells(advised.rows, request.axes.sizes)
        return [Variation(tuple(used.items()), "as advised", advised.rows, tuple(cells))]
    by_setting: dict[Any, list[Advice]] = {}
    for row in advised.rows:
        by_setting.setdefault(row.setting, []).append(row)
    (backend,) = request.axes.backends
    return [
        Variation(
            setting.env,
            "as advised",
            tuple(rows),
            tuple(
                Cell(series, size)
                for series in sorted({row.series for row in rows})
                for size in sorted(request.axes.sizes)
            ),
            setting.backend if setting.backend != backend else "",
            setting.algorithm if setting.algorithm != "native" else "",
            is_everywhere=True,
        )
        for setting, rows in by_setting.items()
    ]


def list_cells(rows: Sequence[Advice], sizes: Sequence[int]) -> list[Cell]:
    """The measured sizes that rows cover, and those next to them."""
    ascending = sorted(sizes)
    cells: set[Cell] = set()
    for row in rows:
        covered = [i for i, size in enumerate(ascending) if row.low <= size <= row.high]
        if covered:
            near = ascending[max(0, covered[0] - 1) : covered[-1] + 2]
            cells |= {Cell(row.series, size) for size in near}
    return sorted(cells)


class Schedule(NamedTuple):
    """The fewest rounds of an experiment, the seconds of samples of a case in each launch, and the
    most cells for which the budget suffices then."""

    rounds: int
    case_seconds: float
    max_cells: int


def plan_rounds(request: VerifyRequest, cell_count: int, world_count: int) -> Schedule:
    """As many rounds as the budget holds, by a rough guess, and then as long cases, as more
    launches tell more. What is left over goes to rows without a verdict in any case."""
    for fewest in (ROUNDS, MIN_ROUNDS):
        rounds = max(fewest, paired.fewest_rounds(cell_count))
        launches = 2 * (rounds + 1)  # of both sides, with the pilot
        left = USED * request.budget - (rounds + 2) * world_count * request.start_seconds
        room = left / (launches * max(1, cell_count)) - request.fixed_seconds
        if room >= MIN_SECONDS:
            break
    cell = launches * (request.fixed_seconds + MIN_SECONDS)
    seconds = min(MAX_SECONDS, max(MIN_SECONDS, room))
    return Schedule(rounds, seconds, max(0, int(left / cell)))


def fit_budget(
    rows: Sequence[Advice], sizes: Sequence[int], request: VerifyRequest
) -> tuple[list[Advice], list[Advice]]:
    """The rows that the budget can verify, those that promise most for a size first, and the
    others. One row is always tried."""
    fitting: list[Advice] = []
    others: list[Advice] = []
    for row in sorted(rows, key=lambda row: -sum(each.gain for each in row.gains) / len(row.gains)):
        cells = list_cells([*fitting, row], sizes)
        worlds = len({cell.series.n for cell in cells})
        fits = len(cells) <= plan_rounds(request, len(cells), worlds).max_cells
        (fitting if fits or not fitting else others).append(row)
    return sorted(fitting, key=lambda row: (row.series, row.low)), others


def make_suite(cells: Sequence[Cell], request: VerifyRequest) -> Suite:
    """The suite of exactly these cells, each series a sweep of its own."""
    sizes_by_series: dict[Series, list[int]] = {}
    for cell in cells:
        sizes_by_series.setdefault(cell.series, []).append(cell.nbytes)
    first, *others = (
        msgspec.structs.replace(
            request.axes,
            collectives=(series.collective,),
            ranks=(series.n,),
            sizes=tuple(sizes),
            envs=((),),
            algorithms=("native",),
        )
        for series, sizes in sizes_by_series.items()
    )
    return Suite(name="tune", axes=first, includes=tuple(others), policy=request.policy)


class _Outcome:
    """One experiment, and what it came to: its comparison (None where nothing could be compared),
    the files of its two runs, the exit code of its ending."""

    def __init__(self, head: Variation, request: VerifyRequest, folder: Path) -> None:
        self.comparison: Comparison | None = None
        self.files: tuple[RunFile, ...] = ()
        self.paths: list[Path] = []
        self.code = Exit.OK
        worlds = len({cell.series.n for cell in head.cells})
        schedule = plan_rounds(request, len(head.cells), worlds)
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
            judge=lambda base, head: compare_runs(base, head, request.rules, under_way=True).rows,
            budget=request.budget,
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
        there is nothing to compare."""
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
        try:
            self.comparison = compare_runs(*experiment.files, rules, under_way=True)
        except UsageError:  # it ended before there was anything to compare
            self.code = self.code or Exit.NO_VERDICT
        self.files = experiment.files
        self.paths = experiment.end(self.code, note)
        if problem is not None and not isinstance(problem, CollbenchError):
            raise problem
        if isinstance(problem, CollbenchError):
            if NO_TIME_LEFT in problem.message:
                self.code = Exit.OK  # what was decided until then stands
                print_message("the time did not suffice to verify all", "--budget sets it")
                return
            if self.comparison is None:
                raise problem
            print_message(problem.message, problem.hint)

    def list_choices(self, nodes: int) -> Choices:
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


def _keep_rows(head: Variation, request: VerifyRequest, outcome: _Outcome | None) -> keeping.Kept:
    """What is left of a head's rows after its experiment; nothing where there was none."""
    nodes = head.rows[0].series.nodes
    judged = list(outcome.comparison.rows) if outcome and outcome.comparison else []
    sizes = sorted(request.axes.sizes)
    kept = keeping.keep_confirmed(
        head.rows,
        keeping.choose_worst(judged, nodes),
        keeping.measure_gains(judged, nodes),
        {row.series: sizes for row in head.rows},
        outcome.list_choices(nodes) if outcome else {},
        find_day(),
        despite_oversubscription=request.despite_oversubscription,
        is_everywhere=head.is_everywhere,
    )
    skipped = outcome.comparison.skipped if outcome and outcome.comparison else []
    dropped = {keeping.find_case_cell(each.case, nodes) for each in skipped if each.dropped}
    removed = [
        _skip_size(each.name, each.cell) if each.cell in dropped else each for each in kept.removed
    ]
    return kept._replace(removed=tuple(removed))
