"""oneCCL on CPUs: its files found or laid out of wheels, its shim compiled, and runs as a user
makes them. Those skip where it is not installed; COLLBENCH_NEED=oneccl has that fail."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from marks import long

from collbench.core.backend_info import backend_info
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.errors import CannotRun, Exit, UsageError
from collbench.machine.variables import keep_environment
from collbench.records import run_file
from collbench.records.types import Record, RunFile
from collbench.run import refusal
from collbench.run.backends import _oneccl, _oneccl_build, _oneccl_files, _oneccl_names, oneccl
from collbench.run.backends._oneccl_files import Library
from collbench.suite.case import Case
from tests.helpers.needs import stop_without

LACK = oneccl.refuse_here()  # before a test has a home of its own
KEPT = _oneccl_files.cache_folder()
QUICK = ("--backend", "oneccl", "-n", "1", "-w", "0", "--sync", "barrier", "--cache", "hot")
VERSION = "2022.2.0"
FILES = {
    "oneccl_cpu": {"lib/libccl.so.1": b"the library", "lib/libccl.so": b"the library"},
    "oneccl": {"lib/libccl.so.2": b"the other half", "lib/libccl.so.1": b"one for GPUs"},
    "oneccl_cpu_devel": {"include/oneapi/ccl.hpp": b"// types", "lib/libccl.a": b"an archive"},
    "impi_rt": {"lib/libfabric.so.1": b"fabric", "lib/libtcp-fi.so": b"tcp", "lib/libmpi.so": b""},
}
Run = Callable[..., tuple[subprocess.CompletedProcess[str], RunFile]]


@pytest.fixture
def installed() -> None:
    """Skip where there is no oneCCL, or fail where this run needs it."""
    if LACK:
        stop_without("oneccl", LACK)


@pytest.fixture
def run(installed: None, cli, home: Path, tmp_path: Path) -> Run:
    """``run(COLLECTIVE, OPTIONS)``: the process, and the run that it kept. Libraries and shims are
    those that the user has."""
    home.mkdir(exist_ok=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    (home / "oneccl").symlink_to(KEPT)

    def measure(*args: str, **env: str) -> tuple[subprocess.CompletedProcess[str], RunFile]:
        path = tmp_path / "run.jsonl"
        path.unlink(missing_ok=True)
        done = cli(*args, *QUICK, "--output", str(path), timeout=280, **env)
        assert path.exists(), done.stderr
        return done, run_file.read_file(path)

    return measure


def statuses(records: list[Record]) -> Counter[str]:
    """Records by status, those of wrong data apart."""
    return Counter("wrong" if record.wrong else record.status for record in records)


def make_case(collective: str = "all_reduce", **fields: object) -> Case:
    given = {"n": 2, "nbytes": 64, "op": "sum" if "reduce" in collective else "none", **fields}
    return Case(collective=collective, backend="oneccl", **given)  # type: ignore[arg-type]


def write_wheel(folder: Path, name: str, version: str = VERSION, **lies: bytes) -> Path:
    """A wheel of FILES as pip downloads it. Of ``lies``, by file name up to the first dot, RECORD
    has the hashes of other contents."""
    path = folder / f"{name}-{version}-py2.py3-none-manylinux_2_28_x86_64.whl"
    lines = []
    with zipfile.ZipFile(path, "w") as wheel:
        for file, data in FILES[name].items():
            entry = f"{name}-{version}.data/data/{file}"
            wheel.writestr(entry, data)
            claimed = lies.get(Path(file).name.partition(".")[0], data)
            code = base64.urlsafe_b64encode(hashlib.sha256(claimed).digest()).decode().rstrip("=")
            lines.append(f"{entry},sha256={code},{len(data)}")
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "\n".join(lines))
    return path


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with a wheel of each that is needed."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in FILES:
        write_wheel(folder, name)
    return folder


def test_wheels_are_laid_out_and_found(wheels: Path, home: Path) -> None:
    assert str(home / "oneccl" / VERSION) in oneccl.fetch(wheels)
    found = _oneccl_files.find_library()
    assert found.version == VERSION
    assert found.ccl.read_bytes() == b"the library"
    assert found.ccl.with_name("libccl.so.2").read_bytes() == b"the other half"
    assert (found.include / "oneapi/ccl.hpp").is_file()
    assert {path.name for path in found.fabric.parent.iterdir()} == {
        *("libccl.so.1", "libccl.so.2", "libfabric.so.1", "libtcp-fi.so"),
    }
    assert oneccl.refuse_here() == ""


def test_laying_out_again_replaces_what_was_there(wheels: Path, home: Path) -> None:
    folder = _oneccl_files.lay_out_wheels(wheels)
    (folder / "lib/libccl.so.1").write_bytes(b"spoiled")
    assert _oneccl_files.lay_out_wheels(wheels) == folder
    assert (folder / "lib/libccl.so.1").read_bytes() == b"the library"
    assert [path.name for path in (home / "oneccl").iterdir()] == [VERSION]


def test_the_newest_of_several_versions_is_used(wheels: Path, home: Path) -> None:
    folder = _oneccl_files.lay_out_wheels(wheels)
    folder.rename(folder.with_name("2022.10.0"))
    _oneccl_files.lay_out_wheels(wheels)
    assert _oneccl_files.find_library().version == "2022.10.0"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        oneccl.fetch(tmp_path / "nowhere")


def test_an_empty_folder_is_refused_with_the_command_that_fills_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no wheel of oneccl-cpu, oneccl, ") as refused:
        oneccl.fetch(tmp_path)
    assert refused.value.hint.startswith("pip download --no-deps -d W oneccl==")


def test_the_command_lays_out_wheels_and_refuses_a_wrong_folder(
    cli, wheels: Path, home: Path, tmp_path: Path
) -> None:
    refused = cli("backends", "fetch", "oneccl", "--wheels", str(tmp_path))
    assert refused.returncode == Exit.USAGE and "no wheel of oneccl-cpu, " in refused.stderr
    done = cli("backends", "fetch", "oneccl", "--wheels", str(wheels))
    assert done.returncode == Exit.OK, done.stderr
    assert (home / "oneccl" / VERSION / "lib/libccl.so.2").is_file()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_wheel_is_named(wheels: Path, name: str) -> None:
    next(wheels.glob(f"{name}-*")).unlink()
    with pytest.raises(UsageError, match=f"no wheel of {name.replace('_', '-')}$"):
        oneccl.fetch(wheels)


def test_wheels_of_two_versions_are_refused(wheels: Path) -> None:
    next(wheels.glob("oneccl-*")).unlink()
    write_wheel(wheels, "oneccl", "2022.1.2")
    with pytest.raises(UsageError, match=r"oneccl 2022\.1\.2, .* not of one version"):
        oneccl.fetch(wheels)


def test_two_wheels_of_one_name_are_refused(wheels: Path) -> None:
    write_wheel(wheels, "oneccl", "2022.1.2")
    with pytest.raises(UsageError, match="two of one name"):
        oneccl.fetch(wheels)


def test_a_wheel_without_its_library_is_refused(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "impi_rt", {"lib/libmpi.so": b""})
    write_wheel(wheels, "impi_rt")
    with pytest.raises(UsageError, match=r"no lib/libfabric\.so\.1 in it"):
        oneccl.fetch(wheels)


def test_a_file_that_is_not_what_its_record_says_is_refused(wheels: Path, home: Path) -> None:
    write_wheel(wheels, "oneccl", libccl=b"something else")
    with pytest.raises(UsageError, match="not what its RECORD says"):
        oneccl.fetch(wheels)
    assert list((home / "oneccl").iterdir()) == []


def test_a_wheel_that_is_cut_off_is_refused(wheels: Path) -> None:
    path = next(wheels.glob("oneccl_cpu-*"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UsageError, match="not a whole wheel"):
        oneccl.fetch(wheels)


def test_a_path_out_of_the_wheel_is_not_followed(
    wheels: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"include/oneapi/ccl.hpp": b"", "include/oneapi/../../../../stray.hpp": b"no"}
    monkeypatch.setitem(FILES, "oneccl_cpu_devel", files)
    write_wheel(wheels, "oneccl_cpu_devel")
    oneccl.fetch(wheels)
    assert not list(home.parent.rglob("stray.hpp"))


def test_a_backend_that_is_not_installed_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # where distributions are looked for
    assert oneccl.refuse_here() == "oneccl is not installed (pip install 'collbench[oneccl]')"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Files for a compiler that is only played."""
    ccl = tmp_path / "libccl.so.1"
    ccl.write_bytes(b"a library")
    return Library(VERSION, tmp_path, ccl, tmp_path / "libfabric.so.1")


def play_compiler(path: Path, script: str) -> str:
    """An executable that does what ``script`` says with the compiler's arguments."""
    path.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n{script}\n')
    path.chmod(0o755)
    return str(path)


def test_a_missing_compiler_is_told_with_what_helps(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CannotRun, match="there is none on the PATH") as refused:
        _oneccl_build.build_shim(library)
    assert "apt install g++" in refused.value.hint


def test_a_compiler_that_cxx_names_and_is_not_there_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    with pytest.raises(CannotRun, match="CXX=no-such-compiler is not there"):
        _oneccl_build.build_shim(library)


def test_a_failing_compiler_is_told_with_its_first_error(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "echo note: no matter >&2; echo 'x.cpp:1: error: no such type' >&2; exit 1"
    monkeypatch.setenv("CXX", play_compiler(tmp_path / "cxx", script))
    with pytest.raises(CannotRun, match=r"cannot compile oneccl.cpp: x.cpp:1: error: no such type"):
        _oneccl_build.build_shim(library)
    assert list(_oneccl_files.cache_folder().iterdir()) == []


def test_a_shim_is_compiled_once_for_a_library(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'echo a call >> {tmp_path}/calls; echo built > "$2"'
    monkeypatch.setenv("CXX", play_compiler(tmp_path / "cxx", script))
    first = _oneccl_build.build_shim(library)
    assert _oneccl_build.build_shim(library) == first
    assert (tmp_path / "calls").read_text().count("a call") == 1
    library.ccl.write_bytes(b"another library")
    assert _oneccl_build.build_shim(library) != first
    assert (tmp_path / "calls").read_text().count("a call") == 2


def test_two_builds_at_once_leave_one_shim(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = f'touch {tmp_path}/begun-$$; while [ "$(ls {tmp_path} | grep -c begun)" -lt 2 ]; do :; '
    script = wait + 'done; printf "half "; sleep 0.1; echo of it'
    monkeypatch.setenv("CXX", play_compiler(tmp_path / "cxx", f'({script}) > "$2"'))
    paths: list[Path] = []
    builds = [
        threading.Thread(target=lambda: paths.append(_oneccl_build.build_shim(library)))
        for _ in range(2)
    ]
    for build in builds:
        build.start()
    for build in builds:
        build.join(60)
    assert len(paths) == 2 and paths[0] == paths[1]
    assert paths[0].read_text() == "half of it\n"
    assert list(paths[0].parent.iterdir()) == [paths[0]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"collective": "gather", "op": "none"}, "oneCCL has no gather"),
        ({"op": "band", "dtype": "int32"}, "oneCCL has no reduction band on CPUs"),
        ({"op": "avg"}, "oneCCL has no reduction avg on CPUs"),
        ({"dtype": "f8e4m3"}, "oneCCL has no datatype f8e4m3"),
        ({"collective": "all_gather", "dtype": "f8e5m2"}, "oneCCL has no datatype f8e5m2"),
        ({"algorithm": "ring"}, "oneccl runs its own algorithms alone"),
        ({"mode": "graph"}, "cannot be captured in a CUDA graph"),
        ({"op": "prod", "dtype": "bfloat16"}, ""),
        ({"collective": "barrier", "nbytes": 0}, ""),
    ],
)
def test_what_the_library_lacks_is_refused_before_ranks_start(
    fields: dict[str, object], reason: str
) -> None:
    given = refusal.refuse_anywhere(make_case(**fields))
    assert reason in given and bool(reason) == bool(given)


def test_what_one_world_chose_is_chosen_again_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ranks of a launcher open several; what the user has set is never among it."""
    monkeypatch.setenv("CCL_ATL_SHM", "0")
    library = Library(VERSION, tmp_path, tmp_path / "libccl.so.1", tmp_path / "libfabric.so.1")
    chosen = []
    for place in ("1", "2"), ("0", "1"):
        with keep_environment():
            settings = _oneccl.choose_settings(library, place, 2, 2)
            chosen.append((settings, os.environ["CCL_LOCAL_RANK"]))
    settings = ["CCL_ATL_TRANSPORT=ofi", "CCL_WORKER_OFFLOAD=0"]
    assert chosen == [(settings, "1"), (settings, "0")]


def test_settings_of_the_library_are_known() -> None:
    sweep = ("CCL_ALLREDUCE", "FI_PROVIDER")
    assert refusal.ineffective_settings(sweep, ["oneccl"]) == []
    assert refusal.ineffective_settings(sweep, ["gloo"]) == [*sweep]


def test_info_is_read_without_torch() -> None:
    script = (
        "import sys; from collbench.core.backend_info import backend_info as b; b('oneccl').here();"
        " print(sorted({'torch', 'collbench.run.backends._oneccl_files'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['collbench.run.backends._oneccl_files']"


REDUCING = ("-o", "sum,prod,min,max")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collective", "options"),
    [
        ("all_reduce", REDUCING),
        ("all_gather", ()),
        ("reduce_scatter", REDUCING),
        ("all_to_all", ()),
        ("all_to_allv", ("--splits", "uniform,zipf:1")),
        ("broadcast", ()),
        ("reduce", REDUCING),
        ("sendrecv", ()),
    ],
)
@pytest.mark.parametrize(
    ("ranks", "dtypes", "sizes"),
    [("2,3", "int8,float", "1000"), long("2,3", "all", "48,1000,70000,1M")],
)
def test_every_element_is_right(
    run: Run, collective: str, options: tuple[str, ...], ranks: str, dtypes: str, sizes: str
) -> None:
    row = make_case(collective, op="none").row
    roots = ("-r", "all") if row.rooted and dtypes == "all" else ()
    done, kept = run(collective, *options, *roots, "-d", dtypes, "-g", ranks, "--sizes", sizes)
    assert done.returncode == Exit.OK, done.stderr
    tried = [record for record in kept.records if record.status != "skipped"]
    assert statuses(tried) == {"ok": len(tried)}
    assert all(record.checked for record in tried)
    names = [*_oneccl_names.DATATYPES] if dtypes == "all" else dtypes.split(",")
    assert {record.case.dtype for record in tried} == {*names}
    ops = {*REDUCING[1].split(",")} if row.reduces else {"none"}
    assert {record.case.op for record in tried} == ops
    assert {r.case.in_place for r in tried} == ({False, True} if row.in_place else {False})
    assert {record.case.n for record in tried} == {2, 3}


@pytest.mark.slow
def test_the_library_says_what_was_chosen_and_a_barrier_has_a_time(run: Run) -> None:
    _, kept = run("barrier", "-g", "2")
    (record,) = kept.records
    assert record.status == "ok" and record.times_ns
    assert record.call_path_ns
    (world,) = kept.worlds
    assert world.library.startswith("oneCCL 20") and "CCL_ATL_SHM=1" in world.library


@pytest.mark.slow
def test_what_was_asked_for_is_not_chosen(run: Run) -> None:
    _, kept = run("barrier", "-g", "2", "--env", "CCL_ATL_SHM=0")
    (world,) = kept.worlds
    assert "CCL_ATL_SHM" not in world.library and kept.records[0].status == "ok"


@pytest.mark.slow
def test_a_planted_bit_is_wrong_data(run: Run) -> None:
    args = ("all_reduce", "-g", "2", "--sizes", "4K", "--place", "out")
    done, kept = run(*args, "--inject", "corrupt:1")
    assert done.returncode == Exit.WRONG_DATA
    assert kept.records[0].wrong == 1 and "on rank 1" in kept.records[0].note


@pytest.mark.slow
def test_a_rank_that_drops_is_named_and_leaves_nothing(run: Run) -> None:
    args = ("all_reduce", "-g", "2", "--sizes", "4K", "--place", "out", "-T", "30")
    done, kept = run(*args, "--inject", "drop:1")
    assert done.returncode == Exit.TIMEOUT
    assert "rank 1 on " in done.stderr and "exited with status 70" in done.stderr
    pids = [rank.pid for rank in kept.worlds[0].ranks]
    assert len(pids) == 2
    assert not [path for pid in pids for path in Path("/dev/shm").glob(f"{pid}:*")]


@pytest.mark.slow
def test_groups_of_a_divided_world_are_measured(run: Run) -> None:
    args = ("all_reduce", "-g", "4", "--split", "mod:2", "--sizes", "4K")
    done, kept = run(*args)
    assert done.returncode == Exit.OK, done.stderr
    assert statuses(kept.records) == {"ok": 4}
    assert {record.case.group for record in kept.records} == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("CCL_ATL_TRANSPORT=mpi", "oneccl runs without MPI"),
        ("FI_PROVIDER=shm", "CCL_ATL_SHM=1, the default here"),
        ("CCL_YIELD=nonsense", "unexpected value: nonsense"),
    ],
)
def test_a_setting_with_which_it_cannot_run_is_a_reason(run: Run, setting: str, words: str) -> None:
    done, kept = run("barrier", "-g", "2", "--env", setting)
    assert done.returncode == Exit.CANNOT_RUN
    assert kept.records[0].status == "skipped" and words in kept.records[0].note


@pytest.mark.slow
def test_ranks_without_a_compiler_say_so(run: Run, home: Path) -> None:
    if _oneccl_files.find_library().ccl.is_relative_to(KEPT):
        pytest.skip("this oneCCL was laid out beside its shims")
    (home / "oneccl").unlink()  # as on the first run
    done, kept = run("barrier", "-g", "2", CXX="no-such-compiler")
    assert done.returncode == Exit.CANNOT_RUN
    assert "CXX=no-such-compiler is not there" in kept.records[0].note


def test_every_datatype_and_reduction_is_one_of_ours() -> None:
    assert {*_oneccl_names.DATATYPES} <= {*DTYPES} and {*_oneccl_names.REDUCTIONS} <= {*OPS}
    assert backend_info("oneccl").packages == ("oneccl-cpu", "impi-rt")
