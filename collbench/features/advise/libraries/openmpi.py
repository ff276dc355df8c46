"""Open MPI: the algorithms of its component coll_tuned, which runs the collectives of ranks of one
host, and of all collectives that coll_han leaves to it.

Numbers, names and limits are those of Open MPI 5.0 (``ompi_info --param coll tuned --level 9``). An
algorithm, and all that goes with it, counts only where coll_tuned_use_dynamic_rules is on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from collbench.features.advise.libraries._naming import format_bytes, name_with
from collbench.features.advise.types import Setting, Variables
from collbench.records.types import World

PREFIX = "OMPI_MCA_coll_tuned_"
DYNAMIC = PREFIX + "use_dynamic_rules"
RULES = PREFIX + "dynamic_rules_filename"
SUFFIXES = ("segmentsize", "tree_fanout", "chain_fanout", "max_requests", "knomial_radix")
FANOUT = 4  # of a chain, where no variable says another
OFF = ("0", "false", "f", "no", "n", "disabled")
FEW = 8  # ranks up to which one that does all is worth a try
MANY = 128  # ranks from which the library's choice for all_reduce is nonoverlapping at some sizes


class Function(NamedTuple):
    """An MPI function: its word in variables, its number in files of rules, its algorithms by
    number from 1. ``segmented``: those that cut messages; ``calls``: the functions that an
    algorithm calls in turn, as those are set, by its number (0: some that the library chooses);
    ``many``: those that one calls which the library chooses for MANY ranks or more."""

    word: str
    number: int
    algorithms: tuple[str, ...]
    segmented: tuple[str, ...] = ()
    calls: dict[int, tuple[str, ...]] = {}
    many: tuple[str, ...] = ()

    def list_own_calls(self, n: int) -> tuple[str, ...]:
        """The functions that the library's own choice for ``n`` ranks calls, at some sizes."""
        return (*self.calls.get(0, ()), *(self.many if n >= MANY else ()))


_TREES = ("chain", "pipeline", "binary_tree", "split_binary_tree", "binomial", "knomial")

FUNCTIONS = {
    "all_gather": Function(
        "allgather",
        0,
        ("linear", "bruck", "recursive_doubling", "ring", "neighbor", "two_proc", "sparbit"),
        calls={1: ("gather", "bcast")},
    ),
    "all_gatherv": Function(
        "allgatherv",
        1,
        ("default", "bruck", "ring", "neighbor", "two_proc", "sparbit"),
        calls={0: ("bcast",), 1: ("bcast",)},
    ),
    "all_reduce": Function(
        "allreduce",
        2,
        (
            *("basic_linear", "nonoverlapping", "recursive_doubling"),
            *("ring", "segmented_ring", "rabenseifner"),
        ),
        segmented=("segmented_ring",),
        calls={2: ("reduce", "bcast")},
        many=("reduce", "bcast"),
    ),
    "all_to_all": Function(
        "alltoall", 3, ("linear", "pairwise", "modified_bruck", "linear_sync", "two_proc")
    ),
    "all_to_allv": Function("alltoallv", 4, ("basic_linear", "pairwise")),
    "barrier": Function(
        "barrier",
        6,
        ("linear", "double_ring", "recursive_doubling", "bruck", "two_proc", "tree"),
    ),
    "broadcast": Function(
        "bcast",
        7,
        (
            *("basic_linear", "chain", "pipeline", "split_binary_tree", "binary_tree"),
            *("binomial", "knomial", "scatter_allgather", "scatter_allgather_ring"),
        ),
        segmented=_TREES,
    ),
    "exscan": Function("exscan", 8, ("linear", "recursive_doubling")),
    "gather": Function(
        "gather", 9, ("basic_linear", "binomial", "linear_sync"), segmented=("linear_sync",)
    ),
    "reduce": Function(
        "reduce",
        11,
        (
            *("linear", "chain", "pipeline", "binary", "binomial"),
            *("in-order_binary", "rabenseifner"),
        ),
        segmented=("chain", "pipeline", "binary", "binomial", "in-order_binary"),
    ),
    "reduce_scatterv": Function(
        "reduce_scatter",
        12,
        ("non-overlapping", "recursive_halving", "ring", "butterfly"),
        calls={0: ("reduce",), 1: ("reduce",)},
    ),
    "reduce_scatter": Function(
        "reduce_scatter_block",
        13,
        ("basic_linear", "recursive_doubling", "recursive_halving", "butterfly"),
        calls={0: ("reduce", "scatter"), 1: ("reduce", "scatter")},
    ),
    "scan": Function("scan", 14, ("linear", "recursive_doubling")),
    "scatter": Function("scatter", 15, ("basic_linear", "binomial", "linear_nb")),
}

_WORDS = "|".join(sorted((each.word for each in FUNCTIONS.values()), key=len, reverse=True))
_VARIABLE = re.compile(rf"{PREFIX}({_WORDS})_algorithm(?:_({'|'.join(SUFFIXES)}))?")


class Tuning(NamedTuple):
    """An algorithm by its number (0: the library's choice), with its segments' bytes (0: whole
    messages), a chain's fan-out, and requests under way at once (0: any number)."""

    algorithm: int
    segment: int = 0
    fanout: int = FANOUT
    requests: int = 0


def name_tuning(function: Function, tuning: Tuning) -> str:
    """The library's word for an algorithm, with what its default does not have: pipeline/128K,
    chain/x2. What the algorithm takes no notice of is not named."""
    if not 1 <= tuning.algorithm <= len(function.algorithms):
        return f"algorithm {tuning.algorithm}" if tuning.algorithm else ""
    name = function.algorithms[tuning.algorithm - 1]
    parts = [name]
    if tuning.segment and name in function.segmented:
        parts.append(format_bytes(tuning.segment))
    if name == "chain" and max(1, tuning.fanout) != FANOUT:
        parts.append(f"x{max(1, tuning.fanout)}")
    if tuning.requests and takes_requests(function, name):
        parts.append(f"r{tuning.requests}")
    return "/".join(parts)


def takes_requests(function: Function, name: str) -> bool:
    """Whether an algorithm limits how many requests are under way at once."""
    return (function.word, name) == ("alltoall", "linear_sync") or (
        function.word == "reduce" and name in function.segmented
    )


def split_tuning(collective: str, env: Variables) -> tuple[Tuning, Variables]:
    """The tuning of a collective that reduced variables have, and the variables that are no part of
    it."""
    function = FUNCTIONS.get(collective)
    word = function.word if function else ""
    values: dict[str, int] = {}
    rest: list[tuple[str, str]] = []
    for name, value in env:
        match = _VARIABLE.fullmatch(name)
        if match and match[1] == word and match[2] in (None, *SUFFIXES[:-1]) and value.isdecimal():
            values[match[2] or "algorithm"] = int(value)
        elif name != DYNAMIC:
            rest.append((name, value))
    tuning = Tuning(
        values.get("algorithm", 0),
        values.get("segmentsize", 0),
        values.get("chain_fanout", FANOUT),
        values.get("max_requests", 0),
    )
    return tuning, tuple(rest)


class OpenMpi:
    """Open MPI, whatever started its ranks."""

    key = "openmpi"
    title = "Open MPI"
    formats = ("openmpi", "words")

    def is_of(self, world: World) -> bool:
        return world.backend == "mpi" and world.library.startswith("Open MPI")

    def reduce(self, collective: str, env: Variables) -> Variables:
        values = dict(env)
        rest = [(name, value) for name, value in env if not name.startswith(PREFIX)]
        tuned = {name: value for name, value in values.items() if name.startswith(PREFIX)}
        switch = tuned.pop(DYNAMIC, "1")
        if switch.lower() in OFF:
            tuned = {name: value for name, value in tuned.items() if not _depends_on_rules(name)}
        bearing = _keep_bearing(FUNCTIONS.get(collective), tuned)
        if DYNAMIC in values and any(map(_depends_on_rules, bearing)):
            bearing[DYNAMIC] = "1"
        return tuple(sorted([*rest, *bearing.items()]))

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        function = FUNCTIONS.get(collective)
        if function is None or n < 2:
            return ()
        return [_make_variables(function, word) for word in _list_words(collective, n)]

    def is_detail(self, collective: str, name: str) -> bool:
        return bool(_VARIABLE.fullmatch(name))

    def name_setting(self, collective: str, setting: Setting) -> str:
        tuning, rest = split_tuning(collective, setting.env)
        function = FUNCTIONS.get(collective)
        return name_with(name_tuning(function, tuning) if function else "", setting, rest)


def _depends_on_rules(name: str) -> bool:
    """Whether a variable counts only with dynamic rules."""
    return name == RULES or bool(_VARIABLE.fullmatch(name))


def _keep_bearing(function: Function | None, tuned: dict[str, str]) -> dict[str, str]:
    """Of coll_tuned's variables those that bear on a function: its own, those of functions that it
    calls, and those that no collective owns. An algorithm is given by its number."""
    bearing = {name: value for name, value in tuned.items() if not _VARIABLE.fullmatch(name)}
    if function is None:
        return {}
    selected = _select_own(function, tuned)
    number = selected.get(f"{PREFIX}{function.word}_algorithm", "0")
    for word in function.calls.get(int(number) if number.isdecimal() else 0, ()):
        called = next(each for each in FUNCTIONS.values() if each.word == word)
        selected |= _select_own(called, tuned)
    return bearing | selected


def _select_own(function: Function, tuned: dict[str, str]) -> dict[str, str]:
    """A function's own variables that say something."""
    base = f"{PREFIX}{function.word}_algorithm"
    value = tuned.get(base, "0")
    if value in function.algorithms:
        value = str(function.algorithms.index(value) + 1)
    value = "0" if value == "ignore" else value
    selected = {} if value == "0" else {base: value}
    is_known = value.isdecimal() and 1 <= int(value) <= len(function.algorithms)
    name = function.algorithms[int(value) - 1] if is_known else ""
    takes = {
        "segmentsize": name in function.segmented,
        "tree_fanout": False,
        "chain_fanout": name == "chain",
        "max_requests": takes_requests(function, name) or (value == "0" and name == ""),
        "knomial_radix": name in ("", "knomial"),
    }
    plain = {"segmentsize": "0", "chain_fanout": str(FANOUT), "max_requests": "0"}
    for suffix in SUFFIXES:
        given = tuned.get(f"{base}_{suffix}")
        if given is not None and takes[suffix] and given != plain.get(suffix):
            selected[f"{base}_{suffix}"] = given
    return selected


def _make_variables(function: Function, word: str) -> Variables:
    """All variables for a word as name_tuning has it, of an algorithm and perhaps a segment."""
    name, _, segment = word.partition("/")
    base = f"{PREFIX}{function.word}_algorithm"
    values = [(base, str(function.algorithms.index(name) + 1)), (DYNAMIC, "1")]
    if segment:
        values.append((f"{base}_segmentsize", str(int(segment.removesuffix("K")) << 10)))
    return tuple(sorted(values))


def _list_words(collective: str, n: int) -> list[str]:
    """The algorithms worth trying: not those that fall back to another one for so many ranks, nor
    those that others' variables change. all_to_allv, scan, gather and scatter have none, since
    rules cannot tell their sizes apart (formats/openmpi.py)."""
    candidates = (_list_reducing(n) | _list_moving(n)).get(collective, {})
    return [word for word, fits in candidates.items() if fits]


def _list_reducing(n: int) -> dict[str, dict[str, bool]]:
    """Algorithms of collectives that reduce, and whether they suit ``n`` ranks."""
    few = n <= FEW
    return {
        "all_reduce": {
            "basic_linear": few and n > 2,
            "recursive_doubling": True,
            "ring": True,
            "segmented_ring/128K": n > 2,
            "rabenseifner": True,
        },
        "reduce": {
            "linear": few,
            "pipeline/32K": True,
            "pipeline/128K": True,
            "binary/32K": n > 2,
            "binomial": n > 2,
            "in-order_binary": n > 2,
            "rabenseifner": True,
        },
        "reduce_scatter": {
            "recursive_doubling": n > 2,
            "recursive_halving": True,
            "butterfly": True,
        },
    }


def _list_moving(n: int) -> dict[str, dict[str, bool]]:
    """The same of those that do not."""
    few, even, power = n <= FEW, n % 2 == 0, n & (n - 1) == 0
    return {
        "all_gather": {
            "two_proc": n == 2,
            "bruck": True,
            "recursive_doubling": power and n > 2,
            "ring": True,
            "neighbor": even and n > 2,
            "sparbit": n > 2,
        },
        "all_to_all": {
            "two_proc": n == 2,
            "linear": True,
            "pairwise": True,
            "modified_bruck": n > 2,
            "linear_sync": True,
        },
        "broadcast": {
            "basic_linear": few,
            "pipeline/32K": True,
            "pipeline/128K": True,
            "binary_tree/32K": n > 2,
            "split_binary_tree/32K": n > 2,
            "binomial": n > 2,
            "knomial": n > 4,
            "scatter_allgather": n > 2,
            "scatter_allgather_ring": n > 2,
        },
        "barrier": {
            "two_proc": n == 2,
            "linear": few and n > 2,
            "double_ring": n > 2,
            "recursive_doubling": True,
            "bruck": n > 2,
            "tree": n > 2,
        },
    }


LIBRARY = OpenMpi()
