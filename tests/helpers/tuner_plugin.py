"""Drives a tuner plug-in as NCCL does, through its table of functions (version 5)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

FUNCTIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")  # ncclFunc_t
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
COST = 7.0  # of what the plug-in leaves alone
IGNORE = -1.0


class Said(NamedTuple):
    """What a plug-in made of a call: what it wants to run, and on how many channels (0: NCCL's
    own number); nothing where it left the choice to NCCL."""

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0


class _Table(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("init", ctypes.c_void_p),
        ("get_coll_info", ctypes.c_void_p),
        ("finalize", ctypes.c_void_p),
    )


_INIT = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_ASK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
)
_FINALIZE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Tuner:
    """A plug-in opened for one communicator."""

    def __init__(self, path: str, n: int, nodes: int) -> None:
        self._table = _Table.in_dll(ctypes.CDLL(path), "ncclTunerPlugin_v5")
        self._context = ctypes.c_void_p()
        init = _INIT(self._table.init)
        self.status = init(ctypes.byref(self._context), 1, n, nodes, None, None, None)

    def ask(self, collective: str, nbytes: int, cannot: tuple[str, str] = ("", "")) -> Said:
        """What the plug-in says of a call; NCCL cannot run what ``cannot`` names."""
        costs = (ctypes.c_float * (len(ALGORITHMS) * len(PROTOCOLS)))(*[COST] * 21)
        names = [(algorithm, protocol) for algorithm in ALGORITHMS for protocol in PROTOCOLS]
        if cannot in names:
            costs[names.index(cannot)] = IGNORE
        channels = ctypes.c_int(0)
        ask = _ASK(self._table.get_coll_info)
        arguments = (costs, len(ALGORITHMS), len(PROTOCOLS), 0, ctypes.byref(channels))
        status = ask(self._context, FUNCTIONS.index(collective), nbytes, 1, *arguments)
        assert status == 0
        wanted = [name for name, cost in zip(names, costs, strict=True) if cost == 0.0]
        assert len(wanted) <= 1
        return Said(*(wanted[0] if wanted else ("", "")), channels.value)

    def close(self) -> None:
        if self.status == 0:
            _FINALIZE(self._table.finalize)(self._context)


@contextmanager
def opened(path: str, settings: Mapping[str, str], n: int, nodes: int) -> Iterator[Tuner]:
    """The plug-in at ``path`` for ``n`` ranks on ``nodes``, with these variables."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        tuner = Tuner(path, n, nodes)
        yield tuner
        tuner.close()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
