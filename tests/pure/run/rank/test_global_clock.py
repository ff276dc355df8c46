"""Clocks of simulated hosts on a simulated network: what the model claims, against the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from collbench.run.rank.global_clock import (
    ERROR_NS,
    PASSES,
    PINGS,
    SPREAD_S,
    History,
    Model,
    bracket_offset,
    estimate_error,
    fit_model,
    make_tree,
    parent_place,
    select_narrower,
)

SECOND = 10**9
Delay = Callable[[np.random.Generator], float]


def lan(rng: np.random.Generator) -> float:
    """A way through a quiet network, ns; 1 of 20 messages is held up by a scheduler or a switch."""
    return 8_000 + rng.exponential(1_000) + (rng.random() < 0.05) * rng.exponential(200_000)


class Hosts:
    """Hosts whose clocks started up to a year apart and drift by up to 50 ppm each; ``now`` is the
    true time."""

    def __init__(
        self, hosts: int, delay: Delay = lan, seed: int = 0, back: Delay | None = None
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.offsets = [int(at) for at in self.rng.integers(0, 3 * 10**16, hosts)]
        self.drifts = [int(ppb) for ppb in self.rng.integers(-50_000, 50_000, hosts)]
        self.delay, self.back, self.now = delay, back or delay, 0

    def reads(self, host: int, at: int | None = None) -> int:
        at = self.now if at is None else at
        return at + self.offsets[host] + at * self.drifts[host] // 10**9

    def wander(self, host: int, ppb: int) -> None:
        """From now on the clock drifts by so much more."""
        self.offsets[host] -= self.now * ppb // 10**9
        self.drifts[host] += ppb

    def offset(self, host: int) -> tuple[int, int, int]:
        trips = []
        for _ in range(PINGS):
            before = self.reads(host)
            self.now += int(self.delay(self.rng))
            told = self.reads(parent_place(host))
            self.now += int(self.back(self.rng))
            trips.append((before, told, self.reads(host)))
        return bracket_offset(trips)

    def batch(self, spread_s: float) -> np.ndarray:
        points = np.zeros((len(self.offsets), PASSES, 3), np.int64)
        for i in range(PASSES):
            self.now += int(spread_s / PASSES * SECOND)
            points[0, i] = self.reads(0), 0, 1
            for host in range(1, len(self.offsets)):
                points[host, i] = self.offset(host)
        return points

    def off(self, models: list[Model], at: int | None = None) -> int:
        """How far the worst model is from the truth."""
        clocks = enumerate(models)
        return max(
            abs(model.forth(self.reads(host, at)) - self.reads(0, at)) for host, model in clocks
        )


def steady(rng: np.random.Generator) -> float:
    return 10_000.0


def looked_at(hosts: Hosts) -> History:
    history = History()
    history.add(hosts.batch(SPREAD_S), anew=True)
    return history


def test_a_tree_of_places_is_binomial() -> None:
    assert [parent_place(place) for place in range(10)] == [-1, 0, 0, 1, 0, 1, 2, 3, 0, 1]


def test_ranks_hang_on_the_first_of_their_host() -> None:
    assert make_tree("aaaa") == [None, 0, 0, 1]
    assert make_tree("abcab") == [None, 0, 0, 0, 1]
    assert make_tree("abaaab") == [None, 0, 0, 0, 2, 1]


def test_models_turn_readings_forth_and_back_exactly() -> None:
    model = Model(origin=10**16, offset=-(3 * 10**16), drift=50 * 10**9)  # 50 ppm
    assert model.forth(10**16) == -(2 * 10**16)
    assert model.forth(10**16 + SECOND) == -(2 * 10**16) + SECOND + 50_000
    for t in (10**16, 10**16 + 1, 10**16 + 7 * SECOND, 10**16 - SECOND):
        assert abs(model.back(model.forth(t)) - t) <= 1


def test_models_merge_along_the_tree_as_clocks_do() -> None:
    inner, outer = Model(5 * 10**15, 10**16, 50 * 10**9), Model(10**16, -(10**13), -40 * 10**9)
    merged = inner.over(outer)
    for t in (5 * 10**15 + k * SECOND for k in (-3, 0, 1, 10)):
        assert abs(merged.forth(t) - outer.forth(inner.forth(t))) <= 2


def test_linear_clocks_on_an_even_network_are_known_to_the_nanosecond() -> None:
    hosts = Hosts(13, steady)
    history = looked_at(hosts)
    assert history.error_ns <= 40  # of 200 us of ping-pongs at 100 ppm, an offset tells the middle
    assert hosts.off(history.models) <= 40


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_lies_within_what_is_claimed(seed: int) -> None:
    hosts = Hosts(6, seed=seed)
    history = looked_at(hosts)
    assert hosts.off(history.models) <= history.error_ns < ERROR_NS
    begun = hosts.now
    hosts.now += 5 * SECOND  # a case
    history.add(hosts.batch(0.0), anew=False)
    for at in (begun, begun + 2 * SECOND, hosts.now):
        assert hosts.off(history.models, at) <= history.error_ns < ERROR_NS


def test_a_wide_bracket_says_little() -> None:
    assert bracket_offset([(100, 1000, 300), (400, 1270, 480), (500, 1400, 900)]) == (500, 830, 80)
    line = np.array([(t * 1000, 5 * t, 1 if t % 3 else 10**6) for t in range(12)], np.int64)
    line[::3, 1] += 40_000
    assert len(select_narrower(line)) == 6 and (select_narrower(line)[:, 2] == 1).all()
    assert (
        estimate_error(fit_model(line), line[1::3]) == 0
    )  # nor does it weigh much where it is kept
    assert estimate_error(fit_model(line), line) > 39_000


def test_a_drift_that_changes_is_seen_by_the_next_look() -> None:
    hosts = Hosts(4)
    history = looked_at(hosts)
    for _ in range(2):
        hosts.now += 3 * SECOND
        history.add(hosts.batch(0.0), anew=False)
    assert history.error_ns < ERROR_NS
    hosts.wander(3, 20_000)
    hosts.now += 3 * SECOND
    history.add(hosts.batch(0.0), anew=False)
    assert history.error_ns > ERROR_NS
    history.add(hosts.batch(SPREAD_S), anew=True)
    assert history.error_ns < ERROR_NS and hosts.off(history.models) < ERROR_NS


def batch_of(begin: int, offset: int, width: int) -> np.ndarray:
    """A batch of two clocks that do not drift, every offset alike."""
    points = np.zeros((2, PASSES, 3), np.int64)
    points[:, :, 0] = begin + np.arange(PASSES) * 1000
    points[0, :, 2] = 1
    points[1, :, 1:] = offset, width
    return points


def test_a_look_with_wider_brackets_than_those_before_is_seen_all_the_same() -> None:
    """A clock was set while a case ran, and the network has become slower."""
    history = History()
    history.add(batch_of(0, 0, 1000), anew=True)
    history.add(batch_of(SECOND, 0, 1000), anew=False)
    history.add(batch_of(SECOND + 10**6, 50_000, 4000), anew=False)
    assert history.error_ns > 10 * ERROR_NS


def test_the_limit_of_what_stays_hidden_is_that_of_the_slowest_look() -> None:
    history = History()
    history.add(batch_of(0, 0, 1000), anew=True)
    history.add(batch_of(SECOND, 0, 4000), anew=False)
    assert history.hidden_ns == 2000


def test_heavy_jitter_is_seen() -> None:
    history = looked_at(Hosts(4, lambda rng: 8_000 + rng.exponential(200_000)))
    assert history.error_ns > ERROR_NS


def test_an_uneven_path_is_not_seen_but_its_limit_is_known() -> None:
    hosts = Hosts(2, steady, back=lambda rng: 60_000.0)
    history = looked_at(hosts)
    assert history.error_ns < 100
    assert 24_000 < hosts.off(history.models) <= history.hidden_ns + 100


def test_errors_add_up_towards_the_root() -> None:
    def batch(off: int) -> np.ndarray:
        points = np.ones((4, PASSES, 3), np.int64)
        points[:, :, 0] = np.arange(PASSES) * 1000
        points[1:, :, 1] = 0
        points[1, 1::2, 1] = points[3, 1::2, 1] = (
            off  # what is held out; 3 hangs on 1, which hangs on 0
        )
        return points

    history = History()
    history.add(batch(700), anew=True)
    assert history.error_ns == 1400


def test_what_is_old_is_forgotten_but_the_last_two_looks() -> None:
    hosts, history = Hosts(2, steady), History()
    for wait in (0, 3, 3, 30, 1):
        hosts.now += wait * SECOND
        history.add(hosts.batch(0.0), anew=False)
    assert len(history._batches) == 2
    hosts.now += 60 * SECOND
    history.add(hosts.batch(0.0), anew=False)
    assert len(history._batches) == 2
    history.add(hosts.batch(0.0), anew=True)
    assert len(history._batches) == 1
