"""What `collbench tune` is asked for, read from its words and refused before anything is
measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.core.backend_info import backend_info
from collbench.core.collectives import find_collective
from collbench.core.errors import CannotRun, UsageError
from collbench.core.text import format_count, print_message
from collbench.features.advise.formats import load_formats
from collbench.features.advise.libraries import Library, find_library
from collbench.features.advise.tune.joining import Field
from collbench.features.advise.types import Series, Variables
from collbench.machine import cpus
from collbench.records.types import World
from collbench.run import refusal
from collbench.run.launch import join
from collbench.run.launch.places import PlaceSource
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes

THREADS = "OMP_NUM_THREADS"


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A search as asked for. ``field`` has who competes, ``notes`` what a reader must know of what
    is left out."""

    library: Library
    version: str  # of the library, as far as known before it runs
    format: Any  # Format
    field: Field
    axes: Axes
    policy: Policy
    budget: float
    command: Sequence[str]
    launcher: str = "local"
    source: PlaceSource | None = None
    is_same_order: bool = False
    despite_oversubscription: bool = False
    tau: float | None = None
    output: Path | None = None
    tag: str = ""
    notes: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """The backend whose own choice is to be beaten."""
        return self.axes.backends[0]

    @property
    def title(self) -> str:
        """The library in words; the backend where nothing is known of it."""
        return self.backend if self.library.key == "other" else self.library.title


def resolve_axes(axes: Axes, source: PlaceSource | None, launcher: str) -> Axes:
    """The sweep with ranks and backend filled in. Raises UsageError where several backends are
    named, or ranks cannot be started anew."""
    member = join.detect_launcher(launcher)
    if member is not None:
        raise UsageError(
            f"tune starts ranks anew for every setting, and {member.launcher} has started these,"
            " which stay as they are",
            f"run collbench tune without {member.launcher}, with -g for the ranks of this host, or"
            " --launcher ssh --hosts for those of several",
        )
    resolved = source.resolve(axes) if source else axes.resolve()
    refusal.refuse_unknown_backends(resolved.backends)
    if len(resolved.backends) != 1:
        raise UsageError(
            f"--backend {','.join(resolved.backends)}: tune searches one backend's settings",
            "name one, and run tune for each; collbench advise compares backends",
        )
    (backend,) = resolved.backends
    if backend_info(backend).predicts:
        raise UsageError(
            f"--backend {backend} predicts times, so that no setting is faster",
            "name a backend that measures",
        )
    return resolved


def look_up_library(backend: str) -> tuple[Library, str]:
    """The library behind a backend here, and how it calls itself, before any rank is started.
    Raises CannotRun where it cannot be loaded."""
    text = backend_info(backend).find()
    version = text.partition(", ranks by ")[0]
    world = World(
        index=0,
        backend=backend,
        n=1,
        env=(),
        launcher="local",
        ranks=[],
        oversubscribed=False,
        same_clock=True,
        library=version,
    )
    return find_library(world), version


def choose_format(library: Library, key: str) -> Any:
    """The format of ``--for``, else the library's usual one. Raises UsageError."""
    formats = load_formats()
    if not key:
        return formats[library.formats[0]]
    if key not in library.formats:
        raise UsageError(
            f"--for {key}: {library.title} reads {' or '.join(library.formats)}",
            f"give one of these, or leave --for out for {library.formats[0]}",
        )
    return formats[key]


def list_series(axes: Axes, despite_oversubscription: bool) -> tuple[list[Series], list[str]]:
    """The series of a sweep, and a note on those that are left out as their ranks would share
    cores. Raises CannotRun where none is left."""
    cores = cpus.core_count()
    is_here = not backend_info(axes.backends[0]).gpu and not axes.per_host
    crowded = [n for n in axes.ranks if is_here and n > cores]
    notes: list[str] = []
    ranks = list(axes.ranks)
    if crowded and not despite_oversubscription:
        numbers = " and ".join(map(str, crowded))
        ranks = [n for n in ranks if n not in crowded]
        note = (
            f"{numbers} ranks share {format_count(cores, 'core')}, so that times tell of the"
            " scheduler: no advice for them"
        )
        if not ranks:
            raise CannotRun(note, "--oversubscribed measures and advises in spite of it")
        notes.append(f"{note} (--oversubscribed measures them)")
    if not [n for n in ranks if n > 1]:
        raise UsageError("a single rank has nothing to communicate", "give -g 2 or more")
    return [
        Series(find_collective(name).name, n, 1) for name in axes.collectives for n in ranks
    ], notes


def list_field(
    series: Sequence[Series],
    library: Library,
    version: str,
    envs: Sequence[Variables],
    axes: Axes,
) -> Field:
    """Who competes: the settings of ``--env`` where there are any, else those that the library is
    known for; the default alone in series in which none of them counts. Raises UsageError where
    there are none."""
    field: dict[Series, dict[Variables, tuple[int, ...]]] = {}
    sizes = tuple(sorted(axes.sizes))
    for each in series:
        known = envs or library.list_settings(each.collective, each.n, version)
        seen: dict[Variables, Variables] = {}
        for setting in known:
            if counting := library.reduce(each.collective, setting):
                seen.setdefault(counting, setting)
        field[each] = dict.fromkeys(seen.values() or [()], sizes)
    if any(map(any, field.values())):
        return field
    backend = axes.backends[0]
    if envs:
        names = ", ".join(sorted({name for env in envs for name, _ in env}))
        raise UsageError(
            f"--env: {names} changes none of {', '.join(axes.collectives)}",
            "name variables that bear on a collective of the sweep",
        )
    raise UsageError(
        f"{backend} has no settings that collbench knows for {', '.join(axes.collectives)}",
        "give some: --env NAME=V1,V2 (may be repeated)",
    )


def describe_environment(backend: str, environ: Mapping[str, str]) -> list[str]:
    """A note on variables of this process that the backend reads: they hold for both sides."""
    names = sorted(name for name in environ if name.startswith(backend_info(backend).settings))
    if not names:
        return []
    return [f"{', '.join(names)} is set here, for the default and for every setting"]


def tell_ineffective(envs: Sequence[Variables], backend: str) -> None:
    """Says which variables mean nothing to the backend. Raises UsageError for one that is about
    how ranks compute."""
    names = dict.fromkeys(name for env in envs for name, _ in env)
    if THREADS in names:
        raise UsageError(
            f"--env {THREADS}: it is about how ranks compute, and collbench starts them with 1",
            "name variables that bear on communication",
        )
    for name in refusal.ineffective_settings(names, [backend]):
        print_message(f"{name} means nothing to {backend}")
