"""Intel MPI: presets of collectives, by variables such as I_MPI_ADJUST_ALLREDUCE.

Intel names algorithms, but its presets only by numbers, of which there are more. How many there are
is what Intel MPI 2021.18 takes: of a larger number it says that it ignores the variable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from collbench.features.advise.libraries._naming import (
    MPI_UNTUNED,
    MPI_WORDS,
    keep_bearing,
    name_with,
)
from collbench.features.advise.types import Setting, Variables
from collbench.records.types import World

PREFIX = "I_MPI_ADJUST_"


class Function(NamedTuple):
    """An MPI function: its word in variables, its number of presets, and those worth a try."""

    word: str
    presets: int
    worth: tuple[int, ...]


FUNCTIONS = {
    "all_reduce": Function("ALLREDUCE", 32, (1, 2, 3, 5, 7, 8, 9, 11, 12)),
    "broadcast": Function("BCAST", 22, (1, 2, 3, 7, 8, 9, 10, 11)),
    "all_gather": Function("ALLGATHER", 6, (1, 2, 3, 4, 5)),
    "all_to_all": Function("ALLTOALL", 18, (1, 2, 3, 4)),
    "reduce": Function("REDUCE", 19, (1, 2, 5, 7, 8, 9, 10)),
    "reduce_scatter": Function("REDUCE_SCATTER_BLOCK", 4, (1, 2, 3, 4)),
}

_OWN = re.compile(rf"{PREFIX}({MPI_WORDS})(?:_\w+)?")


class IntelMpi:
    """Intel MPI under backend mpi."""

    key = "intelmpi"
    title = "Intel MPI"
    formats = ("intelmpi", "words")

    def is_of(self, world: World) -> bool:
        return world.backend == "mpi" and world.library.startswith("Intel(R) MPI")

    def reduce(self, collective: str, env: Variables) -> Variables:
        function = FUNCTIONS.get(collective)
        word = function.word if function else MPI_UNTUNED.get(collective, "")
        return keep_bearing(env, _OWN, word)

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        function = FUNCTIONS.get(collective)
        if function is None or n < 2:
            return ()
        return [((PREFIX + function.word, str(preset)),) for preset in function.worth]

    def is_detail(self, collective: str, name: str) -> bool:
        function, match = FUNCTIONS.get(collective), _OWN.fullmatch(name)
        return bool(function and match and match[1] == function.word)

    def name_setting(self, collective: str, setting: Setting) -> str:
        preset, rest = split_preset(collective, setting.env)
        return name_with("" if preset is None else name_preset(preset), setting, rest)


def name_preset(preset: int) -> str:
    """Intel's word for a preset; 0 is the library's basic choice, which is not its tuned one."""
    return f"preset {preset}"


def split_preset(collective: str, env: Variables) -> tuple[int | None, Variables]:
    """The preset that reduced variables give a collective, None where they give none or one with
    conditions, and the variables that are no part of it."""
    function = FUNCTIONS.get(collective)
    variable = PREFIX + function.word if function else ""
    value = dict(env).get(variable, "")
    if not re.fullmatch(r"[0-9]{1,4}", value):
        return None, env
    return int(value), tuple(pair for pair in env if pair[0] != variable)


LIBRARY = IntelMpi()
