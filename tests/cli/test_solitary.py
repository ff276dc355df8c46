"""Commands that one of a launcher's processes does, and output where the encoding lacks
characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.core.errors import Exit

TORCHRUN = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"} | {
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"} | {
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2"
}


@pytest.mark.parametrize("command", [("list",), ("runs",), ("help",), ("prove", "scan", "-n", "2")])
@pytest.mark.parametrize(
    ("variables", "name"), [(TORCHRUN, "RANK"), (OPEN_MPI, "OMPI_COMM_WORLD_RANK")]
)
def test_only_rank_0_prints(
    inside, monkeypatch, command: tuple[str, ...], variables: dict[str, str], name: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv(name, "0")
    assert inside(*command).stdout
    monkeypatch.setenv(name, "1")
    done = inside(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", [("run", "own.toml"), ("workload", "own.csv", "--dry-run")])
def test_a_step_of_another_number_of_ranks_says_how_many_to_start(
    inside, monkeypatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("ranks,op,bytes,dtype,group\n0-3,all_reduce,4096,float,\n")
    Path("own.toml").write_text('axes.backends = "gloo"\n[[workload]]\nname = "own.csv"\n')
    for variable, value in {**TORCHRUN, "RANK": "0"}.items():
        monkeypatch.setenv(variable, value)
    done = inside(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "own has 4 ranks: torchrun started 2 ranks (by WORLD_SIZE=2)" in done.stderr
    assert "start 4 ranks, or --launcher local" in done.stderr


def test_a_pod_of_a_rank_is_no_launchers_process(inside, monkeypatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.setenv(name, TORCHRUN[name])
    monkeypatch.setenv("RANK", "1")
    assert inside("list").stdout


def test_an_ascii_terminal_gets_words_and_arrows_for_what_it_lacks() -> None:
    command = [sys.executable, "-m", "collbench", "show", "all_reduce", "ring", "-n", "3"]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, check=False, env=environ)
    text = done.stdout.decode("ascii")
    assert done.returncode == 0
    assert "?" not in text and "alpha" in text and "--->" in text


@pytest.mark.parametrize("missing", ["kaleido", "browser"])
def test_images_that_cannot_be_drawn_are_refused_before_a_page_is_written(
    inside, monkeypatch, tmp_path, missing: str
) -> None:
    made = inside("all_reduce", "-b", "8", "-e", "8", "--backend", "model", "-g", "2")
    assert made.returncode == 0
    if missing == "kaleido":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    else:
        monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    page = tmp_path / "page.html"
    done = inside("report", "@last", "-o", str(page), "--png", str(tmp_path / "png"))
    assert done.returncode == Exit.CANNOT_RUN and not page.exists()
