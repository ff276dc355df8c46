"""Evidence for advice, made up: launches of settings that scatter, with or without a planted gain;
and a library that has three algorithms of all_reduce."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from collbench.features.advise.evidence import Evidence, Form, Measured, Place
from collbench.features.advise.types import Cell, Series, Setting, Variables
from collbench.records.types import World

SERIES = Series("all_reduce", 4, 1)
FORM = Form("float", "sum", -1, False, "isolated", "", "", 1, "")
SIZES = tuple(8 << (2 * step) for step in range(11))
DEFAULT = Setting(backend="gloo")
ALGORITHM, FANOUT, SEGMENT = "TINY_ALLREDUCE", "TINY_BCAST", "TINY_SEGMENT"


class Tiny:
    """TINY_ALLREDUCE=ring, tree or swing; 0 leaves the choice to it. TINY_BCAST is of broadcast;
    TINY_SEGMENT cuts messages of whichever algorithm."""

    key = "tiny"
    title = "Tiny"
    formats = ("words",)

    def is_of(self, world: World) -> bool:
        return world.library.startswith("Tiny")

    def reduce(self, collective: str, env: Variables) -> Variables:
        gone = {"all_reduce": FANOUT, "broadcast": ALGORITHM}.get(collective)
        return tuple(sorted((k, v) for k, v in env if k != gone and v != "0"))

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        if collective != "all_reduce":
            return ()
        return tuple(((ALGORITHM, name),) for name in ("ring", "tree", "swing"))

    def is_detail(self, collective: str, name: str) -> bool:
        return name == SEGMENT

    def name_setting(self, collective: str, setting: Setting) -> str:
        words = [value if name == ALGORITHM else f"{name}={value}" for name, value in setting.env]
        if setting.algorithm != "native":
            words.insert(0, f"{setting.algorithm}@{setting.backend}")
        return " ".join(words) or setting.backend


def setting(name: str) -> Setting:
    """The setting of this algorithm."""
    return Setting(backend="gloo", env=((ALGORITHM, name),))


def launched(values: Sequence[float], source: str = "run", tau: float = 0.05) -> Measured:
    """Launches of these logarithms of ns, one a cycle."""
    logs = {Place(source, 0, number): float(value) for number, value in enumerate(values)}
    return Measured(logs=logs, tau=tau)


def gather(rivals: Mapping[int, Mapping[Setting, Measured]], **fields: object) -> Evidence:
    """The evidence of one series, of one form, by size."""
    cells = {Cell(SERIES, size): {FORM: dict(settings)} for size, settings in rivals.items()}
    given = {
        "library": Tiny(),
        "version": "Tiny 1.0",
        "runs": ("run",),
        "day": "2026-01-02",
        "default": DEFAULT,
        "cells": cells,
        **fields,
    }
    return Evidence(**given)  # type: ignore[arg-type]


def sweep(
    rng: np.random.Generator,
    changes: Mapping[str, Mapping[int, float]],
    sizes: Sequence[int] = SIZES,
    launches: int = 10,
    sigma: float = 0.03,
    shared: float = 0.02,
    wilder: float = 1.0,
    tau: float = 0.05,
) -> Evidence:
    """A sweep of the default and the settings ``changes`` names, in which a size takes
    1 + change of the default's time. Log times scatter by ``sigma``, settings' by ``wilder`` times
    that; a launch is off by ``shared`` at all of its sizes."""
    names = ("", *changes)
    off = rng.normal(0, shared, (len(names), launches))
    rivals: dict[int, dict[Setting, Measured]] = {}
    for size in sizes:
        base = math.log(1e4 + size)
        rivals[size] = {}
        for index, name in enumerate(names):
            change = changes[name].get(size, 0.0) if name else 0.0
            scatter = sigma * (wilder if name else 1.0)
            logs = base + math.log1p(change) + off[index] + rng.normal(0, scatter, launches)
            rivals[size][setting(name) if name else DEFAULT] = launched(logs, tau=tau)
    return gather(rivals)
