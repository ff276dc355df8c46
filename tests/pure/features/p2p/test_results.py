"""What runs of transfers come to, from made-up times."""

from __future__ import annotations

from typing import Any

import pytest
from factories import make_file, world
from msgspec.structs import replace

from collbench.core.errors import Exit
from collbench.features.p2p.command import _show_run
from collbench.features.p2p.measurable import TRANSFERS, Transfer, TransferRequest
from collbench.features.p2p.results import flatten_result, list_results
from collbench.features.p2p.view import make_document, make_section
from collbench.records.types import Record, RunFile
from collbench.show import markdown, terminal
from collbench.show.views.series import make_view
from collbench.suite.sweep import Axes, Suite

US = 1000  # ns


def subject(pattern: str, nbytes: int = 1000, ranks: int = 4, pairs: str = "all") -> Transfer:
    request = TransferRequest(pattern=pattern, nbytes=nbytes, pairs=pairs)
    return TRANSFERS.resolve(request, ranks, True, ["gloo"])


def measured(*subjects: Transfer, took: int = 10 * US, **fields: Any) -> RunFile:
    """A run in which a message of each takes so many ns, 100 of them a sample."""
    ranks = subjects[0].world
    axes = Axes(collectives=(), sizes=(), ranks=(ranks,), backends=("gloo",))
    suite = Suite(name="p2p", axes=axes, subjects=subjects)
    cases, _ = suite.expand()
    given = {"status": "ok", "times_ns": [100 * took] * 30, "inner": 100, "sync": "window"}
    records = [Record(case=case, **{**given, **fields}, world=0) for case in cases]
    return make_file(records, [world(n=ranks)], suite=suite)


NUMBERS = {  # of 1000 B in 10 us among 4 ranks: GB/s of a pair, of all, messages a second
    "ping-pong": (0.1, 0.2, 2e5),
    "one-way": (0.1, 0.2, 2e5),
    "both-ways": (0.1, 0.4, 4e5),
    "window:16": (0.1, 0.2, 2e5),
    "rate:8": (0.1, 0.2, 2e5),
    "incast": (0.3, 0.3, 3e5),
    "outcast": (0.3, 0.3, 3e5),
}


@pytest.mark.parametrize("pattern", NUMBERS)
def test_bandwidth_and_rate_by_hand(pattern: str) -> None:
    (result,) = list_results(measured(subject(pattern)))
    values = flatten_result(result)
    told = values["bandwidth_gbs"], values["total_gbs"], values["messages_per_s"]
    assert told == pytest.approx(NUMBERS[pattern])
    assert values["time_us"] == pytest.approx(10)


def test_only_times_of_a_message_from_end_to_end_are_latencies() -> None:
    latencies = {
        pattern: flatten_result(list_results(measured(subject(pattern)))[0])["latency_us"]
        for pattern in NUMBERS
    }
    known = {pattern for pattern, value in latencies.items() if value is not None}
    assert known == {"ping-pong"}
    assert latencies["ping-pong"] == pytest.approx(10)


def test_busbw_of_a_row_is_that_of_the_busiest_port() -> None:
    for pattern, expected in {"ping-pong": 0.1, "both-ways": 0.1, "incast": 0.3}.items():
        (result,) = list_results(measured(subject(pattern)))
        derived = result.rows[0].derived
        assert derived and derived.busbw == pytest.approx(expected)


def test_results_are_read_by_pattern_and_size() -> None:
    file = measured(*(subject(p, n) for n in (1000, 10) for p in ("window:8", "ping-pong")))
    told = [(result.transfer.label, result.case.nbytes) for result in list_results(file)]
    assert told == [("ping-pong", 10), ("ping-pong", 1000), ("window:8", 10), ("window:8", 1000)]


def test_launches_of_a_case_are_one_result() -> None:
    file = measured(subject("ping-pong"))
    again = replace(file.records[0], world=1, times_ns=[3000 * US] * 30)
    file = replace(file, records=[*file.records, again], worlds=[world(), world(index=1)])
    (result,) = list_results(file)
    assert flatten_result(result)["launches"] == 2
    assert result.median == pytest.approx(20 * US)


def test_wrong_data_has_no_time_and_says_why() -> None:
    file = measured(subject("ping-pong"), status="wrong", times_ns=[], inner=1, note="3 wrong")
    (result,) = list_results(file)
    values = flatten_result(result)
    assert values["time_us"] is None and values["messages_per_s"] is None
    assert values["note"] == "wrong: 3 wrong"
    assert "wrong: 3 wrong" in terminal.render_text(make_document(file))


WRONG = {"status": "wrong", "times_ns": [], "inner": 1, "note": "3 wrong", "wrong": 3}


def add_records(file: RunFile, *changes: dict[str, Any]) -> RunFile:
    """The run with its record again, with changes: each of another launch, or cycle."""
    more = [replace(file.records[0], **change) for change in changes]
    worlds = [world(n=4), *(world(n=4, index=record.world) for record in more if record.world)]
    return replace(file, records=[*file.records, *more], worlds=worlds)


def test_wrong_data_of_a_later_launch_is_said_beside_the_time() -> None:
    file = add_records(measured(subject("ping-pong")), {"world": 1, **WRONG}, {"world": 2, **WRONG})
    (result,) = list_results(file)
    values = flatten_result(result)
    assert values["time_us"] == pytest.approx(10)
    assert (values["status"], values["wrong"]) == ("wrong", 6)
    assert values["note"] == "wrong: 3 wrong"
    assert "wrong: 3 wrong" in terminal.render_text(make_document(file))


def test_wrong_data_of_a_later_cycle_of_a_launch_is_said() -> None:
    file = measured(subject("ping-pong"))
    again = {"case": replace(file.records[0].case, cycle=1), **WRONG}
    (result,) = list_results(add_records(file, again))
    assert len(result.rows) == 1
    assert flatten_result(result)["wrong"] == 3 and result.problem == "wrong: 3 wrong"


def test_a_run_with_wrong_data_in_any_launch_ends_with_7() -> None:
    file = measured(subject("ping-pong"))
    assert _show_run(file, "json") == Exit.OK
    assert _show_run(add_records(file, {"world": 1, **WRONG}), "json") == Exit.WRONG_DATA


def test_the_interval_is_told_by_its_wider_half() -> None:
    (result,) = list_results(measured(subject("ping-pong")))
    assert result.time
    result = result._replace(time=result.time._replace(median=10.0, lo=7.0, hi=12.0))
    assert result.half_width == pytest.approx(0.3)


def test_what_was_skipped_is_said_with_the_reason() -> None:
    file = measured(subject("ping-pong"), status="skipped", times_ns=[], inner=1, note="no room")
    text = terminal.render_text(make_document(file))
    assert "1 skipped: no room" in text and not list_results(file)


def test_flags_are_explained_below_the_table() -> None:
    file = measured(subject("ping-pong"), times_ns=[1000 * US] * 3)
    text = terminal.render_text(make_document(file))
    assert "n<6" in text and "flagged: n<6 (1): fewer than 6 samples" in text


def test_nothing_measured_is_said() -> None:
    assert "no transfer was measured" in terminal.render_text(make_document(make_file([])))


def test_planted_faults_are_said_first() -> None:
    file = measured(subject("ping-pong"))
    policy = replace(file.run.policy, inject="corrupt:1")
    text = terminal.render_text(make_document(replace(file, run=replace(file.run, policy=policy))))
    assert "corrupt:1" in text.splitlines()[0] + text.splitlines()[1]


def test_the_table_says_what_times_are_of() -> None:
    text = markdown.render_markdown(make_document(measured(subject("incast"))))
    assert "until rank 0 has a message of every other rank and has acknowledged each" in text
    assert "0.30" in text and "300 K" in text


def test_a_report_has_a_table_and_figures() -> None:
    file = measured(*(subject("window:8", nbytes) for nbytes in (64, 1024)))
    section = make_section(make_view([file]))
    assert section and len(section.tables) == 1 and len(section.figures) == 2
    by_name = {figure.name: figure.data[0] for figure in section.figures}
    assert by_name["p2p-0-bandwidth"]["x"] == [64, 1024]
    assert by_name["p2p-0-bandwidth"]["y"] == pytest.approx([0.0064, 0.1024])


def test_a_report_without_transfers_has_no_section() -> None:
    assert make_section(make_view([make_file([])])) is None
