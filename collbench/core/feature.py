"""Features: folders of ``collbench/features`` that the rest of the package knows by name alone.

What a feature has is told by the literal ``FEATURE`` of its folder; what it names is imported when
it is used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

FOLDER = "collbench.features"

Registry = Literal["row_tables", "measurables", "runners"]


class Entry(NamedTuple):
    """Something of a feature: its key, and where it is, "module:name" below the feature's
    folder."""

    key: str
    target: str


class Feature(NamedTuple):
    """What a folder adds, each by the kind of case that it is for."""

    name: str
    row_tables: tuple[Entry, ...] = ()  # core.collectives.RowTable
    measurables: tuple[Entry, ...] = ()  # suite.measurable.Measurable
    runners: tuple[Entry, ...] = ()  # run.runner.Runner


@cache
def find_features() -> tuple[Feature, ...]:
    """The features that are installed, in the order in which the package names them."""
    names = import_module(FOLDER).NAMES
    installed = [name for name in names if find_spec(f"{FOLDER}.{name}")]
    return tuple(import_module(f"{FOLDER}.{name}").FEATURE for name in installed)


@cache
def load_entries(registry: Registry) -> dict[str, Any]:
    """What all features have in a registry, imported, by key. Raises ValueError for a key that two
    have."""
    found: dict[str, Any] = {}
    for feature in find_features():
        for key, target in getattr(feature, registry):
            if key in found:
                raise ValueError(f"two features have {key} in {registry}")
            module, _, name = target.partition(":")
            found[key] = getattr(import_module(f"{FOLDER}.{feature.name}.{module}"), name)
    return found
