"""What is read of the lines that NCCL's Inspector writes, made here by the rules of its format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collbench.core.errors import UsageError
from collbench.features.interop import assemble, importers
from collbench.features.interop.importers import Asked, Reading
from collbench.records import derive
from collbench.records.types import Choice, Record, ToolTime


def line(rank: int = 0, call: int = 0, us: object = 50, n: int = 4, **fields: Any) -> str:
    """A call of all_reduce of 64 KiB, as one rank saw it."""
    performed = {
        "coll": fields.pop("coll", "AllReduce"),
        "coll_sn": call,
        "coll_msg_size_bytes": fields.pop("size", 65536),
        "coll_exec_time_us": us,
        "coll_timing_source": fields.pop("clock", "kernel_gpu"),
        "coll_algobw_gbs": 1.3,
        "coll_busbw_gbs": 1.9,
    }
    if channels := fields.pop("channels", 0):  # as NCCL_INSPECTOR_DUMP_VERBOSE=1 has it
        events = [{"channel_id": at, "kernel_start_sn": 3 + at} for at in range(channels)]
        performed["event_trace_sn"] = {"coll_start_sn": 1, "kernel_events": events}
        performed["event_trace_ts"] = {"coll_start_ts": 17, "kernel_events": events}
    head = {"id": fields.pop("id", "0xe6"), "comm_name": "DP", "rank": rank, "n_ranks": n}
    about = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1_748_030_377_748_202 + call,
        "hostname": "node0",
        "pid": 100 + rank,
    }
    return json.dumps(
        {"header": {**head, "nnodes": 1}, "metadata": about, "coll_perf": performed, **fields}
    )


def message() -> str:
    told = json.loads(line())
    del told["coll_perf"]
    return json.dumps({**told, "p2p_perf": {"p2p": "Send", "p2p_sn": 3, "p2p_peer": 1}})


def read(*lines: str, kind: str = "auto", **known: Any) -> Reading:
    return importers.read_log(
        "\n".join(lines) + "\n", Asked(name="node0-pid100.log", **known), kind
    )


def only(reading: Reading) -> Record:
    (record,) = reading.records
    return record


def test_calls_of_one_process_are_samples_of_a_record() -> None:
    found = read(line(call=0, us=50), line(call=1, us=52), line(call=2, us=60))
    record = only(found)
    case = record.case
    assert (case.collective, case.backend, case.n, case.nbytes) == ("all_reduce", "nccl", 4, 65536)
    assert (case.dtype, case.op, case.mode) == ("int8", "sum", "host")
    assert record.times_ns == [50_000, 52_000, 60_000]
    assert record.told == ToolTime(time=52e3, over="median", ranks="mean", samples=3)
    assert record.note == (
        "communicator 0xe6 DP: datatype, reduction, root and placement are not in it;"
        " of 1 rank of 4; timed by kernel_gpu"
    )


def test_the_run_names_the_tool_and_when_it_was() -> None:
    found = read(line(call=2_000_000), line(call=0))
    assert found.tool == "NCCL Inspector v4.0" and found.closed
    assert found.started == "2025-05-23T19:59:37.748+00:00"
    assert found.ended == "2025-05-23T19:59:39.748+00:00"
    run, *_ = assemble.assemble_runs(found)
    assert run.imported == "NCCL Inspector v4.0"  # type: ignore[union-attr]


def test_of_all_ranks_lines_the_slowest_counts() -> None:
    lines = [line(rank, call, 50 + rank + call) for rank in range(4) for call in range(2)]
    record = only(read(*lines))
    assert record.times_ns == [53_000, 54_000]
    assert record.told and record.told.ranks == "slowest" and "rank of" not in record.note


def test_of_some_ranks_lines_the_mean_counts() -> None:
    record = only(read(line(0, us=50), line(2, us=60)))
    assert record.times_ns == [55_000] and "of 2 ranks of 4" in record.note


@pytest.mark.parametrize(
    ("coll", "name", "size", "op"),
    [
        ("AllGather", "all_gather", 4 * 65536, "none"),
        ("ReduceScatter", "reduce_scatter", 4 * 65536, "sum"),
        ("Broadcast", "broadcast", 65536, "none"),
        ("Reduce", "reduce", 65536, "sum"),
    ],
)
def test_sizes_are_collbenchs(coll: str, name: str, size: int, op: str) -> None:
    case = only(read(line(coll=coll))).case
    assert (case.collective, case.size, case.op) == (name, size, op)


def test_bandwidth_is_what_the_inspector_makes_of_it() -> None:
    """17179869184 B in 61974 us on 8 ranks: 277.210914 and 485.119099 GB/s in its own README."""
    found = read(line(us=61974, n=8, size=17179869184))
    derived = derive.derive_row(only(found), None)
    assert derived is not None
    assert round(derived.algbw, 3) == 277.211 and round(derived.busbw, 3) == 485.119


def test_communicators_sizes_and_clocks_are_records_of_their_own() -> None:
    found = read(line(), line(id="0xff"), line(size=131072), line(clock="collective_cpu"))
    assert len({record.case.key for record in found.records}) == 4
    assert [record.case.cycle for record in found.records] == [0, 0, 0, 0]


def test_verbose_lines_and_fields_of_later_versions_are_read() -> None:
    events = [{"channel_id": i, "kernel_start_ts": 10**15 + i} for i in range(64)]
    found = read(line(event_trace_ts={"kernel_events": events}, later={"x": [1]}))
    assert len(found.records) == 1 and found.lost == []


def test_what_is_no_collective_of_ours_is_counted() -> None:
    found = read(line(), message(), message(), line(coll="All2All"))
    assert found.omitted == {
        "messages between two ranks": 2,
        "the Inspector's All2All says too little to be a case of collbench": 1,
    }


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ("{", "truncated"),
        ("[" * 5000, ""),
        ('{"header": 7}', "Expected `object`"),
        (line(rank=4), "rank 4 of 4"),
        (line(rank=-1), ">= 0"),
        (line(us=0), "a time of 0 us"),
        (line(us=10**13), "a time of"),
        (line(us=10**40), ""),
        (line(us="50"), "Expected `int`"),
        (line(), "call 0 of rank 0 once more"),
        ('{"header": "' + "x" * 70_000 + '"}', "longer than 64 KiB"),
    ],
)
def test_lines_that_are_none_are_named(odd: str, why: str) -> None:
    found = read(line(), odd, line(call=1))
    ((where, reason),) = found.lost
    assert where == "line 2" and why in reason
    assert len(only(found).times_ns) == 2


def test_of_what_ran_a_verbose_inspector_tells_the_channels() -> None:
    ranks = [line(rank, call, channels=24) for rank in range(4) for call in range(3)]
    record = only(read(*ranks))
    assert record.chose == Choice(channels=24) and "; on 24 channels" in record.note
    row = derive.derive_row(record)
    assert row is not None and row.chose == "x24"


def test_channels_that_differ_are_told_and_none_is_chosen() -> None:
    record = only(read(line(0, channels=24), line(1, channels=16), line(2), line(3, channels=16)))
    assert record.chose is None and record.note.endswith("; on 16 to 24 channels")
    assert "channel" not in only(read(line())).note


def test_a_file_without_a_call_is_refused() -> None:
    with pytest.raises(UsageError, match="no result in it: messages between two ranks"):
        read(message())


def test_too_many_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="no machine has 1000000 ranks"):
        read(line(n=1_000_000))


def test_too_many_communicators_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "MOST_RECORDS", 20)
    with pytest.raises(UsageError, match="more than 20 results"):
        read(*(line(id=str(number)) for number in range(25)))


def test_ranks_that_a_person_gives_count_and_make_no_whole_of_parts() -> None:
    found = read(*(line(rank, us=50 + rank) for rank in range(4)), ranks=2)
    assert only(found).case.n == 2 and "--ranks 2 is taken" in found.warnings[0]
    assert only(found).told == ToolTime(time=51_500, over="median", ranks="mean", samples=1)
