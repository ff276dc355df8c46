"""Group testing: who is named, who never is, what it costs, and what is left open, on simulated
hosts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import mean

import pytest

from collbench.core.errors import UsageError
from collbench.core.groups import Pair
from collbench.features.health.blame import SURE
from collbench.features.health.locate import findings
from collbench.features.health.locate import search as locate
from collbench.features.health.locate.search import Group, Located, Rules

HEALTHY = 12.5  # GB/s
DEFAULTS = Rules()
Rate = Callable[[Group], float]


def ring(
    hosts: Mapping[int, float] = {},
    links: Mapping[Pair, float] = {},
    noise: float = 0.0,
    seed: int = 1,
) -> Rate:
    """What groups of hosts reach as rings, where some hosts and some links do only a share of what
    they should."""
    rng = random.Random(seed)

    def rate(group: Group) -> float:
        around = [tuple(sorted(pair)) for pair in zip(group, (*group[1:], group[0]), strict=True)]
        shares = [
            *(hosts.get(host, 1.0) for host in group),
            *(links.get(pair, 1.0) for pair in around),
        ]  # type: ignore[call-overload]
        return HEALTHY * min(shares) * rng.gauss(1.0, noise)

    return rate


def searched(n: int, rate: Rate, rules: Rules = DEFAULTS) -> tuple[Located, list[list[Group]]]:
    search, rounds = locate.start_search(n, rules), list[list[Group]]()
    try:
        rounds.append(next(search))
        while True:
            rounds.append(search.send([rate(group) for group in rounds[-1]]))
    except StopIteration as ended:
        return ended.value, rounds


def named(found: Located) -> set[Group]:
    return {culprit.members for culprit in found.culprits}


@pytest.mark.parametrize("n", [3, 4, 6, 8, 9, 17, 64, 232])
def test_every_single_host_is_found(n: int) -> None:
    for host in {0, 1, n // 2, n - 1}:
        found, _ = searched(n, ring({host: 0.8}))
        assert named(found) == {(host,)} and not found.open
        assert found.culprits[0].share == pytest.approx(0.8, rel=0.01)


@pytest.mark.parametrize("n", [3, 6, 9, 64, 232])
def test_where_all_are_well_nobody_is_named(n: int) -> None:
    found, rounds = searched(n, ring(noise=0.02))
    assert not found.culprits and not found.open
    assert found.tests == sum(map(len, rounds)) and found.rounds == len(rounds)


@pytest.mark.parametrize("n", [6, 9, 40, 232])
def test_two_at_once_one_much_slower(n: int) -> None:
    found, _ = searched(n, ring({1: 0.5, n - 2: 0.8}, noise=0.01))
    assert named(found) == {(1,), (n - 2,)} and not found.open


@pytest.mark.parametrize(
    ("n", "link"),
    [(4, (1, 3)), (6, (2, 3)), (8, (0, 7)), (40, (0, 1)), (232, (56, 57)), (232, (14, 15))],
)
def test_a_bad_link_is_no_bad_host(n: int, link: Pair) -> None:
    found, _ = searched(n, ring(links={link: 0.5}, noise=0.01))
    assert named(found) == {link} and not found.open


def test_five_of_232_within_80_tests() -> None:
    for seed in range(10):
        hosts = random.Random(seed).sample(range(232), 5)
        found, _ = searched(
            232, ring({host: 0.8 if host % 2 else 0.5 for host in hosts}, noise=0.02, seed=seed)
        )
        assert named(found) == {(host,) for host in hosts} and found.tests <= 80


def test_rounds_are_of_disjoint_groups_within_the_budget() -> None:
    for budget in (10, 16, 30, 80):
        found, rounds = searched(
            100, ring({3: 0.5, 50: 0.7, 99: 0.8}, noise=0.02), Rules(budget=budget)
        )
        assert sum(map(len, rounds)) == found.tests <= budget
        for groups in rounds:
            hosts = [host for group in groups for host in group]
            assert (
                len(set(hosts)) == len(hosts)
                and min(map(len, groups)) >= 2
                and set(hosts) <= set(range(100))
            )


def test_a_search_that_is_stopped_counts_what_was_measured() -> None:
    search = locate.start_search(100, DEFAULTS)
    groups = next(search)
    search.send([HEALTHY] * len(groups))
    with pytest.raises(StopIteration) as stopped:
        search.throw(locate.Spent())
    found = stopped.value.value
    assert (found.tests, found.rounds, len(found.open)) == (len(groups), 1, 100)


def test_a_spent_budget_leaves_open_who_was_not_cleared() -> None:
    found, _ = searched(232, ring({7: 0.5}), Rules(budget=8))
    assert not found.culprits and found.tests == 8 and 7 in found.open
    assert searched(232, ring({7: 0.5}), Rules(budget=3))[0].open == list(range(232))


@pytest.mark.parametrize(
    ("n", "link", "tests"),
    [
        (8, (0, 7), 28),  # all pairs, and none to confirm
        (8, (0, 7), 29),
        (4, (1, 3), 6),
        (12, (4, 8), 11),  # neighbours in the second screening only
        (12, (4, 8), 12),
    ],
)
def test_a_spent_budget_leaves_the_ends_of_a_link_open_that_was_slow(
    n: int, link: Pair, tests: int
) -> None:
    found, _ = searched(n, ring(links={link: 0.5}), Rules(budget=tests))
    assert (found.culprits, found.open) == ([], list(link))


@pytest.mark.parametrize("n", [8, 12])
def test_a_slow_link_is_cleared_by_no_budget(n: int) -> None:
    """Nor by any time, at whose end the search is stopped before a round."""
    link = (4, 8) if n > 8 else (0, 7)
    whole, _ = searched(n, ring(links={link: 0.5}))
    assert named(whole) == {link}
    for tests in range(1, whole.tests):
        found, _ = searched(n, ring(links={link: 0.5}), Rules(budget=tests))
        assert not found.culprits and set(link) & set(found.open)


def test_a_search_stopped_after_all_pairs_leaves_the_ends_of_a_slow_link_open() -> None:
    search, rate = locate.start_search(8, DEFAULTS), ring(links={(0, 7): 0.5})
    groups = next(search)
    while len(groups) > 1:
        groups = search.send([rate(group) for group in groups])
    with pytest.raises(StopIteration) as stopped:
        search.throw(locate.Spent())
    assert stopped.value.value.open == [0, 7]
    assert "not ruled out: a, h;" in findings.describe_outcome(stopped.value.value, "abcdefgh")


def test_one_odd_test_names_nobody() -> None:
    """Whatever single test of a healthy cluster is disturbed."""
    for odd in range(20):
        count = iter(range(10**6))
        found, _ = searched(
            232, lambda group, count=count, odd=odd: HEALTHY * (0.5 if next(count) == odd else 1.0)
        )  # type: ignore[misc]
        assert not found.culprits and not found.open


def test_who_was_slow_for_a_while_is_cleared() -> None:
    """Six hosts in five rounds of pairs; then the one in doubt twice more."""
    count = iter(range(10**6))
    found, rounds = searched(
        6, lambda group: HEALTHY * (0.5 if next(count) < 15 and 3 in group else 1.0)
    )
    assert not found.culprits and not found.open
    assert [len(groups) for groups in rounds] == [3] * 5 + [1, 1]


@pytest.mark.parametrize("odd", [{0, 1}, {0, 3}, {1, 3}])
def test_ends_of_a_link_that_was_slow_once_are_partners(odd: set[int]) -> None:
    """Of four hosts one is slow, and the link of two others was at first: nobody else is left to be
    measured with."""
    count = iter(range(10**6))

    def rate(group: Group) -> float:
        first = next(count) < 6
        return HEALTHY * (0.17 if 2 in group else 0.3 if first and odd == set(group) else 1.0)

    found, _ = searched(4, rate, Rules(tau=0.6))
    assert named(found) == {(2,)} and not found.open


def test_what_is_less_slow_than_tau_is_not_looked_at() -> None:
    found, rounds = searched(6, ring({3: 0.7}, {(0, 1): 0.6}), Rules(tau=0.5))
    assert not found.culprits and not found.open and len(rounds) == 5


def test_what_is_named_was_slow_with_other_partners_each_time() -> None:
    _, rounds = searched(64, ring({20: 0.5}))
    partners = [
        other
        for groups in rounds
        for group in groups
        if len(group) == 2 and 20 in group
        for other in group
    ]
    others = [other for other in partners if other != 20]
    assert len(others) >= locate.CONFIRMED and len(set(others)) == len(others)


def test_one_where_nothing_comes_is_named() -> None:
    found, _ = searched(6, ring({4: 0.0}))
    assert named(found) == {(4,)}


def test_of_two_none_can_be_told() -> None:
    with pytest.raises(UsageError, match="too few to search"):
        searched(2, ring())


def test_the_noisier_the_less_sure() -> None:
    calm, loud = (searched(232, ring({9: 0.5}, noise=noise))[0] for noise in (0.005, 0.07))
    assert calm.alpha == calm.beta == locate.UNLIKELY and calm.sure == pytest.approx(
        1 - calm.confirmed * 1e-4
    )
    assert loud.alpha > calm.alpha and loud.sure < calm.sure


def test_one_clear_fault_of_many_hosts_is_sure() -> None:
    """Only what was slow alone was confirmed, not each of the hosts."""
    for n in (101, 232, 1000):
        found, _ = searched(n, ring({9: 0.5}))
        assert named(found) == {(9,)} and found.confirmed == 1 and found.sure > SURE


@pytest.mark.parametrize("n", [6, 40])
def test_healthy_hosts_are_named_no_oftener_than_is_said(n: int) -> None:
    """One host is slow, and each test errs with a chance that is known: then the searches that name
    another are counted, by how many suspects they confirmed."""
    alpha, searches = 0.2, 2000
    wrong = Counter[int]()
    for seed in range(searches):
        rng = random.Random(seed)
        found, _ = searched(
            n, lambda group, rng=rng: 0.5 if 1 in group or rng.random() < alpha else 1.0
        )  # type: ignore[misc]
        if any(1 not in members for members in named(found)):
            wrong[found.confirmed] += 1
    assert wrong
    for most in range(1, max(wrong) + 1):
        share = sum(count for confirmed, count in wrong.items() if confirmed <= most) / searches
        assert share <= most * alpha ** (locate.CONFIRMED - 1)


@pytest.mark.parametrize("n", [6, 40])
@pytest.mark.parametrize("noise", [0.01, 0.03, 0.05, 0.07])
@pytest.mark.parametrize("faulty", [None, 1])
def test_false_alarm_rate_is_at_most_alpha(n: int, noise: float, faulty: int | None) -> None:
    """What a group reaches has a normal error. The chances that searches give, against what all
    their tests of healthy hosts came to, and whom they named."""
    searches, alphas, chances = 200, list[float](), list[float]()
    tests = slow = wrong = 0
    for seed in range(searches):
        rng = random.Random(seed)
        measured: list[float] = []

        def rate(group: Group, rng=rng, measured=measured) -> float:  # type: ignore[no-untyped-def]
            reached = HEALTHY * rng.gauss(1.0, noise)
            if faulty in group:
                return reached / 2
            measured.append(reached)
            return reached

        located, _ = searched(n, rate, Rules(seed=seed))
        tests += len(measured)
        slow += sum(reached < (1 - DEFAULTS.tau) * located.reference for reached in measured)
        wrong += any(faulty not in members for members in named(located))
        alphas.append(located.alpha)
        chances.append(1 - located.sure)
    assert slow / tests <= mean(alphas) and wrong / searches <= mean(chances)


def test_a_clear_fault_in_noise_of_two_percent_is_sure() -> None:
    for seed in range(20):
        located, _ = searched(232, ring({9: 0.5}, noise=0.02, seed=seed))
        assert named(located) == {(9,)} and located.sure > SURE


def test_findings_name_hosts_and_links() -> None:
    names = [f"h{host}" for host in range(40)]
    found, _ = searched(40, ring({5: 0.8}, {(20, 21): 0.5}))
    told = {finding.subject.kind: finding for finding in findings.make_findings(found, names)}
    assert (told["host"].subject.name, told["link"].subject.name) == ("h5", "h20 -> h21")
    assert told["host"].sure == found.sure and told["host"].evidence[0].value == pytest.approx(
        0.8 * HEALTHY
    )
    words = findings.describe_outcome(found, names)
    assert (
        "h5" in words
        and "h20 -> h21" in words
        and f"{found.tests} tests in {found.rounds} rounds" in words
        and f"(suspects tested again: {found.confirmed})" in words
    )
    words = findings.describe_outcome(searched(40, ring())[0], names)
    assert words.startswith("no slow host found") and "tested again" not in words


@pytest.mark.parametrize(
    ("n", "words"), [(6, "all 15 pairs in 5 rounds"), (232, "8 groups of up to 29, screened twice")]
)
def test_the_plan_says_what_it_will_cost(n: int, words: str) -> None:
    assert words in locate.describe_plan(n, Rules())
