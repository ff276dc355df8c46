"""Model networks against plain loops over single messages, and the words that describe them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from collbench.core import algorithms, simulate
from collbench.core import network as networks
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.network import HOP, LINKS, FatTree, Link, Messages, Network, Torus, TwoLevel

LINK = Link(alpha=3e-6, beta=2e-9, gamma=5e-10)
INSIDE = Link(alpha=1e-6, beta=1e-10, gamma=4e-10)
NETWORKS = [
    (Network(LINK), 12),
    (TwoLevel(LINK, INSIDE, 4), 12),
    (TwoLevel(LINK, INSIDE, 5), 12),
    (Torus(LINK, (12,)), 12),
    (Torus(LINK, (5,)), 5),
    (Torus(LINK, (3, 4)), 12),
    (Torus(LINK, (2, 3, 4)), 24),
    (FatTree(LINK, 4, 2.0), 12),
    (FatTree(LINK, 5, 1.0), 12),
]


def some(n: int, seed: int) -> Messages:
    rng = np.random.default_rng(seed)
    pairs = [pair for pair in itertools.permutations(range(n), 2) if rng.random() < 0.4]
    src, dst = np.array(pairs).T
    length = rng.integers(1, 9, len(pairs)).astype(float)
    return Messages(src, dst, length, length * (rng.random(len(pairs)) < 0.5))


def route(network: Torus, src: int, dst: int) -> list[tuple[int, int, int]]:
    """Wires as (node, dimension, direction), one hop after the other."""
    at, to = (list(np.unravel_index(rank, network.shape)) for rank in (src, dst))
    wires = []
    for place, size in enumerate(network.shape):
        ahead = (to[place] - at[place]) % size
        way, hops = (1, ahead) if 2 * ahead <= size else (-1, size - ahead)
        for _ in range(hops):
            wires.append((int(np.ravel_multi_index(at, network.shape)), place, way))
            at[place] = (at[place] + way) % size
    assert at == to
    return wires


def path(network: Network, src: int, dst: int) -> tuple[Link, list[tuple[object, float]]]:
    """What a message costs at its ends, and the shared wires it takes, each with seconds a byte."""
    if isinstance(network, TwoLevel):
        return (
            network.inside if src // network.group == dst // network.group else network.link
        ), []
    if isinstance(network, Torus):
        wires = route(network, src, dst)
        return LINK._replace(alpha=LINK.alpha + HOP * (len(wires) - 1)), [
            (wire, LINK.beta) for wire in wires
        ]
    if isinstance(network, FatTree) and src // network.leaf != dst // network.leaf:
        beta = LINK.beta * network.oversubscription / network.leaf
        wires = [("up", src // network.leaf), ("down", dst // network.leaf)]
        return LINK._replace(alpha=LINK.alpha + 2 * HOP), [(wire, beta) for wire in wires]
    return LINK, []


def plainly(network: Network, n: int, messages: Messages, cell: float) -> float:
    """Seconds of a step, message by message."""
    out, into, wires = Counter(), Counter(), Counter()
    for src, dst, length, reduced in zip(*(field.tolist() for field in messages), strict=True):
        link, taken = path(network, src, dst)
        out[src] += link.alpha + length * cell * link.beta
        into[dst] += link.alpha + length * cell * link.beta
        into["adds", dst] += reduced * cell * link.gamma
        for wire, beta in taken:
            wires[wire] += length * cell * beta
    ranks = [max(out[rank], into[rank]) + into["adds", rank] for rank in range(n)]
    return max(*ranks, *(LINK.alpha + busy for busy in wires.values()), 0.0)


@pytest.mark.parametrize(("network", "n"), NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_a_step_costs_what_its_messages_cost_one_by_one(
    network: Network, n: int, seed: int
) -> None:
    messages = some(n, seed)
    found = networks.list_cost_lines(network, n, messages)
    for cell in (0.0, 1.0, 100.0, 1e4, 1e7):
        assert (found[:, 0] + found[:, 1] * cell).max() == pytest.approx(
            plainly(network, n, messages, cell), rel=1e-12
        )


def test_only_lines_that_are_highest_somewhere_are_kept() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        lines = rng.integers(0, 6, (rng.integers(1, 9), 2)).astype(float)
        kept = networks._select_highest(*lines.T)
        assert len(kept) <= len(lines)
        for x in (0.0, 0.3, 1.0, 7.0, 1e3):
            assert (kept @ [1, x]).max() == (lines @ [1, x]).max()
        assert len({tuple(line) for line in kept.tolist()}) == len(kept)


def test_without_messages_nothing_takes_time() -> None:
    nothing = np.zeros(0, np.int64)
    for network, n in NETWORKS:
        messages = Messages(nothing, nothing, np.zeros(0), np.zeros(0))
        assert networks.list_cost_lines(network, n, messages).max() == 0


@pytest.mark.parametrize("n", [4, 7, 16])
def test_neighbours_on_a_ring_are_as_near_as_on_a_flat_network(n: int) -> None:
    schedule = algorithms.find_variant("all_reduce", "ring").schedule(n)
    flat, ring = (
        simulate.cost_schedule(schedule, network).seconds(1e6)
        for network in (Network(LINK), Torus(LINK, (n,)))
    )
    assert ring == pytest.approx(flat, rel=1e-12)


def test_far_partners_share_the_wires_of_a_ring() -> None:
    """Recursive doubling at distance 4 among 8: every rank sends forwards, 4 messages on each
    wire."""
    schedule = algorithms.find_variant("all_reduce", "recursive_doubling").schedule(8)
    on_ring = simulate.cost_schedule(schedule, Torus(Link(0, 1, 0), (8,))).seconds(1)
    assert on_ring == pytest.approx(1 + 2 + 4)
    swing = algorithms.find_variant("all_reduce", "swing_latency").schedule(8)
    assert simulate.cost_schedule(swing, Torus(Link(0, 1, 0), (8,))).seconds(1) < on_ring


@pytest.mark.parametrize(("nodes", "group"), [(2, 2), (3, 4), (8, 8), (5, 3)])
def test_hierarchical_meets_its_closed_form_on_two_levels(nodes: int, group: int) -> None:
    n, size = nodes * group, 1e6
    schedule = algorithms.find_variant("all_reduce", f"hierarchical:group={group}").schedule(n)
    rounds = 2 * (group - 1) * INSIDE.alpha + 2 * (nodes - 1) * LINK.alpha
    wire = 2 * (group - 1) / group * INSIDE.beta + 2 * (nodes - 1) / n * LINK.beta
    adding = (group - 1) / group * INSIDE.gamma + (nodes - 1) / n * LINK.gamma
    found = simulate.cost_schedule(schedule, TwoLevel(LINK, INSIDE, group)).seconds(size)
    assert found == pytest.approx(rounds + size * (wire + adding), rel=1e-12)


@pytest.mark.parametrize("name", ["chain", "double_tree"])
@pytest.mark.parametrize(
    ("network", "slowest"),
    [
        (TwoLevel(LINK, INSIDE, 16), INSIDE),  # all ranks in one node
        (TwoLevel(LINK, INSIDE, 8), LINK),
        (TwoLevel(INSIDE, LINK, 8), LINK),
    ],
    ids=["one-node", "outside", "inside"],
)
def test_segments_suit_the_slowest_link_that_messages_take(
    name: str, network: TwoLevel, slowest: Link
) -> None:
    variant = algorithms.find_variant("broadcast", name)
    suited = simulate.Predictor(variant, Network(slowest), 16).schedule(1e6)
    assert simulate.Predictor(variant, network, 16).schedule(1e6).name == suited.name


def test_an_oversubscribed_tree_slows_what_leaves_the_leaf() -> None:
    # one message leaves each leaf of 4
    schedule = algorithms.find_variant("sendrecv", "direct").schedule(8)
    wire = Link(0, 1, 0)
    assert simulate.cost_schedule(schedule, FatTree(wire, 4, 1.0)).seconds(1) == pytest.approx(1)
    assert simulate.cost_schedule(schedule, FatTree(wire, 4, 8.0)).seconds(1) == pytest.approx(2)


def test_bounds_hold_on_every_network() -> None:
    for network, n in NETWORKS:
        for algorithm in algorithms.list_catalogue().values():
            variant = algorithms.Variant(algorithm)
            if variant.refuse(n):
                continue
            view = simulate.forecast_variants(
                COLLECTIVES[algorithm.collective], n, network, [variant], [1]
            )
            for size in (0.0, 1e6):
                (taken,) = view.seconds(size).values()
                assert taken >= view.bound(size) * (1 - 1e-9), (
                    network,
                    algorithm.collective,
                    algorithm.name,
                    size,
                )


@pytest.mark.parametrize(
    ("collective", "n", "group", "share"),
    [
        ("all_to_all", 64, 8, 56 / 64),  # what leaves the node passes its rank's own port
        ("all_to_allv", 64, 8, 56 / 63),  # of what busbw counts: a rank's own block is no part
        ("sendrecv", 64, 8, 1.0),  # of the last rank of a node
        ("all_gather", 64, 8, 7 / 8 / 8),  # through all ports of a node
        ("scatter", 9, 4, 5 / 9 / 4),  # three nodes, one of a single rank
        ("broadcast", 64, 8, 1 / 8),
        ("all_reduce", 64, 8, 14 / 64),
        ("all_reduce", 9, 8, 1.0),  # the sum of all others has one port to come in by
        ("all_reduce", 12, 8, 1 / 4),
        ("all_gather", 9, 8, 8 / 9),
        ("reduce", 9, 8, 1.0),
        ("gather", 12, 8, 1 / 12),  # each rank's own block, out of the smaller node
    ],
)
def test_what_must_leave_a_node_bounds_a_collective(
    collective: str, n: int, group: int, share: float
) -> None:
    network = TwoLevel(LINK._replace(beta=1.0), INSIDE._replace(beta=1e-9), group)
    _, beta, _ = network.bound(COLLECTIVES[collective], n)
    assert beta == pytest.approx(share)


def test_the_bound_of_a_size_is_that_of_what_is_moved() -> None:
    assert COLLECTIVES["all_to_allv"].bound_by_size(4) == (2, 0.75, 0)
    assert COLLECTIVES["all_to_all"].bound_by_size(4) == COLLECTIVES["all_to_all"].bound(4)
    for n in (2, 4, 7):
        costs = simulate.count_costs(algorithms.find_variant("all_to_allv", "pairwise").schedule(n))
        assert COLLECTIVES["all_to_allv"].bound_by_size(n).beta <= costs.B + 1e-12


def test_words_for_links() -> None:
    assert networks.parse_link("ib200") == LINKS["ib200"]
    assert LINKS["ib200"].beta == 1 / 25e9
    assert networks.parse_link("ib200,alpha=5us") == pytest.approx(
        LINKS["ib200"]._replace(alpha=5e-6)
    )
    for text in (
        "alpha=2us,bandwidth=25GB",
        "alpha=2e-6,bandwidth=200Gb/s",
        "alpha=2000ns, beta=0.04ns",
    ):
        assert networks.parse_link(text) == pytest.approx(Link(2e-6, 4e-11, 0), rel=1e-12)
    assert networks.parse_link("alpha=1,beta=1,adding=2KB").gamma == 1 / 2000
    assert networks.parse_link("alpha=1,beta=1,gamma=3ns").gamma == pytest.approx(3e-9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "alpha=2us",
        "bandwidth=3GB",
        "ib200,bandwith=3",
        "alpha=2km,beta=1",
        "alpha=-1,beta=1",
        "alpha=1,bandwidth=0",
        "ib200,",
        "alpha=1us,bandwidth=3us",
        "alpha=.us,beta=1",
        "alpha=0,beta=1",
        "alpha=1e400,beta=1",
    ],
)
def test_errors_about_links_say_what_can_be_said(text: str) -> None:
    with pytest.raises(UsageError, match="--inside") as caught:
        networks.parse_link(text, "--inside")
    assert "alpha=2us,bandwidth=25GB" in caught.value.hint


def test_words_for_networks() -> None:
    known = {
        "flat": Network(LINK),
        "ring": Torus(LINK, (32,)),
        "torus:4x8": Torus(LINK, (4, 8)),
        "torus:2x4x4": Torus(LINK, (2, 4, 4)),
        "two-level:8": TwoLevel(LINK, INSIDE, 8),
        "fat-tree:16": FatTree(LINK, 16, 1),
        "fat-tree:16:2.5": FatTree(LINK, 16, 2.5),
    }
    for text, network in known.items():
        assert networks.parse_network(text, 32, LINK, INSIDE) == network


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("moon", "not a network"),
        ("flat:2", "not a network"),
        ("torus", "not a network"),
        ("torus:4", "not a network"),
        ("two-level:0", "not a network"),
        ("fat-tree:x", "not a network"),
        ("fat-tree:4:0", "not a network"),
        ("fat-tree:4:0.5", "not a network"),
        ("torus:3x4", "12 places, not 32"),
    ],
)
def test_errors_about_networks(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        networks.parse_network(text, 32, LINK, INSIDE)
    assert caught.value.hint


def test_the_classes_are_the_rates_they_are_named_after() -> None:
    rates = {"eth10": 10, "eth25": 25, "ib100": 100, "ib200": 200, "nvlink": 3200}
    assert {name: round(8e-9 / link.beta) for name, link in LINKS.items()} == rates
    assert all(link.alpha > 0 and math.isfinite(link.gamma) for link in LINKS.values())
