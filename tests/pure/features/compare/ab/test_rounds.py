"""Who gets further rounds, and who none: by scatter, cost and the time that is left."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from collbench.features.compare.ab.rounds import FRESH, Ledger, Shortfall, describe_shortfall
from collbench.records import paired

TAU = 0.1
NARROW, WIDE = 0.02, 0.2  # standard deviations of a change in log time


def ledger(seconds: Mapping[str, float], beside: float = 1.0) -> Ledger:
    """After a pair of launches of a world of these rows."""
    found = Ledger()
    found.note("a world", seconds, sum(seconds.values()) + beside)
    return found


def paired_off(rng: np.random.Generator, pairs: int, sigma: float) -> np.ndarray:
    """Changes of exactly this standard deviation around nothing."""
    drawn = rng.normal(size=pairs)
    return sigma * (drawn - drawn.mean()) / drawn.std()


def test_a_row_that_lacks_nothing_gets_none() -> None:
    assert not ledger({"steady": 1.0}).worth({"steady": 0.0}, 1000.0)


def test_a_row_that_lacks_pairs_goes_on_where_time_suffices() -> None:
    rows = ledger({"steady": 1.0, "loose": 1.0})
    assert set(rows.worth({"steady": 0.0, "loose": 10}, 21.0)) == {"loose"}


def test_a_row_that_no_time_suffices_for_gets_none() -> None:
    rows = ledger({"loose": 1.0})  # a second for the row, one beside
    assert not rows.worth({"loose": 10}, 20 / 2)


def test_a_single_row_may_seem_to_need_more_time_than_there_is() -> None:
    assert set(ledger({"loose": 1.0}).worth({"loose": 10}, 20 / 1.4)) == {"loose"}


def test_a_row_that_nothing_bounds_gets_none() -> None:
    assert not ledger({"loose": 1.0}).worth({"loose": np.inf}, 1000.0)


def test_the_cheaper_of_two_rows_goes_first_where_time_does_not_suffice_for_both() -> None:
    rows = ledger({"dear": 2.0, "cheap": 1.0})
    assert set(rows.worth({"dear": 10, "cheap": 10}, 21.0)) == {"cheap"}


def test_what_a_world_costs_beside_decides_who_is_cheaper() -> None:
    rows = Ledger()
    rows.note("slow to start", {"cheap": 1.0}, 6.0)
    rows.note("quick to start", {"dear": 2.0}, 2.5)
    assert set(rows.worth({"cheap": 10, "dear": 10}, 26.0)) == {"dear"}


def test_rows_of_one_world_share_what_that_costs_beside() -> None:
    rows = ledger({"a": 1.0, "b": 1.0}, beside=5.0)
    assert rows.seconds(["a"]) + rows.seconds(["b"]) - rows.seconds(["a", "b"]) == 5.0


def test_every_world_costs_what_is_beside_its_rows() -> None:
    rows = ledger({"a": 1.0}, beside=5.0)
    rows.note("another", {"b": 1.0}, 4.0)
    assert rows.seconds(["a", "b"]) == 10.0


def test_new_processes_every_few_rounds_are_part_of_the_cost() -> None:
    rows = Ledger()
    for place in range(2 * FRESH):
        rows.note("a world", {"a": 1.0}, 2.0 + (4.0 if place % FRESH == 0 else 0.0))
    assert rows.seconds(["a"]) == 2.0 + 4.0 / FRESH


def test_a_change_however_large_is_no_reason_to_go_on_or_stop() -> None:
    changes = paired_off(np.random.default_rng(1), 12, 0.1)
    assert paired.count_enough_pairs(changes + 0.5, TAU) == paired.count_enough_pairs(changes, TAU)


def test_a_stricter_level_takes_more_pairs() -> None:
    changes = paired_off(np.random.default_rng(1), 12, 0.1)
    assert paired.count_enough_pairs(changes, TAU, 0.99) > paired.count_enough_pairs(changes, TAU)


def test_too_few_pairs_bound_nothing_yet() -> None:
    assert paired.count_enough_pairs([0.1] * 5, TAU) == np.inf


def test_too_few_pairs_lack_as_many_as_the_level_takes() -> None:
    changes = paired_off(np.random.default_rng(3), 6, NARROW)
    assert paired.count_lacking_pairs(changes, TAU, 0.95) == 0
    assert paired.count_lacking_pairs(changes, TAU, 0.975) == 1


def test_wide_scatter_lacks_pairs() -> None:
    changes = paired_off(np.random.default_rng(3), 8, WIDE)
    assert paired.count_lacking_pairs(changes, TAU) > 8


def test_as_many_pairs_as_are_said_to_be_enough_are() -> None:
    """Four in five of rows without a change, which scatter alike throughout, are then found the
    same; the estimate from few pairs is a rough one, so the forecast is from many."""
    rng = np.random.default_rng(5)
    pairs = int(paired.count_enough_pairs(rng.normal(0, 0.1, 400)[:40], TAU))
    same = 0
    for _ in range(300):
        _, lo, hi, _ = paired.estimate_shift(rng.normal(0, 0.1, pairs))
        same += np.expm1(lo) > -TAU and np.expm1(hi) < TAU
    assert same / 300 > 0.75


@pytest.mark.parametrize("left", [0.0, -5.0])
def test_nothing_is_begun_when_time_is_over(left: float) -> None:
    assert not ledger({"loose": 0.08}).worth({"loose": 5}, left)


@pytest.mark.parametrize(
    ("left", "kept"),
    [(100.0, {"dear", "cheap", "cheaper"}), (10.0, {"cheaper", "cheap"}), (2.0, set())],
)
def test_the_dearest_rows_are_dropped_where_time_does_not_suffice_for_all(
    left: float, kept: set[str]
) -> None:
    rows = ledger({"dear": 4.0, "cheap": 1.0, "cheaper": 0.5}, beside=0.0)
    assert set(rows.affordable(["dear", "cheap", "cheaper"], 6, left)) == kept


@pytest.mark.parametrize(
    ("in_all", "hint"), [(240.0, "; --budget 5m is enough"), (9e6, "more pairs (180 s)")]
)
def test_no_budget_of_days_is_advised(in_all: float, hint: str) -> None:
    short = Shortfall(1, 89.5, 180.0, 0.0, -0.5, in_all)
    text = describe_shortfall("--budget 60s", short)
    assert text.startswith("rounds ended: --budget 60s was used up, and the undecided row needs")
    assert "about 90 more pairs" in text and text.endswith(hint)
