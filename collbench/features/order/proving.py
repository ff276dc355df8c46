"""What found orders say of random numbers, held against the library's bits; and whether the bits
change from call to call, or with what other elements hold."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from collbench.core.dtypes import OPS, DType, premul_factor
from collbench.core.sums.rounding import (
    EXACT,
    PERIOD,
    SHORT_PERIOD,
    Division,
    Floats,
    Rounding,
    draw_inputs,
    evaluate_tree,
    list_divisions,
    needs_fractions,
)
from collbench.core.sums.trees import SumTree, add_trees, make_leaf
from collbench.features.order.buffers import Views
from collbench.features.order.findings import Mismatch, Neighbours, OddCalls, Proof, Repeats
from collbench.features.order.probing import VOTED, vote_calls
from collbench.run.rank.check import decode_values, encode_values
from collbench.run.rank.control import Control
from collbench.suite.case import Case

MAX_NUMBERS = 1 << 17  # of a buffer's random data, of all ranks together

MAX_KEPT = 32  # buffers of random numbers

SAMPLED = 512  # elements by which an odd result is named, or its distance to the exact sum taken

MOST_ODD = 1000  # calls whose bits are kept apart

LOOKS = 10  # calls between two looks at the clock, of all ranks

REPEAT_SECONDS = 10.0  # that repeats of one size take at most

WRONG_SLACK = 4.0  # times the bound of rounding errors beyond which a result is no sum


class Predicted(NamedTuple):
    """Elements of this rank's output with the order that predicts them; no tree where none was
    found."""

    first: int
    last: int
    tree: SumTree | None
    rounding: Rounding


class Wrong(NamedTuple):
    """Elements that no order of additions gives, and the first of them."""

    elements: int
    first: Mismatch | None


class Span(NamedTuple):
    """What a result of this rank may be, element by element of a period: nearer than ``bound`` to
    what is ``exact``."""

    exact: Floats
    bound: Floats


class _Group(NamedTuple):
    """Pieces of one order, and which numbers of a period they add: each piece's in turn; or all,
    where the pieces are as long together."""

    tree: SumTree | None
    rounding: Rounding
    pieces: list[Predicted]
    places: NDArray[np.int64] | None


class Tally(NamedTuple):
    """Elements of a result that were ``right``, of all, and those that are no sum, with the first
    of either kind that was not right, and the first that is none."""

    right: int = 0
    of: int = 0
    wrong: int = 0
    first: tuple[int, str, str] | None = None  # element, what it got, what was expected
    first_wrong: tuple[int, str, str] | None = None


class RandomData:
    """Random numbers of all ranks by buffer, whose sums in ``adders`` show their order. They repeat
    every ``period`` elements."""

    def __init__(self, case: Case, seed: int, is_slow: bool, adders: Sequence[int]) -> None:
        elements = max(case.counts)
        most = SHORT_PERIOD if is_slow else PERIOD
        self.period = max(1, min(elements, most, MAX_NUMBERS // case.n))
        self.adders = adders
        self._case, self._seed = case, seed
        self.inputs = lru_cache(maxsize=MAX_KEPT)(self._draw)

    def _draw(self, buffer: int) -> Floats:
        case, seed = self._case, 1000 * self._seed + buffer
        return draw_inputs(case.type, case.n, case.op, self.period, seed, self.adders)

    def draw_positive(self) -> Floats:
        """Numbers of one sign and about one size."""
        case, seed = self._case, 1000 * self._seed
        return np.abs(draw_inputs(case.type, case.n, case.op, self.period, seed))


class Prover:
    """Makes calls on random numbers at one size. ``issue`` and ``offset`` are Prober's."""

    def __init__(
        self,
        case: Case,
        views: Views,
        issue: Callable[[], object],
        control: Control,
        offset: int | None,
        data: RandomData,
    ) -> None:
        self._case, self._views, self._issue = case, views, issue
        self._control, self._offset, self._data = control, offset, data
        self._spans: dict[int, Span] = {}  # by buffer, of the last one
        self._reference: torch.Tensor | None = None

    def fill(self, buffer: int) -> None:
        """Write this rank's random numbers."""
        self._write(self._data.inputs(buffer)[self._control.rank])

    def _write(self, numbers: Floats) -> None:
        """Put a period's numbers into the input."""
        codes = encode_values(torch.from_numpy(numbers), self._views.send)
        for part in torch.split(self._views.send_bits, len(codes)):
            part.copy_(codes[: len(part)])

    def call(self, buffer: int, thrice: bool = False) -> torch.Tensor:
        """The bits of the result on random numbers; ``thrice`` as Prober's."""
        return self._call(self._data.inputs(buffer)[self._control.rank], thrice)

    def _call(self, numbers: Floats, thrice: bool) -> torch.Tensor:
        def call() -> torch.Tensor:
            self._write(numbers)
            self._issue()
            return self._views.recv_bits

        return vote_calls(call) if thrice else call()

    def _refer(self) -> torch.Tensor:
        """The bits that two of three calls give of the first random numbers, made once."""
        if self._reference is None:
            self._reference = self.call(0, thrice=True)
        return self._reference

    def prove(
        self,
        pieces: Sequence[Predicted],
        buffers: int,
        thrice: bool,
        divisions: Sequence[Division] = ("",),
    ) -> tuple[Proof, Wrong, Division]:
        """How many bits of random buffers the orders predict, and what is no sum at all, over all
        ranks; and which of ``divisions``, the same on all ranks, predicts the most: "", where
        dividing after the sum is no better than others."""
        groups, tallies = self._group_pieces(pieces), [Tally()] * len(divisions)
        for buffer in range(buffers):
            result = self.call(buffer, thrice)
            for index, division in enumerate(divisions):
                ways = [_set_division(group, division) for group in groups]
                found = [self._tally(result, group, buffer) for group in ways]
                tallies[index] = _add_tallies([tallies[index], *found])
        everyone = self._control.collect([tallies, self._measure_errors(thrice)])
        by_division = [
            [Tally(*of_rank[index]) for of_rank, _ in everyone] for index in range(len(divisions))
        ]
        rights = [sum(tally.right for tally in by_rank) for by_rank in by_division]
        best = rights.index(max(rights))
        by_rank = by_division[best]
        is_known = divisions[best] != "after" or rights.count(max(rights)) == 1
        ulps = [error for _, of_rank in everyone for error in of_rank]
        total = _add_tallies(by_rank)
        proof = Proof(
            right=total.right,
            of=total.of,
            buffers=buffers,
            first_wrong=_find_first([tally.first for tally in by_rank]),
            worst_ulp=max(ulps) if ulps else None,
            mean_ulp=sum(ulps) / len(ulps) if ulps else None,
        )
        wrong = Wrong(total.wrong, _find_first([tally.first_wrong for tally in by_rank]))
        return proof, wrong, divisions[best] if is_known else ""

    def _group_pieces(self, pieces: Sequence[Predicted]) -> list[_Group]:
        groups: dict[tuple[SumTree | None, Rounding], list[Predicted]] = {}
        for piece in pieces:
            groups.setdefault((piece.tree, piece.rounding), []).append(piece)
        offset, period = self._offset or 0, self._data.period
        found = []
        for (tree, rounding), members in groups.items():
            places = None
            if sum(piece.last + 1 - piece.first for piece in members) < period:
                spans = [np.arange(piece.first, piece.last + 1) for piece in members]
                places = (offset + np.concatenate(spans)) % period
            found.append(_Group(tree, rounding, members, places))
        return found

    def _predict(self, group: _Group, buffer: int) -> Floats:
        """What a group's order makes of random numbers."""
        assert group.tree is not None
        numbers = self._data.inputs(buffer)
        if group.places is not None:
            numbers = numbers[:, group.places]
        return self._evaluate_tree(group.tree, dict(enumerate(numbers)), group.rounding)

    def _evaluate_tree(
        self, tree: SumTree, inputs: Mapping[int, Floats], rounding: Rounding
    ) -> Floats:
        case = self._case
        return evaluate_tree(
            tree, inputs, case.type, case.op, rounding, case.n, adders=self._data.adders
        )

    def _tally(self, result: torch.Tensor, group: _Group, buffer: int) -> Tally:
        """The elements of a group of pieces, compared with what its order predicts, if it has
        one."""
        numbers = None if group.tree is None else self._predict(group, buffer)
        codes = (
            None if numbers is None else encode_values(torch.from_numpy(numbers), self._views.recv)
        )
        tallies = []
        for first, after, low in self._list_stretches(group):
            bits, differ = result[first:after], None
            if codes is not None:
                differ = bits != codes[low : low + after - first]
                if not bool(differ.any()):
                    tallies.append(Tally(after - first, after - first))
                    continue
            expected = None if numbers is None else numbers[low : low + after - first]
            tallies.append(self._tell_bad(bits, differ, expected, first, buffer))
        return _add_tallies(tallies)

    def _list_stretches(self, group: _Group) -> Iterator[tuple[int, int, int]]:
        """A group's pieces, cut where the random numbers begin anew: the first element, that after
        the last, and where in the group's numbers they begin."""
        offset, period, at = self._offset or 0, self._data.period, 0
        for piece in group.pieces:
            first = piece.first
            while first <= piece.last:
                low = (offset + first) % period if group.places is None else at
                room = period - low if group.places is None else period
                after = min(piece.last + 1, first + room)
                yield first, after, low
                at += after - first
                first = after

    def _tell_bad(
        self,
        bits: torch.Tensor,
        differ: torch.Tensor | None,
        expected: Floats | None,
        first: int,
        buffer: int,
    ) -> Tally:
        """Neighbouring elements from ``first`` on, of which some or all were not predicted."""
        bad = np.ones(len(bits), bool) if differ is None else differ.cpu().numpy()
        got = decode_values(bits, self._views.recv).numpy()
        beyond, exact = self._find_wrong(got, first, buffer)
        beyond &= bad

        def describe(
            chosen: NDArray[np.bool_], wanted: Floats | None
        ) -> tuple[int, str, str] | None:
            if not chosen.any():
                return None
            at = int(chosen.argmax())
            said = "nothing" if wanted is None else repr(float(wanted[at]))
            return first + at, repr(float(got[at])), said

        count = int(bad.sum())
        return Tally(
            len(bad) - count,
            len(bad),
            int(beyond.sum()),
            describe(bad, expected),
            describe(beyond, exact),
        )

    def _list_contributing(self) -> list[int]:
        """The ranks whose numbers are in this rank's output."""
        is_prefix = self._case.collective == "scan"
        return list(range(self._control.rank + 1 if is_prefix else self._case.n))

    def _take_inputs(self, inputs: Floats, at: NDArray[np.int64]) -> Floats:
        """What the contributing ranks give at some places of a period, (ranks, elements), as the
        reduction multiplies it."""
        ranks = self._list_contributing()
        numbers = inputs[ranks][:, at]
        if self._case.op == "premul_sum":
            numbers = numbers * np.array([[premul_factor(rank)] for rank in ranks])
        return np.asarray(numbers)

    def _find_wrong(self, got: Floats, first: int, buffer: int) -> tuple[NDArray[np.bool_], Floats]:
        """Which of neighbouring elements, from ``first`` on and at most a period, are further from
        the exact results than any order of additions or multiplications can be; and these."""
        at = ((self._offset or 0) + first + np.arange(len(got))) % self._data.period
        exact, bound = (values[at] for values in self._bound_results(buffer))
        return ~(np.abs(got - exact) <= bound), exact

    def _bound_results(self, buffer: int) -> Span:
        """What results of random numbers may be."""
        if buffer not in self._spans:
            inputs = self._data.inputs(buffer)
            numbers = self._take_inputs(inputs, np.arange(self._data.period))
            n, dtype = self._case.n, self._case.type
            step = WRONG_SLACK * n * 2.0**-dtype.precision
            if self._case.op == "prod":
                exact = numbers.prod(axis=0)
                bound = step * np.abs(exact)
            else:
                share = n if OPS[self._case.op].divides else 1
                exact = numbers.sum(axis=0) / share
                bound = step * np.abs(numbers).sum(axis=0) / share
            floor = WRONG_SLACK * n * 2.0 ** (dtype.emin - dtype.precision)
            self._spans = {buffer: Span(exact, bound + floor)}
        return self._spans[buffer]

    def _measure_errors(self, thrice: bool) -> list[float]:
        """Distances of results to the exact ones, in units of their last place, at elements all
        over this rank's output. The numbers are of one sign: where a sum is much smaller than what
        it is made of, any order is many units off."""
        numbers = self._data.draw_positive()
        result = self._call(numbers[self._control.rank], thrice)
        if self._offset is None:
            return []
        elements = np.linspace(0, len(result) - 1, min(len(result), SAMPLED)).astype(np.int64)
        at = (self._offset + elements) % self._data.period
        taken = self._take_inputs(numbers, at)
        got = decode_values(result[torch.from_numpy(elements).to(result.device)], self._views.recv)
        return [
            _measure_ulp(value, column, self._case)
            for value, column in zip(got.tolist(), taken.T.tolist(), strict=True)
        ]

    def repeat(
        self, number: int, candidates: Callable[[], Sequence[SumTree]], rounding: Rounding
    ) -> tuple[Repeats, Wrong]:
        """So many calls of the same data, compared with the reference; and what is no sum at all in
        those that differ."""
        began, done, cut, odd = time.monotonic(), 0, "", _OddResults(self._refer())
        while done < number:
            self.fill(0)
            self._issue()
            done += 1
            self._note_odd(odd, done, self._views.recv_bits)
            if done % LOOKS == 0 or done == number:
                late = time.monotonic() - began > REPEAT_SECONDS and done < number
                if self._control.decide([int(late)])[0]:
                    cut = f"{done:,} calls took {REPEAT_SECONDS:.0f} s"
                    break
        repeats = self._sum_up(done, cut, odd, candidates, rounding)
        return repeats, self._sum_up_wrong(odd)

    def make_first_calls(self, number: int) -> list[torch.Tensor]:
        """The results of so many calls of the same data, as they come."""
        return [self.call(0).clone() for _ in range(number)]

    def compare_first_calls(
        self,
        results: Sequence[torch.Tensor],
        candidates: Callable[[], Sequence[SumTree]],
        rounding: Rounding,
    ) -> tuple[Repeats, Wrong]:
        """Results of calls that were made before all others, compared with what calls of the same
        data give by now; and what is no sum at all in them."""
        odd = _OddResults(self._refer())
        for number, bits in enumerate(results, 1):
            self._note_odd(odd, number, bits)
        repeats = self._sum_up(len(results), "", odd, candidates, rounding)
        return repeats, self._sum_up_wrong(odd)

    def _note_odd(self, odd: _OddResults, call: int, bits: torch.Tensor) -> None:
        """Note the result of a call where it is not the first one's."""
        if self._offset is None or torch.equal(bits, odd.first) or not odd.add(call, bits):
            return
        everything = [Predicted(0, len(bits) - 1, None, Rounding(EXACT))]
        for group in self._group_pieces(everything):
            odd.tallies.append(self._tally(bits, group, 0))

    def _sum_up_wrong(self, odd: _OddResults) -> Wrong:
        """What is no sum in the odd results of all ranks."""
        everyone = self._control.collect(_add_tallies(odd.tallies))
        tallies = [Tally(*tally) for tally in everyone]
        first = _find_first([tally.first_wrong for tally in tallies])
        return Wrong(_add_tallies(tallies).wrong, first)

    def _sum_up(
        self,
        done: int,
        cut: str,
        odd: _OddResults,
        candidates: Callable[[], Sequence[SumTree]],
        rounding: Rounding,
    ) -> Repeats:
        """The odd calls of all ranks by their bits, with the order that gives these."""
        by_rank = self._control.collect([odd.digests, odd.spans])
        calls = sorted({int(call) for digests, _ in by_rank for call in digests})
        groups: dict[tuple[str, ...], list[int]] = {}
        for call in calls:
            key = tuple(digests.get(str(call), "") for digests, _ in by_rank)
            groups.setdefault(key, []).append(call)
        frequent = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))[:8]
        found = []
        for key, members in frequent:
            tree = ""
            if sample := odd.samples.get(key[self._control.rank]):
                tree = self._name_bits(*sample, candidates(), rounding)
            trees = self._control.collect(tree)
            ranks = tuple(rank for rank, digest in enumerate(key) if digest)
            spans = [by_rank[rank][1][key[rank]] for rank in ranks]
            found.append(
                OddCalls(
                    calls=members[:MOST_ODD],
                    ranks=ranks,
                    first=min(span[0] for span in spans),
                    last=max(span[1] for span in spans),
                    tree=next(filter(None, trees), ""),
                )
            )
        return Repeats(calls=done, changed=len(calls), odd=found, cut=cut)

    def _name_bits(
        self,
        elements: torch.Tensor,
        bits: torch.Tensor,
        candidates: Sequence[SumTree],
        rounding: Rounding,
    ) -> str:
        """The first order of the candidates that gives these bits at these elements; "" where none
        does, or more than one that is not alike."""
        at = ((self._offset or 0) + elements.numpy()) % self._data.period
        inputs = {rank: numbers[at] for rank, numbers in enumerate(self._data.inputs(0))}
        wanted = decode_values(bits, self._views.recv).numpy()
        fitting = [
            tree
            for tree in candidates
            if np.array_equal(self._evaluate_tree(tree, inputs, rounding), wanted)
        ]
        return str(fitting[0]) if len(fitting) == 1 else ""

    def vary_neighbours(self, number: int, thrice: bool) -> Neighbours:
        """So many calls in which a random half of the elements keep their data and the others have
        new ones, over all ranks; ``thrice`` as Prober's."""
        reference, changed, first = self._refer(), 0, None
        period, offset = self._data.period, self._offset or 0
        for trial in range(1, number + 1):
            kept = np.random.default_rng(trial).random(period) < 0.5
            rank = self._control.rank
            old, new = (self._data.inputs(buffer)[rank] for buffer in (0, trial))
            result = self._call(np.where(kept, old, new), thrice)
            if self._offset is None:
                continue
            mask = torch.from_numpy(np.roll(kept, -offset % period)).to(result.device)
            at = _find_difference(result, reference, mask)
            if at is not None:
                changed += 1
                first = at if first is None else first
        everyone = self._control.collect([changed, first])
        where = next((rank for rank, (_, at) in enumerate(everyone) if at is not None), None)
        return Neighbours(
            calls=number,
            changed=max(count for count, _ in everyone),
            first=None if where is None else everyone[where][1],
            rank=where,
        )

    def digest(self) -> str:
        """A digest of the bits that all ranks get of random numbers."""
        result = self._refer()
        own = "" if self._offset is None else _digest_bits(result)
        joined = " ".join(self._control.collect(own))
        return hashlib.blake2b(joined.encode(), digest_size=8).hexdigest()


def _find_difference(
    result: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor
) -> int | None:
    """The first element that differs where a mask is set, which repeats."""
    parts = zip(*(torch.split(bits, len(mask)) for bits in (result, reference)), strict=True)
    for number, (part, wanted) in enumerate(parts):
        differ = (part != wanted) & mask[: len(part)]
        if bool(differ.any()):
            return number * len(mask) + int(differ.nonzero()[0])
    return None


class _OddResults:
    """This rank's results that were not the first one's: their digests by call, and of each digest
    where it differs and a sample of it."""

    def __init__(self, first: torch.Tensor) -> None:
        self.first = first
        self.tallies: list[Tally] = []  # of each digest
        self.digests: dict[str, str] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.samples: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, call: int, bits: torch.Tensor) -> bool:
        """Note the result of a call; whether there was none like it."""
        if len(self.digests) >= MOST_ODD:
            self.digests[str(call)] = "many"
            self.spans.setdefault("many", (0, len(bits) - 1))
            return False
        digest = _digest_bits(bits)
        self.digests[str(call)] = digest
        if digest in self.spans:
            return False
        differing, last = [], 0
        for number, (part, wanted) in enumerate(
            zip(*(torch.split(both, VOTED) for both in (bits, self.first)), strict=True)
        ):
            at = (part != wanted).nonzero().ravel() + number * VOTED
            last = int(at[-1]) if len(at) else last
            differing.append(at[:SAMPLED])
        at = torch.cat(differing)[:SAMPLED]
        self.spans[digest] = int(at[0]), last
        self.samples[digest] = at.cpu(), bits[at].cpu()
        return True


def _digest_bits(bits: torch.Tensor) -> str:
    content = bits.cpu().numpy().data
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _set_division(group: _Group, division: Division) -> _Group:
    """The group, whose avg divides in this way; in its own, if this is ""."""
    rounding = group.rounding
    return group._replace(rounding=rounding._replace(division=division or rounding.division))


def _add_tallies(tallies: Sequence[Tally]) -> Tally:
    """All of them as one, with the first that have a first."""
    firsts = [tally.first for tally in tallies if tally.first]
    wrongs = [tally.first_wrong for tally in tallies if tally.first_wrong]
    return Tally(
        sum(tally.right for tally in tallies),
        sum(tally.of for tally in tallies),
        sum(tally.wrong for tally in tallies),
        firsts[0] if firsts else None,
        wrongs[0] if wrongs else None,
    )


def _find_first(by_rank: Sequence[tuple[int, str, str] | None]) -> Mismatch | None:
    """The mismatch of the first rank that has one."""
    for rank, found in enumerate(by_rank):
        if found:
            return Mismatch(rank=rank, element=found[0], got=found[1], expected=found[2])
    return None


def _measure_ulp(value: float, numbers: Sequence[float], case: Case) -> float:
    """The distance of a result to the exact one, in units of the last place there."""
    if not math.isfinite(value):
        return math.inf
    if case.op == "prod":
        product = math.prod(map(Fraction, numbers))
        exact, distance = float(product), float(abs(product - Fraction(value)))
    else:
        share = case.n if OPS[case.op].divides else 1
        exact = math.fsum(numbers) / share
        distance = abs(math.fsum([*numbers, *[-value] * share])) / share
    exponent = max(math.frexp(exact)[1] - 1, case.type.emin) if exact else case.type.emin
    return math.ldexp(distance, case.type.precision - 1 - exponent)


def is_slow(pieces: Sequence[Predicted], dtype: DType, op: str, adders: Sequence[int]) -> bool:
    """Whether some piece's sums of numbers drawn for ``adders`` are worked out in fractions,
    however avg divides."""
    return any(
        piece.tree is not None and needs_fractions(dtype, rounding, piece.tree, op, adders)
        for piece in pieces
        for rounding in list_divisions(op, piece.rounding)
    )


def list_small_trees(ranks: Sequence[int]) -> list[SumTree]:
    """Every order in which few numbers can be added two at a time."""
    if len(ranks) == 1:
        return [make_leaf(ranks[0])]
    first, *rest = ranks
    trees = []
    for size in range(len(rest)):
        for chosen in itertools.combinations(rest, size):
            others = [rank for rank in rest if rank not in chosen]
            trees += [
                add_trees(a, b)
                for a in list_small_trees([first, *chosen])
                for b in list_small_trees(others)
            ]
    return trees
