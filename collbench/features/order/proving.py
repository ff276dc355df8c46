"""What found orders say of random numbers, held against the library's bits; and whether the bits
change from call to call, or with what other elements hold."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from collbench.core.dtypes import OPS, DType, premul_factor
from collbench.core.sums.rounding import (
    PERIOD,
    SHORT_PERIOD,
    Floats,
    Rounding,
    draw_inputs,
    evaluate_tree,
    list_divisions,
    needs_fractions,
)
from collbench.core.sums.trees import SumTree, add_trees, make_leaf
from collbench.features.order.buffers import Views, decode_values, encode_values
from collbench.features.order.findings import Mismatch, Neighbours, OddCalls, Proof, Repeats
from collbench.features.order.probing import vote_bits
from collbench.run.rank.control import Control
from collbench.suite.case import Case

MAX_NUMBERS = 1 << 17  # of a buffer's random data, of all ranks together

MAX_KEPT = 32  # buffers of random numbers, and of what trees make of them

SAMPLED = 512  # elements by which an odd result is named, or its distance to the exact sum taken

MOST_ODD = 1000  # calls whose bits are kept apart

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


class RandomData:
    """Random numbers of all ranks by buffer, and what trees make of them. They repeat every
    ``period`` elements."""

    def __init__(self, case: Case, seed: int, is_slow: bool) -> None:
        elements = max(case.counts)
        most = SHORT_PERIOD if is_slow else PERIOD
        self.period = min(elements, most, MAX_NUMBERS // case.n)
        self._case, self._seed = case, seed
        self.inputs = lru_cache(maxsize=MAX_KEPT)(self._draw)
        self.expected = lru_cache(maxsize=MAX_KEPT)(self._evaluate)

    def _draw(self, buffer: int) -> Floats:
        case = self._case
        return draw_inputs(case.type, case.n, case.op, self.period, 1000 * self._seed + buffer)

    def _evaluate(self, buffer: int, tree: SumTree, rounding: Rounding) -> Floats:
        inputs = dict(enumerate(self.inputs(buffer)))
        case = self._case
        return evaluate_tree(tree, inputs, case.type, case.op, rounding, case.n)


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

    def fill(self, buffer: int) -> None:
        """Write this rank's random numbers."""
        self._tile(self._views.send_bits, self._data.inputs(buffer)[self._control.rank], 0)

    def _tile(self, out: torch.Tensor, numbers: Floats, start: int) -> None:
        """Put numbers that repeat into ``out``, which lies at element ``start`` of the input."""
        codes = encode_values(torch.from_numpy(numbers), self._views.send)
        period, at = len(codes), 0
        while at < len(out):
            low = (start + at) % period
            part = out[at : at + period - low]
            part.copy_(codes[low : low + len(part)])
            at += len(part)

    def call(self, buffer: int, thrice: bool = False) -> torch.Tensor:
        """The bits of the result on random numbers; ``thrice`` as Prober's."""
        results = []
        for _ in range(3 if thrice else 1):
            self.fill(buffer)
            self._issue()
            results.append(self._views.recv_bits.clone() if thrice else self._views.recv_bits)
        return vote_bits(results) if thrice else results[0]

    def choose_divisions(self, pieces: Sequence[Predicted], thrice: bool) -> list[Predicted]:
        """The pieces, of avg each with the way to divide that predicts the most bits."""
        if not OPS[self._case.op].divides:
            return list(pieces)
        result = self.call(0, thrice)
        chosen = []
        for piece in pieces:
            ways = [
                piece._replace(rounding=rounding)
                for rounding in list_divisions(self._case.op, piece.rounding)
            ]
            chosen.append(min(ways, key=lambda way: len(self._find_mismatches(result, way, 0))))
        return chosen

    def prove(self, pieces: Sequence[Predicted], buffers: int, thrice: bool) -> tuple[Proof, Wrong]:
        """How many bits of random buffers the orders predict, and what is no sum at all, over all
        ranks."""
        right = of = wrong = 0
        first: list[Any] | None = None
        first_wrong: list[Any] | None = None
        errors: list[float] = []
        for buffer in range(buffers):
            result = self.call(buffer, thrice)
            for piece in pieces:
                bad = self._find_mismatches(result, piece, buffer)
                of += piece.last - piece.first + 1
                right += piece.last - piece.first + 1 - len(bad)
                if len(bad):
                    first = first or self._describe(result, piece, buffer, int(bad[0]))
                    beyond = self._find_wrong(result, bad, buffer)
                    wrong += len(beyond)
                    if len(beyond):
                        first_wrong = first_wrong or self._describe(
                            result, piece, buffer, int(beyond[0])
                        )
            if buffer == 0 and self._offset is not None:
                errors = self._measure_errors(result)
        everyone = self._control.collect([right, of, wrong, first, first_wrong, errors])
        total = [sum(column) for column in list(zip(*everyone, strict=True))[:3]]
        firsts, firsts_wrong, all_errors = list(zip(*everyone, strict=True))[3:]
        ulps = [error for rank in all_errors for error in rank]
        proof = Proof(
            right=total[0],
            of=total[1],
            buffers=buffers,
            first_wrong=_first_mismatch(firsts),
            worst_ulp=max(ulps) if ulps else None,
            mean_ulp=sum(ulps) / len(ulps) if ulps else None,
        )
        return proof, Wrong(total[2], _first_mismatch(firsts_wrong))

    def _find_mismatches(self, result: torch.Tensor, piece: Predicted, buffer: int) -> torch.Tensor:
        """The elements of a piece whose bits are not those predicted; all where nothing is."""
        if piece.tree is None:
            return torch.arange(piece.first, piece.last + 1)
        expected = self._data.expected(buffer, piece.tree, piece.rounding)
        codes = encode_values(torch.from_numpy(expected), self._views.recv)
        offset, period = self._offset or 0, self._data.period
        found, at = [], piece.first
        while at <= piece.last:
            low = (offset + at) % period
            after = min(piece.last + 1, at + period - low)
            differ = result[at:after] != codes[low : low + after - at]
            if bool(differ.any()):
                found.append(differ.nonzero().ravel().cpu() + at)
            at = after
        return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)

    def _describe(
        self, result: torch.Tensor, piece: Predicted, buffer: int, element: int
    ) -> list[Any]:
        """A Mismatch's values: rank, element, what it got, what was expected."""
        got = float(decode_values(result[element : element + 1], self._views.recv)[0])
        expected = "nothing"
        if piece.tree is not None:
            at = ((self._offset or 0) + element) % self._data.period
            expected = repr(float(self._data.expected(buffer, piece.tree, piece.rounding)[at]))
        return [self._control.rank, element, repr(got), expected]

    def _list_contributing(self) -> list[int]:
        """The ranks whose numbers are in this rank's output."""
        is_prefix = self._case.collective == "scan"
        return list(range(self._control.rank + 1 if is_prefix else self._case.n))

    def _take_inputs(self, elements: np.ndarray, buffer: int) -> Floats:
        """What the contributing ranks give of some elements of the output, (ranks, elements),
        multiplied as the reduction has it."""
        at = ((self._offset or 0) + elements) % self._data.period
        ranks = self._list_contributing()
        numbers = self._data.inputs(buffer)[ranks][:, at]
        if self._case.op == "premul_sum":
            numbers = numbers * np.array([[premul_factor(rank)] for rank in ranks])
        return np.asarray(numbers)

    def _find_wrong(self, result: torch.Tensor, bad: torch.Tensor, buffer: int) -> torch.Tensor:
        """Of elements that were not predicted, those further from the exact result than any order
        of additions or multiplications can be."""
        sample = bad[:: max(1, len(bad) // (1 << 16))]
        numbers = self._take_inputs(sample.numpy(), buffer)
        got = decode_values(result[sample.to(result.device)], self._views.recv).numpy()
        n, dtype = self._case.n, self._case.type
        step = WRONG_SLACK * n * 2.0**-dtype.precision
        if self._case.op == "prod":
            exact = numbers.prod(axis=0)
            bound = step * np.abs(exact)
        else:
            share = n if OPS[self._case.op].divides else 1
            exact, bound = numbers.sum(axis=0) / share, step * np.abs(numbers).sum(axis=0) / share
        floor = WRONG_SLACK * n * 2.0 ** (dtype.emin - dtype.precision)
        return sample[torch.from_numpy(~(np.abs(got - exact) <= bound + floor))]

    def _measure_errors(self, result: torch.Tensor) -> list[float]:
        """Distances of the first results to the exact ones, in units of their last place."""
        elements = np.arange(min(len(result), SAMPLED))
        numbers = self._take_inputs(elements, 0)
        got = decode_values(result[: len(elements)], self._views.recv).tolist()
        return [
            _measure_ulp(value, column, self._case)
            for value, column in zip(got, numbers.T.tolist(), strict=True)
        ]

    def repeat(
        self, number: int, candidates: Callable[[], Sequence[SumTree]], rounding: Rounding
    ) -> Repeats:
        """So many calls of the same data, compared with what two of the first three give."""
        first = self.call(0, thrice=True)
        began, done, odd = time.monotonic(), 0, _OddResults()
        cut = ""
        while done < number:
            self.fill(0)
            self._issue()
            done += 1
            if self._offset is not None and not torch.equal(self._views.recv_bits, first):
                odd.add(done, self._views.recv_bits, first)
            if done % 10 == 0 or done == number:
                late = time.monotonic() - began > REPEAT_SECONDS and done < number
                if self._control.decide([int(late)])[0]:
                    cut = f"{done:,} calls took {REPEAT_SECONDS:.0f} s"
                    break
        by_rank = self._control.collect([odd.digests, odd.spans])
        return self._sum_up(done, cut, by_rank, odd, candidates, rounding)

    def make_first_calls(self, number: int) -> list[torch.Tensor]:
        """The results of so many calls of the same data, as they come."""
        return [self.call(0).clone() for _ in range(number)]

    def compare_first_calls(
        self,
        results: Sequence[torch.Tensor],
        candidates: Callable[[], Sequence[SumTree]],
        rounding: Rounding,
    ) -> Repeats:
        """Results of calls that were made before all others, compared with what calls of the same
        data give by now."""
        now, odd = self.call(0, thrice=True), _OddResults()
        for number, bits in enumerate(results, 1):
            if self._offset is not None and not torch.equal(bits, now):
                odd.add(number, bits, now)
        by_rank = self._control.collect([odd.digests, odd.spans])
        return self._sum_up(len(results), "", by_rank, odd, candidates, rounding)

    def _sum_up(
        self,
        done: int,
        cut: str,
        by_rank: Sequence[Any],
        odd: _OddResults,
        candidates: Callable[[], Sequence[SumTree]],
        rounding: Rounding,
    ) -> Repeats:
        """The odd calls of all ranks by their bits, with the order that gives these."""
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
            if np.array_equal(
                evaluate_tree(tree, inputs, self._case.type, self._case.op, rounding, self._case.n),
                wanted,
            )
        ]
        return str(fitting[0]) if len(fitting) == 1 else ""

    def vary_neighbours(self, number: int) -> Neighbours:
        """So many calls in which a random half of the elements keep their data and the others have
        new ones, over all ranks."""
        kept_result = self.call(0, thrice=True).clone()
        changed = 0
        first: int | None = None
        offset, length = self._offset or 0, len(self._views.recv)
        for trial in range(1, number + 1):
            rng = torch.Generator().manual_seed(trial)
            kept = torch.rand(len(self._views.send), generator=rng) < 0.5
            kept = kept.to(self._views.send.device)
            self.fill(0)
            old = self._views.send_bits.clone()
            self.fill(trial)
            self._views.send_bits.copy_(torch.where(kept, old, self._views.send_bits))
            self._issue()
            if self._offset is None:
                continue
            differ = (self._views.recv_bits != kept_result) & kept[offset : offset + length]
            if bool(differ.any()):
                changed += 1
                first = first if first is not None else int(differ.nonzero()[0])
        everyone = self._control.collect([changed, first])
        rank = next((rank for rank, (_, at) in enumerate(everyone) if at is not None), None)
        return Neighbours(
            calls=number,
            changed=max(count for count, _ in everyone),
            first=None if rank is None else everyone[rank][1],
            rank=rank,
        )

    def digest(self) -> str:
        """A digest of the bits that all ranks get of random numbers."""
        result = self.call(0, thrice=True)
        own = _digest_bits(result) if self._offset is not None else ""
        joined = " ".join(self._control.collect(own))
        return hashlib.blake2b(joined.encode(), digest_size=8).hexdigest()


class _OddResults:
    """This rank's results that were not the first one's: their digests by call, and of each digest
    where it differs and a sample of it."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.samples: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, call: int, bits: torch.Tensor, first: torch.Tensor) -> None:
        """Note the result of a call."""
        if len(self.digests) >= MOST_ODD:
            self.digests[str(call)] = "many"
            self.spans.setdefault("many", (0, len(bits) - 1))
            return
        digest = _digest_bits(bits)
        self.digests[str(call)] = digest
        if digest not in self.spans:
            at = (bits != first).nonzero().ravel()
            self.spans[digest] = int(at[0]), int(at[-1])
            at = at[:SAMPLED]
            self.samples[digest] = at.cpu(), bits[at].cpu()


def _digest_bits(bits: torch.Tensor) -> str:
    content = bits.cpu().numpy().data
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _first_mismatch(by_rank: Sequence[Any]) -> Mismatch | None:
    values = next(filter(None, by_rank), None)
    if values is None:
        return None
    rank, element, got, expected = values
    return Mismatch(rank=rank, element=element, got=got, expected=expected)


def _measure_ulp(value: float, numbers: Sequence[float], case: Case) -> float:
    """The distance of a result to the exact one, in units of the last place there."""
    if case.op == "prod":
        exact = Fraction(1)
        for number in numbers:
            exact *= Fraction(number)
    else:
        exact = sum(map(Fraction, numbers), Fraction())
        exact /= case.n if OPS[case.op].divides else 1
    if not np.isfinite(value):
        return float("inf")
    exponent = max(np.frexp(float(exact))[1] - 1, case.type.emin) if exact else case.type.emin
    return float(
        abs(Fraction(value) - exact) / Fraction(2) ** int(exponent - case.type.precision + 1)
    )


def is_slow(pieces: Sequence[Predicted], dtype: DType, op: str) -> bool:
    """Whether some piece's sums are worked out in fractions, however avg divides."""
    return any(
        piece.tree is not None and needs_fractions(dtype, rounding, piece.tree, op)
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
