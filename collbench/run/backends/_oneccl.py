"""oneCCL: its collectives on CPU buffers, by a shim over its C++ interface (oneccl.cpp).

Ranks find each other by an address that the group's first rank tells the others by Control: no
launcher is needed, and no MPI. A call is resolved once; what is timed passes one pointer to the
shim, which calls oneCCL and waits for the result.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from collbench.core.errors import CannotRun
from collbench.machine import cpus, environment
from collbench.run.backends import Base, Call
from collbench.run.backends._oneccl_build import build_shim
from collbench.run.backends._oneccl_files import Library, find_library
from collbench.run.backends._oneccl_names import COLLECTIVES, DATATYPES, REDUCTIONS
from collbench.run.rank.control import Control, make_world_control
from collbench.suite.case import Case

Tensor = torch.Tensor
CORES = 2  # that a rank needs for itself and for the thread that oneCCL lets spin beside it
Action = Callable[[], object]


class Arguments(ctypes.Structure):
    """The arguments of a call, as the shim takes them. Counts by rank are copied there."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("op", ctypes.c_int),
        ("root", ctypes.c_int),
        ("next", ctypes.c_int),
        ("previous", ctypes.c_int),
        ("count", ctypes.c_size_t),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
        ("counts_to", ctypes.POINTER(ctypes.c_size_t)),
        ("counts_from", ctypes.POINTER(ctypes.c_size_t)),
    )


class Shim:
    """The functions of the compiled shim. ``check`` raises RuntimeError with oneCCL's own words."""

    def __init__(self, library: Library) -> None:
        path = build_shim(library)
        try:
            # by their paths, lest the environment has others of these names loaded in their place
            for name in ("libccl.so.2", "libccl.so.1"):
                if (part := library.ccl.with_name(name)).is_file():
                    ctypes.CDLL(str(part))
            self.functions = ctypes.CDLL(str(path))
        except OSError as e:
            raise CannotRun(f"oneCCL cannot be loaded: {e}", "") from e
        self.errors = ctypes.c_int.in_dll(self.functions, "ccl_errors")
        self.functions.ccl_error.restype = ctypes.c_char_p
        self.functions.ccl_address_size.restype = ctypes.c_size_t

    def check(self, status: int) -> None:
        """Raise what oneCCL says where a function failed."""
        if status:
            raise RuntimeError(self.read_error())

    def read_error(self) -> str:
        """The text of the last error."""
        return bytes(self.functions.ccl_error()).decode(errors="replace")

    def read_version(self) -> str:
        """The version of the library that is loaded."""
        text = ctypes.create_string_buffer(64)
        self.check(self.functions.ccl_version(text, ctypes.c_size_t(len(text))))
        return text.value.decode()

    def meet(self) -> tuple[str, ctypes.c_void_p]:
        """Open a place where a group meets: its address in hex, and a handle of it."""
        place = ctypes.c_void_p()
        address = ctypes.create_string_buffer(self.functions.ccl_address_size())
        self.check(self.functions.ccl_meet(address, ctypes.byref(place)))
        return address.raw.hex(), place

    def come(self, address: str) -> ctypes.c_void_p:
        """A handle of the place at an address."""
        place = ctypes.c_void_p()
        self.check(self.functions.ccl_come(bytes.fromhex(address), ctypes.byref(place)))
        return place

    def join(self, size: int, rank: int, place: ctypes.c_void_p) -> ctypes.c_void_p:
        """The communicator of all that have come to a place."""
        group = ctypes.c_void_p()
        self.check(self.functions.ccl_join(size, rank, place, ctypes.byref(group)))
        return group


class PreparedCall:
    """A call that the shim has resolved; released with this object."""

    def __init__(self, shim: Shim, arguments: Arguments, group: ctypes.c_void_p) -> None:
        self._functions = shim.functions
        self._pointer = ctypes.c_void_p()
        shim.check(
            shim.functions.ccl_prepare(ctypes.byref(arguments), group, ctypes.byref(self._pointer))
        )
        # like all pointers, dearer to make than to pass on
        self.argument = ctypes.c_void_p.from_param(self._pointer.value)

    def __del__(self) -> None:
        if self._pointer:
            self._functions.ccl_release(self._pointer)


class Started(NamedTuple):
    """A call that was left to itself."""

    functions: Any
    call: PreparedCall

    def wait(self) -> None:
        """Wait until its result is there."""
        self.functions.ccl_wait(self.call.argument)


class OneCcl(Base):
    """The calls of oneCCL."""

    def __init__(self) -> None:
        self.library = "oneCCL"
        self._groups: list[ctypes.c_void_p] = []

    def open(self, rank: int, n: int, local_rank: int) -> None:
        world, control = make_world_control(), self.find_group(rank, n)
        with world.refusing_alike():
            library = find_library()
            local = sorted(self.near(control) or {rank})
            place = str(local.index(rank)), str(len(local))
            settings = choose_settings(library, place, *count_local(world))
        with world.refusing_alike():  # one rank of each host builds for the others
            if local_rank == 0:
                build_shim(library)
        with world.refusing_alike(), refusing_errors():
            self._shim = Shim(library)
            version = self._shim.read_version()
        with refusing_errors():
            address, kvs = self._meet_group(control)
            self._group = self._shim.join(n, rank, kvs or self._shim.come(address))
            self._groups.append(self._group)
            _, kvs = self._shim.meet()
            self._alone = self._shim.join(1, 0, kvs)
            self._groups.append(self._alone)
            self._rank, self._n = rank, n
            self._reach_all()
        control.barrier()
        unlink_memory()
        # only these three return what nobody looks at in a call: finish() does
        functions = self._shim.functions
        functions.ccl_run.restype = functions.ccl_start.restype = functions.ccl_wait.restype = None
        self.library = " ".join([f"oneCCL {version}", *settings])

    def _meet_group(self, control: Control) -> tuple[str, ctypes.c_void_p | None]:
        """The address of the place where the group meets, and at its first rank a handle of it.
        Raises CannotRun on all ranks where the first cannot open one."""
        answer, place = ["", ""], None
        if control.rank == 0:
            try:
                answer[0], place = self._shim.meet()
            except RuntimeError as e:
                answer[1] = str(e)
        address, error = control.broadcast(answer)
        if error:
            raise RuntimeError(error)
        return address, place

    def _reach_all(self) -> None:
        """Have every rank of the group send to every other, so that all have mapped each other's
        memory."""
        send, recv = (torch.zeros(self._n, dtype=torch.uint8) for _ in range(2))
        kind, dtype = COLLECTIVES.index("all_to_all"), DATATYPES["uint8"]
        to, into = send.data_ptr(), recv.data_ptr()
        arguments = Arguments(kind=kind, dtype=dtype, count=1, send=to, recv=into)
        call = PreparedCall(self._shim, arguments, self._group)
        self._shim.check(self._shim.functions.ccl_run(call.argument))

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        functions = self._shim.functions
        call = PreparedCall(self._shim, self._make_arguments(case, send, recv), self._group)
        bare = PreparedCall(self._shim, self._make_nothing(case, send, recv), self._alone)

        def start() -> Started:
            functions.ccl_start(call.argument)
            return Started(functions, call)

        return Call(_bind(functions.ccl_run, call), start, bare=_bind(functions.ccl_run, bare))

    def _make_arguments(self, case: Case, send: Tensor, recv: Tensor) -> Arguments:
        count = min(case.counts)
        arguments = Arguments(
            kind=COLLECTIVES.index(case.collective),
            dtype=DATATYPES.get(case.dtype, 0),
            op=REDUCTIONS.get(case.op, 0),
            root=max(case.root, 0),
            next=(self._rank + 1) % self._n,
            previous=(self._rank - 1) % self._n,
            count=count // self._n if case.collective == "all_to_all" else count,
            send=send.data_ptr(),
            recv=recv.data_ptr(),
        )
        if case.splits:
            arguments.counts_to = _make_array(case.matrix[self._rank])
            arguments.counts_from = _make_array(case.matrix[:, self._rank])
        return arguments

    def _make_nothing(self, case: Case, send: Tensor, recv: Tensor) -> Arguments:
        """The arguments of the same call on this rank alone and without data, so that it has
        nothing to do."""
        arguments = self._make_arguments(case, send, recv)
        arguments.root = arguments.next = arguments.previous = arguments.count = 0
        arguments.counts_to = arguments.counts_from = _make_array(np.zeros(1, int))
        return arguments

    def finish(self) -> None:
        """Nothing to wait for: calls return when they are done. Raises RuntimeError where one
        failed."""
        if self._shim.errors.value:
            raise RuntimeError(self._shim.read_error())

    def close(self) -> None:
        for group in reversed(self._groups):
            self._shim.functions.ccl_leave(group)
        self._groups = []


def _bind(function: Any, call: PreparedCall) -> Action:
    """The function on a call, which lives as long as this."""
    bound = partial(function, call.argument)
    bound.call = call  # type: ignore[attr-defined]
    return bound


def _make_array(numbers: np.ndarray) -> Any:
    return (ctypes.c_size_t * len(numbers))(*numbers.tolist())


def unlink_memory() -> None:
    """Take away the names of the memory that this process shares by libfabric, once its peers have
    mapped it: a rank that is killed would leave 64 MiB behind."""
    for path in Path("/dev/shm").glob(f"{os.getpid()}:*"):
        path.unlink(missing_ok=True)


@contextmanager
def refusing_errors() -> Iterator[None]:
    """Raise CannotRun for what oneCCL says while it is opened."""
    try:
        yield
    except RuntimeError as e:
        hint = "CCL_LOG_LEVEL=info has oneCCL say what it tries; FI_PROVIDER names a provider"
        raise CannotRun(f"oneCCL cannot be opened: {e}", hint) from e


def choose_settings(library: Library, place: tuple[str, str], ranks: int, cores: int) -> list[str]:
    """Set what oneCCL needs where the environment does not, and return those settings that decide
    its times. ``place`` is this rank's number among the group's ranks on this host, and how many
    these are; ``ranks`` of all groups share the ``cores``. Raises CannotRun for a setting with
    which it would not run here."""
    refuse_settings()
    paths = {
        "CCL_OFI_LIBRARY_PATH": str(library.fabric),
        "FI_PROVIDER_PATH": str(library.fabric.parent),
        "CCL_LOG_LEVEL": "error",  # else a line for each setting here, on standard output
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": place[0],
        "CCL_LOCAL_SIZE": place[1],
    }
    deciding = {"CCL_ATL_TRANSPORT": "ofi", "CCL_ATL_SHM": "1"}
    if cores < CORES * ranks:  # the thread would take the core that its rank needs
        deciding["CCL_WORKER_OFFLOAD"] = "0"
    chosen = [f"{name}={value}" for name, value in deciding.items() if name not in os.environ]
    for name, value in (paths | deciding).items():
        os.environ.setdefault(name, value)
    return chosen


def refuse_settings() -> None:
    """Raises CannotRun for settings with which oneCCL ends or crashes here."""
    transport = os.environ.get("CCL_ATL_TRANSPORT", "ofi")
    if transport != "ofi":
        raise CannotRun(
            f"CCL_ATL_TRANSPORT={transport}: oneccl runs without MPI, over ofi", "leave it out"
        )
    if os.environ.get("CCL_KVS_IP_EXCHANGE") == "":
        raise CannotRun("CCL_KVS_IP_EXCHANGE is empty, which crashes oneCCL", "leave it out")
    if os.environ.get("FI_PROVIDER") == "shm":
        raise CannotRun(
            "FI_PROVIDER=shm: oneCCL needs a provider that reaches other hosts, too",
            "CCL_ATL_SHM=1, the default here, is shared memory among ranks of a host",
        )


def count_local(world: Control) -> tuple[int, int]:
    """The ranks on this host, and the cores that these may use together."""
    host = environment.host_name()
    cores = cpus.usable_cpus()[: cpus.core_count()]
    local = [usable for other, usable in world.collect([host, cores]) if other == host]
    return len(local), len({core for usable in local for core in usable})
