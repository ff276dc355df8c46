"""Successive halving: who goes on, and what is proposed."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.features.advise.tune import halving
from collbench.features.advise.types import Cell, Series

SERIES = Series("all_reduce", 2, 1)
A, B, C, D = ((("A", name),) for name in "abcd")
SIZES = (8, 64, 512, 4096)
Times = dict[Cell, dict[tuple[tuple[str, str], ...], list[float]]]


def table(default: Sequence[float], **by_name: Sequence[float]) -> Times:
    """One launch of the default and of settings a, b … at each size."""
    settings = {(("A", name),): times for name, times in by_name.items()}
    return {
        Cell(SERIES, size): {
            (): [default[index]],
            **{setting: [times[index]] for setting, times in settings.items()},
        }
        for index, size in enumerate(SIZES)
    }


def medians(times: Times) -> list[dict[tuple[tuple[str, str], ...], float]]:
    by_cell = halving.summarise_times(times)
    return [by_cell[cell] for cell in sorted(by_cell)]


def test_the_better_half_goes_on() -> None:
    times = table([100] * 4, a=[50] * 4, b=[60] * 4, c=[70] * 4, d=[80] * 4)
    field = {SERIES: dict.fromkeys((A, B, C, D), SIZES)}
    assert halving.halve_field(field, times) == {SERIES: {A: SIZES, B: SIZES}}


def test_what_is_slower_than_the_default_is_out() -> None:
    times = table([100] * 4, a=[104] * 4, b=[106] * 4)
    assert halving.halve_field({SERIES: {A: SIZES, B: SIZES}}, times) == {SERIES: {A: SIZES}}
    times = table([100] * 4, a=[106] * 4, b=[107] * 4)
    assert halving.halve_field({SERIES: {A: SIZES, B: SIZES}}, times) == {}


def test_halving_goes_by_size_and_wants_neighbours() -> None:
    times = table([100] * 4, a=[50, 50, 90, 50], b=[90, 90, 50, 90])
    field = {SERIES: {A: SIZES, B: SIZES}}
    # b is best at 512 B alone; a at 4 KiB alone, and at the two smallest
    assert halving.halve_field(field, times) == {SERIES: {A: (8, 64)}}


def test_a_cell_without_the_default_tells_nothing() -> None:
    times = {Cell(SERIES, size): {A: [1.0]} for size in SIZES}
    assert halving.summarise_times(times) == {}
    assert halving.halve_field({SERIES: {A: SIZES}}, times) == {}


def test_proposals_change_with_the_size() -> None:
    times = table([100] * 4, a=[50, 60, 100, 120], b=[120, 110, 70, 60])
    assert halving.choose_by_size(medians(times)) == [A, A, B, B]


def test_the_default_stays_where_nothing_is_faster() -> None:
    times = table([100] * 4, a=[99, 99, 99, 99], b=[120] * 4)
    assert halving.choose_by_size(medians(times)) == [()] * 4
    times = table([100] * 4, a=[100, 60, 60, 100])
    assert halving.choose_by_size(medians(times)) == [(), A, A, ()]


def test_one_size_alone_is_not_proposed() -> None:
    times = table([100] * 4, a=[100, 40, 110, 110])
    assert halving.choose_by_size(medians(times)) == [()] * 4


def test_settings_that_are_equally_fast_do_not_take_turns() -> None:
    times = table([100] * 4, a=[50, 51, 50, 51], b=[51, 50, 51, 50])
    assert len(set(halving.choose_by_size(medians(times)))) == 1


def test_what_was_not_measured_at_a_size_is_not_proposed_there() -> None:
    times = table([100] * 4, a=[50] * 4)
    del times[Cell(SERIES, 4096)][A]
    assert halving.choose_by_size(medians(times)) == [A, A, A, ()]


def test_one_setting_for_all_sizes_may_be_slow_at_none() -> None:
    times = table([100] * 4, a=[50, 50, 50, 120], b=[80, 80, 100, 101])
    cells = medians(times)
    assert halving.choose_for_all(cells) == B
    assert halving.choose_for_all(medians(table([100] * 4, a=[120] * 4))) == ()


def test_the_best_stretch_is_that_of_two_neighbours() -> None:
    times = table([100] * 4, a=[101, 101, 130, 100], b=[140, 140, 103, 104])
    assert halving.choose_best_stretch(medians(times)) == [A, A, (), ()]
    assert halving.choose_best_stretch(medians(table([100] * 4))) == [()] * 4
