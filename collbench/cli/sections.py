"""The options of a collective's command in its help: those that everybody needs first, then the
others by what they are about, in the order of need."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

SECTIONS = {
    "First options": (
        "minbytes",
        "maxbytes",
        "stepfactor",
        "ranks",
        "dtypes",
        "ops",
        "backends",
        "algorithms",
        "iters",
        "output",
    ),
    "Where ranks run": (
        "launcher",
        "hosts",
        "ssh",
        "address",
        "placement",
        "envs",
        "groups",
        "paths",
        "imports",
        "pin",
        "share_gpu",
        "virtual",
    ),
    "Sizes and data": (
        "stepbytes",
        "listed",
        "in_place",
        "roots",
        "splits",
        "check",
        "align",
        "unalign",
        "seed",
        "adds_as",
    ),
    "How long it is measured": (
        "budget",
        "precision",
        "max_seconds",
        "warmup",
        "launches",
        "cycles",
        "agg_iters",
        "timeout",
    ),
    "How calls are timed": (
        "modes",
        "arrivals",
        "backgrounds",
        "cache",
        "order",
        "sync",
        "register",
        "blocking",
        "replays",
    ),
    "What is printed and saved": (
        "output_format",
        "output_file",
        "tag",
        "save",
        "min_busbw",
        "average",
        "cpu_time",
        "timestamps",
        "per_iter",
        "per_iter_skip",
    ),
    "Trying it out": ("dry_run", "inject", "debug", "help"),
}


class MeasureCommand(TyperCommand):
    """A command whose help shows its options in SECTIONS, without the bounds of numbers."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes each section, and options of none at the end."""
        records = {
            parameter.name: (record[0], _hide_bounds(record[1]))
            for parameter in self.get_params(ctx)
            if (record := parameter.get_help_record(ctx))
        }
        for title, names in SECTIONS.items():
            rows = [records.pop(name) for name in names if name in records]
            with formatter.section(title):
                formatter.write_dl(rows)
        if records:
            with formatter.section("Other options"):
                formatter.write_dl([*records.values()])


def _hide_bounds(text: str) -> str:
    text = re.sub(r"; [\d.]*(<=)?x[<>]=[\d.]+\]$", "]", text)
    return re.sub(r" *\[[\d.]*(<=)?x[<>]=[\d.]+\]$", "", text)
