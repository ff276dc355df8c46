"""Features: folders of ``collbench/features`` that the rest of the package knows by name alone.

What a feature has is told by the literal ``FEATURE`` of its folder; what it names is imported when
it is used. A feature whose folder is not there, or that needs one that is not there, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

FOLDER = "collbench.features"

Registry = Literal[
    "commands",
    "sections",
    "conclusions",
    "row_tables",
    "measurables",
    "runners",
    "checks",
    "explanations",
    "writers",
    "link_sources",
    "step_sources",
    "order_sources",
]


class Entry(NamedTuple):
    """Something of a feature: its key, and where it is, "module:name" below the feature's folder;
    ``after``: the key of the entry that it follows, where order matters, empty for the first."""

    key: str
    target: str
    after: str = ""


class Command(NamedTuple):
    """A command: its name, where its function is, and its line in --help, which is the first
    paragraph of the function's docstring. ``starts_ranks``: every process that a launcher starts
    runs it, else one does. ``is_group``: the function makes a group of commands.
    ``resume_command``: the command whose --resume continues with runs that this one began; empty
    where it decides while it runs what to measure next. ``verdict_options``: options that its
    verdict needs and that no file has: a run with one of them is not continued with.
    ``show_command``: the words before a run's name that show and judge it as the command does;
    empty where it takes no recorded run."""

    key: str
    target: str
    summary: str
    starts_ranks: bool = False
    is_group: bool = False
    resume_command: str = "run"
    verdict_options: tuple[str, ...] = ()
    show_command: str = ""


class Feature(NamedTuple):
    """What a folder adds. Those of kinds of cases have the kind as key."""

    name: str
    needs: tuple[str, ...] = ()  # features without which it is left out
    commands: tuple[Command, ...] = ()
    sections: tuple[Entry, ...] = ()  # (View) -> Section | None, in reports
    conclusions: tuple[Entry, ...] = ()  # (runs, asked) -> Conclusion | None: a report's first line
    row_tables: tuple[Entry, ...] = ()  # core.collectives.RowTable
    measurables: tuple[Entry, ...] = ()  # suite.measurable.Measurable
    runners: tuple[Entry, ...] = ()  # run.runner.Runner
    checks: tuple[Entry, ...] = ()  # Check of health
    explanations: tuple[Entry, ...] = ()  # of comparisons: adds what it knows to their rows
    writers: tuple[Entry, ...] = ()  # core.export.Writer: schedules and steps in others' formats
    link_sources: tuple[Entry, ...] = ()  # (name) -> (Link, note): what a link does, by a run
    step_sources: tuple[Entry, ...] = ()  # (keys, where, path) -> Step: a step by a suite's keys
    order_sources: tuple[Entry, ...] = ()  # (run, collective, size) -> [RecordedOrder]


@cache
def find_features() -> tuple[Feature, ...]:
    """The features that are installed with all that they need, in the order in which the package
    names them."""
    names = import_module(FOLDER).NAMES
    installed = [name for name in names if find_spec(f"{FOLDER}.{name}")]
    features = [import_module(f"{FOLDER}.{name}").FEATURE for name in installed]
    while lacking := [
        feature
        for feature in features
        if not {*feature.needs} <= {feature.name for feature in features}
    ]:
        features = [feature for feature in features if feature not in lacking]
    return tuple(features)


def find_entries(registry: Registry) -> dict[str, tuple[Feature, Any]]:
    """The entries that all features have in a registry, by key, each with its feature. Raises
    ValueError for a key that two have."""
    entries: dict[str, tuple[Feature, Any]] = {}
    for feature in find_features():
        for entry in getattr(feature, registry):
            if entry.key in entries:
                raise ValueError(f"two features have {entry.key} in {registry}")
            entries[entry.key] = feature, entry
    return entries


def load_entry(feature: Feature, target: str) -> Any:
    """The ``target`` of one of a feature's entries, imported."""
    module, _, name = target.partition(":")
    return getattr(import_module(f"{FOLDER}.{feature.name}.{module}"), name)


@cache
def load_entries(registry: Registry) -> dict[str, Any]:
    """All features' entries in a registry, imported, by key. Raises ValueError for a key that two
    have."""
    entries = find_entries(registry)
    return {key: load_entry(feature, entry.target) for key, (feature, entry) in entries.items()}


def load_ordered(registry: Registry, kernel_rows: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Rows of a table by key: the ``kernel_rows``, and those of features where their entries say:
    after the one each follows, or at the end where that is not there."""
    keys, rows = [key for key, _ in kernel_rows], dict(kernel_rows) | load_entries(registry)
    follows: dict[str, int] = {}
    for key, (_, entry) in find_entries(registry).items():
        position = (
            keys.index(entry.after) + 1 if entry.after in keys else len(keys) * bool(entry.after)
        )
        keys.insert(position + follows.get(entry.after, 0), key)
        follows[entry.after] = follows.get(entry.after, 0) + 1
    return {key: rows[key] for key in keys}
