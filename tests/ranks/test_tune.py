"""`collbench tune` with real ranks: a gain that is planted comes to be in the file, verified; what
does nothing leaves an empty one; Open MPI's file is found, checked and written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from needs import need_mpi
from paths import before

from collbench.core.errors import Exit
from collbench.features.advise.formats.openmpi import FORMATS
from collbench.records import run_file, store
from collbench.records.types import RunFile

PLUGINS = str(Path(__file__).parent / "plugins")
SIZES = (1024, 4096, 16384, 65536)
SWEEP = ("all_reduce", "-g", "2", "-b", "1K", "-e", "64K")
SLOW = ",".join(f"{size}:30" for size in SIZES[1:3])  # of the library's own choice


def runs() -> list[RunFile]:
    return [run_file.read_file(path) for path in store.list_saved()]


def tuned(cli: Any, path: Path, *args: str, slower: str = SLOW) -> Any:
    """A search with made-up clocks, on a library that is slow at two sizes unless it is set."""
    return cli(
        *("tune", *SWEEP, "--backend", "tuned", "--write", str(path), *args),
        PYTHONPATH=before(PLUGINS),
        SLOWER=slower,
        timeout=300,
    )


@pytest.mark.long
def test_a_planted_gain_is_found_and_verified_by_fresh_launches(cli: Any, tmp_path: Path) -> None:
    path, report = tmp_path / "advice.sh", tmp_path / "advice.json"
    done = tuned(cli, path, "--env", "SLOWER=1:0", "--budget", "60s", "-o", str(report))
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert done.stdout.startswith("1 setting is surely faster than tuned's own choice")
    (row,) = json.loads(report.read_text())["rows"]
    assert [gain["nbytes"] for gain in row["gains"]] == [*SIZES[1:3]]
    assert all(0 < gain["gain"] < 1 for gain in row["gains"])
    assert row["verified"]
    assert "SLOWER=1:0" in path.read_text()
    screened = [file for file in runs() if file.run.tag == "tune-screen"]
    assert screened and all(file.run.pairing is None for file in screened)
    paired = [file for file in runs() if file.run.pairing]
    assert {file.run.pairing.side for file in paired if file.run.pairing} == {"base", "head"}
    assert {world.stage for file in paired for world in file.worlds} == {2}


@pytest.mark.long
def test_what_does_nothing_leaves_an_empty_file(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "advice.sh"
    done = tuned(cli, path, "--env", "NO_SUCH_SETTING=1,2", "--budget", "60s", slower="")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert done.stdout.startswith("nothing is surely faster than tuned's own choice")
    assert "this file changes nothing" in path.read_text()


@pytest.mark.long
def test_a_setting_that_slows_other_sizes_is_not_advised(cli: Any, tmp_path: Path) -> None:
    """Screening is not asked: the slow size is one that it would leave out."""
    path = tmp_path / "advice.sh"
    both = "SLOWER=1024:20"
    done = tuned(cli, path, "--env", both, "--budget", "60s")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert "nothing is surely faster" in done.stdout


@pytest.mark.long
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "advice.sh"
    command = [sys.executable, "-m", "collbench", "tune", *SWEEP, "--backend", "tuned"]
    command += ["--env", "SLOWER=1:0", "--budget", "5m", "--write", str(path)]
    env = {**os.environ, "PYTHONPATH": before(PLUGINS), "SLOWER": SLOW}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 120
        while len([file for file in store.list_saved() if "-head" in file.name]) < 1:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED, out + err
    assert path.exists() and "Traceback" not in err
    assert all(file.end for file in runs())


@pytest.mark.long
def test_open_mpi_gets_a_file_that_reads_back(cli: Any, tmp_path: Path) -> None:
    need_mpi()
    path = tmp_path / "rules.conf"
    done = cli(
        *("tune", *SWEEP, "--backend", "mpi", "-f", "8", "--budget", "90s", "--write", str(path)),
        timeout=400,
    )
    if "--for" in done.stderr or "no settings" in done.stderr:
        pytest.skip("another MPI than Open MPI")
    assert done.returncode in (Exit.OK, Exit.NO_VERDICT), done.stdout + done.stderr
    rules = FORMATS[0].read(path.read_text())
    advised = "surely faster" in done.stdout and "nothing is" not in done.stdout
    assert bool([rule for rule in rules if rule.name]) == advised
