""".ci/run, with everything that it calls replaced."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "run"
FAKES = {"id": "echo 0", "make": 'echo "make $* need=$COLLBENCH_NEED"', "unshare": "exit 0"}


def run_ci(folder: Path, **fakes: str) -> subprocess.CompletedProcess[str]:
    """The script, as root, where only these commands are there."""
    for name, body in (
        FAKES | {name.replace("_", "-"): body for name, body in fakes.items()}
    ).items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    for name in ("bash", "dirname", "sh"):
        (folder / name).symlink_to(shutil.which(name) or name)
    environ = {"PATH": str(folder)}
    return subprocess.run(
        [folder / "bash", SCRIPT], env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("failing", ["update", "install"])
def test_packages_that_cannot_be_installed_end_it(tmp_path: Path, failing: str) -> None:
    done = run_ci(tmp_path, apt_get=f'[ "$1" != {failing} ]')
    assert done.returncode != 0 and "make" not in done.stdout


def test_what_it_installs_is_needed_by_its_tests(tmp_path: Path) -> None:
    done = run_ci(tmp_path, apt_get="exit 0")
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("make test ")
    assert last.endswith("need=mpi,ray,mpich,impi,jax,mlx,browser,sshd,lab")


def test_a_container_that_may_have_no_network_of_its_own_needs_no_lab(tmp_path: Path) -> None:
    done = run_ci(tmp_path, apt_get="exit 0", unshare="exit 1")
    assert done.stdout.splitlines()[-1].endswith("need=mpi,ray,mpich,impi,jax,mlx,browser,sshd")
