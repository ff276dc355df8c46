"""Whether floats' sums come out alike, to the bit: digests of what a reduction makes of numbers that must be rounded.

The data that results are compared with (payload.py) add up exactly in any order; these do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from collbench.collectives import OPS
from collbench.payload import Piece
from collbench.suite import Case

TABLE = 1 << 16  # numbers, which then repeat
CHUNK = 1 << 24  # bytes


def rounds(case: Case) -> bool:
    """Whether the result depends on the order in which it is made."""
    return case.row.reduces and case.type.kind == "float" and not OPS[case.op].idempotent and case.size > 0


def fill(buffer: torch.Tensor, pieces: Sequence[Piece], seed: int, rank: int) -> None:
    """Puts what ``rank`` contributes into a row of floats: normally distributed, the same each time."""
    numbers = np.random.default_rng([seed, rank]).standard_normal(TABLE)
    values = torch.from_numpy(numbers).to(buffer.dtype).to(buffer.device)
    for piece in pieces:
        for at in range(piece.start, piece.start + piece.length, TABLE):
            part = buffer[at : min(at + TABLE, piece.start + piece.length)]
            part.copy_(values[: len(part)])


def of(buffer: torch.Tensor, pieces: Sequence[Piece]) -> str:
    """Of the bits of what was received, where that is defined."""
    found = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        of_bytes = buffer[piece.start : piece.start + piece.length].view(torch.uint8)
        for at in range(0, len(of_bytes), CHUNK):
            found.update(of_bytes[at : at + CHUNK].cpu().numpy().data)
    return found.hexdigest()


def together(parts: Sequence[str]) -> str:
    """One of several ranks'."""
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=8).hexdigest()
