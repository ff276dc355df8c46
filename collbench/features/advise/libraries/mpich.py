"""MPICH: algorithms of its collectives, by variables such as MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM.

Where ranks of one host share memory and do not use threads, MPICH 5.0 runs some collectives by
release_gather, without asking that variable: MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM=mpir has it
asked. Algorithms that take further numbers, or serve some operations only, are left out.
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

PREFIX = "MPIR_CVAR_"
GENERIC = "mpir"  # the library's choice among its algorithms by messages


class Function(NamedTuple):
    """An MPI function: its word in variables, its algorithms, whether it may run by release_gather,
    and what a tree of choices calls its size (formats/mpich.py): empty where that is not known."""

    word: str
    algorithms: tuple[str, ...]
    shares: bool = False
    size: str = ""


FUNCTIONS = {
    "all_reduce": Function(
        "ALLREDUCE",
        ("recursive_doubling", "reduce_scatter_allgather", "ring"),
        shares=True,
        size="avg_msg_size",
    ),
    "broadcast": Function(
        "BCAST",
        ("binomial", "scatter_recursive_doubling_allgather", "scatter_ring_allgather"),
        shares=True,
        size="avg_msg_size",
    ),
    "reduce": Function(
        "REDUCE", ("binomial", "reduce_scatter_gather"), shares=True, size="avg_msg_size"
    ),
    "all_gather": Function(
        "ALLGATHER", ("brucks", "recursive_doubling", "ring"), size="total_msg_size"
    ),
    "all_to_all": Function("ALLTOALL", ("brucks", "pairwise", "scattered"), size="total_msg_size"),
    "reduce_scatter": Function(
        "REDUCE_SCATTER_BLOCK",
        ("recursive_doubling", "pairwise", "recursive_halving"),
        size="total_msg_size",
    ),
}

_OWN = re.compile(rf"{PREFIX}I?({MPI_WORDS})_\w+")


class Mpich:
    """MPICH under backend mpi."""

    key = "mpich"
    title = "MPICH"
    formats = ("mpich", "words")

    def is_of(self, world: World) -> bool:
        return world.backend == "mpi" and world.library.startswith("MPICH")

    def reduce(self, collective: str, env: Variables) -> Variables:
        function = FUNCTIONS.get(collective)
        word = function.word if function else MPI_UNTUNED.get(collective, "")
        return keep_bearing(env, _OWN, word, says=lambda value: value not in ("", "auto"))

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        function = FUNCTIONS.get(collective)
        if function is None or n < 2:
            return ()
        power = n & (n - 1) == 0
        names = [
            name
            for name in function.algorithms
            if power or (collective, name) != ("all_gather", "recursive_doubling")
        ]
        shared = [((_name_shared(function), GENERIC),)] if function.shares else []
        return [*shared, *(_make_variables(function, name) for name in names)]

    def is_detail(self, collective: str, name: str) -> bool:
        function, match = FUNCTIONS.get(collective), _OWN.fullmatch(name)
        is_own = bool(function and match and match[1] == function.word)
        return is_own and not name.endswith("_MSG_SIZE")  # by which it chooses

    def name_setting(self, collective: str, setting: Setting) -> str:
        word, rest = split_word(collective, setting.env)
        return name_with(word, setting, rest)


def _name_shared(function: Function) -> str:
    return f"{PREFIX}{function.word}_POSIX_INTRA_ALGORITHM"


def _make_variables(function: Function, name: str) -> Variables:
    pairs = [(f"{PREFIX}{function.word}_INTRA_ALGORITHM", name)]
    if function.shares:
        pairs.append((_name_shared(function), GENERIC))
    return tuple(sorted(pairs))


def split_word(collective: str, env: Variables) -> tuple[str, Variables]:
    """The algorithm that reduced variables name for a collective, ``mpir`` where they only keep it
    from release_gather, and the variables that are no part of it."""
    if (function := FUNCTIONS.get(collective)) is None:
        return "", env
    for name in function.algorithms:
        variables = _make_variables(function, name)
        if set(variables) <= set(env):
            return name, tuple(pair for pair in env if pair not in variables)
    alone = (_name_shared(function), GENERIC)
    if function.shares and alone in env and len(env) == 1:
        return GENERIC, ()
    return "", env


LIBRARY = Mpich()
