"""The one table that says what each collective means.

Everything else asks this table: how many elements a rank sends and receives, what ends up where (``result``), how
busbw follows from algbw, what no algorithm can beat, and which buffers may be shared in place. Sizes follow
nccl-tests: ``size`` is the whole for all_gather, reduce_scatter, all_to_all, gather and scatter, and the per-rank
buffer for the rest; ``count`` is the element count handed to the library call.

Bounds are those of Chan, Heimlich, Purkayastha and van de Geijn (2007) for one-port, full-duplex, point-to-point
networks: ``T >= max(a*alpha, b*beta*S, g*gamma*S)`` with S the size in bytes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from collbench.errors import UsageError

Values = Any  # a numpy array (of numbers or of any objects), or a list of blocks for all_to_allv
Combine = Callable[[Any, Any], Any]
Result = Callable[[Sequence[Values], Combine, int], list[Any]]


class Bound(NamedTuple):
    """Lower bound, each component on its own: messages, bytes and reduced bytes as multiples of the size."""

    alpha: float
    beta: float
    gamma: float


class Collective(NamedTuple):
    """One row of the table.

    ``total``: the size is divided over the ranks. ``in_place``: which buffer serves as both - ``same``, the rank's
    ``block of recv`` is its input, the rank's ``block of send`` is its output - or None where no in-place form exists.
    ``synchronising``: no rank can leave before the last one arrived, so exits nearly coincide and per-rank durations
    tell who came late. ``result(inputs, op, root)`` maps every rank's input to every rank's output (None where
    the operation leaves a rank's output undefined); it is pure and works on any values that ``op`` can combine.
    ``uneven``: blocks differ in length, and an input is a list of blocks.
    """

    name: str
    meaning: str
    rooted: bool
    reduces: bool
    total: bool
    in_place: str | None
    synchronising: bool
    counts: Callable[[int, int], tuple[int, int]]
    factor: str
    busbw: Callable[[int], float]
    bound: Callable[[int], Bound]
    result: Result
    aliases: tuple[str, ...] = ()
    uneven: bool = False

    def overlay(self, n: int, count: int, rank: int) -> tuple[int, int, int]:
        """Where a rank's send and receive block begin in one buffer that holds both, and its length, in elements:
        shared as in place or, where there is no in-place form, one after the other."""
        send, recv = self.counts(n, count)
        places = {"same": (0, 0), "block of recv": (rank * count, 0), "block of send": (0, rank * count)}
        if self.in_place is None:
            return 0, send, send + recv
        return (*places[self.in_place], max(send, recv))


class Op(NamedTuple):
    """A reduction: ``function`` is its name in numpy and torch, ``combine`` folds two values with it.

    Bitwise ones are ``integers_only``; ``idempotent``: op(x, x) = x; ``divides``: the total is divided by n at the end.
    """

    name: str
    function: str
    integers_only: bool = False
    idempotent: bool = False
    divides: bool = False

    def combine(self, a: Any, b: Any) -> Any:
        import numpy as np

        return getattr(np, self.function)(a, b)


def _blocks(values: Any, n: int) -> list[Any]:
    if len(values) % n:
        raise ValueError(f"{len(values)} elements cannot be cut into {n} equal blocks")
    size = len(values) // n
    return [values[i * size : (i + 1) * size] for i in range(n)]


def _join(parts: Sequence[Any]) -> Any:
    import numpy as np

    return np.concatenate(list(parts))


def _all_reduce(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [functools.reduce(op, inputs)] * len(inputs)


def _all_gather(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [_join(inputs)] * len(inputs)


def _reduce_scatter(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return _blocks(functools.reduce(op, inputs), len(inputs))


def _all_to_all(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return _all_to_allv([_blocks(values, len(inputs)) for values in inputs], op, root)


def _all_to_allv(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [_join([blocks[rank] for blocks in inputs]) for rank in range(len(inputs))]


def _broadcast(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [inputs[root]] * len(inputs)


def _at_root(whole: Any, n: int, root: int) -> list[Any]:
    return [whole if rank == root else None for rank in range(n)]


def _reduce(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return _at_root(functools.reduce(op, inputs), len(inputs), root)


def _gather(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return _at_root(_join(inputs), len(inputs), root)


def _scatter(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return _blocks(inputs[root], len(inputs))


def _sendrecv(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [inputs[rank - 1] for rank in range(len(inputs))]


def _scan(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return list(itertools.accumulate(inputs, op))


def _barrier(inputs: Sequence[Values], op: Combine, root: int) -> list[Any]:
    return [None] * len(inputs)


def _log2(n: int) -> int:
    return (n - 1).bit_length()


def _same(n: int, count: int) -> tuple[int, int]:
    return count, count


def _gathers(n: int, count: int) -> tuple[int, int]:
    return count, n * count


def _scatters(n: int, count: int) -> tuple[int, int]:
    return n * count, count


def _exchanges(n: int, count: int) -> tuple[int, int]:
    return n * count, n * count


def _others(n: int) -> float:
    return (n - 1) / n


def _one(n: int) -> float:
    return 1.0


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective(
            "all_reduce", "Every rank ends with the reduction of all ranks' buffers.",
            False, True, False, "same", True, _same, "2(n-1)/n", lambda n: 2 * (n - 1) / n,
            lambda n: Bound(_log2(n), 2 * _others(n), _others(n)), _all_reduce, ("allreduce",),
        ),
        Collective(
            "all_gather", "Every rank ends with all ranks' blocks, in rank order.",
            False, False, True, "block of recv", True, _gathers, "(n-1)/n", _others,
            lambda n: Bound(_log2(n), _others(n), 0), _all_gather, ("allgather",),
        ),
        Collective(
            "reduce_scatter", "The reduction of all ranks' buffers is cut into n blocks; rank r ends with block r.",
            False, True, True, "block of send", True, _scatters, "(n-1)/n", _others,
            lambda n: Bound(_log2(n), _others(n), _others(n)), _reduce_scatter, ("reducescatter",),
        ),
        Collective(
            "all_to_all", "Block j of rank i arrives as block i of rank j.",
            False, False, True, None, True, _exchanges, "(n-1)/n", _others,
            lambda n: Bound(_log2(n), _others(n), 0), _all_to_all, ("alltoall",),
        ),
        Collective(
            "all_to_allv", "all_to_all with blocks of unequal length (--splits).",
            False, False, True, None, True, _exchanges, "1 (of the busiest rank's bytes)", _one,
            lambda n: Bound(_log2(n), 1, 0), _all_to_allv, ("alltoallv",), True,
        ),
        Collective(
            "broadcast", "Every rank ends with the root's buffer.",
            True, False, False, "same", False, _same, "1", _one,
            lambda n: Bound(_log2(n), 1, 0), _broadcast, ("bcast",),
        ),
        Collective(
            "reduce", "The root ends with the reduction of all ranks' buffers.",
            True, True, False, "same", False, _same, "1", _one,
            lambda n: Bound(_log2(n), 1, _others(n)), _reduce,
        ),
        Collective(
            "gather", "The root ends with all ranks' blocks, in rank order.",
            True, False, True, "block of recv", False, _gathers, "(n-1)/n", _others,
            lambda n: Bound(_log2(n), _others(n), 0), _gather,
        ),
        Collective(
            "scatter", "The root's buffer is cut into n blocks; rank r ends with block r.",
            True, False, True, "block of send", False, _scatters, "(n-1)/n", _others,
            lambda n: Bound(_log2(n), _others(n), 0), _scatter,
        ),
        Collective(
            "sendrecv", "Ring shift: every rank sends its buffer to rank+1 and receives that of rank-1.",
            False, False, False, None, False, _same, "1", _one,
            lambda n: Bound(1, 1, 0), _sendrecv,
        ),
        Collective(
            "scan", "Rank r ends with the reduction of the buffers of ranks 0..r (inclusive prefix).",
            False, True, False, "same", False, _same, "1", _one,
            lambda n: Bound(_log2(n), 1, _others(n)), _scan,
        ),
        Collective(
            "barrier", "No rank leaves before every rank has entered; latency only, no data.",
            False, False, False, None, True, lambda n, count: (0, 0), "-", lambda n: 0.0,
            lambda n: Bound(_log2(n), 0, 0), _barrier,
        ),
    )
}  # fmt: skip


def collective(name: str) -> Collective:
    """The row called ``name`` or an alias of it (``allreduce``, ``alltoall`` …)."""
    for row in COLLECTIVES.values():
        if name in (row.name, *row.aliases):
            return row
    raise UsageError(f"unknown collective '{name}'", f"one of {', '.join(COLLECTIVES)}")


# avg folds like sum and divides at the end; premul_sum folds inputs that were scaled by premul_factor first.
OPS: dict[str, Op] = {
    o.name: o
    for o in (
        Op("sum", "add"),
        Op("prod", "multiply"),
        Op("min", "minimum", idempotent=True),
        Op("max", "maximum", idempotent=True),
        Op("avg", "add", divides=True),
        Op("band", "bitwise_and", integers_only=True, idempotent=True),
        Op("bor", "bitwise_or", integers_only=True, idempotent=True),
        Op("bxor", "bitwise_xor", integers_only=True),
        Op("premul_sum", "add"),
    )
}


def premul_factor(rank: int) -> int:
    """What ``premul_sum`` multiplies rank's input by: 1 on even ranks, 2 on odd ones, as nccl-tests' mulsum does."""
    return 1 + rank % 2


def reduction(name: str) -> str:
    """The reduction called ``name``, by its proper name."""
    name = {"mulsum": "premul_sum"}.get(name, name)
    if name != "none" and name not in OPS:
        raise UsageError(f"unknown reduction '{name}'", f"one of {', '.join(OPS)}, or all")
    return name
