"""The whole command line on the model backend: no torch, no ranks, no clocks."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.cli import main as main_
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import Exit
from collbench.records import run_file, store

MODEL = ("--backend", "model", "-g", "4")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_has_a_command_that_explains_itself_and_runs(bare, name: str) -> None:
    helped = bare(name, "--help")
    assert helped.returncode == 0
    row = COLLECTIVES[name]
    assert row.meaning.split()[0] in helped.stdout
    assert row.factor in " ".join(helped.stdout.split()) or row.factor == "-"
    done = bare(name, "-b", "1K", "-e", "4K", *MODEL)
    assert done.returncode == 0, done.stderr
    sizes = [
        line.split()[0] for line in done.stdout.splitlines() if line and not line.startswith("#")
    ]
    assert sizes == (["0"] if name == "barrier" else ["1024", "2048", "4096"])
    (found,) = store.list_saved()
    assert {r.status for r in run_file.read_file(found).records} <= {"predicted", "skipped"}


def test_aliases_of_nccl_tests_work(bare) -> None:
    for alias in ("allreduce", "alltoall", "allgather", "bcast"):
        assert bare(alias, "--sizes", "1K", *MODEL).returncode == 0


def test_columns_follow_the_documented_factors(bare) -> None:
    done = bare("all_reduce", "--sizes", "1M", *MODEL, "--format", "csv")
    rows = [*csv.DictReader(io.StringIO(done.stdout))]
    assert done.returncode == 0 and rows
    for row in rows:
        median = float(row["median"])
        assert float(row["algbw"]) == pytest.approx((1 << 20) / median)
        assert float(row["busbw"]) == pytest.approx((1 << 20) / median * 2 * 3 / 4)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-b", "8Q"), "not a size"),
        (("-b", "0", "-e", "1K"), "never grows"),
        (("-b", "8", "-e", "4"), "larger than"),
        (("-b", "8", "-e", "1K", "-f", "1"), "never grows"),
        (("-b", "8", "-e", "1K", "-i", "0"), "must be positive"),
        (("-b", "8", "-e", "1K", "-f", "nan"), "never grows"),
        (("-b", "8", "-e", "1K", "-f", "inf"), "never grows"),
        (("--align", "0"), "--align 0: must be at least 1"),
        (("--env", "NCCL_PWD=x"), "which no run's file keeps"),
        (("--sizes", "8", "-b", "8"), "exclude each other"),
        (("-g", "0"), "not a whole number"),
        (("-d", "float,quarter"), "unknown datatype 'quarter'"),
        (("-o", "median"), "unknown reduction"),
        (("-r", "x"), "not a whole number"),
        (("--env", "NOVALUE"), "is not NAME=VALUE"),
        (("--place", "sideways"), "not one of"),
        (("--mode", "fast"), "not one of"),
        (("--format", "xml"), "not one of"),
        (("--precision", "200%"), "not a share"),
        (("--max-time", "soon"), "not a duration"),
        (("--budget", "1day"), "not a duration"),
        (("-J", "out.txt"), ".json"),
        (("-b", "1e400"), "more than any machine holds"),
        (("-T", "inf"), "not a time limit"),
        (("-T", "0.05"), "not a time limit"),
        (("-N", "0"), "-N 0: endless runs are not supported"),
        (("-t", "8"), "-t 8: threads are not supported"),
        (("--parallel_init", "2"), "must be 0 or 1"),
        (("-y", "1"), "has a stream of its own"),
        (("-D", "1"), "kernels of NCCL's device API are not supported"),
        (("-V", "many"), "must be a whole number"),
        (("--memory", "1"), "is not measured"),
        (("-x", "2"), "only NCCL's environment can set this"),
        (("-n", "5", "--budget", "1m"), "-n fixes"),
        (("-n", "5", "--max-time", "1s"), "-n fixes"),
        (("-n", "5", "--max-time", "1s", "--mode", "host"), "-n fixes"),
        (("-n", "5", "--mode", "isolated,streaming", "--budget", "1m"), "-n fixes"),
        (("-z", "2", "--mode", "isolated"), "-z 2 measures in mode host, not isolated"),
        (("-z", "3", "--mode", "isolated,host"), "-z 3 measures in mode isolated, not isolated, h"),
        (("--env", "MY_TOKEN=x"), "which no run's file keeps"),
        (("--address", "node1:6379"), "add --launcher ray"),
        (("--placement", "spread"), "add --launcher ray"),
        (("--hosts", "a:8"), "add --launcher ssh"),
        (("--ssh", "ssh -p 2222"), "add --launcher ssh"),
        (("--launcher", "ssh"), "no hosts are named"),
        (("--launcher", "ssh", "--hosts=-oProxyCommand=x"), "is not a host"),
        (("--launcher", "ssh", "--hosts", "a:2,b:2,a"), "a is there twice"),
        (("--launcher", "ssh", "--hosts", "a", "--ssh", "ssh 'open"), "No closing quotation"),
        (("--launcher", "ssh", "--hosts", "a:2,b:2", "-g", "8"), "has places for 4 ranks"),
        (("--launcher", "ssh", "--hosts", "a", "--address", "b:1"), "add --launcher ray"),
        (("--launcher", "ray", "--placement", "anywhere"), "not one of pack, spread"),
        (
            ("--launcher", "ray", "--address", "ray://node1:10001"),
            "cannot be streamed through Ray Client",
        ),
    ],
)
def test_bad_input_is_one_line_a_hint_and_exit_code_2(
    bare, args: tuple[str, ...], words: str
) -> None:
    done = bare("all_reduce", *MODEL, *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("limit", [("--max-time", "1s"), ("--budget", "1m")])
@pytest.mark.parametrize("mode", ["streaming", "graph"])
def test_where_n_is_calls_of_a_sample_time_says_how_many_samples(
    bare, mode: str, limit: tuple[str, str]
) -> None:
    done = bare("all_reduce", *MODEL, "-n", "5", "--mode", mode, *limit, "--dry-run")
    assert done.returncode == 0, done.stderr


def test_a_dry_run_names_what_a_budget_drops_and_a_budget_that_holds_all(bare) -> None:
    words = ("all_reduce", "--sizes", "8,1G", "-g", "2", "--place", "in", "--dry-run")
    done = bare(*words, "--budget", "5s")
    assert "it is estimated to drop at least 1 of 2 cases (1 GiB)" in done.stderr
    enough = done.stderr.partition(" is enough for all")[0].split()[-1]
    assert "drops at least" not in bare(*words, "--budget", enough).stderr


def test_a_suite_may_limit_the_time_of_batches_of_so_many_calls(bare, tmp_path: Path) -> None:
    (path := tmp_path / "suite.toml").write_text(
        '[axes]\ncollectives = ["all_reduce"]\nsizes = ["8"]\nmodes = ["streaming"]\n'
        "[policy]\niters = 5\nmax_seconds = 1\n"
    )
    words = ("run", str(path), "--backend", "model", "-g", "2", "--dry-run")
    assert bare(*words).returncode == 0
    assert bare(*words, "--max-time", "2s").returncode == 0
    assert bare(*words, "--budget", "1m").returncode == 0


def sizes(text: str) -> list[int]:
    return [int(line.split()[0]) for line in text.splitlines() if line and line[0] != "#"]


@pytest.mark.parametrize(
    "args",
    [
        # as PerfKitBenchmarker, cloudai and others call nccl-tests
        ("--stepfactor", "2", "--check", "0", "--nthreads", "1", "--iters", "20"),
        ("--nthreads", "1", "--parallel_init", "0", "--stepbytes", "1M", "--stepfactor", "2"),
        ("-t", "1", "-p", "1", "-y", "0", "-D", "0", "-V", "16", "-M", "0", "-x", "0"),
        ("-T", "0", "-K", "2", "-d", "char", "-o", "mulsum", "-z", "0", "-G", "0", "-u", "0"),
        ("--memory_report", "0", "--per_iter_timing", "0", "--report_timestamps", "0"),
    ],
)
def test_options_of_nccl_tests_that_ask_for_nothing_are_taken_in_silence(
    bare, args: tuple[str, ...]
) -> None:
    done = bare("all_reduce_perf", "-b", "1K", "-e", "4K", *MODEL, *args)
    assert done.returncode == 0, done.stderr
    assert sizes(done.stdout) == [1024, 2048, 4096]


def test_a_factor_of_one_is_none(bare) -> None:
    done = bare("all_reduce", "-b", "1K", "-e", "4K", "-f", "1", "-i", "1K", *MODEL)
    assert sizes(done.stdout) == [1024, 2048, 3072, 4096]


def test_root_minus_one_is_every_root(bare) -> None:
    done = bare("broadcast", "-b", "1K", "-e", "1K", "-r", "-1", *MODEL)
    roots = [line.split()[4] for line in done.stdout.splitlines() if line and line[0] != "#"]
    assert roots == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"NCCL_TESTS_DEVICE": "4"}, "CUDA_VISIBLE_DEVICES"),
        ({"NCCL_TESTS_ALLTOALLV_SPREAD": "0.5"}, "--splits spread:0.5"),
    ],
)
def test_variables_of_nccl_tests_that_are_not_followed_are_refused(
    bare, monkeypatch: pytest.MonkeyPatch, setting: dict[str, str], words: str
) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    done = bare("all_to_allv", "-b", "1K", "-e", "1K", *MODEL)
    assert (done.returncode, words in done.stderr) == (2, True)


def test_the_device_a_rank_takes_anyway_may_be_named(bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TESTS_DEVICE", "0")
    assert bare("all_reduce", "-b", "1K", "-e", "1K", *MODEL).returncode == 0


def test_hypercube_is_told_by_what_it_is_here(bare) -> None:
    done = bare("hypercube_perf", *MODEL)
    assert (done.returncode, "--algo recursive_doubling" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "command", [(), ("all_reduce",), *((name,) for name in main_.list_commands())]
)
def test_h_is_help_everywhere(bare, command: tuple[str, ...]) -> None:
    short, long = bare(*command, "-h"), bare(*command, "--help")
    assert (short.returncode, short.stdout) == (0, long.stdout)


def test_without_ray_its_launcher_says_what_to_install(bare, tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('not here')\n")
    done = bare("all_reduce", "--launcher", "ray", "-g", "2", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (5, "")
    assert (
        done.stderr
        == "collbench: --launcher ray: Ray is not installed\n  hint: pip install 'collbench[ray]'\n"
    )


def test_without_an_ssh_client_its_launcher_says_what_to_install(bare) -> None:
    done = bare("all_reduce", "--launcher", "ssh", "--hosts", "a:2", "--ssh", "/nowhere/ssh")
    assert (done.returncode, done.stdout) == (5, "")
    assert "cannot run /nowhere/ssh: No such file or directory" in done.stderr
    assert "openssh-client" in done.stderr


@pytest.mark.parametrize("command", ["all_reduce", "pairs", "locate", "order", "overlap"])
def test_a_plan_over_ssh_needs_no_connection(bare, command: str) -> None:
    """Where the backend is named."""
    what = {"order": ["all_reduce"], "overlap": ["all_reduce"]}.get(command, [])
    if command == "overlap":
        what += ["--with", "sleep"]
    words = [*what, "--backend", "gloo", "--launcher", "ssh", "--hosts", "a:2,b:2", "--dry-run"]
    done = bare(command, *words, "--ssh", "/nowhere/ssh")
    assert done.returncode == 0, done.stderr


def test_unknown_options_and_commands_exit_2(bare) -> None:
    assert bare("all_reduce", "--fast").returncode == 2
    assert bare("all_produce").returncode == 2
    assert bare("--version").stdout.startswith("collbench ")


def test_skips_say_why_and_a_sweep_of_nothing_else_exits_5(bare) -> None:
    done = bare("all_gather", "--sizes", "8,64", *MODEL)
    assert done.returncode == 0
    assert "8 B give a rank no float element; the smallest size is 16 B" in done.stdout
    done = bare("all_gather", "--sizes", "8", *MODEL)
    assert done.returncode == 5
    assert "no case can run here" in done.stderr
    done = bare("all_reduce", "-o", "band", *MODEL, "--sizes", "64")
    assert "integers only" in done.stderr


def test_dry_run_shows_cases_memory_and_time_and_runs_nothing(bare) -> None:
    done = bare("all_reduce", "-b", "1K", "-e", "4K", "-g", "2", "--backend", "gloo", "--dry-run")
    assert done.returncode == 0
    assert "6 cases" in done.stdout and "MiB" in done.stdout
    assert store.list_saved() == []


def test_what_cannot_fit_in_memory_is_a_skip_that_names_need_and_limit(bare) -> None:
    done = bare("all_reduce", "--sizes", "1K,64T", "-g", "2", "--backend", "gloo", "--dry-run")
    words = " ".join(done.stdout.split())
    assert "MiB on this host" in words and "are available" in words
    done = bare("all_reduce", "--sizes", "64T", "-g", "2", "--backend", "gloo")
    assert done.returncode == 5


def test_formats_for_programs(bare, tmp_path: Path) -> None:
    args = ("all_reduce", "--sizes", "1K,4K", *MODEL)
    whole = json.loads(bare(*args, "--format", "json").stdout)
    assert [r["nbytes"] for r in whole["records"]] == [1024, 1024, 4096, 4096]
    assert bare(*args, "--format", "md").stdout.count("|") > 20
    target = tmp_path / "out.json"
    assert bare(*args, "-J", str(target)).returncode == 0
    document = json.loads(target.read_text())
    assert document["version"] == 3
    assert [r["size"] for r in document["results"]] == [1024, 4096]


def test_a_bad_place_for_json_is_found_before_anything_runs(bare) -> None:
    done = bare("all_reduce", "--sizes", "1K", *MODEL, "-J", "/nowhere/out.json")
    assert done.returncode == 5
    assert "cannot write /nowhere/out.json: folder /nowhere does not exist" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("form", ["nccl", "table", "csv", "json", "md"])
def test_output_that_finds_no_room_stops_no_measurement(bare, tmp_path: Path, form: str) -> None:
    args = ("--sizes", "1K,2K,4K", *MODEL, "--format", form, "--output", str(tmp_path / "r.jsonl"))
    done = bare("all_reduce", *args, stdout=">/dev/full")
    assert done.returncode == 5, done.stderr
    assert done.stderr.count("standard output: No space left on device") == 1
    assert "Traceback" not in done.stderr
    found = run_file.read_file(tmp_path / "r.jsonl")
    assert len(found.records) == 6 and found.end is not None


@pytest.mark.parametrize("words", [("runs",), ("list",), ("report", "@last", "--format", "md")])
def test_commands_whose_output_finds_no_room_end_with_5(bare, words: tuple[str, ...]) -> None:
    bare("all_reduce", "--sizes", "1K", *MODEL)
    done = bare(*words, stdout=">/dev/full")
    assert (done.returncode, "Traceback" in done.stderr) == (5, False)
    assert "standard output: No space left on device" in done.stderr


def test_output_that_finds_no_room_is_told_once_at_the_end_of_python_too() -> None:
    """Which flushes what it still has."""
    command = [sys.executable, "-m", "collbench", "all_reduce", "--sizes", "1K", *MODEL]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 5
    assert done.stderr.count("standard output: No space left on device") == 1
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("all_reduce", "--sizes", "1K", *MODEL), 0),
        (("compare", "@last", "absent"), 2),
        (("health", "--no-history"), 3),
        (("report", "absent"), 2),
        (("all_reduce", "--no-such-option"), 2),
    ],
)
@pytest.mark.parametrize("stream", [">/dev/full", ">&-", "</dev/null"])
def test_messages_that_cannot_be_printed_change_no_exit_code(
    bare, words: tuple[str, ...], code: int, stream: str
) -> None:
    bare("all_reduce", "--sizes", "1K", *MODEL)
    assert bare(*words, stderr=stream).returncode == code


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", "2</dev/null"])
def test_a_python_that_begins_without_standard_error_changes_no_exit_code(stream: str) -> None:
    command = f"{sys.executable} -m collbench all_reduce --sizes 1K {' '.join(MODEL)} {stream}"
    assert subprocess.run(command, shell=True, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("more", [("-f", "1"), ()])
def test_one_size_needs_nothing_to_grow(bare, more: tuple[str, ...]) -> None:
    done = bare("all_reduce", "-b", "1G", "-e", "1G", *more, *MODEL, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 GiB" in done.stdout


def test_a_size_of_nothing_is_not_said_not_to_grow(bare) -> None:
    done = bare("all_gather", "-b", "0", "-e", "0", *MODEL)
    assert done.returncode == 5
    assert "0 B" in done.stderr and "grow" not in done.stderr


def test_ranks_of_an_environment_are_told_with_its_variables(bare) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
    done = bare("all_reduce", "-b", "1K", "-e", "1K", "-g", "2", "--no-save", **alone)
    assert done.returncode == 2
    assert "WORLD_SIZE=1" in done.stderr and "--launcher local" in done.stderr


def test_a_name_that_no_disk_takes_is_told(bare) -> None:
    done = bare("all_reduce", "--sizes", "1K", *MODEL, "--output", f"{'a' * 300}.jsonl")
    assert (done.returncode, "cannot write aaa" in done.stderr) == (5, True)


def test_output_that_was_never_open_is_no_reason_to_stop(tmp_path: Path) -> None:
    command = f"{sys.executable} -m collbench all_reduce --sizes 1K {' '.join(MODEL)} >&-"
    surroundings = {**os.environ, "COLLBENCH_HOME": str(tmp_path)}
    done = subprocess.run(command, shell=True, check=False, env=surroundings, capture_output=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 1)
    assert done.stderr.startswith(b"saved: ")


@pytest.mark.parametrize("words", [("list",), ("show", "all_reduce", "ring", "-n", "4")])
def test_an_encoding_without_our_letters_is_no_reason_to_stop(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    surroundings = {**os.environ, "COLLBENCH_HOME": str(tmp_path), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "collbench", *words]
    done = subprocess.run(command, check=False, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_units_are_read_where_the_encoding_is_ascii(tmp_path: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "COLLBENCH_HOME": str(tmp_path)}
    words = ("all_reduce", "--sizes", "1K", *MODEL, "--format", "table")
    done = subprocess.run(
        [sys.executable, "-m", "collbench", *words],
        check=True,
        env={**os.environ, **ascii_only},
        capture_output=True,
        text=True,
    )
    assert " us" in done.stdout and "?" not in done.stdout


def test_a_folder_that_was_removed_is_no_place_to_start(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -P -m collbench list"
    done = subprocess.run(command, shell=True, cwd=gone, check=False, capture_output=True)
    assert (done.returncode, b"Traceback" in done.stderr) == (5, False)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_what_the_machine_refuses_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def refused(**_: object) -> None:
        raise OSError(number, os.strerror(number), "/some/where")

    monkeypatch.setattr(main_, "app", refused)
    with pytest.raises(SystemExit) as end:
        main_.main()
    assert end.value.code == Exit.CANNOT_RUN
    assert f"/some/where: {os.strerror(number)}" in capsys.readouterr().err


def test_a_fault_of_ours_has_a_code_of_its_own_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("by\x1b[31mnothing")

    monkeypatch.setattr(main_, "app", broken)
    with pytest.raises(SystemExit) as ended:
        main_.main()
    said = capsys.readouterr().err
    assert ended.value.code == 70
    assert "ZeroDivisionError, by [31mnothing" in said and "\x1b" not in said
    kept = Path(said.split("its traceback is in ")[1].strip())
    assert kept.parent == home / "crashes" and "raise ZeroDivisionError" in kept.read_text()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libfoo.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=["Python", "a library", "the kernel"],
)
def test_a_want_of_memory_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def starved(**_: object) -> None:
        raise error

    monkeypatch.setattr(main_, "app", starved)
    with pytest.raises(SystemExit) as ended:
        main_.main()
    assert ended.value.code == Exit.CANNOT_RUN
    assert capsys.readouterr().err.startswith("collbench: there is not enough memory\n  hint: ")


def test_a_saved_run_goes_on_quietly_without_its_reader(home: Path) -> None:
    command = f"{sys.executable} -m collbench all_reduce -b 8 -e 1G --format csv {' '.join(MODEL)}"
    bash = ["bash", "-o", "pipefail", "-c", f"{command} | head -1"]
    done = subprocess.run(bash, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert "Traceback" not in done.stderr
    (found,) = (home / "runs").iterdir()
    run = run_file.read_file(found)
    assert len(run.records) == 56 and run.end is not None and run.end.exit == 0


@pytest.mark.parametrize("words", ["predict all_reduce -n 8", "list", "show all_reduce ring"])
def test_a_reader_that_is_gone_ends_nothing_badly(bare, words: str) -> None:
    done = bare(*words.split(), stdout=">|")
    assert (done.returncode, done.stderr) == (0, "")


def test_runs_are_saved_listed_and_found_by_name(bare) -> None:
    bare("all_reduce", "--sizes", "1K", *MODEL, "--tag", "first")
    bare("barrier", *MODEL)
    listed = bare("runs").stdout
    assert "@last~1" in listed and "first" in listed and "barrier" in listed
    assert store.find_run("first") == store.find_run("@last~1")
    assert run_file.read_file(store.find_run("@last")).run.suite.name == "barrier"
    assert bare("all_reduce", "--sizes", "1K", *MODEL, "--no-save").returncode == 0
    assert len(store.list_saved()) == 2


def test_runs_are_found_by_words_and_deleted_once_that_is_confirmed(bare, home: Path) -> None:
    for tag in ("before", "after"):
        bare("all_reduce", "--sizes", "1K", "-g", "2", "--backend", "model", "--tag", tag)

    def tags(*words: str) -> list[tuple[str, str]]:
        rows = json.loads(bare("runs", *words, "--format", "json").stdout)["runs"]
        return [(row["name"], row["tag"]) for row in rows]

    assert tags("BEFORE", "all_reduce") == [("@last~1", "before")]
    assert tags("before", "all_gather") == []
    (row,) = json.loads(bare("runs", "after", "--format", "json").stdout)["runs"]
    kept = {path.stem: path for path in (home / "runs").iterdir()}
    assert row["size"] == kept[row["id"]].stat().st_size
    for words in (("--delete",), ("--delete", "--yes"), ("before", "--yes")):
        assert bare("runs", *words).returncode == Exit.USAGE
    assert bare("runs", "before", "--delete").returncode == Exit.USAGE  # nobody can be asked
    assert len(tags()) == 2
    done = bare("runs", "before", "--delete", "--yes")
    assert done.returncode == Exit.OK and tags() == [("@last", "after")]


def test_the_newest_alone_are_deleted_where_last_says_how_many(bare) -> None:
    for tag in ("first", "second", "third"):
        bare("barrier", *MODEL, "--tag", tag)
    assert bare("runs", "barrier", "--last", "2", "--delete", "--yes").returncode == Exit.OK
    (row,) = json.loads(bare("runs", "--format", "json").stdout)["runs"]
    assert row["tag"] == "first"


def test_only_runs_that_are_listed_are_deleted(bare, home: Path) -> None:
    for tag in ("sound", "damaged"):
        bare("barrier", *MODEL, "--tag", tag)
    sound, damaged = sorted((home / "runs").iterdir())
    damaged.write_text(damaged.read_text() + "no line of a run\n")
    assert "left out: " in bare("runs", "barrier").stderr
    done = bare("runs", "barrier", "--delete", "--yes")
    assert (done.returncode, sound.exists(), damaged.exists()) == (Exit.OK, False, True)
    assert f"not deleted: {damaged}, line " in done.stderr
    assert f"hint: rm {damaged} deletes it" in done.stderr and "deleted 1 run" in done.stderr


def test_a_run_that_is_being_measured_is_not_deleted(bare, home: Path) -> None:
    bare("all_reduce", "--sizes", "1K", "-g", "2", "--backend", "model", "--tag", "going")
    (path,) = (home / "runs").iterdir()
    with path.open("rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert bare("runs", "going", "--delete", "--yes").returncode == Exit.OK
        assert path.exists()


def test_runs_are_listed_for_programs_too(bare) -> None:
    for tag in ("first", "second"):
        bare("barrier", *MODEL, "--tag", tag)
    told = json.loads(bare("runs", "--last", "1", "--format", "json").stdout)
    (row,) = told["runs"]
    assert (told["of"], row["name"], row["tag"], row["ended"]) == (2, "@last", "second", "ok")
    rows = list(csv.DictReader(bare("runs", "--format", "csv").stdout.splitlines()))
    assert [row["tag"] for row in rows] == ["first", "second"]
    assert [row["id"] for row in rows] == [path.stem for path in store.list_saved()]


@pytest.mark.parametrize("form", ["nccl", "json", "csv", "md"])
def test_every_format_says_on_stderr_where_the_run_is(bare, form: str) -> None:
    done = bare("barrier", *MODEL, "--format", form)
    assert f"saved: {store.find_run('@last').stem}" in done.stderr.splitlines()
    assert "saved" not in bare("barrier", *MODEL, "--format", form, "--no-save").stderr


def test_a_sweep_is_the_product_of_its_lists(bare) -> None:
    args = (
        "-d",
        "float,half",
        "-g",
        "2,4",
        "-o",
        "sum,max",
        "--env",
        "A=1,2",
        "-N",
        "2",
        "--place",
        "out",
    )
    bare("all_reduce", "--sizes", "1K,4K", "--backend", "model", *args)
    records = run_file.read_file(store.find_run("@last")).records
    assert len(records) == 2 * 2 * 2 * 2 * 2 * 2
    assert len({(r.case.key, r.case.cycle) for r in records}) == len(records)


def test_secrets_of_the_environment_and_command_are_not_kept(bare, home: Path) -> None:
    secret = "hunter2hunter2"
    args = ("all_reduce", "--sizes", "1K", *MODEL, "--tag", f"http://me:{secret}@host")
    bare(
        *args,
        NCCL_AUTH_TOKEN=secret,
        AWS_SECRET_ACCESS_KEY=secret,
        UCX_PROXY=f"http://me:{secret}@host",
    )
    run = run_file.read_file(store.find_run("@last")).run
    assert "UCX_PROXY" in run.environment["variables"]
    assert secret not in json.dumps(run.environment) + json.dumps(run.command)


def test_the_module_runs_like_the_script() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "collbench", "--help"], capture_output=True, text=True, check=True
    )
    assert "all_reduce" in done.stdout


def test_algorithms_are_studied_without_torch(bare, tmp_path: Path) -> None:
    """A run on the model, fitted; its link predicts larger worlds; and the rest needs no run."""
    for collective in ("all_reduce", "all_gather"):
        path = str(tmp_path / f"{collective}.jsonl")
        done = bare(
            collective,
            "-b",
            "1K",
            "-e",
            "16M",
            "-g",
            "8",
            "--algo",
            "ring",
            *MODEL[:2],
            "--output",
            path,
        )
        assert done.returncode == 0, done.stderr
    runs = sorted(map(str, tmp_path.glob("*.jsonl")))
    for words, shown in [
        (("fit", *runs), "20.0 µs"),
        (("predict", "all_reduce", "-n", "64", "--from", runs[1], "--algo", "ring"), "predicted"),
        (("prove", "scan", "-n", "1..9"), "1..9"),
        (("show", "broadcast", "binomial", "-n", "4"), "every rank ends with [1, 2]"),
        (("export", "all_reduce", "ring", "-n", "4", "--to", "goal"), "num_ranks 4"),
    ]:
        done = bare(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert shown in done.stdout, (words, done.stdout)


def test_algorithms_that_do_not_exist_or_do_not_fit_say_so(bare) -> None:
    done = bare("all_reduce", "--sizes", "1K", "--algo", "rign", *MODEL)
    assert done.returncode == 2
    assert "no algorithm 'rign'" in done.stderr and "ring" in done.stderr
    done = bare("broadcast", "--sizes", "1K", "--algo", "chain:segment=4", *MODEL)
    assert done.returncode == 2 and "chain:segments=4" in done.stderr
    done = bare(
        "all_reduce",
        "--sizes",
        "1K",
        "-g",
        "6",
        "--algo",
        "swing,ring",
        "--backend",
        "model",
        "--format",
        "nccl",
    )
    assert done.returncode == 0
    assert "swing: needs a power of two, not 6 ranks" in done.stdout


@pytest.mark.parametrize("within", ["raise", "sys.exit(130)"])  # what the command makes of it
def test_a_signal_while_python_evaluates_a_string_ends_as_any_other(
    tmp_path: Path, within: str
) -> None:
    """As when modules make named tuples; Python ends by SIGINT then, whoever has caught it."""
    (tmp_path / "program.py").write_text(f"""
import sys
from collbench import __main__
from collbench.cli import main

def stopped():
    raise KeyboardInterrupt

def command():
    try:
        eval("stopped()")
    except KeyboardInterrupt:
        {within}

main.main = command
__main__.main()
""")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "program"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.returncode == 130


def test_an_interrupt_while_the_first_modules_load_ends_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("""
import os, signal, sys

class Early:
    def find_spec(self, name, path=None, target=None):
        if name == "collbench.survive.signals":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Early())
""")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "collbench", "--help"]
    given = {"env": {**os.environ, "PYTHONPATH": paths}, "capture_output": True}
    done = subprocess.run(command, check=False, text=True, **given)
    assert (done.returncode, done.stderr) == (130, "")
