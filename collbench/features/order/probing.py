"""The orders of all elements of a buffer, found together: pieces of it that have answered alike so
far ask the same question in one call."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from collbench.core.sums.probes import Probe, Scale
from collbench.core.sums.search import Finding, Question
from collbench.features.order.buffers import Views
from collbench.run.rank.check import decode_values, encode_values
from collbench.run.rank.control import Control

MAX_PIECES = 4096

MOST_CUTS = 2 * MAX_PIECES  # places at which the results of one call may change

VOTED = 1 << 20  # elements that are voted on at once, for want of memory

SCATTERED = f"elements are added in more than {MAX_PIECES:,} different pieces"

NOWHERE = Finding(None, None, None, 0, "all", reason=SCATTERED)

Search = Generator[Question, float, Any]

MakeSearch = Callable[[], Search]


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


class _State:
    """How far the search has come of elements that have answered alike: what they ask next, or what
    was found. All pieces of such elements share it."""

    def __init__(
        self,
        make_search: MakeSearch,
        parent: _State | None = None,
        answer: float = 0.0,
        search: Search | None = None,
    ) -> None:
        self._make_search, self._parent, self._answer = make_search, parent, answer
        self._next: dict[float, _State] = {}
        self.question: Question | None = None
        self.finding: Any = None
        self._search: Search | None = None
        try:
            if search is None:
                search = make_search()
                self.question = next(search)
                for value in self._list_answers():
                    self.question = search.send(value)
            else:
                self.question = search.send(answer)
            self._search = search
        except StopIteration as end:
            self.question, self.finding = None, end.value

    def go_on(self, answer: float) -> _State:
        """The state after an answer, the same one each time."""
        key = math.nan if math.isnan(answer) else answer  # which a dict finds by its identity
        if key not in self._next:
            search, self._search = self._search, None  # it goes with the first, others begin anew
            self._next[key] = _State(self._make_search, self, answer, search)
        return self._next[key]

    def _list_answers(self) -> list[float]:
        """All answers so far."""
        answers, state = [], self
        while state._parent is not None:
            answers.append(state._answer)
            state = state._parent
        return answers[::-1]


class _Piece(NamedTuple):
    """Elements of this rank's output that have answered alike so far."""

    first: int
    last: int
    state: _State


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
        pieces = [] if self._offset is None else [_Piece(0, length - 1, _State(make_search))]
        scattered: list[FoundPiece] = []
        while covering := self._agree(pieces):
            result = self._ask(covering, thrice)
            if pieces:
                pieces = self._read(pieces, covering, result)
                if not 0 < len(pieces) <= MAX_PIECES:
                    pieces, scattered = [], [FoundPiece(0, length - 1, NOWHERE)]
        return scattered or _list_found(pieces)

    def _agree(self, pieces: Sequence[_Piece]) -> list[Asked]:
        """What is asked of which elements in the next call: where ranks ask differently, the first
        rank's question; the others wait."""
        offset = self._offset or 0
        own = _join_asked(
            Asked(piece.first + offset, piece.last + offset, piece.state.question)
            for piece in pieces
            if piece.state.question
        )
        everyone = self._control.collect(own)
        if all(asked == everyone[0] for asked in everyone):
            everyone = everyone[:1]
        by_rank = [[_decode_asked(asked) for asked in of_rank] for of_rank in everyone]
        return by_rank[0] if len(by_rank) == 1 else _overlay(by_rank)

    def _ask(self, covering: Sequence[Asked], thrice: bool) -> torch.Tensor:
        """The bits of this rank's output; of three calls where asked for, those that two have."""

        def call() -> torch.Tensor:
            self._fill(covering)
            self._issue()
            self.calls += 1
            return self._views.recv_bits

        return vote_calls(call) if thrice else call()

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
    ) -> list[_Piece]:
        """The pieces, answered where their question was asked, and cut where answers differ; none
        where results change too often."""
        offset = self._offset or 0
        starts = [asked.first - offset for asked in covering]
        differ = (result[1:] != result[:-1]).nonzero().ravel() + 1
        if len(differ) > MOST_CUTS:
            return []
        cuts = sorted({*differ.tolist(), *starts})
        parts: list[tuple[_Piece, bool]] = []
        for piece in pieces:
            inner = cuts[bisect_left(cuts, piece.first + 1) : bisect_left(cuts, piece.last + 1)]
            for first, after in zip([piece.first, *inner], [*inner, piece.last + 1], strict=True):
                index = bisect_left(starts, first + 1) - 1
                asked = covering[index] if index >= 0 else None
                is_answered = bool(
                    asked
                    and piece.state.question
                    and first <= asked.last - offset
                    and asked.question == piece.state.question
                )
                parts.append((_Piece(first, after - 1, piece.state), is_answered))
        at = torch.tensor([part.first for part, _ in parts], device=result.device)
        values = decode_values(result[at], self._views.recv).tolist()
        return _join_pieces(
            part._replace(state=part.state.go_on(value)) if is_answered else part
            for (part, is_answered), value in zip(parts, values, strict=True)
        )


def vote_calls(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A copy of the bits that two of three calls give, element by element."""
    return vote_bits([call().clone(), call().clone(), call()])


def vote_bits(results: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bits that two of three results have, element by element, in place of the first; its own
    where no two agree."""
    for a, b, c in zip(*(torch.split(result, VOTED) for result in results), strict=True):
        a.copy_(torch.where(b == c, b, a))
    return results[0]


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
    return _join_asked(covering)


def _join_asked(covering: Iterable[Asked]) -> list[Asked]:
    """The same questions, those to neighbours that are asked the same as one."""
    joined: list[Asked] = []
    for asked in covering:
        if joined and joined[-1].last + 1 == asked.first and joined[-1][2] == asked.question:
            joined[-1] = joined[-1]._replace(last=asked.last)
        else:
            joined.append(asked)
    return joined


def _join_pieces(pieces: Iterable[_Piece]) -> list[_Piece]:
    """The same pieces, neighbours that have answered alike as one."""
    joined: list[_Piece] = []
    for piece in pieces:
        if joined and joined[-1].state is piece.state:
            joined[-1] = joined[-1]._replace(last=piece.last)
        else:
            joined.append(piece)
    return joined


def _list_found(pieces: Sequence[_Piece]) -> list[FoundPiece]:
    """What was found, neighbours of one order joined."""
    joined: list[FoundPiece] = []
    for first, last, state in pieces:
        if joined and joined[-1].finding == state.finding:
            joined[-1] = joined[-1]._replace(last=last)
        else:
            joined.append(FoundPiece(first, last, state.finding))
    return joined
