"""`collbench health --fleet`: its options, and the verdict on many nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace
from typer import Option

from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from collbench.features.health.findings import Verdict
    from collbench.features.health.fleet.judgement import Fleet
    from collbench.show.document import Document


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The nodes that are compared with each other, and their racks."""

    fleet: Annotated[
        bool,
        Option(
            "--fleet",
            help="Compare runs of single nodes with each other, and name odd nodes. RUN may be a"
            " folder or a quoted pattern. See collbench help fleet.",
        ),
    ] = False
    rack: Annotated[
        str,
        Option(
            "--rack",
            metavar="REGEX",
            help="With --fleet: a pattern with one group, which names a host's rack.",
        ),
    ] = ""
    racks: Annotated[
        Path | None,
        Option(
            "--racks",
            metavar="FILE",
            help="With --fleet: a file with a host and its rack on each line.",
        ),
    ] = None
    nodes: Annotated[
        Path | None,
        Option(
            "--nodes",
            metavar="FILE",
            help="With --fleet: the hosts that were to give a run, one a line. Others are left"
            " out, and missing ones named.",
        ),
    ] = None
    max_missing: Annotated[
        int,
        Option(
            "--max-missing",
            metavar="N",
            min=0,
            help="With --fleet: as many nodes may be without a verdict. Default: 0.",
        ),
    ] = 0


def refuse_fleet_conflicts(options: FleetOptions, others: dict[str, bool], runs: bool) -> None:
    """Whether the options of a fleet go together with those of a night, ``others``, by their flags.
    Raises UsageError."""
    fleet_only = {
        "--rack": bool(options.rack),
        "--racks": bool(options.racks),
        "--nodes": bool(options.nodes),
        "--max-missing": bool(options.max_missing),
    }
    if not options.fleet:
        if given := [flag for flag, is_given in fleet_only.items() if is_given]:
            raise UsageError(f"{given[0]} is given without --fleet", "add --fleet")
        return
    if given := [flag for flag, is_given in others.items() if is_given]:
        raise UsageError(
            f"--fleet and {given[0]} exclude each other",
            "a fleet is judged by its own nodes; give one of them",
        )
    if not runs:
        raise UsageError(
            "--fleet is given without runs", "name a folder of them, or a quoted pattern"
        )


def judge_fleet(options: FleetOptions, runs: list[str]) -> tuple[Verdict, Fleet]:
    """The verdict on the fleet of these runs. Raises UsageError and CannotRun."""
    from collbench.features.health.fleet import judgement, places, view

    racks = places.parse_racks(options.rack, options.racks)
    expected = places.read_nodes(options.nodes) if options.nodes else ()
    fleet = judgement.judge_runs(places.list_runs(runs), expected, racks)
    return view.make_verdict(fleet, options.max_missing), fleet


def make_fleet_document(fleet: Fleet, verdict: Verdict, title: str, line: str) -> Document:
    """The fleet's page, with the title and the line that the command has for it."""
    from collbench.features.health.fleet import view

    document = view.make_document(fleet, verdict)
    return replace(document, title=title or document.title, line=line)
