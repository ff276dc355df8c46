"""MPI: the library's own collectives on CPU buffers, and reference algorithms by its messages
(``ring@mpi``).

What is timed calls the library's functions themselves, as a C program does, with arguments that
were made before the clock and, where library_calls can, no Python between calls; all else goes
through mpi4py: messages of algorithms and steps, calls left to themselves, and what has more
elements than an int counts.
MPI is initialised for the main thread only, which makes all calls, and works on a communicator of
this backend's own; control messages never pass through it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from collbench.core.errors import CannotRun
from collbench.records.types import Choice
from collbench.run.backends import Base, Call, Message, _wire
from collbench.run.backends._mpi_names import DATATYPES, REDUCTIONS
from collbench.run.mpi_library import cancel_finalise, finalise_at_exit, initialise_mpi
from collbench.run.rank.library_calls import LibraryCall, join_calls
from collbench.suite.case import Case

if TYPE_CHECKING:
    from mpi4py import MPI


# alpha / beta in bytes: about 1 us, and 5 GB/s, of Open MPI and MPICH in the memory of one machine
HALFWAY = 5e3

MOST = (1 << 31) - 1  # elements to a call, by the int that MPI 3 has for them

Tensor = torch.Tensor

# Each collective's function and its arguments in C's order, where counts by rank stand for their
# displacements too. mpi4py's methods, whose non-blocking twins are named alike (Iallreduce), take
# them in that order, with counts and type in the buffers.
CALLS = {
    "all_reduce": ("Allreduce", "send recv count type op comm"),
    "all_gather": ("Allgather", "send count type recv count type comm"),
    "reduce_scatter": ("Reduce_scatter_block", "send recv count type op comm"),
    "all_to_all": ("Alltoall", "send block type recv block type comm"),
    "all_to_allv": ("Alltoallv", "send counts_to type recv counts_from type comm"),
    "broadcast": ("Bcast", "recv count type root comm"),
    "reduce": ("Reduce", "send recv count type op root comm"),
    "gather": ("Gather", "send count type recv count type root comm"),
    "scatter": ("Scatter", "send count type recv count type root comm"),
    "sendrecv": ("Sendrecv", "send count type next tag recv count type previous tag comm status"),
    "scan": ("Scan", "send recv count type op comm"),
    "barrier": ("Barrier", "comm"),
}

# functions that messages are made of
MESSAGES = {
    "Send": "buffer count type peer tag comm",
    "Recv": "buffer count type peer tag comm status",
    "Isend": "buffer count type peer tag comm request",
    "Irecv": "buffer count type peer tag comm request",
    "Waitall": "number requests statuses",
}

# components that are used among ranks of one host instead of coll_tuned, by their priorities
BEFORE_TUNED = ("sm", "adapt", "acoll", "xhc", "ucc", "hcoll")

_UNEVEN = {"send": "counts_to", "recv": "counts_from"}

_PASSED = (*_UNEVEN, "op", "root", "next", "previous", "tag")  # to mpi4py too

Values = dict[str, Any]  # of the words in CALLS: tensors, numbers, lists of them, mpi4py's objects


def bind_functions(mpi: Any) -> dict[str, Any]:
    """The functions of CALLS and MESSAGES by name, of the very library that mpi4py is linked to.
    They take C's arguments; what they return is not looked at, as each communicator has an error
    handler. Raises OSError or AttributeError where they cannot be found.

    Calls let go of the GIL: the thread that watches a launcher's ranks must run beside one that
    never returns.
    """
    library = ctypes.CDLL(mpi.__file__)
    names = [*(name for name, _ in CALLS.values()), *MESSAGES]
    functions = {name: library[f"MPI_{name}"] for name in names}
    for function in functions.values():
        function.restype = None  # 0.05 us less than a number that somebody looks at
    return functions


class Variables:
    """The library's control variables, by MPI's tool interface (MPI_T). Raises AttributeError where
    it has none."""

    def __init__(self, mpi: Any) -> None:
        self._library = ctypes.CDLL(mpi.__file__)
        self._library.MPI_T_init_thread(mpi.THREAD_SINGLE, ctypes.byref(ctypes.c_int()))

    def value(self, name: str) -> int | None:
        """A number, or the number of a choice; None where there is no such variable."""
        if (index := self._index(name)) is None:
            return None
        handle, count, buffer = ctypes.c_void_p(), ctypes.c_int(), (ctypes.c_int * 2)()
        given = ctypes.byref(handle), ctypes.byref(count)
        if self._library.MPI_T_cvar_handle_alloc(index, None, *given) or count.value != 1:
            return None
        self._library.MPI_T_cvar_read(handle, buffer)
        self._library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        return buffer[0]

    def chosen(self, name: str) -> str:
        """The value of a choice, in the library's word for it; empty where it has none."""
        index, value = self._index(name), self.value(name)
        if index is None or value is None:
            return ""
        choices, text, room = ctypes.c_void_p(), ctypes.create_string_buffer(99), ctypes.c_int(0)
        length, unused = ctypes.byref(room), ctypes.byref(ctypes.c_int())
        self._library.MPI_T_cvar_get_info(
            index, None, length, unused, None, ctypes.byref(choices), None, length, unused, unused
        )
        number, item = ctypes.c_int(), ctypes.c_int()
        if self._library.MPI_T_enum_get_info(choices, ctypes.byref(number), None, length):
            return ""
        for choice_index in range(number.value):
            room.value = len(text)
            self._library.MPI_T_enum_get_item(
                choices, choice_index, ctypes.byref(item), text, length
            )
            if item.value == value:
                return text.value.decode()
        return ""

    def _index(self, name: str) -> int | None:
        index = ctypes.c_int()
        failed = self._library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index))
        return None if failed else index.value


def algorithm_asked_for(variables: Variables, function: str) -> str:
    """That which Open MPI's coll_tuned was told to run for a ``function`` as its variables have it;
    empty where it chooses by its rules, or another component may come first."""
    tuned = variables.value("coll_tuned_priority")
    others = (variables.value(f"coll_{other}_priority") for other in BEFORE_TUNED)
    if tuned is None or any(other is not None and other >= tuned for other in others):
        return ""
    name = f"coll_tuned_{function.lower()}_algorithm"
    if not variables.value("coll_tuned_use_dynamic_rules") or not variables.value(name):
        return ""
    return variables.chosen(name)


def _make_array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)


class _Requests(NamedTuple):
    requests: list[MPI.Request]
    wait_all: Callable[[list[MPI.Request]], object]

    def wait(self) -> None:
        self.wait_all(self.requests)


class Mpi(Base):
    """The calls of an MPI library, by mpi4py."""

    def __init__(self) -> None:
        self.library = "MPI"
        self._most = MOST
        self._functions: dict[str, Any] = {}
        self._error, self._prepared = 0, ""
        self._variables: Variables | None = None

    def refuse(self, case: Case) -> str:
        return self._refuse_native(case) if case.algorithm == "native" else ""

    def _refuse_native(self, case: Case) -> str:
        if (
            case.row.reduces
            and case.op == "sum"
            and case.type.size == 1
            and self.library.startswith("Open MPI")
        ):
            return (
                "Open MPI saturates most sums of 8-bit integers and wraps the others (its issue"
                " 8045)"
            )
        if _count_elements(case, max(case.counts)) > self._most:
            return f"{self.library} takes at most {self._most:,} elements, as MPI did before 4.0"
        return ""

    def copies_first(self, case: Case) -> bool:
        return case.algorithm == "native" and not case.in_place and case.collective == "broadcast"

    def open(self, rank: int, n: int, local_rank: int) -> None:
        mpi = initialise_mpi()
        # a world that is not left in good order may have ranks that are stuck
        cancel_finalise()
        world = mpi.COMM_WORLD
        self.library = describe_library(mpi.Get_library_version())
        at = self.find_group(rank, n)
        member, size = at.members[rank], n * len(at.groups)
        if (world.rank, world.size) != (member, size):
            raise CannotRun(
                f"{self.library} sees rank {world.rank} of {world.size}, the launcher rank {member}"
                f" of {size}",
                "use the mpirun of the MPI that mpi4py uses; without a launcher collbench finds it",
            )
        self._mpi, self._rank, self._comm = mpi, rank, world.Split(at.number, rank)
        self._handler = mpi.Comm.Create_errhandler(self._failed)
        self._comm.Set_errhandler(self._handler)
        self._status = mpi.Status()
        self._most = MOST if mpi.Get_version() < (4, 0) else MOST << 32
        with suppress(AttributeError, OSError):
            self._variables = Variables(mpi) if len(self.near(at)) == n > 1 else None
        try:
            self._functions = bind_functions(mpi)
        except (AttributeError, OSError):
            self.library += ", called through mpi4py"

    def allocate(self, nbytes: int) -> Tensor:
        self._room = _wire.Room(self.device)
        return torch.empty(nbytes, dtype=torch.uint8)

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        self._prepared = CALLS[case.collective][0] if case.algorithm == "native" else ""
        if case.algorithm != "native":
            return _wire.prepare_messages(
                case, send, recv, self._rank, self._comm, self._room, self._posted, HALFWAY
            )
        name, signature = CALLS[case.collective]
        parameters, values = signature.split(), self._values(case, send, recv)
        given = list(self._given(parameters, values))
        start = partial(getattr(self._comm, f"I{name.lower()}"), *given)
        run: Callable[[], object] = partial(getattr(self._comm, name), *given)
        bare = None
        if name in self._functions and _count_elements(case, max(case.counts)) <= MOST:
            run, bare = (
                self._bind(self._functions[name], parameters, some)
                for some in (values, self._nothing(values))
            )
        if (
            self.copies_first(case) and self._rank == case.root
        ):  # of a broadcast only the root's input counts
            copy = partial(np.copyto, _view_bytes(recv), _view_bytes(send))
            return Call(
                lambda: (copy(), run()), lambda: (copy(), self._handle([start()]))[1], bare=bare
            )
        return Call(run, lambda: self._handle([start()]), bare=bare)

    def message(self, sends: bool, buffer: Tensor, peer: int, tag: int) -> Call:
        way = self._comm.Isend if sends else self._comm.Irecv
        start = partial(way, [_view_bytes(buffer), self._mpi.BYTE], peer, tag)
        return Call(lambda: start().Wait(), lambda: self._handle([start()]))

    def message_batch(self, messages: Sequence[Message]) -> Call:
        if not self._functions or any(message.buffer.nbytes > MOST for message in messages):
            return super().message_batch(messages)
        size = self._mpi._sizeof(self._mpi.Request)
        requests = (ctypes.c_char * (size * len(messages)))()
        statuses = (ctypes.c_char * (self._mpi._sizeof(self._mpi.Status) * len(messages)))()
        shared = {"type": self._mpi.BYTE, "comm": self._comm, "status": self._status}
        calls = []
        for index, message in enumerate(messages):
            name = "send" if message.sends else "recv"
            name = name.capitalize() if len(messages) == 1 else f"I{name}"
            handle = (ctypes.c_char * size).from_buffer(requests, index * size)
            values = {**message._asdict(), "count": message.buffer.nbytes, "request": handle}
            calls.append(self._bind_message(name, values | shared))
        if len(messages) > 1:
            rest = {"number": len(messages), "requests": requests, "statuses": statuses}
            calls.append(self._bind_message("Waitall", rest))
        return Call(join_calls(calls), None)

    def _bind_message(self, name: str, values: Values) -> LibraryCall:
        return self._bind(self._functions[name], MESSAGES[name].split(), values)

    def overheard(self, call: Callable[[], object]) -> Choice | None:
        """The algorithm asked for in the case prepared last: MPI does not say what it runs."""
        if self._variables is None or not self._prepared:
            return None
        algorithm = algorithm_asked_for(self._variables, self._prepared)
        return Choice(algorithm=algorithm) if algorithm else None

    def _handle(self, requests: list[MPI.Request]) -> _Requests:
        return _Requests(requests, self._mpi.Request.Waitall)

    def _values(self, case: Case, send: Tensor, recv: Tensor) -> Values:
        """The values of a call's arguments by name. In place MPI takes one buffer; of a rooted
        collective only the root's is both."""
        shared = (
            case.row.in_place
            if case.in_place and (not case.row.rooted or self._rank == case.root)
            else None
        )
        count = _count_elements(case, min(case.counts))
        table = (
            case.matrix * _count_elements(case, 1)
            if case.splits
            else np.zeros((case.n, case.n), int)
        )
        return {
            "send": self._mpi.IN_PLACE if shared in ("same", "block of recv") else send,
            "recv": self._mpi.IN_PLACE if shared == "block of send" else recv,
            "count": count,
            "block": count // case.n,
            "counts_to": table[self._rank].tolist(),
            "counts_from": table[:, self._rank].tolist(),
            "type": getattr(self._mpi, DATATYPES.get(case.dtype, "BYTE")),
            "op": getattr(self._mpi, REDUCTIONS[case.op]) if case.row.reduces else None,
            "root": case.root,
            "next": (self._rank + 1) % case.n,
            "previous": (self._rank - 1) % case.n,
            "tag": 0,
            "comm": self._comm,
            "status": self._status,
        }

    def _nothing(self, values: Values) -> Values:
        """The arguments of the same call on this rank alone and without data, so that it has
        nothing to do."""
        zeros = dict.fromkeys(("count", "block", "root", "next", "previous"), 0)
        return {
            **values,
            **zeros,
            "counts_to": [0],
            "counts_from": [0],
            "comm": self._mpi.COMM_SELF,
        }

    def _given(self, parameters: Sequence[str], values: Values) -> Iterator[Any]:
        """The arguments that mpi4py's method takes, in order."""
        for word in parameters:
            value = values[word]
            if isinstance(value, Tensor):
                uneven = [
                    values[alternative]
                    for alternative in (_UNEVEN[word],)
                    if alternative in parameters
                ]
                yield [_view_bytes(value), *uneven, values["type"]]
            elif word in _PASSED:
                yield value

    def _bind(self, function: Any, parameters: Sequence[str], values: Values) -> LibraryCall:
        """The call of C's function with these values. Handles are ints in MPICH, elsewhere
        addresses."""
        arguments: list[tuple[Any, int]] = []
        arrays: list[Any] = []
        for word in parameters:
            value = values[word]
            if isinstance(value, list):
                pair = [_make_array(value), _make_array([0, *accumulate(value[:-1])])]
                arguments += [(ctypes.c_void_p, ctypes.addressof(array)) for array in pair]
                arrays += pair
            elif isinstance(value, Tensor):
                arguments.append((ctypes.c_void_p, value.data_ptr()))
            elif isinstance(value, ctypes.Array):
                arguments.append((ctypes.c_void_p, ctypes.addressof(value)))
                arrays.append(value)
            elif value is self._mpi.IN_PLACE:
                arguments.append((ctypes.c_void_p, int(value)))
            elif isinstance(value, int):
                arguments.append((ctypes.c_int, value))
            elif value is self._status:
                arguments.append((ctypes.c_void_p, self._mpi._addressof(value)))
            else:
                kind = ctypes.c_int if self._mpi._sizeof(value) == 4 else ctypes.c_void_p
                arguments.append((kind, self._mpi._handleof(value)))
        # dearer to make than to pass on
        made = [kind.from_param(number) for kind, number in arguments]
        return LibraryCall.of(function, made, [number for _, number in arguments], *arrays)

    def _posted(self, messages: _wire.Messages, comm: MPI.Comm) -> _wire.Post:
        """A step's messages as MPI's non-blocking ones."""
        recvs = [
            partial(comm.Irecv, [_view_bytes(tensor), self._mpi.BYTE], peer)
            for tensor, peer in messages.recvs
        ]
        sends = [
            partial(comm.Isend, [_view_bytes(tensor), self._mpi.BYTE], peer)
            for tensor, peer in messages.sends
        ]
        starts = (*recvs, *sends)
        return lambda: [self._handle([start() for start in starts])]

    def _failed(self, comm: MPI.Comm, code: int) -> None:
        """What the library calls where one of its functions fails."""
        self._error = code

    def finish(self) -> None:
        """Nothing to wait for: calls return when they are done. Raises MPI's exception where one
        failed."""
        if self._error:
            error, self._error = self._error, 0
            raise self._mpi.Exception(error)

    def close(self) -> None:
        self._comm.Free()
        self._handler.Free()
        finalise_at_exit()


def _count_elements(case: Case, count: int) -> int:
    """Elements to MPI, which takes types that it does not know as bytes."""
    return count * (1 if case.dtype in DATATYPES else case.type.size)


def _view_bytes(tensor: Tensor) -> np.ndarray:
    return tensor.view(torch.uint8).numpy()


def describe_library(version: str) -> str:
    """Name and version out of what MPI_Get_library_version returns."""
    first = version.splitlines()[0].strip("\0 ")
    match = re.match(r"(.+?)(?: Version)?[\s:]+v?(\d[\w.]*)", first)
    return f"{match[1]} {match[2]}" if match else first
