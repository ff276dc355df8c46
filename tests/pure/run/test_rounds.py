"""Who gets further rounds, and who none: by scatter, cost and the time that is left."""

from __future__ import annotations

import numpy as np
import pytest
from factories import case, record

from collbench.records import paired
from collbench.run.rounds import Ledger, timed

TAU = 0.1
NARROW, WIDE = 0.02, 0.2  # standard deviations of a change in log time


def ledger(seconds: float = 1.0, pairs: int = 8, **scatter: float) -> Ledger:
    """After so many pairs of each row, scattering so; a row's pair takes ``seconds``, and as much
    is beside all."""
    found, rng = Ledger(), np.random.default_rng(3)
    changes = {key: paired_off(rng, pairs, sigma) for key, sigma in scatter.items()}
    for place in range(pairs):
        told = [
            timed(
                key,
                record(case(1024), times_ns=[1_000_000] * 5, seconds=seconds / 2),
                record(
                    case(1024),
                    times_ns=[round(1e6 * np.exp(of[place]))] * 5,
                    seconds=seconds / 2,
                ),
            )
            for key, of in changes.items()
        ]
        found.note(1, filter(None, told), (len(scatter) + 1) * seconds)
    return found


def paired_off(rng: np.random.Generator, pairs: int, sigma: float) -> np.ndarray:
    """Changes of exactly this standard deviation around nothing."""
    drawn = rng.normal(size=pairs)
    return sigma * (drawn - drawn.mean()) / drawn.std()


def test_a_row_that_hardly_scatters_has_had_enough() -> None:
    assert ledger(steady=NARROW).worth(1, {"steady": TAU}, 0.95, 1000.0) == []


def test_a_row_that_scatters_goes_on_where_time_suffices() -> None:
    rows = ledger(steady=NARROW, loose=WIDE)
    taus = {"steady": TAU, "loose": TAU}
    missing = rows.missing(1, "loose", TAU, 0.95)
    assert missing > 8
    assert rows.worth(1, taus, 0.95, 3 * missing) == ["loose"]


def test_a_row_that_no_time_suffices_for_gets_none() -> None:
    rows = ledger(loose=WIDE)
    needed = 2 * rows.missing(1, "loose", TAU, 0.95)  # a second for the row, one beside
    assert rows.worth(1, {"loose": TAU}, 0.95, needed / 2) == []


def test_the_cheaper_of_two_rows_goes_first_where_time_does_not_suffice_for_both() -> None:
    rows = ledger(loose=0.08, looser=WIDE)
    needed = 2 * rows.missing(1, "loose", TAU, 0.95)
    assert rows.worth(1, {"loose": TAU, "looser": TAU}, 0.95, needed + 1) == ["loose"]


def test_a_change_however_large_is_no_reason_to_go_on_or_stop() -> None:
    changes = paired_off(np.random.default_rng(1), 12, 0.1)
    assert paired.enough(changes + 0.5, TAU) == paired.enough(changes, TAU)


def test_a_stricter_level_takes_more_pairs() -> None:
    changes = paired_off(np.random.default_rng(1), 12, 0.1)
    assert paired.enough(changes, TAU, 0.99) > paired.enough(changes, TAU)


def test_too_few_pairs_bound_nothing_yet() -> None:
    assert paired.enough([0.1] * 5, TAU) == np.inf


def test_a_row_with_too_few_pairs_for_a_stricter_level_gets_them() -> None:
    rows = ledger(pairs=6, loose=NARROW)
    assert rows.missing(1, "loose", TAU, 0.95) == 0
    assert rows.missing(1, "loose", TAU, 0.975) == 1


def test_as_many_pairs_as_are_said_to_be_enough_are() -> None:
    """Four in five of rows without a change, which scatter alike throughout, are then found the
    same; the estimate from few pairs is a rough one, so the forecast is from many."""
    rng = np.random.default_rng(5)
    pairs = int(paired.enough(rng.normal(0, 0.1, 400)[:40], TAU))
    same = 0
    for _ in range(300):
        _, lo, hi, _ = paired.shift(rng.normal(0, 0.1, pairs))
        same += np.expm1(lo) > -TAU and np.expm1(hi) < TAU
    assert same / 300 > 0.75


def test_a_pair_whose_side_has_no_times_tells_nothing() -> None:
    assert timed("row", record(case(1024), times_ns=[]), record(case(1024), times_ns=[5])) is None


@pytest.mark.parametrize("left", [0.0, -5.0])
def test_nothing_is_begun_when_time_is_over(left: float) -> None:
    assert ledger(loose=0.08).worth(1, {"loose": TAU}, 0.95, left) == []


def test_the_dearest_rows_are_dropped_where_time_does_not_suffice_for_all() -> None:
    rows = Ledger()
    for key, seconds in {"dear": 4.0, "cheap": 1.0, "cheaper": 0.5}.items():
        rows.guess(key, seconds)
    keys = ["dear", "cheap", "cheaper"]
    assert set(rows.affordable(keys, 6, 100.0)) == set(keys)
    assert rows.affordable(keys, 6, 10.0) == ["cheaper", "cheap"]
    assert rows.affordable(keys, 6, 2.0) == []
