"""Fills, poisons and checks the buffers of running ranks, bit for bit, on whatever device they are.

The content of every element is payload's; this module plays it in torch, one window of a stream at
a time, so that a buffer of any size needs memory for a few windows only.

Whether floats' sums come out alike, to the bit: digests of what a reduction makes of numbers
that must be rounded.

The data that results are compared with (payload.py) add up exactly in any order; these do not.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from collbench.core.dtypes import DTYPES, OPS
from collbench.run.rank import payload
from collbench.run.rank.calls import flip_bit
from collbench.run.rank.payload import WINDOW, Piece
from collbench.suite.case import Case

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Difference(NamedTuple):
    """An element that is not what it must be: its index in the buffer, and both bit patterns,
    unsigned."""

    at: int
    got: int
    expected: int


class Checked(NamedTuple):
    """Elements looked at, how many of them are wrong, and the first such."""

    checked: int
    wrong: int
    first: Difference | None


class _Span(NamedTuple):
    """Part of a piece within one window: from ``start`` in the buffer, ``low .. high`` in window
    ``window``."""

    start: int
    piece: Piece
    window: int
    low: int
    high: int

    @property
    def length(self) -> int:
        """Its elements."""
        return self.high - self.low

    def view_in(self, buffer: torch.Tensor) -> torch.Tensor:
        """Its part of the buffer."""
        return buffer[self.start : self.start + self.length]


def _list_spans(pieces: Sequence[Piece]) -> Iterator[_Span]:
    for piece in pieces:
        done = 0
        while done < piece.length:
            window, low = divmod(piece.offset + done, WINDOW)
            high = min(WINDOW, low + piece.length - done)
            yield _Span(piece.start + done, piece, window, low, high)
            done += high - low


@functools.cache
def _places_on(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(payload.list_places().copy()).to(device)


class _Windows:
    """What windows hold by one table of scenarios' values: slices of one row, made where ``length``
    elements are worth it, or looked up in the table each time."""

    def __init__(self, table: torch.Tensor, length: int) -> None:
        self._table, self._places = table, _places_on(table.device)
        worth = length > 2 * WINDOW
        self._row = torch.index_select(table, 0, self._places) if worth else None

    def read_slice(self, begin: int, length: int) -> torch.Tensor:
        """The bits of ``length`` elements from place ``begin`` on, not to be written to."""
        if self._row is not None:
            return self._row[begin : begin + length]
        return torch.index_select(self._table, 0, self._places[begin : begin + length])


class Checker:
    """What one rank sends and must receive in one case.

    Buffers are one-dimensional contiguous tensors of the case's type, at least as long as the
    layout; an in-place case passes the slices that ``payload.in_place_offsets`` names. ``slot``
    tells rotating buffers apart, their contents differ. ``premultiplies``: the library's own avg
    multiplies by 1/n, which a reference algorithm's never does. ``beat`` is called for every window
    of a buffer, so that whoever watches sees large ones move. ``seed`` alone draws the scenarios,
    which cases share; with ``key`` it says which of them each element plays, so that no two cases
    share data.
    """

    def __init__(
        self,
        case: Case,
        seed: int,
        rank: int,
        device: torch.device | str,
        premultiplies: bool = False,
        beat: Callable[[], object] = lambda: None,
        key: int = 0,
    ) -> None:
        self._beat = beat
        self.case, self.seed, self.bits = case, seed + key, BITS[case.type.size]
        self.sends = payload.send_layout(case, rank)
        self.receives = payload.recv_layout(case, rank)
        self.tolerance = (
            payload.find_tolerance(case.op, case.type, case.n, premultiplies)
            if case.row.reduces and case.algorithm == "native"
            else 0
        )
        tables, pieces = payload.make_tables(case, seed), self.receives or ()
        longest = max(sum(piece.length for piece in side) for side in (self.sends, pieces))
        self._send = self._make_windows(device, tables.send(rank), longest)
        self._expected = {
            ranks: self._make_windows(device, tables.expected(ranks), longest)
            if ranks
            else self._send
            for ranks in {piece.ranks for piece in pieces}
        }

    def fill_send(self, buffer: torch.Tensor, slot: int = 0) -> None:
        """Writes what this rank contributes; elements past the layout stay as they are."""
        view = self._view(buffer, self.sends)
        for span in _list_spans(self.sends):
            span.view_in(view).copy_(self._read_span(span, slot, self._send))

    def poison(self, buffer: torch.Tensor) -> None:
        """Fills with NaN, or for integers the top bit: never the result of signed arithmetic here,
        rarely of others."""
        buffer.view(self.bits).fill_(
            -1 if self.case.type.kind == "float" else torch.iinfo(self.bits).min
        )

    def fill_recv(self, buffer: torch.Tensor) -> None:
        """Writes what this rank must receive."""
        pieces = self.receives or ()
        view = self._view(buffer, pieces)
        for span in _list_spans(pieces):
            expected = self._read_span(span, 0, self._expected[span.piece.ranks])
            span.view_in(view).copy_(expected)

    def check_recv(self, buffer: torch.Tensor, slot: int = 0) -> Checked:
        """Compares with what this rank must have received, where that is defined; (0, 0, None)
        elsewhere."""
        pieces = self.receives or ()
        view = self._view(buffer, pieces)
        counts = [_count_set(self._wrong(span, slot, view)) for span in _list_spans(pieces)]
        wrong = torch.stack(counts) if counts else torch.zeros(1)
        total = int(wrong.sum())
        checked = sum(piece.length for piece in pieces)
        if not total:
            return Checked(checked, 0, None)
        bad = next(
            span for span, count in zip(_list_spans(pieces), wrong.tolist(), strict=True) if count
        )
        return Checked(checked, total, self._first(bad, slot, view))

    def _first(self, span: _Span, slot: int, view: torch.Tensor) -> Difference:
        offset = int(self._wrong(span, slot, view).nonzero()[0])
        expected = self._read_span(span, slot, self._expected[span.piece.ranks])
        mask = (1 << self.case.type.size * 8) - 1
        index = span.start + offset
        return Difference(index, int(view[index]) & mask, int(expected[offset]) & mask)

    def _wrong(self, span: _Span, slot: int, view: torch.Tensor) -> torch.Tensor:
        """Which elements of the span differ by more than the tolerance."""
        got = span.view_in(view)
        expected = self._read_span(span, slot, self._expected[span.piece.ranks])
        if not self.tolerance:
            return got != expected
        # neighbouring floats of one sign differ by one as integers, and what is expected here is
        # never near zero
        return (got < expected - self.tolerance) | (got > expected + self.tolerance)

    def _read_span(self, span: _Span, slot: int, windows: _Windows) -> torch.Tensor:
        """The bits that a span holds by a table's windows; told to whoever watches."""
        self._beat()
        place = payload.find_place(self.seed, slot, span.piece.stream, span.window)
        return windows.read_slice(place + span.low, span.length)

    def _view(self, buffer: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        needed = max((piece.start + piece.length for piece in pieces), default=0)
        if buffer.dim() != 1 or not buffer.is_contiguous() or buffer.numel() < needed:
            raise ValueError(
                f"a contiguous row of at least {needed} elements is needed, not"
                f" {tuple(buffer.shape)}"
            )
        return buffer.view(self.bits)

    def _make_windows(
        self, device: torch.device | str, table: payload.Array, length: int
    ) -> _Windows:
        bits = table.view(f"i{self.case.type.size}").copy()
        return _Windows(torch.from_numpy(bits).to(device), length)


def _count_set(mask: torch.Tensor) -> torch.Tensor:
    """Count the true elements; a GPU is not waited for."""
    if mask.device.type == "cpu":  # numpy counts a window in a tenth of torch's time
        return torch.tensor(np.count_nonzero(mask.numpy()))
    return mask.count_nonzero()


PROBED = 1000  # elements, of which one is then wrong


def why_blind(dtype: str, device: torch.device | str) -> str:
    """Why the comparison shows nothing on this device, where a bit is flipped in data that are
    right; else an empty string."""
    probes = [("broadcast", "none", 1)]
    if DTYPES[dtype].kind == "float":
        probes.append(("all_reduce", "avg", 3))  # whose results are compared with a tolerance
    for collective, op, n in probes:
        size = PROBED * DTYPES[dtype].size
        case = Case(collective=collective, backend="", n=n, nbytes=size, dtype=dtype, op=op)
        if why := _why_blind(Checker(case, 1, 0, device, premultiplies=True), device):
            return f"{why} ({PROBED} elements of {dtype})"
    return ""


def _why_blind(checker: Checker, device: torch.device | str) -> str:
    buffer = torch.empty(PROBED, dtype=getattr(torch, checker.case.type.torch), device=device)
    checker.fill_recv(buffer)
    if wrong := checker.check_recv(buffer).wrong:
        return f"{wrong} elements that are right were found wrong"
    flip_bit(buffer)
    result = checker.check_recv(buffer)
    if result.first is None:
        return "a flipped bit was not found"
    return "" if (result.wrong, result.first.at) == (1, 0) else "a flipped bit was found elsewhere"


TABLE = 1 << 16  # numbers, which then repeat

CHUNK = 1 << 24  # bytes


def is_rounded(case: Case) -> bool:
    """Whether the result depends on the order in which it is made."""
    return (
        case.row.reduces
        and case.type.kind == "float"
        and not OPS[case.op].idempotent
        and case.size > 0
    )


def encode_values(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The bits of float64 ``values`` in the type of a buffer, which has each of them, as its
    integers on its device."""
    typed = values.to(like.dtype)
    return typed.view(BITS[like.element_size()]).to(like.device)


def decode_values(bits: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Bits of a buffer's type as float64 on the host."""
    return bits.cpu().view(like.dtype).to(torch.float64)


def fill_floats(buffer: torch.Tensor, pieces: Sequence[Piece], seed: int, rank: int) -> None:
    """Puts what ``rank`` contributes into a row of floats: normally distributed, the same each
    time."""
    numbers = np.random.default_rng([seed, rank]).standard_normal(TABLE)
    values = torch.from_numpy(numbers).to(buffer.dtype).to(buffer.device)
    for piece in pieces:
        for at in range(piece.start, piece.start + piece.length, TABLE):
            part = buffer[at : min(at + TABLE, piece.start + piece.length)]
            part.copy_(values[: len(part)])


def digest_bits(buffer: torch.Tensor, pieces: Sequence[Piece]) -> str:
    """A digest of the bits that were received, where the collective defines them."""
    digest = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        of_bytes = buffer[piece.start : piece.start + piece.length].view(torch.uint8)
        for at in range(0, len(of_bytes), CHUNK):
            digest.update(of_bytes[at : at + CHUNK].cpu().numpy().data)
    return digest.hexdigest()


def join_digests(parts: Sequence[str]) -> str:
    """One digest of several ranks' digests."""
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=8).hexdigest()
