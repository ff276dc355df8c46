"""Small experiments of two sides, and what is looked at in their runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from collbench.records import run_file, store
from collbench.records.types import Record, RunFile

TEXT = """
description = "For tests."
[axes]
collectives = ["all_reduce"]
sizes = [{sizes}]
ranks = [{ranks}]
backends = [{backends}]
algorithms = ["{algorithm}"]
in_place = [true]
[policy]
iters = {iters}
warmup = {warmup}
sync = "barrier"
cache = "hot"
"""


def small(folder: Path, **axes: object) -> str:
    """The path of a suite, which is one row of two ranks unless ``axes`` say otherwise."""
    usual = {"sizes": '"4K"', "ranks": "2", "backends": '"gloo"', "algorithm": "ring"}
    path = folder / "small.toml"
    path.write_text(TEXT.format(**{**usual, "iters": 6, "warmup": 1, **axes}))
    return str(path)


def sides() -> tuple[RunFile, RunFile]:
    """Base and head of the last one."""
    base, head = (run_file.read_file(path) for path in store.list_saved()[-2:])
    assert (base.run.pairing.side, head.run.pairing.side) == ("base", "head")
    return base, head


def ended(record: Record) -> datetime:
    return datetime.fromisoformat(record.started) + timedelta(seconds=record.seconds)
