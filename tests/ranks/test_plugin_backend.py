"""A backend that a package registers with torch.distributed when torch is loaded: it is known by
its name, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import long
from paths import before
from plugged import run_plugged

MODULE = """
import torch.distributed as dist

def load():
    dist.Backend.register_backend(
        "lent", lambda store, rank, size, limit: dist.ProcessGroupGloo(store, rank, size, limit)
    )
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    """A PYTHONPATH with such a package."""
    told = tmp_path / "lent-1.0.dist-info"
    told.mkdir()
    (tmp_path / "lent.py").write_text(MODULE)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: lent\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text("[torch.backends]\nlent = lent:load\n")
    return before(tmp_path)


SWEEP = ("all_reduce", "-b", "8", "-e", "8", "-g", "2", "-n", "2", "--place", "in", "--no-save")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Lent", long("lent")])
def test_a_plug_ins_backend_is_measured(cold, plugin: str, name: str) -> None:
    done = cold(*SWEEP, "--backend", name, "--format", "csv", PYTHONPATH=plugin)
    assert done.returncode == 0, done.stderr
    assert f"all_reduce,{name},2,8," in done.stdout


def test_a_plug_ins_backend_is_one_to_plan_with_and_a_likely_name(warm, plugin: str) -> None:
    words = (*SWEEP, "--backend", "lent", "--dry-run")
    assert run_plugged(warm, "lent:load", *words, PYTHONPATH=plugin).returncode == 0
    assert warm(*words).returncode == 2
