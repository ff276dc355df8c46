"""Each script of tests/perf runs to its end in a small form, so that none dies unseen. No figure of
theirs is asserted."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import network
import pytest
import shells
from needs import refuse_mpi, stop_without
from paths import before
from warm import Warm

from collbench.run.backends._torch_refusal import missing_gpu

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "perf"
REPORTS = ROOT / "reports"
ENVIRONMENTS = Path(os.environ.get("COLLBENCH_TEST_ENVS", ROOT / ".venv-backends"))
SECONDS = 900  # that a long one may take on a busy machine
PRINTED = ""  # of a script that writes no file
TABLE = r"\| .* \|"  # a line of a table
SUITE = """
[axes]
collectives = "all_reduce"
backends = "{backend}"
algorithms = "{algorithm}"
sizes = ["4K"]
ranks = {ranks}
in_place = true
[policy]
max_seconds = "0.02s"
"""
RECORDED = "reports/runs/ring-or-one-shot/base.jsonl"


class Form(NamedTuple):
    """How a script is run small, in a folder of its own that has the files of ``make_inputs``."""

    arguments: str  # with {root}, {python} and {ucx}
    output: str = "out.md"  # or PRINTED
    needs: tuple[str, ...] = ()  # names in NEEDS
    python: str = ""  # of which environment; of the tests', if none
    row: str = TABLE  # a line of the output, beside its heading and the head of its table


SMALL: dict[str, tuple[Form, ...]] = {
    "ab.py": (
        Form(
            "--home home --repetitions 1 --planted 1 --budget 0 --rounds 6,6 --max-time 0.02s"
            " --suite shm.toml --output out.md"
        ),
    ),
    "ab_hosts.py": (Form("--budget 0 --output out.md", needs=("lab",)),),
    "advice.py": (
        Form(
            "control --home home --repetitions 1 --budget 1s --backend planted --output out.md",
            row=r"\*\*\d of 1 files are empty\*\*: .*",
        ),
        Form("planted --home home --repetitions 1 --budget 1s --output out.md"),
        Form(
            "libraries --home home --budget 1s --confirm 1s --library openmpi={python} --ranks 2"
            " --collectives broadcast --output out.md",
            needs=("mpi",),
            row=r"`collbench tune .*",
        ),
    ),
    "advice_lab.py": (
        Form(
            "--suite gloo.toml --launches 1 --output out.jsonl",
            output="out.jsonl",
            needs=("lab", "sshd"),
            row=r'\{"line":"record".*"status":"ok".*',
        ),
    ),
    "anchors.py": (
        Form(
            "--turns 1 --sizes 8 --calls 10 --collectives all_reduce --output out.md",
            needs=("impi",),
            python="impi",
        ),
    ),
    "arrival.py": tuple(
        Form(f"--turns 1 --ranks 2 --seconds 0.05 --only {name} --output out.md", needs=needs)
        for name, needs in (("ring@gloo", ()), ("mpi", ("mpi",)))
    ),
    "cadence.py": (Form("--rounds 6 --max-time 0.02s --budget 0 --output out.md"),),
    "confusion.py": (
        Form(
            "--trials 1 --only slow-link-50,blocked --runs runs.jsonl --output out.md",
            needs=("lab",),
        ),
    ),
    "executors.py": (
        Form("--rounds 1 --max-time 0.01 --mode host --output out.md", needs=("mpi",)),
    ),
    "faults.py": (
        Form("--trials 1 --only 'kill of a rank, gloo, measuring, 2' --output out.md"),
        Form(
            "--trials 1 --only 'kill of a rank, mpi, measuring, 2' --output out.md", needs=("mpi",)
        ),
    ),
    "fleet.py": (Form("{root}/" + RECORDED + " --fleets 1 --many 2 --output out.md"),),
    "fleet_skew.py": (Form("16 20 0.5", PRINTED, row="20 fleets of 16 nodes: .*"),),
    "fuzz.py": (Form("--number 2 --commands 2", PRINTED, row=r"run +2 .* MiB"),),
    "gate_power.py": (Form("--runs 10 --fresh 20 --output out.md"),),
    "gpu.py": (Form("--slice quick --output out", output="out/gpu-check.md", needs=("gpu",)),),
    "guidelines.py": (Form("--nights 1 --output out.md"),),
    "idle.py": (Form("--rounds 6,6 --budget 0 --suite shm.toml --output out.md"),),
    "judging.py": (Form("--repeat .001", PRINTED),),
    "lab.py": (
        Form("--repeat .1 --tries 1 --backends gloo --runs runs --output out.md", needs=("lab",)),
    ),
    "libraries.py": (
        Form("gloo --repeat .01 --output out.md"),
        Form("mpi --repeat .01 --output out.md", needs=("mpi",)),
    ),
    "lifecycle.py": (
        Form("--kills 4 --groups 1 --launches 1 --runs runs --output out.md", needs=("mpi",)),
    ),
    "locate.py": (Form("--trials 1 --output out.md"),),
    "machine_code.py": (Form("--architectures 90 --output out.md", needs=("triton", "history")),),
    "mpi_native.py": (Form("--rounds 1 --sizes 8 --samples 10 --output out.md", needs=("mpi",)),),
    "nights.py": (Form("--repeat .001 --output out.md"),),
    "p2p.py": (
        Form(
            "--turns 1 --sizes 8 --calls 10 --benchmarks PingPong --output out.md",
            needs=("impi",),
            python="impi",
        ),
        Form("--turns 1 --sizes 8 --calls 10 --ucx {ucx} --output out.md", needs=("mpi", "ucx")),
    ),
    "picture.py": (
        Form(
            "--report {root}/reports/algorithms.html --output out.png",
            output="out.png",
            needs=("chromium",),
        ),
    ),
    "recording.py": (Form("--rounds 1 --job ddp --output out.md"),),
    "replay.py": (Form("--rounds 1 --jobs ddp --width 32 --layers 1 --output out.md"),),
    "report.py": (Form("--cases 200", PRINTED, row=r"\| collbench report .* \| 0 \|"),),
    "rounds.py": (
        Form(
            "--like recorded-base.jsonl --suite model.toml --experiments 1 --budget 0 --rounds 6,6"
            " --output out.md"
        ),
    ),
    "run.py": (
        Form("--only help_page,loops,recording --repeat .005 --output out.md"),
        Form("--only start --repeat .1 --output out.md"),
    ),
    "simulate.py": (Form("--only recursive_doubling", PRINTED),),
    "ssh.py": (Form("--trials 1 --only rank --output out.md", needs=("lab", "sshd")),),
    "steps.py": (Form("--rounds 1 --output out.md", needs=("lab",)),),
    "wire.py": (Form("--ranks 2 --output out.md", needs=("lab", "mpi")),),
    "workload.py": (Form("--rounds 1 --steps 1 --output out.md"),),
}
PARTS = {
    "copies.py": "executors.py runs it",
    "gpu_graphs.py": "gpu.py runs it",
    "loops.py": "run.py runs it",
    "minimal.py": "run.py runs it",
    "mpi_loop.c": "mpi_native.py compiles and runs it",
    "searches.py": "confusion.py runs it",
    "sections.py": "a module of other scripts",
    "stream.py": "lab.py runs it",
}
# forms that take about a second, and those that take seconds
QUICK = ("fleet_skew", "locate", "simulate")
SLOW = ("faults", "faults-1", "gpu", "fuzz", "gate_power", "guidelines", "nights", "report")


def name_forms() -> Iterator[object]:
    """A parameter for each form; those that are in neither list are long."""
    for script, forms in SMALL.items():
        for number, form in enumerate(forms):
            name = script.removesuffix(".py") + (f"-{number}" if number else "")
            marks = [] if name in QUICK else [pytest.mark.slow]
            if name not in (*QUICK, *SLOW):
                marks += [pytest.mark.long, pytest.mark.timeout(SECONDS + 20)]
            yield pytest.param(script, form, id=name, marks=marks)


def find_ucx() -> str:
    """Where libucx's wheel is; empty where it is not."""
    spec = importlib.util.find_spec("libucx")
    return str(Path(*spec.submodule_search_locations).parent) if spec else ""  # type: ignore[misc]


def refuse_history() -> str:
    """Why the commits of older kernels cannot be had here."""
    command = ["git", "cat-file", "-e", "614ca3e~1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return "the repository's history is not here" if done.returncode else ""


def refuse_impi() -> str:
    program = ENVIRONMENTS / "impi" / "bin" / "IMB-MPI1"
    return "" if program.exists() else f"{program} is missing: make libraries installs it"


NEEDS: dict[str, Callable[[], str]] = {
    "chromium": lambda: "" if shutil.which("chromium") else "no Chromium on this machine",
    "gpu": lambda: missing_gpu()[0],
    "history": refuse_history,
    "impi": refuse_impi,
    "lab": network.why_not,
    "mpi": refuse_mpi,
    "sshd": shells.why_not,
    "triton": lambda: "" if importlib.util.find_spec("triton") else "triton is not installed",
    "ucx": lambda: "" if find_ucx() else "no ucx_perftest: libucx's wheel is not installed",
}


def make_inputs(folder: Path) -> None:
    """Small suites, and the files that an experiment of equal sides leaves."""
    for backend, algorithm, ranks in (
        ("shm", "ring", 2),
        ("model", "ring", 2),
        ("gloo", "native", 3),
    ):
        text = SUITE.format(backend=backend, algorithm=algorithm, ranks=ranks)
        (folder / f"{backend}.toml").write_text(text)


@pytest.fixture
def experiment(cli, tmp_path: Path) -> None:
    """The runs of an experiment with two equal sides, of the model."""
    make_inputs(tmp_path)
    suite = str(tmp_path / "model.toml")
    cli(
        "ab",
        "--aa",
        "--suite",
        suite,
        "--rounds",
        "6,6",
        "--budget",
        "0",
        "--output",
        str(tmp_path),
    )
    for side in ("base", "head"):
        (path,) = tmp_path.glob(f"*-{side}.jsonl")
        path.rename(tmp_path / f"recorded-{side}.jsonl")


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_script(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Run:
    """``run_script(environment, script, *words)`` in the test's folder: by a Python of its own, or
    where the test is not long by one that has loaded all."""
    is_long = request.node.get_closest_marker("long")
    monkeypatch.chdir(tmp_path)

    def run(environment: str, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": before(ROOT)}
        if not (is_long or environment):
            env["PYTHONPATH"] += f"{os.pathsep}{SCRIPTS}"  # a Python adds it for its script
            process = warm.start(*words, script=script, env=env)
            out, err = process.communicate(SECONDS)
            return subprocess.CompletedProcess([script, *words], process.wait(), out, err)
        python = ENVIRONMENTS / environment / "bin" / "python" if environment else sys.executable
        pipes = {"capture_output": True, "text": True, "timeout": SECONDS}
        return subprocess.run([python, script, *words], env=env, check=False, **pipes)

    return run


def list_reports() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in REPORTS.rglob("*")}


def test_each_file_of_the_folder_has_a_small_form_or_is_a_part() -> None:
    files = {path.name for path in SCRIPTS.iterdir() if path.is_file()}
    assert files == {*SMALL, *PARTS}


def test_no_program_is_called_a_part() -> None:
    """What says ``--output`` in its text makes a report."""
    assert [name for name in PARTS if "--output" in (SCRIPTS / name).read_text()] == []


@pytest.mark.parametrize(("script", "form"), [*name_forms()])
def test_a_script_runs_to_its_end(
    script: str, form: Form, tmp_path: Path, run_script: Run, request
) -> None:
    for name in form.needs:
        if reason := NEEDS[name]():
            stop_without(name, reason)
    make_inputs(tmp_path)
    if "recorded-" in form.arguments:
        request.getfixturevalue("experiment")
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", form.arguments)]
    words = [w.format(root=ROOT, python=sys.executable, ucx=find_ucx()) for w in words]
    kept = list_reports()
    done = run_script(form.python, str(SCRIPTS / script), *words)
    assert done.returncode == 0, done.stderr
    assert list_reports() == kept
    if form.output.endswith(".png"):
        assert (tmp_path / form.output).read_bytes().startswith(b"\x89PNG")
        return
    text = (tmp_path / form.output).read_text() if form.output else done.stdout
    lines = text.splitlines()
    if form.output.endswith(".md"):
        assert lines[0].startswith("# "), text
    rows = [line for line in lines if re.fullmatch(form.row, line) and set(line) - set("|-: ")]
    head = int(form.row == TABLE)
    assert len(rows) > head, text
