"""A trace in words: who hung a job in one sentence, tables with what is known only, a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from factories import call, calls_of, trace
from msgspec.structs import replace

from collbench.features.traces.analysis.judgement import judge_trace
from collbench.features.traces.analysis.operations import Group
from collbench.features.traces.formats import own
from collbench.features.traces.types import EARLIER, Call, Lost, Trace
from collbench.features.traces.views import hang as hung
from collbench.features.traces.views import trace as view
from collbench.show import html, terminal
from collbench.show.document import Table

NOON = 1_800_000_000_000_000_000  # ns: 08:00:00 UTC
DONE, IN = {"state": "completed"}, {"state": "started", "issued_ns": NOON + 187_000_000_000}
USUAL = calls_of(("all_reduce", DONE), ("all_reduce", {**IN, "nbytes": 4 << 20}))
SHORT = USUAL[:1]
ALSO = [USUAL[0], replace(USUAL[1], nbytes=8 << 20)]


def made(*programs: Sequence[Call] | None, **fields: Any) -> Trace:
    return trace(*programs, backend="nccl", **fields)


def words(*programs: Sequence[Call] | None) -> str:
    found = judge_trace(made(*programs)).hang
    assert found
    return hung.describe_hang(found)


def tables(found: Trace) -> dict[str, Table]:
    told = view.make_document(judge_trace(found))
    return {table.name: table for section in told.sections for table in section.tables}


def test_the_rank_that_never_called_is_told_with_who_waits_since_when() -> None:
    assert words(USUAL, USUAL, SHORT, USUAL) == (
        "rank 2 never called all_reduce #2 of 4 MiB float on world (0-3), which 3 others wait in"
        " since 08:03:07 UTC"
    )


def test_one_that_waits_is_named() -> None:
    assert words(USUAL, SHORT).endswith(", which rank 0 waits in since 08:03:07 UTC")


def test_a_rank_without_a_trace_may_have_crashed() -> None:
    assert words(USUAL, None, USUAL) == (
        "there is no trace of rank 1, and ranks 0,2 wait in all_reduce #2 of 4 MiB float on world"
        " (0-2) since 08:03:07 UTC: it crashed, perhaps after another rank failed, or its file"
        " is not among these"
    )


def test_the_rank_that_called_another_size_is_told_beside_the_others() -> None:
    assert words(USUAL, ALSO, USUAL) == (
        "rank 1 called all_reduce of 8 MiB float as #2 on world (0-2), where ranks 0,2 called"
        " all_reduce of 4 MiB float"
    )


def test_two_that_disagree_are_told_both() -> None:
    assert words(USUAL, ALSO) == (
        "ranks disagree as #2 on world (0,1): rank 0 called all_reduce of 4 MiB float; rank 1"
        " called all_reduce of 8 MiB float"
    )


LOOP = [
    ("all_reduce", {**DONE, "nbytes": nbytes, "source": f"a:{line}"})
    for line, nbytes in ((1, 4), (2, 8), (3, 16))
]


def test_the_rank_that_skipped_a_call_is_told_with_its_line() -> None:
    a, b, c = LOOP
    whole, skipping = [*LOOP, a, ("all_reduce", {**b[1], **IN})], [*LOOP, a, c]
    assert words(calls_of(*LOOP, *whole), calls_of(*LOOP, *skipping)) == (
        "rank 1 called all_reduce of 16 B float as #8 on world (0,1), where rank 0 called"
        " all_reduce of 8 B float: rank 1 skipped all_reduce of 8 B float (a:2), judging by the"
        " order of earlier calls"
    )


def test_the_rank_that_called_what_it_called_just_before_is_told_to_repeat_it_or_to_skip() -> None:
    a, b, c = LOOP
    whole, repeating = [*LOOP, a, b, ("all_reduce", {**c[1], **IN})], [*LOOP, a, b, b]
    assert words(calls_of(*LOOP, *whole), calls_of(*LOOP, *repeating)) == (
        "rank 1 called all_reduce of 8 B float as #9 on world (0,1), where rank 0 called all_reduce"
        " of 16 B float: rank 1 called all_reduce of 8 B float (a:2) once more, or skipped"
        " all_reduce of 16 B float (a:3) and 1 call after it, judging by the order of earlier calls"
    )


def test_the_rank_that_skipped_a_call_is_told_where_no_call_has_a_state() -> None:
    """As where the whole job is killed at once; rank 1 goes on to a further call."""
    a, b = (("all_reduce", {"nbytes": n, "source": s}) for n, s in ((4, "a:1"), (8, "a:2")))
    made = trace(calls_of(a, b, a, b, a), calls_of(a, b, a, b, b, a), form=own.FORM)
    verdict = judge_trace(made)
    assert verdict.disagree
    assert view.make_headline(verdict).text == (
        "ranks disagree on operation #5 of world (0,1): rank 1 called all_reduce of 8 B float (a:2)"
        " once more, or skipped all_reduce of 4 B float (a:1), judging by the order of earlier"
        " calls"
    )


def test_a_circle_is_told_rank_by_rank() -> None:
    found = made(
        calls_of(("all_reduce", IN), group="a") + calls_of(("barrier", DONE), group="b", first=0),
        calls_of(("barrier", IN), group="b") + calls_of(("all_reduce", DONE), group="a", first=0),
    )
    groups = {"a": (0, 1), "b": (0, 1)}
    ranks = tuple(replace(rank, groups=groups) for rank in found.ranks)
    told = judge_trace(Trace("", ranks)).hang
    assert told
    assert hung.describe_hang(told) == (
        "deadlock: rank 1 waits in barrier #1 on b (0,1) for rank 0, rank 0 waits in all_reduce #1"
        " of 1 MiB float on a (0,1) for rank 1"
    )


def test_a_rank_whose_device_is_behind_is_told() -> None:
    behind = [USUAL[0], replace(USUAL[1], state="scheduled")]
    assert words(USUAL, behind, USUAL) == (
        "rank 1 called all_reduce #2 of 4 MiB float on world (0-2), but its device has not begun"
        " it: what was given to the device before has not ended; ranks 0,2 wait since 08:03:07 UTC"
    )


def test_where_nobody_is_to_blame_other_causes_are_told() -> None:
    assert words(USUAL, USUAL).endswith("and none is through: a device, a link, or the job ran on")
    through = [USUAL[0], replace(USUAL[1], state="completed")]
    assert ", which rank 1 completed: a device or a link" in words(USUAL, through)


@pytest.mark.parametrize(
    ("kind", "splits", "is_told"),
    [("all_to_allv", (), True), ("all_to_allv", (3, 3), False), ("all_to_all", (), False)],
)
def test_an_exchange_of_unknown_blocks_that_hangs_is_doubted_where_its_sizes_differ(
    kind: str, splits: tuple[int, ...], is_told: bool
) -> None:
    """A wrong size on one rank cannot be told from an uneven exchange."""
    told = {"sends": splits, "receives": splits}
    sizes = (24, 24) if kind == "all_to_all" else (24, 40)
    calls = [[replace(USUAL[1], kind=kind, op="none", nbytes=n, **told)] for n in sizes]
    doubt = "; its sizes differ, a mistake unless blocks are uneven"
    assert ("none is through" in words(*calls), doubt in words(*calls)) == (True, is_told)


def test_a_rank_whose_trace_ends_before_is_told_where_nobody_is_to_blame() -> None:
    found = made([USUAL[0], replace(USUAL[1], issued_ns=70)], [USUAL[0]])
    ranks = (found.ranks[0], replace(found.ranks[1], until=60))
    told = judge_trace(replace(found, ranks=ranks)).hang
    assert told
    assert hung.describe_hang(told).endswith("; what rank 1 did then is not in its trace")


def test_roots_and_tags_are_told_as_the_job_has_them() -> None:
    group = Group("", "tp", (4, 5))
    assert (
        hung.describe_call(call("broadcast", 8, root=1), group) == "broadcast of 8 B float, root 5"
    )
    assert hung.describe_call(call("recv", 8, peer=0, tag=3), group).endswith("from rank 4, tag 3")


def test_a_receive_without_its_send_is_told() -> None:
    waits = call("recv", peer=1, **IN)
    assert words([*SHORT, waits], SHORT).startswith(
        "rank 1 never called the send for recv of 1 MiB float from rank 1 on world (0,1)"
    )


def test_a_receive_from_anybody_does_not_tell_which_rank_it_waits_for() -> None:
    waits = call("recv", 8, peer=-1, **IN)
    assert words([*SHORT, waits], SHORT) == (
        "rank 0 is in recv of 8 B float on world (0,1) since 08:03:07 UTC; which rank it waits for"
        " is not in the trace"
    )


def test_calls_around_are_told_with_where_the_group_stands() -> None:
    (_, lines) = (found := tables(made(USUAL, SHORT)))["calls"].heads, found["calls"].lines
    assert [line.cells[0] for line in lines] == ["1", "> 2"]
    assert [line.cells[2:4] for line in lines] == [
        ("ranks 0,1", "ranks 0,1"),
        ("rank 0", "-"),
    ]


def test_what_no_rank_does_has_no_column() -> None:
    missing, another = (tables(made(USUAL, other))["fronts"].heads for other in (SHORT, ALSO))
    assert missing == ("call", "waiting", "missing", "since")
    assert another == ("call", "waiting", "called another", "since")


def test_what_culprits_did_last_is_told() -> None:
    (line,) = tables(made(USUAL, SHORT))["last"].lines
    assert line.cells[:2] == ("1", "all_reduce #1 of 1 MiB float on world")


TIMED = [[call(span=(at + late, at + 100)) for at in range(0, 3000, 100)] for late in (0, 20, 90)]


def test_a_rank_that_is_late_is_what_there_is_to_know_first() -> None:
    told = view.make_headline(judge_trace(trace(*TIMED)))
    assert told.text == (
        "rank 2 comes last to 30 of 30 operations of world (0-2), and costs 2.10 µs of waiting"
    )
    assert told.weight == "notice"


def test_where_all_is_well_that_is_said() -> None:
    told = view.make_headline(judge_trace(trace(*[[call(span=(0, 9), number=1)]] * 2)))
    assert told.weight == "good"


def test_ranks_without_a_trace_are_not_said_to_agree() -> None:
    done = calls_of(("all_reduce", DONE))
    told = view.make_headline(judge_trace(made(done, None, done)))
    assert told == (
        "there is a trace of ranks 0,2 only, of 3: nothing in it hangs or disagrees",
        "notice",
    )


def test_disagreements_are_bad() -> None:
    usual = calls_of("all_reduce")
    found = trace(usual, calls_of("all_gather"), usual)
    assert view.make_headline(judge_trace(found)).weight == "bad"
    (line,) = tables(found)["disagreements"].lines
    assert line.cells[2] == "rank 1: all_gather of 1 MiB float"


def test_exchanges_that_do_not_fit_disagree_though_nothing_hangs() -> None:
    of = {"number": 1, "span": (0, 9)}
    programs = [
        [call("all_to_allv", 32, sends=(5, 3), receives=(4, 2), **of)],
        [call("all_to_allv", 16, sends=(2, 2), receives=(1, 3), **of)],
    ]
    judged = judge_trace(trace(*programs))
    assert judged.hang is None and view.make_headline(judged).weight == "bad"
    (line,) = tables(trace(*programs))["disagreements"].lines
    assert line.cells[2] == "rank 0 sends 3 elements to rank 1, which expects 1"
    (told,) = view.plain_values(judged)["disagreements"]
    assert told["unequal"] == [{"source": 0, "target": 1, "sends": 3, "expects": 1}]
    fits = [programs[0], [replace(programs[1][0], receives=(3, 3))]]
    assert view.make_headline(judge_trace(trace(*fits))).weight != "bad"


def test_times_that_are_not_known_are_no_numbers() -> None:
    (line,) = tables(trace(*[calls_of("all_reduce")] * 2))["operations"].lines
    assert line.cells[-3:] == ("-", "-", "n/a")


def test_a_transfer_its_waits_and_busbw_stand_in_the_table() -> None:
    programs = [[call(nbytes=4096, span=span)] for span in ((0, 100), (80, 100))]
    (line,) = tables(trace(*programs))["operations"].lines
    assert line.cells == (
        "world of 2",
        "all_reduce",
        "1",
        "4 KiB",
        "4 KiB",
        "20.0 ns",
        "80.0 ns",
        "204.8",
    )


def test_a_rank_that_cost_much_is_spoken_of_where_only_lengths_are_known() -> None:
    """As in dumps of a flight recorder, which have no time under way."""
    programs = [
        [replace(call(number=at), issued_ns=100 * at + late, length_ns=took) for at in range(3)]
        for late, took in ((0, 90), (0, 90), (80, 10))
    ]
    head = view.make_document(judge_trace(trace(*programs, host=""))).verdict
    assert "rank 2 came last to 3 of 3 operations" in head
    (table,) = (t for t in [tables(trace(*programs, host=""))["operations"]])
    assert "overlap count once" not in table.note and "both are sums;" in table.note


def test_a_rank_that_was_last_too_few_times_to_blame_is_spoken_of_where_it_cost_much() -> None:
    few = [program[:3] for program in TIMED]
    head = view.make_document(judge_trace(trace(*few))).verdict
    assert view.make_headline(judge_trace(trace(*few))).weight == "notice"
    assert head.startswith("no hang") and head.endswith(
        "; rank 2 came last to 3 of 3 operations of world (0-2), and others waited 210 ns for it:"
        " too few operations to tell chance from a slow rank"
    )
    prompt = [[call(span=(at, at + 100)) for at in range(0, 300, 100)] for _ in range(3)]
    assert "came last" not in view.make_document(judge_trace(trace(*prompt))).verdict


def in_iterations(count: int, operations: int = 3) -> Trace:
    """As TIMED, with so many iterations that are marked."""
    every = operations * count
    made = trace(*(calls[:every] for calls in TIMED))
    steps = tuple((ns, ns + 100 * operations) for ns in range(0, 100 * every, 100 * operations))
    return replace(made, ranks=tuple(replace(rank, steps=steps) for rank in made.ranks))


def test_a_rank_that_was_last_in_too_few_iterations_is_in_doubt_with_how_many_it_takes() -> None:
    told = view.make_headline(judge_trace(in_iterations(7)))
    assert told.weight == "notice"
    assert told.text.endswith(
        "; rank 2 came last to 21 of 21 operations of world (0-2), in 7 of 7 iterations, and others"
        " waited 1.47 µs for it: too few iterations to tell chance from a slow rank; record at"
        " least 8 iterations"
    )


def test_a_rank_that_was_last_in_enough_iterations_by_too_little_is_in_doubt() -> None:
    """In most by less than 5 %."""
    lates = (0,) * 12, (3, 80, 3, 80, 3, 80, 3, 80, 3, 80, 3, 3)
    programs = (
        [call(span=(100 * at + late, 100 * at + 100)) for at, late in enumerate(rank)]
        for rank in lates
    )
    made = trace(*programs)
    steps = tuple((ns, ns + 100) for ns in range(0, 1200, 100))
    made = replace(made, ranks=tuple(replace(rank, steps=steps) for rank in made.ranks))
    told = view.make_headline(judge_trace(made))
    assert told.weight == "notice"
    assert told.text.endswith(
        "; rank 1 came last to 12 of 12 operations of world (0,1), in 12 of 12 iterations, and"
        " others waited 421 ns for it: too little to tell chance from a slow rank"
    )


def test_a_rank_that_was_last_in_enough_iterations_is_named() -> None:
    told = view.make_headline(judge_trace(in_iterations(8)))
    assert told.text.startswith("rank 2 comes last to 24 of 24 operations")


def test_the_rank_that_is_named_is_first_of_those_that_come_last() -> None:
    """Rank 0 waits long for rank 1 once, and for rank 2 each time."""
    late = [[call(span=(at, at + 100)) for at in range(0, 3000, 100)] for _ in range(3)]
    late[2] = [call(span=(at + 20, at + 100)) for at in range(0, 3000, 100)]
    for program, begin in zip(late, (3000, 9000, 3000), strict=True):
        program.append(call(span=(begin, 9100)))
    verdict = judge_trace(trace(*late))
    assert view.make_headline(verdict).text.startswith("rank 2 comes last")
    assert [row.rank for row in verdict.late if row.last] == [2, 1]
    assert verdict.late[0].cost < verdict.late[1].cost


def test_messages_seen_late_take_at_most_so_much() -> None:
    sides = [call("send", 4096, (0, 100), peer=1), call("recv", 4096, (80, 100), peer=0)]
    (line,) = tables(trace(*([replace(each, seen_late=True)] for each in sides)))[
        "operations"
    ].lines
    assert line.cells[-3:] == ("≤ 20.0 ns", "-", "≥ 204.8")


def test_each_operation_is_told_with_who_came_last() -> None:
    (first, *_) = view.make_document(judge_trace(trace(*TIMED))).values["each"]
    assert (first["transfer"], first["wait"], first["last"]) == (10, 90, 2)


def test_a_terminal_shows_the_ten_worst_ranks_and_a_page_all() -> None:
    programs = [[call(span=(0, 9)), call("wait", 0, span=(1, 9))] for _ in range(12)]
    document = view.make_document(judge_trace(trace(*programs)))
    brief = [block for block in document.brief if isinstance(block, Table)]
    (short,) = (table for table in brief if table.heads[:2] == ("rank", "time"))
    assert [str(line.cells[0]) for line in short.lines][-1] == "and 2 more"
    assert len(tables(trace(*programs))["exposed"].lines) == 12


@pytest.mark.parametrize("host", ["node0", ""])
def test_the_timeline_begins_at_the_first_iteration(host: str) -> None:
    of = [
        [call(span=(1000, 2000)), call(span=(1500, 2500), group="x"), call(span=(3000, 3500))],
        [call(span=(1200, 2000)), call(span=(3000, 3500))],
    ]
    found = trace(*of, host=host, steps=((1000, 3000),), busy=((1100, 1300),))
    (figure,) = (f for s in view.make_document(judge_trace(found)).sections for f in s.figures)
    bars = {data["name"]: data for data in figure.data}
    assert bars["communication"]["base"] == [0, 0.0005, 0.0002]
    assert bars["communication"]["y"] == ["rank 0", "rank 0", "rank 1"]
    assert bars["computation"]["base"] == [0.0001, 0.0001]
    (own,) = {*bars["computation"]["offset"]}
    world, other, _ = bars["communication"]["offset"]
    assert own > world > other  # lanes of one row, from the top


def test_a_hang_is_drawn_with_open_ends_and_what_others_lack() -> None:
    begun = {"state": "completed", "issued_ns": NOON + 186_000_000_000}
    usual = [replace(USUAL[0], issued_ns=begun["issued_ns"]), USUAL[1]]
    figure = hung.draw_hang(judge_trace(made(usual, usual, usual[:1], None)))
    assert figure
    drawn = {data["name"]: data for data in figure.data}
    assert drawn["waiting"]["y"] == ["rank 0", "rank 1"]
    assert drawn["waiting"]["base"] == [1000.0, 1000.0]  # ms after the call before
    ends = [b + x for b, x in zip(drawn["waiting"]["base"], drawn["waiting"]["x"], strict=True)]
    known = [
        b + x for b, x in zip(*(drawn["communication"][k] for k in ("base", "x")), strict=True)
    ]
    assert min(ends) > max(known)
    assert figure.caption.endswith(
        " Bars of waiting ranks end at the figure's edge: how long they waited is unknown."
    )
    lacks = {note["y"]: note["text"] for note in figure.layout["annotations"]}
    assert lacks.keys() == {"rank 2", "rank 3"}
    assert "never called all_reduce #2" in lacks["rank 2"] and "no trace" in lacks["rank 3"]


def test_a_rank_in_a_call_that_hangs_is_drawn_as_long_as_it_has_waited() -> None:
    begun = {"state": "completed", "issued_ns": NOON + 186_000_000_000}
    usual = [replace(USUAL[0], issued_ns=begun["issued_ns"]), USUAL[1]]
    found = made(usual, usual, usual[:1], complete_until_ns=NOON + 248_000_000_000)
    figure = hung.draw_hang(judge_trace(found))
    assert figure and figure.caption.endswith(
        " The bar of a waiting rank ends at the time until which its recording is complete."
    )
    (waiting,) = (data for data in figure.data if data["name"] == "waiting")
    assert waiting["x"] == [61_000.0, 61_000.0]  # ms
    assert waiting["text"] == ["waits in all_reduce #2 for 61.0 s"] * 2
    assert all(hover.endswith("waits for 61.0 s") for hover in waiting["hovertext"])


@pytest.mark.parametrize(
    ("later", "lasts"),
    [
        (0, 61_000.0),  # ms: no longer than the wait whose end is known
        (61, 620.0),  # begun when the other ends: yet wide enough to be seen
    ],
)
def test_a_wait_of_unknown_end_is_drawn_to_the_edge_and_no_further(
    later: int, lasts: float
) -> None:
    begun = {"state": "completed", "issued_ns": NOON + 186_000_000_000}
    usual = [replace(USUAL[0], issued_ns=begun["issued_ns"]), USUAL[1]]
    late = [usual[0], replace(USUAL[1], issued_ns=USUAL[1].issued_ns + later * 10**9)]
    found = made(usual, late, usual[:1], complete_until_ns=NOON + 248_000_000_000)
    whole, cut, lacking = found.ranks
    found = replace(found, ranks=(whole, replace(cut, complete_until_ns=-1), lacking))
    figure = hung.draw_hang(judge_trace(found))
    assert figure and figure.caption.endswith(
        "recording is complete; where that is unknown, at the figure's edge."
    )
    (waiting,) = (data for data in figure.data if data["name"] == "waiting")
    assert waiting["x"] == [61_000.0, lasts]
    assert waiting["text"] == ["waits in all_reduce #2 for 61.0 s", "waits in all_reduce #2"]


def test_short_calls_are_drawn_wider_and_keep_their_times() -> None:
    begin = NOON + 186_000_000_000
    short = replace(USUAL[0], issued_ns=begin, begins_ns=begin, ends_ns=begin + 2_000_000)
    found = made([short, USUAL[1]], [short], complete_until_ns=NOON + 248_000_000_000)
    figure = hung.draw_hang(judge_trace(found))
    assert figure
    (done,) = (data for data in figure.data if data["name"] == "communication")
    assert done["x"] == [620.0, 620.0]
    assert all("2.00 ms from" in hover for hover in done["hovertext"])


def test_a_hang_without_times_is_not_drawn() -> None:
    called = calls_of(("all_reduce", DONE), ("all_reduce", {"state": "started"}))
    assert hung.draw_hang(judge_trace(made(called, called[:1]))) is None


def test_without_times_there_is_no_timeline() -> None:
    document = view.make_document(judge_trace(trace(*[calls_of("all_reduce")] * 2)))
    assert not any(section.figures for section in document.sections)


def test_no_section_has_an_id_that_the_page_needs_for_itself() -> None:
    found = trace(*TIMED, busy=((0, 5),), steps=((0, 3000),))
    page = html.render_page(view.make_document(judge_trace(found)), "directory")
    ids = re.findall(r'<[^>]* id="([^"]*)"', page)
    assert sorted(ids) == sorted({*ids})


def test_what_a_trace_names_is_text_wherever_it_is_shown() -> None:
    name = "<b>\x1b[31m"
    found = trace(*[calls_of("all_reduce", group=name, span=(0, 9))] * 2, groups={name: (0, 1)})
    document = view.make_document(judge_trace(found))
    text = terminal.render_text(document, 100)
    assert "\x1b" not in text and "<b>" in text
    page = html.render_page(document, "cdn").partition("<main")[2]
    assert "<b>" not in page and "&lt;b&gt;" in page


def test_programs_read_what_people_do() -> None:
    told = view.make_document(judge_trace(made(USUAL, SHORT, USUAL))).values
    assert told["hang"]["ranks"] == [1]
    assert told["hang"]["groups"][0]["waiting"] == [0, 2]
    assert told["schema"] == 1


LAST = calls_of(("all_reduce", DONE), ("broadcast", DONE))
SENDS = [call("send", 8, peer=1, number=at, **DONE) for at in (1, 2)]
RECEIVES = [call("recv", 8, peer=0, number=at, **DONE) for at in (1, 2)]


@pytest.mark.parametrize(
    ("programs", "clause"),
    [
        ((LAST, LAST[:1]), "rank 1 lacks operations on world that others called"),
        ((LAST, []), "rank 1 lacks operations on world that others called"),
        ((LAST, LAST[:1], LAST[:1]), "ranks 1,2 lack operations on world that others called"),
        (([*LAST, *SENDS], [*LAST, *RECEIVES[:1]]), "1 message lacks its other half"),
        ((SENDS, []), "2 messages lack their other half"),
    ],
)
def test_ranks_that_lack_calls_of_others_are_named_and_no_job_without_them_is_fine(
    programs: Sequence[Sequence[Call]], clause: str
) -> None:
    """As where a root is through with a broadcast that another rank never called."""
    judged = judge_trace(made(*programs))
    assert judged.hang is None and judged.is_undecided
    assert view.make_headline(judged) == (
        f"{clause}: nothing in the trace hangs or disagrees, but it does not tell whether these"
        " calls were made",
        "notice",
    )


def test_a_profile_that_was_taken_for_less_long_is_told_and_leaves_no_hang_open() -> None:
    profiled = [call(span=(at, at + 9)) for at in range(0, 100, 10)]
    judged = judge_trace(trace(profiled, profiled[:4]))
    head = view.make_headline(judged)
    assert head.text.startswith("rank 1 lacks operations on world") and head.weight == "notice"
    assert not judged.is_undecided


def test_a_rank_that_is_late_and_lacks_calls_is_told_both() -> None:
    programs = [*TIMED[:2], TIMED[2][:-1]]
    assert view.make_headline(judge_trace(trace(*programs))).text == (
        "rank 2 comes last to 29 of 29 operations of world (0-2), and costs 2.03 µs of waiting;"
        " rank 2 lacks operations on world that others called"
    )


@pytest.mark.parametrize("why", EARLIER)
def test_calls_lost_before_all_others_lack_nowhere(why: str) -> None:
    early, late = [*SENDS, *LAST], [*RECEIVES[1:], *LAST]
    found = made(early, late)
    overwritten = replace(found.ranks[1], lost=(Lost(why, calls=9),))
    judged = judge_trace(replace(found, ranks=(found.ranks[0], overwritten)))
    assert view.make_headline(judged).weight == "good"


def test_a_send_to_a_receive_from_anybody_lacks_nothing() -> None:
    judged = judge_trace(made([*LAST, *SENDS], [*LAST, *(replace(r, peer=-1) for r in RECEIVES)]))
    assert view.make_headline(judged).weight == "good"


@pytest.mark.parametrize("number", [1, -1])
def test_collectives_of_a_messages_number_are_not_shown_as_those_around_it(number: int) -> None:
    done = [replace(each, issued_ns=NOON) for each in LAST]
    waits = call("recv", peer=1, number=number, **IN)
    found = made([*done, waits], done)
    told = judge_trace(found)
    assert told.hang and told.hang.fronts[0].is_message
    assert "calls" not in tables(found)
    assert hung.draw_hang(told) is None
