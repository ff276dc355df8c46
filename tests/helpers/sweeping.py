"""Commands as a user of a backend gives them, and what their runs hold."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable
from pathlib import Path

from paths import before
from warm import Warm

from collbench.records import run_file
from collbench.records.types import Record

FEW = ("-n", "4", "-w", "1", "--sync", "barrier", "--place", "out")
ONE = ("all_reduce", "--sizes", "4K", "-g", "2", *FEW, "--no-save")

SUITE = """
[axes]
collectives = [{collectives}]
backends = ["{backend}"]
sizes = ["60004"]
ranks = {ranks}
in_place = {places}
{more}

[policy]
iters = 2
warmup = 0
sync = "barrier"
"""


def write_suite(path: Path, backend: str, collectives: Iterable[str], **more: str) -> Path:
    """A suite file of few samples on so many ``ranks``."""
    words = {"backend": backend, "places": "false", "more": "", **more}
    names = ", ".join(f'"{name}"' for name in collectives)
    path.write_text(SUITE.format(collectives=names, **words))
    return path


def read_records(path: Path) -> list[Record]:
    """The records of a run's file."""
    return list(run_file.read_file(path).records)


def read_csv(text: str) -> list[dict[str, str]]:
    """The rows of what ``--format csv`` printed; raises ValueError where a line is none of them."""
    head, *rows = csv.reader(text.splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def run_without(
    cli: Warm, package: str, folder: Path, *args: str
) -> subprocess.CompletedProcess[str]:
    """``collbench ARGS`` in a Python that has not ``package``, told so by a file in ``folder``."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    return cli(*args, PYTHONPATH=before(folder))
