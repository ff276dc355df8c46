"""Steps as they are to be run: operations as cases, with the same words on all members."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import pytest

from collbench.core import splits
from collbench.features.training import operations as steps
from collbench.features.training import presets, reshape
from collbench.features.training.runner import RUNNER
from collbench.features.training.step import Op, Program, Step
from collbench.features.training.trial import _list_used, most_seconds
from collbench.run import plan
from collbench.run.jobs import Job
from collbench.run.memory import Room
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

CALL = {"nbytes": 4096, "dtype": "float", "op": "sum"}


def cases_of(step: Step, **axes: object) -> list[Case]:
    given = {"collectives": (), "sizes": (), "ranks": (step.world,), **axes}
    return Suite(name="", axes=Axes(**given), subjects=(step,)).expand()[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("megatron:llama3-8b", "tp=2,dp=2,pp=2,micro_batches=2"),
        ("megatron:llama3-8b", "tp=1,cp=2,dp=1,pp=2,chunks=2,micro_batches=4"),
        ("fsdp2:llama3-8b", "dp=4"),
    ],
)
def test_members_agree_on_whom_they_meet_and_on_the_turn(name: str, layout: str) -> None:
    step = presets.find_step(name, layout, layers=4)
    met = defaultdict(list)
    for rank in range(step.world):
        for one in steps.list_played(step, rank, "gloo"):
            met[one.meeting, one.case, one.turn].append((rank, one))
    for found in met.values():
        ranks, ones = zip(*found, strict=True)
        message = ones[0].op.kind in ("send", "recv")
        assert len(ranks) == (2 if message else len(ones[0].members))
        assert {*ranks} <= {*ones[0].members}
        assert len({one.site for one in ones}) == 1
        assert len({one.find_site(True) for one in ones}) == 1


def test_messages_that_cross_have_lanes_of_their_own_on_a_device() -> None:
    """Of two ranks that both send first, each would wait for the other on one stream of NCCL's."""
    message = {"nbytes": 4096, "dtype": "float", "tag": 0}
    exchanges = [
        Program(
            (rank,), (Op("send", peer=1 - rank, **message), Op("recv", peer=1 - rank, **message))
        )
        for rank in range(2)
    ]
    step = Step("exchange", 2, tuple(exchanges))
    lanes = [
        [one.find_site(on_device)[1] for one in steps.list_played(step, rank, "nccl")]
        for on_device in (True, False)
        for rank in range(2)
    ]
    assert lanes[:2] == [["message up", "message down"], ["message down", "message up"]]
    assert lanes[2:] == [["message", "message"]] * 2


def test_parts_of_a_step_are_cases_of_which_the_whole_stands_for_all() -> None:
    step = presets.find_step("toy:ddp")
    whole, *others = found = cases_of(step)
    assert [case.collective for case in found] == ["step", "computation", "communication"]
    assert [case.index for case in found] == [0, 1, 2]
    assert whole.siblings[-1] == whole
    assert {one.leader for one in found} == {whole}
    assert {*others} < {*whole.siblings}
    assert (whole.size, others[0].size) == (660, 0)
    assert len({case.key for case in found}) == 3
    assert step.title in whole.key


def test_settings_backends_and_cycles_are_swept() -> None:
    found = cases_of(
        presets.find_step("toy:ddp"), backends=("gloo", "mpi"), envs=((("A", "1"),), ()), cycles=2
    )
    assert len(found) == len({*found}) == 3 * 2 * 2 * 2


def test_what_cannot_run_says_which_operation_and_why() -> None:
    def of(*ops: Op, backend: str) -> str:
        step = Step("x", 2, (Program((0, 1), ops),))
        (case, *_) = cases_of(step, backends=(backend,))
        return steps.refuse_step_case(step, case)

    reduce = Op(kind="all_reduce", **CALL)  # type: ignore[arg-type]
    assert of(reduce, backend="gloo") == ""
    assert "name an algorithm" in of(reduce, backend="shm")
    message = presets.find_step("megatron:llama3-8b", "pp=2,micro_batches=2", layers=2)
    case = cases_of(message, backends=("shm",), algorithms=("ring",))[0]
    assert "no messages from rank to rank" in steps.refuse_step_case(message, case)
    for backend in ("symm", "model"):
        assert "runs no steps" in of(reduce, backend=backend)


def message(kind: str, peer: int, tag: int) -> Op:
    return Op(kind, peer=peer, tag=tag, **CALL)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "tags", "reason"),
    [
        ("nccl", (1, 2), ""),
        ("gloo", (2, 1), ""),
        ("nccl", (2, 1), "rank 1 receives message 0 of rank 0 by tag 2, which was sent with tag 1"),
        ("xccl", (1, 1, 1), ""),
        ("xccl", (1, 3, 2), "rank 1 receives message 1 of rank 0 by tag 3"),
    ],
)
def test_a_library_without_tags_runs_no_messages_that_tags_reorder(
    backend: str, tags: tuple[int, ...], reason: str
) -> None:
    sent = sorted(tags)
    there = Program((0,), tuple(message("send", 1, tag) for tag in sent))
    here = Program((1,), tuple(message("recv", 0, tag) for tag in tags))
    step = Step("x", 2, (there, here))
    (case, *_) = cases_of(step, backends=(backend,))
    told = steps.refuse_step_case(step, case, lambda case: "")
    assert told.startswith(f"x: {reason}" if reason else "") and bool(told) is bool(reason)
    assert not reason or told.endswith(f"{backend} tells messages apart by order alone")


@pytest.mark.parametrize("layout", ["pp=4,micro_batches=6", "pp=2,chunks=2,micro_batches=4"])
def test_pipelines_send_in_the_order_that_they_receive_in(layout: str) -> None:
    step = presets.find_step("megatron:llama3-8b", layout, layers=8)
    (case, *_) = cases_of(step, backends=("nccl",))
    assert steps.refuse_step_case(step, case, lambda case: "") == ""


def test_uneven_blocks_are_those_that_each_member_sends() -> None:
    def op(*sends: int) -> Op:
        return Op(kind="all_to_allv", group="ep", sends=sends, nbytes=16, dtype="float")

    one = Program((0,), (op(1, 2), op(0, 3)))
    other = Program((2,), (op(4, 0), op(1, 1)))
    step = Step("x", 3, (one, Program((1,), ()), other), {"ep": ((0, 2), (1,))})
    for rank in (0, 2):
        found = [each.case.splits for each in steps.list_played(step, rank, "gloo")]
        assert found == ["table:4 8/16 0", "table:0 12/4 4"]
        first = steps.list_played(step, rank, "gloo")[0].case.matrix
        assert first.tolist() == [[1, 2], [4, 0]]
    (case, *_) = cases_of(step)
    assert steps.refuse_step_case(step, case) == ""


def test_a_table_that_members_share_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step = presets.find_step("deepep:ll", "dp=4", "tokens=16")
    (case, *_) = cases_of(step)
    written = []
    write_table = splits.write_table

    def write(table: Sequence[Sequence[int]]) -> str:
        written.append(table)
        return write_table(table)

    monkeypatch.setattr(splits, "write_table", write)
    steps._write_table.cache_clear()
    calls = [call for call in steps.list_calls(step, case) if call.splits]
    steps.count_buffer_bytes(step, case, lambda call: call.nbytes)
    assert 0 < len(written) <= len(calls)


def test_members_programs_are_not_read_for_even_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each operation that would be all of theirs."""
    monkeypatch.setattr(steps, "_list_split_tables", None)
    assert steps.list_played(presets.find_step("toy:ddp"), 0, "gloo")


@pytest.mark.parametrize(
    ("name", "layout"),
    [("deepep:ll", "dp=4"), ("megatron:llama3-8b", "tp=2,dp=1,pp=2,micro_batches=2")],
)
def test_groups_and_lanes_are_known_without_cases(
    name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = presets.find_step(name, layout, layers=4)
    every = (one.site for r in range(step.world) for one in steps.list_played(step, r, "gloo"))
    sites = sorted({*every})
    monkeypatch.setattr(steps, "_make_case", None)
    assert _list_used(step, False) == sites


def unequal(*groups: tuple[int, ...]) -> Step:
    """An all_reduce of ranks with one program, in groups of unequal size."""
    world = sum(map(len, groups))
    op = Op("all_reduce", group="g", **CALL)  # type: ignore[arg-type]
    return Step("x", world, (Program(tuple(range(world)), (op,)),), {"g": groups})


def test_a_group_is_used_whose_first_rank_is_alone_in_its_own() -> None:
    assert _list_used(unequal((0,), (1, 2)), False) == [("g", "comm")]
    assert _list_used(unequal((0,), (1,)), False) == []


def test_buffers_and_calls_are_those_of_the_rank_that_needs_most_whatever_its_groups() -> None:
    step = unequal((0,), (1, 2), (3, 4, 5))
    (case, *_) = cases_of(step)
    assert [call.n for call in steps.list_calls(step, case)] == [2]
    assert steps.count_buffer_bytes(step, case, lambda call: call.nbytes * call.n) == 3 * 4096


def test_a_step_that_does_not_fit_says_which_part_would() -> None:
    step = presets.find_step("ddp:gpt2-124m", world=2)
    (case, *_) = cases_of(step)
    room = Room("on this host", 1 << 30, 1 << 20, 2, 256 << 20)
    jobs, (skip,) = plan.fit_jobs([case], Policy(), lambda case: room, lambda case: step)
    assert not jobs
    needs = "a rank needs 874 MiB for itself and a buffer for each operation, 2 ranks 1,748 MiB"
    assert needs in skip.reason
    assert "1,024 MiB are available; --scale 1/" in skip.reason
    jobs, skips = plan.fit_jobs(
        [case], Policy(), lambda case: room._replace(available=8 << 30), lambda case: step
    )
    assert (len(jobs), skips) == (1, [])
    assert jobs[0].subject == step


@pytest.mark.parametrize("available", [4 << 30, 16 << 30])
def test_what_is_said_to_fit_fits_and_twice_as_much_does_not(available: int) -> None:
    whole = presets.find_step("megatron:llama3-8b", "tp=2,dp=4", layers=8)
    (case, *_) = cases_of(whole)

    def reason(step: Step) -> str:
        room = Room("on this host", available, 1 << 20, step.world, 256 << 20)
        _, skips = plan.fit_jobs([case], Policy(), lambda _: room, lambda case: step)
        return skips[0].reason if skips else ""

    told = reason(whole)
    part = Fraction(re.search(r"--scale (1/\d+)", told)[1])  # type: ignore[index]
    assert not reason(reshape.scale_step(whole, part))
    assert reason(reshape.scale_step(whole, 2 * part))
    fits = {name for name in whole.groups if not reason(reshape.slice_step(whole, name))}
    sliced = re.search(r"--slice (\S+)", told)
    assert bool(sliced) == bool(fits)
    assert not sliced or sliced[1] in fits


def test_what_never_fits_is_told_no_part() -> None:
    step = presets.find_step("ddp:gpt2-124m", world=2)
    (case, *_) = cases_of(step)
    room = Room("on this host", 100 << 20, 1 << 20, 2, 256 << 20)
    _, (skip,) = plan.fit_jobs([case], Policy(), lambda case: room, lambda case: step)
    assert "100 MiB are available; fewer ranks may fit" in skip.reason


def test_estimates_count_the_operations_and_the_computation() -> None:
    step = presets.find_step("ddp:gpt2-124m", world=2)
    (case, *_) = cases_of(step)
    job = Job(case, 1, "", subject=step)
    bare = Job(case, 1, "", subject=Step("x", 2, (Program((0, 1), ()),)))
    assert RUNNER.guess_call(job) > RUNNER.guess_call(bare) >= 0
    assert RUNNER.measure_memory(job, Policy()) > 475 << 20
    assert plan.estimate_seconds(job, Policy()) > plan.estimate_seconds(bare, Policy())


@pytest.mark.parametrize("seconds", [0.001, 0.3, 0.61, 1.7, 1.9, 2.5, 12.0])
@pytest.mark.parametrize("given", [{}, {"max_seconds": 9.0}, {"max_iters": 12}, {"iters": 3}])
def test_rounds_that_are_forecast_are_those_that_are_taken_where_times_scatter(
    seconds: float, given: dict[str, float]
) -> None:
    policy = Policy(**given).resolved(False)  # type: ignore[arg-type]
    step = presets.find_step("toy:ddp")
    (job,), _ = plan.fit_jobs(
        cases_of(step)[:1], policy, lambda case: Room("", 1 << 40, 0, 1, 0), lambda case: step
    )
    taken = 1
    while not (
        taken >= (policy.iters or policy.max_iters)
        or (
            policy.iters is None
            and taken >= steps.FEWEST
            and seconds * (taken + 0.5) >= most_seconds(job, policy, taken)
        )
    ):
        taken += 1
    assert steps.most_rounds(policy, seconds) == taken


def test_what_a_step_of_six_seconds_takes_is_forecast() -> None:
    """As one took that hardly communicated: 125 s from its beginning, of which it was warm after
    18."""
    rounds, least, most = steps.forecast_rounds(Policy().resolved(True), (5.85, 6.0, 0.03))
    assert rounds == steps.FEWEST
    assert least == most == pytest.approx(125 - 18, rel=0.05)


def test_each_operation_by_itself_takes_its_share_at_most() -> None:
    alone = [
        steps.forecast_rounds(Policy(iters=6).resolved(True), (4.0, 0.0, talks)).most
        - 6 * (4.0 + talks)
        for talks in (0.0, 0.5, 4.0)
    ]
    assert alone == [24.0, 24.0 + 5 * 1.0, 24.0 + 2 * 4.0 + 24.0]


def test_a_step_that_may_settle_early_is_forecast_to_take_less_or_more() -> None:
    patient = Policy(max_seconds=60.0).resolved(False)
    rounds, least, most = steps.forecast_rounds(patient, (1.0, 0.5, 0.5))
    assert rounds == 90 and least < 40 and most > 180
    fixed = steps.forecast_rounds(Policy(iters=90).resolved(False), (1.0, 0.5, 0.5))
    assert fixed.least > 180


def test_operations_to_blame_take_steps_of_their_own() -> None:
    plain, blamed = (
        steps.forecast_rounds(Policy(blame=b).resolved(False), (2.0, 1.0, 1.0))
        for b in (False, True)
    )
    assert blamed.least - plain.least == 2.0 * 20 * 6


def test_messages_that_cross_by_tags_are_the_same_on_both_ends() -> None:
    sender = Program((0,), tuple(message("send", 1, tag) for tag in (1, 2, 1)))
    receiver = Program((1,), tuple(message("recv", 0, tag) for tag in (2, 1, 1)))
    step = Step("x", 2, (sender, receiver))
    sent, received = (
        {(each.op.tag, each.turn): each.who for each in steps.list_played(step, rank, "gloo")}
        for rank in (0, 1)
    )
    assert sent == received and len(set(sent.values())) == 3
