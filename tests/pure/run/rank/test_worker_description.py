"""What a rank says of itself before any case."""

from __future__ import annotations

import os
from collections.abc import Callable
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
def describe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """``describe(backend, name, policy, cores)``: a world of one rank on the second of this host's
    GPUs, of that ``name``."""

    def make_world(backend: str, name: str, policy: Policy, cores: Cores) -> World:
        about = SimpleNamespace(name=name, pci_domain_id=0, pci_bus_id=0xF, pci_device_id=0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        control = Control(0, 1)
        plan = Plan(0, backend, 1, (), policy, [], 120.0)
        board = Board.create(1)[0]
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 12})
        monkeypatch.setattr(cpus, "find_numa", lambda own_cpus: {(4, 12): 1}[tuple(own_cpus)])
        worker = Worker(Place(0, 1, 0, 1, "local"), plan, control, board, lambda line: None)
        worker._ranks = range(1)
        worker._backend.device = torch.device("cuda", 1)
        return worker._describe(cores, 0, [], None)

    return make_world


@pytest.fixture
def described(describe: Callable[..., World]) -> World:
    return describe("nccl", "Fast GPU", Policy(), Cores(False, False))


def test_a_rank_on_a_gpu_names_it_with_its_address(described: World) -> None:
    assert [info.device for info in described.ranks] == ["cuda:1 [0000:0f:00] Fast GPU"]


def test_a_rank_is_on_the_numa_node_of_all_its_cpus(described: World) -> None:
    assert [info.numa for info in described.ranks] == [1]


def test_the_device_of_a_rank_reads_as_nccl_tests_prints_it(described: World) -> None:
    (device,) = nccl_settings.list_devices(described.ranks)
    shown = (device["device"], device["device_hex"], device["device_info"])
    assert shown == (1, "0000:0f:00", "Fast GPU")


@pytest.mark.parametrize(
    ("backend", "name", "policy", "bound", "told"),
    [
        ("nccl", "Fast GPU", Policy(), True, True),
        ("nccl", "Fast GPU", Policy(), False, False),
        ("nccl", "Fake H100 80GB", Policy(), True, False),
        ("symm", "Fast GPU", Policy(virtual=True), True, False),
        ("symm", "Fast GPU", Policy(), True, False),  # which has no threads of its own
        ("gloo", "Fast GPU", Policy(), True, False),
    ],
)
def test_ranks_of_gpus_that_are_bound_to_few_cores_are_told(
    describe: Callable[..., World], backend: str, name: str, policy: Policy, bound: bool, told: bool
) -> None:
    world = describe(backend, name, policy, Cores(False, True, bound))
    assert world.few_cores is told
    assert world.cramped is (backend == "gloo")  # which is of threads that work for CPUs' buffers
