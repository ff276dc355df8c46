"""What a verification leaves of an advice: rows by the verdicts of fresh launches, and sentences
for what goes."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.features.advise.tune import keeping
from collbench.features.advise.tune.keeping import Fault, Findings, Kept, Removed, Terms
from collbench.features.advise.types import Advice, Cell, Crossing, Gain, Series, Setting
from collbench.features.compare.verdict import SPARED, Judged, Side
from collbench.records.types import Choice
from tests import factories

SERIES = Series("all_reduce", 2, 1)
SIZES = (1024, 4096, 16384, 65536, 262144)
RING = Setting(backend="mpi", env=(("ALGORITHM", "ring"),))
DAY = "2026-11-28"


def judged(nbytes: int, delta: float | None, verdict: str = "", **more: Any) -> Judged:
    """A row of an experiment, by its change in time; IMPROVED or SAME unless told."""
    of = {"n": 2, "backend": "mpi", **more.pop("of", {})}
    case = factories.case(nbytes, **of)
    sides = {} if delta is None else {"base": side(1000.0), "head": side(1000.0 * (1 + delta))}
    bounds = {} if delta is None else {"delta": delta, "lo": delta - 0.02, "hi": delta + 0.02}
    verdict = verdict or ("IMPROVED" if (delta or 0) < -0.05 else "SAME")
    values = {"pairs": 12, "stage": 2, "p": 0.0005, "tau": 0.05, **sides, **bounds, **more}
    return Judged(key=case.key, case=case, verdict=verdict, **values)  # type: ignore[arg-type]


def side(median: float) -> Side:
    return Side(median=median, half=0.01, launches=12, samples=1200)


def gain(nbytes: int) -> Gain:
    """As short launches have it: too good."""
    return Gain(
        nbytes=nbytes,
        gain=0.5,
        lo=0.5,
        hi=0.5,
        p=1.0,
        launches=1,
        is_paired=False,
        default=1000.0,
        setting=500.0,
    )


def row(first: int = 0, last: int = 4, **more: Any) -> Advice:
    low = SIZES[0] if first == 0 else keeping.find_break(SIZES[first - 1], SIZES[first]) + 1
    high = SIZES[-1] if last == 4 else keeping.find_break(SIZES[last], SIZES[last + 1])
    gains = tuple(gain(size) for size in SIZES[first : last + 1])
    fields = {"series": SERIES, "setting": RING, "name": "ring", "low": low, "high": high}
    return Advice(**{**fields, "gains": gains, **more})  # type: ignore[arg-type]


def keep(rows: list[Advice], verdicts: list[Judged], choices: Any = None, **more: Any) -> Kept:
    found = Findings(
        keeping.choose_worst(verdicts, {}),
        keeping.measure_gains(verdicts, {}),
        {row.series: SIZES for row in rows},
        choices or {},
        more.pop("faults", {}),
    )
    return keeping.keep_confirmed(rows, found, Terms(DAY, **more))


def sentences(kept: Kept) -> list[str]:
    return [each.sentence for each in kept.removed]


def test_what_is_confirmed_stays_with_gains_of_fresh_launches() -> None:
    kept = keep([row(1, 2)], [judged(size, -0.1 if size in SIZES[1:3] else 0.0) for size in SIZES])
    (only,) = kept.rows
    assert [each.gain for each in only.gains] == [pytest.approx(0.1)] * 2
    assert (only.gains[0].lo, only.gains[0].hi) == pytest.approx((0.08, 0.12))
    assert only.gains[0].launches == 12 and only.gains[0].is_paired
    assert only.verified == DAY
    assert (only.low, only.high) == (row(1, 2).low, row(1, 2).high)
    assert kept.removed == ()


def test_a_size_that_does_not_hold_goes_and_is_told() -> None:
    verdicts = [judged(size, -0.1) for size in SIZES[:3]] + [judged(65536, 0.012)]
    kept = keep([row(0, 3)], verdicts)
    (only,) = kept.rows
    assert [each.nbytes for each in only.gains] == [1024, 4096, 16384]
    assert only.high == 32768  # the geometric mean of 16 and 64 KiB
    assert sentences(kept) == [
        "all_reduce, 2 ranks, ring at 64 KiB: did not hold: 1.2 % more time [-1, 3]"
    ]
    assert kept.removed[0].decided


def test_a_size_that_holds_alone_goes() -> None:
    kept = keep([row(0, 2)], [judged(1024, 0.0), judged(4096, -0.1), judged(16384, 0.0)])
    assert kept.rows == ()
    assert {each.cell.nbytes: each.kind for each in kept.removed} == {
        1024: "not held",
        4096: "alone",
        16384: "not held",
    }


def test_a_gap_makes_two_rows() -> None:
    ends = row(below=Crossing(1.0, 2.0), above=Crossing(3.0, 4.0))
    kept = keep([ends], [judged(size, 0.0 if size == 16384 else -0.1) for size in SIZES])
    first, second = kept.rows
    assert [each.nbytes for each in first.gains] == [1024, 4096]
    assert [each.nbytes for each in second.gains] == [65536, 262144]
    assert (first.low, first.high, second.low, second.high) == (1024, 8192, 32769, 262144)
    assert (first.below, first.above) == (Crossing(1.0, 2.0), None)
    assert (second.below, second.above) == (None, Crossing(3.0, 4.0))


def test_stage_1_alone_confirms_nothing() -> None:
    kept = keep([row(0, 1)], [judged(size, -0.2, stage=1) for size in SIZES[:2]])
    assert kept.rows == ()
    assert not any(each.decided for each in kept.removed)


@pytest.mark.parametrize("verdict", ["SUSPECT", "INCONCLUSIVE", "INVALID", "INCOMPARABLE"])
def test_what_is_undecided_is_no_answer(verdict: str) -> None:
    kept = keep([row(0, 1)], [judged(size, -0.2, verdict) for size in SIZES[:2]])
    assert kept.rows == ()
    assert not any(each.decided for each in kept.removed)


def test_a_size_without_a_fresh_launch_is_told() -> None:
    kept = keep([row(0, 1)], [judged(1024, -0.1)])
    assert "all_reduce, 2 ranks, ring at 4 KiB: not verified: no fresh launch measured it" in (
        sentences(kept)
    )


def test_small_gains_go() -> None:
    kept = keep([row(0, 1)], [judged(size, -0.02, "SMALL") for size in SIZES[:2]])
    assert kept.rows == () and all(each.decided for each in kept.removed)


def test_what_had_no_effect_is_told_by_the_choice() -> None:
    same = Choice(algorithm="Ring", protocol="LL")
    choices = {Cell(SERIES, 1024): (same, same), Cell(SERIES, 4096): (None, same)}
    kept = keep([row(0, 1)], [judged(size, 0.001) for size in SIZES[:2]], choices)
    by_size = {each.cell.nbytes: each for each in kept.removed}
    assert by_size[1024].kind == "no effect"
    assert by_size[1024].why == "had no effect: the library logged Ring/LL as before"
    assert by_size[4096].kind == "not held"


def test_what_had_no_effect_is_told_by_the_order_of_sums() -> None:
    alike, other = Choice(adds_as=("ring", "chain")), Choice(adds_as=("tree",))
    four = SERIES._replace(n=4)
    choices = {Cell(four, 1024): (alike, alike), Cell(four, 4096): (alike, other)}
    verdicts = [judged(size, 0.001, of={"n": 4}) for size in SIZES[:2]]
    kept = keep([row(0, 1, series=four)], verdicts, choices)
    asked = keep([row(0, 1, series=four)], verdicts, choices, is_same_order=True)
    assert {each.kind for each in asked.removed} == {"not held"}  # all that were tried add so
    noisy = [judged(size, 0.001, "INCONCLUSIVE", of={"n": 4}) for size in SIZES[:2]]
    kept_open = keep([row(0, 1, series=four)], noisy, choices)
    assert not any(each.decided for each in kept_open.removed)
    by_size = {each.cell.nbytes: each for each in kept.removed}
    assert by_size[1024].why.startswith("had no effect: it added in the order of before (ring +1)")
    assert by_size[4096].kind == "not held"


def test_the_same_order_does_not_refute_a_gain() -> None:
    alike = Choice(adds_as=("ring",))
    choices = {Cell(SERIES, size): (alike, alike) for size in SIZES[:2]}
    assert keep([row(0, 1)], [judged(size, -0.1) for size in SIZES[:2]], choices).rows


def test_a_slower_size_takes_its_whole_row_and_is_said_first() -> None:
    other = row(3, 4, name="tree")
    verdicts = [judged(1024, 0.0), judged(4096, -0.1), judged(16384, 0.3, "REGRESSED")]
    verdicts += [judged(size, -0.1) for size in SIZES[3:]]
    kept = keep([row(0, 1), other], verdicts)
    # 16 KiB lies next to both rows, whose file slowed it down
    assert kept.rows == ()
    assert {each.kind for each in kept.removed} == {"slower"}
    assert kept.removed[0].why == "is surely slower with the file: 16 KiB, 30.0 % more time"


def test_a_slower_size_leaves_rows_that_do_not_touch_it() -> None:
    verdicts = [judged(1024, 0.3, "REGRESSED"), judged(4096, -0.1), judged(16384, 0.0)]
    verdicts += [judged(size, -0.1) for size in SIZES[3:]]
    kept = keep([row(0, 1), row(3, 4)], verdicts)
    assert [each.low for each in kept.rows] == [row(3, 4).low]
    assert kept.removed[0].kind == "slower"


def test_a_setting_for_all_sizes_may_slow_none() -> None:
    verdicts = [judged(1024, 0.3, "REGRESSED"), judged(4096, 0.0), judged(16384, 0.0)]
    verdicts += [judged(size, -0.1) for size in SIZES[3:]]
    both = [row(0, 1), row(3, 4)]
    assert keep(both, verdicts).rows
    assert not keep(both, verdicts, is_everywhere=True).rows


def test_a_slower_size_far_from_all_rows_is_the_whole_files_fault() -> None:
    verdicts = [judged(1024, 0.3, "REGRESSED"), judged(4096, 0.0), judged(16384, 0.0)]
    verdicts += [judged(size, -0.1) for size in SIZES[3:]]
    kept = keep([row(3, 4)], verdicts)
    assert kept.rows == () and {each.kind for each in kept.removed} == {"slower"}


def test_flags_leave_no_verdict_but_shared_cores_may_be_allowed() -> None:
    shared = {"spared": f"oversubscribed: {SPARED}"}
    verdicts = [judged(size, -0.1, **shared) for size in SIZES[:2]]
    assert not keep([row(0, 1)], verdicts).rows
    assert keep([row(0, 1)], verdicts, despite_oversubscription=True).rows
    worse = {"spared": f"oversubscribed, few: {SPARED}"}
    verdicts = [judged(size, -0.1, **worse) for size in SIZES[:2]]
    kept = keep([row(0, 1)], verdicts, despite_oversubscription=True)
    assert not kept.rows and "few" in kept.removed[0].why


def test_what_holds_must_hold_in_every_form() -> None:
    verdicts = [judged(size, -0.2) for size in SIZES[:2]]
    verdicts += [
        judged(1024, -0.1, of={"in_place": True}),
        judged(4096, 0.0, of={"in_place": True}),
    ]
    kept = keep([row(0, 1)], verdicts)
    assert kept.rows == ()
    by_size = {each.cell.nbytes: each for each in kept.removed}
    assert by_size[1024].kind == "alone" and by_size[4096].kind == "not held"
    assert by_size[1024].gain and by_size[1024].gain.gain == pytest.approx(0.1)


def test_a_gain_has_the_lowest_end_of_all_forms_and_the_flags_of_the_worst() -> None:
    doubt = f"oversubscribed: {SPARED}"
    verdicts = [
        judged(1024, -0.1, of={"in_place": True}, spared=doubt),
        judged(1024, -0.2, hi=0.3),
    ]
    cell = Cell(SERIES, 1024)
    gain = keeping.measure_gains(verdicts, {})[cell]
    assert (gain.gain, gain.lo) == pytest.approx((0.1, -0.3))
    assert gain.doubt == doubt
    assert not keeping.measure_gains(verdicts, {}, 1, True)[cell].doubt


def test_p_is_adjusted_by_holm_over_the_second_stage() -> None:
    verdicts = [judged(1024, -0.1, p=0.01), judged(4096, -0.1, p=0.001)]
    verdicts.append(judged(16384, 0.0, p=0.5, stage=1))
    gains = keeping.measure_gains(verdicts, {})
    assert gains[Cell(SERIES, 1024)].p == pytest.approx(0.01)
    assert gains[Cell(SERIES, 4096)].p == pytest.approx(0.002)
    assert gains[Cell(SERIES, 16384)].p == 0.5


def test_what_ran_at_each_size_stays_with_its_size() -> None:
    old = [Choice(algorithm=name) for name in "abcde"]
    new = Choice(algorithm="Ring")
    whole = row(default_rans=(), rans=tuple(old))
    choices = {Cell(SERIES, 4096): (new, None), Cell(SERIES, 65536): (None, new)}
    kept = keep([whole], [judged(s, 0.0 if s == 16384 else -0.1) for s in SIZES], choices)
    first, second = kept.rows
    assert first.rans == (old[0], old[1]) and second.rans == (new, old[4])
    assert first.default_rans == (None, new) and second.default_rans == ()
    assert first.default_ran == new and second.ran == new


def test_scatter_is_no_answer() -> None:
    kept = keep([row(0, 1)], [judged(size, 0.02, "INCONCLUSIVE") for size in SIZES[:2]])
    assert {each.why for each in kept.removed} == {
        "launches scatter too much: 2.0 % more time [0, 4]"
    }


def test_two_ranks_add_in_one_order_only_which_tells_nothing() -> None:
    alike = Choice(adds_as=("ring",))
    choices = {Cell(SERIES, size): (alike, alike) for size in SIZES[:2]}
    kept = keep([row(0, 1)], [judged(size, 0.001) for size in SIZES[:2]], choices)
    assert {each.kind for each in kept.removed} == {"not held"}


def test_wrong_data_bar_the_setting_for_its_whole_series() -> None:
    """A row of the same setting elsewhere goes, too; one of another setting stays."""
    other = Setting(backend="mpi", env=(("ALGORITHM", "tree"),))
    rows = [row(0, 0), row(1, 2, setting=other, name="tree"), row(3, 4)]
    faults = {Cell(SERIES, SIZES[4]): Fault("wrong", "5 of 16 elements")}
    kept = keep(rows, [judged(size, -0.1) for size in SIZES], faults=faults)
    assert [each.name for each in kept.rows] == ["tree"]
    assert {each.kind for each in kept.removed} == {"wrong"}
    why = "gives wrong data with the file: 256 KiB: 5 of 16 elements"
    assert kept.removed[0].why == why and kept.removed[0].decided


def test_a_fault_where_no_row_is_bars_the_whole_file() -> None:
    faults = {Cell(SERIES, SIZES[0]): Fault("failed", "rank 1 hung")}
    kept = keep([row(3, 4)], [judged(size, -0.1) for size in SIZES], faults=faults)
    assert kept.rows == () and kept.removed[0].kind == "failed"
    elsewhere = {Cell(SERIES._replace(n=4), SIZES[0]): Fault("failed", "rank 1 hung")}
    assert keep([row(3, 4)], [judged(size, -0.1) for size in SIZES], faults=elsewhere).rows


def test_several_experiments_share_one_level() -> None:
    verdicts = [judged(size, -0.1, p=0.004) for size in SIZES[:2]]
    assert keep([row(0, 1)], verdicts, tests=10).rows  # 10 x 0.004 is below 5 %
    kept = keep([row(0, 1)], verdicts, tests=20)
    assert not kept.rows and not any(each.decided for each in kept.removed)
    assert kept.removed[0].why == "not confirmed: 10.0 % less time [8, 12]"
    gains = keeping.measure_gains(verdicts, {}, heads=3)
    assert gains[Cell(SERIES, 1024)].p == pytest.approx(3 * 2 * 0.004)


def test_sizes_that_went_for_one_reason_are_one_line() -> None:
    kept = keep([row(0, 4)], [judged(size, 0.01 * at) for at, size in enumerate(SIZES)])
    (line,) = keeping.describe_removed(kept.removed)
    assert line == (
        "all_reduce, 2 ranks, ring at 5 sizes from 1 KiB to 256 KiB: did not hold, at best"
        " 0.0 % less time [-2, 2]"
    )
    wrong = Removed(Cell(SERIES, 8), "tree", "wrong", "gives wrong data", True)
    lines = keeping.describe_removed([*kept.removed, wrong])
    assert lines[0] == "all_reduce, 2 ranks, tree at 8 B: gives wrong data"  # first


def test_settings_that_went_for_one_reason_are_one_line() -> None:
    few = [row(0, 1), row(2, 4, name="tree")]
    kept = keep(few, [judged(1024, None, "INVALID", why="too few launches")])
    lines = keeping.describe_removed(kept.removed)
    assert lines == [
        "all_reduce, 2 ranks, ring at 1 KiB: not verified: too few launches",
        "all_reduce, 2 ranks, ring, tree at 4 sizes from 4 KiB to 256 KiB: not verified: no fresh"
        " launch measured it",
    ]
