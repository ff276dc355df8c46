"""Cases over their launches: flags are those of any launch, and so is how late a rank came."""

from __future__ import annotations

import math

import msgspec
import pytest
from factories import case, make_file, night, record

from collbench.records.flags import SEVERE, list_doubts, list_remarks
from collbench.records.points import is_known, make_points, over_launches
from collbench.records.rows import make_rows
from collbench.records.types import Record, RunFile
from collbench.show.views import series, summary


def late_after_first(share: float) -> RunFile:
    """Three launches: in all but the first, rank 2 comes late by this share of the time."""

    def change(made: Record) -> Record:
        times = [time + i % 7 for i, time in enumerate(made.times_ns * 6)]
        waits = [round(share * time) if made.world else 0 for time in times]
        begins = [waits if rank == 2 else [0] * len(times) for rank in range(4)]
        durations = [[t - b for t, b in zip(times, begin, strict=True)] for begin in begins]
        own = {"per_rank": durations, "starts_ns": begins, "glob_ns": times}
        return msgspec.structs.replace(made, times_ns=times, **own)

    return night(rows=[case()], change=change)


@pytest.mark.parametrize(("share", "is_doubt"), [(0.4, True), (0.1, False)])
def test_a_rank_late_in_other_launches_than_the_first_is_a_doubt(
    share: float, is_doubt: bool
) -> None:
    point = over_launches(make_rows([late_after_first(share)]))
    assert point.first.late_rank is None
    assert point.late_share == pytest.approx(share, rel=0.05)
    assert is_doubt == (point.late_share > SEVERE)
    assert ("late:2" in list_doubts(point), "late:2" in list_remarks(point)) == (
        is_doubt,
        not is_doubt,
    )


def test_a_report_names_a_rank_late_in_other_launches_than_the_first() -> None:
    view = series.make_view([late_after_first(0.4)])
    assert summary.describe_late(view) == ["rank 2 came late in 1 case."]


@pytest.mark.parametrize(
    ("names", "half", "known"),
    [
        ((), 0.4, True),
        (("bimodal", "unsteady"), 0.4, True),
        ((), 0.6, False),
        ((), math.inf, False),
        (("n<6",), 0.01, False),
        (("predicted",), math.inf, True),
        (("imported",), math.inf, True),
    ],
)
def test_a_time_is_known_within_half_of_it(
    names: tuple[str, ...], half: float, known: bool
) -> None:
    (point,) = make_points(make_rows([make_file([record(case())])]))
    changed = {"lo": point.median * (1 - half), "hi": point.median, "flags": names}
    assert is_known(msgspec.structs.replace(point, **changed, ungated=names)) is known
