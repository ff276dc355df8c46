"""A comparison in words: its verdict, what could not be decided, why, and what would decide it, how
often this machine has been wrong, and of its rows what each is called, its figures, and what its
verdict rests on."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_count, format_duration, format_size
from collbench.features.compare.comparison import Aggregate, Comparison
from collbench.features.compare.false_alarms import Alarms
from collbench.features.compare.verdict import (
    DECIDED,
    FEWEST_UNPAIRED,
    NOISY,
    TELLS,
    Compared,
    Judged,
    Side,
    Verdict,
    describe_few,
    describe_open,
)
from collbench.records import paired
from collbench.records.types import Run
from collbench.show.document import Weight
from collbench.show.words import (
    AXES,
    PLACES,
    axis_values,
    format_percent,
    format_signed,
    shorten_text,
    split_axes,
    word_axes,
)
from collbench.suite.case import Case

ORDER: tuple[Verdict, ...] = (
    "REGRESSED",
    "GONE",
    "SUSPECT",
    "INVALID",
    "INCOMPARABLE",
    "IMPROVED",
    "SMALL",
    "NEW",
    "INCONCLUSIVE",
    "SAME",
)

# of rows that the measurement, or what it was made on, allowed no verdict
UNDECIDED: tuple[Verdict, ...] = ("INVALID", "INCOMPARABLE", "INCONCLUSIVE")

TOLD: dict[Verdict, str] = {  # others by their names
    "SMALL": "changed too little to matter",
    "SUSPECT": "suspected, not confirmed",
    "INCONCLUSIVE": "undecided",
    "NEW": "new (only head ran)",
}

NAMED, LISTED = 3, 12  # rows that a verdict and that a reason names at most

WEIGHTS: dict[Verdict, Weight] = {
    "REGRESSED": "bad",
    "GONE": "bad",
    "SUSPECT": "notice",
    "INVALID": "notice",
    "INCOMPARABLE": "notice",
    "INCONCLUSIVE": "notice",
    "IMPROVED": "good",
    "SMALL": "",
    "NEW": "",
    "SAME": "",
}

FIGURES = ("base", "head", "change [interval]", "MDE")  # heads of a row's figures

MORE_PAIRS = 8  # pairs more, with which what they would find is told

LEGEND = (
    "Times are medians over launches ± the larger half of their 95 % interval; change is head /"
    " base - 1, ~ where zero is inside its interval; MDE is the smallest change that would be"
    " called regressed or improved 4 times in 5."
)


class Name(NamedTuple):
    """What a row is called: its size, all else by which it differs from the others, and where its
    result goes (in or out of place), each empty where it tells no rows apart."""

    size: str
    rest: str
    place: str

    @property
    def text(self) -> str:
        """The name in a sentence."""
        in_place = PLACES["in"] if self.place == "in" else ""
        return shorten_text(" ".join(filter(None, [self.rest, self.size, in_place])), 120)


class Shown(NamedTuple):
    """A row as people read it. It shows ``row_verdict``; columns call it ``name``, and sentences
    ``row``."""

    row: str
    base: str
    head: str
    change: str
    mde: str
    verdict: str
    why: str
    row_verdict: Judged | None = None
    name: Name = Name("", "", "")

    @property
    def figures(self) -> tuple[str, str, str, str]:
        """The cells below FIGURES."""
        return self.base, self.head, self.change, self.mde


def list_shown(comparison: Comparison) -> list[Shown]:
    """Every row, the gravest verdict and the largest change first."""
    names = label_cases(comparison, [row.case for row in comparison.rows])
    rows = sorted(
        comparison.rows, key=lambda row: (ORDER.index(row.verdict), -abs(row.delta or 0.0))
    )
    return [
        Shown(
            names[row.case].text,
            _format_side(row.base),
            _format_side(row.head),
            format_change(row),
            format_percent(row.mde),
            row.verdict,
            _explain_verdict(row, row.why),
            row,
            names[row.case],
        )
        for row in rows
    ]


def label_cases(comparison: Comparison, selected: Sequence[Case]) -> dict[Case, Name]:
    """Names of cases: what is not common to all of them, and the size."""
    cases = {case: strip_sides(comparison, case) for case in selected}
    lines = [axis_values(case) for case in cases.values()]
    # that only some collectives have, and so do not set rows apart by being absent
    owned = ("op", "root", "splits")
    varying = [
        name
        for name in AXES
        if len({line[name] for line in lines} - {"" if name in owned else None}) > 1
    ]
    several = len({case.mode for case in cases.values()}) > 1
    names = {}
    for key, case in cases.items():
        axis_words = word_axes(case)
        parts = [axis_words[name] for name in varying if name != "place"]
        parts += [case.collective] * (not case.size and "collective" not in varying)
        parts += [case.mode] * several
        place_name = axis_values(case)["place"] if "place" in varying else ""
        rest = shorten_text(" ".join(filter(None, parts)), 100)
        names[key] = Name(format_size(case.size) if case.size else "", rest, place_name)
    return names


def strip_sides(comparison: Comparison, case: Case) -> Case:
    """``case`` without the fields in which the two sides differ by design."""
    plain_values = {"backend": "", "algorithm": "native", "env": ()}
    differs = {
        name
        for run in (comparison.base, comparison.head)
        if run.pairing
        for name in run.pairing.differs
    }
    return msgspec.structs.replace(
        case, **{name: plain_values[name] for name in differs if name in plain_values}
    )


def list_facts(comparison: Comparison) -> list[str]:
    """Facts that the verdicts rest on, in a few words each."""
    first, second = comparison.stages
    design = f"{first}+{second} pairs" if second else format_count(first, "pair")
    cases = [strip_sides(comparison, row.case) for row in comparison.rows]
    difference_count = len(comparison.differences)
    same = (
        format_count(difference_count, "fingerprint difference")
        if difference_count
        else "fingerprints identical"
    )
    if logs := [run for run in (comparison.base, comparison.head) if run.imported]:
        same = f"{'machines' if logs[1:] else 'one machine'} known from logs only"
        same += f", {format_count(difference_count, 'difference')} in them" * bool(difference_count)
    rules = comparison.rules
    return [
        design if comparison.paired else "unpaired",
        *([shorten_text(split_axes(cases)[1], 200)] if cases else []),
        same + ", compared all the same" * (bool(difference_count) and rules.across_machines),
        *([f"τ {format_percent(rules.tau)}"] if rules.tau is not None else []),
        *(["strict"] if rules.strict else []),
    ]


def names_of(comparison: Comparison) -> tuple[str, str]:
    """Names of base and head: the variant each was given as, else its tag; ids where these are
    alike."""
    base, head = (_named_side(run) for run in (comparison.base, comparison.head))
    if base == head:
        base, head = comparison.base.id, comparison.head.id
    return shorten_text(base, 60), shorten_text(head, 60)


def _named_side(run: Run) -> str:
    return (run.pairing.variant or "as it is") if run.pairing else run.tag or run.id


def list_differences(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Facts in which the machines differ, with what base and head have."""
    return [
        (
            shorten_text(name, 60),
            *(shorten_text("-" if value is None else str(value), 60) for value in values),
        )  # type: ignore[misc]
        for name, *values in comparison.differences
    ]


class Readable(NamedTuple):
    """A comparison in words: its rows, the gravest verdict and the largest change first, and a line
    per aggregate, each beside its worst row; and what is known of false alarms, if anything."""

    comparison: Comparison
    rows: list[Shown]
    means: list[Shown]
    alarms: Alarms | None

    @property
    def title(self) -> str:
        """The title of the report."""
        return "collbench comparison"

    @property
    def headline(self) -> str:
        """The verdict, and the first of the rows it is about by name, change and interval; before
        it, how few rows were decided where those are fewer than half."""
        comparison = self.comparison
        if comparison.exit not in (Exit.OK, Exit.BAD):
            return shorten_text(comparison.reason, 500)
        few = describe_few(comparison.decided, comparison.total)
        return "; ".join(filter(None, [few, _describe_verdict(self)]))

    @property
    def weight(self) -> Weight:
        """Good only where no row needs a look."""
        comparison = self.comparison
        if comparison.exit in (Exit.BAD, Exit.WRONG_DATA):
            return "bad"
        doubtful = (
            comparison.exit
            or comparison.dropped
            or any(WEIGHTS[row.verdict] in ("bad", "notice") for row in comparison.rows)
        )
        return "notice" if doubtful else "good"

    def having(self, *verdicts: Verdict) -> list[Shown]:
        """Rows with one of these verdicts."""
        return [row for row in self.rows if row.verdict in verdicts]


def make_readable(comparison: Comparison, alarms: Alarms | None = None) -> Readable:
    """A comparison, and its means over collectives with the row that fared worst, as every medium
    shows them."""
    rows = list_shown(comparison)
    deltas = {
        row.row_verdict.key: (row.row, row.row_verdict.delta) for row in rows if row.row_verdict
    }
    means = []
    for mean in comparison.aggregates:
        about = shorten_text(" ".join(filter(None, ["geomean", mean.collective, mean.sizes])), 60)
        name, delta = deltas.get(mean.worst, ("", None))
        worst = f"worst: {name} {format_signed(delta)}" if name else ""
        label = f"{about} ({format_count(mean.rows, 'row')})"
        means.append(Shown(label, "", "", format_change(mean), "", "", worst))
    return Readable(comparison, rows, means, alarms)


def _describe_verdict(view: Readable) -> str:
    bad, rest = [_name_rows(view, "REGRESSED", "GONE"), _name_rows(view, "SUSPECT", "IMPROVED")]
    if bad:
        return "; ".join(bad) + (
            "" if view.comparison.exit else "; too unreliable to fail the comparison"
        )
    manner = "confirmed" if view.having("SUSPECT") else "found"
    changed = [
        operation
        for row in view.rows
        if row.row_verdict
        for operation in row.row_verdict.operations
    ]
    what = "no row" if any(operation.delta > 0 for operation in changed) else "nothing"
    return "; ".join([f"{what} {manner} slower", *rest])


def _name_rows(view: Readable, *verdicts: Verdict) -> list[str]:
    """For each verdict a phrase for how many rows have it, and the first of these rows."""
    return [
        f"{len(rows):,} {verdict.lower()}: "
        + first_names([f"{row.row} {row.change}".removesuffix(" -") for row in rows], NAMED)
        for verdict in verdicts
        if (rows := view.having(verdict))
    ]


def first_names(names: Sequence[str], most: int = LISTED) -> str:
    """The first of these, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def describe_decided(view: Readable) -> str:
    """A phrase for how many rows have each verdict, and how many have none."""
    rows = [row.row_verdict for row in view.rows if row.row_verdict]
    clear, still_open = (
        Counter(_verdict_kind(row) for row in rows if row.decided == whether)
        for whether in (True, False)
    )
    what = f"{clear.total():,} of {format_count(view.comparison.total, 'row')} decided"
    sentences = [
        f"{what}: {', '.join(_count_kinds(clear))}" if clear else what,
        *_count_kinds(still_open),
    ]
    mdes = [row.mde or math.inf for row in rows if row.verdict == "INCONCLUSIVE"]
    detectable = sorted(mde for mde in mdes if math.isfinite(mde))
    if detectable:
        would = f"only changes above {_format_range(detectable)} would be detected"
        sentences = [f"{w}: {would}" if w.endswith(TOLD["INCONCLUSIVE"]) else w for w in sentences]
    if view.comparison.dropped:
        sentences.append(f"{view.comparison.dropped:,} dropped for --budget")
    return "; ".join(sentences)


def _verdict_kind(row: Judged) -> tuple[int, str]:
    """The verdict of a row in words, after its place in the order of verdicts."""
    unfit = ", not fit to gate" if row.spared and row.verdict in DECIDED else ""
    return ORDER.index(row.verdict), TOLD.get(row.verdict, row.verdict.lower()) + unfit


def _count_kinds(kinds: Counter[tuple[int, str]]) -> list[str]:
    return [f"{kinds[kind]:,} {kind[1]}" for kind in sorted(kinds)]


def _format_range(shares: Sequence[float]) -> str:
    """The ends of sorted shares, or the one that both are."""
    return " to ".join(dict.fromkeys(format_percent(share) for share in (shares[0], shares[-1])))


def list_advice(view: Readable) -> list[str]:
    """Advice that would decide the rows that scatter too much: by how much launches do, what more
    of them would find, and how to make them scatter less."""
    rows = [
        row.row_verdict
        for row in view.having("INCONCLUSIVE")
        if row.row_verdict
        and row.row_verdict.scatter is not None
        and math.isfinite(row.row_verdict.scatter)
    ]
    if not rows:
        return []
    comparison = view.comparison
    tests = sum(
        row.stage == 2 if comparison.paired else row.scatter is not None for row in comparison.rows
    )
    scatter = _format_range(sorted(math.expm1(row.scatter or 0.0) for row in rows))
    detectable = _format_range(sorted(math.expm1(_found_by_more(row, tests)) for row in rows))
    what = f"{MORE_PAIRS} more pairs" if comparison.paired else f"{FEWEST_UNPAIRED} more a side"
    launches = "pairs" if comparison.paired else "launches"
    unpinned = not comparison.base.policy.pin
    on_cpu = {"gloo", "mpi"}.issuperset(row.case.backend for row in rows)
    remedies = ["pin ranks (pin = true)"] * unpinned + ["use an idle machine"]
    remedies += ["measure with --backend shm"] * on_cpu
    return [
        f"{launches} scatter by {scatter}: {what} would find {detectable}; {', or '.join(remedies)}"
    ]


def _found_by_more(row: Judged, tests: int) -> float:
    """The smallest change in log time that more launches, scattering alike, would confirm 4 times
    in 5, where so many rows are tested."""
    scatter = row.scatter or 0.0
    if row.pairs:
        pairs, number = row.pairs + MORE_PAIRS, tests + (row.stage == 1)
        return paired.confirmed_change(scatter, pairs, row.tau, number)
    sides = [side.launches + FEWEST_UNPAIRED for side in (row.base, row.head) if side]
    return paired.confirmed_unpaired_change(scatter, sides[0], sides[-1], row.tau, tests)


def name_undecided(view: Readable) -> dict[str, list[str]]:
    """Names of the rows without a verdict, and what one would take, by the reason; reasons that
    differ in figures only are one, told as of the first row."""
    names: dict[str, tuple[str, list[str]]] = {}
    for row in view.having(*UNDECIDED):
        if row.row_verdict:
            reason, more = _reason_open(row.row_verdict), row.row_verdict.why.partition("; ")[0]
            name = f"{row.row} ({more.removeprefix('about ')})" if TELLS in more else row.row
            names.setdefault(re.sub(r"[\d.,]*\d", "", reason), (reason, []))[1].append(name)
    return dict(names.values())


def _reason_open(row: Judged) -> str:
    """The reason why a row has no verdict."""
    if row.verdict != "INCONCLUSIVE":
        return f"{row.verdict.lower()}: {row.why}"
    reason = describe_open(row)
    return "launches scatter too much" if reason == NOISY else reason


def list_reasons(view: Readable, listed: bool = False) -> list[str]:
    """A line for each reason, most frequent first, with the first of its rows; without these where
    all rows are ``listed`` anyway and the reason is one."""
    undecided = sorted(name_undecided(view).items(), key=lambda item: -len(item[1]))
    tells_more = any(TELLS in name for _, names in undecided for name in names)
    alone = listed and len(undecided) == 1 and not tells_more
    return [
        f"no verdict on {format_count(len(names), 'row')}, {shorten_text(why, 200)}"
        + ("" if alone else f": {first_names(names, LISTED)}")
        for why, names in undecided
    ] + list_advice(view)


def left_out(view: Readable, dropped: bool) -> list[str]:
    """A line for each reason for which rows were not measured on both sides, with the first of
    them: those ``dropped`` for --budget, or the others."""
    names = skipped_names(view.comparison)
    rows = [row for row in view.comparison.skipped if row.dropped == dropped]
    by_reason = names_by_reason((row.case, row.reason, names[row.key]) for row in rows)
    return [
        f"{format_count(len(names), 'row')} {shorten_text(reason, 300)} ({first_names(names)})"
        for reason, names in by_reason.items()
    ]


def names_by_reason(rows: Iterable[tuple[Case, str, str]]) -> dict[str, list[str]]:
    """Names of rows by the reason why they are left out; reasons that differ in the name of the
    collective only are one."""
    reasons: dict[str, set[str]] = {}
    names: dict[str, list[str]] = {}
    for case, reason, name in rows:
        general = reason.replace(case.collective, "the collective")
        reasons.setdefault(general, set()).add(reason)
        names.setdefault(general, []).append(name)
    return {
        (general if len(reasons[general]) > 1 else reasons[general].pop()): row_names
        for general, row_names in names.items()
    }


def skipped_names(comparison: Comparison) -> Mapping[str, str]:
    """Names of the rows that are not compared, by key."""
    cases = [row.case for row in comparison.rows] + [row.case for row in comparison.skipped]
    names = label_cases(comparison, cases)
    return {row.key: names[row.case].text for row in comparison.skipped}


def strip_repeated(rows: Sequence[Shown]) -> list[Shown]:
    """These rows without the reason for no verdict where several have the same: it stands once, in
    ``reasons``."""
    repeated = Counter(why for row in rows if (why := _told_below(row)))
    return [
        row._replace(why=_explain_verdict(row.row_verdict, ""))
        if row.row_verdict and repeated[_told_below(row)] > 1
        else row
        for row in rows
    ]


def _told_below(row: Shown) -> str:
    """The whole reason of a row that ``reasons`` tells whole."""
    if not (row.row_verdict and row.verdict in UNDECIDED):
        return ""
    why = row.row_verdict.why
    return why if _reason_open(row.row_verdict).endswith(why) else ""


def describe_operations(view: Readable) -> list[str]:
    """A line for each step of which single operations changed, with the first of them."""
    lines = []
    for row in view.rows:
        operations = row.row_verdict.operations if row.row_verdict else []
        for slower in (True, False):
            names = [
                _describe_operation(operation)
                for operation in operations
                if (operation.delta > 0) == slower
            ]
            if names:
                word = "slower" if slower else "faster"
                lines.append(f"{word} in {row.row}: {first_names(names, NAMED)}")
    return lines


def _describe_operation(operation: Compared) -> str:
    """An operation with its change, as in bucket 3 (op 7, all_reduce 25 MiB) +12% [8, 16]."""
    name = operation.of.partition(":")[0]
    about = f"op {operation.at}, {operation.kind} {format_size(operation.nbytes)}"
    label = f"{shorten_text(name, 40)} ({about})" if name else about
    ends = f"[{format_signed(operation.lo).rstrip('%')}, {format_signed(operation.hi).rstrip('%')}]"
    doubt = "" if operation.confirmed else ", not measured again"
    return f"{label} {format_signed(operation.delta)} {ends}{doubt}"


def describe_alarms(view: Readable) -> list[str]:
    """How often A/A experiments on this machine raised a false alarm, where that is known."""
    about, what = view.alarms, "A/A (both sides the same) on this machine"
    if about is None:
        return []
    if not about.experiments:
        return ["no A/A check of this machine yet (collbench ab --aa)"]
    older = f", {about.older:,} older ones not judged" if about.older else ""
    undecided = f", {about.undecided:,} more undecided" if about.undecided else ""
    return [
        f"{what}: {format_count(about.experiments, 'experiment')},"
        f" {format_count(about.rows, 'row')},"
        f" {about.small:,} small at 95% for each row, {about.suspected:,} suspected,"
        f" {about.confirmed:,} confirmed{undecided};"
        f" last {about.last}{older}"
    ]


def format_change(row: Judged | Aggregate) -> str:
    """A change with its interval, +11.4% [+9.8, +13.1]; ~ [-2.1, +1.6] where zero is inside it."""
    if row.delta is None:
        return "-"
    mean_alone = isinstance(row, Aggregate) and math.isinf(row.hi)  # no row has an interval
    if row.lo is None or row.hi is None or mean_alone:
        return format_signed(row.delta)
    middle = "~" if row.lo <= 0 <= row.hi else format_signed(row.delta)
    return f"{middle} [{format_signed(row.lo).rstrip('%')}, {format_signed(row.hi).rstrip('%')}]"


def _format_side(side: Side | None) -> str:
    return f"{format_duration(side.median)} ±{format_percent(side.half)}" if side else "-"


def _explain_verdict(row: Judged, reason: str) -> str:
    """Evidence of a verdict, its reason where the figures do not say it, what else differs, and the
    flags."""
    sides = [side for side in (row.base, row.head) if side]
    launches = (
        str(row.pairs)
        if row.pairs
        else "+".join(str(side.launches) for side in sides if len(sides) == 2)
    )
    flags = dict.fromkeys(flag for side in sides for flag in side.flags if flag not in row.why)
    parts = [
        " ".join(
            [
                *([f"p={row.p:.2g}"] if row.p is not None else []),
                *([f"n={launches}"] if launches else []),
            ]
        ),
        reason,
        row.note,
        " ".join(flags),
    ]
    return shorten_text("; ".join(filter(None, parts)), 300)
