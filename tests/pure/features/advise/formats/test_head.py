"""The first lines of all files: what a reader must know to use them, in each format's comments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from advised import advised, flatten, row

from collbench.core.version import __version__
from collbench.features.advise.formats import MARK, load_formats
from collbench.features.advise.formats._rows import comment, format_path, write_head
from collbench.features.advise.libraries.openmpi import LIBRARY
from collbench.features.advise.types import Advised, Cell, Series, Unadvised

DOUBLING = (
    ("OMPI_MCA_coll_tuned_allreduce_algorithm", "3"),
    ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
)
FORMATS = load_formats()


def make(*collectives: str, **fields: Any) -> Advised:
    rows = [row(LIBRARY, name, 4, 8, 64, DOUBLING) for name in collectives]
    return msgspec.structs.replace(advised(LIBRARY, rows, "Open MPI v5.0.7"), **fields)


def head(made: Advised, *commands: str) -> str:
    return flatten("\n".join(write_head(made, "some rules", commands)))


def test_the_head_says_what_made_it_where_and_by_which_rules() -> None:
    series = Series("all_reduce", 2, 1)
    made = make(
        "all_reduce",
        command="collbench tune all_reduce -g 2,4",
        hosts=("node1",),
        forms="float32, out of place",
        notes=("X is set here",),
        unadvised=(Unadvised(Cell(series, 8), "too close", True),),
    )
    text = head(made, "export A=FILE")
    assert text.startswith(f"# {MARK} {__version__}: some rules made by: collbench tune all_reduce")
    assert (
        "measured with Open MPI v5.0.7; 2 and 4 ranks on 1 host; hosts node1; float32, out of place"
        " runs, the last of 2026-11-28: 20261128-101010 a gain counts from 3% to 5%, by row To use"
        " it, in the shell or the script that starts the job: export A=FILE On several hosts the"
        " file must be at this place on each, the same"
    ) in text
    assert text.endswith("X is set here")


def test_only_sums_may_differ_and_only_where_their_order_may() -> None:
    differ = "Results may differ in the last bits"
    assert differ in head(make("broadcast", "all_reduce"))
    assert differ not in head(make("broadcast"))
    same = head(make("all_reduce", is_same_order=True))
    assert differ not in same and "only settings that keep the order of summation" in same


def test_without_rows_there_is_nothing_to_use() -> None:
    none = head(make(notes=("a note",)), "export A=FILE")
    assert "No setting is surely faster than the library's own choice: no row, this file" in none
    assert "To use it" not in none and "export" not in none and none.endswith("a note")
    undecided = head(make(is_undecided=True))
    assert "Nothing could be decided: no row, this file changes nothing." in undecided
    assert "surely faster" not in undecided


@pytest.mark.parametrize("key", FORMATS)
def test_every_file_begins_with_the_mark_and_has_short_lines_in_ascii(key: str) -> None:
    kind = FORMATS[key]
    made = make(
        version="\x1b[31m é" * 90,
        command="collbench tune */ --write '\n1 2 3'" * 9,
        notes=("\n9 9 9 */", "ü" * 300),
    )
    text = kind.write(made, Path("/tmp/advice"))
    first, *lines = text.splitlines()
    assert MARK in first[:10] + first[:40]
    assert text.isascii() and max(map(len, lines)) <= 110
    rules = {line for line in (first, *lines) if line.split()[0] not in ("#", "//", "/*")}
    assert rules <= {"0 # collectives"}
    if key != "nccl":  # whose plug-in has a trap for what is no row
        assert kind.read(text) == []


@pytest.mark.parametrize(
    ("path", "word"),
    [
        (Path("/a/b.conf"), "/a/b.conf"),
        (Path("/a b/it's"), "'/a b/it'\"'\"'s'"),
        (None, "FILE"),
        (Path("/é"), "FILE"),
        (Path("/a\nb"), "FILE"),
        (Path("/a*/b"), "FILE"),
        (Path("/" + "a" * 200), "FILE"),
    ],
)
def test_a_command_names_the_file_where_a_comment_can_hold_it(path: Path, word: str) -> None:
    assert format_path(path) == word


def test_no_sentence_looks_like_a_command() -> None:
    assert comment(["  export A=1"]) == ["# export A=1"]
