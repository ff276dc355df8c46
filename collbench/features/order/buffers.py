"""Buffers of one case at all its sizes: one allocation, so that a size or a place is not measured
by where its memory lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from collbench.run.backends import Backend
from collbench.run.memory import PAGE
from collbench.run.rank import payload
from collbench.run.rank.check import BITS
from collbench.suite.case import Case


class Views(NamedTuple):
    """A rank's buffers of one call, as numbers and as their bits."""

    send: torch.Tensor
    recv: torch.Tensor

    @property
    def send_bits(self) -> torch.Tensor:
        """What the rank gives, as integers."""
        return self.send.view(BITS[self.send.element_size()])

    @property
    def recv_bits(self) -> torch.Tensor:
        """What it gets, as integers."""
        return self.recv.view(BITS[self.recv.element_size()])


class Buffers:
    """Memory of a rank for the ``largest`` of all cases, out of place or in place, up to some
    elements off alignment."""

    def __init__(self, backend: Backend, largest: Case, shifts: Sequence[int]) -> None:
        length = max(largest.counts) + max(shifts, default=0)
        self._stride = -(-length * largest.type.size // PAGE) * PAGE
        raw = backend.allocate(2 * self._stride + PAGE)
        start = -raw.data_ptr() % PAGE
        self._memory = raw[start : start + 2 * self._stride]

    def cut(self, case: Case, rank: int, shift: int) -> Views:
        """The buffers of a case on this rank, so many elements off alignment."""
        kind = getattr(torch, case.type.torch)
        first, second = (
            self._memory[part * self._stride : (part + 1) * self._stride].view(kind)[shift:]
            for part in (0, 1)
        )
        sends, receives = case.counts
        if not case.in_place:
            return Views(first[:sends], second[:receives])
        placement = payload.in_place_offsets(case, rank)
        at_send, at_recv = placement[:2]
        return Views(first[at_send : at_send + sends], first[at_recv : at_recv + receives])
