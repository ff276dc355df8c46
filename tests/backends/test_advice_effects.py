"""Intel MPI, MPICH and oneCCL themselves run what the files say that are written for them, at sizes
on both sides of bounds: told by what their calls add, send, or log."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from advised import advised, row
from needs import stop_without

import collbench
from collbench.features.advise.formats import choose, intelmpi
from collbench.features.advise.libraries.intelmpi import FUNCTIONS
from collbench.features.advise.libraries.intelmpi import LIBRARY as INTEL
from collbench.features.advise.types import Advice, Series
from collbench.run.launch import mpirun

pytestmark = pytest.mark.slow
ROOT = Path(collbench.__file__).parents[1]
ENVIRONMENTS = Path(os.environ.get("COLLBENCH_TEST_ENVS", ROOT / ".venv-backends"))
PROGRAM = ROOT / "tests" / "helpers" / "mpi_effects.py"
N, LOW, MIDDLE, HIGH = 4, 160_000, 320_000, 640_000
Cases = list[tuple[str, int]]

# Of each two presets that add in different ways, or send different amounts.
PRESETS = {
    "all_reduce": (2, 8),
    "reduce": (1, 5),
    "reduce_scatter": (1, 3),
    "broadcast": (1, 3),
    "all_gather": (3, 4),
    "all_to_all": (1, 3),
}


def run_effects(name: str, cases: Cases, env: dict[str, str]) -> dict[tuple[str, int], Any]:
    """What each case does under an environment's MPI with these variables."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        make = f"python tests/backends/build.py {ENVIRONMENTS} {name}"
        stop_without(name, f"{python} is missing: {make} installs it")
    settings = {**os.environ, **mpirun.SETTINGS, **env}
    settings["PATH"] = os.pathsep.join((str(python.parent), settings.get("PATH", os.defpath)))
    command = [python.with_name("mpirun"), "-n", str(N), python, PROGRAM, json.dumps(cases)]
    done = subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


def is_same(one: Any, other: Any) -> bool:
    """Whether two effects are alike: lists of additions, or traffic but for headers."""
    return abs(one - other) < 0.2 if isinstance(one, float) else one == other


def make_cases(collectives: Sequence[str], sizes: Sequence[int]) -> Cases:
    return [(name, size) for name in collectives for size in sizes]


def test_intel_mpi_runs_what_the_file_says_to_the_byte(tmp_path: Path) -> None:
    rows: list[Advice] = []
    for name, presets in PRESETS.items():
        for low, high, preset in zip((LOW, MIDDLE + 1), (MIDDLE, HIGH), presets, strict=True):
            env = ((f"I_MPI_ADJUST_{FUNCTIONS[name].word}", str(preset)),)
            rows.append(row(INTEL, name, N, low, high, env))
    (kind,) = intelmpi.FORMATS
    path = tmp_path / "intel.sh"
    path.write_text(kind.write(advised(INTEL, rows)))
    cases = make_cases(list(PRESETS), (LOW, MIDDLE, MIDDLE + N, HIGH))
    tcp = {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
    ran = run_effects("impi", cases, kind.use(path) | tcp)
    forced = {}
    for index in (0, 1):
        env = {
            f"I_MPI_ADJUST_{FUNCTIONS[name].word}": str(PRESETS[name][index]) for name in PRESETS
        }
        for case, effect in run_effects("impi", cases, env | tcp).items():
            forced[case, f"preset {PRESETS[case[0]][index]}"] = effect
    rules = kind.read(path.read_text())
    for case, effect in ran.items():
        name = choose(rules, Series(case[0], N, 1), case[1])
        others = [f"preset {preset}" for preset in PRESETS[case[0]]]
        same = [other for other in others if is_same(effect, forced[case, other])]
        assert same == [name], (case, effect)
