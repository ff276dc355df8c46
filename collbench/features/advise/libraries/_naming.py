"""Which variables bear on a collective, and names of settings beyond the library's own words."""

from __future__ import annotations

import re
from collections.abc import Callable

from collbench.features.advise.types import Setting, Variables

DEFAULT = "default"
# MPI's functions as variables of MPICH and Intel MPI have them, longer words first: of
# REDUCE_SCATTER_BLOCK none is REDUCE's
MPI_WORDS = (
    "ALLGATHERV|ALLGATHER|ALLREDUCE|ALLTOALLV|ALLTOALLW|ALLTOALL|BARRIER|BCAST|EXSCAN|GATHERV"
    "|GATHER|REDUCE_SCATTER_BLOCK|REDUCE_SCATTER|REDUCE|SCAN|SCATTERV|SCATTER"
)
MPI_UNTUNED = {  # by collective of which neither library has settings worth a try
    **{"all_to_allv": "ALLTOALLV", "gather": "GATHER", "scatter": "SCATTER"},
    **{"scan": "SCAN", "barrier": "BARRIER"},
}


def name_with(word: str, setting: Setting, rest: Variables) -> str:
    """A setting's name: the library's ``word`` for it, an algorithm of collbench's own if there is
    one, and the variables that the library does not know."""
    parts = [f"{setting.algorithm}@{setting.backend}"] if setting.algorithm != "native" else []
    parts += [word] if word else []
    return " ".join([*parts, *(f"{name}={value}" for name, value in rest)]) or DEFAULT


def keep_bearing(
    env: Variables,
    own: re.Pattern[str],
    word: str,
    says: Callable[[str], object] = str.strip,
) -> Variables:
    """The variables, sorted, whose value ``says`` something, without those that are for another
    collective: ``own`` fits a library's variables of one collective, whose word is its group 1."""
    return tuple(
        sorted(
            (name, value)
            for name, value in env
            if says(value) and ((match := own.fullmatch(name)) is None or match[1] == word)
        )
    )


def format_bytes(nbytes: int) -> str:
    """A size as one word: 128K, 1M, 1000."""
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if nbytes and nbytes % scale == 0:
            return f"{nbytes // scale}{unit}"
    return str(nbytes)
