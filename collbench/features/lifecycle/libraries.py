"""What a library does in a life, and the data by which its calls are checked."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from collbench.core.collectives import find_collective
from collbench.features.lifecycle.instructions import Instructions

# distance in the hashed sequence between two ranks' or two variants' data: more than a buffer has
RANK_STRIDE, VARIANT_STRIDE = 0x2545F491, 0x6C078965
Variant = tuple[np.ndarray, np.ndarray]  # what a rank sends, and what it must receive


class CheckedCall(NamedTuple):
    """A collective that is ready to be called. ``reset(variant)`` fills the buffers with one of its
    data sets, which differ everywhere, so that stale data is found. ``run`` returns when this rank
    is done; ``count_wrong`` is of the last result."""

    reset: Callable[[int], object]
    run: Callable[[], object]
    count_wrong: Callable[[], int]
    elements: int


class Library(Protocol):
    """What a process of a life does with its library. ``meets``: ranks find each other in a store
    before the library makes anything."""

    meets: bool
    rank: int
    world: int

    def join(self) -> None: ...
    def make(self) -> None: ...
    def align(self, name: str, one_clock: bool) -> None: ...
    def make_call(self, collective: str, variants: Sequence[Variant]) -> CheckedCall: ...
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


def make_inputs(collective: str, nbytes: int, world: int, variant: int = 0) -> list[np.ndarray]:
    """What every rank sends: whole numbers of 1 to 1024 as float32, whose sums over 2**14 ranks are
    exact."""
    row = find_collective(collective)
    count = max(1, nbytes // 4 // (world if row.total else 1))
    index = np.arange(row.counts(world, count)[0], dtype=np.uint32)
    begins = (rank * RANK_STRIDE + variant * VARIANT_STRIDE for rank in range(world))
    return [(_mix(index + np.uint32(n % 2**32)) >> 22).astype(np.float32) + 1 for n in begins]


def _mix(x: np.ndarray) -> np.ndarray:
    """murmur3's finaliser of 32 bits."""
    x = (x ^ x >> 16) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> 13) * np.uint32(0xC2B2AE35)
    mixed: np.ndarray = x ^ x >> 16
    return mixed


def make_variants(
    collective: str, nbytes: int, world: int, rank: int, count: int = 2
) -> list[Variant]:
    """What this rank sends and must receive in each variant, by the one definition of the
    collective."""
    variants = []
    for variant in range(count):
        inputs = make_inputs(collective, nbytes, world, variant)
        results = find_collective(collective).result(inputs, operator.add, 0)
        variants.append((inputs[rank], np.asarray(results[rank])))
    return variants
