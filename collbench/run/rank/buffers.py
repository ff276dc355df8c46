"""The buffers that a case's calls read and write on one rank, and calls on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from collbench.run.backends import Backend, Call
from collbench.run.plan import PAGE
from collbench.run.rank import payload
from collbench.run.rank.measure import nothing
from collbench.suite.case import Case


class Buffers(NamedTuple):
    """One slot's views: what the call reads and writes, and in place the one buffer behind both."""

    send: torch.Tensor
    recv: torch.Tensor
    whole: torch.Tensor | None


Slot = list[Buffers]  # one entry for each rank that this process holds


def allocate(
    backend: Backend, case: Case, held: Sequence[int], unalign: int, slots: int
) -> list[Slot]:
    """Page-aligned buffers (shifted by ``unalign`` elements), in place as views of one; contents
    are undefined."""
    kind = getattr(torch, case.type.torch)
    placements = [payload.in_place_offsets(case, rank) if case.in_place else None for rank in held]
    lengths = [[placement.total] if placement else list(case.counts) for placement in placements]
    strides = [
        [-(-(length + unalign) * kind.itemsize // PAGE) * PAGE for length in mine]
        for mine in lengths
    ]
    raw = backend.allocate(sum(map(sum, strides)) * slots + PAGE)
    at = -raw.data_ptr() % PAGE
    found: list[Slot] = []
    for _ in range(slots):
        found.append([])
        for placement, mine, steps in zip(placements, lengths, strides, strict=True):
            views = []
            for length, stride in zip(mine, steps, strict=True):
                start = at + unalign * kind.itemsize
                views.append(raw[start : start + length * kind.itemsize].view(kind))
                at += stride
            if placement:
                send, recv = (
                    views[0][o : o + c] for o, c in zip(placement, case.counts, strict=False)
                )
                views = [send, recv, *views]
            found[-1].append(Buffers(views[0], views[1], views[2] if placement else None))
    return found


def prepare(backend: Backend, case: Case, slot: Slot, virtual: bool) -> Call:
    """A call on the buffers of a slot: this rank's, or all ranks' where they are virtual."""
    if virtual:
        return backend.prepare_all(case, [each.send for each in slot], [each.recv for each in slot])
    if not slot:  # a rank that is in no group
        return Call(nothing, None)
    ((send, recv, _),) = slot
    return backend.prepare(case, send, recv)
