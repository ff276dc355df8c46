"""Jobs that are hung on purpose on Gloo, dumped by torch's own flight recorder, and judged."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from ports import find_free_port
from warm import Warm

RANKS = 3


def job(rank: int, port: int, folder: str) -> None:
    """Two operations that all call, then one that rank 1 has not called when the others have, and
    then calls with another size: what the recorder has is written at both times."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=limit)
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(7), 1)
    if rank == 1:
        while len([*Path(folder).glob("*/dump_*")]) < 2 * (RANKS - 1):
            time.sleep(0.01)
        dump(rank, folder, "skipped")
        under_way = dist.all_reduce(torch.ones(9000), async_op=True)
        dump(rank, folder, "another size")
    else:
        under_way = dist.all_reduce(torch.ones(1000), async_op=True)
        dump(rank, folder, "skipped", "another size")
    os._exit(under_way is None)  # without waiting for what never ends


def dump(rank: int, folder: str, *faults: str) -> None:
    """Writes what torch's recorder has of this rank, whole at once."""
    from torch._C import _distributed_c10d as c10d

    told = c10d._dump_fr_trace_json(True, False)
    for fault in faults:
        part = Path(folder, fault, f"part_{rank}")
        part.write_text(told if isinstance(told, str) else told.decode())
        part.rename(part.with_name(f"dump_{rank}"))


@pytest.fixture(scope="module")
def dumps(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of dumps for each fault."""
    folder = tmp_path_factory.mktemp("dumps")
    for fault in ("skipped", "another size"):
        (folder / fault).mkdir()
    port = str(find_free_port())
    started = [warm.start(str(rank), port, str(folder), script=__file__) for rank in range(RANKS)]
    for each in started:
        try:
            each.wait(100)
        finally:
            each.kill()
    return folder


@pytest.mark.parametrize(("fault", "cause"), [("skipped", "missing"), ("another size", "other")])
def test_the_rank_that_hung_a_job_of_gloos_is_named(
    dumps: Path, cli, fault: str, cause: str
) -> None:
    done = cli("trace", str(dumps / fault), "--format", "json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["ranks"] == [0, 1, 2]
    assert (told["hang"]["cause"], told["hang"]["ranks"]) == (cause, [1])
    assert (told["hang"]["groups"][0]["number"], told["hang"]["groups"][0]["waiting"][0]) == (3, 0)


if __name__ == "__main__":
    job(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
