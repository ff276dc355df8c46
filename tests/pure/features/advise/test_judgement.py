"""Rows of advice from made-up launches: how often settings that do nothing get one, planted gains,
which sizes a row covers, and why everything else stays the library's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from advising import DEFAULT, FORM, SERIES, SIZES, gather, launched, setting, sweep

from collbench.features.advise.evidence import Evidence, Form, Measured, Place
from collbench.features.advise.judgement import (
    choose_spans,
    judge_evidence,
    list_contests,
)
from collbench.features.advise.types import Advised, Cell, Series, Setting, Unadvised
from collbench.records import stats
from collbench.records.types import Choice

NAMES = ("a", "b", "c", "d", "e", "f")
NOTHING: dict[str, Mapping[int, float]] = {name: {} for name in NAMES}
PLANTED = NOTHING | {"c": dict.fromkeys(SIZES[4:7], -0.15)}
AROUND = (-0.011, 0.004, 0.012, -0.006, 0.001, 0.009, -0.013, 0.002, -0.003, 0.006)


def around(value: float, launches: int = 10, width: float = 1.0) -> list[float]:
    """Logarithms of launches about a time."""
    return [math.log(value) + width * off for off in (AROUND * 3)[:launches]]


def settle(
    changes: Mapping[str, Sequence[float]],
    sizes: Sequence[int] = (1024, 4096, 16384, 65536),
    launches: int = 10,
    width: float = 1.0,
) -> Evidence:
    """Evidence without luck: each setting's launches are the default's, turned round and changed by
    a share at each size."""
    rivals: dict[int, dict[Setting, Measured]] = {}
    for index, size in enumerate(sizes):
        base = around(1e4 + size, launches, width)
        rivals[size] = {DEFAULT: launched(base)}
        for name, own in changes.items():
            logs = [math.log1p(own[index]) + log for log in base[::-1]]
            rivals[size][setting(name)] = launched(logs)
    return gather(rivals)


def spans(advised: Advised) -> list[tuple[str, int, int]]:
    return [(row.name, row.gains[0].nbytes, row.gains[-1].nbytes) for row in advised.rows]


def reasons(advised: Advised) -> dict[int, Unadvised]:
    return {each.cell.nbytes: each for each in advised.unadvised}


def with_measured(evidence: Evidence, name: str, **fields: object) -> Evidence:
    """The evidence with other fields of a setting (the default: "") in all cells."""
    one = setting(name) if name else DEFAULT
    cells = {
        cell: {
            form: {
                key: msgspec.structs.replace(value, **fields) if key == one else value
                for key, value in rivals.items()
            }
            for form, rivals in forms.items()
        }
        for cell, forms in evidence.cells.items()
    }
    return msgspec.structs.replace(evidence, cells=cells)


def count_rows(number: int, seed: int, **how: float) -> int:
    rng = np.random.default_rng(seed)
    return sum(bool(judge_evidence(sweep(rng, NOTHING, **how)).rows) for _ in range(number))  # type: ignore[arg-type]


def test_settings_that_do_nothing_get_no_row() -> None:
    assert count_rows(12, 1) <= 1
    assert count_rows(12, 2, wilder=4.0) <= 1  # each median alike, but settings scatter more


@pytest.mark.slow
@pytest.mark.long
def test_settings_that_do_nothing_get_no_row_in_many_sweeps() -> None:
    assert count_rows(400, 3) <= 20
    assert count_rows(400, 4, tau=0.001) <= 20
    assert count_rows(400, 5, tau=0.001, wilder=4.0) <= 20


def test_without_holm_they_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that is off is so at all sizes, so that two neighbours are no protection."""
    how = {"tau": 0.001, "shared": 0.05, "sigma": 0.005, "launches": 12}
    assert count_rows(15, 6, **how) <= 1
    monkeypatch.setattr(stats, "adjust_holm", list)
    assert count_rows(30, 6, **how) > 1


def test_a_planted_gain_is_found_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(7)
    complete, inside, total = 0, 0, 0
    for _ in range(15):
        advised = judge_evidence(sweep(rng, PLANTED))
        complete += ("c", SIZES[4], SIZES[6]) in spans(advised)
        assert {name for name, _, _ in spans(advised)} <= {"c"}
        gains = [advised.rivals[Cell(SERIES, size)]["c"] for size in SIZES[4:7]]
        inside += sum(gain.lo <= 0.15 <= gain.hi for gain in gains)
        total += len(gains)
    assert complete >= 14
    assert inside >= 0.9 * total


def test_bounds_are_geometric_means_and_nothing_is_extrapolated() -> None:
    advised = judge_evidence(settle({"a": (0.0, -0.2, -0.3, -0.4), "b": (0.1, 0.1, 0.1, 0.1)}))
    (row,) = advised.rows
    assert (row.low, row.high) == (2049, 65536)
    assert [gain.nbytes for gain in row.gains] == [4096, 16384, 65536]
    gain, lo, hi = row.gain
    assert lo < gain < hi
    assert gain == pytest.approx(0.2, abs=0.01)
    assert reasons(advised)[1024].decided
    assert "nothing is faster by 5% or more" in reasons(advised)[1024].why


def test_rows_that_touch_do_not_overlap() -> None:
    left, right = (-0.3, -0.3, -0.1, -0.1), (-0.1, -0.1, -0.3, -0.3)
    first, second = judge_evidence(settle({"a": left, "b": right})).rows
    assert (first.name, first.low, first.high) == ("a", 1024, 8192)
    assert (second.name, second.low, second.high) == ("b", 8193, 65536)
    assert first.above and second.below  # where one is as fast as the other
    for crossing in (first.above, second.below):
        assert 4096 < crossing.lo <= crossing.hi < 16384


def test_one_size_is_no_row_and_an_open_size_splits_one() -> None:
    alone = judge_evidence(settle({"a": (0.0, -0.2, 0.0, 0.0)}))
    assert spans(alone) == []
    assert "not surely at a neighbouring size" in reasons(alone)[4096].why
    assert reasons(alone)[4096].decided
    five = (1024, 4096, 16384, 65536, 1 << 18)
    split = judge_evidence(settle({"a": (-0.2, -0.2, -0.03, -0.2, -0.2)}, five))
    assert spans(split) == [("a", 1024, 4096), ("a", 65536, 1 << 18)]
    assert (split.rows[0].high, split.rows[1].low) == (8192, 32769)


def test_spans_take_the_most_time_off() -> None:
    a, b = setting("a"), setting("b")
    assert choose_spans([{a: 0.2}, {a: 0.1, b: 0.3}, {b: 0.2}, {}]) == [(1, 2, b)]
    assert choose_spans([{a: 0.2, b: 0.19}, {a: 0.19, b: 0.2}]) in ([(0, 1, a)], [(0, 1, b)])
    assert choose_spans([{a: 0.2}, {}, {a: 0.2}]) == []
    assert choose_spans([]) == []
    four = [{a: 0.2}, {a: 0.2}, {a: 0.2}, {a: 0.2}]
    assert choose_spans(four) == [(0, 3, a)]


def test_few_launches_decide_nothing() -> None:
    change = {"a": (-0.3, -0.3, -0.3, -0.3)}
    few = judge_evidence(settle(change, launches=5))
    assert (few.rows, {each.decided for each in few.unadvised}) == ((), {False})
    assert (
        "5 launches a side: at least 6 launches in turns (`ab`, or --env" in reasons(few)[1024].why
    )
    flagged = judge_evidence(with_measured(settle(change, launches=5), "a", launched=8))
    assert "only 5 of 8 launches a side may be judged" in reasons(flagged)[1024].why
    assert spans(judge_evidence(settle(change, launches=6))) == [("a", 1024, 65536)]


def test_six_pairs_are_too_few_among_many_tests() -> None:
    """The smallest p of 6 launches a side is 2/924, which is enough for 23 tests."""
    for number, is_found in ((5, True), (6, False)):
        names = {f"x{index}": (0.0,) * 4 for index in range(number - 1)}
        advised = judge_evidence(settle(names | {"a": (-0.3,) * 4}, launches=6))
        assert bool(advised.rows) == is_found


def test_launches_that_are_no_pairs_take_ten() -> None:
    for launches, is_found in ((9, False), (10, True)):
        evidence = settle({"a": (-0.3,) * 4}, launches=launches)
        apart = {
            Place("other", 0, index): math.log(7e3) + AROUND[index] for index in range(launches)
        }
        advised = judge_evidence(with_measured(evidence, "a", logs=apart))
        assert bool(advised.rows) == is_found
    assert not advised.rows[0].gains[0].is_paired


def test_a_second_stage_counts_alone() -> None:
    """The first chose what it measures."""
    first, second = ([Place("e", stage, index) for index in range(10)] for stage in (1, 2))
    base = [math.log(1e4) + off for off in AROUND]
    rivals = {}
    for size in (1024, 4096):
        logs = dict(zip(first, base, strict=True)) | dict(zip(second, base, strict=True))
        head = {place: log - 0.3 * (place.stage == 1) for place, log in logs.items()}
        rivals[size] = {
            DEFAULT: Measured(logs=logs, tau=0.05),
            setting("a"): Measured(logs=head, tau=0.05),
        }
    advised = judge_evidence(gather(rivals))
    assert advised.rows == ()
    assert advised.rivals[Cell(SERIES, 1024)]["a"].gain == pytest.approx(0)
    more = [Place("apart", 0, index) for index in range(10)]
    for by_setting in rivals.values():
        for name, places in ((DEFAULT, more), (setting("a"), [])):
            logs = by_setting[name].logs | dict(zip(places, base, strict=False))
            by_setting[name] = Measured(logs=logs, tau=0.05)
    (contest, _) = list_contests(gather(rivals))
    assert [len(side) for side in contest.sides] == [20, 10]  # not 30 and 20


def test_every_form_must_be_faster() -> None:
    evidence = settle({"a": (-0.2,) * 4})
    other = settle({"a": (-0.2, -0.2, -0.2, 0.0)})
    placed = FORM._replace(in_place=True)
    cells = {
        cell: {**forms, placed: other.cells[cell][FORM]} for cell, forms in evidence.cells.items()
    }
    both = msgspec.structs.replace(evidence, cells=cells)
    assert spans(judge_evidence(both)) == [("a", 1024, 16384)]
    for forms in cells.values():
        forms[placed] = {DEFAULT: forms[placed][DEFAULT], setting("b"): forms[placed][setting("a")]}
    lacking = judge_evidence(msgspec.structs.replace(evidence, cells=cells))
    assert lacking.rows == ()
    assert any("was not measured with" in each.why for each in lacking.unadvised)


def test_the_least_of_all_forms_is_what_a_setting_gains() -> None:
    evidence = settle({"a": (-0.2,) * 4})
    wide = settle({"a": (-0.22,) * 4}, width=8.0)
    placed = FORM._replace(in_place=True)
    cell = Cell(SERIES, 1024)
    apart = [judge_evidence(each).rivals[cell]["a"] for each in (evidence, wide)]
    cells = {
        each: {**forms, placed: wide.cells[each][FORM]} for each, forms in evidence.cells.items()
    }
    both = judge_evidence(msgspec.structs.replace(evidence, cells=cells)).rivals[cell]["a"]
    assert both.gain == apart[0].gain < apart[1].gain
    assert both.lo == apart[1].lo < apart[0].lo
    assert both.hi == apart[0].hi and not both.doubt


def test_wrong_data_bars_a_setting() -> None:
    evidence = settle({"a": (-0.3,) * 4, "b": (-0.2,) * 4})
    advised = judge_evidence(with_measured(evidence, "a", fault="gave wrong data: 3 elements"))
    assert spans(advised) == [("b", 1024, 65536)]
    assert advised.notes == ("all_reduce, a: gave wrong data: 3 elements (1 KiB)",)
    alone = settle({"a": (-0.3,) * 4})
    barred = judge_evidence(with_measured(alone, "a", fault="gave wrong data: 3 elements"))
    assert {each.why for each in barred.unadvised} == {"a gave wrong data: 3 elements"}
    assert {each.decided for each in barred.unadvised} == {False}


def test_wrong_data_at_one_size_bars_a_setting_at_all() -> None:
    """The largest is wrong: three sizes of which all launches are faster get no row."""
    evidence = settle({"a": (-0.3,) * 4})
    last = Cell(SERIES, 65536)
    spoilt = msgspec.structs.replace(
        evidence.cells[last][FORM][setting("a")], fault="gave wrong data: 3 elements"
    )
    evidence.cells[last][FORM][setting("a")] = spoilt
    barred = judge_evidence(msgspec.structs.replace(evidence, notes=("left out: x",)))
    assert barred.rows == ()
    assert reasons(barred)[1024].why == "a is faster, but gave wrong data: 3 elements (64 KiB)"
    tried = barred.rivals[Cell(SERIES, 1024)]["a"]
    assert tried.lo > 0 and tried.doubt == "gave wrong data: 3 elements (64 KiB)"
    assert barred.notes == ("all_reduce, a: gave wrong data: 3 elements (64 KiB)", "left out: x")


def test_noise_says_what_would_tell() -> None:
    advised = judge_evidence(settle({"a": (-0.06,) * 4}, width=12.0))
    why = reasons(advised)[1024]
    assert why.best
    assert why.best.lo < 0  # nobody saves less than nothing
    ends = f"[{why.best.lo:.0%}, {why.best.hi:.0%}] at 1 KiB"
    assert why.why.startswith(f"launches scatter too much: a: 6% less time {ends}; ")
    (number,) = re.findall(
        r"a new run of about (\d+) launches a side, judged alone, would decide", why.why
    )
    assert int(number) > 10  # a side had so many
    assert not why.decided


def test_flags_that_forbid_a_verdict_forbid_advice() -> None:
    evidence = with_measured(settle({"a": (-0.3,) * 4}), "a", doubts=("skewed!",))
    advised = judge_evidence(evidence)
    assert advised.rows == ()
    assert (
        reasons(advised)[1024].why
        == "flagged skewed!: such rows decide nothing (collbench help flags)"
    )


def test_times_taken_otherwise_do_not_compare() -> None:
    evidence = settle({"a": (-0.3,) * 4})
    evidence = with_measured(evidence, "", manner={"start": {"window"}})
    advised = judge_evidence(with_measured(evidence, "a", manner={"start": {"barrier"}}))
    assert advised.rows == ()
    assert "start: window of the default, barrier of the setting" in reasons(advised)[1024].why


def test_the_same_order() -> None:
    evidence = settle({"a": (-0.3,) * 4, "b": (-0.2,) * 4})
    unknown = judge_evidence(evidence, is_same_order=True)
    assert unknown.rows == ()
    assert "--adds-as" in reasons(unknown)[1024].why
    evidence = with_measured(evidence, "", orders=("ring +1",))
    evidence = with_measured(evidence, "a", orders=("recursive_doubling",))
    evidence = with_measured(evidence, "b", orders=("ring +1",))
    kept = judge_evidence(evidence, is_same_order=True)
    assert (spans(kept), kept.is_same_order) == ([("b", 1024, 65536)], True)
    other = judge_evidence(with_measured(evidence, "b", orders=("tree",)), is_same_order=True)
    assert "adds in another order: ring +1 → recursive_doubling" in reasons(other)[1024].why
    assert spans(judge_evidence(evidence)) == [("a", 1024, 65536)]


@pytest.mark.parametrize(
    ("series", "form"),
    [
        (SERIES._replace(collective="broadcast"), FORM),
        (SERIES._replace(n=2), FORM),
        (SERIES, FORM._replace(dtype="int32")),
        (SERIES, FORM._replace(op="max")),
    ],
)
def test_what_adds_in_one_order_needs_none(series: Series, form: Form) -> None:
    evidence = settle({"a": (-0.3,) * 4})
    cells = {
        Cell(series, cell.nbytes): {form: forms[FORM]} for cell, forms in evidence.cells.items()
    }
    moved = msgspec.structs.replace(evidence, cells=cells)
    assert judge_evidence(moved, is_same_order=True).rows


def test_what_the_library_chose_stands_beside_a_row() -> None:
    evidence = with_measured(settle({"a": (-0.3,) * 4}), "", chose=Choice(algorithm="Ring"))
    (row,) = judge_evidence(with_measured(evidence, "a", chose=Choice(algorithm="Tree"))).rows
    assert row.default_ran and row.default_ran.algorithm == "Ring"
    assert row.ran and row.ran.algorithm == "Tree"


def test_without_a_default_nothing_is_decided() -> None:
    evidence = settle({"a": (-0.3,) * 4})
    for forms in evidence.cells.values():
        for rivals in forms.values():
            del rivals[DEFAULT]
    advised = judge_evidence(evidence)
    assert {(each.why, each.decided) for each in advised.unadvised} == {
        ("the library's own choice was not measured", False)
    }


def test_a_form_without_a_test_leaves_the_rest_undecided() -> None:
    """In place there are too few launches: what may hold out of place is not known to hold."""
    change = {"a": (0.0, -0.2, -0.2, 0.0)}
    evidence, few = settle(change), settle(change, launches=5)
    placed = FORM._replace(in_place=True)
    cells = {
        cell: {**forms, placed: few.cells[cell][FORM]} for cell, forms in evidence.cells.items()
    }
    advised = judge_evidence(msgspec.structs.replace(evidence, cells=cells))
    found = {size: (each.why[:18], each.decided) for size, each in reasons(advised).items()}
    assert found[4096] == ("5 launches a side:", False)
    assert found[1024] == ("nothing is faster ", True)  # as it is no faster out of place


def test_settings_with_few_launches_do_not_count_as_slow() -> None:
    evidence = settle({"a": (0.0,) * 4, "b": (-0.3,) * 4})
    logs = dict(list(evidence.cells[Cell(SERIES, 1024)][FORM][setting("b")].logs.items())[:3])
    advised = judge_evidence(with_measured(evidence, "b", logs=logs))
    assert reasons(advised)[1024].why.startswith("nothing that has launches enough is faster by")
