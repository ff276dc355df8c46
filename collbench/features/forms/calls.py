"""The calls of both forms on one rank, with the data that they give and must give back.

Data are bytes drawn by rank, part and filling, so that a rank draws only what it gives and what it
receives. Sums of them wrap, and so are exact in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from collbench.features.forms.measurable import Form
from collbench.run.backends import Call
from collbench.run.rank.tensor_collectives import all_gather, reduce_scatter

Run = Callable[[], object]


class Place(NamedTuple):
    """Where calls are issued from."""

    rank: int
    n: int
    group: Any
    device: Any
    seed: int

    def draw(self, rank: int, filling: int, nbytes: int, part: int = 0) -> np.ndarray:
        """The bytes that a rank gives; where it gives several parts, one of them."""
        return np.random.default_rng([self.seed, filling, rank, part]).integers(
            0, 256, nbytes, dtype=np.uint8
        )

    def empty(self, *shape: int) -> torch.Tensor:
        """A buffer of bytes with all bits set."""
        return torch.full(shape, 255, dtype=torch.uint8, device=self.device)


class Side(NamedTuple):
    """One of the two forms: the call, where its result is once it is stored, how its input is
    filled, and what its result must be; nothing where the rank receives none."""

    call: Call
    received: torch.Tensor
    fill: Callable[[int], None]
    expect: Callable[[int], np.ndarray]


def make_sides(form: Form, place: Place) -> tuple[Side, Side]:
    """The form asked for, and the plain one."""
    if form.together:
        return _coalesced(form, place, True), _coalesced(form, place, False)
    return _of_objects(form, place), _of_tensors(form, place)


def _expect_objects(form: Form, place: Place, filling: int) -> np.ndarray:
    """What a rank has in the end: of scatter its part of rank 0's, of gather all at rank 0."""
    nbytes = form.nbytes
    if form.collective == "scatter":
        return place.draw(0, filling, nbytes, place.rank)
    if form.collective == "broadcast":
        return place.draw(0, filling, nbytes)
    if form.collective == "gather" and place.rank:
        return np.empty(0, np.uint8)
    return np.concatenate([place.draw(rank, filling, nbytes) for rank in range(place.n)])


def _draw_input(form: Form, place: Place, filling: int) -> np.ndarray:
    """What a rank gives: of scatter, rank 0 a part for each."""
    parts = place.n if form.collective == "scatter" and place.rank == 0 else 1
    return np.concatenate(
        [place.draw(place.rank, filling, form.nbytes, part) for part in range(parts)]
    )


def _of_objects(form: Form, place: Place) -> Side:
    """The call with bytes as Python has them: pickled, sent with their length before them, and
    made anew."""
    given: list[bytes] = []
    results: list[Any] = []
    received = place.empty(len(_expect_objects(form, place, 0)))
    is_root = place.rank == 0

    def run() -> None:
        if form.collective == "all_gather":
            results[:] = [None] * place.n
            dist.all_gather_object(results, given[0], group=place.group)
        elif form.collective == "broadcast":
            results[:] = given if is_root else [None]
            dist.broadcast_object_list(results, src=0, group=place.group)
        elif form.collective == "gather":
            results[:] = [None] * place.n if is_root else []
            gathered = results if is_root else None
            dist.gather_object(given[0], gathered, dst=0, group=place.group)
        else:
            results[:] = [None]
            scattered = given if is_root else None
            dist.scatter_object_list(results, scattered, src=0, group=place.group)

    def fill(filling: int) -> None:
        values = _draw_input(form, place, filling)
        given[:] = [part.tobytes() for part in np.split(values, len(values) // form.nbytes)]
        received.fill_(255)

    def store() -> None:
        joined = b"".join(result for result in results if result is not None)
        if len(received) and len(joined) == len(received):
            received.copy_(torch.frombuffer(bytearray(joined), dtype=torch.uint8))

    call = Call(run, None, store=store)
    return Side(call, received, fill, lambda filling: _expect_objects(form, place, filling))


def _of_tensors(form: Form, place: Place) -> Side:
    """The same bytes as tensors, whose sizes all ranks know."""
    is_root = place.rank == 0
    send = place.empty(len(_draw_input(form, place, 0)))
    received = place.empty(len(_expect_objects(form, place, 0)))
    group = place.group
    runs: dict[str, Run] = {
        "all_gather": lambda: all_gather(received, send, group=group),
        "broadcast": lambda: dist.broadcast(received, 0, group=group),
        "gather": lambda: dist.gather(
            send, list(received.chunk(place.n)) if is_root else None, 0, group=group
        ),
        "scatter": lambda: dist.scatter(
            received, list(send.chunk(place.n)) if is_root else None, 0, group=group
        ),
    }

    def fill(filling: int) -> None:
        send.copy_(torch.from_numpy(_draw_input(form, place, filling)))
        received.fill_(255)
        if form.collective == "broadcast" and is_root:
            received.copy_(send)

    call = Call(runs[form.collective], None)
    return Side(call, received, fill, lambda filling: _expect_objects(form, place, filling))


def _draw_part(form: Form, place: Place, rank: int, filling: int, part: int = 0) -> np.ndarray:
    """The bytes that a rank gives, a row for each call; of reduce_scatter one receiver's part."""
    shape = form.together, form.nbytes
    return place.draw(rank, filling, math.prod(shape), part).reshape(shape)


def _expect_coalesced(form: Form, place: Place, filling: int) -> np.ndarray:
    if form.collective == "sendrecv":
        return _draw_part(form, place, (place.rank - 1) % place.n, filling).reshape(-1)
    part = place.rank if form.collective == "reduce_scatter" else 0
    given = (_draw_part(form, place, rank, filling, part) for rank in range(place.n))
    if form.collective == "all_gather":
        return np.concatenate([*given], axis=1).reshape(-1)
    total = np.zeros((form.together, form.nbytes), np.uint8)
    for values in given:
        total += values
    return total.reshape(-1)


def _coalesced(form: Form, place: Place, in_one: bool) -> Side:
    """All calls in one where ``in_one``, else one after the other."""
    k, n, name, group = form.together, place.n, form.collective, place.group
    parts = n if name == "reduce_scatter" else 1
    send = place.empty(k, parts * form.nbytes)
    received = place.empty(k, form.nbytes * (n if name == "all_gather" else 1))
    rows = list(zip(send.unbind(), received.unbind(), strict=True))
    singles: list[Run]
    if name == "sendrecv":
        ahead, behind = ((place.rank + step) % n for step in (1, -1))
        pairs = [
            [
                dist.P2POp(dist.isend, out, dist.get_global_rank(group, ahead), group),
                dist.P2POp(dist.irecv, into, dist.get_global_rank(group, behind), group),
            ]
            for out, into in rows
        ]
        batches = [[op for pair in pairs for op in pair]] if in_one else pairs
        singles = [_make_batch(batch) for batch in batches]
    else:
        singles = [_make_single(name, out, into, group) for out, into in rows]

    def run_apart() -> None:
        for single in singles:
            single()

    def run_coalesced() -> None:
        with _coalescing_manager(group):
            for single in singles:
                single()

    def fill(filling: int) -> None:
        for part, block in enumerate(send.chunk(parts, dim=1)):
            block.copy_(torch.from_numpy(_draw_part(form, place, place.rank, filling, part)))
        received.fill_(255)
        if name == "all_reduce":  # in place, as torch has it
            received.copy_(send)

    run = run_coalesced if in_one and name != "sendrecv" else run_apart
    call = Call(run, None)
    return Side(
        call, received.view(-1), fill, lambda filling: _expect_coalesced(form, place, filling)
    )


def _make_batch(batch: list[Any]) -> Run:
    def run() -> None:
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    return run


def _make_single(name: str, out: torch.Tensor, into: torch.Tensor, group: Any) -> Run:
    if name == "all_reduce":
        return lambda: dist.all_reduce(into, group=group)
    if name == "all_gather":
        return lambda: all_gather(into, out, group=group)
    return lambda: reduce_scatter(into, out, group=group)


def count_wrong(side: Side, filling: int) -> tuple[int, int, tuple[int, int, int] | None]:
    """Bytes compared, how many of them are wrong, and the first such: its index, what it is, and
    what it must be."""
    side.call.store()
    expected = side.expect(filling)
    got = side.received.cpu().numpy()
    bad = np.flatnonzero(got != expected)
    first = (int(bad[0]), int(got[bad[0]]), int(expected[bad[0]])) if len(bad) else None
    return len(expected), len(bad), first
