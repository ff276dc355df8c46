"""A recorded job on Gloo in which a rank skips an all_reduce: Gloo aborts a rank as sizes differ,
and the rank that skipped is named all the same."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from ports import find_free_port
from warm import Warm

RANKS, ITERATIONS = 2, 4
LIMIT_S = 60


def job(rank: int, port: str, folder: Path, guilty: int) -> None:
    """Two all_reduces an iteration; the guilty rank leaves out the first of the last."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    import torch
    import torch.distributed as dist

    import collbench

    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    recorder = collbench.record(folder, steps=10)
    for iteration in range(ITERATIONS):
        if not (rank == guilty and iteration == ITERATIONS - 1):
            dist.all_reduce(torch.ones(8))
        dist.all_reduce(torch.ones(4096))
        recorder.step()


@pytest.mark.parametrize("guilty", range(RANKS))
def test_the_rank_that_skipped_a_call_is_named_though_a_rank_is_aborted(
    warm: Warm, tmp_path: Path, cli, guilty: int
) -> None:
    words = str(find_free_port()), str(tmp_path / "trace"), str(guilty)
    started = [warm.start(str(rank), *words, script=__file__) for rank in range(RANKS)]
    try:
        codes = [each.wait(LIMIT_S) for each in started]
    finally:
        for each in started:
            each.kill()
    assert any(codes)
    done = cli("trace", str(tmp_path / "trace"), "--format", "json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)["hang"]
    assert (told["cause"], told["ranks"]) == ("other", [guilty])
    assert f": rank {guilty} called all_reduce of 16 KiB float" in told["words"]
    assert "once more, or skipped all_reduce of 32 B float (test_skipped_calls.py:" in told["words"]


if __name__ == "__main__":
    job(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
