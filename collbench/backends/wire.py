"""Reference algorithms over a library's point-to-point messages: ``ring@gloo``, ``double_tree@nccl``.

Everything is resolved before the clock starts: buffers are cut into views, and a call walks a flat list of sends,
receives and local operations. Long messages travel in several parts, so that one part is reduced while the next is on
its way: after each part of a step, that part's messages of the following step are posted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collbench.backends import Call
from collbench.compiled import Compiled, Spot
from collbench.plan import PAGE
from collbench.program import Action, Bank, Step, Term
from collbench.reducers import Operation, arithmetic, fold, mean
from collbench.suite import Case

HALFWAY = 40e3  # alpha / beta in bytes, of Gloo between processes of one machine
PART_BYTES = 1 << 20
MAX_PARTS = 8

Tensor = torch.Tensor


class _Messages(NamedTuple):
    """What is posted together: (tensor, peer) pairs; ``local`` is done once all have ended."""

    sends: list[tuple[Tensor, int]]
    recvs: list[tuple[Tensor, int]]
    local: list[Operation]


class Done:
    """The handle of a call that has ended when it returns."""

    def wait(self) -> None:
        pass


class _Posted(NamedTuple):
    """A message under way, by the process group's own methods: dist.isend costs more than a small message."""

    group: Any

    def __call__(self, messages: _Messages) -> list[Any]:
        works = [self.group.recv([tensor], peer, 0) for tensor, peer in messages.recvs]
        works += [self.group.send([tensor], peer, 0) for tensor, peer in messages.sends]
        return works


class _Batched(NamedTuple):
    """All messages of a step as one group call, which NCCL needs lest they wait for each other."""

    group: Any

    def __call__(self, messages: _Messages) -> list[Any]:
        batch = [dist.P2POp(dist.irecv, tensor, peer, self.group) for tensor, peer in messages.recvs]
        batch += [dist.P2POp(dist.isend, tensor, peer, self.group) for tensor, peer in messages.sends]
        return dist.batch_isend_irecv(batch) if batch else []


def prepare(case: Case, send: Tensor, recv: Tensor, rank: int, group: Any) -> Call:
    """The call that runs ``case.algorithm`` between the ranks of a process group."""
    wire = _Wire(case, send, recv, rank)
    post = _Batched(group) if recv.device.type == "cuda" else _Posted(group)
    parts, finish = wire.parts, wire.finish
    numbered = list(enumerate(parts))
    following = range(1, len(parts[0]) + 1)

    def run() -> None:
        under_way = [post(part[0]) for part in parts if part]
        for after in following:
            for number, part in numbered:
                for work in under_way[number]:
                    work.wait()
                for function, arguments in part[after - 1].local:
                    function(*arguments)
                if after < len(part):
                    under_way[number] = post(part[after])
        for function, arguments in finish:
            function(*arguments)

    def submit() -> Done:
        run()
        return Done()

    return Call(run, submit, wire.name)


class _Wire:
    """Compiles one case for one rank."""

    def __init__(self, case: Case, send: Tensor, recv: Tensor, rank: int) -> None:
        self._compiled = Compiled(case, HALFWAY)
        self.name = self._compiled.name
        self._has_data = self._compiled.schedule.has_data
        self._rank, self._device = rank, recv.device
        self._arithmetic = arithmetic(case.op, case.type, recv.device)
        row = self._compiled.row_bytes(rank)
        self._banks = {Bank.INPUT: send.view(torch.uint8), Bank.OUTPUT: recv.view(torch.uint8)}
        for bank in self._compiled.program.banks - self._banks.keys():
            self._banks[bank] = self._empty(row)
        self._token = self._empty(1)
        self._pool: dict[tuple[int, int], Tensor] = {}
        parts = self._parts(row)
        steps = self._compiled.program.ranks[rank]
        self.parts = [[self._messages(step, part, parts) for step in steps] for part in range(parts)]
        self.finish = list(mean(self._arithmetic, case.op, self._at(self._compiled.output(rank)), case.n))

    def _parts(self, row: int) -> int:
        """In how many parts each message travels. Not on a GPU: there the library pipelines by itself."""
        cell = row // self._compiled.schedule.width
        return 1 if self._device.type != "cpu" else max(1, min(MAX_PARTS, cell // PART_BYTES))

    def _empty(self, length: int) -> Tensor:
        return torch.empty(length, dtype=torch.uint8, device=self._device)

    def _messages(self, step: Step, part: int, parts: int) -> _Messages:
        messages = _Messages([], [], [])
        for to, bank, cell, cells in step.sends:
            spots = self._compiled.spots(Term(self._rank, bank, cell), cells, part, parts)
            messages.sends.extend((self._at(spot), to) for spot in spots if self._travels(spot))
        for action in step.actions:
            self._receive(action, part, parts, messages)
        return messages

    def _travels(self, spot: Spot) -> bool:
        return spot.stop > spot.start or not self._has_data

    def _at(self, spot: Spot) -> Tensor:
        return self._banks[spot.bank][spot.start : spot.stop] if self._has_data else self._token

    def _receive(self, action: Action, part: int, parts: int, messages: _Messages) -> None:
        """Values that are only copied arrive in place, those to be combined in a landing buffer."""
        bank, cell, cells, terms = action
        places = list(self._compiled.spots(Term(self._rank, bank, cell), cells, part, parts))
        values: list[list[Tensor]] = [[] for _ in places]
        for term in terms:
            spots = self._compiled.spots(term, cells, part, parts)
            for place, spot, mine in zip(places, spots, values, strict=True):
                if term.rank == self._rank:
                    mine.append(self._at(spot))
                    continue
                apart = len(terms) > 1 and self._has_data
                mine.append(self._landing(part, len(messages.recvs), place) if apart else self._at(place))
                if self._travels(place):
                    messages.recvs.append((mine[-1], term.rank))
        if self._has_data:
            for place, mine in zip(places, values, strict=True):
                messages.local.extend(fold(self._arithmetic, self._at(place), mine))

    def _landing(self, part: int, number: int, place: Spot) -> Tensor:
        """Each part's landing buffers serve one step after the other."""
        length = place.stop - place.start
        if (part, number) not in self._pool or len(self._pool[part, number]) < length:
            self._pool[part, number] = self._empty(length + PAGE)
        return self._pool[part, number][:length]
