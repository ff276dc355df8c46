"""oneCCL on CPUs, over ofi, as collbench runs it: an algorithm for each collective, by variables
such as CCL_ALLREDUCE.

Names are those of oneCCL 2021.16. Those that need MPI (direct), GPUs (topo) or remote memory
(ring_rma) are left out, since the library falls back from them without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from collbench.features.advise.libraries._naming import keep_bearing, name_with
from collbench.features.advise.types import Setting, Variables
from collbench.records.types import World

PREFIX = "CCL_"

ALGORITHMS = {  # by collective, its word in variables and its algorithms
    "all_reduce": (
        "ALLREDUCE",
        ("rabenseifner", "nreduce", "ring", "double_tree", "recursive_doubling", "2d"),
    ),
    "all_gather": ("ALLGATHER", ("naive", "ring", "flat", "multi_bcast")),
    "all_to_all": ("ALLTOALL", ("naive", "scatter")),
    "all_to_allv": ("ALLTOALLV", ("naive", "scatter")),
    "broadcast": ("BROADCAST", ("ring", "double_tree", "naive")),
    "reduce": ("REDUCE", ("rabenseifner", "ring", "tree", "double_tree")),
    "reduce_scatter": ("REDUCE_SCATTER", ("naive", "ring")),
    "barrier": ("BARRIER", ("ring",)),
}

# of further variables, the word that they begin with; the rest bears on all collectives
_OWN = re.compile(
    r"CCL_(ALLREDUCE|ALLGATHERV?|ALLTOALLV?|BROADCAST|BCAST|REDUCE_SCATTER|REDUCE|BARRIER)(?:_\w+)?"
)


class OneCcl:
    """The backend oneccl."""

    key = "oneccl"
    title = "oneCCL"
    formats = ("oneccl", "words")

    def is_of(self, world: World) -> bool:
        return world.backend == "oneccl"

    def reduce(self, collective: str, env: Variables) -> Variables:
        word = ALGORITHMS[collective][0] if collective in ALGORITHMS else ""
        return keep_bearing(env, _OWN, word)

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        if n < 2 or collective not in ALGORITHMS or collective in ("barrier", "all_to_allv"):
            return ()
        word, names = ALGORITHMS[collective]
        left_out = {"2d"} if n <= 3 else set()
        return [((PREFIX + word, name),) for name in names if name not in left_out]

    def is_detail(self, collective: str, name: str) -> bool:
        match = _OWN.fullmatch(name)
        return bool(match and collective in ALGORITHMS and match[1] == ALGORITHMS[collective][0])

    def name_setting(self, collective: str, setting: Setting) -> str:
        word, rest = split_word(collective, setting.env)
        return name_with(word, setting, rest)


def split_word(collective: str, env: Variables) -> tuple[str, Variables]:
    """The algorithm that reduced variables name for a collective, and the others."""
    variable = PREFIX + ALGORITHMS[collective][0] if collective in ALGORITHMS else ""
    words = [value for name, value in env if name == variable]
    return "".join(words), tuple(pair for pair in env if pair[0] != variable)


LIBRARY = OneCcl()
