"""A verification of an advice: its file against everything as it is, in turns, in fresh launches.

The best of many settings seems faster than it is, so that what proposed it never decides. The
experiment is that of `collbench ab`: base is the library's own choice, head the same with the
file, over all swept sizes of the series that have rows; where no row is, nothing must change. What
no file says (formats in words) is head as variables of the environment, a setting at a time. There
is no first stage: whatever proposed the rows was one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_count
from collbench.features.advise import fills
from collbench.features.advise.tune import covering, keeping
from collbench.features.advise.tune.covering import Covered
from collbench.features.advise.tune.experiment import Outcome, Variation
from collbench.features.advise.tune.keeping import Findings, Kept, Nodes, Removed, Terms
from collbench.features.advise.tune.schedule import (
    Fitting,
    Sizes,
    VerifyRequest,
    fit_budget,
    list_cells,
    list_sizes,
    split_heads,
)
from collbench.features.advise.tune.trial import lay_file
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Setting, Unadvised
from collbench.records.choice import describe_heard
from collbench.records.types import Choice
from collbench.run.launch import folders

Rivals = dict[Cell, dict[str, Gain]]

NO_TIME = "not verified: the budget has no time for it"
ON_ALL_HOSTS = "all hosts of a job have to see this file at the same path"


class Verified(NamedTuple):
    """What a verification comes to. ``advised`` has only rows that fresh launches confirm, with
    gains from these alone, and ``verified`` set; what went is among its ``unadvised`` as well.
    ``code`` is 0 where fresh launches decided something, 3 where nothing, 7 where the file gave
    wrong data (what is left does not), 130 where it was interrupted (what was confirmed until then
    is in ``advised``). ``paths`` are the saved runs."""

    advised: Advised
    removed: tuple[Removed, ...]
    paths: tuple[Path, ...]
    code: Exit

    @property
    def wrong(self) -> str:
        """With which setting data were wrong; empty where with none."""
        wrong = [each for each in self.removed if each.kind == "wrong"]
        return keeping.describe_removed(wrong)[0] if wrong else ""


class Head(NamedTuple):
    """What one head came to."""

    variation: Variation
    outcome: Outcome | None
    found: Findings
    covered: Covered


def verify_advice(advised: Advised, request: VerifyRequest) -> Verified:
    """Measure the advice's file against the library's own choice, with progress on standard error,
    and keep what holds. An advice without rows is as verified as can be. Raises CannotRun and
    RunBroken, as `collbench ab` does, where no row could be judged, and the file is not to
    blame."""
    if not advised.rows:
        return Verified(advised, (), (), Exit.OK)
    proposed = (*advised.rows, *advised.fills)
    sizes = list_sizes({row.series for row in proposed}, request.sweeps)
    fitted = fit_budget(proposed, sizes, request)
    removed = [
        _skip_size(row.name, Cell(row.series, gain.nbytes), NO_TIME)
        for row in fitted.others
        for gain in row.gains
    ]
    trial = _replace_rows(advised, proposed, fitted.rows, removed)
    if request.format.by_size and (reason := request.format.refuse(trial)):
        why = f"not verified: the file cannot say it: {reason}"
        cells = ((row.name, Cell(row.series, g.nbytes)) for row in fitted.rows for g in row.gains)
        gone = keeping.sort_removed([*removed, *(_skip_size(*each, why) for each in cells)])
        empty = _replace_rows(advised, proposed, [], gone)
        return Verified(empty, tuple(gone), (), Exit.NO_VERDICT)
    with folders.make_private() as folder, _vary(trial, fitted, sizes, request, folder) as heads:
        found = _run_heads(heads, sizes, request, folder, advised.is_same_order)
    return _conclude(advised, proposed, fitted, found, removed)


def _run_heads(
    heads: Sequence[Variation],
    sizes: Sizes,
    request: VerifyRequest,
    folder: Path,
    is_same_order: bool,
) -> list[Head]:
    """All heads one after the other; none after one that was interrupted or broke."""
    code: int = Exit.OK
    results = []
    tests = sum(len(head.cells) for head in heads) if len(heads) > 1 else 0
    for head in heads:
        outcome = Outcome(head, request, folder) if not code else None
        code = outcome.code if outcome else code
        found = _find(head, sizes, outcome, request.despite_oversubscription)
        terms = Terms(
            find_day(), request.despite_oversubscription, head.is_everywhere, is_same_order, tests
        )
        kept = _keep_rows(head, found, terms, outcome)
        covered = Covered(kept, {})
        if request.format.covers_all:
            covered = covering.cover_sizes(head.rows, kept, found, terms)
        results.append(Head(head, outcome, found, covered))
    return results


def _conclude(
    advised: Advised,
    proposed: Sequence[Advice],
    fitted: Fitting,
    heads: Sequence[Head],
    skipped: Sequence[Removed],
) -> Verified:
    """What all heads come to."""
    outcomes = [head.outcome for head in heads if head.outcome]
    rows = [row for head in heads for row in head.covered.kept.rows]
    gone = (each for head in heads for each in head.covered.kept.removed)
    removed = keeping.sort_removed([*skipped, *gone])
    chosen = {cell: fill for head in heads for cell, fill in head.covered.fills.items()}
    comparisons = [each.comparison for each in outcomes if each.comparison]
    taus = [row.tau for comparison in comparisons for row in comparison.rows]
    runs = [run.id for comparison in comparisons for run in (comparison.base, comparison.head)]
    rivals = advised.rivals
    for head in heads:
        rivals = _add_rivals(rivals, head)
    advised = msgspec.structs.replace(
        advised,
        rivals=rivals,
        runs=(*advised.runs, *runs),
        taus=(min(taus), max(taus)) if taus else advised.taus,
        checked=describe_checked(heads, removed, fitted.unchecked),
        notes=(*advised.notes, *_list_notes(rows, removed, heads)),
        fills=(),
    )
    final = _replace_rows(advised, proposed, rows, removed)
    if chosen:
        final = _add_fills(final, chosen)
    code = next((each.code for each in outcomes if each.code), Exit.OK)
    if any(each.kind == "wrong" for each in removed):
        code = Exit.WRONG_DATA
    if not code and not rows and not any(each.decided for each in removed):
        code = Exit.NO_VERDICT
    paths = [path for each in outcomes for path in each.paths]
    return Verified(final, tuple(removed), tuple(paths), code)


def describe_checked(heads: Sequence[Head], removed: Sequence[Removed], unchecked: int) -> str:
    """How many sizes were measured with what is left, and the slowest of them: "checked: 24 sizes,
    slowest with the file +1.2 % time [-1, +3]"."""
    gone = {each.cell for each in removed}
    gains = {
        cell: gain
        for head in heads
        if head.covered.kept.rows
        for cell, gain in head.found.gains.items()
        if cell not in gone
    }
    left_out = f"; {format_count(unchecked, 'size')} not checked: the budget has no time"
    left_out = left_out if unchecked else ""
    if not gains:
        return ""
    slowest = min(gains.values(), key=lambda gain: gain.gain)
    time, lo, hi = (-100 * each for each in (slowest.gain, slowest.hi, slowest.lo))
    what = "its setting" if any(head.variation.is_everywhere for head in heads) else "the file"
    return (
        f"checked: {format_count(len(gains), 'size')}, slowest with {what} {time:+.1f} % time"
        f" [{lo:+.0f}, {hi:+.0f}]{left_out}"
    )


def _list_notes(
    rows: Sequence[Advice], removed: Sequence[Removed], heads: Sequence[Head]
) -> Iterator[str]:
    """Whether the library read the file, where anything was decided, and where it has to lie."""
    is_decided = bool(rows) or any(each.decided for each in removed)
    if not is_decided or any(head.variation.is_everywhere for head in heads):
        return
    pairs = [pair for head in heads for pair in head.found.choices.values()]
    judged = [judge for head in heads for judge in head.found.judged.values()]
    if any(describe_heard(new) not in ("", describe_heard(old)) for old, new in pairs):
        yield "the library read the file: it logged other choices with it"
    elif any(judge.verdict == "IMPROVED" and judge.stage == 2 for judge in judged):
        yield "the library read the file: with it some sizes were surely faster"
    else:
        yield "whether the library read the file did not show"
    if any(row.series.nodes > 1 for row in rows):
        yield ON_ALL_HOSTS


def _add_rivals(rivals: Rivals, head: Head) -> Rivals:
    """The gains for the map with those of fresh launches, where the setting was in force."""
    merged = {cell: dict(gains) for cell, gains in rivals.items()}
    variation = head.variation
    for cell, gain in head.found.gains.items():
        rows = [row for row in variation.rows if row.series == cell.series]
        inside = [row.name for row in rows if row.low <= cell.nbytes <= row.high]
        names = inside or [row.name for row in rows if variation.is_everywhere]
        if names:
            merged.setdefault(cell, {})[names[0]] = gain
    return merged


def _skip_size(name: str, cell: Cell, why: str) -> Removed:
    return Removed(cell, name, "undecided", why, False)


def _replace_rows(
    advised: Advised,
    proposed: Sequence[Advice],
    rows: Sequence[Advice],
    removed: Sequence[Removed],
) -> Advised:
    """The advice with these rows, and what went among its cells without one, with what the library
    ran there by itself."""
    ran = _list_defaults(proposed)
    gone = [
        Unadvised(each.cell, each.why, each.decided, each.gain, each.name, ran.get(each.cell))
        for each in removed
    ]
    cells = {each.cell for each in gone}
    others = [each for each in advised.unadvised if each.cell not in cells]
    return msgspec.structs.replace(
        advised,
        day=find_day(),
        rows=tuple(sorted(rows, key=lambda row: (row.series, row.low))),
        fills=(),
        unadvised=tuple(sorted([*others, *gone], key=lambda each: each.cell)),
    )


def _list_defaults(rows: Sequence[Advice]) -> dict[Cell, Choice | None]:
    """What the library said that it ran by itself at the sizes of rows."""
    ran: dict[Cell, Choice | None] = {}
    for row in rows:
        choices = row.default_rans or (None,) * len(row.gains)
        for gain, choice in zip(row.gains, choices, strict=True):
            ran[Cell(row.series, gain.nbytes)] = choice
    return ran


def _add_fills(advised: Advised, chosen: Mapping[Cell, tuple[Setting, str, Gain]]) -> Advised:
    """The advice with sizes that are filled by a setting which is as fast."""
    others = [each for each in advised.unadvised if each.cell not in chosen]
    filled = [
        Unadvised(cell, f"{name} is as fast, and is named in the file", True, gain, name)
        for cell, (_, name, gain) in chosen.items()
    ]
    advised = msgspec.structs.replace(
        advised, unadvised=tuple(sorted([*others, *filled], key=lambda each: each.cell))
    )
    return msgspec.structs.replace(advised, fills=tuple(fills.make_fills(advised, chosen)))


def find_day() -> str:
    """Today in UTC, as 2026-11-28."""
    return datetime.now(UTC).date().isoformat()


@contextmanager
def _vary(
    advised: Advised, fitted: Fitting, sizes: Sizes, request: VerifyRequest, folder: Path
) -> Iterator[list[Variation]]:
    """What is to be compared: the advice's file, which lies there within the ``with`` block; where
    nothing reads such a file, each setting for itself, by the environment."""
    if request.format.by_size:
        place = request.folder or folder
        with lay_file(request.format, advised, place, request.folder is not None) as used:
            cells = tuple(fitted.cells)
            yield [Variation(tuple(used.items()), "as advised", advised.rows, cells)]
        return
    (backend,) = request.sweeps[0].backends
    heads = split_heads(advised.rows, by_size=False)
    yield [
        Variation(
            rows[0].setting.env,
            "as advised",
            tuple(rows),
            tuple(list_cells(rows, sizes)),
            rows[0].setting.backend if rows[0].setting.backend != backend else "",
            rows[0].setting.algorithm if rows[0].setting.algorithm != "native" else "",
            is_everywhere=True,
            heads=len(heads),
        )
        for rows in heads
    ]


def find_nodes(rows: Sequence[Advice]) -> Nodes:
    """The number of hosts, by that of ranks."""
    return {row.series.n: row.series.nodes for row in rows}


def _find(
    head: Variation, sizes: Sizes, outcome: Outcome | None, despite_oversubscription: bool
) -> Findings:
    """What an experiment found; nothing where there was none."""
    nodes = find_nodes(head.rows)
    judged = list(outcome.comparison.rows) if outcome and outcome.comparison else []
    return Findings(
        keeping.choose_worst(judged, nodes),
        keeping.measure_gains(judged, nodes, head.heads, despite_oversubscription),
        {series: sorted(by_size) for series, by_size in sizes.items()},
        outcome.list_choices(nodes) if outcome else {},
        outcome.list_faults(nodes) if outcome else {},
    )


def _keep_rows(head: Variation, found: Findings, terms: Terms, outcome: Outcome | None) -> Kept:
    """What is left of a head's rows after its experiment."""
    nodes = find_nodes(head.rows)
    kept = keeping.keep_confirmed(head.rows, found, terms)
    skipped = outcome.comparison.skipped if outcome and outcome.comparison else []
    dropped = {keeping.find_case_cell(each.case, nodes) for each in skipped if each.dropped}
    removed = [
        _skip_size(each.name, each.cell, NO_TIME) if each.cell in dropped else each
        for each in kept.removed
    ]
    return kept._replace(removed=tuple(removed))
