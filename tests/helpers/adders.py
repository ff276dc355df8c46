"""Libraries that add along a known tree, simulated in fractions: slow, but sure, and without
anything of what predicts bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product
from typing import Any, Literal, NamedTuple

from collbench.core.dtypes import DTYPES, DType, premul_factor
from collbench.core.sums.search import Question, ask_subnormals, find_order
from collbench.core.sums.trees import SumTree, join_trees, make_leaf

Kind = Literal["plain", "truncating", "cut", "kahan", "neumaier"]

TYPES = ("float", "double", "half", "bfloat16", "f8e4m3", "f8e5m2")


class Adder(NamedTuple):
    """How a library adds: in ``bits`` (0: the element type's; -1: without loss), rounded to the
    element type at nodes over the leaves ``at``, or at none but the root. ``divides`` is when avg
    multiplies by 1/n or divides by n; ``flushes``: subnormal results are zero."""

    bits: int = 0
    at: frozenset[frozenset[int]] = frozenset()
    kind: Kind = "plain"
    divides: Literal["", "after", "rounded", "before", "within"] = ""
    flushes: bool = False


class Format(NamedTuple):
    """A floating-point format without a largest number."""

    bits: int
    emin: int
    flushes: bool = False

    def round(self, value: Fraction, truncates: bool = False) -> Fraction:
        """A number of the format: the nearest, of two the even one, or the next towards zero."""
        if self.bits < 0 or not value:
            return value
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        exponent = max(exponent - (abs(value) < Fraction(2) ** exponent), self.emin)
        if self.flushes and abs(value) < Fraction(2) ** self.emin:
            return Fraction(0)
        places = value / Fraction(2) ** (exponent - self.bits + 1)
        below, rest = divmod(abs(places), 1)
        if not truncates and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2)):
            below += 1
        return (-1 if value < 0 else 1) * below * Fraction(2) ** (exponent - self.bits + 1)


def simulate(
    tree: SumTree, inputs: Sequence[float], dtype: DType, op: str, adder: Adder, n: int
) -> float:
    """What comes out of a reduction of n ranks' numbers."""
    own = Format(dtype.precision, dtype.emin, adder.flushes)
    inner = Format(adder.bits, -20_000) if adder.bits else own
    share = Fraction(1, n)
    stack: list[tuple[list[Fraction], frozenset[int]]] = []
    for step in tree.postfix:
        if isinstance(step, int):
            value = Fraction(inputs[step])
            if op == "premul_sum":
                value = own.round(value * premul_factor(step))
            if adder.divides == "before":
                value = own.round(value * own.round(share))
            if adder.divides == "within":
                value = inner.round(value * inner.round(share))
            stack.append(([value], frozenset([step])))
            continue
        children = stack[-step.arity :]
        del stack[-step.arity :]
        leaves = frozenset[int]().union(*(below for _, below in children))
        values = [value for value, _ in children]
        parts = _combine(values, op, adder, inner, step.kind)
        if leaves in adder.at:
            parts = [own.round(sum(parts))]
        stack.append((parts, leaves))
    total = _finish(stack.pop()[0], adder, inner)
    if adder.divides == "rounded":
        total = own.round(total) / n
    if adder.divides == "after":
        total = inner.round(total / n)
    return float(own.round(total))


def _combine(
    values: Sequence[list[Fraction]], op: str, adder: Adder, inner: Format, node: str
) -> list[Fraction]:
    """What a node hands on: a sum, and with it what compensates for its losses."""
    if adder.kind in ("kahan", "neumaier"):
        return _compensate(values, adder.kind, inner)
    numbers, is_exact = [value for value, *_ in values], node == "exact" or inner.bits < 0
    if op == "prod":
        total = Fraction(1)
        for number in numbers:
            total *= number
        return [total if is_exact else inner.round(total)]
    if adder.kind == "cut" or (node == "together" and not is_exact):
        largest = max(map(abs, numbers))
        exponent = Format(1, -20_000).round(largest, truncates=True)
        spacing = exponent / 2 ** (inner.bits - 1)
        cut = [int(x / spacing) * spacing if largest else x for x in numbers]
        return [inner.round(sum(cut, Fraction(0)))]
    total = sum(numbers, Fraction(0))
    return [total if is_exact else inner.round(total, adder.kind == "truncating")]


def _compensate(values: Sequence[list[Fraction]], kind: Kind, own: Format) -> list[Fraction]:
    """One step of a chain: the first holds the sum, and c; the last is added."""
    first, last = (values[0], values[-1]) if len(values[0]) >= len(values[-1]) else values[::-1]
    total, x = first[0], last[0]
    lost = first[1] if len(first) > 1 else Fraction(0)
    if kind == "kahan":
        y = own.round(x - lost)
        new = own.round(total + y)
        return [new, own.round(own.round(new - total) - y)]
    new = own.round(total + x)
    big, small = (total, x) if abs(total) >= abs(x) else (x, total)
    return [new, own.round(lost + own.round(own.round(big - new) + small))]


def _finish(parts: list[Fraction], adder: Adder, inner: Format) -> Fraction:
    """The sum; Neumaier's is compensated at the end."""
    if adder.kind == "kahan" or len(parts) == 1:
        return parts[0]
    return inner.round(sum(parts, Fraction(0)))


def answer(
    search: Generator[Question, float, Any],
    reply: Callable[[Question], float],
) -> Any:
    """What a search returns, its questions answered."""
    try:
        question = next(search)
        while True:
            question = search.send(reply(question))
    except StopIteration as end:
        return end.value


def search_tree(
    tree: SumTree, dtype: DType, op: str, adder: Adder, strategy: Any = "all", n: int = 0
) -> Any:
    """The Finding of a search through a simulated library."""
    n = n or max(tree.leaves) + 1

    def reply(question: Question) -> float:
        inputs = [question.probe.value(rank, question.scale, op) for rank in range(n)]
        return simulate(tree, inputs, dtype, op, adder, n)

    kept = answer(ask_subnormals(tree.leaves, dtype, op, n), reply)
    return answer(find_order(tree.leaves, dtype, op, n, kept, strategy), reply)


def list_trees(leaves: Sequence[int], wide: bool = True) -> Iterator[SumTree]:
    """Every tree over some leaves; ``wide``: with nodes of any width and kind."""
    if len(leaves) == 1:
        yield make_leaf(leaves[0])
        return
    for parts in _split(list(leaves)):
        if len(parts) < 2 or (len(parts) > 2 and not wide):
            continue
        for children in product(*(list(list_trees(part, wide)) for part in parts)):
            for kind in ("together", "exact") if len(parts) > 2 else ("two",):
                yield join_trees(kind, children)  # type: ignore[arg-type]


def _split(leaves: list[int]) -> Iterator[list[list[int]]]:
    """Every partition of some leaves."""
    if not leaves:
        yield []
        return
    first, rest = leaves[0], leaves[1:]
    for size in range(len(rest) + 1):
        for chosen in combinations(rest, size):
            others = [leaf for leaf in rest if leaf not in chosen]
            for parts in _split(others):
                yield [[first, *chosen], *parts]


def draw_tree(rng: random.Random, n: int, wide: bool = True) -> SumTree:
    """A random tree of n leaves, some of whose nodes are wide."""
    trees = [make_leaf(rank) for rank in range(n)]
    while len(trees) > 1:
        arity = 2 if not wide or len(trees) == 2 else min(rng.choice((2, 2, 2, 3, 4)), len(trees))
        rng.shuffle(trees)
        kind = "two" if arity == 2 else rng.choice(("together", "exact"))
        trees[:arity] = [join_trees(kind, trees[:arity])]  # type: ignore[arg-type]
    return trees[0]


def find_type(name: str) -> DType:
    """An element type."""
    return DTYPES[name]
