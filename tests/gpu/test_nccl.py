"""NCCL on the GPUs that are there, and torch's own kernels beside it; one GPU is enough for most of
it."""

from __future__ import annotations

import os
from contextlib import closing
from fractions import Fraction

import msgspec
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip(
        "no usable NVIDIA GPU here (torch.cuda.is_available() is false)", allow_module_level=True
    )

from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import CannotRun
from collbench.features.training import presets, reshape
from collbench.features.training.overlap import divide_phases
from collbench.machine import cpus
from collbench.records.types import Record, World
from collbench.run.backends import _cuda
from collbench.run.backends._torch_kernels import WAYS
from collbench.run.jobs import Job
from collbench.run.launch.local import Launcher
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite, expand_axes
from tests.helpers.carrying import carry_out

GPUS = torch.cuda.device_count()
SIZES = (64, 70_000, int(os.environ.get("GPU_CHECK_LARGEST") or 1 << 24))  # a fake GPU is slow
SAMPLES = 5  # of a case in every mode: iters alone leaves it open how many times 20 calls are made
# ranks that must share cores come too late for any common start: then no sample is valid
SYNC = "auto" if cpus.core_count() > 2 * GPUS else "barrier"


def world(cases: list[Case], **policy: object) -> tuple[World, list[Record]]:
    """What a world of ranks says of these cases. Raises CannotRun."""
    return carried_out([Job(case, 2, "small", samples=SAMPLES) for case in cases], **policy)


def carried_out(jobs: list[Job], **policy: object) -> tuple[World, list[Record]]:
    settings = Policy(**{"iters": SAMPLES, "warmup": 2, "sync": SYNC, **policy})  # type: ignore[arg-type]
    with closing(Launcher()) as launcher:
        where, found = carry_out(launcher, jobs, settings)
    assert len(found) == sum(len(job.case.siblings) for job in jobs)
    assert {r.status for r in found} <= {"ok", "skipped"}, [
        r.note for r in found if r.status not in ("ok", "skipped")
    ]
    assert all(r.note for r in found if r.status == "skipped")
    assert all(r.wrong == 0 for r in found if r.status == "ok" and r.case.size)
    return where, found


def run(cases: list[Case], **policy: object) -> list[Record]:
    return world(cases, **policy)[1]


def all_reduces(n: int, backend: str = "nccl", mode: str = "isolated") -> list[Case]:
    axes = Axes(
        collectives=("all_reduce",),
        sizes=SIZES,
        ranks=(n,),
        backends=(backend,),
        modes=(mode,),  # type: ignore[arg-type]
    )
    return expand_axes(axes)[0]


@pytest.mark.timeout(900)  # 842 cases
@pytest.mark.parametrize("n", sorted({1, GPUS}))
def test_every_collective_is_right_on_all_gpus(n: int) -> None:
    axes = Axes(
        collectives=tuple(COLLECTIVES),
        sizes=SIZES,
        ranks=(n,),
        backends=("nccl",),
        ops=("sum", "avg", "max"),
        dtypes=("float", "half", "bfloat16", "int32"),
        modes=("isolated", "streaming"),
    )
    found = run(expand_axes(axes)[0])
    assert sum(r.status == "ok" for r in found) > len(found) / 2


@pytest.mark.parametrize("n", sorted({1, GPUS}))
def test_every_reference_algorithm_is_right_over_nccl_messages(n: int) -> None:
    cases = []
    for name in COLLECTIVES:
        names = tuple(row.name for row in algorithms.list_algorithms(name))
        axes = Axes(
            collectives=(name,), sizes=SIZES, ranks=(n,), backends=("nccl",), algorithms=names
        )
        cases += expand_axes(axes)[0]
    assert {r.status for r in run(cases)} == {"ok"}


@pytest.mark.parametrize("n", sorted({1, GPUS}))
def test_graphs_are_right_and_timed_by_the_device(n: int) -> None:
    names = tuple(name for name in COLLECTIVES if name != "barrier")
    axes = Axes(collectives=names, sizes=SIZES, ranks=(n,), backends=("nccl",), modes=("graph",))
    done = [record for record in run(expand_axes(axes)[0]) if record.status == "ok"]
    assert {r.case.collective for r in done} >= {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
    }
    assert {r.clock for r in done} == {"device"} and all(r.inner > 1 for r in done)


@pytest.mark.parametrize("register", [1, 2])
def test_registered_buffers_are_right_and_given_back(register: int) -> None:
    try:
        found = run(all_reduces(GPUS), register=register)
    except CannotRun as e:
        lacking = not _cuda.has_multicast(torch.device("cuda", 0))
        assert lacking or "does not offer" in e.message, f"{e.message}; {e.hint}"
        pytest.skip(e.message)
    assert {r.status for r in found} == {"ok"}


def test_ranks_share_a_gpu_only_when_allowed() -> None:
    with pytest.raises(CannotRun, match="need a GPU each"):
        run(all_reduces(GPUS + 1))
    try:
        where, found = world(all_reduces(GPUS + 1), share_gpu=True)
    except CannotRun as e:
        pytest.skip(f"{e.message}; {e.hint}")
    assert where.shared_gpu and {r.status for r in found} == {"ok"}
    assert len({info.device for info in where.ranks}) == GPUS


@pytest.mark.parametrize("kind", ["none", "auto"])
def test_a_training_step_is_right_and_its_operations_are_seen_by_the_device(kind: str) -> None:
    """On two GPUs, or by two ranks that share one."""
    made = presets.find_step("ddp:gpt2-124m", "dp=2", "", None, 2)
    step = reshape.set_computation(reshape.scale_step(made, Fraction(1, 64)), kind, 0)
    axes = Axes(collectives=(), sizes=(), ranks=(2,), backends=("nccl",), algorithms=("native",))
    cases, _ = Suite(name="", axes=axes, subjects=(step,)).expand()
    try:
        _, found = carried_out([Job(cases[0], 1, "", subject=step)], share_gpu=GPUS < 2)
    except CannotRun as e:
        pytest.skip(f"{e.message}; {e.hint}")
    assert {record.status for record in found} == {"ok"}
    whole = next(record for record in found if record.operations)
    assert whole.wrong == 0 and whole.checked
    for op, seen in zip(step.program(0).ops, whole.operations[0], strict=True):
        assert all(a <= b for a, b in zip(seen.begins_ns, seen.ends_ns, strict=True)), op
    (one,) = {phase.kind for phase in divide_phases(step, whole.operations[0])}
    assert one == "all_reduce"


@pytest.mark.parametrize("meanwhile", ["gemm", "copy"])
def test_calls_are_right_beside_computation(meanwhile: str) -> None:
    cases = [msgspec.structs.replace(case, background=meanwhile) for case in all_reduces(GPUS)]
    found = run(cases)
    assert {r.status for r in found} == {"ok"}
    assert all(r.background for r in found)


@pytest.mark.skipif(GPUS < 2, reason="torch's kernels need two GPUs, and there is one")
@pytest.mark.parametrize("backend", WAYS)
def test_torchs_own_kernels_are_right(backend: str) -> None:
    axes = Axes(
        collectives=("all_reduce", "reduce_scatter", "all_gather", "reduce"),
        sizes=(1024, 70_016, SIZES[-1]),
        align=16,
        ranks=(GPUS,),
        backends=(backend,),
        dtypes=("float", "bfloat16"),
        modes=("isolated", "graph"),
    )
    try:
        found = run(expand_axes(axes)[0])
    except CannotRun as e:
        pytest.skip(f"{e.message}; {e.hint}")
    done = {r.case.collective for r in found if r.status == "ok"}
    assert done and done <= {"all_reduce", "reduce_scatter", "all_gather", "reduce"}
