"""`collbench run` on the model backend: suites with options, and going on with a run that was cut
short."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from factories import ENVIRONMENT, case, make_file, record
from forked import Server

from collbench.core.errors import Exit, UsageError
from collbench.records import run_file, store
from collbench.records.types import Record
from collbench.run import resumption
from collbench.run.jobs import Job

MODEL = ("--backend", "model", "-g", "4")
SUITE = """
description = "three rows"
[axes]
collectives = ["all_reduce", "all_gather"]
sizes = ["1K", "4K", 8]
ranks = 4
backends = "model"
in_place = false
"""


@pytest.fixture(scope="module")
def recorded(bare: Server, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A complete run: six cases, one of them left out by plan."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "rows.toml").write_text(SUITE)
    command = [
        "run",
        str(folder / "rows.toml"),
        "--output",
        str(folder / "run.jsonl"),
        "--tag",
        "t",
    ]
    done = bare(*command)
    assert done.returncode == 0, done.stderr
    return (folder / "run.jsonl").read_bytes()


@pytest.fixture
def whole(recorded: bytes, tmp_path: Path) -> Path:
    """The file of a complete run, to be cut."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(recorded)
    assert [r.status for r in run_file.read_file(path).records] == ["skipped", *["predicted"] * 5]
    return path


def cut(path: Path, keep: int, torn: bytes = b"") -> bytes:
    """Leaves a file's first lines; returns them."""
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:keep])
    path.write_bytes(kept + torn)
    return kept


def changed(path: Path, **fields: Any) -> None:
    """Rewrites fields of a run's first line."""
    first, *rest = path.read_bytes().splitlines(keepends=True)
    run = json.loads(first)
    fields = {
        name: {**run[name], **value} if name == "environment" else value
        for name, value in fields.items()
    }
    path.write_bytes(json.dumps({**run, **fields}).encode() + b"\n" + b"".join(rest))


def test_suites_run_with_options_in_place_of_what_they_say(bare) -> None:
    done = bare(
        "run",
        "smoke",
        "pr",
        "--only",
        "broadcast,allgather",
        "--max-time",
        "9s",
        *MODEL,
        "--tag",
        "mine",
    )
    assert done.returncode == 0, done.stderr
    first, second = (run_file.read_file(path) for path in store.list_saved())
    assert {first.run.suite.name, second.run.suite.name} == {"smoke", "pr"}
    for file in (first, second):
        assert file.run.tag == "mine" and file.run.policy.max_seconds == 9
        assert {(r.case.collective, r.case.backend, r.case.n) for r in file.records} == {
            ("broadcast", "model", 4),
            ("all_gather", "model", 4),
        }


@pytest.mark.parametrize(
    ("axes", "options", "named"),
    [
        ("ranks = 4", ("--backend", "model"), ("ranks", "backends")),
        ('backends = "model"', (), ("backends",)),
        ('backends = "model"', ("-g", "4"), ("ranks", "backends")),
        ('backends = "model"\n[[include]]\nranks = 4', (), ("backends",)),  # not of all sweeps
    ],
)
def test_a_run_tells_which_axes_its_suite_or_command_named(
    bare, tmp_path: Path, axes: str, options: tuple[str, ...], named: tuple[str, ...]
) -> None:
    """And not the machine, though the suite in its file has them all."""
    (tmp_path / "s.toml").write_text(f'[axes]\ncollectives = "all_reduce"\nsizes = "1K"\n{axes}\n')
    done = bare("run", str(tmp_path / "s.toml"), *options)
    assert done.returncode == 0, done.stderr
    (run,) = (run_file.read_run(path) for path in store.list_saved())
    assert run.named_axes == named
    assert run.suite.has_values("ranks") and run.suite.has_values("backends")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "no suite is named"),
        (("smok",), "did you mean smoke?"),
        (("smoke", "-g", "0"), "-g: '0'"),
        (("smoke", "--only", "all_produce"), "unknown collective"),
        (("smoke", "--only", "scan"), "not in the suite smoke"),
        (("smoke", "--max-time", "soon"), "not a duration"),
        (("smoke", "--resume", "@last"), "as it was begun"),
        (("--resume", "@last", "-g", "2"), "as it was begun"),
        (("--resume", "@last", "--no-save"), "as it was begun"),
        (("--resume", "@last"), "no run is saved yet"),
        (("--resume", "nowhere"), "no run called 'nowhere'"),
        (("smoke", "--env", "LD_PRELOAD=x"), "--env is given without --resume"),
    ],
)
def test_bad_input_is_one_line_a_hint_and_exit_code_2(
    bare, args: tuple[str, ...], words: str
) -> None:
    done = bare("run", *args)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_fixed_number_of_samples_and_a_budget_exclude_each_other(bare, tmp_path: Path) -> None:
    (tmp_path / "fixed.toml").write_text(SUITE + "[policy]\niters = 5")
    for option in ("--budget", "--max-time"):
        done = bare("run", str(tmp_path / "fixed.toml"), option, "1m")
        assert (done.returncode, "fixes the repetitions" in done.stderr) == (2, True)


def test_list_shows_suites_with_tags_and_help_how_they_are_written(bare) -> None:
    listed = bare("list").stdout
    for name in (
        "smoke",
        "nccl-tests",
        "latency",
        "bandwidth",
        "algorithms",
        "dtypes",
        "nightly",
        "pr",
        "guidelines",
        "order",
        "lifecycle",
    ):
        assert f"\n{name} " in listed
    assert "health, consistency" in listed
    helped = bare("run", "--help").stdout
    assert "[[override]]" in helped and "[[threshold]]" in helped


@pytest.mark.parametrize(
    ("keep", "torn"),
    [(1, b""), (2, b'{"line":"wor'), (5, b'{"line":"record","case":{"coll'), (7, b"\0\0\0")],
)
def test_a_run_cut_short_goes_on_where_it_was(bare, whole: Path, keep: int, torn: bytes) -> None:
    complete = run_file.read_file(whole)
    kept = cut(whole, keep, torn)
    done = bare("run", "--resume", str(whole), "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert whole.read_bytes().startswith(kept)
    again = run_file.read_file(whole)
    assert again.run == complete.run and again.end is not None and again.end.exit == 0
    assert sorted((r.case.key, r.status, *r.times_ns) for r in again.records) == sorted(
        (r.case.key, r.status, *r.times_ns) for r in complete.records
    )
    assert len(done.stdout.splitlines()) == 1 + 5  # the table is of the whole run
    indices = [world.index for world in again.worlds]
    assert indices == list(range(len(indices)))


def test_a_last_line_that_lacks_only_its_end_is_kept(bare, whole: Path) -> None:
    kept = cut(whole, 5)[:-1]
    whole.write_bytes(kept)
    assert bare("run", "--resume", str(whole)).returncode == 0
    assert whole.read_bytes().startswith(kept + b"\n")
    cases = [record.case for record in run_file.read_file(whole).records]
    assert len(cases) == len(set(cases)) == 6


def test_a_run_goes_on_within_a_budget(bare, whole: Path) -> None:
    cut(whole, 5)
    done = bare("run", "--resume", str(whole), "--budget", "1m", "--dry-run")
    assert done.returncode == 0 and "is shared out among these" in done.stderr, done.stderr


def test_a_complete_run_is_left_alone(bare, whole: Path) -> None:
    before = whole.read_bytes()
    done = bare("run", "--resume", str(whole))
    assert done.returncode == 0 and done.stdout.count("\n    ") > 3  # the table, as after any run
    assert "nothing is left to measure" in done.stderr
    assert whole.read_bytes() == before
    cut(whole, len(before.splitlines()) - 1)  # only its End is missing
    assert bare("run", "--resume", str(whole)).returncode == 0
    assert run_file.read_file(whole).end is not None


def test_a_resumed_run_names_the_command_that_judges_it(bare, whole: Path) -> None:
    cut(whole, 5)
    assert "shows and judges" not in bare("run", "--resume", str(whole)).stderr
    changed(whole, command=["collbench", "accept", "rows.toml"])
    done = bare("run", "--resume", str(whole))
    assert done.returncode == 0
    assert f"collbench accept --run {whole} shows and judges this run" in done.stderr


def with_status(path: Path, status: str) -> Record:
    """Gives the last record this status; the End stays."""
    *lines, last, end = path.read_bytes().splitlines(keepends=True)
    fields = json.loads(last)
    fields |= {"status": status, "note": "planted"} | ({"wrong": 3} if status == "wrong" else {})
    path.write_bytes(b"".join([*lines, json.dumps(fields).encode() + b"\n", end]))
    return run_file.read_file(path).records[-1]


def test_what_failed_is_measured_again_last_and_the_later_record_counts(bare, whole: Path) -> None:
    failed = with_status(whole, "failed")
    lines = whole.read_bytes().splitlines(keepends=True)
    before = b"".join([*lines[:3], *lines[-2:]])  # with two cases missing
    whole.write_bytes(before)
    done = bare("run", "--resume", str(whole))
    assert done.returncode == 0, done.stderr
    assert whole.read_bytes().startswith(before)
    for read in (run_file.read_file, run_file.read_digest):
        records = read(whole).records
        (again,) = [record for record in records if record.case == failed.case]
        assert (again.status, len(records)) == ("predicted", 6)
        assert again == records[-1] and [record.world for record in records[-2:]] == [1, 2]
    assert (
        sum(
            b'"status":"failed"' in line.replace(b" ", b"")
            for line in whole.read_bytes().splitlines()
        )
        == 1
    )


def test_wrong_data_is_a_finding_and_stays(bare, whole: Path) -> None:
    wrong = with_status(whole, "wrong")
    cut(whole, len(whole.read_bytes().splitlines()) - 1)
    assert bare("run", "--resume", str(whole)).returncode == 7
    assert run_file.read_file(whole).records[-1] == wrong
    whole_lines = len(whole.read_bytes().splitlines())
    complete = bare("run", "--resume", str(whole), "--format", "json")
    assert (
        complete.returncode == 7 and len(json.loads(complete.stdout)["records"]) == 5
    )  # the sixth is a skip
    assert len(whole.read_bytes().splitlines()) == whole_lines


def test_a_run_that_another_process_went_on_with_since_it_was_read_is_refused(whole: Path) -> None:
    lines = whole.read_bytes().splitlines(keepends=True)
    cut(whole, 3)
    before = run_file.read_file(whole)
    resumption.reopen_writer(before).close()
    with whole.open("ab") as f:
        f.write(lines[-2])
    with pytest.raises(UsageError, match="has changed since it was read"):
        resumption.reopen_writer(before)
    resumption.reopen_writer(run_file.read_file(whole)).close()  # neither torn nor locked


def test_a_run_that_goes_on_is_not_read_again(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_file.read_file(whole)
    monkeypatch.setattr(run_file, "read_file", lambda _: pytest.fail("read again"))
    resumption.reopen_writer(before).close()


def test_runs_of_a_single_collective_go_on_too(bare) -> None:
    assert bare("all_reduce", "--sizes", "1K,4K", *MODEL).returncode == 0
    (path,) = store.list_saved()
    cut(path, 3)
    assert bare("run", "--resume", "@last").returncode == 0
    assert len(run_file.read_file(path).records) == 4


def test_libraries_of_other_backends_do_not_matter_to_a_run_to_be_resumed(
    bare, whole: Path
) -> None:
    cut(whole, 4)
    libraries = run_file.read_file(whole).run.environment["libraries"]
    changed(whole, environment={"libraries": libraries | {"mpi4py": "0.1"}})
    assert bare("run", "--resume", str(whole)).returncode == 0
    assert len(run_file.read_file(whole).records) == 6


@pytest.mark.parametrize(
    ("measured", "to_come", "refused"),
    [("gloo", "gloo", False), ("mpi", "gloo", True), ("gloo", "mpi", True)],
)
def test_backends_of_what_is_measured_and_of_what_is_to_come_decide(
    measured: str, to_come: str, refused: bool
) -> None:
    skipped = record(case(backend="mpi"), 1.0, status="skipped", times_ns=[])
    file = make_file([record(case(backend=measured), 1e6), skipped])
    now = ENVIRONMENT | {"libraries": {"torch": "2.6.0", "mpi4py": "4.1.2"}}
    with pytest.raises(UsageError, match="mpi4py absent") if refused else nullcontext():
        resumption.refuse_another_machine(file, now, [Job(case(1, backend=to_come), 1, "")])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schema": 2}, "it has schema 2"),
        ({"imported": "nccl-tests"}, "the output of nccl-tests"),
        ({"pairing": {"experiment": "e", "side": "base", "variant": ""}}, "interleaved comparison"),
        ({"environment": {"python": "2.7"}}, "the software differs: python 2.7 -> "),
        ({"environment": {"kernel": None}}, "the software differs: kernel absent -> "),
    ],
)
def test_a_run_of_something_else_is_refused(
    bare, whole: Path, fields: dict[str, object], words: str
) -> None:
    cut(whole, 4)
    changed(whole, **fields)
    before = whole.read_bytes()
    done = bare("run", "--resume", str(whole))
    assert done.returncode == 2
    assert (
        "cannot be resumed" in done.stderr
        and words in done.stderr
        and "Traceback" not in done.stderr
    )
    assert whole.read_bytes() == before


def test_a_file_that_is_no_run_or_is_being_written_is_refused(
    bare, whole: Path, tmp_path: Path
) -> None:
    cut(whole, 4)
    writer = run_file.Writer(whole)
    done = bare("run", "--resume", str(whole))
    assert (done.returncode, "being written by another process" in done.stderr) == (2, True)
    writer.close()
    (tmp_path / "no.jsonl").write_text("hello\n")
    done = bare("run", "--resume", str(tmp_path / "no.jsonl"))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_a_dry_run_shows_what_is_missing(bare, whole: Path) -> None:
    kept = cut(whole, 5)
    done = bare("run", "--resume", str(whole), "--dry-run")
    assert (done.returncode, "3 cases" in done.stdout, whole.read_bytes()) == (0, True, kept)


def test_under_a_launcher_predictions_go_on_in_one_process(bare, whole: Path) -> None:
    cut(whole, 4)
    launched = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "4", "RANK": "1"}
    assert bare("run", "--resume", str(whole), **launched).returncode == 0
    assert run_file.read_file(whole).end is None
    done = bare("run", "--resume", str(whole), **{**launched, "RANK": "0"})
    assert done.returncode == 0, done.stderr
    assert len(run_file.read_file(whole).records) == 6


def test_runs_of_several_suites_need_a_folder(bare, tmp_path: Path) -> None:
    """Told before the first is measured."""
    args = ("--backend", "model", "-g", "4", "--max-time", "0.1s")
    done = bare("run", "smoke", "latency", *args, "--output", str(tmp_path / "one.jsonl"))
    assert (done.returncode, "give a folder that exists" in done.stderr) == (2, True)
    assert not list(tmp_path.glob("*.jsonl"))
    into = tmp_path / "into"
    into.mkdir()
    assert bare("run", "smoke", "latency", *args, "--output", str(into)).returncode == 0
    assert len(list(into.glob("*.jsonl"))) == 2


def test_a_suite_that_cannot_run_leaves_the_others_to_be_measured(inside, tmp_path: Path) -> None:
    paths = []
    for name, backend in (("first", "nccl"), ("second", "model")):
        axes = f'collectives = "all_reduce"\nsizes = "1K"\nranks = 2\nbackends = "{backend}"'
        paths.append(tmp_path / f"{name}.toml")
        paths[-1].write_text(f"[axes]\n{axes}\n")
    both = inside("run", *map(str, paths))
    assert both.returncode == Exit.CANNOT_RUN
    assert "collbench: first: no case can run here" in both.stderr
    assert "1024" in both.stdout
    alone = inside("run", str(paths[0]))
    assert alone.returncode == Exit.CANNOT_RUN and "first: no case" not in alone.stderr
