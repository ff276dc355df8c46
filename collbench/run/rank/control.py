"""What ranks tell each other besides the traffic under test: numbers, JSON and a barrier, on groups
of its own.

Nothing received here is unpickled: times travel as int64 arrays, everything else as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from collbench.core.errors import CannotRun, first_line
from collbench.core.groups import Groups
from collbench.machine import environment
from collbench.machine.variables import set_defaults
from collbench.run.launch.connection import Connection
from collbench.run.launch.meeting import Request
from collbench.survive.encoding import encode_json

JSON_LIMIT = 64 << 20  # a plan of 100,000 cases is about 40 MB

SHORT = 256  # bytes that say how long a value is, and hold it where they suffice

LONG = timedelta(
    days=1
)  # libraries never give up by themselves: whoever watches the board ends a hung run

# of Gloo's since torch 2.7; before, n ranks make 2*n*n requests, for values of 8*n bytes
_BULK = {"GLOO_ENABLE_STORE_V2_API": "1", "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1"}


def batch_store_requests() -> AbstractContextManager[None]:
    """Have Gloo's groups that are made within ask their store for the addresses of 128 ranks at a
    time, each as short in a large world as in a small one. The user's settings stand, and those of
    processes that are started later are as they were."""
    return set_defaults(_BULK)


class Control:
    """The control group of a world of ``n`` ranks, or of one of the ``groups`` that it is divided
    into: then rank 0 is the group's, and ``n`` the group's size. Every method is called by all
    ranks."""

    def __init__(self, rank: int, n: int) -> None:
        self.rank = rank
        self.n = n
        self.groups: Groups = (range(n),)
        self.number = 0  # of these, this one
        self._group: Any = None
        self._kept: dict[str, Any] = {}  # process groups by backend
        self._token_out = torch.zeros(1, dtype=torch.int32)
        self._token_in = torch.zeros(1, dtype=torch.int32)

    def divided(self, groups: Groups) -> Control:
        """The control group of this rank's group (of a world's ranks)."""
        number = next(number for number, members in enumerate(groups) if self.rank in members)
        divided_control = Control(groups[number].index(self.rank), len(groups[number]))
        divided_control.groups, divided_control.number = groups, number
        divided_control._group = divided_control.open_group("gloo")
        return divided_control

    def among(self, groups: Groups) -> Control:
        """The control of this rank's group, like ``divided``, for groups that messages of the
        world's own process group join. ``number`` is the group's, or beyond all groups' where this
        rank is in none."""
        places = {
            rank: (number, index)
            for number, group in enumerate(groups)
            for index, rank in enumerate(group)
        }
        number, index = places.get(self.rank, (len(groups), 0))
        control = Control(index, len(groups[0]))
        control.groups, control.number = groups, number
        return control

    @property
    def idle(self) -> bool:
        """Whether this rank is in no group."""
        return self.number >= len(self.groups)

    @property
    def members(self) -> Sequence[int]:
        """This group's ranks, as the world counts them."""
        return self.groups[self.number]

    def open_group(self, backend: str) -> Any:
        """A new process group of ``backend`` for each group; this rank's is returned. Names are
        counted alike on all ranks, and so never used twice, only if every rank takes part in making
        every group."""
        with batch_store_requests():
            if len(self.groups) == 1:
                return dist.new_group(backend=backend, timeout=LONG)
            groups_made = [
                dist.new_group(list(members), backend=backend, timeout=LONG)
                for members in self.groups
            ]
        return groups_made[self.number]

    def keep_group(self, backend: str) -> Any:
        """The process group of ``backend`` that is opened once and stays open: where one goes,
        torch 2.6 can wait for ever, holding Python's lock, for a thread of the group that wants
        it."""
        if backend not in self._kept:
            self._kept[backend] = self.open_group(backend)
        return self._kept[backend]

    def leave(self) -> None:
        """Done with a group's; the world's stays."""
        if self._group is not None:
            dist.destroy_process_group(self._group)

    def gather(self, values: np.ndarray) -> np.ndarray | None:
        """All ranks' equally shaped int64 arrays, stacked, at rank 0; None elsewhere."""
        tensor = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
        if self.n == 1:
            return tensor.numpy()[None]
        parts = [torch.empty_like(tensor) for _ in range(self.n)] if self.rank == 0 else None
        dist.gather(tensor, parts, dst=self.members[0], group=self._group)
        return np.stack([p.numpy() for p in parts]) if parts else None

    def decide(self, values: list[int]) -> list[int]:
        """Rank 0's integers, at every rank. The others pass a list of the same length."""
        tensor = torch.tensor(values, dtype=torch.int64)
        if self.n > 1:
            dist.broadcast(tensor, src=self.members[0], group=self._group)
        return [int(v) for v in tensor]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON-able value, at every rank."""
        payload = encode_json(value) if self.rank == 0 else b""
        (length,) = self.decide([len(payload)])
        if length > JSON_LIMIT:
            raise ValueError(
                f"a control message of {length} bytes is over the limit of {JSON_LIMIT}"
            )
        buffer = torch.zeros(length, dtype=torch.uint8)
        if self.rank == 0:
            buffer.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        if self.n > 1 and length:
            dist.broadcast(buffer, src=self.members[0], group=self._group)
        return msgspec.json.decode(buffer.numpy().tobytes())

    def collect(self, value: Any) -> list[Any]:
        """Every rank's JSON-able value, in rank order, at every rank."""
        payload = encode_json(value)
        message = len(payload).to_bytes(8, "little") + payload
        everyone = self._everyones(message, SHORT)
        lengths = [int.from_bytes(text[:8], "little") for text in everyone]
        if max(lengths) > JSON_LIMIT:
            raise ValueError(
                f"a control message of {max(lengths)} bytes is over the limit of {JSON_LIMIT}"
            )
        if max(lengths) > SHORT - 8:
            everyone = self._everyones(message, 8 + max(lengths))
        return [
            msgspec.json.decode(text[8 : 8 + length])
            for text, length in zip(everyone, lengths, strict=True)
        ]

    @contextmanager
    def refusing_alike(self) -> Iterator[None]:
        """Raise CannotRun on all ranks where any of them does within, or has no memory left on its
        device: the first rank's. All ranks come to the end of it, so that none waits for one that
        has raised."""
        error = None
        try:
            yield
        except CannotRun as e:
            error = e
        except torch.cuda.OutOfMemoryError as e:
            where = f"rank {self.members[self.rank]} on {environment.host_name()}"
            room, _, _ = first_line(e).partition(". Of the allocated")  # behind it: torch's own use
            error = CannotRun(f"{where}: {room}", "take smaller sizes")
        problem = [error.message, error.hint] if error else None
        for reported in filter(None, self.collect(problem)):
            raise CannotRun(*reported) from error

    def _everyones(self, message: bytes, size: int) -> list[bytes]:
        """The first ``size`` bytes that each rank has to tell, at every rank."""
        buffer = torch.zeros(size, dtype=torch.uint8)
        buffer[: len(message)] = torch.frombuffer(bytearray(message[:size]), dtype=torch.uint8)
        parts = [buffer] if self.n == 1 else [torch.empty_like(buffer) for _ in range(self.n)]
        if self.n > 1:
            dist.all_gather(parts, buffer, group=self._group)
        return [part.numpy().tobytes() for part in parts]

    def barrier(self) -> None:
        """Dissemination: in round k every rank signals rank + 2**k; after ceil(log2 n) rounds all
        have heard of all."""
        distance = 1
        while distance < self.n:
            ahead, behind = (
                self.members[(self.rank + step) % self.n] for step in (distance, -distance)
            )
            sent = dist.isend(self._token_out, ahead, self._group)
            dist.recv(self._token_in, behind, self._group)
            if sent is not None:
                sent.wait()
            distance *= 2


def make_world_control() -> Control:
    """The control group of all ranks, whatever groups they are divided into; of this process alone
    where no world is open."""
    if not dist.is_initialized():
        return Control(0, 1)
    return Control(dist.get_rank(), dist.get_world_size())


class Store(dist.Store):  # type: ignore[name-defined, misc]
    """A meeting as torch.distributed wants it: Gloo and NCCL tell each other their addresses here.

    Who makes one holds on to it as long as there are process groups: torch does not keep Python's
    side of it.
    """

    def __init__(self, connection: Connection, limit: timedelta = timedelta(days=1)) -> None:
        super().__init__()
        self._connection, self._limit = connection, limit

    def set(self, key: str, value: bytes | str) -> None:
        """Set the value of a key."""
        self._connection.ask(Request("set", [key], _encode_bytes(value)))

    def get(self, key: str) -> bytes:
        """The value of a key, once it is set. Raises TimeoutError after ``timeout``."""
        return self._connection.ask(Request("get", [key]), self._limit.total_seconds()).value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of keys, once all are set. Raises TimeoutError after ``timeout``."""
        values: list[bytes] = []
        while len(values) < len(keys):
            request = Request("get_many", keys[len(values) :])
            values += self._connection.ask(request, self._limit.total_seconds()).values
        return values

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        """Set the values of keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def append(self, key: str, value: bytes | str) -> None:
        """Append to the value of a key, empty at first."""
        self._connection.ask(Request("append", [key], _encode_bytes(value)))

    def has_extended_api(self) -> bool:
        """Whether there are ``append``, ``multi_get`` and ``multi_set``."""
        return True

    def add(self, key: str, number: int) -> int:
        """Add to the number of a key, 0 at first; the sum."""
        return self._connection.ask(Request("add", [key], number=number)).number

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set the value of a key where it is ``expected``; an unset key counts as empty. The value
        after that, ``expected`` where there is none."""
        return self._connection.ask(
            Request("swap", [key], _encode_bytes(desired), _encode_bytes(expected))
        ).value

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are set."""
        return bool(self._connection.ask(Request("check", keys)).number)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set. Raises TimeoutError after ``timeout``."""
        self._connection.ask(Request("wait", keys), (timeout or self._limit).total_seconds())

    def delete_key(self, key: str) -> bool:
        """Delete a key; whether it was there."""
        return bool(self._connection.ask(Request("delete", [key])).number)

    def num_keys(self) -> int:
        """The number of keys that are set."""
        return self._connection.ask(Request("count")).number

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long ``get`` and ``wait`` wait, a day at first."""
        self._limit = timeout

    @property
    def timeout(self) -> timedelta:
        """How long ``get`` and ``wait`` wait."""
        return self._limit

    def clone(self) -> Store:
        """Requests of all threads take turns."""
        return self


def _encode_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
