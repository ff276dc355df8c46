"""Jobs that are hung on purpose on Gloo, dumped by torch's own flight recorder, and judged."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

RANKS = 3


def job(rank: int, port: int, folder: str, fault: str) -> None:
    """Two operations that all call, then one in which rank 1, the last to come to it, does not do
    as the others; each writes at once what the recorder has, and ends."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCH_FR_BUFFER_SIZE": "100"}
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as c10d

    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=limit)
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(7), 1)
    others = [Path(folder, f"dump_{other}") for other in range(RANKS) if other != 1]
    while rank == 1 and not all(path.exists() for path in others):
        time.sleep(0.01)
    size = {"skip": 0, "size": 9000}[fault] if rank == 1 else 1000
    under_way = dist.all_reduce(torch.ones(size), async_op=True) if size else None
    told = c10d._dump_fr_trace_json(True, False)
    part = Path(folder, f"part_{rank}")
    part.write_text(told if isinstance(told, str) else told.decode())
    part.rename(Path(folder, f"dump_{rank}"))
    del under_way
    os._exit(0)  # without waiting for what never ends


@pytest.fixture(params=["skip", "size"])
def dumps(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[str]]:
    """What was wrong, and the dumps of the job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen([sys.executable, __file__, str(rank), port, tmp_path, request.param])
        for rank in range(RANKS)
    ]
    for each in started:
        try:
            each.wait(100)
        finally:
            each.kill()
    return request.param, sorted(map(str, tmp_path.glob("dump_*")))


def test_the_rank_that_hung_a_job_of_gloos_is_named(dumps: tuple[str, list[str]], cli) -> None:
    fault, files = dumps
    done = cli("trace", *files, "--format", "json")
    assert len(files) == RANKS
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["hang"]
    assert found["ranks"] == [1]
    assert found["cause"] == {"skip": "missing", "size": "other"}[fault]
    assert (found["groups"][0]["number"], found["groups"][0]["waiting"][0]) == (3, 0)


if __name__ == "__main__":
    job(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
