"""`collbench trace`, as typed, on files as recorders write them."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

SECOND = 1_000_000_000
NOON = 1_800_000_000 * SECOND
GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}


def entry(number: int, state: str, elements: int = 256, kind: str = "all_reduce") -> dict[str, Any]:
    """What NCCL's flight recorder has of a call that took 1 ms if it completed."""
    began = NOON + number * SECOND
    done = state == "completed"
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{kind}",
        "time_created_ns": began,
        **({"duration_ms": 1.0} if done else {}),
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": began if state != "scheduled" else None,
        "time_discovered_completed_ns": began + 2_000_000 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


USUAL = [entry(1, "completed"), entry(2, "started", 1 << 20)]


def dumped(folder: Path, *ranks: list[dict[str, Any]] | None, packed: bool = False) -> list[str]:
    """The dump of each rank, but of those that have none."""
    files = []
    for rank, entries in enumerate(ranks):
        if entries is None:
            continue
        told = {"version": "2.10", "pg_config": GROUPS, "pg_status": {}, "entries": entries}
        path = folder / f"dump_{rank}"
        path.write_bytes(pickle.dumps(told, 2) if packed else json.dumps(told).encode())
        files.append(str(path))
    return files


@pytest.mark.parametrize("packed", [False, True], ids=["json", "pickle"])
def test_the_rank_that_hung_a_job_is_named(bare, tmp_path: Path, packed: bool) -> None:
    done = bare("trace", *dumped(tmp_path, USUAL, USUAL[:1], USUAL, packed=packed))
    assert done.returncode == 1
    told = " ".join(done.stdout.split())
    assert (
        "rank 1 never called all_reduce #2 of 4 MiB float on world (0-2), which 2 others wait in"
        " since 08:00:02 UTC"
    ) in told


@pytest.mark.parametrize("broken", [{"profiling_name": "nccl:rotate"}, {"state": 5}])
def test_a_rank_whose_call_cannot_be_read_is_not_accused(
    bare, tmp_path: Path, broken: dict[str, Any]
) -> None:
    unread = [USUAL[0], USUAL[1] | broken]
    done = bare("trace", *dumped(tmp_path, USUAL, unread, USUAL), "--format", "json")
    told = json.loads(done.stdout)["hang"]
    assert (done.returncode, told["ranks"]) == (3, [0, 2])


def test_a_rank_that_called_another_size_is_named(bare, tmp_path: Path) -> None:
    odd = [USUAL[0], entry(2, "started", 8)]
    done = bare("trace", *dumped(tmp_path, USUAL, odd, USUAL), "--format", "json")
    assert done.returncode == 1
    told = json.loads(done.stdout)["hang"]
    assert (told["cause"], told["ranks"]) == ("other", [1])
    assert told["groups"][0]["other"] == {"1": "all_reduce of 32 B float"}


def test_a_rank_without_a_dump_is_named(bare, tmp_path: Path) -> None:
    done = bare("trace", *dumped(tmp_path, USUAL, None, USUAL), "--format", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["hang"]["cause"], told["missing"]) == (1, "silent", [1])


def test_where_nobody_can_be_named_there_is_no_verdict(bare, tmp_path: Path) -> None:
    done = bare("trace", *dumped(tmp_path, USUAL, USUAL, USUAL))
    assert done.returncode == 3


def test_a_job_that_came_to_its_end_is_fine(bare, tmp_path: Path) -> None:
    done = bare("trace", *dumped(tmp_path, *[USUAL[:1]] * 3), "--format", "json")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["hang"] is None
    assert [(part["kind"], part["ops"], part["nbytes"]) for part in told["operations"]] == [
        ("all_reduce", 1, 1024)
    ]


def test_a_rank_that_never_called_what_its_root_is_through_with_leaves_no_verdict(
    bare, tmp_path: Path
) -> None:
    left = [USUAL[0], entry(2, "completed", kind="broadcast")]
    done = bare("trace", *dumped(tmp_path, left, USUAL[:1], USUAL[:1]))
    assert done.returncode == 3
    assert done.stdout.startswith("ranks 1,2 lack operations on world that others called")


def test_a_page_and_its_json_are_written_beside_what_is_printed(bare, tmp_path: Path) -> None:
    page, values = tmp_path / "page.html", tmp_path / "values.json"
    files = dumped(tmp_path, USUAL, USUAL[:1], USUAL)
    done = bare("trace", *files, "--format", "md", "-o", str(page), "-o", str(values))
    assert done.returncode == 1
    assert f"wrote {page} (" in done.stderr and f"wrote {values} (" in done.stderr
    assert "rank 1 never called" in page.read_text()
    assert json.loads(values.read_text())["hang"]["ranks"] == [1]


def test_a_file_that_is_no_trace_is_refused(bare, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a trace")
    done = bare("trace", str(path))
    assert done.returncode == 2
    assert "notes.txt" in done.stderr


def test_two_files_of_a_rank_are_refused(bare, tmp_path: Path) -> None:
    (one,) = dumped(tmp_path, USUAL)
    done = bare("trace", one, one)
    assert done.returncode == 2


def test_dumps_without_calls_are_no_verdict(bare, tmp_path: Path) -> None:
    done = bare("trace", *dumped(tmp_path, [], [], []))
    assert done.returncode == 3
    assert done.stdout.startswith("no verdict")


def test_kernels_that_say_nothing_are_no_verdict(bare, tmp_path: Path) -> None:
    kernel = {"cat": "kernel", "name": "ncclKernel_AllReduce", "ts": 1, "dur": 2, "args": {}}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [kernel]}))
    done = bare("trace", str(tmp_path / "rank0.json"))
    assert done.returncode == 3
    assert done.stdout.startswith("no verdict")


def test_a_file_that_cannot_be_read_is_said_and_the_others_judged(bare, tmp_path: Path) -> None:
    files = dumped(tmp_path, USUAL, USUAL[:1], USUAL)
    (tmp_path / "dump_2").write_bytes(b"")
    done = bare("trace", *files, "--format", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["hang"]["cause"], told["hang"]["ranks"]) == (1, "missing", [1])
    assert [each["rank"] for each in told["unread"]] == [2]


def test_a_job_of_which_a_file_cannot_be_read_has_no_verdict(bare, tmp_path: Path) -> None:
    files = dumped(tmp_path, *[USUAL[:1]] * 3)
    (tmp_path / "dump_2").write_bytes(b"")
    done = bare("trace", *files)
    assert done.returncode == 3
    assert "rank 2's file cannot be used" in done.stdout.splitlines()[0]


RECORDED = (
    '{"collbench_trace":1,"rank":0,"world":2,"backend":"gloo"}\n'
    '{"kind":"all_reduce","nbytes":8,"dtype":"float","number":0,"issued_ns":1,"ends_ns":2}\n'
)


def test_a_recording_that_broke_off_says_so(bare, tmp_path: Path) -> None:
    (tmp_path / "rank-00000.jsonl").write_text(RECORDED + '{"kind":"all_re')
    (tmp_path / "rank-00001.jsonl").write_bytes(b"")
    done = bare("trace", str(tmp_path), "--format", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["cut"]) == (3, {"0": "line 3"})
    assert [each["rank"] for each in told["unread"]] == [1]


def test_a_recording_without_an_end_says_so(bare, tmp_path: Path) -> None:
    (tmp_path / "rank-00000.jsonl").write_text(RECORDED)
    done = bare("trace", str(tmp_path))
    assert "the recording of rank 0 broke off" in " ".join(done.stdout.split())


def test_a_receive_from_anybody_that_no_rank_sends_to_is_no_verdict(bare, tmp_path: Path) -> None:
    waits = '{"kind":"recv","nbytes":8,"dtype":"float","issued_ns":3,"state":"started"}\n'
    end = '{"ended":99,"broken":true}\n'
    (tmp_path / "rank-00000.jsonl").write_text(RECORDED + waits + end)
    (tmp_path / "rank-00001.jsonl").write_text(RECORDED.replace('"rank":0', '"rank":1') + end)
    done = bare("trace", str(tmp_path), "--format", "json")
    told = json.loads(done.stdout)["hang"]
    assert (done.returncode, told["cause"], told["ranks"]) == (3, "all", [0])


def test_a_pipe_among_saved_runs_does_not_hold_up_their_list(
    bare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    os.mkfifo(tmp_path / "runs" / "x.jsonl")
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    assert bare("runs").returncode == 0


def test_the_title_has_the_ranks_and_the_time_of_the_first_call(bare, tmp_path: Path) -> None:
    runs = Path(__file__).parents[2] / "reports" / "runs" / "recorded-job"
    page = tmp_path / "page.md"
    bare("trace", *map(str, sorted(runs.glob("*.jsonl"))), "-o", str(page))
    title = page.read_text().splitlines()[1]
    assert "2 ranks" in title and "2026" in title and title.endswith("UTC")
