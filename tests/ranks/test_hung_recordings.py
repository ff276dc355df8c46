"""Own recordings of jobs that are hung on purpose on Gloo: the rank that hung them is named, and a
recording that ends while calls are under way accuses nobody."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from ports import find_free_port
from waiting import wait_for
from warm import Warm

from collbench.features.traces.formats import own

RANKS, GUILTY = 3, 1
LIMIT_S = 60


def job(rank: int, port: int, folder: Path) -> None:
    """Rank 1 calls late what others have begun when their recording is closed; then it raises
    instead of calling what they wait in until they have no patience; then it sleeps instead, after
    a call that Gloo refuses at once."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch
    import torch.distributed as dist

    import collbench
    from collbench.features.traces.recording import program as recorded
    from collbench.features.traces.recording import recorder as recording

    recorded.HELD_S, recording.PAUSE_S, recording.PATIENCE_S = 0.5, 0.1, 0.3
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=limit)
    impatient = dist.new_group(timeout=timedelta(seconds=2))
    data = torch.ones(1000)
    with collbench.record(folder / "closed"):
        dist.all_reduce(torch.ones(4))
        work = None if rank == GUILTY else dist.all_reduce(data, async_op=True)
    meet(folder, "has closed", rank)
    work = work or dist.all_reduce(data, async_op=True)
    work.wait()
    try:
        with collbench.record(folder / "failed"):
            dist.all_reduce(torch.ones(4), group=impatient)
            if rank == GUILTY:
                meet(folder, "has failed", rank)
                raise RuntimeError("planted")
            dist.all_reduce(data, group=impatient)
    except RuntimeError:
        (folder / f"has failed {rank}").touch()
    collbench.record(folder / "killed")
    dist.all_reduce(torch.ones(4))
    if rank != GUILTY:
        dist.all_reduce(data)
    with suppress(RuntimeError):
        dist.all_gather([torch.ones(1)] * RANKS, data)  # of other sizes
    time.sleep(LIMIT_S)


def meet(folder: Path, what: str, rank: int) -> None:
    """Returns when all others have said so, too."""
    (folder / f"{what} {rank}").touch()
    wait_for(lambda: len([*folder.glob(f"{what} *")]) == RANKS, LIMIT_S)


def stands_still(folder: Path) -> bool:
    """Whether the files tell of a job that is hung: those of ranks that wait in a call, and that
    of the other, which goes on to when that had been written."""
    files = [folder / own.file_name(rank) for rank in range(RANKS)]
    if not all(file.exists() and file.stat().st_size for file in files):
        return False
    ranks = [own.read_rank(file) for file in files]
    guilty = ranks.pop(GUILTY)
    inside = all(rank.calls and rank.calls[-1].state == "started" for rank in ranks)
    return inside and guilty.until > max(rank.calls[-1].issued_ns for rank in ranks)


@pytest.fixture(scope="module")
def recordings(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of recordings for each way in which one ends."""
    folder = tmp_path_factory.mktemp("recordings")
    port = str(find_free_port())
    started = [warm.start(str(rank), port, str(folder), script=__file__) for rank in range(RANKS)]
    try:
        wait_for(lambda: stands_still(folder / "killed"), LIMIT_S)
    finally:
        for each in started:
            each.kill()
            each.wait()
    return folder


@pytest.mark.parametrize("end", ["killed", "failed"])
def test_the_rank_that_hung_a_recorded_job_is_named(recordings: Path, cli, end: str) -> None:
    done = cli("trace", str(recordings / end), "--format", "json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)["hang"]
    assert (told["cause"], told["ranks"]) == ("missing", [GUILTY])
    (front,) = told["groups"]
    assert (front["number"], front["waiting"]) == (1, [0, 2])


def test_a_recording_that_is_closed_while_calls_are_under_way_is_no_hang(
    recordings: Path, cli
) -> None:
    trace = own.read_job([*(recordings / "closed").iterdir()])
    assert [len(rank.calls) for rank in trace.ranks] == [2, 1, 2]
    assert [rank.calls[-1].ends_ns < 0 for rank in trace.ranks] == [True, False, True]
    done = cli("trace", str(recordings / "closed"), "--format", "json")
    assert not json.loads(done.stdout).get("hang"), done.stderr


if __name__ == "__main__":
    job(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
