"""The options of a collective's command in its help: those that everybody needs first, then the
others by what they are about."""

from __future__ import annotations

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
        "in_place",
        "budget",
    ),
    "Sizes and data": (
        "stepbytes",
        "listed",
        "roots",
        "splits",
        "align",
        "unalign",
        "check",
        "adds_as",
        "seed",
    ),
    "How long it is measured": (
        "iters",
        "warmup",
        "cycles",
        "launches",
        "agg_iters",
        "precision",
        "max_seconds",
        "timeout",
    ),
    "How calls are timed": (
        "modes",
        "arrivals",
        "sync",
        "blocking",
        "replays",
        "cache",
        "order",
        "register",
        "backgrounds",
    ),
    "Where ranks run": (
        "imports",
        "launcher",
        "address",
        "placement",
        "hosts",
        "ssh",
        "groups",
        "envs",
        "paths",
        "pin",
        "virtual",
        "share_gpu",
    ),
    "What is printed": (
        "output_format",
        "output_file",
        "average",
        "cpu_time",
        "timestamps",
        "per_iter",
        "per_iter_skip",
        "min_busbw",
    ),
    "What is saved": ("output", "save", "tag"),
    "Trying it out": ("dry_run", "inject", "debug", "help"),
}


class MeasureCommand(TyperCommand):
    """A command whose help shows its options in SECTIONS."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes each section, and options of none at the end."""
        records = {
            parameter.name: record
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
