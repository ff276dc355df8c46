"""symm's virtual ranks up to the launch: the kernel is taped.py's, on the very addresses that it is
given."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from interleaving import cases, finish
from taped import decoded, span, walk

from collbench.core.errors import CannotRun
from collbench.machine import environment
from collbench.run import backends, refusal
from collbench.run.backends import _instructions, _symm, symm
from collbench.suite.case import Case
from collbench.suite.policy import Policy


def words(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


class Progress(MutableMapping[tuple[int, int, int], int]):
    """Where a launch's table of addresses says that it is."""

    def __init__(self, bases: np.ndarray) -> None:
        self.bases = bases

    def line(self, own: tuple[int, int]) -> np.ndarray:
        """A channel's, on a rank: its base, and what each rank has told it."""
        past = own[1] * _instructions.line_bytes(len(self.bases))
        return words(int(self.bases[own[0], _instructions.LINES]) + past, 1 + len(self.bases))

    def __getitem__(self, key: tuple[int, int, int]) -> int:
        return int(self.line(key[:2])[1 + key[2]])

    def __setitem__(self, key: tuple[int, int, int], value: int) -> None:
        self.line(key[:2])[1 + key[2]] = value

    def __delitem__(self, key: tuple[int, int, int]) -> None: ...

    def __iter__(self) -> Iterator[tuple[int, int, int]]: ...  # type: ignore[empty-body]

    def __len__(self) -> int:
        return 0


class Kernel:
    """Takes _kernel.walk's place: kernel[grid](...) runs all programs of the grid, one instruction
    of each at a time."""

    INTERPRETED, REPORT_WORDS, triton = False, 6, SimpleNamespace(__version__="none")

    def __init__(self) -> None:
        self.grids: list[tuple[int, int]] = []
        self.compiled: list[Any] = []
        self.walk = self

    def kernel_options(self, case: Case, virtual: bool) -> dict[str, Any]:
        assert virtual
        return {"kind": np.dtype(case.dtype if case.row.reduces else f"i{case.type.size}")}

    def choose_peer_limit(self) -> int:
        return 3

    def warmup(self, *given: Any, grid: tuple[int], kind: Any) -> Any:
        assert len(given) == 6
        return SimpleNamespace(run=self.compiled.append(kind))

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def launch(
            tape: Any, bases: Any, claim: Any, report: Any, first: int, limit: int, kind: Any
        ) -> None:
            assert kind in self.compiled  # or a peer may wait for the compiler
            self.grids.append(grid)
            progress, code = Progress(bases.numpy()), tape.numpy()
            assert code[0] == _instructions.line_bytes(len(progress.bases))

            def at(address: int, past: int, count: int) -> np.ndarray:
                start = int(progress.bases.flat[address]) + past
                return np.ctypeslib.as_array(
                    (ctypes.c_char * (count * kind.itemsize)).from_address(start)
                ).view(kind)

            keys = [
                (first + rank, channel) for rank in range(grid[1]) for channel in range(grid[0])
            ]
            lives = {
                number: walk(decoded(code, number), own, int(progress.line(own)[0]), progress, at)
                for number, own in enumerate(keys)
            }
            assert finish(lives, random.Random(1), 1000 * len(keys))
            for own in keys:
                progress.line(own)[0] += span(code)

        return launch


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(_symm, "_load_kernel", lambda: found)
    monkeypatch.setattr(
        _symm.Symmetric, "_on_gpus", lambda self, local_rank: (self._virtual, 40 // self._n)
    )
    return found


def opened(n: int) -> _symm.Symmetric:
    backend = _symm.Symmetric()
    backend.policy = Policy(virtual=True)
    backend.open(0, n, 0)
    return backend


def rows(memory: torch.Tensor, case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every rank's input and output in one allocation."""
    found, at = [], 0
    for rank in range(case.n):
        total = case.row.overlay(case.n, case.count, rank)[2] if case.in_place else sum(case.counts)
        begin, into = (
            case.row.overlay(case.n, case.count, rank)[:2] if case.in_place else (0, case.counts[0])
        )
        whole = memory[at : at + total]
        found.append((whole[begin : begin + case.counts[0]], whole[into : into + case.counts[1]]))
        at += total
    return found


@pytest.mark.parametrize(("n", "nbytes"), [(1, 4 * 41), (3, 4 * 41), (4, 3 * 16_384 + 4)])
def test_one_launch_is_one_call_of_all_virtual_ranks(kernel: Kernel, n: int, nbytes: int) -> None:
    backend, rng = opened(n), np.random.default_rng(n)
    few = 1 if nbytes < 1000 else 5  # of several channels one case in so many
    for case in [*cases("symm", n, nbytes, "int32")][::few]:
        memory = backend.allocate(8 * sum(case.counts) * n).view(torch.int32)
        half = len(memory) // 2
        slots = [rows(memory[:half], case), rows(memory[half:], case)]
        calls = [backend.prepare_all(case, *zip(*slot, strict=True)) for slot in slots]
        for turn in (0, 1, 0):
            given = [rng.integers(0, 1000, case.counts[0]).astype(np.int32) for _ in range(n)]
            for (send, recv), row in zip(slots[turn], given, strict=True):
                recv.fill_(-1)
                send.copy_(torch.from_numpy(row))
            before = len(kernel.grids)
            calls[turn].run()
            backend.finish()
            assert len(kernel.grids) == before + 1 and kernel.grids[-1][1] == n
            for (_, recv), wanted in zip(
                slots[turn], case.row.result(given, np.add, max(case.root, 0)), strict=True
            ):
                assert wanted is None or recv.tolist() == wanted.tolist(), case.key
    assert max(channels for channels, _ in kernel.grids) == (1 if nbytes < 1000 else 6)


def test_buffers_that_take_turns_share_a_tape(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    write = _instructions.write_tape
    monkeypatch.setattr(
        _instructions, "write_tape", lambda *given: (written.append(given), write(*given))[1]
    )
    backend, case = opened(2), next(cases("symm", 2, 400, "int32"))
    memory = backend.allocate(6400).view(torch.int32)
    for at in (0, 256, 512, 1):  # the last is aligned otherwise
        backend.prepare_all(case, *zip(*rows(memory[at:], case), strict=True))
    assert len(written) == 2


def test_virtual_ranks_need_no_alignment_and_a_rank_that_waits_in_vain_is_told(
    kernel: Kernel,
) -> None:
    backend = opened(2)
    backend.align()
    assert kernel.grids == []
    backend.finish()
    backend._report_words[:] = [1, 0, 3, 1, 7, 5]
    with pytest.raises(
        RuntimeError,
        match=r"rank 0 waited in vain for rank 1: progress 7 awaited, 5 seen \(channel 3",
    ):
        backend.finish()


NO_COMPILER = "Failed to find C compiler. Please specify"


class Uncompiled(Kernel):
    """Fails where Triton compiles a kernel, or when it loads that."""

    def __init__(self, loads: bool) -> None:
        super().__init__()
        self._loads = loads

    def kernel_options(self, case: Case, virtual: bool) -> dict[str, Any]:
        return {"kind": None}

    def warmup(self, *given: Any, grid: tuple[int], kind: Any) -> Any:
        if not self._loads:
            raise RuntimeError(f"{NO_COMPILER}\nmore")
        return self

    @property
    def run(self) -> Any:
        raise ArithmeticError(f"{NO_COMPILER}\nmore")  # Triton's own are no RuntimeErrors


@pytest.mark.parametrize("loads", [False, True])
def test_a_kernel_that_cannot_be_compiled_is_a_reason(
    kernel: Kernel, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_symm, "_load_kernel", lambda: Uncompiled(loads))
    alone = _symm.Symmetric()
    with pytest.raises(CannotRun, match=f"Triton cannot compile here: {NO_COMPILER}$") as caught:
        alone.open(0, 1, 0)
    assert "gcc" in caught.value.hint
    backend, case = opened(2), next(cases("symm", 2, 400, "int32"))
    memory = backend.allocate(6400).view(torch.int32)
    with pytest.raises(CannotRun, match="Triton cannot compile here"):
        backend.prepare_all(case, *zip(*rows(memory, case), strict=True))


def test_a_rank_that_compiles_does_not_wait_for_one_that_cannot(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of the other's reason instead."""
    backend, case = opened(2), next(cases("symm", 2, 400, "int32"))
    memory = backend.allocate(6400).view(torch.int32)
    monkeypatch.setattr(backend._control, "collect", lambda mine: [mine, ["planted", "a hint"]])
    with pytest.raises(CannotRun, match="planted"):
        backend.prepare_all(case, *zip(*rows(memory, case), strict=True))
    assert kernel.compiled


def test_what_the_kernel_cannot_do_is_said() -> None:
    backend = _symm.Symmetric()
    case = Case(
        collective="all_reduce",
        backend="symm",
        n=130,
        nbytes=8,
        algorithm="ring",
        op="avg",
        dtype="int8",
    )
    assert refusal.refuse_anywhere(case) == "int8 does not hold 130, by which avg divides"
    graph = Case(
        collective="all_reduce",
        backend="symm",
        n=2,
        nbytes=8,
        algorithm="ring",
        op="sum",
        mode="graph",
    )
    assert backend.refuse(graph) == "CUDA graphs need a GPU"


def test_without_triton_or_a_gpu_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = _symm.Symmetric()
    backend.policy = Policy(virtual=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "collbench.run.backends._kernel", None)
    monkeypatch.delattr(backends, "_kernel", raising=False)  # of a test before this one
    with pytest.raises(CannotRun, match="symm needs Triton"):
        backend.open(0, 2, 0)
    monkeypatch.setattr(_symm, "_load_kernel", Kernel)
    with pytest.raises(CannotRun, match="needs an NVIDIA GPU"):
        backend.open(0, 2, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", "6.4")  # whose GPUs lack the kernel's instructions
    with pytest.raises(CannotRun, match="needs an NVIDIA GPU"):
        backend.open(0, 2, 0)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(Kernel, "INTERPRETED", True)
    with pytest.raises(CannotRun, match="virtual ranks need a GPU"):
        backend.open(0, 2, 0)


def test_what_symm_lacks_here_is_known_before_ranks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpu_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    case = Case(collective="all_reduce", backend="symm", n=2, nbytes=1024)
    monkeypatch.setattr(symm.util, "find_spec", lambda name: None)
    reason = "symm needs Triton, which is not installed (pip install triton)"
    assert refusal.refuse_case(case, Policy(), refusal.this_machine(["symm"])) == reason
    monkeypatch.setattr(symm.util, "find_spec", lambda name: name)
    machine = refusal.this_machine(["symm"])
    assert "backend symm needs a GPU that torch can use" in machine.absent["symm"]
    assert "shm runs on CPUs, and symm does with TRITON_INTERPRET=1" in machine.absent["symm"]
    ring = msgspec.structs.replace(case, algorithm="ring", env=(("TRITON_INTERPRET", "1"),))
    assert refusal.refuse_case(ring, Policy(), machine) == ""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert symm.INFO.here() == ""
