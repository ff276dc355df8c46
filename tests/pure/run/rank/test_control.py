"""Ranks' control group, where no world is open."""

from __future__ import annotations

import torch.distributed as dist

from collbench.run.rank.control import make_world_control


def test_without_a_world_a_process_is_one_of_its_own() -> None:
    """As where a test has memory from a backend on GPUs, and no other rank."""
    assert not dist.is_initialized()
    alone = make_world_control()
    with alone.refusing_alike():
        pass
    assert (alone.rank, alone.n, alone.collect("word")) == (0, 1, ["word"])
