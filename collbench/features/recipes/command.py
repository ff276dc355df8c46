"""The command `recipe`: files that come with the program, for others to act on its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from typer import Argument, Option

from collbench.cli.families import Debug
from collbench.core.errors import UsageError

MARK = "collbench recipe"  # near the beginning of each file, by which it is known as ours


class Recipe(NamedTuple):
    """A file below files/, what it does, and whether it is a program."""

    file: str
    summary: str
    is_program: bool = False


RECIPES = {
    "drain": Recipe(
        "drain.py", "--on-unhealthy: drain blamed hosts in Slurm, or taint them in Kubernetes", True
    ),
    "webhook": Recipe(
        "webhook.py", "--on-unhealthy: post the verdict to a chat or another webhook", True
    ),
    "nhc": Recipe("collbench.nhc", "check for Node Health Check: take blamed hosts offline"),
    "rules": Recipe("prometheus_rules.yml", "alerting rules for Prometheus"),
    "grafana": Recipe("grafana.json", "dashboard for Grafana, of what Prometheus has"),
}


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """The file to print, or where to write it."""

    name: Annotated[
        str,
        Argument(
            metavar="[NAME]",
            help="Without one, the names are listed.",
            autocompletion=lambda: list(RECIPES),
        ),
    ] = ""
    output: Annotated[
        Path | None,
        Option("-o", "--output", help="Write to this file, programs as executable ones."),
    ] = None
    debug: Debug = False


def recipe(options: RecipeOptions) -> None:
    """Print a file for Slurm, Kubernetes, NHC, a chat, Prometheus or Grafana.

    `collbench help outputs` says how each is used. They are yours to change.
    """
    from collbench.cli import outputs
    from collbench.core.files import save_text
    from collbench.suite.grammar import parse_choice

    if not options.name:
        if options.output:
            raise UsageError("-o is given without a name", f"one of {', '.join(RECIPES)}")
        width = max(map(len, RECIPES))
        for name, row in RECIPES.items():
            typer.echo(f"{name:<{width}}  {row.summary}")
        return
    parse_choice("NAME", options.name, RECIPES)
    row = RECIPES[options.name]
    text = read_recipe(options.name)
    if options.output is None:
        return typer.echo(text, nl=False)
    nbytes = save_text(options.output, text, MARK, shared=True)
    if row.is_program:
        mode = options.output.stat().st_mode
        options.output.chmod(mode | (mode & 0o444) >> 2)
    outputs.announce_file(options.output, nbytes)


def read_recipe(name: str) -> str:
    """The text of a recipe."""
    folder = resources.files("collbench.features.recipes") / "files"
    return (folder / RECIPES[name].file).read_text(encoding="utf-8")
