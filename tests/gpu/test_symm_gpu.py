"""symm's kernel compiled: virtual ranks on one GPU, and one rank on each where there are
several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="symm's kernel is written in Triton, which is not installed")
if not torch.cuda.is_available():
    pytest.skip(
        "no usable NVIDIA GPU here (torch.cuda.is_available() is false)", allow_module_level=True
    )

from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.records.types import Record
from collbench.run.backends import _instructions, _symm
from collbench.run.backends._reducers import find_arithmetic, fold_values
from collbench.run.jobs import Job
from collbench.run.launch.local import Launcher
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, expand_axes
from tests.helpers.carrying import carry_out

LARGEST = int(os.environ.get("GPU_CHECK_LARGEST") or 16 << 20) + 12  # a fake GPU is slow
RACES = int(os.environ.get("GPU_CHECK_RACES") or 1000)
QUICK = {"iters": 3, "warmup": 1, "max_seconds": 0.0, "min_seconds": 0.0}


def swept(collective: str, n: int, names: tuple[str, ...] = (), **axes: object) -> list[Case]:
    names = names or tuple(row.name for row in algorithms.list_algorithms(collective))
    return expand_axes(
        Axes(collectives=(collective,), algorithms=names, backends=("symm",), ranks=(n,), **axes)
    )[0]


def run(cases: list[Case], virtual: bool = True, **policy: object) -> list[Record]:
    settings = Policy(**{**QUICK, "virtual": virtual, **policy})
    with closing(Launcher()) as launcher:
        _, found = carry_out(launcher, [Job(case, 2, "small") for case in cases], settings)
    assert len(found) == len(cases)
    return found


def right(found: Sequence[Record]) -> bool:
    bad = [
        (r.case.key, r.note)
        for r in found
        if r.status != "ok" or r.wrong != (0 if r.case.size else None)
    ]
    assert bad == []
    return bool(found)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_every_algorithm_is_right_on_virtual_ranks(n: int) -> None:
    cases = []
    for collective, row in COLLECTIVES.items():
        for size in (8, 4 * 1003, 70_000, *[LARGEST] * (n in (2, 8))):
            cases += swept(collective, n, sizes=(size * n if row.total else size,), roots=(n - 1,))
    assert right(run(cases))


@pytest.mark.timeout(900)  # some 70 kernels are compiled, unless Triton has them from before
def test_every_reduction_is_right_for_every_datatype() -> None:
    axes = {
        "sizes": (8 * 33, 1 << 20),
        "dtypes": tuple(DTYPES),
        "ops": tuple(sorted(set(OPS) - {"premul_sum"})),
    }
    found = run(swept("all_reduce", 4, ("ring", "one_shot"), in_place=(False,), **axes))
    skipped = [r for r in found if r.status == "skipped"]
    assert {r.case.dtype for r in skipped} <= {"f8e4m3"}  # where the GPU is older than it
    assert right([r for r in found if r.status != "skipped"])


@pytest.mark.parametrize("mode", ["isolated", "streaming", "graph"])
def test_every_mode_and_unaligned_buffers_are_right(mode: str) -> None:
    cases = swept(
        "all_reduce",
        4,
        ("ring", "one_shot", "two_shot", "double_tree"),
        sizes=(8, 70_000),
        modes=(mode,),
    )
    assert right(run(cases)) and right(run(cases, unalign=3))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_every_algorithm_is_right_between_gpus() -> None:
    n = torch.cuda.device_count()
    cases = []
    for collective, row in COLLECTIVES.items():
        for size in (8, 70_000, LARGEST):
            cases += swept(collective, n, sizes=(size * n if row.total else size,), roots=(n - 1,))
    assert right(run(cases, virtual=False))


class Ranks:
    """Virtual ranks in this process, with random inputs whose sums must be rounded, and what each
    shall receive."""

    def __init__(self, case: Case, slots: int) -> None:
        self.case = case
        self.backend = _symm.Symmetric()
        self.backend.policy = Policy(virtual=True)
        self.backend.open(0, case.n, 0)
        kind, count, size = getattr(torch, case.type.torch), case.counts[0], case.type.size
        stride = -(-count * size // 4096) * 4096
        memory = self.backend.allocate(2 * slots * case.n * stride)
        rows = [
            memory[k * stride : k * stride + count * size].view(kind)
            for k in range(2 * slots * case.n)
        ]
        given = [self._random(count, kind, seed) for seed in range(slots * case.n)]
        for row, values in zip(rows, given, strict=False):
            row.copy_(values)
        self.sends = [rows[s * case.n : (s + 1) * case.n] for s in range(slots)]
        self.recvs = [rows[(slots + s) * case.n : (slots + s + 1) * case.n] for s in range(slots)]
        self.given = [given[s * case.n : (s + 1) * case.n] for s in range(slots)]
        self.calls = [
            self.backend.prepare_all(case, *pair)
            for pair in zip(self.sends, self.recvs, strict=True)
        ]

    @staticmethod
    def _random(count: int, kind: torch.dtype, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        if kind.is_floating_point:
            values = torch.randn(count, generator=generator)
            # no zero: which of two is the least is left open
            return (values + values.sign() / 2).to(kind)
        return torch.randint(
            0, 256, (count * kind.itemsize,), dtype=torch.uint8, generator=generator
        ).view(kind)

    def received(self, slot: int) -> list[torch.Tensor]:
        return [row.view(torch.uint8).clone() for row in self.recvs[slot]]


@pytest.mark.parametrize(
    "algorithm", ["ring", "one_shot", "two_shot", "recursive_doubling", "double_tree"]
)
@pytest.mark.parametrize(("n", "nbytes"), [(2, 8), (8, 8), (4, 70_000), (8, 4 << 20)])
def test_races_end_in_the_same_bits_every_time(algorithm: str, n: int, nbytes: int) -> None:
    """Of two buffers that take turns, with nothing between the calls; old results are wiped out now
    and then."""
    case = Case(
        collective="all_reduce",
        backend="symm",
        n=n,
        nbytes=nbytes,
        algorithm=algorithm,
        dtype="float",
        op="sum",
    )
    ranks = Ranks(case, 2)
    for call in ranks.calls:
        call.run()
    ranks.backend.finish()
    first = [ranks.received(slot) for slot in (0, 1)]
    differing = torch.zeros((), dtype=torch.int64, device=ranks.backend.device)
    for race in range(RACES):
        for slot in (0, 1):
            if race % 3 == slot:
                for row in ranks.recvs[slot]:
                    row.fill_(float("nan"))
            ranks.calls[slot].run()
        for slot in (0, 1):
            for row, wanted in zip(ranks.recvs[slot], first[slot], strict=True):
                differing += (row.view(torch.uint8) != wanted).any()
    ranks.backend.finish()
    assert int(differing) == 0


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("op", sorted(set(OPS) - {"premul_sum", "avg"}))
def test_terms_are_combined_as_on_cpus_to_the_bit(dtype: str, op: str) -> None:
    if OPS[op].integers_only and DTYPES[dtype].kind == "float":
        pytest.skip("bits of floats are not combined")
    size = DTYPES[dtype].size
    case = Case(
        collective="all_reduce",
        backend="symm",
        n=4,
        nbytes=70_001 * size,
        algorithm="one_shot",
        dtype=dtype,
        op=op,
    )
    ranks = Ranks(case, 1)
    if reason := ranks.backend.refuse(case):
        pytest.skip(reason)
    ranks.calls[0].run()
    ranks.backend.finish()
    wanted = torch.empty(70_001, dtype=getattr(torch, DTYPES[dtype].torch)).view(torch.uint8)
    how = find_arithmetic(op, DTYPES[dtype], torch.device("cpu"))
    for function, arguments in fold_values(
        how, wanted, [row.view(torch.uint8) for row in ranks.given[0]]
    ):
        function(*arguments)
    for row in ranks.received(0):
        assert torch.equal(row.cpu(), wanted)


def test_a_graph_replays_calls_without_the_host() -> None:
    case = Case(
        collective="all_reduce",
        backend="symm",
        n=4,
        nbytes=70_000,
        algorithm="ring",
        dtype="float",
        op="sum",
    )
    ranks = Ranks(case, 2)
    for call in ranks.calls:
        call.run()
    ranks.backend.finish()
    first = [ranks.received(slot) for slot in (0, 1)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            for call in ranks.calls:
                call.run()
    for _ in range(20):
        for rows in ranks.recvs:
            for row in rows:
                row.fill_(float("nan"))
        graph.replay()
        ranks.backend.finish()
        for slot in (0, 1):
            assert all(map(torch.equal, ranks.received(slot), first[slot]))


def test_a_kernel_whose_peer_never_comes_gives_up_and_so_do_all_that_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1's instructions are wiped out (a 0 is a STOP): the others wait for it in vain."""
    monkeypatch.setattr(_symm, "PATIENCE", 100_000)
    write = _instructions.write_tape

    def without_rank_1(*given: object) -> _instructions.Words:
        words, parts = write(*given), given[3]
        words[words[1 + parts] : words[1 + 2 * parts]] = 0
        return words

    monkeypatch.setattr(_instructions, "write_tape", without_rank_1)
    case = Case(
        collective="all_reduce",
        backend="symm",
        n=3,
        nbytes=70_000,
        algorithm="one_shot",
        dtype="float",
        op="sum",
    )
    ranks = Ranks(case, 1)
    for _ in range(20):
        ranks.calls[0].run()
    with pytest.raises(
        RuntimeError, match=r"rank [02] waited in vain for rank 1: progress 1 awaited, 0 seen"
    ):
        ranks.backend.finish()
