"""Options that only GPUs give a meaning to, on machines without: each says what it lacks, and what
to do instead."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

from collbench.core.errors import CannotRun, UsageError
from collbench.machine import environment
from collbench.records import run_file, store
from collbench.run import session
from collbench.run.launch import environments, join
from collbench.run.order import Order, prepare_order
from collbench.run.reporter import Reporter
from collbench.suite import toml
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

no_gpu = pytest.mark.skipif(environment.gpu_count() > 0, reason="this machine has GPUs")


def order(*ranks: int, backends: tuple[str, ...] = ("nccl",), **policy: object) -> Order:
    axes = Axes(
        collectives=("all_reduce",), sizes=(64,), ranks=ranks, backends=backends, in_place=(False,)
    )
    return Order(
        suite=Suite(name="x", axes=axes, policy=Policy(**policy)), command=["x"], save=False
    )  # type: ignore[arg-type]


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpu_count", lambda: 1)


def reporter() -> Reporter:
    raise AssertionError("nothing is to be shown")


@pytest.mark.usefixtures("one_gpu")
def test_more_ranks_than_gpus_are_refused_before_any_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("collbench.run.session.Launcher.warm", lambda *_: None)
    with pytest.raises(
        CannotRun, match=r"8 ranks need a GPU each, and there is 1 \(.*--share-gpu.*--backend gloo"
    ):
        session.execute_order(order(8), reporter)


@pytest.mark.usefixtures("one_gpu")
def test_a_sweep_keeps_the_ranks_that_there_are_gpus_for() -> None:
    prepared = prepare_order(order(1, 2, 8))
    assert [job.case.n for job in prepared.jobs] == [1]
    assert [skip.case.n for skip in prepared.skips] == [2, 8]
    elsewhere = prepare_order(order(2, backends=("gloo", "torch_two_shot")))
    assert [job.case.backend for job in elsewhere.jobs] == ["gloo"]
    assert "lets ranks share one" in elsewhere.skips[0].reason


@pytest.mark.usefixtures("one_gpu")
def test_gpus_are_shared_where_it_is_asked_for() -> None:
    assert [job.case.n for job in prepare_order(order(1, 2, 8, share_gpu=True)).jobs] == [
        1,
        2,
        8,
    ]


@pytest.mark.usefixtures("one_gpu")
def test_a_launchers_ranks_may_be_on_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    member = environments.Membership("srun", 0, 8, 0, 1)
    monkeypatch.setattr(join, "detect_launcher", lambda wanted: member)
    assert [job.case.n for job in prepare_order(order(8)).jobs] == [8]


@pytest.mark.usefixtures("one_gpu")
def test_registered_buffers_are_nccls() -> None:
    prepared = prepare_order(
        order(2, backends=("gloo", "nccl", "model"), register=1, share_gpu=True)
    )
    assert [job.case.backend for job in prepared.jobs] == ["nccl"]
    assert {skip.reason for skip in prepared.skips} == {
        "registered buffers (-R) are NCCL's; gloo has none",
        "registered buffers (-R) are NCCL's; model has none",
    }


def test_registered_buffers_on_a_cpu_backend_exit_5(bare) -> None:
    done = bare("all_reduce", "-R", "2", "--backend", "gloo", "-g", "2", "--sizes", "64")
    assert (
        done.returncode == 5 and "registered buffers (-R) are NCCL's; gloo has none" in done.stderr
    )
    assert bare("all_reduce", "-R", "3", "--backend", "gloo").returncode == 2


@pytest.mark.usefixtures("one_gpu")
def test_options_reach_the_policy_and_explain_themselves(bare, inside) -> None:
    helped = " ".join(bare("all_reduce", "--help").stdout.split())
    assert (
        "--local_register" in helped and "symmetric windows" in helped and "--share-gpu" in helped
    )
    done = inside(
        "all_reduce",
        "-R",
        "1",
        "--share-gpu",
        "--backend",
        "nccl",
        "-g",
        "2",
        "--sizes",
        "64",
        "--dry-run",
    )
    assert done.returncode == 0 and "2 cases" in done.stdout
    bare("all_reduce", "--share-gpu", "--backend", "model", "-g", "2", "--sizes", "64")
    assert run_file.read_file(store.find_run("@last")).run.policy.share_gpu
    with pytest.raises(UsageError, match="register"):
        toml.POLICY["register"](3, "policy.register")


@no_gpu
@pytest.mark.parametrize(
    ("backend", "options"), [("nccl", ()), ("nccl", ("--share-gpu",)), ("torch_one_shot", ())]
)
def test_without_a_gpu_ranks_say_what_they_need(
    warm, backend: str, options: tuple[str, ...]
) -> None:
    done = warm(
        "all_reduce", "-g", "2", "--sizes", "64", "--no-save", "--backend", backend, *options
    )
    assert done.returncode == 5 and f"backend {backend} needs a GPU" in done.stderr
    assert "--backend gloo" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def gpu() -> Any:
    """The script of `make gpu-check`."""
    return load_script("gpu")


@no_gpu
def test_gpu_check_without_a_gpu_exits_5(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--output", str(tmp_path / "out")])
    assert gpu.main() == 5
    said = capsys.readouterr().err
    assert said.startswith("gpu-check: ") and "collbench doctor" in said
    assert not (tmp_path / "out").exists()


def test_gpu_check_asks_for_what_the_command_line_takes(
    gpu: Any, inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "gpu_count", lambda: 2)
    check, asked = gpu.Check(tmp_path, 1), []

    def note(name: str, *options: str) -> object:
        asked.append((name, options))
        raise gpu.NotMeasured("only asking")

    monkeypatch.setattr(check, "collbench", note)
    passed = gpu.Figure(what="tests/gpu", value="3 passed")
    monkeypatch.setattr(gpu, "gpu_tests", lambda check: [passed])
    monkeypatch.setattr(gpu, "_nccl_tests", lambda *_: [])
    monkeypatch.setenv("NCCL_TESTS", str(tmp_path))
    for stages in gpu.SLICES.values():
        gpu.measured(check, {"copy_rate": 1.0, "graphs": [], "why_not": ""}, stages)
    assert [name for name, _ in asked] == [
        "symm-graph",
        "symm-2",
        "nccl",
        "symm-2",
        "nccl",
        "beside-nccl-tests-1-streaming-0",
        "symm-shared",
        "torch-shared",
        "nccl-shared",
    ]
    for name, options in asked:
        done = inside("all_reduce", *options, "--dry-run")
        assert done.returncode == 0, (name, done.stderr)
