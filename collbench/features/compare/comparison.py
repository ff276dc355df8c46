"""Two runs, base and head: which rows are slower, which are faster, and which allow no verdict."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from collbench.core.errors import Exit, NoVerdict, UsageError
from collbench.core.feature import load_entries
from collbench.core.text import format_count
from collbench.features.compare import sides
from collbench.features.compare.sides import Pair
from collbench.features.compare.verdict import (
    CHANGED,
    FEWEST_UNPAIRED,
    SPARED,
    UNTIMED,
    Judged,
    LeftOut,
    Outcome,
    Ruling,
    Side,
    false_alarms,
    find_exit,
    rule_absent,
    rule_by_launches,
    rule_by_pairs,
)
from collbench.machine import environment
from collbench.machine.environment import Difference
from collbench.records import paired, stats
from collbench.records.case_rows import CaseRows, Place, gather_case_rows, smallest_change
from collbench.records.origins import FAKE, ORIGINS
from collbench.records.path_proof import judge_paths
from collbench.records.rows import Row, case_time
from collbench.records.types import Run, RunFile, row_key

Files = RunFile | Sequence[RunFile]  # of several runs of a side, each world is a launch

WHOLE = (
    Exit.OK,
    Exit.BAD,
    Exit.NO_VERDICT,
    Exit.WRONG_DATA,
)  # how a run ends that was not cut short

SIZES = ((32 << 10, "under 32 KiB"), (1 << 20, "32 KiB to 1 MiB"), (math.inf, "from 1 MiB"))

CAUSES = {"frequency": "CPU frequency"}  # of disturbed blocks; others by their names


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How strictly to judge. ``tau`` is the smallest relative change that matters; None: by device,
    size and sharing.

    ``gate_unpaired`` lets runs that were not interleaved fail, ``across_machines`` compares in
    spite of different fingerprints, ``strict`` wants every row decided, those too that were dropped
    for --budget.
    """

    tau: float | None = None
    strict: bool = False
    gate_unpaired: bool = False
    across_machines: bool = False


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """Geometric mean of the ratios of a (collective, size class), with Student's interval
    over rounds; never gates.

    ``worst`` is the key of the row with the largest ratio. ``collective`` and ``sizes`` are empty
    for all rows.
    """

    collective: str
    sizes: str
    rows: int
    delta: float
    lo: float
    hi: float
    worst: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The whole verdict. ``differences`` are facts by which the fingerprints differ for the
    backends of any row. ``skipped`` are rows that are not among ``rows``."""

    base: Run
    head: Run
    paired: bool
    stages: tuple[int, int]
    differences: list[Difference]
    rows: list[Judged]
    aggregates: list[Aggregate]
    rules: Rules
    exit: Exit
    reason: str
    notes: list[str] = []
    skipped: list[LeftOut] = []

    @property
    def dropped(self) -> int:
        """The number of rows that --budget left no time for."""
        return sum(row.dropped for row in self.skipped)

    @property
    def total(self) -> int:
        """Rows in all, those dropped for a budget included."""
        return len(self.rows) + self.dropped

    @property
    def decided(self) -> int:
        """Rows with a verdict other than INCONCLUSIVE."""
        return sum(row.decided for row in self.rows)


def compare_runs(base: Files, head: Files, rules: Rules, under_way: bool = False) -> Comparison:
    """Judge head against base; ``under_way``: an experiment that has not ended. Raises NoVerdict
    where no case of a side was measured, UsageError where they have no row in common."""
    bases, heads = (
        [files] if isinstance(files, RunFile) else list(files) for files in (base, head)
    )
    in_pairs = sides.is_interleaved(bases, heads)
    base_rows, right = (gather_case_rows(files, in_pairs, row_key) for files in (bases, heads))
    if empty := [name for name, rows in (("base", base_rows), ("head", right)) if not rows]:
        raise NoVerdict(
            f"no case was measured on {' and '.join(empty)}",
            "collbench runs says how each run ended",
        )
    if not base_rows.keys() & right.keys():
        raise UsageError(
            f"base and head have no row in common: {sides.describe_unlike(base_rows, right)}",
            sides.describe_remedy(base_rows, right),
        )
    pairs = [Pair(key, base_rows.get(key), right.get(key)) for key in {**base_rows, **right}]
    launches = [key for pair in pairs for side in pair.sides.values() for key in side.launches]
    last = max(launches, default=(0, 0))
    pairs.sort(key=_row_order)
    skipped = [
        LeftOut(key=pair.key, case=pair.case, reason=why, dropped=bool(pair.dropped))
        for pair in pairs
        if (why := pair.left_out(in_pairs, last))
    ]
    remaining = [pair for pair in pairs if not pair.left_out(in_pairs, last)]
    runs = [file.run for file in (*bases, *heads)]
    unknown = sides.explain_unknown_machine(runs)
    backends = set[str]().union(*(pair.backends for pair in remaining))
    differences = sides.find_differences([*bases, *heads], backends)
    terms = _make_terms(rules, bases, heads, in_pairs, unknown, differences, remaining, under_way)
    rows = [_judge_pair(terms, pair) for pair in remaining]
    for explain in load_entries("explanations").values():
        rows = explain(terms.base, terms.head, remaining, rows, in_pairs)
    stages = [
        len({launch_key for pair in remaining for launch_key in pair.changes(stage)})
        if in_pairs
        else 0
        for stage in (1, 2)
    ]
    why_apart = terms.all_apart(remaining)
    code, reason = find_exit(_make_outcome(terms, remaining, rows, skipped, why_apart))
    path, sentence = judge_paths(*(file.records for file in (*bases, *heads) if in_pairs))
    notes = _list_notes(terms, remaining, rows, why_apart)
    return Comparison(
        base=bases[0].run,
        head=heads[0].run,
        paired=in_pairs,
        stages=(stages[0], stages[1]),
        differences=differences,
        rows=rows,
        aggregates=_make_aggregates(terms, remaining, rows),
        rules=rules,
        exit=path if path and code in (Exit.OK, Exit.NO_VERDICT) else code,
        reason=f"{sentence}; {reason}" if path else reason,
        notes=[*notes, sentence] if sentence and not path else notes,
        skipped=skipped,
    )


def end_early(comparison: Comparison, code: Exit, note: str) -> Comparison:
    """The comparison of an experiment that ended with ``code`` before its time, whatever its rows
    say."""
    reason = f"ended early ({note}): {comparison.reason}"
    return msgspec.structs.replace(comparison, exit=code, reason=reason)


def add_note(comparison: Comparison, note: str) -> Comparison:
    """The comparison with a note before its others."""
    return msgspec.structs.replace(comparison, notes=[note, *comparison.notes])


class _Terms(NamedTuple):
    """What holds for all rows. ``unknown`` is why nothing is known of the machines, ``differing``
    are facts that forbid comparing rows of the backends they decide for; ``tests`` is how many rows
    may be found changed; ``cut`` says of each side that ended early why, as far as known; an
    experiment is also judged before it has ended; ``imported``: logs tell all that is known of the
    machines."""

    rules: Rules
    in_pairs: bool
    unknown: str
    differing: list[Difference]
    base: RunFile
    head: RunFile
    runs: tuple[int, int]
    tests: int
    cut: dict[str, str]
    imported: bool

    @property
    def gating(self) -> bool:
        return self.in_pairs or self.rules.gate_unpaired

    @property
    def weighs_doubts(self) -> bool:
        """Whether rows whose flags forbid a verdict have none. Of logs, which are all flagged as
        imported, the interval over logs decides; they fail nothing for that."""
        return self.gating or not self.imported

    def why_apart(self, pair: Pair) -> str:
        """The reason why machines or software forbid comparing the sides of a row, or an empty
        string."""
        deciding = [
            fact for fact in self.differing if environment.fact_decides(fact[0], pair.backends)
        ]
        return self.unknown or environment.explain_differences(deciding)

    def all_apart(self, pairs: Sequence[Pair]) -> str:
        """The reason why machines or software forbid comparing the sides of every row; an empty
        string where some row may be compared."""
        if all(self.why_apart(pair) for pair in pairs if len(pair.sides) == 2):
            return self.unknown or environment.explain_differences(self.differing)
        return ""


def _make_terms(
    rules: Rules,
    bases: Sequence[RunFile],
    heads: Sequence[RunFile],
    in_pairs: bool,
    unknown: str,
    differences: Sequence[Difference],
    pairs: list[Pair],
    under_way: bool,
) -> _Terms:
    """The terms by which rows are judged: thresholds, levels and differences that are the same for
    all of them."""
    measured = [list(pair.sides.values()) for pair in pairs]
    if in_pairs:
        tested = [
            any(launch_key[0] == 2 for side in both for launch_key in side.launches)
            for both in measured
        ]
    else:
        tested = [
            len(s) == 2 and min(len(m.launches) for m in s) >= FEWEST_UNPAIRED for s in measured
        ]
    ends = {
        name: [file.end for file in files] for name, files in (("base", bases), ("head", heads))
    }
    cut = {
        name: next((end.note for end in ends_of_side if end and end.note), "no reason is recorded")
        for name, ends_of_side in ends.items()
        if any(end.exit not in WHOLE if end else not under_way for end in ends_of_side)
    }
    imported = any(file.run.imported for file in (*bases, *heads))
    if imported and differences:  # better than that all the rest is unknown
        unknown = environment.explain_differences(differences)
    return _Terms(
        rules=rules,
        in_pairs=in_pairs,
        unknown="" if rules.across_machines else unknown,
        # what the variants of an experiment are about forbids nothing
        differing=[
            fact
            for fact in differences
            if not (rules.across_machines or (in_pairs and fact[0].startswith(sides.SUBJECTS)))
        ],
        base=bases[0],
        head=heads[0],
        runs=(len(bases), len(heads)),
        tests=sum(tested),
        cut=cut,
        imported=imported,
    )


def _row_order(pair: Pair) -> tuple[Any, ...]:
    """Sorts rows by everything in the order of Case, size last."""
    series_case = msgspec.structs.replace(pair.case, nbytes=0, cycle=0)
    return *msgspec.structs.astuple(series_case), pair.case.nbytes


def _judge_pair(terms: _Terms, pair: Pair) -> Judged:
    """The verdict on one row, by its two sides."""
    case = pair.case
    default = terms.rules.tau
    if default is None:
        default = max(
            smallest_change(side, file.run.environment)
            for side, file in ((pair.base, terms.base), (pair.head, terms.head))
            if side
        )
    tau = terms.base.run.suite.tau(case, default)
    why_apart = terms.why_apart(pair)
    gates, weighs_doubts = terms.gating and not why_apart, terms.weighs_doubts and not why_apart
    row = Judged(key=pair.key, case=case, verdict="INVALID", tau=tau, gates=gates)
    if pair.fake and not any(side.reason_of("wrong") for side in pair.sides.values()):
        return _rule_row(row, Ruling("INVALID", ORIGINS[FAKE].reason), weighs_doubts)
    lacking = rule_absent(pair.base, pair.head, [] if terms.in_pairs else list(terms.cut))
    if lacking or not (pair.base and pair.head):
        row = msgspec.structs.replace(row, spared=why_apart if terms.gating else "")
        return _rule_row(row, lacking or Ruling("INVALID"), weighs_doubts)
    row = msgspec.structs.replace(row, note=sides.describe_orders(pair.base, pair.head))
    by = rule_by_pairs if terms.in_pairs else rule_by_launches
    ruling = by(pair.base, pair.head, tau, terms.tests)
    if why := why_apart or sides.describe_disagreement(pair.base, pair.head):
        if why_apart and terms.imported:  # a matter of the whole comparison, said once
            ruling = ruling._replace(verdict="INCONCLUSIVE", why=ruling.why or why)
        else:
            ruling = ruling._replace(verdict="INCOMPARABLE", why=why)
    elif broken := pair.base.broken or pair.head.broken:
        ruling = ruling._replace(verdict="INVALID", why=broken)
    return _rule_row(row, ruling, weighs_doubts)


def _rule_row(row: Judged, ruling: Ruling, weighs_doubts: bool) -> Judged:
    """The row with its ruling, and whether that may fail the comparison. ``weighs_doubts``: flags
    of launches, and their scatter, leave the row undecided."""
    verdict, why, shift = ruling.verdict, ruling.why, ruling.shift
    mde = None if ruling.mde is None else _relative_change(ruling.mde)
    flags = [flag for launch in (*ruling.base, *ruling.head) for flag in launch.ungated]
    reasons, noisy = list(dict.fromkeys(flags)), ""
    clear = shift is not None and (
        shift.lo >= math.log1p(row.tau) or shift.hi <= math.log1p(-row.tau)
    )
    if _hides_changes(ruling, row.tau) and not clear:  # else scatter has hidden nothing
        noisy = "too noisy to gate"
        if (
            verdict in CHANGED and ruling.stage == 2
        ):  # as likely luck as not: an A/A of bimodal rows showed one that stage 2 confirmed
            verdict, why = "SUSPECT", f"{ruling.way} in stage 2, too"
    spared = row.spared
    if weighs_doubts and verdict not in UNTIMED:
        flagged = f"{', '.join(reasons)}: {SPARED}" if reasons else ""
        spared = "; ".join(filter(None, [flagged, noisy]))
        why = "; ".join(filter(None, [why, spared]))
    gates = row.gates and (verdict == "GONE" or (verdict not in UNTIMED and not spared))
    row = msgspec.structs.replace(
        row,
        verdict=verdict,
        why=why,
        base=_make_side(ruling.base),
        head=_make_side(ruling.head),
        scatter=ruling.scatter,
        mde=mde,
        p=ruling.p,
        pairs=ruling.pairs,
        stage=ruling.stage,
        lacking=0.0 if verdict in UNTIMED else ruling.lacking,
        level=ruling.level,
        gates=gates,
        spared=spared,
    )
    if shift is None:
        return row
    bounds = [
        _relative_change(bound) if mde is not None else None for bound in (shift.lo, shift.hi)
    ]
    return msgspec.structs.replace(
        row, delta=_relative_change(shift.estimate), lo=bounds[0], hi=bounds[1]
    )


def _hides_changes(ruling: Ruling, tau: float) -> bool:
    """Whether a test at 95 % of launches that scatter so would miss changes of twice ``tau`` more
    than once in five."""
    if ruling.scatter is None:
        return False
    if ruling.pairs:
        found = paired.smallest_change(ruling.scatter, ruling.pairs)
    else:
        launches = len(ruling.base), len(ruling.head)
        found = paired.smallest_unpaired_change(ruling.scatter, *launches)
    return _relative_change(found) > 2 * tau


def _relative_change(change: float) -> float:
    return math.expm1(change) if math.isfinite(change) else change


def _make_side(chosen: Sequence[Row]) -> Side | None:
    """The launches ``chosen`` as one side of a row, with the flags that more than half of them
    have; None without launches."""
    if not chosen:
        return None
    time = case_time(chosen)
    flags = Counter(flag for row in chosen for flag in row.flags)
    alone = time.launches == 1  # whose interval is of its samples
    half = math.inf if alone else stats.half_width(time.median, time.lo, time.hi)
    return Side(
        median=time.median,
        half=half,
        launches=time.launches,
        samples=time.samples,
        flags=tuple(flag for flag, number in flags.items() if 2 * number > len(chosen)),
    )


def _make_aggregates(
    terms: _Terms, pairs: Sequence[Pair], rows: Sequence[Judged]
) -> list[Aggregate]:
    """Aggregates by collective and size class, and that of all rows last; from stage 1, which has
    every row. One row is no aggregate: it speaks for itself."""
    groups: dict[tuple[str, int], list[tuple[Pair, Judged]]] = defaultdict(list)
    for pair, row in zip(pairs, rows, strict=True):
        if row.delta is not None and row.verdict not in UNTIMED:
            sizes = next(
                position for position, (limit, _) in enumerate(SIZES) if row.case.size < limit
            )
            groups[row.case.collective, sizes].append((pair, row))
    if not groups:
        return []
    groupings = [
        (collective, SIZES[sizes][1], groups[collective, sizes])
        for collective, sizes in sorted(groups)
    ]
    groupings.append(("", "", [member for _, _, members in groupings for member in members]))
    aggregates = []
    for collective, size_class, members in groupings:
        rounds: dict[Place, list[float]] = defaultdict(list)
        for pair, row in members:
            for launch_key, change in (
                pair.changes(1) if terms.in_pairs else {(0, 0): math.log1p(row.delta or 0)}
            ).items():
                rounds[launch_key].append(change)
        if rounds and len(members) > 1:
            middle, lo, hi = paired.estimate_geomean(
                [sum(r) for r in rounds.values()], [len(r) for r in rounds.values()]
            )
            worst = max((row for _, row in members), key=lambda row: row.delta or 0)
            aggregates.append(
                Aggregate(
                    collective=collective,
                    sizes=size_class,
                    rows=len(members),
                    delta=_relative_change(middle),
                    lo=_relative_change(lo),
                    hi=_relative_change(hi),
                    worst=worst.key,
                )
            )
    return aggregates


def _make_outcome(
    terms: _Terms,
    pairs: Sequence[Pair],
    rows: Sequence[Judged],
    skipped: Sequence[LeftOut],
    why_apart: str,
) -> Outcome:
    """The outcome of all rows, from which the verdict and the exit code of the comparison
    follow."""
    both = list(zip(pairs, rows, strict=True))
    pairing = terms.base.run.pairing
    why_apart = f"{why_apart} (--across-machines compares anyway)" if why_apart else ""
    if pairs and all(pair.fake for pair in pairs):
        why_apart = f"nothing to compare: the rows were {ORIGINS[FAKE].reason}"
    return Outcome(
        rows=rows,
        dropped=sum(row.dropped for row in skipped),
        why_apart=why_apart,
        labelled=not (pairing and pairing.differs),
        gating=terms.gating,
        strict=terms.rules.strict,
        wrong=[row for pair, row in both if pair.head and pair.head.reason_of("wrong")],
        due=[row for pair, row in both if _is_due(terms, pair, row)],
    )


def _is_due(terms: _Terms, pair: Pair, row: Judged) -> bool:
    """Whether a row lacks a verdict that was due: not where base's own measurement was of no
    use, but for a fake GPU's. By strict rules every row's is due, but for one new on head."""
    undecided = not row.decided and row.verdict != "NEW"
    if pair.fake or (terms.rules.strict and undecided):
        return True
    if row.verdict == "INVALID":
        sound = (
            pair.base and pair.base.ran and not (pair.base.reason_of("wrong") or pair.base.failure)
        )
        return bool(sound) and not (pair.base and pair.base.broken)
    return row.verdict == "INCOMPARABLE"


def _one_after_the_other(both: Sequence[tuple[CaseRows, CaseRows]]) -> list[str]:
    """A note of rounds in which the two sides were not alive at once, where any was measured."""
    worlds = {
        (row.run.id, row.launch.world): row.world.together
        for sides_ in both
        for side in sides_
        for row in side.timed
        if row.world and row.record.status == "ok"
    }
    alone = sum(not together for together in worlds.values())
    if not alone:
        return []
    what = (
        f"{alone:,} of {format_count(len(worlds), 'launch')} ran alone, not in turns with the"
        " other side"
    )
    return [f"{what}: a disturbance may have met one side only"]


def _measured_again(both: Sequence[tuple[CaseRows, CaseRows]]) -> list[str]:
    """A note of blocks of samples that were measured again, by cause, where any was."""
    rows = [row.record for sides_ in both for side in sides_ for row in side.timed]
    calibrations = [record.calibration for record in rows if record.calibration]
    causes = sum((Counter(calibration.replaced) for calibration in calibrations), Counter[str]())
    by_cause = ", ".join(
        f"{number:,} × {CAUSES.get(cause, cause)}" for cause, number in causes.most_common()
    )
    blocks = sum(calibration.blocks for calibration in calibrations)
    what = f"{causes.total():,} of {blocks:,} blocks were measured again"
    left_blocks = sum(sum(calibration.left.values()) for calibration in calibrations)
    remark = (
        f"; {format_count(left_blocks, 'disturbed block')} kept (limit: half)"
        if left_blocks
        else ""
    )
    return [f"{what}: the machine was disturbed ({by_cause}){remark}"] if causes else []


def _list_notes(
    terms: _Terms,
    pairs: Sequence[Pair],
    rows: Sequence[Judged],
    why_apart: str,
) -> list[str]:
    """Notes on the whole comparison that a reader must know, a line each."""
    notes = []
    if not terms.in_pairs:
        fails = (
            "fails nothing"
            if why_apart or not terms.gating
            else "may fail because of --gate-unpaired"
        )
        notes.append(
            "unpaired: base and head were not measured in turns, so that drift looks like change;"
            f" this {fails}"
        )
        if terms.runs != (1, 1):
            notes.append(
                f"{format_count(terms.runs[0], 'run')} of base and {terms.runs[1]} of head,"
                " first ones"
                " shown"
            )
    notes += [f"{name} ended early: {why}" for name, why in terms.cut.items()]
    both = [(pair.base, pair.head) for pair in pairs if pair.base and pair.head]
    if any(sides.describe_disagreement(base, head, "stream") for base, head in both):
        notes.append(sides.STREAMS_APART)
    both = both if terms.in_pairs else []
    single = {
        launch_key
        for base, head in both
        for launch_key in base.launches.keys() ^ head.launches.keys()
    }
    if single:
        notes.append(
            f"{format_count(len(single), 'round')} without a side of some rows; what there is of"
            " those"
            " is left out"
        )
    unlike = sum(len(sides.common_places(base, head)) for base, head in both)
    unlike -= sum(len(pair.changes(stage)) for pair in pairs for stage in (1, 2)) if unlike else 0
    if unlike:
        notes.append(f"left out: {format_count(unlike, 'pair')} begun or timed in different ways")
    notes += _one_after_the_other(both) + _measured_again(both)
    if terms.in_pairs and terms.tests:
        level = paired.bonferroni_level(terms.tests)
        again = format_count(terms.tests, "row")
        notes.append(
            f"measured again: {again}, with intervals at {level:.2%} so that all hold with 95%"
        )
    if terms.in_pairs and terms.base.run.pairing and terms.base.run.pairing.aa:
        notes.append(false_alarms(rows))
    return notes
