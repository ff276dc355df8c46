"""What is told of a step: which part of its communication computation hides, in words that do not
say more than the interval does."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import pytest
from factories import make_file, world
from msgspec.structs import replace

from collbench.core.network import Link
from collbench.features.training.count import Forecast, Machine, forecast_step
from collbench.features.training.overlap import Overlap, Phase, find_overlaps
from collbench.features.training.parts import PARTS
from collbench.features.training.step import Op, Program, Recorded, Step
from collbench.features.training.views import steps, timeline, workload
from collbench.records.types import Operation, Record, RunFile
from collbench.show import programs
from collbench.show.document import tone_text
from collbench.show.views.series import make_view
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, Suite

MS = 1_000_000


def overlap(step: Sequence[float], computation: float, communication: float) -> Overlap:
    times = zip(PARTS, (step, [computation] * len(step), [communication] * len(step)), strict=True)
    records = [
        Record(
            case=Case(
                collective=part,
                backend="gloo",
                n=2,
                nbytes=8,
                dtype="uint8",
                subject="x layers=2 #1",
            ),
            status="ok",
            times_ns=[round(each * MS) for each in of],
        )
        for part, of in times
    ]
    (one,) = find_overlaps(records)
    return one


@pytest.mark.parametrize(
    ("step", "computation", "communication", "words"),
    [
        ((11, 11.1, 11, 10.9, 11, 11.1, 11, 10.9), 10, 4, "computation hides 75% [7"),
        ((16, 16.1, 16, 15.9, 16, 16.1, 16, 15.9), 10, 4, "are in each other's way"),
        ((14.1, 13.9, 14, 14.2, 13.8, 14, 14.1, 13.9), 10, 4, "hides nothing for sure"),
        ((11, 11.1, 11), 10, 4, "too few rounds to tell"),
        ((8, 16, 8.1, 15.9, 8, 16, 8.1, 15.9), 10, 4, "steps scatter too much to tell"),
        ((4, 4.1, 4, 3.9, 4, 4.1, 4, 3.9), 0.01, 4, "no computation to hide it behind"),
        ((10, 10.1, 10, 9.9, 10, 10.1, 10, 9.9), 10, 0, "no communication to hide"),
    ],
)
def test_what_is_hidden_is_told_as_surely_as_it_is_known(
    step: Sequence[float], computation: float, communication: float, words: str
) -> None:
    exposed, hidden = steps.describe_overlap(overlap(step, computation, communication))
    assert words in hidden
    assert exposed.startswith("exposed communication ")


def test_time_that_a_step_saves_has_its_sign() -> None:
    one = overlap((9, 9.1, 9, 8.9, 9, 9.1, 9, 8.9), 10, 4)
    exposed, _ = steps.describe_overlap(one)
    assert exposed.startswith("exposed communication -1.00 ms [-1.0")


def test_rounds_that_were_mostly_repeated_are_told_before_what_they_show() -> None:
    records = [each for each in overlap((9.0,) * 8, 10, 4)[:3] if isinstance(each, Record)]
    (sound,) = find_overlaps(records)
    (doubted,) = find_overlaps([*records[:2], replace(records[2], invalid={"late": 4})])
    assert steps._list_exclusions(sound) == []
    (sentence,) = steps._list_exclusions(doubted)
    assert sentence.startswith(
        "invalid!: more than a quarter of the samples had to be repeated; no"
    )


def test_a_step_is_named_without_its_digest() -> None:
    assert steps.name_step(overlap((1.0,) * 6, 1, 1).step_record.case) == "x layers=2"


def test_the_bars_of_a_waterfall_lead_from_computation_to_the_step() -> None:
    one = overlap((15.0,) * 6, 10, 6)
    seen = [
        Phase("forward", "dp", "all_gather", 2, 8, 8.0, 5.0 * MS, 2.0 * MS, None),
        Phase("backward", "", "all_reduce", 2, 8, 8.0, 5.0 * MS, 0.0, None),
        Phase("backward", "dp", "reduce_scatter", 2, 8, 8.0, 5.0 * MS, 1.5 * MS, None),
    ]
    (bars,) = timeline.draw_waterfall("x", one, seen).data
    assert bars["x"][1:3] == ["forward dp all_gather", "backward dp reduce_scatter"]
    assert bars["y"] == [10.0, 2.0, 1.5, 1.5, 15.0]
    assert bars["measure"] == ["absolute", *["relative"] * 3, "total"]


@pytest.mark.parametrize(("alone", "tone"), [(4.0, "notice"), (5.0, ""), (7.0, "notice")])
def test_what_is_far_from_what_operations_take_by_themselves_is_marked(
    alone: float, tone: str
) -> None:
    one = Phase("forward", "dp", "all_gather", 2, 8, 8.0, 5.2 * MS, 0.0, alone * MS)
    *_, cell = steps._make_table([one]).lines[0].cells
    told = tone_text(cell) if isinstance(cell, str) else cell
    assert told == tone_text(f"{5.2 / alone:.2f}", tone)  # type: ignore[arg-type]


def test_what_a_step_took_in_its_trace_stands_beside_what_it_takes() -> None:
    recorded = Recorded((9 * MS, 10 * MS, 30 * MS), "from a mark's begin to its end")
    table = steps._recorded_table(overlap((12.0,) * 8, 10, 4), recorded)
    before, after = (line.cells for line in table.lines)
    assert before[:2] == ("recorded", "10.0 ms")
    assert after[-1] == "1.200 [1.200, 1.200]"
    assert "median of 3 iterations of the trace, from a mark's begin to its end" in table.note


def ran(cramped: bool = False, compute: str = "gemm", stop: str = "fixed") -> str:
    """What is told of a step in whose world ranks may be cramped."""
    file = make_ran(cramped, compute, stop)
    return " ".join(map(str, steps.make_document(file).brief))


def make_ran(cramped: bool = False, compute: str = "gemm", stop: str = "fixed") -> RunFile:
    ops = (Op(kind="compute", flops=1e9), Op(kind="all_reduce", nbytes=8, dtype="float", op="sum"))
    step = Step("x", 2, (Program((0, 1), ops),), compute=compute)  # type: ignore[arg-type]
    suite = Suite(name="", axes=Axes(collectives=(), sizes=(), ranks=(2,)), subjects=(step,))
    records = [
        Record(case=each, status="ok", world=0, times_ns=[ns * MS] * 8, stop=stop)  # type: ignore[arg-type]
        for each, ns in zip(suite.resolve().expand()[0], (12, 10, 4), strict=True)
    ]
    return make_file(records, [world(n=2, cramped=cramped)], suite=suite)


@pytest.mark.parametrize(
    ("cramped", "compute", "contended"),
    [
        (True, "gemm", True),
        (True, "copy", True),
        (True, "spin", True),
        (True, "sleep", False),
        (True, "none", False),
        (False, "gemm", False),
    ],
)
def test_computation_that_takes_cores_from_communication_is_told(
    cramped: bool, compute: str, contended: bool
) -> None:
    assert ("contended: ranks have fewer cores" in ran(cramped, compute)) is contended


@pytest.mark.parametrize(("stop", "told"), [("cut", True), ("budget", False)])
def test_a_step_that_was_cut_short_is_told_so(stop: str, told: bool) -> None:
    assert ("cut short: of 8 rounds that were finished" in ran(stop=stop)) is told


def test_csv_of_steps_of_which_one_was_not_watched_has_the_columns_of_all() -> None:
    """As of two backends, of which one lost a rank before operations were watched."""
    ops = (Op(kind="compute", flops=1e9), Op(kind="all_reduce", nbytes=8, dtype="float", op="sum"))
    subjects = tuple(Step(name, 2, (Program((0, 1), ops),)) for name in ("cut", "watched"))
    suite = Suite(name="", axes=Axes(collectives=(), sizes=(), ranks=(2,)), subjects=subjects)
    watched = [Operation(begins_ns=[0, 0], ends_ns=[MS, MS]) for _ in ops]
    records = [
        Record(
            case=each,
            status="ok",
            world=0,
            times_ns=[12 * MS] * 8,
            stop="cut" if each.subject.startswith("cut") else "fixed",
            operations=[] if each.subject.startswith("cut") else [watched],
        )
        for each in suite.resolve().expand()[0]
    ]
    document = steps.make_document(make_file(records, [world(n=2)], suite=suite))
    first, second = csv.DictReader(io.StringIO(programs.as_csv(document)))
    assert first.keys() == second.keys() and "without" in first
    assert first["exposed_ns"].startswith("estimate: 0")
    assert first["operations"] == "" and "kind: all_reduce" in second["operations"]


@pytest.mark.parametrize(("most", "is_told"), [(1, True), (2, False)])
def test_a_step_with_too_many_operations_to_time_them_is_told(
    monkeypatch: pytest.MonkeyPatch, most: int, is_told: bool
) -> None:
    monkeypatch.setattr(steps, "MOST_TIMED", most)
    sentence = "no single operation was timed: rank 0 has 2, more than 1"
    assert (sentence in ran()) is is_told
    section = steps.make_section(make_view([make_ran()]))
    assert section and (sentence in section.tables[0].note) is is_told


@pytest.mark.parametrize("fake", [True, False])
def test_of_a_step_on_fake_gpus_no_time_is_shown(fake: bool) -> None:
    one = overlap((11.0,) * 6, 10, 4)
    records = [
        replace(record, world=0) for record in (one.step_record, one.computation, one.communication)
    ]
    made = steps.make_document(make_file(records, [world(n=2, fake=fake)]))
    assert bool(made.values["steps"]) != fake and made.values.get("fake", False) == fake
    assert ("measured on a fake GPU" in str(made.brief)) == fake


def test_a_timeline_has_queued_operations_once_they_are_under_way_and_waits_before_others() -> None:
    call = {"kind": "all_reduce", "nbytes": 8, "dtype": "float", "op": "sum"}
    ops = (Op(**call), Op(**call), Op(kind="compute", compute_ns=10, after=(1,)))  # type: ignore[arg-type]
    seen = [
        Operation(begins_ns=[0], ends_ns=[60 * MS]),
        Operation(begins_ns=[5 * MS], ends_ns=[100 * MS]),
        Operation(begins_ns=[100 * MS], ends_ns=[110 * MS], waits_ns=[20 * MS]),
    ]
    step = Step("x", 2, (Program((0, 1), ops),))
    earlier = timeline.draw_operations("x", step, [seen, [Operation()] * 3])  # as a run of 0.1
    figure = timeline.draw_operations("x", step, [seen])
    assert figure == earlier
    assert "Only rank 0 was watched" in figure.caption
    data = figure.data
    bars = {trace["name"]: [*zip(trace["base"], trace["x"], strict=True)] for trace in data}
    assert bars["communication"] == [(0, 60), (60, 40)]
    assert bars["waiting"] == [(20, 80)]


def test_phases_are_compared_with_what_is_predicted_of_rank_0() -> None:
    """Stages in the middle of a pipeline have twice as many messages."""

    def message(kind: str, peer: int) -> Op:
        return Op(kind, "forward", "pp", 1 << 20, "float", peer=peer, wait="call")

    sends = [message("send", at + 1) for at in range(2)]
    receives = [message("recv", at) for at in range(2)]
    ops = (sends[0],), (receives[0], sends[1]), (receives[1],)
    programs = tuple(Program((rank,), rank_ops) for rank, rank_ops in enumerate(ops))
    step = Step("x", 3, programs, {"pp": ((0, 1, 2),)})
    machine = Machine(Link(0.0, 1e-9, 0.0), Link(0.0, 1e-9, 0.0))
    expected = forecast_step(step, machine)
    took = round((1 << 20) * 1e-9 * 1e9)
    one = overlap((11.0,) * 8, 10, 4)
    seen = [[Operation(begins_ns=[0], ends_ns=[took])]]
    measured = one._replace(step_record=replace(one.step_record, operations=seen))
    table = workload._compare_table(step, expected, measured, machine)
    assert expected.phases["forward", "pp"] == pytest.approx(2 * took / 1e9)
    assert (table.lines[-1].cells[0], table.lines[-1].cells[-1]) == ("forward, pp", "1.00")


def test_a_bubble_is_told_and_compared_with_computation_as_it_is_predicted() -> None:
    one = overlap((21.0,) * 8, 10, 2)._replace(bubble=10.0 * MS)
    exposed, _ = steps.describe_overlap(one)
    assert "step less computation and a bubble of 10.0 ms, round by round" in exposed
    assert steps.plain_values(one)["bubble_ns"] == 10 * MS
    expected = Forecast(0.021, 0.02, 0.002, {}, {})
    machine = Machine(Link(0.0, 1e-9, 0.0), Link(0.0, 1e-9, 0.0))
    table = workload._compare_table(Step("x", 2, ()), expected, one, machine)
    assert table.note.startswith("computation: predicted as the step says; both with waits")
    told = workload.forecast_words(machine, expected)
    assert "computation as long as the step says" in told[-1]
    machine = Machine(machine.link, machine.inside, flops=1e12)
    table = workload._compare_table(Step("x", 2, ()), expected, one, machine)
    assert table.note.startswith("computation: predicted as --tflops says")
    assert table.lines[1].cells[:3] == ("computation", "20.0 ms", "20.0 ms")
