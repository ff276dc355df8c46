"""Who makes a group slow: what to measure next, given what has been measured, until every host is
cleared or named.

Few hosts are measured pair by pair. Of many, disjoint groups are *screened* at once. A slow group
is *halved*: the first half alone, and if that is fine, the second; if both are, the two links
between them. A host that is left is measured with hosts that are known to be good, and named when
three such pairs in a row, each with another partner, were slow; a link when it was slow three times
and both its ends were fine without it. Groups are then made anew, with other neighbours, until
every host that has not been named was fine in two groups, or the budget is spent: then what is open
is said. Links that no group has are not looked at; `collbench pairs` does that.

A test is one group's measurement; groups of one round are disjoint and measured at once. Whether a
group is slow is judged by the fastest quarter of the first screening. All of it counts on fewer
faults than groups, and on tests that err independently: a well group is taken for slow with
probability ``alpha``, a faulty one for well with ``beta``.

What a search for culprits has come to, as findings and in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import suppress
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np

from collbench.core.errors import UsageError
from collbench.core.groups import Pair, count_turns, list_turn
from collbench.features.health.pairs import judgement as uniformity
from collbench.records import stats

Group = tuple[int, ...]

Search = Generator[
    list[Group], Sequence[float], "Located"
]  # yields rounds, is sent what each group reached

FEW = 8  # hosts up to which all pairs are measured

GROUPS = 8  # of a screening

CONFIRMED = 3  # slow tests that name a culprit

CLEARED = 2  # groups in which a host was fine

PASSES = 6

ITERATIONS, NEGLIGIBLE = 30, 1e-4  # at most so many; change of the lost share that ends them

UNLIKELY = 0.01  # no test is taken to err more seldom


class Rules(NamedTuple):
    """A group is slow below ``1 - tau`` of the reference; at most ``budget`` tests."""

    tau: float = 0.10
    budget: int = 80
    seed: int = 1


class Culprit(msgspec.Struct, frozen=True):
    """A host, or two with a bad link between them; ``share`` of the reference that it reached, in
    so many tests."""

    members: Group
    share: float
    tests: int


class Located(msgspec.Struct, frozen=True):
    """``open`` are hosts neither cleared nor named. ``alpha`` and ``beta`` (of a fault twice as
    deep as tau) are what the scatter of groups that were fine says, and not less than UNLIKELY;
    ``alpha`` is not less than the share of slow tests among hosts that were all cleared, either.
    ``reference`` is what the better of well groups reach. ``confirmed`` is how often tests were
    made to confirm a host or link.
    """

    culprits: list[Culprit]
    open: list[int]
    hosts: int
    tests: int
    rounds: int
    alpha: float
    beta: float
    reference: float
    confirmed: int = 0

    @property
    def sure(self) -> float:
        """1 less the chance that a healthy host or link is named: at most
        ``k * alpha ** (CONFIRMED - 1)`` for k suspects, by the union bound: confirming tests are
        made afresh."""
        return max(0.0, 1 - max(1, self.confirmed) * self.alpha ** (CONFIRMED - 1))

    @property
    def missed(self) -> float:
        """The chance that a host with a fault passed for healthy."""
        return float(self.beta**CLEARED)


class Spent(Exception):
    """The next round would cost more than there is left."""


class _State:
    """What is known: how often each host was fine, what was reached, what it has cost."""

    def __init__(self, n: int, rules: Rules) -> None:
        self.n, self.rules = n, rules
        self.fine: Counter[int] = Counter()
        self.groups: list[Group] = []
        self.rates: list[float] = []  # that these reached
        self.culprits: list[Culprit] = []
        self.suspects: set[int] = set()
        self.doubted: set[int] = set()  # hosts that a test was to clear when the search was ended
        self.tests = self.rounds = self.confirmed = 0
        self.reference = 0.0

    @property
    def named_hosts(self) -> set[int]:
        return {
            host
            for culprit in self.culprits
            if len(culprit.members) == 1
            for host in culprit.members
        }

    @property
    def links(self) -> set[Pair]:
        return {(min(c.members), max(c.members)) for c in self.culprits if len(c.members) == 2}

    def measured(self, groups: list[Group]) -> Generator[list[Group], Sequence[float], list[float]]:
        """A round: each group's share of the reference, which the first round makes."""
        if self.tests + len(groups) > self.rules.budget:
            raise Spent
        rates = list((yield groups))
        self.tests, self.rounds = self.tests + len(groups), self.rounds + 1
        self.reference = self.reference or float(np.quantile(rates, 0.75)) or stats.TINY
        self.groups += groups
        self.rates += rates
        return [rate / self.reference for rate in rates]

    def slow(self, share: float) -> bool:
        return share < 1 - self.rules.tau

    def clear(self, group: Sequence[int]) -> None:
        self.fine.update(group)

    def partner(self, host: int, had: frozenset[int | None], busy: set[int]) -> int | None:
        """The nearest good host that is free, by the order of hosts, which mostly is that of
        racks."""
        usable = set(self.fine) - had - busy - self.named_hosts - self.suspects - {host}
        usable -= {other for link in self.links if host in link for other in link}
        return min(usable, key=lambda other: (abs(other - host), other), default=None)

    def located(self) -> Located:
        """The result of the search so far."""
        shares = [rate / (self.reference or 1.0) for rate in self.rates]
        cut, deeper = (math.log(max(1 - k * self.rules.tau, stats.TINY)) for k in (1, 2))
        well = np.array([share for share in shares if not self.slow(share)] or [1.0])
        middle, spread = estimate_scatter(np.log(well), cut)
        alpha, beta = (
            NormalDist().cdf(z / spread) for z in (cut - middle, deeper - (cut - middle))
        )
        cleared = {host for host, times in self.fine.items() if times >= CLEARED} - self.doubted
        unknown = sorted(set(range(self.n)) - cleared - self.named_hosts)
        healthy = cleared.difference(*(culprit.members for culprit in self.culprits))
        among_healthy = [
            self.slow(share)
            for group, share in zip(self.groups, shares, strict=True)
            if healthy.issuperset(group)
        ]
        alpha = max(alpha, sum(among_healthy) / max(1, len(among_healthy)))
        return Located(
            self.culprits,
            unknown,
            self.n,
            self.tests,
            self.rounds,
            max(alpha, UNLIKELY),
            max(beta, UNLIKELY),
            self.reference,
            self.confirmed,
        )


def estimate_scatter(logs: stats.Floats, cut: float) -> tuple[float, float]:
    """The median and the standard deviation of the bandwidth of healthy groups, by ``logs``, the
    logarithms of those that are not below ``cut``. Fits a normal distribution truncated at ``cut``,
    by fixed-point iteration of its median and the share below the cut. The deviation is that of the
    upper half, which no cut and no fault changes, and is larger with fewer tests."""
    lost = 0.0
    for _ in range(ITERATIONS):
        middle = float(np.quantile(logs, max(0.0, (0.5 - lost) / (1 - lost))))
        above = logs[logs >= middle] - middle
        deviation = math.sqrt(above @ above / len(above)) * (1 + 1 / len(above))
        spread = max(deviation, uniformity.NOISE)
        before, lost = lost, NormalDist().cdf((cut - middle) / spread)
        if abs(lost - before) < NEGLIGIBLE:
            break
    return middle, spread


def start_search(n: int, rules: Rules) -> Search:
    """The whole search, for hosts numbered from 0. Raises UsageError for two: neither could be
    told from the other. It ends with what it has found where Spent is thrown in."""
    if n < 3:
        raise UsageError(
            f"{n} hosts are too few to search",
            "take three or more: a third shows which of two is slow",
        )
    state = _State(n, rules)
    with suppress(Spent):
        yield from _by_pairs(state) if n <= FEW else _by_groups(state)
    return state.located()


def describe_plan(n: int, rules: Rules, noun: str = "hosts") -> str:
    """A sentence, before anything is done, about what will be done to n hosts, or to what ``noun``
    says."""
    if n <= FEW:
        pairs = n * (n - 1) // 2
        return (
            f"{n} {noun}: all {pairs} pairs in {count_turns(n)} rounds, each suspect confirmed"
            " twice "
            f"(a test each); at most {rules.budget} tests"
        )
    group_size = -(-n // _count_groups(n))
    most = 2 * math.ceil(math.log2(group_size)) + CONFIRMED - 1
    fault_count = max(0, rules.budget - 2 * _count_groups(n)) // most
    return (
        f"{n} {noun}: {_count_groups(n)} groups of up to {group_size}, screened twice (a round and"
        f" {_count_groups(n)}"
        f" tests each); each fault takes at most {most} tests more, all at once; {rules.budget} are"
        f" enough for {fault_count} faults or more"
    )


def _count_groups(n: int) -> int:
    """The number of groups that a screening has, each of three hosts at least."""
    return max(3, min(GROUPS, n // 3))


def _by_pairs(state: _State) -> Generator[list[Group], Sequence[float], None]:
    """Measure all pairs of hosts, round by round, and blame the hosts and links that are slow."""
    rates: dict[Pair, float] = {}
    for number in range(count_turns(state.n)):
        pairs = list_turn(state.n, number)
        shares = yield from state.measured(list(pairs))
        rates.update(zip(pairs, shares, strict=True))
    blamed = uniformity.blame_ends(rates)
    best = uniformity.find_reach(rates)
    state.reference *= float(
        np.median([reached for host, reached in best.items() if host not in blamed.ends] or [1.0])
    )
    ends = {host: share for host, share in blamed.ends.items() if state.slow(share)}
    links = {
        link: share
        for link, share in blamed.links.items()
        if state.slow(share) and not set(link) & set(ends)
    }
    state.suspects = {*ends, *(host for link in links for host in link)}
    for host in set(range(state.n)) - set(ends):
        state.fine[host] = CLEARED
    yield from _search_together(
        state,
        [
            *(_settle_host(state, host, share) for host, share in ends.items()),
            *(_confirm_culprit(state, link, [share]) for link, share in links.items()),
        ],
    )


def _by_groups(state: _State) -> Generator[list[Group], Sequence[float], None]:
    """Measure the hosts in groups, and search within the groups that are slow until each host is
    cleared or blamed."""
    for number in range(PASSES):
        waiting = [
            h for h in range(state.n) if state.fine[h] < CLEARED and h not in state.named_hosts
        ]
        if not waiting:
            return
        state.suspects = set()
        groups = _make_screening(state, waiting, number)
        shares = yield from state.measured(groups)
        slow = []
        for group, share in zip(groups, shares, strict=True):
            if state.slow(share):
                slow.append(group)
            else:
                state.clear(group)
        state.suspects = {host for group in slow for host in group if not state.fine[host]}
        yield from _search_together(state, [_narrow_group(state, group) for group in slow])


def _make_screening(state: _State, hosts: list[int], number: int) -> list[Group]:
    """Groups of neighbours first, then of others; none has both ends of a link that is known to be
    bad. Single ones are joined by good hosts."""
    if number == 1:
        count = _count_groups(len(hosts)) if len(hosts) > FEW else 1
        hosts = [host for start in range(count) for host in hosts[start::count]]
    elif number:
        hosts = np.random.default_rng([state.rules.seed, number]).permutation(hosts).tolist()
    count = _count_groups(len(hosts)) if len(hosts) > FEW else 1
    groups = [list(map(int, part)) for part in np.array_split(np.array(hosts), count)]
    for a, b in state.links:
        for group in groups:
            if a in group and b in group:
                group.remove(b)
    for group in groups:
        while (
            len(group) < 2
            and (other := state.partner(group[0], frozenset(), {h for g in groups for h in g}))
            is not None
        ):
            group.append(other)
    return [tuple(group) for group in groups if len(group) > 1]


class _Ask(NamedTuple):
    """A test that one line of search waits for; ``partner`` asks for a good host, none of
    ``had``. Until it is made the hosts of ``group`` and ``others`` are in doubt."""

    group: Group
    partner: bool = False
    had: frozenset[int | None] = frozenset()
    others: Group = ()


class _Told(NamedTuple):
    share: float
    partner: int | None


Line = Generator[_Ask, _Told, Culprit | None]


def _narrow_group(state: _State, group: Group) -> Line:
    """Searches a slow group for its culprit, if it has one; what is not looked at waits for the
    next screening. Partners are from elsewhere: a bad link may be within."""
    within = frozenset(group)
    while len(group) > 1:
        first, second = group[: (len(group) + 1) // 2], group[(len(group) + 1) // 2 :]
        for half, others in ((first, second), (second, ())):
            answer = yield _Ask(half, len(half) == 1, within, others)
            if state.slow(answer.share):
                if len(half) == 1:
                    return (
                        yield from _confirm_culprit(
                            state, half, [answer.share], within | {answer.partner}
                        )
                    )
                group = half
                break
            state.clear(half)
            state.suspects -= set(half)
        else:
            links = sorted({(first[-1], second[0]), (second[-1], first[0])})
            for link in links:
                answer = yield _Ask(link, others=links[-1])
                if state.slow(answer.share):
                    return (yield from _confirm_culprit(state, link, [answer.share]))
            return None
    return None


def _confirm_culprit(
    state: _State, group: Group, shares: list[float], had: frozenset[int | None] = frozenset()
) -> Line:
    """A host with other partners each time, or a link; None as soon as one test is fine."""
    state.confirmed += 1
    while len(shares) < CONFIRMED:
        answer = yield _Ask(group, len(group) == 1, had)
        if not state.slow(answer.share):
            return None
        shares.append(answer.share)
        had |= {answer.partner}
    return Culprit(group, float(np.median(shares)), len(shares))


def _settle_host(state: _State, host: int, share: float) -> Line:
    """Confirms a host, as _confirm_culprit does; where a test was fine another is made, and if that
    is fine, too, the host is healthy."""
    culprit = yield from _confirm_culprit(state, (host,), [share])
    if culprit is None:
        state.clear((host,))
        answer = yield _Ask((host,), partner=True)
        if not state.slow(answer.share):
            state.clear((host,))
    return culprit


def _search_together(
    state: _State, lines: list[Line]
) -> Generator[list[Group], Sequence[float], None]:
    """Run all lines of search side by side: groups that lines wait for are measured in one round if
    they are disjoint."""
    waiting = [(line, ask) for line in lines if (ask := next(line, None))]
    while waiting:
        round_: list[tuple[Line, _Ask, Group, int | None]] = []
        later = []
        busy = {host for _, ask in waiting for host in ask.group}
        tested: set[int] = set()
        for line, ask in waiting:
            other = state.partner(ask.group[0], ask.had, busy | tested) if ask.partner else None
            if (ask.partner and other is None) or tested & set(ask.group):
                later.append((line, ask))
                continue
            group = ask.group if other is None else (*ask.group, other)
            tested |= set(group)
            round_.append((line, ask, group, other))
        if not round_:
            return  # no host is known to be good, and none can be told from another
        try:
            shares = yield from state.measured([group for _, _, group, _ in round_])
        except Spent:
            state.doubted = {host for _, ask in waiting for host in (*ask.group, *ask.others)}
            raise
        for (line, ask, _, other), share in zip(round_, shares, strict=True):
            try:
                later.append((line, line.send(_Told(share, other))))
            except StopIteration as ended:
                # a link's ends are fine without it
                state.suspects -= set() if ask.partner else set(ask.group)
                if ended.value:
                    state.culprits.append(ended.value)
        waiting = later
