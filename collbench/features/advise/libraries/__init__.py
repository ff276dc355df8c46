"""Libraries whose settings can be advised: which variables bear on a collective, and their values.

Each module has one Library. A setting that no library knows is taken as it is (libraries/other.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from collbench.features.advise.types import Setting, Variables
from collbench.records.types import World

MODULES = ("openmpi", "mpich", "intelmpi", "oneccl", "nccl", "other")


class Library(Protocol):
    """What is known of a library's settings, without loading it."""

    key: str  # "openmpi"
    title: str  # "Open MPI"
    formats: tuple[str, ...]  # keys of FORMATS, the usual one first

    def is_of(self, world: World) -> bool:
        """Whether this library ran in the world, by its backend and by what its library is."""

    def reduce(self, collective: str, env: Variables) -> Variables:
        """Only those variables that bear on the collective and say something, in a fixed order:
        those of other collectives go, and so do values that leave the choice to the library. What
        the library does not know (UCX_TLS) stays."""

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        """The settings worth trying for a collective of ``n`` ranks, without the default; each with
        all variables that it takes to have effect. Empty where the library has none."""

    def is_detail(self, collective: str, name: str) -> bool:
        """Whether a variable says how an algorithm runs that another one chooses: its segments, a
        chain's fan-out. Exported, it is a part of such settings, and else of the default."""

    def name_setting(self, collective: str, setting: Setting) -> str:
        """The setting in the library's words: "recursive_doubling", "Tree/LL128 x16". A setting
        that it does not know by its variables: "UCX_TLS=tcp"."""


def load_libraries() -> list[Library]:
    """All libraries, in the order in which they are asked."""
    names = [f"collbench.features.advise.libraries.{name}" for name in MODULES]
    return [import_module(name).LIBRARY for name in names]


def find_library(world: World) -> Library:
    """The library that ran in a world; the last one, which knows nothing, takes any."""
    return next(library for library in load_libraries() if library.is_of(world))
