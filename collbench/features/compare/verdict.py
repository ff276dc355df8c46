"""The verdict on one row: what its launches say of the change from base to head, by a fixed table.

A change counts as confirmed only by launches other than those that raised the suspicion, at a level
that accounts for all rows tested so; elsewhere it is a suspicion. Evidence of no change is an
interval within what matters, never the mere absence of evidence.

What a comparison comes to: its exit code, and a sentence that says why. A comparison in which no
row was decided has no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_count, format_size
from collbench.features.compare.sides import log_changes, select_started_alike
from collbench.records import paired
from collbench.records.case_rows import CaseRows
from collbench.records.paired import Shift
from collbench.records.rows import Row
from collbench.run.launch.environments import STARTING
from collbench.suite.case import Case
from collbench.suite.suite_keys import replace_options

Verdict = Literal[
    "REGRESSED",
    "IMPROVED",
    "SUSPECT",
    "SMALL",
    "SAME",
    "INCONCLUSIVE",
    "INVALID",
    "INCOMPARABLE",
    "NEW",
    "GONE",
]

CHANGED: tuple[Verdict, ...] = ("REGRESSED", "IMPROVED")

UNTIMED: tuple[Verdict, ...] = ("INVALID", "INCOMPARABLE", "NEW", "GONE")

DECIDED: tuple[Verdict, ...] = (*CHANGED, "SMALL", "SAME", "GONE")

FEWEST_UNPAIRED = 10  # launches a side


class Ruling(NamedTuple):
    """A verdict and what it rests on: launches of base and head, the shift in log time with its
    interval at ``level``, the scatter of log time (of pairs: of their changes) and the smallest
    change that would be confirmed 4 times in 5 (``mde``), the p of the exact test, and how many
    more pairs a verdict lacks, as far as scatter tells."""

    verdict: Verdict
    why: str = ""
    base: Sequence[Row] = ()
    head: Sequence[Row] = ()
    shift: Shift | None = None
    level: float = 0.95
    scatter: float | None = None
    mde: float | None = None
    p: float | None = None
    pairs: int = 0
    stage: int = 0
    lacking: float = 0.0

    @property
    def bounded(self) -> bool:
        """Whether the interval of the change has ends."""
        return self.shift is not None and math.isfinite(self.shift.lo)

    @property
    def way(self) -> str:
        """ "slower" or "faster", by the estimate."""
        return "slower" if self.shift and self.shift.estimate > 0 else "faster"


def rule_absent(base: CaseRows | None, head: CaseRows | None, cut: Sequence[str]) -> Ruling | None:
    """The ruling on a row that one side lacks, or of which one side's data is wrong; None for any
    other. ``cut`` are the sides that ended early."""
    sides = {"head": head, "base": base}
    for name, side in sides.items():
        if side and side.reason_of("wrong"):
            return Ruling("INVALID", f"wrong results on {name}: {side.reason_of('wrong')}")
    lacking = [name for name, side in sides.items() if not (side and side.ran)]
    if len(lacking) == 2:
        return Ruling("INVALID", f"no times on both sides: {_describe_cause(base or head)}")
    for name in lacking:
        side, why = sides[name], ""
        if side is None and name in cut:
            why = f"{name} ended before it came to this row"
        elif side and side.without_sample:
            why = f"no time on {name}: {side.without_sample}"
        if why:
            return Ruling("INVALID", why)
        verdict: Verdict = "GONE" if name == "head" else "NEW"
        base_launches, theirs = (list(s.launches.values()) if s else [] for s in (base, head))
        return Ruling(
            verdict,
            _describe_cause(side) if side else f"not among the rows of {name}",
            base_launches,
            theirs,
        )
    for name, side in sides.items():
        if side and side.failure:
            return Ruling("INVALID", f"failed in a launch of {name}: {side.failure}")
    return None


def _describe_cause(side: CaseRows | None) -> str:
    causes = [
        f"{status}: {side.reason_of(status)}"
        for status in ("failed", "skipped")
        if side and side.reason_of(status)
    ]
    return causes[0] if causes else "no times"


def rule_by_pairs(base: CaseRows, head: CaseRows, tau: float, tests: int) -> Ruling:
    """A ruling from the pairs of launches of an experiment; ``tau`` is the smallest relative change
    that matters. ``tests`` is how many rows its second stage measured.

    What stage 2 clears (SAME, SMALL) is cleared; a suspicion that it neither clears nor confirms
    stays one.
    """
    first = _rule_paired(base, head, tau, 1, 1)
    second = _rule_paired(base, head, tau, 2, tests)
    last = second or first
    if first and second and second.bounded:
        mde = max(_confirmed_change(ruling, tau, n) for ruling, n in ((first, 1), (second, tests)))
        first, second = first._replace(mde=mde), second._replace(mde=mde)
    elif first:  # which would be one more of those tested
        first = first._replace(mde=_confirmed_change(first, tau, tests + 1))
    elif second:
        second = second._replace(mde=_confirmed_change(second, tau, tests, stages=1))
    ruling = _weigh_stages(first, second, base.dropped or head.dropped)
    if first and not second and first.verdict in CHANGED:  # however far stage 1 scatters
        return ruling._replace(lacking=float(paired.fewest_rounds(tests + 1)))
    return ruling._replace(lacking=last.lacking if last else 0.0)


def _confirmed_change(ruling: Ruling, tau: float, tests: int, stages: int = 2) -> float:
    scatter = math.inf if ruling.scatter is None else ruling.scatter
    return paired.confirmed_change(scatter, ruling.pairs, tau, tests, stages)


def _weigh_stages(first: Ruling | None, second: Ruling | None, dropped: str) -> Ruling:
    """Both stages' rulings as one; ``dropped`` says why there was no second stage."""
    few = (
        f"stage 2 has too few pairs ({second.pairs}) for the {second.level:.2%} it needs"
        if second
        else ""
    )
    if second and second.bounded:
        if second.verdict == "INCONCLUSIVE" and first and first.verdict in CHANGED:
            return second._replace(
                verdict="SUSPECT", why=f"{first.way} in stage 1, not confirmed in stage 2"
            )
        return second
    if first is None:
        return Ruling(
            "INCONCLUSIVE", few or "there is no round in which both sides were timed alike"
        )
    if not first.bounded:
        return first._replace(
            why=f"{format_count(first.pairs, 'pair')}: a verdict needs at least {paired.FEWEST}"
        )
    if first.verdict in CHANGED:
        return first._replace(
            verdict="SUSPECT",
            why=f"{first.way} in stage 1, {few or dropped or 'not measured again'}",
        )
    return first._replace(why=few or first.why)


def _rule_paired(
    base: CaseRows, head: CaseRows, tau: float, stage: int, tests: int
) -> Ruling | None:
    """The ruling on a row by pairs of launches, one of so many ``tests``; None where the sides have
    no pair in ``stage``."""
    ratios = log_changes(base, head, stage)
    if not ratios:
        return None
    values, level = list(ratios.values()), paired.bonferroni_level(tests)
    sides = [[side.launches[launch_key] for launch_key in ratios] for side in (base, head)]
    shift = paired.estimate_shift(values, level)
    verdict = _class_shift(shift, tau)
    lacking = paired.count_lacking_pairs(values, tau, level)
    open_ = verdict == "INCONCLUSIVE" and math.isfinite(shift.lo)
    seconds = sum(row.record.seconds for side in sides for row in side) / len(values)
    return Ruling(
        verdict,
        _would_take(lacking, seconds) if open_ else "",
        sides[0],
        sides[1],
        shift,
        level,
        scatter=paired.estimate_scatter(values),
        p=paired.signed_rank_p(values),
        pairs=len(values),
        stage=stage,
        lacking=lacking,
    )


TELLS, SPARED = "would tell", "cannot fail the comparison"


def _would_take(pairs: float, seconds: float) -> str:
    """A phrase for how many pairs of launches, of so many seconds each, a verdict would take."""
    if not pairs:
        return ""
    took = f", {max(1, round(pairs * seconds / 60))} min" if seconds else ""
    return f"about {format_count(int(pairs), 'more pair')} {TELLS}{took}"


def rule_by_launches(base: CaseRows, head: CaseRows, tau: float, tests: int) -> Ruling:
    """A ruling from launches that form no pairs; ``tau`` is the smallest relative change that
    matters. ``tests`` is how many rows have launches enough to be tested, once each: the level that
    confirms a change accounts for all of them. A change at 95 % only is a suspicion. Launches whose
    ranks started in another way do not count (select_started_alike)."""
    sides = select_started_alike(base, head)
    logs = [[math.log(launch.median) for launch in side] for side in sides]
    fewest = min(map(len, sides))
    if fewest < FEWEST_UNPAIRED:
        why = _describe_few_launches(base, head)
        if fewest < min(len(base.launches), len(head.launches)):
            start, numbers = sides[0][0].record.sync, " and ".join(str(len(side)) for side in sides)
            way = replace_options(f"--sync {start}", sides[0][0].run.command)
            why = (
                f"{numbers} launches started alike ({start}), and a verdict needs at least"
                f" {FEWEST_UNPAIRED} a side: measure both with {way}"
            )
        if all(launch.predicted for side in sides for launch in side):
            why = "both sides are a model's predictions: nothing was measured that could be judged"
        difference = median(logs[1]) - median(logs[0]) if fewest else None
        shift = None if difference is None else Shift(difference, -math.inf, math.inf, 1.0)
        return Ruling("INCONCLUSIVE", why, sides[0], sides[1], shift)
    base_logs, head_logs = logs
    scatter = paired.unpaired_scatter(base_logs, head_logs)
    figures = (
        0.95,
        scatter,
        paired.confirmed_unpaired_change(scatter, len(base_logs), len(head_logs), tau, tests),
        paired.mann_whitney_p(base_logs, head_logs),
    )
    shift, level = paired.unpaired_shift(base_logs, head_logs), paired.bonferroni_level(tests)
    ruling = Ruling(_class_shift(shift, tau), "", sides[0], sides[1], shift, *figures)
    if ruling.verdict not in CHANGED:
        return ruling
    stricter = paired.unpaired_shift(base_logs, head_logs, level)
    if _class_shift(stricter, tau) == ruling.verdict:
        return ruling._replace(shift=stricter, level=level)
    why = f"{ruling.way}, but not at the {level:.2%} that counts for {format_count(tests, 'row')}"
    return ruling._replace(verdict="SUSPECT", why=why)


def _describe_few_launches(base: CaseRows, head: CaseRows) -> str:
    """Why the launches of two sides are too few, and how to come by enough; more where some of them
    may not be judged."""
    numbers = [len(side.launches) for side in (base, head)]
    measured = max(len(side.timed) for side in (base, head))
    if measured <= 1:
        alone = "only one launch per side, so noise and change cannot be told apart"
        return f"{alone} ({_describe_more(base, head, FEWEST_UNPAIRED)})"
    few = f"a verdict needs at least {FEWEST_UNPAIRED} a side where they form no pairs"
    if measured == max(numbers):
        number = f"{numbers[0]} and {format_count(numbers[1], 'launch')}"
        return f"{number}, and {few} ({_describe_more(base, head, FEWEST_UNPAIRED)})"
    enough = math.ceil(FEWEST_UNPAIRED * measured / max(1, min(numbers)))
    number = f"{numbers[0]} and {numbers[1]} of {measured} launches may be judged"
    return f"{number}, and {few} ({_describe_more(base, head, enough)})"


LAUNCHED_ONCE = ("workload", "replay", "overlap", "pairs", "locate")  # commands without --launches


def _describe_more(base: CaseRows, head: CaseRows, number: int) -> str:
    """A sentence on how to make so many launches a side, in the way that these were made; where a
    budget left no time for some of them, how to give them time."""
    launches = [*base.launches.values(), *head.launches.values()]
    if any(launch.run.imported for launch in launches):
        return f"name {number} logs a side"
    launchers = {launch.world.launcher for launch in launches if launch.world} - {*STARTING}
    commands = {word for launch in launches for word in launch.run.command[1:2]}
    if launchers or not commands.isdisjoint(LAUNCHED_ONCE):  # whose ranks no command can start anew
        return f"start the command {number} times a side, and name all of its runs"
    if base.dropped_launch_count or head.dropped_launch_count:
        planned = min(len(side.timed) + side.dropped_launch_count for side in (base, head))
        more = f"--launches {number} and " if planned < number else ""
        return (
            f"--budget left no time for {_count_dropped(base, head)}: measure each side with"
            f" {more}a longer --budget, or with fewer cases"
        )
    return f"measure each side with --launches {number}, or better both in turns with collbench ab"


def _count_dropped(base: CaseRows, head: CaseRows) -> str:
    """The launches that a budget left no time for, of those sides that lost some: 3 launches of
    base and 2 of head."""
    sides = (("base", base.dropped_launch_count), ("head", head.dropped_launch_count))
    (name, number), *others = [(name, number) for name, number in sides if number]
    more = "".join(f" and {number:,} of {name}" for name, number in others)
    return f"{format_count(number, 'launch')} of {name}{more}"


def _class_shift(shift: Shift, tau: float) -> Verdict:
    """The verdict that an interval gives, as if it were confirmed."""
    estimate, lo, hi = (math.expm1(value) for value in shift[:3])
    if lo > 0 or hi < 0:
        return "SMALL" if abs(estimate) < tau else "REGRESSED" if lo > 0 else "IMPROVED"
    return "SAME" if -tau < lo and hi < tau else "INCONCLUSIVE"


NAMED = 3  # rows that a sentence names

SHORT: dict[Verdict, str] = {
    "IMPROVED": "faster",
    "SUSPECT": "suspect",
    "INCONCLUSIVE": "without a verdict",
    "INVALID": "invalid",
}

NOISY = "too noisy to tell"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a row: median over ``launches`` of launch medians (ns a call), and its 95 %
    interval's larger half, relative to it (inf where too few launches bound it). ``samples`` is the
    number over all launches.
    """

    median: float
    half: float
    launches: int
    samples: int
    flags: tuple[str, ...] = ()


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of a step that changed: at its place ``at`` in rank 0's program, and what it is
    ``of``, such as a bucket. ``base`` and ``head`` are medians over launches in ns; ``delta``,
    ``lo``, ``hi`` as those of a row, at ``level``. Not ``confirmed``: the first stage of an
    experiment flags it, and there was no second."""

    at: int
    kind: str
    nbytes: int
    of: str
    base: float
    head: float
    delta: float
    lo: float
    hi: float
    level: float
    confirmed: bool


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One row. ``delta``, ``lo``, ``hi`` are head/base - 1 (0.1: head takes 10 % longer) with its
    interval at ``level``; ``mde`` the smallest change that would be called REGRESSED or IMPROVED
    with a chance of 80 %, never below ``tau``; ``scatter`` the standard deviation of log time (of
    pairs: of their changes); ``p`` of the exact test; ``pairs`` the pairs of launches behind the
    verdict and ``stage`` where they come from (0: not paired); ``lacking``, how many more a verdict
    takes, should they scatter alike. ``why`` explains the verdict where the figures do not;
    ``gates`` says whether this row may fail a comparison, and ``spared`` why it may not though rows
    of this comparison do; ``operations`` are those of a whole step that changed; ``note`` is what
    else differs between the sides, on which no verdict rests."""

    key: str
    case: Case
    verdict: Verdict
    base: Side | None = None
    head: Side | None = None
    delta: float | None = None
    lo: float | None = None
    hi: float | None = None
    level: float = 0.95
    scatter: float | None = None
    mde: float | None = None
    p: float | None = None
    tau: float = 0.0
    pairs: int = 0
    stage: int = 0
    lacking: float = 0.0
    why: str = ""
    gates: bool = False
    spared: str = ""
    operations: list[Compared] = []
    note: str = ""

    @property
    def decided(self) -> bool:
        """Whether the row was judged: it has a verdict, and one to rely on."""
        if self.verdict == "GONE":  # else a row that was lost would make a verdict of none
            return self.gates
        return self.verdict in DECIDED and not self.spared

    @property
    def is_open(self) -> bool:
        """Whether more launches might decide the row: they do not where its flags speak against
        it."""
        return not self.decided and SPARED not in self.spared

    @property
    def suspected(self) -> bool:
        """Whether launches of its own should tell of a change in the row, or in an operation."""
        return self.verdict == "SUSPECT" or any(
            not operation.confirmed for operation in self.operations
        )


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A row that no launch of both sides measured, and the reason. ``dropped``: it was to be
    measured, and --budget left no time for it."""

    key: str
    case: Case
    reason: str
    dropped: bool = False


class Outcome(NamedTuple):
    """Rows as judged, and how many more were dropped for --budget; those that head computed
    wrongly, those that lack a verdict which was due; why nothing compares, if so; whether a row's
    implementation names it, or is by what the sides differ; whether rows may fail the comparison;
    and whether every row must be decided."""

    rows: Sequence[Judged]
    dropped: int
    wrong: Sequence[Judged]
    due: Sequence[Judged]
    why_apart: str
    labelled: bool
    gating: bool
    strict: bool

    @property
    def total(self) -> int:
        """Rows in all, those dropped for a budget included."""
        return len(self.rows) + self.dropped

    @property
    def decided(self) -> int:
        """Rows that have a verdict."""
        return sum(row.decided for row in self.rows)

    @property
    def of_rows(self) -> str:
        """ "of 12 rows", for sentences."""
        return f"of {format_count(self.total, 'row')}"


def find_exit(outcome: Outcome) -> tuple[Exit, str]:
    """The exit code, and why in one sentence, which begins with how few rows were decided if those
    are fewer than half."""
    code, reason = _find_exit(outcome)
    few = describe_few(outcome.decided, outcome.total) if code in (Exit.OK, Exit.BAD) else ""
    return code, "; ".join(filter(None, [few, reason]))


def describe_few(decided: int, total: int) -> str:
    """A phrase for how many rows were decided, where these are fewer than half; else an empty
    string."""
    was = "was" if decided == 1 else "were"
    return (
        f"only {decided:,} of {format_count(total, 'row')} {was} decided"
        if 2 * decided < total
        else ""
    )


def _find_exit(outcome: Outcome) -> tuple[Exit, str]:
    """The exit code of a comparison, and the sentence that explains it."""
    if outcome.wrong:
        return (
            Exit.WRONG_DATA,
            f"head computed wrong results in {_describe_rows(outcome, outcome.wrong)}",
        )
    if bad := _describe_bad(outcome, [row for row in outcome.rows if row.gates]):
        return Exit.BAD, bad
    if reason := _no_verdict(outcome):
        return Exit.NO_VERDICT, reason
    return Exit.OK, _describe_fine(outcome)


def _no_verdict(outcome: Outcome) -> str:
    """The reason why the comparison has no verdict, or an empty string."""
    dropped = (
        f"{format_count(outcome.dropped, 'row')} dropped for --budget" if outcome.dropped else ""
    )
    if outcome.why_apart:
        return f"no verdict: {outcome.why_apart}"
    if all(row.verdict in UNTIMED for row in outcome.rows):
        untimed = "no row has times on both sides that compare"
        return f"no verdict: {'; '.join(filter(None, [untimed, dropped]))}"
    if outcome.due:
        cause = f" ({outcome.due[0].why})" if outcome.due[0].why else ""
        return f"no verdict on {_describe_rows(outcome, outcome.due)}{cause}"
    if not outcome.decided:
        return _explain_inconclusive(outcome)
    return f"no verdict: {dropped}" if outcome.strict and dropped else ""


def _explain_inconclusive(outcome: Outcome) -> str:
    """Why no row was decided: what is slower, but cannot be relied on, or the most frequent
    reason."""
    if bad := _describe_bad(outcome, outcome.rows):
        return f"no verdict: {bad}; {_describe_spared(outcome)}"
    reasons = Counter(describe_open(row) for row in outcome.rows if row.verdict != "NEW")
    (reason, _), *_ = reasons.most_common(1)
    return f"inconclusive: {reason}; none {outcome.of_rows} was decided"


def describe_open(row: Judged) -> str:
    """The reason why a row was not decided, without figures where launches scatter too much."""
    if row.verdict in DECIDED:
        return row.spared
    first = row.why.partition("; ")[0]
    scattered = not first or TELLS in first or row.spared.startswith(first)
    return NOISY if scattered and row.verdict == "INCONCLUSIVE" else first


def _describe_bad(outcome: Outcome, rows: Sequence[Judged]) -> str:
    """A phrase for those of the rows that are slower or gone; an empty string without any."""
    slower = sorted(
        (row for row in rows if row.verdict == "REGRESSED"), key=lambda row: -(row.delta or 0)
    )
    gone = [row for row in rows if row.verdict == "GONE"]
    reasons = []
    if slower:
        least = {f"{100 * row.tau:g}%" for row in slower}
        much = f"{least.pop()} or more" if len(least) == 1 else "what matters there"
        reasons.append(_describe_rows(outcome, slower, f"slower than base by {much}"))
    if gone:
        reasons.append(f"{_describe_rows(outcome, gone, 'gone')} ({gone[0].why})")
    return "; ".join(reasons)


def _describe_fine(outcome: Outcome) -> str:
    """The sentence for a comparison in which no gating row is bad, with the number of rows of each
    verdict."""
    number = Counter(row.verdict for row in outcome.rows)
    bad = _describe_bad(outcome, outcome.rows)
    parts = [
        (
            f"{bad}; {_describe_spared(outcome)}"
            if bad
            else f"none {outcome.of_rows} is found slower by what matters"
        )
    ]
    return "; ".join(
        parts + [f"{number[verdict]} {word}" for verdict, word in SHORT.items() if number[verdict]]
    )


def _describe_spared(outcome: Outcome) -> str:
    """The reason why rows that are slower or gone do not fail the comparison."""
    bad = [row for row in outcome.rows if row.verdict in ("REGRESSED", "GONE")]
    if outcome.gating or all(row.spared for row in bad):
        return f"such rows {SPARED}"
    return "ignored because the runs are unpaired (--gate-unpaired makes this fail)"


def _describe_rows(outcome: Outcome, rows: Sequence[Judged], what: str = "") -> str:
    """How many rows, what they are, and the first of them by name, slower ones with their
    change."""
    names = []
    for row in rows[:NAMED]:
        parts = [row.case.collective, row.case.label if outcome.labelled else ""]
        parts.append(format_size(row.case.size) if row.case.size else "")
        parts.append("in place" if row.case.in_place else "")
        parts.append(
            f"{row.delta:+.1%}" if row.verdict == "REGRESSED" and row.delta is not None else ""
        )
        names.append(" ".join(filter(None, parts)))
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    is_what = f" {'is' if len(rows) == 1 else 'are'} {what}" if what else ""
    return f"{len(rows)} {outcome.of_rows}{is_what}: {', '.join(names)}{more}"


def false_alarms(rows: Sequence[Judged]) -> str:
    """Whether an experiment on two alike sides found more changes than it may."""
    times = Counter(row.verdict for row in rows)
    confirmed = times["REGRESSED"] + times["IMPROVED"]
    failed = times["SUSPECT"] * 50 > max(50, len(rows)) or confirmed
    able = sum(row.gates and row.decided for row in rows)
    state = "failed" if failed else "passed" if able else "undecided"
    return (
        f"A/A check {state}: of identical sides every change is a false alarm;"
        f" {times['SMALL']} small, {times['SUSPECT']} suspected and {confirmed} confirmed in"
        f" {format_count(len(rows), 'row')}; allowed are 1 suspected in 50 rows and none"
        " confirmed; 1 small in 20 is expected, at 95% for each row; "
        + (f"{able} of them could have failed" if able else "no row was precise enough to fail")
    )
