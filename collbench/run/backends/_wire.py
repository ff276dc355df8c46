"""Reference algorithms over a library's point-to-point messages: ``ring@gloo``,
``double_tree@nccl``.

Everything is resolved before the clock starts: buffers are cut into views, and a call walks a flat
list of sends, receives and local operations. Long messages travel in several parts, so that one
part is reduced while the next is on its way: after each part of a step, that part's messages of the
following step are posted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collbench.core.program import Action, Bank, Step, Term
from collbench.run.backends import Call
from collbench.run.backends._compiled import Compiled, Spot
from collbench.run.backends._reducers import Operation, find_arithmetic, finish_mean, fold_values
from collbench.run.memory import PAGE
from collbench.suite.case import Case

HALFWAY = 40e3  # alpha / beta in bytes, of Gloo between processes of one machine

PART_BYTES = 1 << 20

MAX_PARTS = 8

Tensor = torch.Tensor

Post = Callable[[], list[Any]]  # starts a step's messages and returns their handles


class Messages(NamedTuple):
    """What is posted together: (tensor, peer) pairs; ``local`` is done once all have ended."""

    sends: list[tuple[Tensor, int]]
    recvs: list[tuple[Tensor, int]]
    local: list[Operation]


class Room:
    """Memory that all calls of a case share, since they run one after the other: scratch, and where
    messages land."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[object, Tensor] = {}

    def get(self, name: object, nbytes: int) -> Tensor:
        """A buffer of at least ``nbytes`` bytes, the same one for the same name."""
        if name not in self._buffers or len(self._buffers[name]) < nbytes:
            self._buffers[name] = torch.empty(nbytes + PAGE, dtype=torch.uint8, device=self._device)
        return self._buffers[name][:nbytes]


Start = Callable[[Messages, Any], Post]  # makes that of messages between the ranks of a group


def _post_singly(messages: Messages, group: Any, near: Collection[int]) -> Post:
    """By the process group's own methods: dist.isend costs more than a small message.

    A message to one of the ``near`` ranks, those of this machine, is announced before this rank
    says where it wants one itself, as programs do: where Gloo's threads share cores with ranks,
    the other order took up to five times as long. Across a link receives go
    first: word that a rank waits for data would queue behind its own data.
    """
    recvs = [partial(group.recv, [tensor], peer, 0) for tensor, peer in messages.recvs]
    sends = [
        (peer in near, partial(group.send, [tensor], peer, 0)) for tensor, peer in messages.sends
    ]
    early = [start for is_extra, start in sends if is_extra]
    starts = (*early, *recvs, *(start for is_extra, start in sends if not is_extra))

    def post() -> list[Any]:
        works = [start() for start in starts]
        return works[len(early) :] + works[: len(early)]

    return post


def _post_batch(messages: Messages, group: Any) -> Post:
    """All messages of a step as one group call, which NCCL needs lest they wait for each other."""
    at = partial(dist.get_global_rank, group)
    batch = [dist.P2POp(dist.irecv, tensor, at(peer), group) for tensor, peer in messages.recvs]
    batch += [dist.P2POp(dist.isend, tensor, at(peer), group) for tensor, peer in messages.sends]
    return lambda: dist.batch_isend_irecv(batch) if batch else []


def prepare_messages(
    case: Case,
    send: Tensor,
    recv: Tensor,
    rank: int,
    group: Any,
    room: Room,
    start: Start | None = None,
    halfway: float = HALFWAY,
    members: Sequence[int] = (),
    near: Collection[int] = (),
) -> Call:
    """The call that runs ``case.algorithm`` between the ranks of a process group, or of what
    ``start`` knows; or between some ``members`` of it. ``near`` are its ranks on this machine."""
    wire = _Wire(case, send, recv, rank, room, halfway, members or range(case.n))
    start = start or (
        _post_batch if recv.device.type != "cpu" else partial(_post_singly, near=near)
    )
    parts = [
        [(start(messages, group), tuple(messages.local)) for messages in part]
        for part in wire.parts
    ]
    numbered, finish = list(enumerate(parts)), wire.finish
    following = range(1, len(parts[0]) + 1)

    def run() -> None:
        under_way = [part[0][0]() for part in parts if part]
        for after in following:
            for number, part in numbered:
                for work in under_way[number]:
                    work.wait()
                for function, arguments in part[after - 1][1]:
                    function(*arguments)
                if after < len(part):
                    under_way[number] = part[after][0]()
        for function, arguments in finish:
            function(*arguments)

    return Call(run, None, wire.name)


class _Wire:
    def __init__(
        self,
        case: Case,
        send: Tensor,
        recv: Tensor,
        rank: int,
        room: Room,
        halfway: float,
        peers: Sequence[int],
    ) -> None:
        self._peers = peers
        self._compiled = Compiled(case, halfway, waits=False)
        self.name = self._compiled.name
        self._has_data = self._compiled.schedule.has_data
        self._rank, self._device, self._room = rank, recv.device, room
        self._arithmetic = find_arithmetic(case.op, case.type, recv.device)
        row = self._compiled.row_bytes
        self._banks = {Bank.INPUT: send.view(torch.uint8), Bank.OUTPUT: recv.view(torch.uint8)}
        for bank in self._compiled.program.banks - self._banks.keys():
            self._banks[bank] = room.get(bank, row)
        self._token = room.get("token", 1)
        parts = self._parts(row)
        steps = self._compiled.program.ranks[rank]
        self.parts = [
            [self._messages(step, part, parts) for step in steps] for part in range(parts)
        ]
        self.finish = list(
            finish_mean(self._arithmetic, case.op, self._at(self._compiled.output(rank)), case.n)
        )

    def _parts(self, row: int) -> int:
        """Parts in which each message travels. Not on a GPU: there the library pipelines by
        itself."""
        cell = row // self._compiled.schedule.width
        return 1 if self._device.type != "cpu" else max(1, min(MAX_PARTS, cell // PART_BYTES))

    def _messages(self, step: Step, part: int, parts: int) -> Messages:
        messages = Messages([], [], [])
        for to, bank, cell, cells in step.sends:
            spots = self._compiled.spots(Term(self._rank, bank, cell), cells, part, parts)
            messages.sends.extend(
                (self._at(spot), self._peers[to]) for spot in spots if self._travels(spot)
            )
        for action in step.actions:
            self._receive(action, part, parts, messages)
        return messages

    def _travels(self, spot: Spot) -> bool:
        return spot.stop > spot.start or not self._has_data

    def _at(self, spot: Spot) -> Tensor:
        return self._banks[spot.bank][spot.start : spot.stop] if self._has_data else self._token

    def _receive(self, action: Action, part: int, parts: int, messages: Messages) -> None:
        """Values that are only copied arrive in place, those to be combined in a landing buffer."""
        bank, cell, cells, terms = action
        places = list(self._compiled.spots(Term(self._rank, bank, cell), cells, part, parts))
        values: list[list[Tensor]] = [[] for _ in places]
        for term in terms:
            spots = self._compiled.spots(term, cells, part, parts)
            for location, spot, operands in zip(places, spots, values, strict=True):
                if term.rank == self._rank:
                    operands.append(self._at(spot))
                    continue
                is_apart = len(terms) > 1 and self._has_data
                landing = (part, len(messages.recvs)), location.stop - location.start
                operands.append(self._room.get(*landing) if is_apart else self._at(location))
                if self._travels(location):
                    messages.recvs.append((operands[-1], self._peers[term.rank]))
        if self._has_data:
            for location, operands in zip(places, values, strict=True):
                messages.local.extend(fold_values(self._arithmetic, self._at(location), operands))
