"""Files and folders of traces are read as one job, and nothing takes more than its bounds."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import traced

from collbench.core.errors import UsageError
from collbench.core.files import ARCHIVES
from collbench.features.traces.formats import call_names as calls
from collbench.features.traces.formats import pickle_values as pickled
from collbench.features.traces.formats import recognise as reading
from collbench.features.traces.formats.bounded import DEEP, Limits
from collbench.features.traces.types import OVERFLOWED, SKIPPED


def put(path: Path, content: Any) -> Path:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(raw)
    return path


def flight(folder: Path, *ranks: int) -> list[Path]:
    return [put(folder / f"trace{rank}", traced.flight_pickle()) for rank in ranks]


def test_a_folder_is_read_in_the_order_of_ranks(tmp_path: Path) -> None:
    flight(tmp_path, 10, 9)
    put(tmp_path / "notes.txt", b"nothing")
    assert [rank.rank for rank in reading.read_trace([tmp_path]).ranks] == [9, 10]


def test_all_ranks_have_the_world_of_the_largest(tmp_path: Path) -> None:
    assert {rank.world for rank in reading.read_trace(flight(tmp_path, 0, 5)).ranks} == {6}


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    (first,) = flight(tmp_path, 1)
    again = put(tmp_path / "other_1", traced.flight_json())
    with pytest.raises(UsageError, match=r"trace1 and .*other_1 are of rank 1"):
        reading.read_trace([first, again])


def test_files_of_several_formats_are_refused(tmp_path: Path) -> None:
    flight(tmp_path, 0)
    put(tmp_path / "k1.json", traced.KINETO)
    with pytest.raises(UsageError, match="several formats") as e:
        reading.read_trace([tmp_path])
    assert "--from" in e.value.hint


def test_a_form_chooses_files_of_a_folder(tmp_path: Path) -> None:
    flight(tmp_path, 0)
    put(tmp_path / "k1.json", traced.KINETO)
    assert reading.read_trace([tmp_path], "kineto").form == "kineto"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda folder: folder / "none", "no such file"),
        (lambda folder: folder, "no file in it is a trace"),
        (lambda folder: put(folder / "x", b"hello"), "unknown trace format"),
        (lambda folder: put(folder / "x", b""), "empty"),
    ],
)
def test_what_is_no_trace_is_refused(made: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        reading.read_trace([made(tmp_path)])


@pytest.mark.parametrize(("start", "what"), ARCHIVES.items())
def test_an_archive_is_named_with_what_unpacks_it(
    start: bytes, what: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(start + b" more")
    with pytest.raises(UsageError) as refused:
        reading.read_trace([path])
    assert f"{what[0]}: unpack it first ({what[1]})" in refused.value.message


def test_a_rank_that_is_not_told_is_taken_for_the_first(tmp_path: Path) -> None:
    trace = reading.read_trace([put(tmp_path / "dump", traced.flight_pickle())])
    assert trace.ranks[0].rank == 0
    assert "the file does not name its rank: taken for rank 0" in trace.assumptions


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.jsonl", b'{"line": "run", "schema": 3, "nodes": 2}\n'),
        ("pyproject.toml", b"[project]\nname = 'x'\n"),
        ("readme.md", b"# Nothing\n" * 100),
        ("data.csv", b"a,b\n1,2\n"),
    ],
)
def test_other_files_are_no_traces(name: str, content: bytes, tmp_path: Path) -> None:
    assert reading.recognise_file(put(tmp_path / name, content)) == ""


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--from 'x'"):
        reading.read_trace(flight(tmp_path, 0), "x")


# bounds


class Calls:
    def __reduce__(self) -> Any:
        return (os.system, ("true",))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_calls_is_refused(protocol: int, tmp_path: Path) -> None:
    evil = put(tmp_path / "trace0", pickle.dumps({"entries": [Calls()]}, protocol=protocol))
    with pytest.raises(UsageError, match=r"byte \d+: operation .* plain data does not need"):
        reading.read_trace([evil], "flight")


@pytest.mark.parametrize("protocol", (0, 1))
def test_pickles_as_text_are_not_read(protocol: int, tmp_path: Path) -> None:
    evil = put(tmp_path / "trace0", pickle.dumps({"entries": [Calls()]}, protocol=protocol))
    with pytest.raises(UsageError, match="it is no JSON"):
        reading.read_trace([evil], "flight")


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -1, 300, 70_000, -70_000, 1 << 40, -(1 << 40), 0.5, None, True, False]},
        {"b": ("x", ("y",), (), (1, 2, 3, 4)), "c": {"d": {}}, "e": ["é" * 300, "z"]},
        [["same"]] * 3,
    ],
)
@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_pickles_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    assert pickled.load_value(pickle.dumps(value, protocol=protocol), 10_000) == value


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x80\x02}q\x00", "it ends before its end"),
        (b"\x80\x02X\xff\xff\xff\x7fabc", "B that it promises"),
        (b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc", "B that it promises"),
        (b"\x80\x02}N]s.", "a key is no text"),
        (b"\x80\x02h\x05.", "operation 'h'"),
        (b"\x80\x02a.", "operation 'a'"),
        (b"\x80\x02.", "no value"),
        (b"\x80\x02K", "it ends within an operation"),
    ],
)
def test_broken_pickles_are_refused(raw: bytes, why: str) -> None:
    with pytest.raises(pickled.Refused, match=why):
        pickled.load_value(raw, 100)


def test_deep_pickles_are_only_as_deep_as_memory(tmp_path: Path) -> None:
    deep = put(tmp_path / "trace0", b"\x80\x02" + b")" + b"\x85" * 200_000 + b".")
    with pytest.raises(UsageError, match="not a dump of the flight recorder"):
        reading.read_trace([deep])


SMALL = Limits(nbytes=1 << 16, nodes=50, longest=1 << 12)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"traceEvents": [{"name": "' + b"x" * 10_000 + b'"}]}', "a value has more than 4,096 B"),
        (b'{"traceEvents": [' + b"[" * (DEEP + 2) + b"]" * (DEEP + 2) + b"]}", "lists and objects"),
        (b'{"traceEvents": [' + b"{}," * 60 + b"{}]}", "more than 50 nodes"),
        (b'{"traceEvents": [{}' + b" " * (1 << 17) + b"]}", "more than 65,536 B unpacked"),
        (b'{"traceEvents": [{"name": "x"', "it ends within a value"),
        (b'{"traceEvents": [{', "it ends within a value"),
        (b'{"traceEvents": [{} {}]}', "a comma is missing"),
        (b'{"traceEvents": [{},]}', "a value is missing"),
        (b'{"traceEvents": [] "x"}', "a comma is missing"),
        (b'{"traceEvents": []} x', "there is more after its end"),
    ],
)
def test_what_is_beyond_bounds_is_refused_with_its_byte(
    content: bytes, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why) as e:
        reading.read_trace([put(tmp_path / "k0.json", content)], "kineto", limits=SMALL)
    assert "byte" in e.value.message or "kernel" in e.value.message


def test_a_bomb_is_refused_without_being_unpacked(tmp_path: Path) -> None:
    bomb = put(tmp_path / "k0.json", gzip.compress(b'{"traceEvents": [' + b" " * (1 << 20)))
    with pytest.raises(UsageError, match="more than 65,536 B unpacked"):
        reading.read_trace([bomb], limits=SMALL)


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_kineto_file_is_read_up_to_the_cut(packed: bool, tmp_path: Path) -> None:
    raw = json.dumps(traced.KINETO).encode()
    cut = raw[: raw.index(b"ncclDevKernel_SendRecv")]
    content = gzip.compress(raw)[:-20] if packed else cut
    (rank,) = reading.read_trace([put(tmp_path / "rank1.json", content)], "kineto").ranks
    assert rank.cut.startswith("byte ")
    assert rank.calls[0].kind == "all_reduce"


EVENTS = traced.KINETO["traceEvents"]


@pytest.mark.parametrize(
    ("event", "lost"),
    [
        (b'{"cat": "python_function", "name": "a\n\xff b", "ts": nan}', 0),
        (b'{"cat": "cpu_op", "name": 5}', 0),
        (b'{"cat": "kernel", "name": "a\tb\\q", "ts": 1, "dur": 1, "args": {"x": -inf}}', 0),
        (b'{"cat": "kernel", "name": 5}', 1),
        (b'{"cat": "kernel", "name": "nccl_x", "ts": 1, "dur": 2, "args": {"dtype": 3}}', 1),
        (b'{"cat": "kernel", "name": "nccl_x", "ts": -1, "dur": 2}', 1),
        (b'{"cat": "kernel", "name": "nccl_x", "ts": 0, "dur": 0.0}', 1),
        (b'{"cat": "kernel", "name": "nccl_x", "ts": nan, "dur": 1}', 1),
    ],
)
def test_a_bad_value_loses_its_event_alone(event: bytes, lost: int, tmp_path: Path) -> None:
    raw = json.dumps({**traced.KINETO, "traceEvents": EVENTS[:-1]}).encode()
    begin, rest = raw.split(b'{"ph"', 1)
    put(tmp_path / "rank1.json", begin + event + b', {"ph"' + rest)
    (rank,) = reading.read_trace([tmp_path]).ranks
    assert [call.kind for call in rank.calls] == ["all_reduce", "all_to_allv"]
    assert sum(each.calls for each in rank.lost) == lost
    assert all("byte" in each.why for each in rank.lost)


def test_a_flight_entry_with_a_bad_value_is_lost_alone(tmp_path: Path) -> None:
    entries = [traced.entry("nccl:all_reduce", 0, [4]), traced.entry("nccl:all_reduce", 1, ["x"])]
    dump = pickle.dumps(traced.FLIGHT | {"entries": entries}, protocol=2)
    (rank,) = reading.read_trace([put(tmp_path / "trace0", dump)]).ranks
    assert (len(rank.calls), [each.calls for each in rank.lost]) == (1, [1])


@pytest.mark.parametrize(
    "content", [b"", b"hello", traced.flight_pickle()[:200], gzip.compress(b"x", mtime=0)[:9]]
)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_file_that_cannot_be_read_is_named_with_its_rank(
    content: bytes, by_name: bool, tmp_path: Path
) -> None:
    files = [*flight(tmp_path, 0, 2), put(tmp_path / "trace1", content)]
    trace = reading.read_trace(files if by_name else [tmp_path])
    assert [rank.rank for rank in trace.ranks] == [0, 2]
    assert [(each.rank, each.source[-6:]) for each in trace.unread] == [(1, "trace1")]


def test_other_empty_files_of_a_folder_are_passed_over(tmp_path: Path) -> None:
    flight(tmp_path, 0)
    put(tmp_path / "done", b"")
    assert reading.read_trace([tmp_path]).unread == ()


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        reading.read_trace([tmp_path / "pipe"])


@pytest.mark.parametrize(
    ("content", "name"),
    [(b"PK\x03\x04x", ".zip"), (b"\x28\xb5\x2f\xfdx", ".zst"), (b"\xfd7zXZ\x00", ".xz")],
)
def test_packed_files_are_named_as_what_they_are(content: bytes, name: str, tmp_path: Path) -> None:
    put(tmp_path / "rank0.json", content)
    with pytest.raises(UsageError, match=name):
        reading.read_trace([tmp_path])


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["rank3.json", "rank5.json"], [3, 5]),
        (["a_worker-1.7.json", "a_worker-2.8.json"], [1, 2]),
        (["job-worker-0_rank_1.json", "job-worker-1_rank_0.json"], [1, 0]),
        (["lowrank8_rank0.json", "lowrank8_rank1.json"], [0, 1]),
        (["gpu04_12.json", "gpu04_13.json"], [-1, -1]),
        (["profile_2024.json"], [-1]),
        (["x1.json", "x0.json"], [1, 0]),
        (["et_1.json", "et_2.json"], [-1, -1]),
    ],
)
def test_ranks_are_not_guessed_from_any_digits(names: list[str], ranks: list[int]) -> None:
    assert calls.number_files(names) == ranks


@pytest.mark.parametrize(
    ("form", "names", "ranks"),
    [
        ("flight", ["job-worker-0_0", "job-worker-0_1", "job-worker-1_2"], [0, 1, 2]),
        ("flight", ["node0_2", "node1_0", "node2_1"], [2, 0, 1]),
        ("flight", ["node0_0.json.gz", "node1_8.json.gz"], [0, 8]),
        ("flight", ["rank4_on_node_7", "dump_rank5"], [4, 5]),
        ("flight", ["worker-3.dump", "worker-4.dump"], [3, 4]),
        ("flight", ["dump0_20261130", "dump1_20261130"], [0, 1]),
        ("chakra", ["worker-0.1.et", "worker-0.0.et"], [1, 0]),
        ("kineto", ["worker-0_1.json", "worker-1_2.json"], [0, 1]),
    ],
)
def test_files_whose_tool_writes_the_rank_last_are_of_that_rank(
    form: str, names: list[str], ranks: list[int]
) -> None:
    assert calls.number_files(names, form) == ranks


def test_dumps_of_a_pods_ranks_are_of_one_job(tmp_path: Path) -> None:
    files = [put(tmp_path / f"job-worker-0_{rank}", traced.flight_pickle()) for rank in (1, 0)]
    assert [rank.rank for rank in reading.read_trace(files).ranks] == [0, 1]


def test_two_files_of_no_rank_say_how_to_name_them(tmp_path: Path) -> None:
    bare = {name: value for name, value in traced.KINETO.items() if name != "distributedInfo"}
    files = [put(tmp_path / f"gpu04_1234{k}.json", bare) for k in (5, 6)]
    with pytest.raises(UsageError, match="tells a rank") as e:
        reading.read_trace(files)
    assert "rank0.json" in e.value.hint


def test_shared_lists_of_a_pickle_are_counted_each_time(tmp_path: Path) -> None:
    shape = [[1]] * 60_000
    entry = traced.entry("nccl:all_reduce", 0, input_sizes=shape)
    huge = put(tmp_path / "trace0", pickle.dumps({"entries": [entry] * 60_000}, protocol=2))
    with pytest.raises(
        UsageError, match="its entries and their tensors are too many, above 1,000,000"
    ):
        reading.read_trace([huge])


def test_of_more_dumps_than_memory_may_have_the_last_calls_of_each_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_CALLS", 4)
    for rank in (0, 1):
        entries = [traced.entry("nccl:all_reduce", n, [4]) for n in range(rank, 2 + 2 * rank)]
        put(tmp_path / f"trace{rank}", traced.FLIGHT | {"entries": entries})
    trace = reading.read_trace([tmp_path], "flight")
    assert [[call.number for call in rank.calls] for rank in trace.ranks] == [[0, 1], [2, 3]]
    assert [[(lost.why, lost.calls) for lost in rank.lost] for rank in trace.ranks] == [
        [],
        [(OVERFLOWED, 1), (SKIPPED, 1)],
    ]
    assert "of each dump the last 2 calls are read" in trace.assumptions


def test_a_size_beyond_bounds_is_lost(tmp_path: Path) -> None:
    huge = traced.entry("nccl:all_reduce", 0, [1 << 40, 1 << 40])
    (rank,) = reading.read_trace(
        [put(tmp_path / "t0", traced.FLIGHT | {"entries": [huge]})], "flight"
    ).ranks
    assert [lost.calls for lost in rank.lost] == [1]


def test_a_message_longer_than_its_file_is_refused(tmp_path: Path) -> None:
    cut = put(tmp_path / "x.0.et", traced.chakra()[:-3])
    with pytest.raises(UsageError, match=r"x.0.et: byte \d+: it ends within a message"):
        reading.read_trace([cut])


def test_a_message_of_more_than_its_bound_is_refused(tmp_path: Path) -> None:
    huge = put(tmp_path / "x.0.et", traced.chakra() + b"\xff\xff\xff\x7f" + b"x" * 100)
    with pytest.raises(UsageError, match="a message of 268,435,455 B"):
        reading.read_trace([huge])


def test_a_step_is_every_rank_as_it_is(tmp_path: Path) -> None:
    content = b"#group tp 0-1;2-3\nranks,op,bytes,dtype,group,after\n0-3,all_reduce,64,float,tp,\n"
    trace = reading.read_trace([put(tmp_path / "s.csv", content + b"0-3,wait,,,,0\n")])
    assert [(r.groups["tp"], [c.kind for c in r.calls]) for r in trace.ranks] == [
        ((0, 1), ["all_reduce", "wait"]),
        ((0, 1), ["all_reduce", "wait"]),
        ((2, 3), ["all_reduce", "wait"]),
        ((2, 3), ["all_reduce", "wait"]),
    ]
