"""What a schedule costs: rounds and bytes as exact fractions, and seconds on a model network.

Schedules are read as streams and equal steps that follow each other are costed once, so that
thousands of ranks take seconds. Sizes are those of ``collectives``: the whole for the divided
collectives, else a rank's buffer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from collbench.core.algorithms import Variant
from collbench.core.collectives import Collective
from collbench.core.errors import CannotRun
from collbench.core.network import Floats, Messages, Network, list_cost_lines
from collbench.core.schedule import Moves, Schedule


class Counts(NamedTuple):
    """Multiples of the model's terms, exact: rounds A, and as multiples of the size the bytes B
    that pass the busiest port and the bytes G reduced, summed over rounds, and the bytes that the
    busiest rank sends in all.

    A step counts as many rounds as the busiest rank has peers to send to or to receive from. Where
    all ranks do alike, the time on a flat network is ``A * alpha + size * (B * beta + G * gamma)``;
    elsewhere it is at most this.
    """

    A: Fraction
    B: Fraction
    G: Fraction
    sent: Fraction


def count_costs(schedule: Schedule) -> Counts:
    """A, B, G (the factors of alpha, beta, gamma) and the bytes sent, in one pass over the
    schedule."""
    n, unit = schedule.n, cell_share(schedule)
    rounds = most = reduced = 0
    sent = np.zeros(n)
    for messages, times in list_step_messages(schedule):
        ends = messages.src, messages.dst
        out, into = (np.bincount(end, messages.length, n) for end in ends)
        rounds += times * max(int(np.bincount(end, minlength=n).max()) for end in ends)
        most += times * int(max(out.max(), into.max()))
        reduced += times * int(np.bincount(messages.dst, messages.reduced, n).max())
        sent += times * out
    return Counts(Fraction(rounds), most * unit, reduced * unit, int(sent.max()) * unit)


def count_traffic(schedule: Schedule) -> Fraction:
    """Bytes that all ranks send together, as a multiple of the size."""
    sent = sum(times * round(float(m.length.sum())) for m, times in list_step_messages(schedule))
    return sent * cell_share(schedule)


def cell_share(schedule: Schedule) -> Fraction:
    """A cell's part of the size; 0 where there is no data."""
    return Fraction(schedule.has_data, schedule.cells * (schedule.n if schedule.row.total else 1))


def list_step_messages(schedule: Schedule, lengths: Any = None) -> Iterator[tuple[Messages, int]]:
    """The messages of each step, with how many steps have the same: steps in a row, or in turns
    with another.

    All cells have length 1 unless ``lengths`` (ranks, cells) says otherwise. A step without
    messages is left out.
    """
    recent: deque[_Steps] = deque()
    for moves in schedule.steps():
        fields, size = [moves.reduce, moves.src, moves.dst], len(moves)
        # by value, since nothing forbids a generator to reuse its arrays; which cells move matters
        # to uneven ones only
        alike = (s for s in reversed(recent) if s.size == size and _are_equal(fields, s.fields))
        if lengths is None and (steps := next(alike, None)):
            steps.times += 1
            continue
        if len(recent) == 2:
            yield from recent.popleft().list_messages()
        messages = _make_messages(schedule.n, moves, size, lengths)
        recent.append(_Steps([*map(_keep_field, fields)], size, messages))
    for steps in recent:
        yield from steps.list_messages()


@dataclass
class _Steps:
    """Steps whose messages are the same: their fields, number of moves and messages."""

    fields: list[Any]
    size: int
    messages: Messages
    times: int = 1

    def list_messages(self) -> Iterator[tuple[Messages, int]]:
        if len(self.messages.src):
            yield self.messages, self.times


def _keep_field(field: Any) -> Any:
    """The field, or a copy where somebody could change it: an array, or what it is a view of."""
    array = field
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return np.array(field)
        array = array.base
    return field


def _are_equal(fields: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Whether fields hold what was saved of others (_keep_field). A ring's steps share arrays, so
    that a million ranks need not be compared one by one."""
    return all(a is b or np.array_equal(a, b) for a, b in zip(fields, saved, strict=True))


def _make_messages(n: int, moves: Moves, size: int, lengths: Any) -> Messages:
    """The messages of a step, one for each pair of different ranks. Cells are ``lengths`` (ranks,
    cells) long, or 1 where that is None and all pairs move ``size`` cells together."""
    if lengths is None:
        src, dst, reduce = (
            f.ravel() for f in np.broadcast_arrays(moves.src, moves.dst, moves.reduce)
        )
        # whatever else broadcasts repeats each pair equally often
        length: Any = np.full(len(src), size / max(1, len(src)))
    else:
        src, dst, chunk, _, reduce = moves.arrays()
        length = np.asarray(lengths, float)[src, chunk]
    sent = (src != dst) & (length > 0)
    src, dst, length, reduced = src[sent], dst[sent], length[sent], (length * reduce)[sent]
    pairs = src * n + dst
    if (np.diff(pairs) <= 0).any() and all(np.bincount(end).max() > 1 for end in (src, dst)):
        pairs, where = np.unique(pairs, return_inverse=True)
        src, dst = np.divmod(pairs, n)
        length, reduced = (np.bincount(where, weights) for weights in (length, reduced))
    return Messages(src, dst, length, reduced)


class Cost(NamedTuple):
    """Time as a function of size: for each of ``pieces`` the highest of its ``list_cost_lines``,
    times how often it happens.

    ``share`` is the length of a cell for a size of 1.
    """

    share: float
    pieces: list[tuple[Floats, int]]

    def seconds(self, nbytes: float) -> float:
        """Seconds for a message of ``nbytes``."""
        cell = self.share * nbytes
        return sum(
            times * float((lines[:, 0] + lines[:, 1] * cell).max()) for lines, times in self.pieces
        )


def cost_schedule(schedule: Schedule, network: Network, lengths: Any = None) -> Cost:
    """The cost of a schedule on a network, as lines over the size. ``lengths`` (ranks, cells) gives
    cells unequal lengths, of which sizes are multiples."""
    pieces: dict[bytes, tuple[Floats, int]] = {}
    for messages, times in list_step_messages(schedule, lengths):
        lines = list_cost_lines(network, schedule.n, messages)
        key = lines.tobytes()
        pieces[key] = lines, pieces.get(key, (lines, 0))[1] + times
    return Cost(float(cell_share(schedule)) if lengths is None else 1.0, list(pieces.values()))


class Predictor:
    """Seconds of one algorithm at any size. Its schedule is costed once for each choice of
    segments."""

    def __init__(self, variant: Variant, network: Network, n: int, root: int = 0) -> None:
        self.variant, self.network, self.n, self.root = variant, network, n, root
        self._costs: dict[tuple[tuple[str, int], ...], Cost] = {}

    def schedule(self, nbytes: float) -> Schedule:
        """The schedule that runs at this size, with the segments that suit the network unless they
        were given."""
        return self.variant.schedule(self.n, self.root, self._ratio(nbytes))

    def seconds(self, nbytes: float) -> float:
        """Seconds for a message of ``nbytes``, with the segments that suit it."""
        chosen = self._chosen(nbytes)
        if chosen not in self._costs:
            self._costs[chosen] = cost_schedule(self.schedule(nbytes), self.network)
        return self._costs[chosen].seconds(nbytes)

    def check(self, sizes: Sequence[float], most: float = 60.0) -> None:
        """Raises CannotRun where ``sizes`` would take more than ``most`` seconds, or a step would
        fill gigabytes.

        A guess by what schedules for 64 and 128 ranks hold, with the parameters of ``n``, and how
        that grows.
        """
        small, large = 64, 128
        chosen = {self._chosen(nbytes) for nbytes in sizes}
        passes = [Variant(self.variant.algorithm, parameters) for parameters in chosen]
        if self.n <= large or any(v.refuse(ranks) for v in passes for ranks in (small, large)):
            return
        guess = 0.0
        for variant in passes:
            before, after = (_measure_burden(variant.schedule(ranks)) for ranks in (small, large))
            growth = math.log(self.n / large, large / small)
            number, different, messages, peak = (
                b * (b / max(a, 1e-9)) ** growth for a, b in zip(before, after, strict=True)
            )
            guess += 10e-6 * number + 250e-6 * different + 200e-9 * messages
            if peak > MOST_MESSAGES:
                raise CannotRun(
                    f"a step has about {peak:.1g} messages, too many to predict",
                    "take fewer ranks (-n)",
                )
        if guess > most:
            lasts = f"{guess / 60:.0f} min" if guess > 90 else f"{guess:.0f} s"
            raise CannotRun(
                f"predicting this would take about {lasts}",
                "take fewer ranks or sizes",
            )

    def _ratio(self, nbytes: float) -> float:
        link = self.network.find_slowest(self.n, nbytes)
        return nbytes * link.beta / max(link.alpha, 1e-12)

    def _chosen(self, nbytes: float) -> tuple[tuple[str, int], ...]:
        return tuple(self.variant.resolved(self.n, self._ratio(nbytes)).items())


MOST_MESSAGES = 1 << 22


def _measure_burden(schedule: Schedule) -> tuple[int, int, int, int]:
    """The number of steps, of those that differ from the ones before, of messages in these, and of
    messages in the largest one."""
    steps = [(len(messages.src), times) for messages, times in list_step_messages(schedule)]
    sizes = [size for size, _ in steps]
    number = sum(times for _, times in steps)
    return number, len(sizes), sum(sizes), max(sizes, default=0)


class Forecast(NamedTuple):
    """Algorithms of one collective on one network, and those left out with the reason."""

    row: Collective
    n: int
    network: Network
    predictors: dict[str, Predictor]
    left_out: dict[str, str]

    def seconds(self, nbytes: float) -> dict[str, float]:
        """Seconds by algorithm."""
        return {name: predictor.seconds(nbytes) for name, predictor in self.predictors.items()}

    def bound(self, nbytes: float) -> float:
        """Seconds that no algorithm on point-to-point links beats: the largest of the bounds on
        messages, bytes and reduced bytes."""
        alpha, beta, gamma = self.network.bound(self.row, self.n)
        return max(alpha, beta * self.moved(nbytes), gamma * self.moved(nbytes))

    def moved(self, nbytes: float) -> float:
        """The S of busbw = factor * S / t; equal blocks where they may differ."""
        return nbytes * self.row.moved_share(self.n)

    def crossovers(self, sizes: Sequence[int]) -> list[tuple[int, str, str]]:
        """Smallest sizes at which the second algorithm is the fastest and no longer the first.

        Found by bisection between neighbours of ``sizes`` with different winners: what wins only in
        between is missed.
        """

        def between(low: int, high: int, before: str, after: str) -> list[tuple[int, str, str]]:
            if before == after:
                return []
            if high - low == 1:
                return [(high, before, after)]
            middle = max(low + 1, min(high - 1, round(math.sqrt(low * high))))
            at = find_fastest(self.seconds(middle))
            return between(low, middle, before, at) + between(middle, high, at, after)

        sizes = sorted({*sizes})
        winners = [find_fastest(self.seconds(nbytes)) for nbytes in sizes]
        pairs = zip(sizes[:-1], sizes[1:], winners[:-1], winners[1:], strict=True)
        return [crossing for pair in pairs for crossing in between(*pair)]


def find_fastest(seconds: dict[str, float]) -> str:
    """The fastest, or the first of those that are as fast but for rounding."""
    least = min(seconds.values())
    return next(name for name, duration in seconds.items() if duration <= least * (1 + 1e-9))


def forecast_variants(
    row: Collective,
    n: int,
    network: Network,
    variants: Sequence[Variant],
    sizes: Sequence[int],
    most: float = 60.0,
) -> Forecast:
    """Sorts out what runs on n ranks and is predicted for ``sizes`` in ``most`` s each. Groups of
    ranks are the network's nodes unless given, and stand in the name. Raises CannotRun if
    nothing."""
    predictors, left_out = {}, {}
    for variant in (variant.on_nodes(n, network.node_ranks) for variant in variants):
        predictor = Predictor(variant, network, n)
        try:
            reason = variant.refuse(n)
            if not reason:
                predictor.check(sizes, most)
        except CannotRun as e:
            reason = f"{e.message}; {e.hint}"
        if reason:
            left_out[variant.name] = reason
        else:
            predictors[variant.name] = predictor
    if not predictors:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise CannotRun(
            f"no algorithm of {row.name} is left for {n} ranks ({reasons})",
            "choose another -n or --algo",
        )
    return Forecast(row, n, network, predictors, left_out)
