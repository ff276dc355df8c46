"""What a library does in a life, and the data by which its calls are checked."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from collbench.core.collectives import find_collective
from collbench.features.lifecycle.instructions import Instructions

RANK, TURN = 0x2545F491, 0x6C078965  # elements between the data of two: more than a buffer has


class CheckedCall(NamedTuple):
    """A collective that is ready to be called, after a ``reset`` of its buffers each time to the
    data of a turn, 0 or 1, of which nothing is alike: what is left of another call's is wrong.
    ``run`` returns when this rank is done; ``count_wrong`` is of the last result."""

    reset: Callable[[int], object]
    run: Callable[[], object]
    count_wrong: Callable[[], int]
    elements: int


class Library(Protocol):
    """What a process of a life does with its library. ``meets``: ranks find each other in a store
    before the library makes anything."""

    meets: bool

    def join(self) -> None: ...
    def make(self) -> None: ...
    def align(self, name: str, one_clock: bool) -> None: ...
    def make_call(self, collective: str, nbytes: int) -> CheckedCall: ...
    def add_group(self, number: int) -> Any: ...
    def drop_group(self, group: Any) -> None: ...
    def leave(self) -> None: ...
    def measure_device(self) -> int: ...


def load_library(given: Instructions) -> Library:
    """The library of a backend, loaded, and nothing made yet."""
    for module in given.imports:
        importlib.import_module(module)
    name = "mpi_life:Mpi" if given.backend == "mpi" else "torch_life:Torch"
    module, _, kind = name.partition(":")
    library: Library = getattr(importlib.import_module(f"{__package__}.{module}"), kind)(given)
    return library


def make_inputs(collective: str, nbytes: int, world: int, turn: int = 0) -> list[np.ndarray]:
    """What every rank sends in a turn: whole numbers of 1 to 1024 as float32, whose sums over 2**14
    ranks are exact."""
    row = find_collective(collective)
    count = max(1, nbytes // 4 // (world if row.total else 1))
    index = np.arange(row.counts(world, count)[0], dtype=np.uint32)
    begins = (np.uint32((rank * RANK + turn * TURN) % 2**32) for rank in range(world))
    return [(_mix(index + begin) >> 22).astype(np.float32) + 1 for begin in begins]


def _mix(x: np.ndarray) -> np.ndarray:
    """murmur3's finaliser of 32 bits."""
    x = (x ^ x >> 16) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * np.uint32(0xC2B2AE35)
    mixed: np.ndarray = x ^ x >> 16
    return mixed


def make_turns(
    collective: str, nbytes: int, world: int, rank: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What this rank sends and must receive in each turn, by the one definition of the
    collective."""
    turns = []
    for turn in (0, 1):
        inputs = make_inputs(collective, nbytes, world, turn)
        results = find_collective(collective).result(inputs, operator.add, 0)
        turns.append((inputs[rank], np.asarray(results[rank])))
    return turns
