"""Intel MPI, MPICH and oneCCL themselves run what the files say that are written for them, at sizes
on both sides of bounds: told by what their calls add, send, or log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from advised import advised, row
from needs import stop_without
from paths import before

import collbench
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import Exit
from collbench.features.advise.formats import choose, intelmpi, mpich, oneccl
from collbench.features.advise.formats.files import write_files
from collbench.features.advise.libraries.intelmpi import FUNCTIONS
from collbench.features.advise.libraries.intelmpi import LIBRARY as INTEL
from collbench.features.advise.libraries.mpich import LIBRARY as MPICH
from collbench.features.advise.libraries.oneccl import ALGORITHMS
from collbench.features.advise.libraries.oneccl import LIBRARY as ONECCL
from collbench.features.advise.types import Advice, Series, Setting
from collbench.run.backends import _oneccl_files
from collbench.run.backends import oneccl as backend
from collbench.run.launch import mpirun

pytestmark = [pytest.mark.slow, pytest.mark.long]
LACK = backend.refuse_here()  # before a test has a home of its own
KEPT = _oneccl_files.cache_folder()
ROOT = Path(collbench.__file__).parents[1]
ENVIRONMENTS = Path(os.environ.get("COLLBENCH_TEST_ENVS", ROOT / ".venv-backends"))
PROGRAM = ROOT / "tests" / "helpers" / "mpi_effects.py"
N, LOW, MIDDLE, HIGH = 4, 160_000, 320_000, 640_000
WORDS = {  # of oneCCL, two algorithms each that it does not choose for these sizes itself
    "all_reduce": ("ring", "double_tree"),
    "reduce": ("double_tree", "ring"),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring", "double_tree"),
    "all_gather": ("flat", "multi_bcast"),
    "all_to_all": ("naive",),
}
# Of MPICH, two algorithms that add in different ways, and not as it does itself.
ALGORITHMS_OF_MPICH = {
    "all_reduce": ("ring", "recursive_doubling"),
    "reduce": ("binomial", "mpir"),
    "reduce_scatter": ("pairwise", "recursive_doubling"),
    "broadcast": ("scatter_ring_allgather", "binomial"),
    "all_to_all": ("brucks", "scattered"),
}
TCP_OF_MPICH = {
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "lo",
}
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
    write_files(kind, advised(INTEL, rows), path)
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


def list_bounds(collective: str) -> tuple[int, int, int]:
    """Sizes that traffic tells apart; smaller ones for what Python adds piece by piece."""
    return (1600, 3200, 6400) if "reduce" in collective else (LOW, MIDDLE, HIGH)


def test_mpich_runs_what_its_trees_say_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ENVIRONMENTS / "mpich" / "lib" / "libmpi.so.12"
    monkeypatch.setattr(mpich, "find_library", lambda: path if path.exists() else None)
    rows = []
    for name, words in ALGORITHMS_OF_MPICH.items():
        low, middle, high = list_bounds(name)
        for bound, word in zip(((low, middle), (middle + 1, high)), words, strict=True):
            settings = MPICH.list_settings(name, N, "")
            names = [MPICH.name_setting(name, Setting(backend="mpi", env=env)) for env in settings]
            rows.append(row(MPICH, name, N, *bound, settings[names.index(word)]))
    (kind,) = mpich.FORMATS
    run_effects("mpich", [], {})  # skips without it
    file = tmp_path / "mpich.json"
    write_files(kind, advised(MPICH, rows), file)
    cases = [
        (name, size)
        for name in ALGORITHMS_OF_MPICH
        for low, middle, high in [list_bounds(name)]
        for size in (low - N, low, middle, middle + N, high, high + N)
    ]
    reduced = [case for case in cases if "reduce" in case[0]]
    moved = [case for case in cases if "reduce" not in case[0]]

    def run(some: Cases, env: dict[str, str]) -> dict[tuple[str, int], Any]:
        """What is reduced, in shared memory; what is moved, over the loopback interface."""
        tcp = {} if some[0] in reduced else TCP_OF_MPICH
        return run_effects("mpich", some, env | tcp)

    ran = run(reduced, kind.use(file)) | run(moved, kind.use(file))
    effects = {"": run(reduced, {}) | run(moved, {})}
    for index in (0, 1):
        chosen = [each for each in rows if each is rows[2 * (rows.index(each) // 2) + index]]
        env = dict(pair for each in chosen for pair in each.setting.env)
        forced = run(reduced, env) | run(moved, env)
        for each in chosen:
            some = effects.setdefault(each.name, {})
            some |= {case: forced[case] for case in cases if case[0] == each.series.collective}
    rules = kind.read(file.read_text())
    for case, effect in ran.items():
        name = choose(rules, Series(case[0], N, 1), case[1])
        assert is_same(effect, effects[name][case]), (case, name, effect)
    told = {
        (case[0], name)
        for case, effect in ran.items()
        if (name := choose(rules, Series(case[0], N, 1), case[1]))
        and not is_same(effect, effects[""][case])
    }
    assert {(name, words[0]) for name, words in ALGORITHMS_OF_MPICH.items()} <= told


def hear_oneccl(folder: Path, sizes: Sequence[int], env: dict[str, str]) -> dict[Any, str]:
    """The algorithm that oneCCL logs for each collective and count, on two ranks."""
    suite = folder / "suite.toml"
    suite.write_text(
        f"[axes]\ncollectives = {list(WORDS)}\nsizes = {list(sizes)}\nranks = 2\n"
        'backends = "oneccl"\nin_place = false\n[policy]\niters = 1\nwarmup = 0\nsync = "barrier"\n'
    )
    command: list[str] = [sys.executable, "-m", "collbench", "run", str(suite)]
    settings = {**os.environ, "PYTHONPATH": before(ROOT), "CCL_LOG_LEVEL": "debug", **env}
    settings["COLLBENCH_HOME"] = str(KEPT.parent)
    command += ["--output", str(folder / f"{len(env)}.jsonl")]
    done = subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == Exit.OK, done.stderr[-2000:]
    line = r"selected algo: coll (\w+), count (\d+), algo ([a-z_]+)"
    found = re.findall(line, done.stdout + done.stderr)
    heard: dict[Any, Counter[str]] = {}
    for coll, count, algorithm in found:  # lines of ranks may run into each other
        heard.setdefault((coll, int(count)), Counter())[algorithm] += 1
    return {key: counts.most_common(1)[0][0] for key, counts in heard.items()}


@pytest.mark.skipif(bool(LACK), reason=LACK or "oneCCL is here")
def test_oneccl_runs_what_the_file_says_to_the_element(tmp_path: Path) -> None:
    low, middle, high = 1600, 3200, 6400
    bounds = ((low, middle), (middle + 1, high))
    rows = []
    for name, words in WORDS.items():
        for bound, word in zip(bounds, words, strict=False):
            env = ((f"CCL_{ALGORITHMS[name][0]}", word),)
            rows.append(row(ONECCL, name, 2, *bound, env, backend="oneccl"))
    (kind,) = oneccl.FORMATS
    path = tmp_path / "oneccl.sh"
    write_files(kind, advised(ONECCL, rows), path)
    sizes = (low - 8, low, middle, middle + 8, high, high + 8)
    default = hear_oneccl(tmp_path, sizes, {})
    ran = hear_oneccl(tmp_path, sizes, kind.use(path))
    rules = kind.read(path.read_text())
    for name, size in make_cases(list(WORDS), sizes):
        share = 2 if COLLECTIVES[name].total else 1
        word = name.replace("_", "") if name.startswith("all") else name
        key = word, size // share // 4
        chosen = choose(rules, Series(name, 2, 1), size)
        assert ran[key] == (chosen or default[key]), (name, size)
