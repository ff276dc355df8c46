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
    """Write an algorithm's schedule for other tools: MSCCL XML, GOAL, DOT, JSON or Chakra."""
    from collbench.core import algorithms, files
    from collbench.core import export as exports
    from collbench.suite.grammar import parse_size

    formats = (*exports.FORMATS, "chakra")
    if to not in formats:
        raise UsageError(f"--to '{to}' is unknown", f"one of {', '.join(formats)}")
    if to == "chakra" and output is None:
        raise UsageError("--to chakra writes a file a rank", "-o FOLDER says where")
    schedule = algorithms.find(collective, algorithm).schedule(n, root)
    size = parse_size(nbytes, "--bytes")
    if to == "chakra" and output is not None:
        from collbench.workload.traces import chakra_files, steps

        trace = steps.of_schedule(schedule, size)
        return typer.echo(chakra_files.write(output, algorithm.partition(":")[0], trace.ranks))
    text = exports.FORMATS[to](schedule, size)
    if output is None:
        return typer.echo(text, nl=False)
    files.save(output, text, exports.NAME if to == "json" else "", shared=True)
