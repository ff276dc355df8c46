"""The command `export`: an algorithm's schedule for other tools."""

from __future__ import annotations

from pathlib import Path

import typer

from collbench.core.errors import UsageError


def export(
    collective: str,
    algorithm: str,
    n: int = 8,
    root: int = 0,
    to: str = "json",
    nbytes: str = "1M",
    output: Path | None = None,
    debug: bool = False,
) -> None:
    """Write an algorithm's schedule as MSCCL XML, GOAL, DOT or JSON."""
    from collbench.core import algorithms, files
    from collbench.core import export as exports
    from collbench.suite.grammar import parse_size

    if to not in exports.FORMATS:
        raise UsageError(f"--to '{to}' is unknown", f"one of {', '.join(exports.FORMATS)}")
    schedule = algorithms.find(collective, algorithm).schedule(n, root)
    text = exports.FORMATS[to](schedule, parse_size(nbytes, "--bytes"))
    if output is None:
        return typer.echo(text, nl=False)
    files.save(output, text, exports.NAME if to == "json" else "", shared=True)
