"""Options that several commands have, and families of options that go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from typer import Argument, Option

from collbench.cli.parameters import list_flags, make_option
from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from collbench.run.launch.places import PlaceSource

Collective = Annotated[str, Argument(metavar="COLLECTIVE", help="As in `collbench list`.")]
Root = Annotated[int, Option("-r", "--root", min=0, help="Root rank.")]
RUN_NAMES = Argument(metavar="RUN…", help="@last, @last~1, an id, a tag or a file.")
Runs = Annotated[list[str] | None, RUN_NAMES]
Ranks = Annotated[str, make_option("ranks", "Number of ranks. Default: all GPUs, else all cores.")]
WorldSizes = Annotated[
    str, make_option("ranks", "Rank counts: 2,4. Default: 2, or the launcher's.")
]
Backend = Annotated[
    str,
    Option(
        "--backend", help="gloo, nccl or another of torch's. Default: nccl with GPUs, else gloo."
    ),
]
Imports = Annotated[str, make_option("imports")]
Launcher = Annotated[str, make_option("launcher", "As for `collbench all_reduce`.")]
Hosts = Annotated[str, make_option("hosts")]
Ssh = Annotated[str, make_option("ssh")]
Timeout = Annotated[
    float | None,
    make_option(
        "timeout", "Seconds without progress after which a run is hung. Default: 30, on GPUs 90."
    ),
]
Inject = Annotated[
    str,
    make_option(
        "inject", "Inject faults, as in `collbench all_reduce --inject`. Marks all that is shown."
    ),
]
LinkSource = Annotated[
    str, Option("--from", help="Take the link from this recorded run, as `fit` does.")
]
TableOrJson = Annotated[str, Option("--format", help="table or json.")]
PlainTable = Annotated[str, Option("--format", help="table, json or csv.")]
AnyTable = Annotated[str, Option("--format", help="table, json, csv or md.")]
Plotlyjs = Annotated[
    str,
    Option(
        "--plotlyjs",
        help="inline: a page needs nothing else; directory: plotly.min.js beside it, for several"
        " pages; cdn: from the network.",
    ),
]
Output = Annotated[Path | None, Option("--output", help="Save the run to this file or folder.")]
Save = Annotated[bool, make_option("save")]
Tag = Annotated[str, make_option("tag")]
RunsTag = Annotated[str, make_option("tag", "A name to find the runs by.")]
DryRun = Annotated[bool, make_option("dry_run", "Show what would run, and what it takes.")]
Debug = Annotated[bool, make_option("debug")]


def list_changed(options: Any, *kept: str) -> list[str]:
    """The options that are not as by default, as they are written, those of families within among
    them, but for the fields ``kept``."""
    names: list[str] = []
    hints = get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in kept:
            continue
        if is_dataclass(value):
            names += list_changed(value, *kept)
        elif value not in (field.default, None, ""):
            option = get_args(hints[field.name])[1]
            flag = next(iter(list_flags(option)), option.metavar or field.name)
            names.append(flag.split("/")[-1 if value is False else 0])
    return names


def refuse_beside_run(options: Any, *kept: str) -> None:
    """Raises UsageError for options about measuring, where a recorded run is shown; those of the
    fields ``kept`` have an effect there."""
    changed = list_changed(options, *kept, "output_format", "debug")
    refuse_without_effect(
        changed, "where a recorded run is shown", "do not name a run: then one is measured"
    )


def refuse_without_effect(changed: Sequence[str], where: str, otherwise: str) -> None:
    """Raises UsageError if there are options that have no effect ``where`` they are given. The hint
    is to leave them out, or what to do ``otherwise``."""
    if changed:
        has, them = ("has", "it") if len(changed) == 1 else ("have", "them")
        raise UsageError(
            f"{', '.join(changed)} {has} no effect {where}", f"leave {them} out, or {otherwise}"
        )


@dataclass(frozen=True, kw_only=True)
class SaveOptions:
    """The place and the tag of a run, and whether there is to be one."""

    output: Output = None
    save: Save = True
    tag: Tag = ""
    dry_run: DryRun = False


@dataclass(frozen=True, kw_only=True)
class LauncherOptions:
    """The launcher of ranks, and the hosts that ssh reaches."""

    launcher: Launcher = "auto"
    hosts: Hosts = ""
    ssh: Ssh = ""

    def find_source(self) -> PlaceSource | None:
        """Who gives places for ranks; None where none is needed. Raises UsageError."""
        from collbench.cli.options import find_source

        return find_source(self.launcher, hosts=self.hosts, ssh=self.ssh)
