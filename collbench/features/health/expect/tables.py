"""Where tables of expected bandwidths contradict each other, before any run is held against
them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.text import format_size, plain_line
from collbench.features.health.checks.curves import Curve
from collbench.features.health.checks.expectations import (
    Expected,
    are_different,
    describe_difference,
)


class Disagreement(NamedTuple):
    """The size at which limits of two curves of the same rows differ most, in GB/s."""

    curve: str
    size: int
    strict_file: str
    strict: float
    lax_file: str
    lax: float
    sentence: str


def find_disagreements(curves: Sequence[Curve]) -> list[Disagreement]:
    """The pairs of curves of different tables, for the same machines by the same patterns, whose
    limits differ by more than is tolerated at a size of either."""
    disagreements = []
    for one, other in itertools.combinations(curves, 2):
        if one.file == other.file or _list_subjects(one) != _list_subjects(other):
            continue
        sizes = dict.fromkeys(size for curve in (one, other) for size, _ in curve.sizes)
        pairs = [pair for size in sizes if (pair := _hold_against(one, other, size))]
        if pairs:
            size, strictest, laxest = max(pairs, key=lambda pair: pair[1].limit / pair[2].limit)
            disagreements.append(_describe_pair(size, strictest, laxest))
    return disagreements


def _list_subjects(curve: Curve) -> tuple[object, ...]:
    return (
        *(curve.device, curve.machine, curve.backend, curve.severity, curve.collective),
        *(curve.gpus, curve.nodes, curve.switch),
    )


def _hold_against(one: Curve, other: Curve, size: int) -> tuple[int, Expected, Expected] | None:
    """Both limits at a size, the stricter first, where they differ."""
    both = []
    for curve in (one, other):
        busbw = curve.at(size)
        if busbw is None:
            return None
        both.append(Expected(curve, busbw, busbw * curve.share_at(size)))
    laxest, strictest = sorted(both, key=lambda expected: expected.limit)
    return (size, strictest, laxest) if are_different(strictest, laxest) else None


def _describe_pair(size: int, strictest: Expected, laxest: Expected) -> Disagreement:
    strict, lax = strictest.curve, laxest.curve
    sentence = (
        f"{strict.name} at {format_size(size)}: {describe_difference(strictest, laxest)}"
        f" ({strict.source}; {lax.source})."
    )
    return Disagreement(
        strict.name,
        size,
        strict.file,
        strictest.limit,
        lax.file,
        laxest.limit,
        plain_line(sentence),
    )
