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
    """Write an algorithm's schedule as MSCCL XML, GOAL, DOT, JSON or Chakra."""
    from collbench.core import algorithms, files
    from collbench.core import export as exports
    from collbench.core.feature import load_entries
    from collbench.suite.grammar import parse_size

    writers = load_entries("writers")
    formats = (*exports.FORMATS, *writers)
    if to not in formats:
        raise UsageError(f"--to '{to}' is unknown", f"one of {', '.join(formats)}")
    if to in writers and output is None:
        raise UsageError(f"--to {to} writes a file a rank", "-o FOLDER says where")
    schedule = algorithms.find_variant(collective, algorithm).schedule(n, root)
    size = parse_size(nbytes, "--bytes")
    if to in writers and output is not None:
        name = algorithm.partition(":")[0]
        return typer.echo(writers[to].write_schedule(schedule, size, output, name))
    text = exports.FORMATS[to](schedule, size)
    if output is None:
        return typer.echo(text, nl=False)
    files.save_text(output, text, exports.NAME if to == "json" else "", shared=True)
