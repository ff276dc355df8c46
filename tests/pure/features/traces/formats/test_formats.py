"""Others' traces are read as what they say, from small twins of their files."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import traced

from collbench.core.errors import UsageError
from collbench.features.traces import replay as program
from collbench.features.traces.analysis import times
from collbench.features.traces.analysis.operations import join_calls
from collbench.features.traces.formats import recognise as reading
from collbench.features.traces.types import Call, Interval, Lost, RankTrace, Trace


def read(folder: Path, name: str, content: Any, form: str = "", **kinds: Any) -> Trace:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return reading.read_trace([path], form, **kinds)


def one(folder: Path, name: str, content: Any, **kinds: Any) -> RankTrace:
    (rank,) = read(folder, name, content, **kinds).ranks
    return rank


def said(call: Call) -> tuple[Any, ...]:
    return call.kind, call.group, call.nbytes, call.dtype


ALL = {
    "nccl_trace_rank_0": ("flight", traced.flight_pickle()),
    "fr_rank_0": ("flight", traced.flight_json()),
    "et_0.json": ("et", json.dumps(traced.EXECUTION)),
    "kineto_0.json": ("kineto", json.dumps(traced.KINETO)),
    "w.csv": ("aicb", traced.AICB),
    "w.txt": ("simai", traced.SIMAI),
    "step.0.et": ("chakra", traced.chakra()),
    "step.csv": ("step", "ranks,op,bytes,dtype,group\n0-1,all_reduce,64,float,\n"),
}


@pytest.mark.parametrize("name", ALL)
def test_a_file_is_known_by_what_it_has(name: str, tmp_path: Path) -> None:
    form, content = ALL[name]
    path = tmp_path / ("x.csv" if form == "step" else "unnamed")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert reading.recognise_file(path) == form


@pytest.mark.parametrize("name", [name for name in ALL if name != "step.csv"])
def test_a_packed_file_is_read_as_the_other(name: str, tmp_path: Path) -> None:
    _, content = ALL[name]
    raw = content if isinstance(content, bytes) else content.encode()
    plain = one(tmp_path, name, raw)
    packed = one(tmp_path, name + ".gz", gzip.compress(raw))
    assert (packed.calls, packed.groups) == (plain.calls, plain.groups)


# the flight recorder


@pytest.fixture(params=["pickle", "JSON"])
def flight(request: pytest.FixtureRequest, tmp_path: Path) -> RankTrace:
    made = traced.flight_pickle() if request.param == "pickle" else traced.flight_json()
    return one(tmp_path, "nccl_trace_rank_0", made)


def test_a_flight_recorder_tells_kinds_and_sizes(flight: RankTrace) -> None:
    assert [said(call) for call in flight.calls] == [
        ("all_reduce", "", 64, "float"),
        ("all_gather", "1", 64, "float"),
        ("send", "", 12, "float"),
        ("all_to_allv", "", 20, "float"),
        ("broadcast", "", 28, "float"),
    ]


def test_a_flight_recorder_tells_how_long_events_took_and_not_when(flight: RankTrace) -> None:
    assert (flight.calls[0].took_ns, flight.calls[0].is_placed) == (250_000, False)


def test_a_flight_recorder_tells_how_far_a_call_came(flight: RankTrace) -> None:
    assert flight.calls[-1].state == "started"


def test_a_flight_recorder_tells_peers_and_groups(flight: RankTrace) -> None:
    assert (flight.calls[2].peer, flight.groups) == (1, {"": (0, 1), "1": (0, 1)})


def test_an_uneven_exchange_without_blocks_is_a_call_without_them(flight: RankTrace) -> None:
    (call,) = [call for call in flight.calls if call.kind == "all_to_allv"]
    assert (call.sends, call.receives, call.nbytes, flight.lost) == ((), (), 20, ())


def test_a_root_that_is_not_told_is_unknown(flight: RankTrace) -> None:
    assert flight.calls[-1].root == -1


def test_calls_that_a_ring_buffer_lost_are_counted(tmp_path: Path) -> None:
    late = traced.FLIGHT | {"entries": [traced.entry("nccl:all_reduce", 7, [4])]}
    rank = one(tmp_path, "trace0", late)
    assert [(lost.calls, "TORCH_NCCL_TRACE_BUFFER_SIZE" in lost.why) for lost in rank.lost] == [
        (7, True)
    ]


def test_calls_that_cannot_be_interpreted_keep_their_numbers(tmp_path: Path) -> None:
    pair = {"process_group": ("1", "tp")}
    entries = [
        traced.entry("nccl:all_reduce", 0, [4]),
        traced.entry("nccl:rotate", 1, [4]),
        traced.entry("nccl:all_reduce", 2, [4], [4], input_dtypes=["Float", "Half"], **pair),
        traced.entry("nccl:send 0->1", 3, [4], input_dtypes=["Odd"], is_p2p=True),
    ]
    rank = one(tmp_path, "trace0", traced.FLIGHT | {"entries": entries})
    assert sum(lost.calls for lost in rank.lost) == 3
    assert rank.lost_numbers == {"": (1, -1), "1": (2,)}


@pytest.mark.parametrize("dtype", ["Float8_e4m3fnuz", "Float8_e5m2fnuz", "c10::Float8_e8m0fnu"])
def test_a_type_of_a_byte_that_collbench_lacks_moves_as_bytes(dtype: str, tmp_path: Path) -> None:
    types = {"input_dtypes": [dtype], "output_dtypes": [dtype]}
    entries = [
        traced.entry("nccl:_all_gather_base", 0, [8], output_sizes=[[16]], **types),
        traced.entry("nccl:all_reduce", 1, [4], **types),
    ]
    rank = one(tmp_path, "trace0", traced.FLIGHT | {"entries": entries})
    assert [said(call) for call in rank.calls] == [("all_gather", "", 16, "uint8")]
    assert [lost.why for lost in rank.lost] == [f"datatype '{dtype}' is unknown (trace0: record 1)"]


def test_calls_of_a_group_that_is_not_told_keep_their_numbers(tmp_path: Path) -> None:
    assert gloo(tmp_path).ranks[0].lost_numbers == {"1": (2,)}


def test_members_of_a_coalesced_call_have_its_end(tmp_path: Path) -> None:
    sent = {"is_p2p": True, "p2p_seq_id": 4, "state": "scheduled"}
    end = sent | {"state": "completed"}
    entries = [
        traced.entry("nccl:send 0->1", 0, [3], **sent),
        traced.entry("nccl:recv 0<-1", 1, [3], **sent),
        traced.entry("nccl:coalesced", 2, **end),
    ]
    rank = one(tmp_path, "trace0", traced.FLIGHT | {"entries": entries})
    assert [(c.kind, c.state) for c in rank.calls] == [("send", "completed"), ("recv", "completed")]


def test_a_call_of_the_other_counter_is_no_member_of_a_coalesced_one(tmp_path: Path) -> None:
    batch = {"is_p2p": True, "p2p_seq_id": 5, "state": "started"}
    pair = {"collective_seq_id": 5}
    entries = [
        traced.entry("nccl:all_reduce", 0, [3], **pair),
        traced.entry("nccl:send 0->1", 1, [3], **batch | {"state": "scheduled"}),
        traced.entry("nccl:coalesced", 2, **batch),
        traced.entry("nccl:_all_gather_base", 3, [3], **pair | {"state": "scheduled"}),
        traced.entry("nccl:coalesced", 4, **pair),
    ]
    rank = one(tmp_path, "trace0", traced.FLIGHT | {"entries": entries})
    assert [call.state for call in rank.calls] == ["completed", "started", "completed"]


def gloo(folder: Path, rank: int = 1) -> Trace:
    """As Gloo's, whose groups are not told: one of all, and another."""
    unknown = {"": {"name": "", "desc": "", "ranks": "[]"}}
    entries = [
        traced.entry("gloo:all_reduce", 0, [4]),
        traced.entry("gloo:all_gather", 1, [4], output_sizes=[[2, 4]]),
        traced.entry("gloo:all_reduce", 2, [4], process_group=("1", "undefined")),
    ]
    return read(folder, f"trace{rank}", traced.FLIGHT | {"pg_config": unknown, "entries": entries})


def test_without_groups_all_ranks_are_as_many_as_files_tell(tmp_path: Path) -> None:
    trace = gloo(tmp_path)
    assert (trace.world, trace.ranks[0].groups) == (2, {"": (0, 1)})
    assert "the group of all has 2 ranks, as far as these files tell" in trace.assumptions


def test_calls_of_unknown_members_are_lost(tmp_path: Path) -> None:
    (rank,) = gloo(tmp_path).ranks
    assert [said(call) for call in rank.calls] == [
        ("all_reduce", "", 16, "float"),
        ("all_gather", "", 32, "float"),
    ]
    assert [(lost.calls, lost.nbytes) for lost in rank.lost] == [(1, 16)]


def test_counts_of_ranks_are_read_by_their_groups(flight: RankTrace) -> None:
    assert flight.reached == {"": (5, -1, -1)}


def test_the_list_of_torch_2_2_is_read(tmp_path: Path) -> None:
    new = ("process_group", "collective_seq_id", "p2p_seq_id", "record_id", "is_p2p")
    old = [
        {k: v for k, v in traced.entry("nccl:all_reduce", n, [4]).items() if k not in new}
        | {"seq_id": n}
        for n in (1, 2)
    ]
    trace = read(tmp_path, "trace_rank_0", pickle.dumps(old, protocol=2))
    assert [(c.kind, c.group, c.number) for c in trace.ranks[0].calls] == [
        ("all_reduce", "", 1),
        ("all_reduce", "", 2),
    ]


def test_blocks_of_an_exchange_are_read_from_version_2_11_on(tmp_path: Path) -> None:
    splits = {"input_split_sizes": [5, 3], "output_split_sizes": [4, 2], "output_sizes": [[6]]}
    entry = traced.entry("nccl:all_to_all", 2, [8], **splits)
    (call,) = one(tmp_path, "trace0", traced.FLIGHT | {"entries": [entry]}).calls
    assert (call.sends, call.receives) == ((5, 3), (4, 2))


@pytest.mark.parametrize(
    ("sizes", "kind"), [((8, 8), "all_to_all"), ((8, 12), "all_to_allv"), ((8, 9), "all_to_allv")]
)
def test_an_exchange_without_blocks_is_even_where_all_ranks_have_one_size(
    sizes: tuple[int, int], kind: str, tmp_path: Path
) -> None:
    """As one in which each two ranks exchange as much in both directions."""
    for rank, size in enumerate(sizes):
        entry = traced.entry("nccl:all_to_all", 2, [size], state="started")
        (tmp_path / f"trace{rank}").write_text(json.dumps(traced.FLIGHT | {"entries": [entry]}))
    trace = reading.read_trace([tmp_path])
    assert [call.kind for rank in trace.ranks for call in rank.calls] == [kind] * 2
    assert join_calls(trace).disagreements == []


def test_a_dump_of_another_day_is_not_used(tmp_path: Path) -> None:
    day = 86_400 * 10**9
    usual = [traced.entry("nccl:all_reduce", n, [4]) for n in (1, 2)]
    old = [
        traced.entry("nccl:all_reduce", n, [4], time_created_ns=usual[0]["time_created_ns"] - day)
        for n in range(1, 9)
    ]
    for rank, entries in enumerate([usual, old]):
        path = tmp_path / f"trace{rank}"
        path.write_text(json.dumps(traced.FLIGHT | {"entries": entries}))
    trace = reading.read_trace([tmp_path])
    assert [rank.rank for rank in trace.ranks] == [0]
    assert [each.rank for each in trace.unread] == [1]


# PyTorch's execution trace


def test_the_buckets_of_resnet_are_read(tmp_path: Path) -> None:
    rank = one(tmp_path, "et.json", traced.EXECUTION)
    sizes = [call.nbytes // 4 for call in rank.calls if call.kind == "all_reduce"]
    assert sizes == [*traced.BUCKETS] * 2


def test_a_rank_is_known_by_its_place_in_groups(tmp_path: Path) -> None:
    rank = one(tmp_path, "et.json", traced.EXECUTION)
    assert (rank.rank, rank.world, rank.groups) == (1, 2, {"": (0, 1)})


@pytest.mark.parametrize(
    ("ranks", "stride", "members"),
    [
        ("[8, 9, ...", 1, (8, 9, 10, 11)),
        ([8, 9], 1, (8, 9, 10, 11)),
        ([8, 10, 12, 14], 0, (8, 10, 12, 14)),
        ("[8, 9, ...", 0, None),
    ],
    ids=["cut", "too few", "whole", "cut, not told by calls"],
)
def test_a_group_whose_list_of_ranks_is_cut_has_the_members_that_calls_tell(
    tmp_path: Path, ranks: Any, stride: int, members: tuple[int, ...] | None
) -> None:
    whole = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 16}
    group = {"pg_name": "1", "pg_desc": "tp", "ranks": ranks, "group_size": 4}
    called = traced.comms(
        1,
        "allreduce",
        8,
        place=0,
        pg_name="1",
        pg_desc="tp",
        pg_size=4,
        global_rank_start=8,
        global_rank_stride=stride,
    )
    made = traced.numbered([traced.listed([whole, group]), called])
    rank = one(tmp_path, "et_rank8.json", json.dumps(made))
    assert rank.groups.get("1") == members
    assert [call.group for call in rank.calls] == ["1"] * (members is not None)
    assert [lost.calls for lost in rank.lost] == [1] * (members is None)


def test_waits_are_for_the_calls_of_their_number(tmp_path: Path) -> None:
    rank = one(tmp_path, "et.json", traced.EXECUTION)
    assert [(at, c.after) for at, c in enumerate(rank.calls) if c.kind == "wait"] == [
        (2, (0,)),
        (3, (1,)),
        (11, (9,)),
        (12, (10,)),
    ]


def test_numbers_beside_what_they_count_are_read_of_waits_and_barriers(tmp_path: Path) -> None:
    reduced, barrier, wait = (
        traced.comms(33, name, 4) for name in ("allreduce", "barrier", "wait")
    )
    reduced["inputs"]["values"][1] = wait["inputs"]["values"][0] = [33, False]
    barrier["inputs"]["values"] = [[34, False], ["0", "default_pg"], 1, "barrier", [], []]
    rank = one(tmp_path, "et0.json", traced.numbered([reduced, barrier, wait]))
    assert [(call.kind, call.number, call.after) for call in rank.calls] == [
        ("all_reduce", 33, ()),
        ("barrier", 34, ()),
        ("wait", -1, (0,)),
    ]


def test_marked_steps_are_known_by_their_calls(tmp_path: Path) -> None:
    assert one(tmp_path, "et.json", traced.EXECUTION).marked == ((0, 9), (9, 18))


def test_marks_and_waits_move_with_calls_that_are_lost(tmp_path: Path) -> None:
    bare = {"pg_name": "9", "pg_desc": "x", "global_rank_stride": -1}
    nodes = [
        {"name": "ProfilerStep#1"},
        traced.comms(1, "allreduce", 4, **bare),
        traced.comms(1, "wait", 0),
        {"name": "ProfilerStep#2"},
        traced.comms(2, "allreduce", 4),
        traced.comms(2, "wait", 0),
    ]
    rank = one(tmp_path, "et0.json", traced.numbered(nodes))
    assert [(c.kind, c.after) for c in rank.calls] == [("all_reduce", ()), ("wait", (0,))]
    assert rank.marked == ((0, 0), (0, 2))


def test_a_broadcast_has_its_root(tmp_path: Path) -> None:
    assert one(tmp_path, "et.json", traced.EXECUTION).calls[0].root == 0


@pytest.mark.parametrize(
    ("name", "given", "got", "kind", "nbytes"),
    [
        ("_allgather_base", 6, 12, "all_gather", 48),
        ("all_gather_into_tensor_coalesced", 6, 12, "all_gather", 48),
        ("reduce_scatter_tensor_coalesced", 12, 6, "reduce_scatter", 48),
        ("_reduce_scatter_base", 12, 6, "reduce_scatter", 48),
        ("gather", 6, 12, "gather", 48),
        ("gather", 6, 0, "gather", 48),
        ("scatter", 0, 6, "scatter", 48),
        ("reduce", 6, 6, "reduce", 24),
        ("all_to_all", 6, 6, "all_to_all", 24),
        ("recvAnySource", 6, 6, "recv", 24),
        ("barrier", 1, 1, "barrier", 0),
    ],
)
def test_sizes_become_the_whole(
    name: str, given: int, got: int, kind: str, nbytes: int, tmp_path: Path
) -> None:
    node = traced.comms(1, name, given, out_msg_nelems=got)
    (call,) = one(tmp_path, "et0.json", traced.numbered([node])).calls
    assert (call.kind, call.nbytes) == (kind, nbytes)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 3)])
@pytest.mark.parametrize(("name", "is_lost"), [("all_gather", True), ("_allgather_base", False)])
def test_lists_whose_sizes_differ_between_ranks_are_lost(
    name: str, is_lost: bool, sizes: tuple[int, int], tmp_path: Path
) -> None:
    """torch writes the rank's own block times the members, and may gather unequal ones by lists."""
    for rank, size in enumerate(sizes):
        node = traced.comms(1, name, size, rank, out_msg_nelems=2 * size)
        path = tmp_path / f"et_rank{rank}.json"
        path.write_text(json.dumps(traced.numbered([node, traced.comms(2, "allreduce", 4, rank)])))
    ranks = reading.read_trace([tmp_path]).ranks
    is_lost = is_lost and sizes == (2, 3)
    for rank, size in zip(ranks, sizes, strict=True):
        kinds = ["mark" if is_lost else "all_gather", "all_reduce"]
        assert [call.kind for call in rank.calls] == kinds
        lost = [Lost("all_gather of unequal blocks", 1, 8 * size)] * is_lost
        assert [*rank.lost] == lost


def test_splits_count_rows(tmp_path: Path) -> None:
    splits = {"in_split_size": "[1, 2]", "out_split_size": "[2, 0]", "out_msg_nelems": 20}
    node = traced.comms(1, "all_to_allv", 30, **splits)
    (call,) = one(tmp_path, "et0.json", traced.numbered([node])).calls
    assert (call.sends, call.receives, call.nbytes) == ((10, 20), (20, 0), 120)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (traced.comms(1, "all_to_allv", 30, in_split_size="[1, ...]"), "cut"),
        (traced.comms(1, "frobnicate", 31), "'frobnicate' is unknown"),
        (traced.comms(1, "allreduce", 31, dtype="ComplexFloat"), "'ComplexFloat' is unknown"),
    ],
)
def test_what_a_node_does_not_tell_is_lost_and_told(node: Any, why: str, tmp_path: Path) -> None:
    (lost,) = one(tmp_path, "et0.json", traced.numbered([node])).lost
    assert (why in lost.why, "et0.json: node 2" in lost.why, lost.calls) == (True, True, 1)


OPERATORS = [
    {
        "name": "c10d::_allgather_base_",
        "inputs": {
            "values": [[1], [2], "<Object>", False, -1],
            "shapes": [[16], [8], [], [], []],
            "types": ["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)", "Object", "Bool", "Int"],
        },
    },
    {
        "name": "c10d::send",
        "inputs": {
            "values": [[[1]], "<Object>", 1, 5],
            "shapes": [[[4, 2]], [], [], []],
            "types": ["GenericList[Tensor(float)]", "Object", "Int", "Int"],
        },
    },
]


def test_operators_are_read_where_that_is_asked_for(tmp_path: Path) -> None:
    trace = read(tmp_path, "et0.json", traced.numbered(OPERATORS), from_ops=True)
    assert [(*said(c), c.peer, c.tag) for c in trace.ranks[0].calls] == [
        ("all_gather", "", 32, "bfloat16", -1, 0),
        ("send", "", 32, "float", 1, 5),
    ]


def test_operators_alone_are_refused_otherwise(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Gloo writes none; c10d operators found: 2") as e:
        read(tmp_path, "et0.json", traced.numbered(OPERATORS))
    assert "--from-ops" in e.value.hint


def test_operators_are_not_asked_of_other_formats(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--from-ops: .*k\.json is a Kineto trace"):
        read(tmp_path, "k.json", traced.KINETO, from_ops=True)


# Kineto


@pytest.fixture
def kineto(tmp_path: Path) -> RankTrace:
    return one(tmp_path, "k.json", traced.KINETO)


BASE = 1_700_000_000_000_000_000


def test_kernels_tell_what_they_communicate(kineto: RankTrace) -> None:
    assert [said(call) for call in kineto.calls] == [
        ("all_reduce", "", 2048, "bfloat16"),
        ("all_to_allv", "3", 120, "bfloat16"),
    ]


def test_kernels_tell_times(kineto: RankTrace) -> None:
    call = kineto.calls[0]
    assert (call.issued_ns, call.begins_ns, call.ends_ns) == (
        BASE + 4_500,
        BASE + 10_500,
        BASE + 30_750,
    )


def test_cut_lists_of_ranks_are_taken_from_the_head(kineto: RankTrace) -> None:
    assert (kineto.rank, kineto.groups) == (1, {"": (0, 1, 2, 3), "3": (1, 3)})


def test_blocks_of_an_exchange_are_elements(kineto: RankTrace) -> None:
    assert (kineto.calls[1].sends, kineto.calls[1].receives) == ((20, 40), (30, 10))


def test_other_kernels_are_when_the_rank_computed(kineto: RankTrace) -> None:
    assert kineto.busy == ((BASE + 5_000, BASE + 20_000),)


def test_steps_are_marked(kineto: RankTrace) -> None:
    assert kineto.steps == ((BASE + 1_000, BASE + 91_000),)


def test_kernels_without_words_are_lost(kineto: RankTrace) -> None:
    (lost,) = kineto.lost
    assert (lost.calls, "ncclDevKernel" in lost.why) == (1, True)


@pytest.mark.parametrize(("name", "fake"), [("NVIDIA H100", False), ("Fake H100 80GB", True)])
def test_the_devices_of_kineto_say_whether_they_are_fake(
    name: str, fake: bool, tmp_path: Path
) -> None:
    devices = {"deviceProperties": [{"id": 0, "name": name}]}
    assert one(tmp_path, "k.json", traced.KINETO | devices).fake == fake


def test_a_trace_without_kernels_that_communicate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kernel of it communicates"):
        read(tmp_path, "k.json", {"traceEvents": [traced.kernel("gemm", 1, 2)]})


def behind(delay: float, steps: int = 3, **extra: Any) -> dict[str, Any]:
    """A job whose GPU is ``delay`` us behind: per step of 10 ms a gemm of 4 and an all_reduce of
    6 ms, launched at its begin."""
    events: list[dict[str, Any]] = []
    for step in range(steps):
        at = 10_000.0 * step
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 9_990}
        launches = [
            {
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at + 100 * number,
                "dur": 5,
                "args": {"correlation": 10 * step + number},
            }
            for number in (1, 2)
        ]
        gemm = traced.kernel("gemm", at + delay, 4_000, correlation=10 * step + 1)
        args = traced.NCCL | {"Rank": 0, "Seq": step + 1, "correlation": 10 * step + 2} | extra
        talk = traced.kernel("ncclDevKernel_AllReduce", at + delay + 4_000, 6_000, **args)
        events += [mark, *launches, gemm, talk]
    world = {"backend": "nccl", "rank": 0, "world_size": 2}
    return {"distributedInfo": world, "traceEvents": events}


MS = 1_000_000


@pytest.mark.parametrize("delay", [0.0, 12_000.0, 55_000.0])
def test_kernels_belong_to_the_iteration_that_launched_them(delay: float, tmp_path: Path) -> None:
    rank = one(tmp_path, "rank0.json", behind(delay))
    (spent,) = times.measure_exposed(Trace("kineto", (rank,)))
    assert (spent.window, spent.communication, spent.exposed) == (10 * MS, 6 * MS, 6 * MS)
    assert (spent.computation, spent.neither) == (4 * MS, 0)
    assert rank.marked == ((0, 1), (1, 2), (2, 3))


@pytest.mark.parametrize("delay", [0.0, 12_000.0])
def test_an_iteration_is_replayed_as_its_kernels_were(delay: float, tmp_path: Path) -> None:
    trace = read(tmp_path, "rank0.json", behind(delay))
    step = program.step_of(trace, program.Asked(assume_symmetric=True))
    ops = [op for each in step.programs for op in each.ops]
    assert sum(op.compute_ns for op in ops) == 4 * MS
    assert step.recorded
    assert step.recorded.times_ns == (10 * MS,) * 3


def test_a_marked_iteration_without_kernels_is_left_out(tmp_path: Path) -> None:
    made = behind(12_000.0)
    last = {"cat": "user_annotation", "name": "ProfilerStep#3", "ts": 30_000, "dur": 9_990}
    trace = read(tmp_path, "rank0.json", made | {"traceEvents": [*made["traceEvents"], last]})
    assert trace.ranks[0].steps == ((12 * MS, 22 * MS), (22 * MS, 32 * MS), (32 * MS, 42 * MS))
    assert any("no kernel was launched" in each for each in trace.assumptions)


def test_kernels_of_a_graph_belong_to_its_launch(tmp_path: Path) -> None:
    made = behind(12_000.0)
    for event in made["traceEvents"]:
        if event["cat"] == "cuda_runtime":
            event["name"] = "cudaGraphLaunch"
    rank = one(tmp_path, "rank0.json", made)
    assert [begin for begin, _ in rank.steps] == [12 * MS, 22 * MS, 32 * MS]


def test_kernels_that_do_not_say_what_they_communicate_are_communication(tmp_path: Path) -> None:
    rank = one(tmp_path, "rank0.json", behind(12_000.0, **{"Collective name": ""}))
    (spent,) = times.measure_exposed(Trace("kineto", (rank,)))
    assert (len(rank.calls), spent.communication, spent.computation) == (0, 6 * MS, 4 * MS)


@pytest.mark.parametrize(
    "lost",
    [
        {"Collective name": "alltoallv", "In split size": "[1, ...]"},
        {"Process Group Name": "9", "Process Group Ranks": "[2, 3]"},
    ],
)
def test_kernels_whose_call_is_lost_are_communication(lost: Any, tmp_path: Path) -> None:
    events = [
        traced.kernel("ncclDevKernel_AllReduce", 10.0, 5.0, **traced.NCCL),
        traced.kernel("ncclDevKernel_SendRecv", 20.0, 5.0, **traced.NCCL | lost),
    ]
    rank = one(tmp_path, "k.json", traced.KINETO | {"traceEvents": events})
    assert len(rank.calls) == 1
    assert rank.unnamed == ((BASE + 20_000, BASE + 25_000),)


def gathered_by_lists(folder: Path, *steps: list[dict[str, Any]]) -> tuple[RankTrace, ...]:
    """Two ranks whose kernels, of 5 us each, gather lists."""
    for rank, kernels in enumerate(steps):
        events = [
            traced.kernel(
                "ncclDevKernel_AllGather",
                10.0 + 10 * number,
                5.0,
                **traced.NCCL | {"Collective name": "allgather", "Rank": rank} | args,
            )
            for number, args in enumerate(kernels)
        ]
        world = {"backend": "nccl", "rank": rank, "world_size": 2}
        document = {"distributedInfo": world, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return reading.read_trace([folder]).ranks


def test_lists_of_unequal_blocks_are_communication(tmp_path: Path) -> None:
    sizes = [{"In msg nelems": size, "Out msg nelems": 2 * size} for size in (2, 3)]
    for rank in gathered_by_lists(tmp_path, *([size] for size in sizes)):
        assert [call.kind for call in rank.calls] == ["mark"]
        assert rank.lost_numbers == {"": (7,)}
        (spent,) = times.measure_exposed(Trace("kineto", (rank,)))
        assert (spent.communication, spent.window) == (5_000, 5_000)


def test_lists_without_numbers_are_not_held_against_each_other(tmp_path: Path) -> None:
    """As ranks may be profiled from different steps on."""
    small, large = (
        {"Seq": None, "In msg nelems": size, "Out msg nelems": 2 * size} for size in (2, 3)
    )
    for rank in gathered_by_lists(tmp_path, [small, large], [large]):
        assert {call.kind for call in rank.calls} == {"all_gather"}
        assert (rank.lost, rank.lost_numbers) == ((), {})


def test_kernels_that_communicate_without_nccl_are_seen_and_not_read(tmp_path: Path) -> None:
    events = [traced.kernel("void vllm::cross_device_reduce_2stage<x>(a)", 10, 5)]
    rank = one(tmp_path, "rank0.json", {"traceEvents": events})
    assert (rank.calls, rank.unnamed) == ((), ((10_000, 15_000),))
    assert [(each.calls, "cross_device_reduce" in each.why) for each in rank.lost] == [(1, True)]


def test_a_size_that_overflowed_follows_from_the_other(tmp_path: Path) -> None:
    args = traced.NCCL | {
        "Collective name": "_allgather_base",
        "In msg nelems": 1 << 30,
        "Out msg nelems": -(1 << 31),
    }
    (call,) = one(
        tmp_path, "rank0.json", {"traceEvents": [traced.kernel("ncclX", 1, 2, **args)]}
    ).calls
    assert call.nbytes == 2 * 2 * (1 << 30)


def test_gloos_spans_are_said_not_to_be_read(tmp_path: Path) -> None:
    span = {"cat": "user_annotation", "name": "gloo:all_reduce", "ts": 1, "dur": 2}
    with pytest.raises(UsageError, match="1 span of Gloo in it are not read") as e:
        read(tmp_path, "rank0.json", {"traceEvents": [span]})
    assert "collbench.record" in e.value.hint


def test_a_node_with_a_bad_value_is_lost_alone(tmp_path: Path) -> None:
    nodes = [traced.comms(1, "allreduce", 4), traced.comms(2, "allreduce", 4)]
    made = traced.numbered(nodes)
    made["nodes"][1]["attrs"] = 7
    rank = one(tmp_path, "rank0.json", made)
    assert (len(rank.calls), [each.calls for each in rank.lost]) == (1, [1])


def test_a_cut_execution_trace_is_read_up_to_the_cut(tmp_path: Path) -> None:
    rank = one(tmp_path, "rank0.json", json.dumps(traced.EXECUTION)[:-3000])
    assert rank.cut.startswith("byte ")
    assert rank.calls


# AICB, SimAI


def test_a_line_of_aicb_with_cells_missing_is_lost_alone(tmp_path: Path) -> None:
    rank = one(tmp_path, "w.csv", traced.AICB + "CommType.all_reduce,CommGroup.dp_group\n")
    assert len(rank.calls) == 6
    assert [each.calls for each in rank.lost if "cells" in each.why] == [1]


def test_a_world_beyond_bounds_of_simai_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="999,999,999,999 ranks"):
        read(tmp_path, "w.txt", traced.SIMAI.replace("all_gpus: 8", "all_gpus: 999999999999"))


def test_lines_of_aicb_are_read(tmp_path: Path) -> None:
    rank = one(tmp_path, "w.csv", traced.AICB)
    assert [(c.kind, c.group, c.nbytes, c.peer) for c in rank.calls] == [
        ("all_reduce", "dp", 8, -1),
        ("broadcast", "tp", 40, -1),
        ("compute", "", 0, -1),
        ("all_gather", "tp", 20_971_520, -1),
        ("send", "pp", 4096, 1),
        ("mark", "", 0, -1),
    ]


@pytest.mark.parametrize(("epochs", "marked"), [(0, ()), (1, ((0, 6),)), (2, ((6, 12),))])
def test_iterations_of_aicb_end_at_its_marks(
    tmp_path: Path, epochs: int, marked: tuple[Interval, ...]
) -> None:
    """What comes before the first mark of several is no iteration."""
    head, columns, *lines = traced.AICB.splitlines(keepends=True)
    lines = lines * epochs or lines[:-1]
    assert one(tmp_path, "w.csv", "".join([head, columns, *lines])).marked == marked


def test_a_file_of_simai_is_one_iteration(tmp_path: Path) -> None:
    assert one(tmp_path, "w.txt", traced.SIMAI).marked == ((0, 8),)


def test_groups_of_aicb_have_the_order_of_megatron(tmp_path: Path) -> None:
    groups = one(tmp_path, "w.csv", traced.AICB).groups
    assert {name: groups[name] for name in ("tp", "dp", "pp")} == {
        "tp": (0, 1),
        "dp": (0, 2, 4, 6),
        "pp": (0, 8),
    }


def test_shapes_of_aicb_are_flops(tmp_path: Path) -> None:
    assert one(tmp_path, "w.csv", traced.AICB).calls[2].flops == 2 * 4096 * 5120 * 3840


AICB_TIMED = """comm_type,comm_group,comm_group_size,msg_size,stage,_elapsed_time,algbw,busbw
CommType.computation,None,None,((8,)),f,{computation}
CommType.all_reduce,CommGroup.tp_group,2,64,f,{communication}
"""


def test_a_workload_of_aicb_has_nanoseconds(tmp_path: Path) -> None:
    workload = AICB_TIMED.format(computation="250000,None,None", communication="None,None,None")
    found = one(tmp_path, "w.csv", workload).calls
    assert [(call.kind, call.took_ns) for call in found] == [
        ("compute", 250_000),
        ("all_reduce", -1),
    ]


def test_the_log_of_a_run_of_aicb_has_milliseconds(tmp_path: Path) -> None:
    run = AICB_TIMED.format(computation="0.25,0,0", communication="0.15667200088500977,0.0,0.0")
    found = one(tmp_path, "w_log.csv", run).calls
    assert [(call.begins_ns, call.ends_ns) for call in found] == [(0, 250_000), (250_000, 406_672)]


def test_collectives_of_a_log_of_aicb_are_no_computing(tmp_path: Path) -> None:
    line = "CommType.all_reduce,CommGroup.tp_group,2,128,f,0.25,1.0,1.0\n"
    log = AICB_TIMED.format(computation="0.5,0,0", communication="0.25,1.0,1.0") + line
    given = read(tmp_path, "w_log.csv", log)
    step = program.step_of(given, program.Asked(assume_symmetric=True))
    assert [(op.kind, op.compute_ns, op.wait) for op in step.program(0).ops] == [
        ("compute", 500_000, "later"),
        ("all_reduce", 0, "call"),
        ("all_reduce", 0, "call"),
    ]


def test_members_that_aicb_does_not_tell_are_lost(tmp_path: Path) -> None:
    (lost,) = one(tmp_path, "w.csv", traced.AICB).lost
    assert ("group 'ep'" in lost.why, lost.calls, lost.nbytes) == (True, 1, 64)


def test_layers_of_simai_go_forward_and_back(tmp_path: Path) -> None:
    rank = one(tmp_path, "w.txt", traced.SIMAI)
    assert [
        (c.kind, c.group, c.took_ns if c.kind == "compute" else c.nbytes) for c in rank.calls
    ] == [
        ("compute", "", 556_000),
        ("all_reduce", "tp", 16_777_216),
        ("compute", "", 100),
        ("all_gather", "tp", 64),
        ("compute", "", 7),
        ("reduce_scatter", "tp", 64),
        ("compute", "", 5),
        ("all_to_all", "ep", 128),
    ]


# Chakra


@pytest.fixture
def chakra(tmp_path: Path) -> RankTrace:
    (tmp_path / "comm_group.json").write_text(traced.GROUPS_BESIDE)
    return one(tmp_path, "step.0.et", traced.chakra())


def test_nodes_of_chakra_are_read(chakra: RankTrace) -> None:
    assert [(c.kind, c.group, c.nbytes, c.after) for c in chakra.calls] == [
        ("compute", "", 0, ()),
        ("all_reduce", "", 8_196_000, (0,)),
        ("all_gather", "1", 1024, ()),
        ("send", "", 64, (1, 2)),
    ]


def test_messages_of_chakra_have_peers(chakra: RankTrace) -> None:
    assert (chakra.calls[-1].peer, chakra.calls[-1].tag) == (2, 9)


def test_computation_of_chakra_has_its_length(chakra: RankTrace) -> None:
    assert chakra.calls[0].took_ns == 25_000


def test_groups_beside_a_chakra_trace_are_read(chakra: RankTrace) -> None:
    assert chakra.groups == {"": (0, 1, 2, 3), "1": (0, 2)}


def test_a_collective_without_kind_is_lost(chakra: RankTrace) -> None:
    (lost,) = chakra.lost
    assert ("node 6" in lost.why, lost.nbytes) == (True, 8)
