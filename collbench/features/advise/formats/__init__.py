"""Files in which libraries and engines read settings: written, and read back as they would.

Each module has one or more Formats. Reading is by a twin of the library's own reader: what it would
choose, not what was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

from collbench.core.errors import UsageError
from collbench.features.advise.types import Advised, Series

MODULES = (
    "openmpi",
    "mpich",
    "intelmpi",
    "oneccl",
    "nccl",
    "engines",
    "words",
)

MARK = "Advice by collbench"  # in the first line of every file: such a one may be replaced


class Rule(NamedTuple):
    """One row of a file as its reader takes it: for a series (None: any number of ranks or nodes)
    and for sizes from ``low`` to ``high`` bytes, inclusive, in collbench's count (high None: to the
    end), the setting ``name``; empty where the choice is left to the library."""

    collective: str
    n: int | None
    nodes: int | None
    low: int
    high: int | None
    name: str


class Format(Protocol):
    """One kind of file. Each says that it is one, as most have nothing beside their file."""

    key: str  # "openmpi"
    title: str  # "Open MPI's rules for coll_tuned"
    suffix: str  # ".conf"
    by_size: bool  # whether a library reads rules by size: else words, or a table to paste
    covers_all: bool  # whether it has to say something for all sizes (Advised.fills)
    # what names of files end in that lie beside the file: ".posix"
    companions: tuple[str, ...] = ()
    # what `collbench tune` sweeps for it where nobody says: collectives, smallest and largest size
    collectives: tuple[str, ...] = ("all_reduce", "broadcast", "all_gather", "all_to_all")
    sizes: tuple[str, str] = ("8", "16M")

    def refuse(self, advised: Advised) -> str:
        """Why this advice cannot be said in this format, as a sentence without a full stop; empty
        where it can."""

    def write(self, advised: Advised, path: Path | None = None) -> str:
        """The text of the file. Above each row a comment has gain, interval, launches and day.
        Sizes and series that have no row stay the library's. No rows: a file that changes
        nothing. ``path`` is where it is going to lie, which its first lines tell how to use."""

    def split_parts(self, text: str) -> dict[str, str]:
        """The texts of the files beside it, by companion."""
        return {}

    def refuse_unsayable(self, advised: Advised) -> None:
        """Raises UsageError for an advice that cannot be said."""
        if reason := self.refuse(advised):
            raise UsageError(f"{self.title}: {reason}")

    def read(self, text: str) -> Sequence[Rule]:
        """The rules as the library's reader takes them, in the order in which they count (the
        first match wins). Raises UsageError with the line for what the library would refuse or
        misread."""

    def use(self, path: Path) -> dict[str, str]:
        """The variables by which the library reads the file ``path``, which lies there with its
        companions; empty where a person reads it, and where it has no rules. Writes nothing.
        Raises UsageError for a file that cannot be read."""


def load_formats() -> dict[str, Format]:
    """All formats by key."""
    names = [f"collbench.features.advise.formats.{name}" for name in MODULES]
    return {each.key: each for name in names for each in import_module(name).FORMATS}


def choose(rules: Sequence[Rule], series: Series, nbytes: int) -> str:
    """The setting that the first fitting rule names for a size; empty where the library chooses."""
    for rule in rules:
        if (
            rule.collective == series.collective
            and rule.n in (None, series.n)
            and rule.nodes in (None, series.nodes)
            and rule.low <= nbytes
            and (rule.high is None or nbytes <= rule.high)
        ):
            return rule.name
    return ""
