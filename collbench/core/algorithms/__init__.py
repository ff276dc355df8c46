"""Every reference algorithm, a generator of steps each. A module in this package is a family, found
by its file.

A family ends in a table ``ALGORITHMS``. A generator ``steps(n, cells, **parameters)`` yields Moves
for ranks 0..n-1 with root 0 (other roots are the same schedule with ranks renamed) and blocks cut
into ``cells``; it knows nothing of tensors, networks or clocks. An algorithm added to a table is
listed, proved, drawn, predicted and run everywhere.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collbench.core import algorithm_files
from collbench.core.algorithm_files import UserAlgorithm
from collbench.core.algorithm_guard import Guard
from collbench.core.collectives import COLLECTIVES, find_collective
from collbench.core.errors import UsageError
from collbench.core.schedule import Ints, Later, Moves, Schedule
from collbench.core.text import format_count, suggest_name

Steps = Callable[..., Iterator[Moves]]


class Algorithm(NamedTuple):
    """One row: ``steps(n, cells, **parameters)``, the pieces ``cells(n, **parameters)`` a block is
    cut into, and why it cannot run on n ranks (``why_not(n, **parameters)``, None where it can).

    ``parameters`` map a name to its default for (ranks, size in units of alpha / beta): the model's
    optimum, if any. ``node_parameter`` is the one that is the ranks of a node where these are
    known.
    """

    name: str
    collective: str
    steps: Steps
    paper: str
    cells: Callable[..., int] = lambda n, **_: 1
    why_not: Callable[..., str | None] = lambda n, **_: None
    parameters: Mapping[str, Callable[[int, float], int]] = {}
    aliases: tuple[str, ...] = ()
    node_parameter: str = ""

    @property
    def idea(self) -> str:
        """Its idea, in a sentence: the first paragraph of its generator's docstring."""
        docstring = (inspect.getdoc(self.steps) or "").partition("\n\n")[0]
        return " ".join(docstring.replace("``", "").split())


class Variant(NamedTuple):
    """An algorithm with the parameters somebody chose for it (``chain:segments=64``)."""

    algorithm: Algorithm
    given: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        return _name_variant(self.algorithm.name, dict(self.given))

    def resolved(self, n: int, ratio: float) -> dict[str, int]:
        """The values of all parameters: those given, and defaults for a size of ``ratio`` times
        alpha / beta."""
        return {
            name: default(n, ratio) for name, default in self.algorithm.parameters.items()
        } | dict(self.given)

    def on_nodes(self, n: int, node_ranks: int) -> Variant:
        """The variant with its node parameter given, for n ranks on nodes of ``node_ranks``: these
        where they divide n, else the default; itself if it has no such parameter, or was given
        one."""
        name = self.algorithm.node_parameter
        if not name or name in dict(self.given):
            return self
        divides = 1 < node_ranks < n and n % node_ranks == 0
        value = node_ranks if divides else self.resolved(n, 1.0)[name]
        return self._replace(given=(*self.given, (name, value)))

    def refuse(self, n: int) -> str:
        """The reason why the algorithm cannot run on n ranks, or ""."""
        return self.algorithm.why_not(n, **self.resolved(n, 1.0)) or ""

    def schedule(self, n: int, root: int = 0, ratio: float = 1.0) -> Schedule:
        """The schedule for n ranks, named with all its parameters. Raises UsageError where there is
        none."""
        parameters = self.resolved(n, ratio)
        name = _name_variant(self.algorithm.name, parameters)
        row = COLLECTIVES[self.algorithm.collective]
        root = max(root, 0) if row.rooted else 0
        reason = self.refuse(n)
        if reason:
            raise UsageError(
                f"{row.name} {name}: {reason}", "collbench prove shows what runs where"
            )
        if root >= n:
            raise UsageError(
                f"root {root} does not exist among {format_count(n, 'rank')}",
                f"choose one of 0 to {n - 1}",
            )
        cells = self.algorithm.cells(n, **parameters)
        steps = functools.partial(self.algorithm.steps, n, cells, **parameters)
        turned = (
            functools.partial(_turn_roles, steps, n, root, cells if row.total else 0)
            if root
            else steps
        )
        return Schedule(name, row.name, n, root if row.rooted else -1, cells, turned)


def _name_variant(name: str, parameters: dict[str, int]) -> str:
    return ":".join([name, *(f"{key}={value}" for key, value in parameters.items())])


def _turn_roles(
    steps: Callable[[], Iterator[Moves]], n: int, root: int, block: int
) -> Iterator[Moves]:
    """The steps with every rank's role shifted by ``root``, so that ``root`` does what rank 0 did.
    ``block`` is the number of cells a rank, whose indices shift too; 0 if cells belong to no
    rank."""

    def cell(index: Ints) -> Ints:
        return (index + root * block) % (n * block) if block else index

    for moves in steps():
        yield Moves(
            (moves.src + root) % n,
            (moves.dst + root) % n,
            cell(moves.chunk),
            cell(moves.into),
            moves.reduce,
        )


@functools.cache
def list_catalogue() -> dict[tuple[str, str], Algorithm]:
    """Every algorithm by (collective, name), in the order of the table of collectives."""
    families = [
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    ]
    rows = [row for family in families for row in family.ALGORITHMS]
    refuse_repeated(rows)
    rows += [_make_row(algorithm) for algorithm in algorithm_files.list_user_algorithms()]
    order = list(COLLECTIVES)
    return {
        (row.collective, row.name): row
        for row in sorted(rows, key=lambda row: order.index(row.collective))
    }


def refuse_repeated(rows: Iterable[Algorithm]) -> None:
    """Raises ValueError where two algorithms of a collective have one name."""
    names: set[tuple[str, str]] = set()
    for row in rows:
        for name in (row.name, *row.aliases):
            if (row.collective, name) in names:
                raise ValueError(f"two algorithms of {row.collective} are called {name}")
            names.add((row.collective, name))


def add_file(spellings: str, collective: str = "") -> str:
    """``spellings``, a list of algorithms by commas, in which those of the user's files have the
    names that they go by from now on, in this process and those it starts. A generator is one of
    ``collective``. Raises UsageError where there is no such file, or no algorithm in it."""
    return ",".join(_add_file_algorithm(word, collective) for word in spellings.split(","))


def _add_file_algorithm(word: str, owner: str) -> str:
    """Make the algorithm of a word FILE:NAME known, and return the label to select it by; any other
    word is returned unchanged. Raises UsageError where two files give one label."""
    match = algorithm_files.WORD.fullmatch(word.strip())
    if match is None:
        return word
    algorithm = UserAlgorithm(Path(match["path"]).resolve(), match["name"], owner)
    _make_row(algorithm)
    for other in algorithm_files.list_user_algorithms():
        if other.label == algorithm.label and other.path != algorithm.path:
            raise UsageError(
                f"{algorithm.path} and {other.path} are both called {algorithm.label}",
                "rename one of them",
            )
    algorithm_files.pass_to_children(algorithm)
    list_catalogue.cache_clear()
    return algorithm.label + match["settings"]


def _make_row(user_algorithm: UserAlgorithm) -> Algorithm:
    """The algorithm of a file: a row as in a table, or a generator with the cells and parameters
    that are defaults of its arguments."""
    loaded = user_algorithm.load()
    row = (
        _check_row(user_algorithm, loaded)
        if isinstance(loaded, Algorithm)
        else _make_generator_row(user_algorithm, loaded)
    )
    guard = Guard(user_algorithm, row.collective)
    return row._replace(
        name=user_algorithm.label,
        steps=guard.guard_steps(row.steps),
        cells=guard.guard_function(row.cells, (int, np.integer), 1),
        why_not=guard.guard_function(row.why_not, (str, type(None))),
        parameters={
            name: guard.guard_function(default, (int, np.integer))
            for name, default in row.parameters.items()
        },
    )


FIELD_TYPES = {  # of a row in a user's file
    "collective": "a string",
    "steps": "a generator function",
    "paper": "a string",
    "cells": "a function",
    "why_not": "a function",
    "parameters": "a dict of names and functions",
    "aliases": "a tuple of strings",
    "node_parameter": "the name of a parameter",
}


def _check_row(user_algorithm: UserAlgorithm, row: Algorithm) -> Algorithm:
    """The row of a file, with the proper name of its collective. Raises UsageError where a field is
    not of its type."""
    validity_by_field = {
        "collective": isinstance(row.collective, str),
        "steps": callable(row.steps),
        "paper": isinstance(row.paper, str),
        "cells": callable(row.cells),
        "why_not": callable(row.why_not),
        "parameters": isinstance(row.parameters, Mapping)
        and all(isinstance(key, str) and callable(row.parameters[key]) for key in row.parameters),
        "aliases": isinstance(row.aliases, tuple)
        and all(isinstance(alias, str) for alias in row.aliases),
        "node_parameter": isinstance(row.parameters, Mapping)
        and row.node_parameter in ("", *row.parameters),
    }
    if wrong := [name for name, is_valid in validity_by_field.items() if not is_valid]:
        value = f"{getattr(row, wrong[0])!r:.40}"
        raise UsageError(
            f"{user_algorithm.label}: {wrong[0]} is {value}, but must be {FIELD_TYPES[wrong[0]]}",
            "the fields of a row: collbench help algorithms",
        )
    try:
        return row._replace(collective=find_collective(row.collective).name)
    except UsageError as e:
        raise UsageError(f"{user_algorithm.label}: {e.message}", e.hint) from e


def _make_generator_row(user_algorithm: UserAlgorithm, steps: object) -> Algorithm:
    """The row of a generator, of whose arguments the defaults are its cells and parameters."""
    if not inspect.isgeneratorfunction(steps):
        raise UsageError(
            f"{user_algorithm.label} is no generator of steps",
            "write it as def line(n, cells): yield Moves(…)",
        )
    if not user_algorithm.collective:
        raise UsageError(
            f"{user_algorithm.label}: a generator does not say of which collective it is",
            "name a row: from collbench.core.algorithms import Algorithm;"
            f" LINE = Algorithm('line', 'all_reduce', {user_algorithm.name}, 'source')",
        )
    defaults = {
        name: argument.default
        for name, argument in inspect.signature(steps).parameters.items()
        if isinstance(argument.default, int) and not isinstance(argument.default, bool)
    }
    cells = defaults.pop("cells", 1)
    return Algorithm(
        user_algorithm.label,
        user_algorithm.collective,
        steps,
        str(user_algorithm.path),
        cells=lambda n, **_: cells,
        parameters={name: lambda n, ratio, value=value: value for name, value in defaults.items()},  # type: ignore[misc]
    )


def list_algorithms(name: str) -> list[Algorithm]:
    """The algorithms for a collective."""
    return [row for (owner, _), row in list_catalogue().items() if owner == name]


def describe_spelling(algorithm: Algorithm) -> str:
    """The way to name an algorithm in options: ``chain[:segments=N]``, with its other names."""
    also = f" ({', '.join(algorithm.aliases)})" if algorithm.aliases else ""
    return algorithm.name + "".join(f"[:{key}=N]" for key in algorithm.parameters) + also


def split_settings(text: str) -> tuple[str, list[str]]:
    """The name of an algorithm as given, which may have a colon itself, and its settings: ``chain``
    and ``segments=64``. A '-' stands for '_', but not in the name of a file."""
    name, *settings = re.split(r":(?=\w+=)", text)
    names_file = "/" in name or re.search(r"\.py(:|$)", name)
    return name if names_file else name.replace("-", "_"), settings


def look_up_algorithm(owner: str, text: str) -> Algorithm | None:
    """The algorithm of collective ``owner`` that ``text`` names, whatever its settings."""
    word, _ = split_settings(text)
    named = (row for row in list_algorithms(owner) if word in (row.name, *row.aliases))
    return next(named, None)


def spell_algorithm(text: str, owner: str = "") -> str:
    """The text with the algorithm's proper name in it: that of collective ``owner``, or where this
    has none, the name as given, in one spelling."""
    algorithm = look_up_algorithm(owner, text)
    word, settings = split_settings(text)
    return ":".join([algorithm.name if algorithm else word, *settings])


def find_variant(name: str, text: str) -> Variant:
    """The algorithm that ``text`` names for collective ``name``, as in ``ring`` or
    ``chain:segments=64``."""
    owner = find_collective(name).name
    algorithm = look_up_algorithm(owner, text)
    word, settings = split_settings(text)
    head, _, setting = word.rpartition(":")
    if algorithm is None and (algorithm := look_up_algorithm(owner, head)):
        word, settings = head, [setting]
    if algorithm is None:
        names = [row.name for row in list_algorithms(owner)]
        hint = suggest_name(word, names) or f"one of {', '.join(names)}"
        match = algorithm_files.WORD.fullmatch(text)
        file = match["path"] if match else text
        path = file if "/" in file else f"./{file}"
        if match:
            hint = f"it is in a file that --algo must name, as in {path}:{match['name']}"
        elif word.endswith(".py"):
            hint = f"name an algorithm that the file has, as in {path}:NAME"
        raise UsageError(f"{owner} has no algorithm '{word}'", hint)
    given = []
    for setting in settings:
        key, _, value = setting.partition("=")
        if (
            key not in algorithm.parameters
            or not re.fullmatch("[0-9]{1,4}", value)
            or not int(value)
        ):
            takes = (
                ", ".join(f"{word}:{parameter}=4" for parameter in algorithm.parameters)
                or "it takes no parameters"
            )
            raise UsageError(
                f"{owner} {word}: '{setting}' is not a parameter with a number from 1 to 9999",
                takes,
            )
        given.append((key, int(value)))
    return Variant(algorithm, tuple(given))


def mirror_steps(steps: Iterable[Moves], reduce: bool = True) -> Iterator[Moves]:
    """The steps backwards in time, every move turned round: a broadcast becomes a reduce, a scatter
    a gather."""
    for moves in reversed(list(steps)):
        yield moves.mirror(reduce)


def freeze(array: Ints) -> Ints:
    """The array, which nobody can change from here on: steps that share it are known to be equal
    without a look at a million ranks (simulate.list_step_messages)."""
    array.flags.writeable = False
    return array


def list_cells(first: Ints, count: int) -> Later:
    """The ``count`` cells from ``first`` (ranks, 1) on, of each rank, made when they are asked
    for."""
    return Later((len(first), count), lambda: first + np.arange(count))


def around(n: int) -> Callable[[int], Ints]:
    """``turn(k)``: (rank + k) mod n for all ranks at once, for -n <= k <= n, as a view that costs
    nothing to make, and that nobody can change; the same one each time for neighbours."""
    thrice = freeze(np.arange(3 * n) % n)
    neighbours = {k: thrice[n + k : 2 * n + k] for k in (-1, 0, 1)}
    return lambda k: neighbours[k] if k in neighbours else thrice[n + k : 2 * n + k]


def count_doublings(n: int) -> int:
    """Rounds in which one rank can reach n by doubling: the logarithm, rounded up."""
    return (n - 1).bit_length()


def power_of_two(n: int, **_: int) -> str | None:
    """The reason why these ranks cannot take part; None where they can."""
    return None if n & (n - 1) == 0 else f"needs a power of two, not {n} ranks"


def one_each(n: int, **_: int) -> int:
    """A cell for each rank."""
    return n


def count_segment_cells(n: int, segments: int) -> int:
    """A cell for each segment."""
    return segments


def choose_segments(n: int, ratio: float) -> int:
    """Segments that make a chain of n ranks fastest: sqrt((n-2) * size * beta / alpha)."""
    return max(1, min(256, round(math.sqrt(max(0, n - 2) * ratio))))
