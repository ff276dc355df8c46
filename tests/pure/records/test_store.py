"""A run digested for showing says what reading it whole and deriving says; and statistics without
numpy's detours."""

from __future__ import annotations

import errno
import gzip
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import factories
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import collbench
from collbench.core import files
from collbench.core.errors import CannotRun, NoVerdict, UsageError
from collbench.records import derive, rows, run_file, stats, store
from collbench.records.derive import Derived
from collbench.records.types import End, Record, Run, RunFile, ToolTime, World
from collbench.run.launch.world import LINE_LIMIT
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

SUITE = Suite(name="mixed", axes=Axes(collectives=("all_reduce",), sizes=(8,), ranks=(3,)))
TIMES = st.lists(st.integers(1, 10**9), min_size=1, max_size=60)


def written(path: Path, number: int = 60) -> Path:
    """Records of every kind, one world in the middle, late ranks among them, and a torn one at the
    end."""
    rng = np.random.default_rng(1)
    run = Run(id="r", started="", command=[], suite=SUITE, policy=Policy(), environment={})
    worlds = [
        World(
            index=i,
            backend="gloo",
            n=3,
            env=(),
            launcher="local",
            ranks=[],
            oversubscribed=i == 1,
            same_clock=True,
        )
        for i in range(2)
    ]
    writer = run_file.Writer(path, run)
    writer.write(worlds[0])
    for i in range(number):
        name = ("all_reduce", "broadcast", "sendrecv")[i % 3]
        case = Case(
            collective=name,
            backend="gloo",
            n=3,
            nbytes=8 * i + 8,
            op="sum" if i % 3 == 0 else "none",
        )
        starts = rng.integers(0, 500, (3, 40)) + np.array([[0], [3_000 * (i % 2)], [0]])
        durations = 10_000 + starts.max(axis=0) - starts
        measured = Record(
            case=case,
            status="ok",
            world=i * 2 // number,
            times_ns=durations.max(axis=0).tolist(),
            inner=1 + i % 2,
            per_rank=durations.tolist(),
            starts_ns=starts.tolist() if i % 4 else [],
            skew_ns=starts.max(axis=0).tolist(),
            glob_ns=[11_000] * 40,
            submit_ns=[7] * 40,
            rotation=i,
        )
        skipped = Record(case=case, status="skipped", note="\u2028 <b>")
        told = Record(case=case, status="ok", world=0, told=ToolTime(time=5_000.0, samples=20))
        writer.write(worlds[1]) if i == number // 2 else None
        writer.write(skipped if i % 10 == 9 else told if i % 10 == 8 else measured)
    writer.write(End(exit=0, ended="now"))
    writer.write(measured)
    writer.close()
    path.write_bytes(path.read_bytes()[:-30])
    return path


def derived(file: RunFile) -> list[Derived | None]:
    return [cycle.derived for row in rows.make_rows([file]) for cycle in row.cycles]


def same(one: list[Derived | None], other: list[Derived | None]) -> bool:
    return repr(one) == repr(other)  # nan, which an imported record has, differs from itself


def test_a_digest_says_what_the_whole_says_and_drops_what_takes_room(tmp_path: Path) -> None:
    whole = run_file.read_file(written(tmp_path / "a.jsonl"))
    digest = run_file.read_digest(whole.path)
    assert len(whole.records) == 60
    assert same(derived(digest), derived(whole))
    assert {row.late_rank for row in derived(digest) if row} == {None, 1}
    assert (digest.run, digest.worlds, digest.end) == (whole.run, whole.worlds, whole.end)
    for kept, record in zip(digest.records, whole.records, strict=True):
        fields = msgspec.structs.asdict(record)
        dropped = {
            name: [] for name in ("per_rank", "starts_ns", "glob_ns", "skew_ns", "submit_ns")
        }
        assert {name: getattr(kept, name) for name in fields} == fields | dropped
    assert collbench.frame(digest).equals(collbench.frame(whole))


def test_small_parts_of_a_file_make_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.jsonl")
    at_once = run_file.read_digest(path)
    monkeypatch.setattr(run_file, "PART_BYTES", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    in_parts = run_file.read_digest(path)
    assert repr(in_parts) == repr(at_once)


def test_a_resumed_run_is_digested_as_it_is_read(tmp_path: Path) -> None:
    """A case that failed and then was measured counts once; an End counts only where nothing
    follows."""
    path = written(tmp_path / "a.jsonl", 6)
    lines = path.read_text().splitlines()[:-1]
    failed = lines[2].replace('"status":"ok"', '"status":"failed"')
    path.write_text("\n".join([*lines[:2], failed, lines[-1], *lines[2:-1]]) + "\n")
    whole, digest = run_file.read_file(path), run_file.read_digest(path)
    assert whole.end is None and digest.end is None
    assert [r.status for r in digest.records] == [r.status for r in whole.records] == ["ok"] * 6


def test_a_record_whose_fields_were_reordered_is_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", 4)
    lines = path.read_text().splitlines()
    fields = json.loads(lines[2])
    lines[2] = json.dumps(fields | {"line": fields.pop("line")})
    path.write_text("\n".join([*lines[:2], "", *lines[2:]]))
    assert lines[2].startswith('{"case"')
    assert [record.rotation for record in run_file.read_digest(path).records] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "line", ['{"line":"record","case":1}', "no JSON", '{"line":"end","mood":"fine"}']
)
def test_what_is_malformed_is_told_with_its_line(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "a.jsonl", 6)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], line, *lines[4:]]) + "\n")
    for reading in (run_file.read_file, run_file.read_digest):
        with pytest.raises(UsageError, match=r"a\.jsonl, line 5: "):
            reading(path)


def test_a_file_without_a_run_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("")
    with pytest.raises(UsageError, match="is not a collbench run"):
        run_file.read_digest(path)


def test_lateness_stands_in_the_row() -> None:
    case = Case(collective="all_reduce", backend="gloo", n=2, nbytes=8, op="sum")
    record = Record(
        case=case, status="ok", times_ns=[150] * 9, per_rank=[[150] * 9, [100] * 9], inner=3
    )
    rooted = msgspec.structs.replace(
        record, case=msgspec.structs.replace(case, collective="broadcast", op="none", root=0)
    )
    clocked = msgspec.structs.replace(rooted, starts_ns=[[0] * 9, [0] * 4 + [30] * 5])
    found = [derive.derive_row(each) for each in (record, rooted, clocked)]
    assert [row and row.lateness for row in found] == [(0, 50), (), (0, 30)]


def test_times_of_zero_break_nothing() -> None:
    case = Case(collective="all_reduce", backend="gloo", n=2, nbytes=8, op="sum")
    nothing = Record(case=case, status="ok", times_ns=[0] * 30, skew_ns=[1] * 30, overhead_ns=5)
    row = derive.derive_row(nothing)
    assert row is not None and (row.times.median, row.algbw, row.flags) == (
        0,
        0,
        ("skewed!", "overhead!"),
    )


@given(TIMES, st.sampled_from([1, 3, 7]))
def test_medians_and_quantiles_are_those_of_numpy(times: list[int], inner: int) -> None:
    values = np.array(times) / inner
    assert stats.median(times) == statistics.median(times)
    assert stats.median(values) == np.median(values)
    assert stats.mad(values) == np.median(np.abs(values - np.median(values)))


def test_fences_stand_where_numpys_quartiles_put_them() -> None:
    rng = np.random.default_rng(3)
    for n in range(1, 200):
        values = rng.pareto(1.5, n)
        low, high = np.quantile(values, (0.25, 0.75))
        mild, severe = (
            np.sum((values < low - w * (high - low)) | (values > high + w * (high - low)))
            for w in (1.5, 3)
        )
        assert stats.count_outliers(values) == (mild - severe, severe)


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_a_quantile_is_the_sample_that_numpy_picks(q: float) -> None:
    rng = np.random.default_rng(2)
    for n in (72, 75, 100, 368, 400, 1000, 1999):
        times = rng.permutation(n) + 0.5
        found = stats.quantile(times, len(times), q)
        assert found in (None, np.quantile(times, q, method="inverted_cdf"))
        assert (found is None) == (stats.interval_ranks(n, q) is None)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has room for no run."""
    monkeypatch.setattr(store.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 20))


@pytest.mark.usefixtures("full")
def test_a_run_is_refused_on_a_full_disk_and_nothing_is_removed(tmp_path: Path) -> None:
    empty, target, link = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    empty.touch()
    target.touch()
    link.symlink_to(target)
    for output in (empty, link, tmp_path / "new.jsonl"):
        with pytest.raises(CannotRun, match="has 1 MiB left"):
            store.open_writer(factories.run(), output)
    assert sorted(tmp_path.iterdir()) == [empty, target, link]
    assert (empty.stat().st_size, target.stat().st_size) == (0, 0)


@pytest.mark.usefixtures("full")
def test_a_device_takes_a_run_whatever_room_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "unlink", lambda path: pytest.fail(f"{path} is removed"))
    store.open_writer(factories.run(), Path("/dev/null")).close()


@pytest.mark.usefixtures("full")
def test_the_disk_of_a_folder_that_is_yet_to_be_made_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "home"))
    with pytest.raises(CannotRun, match=f"{tmp_path} has 1 MiB left"):
        store.open_writer(factories.run(), None)
    assert not (tmp_path / "home").exists()


def three(path: Path) -> tuple[run_file.Writer, list[Record]]:
    """A file that holds a run, a world and one of three records."""
    records = [factories.record(case) for case in factories.sized(3)]
    writer = run_file.Writer(path, factories.run())
    for line in (factories.world(), records[0]):
        writer.write(line)
    return writer, records


def test_a_file_removed_while_it_is_written_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.jsonl"
    writer, records = three(path)
    path.unlink()
    path.parent.rmdir()
    for record in records[1:]:
        writer.write(record)
    assert (writer.trouble, writer.lost) == ("", "")
    assert [r.case for r in run_file.read_file(path).records] == [r.case for r in records]
    with pytest.raises(UsageError, match="being written by another process"):
        run_file.Writer(path)


def rename(path: Path) -> Path:
    path.rename(path.with_name("moved.jsonl"))
    return path


def rename_the_folder(path: Path) -> Path:
    path.parent.rename(path.parent.with_name("moved"))
    return path


def link_and_remove(path: Path) -> Path:
    path.with_name("kept.jsonl").hardlink_to(path)
    path.unlink()
    return path


def rename_and_create(path: Path) -> Path:  # as logrotate does
    rename(path).touch()
    return path.with_name("a-1.jsonl")


def replace_twice(path: Path) -> Path:
    path.with_name("a-1.jsonl").write_text("of others")
    other = path.with_name("other")
    other.write_text("of others")
    other.rename(path)
    return path.with_name("a-2.jsonl")


def append(path: Path) -> Path:
    with path.open("a") as f:
        f.write("of others\n")
    return path.with_name("a-1.jsonl")


@pytest.mark.parametrize(
    "change",
    [rename, rename_the_folder, link_and_remove, rename_and_create, replace_twice, append],
)
def test_a_run_is_whole_whatever_becomes_of_its_file(
    tmp_path: Path, change: Callable[[Path], Path]
) -> None:
    path = tmp_path / "folder" / "a.jsonl"
    writer, records = three(path)
    expected = change(path)
    for record in records[1:]:
        writer.write(record)
    assert writer.path == expected
    assert [r.case for r in run_file.read_file(writer.path).records] == [r.case for r in records]
    assert (writer.trouble, writer.lost) == ("", "")
    assert (str(expected) in writer.moved) == (expected != path)
    with pytest.raises(UsageError, match="being written by another process"):
        run_file.Writer(writer.path)


@pytest.mark.parametrize("change", [rename, append])
def test_a_file_of_which_a_call_reads_but_a_part_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Path]
) -> None:
    """As Linux does with more than 2 GiB."""
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: read(fd, min(n, 100), at))
    writer, records = three(tmp_path / "a.jsonl")
    writer.close()
    again = run_file.Writer(writer.path)
    again.write(records[1])
    assert (again.path, again.moved, again.lost) == (writer.path, "", "")
    change(again.path)
    again.write(records[2])
    assert [r.case for r in run_file.read_file(again.path).records] == [r.case for r in records]
    assert not again.lost


def test_a_run_that_is_written_anew_onto_a_full_disk_keeps_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    writer, records = three(path)
    path.unlink()
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        writer.write(records[1])
    assert writer.trouble
    writer.write(records[2])
    assert [r.case for r in run_file.read_file(writer.path).records] == [r.case for r in records]
    assert not writer.trouble


def test_a_file_that_was_overwritten_is_left_and_what_it_held_is_said_to_be_lost(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.jsonl"
    writer, records = three(path)
    with path.open("r+") as f:
        f.write("of others")
    os.utime(path, ns=(0, 0))
    for record in records[1:]:
        writer.write(record)
    assert path.read_text().startswith("of others")
    assert [r.case for r in run_file.read_file(writer.path).records] == [
        r.case for r in records[1:]
    ]
    assert "was overwritten" in writer.lost and writer.path != path


def test_a_file_that_was_only_touched_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writer, records = three(path)
    os.utime(path, ns=(0, 0))
    writer.write(records[1])
    assert (writer.path, writer.moved, writer.lost) == (path, "", "")
    writer.close()
    again = run_file.Writer(path)
    again.write(records[2])
    assert (again.path, again.lost, len(run_file.read_file(path).records)) == (path, "", 3)


@pytest.mark.parametrize("left", [0, 300])
def test_a_file_cut_while_it_is_written_keeps_what_is_to_come_and_says_so(
    tmp_path: Path, left: int
) -> None:
    path = tmp_path / "a.jsonl"
    writer, records = three(path)
    os.truncate(path, left)
    for record in records[1:]:
        writer.write(record)
    found = run_file.read_file(path)
    assert [r.case for r in found.records] == [r.case for r in records[1:]]
    assert len(found.worlds) == 1 and "was cut while it was written" in writer.lost


def test_a_new_file_is_never_made_of_one_that_has_something(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writer, _ = three(path)
    writer.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists"):
        run_file.Writer(path, factories.run())
    assert path.read_bytes() == before


def test_times_without_those_of_each_rank_beside_their_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="times by rank"):
        factories.record(factories.case(n=2), starts_ns=[[1], [2]])


@pytest.mark.parametrize("index", [-1, 1 << 63])
def test_a_worlds_index_is_bounded(index: int) -> None:
    text = msgspec.json.encode(factories.world(index))
    with pytest.raises(msgspec.ValidationError, match="index"):
        msgspec.json.decode(text, type=World)


def test_more_groups_than_any_world_has_are_refused_at_once() -> None:
    text = msgspec.json.encode(factories.case(n=1)).replace(b'"of":1', b'"of":1073741824')
    assert b"1073741824" in text
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text.replace(b'"groups":""', b'"groups":"mod:1"'), type=Case)


def test_two_runs_in_one_file_are_refused(tmp_path: Path) -> None:
    both = tmp_path / "c.jsonl"
    parts = [factories.write(factories.make_file([], name=name), tmp_path) for name in ("a", "b")]
    both.write_bytes(b"".join(part.read_bytes() for part in parts))
    for how in (run_file.read_file, run_file.read_digest):
        with pytest.raises(UsageError, match="several runs, a and b"):
            how(both)


@pytest.mark.parametrize("how", [run_file.read_file, run_file.read_run, run_file.read_digest])
@pytest.mark.parametrize(
    ("data", "words", "hint"),
    [
        (b"# nThread 1 nGpus 8\n", "is not a run of collbench", "collbench import "),
        (gzip.compress(b'{"line":"run"', mtime=0), "is packed", "gunzip"),
        (b'{"line":"run","schema":99}\n', "line 1: ", "another version"),
    ],
    ids=["log", "packed", "version"],
)
def test_a_file_that_is_no_run_says_what_to_do(
    how: Callable[[Path], object], data: bytes, words: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=words) as refused:
        how(path)
    assert hint in refused.value.hint


def test_a_tag_of_several_runs_names_the_last_and_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    for name, tag in (("1", "ok"), ("2", "ok"), ("3", "own~1"), ("4", "")):
        factories.saved(factories.make_file([], name=name, tag=tag), tmp_path)
    named = {"ok": "2", "ok~0": "2", "ok~1": "1", "@last~1": "3", "own~1": "3"}
    assert {name: store.find_run(name).stem for name in named} == named
    with pytest.raises(UsageError, match="ok~7: only 2 runs of that name"):
        store.find_run("ok~7")


def test_the_unique_end_of_an_id_names_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    for name, tag in (("1-a-f575", ""), ("2-a-0001", ""), ("3-b-0001", "f57"), ("4-c-f57", "")):
        factories.saved(factories.make_file([], name=name, tag=tag), tmp_path)
    assert store.find_run("f575").stem == "1-a-f575"
    assert store.find_run("f57").stem == "3-b-0001"  # a tag is meant by its whole name
    for name in ("0001", "7777"):
        with pytest.raises(UsageError, match="no run called"):
            store.find_run(name)


def test_a_folder_of_runs_that_cannot_be_read_is_not_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(CannotRun, match="Permission denied"):
        store.list_saved()


def test_a_user_without_a_home_folder_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLLBENCH_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(CannotRun, match="HOME is not set"):
        files.home_folder()
    assert store.run_name(Path("a.jsonl")) == "a.jsonl"  # a path finds its file without one


def test_last_is_a_run_that_has_ended(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1-x", "2-x"):
        run_file.Writer(home / "runs" / f"{name}.jsonl", factories.run(name)).close()
    writer = run_file.Writer(home / "runs" / "3-x.jsonl", factories.run("3-x"))
    assert store.find_run("@last").stem == "2-x"
    assert f"3-x is still running (pid {os.getpid()}, since" in capsys.readouterr().err
    assert store.find_run("@last~1").stem == "1-x"
    assert store.find_run("@last", running=True).stem == store.find_run("3-x").stem == "3-x"
    assert run_file.read_outline(store.find_run("3-x")).running
    writer.close()
    assert store.find_run("@last").stem == "3-x"


def test_where_all_runs_are_running_none_is_the_last(home: Path) -> None:
    writer = run_file.Writer(home / "runs" / "1-x.jsonl", factories.run("1-x"))
    with pytest.raises(NoVerdict, match="1-x is still running"):
        store.find_run("@last")
    writer.close()


def test_only_files_are_runs(home: Path) -> None:
    (home / "runs" / "folder.jsonl").mkdir(parents=True)
    os.mkfifo(home / "runs" / "pipe.jsonl")
    assert store.list_saved() == []


def test_where_no_run_is_saved_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no run is saved yet"):
        store.find_run("@last")
    assert not (tmp_path / "none").exists()


def test_what_a_file_system_tells_when_a_file_is_closed_is_told(tmp_path: Path) -> None:
    writer = run_file.Writer(tmp_path / "a.jsonl", factories.run())
    os.close(writer._fd)
    writer.close()
    assert "cannot write" in writer.trouble


class FileServer:
    """Its quota is found out only by a sync, and what was written since the last one is gone
    then. ``moment`` is its clock."""

    def __init__(self) -> None:
        self.is_full, self.moment, self.synced, self.syncs = False, 0.0, 0, 0

    def sync(self, fd: int) -> None:
        if self.is_full:
            os.ftruncate(fd, self.synced)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        self.synced = os.fstat(fd).st_size
        self.syncs += 1


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FileServer:
    server = FileServer()
    monkeypatch.setattr(os, "fdatasync", server.sync)
    monkeypatch.setattr(run_file.time, "monotonic", lambda: server.moment)
    return server


def test_a_full_file_server_that_has_room_again_gets_all(
    tmp_path: Path, server: FileServer
) -> None:
    writer, records = three(tmp_path / "a.jsonl")
    server.is_full, server.moment = True, 5.0
    writer.write(records[1])
    assert "Disk quota exceeded; 3 lines wait" in writer.trouble
    server.is_full, server.moment = False, 10.0
    writer.write(records[2])
    writer.close()
    assert (writer.trouble, writer.lost, writer.moved) == ("", "", "")
    found = run_file.read_file(writer.path)
    assert [r.case for r in found.records] == [r.case for r in records]


def test_what_is_lost_within_a_second_is_no_others_doing(
    tmp_path: Path, server: FileServer
) -> None:
    """The server tells the next call, whichever it is."""
    writer, records = three(tmp_path / "a.jsonl")
    server.is_full = True
    os.truncate(writer.path, server.synced)
    writer.write(records[1])
    assert (writer.lost, writer.moved) == ("", "") and "3 lines wait" in writer.trouble


def test_a_run_that_ends_on_a_full_file_server_says_so(tmp_path: Path, server: FileServer) -> None:
    writer, _ = three(tmp_path / "a.jsonl")
    server.is_full = True
    writer.close()
    assert "Disk quota exceeded; 2 lines wait" in writer.trouble


def test_lines_are_synced_once_a_second_and_at_the_end(tmp_path: Path, server: FileServer) -> None:
    writer = run_file.Writer(tmp_path / "a.jsonl", factories.run())
    for case in factories.sized(19):
        server.moment += 0.3
        writer.write(factories.record(case))
    assert server.syncs == 1 + 4
    writer.close()
    assert server.syncs == 1 + 4 + 1


def test_a_run_that_cannot_even_begin_leaves_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(CannotRun, match="Disk quota exceeded"):
        run_file.Writer(tmp_path / "a.jsonl", factories.run())
    assert not list(tmp_path.iterdir())


def test_a_line_that_ranks_may_send_can_be_read() -> None:
    assert run_file.MOST_LINE >= LINE_LIMIT


def test_a_tag_that_no_readable_run_has_may_be_that_of_another(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file.Writer(home / "runs" / "1-x.jsonl", factories.run("1-x")).close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CannotRun, match="no run called 'mine', but 1 of 1 saved run cannot be"):
        store.find_run("mine")


@pytest.mark.parametrize("name", ["nigth/r01.jsonl", "r01.jsonl"])
def test_a_path_is_never_that_of_a_run_that_cannot_be_read(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run_file.Writer(home / "runs" / "1-x.jsonl", factories.run("1-x")).close()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=f"no run called '{name}'"):
        store.find_run(name)


@pytest.mark.parametrize(("unreadable", "told"), [("2-y", True), ("0-w", False)])
def test_a_newer_run_that_cannot_be_read_may_have_the_tag_too(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unreadable: str,
    told: bool,
) -> None:
    for stem in ("1-x", unreadable):
        run = msgspec.structs.replace(factories.run(stem), tag="main")
        run_file.Writer(home / "runs" / f"{stem}.jsonl", run).close()
    monkeypatch.setattr(os, "access", lambda path, _: unreadable not in str(path))
    monkeypatch.setattr(store, "_read_tag", lambda path: "main" if "1-x" in path.name else "")
    assert store.find_run("main").stem == "1-x"
    assert ("and may be main, too" in capsys.readouterr().err) == told


@pytest.mark.parametrize("saved", [True, False])
def test_a_folder_given_as_a_run_is_said_to_be_one(home: Path, tmp_path: Path, saved: bool) -> None:
    if saved:
        run_file.Writer(home / "runs" / "1-x.jsonl", factories.run("1-x")).close()
    with pytest.raises(UsageError, match="it is a folder") as caught:
        store.find_run(f"{tmp_path}/")
    assert f"collbench health --fleet {tmp_path}" in caught.value.hint
