"""Which CPUs ranks of GPUs keep to, on a machine that is made up: nobody's affinity changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from collbench.machine import cpus, environment, sysfs, topology
from collbench.run.backends import _cuda
from collbench.run.rank import cores, gpu, stream
from collbench.run.rank.control import Control

HERE, ELSEWHERE = "a boot", "another boot"
NODES = list(range(16)), list(range(16, 32))  # of 8 cores each: CPU n and n + 8 are one


def by_core(cpus: list[int]) -> list[list[int]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        groups.setdefault((cpu // 16, cpu % 8), []).append(cpu)
    return list(groups.values())


class Told(Control):
    """A control group whose ranks say what a test has them say; this one is ``rank``."""

    def __init__(self, rank: int, everyone: list[Any]) -> None:
        super().__init__(rank, len(everyone))
        self._everyone = everyone

    def collect(self, value: Any) -> list[Any]:
        return [value if at == self.rank else said for at, said in enumerate(self._everyone)]


Kept = Callable[..., list[int] | None]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """``kept(rank, nears)``: what the rank is bound to, if at all, where each rank's GPU is near
    these CPUs of a machine of 32; ``may`` are the CPUs that each may use, ``at`` its machine."""

    def bound(
        rank: int,
        nears: list[list[int]],
        may: list[list[int]] | None = None,
        at: list[str] | None = None,
    ) -> list[int] | None:
        allowed = may or [list(range(32))] * len(nears)
        calls: list[list[int]] = []
        monkeypatch.setattr(environment, "boot_id", lambda: (at or [HERE])[0])
        monkeypatch.setattr(cpus, "list_affinity", lambda: allowed[rank])
        monkeypatch.setattr(cpus, "by_core", by_core)
        monkeypatch.setattr(os, "sched_setaffinity", lambda who, cpus: calls.append(list(cpus)))
        said = [
            [where, cpus, sorted({*near} & {*cpus})]
            for where, cpus, near in zip(at or [HERE] * len(nears), allowed, nears, strict=True)
        ]
        cores.near_gpu(Told(rank, said), nears[rank])
        return calls[0] if calls else None

    return bound


def test_ranks_of_one_node_get_whole_cores_of_their_own(kept: Kept) -> None:
    nears = [NODES[0], NODES[1], NODES[0]]
    assert kept(0, nears) == [0, 8, 1, 9, 2, 10, 3, 11]
    assert kept(2, nears) == [4, 12, 5, 13, 6, 14, 7, 15]


def test_a_rank_alone_on_its_node_has_all_of_it(kept: Kept) -> None:
    assert sorted(kept(1, [NODES[0], NODES[1], NODES[0]]) or ()) == NODES[1]


def test_more_ranks_than_fours_of_cores_share_all_of_them(kept: Kept) -> None:
    assert kept(1, [NODES[0]] * 3) == NODES[0]


def test_other_machines_ranks_take_nothing(kept: Kept) -> None:
    assert sorted(kept(0, [NODES[0]] * 3, at=[HERE, ELSEWHERE, ELSEWHERE]) or ()) == NODES[0]


def test_what_all_may_use_bounds_it(kept: Kept) -> None:
    """A job's control group, or taskset before the whole command."""
    some = list(range(12, 24))
    assert kept(0, [NODES[0], NODES[1]], may=[some] * 2) == [12, 13, 14, 15]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_launcher_has_bound_stays(kept: Kept, rank: int) -> None:
    assert kept(rank, [NODES[0]] * 2, may=[[0, 1, 2, 3], [4, 5, 6, 7]]) is None


def test_another_machines_bound_ranks_do_not_matter(kept: Kept) -> None:
    may = [list(range(32)), [4, 5]]
    assert sorted(kept(0, [NODES[0]] * 2, may, [HERE, ELSEWHERE]) or ()) == NODES[0]


@pytest.mark.parametrize("near", [[], NODES[1]])
def test_no_cpu_near_the_gpu_that_may_be_used(kept: Kept, near: list[int]) -> None:
    assert kept(0, [near, NODES[0]], may=[NODES[0]] * 2) is None


def test_where_binding_is_forbidden_ranks_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(who: int, cpus: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    cores.near_gpu(Control(0, 1), os.sched_getaffinity(0))


ABOUT = {"pci_domain_id": 0, "pci_bus_id": 0x1B, "pci_device_id": 2}


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What ``_cuda.settle_stream`` does with GPU 0000:1b:02.0, in order."""
    place = tmp_path / "sys/bus/pci/devices/0000:1b:02.0"
    place.mkdir(parents=True)
    (place / "local_cpulist").write_text("0-3,8\n")
    done: list[Any] = []
    monkeypatch.setattr(sysfs, "ROOT", tmp_path)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**ABOUT)
    )
    monkeypatch.setattr(torch.cuda, "set_device", done.append)
    monkeypatch.setattr(_cuda, "near_gpu", lambda control, near: done.append(near))
    return done


CUDA = torch.device("cuda", 1)


def test_ranks_are_bound_before_the_device_is_touched(bound: list[Any]) -> None:
    assert isinstance(_cuda.settle_stream(CUDA, Control(0, 1), True), stream.Cuda)
    assert bound == [[0, 1, 2, 3, 8], CUDA]


def test_no_pin_binds_nobody(bound: list[Any]) -> None:
    _cuda.settle_stream(CUDA, Control(0, 1), False)
    assert bound == [CUDA]


def test_a_gpu_without_an_address_still_asks_the_others(
    bound: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "pci_address", lambda device: None)
    _cuda.settle_stream(CUDA, Control(0, 1), True)
    assert bound == [(), CUDA]


def test_a_gpu_the_kernel_does_not_know_is_near_nothing(tmp_path: Path) -> None:
    assert topology.cpus_near("00000000:1B:00.0", tmp_path) == []


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[int], int], None]]:
    """``given(own, total)``: this rank may use the CPUs ``own`` of a machine of ``total`` cores."""
    monkeypatch.setattr(cpus, "by_core", by_core)

    def set_machine(own: list[int], total: int) -> None:
        monkeypatch.setattr(cpus, "list_affinity", lambda: own)
        monkeypatch.setattr(cpus, "machine_core_count", lambda: total)

    cores._list_given_cpus.cache_clear()
    yield set_machine
    cores._list_given_cpus.cache_clear()


@pytest.mark.parametrize(
    ("own", "total", "bound"),
    [
        ([0, 8], 16, True),  # both threads of a core, as srun gives them without -c
        ([0, 1, 2], 16, True),
        ([0, 1, 2, 3], 16, False),
        ([0, 8], 1, False),  # all that there is
        ([0, 1], 2, False),
        ([0], 2, True),
        ([0], 0, False),  # the kernel does not say what there is
    ],
)
def test_a_rank_that_may_use_less_than_its_machine_has_is_bound(
    given: Callable[[list[int], int], None], own: list[int], total: int, bound: bool
) -> None:
    given(own, total)
    assert cores.is_bound_to_few() is bound


def test_a_rank_that_is_bound_here_was_not_bound_by_its_launcher(
    given: Callable[[list[int], int], None],
) -> None:
    given(list(range(32)), 16)
    assert not cores.is_bound_to_few()
    given([0], 16)
    assert not cores.is_bound_to_few()


@pytest.mark.parametrize("other", [True, False])
def test_a_world_is_bound_where_one_of_its_ranks_is(
    given: Callable[[list[int], int], None], monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    given(list(range(32)), 16)
    monkeypatch.setattr(environment, "boot_id", lambda: HERE)
    monkeypatch.setattr(cpus, "usable_cpus", lambda: list(range(16)))
    monkeypatch.setattr(cpus, "core_count", lambda: 16)
    monkeypatch.setattr(cpus, "core_of", lambda cpu: cpu)
    control = Told(0, [None, [ELSEWHERE, [0], other, [0]]])
    assert cores.settle_cores(0, control, 1, False) == cores.Cores(False, False, other)


def test_ranks_that_are_bound_to_threads_of_one_core_share_it(
    given: Callable[[list[int], int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given([65], 1)
    monkeypatch.setattr(environment, "boot_id", lambda: HERE)
    monkeypatch.setattr(cpus, "usable_cpus", lambda: [65])
    monkeypatch.setattr(cpus, "core_count", lambda: 1)
    monkeypatch.setattr(cpus, "core_of", lambda cpu: cpu % 64)
    beside = [None, [HERE, [1], False, [1]]], [None, [HERE, [2], False, [2]]]
    found = [cores.settle_cores(0, Told(0, everyone), 1, False) for everyone in beside]
    assert [each.oversubscribed for each in found] == [True, False]
