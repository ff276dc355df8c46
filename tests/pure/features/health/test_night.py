"""A night: which launches its rows rest on."""

from __future__ import annotations

import msgspec
import pytest
from factories import case, night

from collbench.features.health.night import Night, Timing
from collbench.records.types import Record, RunFile

CASE = case()


def timing(steady: int, bimodal: int) -> Timing:
    """Launches of 100 us, and others of 150 or 250 us whose median is 200 us."""

    def change(made: Record) -> Record:
        if made.world < steady:
            times = [100_000 + 10 * i for i in range(-20, 21)]
        else:
            low, high = ([middle + 10 * i for i in range(20)] for middle in (150_000, 250_000))
            times = [*low, 200_000, *high]
        return msgspec.structs.replace(made, times_ns=times)

    return Night([night(rows=[CASE], launches=steady + bimodal, change=change)]).timings[CASE]


def test_a_row_rests_on_no_launch_between_two_modes() -> None:
    assert timing(3, 4).median == pytest.approx(100_000)


def test_launches_between_two_modes_are_counted() -> None:
    assert timing(3, 4).lost == {"bimodal": 4}


@pytest.mark.parametrize(("steady", "fit"), [(3, True), (2, False)])
def test_a_row_needs_three_launches_of_one_mode(steady: int, fit: bool) -> None:
    assert timing(steady, 4).fit is fit


@pytest.mark.parametrize(("skewed", "fit"), [(2, 6), (3, 0)])
def test_runs_of_one_launch_each_are_not_left_out_for_their_time(skewed: int, fit: int) -> None:
    """As a launcher's are; skew of 0.25 ms is too much for the faster ones."""

    def measured(median: int) -> RunFile:
        times = [median + 1_000 * i for i in range(-3, 4)]
        return night(
            rows=[CASE],
            launches=1,
            name=f"run{median}",
            change=lambda made: msgspec.structs.replace(
                made, times_ns=times, skew_ns=[250_000] * 7
            ),
        )

    medians = [*range(1_000_000, 1_000_000 + skewed), *range(2_000_000, 2_000_006 - skewed)]
    files = [measured(median) for median in medians]
    found = Night(files)
    assert len(found.timings[CASE].medians) == fit
    assert [point.launches for point in found.points] == [fit] * bool(fit)


def test_figures_over_launches_leave_out_the_same() -> None:
    def change(made: Record) -> Record:
        own = [100_000] * 7 if made.world < 3 else [150_000] * 20 + [250_000] * 20
        return msgspec.structs.replace(made, times_ns=[t + 10 * i for i, t in enumerate(own)])

    (point,) = Night([night(rows=[CASE], launches=7, change=change)]).points
    assert point.launches == 3
