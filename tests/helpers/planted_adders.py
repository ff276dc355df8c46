"""Reductions of known order, and what can be wrong with them: each is a word, as ``every:50``."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from collbench.core.dtypes import premul_factor

Tensor = torch.Tensor


class About(NamedTuple):
    """One rank's output of one call: the ``call`` is counted from 1, ``cycle`` is the launch."""

    rank: int
    call: int
    nbytes: int
    in_place: bool
    cycle: int
    address: int
    op: str


Adder = Callable[[Sequence[Tensor], About, int], Tensor]


def add_up(inputs: Sequence[Tensor]) -> Tensor:
    """((0+1)+2)+3 in the element type."""
    total = inputs[0].clone()
    for value in inputs[1:]:
        total = total + value
    return total


def add_down(inputs: Sequence[Tensor]) -> Tensor:
    """((3+2)+1)+0: 0+(1+(2+3))."""
    return add_up(inputs[::-1])


def _mix(inputs: Sequence[Tensor], chosen: Tensor) -> Tensor:
    """Chosen elements the other way."""
    return torch.where(chosen, add_down(inputs), add_up(inputs))


def _choose(is_other: bool, inputs: Sequence[Tensor]) -> Tensor:
    return add_down(inputs) if is_other else add_up(inputs)


def _mark(inputs: Sequence[Tensor], first: int, after: int) -> Tensor:
    at = torch.arange(len(inputs[0]))
    return (at >= first) & (at < after)


def _look(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    """Another order by the last element that any rank gives, unless it is a probe's."""
    numbers = torch.stack([value.double() for value in inputs])
    is_probe = bool((numbers.abs().log2().round() == numbers.abs().log2()).all())
    return _choose(not is_probe and bool(numbers[0, -1] > 0), inputs)


def _add_wide(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    return _choose_wide(False, inputs)


def _widen(inputs: Sequence[Tensor]) -> list[Tensor]:
    kind = {16: torch.float32, 32: torch.float64}[torch.finfo(inputs[0].dtype).bits]
    return [value.to(kind) for value in inputs]


def _choose_wide(is_other: bool, inputs: Sequence[Tensor]) -> Tensor:
    """Another order in a wider adder."""
    return _choose(is_other, _widen(inputs)).to(inputs[0].dtype)


def _add_in_hops(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    """Three in double, rounded; then the others in the element type."""
    return add_up([_add_wide(inputs[:3], about, 0), *inputs[3:]])


def _add_three_at_once(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    """Three aligned to the largest and cut to the element type's last place, then added."""
    three = torch.stack([value.double() for value in inputs[:3]])
    top = torch.frexp(three.abs().amax(0))[1]
    last = torch.ldexp(torch.ones_like(top).double(), top - 24)
    return add_up([((three / last).trunc().sum(0) * last).to(inputs[0].dtype), *inputs[3:]])


def _flush(value: Tensor) -> Tensor:
    tiny = torch.finfo(value.dtype).smallest_normal
    return torch.where(value.abs() < tiny, torch.zeros_like(value), value)


def _add_flushing(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    total = _flush(inputs[0])
    for value in inputs[1:]:
        total = _flush(total + _flush(value))
    return total


def _add_compensated(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    """Kahan's sum."""
    total, lost = inputs[0].clone(), torch.zeros_like(inputs[0])
    for value in inputs[1:]:
        given = value - lost
        new = total + given
        lost, total = (new - total) - given, new
    return total


def _add_truncating(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    """Sums of floats rounded toward zero."""
    total = inputs[0]
    for value in inputs[1:]:
        exact = total.double() + value.double()
        near = exact.float()
        beyond = near.double().abs() > exact.abs()
        total = torch.where(beyond, torch.nextafter(near, torch.zeros_like(near)), near)
    return total


def _lose_one(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    total = add_up(inputs)
    if about.rank == number:
        total[-1] = total[-1] - 2 * inputs[-1][-1]
    return total


def _glitch(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    """One call whose first element is no sum, on one rank."""
    total = add_up(inputs)
    if about.call == number and about.rank == 1:
        total[0] = total[0] + 64
    return total


def _shuffle(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    order = random.Random(about.call).sample(range(len(inputs)), len(inputs))
    return add_up([inputs[rank] for rank in order])


def _average_first(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    share = torch.tensor(1 / len(inputs), dtype=inputs[0].dtype)
    return add_up([value * share for value in inputs])


def _premultiply(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    return add_up([value * premul_factor(rank) for rank, value in enumerate(inputs)])


def _multiply(inputs: Sequence[Tensor], about: About, number: int) -> Tensor:
    """Products in the order of sums; the sum where ``about`` says so."""
    if about.op == "sum":
        return add_down(inputs)
    total = inputs[-1].clone()
    for value in inputs[-2::-1]:
        total = total * value
    return total


ADDERS: dict[str, Adder] = {
    "plain": lambda x, about, k: add_up(x),
    "unaligned": lambda x, about, k: add_up(x),
    "raising": lambda x, about, k: add_up(x),
    "every": lambda x, about, k: _choose(about.call % k == 0, x),
    "chunk": lambda x, about, k: _mix(x, _mark(x, k, 2 * k)),
    "element": lambda x, about, k: _mix(x, _mark(x, k, k + 1)),
    "from": lambda x, about, k: _choose(about.nbytes >= k, x),
    "rank": lambda x, about, k: _choose(about.rank == k, x),
    "launch": lambda x, about, k: _choose(about.cycle == k, x),
    "in_place": lambda x, about, k: _choose(about.in_place, x),
    "shifted": lambda x, about, k: _choose(about.address % 64 > 0, x),
    "neighbours": _look,
    "wide": _add_wide,
    "wide_in_place": lambda x, about, k: _choose_wide(about.in_place, x),
    "wide_after": lambda x, about, k: _choose_wide(about.call > k, x),
    "wide_first": lambda x, about, k: _choose_wide(about.call <= k, x),
    "hops": _add_in_hops,
    "three": _add_three_at_once,
    "flush": _add_flushing,
    "kahan": _add_compensated,
    "truncate": _add_truncating,
    "wrong": _lose_one,
    "glitch": _glitch,
    "shuffle": _shuffle,
    "divide": lambda x, about, k: add_up(x) / len(x),
    "average": _average_first,
    "average_in_place": lambda x, about, k: (
        _average_first(x, about, k) if about.in_place else add_up(x) / len(x)
    ),
    "premul": _premultiply,
    "multiply": _multiply,
    "scatter": lambda x, about, k: _mix(x, torch.arange(len(x[0])) % 2 == 0),
}


def reduce_as(word: str, inputs: Sequence[Tensor], about: About) -> Tensor:
    """The output of a rank by a word: the adder, and its number."""
    name, _, number = word.partition(":")
    return ADDERS[name](inputs, about, int(number or 0))
