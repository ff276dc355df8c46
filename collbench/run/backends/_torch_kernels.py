"""torch's kernels on symmetric memory, as operators of torch.ops.symm_mem, and what they can do on
no machine. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from collbench.core.backend_info import NCCL_WHEELS, BackendInfo
from collbench.run.backends._torch_refusal import refuse_gpu_here
from collbench.suite.case import Case

if TYPE_CHECKING:
    from torch import Tensor

LANE = 16  # bytes that a thread moves at once at most

LEAST = 4  # and at least


class Site(NamedTuple):
    """The group's name, and ``aside(tensor)``: symmetric memory of a tensor's length and
    alignment."""

    group: str
    aside: Callable[[Tensor], Tensor]


class Way(NamedTuple):
    """How a collective is done: an op of torch.ops.symm_mem and its arguments; whether the input is
    copied to the output first; the numbers of ranks it was compiled for, none for any."""

    op: str
    arguments: Callable[[Case, Tensor, Tensor, Site], tuple[Any, ...]]
    copies: bool = False
    worlds: tuple[int, ...] = ()


def _to_output(case: Case, send: Tensor, recv: Tensor, at: Site) -> tuple[Any, ...]:
    return send, "sum", at.group, recv


def _by_way_of_another(case: Case, send: Tensor, recv: Tensor, at: Site) -> tuple[Any, ...]:
    return at.aside(send), send, "sum", at.group, recv


def _where_it_is(case: Case, send: Tensor, recv: Tensor, at: Site) -> tuple[Any, ...]:
    return recv, "sum", at.group


def _to_root(case: Case, send: Tensor, recv: Tensor, at: Site) -> tuple[Any, ...]:
    return send, "sum", case.root, at.group, recv


def _gathering(case: Case, send: Tensor, recv: Tensor, at: Site) -> tuple[Any, ...]:
    return send, at.group, recv


def _scattering(case: Case, send: Tensor, recv: Tensor, at: Site) -> tuple[Any, ...]:
    return send, at.group, False, recv


_SCATTER = Way("reduce_scatter_out", _scattering, worlds=(2, 4, 8))

_GATHER = Way("multimem_all_gather_out", _gathering)

_REDUCE = Way("multimem_one_shot_reduce_out", _to_root)

# (collective, in place) -> how. In place, a block that is a rank's own is touched by nobody else,
# nor is a root's input by anybody before it is read; whole inputs are.
WAYS: dict[str, dict[tuple[str, bool], Way]] = {
    "torch_one_shot": {
        ("all_reduce", False): Way("one_shot_all_reduce_out", _to_output),
        ("all_reduce", True): Way("one_shot_all_reduce_copy_out", _by_way_of_another),
    },
    "torch_two_shot": {
        ("all_reduce", False): Way("two_shot_all_reduce_", _where_it_is, copies=True),
        ("all_reduce", True): Way("two_shot_all_reduce_", _where_it_is),
        ("reduce_scatter", False): _SCATTER,
        ("reduce_scatter", True): _SCATTER,
    },
    "torch_multimem": {
        ("all_reduce", False): Way("multimem_all_reduce_", _where_it_is, copies=True),
        ("all_reduce", True): Way("multimem_all_reduce_", _where_it_is),
        ("all_gather", False): _GATHER,
        ("all_gather", True): _GATHER,
    },
    "torch_multimem_one_shot": {
        ("all_reduce", False): Way("multimem_one_shot_all_reduce_out", _to_output),
        ("reduce", False): _REDUCE,
        ("reduce", True): _REDUCE,
    },
}


def refuse(case: Case) -> str:
    """Why no machine runs ``case`` with the kernels of its backend; else an empty string."""
    name, ways = case.backend, WAYS[case.backend]
    way = ways.get((case.collective, case.in_place))
    if way is None:
        collectives = dict.fromkeys(collective for collective, _ in ways)
        if case.collective in collectives:
            return f"{name} reads what in place is overwritten (--place out)"
        return f"{name} has no {case.collective}, only {', '.join(collectives)}"
    numbers = ", ".join(map(str, way.worlds)) or "2 or more"
    block, nbytes = (pick(case.counts) * case.type.size for pick in (min, max))
    lane = math.gcd(nbytes, LANE)  # threads move what divides the whole buffer
    reasons = {
        "is one algorithm of torch's; reference algorithms run on symm": (
            case.algorithm != "native"
        ),
        f"is for {numbers} ranks, not {case.n}": (
            case.n < 2 or case.n not in (way.worlds or (case.n,))
        ),
        f"can only sum, not {case.op}": case.op not in ("none", "sum"),
        f"adds float and bfloat16, not {case.dtype}": (
            case.row.reduces and case.dtype not in ("float", "bfloat16")
        ),
        f"takes multiples of {LEAST} bytes, not {block}": (block % max(LEAST, case.type.size) != 0),
        (
            f"moves {lane} bytes at once, which blocks of {block} are no multiple of "
            f"(--align {LANE})"
        ): block % lane != 0,
    }
    return next((f"{name} {reason}" for reason, holds in reasons.items() if holds), "")


def describe(name: str, about: str) -> BackendInfo:
    """The entry of one of these backends."""
    return BackendInfo(
        about=about,
        packages=NCCL_WHEELS,
        settings=("NCCL_",),
        gpu="each",
        groups="none",
        background="none",
        refuse=refuse,
        here=partial(refuse_gpu_here, name),
    )
