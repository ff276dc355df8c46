"""Which settings are surely faster than the library's own choice, at which sizes, and why the
others are not advised.

A setting is compared with the default in every form of a cell, by launches. It counts as faster
where in every form the exact test is sure, adjusted by Holm over all that was tested, the estimate
is at least what matters, and the interval is above nothing. A row takes two neighbouring sizes.
Which test is made depends on the number of launches alone, never on what they say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from collbench.core.text import format_count, format_size
from collbench.features.advise import crossings
from collbench.features.advise.evidence import (
    SHARED,
    WRONG,
    Evidence,
    Form,
    Measured,
    Place,
    depends_on_order,
)
from collbench.features.advise.types import (
    Advice,
    Advised,
    Cell,
    Crossing,
    Gain,
    Series,
    Setting,
    Unadvised,
    describe_gain,
)
from collbench.records import paired, stats
from collbench.records.paired import Shift
from collbench.records.types import Choice

ALPHA = 0.05

FEWEST_UNPAIRED = 10  # launches a side that tell where they form no pairs, as in `compare`

Test = Literal["", "pairs", "turns", "apart"]
"""How a contest is tested: by pairs of launches; by launches that were made in turns, but are too
few for as many tests by pairs; by launches that were not; empty: not at all."""

Answer = Literal["faster", "not faster", "slower", "open", "untested"]


class Contest(NamedTuple):
    """A setting against the default in one form of a cell."""

    cell: Cell
    form: Form
    setting: Setting
    base: Measured
    head: Measured
    tau: float

    @property
    def doubts(self) -> tuple[str, ...]:
        """Flags for which one of both decides nothing."""
        return tuple(dict.fromkeys(self.base.doubts + self.head.doubts))

    @property
    def places(self) -> list[Place]:
        """Where both have a launch; of an experiment with a second stage, that alone, since the
        first chose what it measures."""
        base, head = self._decisive
        return sorted(base.keys() & head.keys())

    @property
    def _decisive(self) -> tuple[dict[Place, float], dict[Place, float]]:
        """The launches of both sides that count."""
        common = self.base.logs.keys() & self.head.logs.keys()
        again = {place.source for place in common if place.stage == 2}
        base, head = (
            {p: log for p, log in side.logs.items() if p.stage != 1 or p.source not in again}
            for side in (self.base, self.head)
        )
        return base, head

    @property
    def pairs(self) -> tuple[list[float], list[float]]:
        """The launches that form pairs, of both sides."""
        places = self.places
        return [self.base.logs[p] for p in places], [self.head.logs[p] for p in places]

    @property
    def sides(self) -> tuple[list[float], list[float]]:
        """All launches of both sides that count."""
        base, head = self._decisive
        return [*base.values()], [*head.values()]


class Outcome(NamedTuple):
    """A contest as it came out. ``mde`` is the smallest change found at 95 % with 80 % chance,
    ``lacking`` how many more launches a side would have told, 0 where that is not known."""

    contest: Contest
    test: Test
    answer: Answer
    gain: Gain | None
    mde: float = 0.0
    lacking: int = 0


class Standing(NamedTuple):
    """A setting in a cell over all forms: the answer that holds in all of them, the outcome of the
    form where it gains least, why it may not be advised, if so, and the first form in which it was
    not tested."""

    answer: Answer
    outcome: Outcome
    barred: str = ""
    untested: Outcome | None = None

    @property
    def is_sure(self) -> bool:
        """Whether it may be advised."""
        return self.answer == "faster" and not self.barred


def judge_evidence(evidence: Evidence, is_same_order: bool = False) -> Advised:
    """All advice that the evidence allows. ``is_same_order``: only settings that are known to add
    in the order of the default."""
    contests = list(list_contests(evidence))
    outcomes = judge_contests(contests)
    faults = collect_faults(evidence)
    standings: dict[Cell, dict[Setting, Standing]] = {}
    for cell, settings in _group_outcomes(outcomes).items():
        forms = [form for form, rivals in evidence.cells[cell].items() if _has_rivals(rivals)]
        standings[cell] = {
            setting: _stand(
                evidence, members, forms, is_same_order, faults.get((cell.series, setting), "")
            )
            for setting, members in settings.items()
        }
    chosen, rows = _choose_rows(evidence, standings)
    unadvised = [
        _explain_cell(evidence, cell, standings.get(cell, {}))
        for cell in sorted(evidence.cells)
        if cell not in chosen
    ]
    taus = [contest.tau for contest in contests] or [0.0]
    return Advised(
        library=evidence.library.key,
        version=evidence.version,
        runs=evidence.runs,
        day=evidence.day,
        taus=(min(taus), max(taus)),
        rows=tuple(rows),
        unadvised=tuple(unadvised),
        rivals={
            cell: {
                evidence.name_setting(cell.series.collective, setting): standing.outcome.gain
                for setting, standing in by_setting.items()
                if standing.outcome.gain
            }
            for cell, by_setting in standings.items()
        },
        is_same_order=is_same_order,
        backend=evidence.default.backend if len(evidence.backends) > 1 else "",
        device=evidence.device,
        hosts=evidence.hosts,
        forms=evidence.forms,
        dtypes=_list_reduced(evidence),
        notes=(*_list_faults(evidence), *evidence.notes),
    )


def _list_reduced(evidence: Evidence) -> tuple[str, ...]:
    """The datatypes with which all_reduce was measured, which engines' tables are about."""
    reduced = (f for cell, f in evidence.cells.items() if cell.series.collective == "all_reduce")
    return tuple(sorted({form.dtype for forms in reduced for form in forms}))


def _has_rivals(rivals: Mapping[Setting, Measured]) -> bool:
    return len(rivals) > 1


def list_contests(evidence: Evidence) -> Iterator[Contest]:
    """Every setting against the default, in every form of every cell that may be judged."""
    for cell in sorted(evidence.cells):
        if cell in evidence.refused:
            continue
        for form, rivals in evidence.cells[cell].items():
            base = rivals.get(evidence.default)
            if base is None or base.fault or not base.logs:
                continue
            for setting, head in rivals.items():
                if setting != evidence.default:
                    tau = max(base.tau, head.tau)
                    yield Contest(cell, form, setting, base, head, tau)


def judge_contests(contests: Sequence[Contest]) -> list[Outcome]:
    """The outcomes of contests; Holm's procedure is over all that launches are enough to test."""
    able = [_can_test(contest) for contest in contests]
    number = sum(able)
    tests = [
        _choose_test(contest, number) if can else ""
        for contest, can in zip(contests, able, strict=True)
    ]
    ps = [_find_p(contest, test) for contest, test in zip(contests, tests, strict=True) if test]
    adjusted = iter(stats.adjust_holm(ps))
    return [
        _judge_contest(contest, test, next(adjusted) if test else 1.0, number)
        for contest, test in zip(contests, tests, strict=True)
    ]


def _can_test(contest: Contest) -> bool:
    """Whether a contest has launches enough for a test of its own."""
    if contest.head.fault or describe_unlike(contest):
        return False
    fewest = min(map(len, contest.sides))
    return len(contest.places) >= paired.FEWEST or fewest >= FEWEST_UNPAIRED


def describe_unlike(contest: Contest) -> str:
    """The way of timing in which both sides differ throughout; empty where there is none."""
    base, head = contest.base.manner, contest.head.manner
    for name in sorted(base.keys() & head.keys()):
        if base[name] and head[name] and not base[name] & head[name]:
            ours, theirs = (" or ".join(sorted(values)) for values in (base[name], head[name]))
            return f"{name}: {ours} of the default, {theirs} of the setting"
    return ""


def _choose_test(contest: Contest, number: int) -> Test:
    """The first kind of test that can be sure among so many; else the first that can be made."""
    pairs, (base, head) = len(contest.places), map(len, contest.sides)
    kinds: list[tuple[Test, float]] = []
    if pairs >= paired.FEWEST:
        kinds += [("pairs", 2.0 ** (1 - pairs)), ("turns", _least_p(pairs, pairs))]
    if min(base, head) >= FEWEST_UNPAIRED:
        kinds.append(("apart", _least_p(base, head)))
    return next((kind for kind, least in kinds if least * number <= ALPHA), kinds[0][0])


def _least_p(base: int, head: int) -> float:
    """The smallest p of Mann-Whitney's test of so many launches."""
    return 2 / math.comb(base + head, base)


def _find_p(contest: Contest, test: Test) -> float:
    """The exact p of a test of two sides."""
    base, head = contest.sides if test == "apart" else contest.pairs
    if test == "pairs":
        return paired.signed_rank_p([b - a for a, b in zip(base, head, strict=True)])
    return paired.mann_whitney_p(base, head)


def estimate_change(base: Measured, head: Measured) -> tuple[Shift, bool] | None:
    """The change of log time from one setting to another with its interval, and whether pairs tell
    it; None where launches are too few."""
    contest = Contest(*_NOWHERE, base, head, 0.0)
    return _estimate(contest)


def _estimate(contest: Contest) -> tuple[Shift, bool] | None:
    if len(contest.places) >= paired.FEWEST:
        return paired.estimate_shift(_changes(contest)), True
    base, head = contest.sides
    if min(len(base), len(head)) >= FEWEST_UNPAIRED:
        return paired.unpaired_shift(base, head), False
    return None


def _changes(contest: Contest) -> list[float]:
    return [head - base for base, head in zip(*contest.pairs, strict=True)]


def _judge_contest(contest: Contest, test: Test, p: float, number: int) -> Outcome:
    """The outcome of a contest by its test, of which ``p`` is adjusted."""
    estimate = _estimate(contest) if test else None
    if not test or estimate is None:
        return Outcome(contest, "", "untested", None)
    shift, is_paired = estimate
    base, head = contest.pairs if is_paired else contest.sides
    mde = paired.estimate_mde(_changes(contest)) if is_paired else paired.unpaired_mde(base, head)
    gain = Gain(
        nbytes=contest.cell.nbytes,
        gain=-math.expm1(shift.estimate),
        lo=-math.expm1(shift.hi),
        hi=-math.expm1(shift.lo),
        p=p,
        launches=min(len(base), len(head)),
        is_paired=is_paired,
        default=math.exp(median(base)),
        setting=math.exp(median(head)),
    )
    answer = _answer(gain, contest, math.expm1(mde))
    lacking = _count_lacking(contest, is_paired, number) if answer == "open" else 0
    return Outcome(contest, test, answer, gain, math.expm1(mde), lacking)


def _answer(gain: Gain, contest: Contest, mde: float) -> Answer:
    """What a contest says. As in comparisons, launches that would miss a change of twice what
    matters decide only where the whole interval is beyond what matters."""
    tau = contest.tau
    if contest.doubts:
        return "open"
    is_noisy = mde > 2 * tau
    if gain.p <= ALPHA and (gain.lo > 0 or gain.hi < 0):
        if gain.lo > 0 and gain.gain >= tau and (not is_noisy or gain.lo >= tau):
            return "faster"
        if gain.hi < 0 and gain.gain <= -tau:
            return "slower"
    return "open" if gain.hi >= tau else "not faster"


def _count_lacking(contest: Contest, is_paired: bool, number: int) -> int:
    """How many more launches a side would have told, about; 0 where that is not known."""
    if not is_paired:
        return 0
    level = paired.bonferroni_level(number)
    more = paired.count_lacking_pairs(_changes(contest), contest.tau, level)
    return math.ceil(more) if math.isfinite(more) else 0


Outcomes = dict[Cell, dict[Setting, list[Outcome]]]


def _group_outcomes(outcomes: Sequence[Outcome]) -> Outcomes:
    grouped: Outcomes = {}
    for outcome in outcomes:
        contest = outcome.contest
        grouped.setdefault(contest.cell, {}).setdefault(contest.setting, []).append(outcome)
    return grouped


def _stand(
    evidence: Evidence,
    outcomes: Sequence[Outcome],
    forms: Sequence[Form],
    is_same_order: bool,
    fault: str = "",
) -> Standing:
    """A setting over all forms in which the default has rivals: faster only where it is in all of
    them. ``fault``: what it did at another size, for which it may be advised at none."""
    contest = outcomes[0].contest
    faults = [o.contest.head.fault for o in outcomes if o.contest.head.fault]
    faults += [fault] if fault else []
    faults += [f"was timed differently ({why})" for o in outcomes if (why := _unlike(o))]
    measured = [outcome.contest.form for outcome in outcomes]
    missing = [form for form in forms if form not in measured]
    if missing and evidence.cells[contest.cell][missing[0]].get(evidence.default):
        faults.append(f"was not measured with {missing[0].words}")
    if is_same_order and not faults:
        faults += filter(None, [explain_order(outcome.contest) for outcome in outcomes])
    answers = {outcome.answer for outcome in outcomes}
    # one form in which it is not faster decides, whatever others would say
    ranked: tuple[Answer, ...] = ("slower", "not faster", "untested", "open", "faster")
    return Standing(
        next(a for a in ranked if a in answers),
        _find_least(outcomes, faults[0] if faults else ""),
        faults[0] if faults else "",
        next((outcome for outcome in outcomes if outcome.answer == "untested"), None),
    )


def _find_least(outcomes: Sequence[Outcome], barred: str) -> Outcome:
    """The outcome of the form where a setting gains least, whose gain has the least ends of all
    forms' intervals, the largest p, and why it may not be advised by, if so."""
    gains = [outcome.gain for outcome in outcomes if outcome.gain]
    if not gains:
        return outcomes[0]
    flags = dict.fromkeys(flag for outcome in outcomes for flag in outcome.contest.doubts)
    doubt = barred or (f"flagged {', '.join(flags)}" if flags else "")
    if len(gains) < len(outcomes):
        doubt = doubt or "has too few launches in one form"
    least = min((outcome for outcome in outcomes if outcome.gain), key=_gain_of)
    gain = msgspec.structs.replace(
        min(gains, key=lambda gain: gain.gain),
        lo=min(gain.lo for gain in gains),
        hi=min(gain.hi for gain in gains),
        p=max(gain.p for gain in gains),
        doubt=doubt,
    )
    return least._replace(gain=gain)


def _unlike(outcome: Outcome) -> str:
    return "" if outcome.contest.head.fault else describe_unlike(outcome.contest)


def _gain_of(outcome: Outcome) -> float:
    return outcome.gain.gain if outcome.gain else -math.inf


def explain_order(contest: Contest) -> str:
    """The reason why a setting is not known to add in the order of the default; empty where it is,
    or where nothing is added."""
    if not depends_on_order(contest.cell, contest.form):
        return ""
    base, head = contest.base.orders, contest.head.orders
    if not base or not head:
        return "adds in an order that is not known (--adds-as tells)"
    if base != head:
        return f"adds in another order: {' or '.join(base)} → {' or '.join(head)}"
    return ""


Standings = Mapping[Cell, Mapping[Setting, Standing]]


def _choose_rows(evidence: Evidence, standings: Standings) -> tuple[set[Cell], list[Advice]]:
    """The rows, and the cells that they cover."""
    rows: list[Advice] = []
    covered: set[Cell] = set()
    for series in sorted({cell.series for cell in evidence.cells}):
        sizes = sorted(cell.nbytes for cell in evidence.cells if cell.series == series)
        sure = [
            {
                setting: standing.outcome.gain
                for setting, standing in standings.get(Cell(series, size), {}).items()
                if standing.is_sure and standing.outcome.gain
            }
            for size in sizes
        ]
        spans = choose_spans([{s: g.gain for s, g in gains.items()} for gains in sure])
        covered |= {
            Cell(series, sizes[index])
            for first, last, _ in spans
            for index in range(first, last + 1)
        }
        for number, (first, last, setting) in enumerate(spans):
            gains = tuple(sure[index][setting] for index in range(first, last + 1))
            beside = [
                spans[at][2] if 0 <= at < len(spans) and _touch(spans[number], spans[at]) else None
                for at in (number - 1, number + 1)
            ]
            rows.append(_make_row(evidence, series, sizes, (first, last, setting), gains, beside))
    return covered, rows


Span = tuple[int, int, Setting]


def _touch(span: Span, other: Span) -> bool:
    """Whether no size is between two spans."""
    return other[1] + 1 == span[0] or span[1] + 1 == other[0]


def choose_spans(sure: Sequence[Mapping[Setting, float]]) -> list[Span]:
    """The first and last index and the setting of each row, by the gains of those settings that are
    sure at each size: at least two neighbouring sizes a row, so that the product of the times left
    is least; of equal choices the one with fewer rows."""
    # best[i]: the loss and rows of sizes before i, and the last span
    best: list[tuple[float, int, Span | None]] = [(0.0, 0, None)]
    for end in range(1, len(sure) + 1):
        options: list[tuple[float, int, Span | None]] = [(*best[end - 1][:2], None)]
        for setting in sure[end - 1]:
            total, first = 0.0, end - 1
            while first >= 0 and setting in sure[first]:
                total += math.log1p(-sure[first][setting])
                if end - first >= 2:
                    loss, rows, _ = best[first]
                    options.append((loss + total, rows + 1, (first, end - 1, setting)))
                first -= 1
        best.append(min(options, key=lambda option: (round(option[0], 12), option[1])))
    spans: list[Span] = []
    end = len(sure)
    while end > 0:
        span = best[end][2]
        if span:
            spans.append(span)
        end = span[0] if span else end - 1
    return spans[::-1]


def _make_row(
    evidence: Evidence,
    series: Series,
    sizes: Sequence[int],
    span: Span,
    gains: tuple[Gain, ...],
    beside: Sequence[Setting | None],
) -> Advice:
    """The row of a span. ``beside`` are the settings of rows that touch it; where there is none,
    the library's choice is what it is set against."""
    first, last, setting = span
    low, high = sizes[first], sizes[last]
    if first > 0:
        low = math.floor(math.sqrt(sizes[first - 1] * low)) + 1
    if last + 1 < len(sizes):
        high = math.floor(math.sqrt(high * sizes[last + 1]))
    below, above = (
        _find_crossing(evidence, series, order, setting, other or evidence.default)
        for order, other in ((sizes[: last + 1][::-1], beside[0]), (sizes[first:], beside[1]))
    )
    ran = [_find_choices(evidence, Cell(series, gain.nbytes), setting) for gain in gains]
    return Advice(
        series=series,
        setting=setting,
        name=evidence.name_setting(series.collective, setting),
        low=low,
        high=high,
        gains=gains,
        below=below if first > 0 else None,
        above=above if last + 1 < len(sizes) else None,
        default_ran=next((base for base, _ in ran if base), None),
        ran=next((head for _, head in ran if head), None),
        default_rans=tuple(base for base, _ in ran),
        rans=tuple(head for _, head in ran),
        remark=SHARED if any(Cell(series, g.nbytes) in evidence.shared for g in gains) else "",
    )


def _find_choices(
    evidence: Evidence, cell: Cell, setting: Setting
) -> tuple[Choice | None, Choice | None]:
    """What the library said that it ran, by default and by a setting."""
    base, head = (
        next((rivals[one].chose for rivals in evidence.cells[cell].values() if one in rivals), None)
        for one in (evidence.default, setting)
    )
    return base, head


def _find_crossing(
    evidence: Evidence, series: Series, sizes: Sequence[int], setting: Setting, other: Setting
) -> Crossing | None:
    """Where a row's setting is no longer faster than another, along sizes that lead out of the row;
    by the form in which the other wins first."""
    found: list[Crossing] = []
    for form in dict.fromkeys(
        form for size in sizes for form in evidence.cells[Cell(series, size)]
    ):
        knots = []
        for size in sizes:
            rivals = evidence.cells[Cell(series, size)].get(form, {})
            if setting not in rivals or other not in rivals or size <= 0:
                break
            estimate = estimate_change(rivals[other], rivals[setting])
            if estimate is None:
                break
            knots.append(crossings.Knot(size, *estimate[0][:3]))
        if crossing := crossings.find_crossing(knots):
            found.append(crossing)
    return min(found, key=lambda crossing: abs(math.log(crossing.lo / sizes[0])), default=None)


def _explain_cell(
    evidence: Evidence, cell: Cell, standings: Mapping[Setting, Standing]
) -> Unadvised:
    """Why the library's choice stays in a cell."""
    defaults = [
        rivals[evidence.default]
        for rivals in evidence.cells[cell].values()
        if evidence.default in rivals
    ]
    base = Unadvised(
        cell, "", False, default_ran=next((each.chose for each in defaults if each.chose), None)
    )
    if cell in evidence.refused:
        return base._replace(why=evidence.refused[cell])
    if not defaults:
        return base._replace(why=_explain_no_default(evidence, cell))
    fault = next((each.fault for each in defaults if each.fault), "")
    if fault or not any(each.logs for each in defaults):
        return base._replace(why=f"the library's own choice {fault or 'has no time'}")
    if not standings:
        return base._replace(why="no other setting was measured")
    return _explain_standings(evidence, base, standings)


def _explain_no_default(evidence: Evidence, cell: Cell) -> str:
    """Why nothing is known of the library's own choice in a cell: variables that were exported are
    part of all settings of it."""
    why = "the library's own choice was not measured"
    settings = [
        dict(setting.env)
        for rivals in evidence.cells[cell].values()
        for setting in rivals
        if msgspec.structs.replace(setting, env=()) == evidence.default
    ]
    exported = [
        f"{name}={value}"
        for name, value in sorted(evidence.exported.get(cell, ()))
        if settings and all(name in env for env in settings)
    ]
    if not exported:
        return why
    was, it = ("was", "it") if len(exported) == 1 else ("were", "them")
    return f"{why}, as {' and '.join(exported)} {was} exported; unset {it}"


def _explain_standings(
    evidence: Evidence, base: Unadvised, standings: Mapping[Setting, Standing]
) -> Unadvised:
    """Why none of the settings that compete in a cell is advised: by the one that gains most, of
    those that are faster, else of those that may be, of those that are not, of all."""
    ordered = sorted(standings.items(), key=lambda item: -_gain_of(item[1].outcome))

    def rank(standing: Standing) -> int:
        able = standing.answer in ("slower", "not faster")
        faster, open_ = (standing.answer == answer for answer in ("faster", "open"))
        free = not standing.barred
        states = (faster and free, faster, open_ and free, able and free, not free, True)
        return states.index(True)

    setting, standing = min(ordered, key=lambda item: rank(item[1]))
    name = evidence.name_setting(base.cell.series.collective, setting)
    kind, gain, contest = rank(standing), standing.outcome.gain, standing.outcome.contest
    if kind == 0:
        why = f"{name} is faster here, but not surely at a neighbouring size"
    elif kind == 1:
        why = f"{name} is faster, but {standing.barred}"
    elif kind == 2:
        why = _explain_open(name, standing.outcome)
    elif kind == 3:
        is_few = any(each.answer == "untested" and not each.barred for each in standings.values())
        what = "nothing that has launches enough" if is_few else "nothing"
        why = f"{what} is faster by {contest.tau:.0%} or more"
    else:
        few = standing.untested.contest if standing.untested else contest
        why = f"{name} {standing.barred}" if kind == 4 else _explain_few(few)
    return base._replace(
        why=why, decided=kind in (0, 1, 3), best=gain, best_name=name if gain else ""
    )


def _explain_open(name: str, outcome: Outcome) -> str:
    """Why a contest is undecided, and what would decide it."""
    contest, gain = outcome.contest, outcome.gain
    assert gain is not None
    if contest.doubts:
        return (
            f"flagged {', '.join(contest.doubts)}: such rows decide nothing (collbench help flags)"
        )
    # alone: runs that are pooled with those that led to them are tested twice
    number = format_count(len(contest.sides[0]) + outcome.lacking, "launch")
    more = f"; a new run of about {number} a side, judged alone, would decide"
    what = f"{name}: {describe_gain(gain)} at {format_size(gain.nbytes)}"
    return f"launches scatter too much: {what}" + more * bool(outcome.lacking)


def _explain_few(contest: Contest) -> str:
    """Why a contest was not tested: too few launches."""
    sides = contest.base, contest.head
    few = min(len(side.logs) for side in sides)
    launched = max(side.launched for side in sides)
    number = f"{format_count(few, 'launch')} a side"
    if few < launched:
        number = f"only {few} of {format_count(launched, 'launch')} a side may be judged"
    return (
        f"{number}: at least {paired.FEWEST} launches in turns (`ab`, or --env in one run with"
        f" --launches {paired.FEWEST}), or {FEWEST_UNPAIRED} apart; more where many settings"
        " compete"
    )


def collect_faults(evidence: Evidence) -> dict[tuple[Series, Setting], str]:
    """What bars a setting at all sizes of a series: wrong data or a failed call at one of them,
    wrong data first."""
    found: dict[tuple[Series, Setting], dict[str, int]] = {}
    for cell, forms in sorted(evidence.cells.items(), key=lambda item: item[0]):
        for rivals in forms.values():
            for setting, measured in rivals.items():
                if measured.fault:
                    key = cell.series, setting
                    found.setdefault(key, {}).setdefault(measured.fault, cell.nbytes)
    faults = {}
    for key, sizes in found.items():
        fault = min(sizes, key=lambda fault: not fault.startswith(WRONG))
        faults[key] = f"{fault} ({format_size(sizes[fault])})"
    return faults


def _list_faults(evidence: Evidence) -> list[str]:
    """A note for each setting that gave wrong data or failed."""
    faults: dict[str, list[int]] = {}
    for cell, forms in evidence.cells.items():
        for rivals in forms.values():
            for setting, measured in rivals.items():
                if measured.fault:
                    name = evidence.name_setting(cell.series.collective, setting)
                    about = f"{cell.series.collective}, {name}: {measured.fault}"
                    faults.setdefault(about, []).append(cell.nbytes)
    return [f"{about} ({format_size(min(sizes))})" for about, sizes in faults.items()]


_NOWHERE = (
    Cell(Series("", 1, 1), 0),
    Form("", "", 0, False, "", "", "", 1, ""),
    Setting(backend=""),
)
