"""What is known of backends without their libraries."""

from __future__ import annotations

import json
import subprocess
import sys

from collbench.core.backend_info import backend_info, own_backends

HEAVY = ("torch", "jax", "jaxlib", "mlx", "mpi4py", "triton", "ray")
READ = """
import json, sys
sys.modules.update(dict.fromkeys({heavy!r}))
from collbench.core.backend_info import backend_info
print(json.dumps({{name: backend_info(name).about for name in {names!r}}}))
"""


def test_entries_can_be_read_without_any_library() -> None:
    code = READ.format(heavy=HEAVY, names=own_backends())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: backend_info(name).about for name in own_backends()}
