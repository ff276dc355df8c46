"""`make gpu-check` without a GPU: bytes that algorithms must move, what is judged, and what is said
to be missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import factories
import msgspec
import pytest
import torch
from scripts import load_script

from collbench.machine import environment
from collbench.machine import gpu as nvml
from collbench.records.types import Record, RunFile
from collbench.run.backends import Base, Call
from collbench.suite.case import Case

ROOT = Path(__file__).parents[2]
SHARE = "--share-gpu"
KIB = 1024
NCCL_TESTS = """# nccl-tests version 2.19.6 nccl-headers=23004 nccl-library=23004
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 131072(factor) warmup iters: 5 iters: 20 validation: 0
# Using devices
#  Rank  0 Group  0 Pid  41213 on     node01 device  0 [0000:0f:00] NVIDIA H200
#                                          out-of-place                       in-place
#   size   count   type  redop  root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#    (B)  (elements)                     (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
       8       2  float    sum    -1    10.00    0.00    0.00    N/A     9.00    0.00    0.00    N/A
 1048576  262144  float    sum    -1   100.00   10.49    0.00    N/A    90.00   11.65    0.00    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0
# Collective test concluded: all_reduce_perf
"""  # noqa: E501


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    return load_script("gpu")


def case(algorithm: str, n: int, nbytes: int, backend: str = "symm") -> Case:
    return Case(
        collective="all_reduce", backend=backend, n=n, nbytes=nbytes, algorithm=algorithm, op="sum"
    )


def file(cases: list[tuple[Case, float]], **fields: Any) -> RunFile:
    """A run of ten equal samples a case, in ns."""
    found = [
        factories.record(case, times_ns=[round(ns)] * 10, **{"wrong": 0, **fields})
        for case, ns in cases
    ]
    world = factories.world(backend="symm", n=2)
    return factories.make_file(found, [world], name="x", environment={})


@pytest.mark.parametrize("n", [2, 4, 8])
def test_traffic_is_what_the_algorithms_read_and_write(gpu: ModuleType, n: int) -> None:
    """Per rank and in buffers, what others read in the same step counted once: one_shot reads and
    writes 1. Ring reads 2 blocks, writes 1 for each of n - 1 that it adds to, reads and writes each
    that it gathers; two_shot reads n blocks to write 1, which all others gather."""
    size = 64 * KIB * n
    for algorithm, buffers in {
        "one_shot": 2,
        "ring": (n - 1) * (3 + 2) / n,
        "two_shot": (n + 1) / n + 1 / n + (n - 1) / n,
    }.items():
        assert gpu.traffic(case(algorithm, n, size)) == n * buffers * size, algorithm


def test_traffic_grows_with_the_bytes_and_never_falls_below_reading_and_writing_all(
    gpu: ModuleType,
) -> None:
    for algorithm in gpu.ALGORITHMS:
        for n in gpu.RANKS:
            once = gpu.traffic(case(algorithm, n, KIB * n))
            assert (
                gpu.traffic(case(algorithm, n, 16 * KIB * n)) == 16 * once >= 2 * n * 16 * KIB * n
            )


def test_the_share_of_the_bound_is_judged_at_large_sizes_for_what_waits_for_nothing(
    gpu: ModuleType,
) -> None:
    rate = 2.0
    cases = []
    for algorithm, share in (("ring", 0.9), ("two_shot", 0.7), ("tree", 0.3)):
        for nbytes, slower in ((256 << 20, 1.0), (1 << 30, 0.99), (32 << 20, 10.0)):
            one = case(algorithm, 2, nbytes)
            cases.append((one, gpu.traffic(one) / rate / share * slower))
    figures = {f.what.partition(",")[0]: f for f in gpu.nearness(gpu.shares(file(cases), rate))}
    assert {name: (f.value, f.met) for name, f in figures.items()} == {
        "ring": ("90%", True),
        "two_shot": ("70%", False),
        "tree": ("30%", None),
    }


def test_wrong_data_and_what_is_left_out_are_told(gpu: ModuleType) -> None:
    fine = file([(case("ring", 2, KIB), 10.0)])
    (right,) = gpu.verified("symm", fine)
    assert right.met and right.value == "1 cases"
    wrong = file(
        [(case("tree", 2, KIB), 10.0)], status="wrong", wrong=3, note="3 wrong elements"
    ).records
    skipped = Record(case=case("tree", 2, 8), status="skipped", note="too small")
    whole = msgspec.structs.replace(fine, records=[*fine.records, *wrong, skipped])
    bad, out = gpu.verified("symm", whole)
    assert (
        bad.met is False and bad.value.startswith("1 cases; ") and "3 wrong elements" in bad.value
    )
    assert out.value == "1 cases: too small" and out.met is None


def test_graphs_are_compared_and_their_absence_explained(gpu: ModuleType) -> None:
    one = {"what": "8 B", "ours": 1030.0, "bare": 1000.0, "again": 1001.0}
    (slow,) = gpu.graphs({"why_not": "", "graphs": [one]})
    assert slow.met is False and slow.value.startswith("+3.0% of 1.00 us a call")
    with pytest.raises(gpu.NotMeasured, match="no Triton"):
        list(gpu.graphs({"why_not": "symm needs Triton: no Triton", "graphs": []}))


def test_nccl_tests_output_is_read_and_compared(gpu: ModuleType) -> None:
    said = subprocess.CompletedProcess([], 0, NCCL_TESTS, "")
    times, library = gpu.read_nccl_tests(said, False)
    assert times == {8: 10_000.0, 1 << 20: 100_000.0} and library == "NCCL 2.30.4"
    assert gpu.read_nccl_tests(said, True)[0] == {8: 9_000.0, 1 << 20: 90_000.0}
    with pytest.raises(gpu.NotMeasured, match="ended with 2: no device"):
        gpu.read_nccl_tests(subprocess.CompletedProcess([], 2, "", "sorry\nno device\n"), False)
    table = [
        {"mode": "graph", "nbytes": 8, "ours": 11_900.0, "theirs": 10_000.0},
        {"mode": "graph", "nbytes": 1 << 20, "ours": 106e3, "theirs": 100e3},
    ]
    near, far = gpu.compared("x", table[:1]), gpu.compared("x", table)
    assert near.met and far.met is False and far.value.endswith("off at 1048576 B")


def test_calls_that_python_issues_more_slowly_than_c_are_not_compared_back_to_back(
    gpu: ModuleType,
) -> None:
    small = {"mode": "streaming", "nbytes": 8, "ours": 20e3, "theirs": 5e3}
    large = {"mode": "streaming", "nbytes": 1 << 30, "ours": 101e3, "theirs": 100e3}
    judged = gpu.compared("x", [small, large])
    assert judged.met and judged.value == "+1.0% in the median of 1 sizes"
    with pytest.raises(gpu.NotMeasured, match="none takes long enough"):
        gpu.compared("x", [small])


def test_ranks_that_share_a_gpu_need_nccl_tests_with_mpi(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = tmp_path / "all_reduce_perf"
    with pytest.raises(gpu.NotMeasured, match="there is no"):
        gpu._nccl_tests(binary, 1, False)
    binary.touch()
    assert gpu._nccl_tests(binary, 2, False) == [str(binary), "-g", "2"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(gpu.NotMeasured, match="no mpirun"):
        gpu._nccl_tests(binary, 2, True)


def test_a_stage_that_cannot_run_says_why_and_the_others_go_on(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = gpu.Check(tmp_path, 1)
    answers = {
        "symm-2": gpu.NotMeasured("symm needs Triton"),
        "nccl": file([(case("native", 1, 8, "nccl"), 5000.0)]),
    }

    def collbench(name: str, *options: str) -> RunFile:
        answer = answers.get(name, gpu.NotMeasured("NCCL 2.27.5 puts one rank on a GPU"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(check, "collbench", collbench)
    monkeypatch.setattr(
        gpu, "gpu_tests", lambda check: [gpu.Figure(what="tests/gpu", value="3 passed", met=True)]
    )
    monkeypatch.delenv("NCCL_TESTS", raising=False)
    inside = {"copy_rate": 3000.0, "graphs": [], "why_not": "no symm"}
    slices = [gpu.measured(check, inside, stages) for stages in gpu.SLICES.values()]
    figures = [figure for found in slices for figure in found]
    told = {f.what: f.value for f in figures}
    assert told["reference algorithms on symm"] == "not measured: symm needs Triton"
    assert told["nccl, 1 ranks: data right"] == "1 cases"
    assert told["nccl-shared, 2 ranks"].startswith("not measured: NCCL 2.27.5")
    assert (
        told["nccl-tests"].startswith("not measured: $NCCL_TESTS")
        and told["tests/gpu"] == "3 passed"
    )
    assert check.details["nccl"] == [{"algorithm": "native", "n": 1, "nbytes": 8, "ns": 5000.0}]
    text = gpu.page({"1 x Imagined 9000": figures})
    assert text.count("\n| ") == len(figures) + 1 and "| tests/gpu | 3 passed |  | yes |" in text


def test_the_page_tells_of_all_slices_that_are_there(gpu: ModuleType, tmp_path: Path) -> None:
    for name, machine in (("tests", "8 x Imagined 9000"), ("quick", "1 x Imagined 5000")):
        report = gpu.Report(
            machine=machine,
            environment={},
            inside={"copy_rate": 3000.0 if name == "tests" else 500.0},
            figures=[gpu.Figure(what=f"what {name} shows", value="3 passed")],
            details={},
        )
        (tmp_path / f"gpu-check-{name}.json").write_bytes(msgspec.json.encode(report))
    lines = gpu.told(tmp_path).splitlines()
    copies = "copies within device memory, read and written"
    assert [line for line in lines[4:] if line and not line.startswith(("|--", "| what |"))] == [
        "## 1 x Imagined 5000",
        f"| quick: {copies} | 500 GB/s |  |  |",
        "| what quick shows | 3 passed |  |  |",
        "## 8 x Imagined 9000",
        f"| tests: {copies} | 3000 GB/s |  |  |",
        "| what tests shows | 3 passed |  |  |",
    ]


@pytest.mark.parametrize(
    ("code", "is_failure"), [(4, True), (70, True), (1, True), (-11, True), (2, False), (5, False)]
)
def test_a_collbench_that_hangs_or_crashes_has_failed_and_one_that_cannot_run_has_not(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_failure: bool
) -> None:
    check = gpu.Check(tmp_path, 2)
    ended = subprocess.CompletedProcess([], code, "", "collbench: rank 1 did not move\n")
    monkeypatch.setattr(check, "run", lambda command: ended)
    stages = {"nccl": lambda check, _: gpu.native(check)}
    (figure,) = gpu.measured(check, {}, stages)
    assert (figure.met is False) == is_failure and "rank 1 did not move" in figure.value
    assert gpu.judge([figure]) == (1 if is_failure else 5)
    fine = gpu.Figure(what="tests/gpu", value="3 passed", goal="none fails", met=True)
    assert gpu.judge([figure, fine]) == int(is_failure)


def test_a_run_for_which_no_time_was_left_is_cut_short_and_not_all(gpu: ModuleType) -> None:
    fine = file([(case("ring", 2, KIB), 10.0)])
    (cut,) = gpu.verified("symm", msgspec.structs.replace(fine, end=None))
    assert cut.met is None and cut.value == "1 cases, then cut short"
    assert gpu.judge([cut]) == 0


def test_graphs_that_fail_are_no_missing_triton(gpu: ModuleType) -> None:
    with pytest.raises(gpu.Failed, match="illegal memory access"):
        list(gpu.graphs({"failure": "CUDA error: an illegal memory access", "why_not": ""}))


def test_ranks_that_share_a_gpu_come_last_and_alone_and_never_more_than_two(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more of them NCCL may hang, and what comes after would be lost."""
    asked: list[list[str]] = []

    def collbench(name: str, *options: str) -> RunFile:
        asked.append([name, *options])
        raise gpu.NotMeasured("x")

    check = gpu.Check(tmp_path, 8)
    monkeypatch.setattr(check, "collbench", collbench)
    told = gpu.Figure(what="tests/gpu", value="-")
    monkeypatch.setattr(gpu, "gpu_tests", lambda check: [told])
    monkeypatch.delenv("NCCL_TESTS", raising=False)
    sharing = {}
    for name, stages in gpu.SLICES.items():
        asked.clear()
        gpu.measured(check, {"copy_rate": 3000.0, "graphs": [], "why_not": "x"}, stages)
        sharing[name] = [options[options.index("-g") + 1] for options in asked if SHARE in options]
    *others, last = sharing.values()
    assert not any(others) and last and set(last) == {"2"}


def test_a_machine_without_a_network_installs_only_from_its_folder_of_wheels(
    tmp_path: Path,
) -> None:
    """And runs the Python that is there, beside what it lacks."""
    (tmp_path / "msgspec-1-py3-none-any.whl").touch()
    told = subprocess.run(
        ["make", "-n", "gpu-check", f"WHEELS={tmp_path}", "PYTHON=python3", f"VENV={tmp_path}/v"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    installs = [line for line in told.splitlines() if "pip install" in line]
    assert len(installs) == 1 and "--no-index" in installs[0] and "--no-deps" in installs[0]
    (run,) = (line for line in told.splitlines() if "tests/perf/gpu.py" in line)
    assert f"{tmp_path}/v/wheels" in run and "python3 tests/perf/gpu.py" in run


def test_a_report_of_gpu_check_has_the_runs_of_this_call_alone() -> None:
    """A folder may hold what another machine left there."""
    printed = make("-n", "gpu-check", "OUT=there", "SLICE=quick", "WHEELS=there", "PYTHON=python3")
    assert "touch there/begun" in printed and "-newer there/begun" in printed
    assert "-o there/report-quick.html" in printed


def test_a_torch_too_new_for_the_driver_is_named_with_both_versions(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(environment, "gpu_count", lambda: 2)
    monkeypatch.setattr(nvml, "driver_cuda", lambda: "12.4")
    reason, hint = gpu.missing().splitlines()
    assert reason == f"torch {torch.__version__} is built for CUDA 13.0, the driver runs 12.4"
    assert "make gpu-check TORCH='torch==2.10.*'" in hint
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.missing() == ""


@pytest.mark.parametrize(("gpus", "workers"), [(1, "4"), (2, "1"), (8, "1")])
def test_worlds_of_all_gpus_are_tested_one_at_a_time(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, workers: str
) -> None:
    commands: list[str] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        commands.append(command[-1])
        (tmp_path / "gpu-tests.txt").write_text("3 passed")
        return subprocess.CompletedProcess(command, 0)

    check = gpu.Check(tmp_path, gpus)
    monkeypatch.setattr(check, "run", run)
    (figure,) = gpu.gpu_tests(check)
    assert figure.met and f" -n {workers} " in commands[0]


def make(*arguments: str) -> str:
    """What make prints."""
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_make_installs_the_torch_that_is_named_from_the_index_that_is_named(
    tmp_path: Path,
) -> None:
    torch_, index = "torch==2.10.*", "https://example.org/cu126"
    printed = make("-n", "venv", f"VENV={tmp_path}", f"TORCH={torch_}", f"TORCH_INDEX={index}")
    assert f"--index-url {index} '{torch_}'" in printed
    assert printed.count("--index-url") == 1
    assert "--index-url" not in make("-n", "venv", f"VENV={tmp_path}", "CPU_INDEX=")


def test_make_tries_the_build_for_cpus_first_where_it_is_told_to(tmp_path: Path) -> None:
    printed = make("-n", "venv", f"VENV={tmp_path}", "CPU_INDEX=https://example.org/cpu")
    first, second = (line for line in printed.splitlines() if line.endswith("'torch'"))
    assert "--no-deps" in first and "--index-url https://example.org/cpu" in first
    assert "--index-url" not in second


@pytest.mark.parametrize(
    ("torch_", "pinned"), [("torch", True), ("torch==2.10.*", False), ("torch>=2.9", False)]
)
def test_a_torch_that_is_named_is_held_to_no_other_version(
    tmp_path: Path, torch_: str, pinned: bool
) -> None:
    made = tmp_path / "constraints.txt"
    make(str(made), f"VENV={tmp_path}", f"TORCH={torch_}")
    names = {line.partition("==")[0] for line in made.read_text().splitlines()}
    assert "numpy" in names and ({"torch", "triton"} <= names) == pinned
    assert pinned or names.isdisjoint({"torch", "triton"})


def test_make_installs_anew_only_where_another_torch_is_named(tmp_path: Path) -> None:
    made, stamp = tmp_path / "constraints.txt", tmp_path / "bin" / "collbench"
    make(str(made), f"VENV={tmp_path}")
    stamp.parent.mkdir()
    stamp.touch()
    assert "pip install" not in make("venv", f"VENV={tmp_path}")
    make(str(made), f"VENV={tmp_path}", "TORCH=torch==2.10.*")
    os.utime(stamp, ns=(made.stat().st_mtime_ns - 1, made.stat().st_mtime_ns - 1))
    assert "pip install" in make("-n", "venv", f"VENV={tmp_path}", "TORCH=torch==2.10.*")


def test_programs_that_take_too_long_are_given_up(gpu: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(gpu.NotMeasured, match="no time was left"):
        gpu.Check(tmp_path, 1, seconds=4.0).run([sys.executable, "-c", ""])
    with pytest.raises(gpu.NotMeasured, match="No such file"):
        gpu.Check(tmp_path, 1).run(["/nowhere/at/all"])


class FakeGraph:
    """Holds what was issued while it was captured, and issues it again."""

    capturing: FakeGraph | None = None
    made: list[FakeGraph] = []

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.replays = 0
        FakeGraph.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        FakeCuda.now_ns += 1000 * len(self.calls)


class FakeCuda:
    """A GPU's clock and memory, of a backend whose calls all take a microsecond."""

    now_ns = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0

    def record(self, *_: Any) -> None:
        self.at = FakeCuda.now_ns

    def elapsed_time(self, end: FakeCuda) -> float:
        return (end.at - self.at) / 1e6

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass


class Imagined(Base):
    device = torch.device("cpu")
    premultiplies = False
    library = "imagination"

    def open(self, rank: int, n: int, local_rank: int) -> None:
        assert (self.policy.virtual, rank, n) == (True, 0, 2)

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def prepare_all(self, case: Case, sends: Any, recvs: Any) -> Call:
        name = str(recvs[0].data_ptr())

        def run() -> None:
            if FakeGraph.capturing:
                FakeGraph.capturing.calls.append(name)

        return Call(run, None)

    def close(self) -> None:
        pass

    finish = close


def test_both_graphs_hold_the_same_calls_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def graph(captured: FakeGraph, **_: Any) -> Iterator[None]:
        FakeGraph.capturing = captured
        yield
        FakeGraph.capturing = None

    fakes: dict[str, Any] = {
        "Event": FakeCuda,
        "current_stream": FakeCuda,
        "CUDAGraph": FakeGraph,
        "graph": graph,
    }
    for name, fake in {**fakes, "_sleep": lambda cycles: None}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    inside = load_script("gpu_graphs")
    monkeypatch.setattr(inside.backends, "find_backend", lambda name: Imagined())
    FakeGraph.made.clear()
    found = inside.graphs(4096, 10)
    ours, bare = FakeGraph.made
    assert ours.calls == bare.calls and len(set(ours.calls)) == inside.SLOTS
    assert found["ours"] == found["bare"] == found["again"] == pytest.approx(1000)
    assert (
        bare.replays == 2 * (ours.replays - 1) == 2 * inside.ROUNDS * inside.SAMPLES
    )  # one replay warms it up
