"""A backend of torch.distributed that a third party ships: its tensors are where it wants them, or
it is refused with the reason."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from marks import long
from paths import before
from plugged import run_plugged

from collbench.records import run_file

PLUGIN = Path(__file__).parent / "plugins" / "torch"
ARGS = ["--sizes", "1K", "-g", "2", "-n", "6", "-w", "1", "--place", "out", "--sync", "barrier"]


@pytest.fixture
def plugged(warm) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``collbench ARGS`` where torch has loaded fakeccl."""
    return partial(run_plugged, warm, "fakeccl:register", PYTHONPATH=before(PLUGIN))


@pytest.mark.slow
@pytest.mark.parametrize(("said", "device"), [long("cpu", "cpu"), ("accelerator", "cpu:0")])
def test_tensors_are_on_the_device_that_the_backend_is_for(
    cold, tmp_path: Path, said: str, device: str
) -> None:
    path, log = tmp_path / "run.jsonl", tmp_path / "log"
    words = ["all_reduce", "--backend", "fakeccl", "--algo", "native,ring", *ARGS]
    settings = {"FAKECCL": said, "FAKECCL_LOG": str(log)}
    done = cold(*words, "--output", str(path), PYTHONPATH=before(PLUGIN), **settings)
    assert done.returncode == 0, done.stderr
    run = run_file.read_file(path)
    assert [(record.status, record.wrong) for record in run.records] == [("ok", 0)] * 2
    assert {info.device for world in run.worlds for info in world.ranks} == {device}
    assert log.exists() == (said == "accelerator")
    assert run.worlds[0].shared_gpu == (said == "accelerator")


def test_a_backend_for_devices_that_are_not_here_is_refused(plugged) -> None:
    done = plugged("all_reduce", "--backend", "fakeccl", *ARGS, "--no-save", FAKECCL="xpu")
    assert done.returncode == 5
    why = "backend fakeccl is for tensors on xpu, and torch finds no accelerator here"
    assert why in done.stderr


def test_gloo_keeps_to_the_cpu_beside_an_accelerator(plugged, tmp_path: Path) -> None:
    path, log = tmp_path / "run.jsonl", tmp_path / "log"
    settings = {"FAKECCL": "accelerator", "FAKECCL_LOG": str(log)}
    done = plugged("all_reduce", "--backend", "gloo", *ARGS, "--output", str(path), **settings)
    assert done.returncode == 0, done.stderr
    assert {info.device for world in run_file.read_file(path).worlds for info in world.ranks} == {
        "cpu"
    }
    assert not log.exists()


@pytest.mark.parametrize(
    ("said", "state", "words"),
    [("cpu", "yes", "tensors on cpu"), ("xpu", "no", "is for tensors on xpu")],
)
def test_doctor_says_whether_it_can_be_used(plugged, said: str, state: str, words: str) -> None:
    code = (
        "from collbench.cli import doctor\n"
        "for f in doctor._check_backends():\n    print(f.what, f.state, f.detail)"
    )
    done = plugged("-c", code, FAKECCL=said)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fakeccl")]
    assert line.startswith(f"fakeccl {state} ") and words in line
