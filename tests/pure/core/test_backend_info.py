"""What is known of backends without their libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from collbench.core.backend_info import backend_info, own_backends

HEAVY = ("torch", "jax", "jaxlib", "mlx", "mpi4py", "triton", "ray")


@pytest.mark.parametrize("name", own_backends())
def test_an_entry_can_be_read_without_any_library(name: str) -> None:
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({HEAVY!r}))\n"
        "from collbench.core.backend_info import backend_info\n"
        f"print(backend_info({name!r}).about)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == backend_info(name).about != ""
