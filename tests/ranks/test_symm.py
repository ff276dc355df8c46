"""symm's kernel in Triton's interpreter, between processes on CPUs: every algorithm, verified
element by element."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from marks import long
from paths import before

from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.errors import RunBroken
from collbench.records.types import Record
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, expand_axes

pytest.importorskip("triton", reason="symm's kernel is written in Triton, which is not installed")

PLUGINS = Path(__file__).parent / "plugins"
INTERPRETED = (("TRITON_INTERPRET", "1"),)
QUICK = {"rotation": 1, "iters": 1, "max_seconds": 0.0, "min_seconds": 0.0, "env": INTERPRETED}


def cases(collective: str, names: tuple[str, ...] = (), **axes: object) -> list[Case]:
    names = names or tuple(row.name for row in algorithms.list_algorithms(collective))
    return expand_axes(
        Axes(collectives=(collective,), algorithms=names, backends=("symm",), **axes)
    )[0]  # type: ignore[arg-type]


def wrong(records: list[Record]) -> list[tuple[str, str]]:
    return [
        (r.case.key, r.note)
        for r in records
        if r.status != "ok" or r.wrong != (0 if r.case.size else None)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "both"), [(1, False), (3, False), long(1, True), long(3, True)])
def test_every_algorithm_is_right_for_odd_counts_and_fewer_elements_than_ranks(
    measure, n: int, both: bool
) -> None:
    """Each has one of them, or both: odd counts where ranks have blocks of their own, which are
    then in place where they can be, else fewer elements."""
    swept = []
    for collective, row in COLLECTIVES.items():
        few, many = (4 * n, 4 * 103 * n) if row.total else (8, 4 * 103)
        axes = {"ranks": (n,), "roots": (n - 1,)}
        if both or not row.total:
            swept += cases(collective, sizes=(few,), in_place=(False,), **axes)
        if both or row.total:
            swept += cases(collective, sizes=(many,), in_place=(row.in_place is not None,), **axes)
    found = measure(swept, **QUICK)
    assert wrong(found) == []
    wanted = {
        key for key in algorithms.list_catalogue() if not algorithms.find_variant(*key).refuse(n)
    }
    assert {(r.case.collective, r.case.algorithm) for r in found} == wanted


NARROW = ("bfloat16", "f8e4m3", "f8e5m2")  # which FOLDED leaves out
REDUCTIONS = tuple(sorted(set(OPS) - {"premul_sum"}))


def reductions(dtypes: tuple[str, ...], ops: tuple[str, ...]) -> list[Case]:
    axes = {"ranks": (2,), "sizes": (8 * 33,), "dtypes": dtypes, "ops": ops, "in_place": (False,)}
    return cases("all_reduce", ("one_shot",), **axes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtypes",
    [("bfloat16",), long(("f8e4m3", "f8e5m2")), long(tuple(set(DTYPES) - {*NARROW}))],
)
def test_every_reduction_is_right_for_every_datatype(measure, dtypes: tuple[str, ...]) -> None:
    found = measure(reductions(dtypes, REDUCTIONS), **QUICK)
    skipped = [r for r in found if r.status == "skipped"]
    assert {(r.case.dtype, r.case.op) for r in skipped} == {
        (dtype, "avg") for dtype in dtypes if dtype == "bfloat16"
    }  # which the interpreter cannot
    assert wrong([r for r in found if r.status != "skipped"]) == []
    assert {(r.case.dtype, r.case.op) for r in found} >= {
        (dtype, op) for dtype in dtypes for op in ("sum", "avg", "prod", "min", "max")
    }


@pytest.mark.slow
def test_every_datatype_is_summed_and_divided(measure) -> None:
    """FOLDED has the other reductions of most."""
    kinds = tuple(set(DTYPES) - {"bfloat16"})
    found = measure(reductions(kinds, ("sum",)) + reductions(("int32", "half"), ("avg",)), **QUICK)
    assert wrong(found) == []
    assert {(r.case.dtype, r.case.op) for r in found} == {
        *((dtype, "sum") for dtype in kinds),
        *((dtype, "avg") for dtype in ("int32", "half")),
    }


@pytest.mark.slow
def test_every_datatype_is_copied(measure) -> None:
    axes = {"ranks": (2,), "sizes": (2 * 8 * 11,), "dtypes": tuple(DTYPES), "in_place": (False,)}
    found = measure(cases("all_gather", ("ring",), **axes), **QUICK)
    assert wrong(found) == [] and {r.case.dtype for r in found} == set(DTYPES)


@pytest.mark.slow
@pytest.mark.parametrize("unalign", [0, 3])
def test_several_channels_and_unaligned_buffers_are_right(measure, unalign: int) -> None:
    """Cells of 24 KiB and more have channels of their own parts; the odd count and -u leave nothing
    on 16 bytes."""
    sizes = ((48 << 10) + 8,) if unalign else (48 << 10, (48 << 10) + 8)
    axes = {"ranks": (2,), "sizes": sizes, "dtypes": ("double",), "in_place": (False,)}
    swept = cases("all_reduce", ("ring", "one_shot", "two_shot"), **axes)
    swept += cases("all_to_all", ("pairwise",), **axes)
    assert wrong(measure(swept, unalign=unalign, **QUICK)) == []


@pytest.mark.slow
def test_uneven_blocks_arrive_whole(measure) -> None:
    swept = cases(
        "all_to_allv", ranks=(3,), sizes=(3000,), splits=("uniform", "spread:1", "zipf:1.2")
    )
    assert wrong(measure(swept, **QUICK)) == []


@pytest.mark.slow
def test_buffers_take_turns_and_calls_follow_each_other(measure) -> None:
    swept = cases(
        "all_reduce",
        ("ring", "one_shot"),
        ranks=(2,),
        sizes=(412,),
        modes=("isolated", "streaming", "host"),
    )
    found = measure(swept, **{**QUICK, "rotation": 3, "iters": 4, "batch": 4})
    assert wrong(found) == []


def test_a_ring_is_right_and_its_world_says_that_kernels_were_interpreted(
    launcher, measure
) -> None:
    from collbench.run.jobs import Job, Plan
    from collbench.run.launch.world import Listener
    from collbench.suite.policy import Policy

    case, *_ = cases("all_reduce", ("ring",), ranks=(2,), sizes=(64,))
    lines: list[Any] = []
    plan = Plan(0, "symm", 2, INTERPRETED, Policy(iters=1, warmup=0), [Job(case, 1, "small")], 60.0)
    launcher.run([plan], Listener(lines.append))
    assert lines[0].interpreted and "interpreter" in lines[0].library
    assert (lines[1].status, lines[1].wrong) == ("ok", 0), lines[1]


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_by_those_who_waited(measure) -> None:
    swept = expand_axes(
        Axes(
            collectives=("all_reduce",),
            algorithms=("one_shot",),
            backends=("saboteur_symm",),
            ranks=(3,),
            sizes=(4096,),
        )
    )[0]
    with pytest.raises(RunBroken, match="waited in vain for rank 1: progress 1 awaited, 0 seen"):
        measure(swept, **QUICK, sabotage="sleep:1:2")


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """What scripts print that run the kernel in a process of their own: GAVE_UP, then FOLDED."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": before(PLUGINS)}
    return subprocess.run(
        [sys.executable, "-c", GAVE_UP + FOLDED],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()


FOLDED = """
import torch
from collbench.run.backends import _instructions as tape; from collbench.run.backends import _kernel as walker
from collbench.core.dtypes import DTYPES
from collbench.core.dtypes import OPS
from collbench.run.backends._reducers import find_arithmetic, fold_values
from collbench.suite.case import Case
torch.manual_seed(1)
COUNT, TERMS = 1003, 5
for dtype in DTYPES.values():
    if dtype.kind == "float" and dtype.name not in ("half", "float", "double"):
        continue  # the interpreter does not round these as GPUs do
    for op in OPS.values():
        if op.name == "premul_sum" or (op.integers_only and dtype.kind == "float"):
            continue
        kind = getattr(torch, dtype.torch)
        if dtype.kind == "float":
            given = [torch.randn(COUNT).to(kind) for _ in range(TERMS)]
        else:
            given = [torch.randint(0, 256, (COUNT * dtype.size,), dtype=torch.uint8).view(kind) for _ in range(TERMS)]
        case = Case(collective="all_reduce", backend="symm", n=TERMS, nbytes=COUNT * dtype.size, algorithm="one_shot",
                    dtype=dtype.name, op=op.name)
        out, line = torch.zeros(COUNT, dtype=kind), torch.zeros(16, dtype=torch.int64)
        pairs = [word for row in range(1 + TERMS) for word in (row + (row > 3), 0)]
        bases = torch.zeros(8, dtype=torch.int64)
        for at, row in zip(pairs[::2], (out, *given)):
            bases[at] = row.data_ptr()
        bases[tape.LINES] = line.data_ptr()
        code = [tape.Opcode.MOVE | (2 + len(pairs)) << tape.LENGTH, COUNT, *pairs, tape.Opcode.STOP]
        code = torch.tensor([128, 3, 3 + len(code), *code])
        walker.walk[1, 1](code, bases, torch.zeros(1, dtype=torch.int32), torch.zeros(6).long(), 0, 9,
                          **walker.kernel_options(case, False))
        wanted = torch.empty_like(out)
        how = find_arithmetic(op.name, dtype, torch.device("cpu"))
        for function, arguments in fold_values(how, wanted.view(torch.uint8), [row.view(torch.uint8) for row in given]):
            function(*arguments)
        print(dtype.name, op.name, torch.equal(out.view(torch.uint8), wanted.view(torch.uint8)))
"""  # noqa: E501


@pytest.mark.slow
def test_terms_are_combined_as_shared_memory_combines_them_to_the_bit(alone: list[str]) -> None:
    """In the same order, and rounded each time: random numbers show both."""
    found = [line.split() for line in alone[3:]]
    assert [line for line in found if line[2] != "True"] == []
    assert len(found) == 6 * 8 + 3 * 5


GAVE_UP = """
import torch
from collbench.run.backends import _instructions as tape; from collbench.run.backends import _kernel as walker
from collbench.suite.case import Case
case = Case(collective="barrier", backend="symm", n=2, nbytes=0)
lines = [torch.zeros(3, dtype=torch.int64) for _ in range(2)]
bases = torch.zeros(2, tape.ADDRESSES, dtype=torch.int64)
bases[:, tape.LINES] = torch.tensor([memory.data_ptr() for memory in lines])
code, claim, report = torch.from_numpy(tape.write_barrier(0, 2, 8)), torch.zeros(1, dtype=torch.int32), torch.zeros(6).long()
def launch(limit):
    walker.walk[1, 1](code, bases, claim, report, 0, limit, **walker.kernel_options(case, False))
    print(report.tolist(), *(line.tolist() for line in lines))
checked, walker._CHECKED = walker._CHECKED, walker.tl.constexpr(10)
lines[0][2] = 1
launch(10)
launch(10)
launch(1 << 30)
walker._CHECKED = checked
"""  # noqa: E501


@pytest.mark.slow
def test_after_giving_up_the_kernel_leaves_at_once_and_for_good(alone: list[str]) -> None:
    """The peer has come once; the second launch gives up after 20 looks, the third would look a
    thousand million. What is told lies in the peer's line alone."""
    assert alone[:3] == [
        "[0, 0, 0, 0, 0, 0] [1, 0, 1] [0, 1, 0]",
        "[1, 0, 0, 1, 1, 0] [-1, 0, 1] [0, 2, 0]",
        "[1, 0, 0, 1, 1, 0] [-1, 0, 1] [0, 2, 0]",
    ]
