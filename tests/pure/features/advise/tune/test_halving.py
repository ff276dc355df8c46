"""Successive halving: who goes on, and what is proposed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from collbench.features.advise.tune import halving
from collbench.features.advise.types import Cell, Series

SERIES = Series("all_reduce", 2, 1)
A, B, C, D = ((("A", name),) for name in "abcd")
SIZES = (8, 64, 512, 4096)
Times = dict[Cell, dict[tuple[tuple[str, str], ...], dict[int, float]]]


def table(default: Sequence[float], **by_name: Sequence[float]) -> Times:
    """One launch of the default and of settings a, b … at each size."""
    settings = {(("A", name),): times for name, times in by_name.items()}
    return {
        Cell(SERIES, size): {
            (): {0: default[index]},
            **{setting: {0: times[index]} for setting, times in settings.items()},
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


def repeat(times: Times, *factors: float) -> Times:
    """The same launches in several cycles, each of which takes a setting so many times as long."""
    return {
        cell: {
            setting: {
                cycle: value * (factor if setting else 1.0)
                for cycle, factor in enumerate(factors)
                for value in launches.values()
            }
            for setting, launches in by_setting.items()
        }
        for cell, by_setting in times.items()
    }


def test_what_is_surely_slower_than_the_default_is_out() -> None:
    field = {SERIES: {A: SIZES, B: SIZES}}
    times = repeat(table([100] * 4, a=[104] * 4, b=[106] * 4), 1, 1)
    assert halving.halve_field(field, times) == {SERIES: {A: SIZES}}
    times = repeat(table([100] * 4, a=[106] * 4, b=[107] * 4), 1, 1)
    assert halving.halve_field(field, times) == {}


def test_one_launch_shows_only_large_differences() -> None:
    field = {SERIES: {A: SIZES, B: SIZES}}
    assert halving.halve_field(field, table([100] * 4, a=[125] * 4, b=[140] * 4)) == {
        SERIES: {A: SIZES}
    }
    assert halving.halve_field(field, table([100] * 4, a=[135] * 4, b=[140] * 4)) == {}


def test_launches_that_scatter_put_nothing_out_that_may_be_faster() -> None:
    slow, field = table([100] * 4, a=[115] * 4), {SERIES: {A: SIZES}}
    scattered = (0.7, 1.3, 1.0, 0.8, 1.2)
    assert halving.halve_field(field, repeat(slow, *scattered)) == {SERIES: {A: SIZES}}
    assert halving.halve_field(field, repeat(slow, *(scattered * 20))) == {}


def test_settings_are_compared_within_a_cycle() -> None:
    """The machine is half as fast in the second cycle, in which only the default and a ran."""
    cell = Cell(SERIES, 8)
    times = {cell: {(): {0: 100.0, 1: 200.0, 2: 100.0}, A: {0: 90.0, 1: 180.0}, B: {0: 95.0}}}
    logs = halving.compare_launches(times[cell])
    assert logs == {
        A: pytest.approx({0: math.log(0.9), 1: math.log(0.9)}),
        B: pytest.approx({0: math.log(0.95)}),
    }
    assert halving.summarise_times(times)[cell][A] == pytest.approx(90.0)
    assert halving.compare_launches({(): {0: 100.0}, A: {1: 80.0}}) == {
        A: pytest.approx({-1: math.log(0.8)})
    }


def test_fewer_launches_count_for_less() -> None:
    """b was lucky in its only launch."""
    times = {
        Cell(SERIES, size): {
            (): dict.fromkeys(range(4), 100.0),
            A: {0: 70.0, 1: 90.0, 2: 80.0, 3: 100.0},
            B: {0: 80.0},
        }
        for size in SIZES
    }
    for by_setting in halving.summarise_times(times).values():
        assert by_setting[A] < by_setting[B]


def test_halving_goes_by_two_neighbouring_sizes() -> None:
    times = table([100] * 4, a=[50, 50, 90, 90], b=[90, 90, 50, 40])
    field = {SERIES: {A: SIZES, B: SIZES}}
    # at 64 and 512 B they save as much, and one of them goes on there
    assert halving.halve_field(field, times) == {SERIES: {A: (8, 64, 512), B: (512, 4096)}}


def test_a_cell_without_the_default_tells_nothing() -> None:
    times = {Cell(SERIES, size): {A: {0: 1.0}} for size in SIZES}
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
