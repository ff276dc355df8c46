"""Nights measured in two ways by turns: each way has a history, and a change that stays is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta

import msgspec
import numpy as np
import pytest
from factories import swept

from collbench.features.health.history import baselines, gates
from collbench.features.health.history.nights import Night, Review, Series, find_night_before
from collbench.features.health.history.outlook import Outlook, make_outlook
from collbench.features.health.history.view import list_sentences, make_document
from collbench.features.health.history.ways import find_current, find_past, split_ways

OLD, NEW, THIRD = "torch 2.12", "torch 2.13", "torch 2.14"
FACTS = {name: {"libraries": {"torch": name[6:] + ".0"}} for name in (OLD, NEW, THIRD)}
FIRST = date(2026, 1, 1)
LEVELS = {OLD: 0.0, NEW: 0.15, THIRD: 0.3}  # which torch takes how much longer
ROWS = swept("all_reduce", sizes=(1 << 20, 2 << 20, 4 << 20))

Loss = Callable[[str, int], float]


def rows(
    ways: Sequence[str], loss: Loss = lambda *_: 0.0, seed: int = 1, days: Sequence[int] = ()
) -> list[Series]:
    """Three neighbouring sizes over nights of these ways, which scatter by 1 %."""
    rng = np.random.default_rng(seed)
    days = days or range(len(ways))
    return [
        Series(
            machine="node1",
            case=case,
            nights=[
                Night(
                    day=(FIRST + timedelta(days=day)).isoformat(),
                    value=13 + LEVELS[way] + loss(way, n) + float(rng.normal(0, 0.01)),
                    launches=3,
                    samples=60,
                    fingerprint=way,
                    manner="start window",
                    runs=(f"run-{n}",),
                )
                for n, (way, day) in enumerate(zip(ways, days, strict=True))
            ],
            environments=FACTS,
        )
        for case in ROWS
    ]


def outlook(series: Sequence[Series]) -> Outlook:
    return make_outlook("node1", series)


def texts(made: Outlook) -> str:
    return "\n".join(text for text, _ in list_sentences(made))


TURNS = [OLD, NEW] * 15


def test_a_loss_in_one_of_two_alternating_ways_is_found_and_named_with_it() -> None:
    made = outlook(rows(TURNS, lambda way, n: math.log(1.1) * (way == NEW and n >= 16)))
    (shift,) = made.changed
    assert shift.standing
    assert shift.rows[0].way == "libraries.torch 2.13.0"
    assert shift.delta == pytest.approx(0.1, abs=0.02)
    assert shift.day == (FIRST + timedelta(days=17)).isoformat()
    assert "with libraries.torch 2.13.0: 9.6% slower since 2026-01-18" in texts(made)


def test_healthy_alternation_changes_nothing() -> None:
    for seed in range(10):
        made = outlook(rows(TURNS, seed=seed))
        assert (made.changed, made.creeping) == ([], {})
        assert list(made.ways) == ["libraries.torch 2.12.0", "libraries.torch 2.13.0"]
        assert {len(row.nights) for row in made.series} == {15}


def test_the_second_way_is_told_where_it_begins() -> None:
    (beginning,) = outlook(rows(TURNS)).beginnings
    assert beginning == ("2026-01-02", "libraries.torch 2.12.0 -> 2.13.0", 3)


def test_an_upgrade_begins_a_segment_as_before() -> None:
    series = rows([OLD] * 15 + [NEW] * 15)
    assert [split_ways(row) for row in series] == [[row] for row in series]
    made = outlook(series)
    assert made.changed == []
    assert made.beginnings == [("2026-01-16", "libraries.torch 2.12.0 -> 2.13.0", 3)]
    assert made.ways == {}


def test_a_shift_before_an_upgrade_is_over() -> None:
    (shift,) = outlook(
        rows([OLD] * 16 + [NEW] * 8, lambda way, n: 0.1 * (way == OLD and n >= 8))
    ).changed
    assert (shift.over, shift.standing) == (True, False)


def test_an_upgrade_of_both_ways_goes_on_with_the_nearest() -> None:
    """Third takes over from alternation; which of both it follows is by facts, then by time."""
    (first, second) = split_ways(rows([OLD, NEW] * 6 + [THIRD] * 6)[0])
    assert [len(part.nights) for part in first.segments] == [6]
    assert [len(part.nights) for part in second.segments] == [6, 6]
    assert first.ended
    assert not second.ended


def test_a_way_that_is_measured_no_more_does_not_stand() -> None:
    made = outlook(
        rows([OLD, NEW] * 12 + [OLD] * 6, lambda way, n: 0.12 * (way == NEW and n >= 12))
    )
    (shift,) = made.changed
    assert not shift.standing
    assert "measured so no more" in texts(made)


def test_a_rollback_goes_on_with_the_old_history() -> None:
    ways = [OLD] * 10 + [NEW] * 5 + [OLD] * 10
    old, new = split_ways(rows(ways)[0])
    assert (len(old.nights), len(old.segments), len(new.nights)) == (20, 1, 5)
    assert (old.ended, new.ended) == (False, True)
    row = rows(ways, lambda way, n: 0.1 * (n >= 15))
    assert [shift.rows[0].way for shift in outlook(row).changed] == ["libraries.torch 2.12.0"]


def test_a_way_that_comes_back_late_begins_anew() -> None:
    ways = [OLD] * 10 + [NEW] * 40 + [OLD] * 10
    (row,) = split_ways(rows(ways)[0])
    assert [len(part.nights) for part in row.segments] == [10, 40, 10]


def test_a_pause_of_all_measurement_changes_nothing() -> None:
    days = [*range(10), *range(60, 70)]
    assert len(split_ways(rows([OLD] * 20, days=days)[0])[0].segments) == 1


def test_a_single_odd_night_has_a_history_of_its_own() -> None:
    old, new = split_ways(rows([OLD] * 8 + [NEW] + [OLD] * 8)[0])
    assert (len(old.nights), len(new.nights), new.ended) == (16, 1, True)


def test_a_weekly_way_goes_on() -> None:
    ways = [NEW if n % 7 == 0 else OLD for n in range(30)]
    weekly, daily = split_ways(rows(ways)[0])
    assert (weekly.way, weekly.ended, daily.ended) == ("libraries.torch 2.13.0", False, False)


def test_two_ways_in_each_night_are_two_histories() -> None:
    days = [n // 2 for n in range(30)]
    made = rows([OLD, NEW] * 15, days=days)
    assert [len(way.nights) for way in split_ways(made[0])] == [15, 15]
    assert not any(way.ended for way in split_ways(made[0]))


def test_tonight_is_held_against_its_own_way() -> None:
    (row, *_) = rows(TURNS)
    tonight = row.nights[-1]
    past = find_past(row, tonight)
    assert (len(past.values), past.way) == (14, "libraries.torch 2.13.0")
    slow = msgspec.structs.replace(tonight, value=tonight.value + math.log(1.1))
    gate = gates.gate_night(past.values, slow.value, 0.03)
    assert gate.state == "candidate"
    assert gates.gate_night(past.values, tonight.value, 0.03).state == "quiet"


def test_settings_are_ways_too() -> None:
    (row, *_) = rows([OLD] * 20)
    nights = [
        msgspec.structs.replace(night, manner="start barrier" if n % 2 else "start window")
        for n, night in enumerate(row.nights)
    ]
    ways = split_ways(msgspec.structs.replace(row, nights=nights))
    assert [way.way for way in ways] == ["start window", "start barrier"]


def test_an_unknown_manner_is_no_way() -> None:
    (row, *_) = rows([OLD] * 20)
    nights = [
        msgspec.structs.replace(night, manner="" if n % 2 else night.manner)
        for n, night in enumerate(row.nights)
    ]
    assert len(split_ways(msgspec.structs.replace(row, nights=nights))) == 1


def review(row: Series, night: int, begins: str = "", change: float = 0.0) -> Series:
    """The row with a level that was reviewed after the night of this index, and is by ``change``
    off; one that ``begins`` is accepted."""
    last = row.nights[night]
    level = Review(begins or "2026-01-01", "new switch", bool(begins), last.value + change, last)
    return msgspec.structs.replace(row, reviews=[*row.reviews, level])


def test_a_level_is_learned_of_the_current_way_and_held_against_it_alone() -> None:
    series = rows(TURNS)
    assert find_current(series[0]).way == "libraries.torch 2.13.0"
    level = baselines.learn_baseline(series, "as measured", "")
    assert math.log(level.rows[series[0].key].median) == pytest.approx(13.15, abs=0.02)
    assert outlook([review(row, -1) for row in series]).creeping == {}
    creeping = outlook([review(row, -1, change=-0.2) for row in series]).creeping
    assert {name.partition(" (")[2] for name in creeping} == {"libraries.torch 2.13.0)"}


def test_each_way_is_held_against_its_own_reviewed_level() -> None:
    twice = [review(review(row, -2, change=-0.2), -1, change=-0.2) for row in rows(TURNS)]
    ways = ("libraries.torch 2.12.0", "libraries.torch 2.13.0")
    assert sorted(outlook(twice).creeping) == sorted(
        f"{row.key} ({way})" for row in twice for way in ways
    )


def test_an_accepted_level_begins_a_segment_of_its_way_alone() -> None:
    row = rows(TURNS)[0]
    old, new = split_ways(review(row, -1, row.nights[-5].day))
    assert [len(part.nights) for part in old.segments] == [15]
    assert [len(part.nights) for part in new.segments] == [12, 3]
    assert new.segments[-1].why == "accepted: new switch"
    old, new = split_ways(review(row, -2, row.nights[1].day))  # the first night of the other way
    assert [len(part.nights) for part in old.segments] == [1, 14]
    assert new.began == "libraries.torch 2.12.0 -> 2.13.0"


def test_a_level_accepted_within_the_night_leaves_the_other_way_of_that_night_its_past() -> None:
    row = rows([NEW, OLD] * 8, days=[n // 2 for n in range(16)])[0]
    row = review(row, -2, row.nights[6].day)
    assert len(find_past(row, row.nights[-1]).values) == 7
    assert len(find_past(row, row.nights[-2]).values) == 4


@pytest.mark.parametrize(
    ("when", "index"),
    [
        ("2026-01-03T09:00:00+00:00", 1),
        ("2026-01-03T09:00:00+09:00", 0),
        ("2026-02-01T00:00:00+00:00", 2),
        ("2025-12-01T00:00:00+00:00", 0),
        ("yesterday", 0),
    ],
)
def test_the_night_before_a_review_is_the_last_that_began_by_then(when: str, index: int) -> None:
    """The third is named 2026-01-03 as the review is dated, and began that evening."""
    began = ("2026-01-02T01:00:00", "2026-01-03T01:00:00", "2026-01-03T23:00:00")
    nights = [
        msgspec.structs.replace(night, started=f"{time}+00:00")
        for night, time in zip(rows([OLD, NEW, OLD])[0].nights, began, strict=True)
    ]
    assert find_night_before(nights, when) is nights[index]


def test_pages_and_json_name_the_way() -> None:
    document = make_document(outlook(rows(TURNS)), everything=True)
    assert set(document.values["ways"]) == {"libraries.torch 2.12.0", "libraries.torch 2.13.0"}
    assert {night["way"] for night in document.values["nights"]} == set(document.values["ways"])
    titles = [figure.title for figure in document.sections[1].figures]
    assert ["2.12.0" in title for title in titles] == [True, False]


def test_a_row_without_nights_is_one_history() -> None:
    empty = Series(machine="node1", case=ROWS[0], nights=[])
    assert split_ways(empty) == [empty]
    assert outlook([empty]).creeping == {}
