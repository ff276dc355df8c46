"""What is written for simulators is read back as what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collbench.core import algorithms, export
from collbench.core.errors import CannotRun, UsageError
from collbench.features.traces import from_steps as steps
from collbench.features.traces.formats import chakra
from collbench.features.traces.formats import chakra_writer as chakra_files
from collbench.features.traces.formats import protobuf as pb
from collbench.features.traces.formats import recognise as reading
from collbench.features.traces.formats.chakra_writer import list_dependencies
from collbench.features.traces.replay import step_of
from collbench.features.traces.types import Call, RankTrace, Trace
from collbench.features.training.request import Wanted
from collbench.features.training.step import Op, Step
from collbench.features.training.walk import Party, Walk


def written(trace: Trace, folder: Path) -> Trace:
    chakra_files.write_ranks(folder, "step", trace.ranks)
    return reading.read_trace([folder])


def said(rank: RankTrace, call: Call) -> tuple[Any, ...]:
    if call.kind == "compute":
        return call.kind, max(round(call.flops), 1), call.phase, max(call.took_ns, 0)
    return (
        call.kind,
        rank.groups[call.group],
        call.nbytes,
        call.dtype,
        call.op,
        call.root,
        call.peer,
        call.tag,
        call.sends,
        call.phase,
    )


STEPS = {
    "ddp:gpt2-124m": (4, ""),
    "megatron:llama3-8b": (8, "tp=2,pp=2,dp=2"),
    "fsdp2:llama3-8b": (2, ""),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    ranks, layout = STEPS[name]
    trace = steps.trace_of_step(Wanted(name, layout=layout, layers=2).make_step(ranks))
    calls = [
        [said(rank, call) for call in rank.calls if call.kind not in ("wait", "mark")]
        for rank in trace.ranks
    ]
    back = written(trace, tmp_path)
    assert [[said(rank, call) for call in rank.calls] for rank in back.ranks] == calls


UNEVEN = """#group ep 0-1
ranks,op,bytes,dtype,group,splits,root,gap_us
0,all_to_allv,40,float,ep,0 10,,
1,all_to_allv,40,float,ep,3 0,,
0-1,broadcast,6,half,,,1,
0-1,compute,,,,,,12.345
0-1,gather,64,half,ep,,1,
"""


def test_blocks_roots_and_lengths_are_kept(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(UNEVEN)
    trace = steps.read_step_file(tmp_path / "s.csv")
    back = written(trace, tmp_path / "made")
    assert [[said(r, c) for c in r.calls] for r in back.ranks] == [
        [said(r, c) for c in r.calls] for r in trace.ranks
    ]


def test_an_input_is_what_simulators_are_told() -> None:
    """comm_size is the bytes of the input: an nth of what an all_gather gives."""
    rank = RankTrace(0, 4, (Call("all_gather", nbytes=4096),), {"": (0, 1, 2, 3)})
    (raw,) = [*chakra_files._write_messages(rank, {})][1:]
    assert b"comm_size" + b"\x48\x80\x08" in raw  # field 9, 1024


def attributes(call: Call, n: int = 4) -> list[dict[str, Any]]:
    """Type and attributes of the nodes that a call of rank 0 of n becomes."""
    rank = RankTrace(0, n, (call,), {"": tuple(range(n))})
    nodes = []
    for message in [*chakra_files._write_messages(rank, {})][1:]:
        _, begins = pb.read_varint(message, 0)
        node = chakra._read_node(message[begins:])
        nodes.append({"type": node.kind, **node.attributes})
    return nodes


@pytest.mark.parametrize(
    ("call", "work"),
    [
        (Call("compute", flops=2 * 64**3), (2 * 64**3, 3 * 64 * 64 * 2)),  # a square product
        (Call("compute", flops=6, touched=4096), (6, 4096)),
        (Call("compute", touched=4096), (1, 4096)),  # ASTRA-sim divides by its operations
        (Call("compute", length_ns=5), (0, 0)),
    ],
)
def test_computation_tells_operations_and_bytes(call: Call, work: tuple[int, int]) -> None:
    (node,) = attributes(call)
    assert (node["num_ops"], node["tensor_size"]) == work


def test_a_ring_shift_is_a_send_and_a_receive() -> None:
    sent, received = attributes(Call("sendrecv", nbytes=64))
    assert (sent["type"], sent["comm_src"], sent["comm_dst"]) == (chakra.SEND, 0, 1)
    assert (received["type"], received["comm_src"], received["comm_dst"]) == (chakra.RECV, 3, 0)


def test_what_waits_for_a_ring_shift_waits_for_both_messages(tmp_path: Path) -> None:
    calls = Call("sendrecv", nbytes=64), Call("wait", after=(0,)), Call("compute", flops=9)
    ranks = [RankTrace(n, 2, calls, {"": (0, 1)}) for n in range(2)]
    (back, _) = written(Trace("step", tuple(ranks)), tmp_path).ranks
    assert [(call.kind, call.after) for call in back.calls] == [
        *(("send", ()), ("recv", ())),
        ("compute", (0, 1)),
    ]


def test_what_the_schema_lacks_is_refused(tmp_path: Path) -> None:
    ranks = [RankTrace(0, 2, (Call("scan", op="sum", nbytes=64),), {"": (0, 1)})]
    with pytest.raises(CannotRun, match="no type for scan"):
        chakra_files.write_ranks(tmp_path / "made", "step", ranks)
    assert not (tmp_path / "made").exists()


def needs(*calls: Call) -> list[list[int] | None]:
    return [*list_dependencies(calls)]


def test_computation_holds_up_what_comes_after_it() -> None:
    assert needs(Call("compute"), Call("all_reduce"), Call("compute")) == [[], [0], [0]]


def test_a_call_that_is_waited_for_holds_up_what_comes_after_it() -> None:
    assert needs(Call("all_reduce", waits=True), Call("compute")) == [[], [0]]


def test_a_wait_holds_up_what_comes_after_it() -> None:
    calls = Call("all_reduce"), Call("compute"), Call("wait", after=(0,)), Call("compute")
    assert needs(*calls) == [[], [], None, [0, 1]]


def test_a_wait_for_all_is_for_all() -> None:
    calls = Call("all_reduce"), Call("send", peer=1), Call("wait"), Call("compute")
    assert needs(*calls) == [[], [], None, [0, 1]]


def test_calls_of_a_group_come_in_order() -> None:
    calls = Call("all_reduce"), Call("all_reduce", group="tp"), Call("broadcast", root=0)
    assert needs(*calls) == [[], [], [0]]


def test_a_call_after_a_wait_needs_what_that_was_for() -> None:
    calls = Call("recv", peer=1), Call("wait", after=(0,)), Call("send", peer=1, after=(1,))
    assert needs(*calls) == [[], None, [0]]


def test_a_schedule_is_its_messages(tmp_path: Path) -> None:
    schedule = algorithms.find_variant("all_reduce", "ring").schedule(4)
    back = written(steps.of_schedule(schedule, 4096), tmp_path)
    for rank, ops in zip(back.ranks, export.list_messages(schedule, 4096), strict=True):
        sent = [("send" if op.sends else "recv", op.peer, op.nbytes, op.step) for op in ops]
        assert [(c.kind, c.peer, c.nbytes, c.tag) for c in rank.calls] == sent


def test_a_message_of_a_schedule_waits_for_what_it_carries(tmp_path: Path) -> None:
    schedule = algorithms.find_variant("all_reduce", "ring").schedule(4)
    back = written(steps.of_schedule(schedule, 4096), tmp_path)
    assert {c.kind for c in back.ranks[0].calls if not c.after} == {"send", "recv"}
    sends = [call for call in back.ranks[0].calls if call.kind == "send"]
    carried = [{back.ranks[0].calls[need].tag for need in call.after} for call in sends[1:]]
    assert all(call.tag - 1 in tags for call, tags in zip(sends[1:], carried, strict=True))


@pytest.mark.parametrize(
    ("name", "layout"), [("powersgd:gpt2-124m", "dp=2"), ("megatron:llama3-8b", "tp=1,cp=2,dp=1")]
)
def test_a_step_that_is_read_back_waits_for_what_it_waited_for(
    name: str, layout: str, tmp_path: Path
) -> None:
    def seconds(op: Op, party: Party) -> float:
        return op.nbytes / 1e9 if op.communicates else op.flops / 1e15

    step = Wanted(name, layout=layout, layers=1).make_step(2)
    back = step_of(written(steps.trace_of_step(step), tmp_path))
    assert Walk(back, seconds).seconds == pytest.approx(Walk(step, seconds).seconds)


def test_operations_of_a_group_that_come_in_order_anyway_have_no_wait(tmp_path: Path) -> None:
    calls = Call("all_reduce", nbytes=64), Call("all_reduce", nbytes=64), Call("compute", flops=9)
    ranks = [RankTrace(n, 2, (*calls[:2], Call("wait"), calls[2]), {"": (0, 1)}) for n in range(2)]
    (back, _) = written(Trace("step", tuple(ranks)), tmp_path).ranks
    assert [call.after for call in back.calls] == [(), (), (0, 1)]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_one_iteration_in_whatever_form(name: str, tmp_path: Path) -> None:
    ranks, layout = STEPS[name]
    step = Wanted(name, layout=layout, layers=4).make_step(ranks)
    trace = steps.trace_of_step(step)

    def moved(of: Step) -> list[tuple[str, int]]:
        return [(op.kind, op.nbytes) for op in of.program(0).ops if op.communicates]

    for read in (trace, written(trace, tmp_path)):
        assert moved(step_of(read)) == moved(step)


def test_files_of_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "step.0.et").write_bytes(b"another's")
    trace = steps.trace_of_step(Wanted("toy:ddp").make_step(2))
    with pytest.raises(UsageError, match=r"step\.0\.et exists"):
        chakra_files.write_ranks(tmp_path, "step", trace.ranks)


def test_what_was_written_is_written_again(tmp_path: Path) -> None:
    trace = steps.trace_of_step(Wanted("toy:ddp").make_step(2))
    chakra_files.write_ranks(tmp_path, "step", trace.ranks)
    assert "2 files" in chakra_files.write_ranks(tmp_path, "step", trace.ranks)
