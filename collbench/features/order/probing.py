"""The orders of all elements of a buffer, found together: pieces of it that have answered alike so
far ask the same question in one call."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from collbench.core.sums.probes import Probe, Scale
from collbench.core.sums.search import Finding, Question
from collbench.features.order.buffers import Views, decode_values, encode_values
from collbench.run.rank.control import Control

MAX_PIECES = 4096
SCATTERED = f"elements are added in more than {MAX_PIECES:,} different pieces"

MakeSearch = Callable[[], Generator[Question, float, Any]]


class Asked(NamedTuple):
    """Elements of the input, ``first`` to ``last``, of which one question is asked."""

    first: int
    last: int
    question: Question


class FoundPiece(NamedTuple):
    """Elements of this rank's output that have one order."""

    first: int
    last: int
    finding: Any


class _Piece:
    """Elements of this rank's output that have answered alike so far, and what they ask next."""

    def __init__(self, first: int, last: int, make_search: MakeSearch) -> None:
        self.first, self.last = first, last
        self._make_search, self._search = make_search, make_search()
        self._answers: list[float] = []
        self.question: Question | None = None
        self.finding: Finding | None = None
        self._go_on(None)

    def answer(self, value: float) -> None:
        """Go on with the answer to the question."""
        self._answers.append(value)
        self._go_on(value)

    def split(self, first: int, last: int) -> _Piece:
        """A part of it, which has given the same answers."""
        part = _Piece(first, last, self._make_search)
        for value in self._answers:
            part.answer(value)
        return part

    def _go_on(self, value: float | None) -> None:
        try:
            self.question = next(self._search) if value is None else self._search.send(value)
        except StopIteration as end:
            self.question, self.finding = None, end.value


class Prober:
    """Finds the orders in the outputs of one call. ``issue`` makes it and returns when it is done;
    this rank's output begins at element ``offset`` of the input, None on a rank without one, which
    takes part in all calls."""

    def __init__(
        self,
        views: Views,
        issue: Callable[[], object],
        control: Control,
        offset: int | None,
        op: str,
    ) -> None:
        self._views, self._issue, self._control = views, issue, control
        self._offset, self._op = offset, op
        self.calls = 0

    def find(self, make_search: MakeSearch, thrice: bool = False) -> list[FoundPiece]:
        """The pieces of this rank's output, neighbours of one order joined. ``thrice``: each
        question is asked three times, and answered as two of the calls have it."""
        length = len(self._views.recv)
        pieces = [] if self._offset is None else [_Piece(0, length - 1, make_search)]
        scattered: list[FoundPiece] = []
        while covering := self._agree(pieces):
            result = self._ask(covering, thrice)
            pieces = list(self._read(pieces, covering, result)) if pieces else []
            if len(pieces) > MAX_PIECES:
                pieces = []
                scattered = [
                    FoundPiece(0, length - 1, Finding(None, None, None, 0, "all", reason=SCATTERED))
                ]
        return scattered or _join_pieces(pieces)

    def _agree(self, pieces: Sequence[_Piece]) -> list[Asked]:
        """What is asked of which elements in the next call: where ranks ask differently, the first
        rank's question; the others wait."""
        offset = self._offset or 0
        own = [
            (piece.first + offset, piece.last + offset, piece.question)
            for piece in pieces
            if piece.question
        ]
        everyone = self._control.collect(own)
        if all(asked == everyone[0] for asked in everyone):
            everyone = everyone[:1]
        by_rank = [[_decode_asked(asked) for asked in of_rank] for of_rank in everyone]
        return by_rank[0] if len(by_rank) == 1 else _overlay(by_rank)

    def _ask(self, covering: Sequence[Asked], thrice: bool) -> torch.Tensor:
        """The bits of this rank's output; of three calls where asked for, those that two have."""
        results = []
        for _ in range(3 if thrice else 1):
            self._fill(covering)
            self._issue()
            self.calls += 1
            results.append(self._views.recv_bits.clone() if thrice else self._views.recv_bits)
        return vote_bits(results) if thrice else results[0]

    def _fill(self, covering: Sequence[Asked]) -> None:
        send = self._views.send_bits
        if len(covering) > 1 or (covering[0].first, covering[0].last) != (0, len(send) - 1):
            send.zero_()
        values = [
            probe.value(self._control.rank, scale, self._op) for _, _, (probe, scale) in covering
        ]
        codes = encode_values(torch.tensor(values, dtype=torch.float64), self._views.send).tolist()
        for asked, code in zip(covering, codes, strict=True):
            send[asked.first : asked.last + 1].fill_(code)

    def _read(
        self, pieces: Sequence[_Piece], covering: Sequence[Asked], result: torch.Tensor
    ) -> Iterator[_Piece]:
        """The pieces, answered where their question was asked, and cut where answers differ."""
        offset = self._offset or 0
        cuts = ((result[1:] != result[:-1]).nonzero().ravel() + 1).tolist()
        cuts = sorted({*cuts, *(asked.first - offset for asked in covering)})
        parts: list[tuple[_Piece, int, int, bool]] = []
        starts = [asked.first - offset for asked in covering]
        for piece in pieces:
            inner = cuts[bisect_left(cuts, piece.first + 1) : bisect_left(cuts, piece.last + 1)]
            for first, after in zip([piece.first, *inner], [*inner, piece.last + 1], strict=True):
                index = bisect_left(starts, first + 1) - 1
                asked = covering[index] if index >= 0 else None
                is_covered = asked is not None and first <= asked.last - offset
                is_answered = bool(
                    piece.question and is_covered and asked and asked.question == piece.question
                )
                parts.append((piece, first, after - 1, is_answered))
            if len(parts) > 4 * MAX_PIECES:
                break
        at = torch.tensor([first for _, first, _, _ in parts], device=result.device)
        values = decode_values(result[at], self._views.recv).tolist()
        for (piece, first, last, is_answered), value in zip(parts, values, strict=True):
            is_whole = (first, last) == (piece.first, piece.last)
            part = piece if is_whole else piece.split(first, last)
            if is_answered:
                part.answer(value)
            yield part


def vote_bits(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bits that two of three results have, element by element; all ones, which is no number,
    where no two agree."""
    a, b, c = results
    lone = torch.full_like(a, -1)
    return torch.where(a == b, a, torch.where((c == a) | (c == b), c, lone))


def _decode_asked(asked: Sequence[Any]) -> Asked:
    first, last, ((pair, units), scale) = asked
    return Asked(first, last, Question(Probe(tuple(pair), tuple(units)), Scale(*scale)))


def _overlay(by_rank: Sequence[Sequence[Asked]]) -> list[Asked]:
    """What is asked of each element by the first rank that asks anything of it."""
    edges = sorted({edge for rank in by_rank for a in rank for edge in (a.first, a.last + 1)})
    covering: list[Asked] = []
    firsts = [[asked.first for asked in rank] for rank in by_rank]
    for first, after in pairwise(edges):
        for rank, starts in zip(by_rank, firsts, strict=True):
            index = bisect_left(starts, first + 1) - 1
            if index >= 0 and first <= rank[index].last:
                covering.append(Asked(first, after - 1, rank[index].question))
                break
    joined: list[Asked] = []
    for asked in covering:
        if joined and joined[-1].last + 1 == asked.first and joined[-1][2] == asked.question:
            joined[-1] = joined[-1]._replace(last=asked.last)
        else:
            joined.append(asked)
    return joined


def _join_pieces(pieces: Sequence[_Piece]) -> list[FoundPiece]:
    joined: list[FoundPiece] = []
    for piece in pieces:
        assert piece.finding is not None
        if joined and joined[-1].finding == piece.finding:
            joined[-1] = joined[-1]._replace(last=piece.last)
        else:
            joined.append(FoundPiece(piece.first, piece.last, piece.finding))
    return joined
