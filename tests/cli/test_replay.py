"""`collbench replay`, as typed: traces as collbench.record writes them, a line a call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import traced

ELEMENTS = 1 << 14


def call(kind: str = "all_reduce", elements: int = ELEMENTS) -> dict[str, Any]:
    op = "sum" if kind == "all_reduce" else "none"
    size = {"nbytes": 4 * elements, "dtype": "float"}
    return {"kind": kind, "op": op, **size, "source": "train.py:9 step"}


def job(folder: Path, *ranks: Sequence[dict[str, Any]], world: int = 0) -> Path:
    """A trace of these calls of each rank, half a millisecond apart."""
    folder.mkdir()
    for rank, calls in enumerate(ranks):
        head = {"collbench_trace": 1, "rank": rank, "world": world or len(ranks)}
        timed = ({**each, "issued_ns": 500_000 * at} for at, each in enumerate(calls))
        end = {"ended": 500_000 * len(calls)}
        lines = [json.dumps(each) + "\n" for each in (head, *timed, end)]
        (folder / f"rank-{rank:05}.jsonl").write_text("".join(lines))
    return folder


STEP = [call(), call(elements=64), call("all_gather", 2 * ELEMENTS)]


def test_a_trace_is_counted_as_a_step(bare, tmp_path: Path) -> None:
    path = job(tmp_path / "job", STEP * 3, STEP * 3)
    done = bare("replay", str(path), "--show", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["name"], found["world"]) == ("replay:job", 2)
    assert [(p["kind"], p["ops"], p["nbytes"]) for p in found["parts"]] == [
        ("all_reduce", 2, 4 * (ELEMENTS + 64)),
        ("all_gather", 1, 8 * ELEMENTS),
    ]
    assert found["recorded"]["median_ns"] == 1_500_000
    assert any("repeat every 3" in each for each in found["assumptions"])
    told = " ".join(bare("replay", str(path), "--show").stdout.split())
    assert "recorded: 1.50 ms, median of 2 iterations of the trace, from its first call" in told


def test_the_step_of_a_trace_is_written_and_read_again(bare, tmp_path: Path) -> None:
    path = job(tmp_path / "job", STEP * 3, STEP * 3)
    step = tmp_path / "step.csv"
    step.write_text(bare("replay", str(path), "--show", "--format", "csv").stdout)
    again = bare("workload", str(step), "--show", "--format", "csv")
    assert (again.returncode, again.stdout) == (0, step.read_text())
    assert "0;1,compute,0,bfloat16,,500.000," in again.stdout


def test_a_trace_is_predicted_on_another_network(bare, tmp_path: Path) -> None:
    path = job(tmp_path / "job", STEP * 3, STEP * 3)
    told = " ".join(bare("replay", str(path), "--link", "eth10").stdout.split())
    assert "computation alone 1.50 ms" in told
    assert "predicted / recorded: 1.0" in told
    gone = " ".join(bare("replay", str(path), "--link", "eth10", "--gaps", "none").stdout.split())
    assert "communication takes at least" in gone
    assert "recorded" not in gone


def test_what_would_run_is_shown(bare, tmp_path: Path) -> None:
    done = bare(
        "replay", str(job(tmp_path / "job", STEP * 2, STEP * 2)), "--dry-run", "--gaps", "x2"
    )
    assert done.returncode == 0
    for words in ("replay:job gaps=x2", "2 ranks", "3 cases"):
        assert words in done.stdout


EVEN = call("all_to_allv", ELEMENTS + 2)
BAD = {  # a trace's ranks, its world, more words; what is said of it, and what is advised
    "missing": (([*STEP],), 2, (), "of 2 ranks the trace lacks 1", "--assume-symmetric"),
    "order": ((STEP, STEP[::-1]), 2, (), "rank 0, call 0 (", "--ranks"),
    "size": ((STEP, [call(elements=32), *STEP[1:]]), 2, (), "all_reduce of 128 B float", ""),
    "splits": (([EVEN], [EVEN]), 2, (), "does not say how it is divided", "--assume-even"),
    "unknown": (([call(), call("shout")],) * 2, 2, (), "cannot be replayed", "--partial"),
    "iteration": ((STEP * 2,) * 2, 2, ("--iteration", "2"), "the trace has 2 iterations", "0 to 1"),
    "gaps": ((STEP,) * 2, 2, ("--gaps", "most"), "--gaps most", "x0.5"),
    "ranks": ((STEP,) * 2, 2, ("--ranks", "0-2"), "there is no rank 2", "0 to 1"),
    "outside": ((STEP,) * 2, 2, ("--ranks", "0"), "nothing is left", ""),
    "rebalance": ((STEP,) * 2, 2, ("--rebalance", "max"), "--rebalance max", "mean"),
    "more": ((STEP,) * 2, 2, ("-g", "3"), "3 ranks are given, and replay:job has 2", "--ranks 0-2"),
    "form": ((STEP,) * 2, 2, ("--from", "tape"), "tape", "kineto"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_replayed_is_told_in_two_lines(name: str, bare, tmp_path: Path) -> None:
    ranks, world, words, message, hint = BAD[name]
    done = bare("replay", str(job(tmp_path / "job", *ranks, world=world)), *words)
    assert (done.returncode, done.stdout) == (2, "")
    first, *more = done.stderr.splitlines()
    assert message in first
    assert hint in "".join(more)
    assert len(more) <= 1


def test_a_folder_may_have_any_name(bare, tmp_path: Path) -> None:
    path = job(tmp_path / "job.v2.jsonl", STEP, STEP)
    done = bare("replay", str(path), "-g", "3", "--dry-run")
    assert done.returncode == 2
    assert "3 ranks are given, and replay:job.v2.jsonl has 2" in done.stderr
    assert bare("replay", str(path), "--dry-run").returncode == 0


def test_what_is_missing_may_be_assumed_and_is_said(bare, tmp_path: Path) -> None:
    path = job(tmp_path / "job", STEP, world=4)
    done = bare("replay", str(path), "--assume-symmetric", "--show", "--format", "json")
    found = json.loads(done.stdout)
    assert found["world"] == 4
    assert any("ranks 1-3 are not in the trace" in each for each in found["assumptions"])


def test_a_cut_file_of_another_tool_is_refused(bare, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(traced.EXECUTION)[:-9])
    broken = bare("replay", str(path), "--assume-symmetric", "--show")
    assert (broken.returncode, broken.stdout) == (2, "")
    assert "is cut at" in broken.stderr


def test_unequal_blocks_may_be_taken_for_equal(bare, tmp_path: Path) -> None:
    path = job(tmp_path / "job", [EVEN], [EVEN])
    done = bare("replay", str(path), "--assume-even", "--show", "--format", "json")
    found = json.loads(done.stdout)
    assert found["parts"][0]["sent"] == 4 * (ELEMENTS + 2) / 2
    assert any("equal ones (2 calls)" in each for each in found["assumptions"])


def test_a_trace_that_is_not_there_is_told(bare, tmp_path: Path) -> None:
    done = bare("replay", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "none" in done.stderr


def test_help_has_what_all_steps_take_and_what_traces_do(bare) -> None:
    told = bare("replay", "--help").stdout
    for words in ("--gaps", "--assume-symmetric", "--compute", "--blame", "--link", "--tag"):
        assert words in told
    assert "--layout" not in told
