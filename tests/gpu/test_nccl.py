"""NCCL on the GPUs that are there; one is enough for most of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no usable NVIDIA GPU here (torch.cuda.is_available() is false)", allow_module_level=True)

from collbench import algorithms  # noqa: E402
from collbench.collectives import COLLECTIVES  # noqa: E402
from collbench.launch.local import Launcher  # noqa: E402
from collbench.plan import Job, Plan  # noqa: E402
from collbench.records import Record  # noqa: E402
from collbench.suite import Axes, Case, Policy, expand  # noqa: E402


def run(n: int, cases: list[Case]) -> list[Record]:
    jobs = [Job(case, 2, "small") for case in cases]
    lines: list[object] = []
    launcher = Launcher()
    try:
        plan = Plan(0, "nccl", n, (), Policy(iters=5, warmup=2), jobs, 120.0)
        launcher.run(plan, lines.append, lambda job, phase: None)
    finally:
        launcher.close()
    found = [line for line in lines if isinstance(line, Record)]
    assert len(found) == len(jobs)
    assert {r.status for r in found} <= {"ok", "skipped"}, [r.note for r in found if r.status not in ("ok", "skipped")]
    assert all(r.note for r in found if r.status == "skipped")
    return found


@pytest.mark.parametrize("n", sorted({1, torch.cuda.device_count()}))
def test_every_collective_is_right_on_all_gpus(n: int) -> None:
    axes = Axes(
        collectives=tuple(COLLECTIVES), sizes=(64, 70_000, 1 << 24), ranks=(n,), backends=("nccl",),
        ops=("sum", "avg", "max"), dtypes=("float", "half", "bfloat16", "int32"), modes=("isolated", "streaming"),
    )  # fmt: skip
    found = run(n, expand(axes)[0])
    assert sum(r.status == "ok" for r in found) > len(found) / 2


@pytest.mark.parametrize("n", sorted({1, torch.cuda.device_count()}))
def test_every_reference_algorithm_is_right_over_nccl_messages(n: int) -> None:
    cases = []
    for name in COLLECTIVES:
        names = tuple(row.name for row in algorithms.of(name))
        axes = Axes(collectives=(name,), sizes=(64, 70_000, 1 << 24), ranks=(n,), backends=("nccl",), algorithms=names)
        cases += expand(axes)[0]
    assert {r.status for r in run(n, cases)} == {"ok"}
