"""Model networks: what it costs to move a step's messages.

A message of l bytes keeps its sender's and its receiver's port busy for ``alpha + l * beta``. Ports
are full duplex: what a rank sends goes one after the other, so does what it receives, and both at
once. What is reduced where it arrives costs the receiver ``gamma`` a byte more. A wire inside the
network that messages share takes ``alpha`` and the sum of their bytes; reducing overlaps with
waiting for it. A step ends when the last rank and wire are done.

All this is linear in the length of a cell, so a step is a set of lines ``fixed + slope * cell`` of
which the highest counts (``list_cost_lines``): one pass over a schedule serves every size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.core.collectives import Collective, Hosts
from collbench.core.errors import UsageError
from collbench.core.text import format_duration

Ints = NDArray[np.int64]

Floats = NDArray[np.float64]


class Link(NamedTuple):
    """Seconds a message, seconds a byte on the wire, seconds a byte reduced."""

    alpha: float
    beta: float
    gamma: float


# Rates are nominal, per direction. Latencies are assumptions: sockets for Ethernet, RDMA between
# hosts for InfiniBand, a flag in peer memory for NVLink. So is what adds: a core at 8 GB/s behind
# Ethernet, a GPU at 1 TB/s behind the rest.
LINKS: dict[str, Link] = {
    "eth10": Link(20e-6, 8 / 10e9, 1 / 8e9),
    "eth25": Link(15e-6, 8 / 25e9, 1 / 8e9),
    "ib100": Link(2e-6, 8 / 100e9, 1 / 1e12),
    "ib200": Link(2e-6, 8 / 200e9, 1 / 1e12),
    "nvlink": Link(1e-6, 1 / 400e9, 1 / 1e12),
}

HOP = (
    0.2e-6  # seconds a message is held up by each switch or router beyond the first; an assumption
)


class Messages(NamedTuple):
    """One step's, at most one for each pair of different ranks: lengths, and how much of each is
    reduced, in cells."""

    src: Ints
    dst: Ints
    length: Floats
    reduced: Floats


@dataclass(frozen=True)
class Network:
    """Flat: every pair of ranks has the same ``link``, and nothing is shared but ports. Other
    networks differ in this:

    ``ends`` gives alpha, beta and gamma of messages, as numbers or arrays; ``wires`` the seconds
    each shared wire is busy for cells of length 1. ``link`` is the one between nodes, where there
    are some; by ``find_slowest`` algorithms choose their segments.
    """

    link: Link

    @property
    def node_ranks(self) -> int:
        """Consecutive ranks of a node; 0 where there are no nodes."""
        return 0

    def bound(self, row: Collective, n: int) -> tuple[float, float, float]:
        """Lower bounds of what a collective takes among n ranks: seconds, and seconds a byte that
        busbw counts for sending and for reducing. Shared wires are not considered."""
        least = row.bound(n)
        return (
            least.alpha * self.link.alpha,
            least.beta * self.link.beta,
            least.gamma * self.link.gamma,
        )

    def find_slowest(self, n: int, nbytes: float) -> Link:
        """The link on which a message of ``nbytes`` takes longest, of those between n ranks."""
        return self.link

    def ends(self, src: Ints, dst: Ints) -> tuple[Any, Any, Any]:
        """Alpha (s), beta and gamma (s a byte) of messages from ranks ``src`` to ranks ``dst``:
        numbers, or arrays with an item for each message."""
        return self.link

    def wires(self, messages: Messages) -> Floats:
        """Seconds that each shared wire is busy with ``messages`` if a cell has length 1; empty
        where no wire is shared."""
        return np.zeros(0)


def bound_on_hosts(
    row: Collective, hosts: Hosts, link: Link, inside: Link
) -> tuple[float, float, float]:
    """As Network.bound: the bound if all links were the best, with what must leave hosts passing
    their ports to the outside, one for each rank."""
    best = Network(Link(*map(min, inside, link))).bound(row, hosts.ranks)
    if hosts.number == 1:
        return best
    alpha, beta, gamma = best
    return max(alpha, link.alpha), max(beta, row.bound_outside(hosts) * link.beta), gamma


@dataclass(frozen=True)
class TwoLevel(Network):
    """Nodes of ``group`` consecutive ranks, with another link inside; each rank has its own port to
    the outside."""

    inside: Link
    group: int

    @property
    def node_ranks(self) -> int:
        return self.group

    def bound(self, row: Collective, n: int) -> tuple[float, float, float]:
        """The bound on nodes of ``group`` ranks, of which the last may have fewer."""
        number, rest = -(-n // self.group), n % self.group
        hosts = Hosts(n, number, rest or self.group, min(n, self.group))
        return bound_on_hosts(row, hosts, self.link, self.inside)

    def find_slowest(self, n: int, nbytes: float) -> Link:
        """The link inside where all ranks are one node's, else the slower of both."""
        if n <= self.group:
            return self.inside
        return max(self.link, self.inside, key=lambda link: link.alpha + nbytes * link.beta)

    def ends(self, src: Ints, dst: Ints) -> tuple[Any, Any, Any]:
        near = src // self.group == dst // self.group
        alpha, beta, gamma = (
            np.where(near, i, o) for i, o in zip(self.inside, self.link, strict=True)
        )
        return alpha, beta, gamma


@dataclass(frozen=True)
class Torus(Network):
    """Ranks on a grid, row after row, each wired to its neighbours; one dimension is a ring.

    Messages take the shortest way, the first dimension first, forwards if both ways are equally
    long.
    """

    shape: tuple[int, ...]

    def _ways(self, src: Ints, dst: Ints) -> Iterator[tuple[int, int, Ints, Ints]]:
        """For each dimension its size and stride, the coordinate at which messages enter it, and
        how many hops they go along it (negative: backwards)."""
        for axis, size in enumerate(self.shape):
            stride = math.prod(self.shape[axis + 1 :])
            enter = src // stride % size
            ahead = (dst // stride - enter) % size
            yield size, stride, enter, np.where(2 * ahead <= size, ahead, ahead - size)

    def ends(self, src: Ints, dst: Ints) -> tuple[Any, Any, Any]:
        hops = sum(np.abs(far) for *_, far in self._ways(src, dst))
        return self.link.alpha + HOP * (hops - 1), self.link.beta, self.link.gamma

    def wires(self, messages: Messages) -> Floats:
        at, loads = messages.src, []
        for size, stride, enter, far in self._ways(messages.src, messages.dst):
            line = at // (stride * size) * stride + at % stride
            leave = (enter + far) % size
            for begin, count in (
                (enter, far),
                (leave, -far),
            ):  # wires that point forwards, and those that point back
                on = count > 0
                first = (line * 2 * size + begin)[on]
                # along each line, laid out twice for those that wrap
                change = np.zeros(2 * math.prod(self.shape))
                np.add.at(change, first, messages.length[on])
                np.subtract.at(change, first + count[on], messages.length[on])
                busy = change.reshape(-1, 2 * size).cumsum(axis=1)
                loads.append((busy[:, :size] + busy[:, size:]).ravel())
            at = at + (leave - enter) * stride
        return self.link.beta * np.concatenate(loads, dtype=float)


@dataclass(frozen=True)
class FatTree(Network):
    """Leaf switches of ``leaf`` consecutive ranks below spines; the wires up from a leaf, over
    which traffic spreads evenly, are together as fast as its ranks' divided by
    ``oversubscription``."""

    leaf: int
    oversubscription: float

    def ends(self, src: Ints, dst: Ints) -> tuple[Any, Any, Any]:
        far = src // self.leaf != dst // self.leaf
        return self.link.alpha + 2 * HOP * far, self.link.beta, self.link.gamma

    def wires(self, messages: Messages) -> Floats:
        up, down = messages.src // self.leaf, messages.dst // self.leaf
        far = up != down
        loads = [np.bincount(side[far], messages.length[far]) for side in (up, down)]
        return (
            self.link.beta * self.oversubscription / self.leaf * np.concatenate(loads, dtype=float)
        )


FEW = 8  # ranks to a message above which most of them do nothing


def list_cost_lines(network: Network, n: int, messages: Messages) -> Floats:
    """The lines that bound a step's time, (k, 2): seconds, and seconds per length of a cell, of
    every line that is the highest at some length."""
    src, dst, length, reduced = messages
    alpha, beta, gamma = network.ends(src, dst)
    alphas = np.broadcast_to(alpha, src.shape)
    wires = network.wires(messages)
    wires = wires[wires > 0]
    if 0 < FEW * len(src) < n:  # the ranks that do something, by new numbers
        ranks, ends = np.unique(np.stack([src, dst]), return_inverse=True)
        (src, dst), n = ends.reshape(2, -1), len(ranks)
    adding = np.bincount(dst, reduced * gamma, n)
    fixed = [np.bincount(end, alphas, n) for end in (src, dst)]
    slope = [np.bincount(end, length * beta, n) + adding for end in (src, dst)]
    return _select_highest(
        np.concatenate([*fixed, np.full(len(wires), network.link.alpha)]),
        np.concatenate([*slope, wires]),
    )


def _select_highest(fixed: Floats, slope: Floats) -> Floats:
    if ((fixed == fixed.max()) & (slope == slope.max())).any():
        return np.array([[fixed.max(), slope.max()]])
    order = np.lexsort((-slope, -fixed))
    rising = slope[order]
    remaining = order[np.append(True, rising[1:] > np.maximum.accumulate(rising)[:-1])]
    return np.array([fixed[remaining], slope[remaining]]).T


def parse_network(text: str, n: int, link: Link, inside: Link) -> Network:
    """The network that ``text`` describes (``flat``, ``two-level:8``, ``ring``, ``torus:4x8``,
    ``fat-tree:16:2``) for n ranks. Raises UsageError."""
    kind, *settings = text.split(":")
    pattern, make = KINDS.get(kind, ("", None))
    match = re.fullmatch(pattern, ":".join(settings))
    if make is None or not match:
        hint = f"it is a link: --link {text}" if text in LINKS else GRAMMAR
        raise UsageError(f"--network: '{text}' is not a network", hint)
    network = make(n, link, inside, *match.groups())
    if isinstance(network, Torus) and math.prod(network.shape) != n:
        raise UsageError(
            f"--network {text} has {math.prod(network.shape)} places, not {n} as there are ranks",
            f"choose numbers whose product is {n}, or set -n",
        )
    return network


GRAMMAR = (
    "flat, ring, two-level:RANKS, torus:ROWSxCOLUMNS or fat-tree:RANKS:OVERSUBSCRIPTION (RANKS per"
    " node or leaf; OVERSUBSCRIPTION 1 or more)"
)

# how settings are written, and what is made of n, the link, the link inside nodes, and the settings
KINDS: dict[str, tuple[str, Callable[..., Network]]] = {
    "flat": ("", lambda n, link, inside: Network(link)),
    "two-level": (
        r"([1-9]\d{0,8})",
        lambda n, link, inside, group: TwoLevel(link, inside, int(group)),
    ),
    "ring": ("", lambda n, link, inside: Torus(link, (n,))),
    "torus": (
        r"([1-9]\d{0,8}(?:x[1-9]\d{0,8}){1,8})",
        lambda n, link, inside, shape: Torus(link, tuple(map(int, shape.split("x")))),
    ),
    "fat-tree": (
        r"([1-9]\d{0,8})(?::([1-9]\d{0,8}(?:\.\d{1,9})?))?",
        lambda n, link, inside, leaf, over: FatTree(link, int(leaf), float(over or 1)),
    ),
}

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12, "": 1.0}

BYTES = {
    f"{k}{unit}": scale * (1 if unit == "B" else 1 / 8)
    for k, scale in (("", 1.0), ("K", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    for unit in ("B", "b")
}

# a setting's field of Link, its units, and whether it is given as a rate instead of a time
SETTINGS: dict[str, tuple[str, dict[str, float], bool]] = {
    "alpha": ("alpha", SECONDS, False),
    "beta": ("beta", SECONDS, False),
    "gamma": ("gamma", SECONDS, False),
    "bandwidth": ("beta", BYTES, True),
    "adding": ("gamma", BYTES, True),
}

LINK_GRAMMAR = (
    f"one of {', '.join(LINKS)}, with changes as in ib200,alpha=3us; or alpha=2us,bandwidth=25GB (a"
    " second; Gb: bits), and adding=1TB for what a rank reduces a second"
)


def parse_link(text: str, option: str = "--link") -> Link:
    """A class of LINKS, or settings, or both: ``ib200``, ``alpha=2us,bandwidth=25GB``,
    ``ib200,alpha=3us``.

    Rates are 1000-based, as link rates are. Reducing costs nothing unless said. Raises UsageError.
    """
    first, *rest = text.split(",")
    values = LINKS[first]._asdict() if first in LINKS else {}
    for word in rest if values else text.split(","):
        key, _, amount = word.strip().partition("=")
        field, units, rate = SETTINGS.get(key, ("", {}, False))
        match = re.fullmatch(r"(\d*\.?\d+(?:e[+-]?\d+)?) ?(\D*?)(?:/s)?", amount)
        if not match or match[2] not in units or (rate and float(match[1]) == 0):
            raise UsageError(
                f"{option}: '{word.strip()}' is no link and no setting of one", LINK_GRAMMAR
            )
        value = float(match[1]) * units[match[2]]
        values[field] = 1 / value if rate else value
    missing = [name for name in ("alpha", "beta") if not 0 < values.get(name, 0.0) < math.inf]
    if missing:
        raise UsageError(f"{option}: '{text}' lacks {' and '.join(missing)} above 0", LINK_GRAMMAR)
    return Link(**{"gamma": 0.0, **values})


def describe_link(link: Link) -> str:
    """A link's three numbers, with units."""
    rates = [("GB/s on the wire", link.beta), ("GB/s for sums", link.gamma)]
    parts = [f"{1e-9 / seconds:.4g} {what}" for what, seconds in rates if seconds]
    return ", ".join([f"{format_duration(link.alpha * 1e9)} a message", *parts])
