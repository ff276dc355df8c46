"""What a rank says of itself before any case."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from collbench.machine import cpus
from collbench.records.types import World
from collbench.run.jobs import Plan
from collbench.run.launch.board import Board
from collbench.run.rank.control import Control
from collbench.run.rank.cores import Cores
from collbench.run.rank.worker import Place, Worker
from collbench.show import nccl_settings
from collbench.suite.policy import Policy


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of one rank on the second of this host's GPUs."""
    about = SimpleNamespace(name="Fast GPU", pci_domain_id=0, pci_bus_id=0xF, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    control = Control(0, 1)
    plan = Plan(0, "nccl", 1, (), Policy(), [], 120.0)
    board = Board.create(1)[0]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 12})
    monkeypatch.setattr(cpus, "find_numa", lambda own_cpus: {(4, 12): 1}[tuple(own_cpus)])
    worker = Worker(Place(0, 1, 0, 1, "local"), plan, control, board, lambda line: None)
    worker._ranks = range(1)
    worker._backend.device = torch.device("cuda", 1)
    return worker._describe(Cores(False, False), 0, [], None)


def test_a_rank_on_a_gpu_names_it_with_its_address(described: World) -> None:
    assert [info.device for info in described.ranks] == ["cuda:1 [0000:0f:00] Fast GPU"]


def test_a_rank_is_on_the_numa_node_of_all_its_cpus(described: World) -> None:
    assert [info.numa for info in described.ranks] == [1]


def test_the_device_of_a_rank_reads_as_nccl_tests_prints_it(described: World) -> None:
    (device,) = nccl_settings.list_devices(described.ranks)
    shown = (device["device"], device["device_hex"], device["device_info"])
    assert shown == (1, "0000:0f:00", "Fast GPU")
