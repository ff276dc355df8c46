"""-G and --mode graph on the command line, on the model backend."""

from __future__ import annotations

import pytest

from collbench.records import run_file, store

SMALL = ("all_reduce", "--sizes", "1K", "--backend", "model", "-g", "4")


@pytest.mark.parametrize(
    ("args", "replays"),
    [(("-G", "3"), 3), (("--mode", "graph"), 1), (("-G1", "--mode", "graph"), 1)],
)
def test_graph_mode_can_be_asked_for_in_two_ways(bare, args: tuple[str, ...], replays: int) -> None:
    done = bare(*SMALL, *args)
    assert done.returncode == 0, done.stderr
    (saved,) = store.list_saved()
    found = run_file.read_file(saved)
    assert {record.case.mode for record in found.records} == {"graph"}
    assert found.run.policy.graph == replays


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-G", "1", "--mode", "streaming"), "-G measures in graph mode, not streaming"),
        (("-G", "1", "-z", "1"), "-z waits for each call"),
        (("--mode", "graph", "-z", "2"), "-z waits for each call"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(bare, args: tuple[str, ...], words: str) -> None:
    done = bare(*SMALL, *args)
    assert done.returncode == 2
    assert words in done.stderr
