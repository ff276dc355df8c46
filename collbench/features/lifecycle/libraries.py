"""What a library does in a life, and the data by which its calls are checked."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from collbench.core.collectives import find_collective
from collbench.features.lifecycle.instructions import Instructions

PERIOD, SHIFTS = 251, 1024  # of the data, in elements and ranks: sums of 2**14 ranks are exact


class CheckedCall(NamedTuple):
    """A collective that is ready to be called, after a ``reset`` of its buffers each time. ``run``
    returns when this rank is done; ``count_wrong`` is of the last result."""

    reset: Callable[[], object]
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


def make_inputs(collective: str, nbytes: int, world: int) -> list[np.ndarray]:
    """What every rank sends: small whole numbers as float32, whose sums over 2**14
    ranks are exact."""
    row = find_collective(collective)
    count = max(1, nbytes // 4 // (world if row.total else 1))
    length = row.counts(world, count)[0]
    pattern = (np.arange(length) % PERIOD).astype(np.float32)
    return [pattern + np.float32(rank % SHIFTS) for rank in range(world)]


def make_expected(collective: str, inputs: list[np.ndarray], rank: int) -> np.ndarray:
    """What this rank must receive, by the one definition of the collective."""
    results = find_collective(collective).result(inputs, operator.add, 0)
    return np.asarray(results[rank])
