"""What a history says of a night: which rows are looked up, by which smallest change, and nothing
of later nights."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import ENVIRONMENT, NIGHTLY, case, dated
from msgspec.structs import replace

from collbench.cli import main as commands
from collbench.core.errors import UsageError
from collbench.features.health import command, history
from collbench.features.health.checks import past
from collbench.features.health.checks.hosts import CheckResult
from collbench.features.health.findings import Finding
from collbench.features.health.history import baselines
from collbench.features.health.history.baselines import Baseline, Level
from collbench.features.health.history.command import PartOptions
from collbench.features.health.history.nights import Review
from collbench.features.health.history.outlook import make_outlook
from collbench.features.health.history.selection import select_rows
from collbench.features.health.history.storage import Book
from collbench.features.health.night import Night
from collbench.records.types import RunFile
from collbench.suite.case import Case
from collbench.suite.sweep import Part, Threshold

ROWS = [case(1 << 20), case(2 << 20)]


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    with history.open_book(str(tmp_path / "h.sqlite")) as opened:
        yield opened


def level(number: int, factor: float, *rows: Case, **fields: object) -> RunFile:
    """A night at so many times 1 ms, give or take 1 in 1,000."""
    return dated(
        number, dict.fromkeys(rows or ROWS, 1e6 * factor * (1 + 0.001 * (-1) ** number)), **fields
    )


def told(book: Book, *files: RunFile, machine: str = "") -> list[Finding]:
    known = past.add_night(book, files, machine)
    looked = past.check_past(known, None, Night(files))
    assert not looked.missing
    return looked.findings


def test_a_night_between_two_modes_is_told_with_its_median(book: Book) -> None:
    """Which the history holds, though nothing else of health rests on such launches."""
    for number in range(10):
        book.add(level(number, 1.0))
    slow = level(10, 3.0)
    modes = [2_900_000] * 20 + [3_000_000] + [3_100_000] * 20
    records = [replace(one, times_ns=[t + i for i, t in enumerate(modes)]) for one in slow.records]
    (first, *_) = told(book, replace(slow, records=records))
    assert first.evidence[0].value == "3.00 ms"


def test_a_row_whose_alignment_changed_is_judged_against_nights_measured_alike(book: Book) -> None:
    """Alignment changes the blocks of a divided buffer, which is another row then; of a whole
    buffer it changes nothing."""
    divided, whole = case(1 << 20, collective="all_gather", op="none"), case(1 << 20)
    for number in range(20):
        align, time = (1, 1e6) if number < 10 else (16, 1.5e6)
        book.add(
            dated(number, {replace(divided, align=align): time, replace(whole, align=align): 1e6})
        )
    found = told(book, level(20, 2.5, *(replace(one, align=16) for one in (divided, whole))))
    slower = [one for one in found if one.since == "tonight"]
    assert [one.subject.name.split()[0] for one in slower] == ["all_gather", "all_reduce"]
    assert (
        "than in the last 10 nights" in slower[0].what
        and "than in the last 20 nights" in slower[1].what
    )
    rows = {
        (row.case.collective, row.case.align): [part.why for part in row.segments]
        for row in book.series("node1")
    }
    aligns = [("all_gather", 1), ("all_gather", 16), ("all_reduce", 1)]
    assert rows == {row: ["first night"] for row in aligns}


@pytest.mark.parametrize(("tau", "severities"), [(0.0, ["warning"]), (0.2, [])])
def test_a_threshold_of_any_run_of_the_night_holds_for_what_stands(
    book: Book, tau: float, severities: list[str]
) -> None:
    other = case(64, collective="broadcast", op="none", root=0)
    thresholds = (Threshold(match=Part(collectives=("all_reduce",)), tau=tau),)
    for number in range(30):
        first = level(number, 1.0, other, name=f"first-{number}")
        second = level(
            number, 1.12 if number >= 10 else 1.0, suite=replace(NIGHTLY, thresholds=thresholds)
        )
        book.add(first)
        book.add(second)
    found = told(book, first, second)
    assert [one.severity for one in found] == severities and all(
        one.since == "2026-01-11" for one in found
    )


def test_a_change_and_creep_matter_by_the_rows_own_smallest_change(book: Book) -> None:
    for number in range(30):
        book.add(level(number, 1.08 if number >= 15 else 1.0))
    rows = book.series("node1")
    one, two = (row.key for row in rows)

    def changed(*taus: float) -> bool:
        return bool(
            make_outlook("node1", rows, taus=dict(zip((one, two), taus, strict=True))).changed
        )

    assert (
        changed(0.05, 0.05)
        and changed(0.05, 0.10)
        and not changed(0.05, 0.12)
        and not changed(0.10, 0.10)
    )
    late = [replace(row, nights=row.nights[15:]) for row in rows]
    anchor = Review("2026-01-01", "as measured", False, math.log(1e6), rows[0].nights[0])
    late, rows = ([replace(row, reviews=[anchor]) for row in part] for part in (late, rows))
    assert list(make_outlook("node1", late, taus={one: 0.03, two: 0.05}).creeping) == [one]
    unexplained = make_outlook("node1", rows, taus={one: 0.03, two: 0.2})
    assert not unexplained.changed and list(unexplained.creeping) == [one]


def test_an_older_night_is_judged_by_what_was_known_then(book: Book) -> None:
    files = [level(number, 1.2 if number >= 20 else 1.0) for number in range(40)]
    for file in files:
        book.add(file)
    levels = {row.key: Level(5e5, 3) for row in book.series("node1")}
    later = {"reason": "faster", "commit": "", "who": "me", "when": "2026-02-01T00:00:00+00:00"}
    book.accept(Baseline(machine="node1", begins="2026-01-30", accepted=True, rows=levels, **later))
    assert told(book, files[15]) == [] and {one.since for one in told(book, files[26])} >= {
        "2026-01-21"
    }
    whole = past.add_night(book, [files[15]]).outlook
    assert (
        len(whole.days) == 16
        and whole.days[-1] == "2026-01-16"
        and not whole.shifts
        and not whole.creeping
    )
    assert past.add_night(book, [files[39]]).outlook.creeping  # then, it holds


@pytest.mark.parametrize("is_creep", [False, True])
def test_the_advised_command_accepts_just_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_creep: bool
) -> None:
    """In this history, of this machine: of two, neither is the one of this host."""
    slower = [case(1 << 20), case(2000 << 10)][: 1 if is_creep else 2]
    others = [case(4 << 20), case(1 << 20, "broadcast"), case(1 << 20, backend="mpi")]
    url = tmp_path / "of nights.sqlite"
    with history.open_book(str(url)) as book:
        for number in range(40):
            grown = 1.004**number if is_creep else 1.2 if number >= 20 else 1.0
            times = {**dict.fromkeys(slower, 1e6 * grown), **dict.fromkeys(others, 1e6)}
            book.add(file := dated(number, times), "rack 7")
            book.add(dated(number, times, name=f"other-{number}"), "rack 8")
        (finding,) = told(book, file, machine="rack 7")
    assert ("crept" in finding.what) == is_creep
    show, accept = finding.advice.split("; if the change is intended, accept it: ")
    monkeypatch.chdir(tmp_path)
    for line in (show.removesuffix(" shows what changed when"), accept):
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as ended:
            commands.main()
        assert not ended.value.code
    with history.open_book(str(url)) as book:
        (baseline,) = book.baselines("rack 7")
    assert sorted(baseline.rows) == sorted(what.key for what in slower)
    assert (baseline.begins, baseline.accepted) == (
        "2026-02-03" if is_creep else "2026-01-21",
        True,
    )


def test_rows_of_other_tables_are_selected_by_their_names() -> None:
    part = case(8, "p2p_ping_pong", subject="ping-pong of 8 B", backend="gloo", n=2)
    words = shlex.split(select_rows([part]))
    selected = PartOptions(only=[words[1]], minbytes=words[3], maxbytes=words[5]).select()
    assert part in selected and case(8) not in selected


def test_hints_name_the_history_that_was_given(tmp_path: Path) -> None:
    url = str(tmp_path / "x.sqlite")
    with pytest.raises(UsageError) as refused:
        history.open_book(url, reading=True)
    assert refused.value.hint == f"collbench history add @last --history {url} begins one"
    other = level(8, 1.0, suite=replace(NIGHTLY, tags=()), name="other")
    check, _ = command.check_earlier([other], url, False, None, "rack 7")
    add = f"collbench history add other --history {url} --machine 'rack 7' keeps it"
    assert add in check.look(Night([other])).missing
    with history.open_book(url) as book, pytest.raises(UsageError) as refused:
        book.find_machine("other")
    assert f"add other --history {url} keeps it" in refused.value.hint
    with history.open_book(url) as book:
        book.add(level(1, 1.0))
        selection = book.select("node1")
        assert selection == f" --history {url}"
        book.add(level(2, 1.0), "node2")
        assert book.select("node1") == f" --history {url} --machine node1"
        with pytest.raises(UsageError) as refused:
            baselines.learn_baseline(book.series("node1"), "x", "", selection)
    assert refused.value.hint == f"collbench history list{selection} shows why"


def test_nights_of_hosts_whose_names_change_are_of_the_machine_named(book: Book) -> None:
    for number in range(8):
        book.add(level(number, 1.0), "rack 7")
    one, two = told(book, level(8, 1.5), machine="rack 7")
    assert one.since == two.since == "tonight" and book.machines() == ["rack 7"]


def test_a_run_that_is_kept_under_another_machine_is_not_judged_as_of_the_one_given(
    book: Book,
) -> None:
    tonight = level(8, 1.0)
    book.add(tonight)
    with pytest.raises(UsageError, match="added as a run of node1, and --machine names rack 7"):
        past.add_night(book, [tonight], "rack 7")


def test_a_run_is_judged_against_nights_of_the_machine_under_which_it_is_kept(book: Book) -> None:
    for number in range(8):
        book.add(level(number, 1.0), "rack 7")
    slow = level(8, 1.5)
    book.add(slow, "rack 7")
    assert [finding.since for finding in told(book, slow)] == ["tonight"] * 2


def alternating(number: int, loss: float) -> RunFile:
    """Nights of two versions of torch by turns, the newer 15 % slower, and by ``loss`` more from
    the sixteenth night on."""
    torch = ("2.6.0", "2.7.0")[number % 2]
    facts = ENVIRONMENT | {"host": "node1", "libraries": {"torch": torch}}
    factor = (1.15 if number % 2 else 1.0) * (1 + loss * (number % 2 and number >= 16))
    wobble = 1 + 0.002 * (number // 2 % 3)
    return dated(number, dict.fromkeys(ROWS, 1e6 * factor * wobble), environment=facts)


def test_a_loss_in_one_of_two_ways_by_turns_is_found_and_named_with_its_way(book: Book) -> None:
    for number in range(29):
        book.add(alternating(number, 0.1))
    findings = told(book, alternating(29, 0.1))
    (finding,) = [each for each in findings if each.severity == "warning"]
    assert finding.since == "2026-01-18"
    assert "longer with libraries.torch 2.7.0" in finding.what


@pytest.mark.parametrize(("last", "is_advised"), [(28, False), (29, True)])
def test_a_command_that_accepts_is_advised_of_the_way_measured_last_only(
    book: Book, last: int, is_advised: bool
) -> None:
    """As it accepts that one, which on the other nights has not changed."""
    for number in range(last):
        book.add(alternating(number, 0.1))
    findings = told(book, alternating(last, 0.1))
    (finding,) = [each for each in findings if each.severity == "warning"]
    assert "with libraries.torch 2.7.0" in finding.what
    assert ("baseline accept" in finding.advice) == is_advised
    assert ("after the next night with libraries.torch 2.7.0" in finding.advice) != is_advised


def test_creep_of_a_way_is_accepted_after_a_night_of_it(book: Book) -> None:
    for number in range(25):
        book.add(alternating(number, 0.0))
        if number == 11:
            review(book, 1e6, accepted=False)
    newer, older = told(book, alternating(25, 0.0)), told(book, alternating(26, 0.0))
    for findings, is_advised in ((older, False), (newer, True)):
        advice = [each.advice for each in findings if "crept" in each.what]
        assert len(advice) == 2
        assert all(("baseline accept" in each) == is_advised for each in advice)


def test_of_an_older_night_the_command_is_by_what_was_measured_since(book: Book) -> None:
    for number in range(31):
        book.add(alternating(number, 0.1))
    findings = told(book, alternating(29, 0.1))
    (finding,) = [each for each in findings if each.severity == "warning"]
    assert "after the next night with libraries.torch 2.7.0" in finding.advice


def test_healthy_nights_of_two_ways_by_turns_find_nothing(book: Book) -> None:
    for number in range(29):
        book.add(alternating(number, 0.0))
    assert told(book, alternating(29, 0.0)) == []


def test_a_slow_night_of_one_way_is_held_against_its_own_nights(book: Book) -> None:
    """A tenth slower than its own way, and still quicker than the other."""
    for number in range(28):
        book.add(alternating(number, 0.0))
    slow = alternating(28, 0.0)
    records = [replace(r, times_ns=[round(1.1 * t) for t in r.times_ns]) for r in slow.records]
    finding, *_ = told(book, replace(slow, records=records))
    assert "with libraries.torch 2.6.0" in finding.what


NEWER = "libraries.torch 2.7.0"


def review(book: Book, median: float, accepted: bool) -> None:
    """Review both rows in the morning after night 11, of the newer torch; the next night has the
    date of that day for its name."""
    levels = {row.key: Level(median, 5) for row in book.series("node1")}
    why = {"reason": "new switch", "commit": "", "who": "me"}
    when = "2026-01-13T09:00:00+00:00"
    begins = "2026-01-12" if accepted else "2026-01-02"
    book.accept(
        Baseline(machine="node1", begins=begins, accepted=accepted, rows=levels, when=when, **why)
    )


def test_a_level_is_of_the_way_of_the_night_before_its_review(book: Book) -> None:
    for number in range(25):
        book.add(alternating(number, 0.0))
        if number == 11:
            review(book, 1e6, accepted=False)  # below the newer, that of the older
    creeping = past.add_night(book, [alternating(25, 0.0)]).outlook.creeping
    assert len(creeping) == 2
    assert all(NEWER in name for name in creeping)


def test_an_accepted_level_leaves_the_other_way_its_past(book: Book) -> None:
    for number in range(12):
        book.add(alternating(number, 0.0))
    review(book, 1.15e6, accepted=True)
    older, newer = alternating(12, 0.0), alternating(13, 0.0)
    known = past.add_night(book, [older])
    looked = past.check_past(known, None, Night([older]))
    assert looked.note == "2 rows against up to 30 nights"
    known = past.add_night(book, [newer])
    assert "needs 5 earlier nights" in past.check_past(known, None, Night([newer])).missing
    begun = {(NEWER in row.way, part.why) for row in known.outlook.series for part in row.segments}
    assert (True, "accepted: new switch") in begun
    assert (False, "accepted: new switch") not in begun


def checked(book: Book, file: RunFile, fresh: past.Fresh | None = None) -> CheckResult:
    return past.check_past(past.add_night(book, [file]), fresh, Night([file]))


def test_a_night_of_fewer_ranks_is_not_healthy(book: Book) -> None:
    """Its own rows are new and learn."""
    for number in range(8):
        book.add(level(number, 1.0))
    seen = checked(book, level(8, 1.0, *(replace(row, n=3) for row in ROWS)))
    assert "needs 5 earlier nights" in seen.missing
    (finding,) = seen.findings
    assert (finding.severity, finding.subject.name) == ("warning", "4 ranks of gloo")


def started(number: int, factor: float, scheme: str, *late: Case) -> RunFile:
    """A night of ROWS, of which these were started in another way."""
    file = level(number, factor)
    records = [replace(r, sync=scheme) if r.case in late else r for r in file.records]
    return replace(file, records=records)


def test_a_row_whose_ranks_came_late_is_not_judged_and_does_not_learn(book: Book) -> None:
    for number in range(8):
        book.add(level(number, 1.0))
    seen = checked(book, started(8, 1.0, "barrier", ROWS[0]))
    assert seen.note.endswith("; 1 row not judged: ranks came late to many starts")
    (finding,) = seen.findings
    assert finding.severity == "hint"
    assert "not held against 8 nights that started by windows" in finding.what
    whole = checked(book, started(9, 1.3, "barrier", *ROWS))
    assert whole.lacks == past.EARLIER_NIGHTS
    assert "2 rows not judged: ranks came late" in whole.missing


def launch(number: int, scheme: str) -> RunFile:
    """One launch of night 8, as a run of its own has it under a launcher."""
    medians = dict.fromkeys(ROWS, 1e6)
    file = dated(8, medians, launches=1, name=f"launch-{number}")
    return replace(file, records=[replace(record, sync=scheme) for record in file.records])


@pytest.mark.parametrize(
    ("schemes", "lacks"),
    [
        (["window", "barrier", "window", "window"], ""),
        (["window", "barrier", "window", "barrier"], past.EARLIER_NIGHTS),
    ],
)
def test_of_launches_started_in_two_ways_those_are_judged_that_are_enough(
    book: Book, schemes: list[str], lacks: str
) -> None:
    for number in range(8):
        book.add(level(number, 1.0))
    files = [launch(number, scheme) for number, scheme in enumerate(schemes)]
    seen = past.check_past(past.add_night(book, files), None, Night(files))
    assert seen.lacks == lacks
    assert (seen.note == "2 rows against up to 30 nights") == (not lacks)


def test_rows_that_are_started_otherwise_on_purpose_learn(book: Book) -> None:
    for number in range(8):
        book.add(level(number, 1.0))
    file = started(8, 1.0, "barrier", *ROWS)
    asked = replace(file.run, policy=replace(file.run.policy, sync="barrier"))
    seen = checked(book, replace(file, run=asked))
    assert (seen.lacks, list(seen.findings)) == ("", [])
    assert "needs 5 earlier nights" in seen.missing


def test_a_night_of_which_nothing_can_be_judged_lacks_the_earlier_nights(book: Book) -> None:
    for number in range(4):
        book.add(level(number, 1.0))
    few = lambda number: dated(number, dict.fromkeys(ROWS, 1e6), launches=2)
    assert checked(book, few(4)).lacks == ""  # there are too few nights to judge by
    for number in (5, 6):
        book.add(level(number, 1.0))
    seen = checked(book, few(7))
    assert seen.lacks == past.EARLIER_NIGHTS
    assert seen.missing == "2 rows not judged: 2 of 3 launches, beside 6 earlier nights"


def test_fresh_launches_between_two_modes_confirm_as_nights_have_them(book: Book) -> None:
    for number in range(8):
        book.add(level(number, 1.0))
    modes = [2_700_000] * 20 + [3_300_000] * 21
    slow = level(8, 3.0)
    records = [replace(one, times_ns=[t + i for i, t in enumerate(modes)]) for one in slow.records]
    slow = replace(slow, records=records)
    again = Night([replace(slow, run=replace(slow.run, id="again"))])
    assert not again.fit  # the median rests on no launch between two modes
    findings = checked(book, slow, lambda _: again).findings
    assert [finding.severity for finding in findings] == ["warning"] * 2
    assert "and again in 3 fresh launches" in findings[0].what


def test_fresh_launches_that_were_started_otherwise_confirm_and_acquit_nothing(book: Book) -> None:
    """Nights by windows cannot be held against launches by barriers."""
    for number in range(8):
        book.add(level(number, 1.0))
    for factor, scheme in [(3.0, "barrier"), (1.0, "barrier"), (3.0, "window")]:
        again = Night([started(8, factor, scheme, *ROWS)])
        again.files[0] = replace(again.files[0], run=replace(again.files[0].run, id="again"))
        findings = checked(book, level(8, 3.0), lambda _, again=again: again).findings
        severity = "warning" if scheme == "window" else "hint"
        assert [finding.severity for finding in findings] == [severity] * 2
        assert scheme == "window" or "with 0 launches that count" in findings[0].what


def check_history(book_path: Path, *files: RunFile) -> tuple[CheckResult, bool]:
    """What the check of a command says of these runs, and whether it shows their rows' nights."""
    check, outlook = command.check_earlier(files, str(book_path), False, None)
    return check.look(Night(files)), outlook is not None


def test_a_run_that_is_no_night_leaves_the_others_judged_and_is_named(
    book: Book, tmp_path: Path
) -> None:
    for number in range(8):
        book.add(level(number, 1.0))
    other = level(8, 1.0, suite=replace(NIGHTLY, tags=()), name="other")
    empty = replace(level(8, 1.0, name="empty"), records=[])
    seen, has_outlook = check_history(tmp_path / "h.sqlite", level(8, 3.0), other, empty)
    assert seen.note.startswith("2 rows against up to 30 nights; other is not kept: its suite")
    assert seen.note.endswith("keeps it; empty measured nothing")
    assert [finding.severity for finding in seen.findings] == ["hint"] * 2
    assert has_outlook
    assert not book.holds("other")


def test_a_run_that_measured_nothing_is_not_told_to_do_without_history(tmp_path: Path) -> None:
    empty = replace(level(8, 1.0, name="empty"), records=[])
    seen, _ = check_history(tmp_path / "h.sqlite", empty)
    assert (seen.missing, seen.lacks) == ("empty measured nothing", "")


def with_ports(
    number: int, rates: dict[str, int], host: str = "node1", state: str = "4: ACTIVE"
) -> RunFile:
    """A night of a host whose ports have these rates in Gb/s."""
    ports = {
        name: {"rate": f"{rate} Gb/sec", "state": state, "firmware": "28.39"}
        for name, rate in rates.items()
    }
    facts = ENVIRONMENT | {"host": host, "rdma": ports}
    return level(number, 1.0, environment=facts, name=f"{host}-{number:03d}")


def test_a_port_that_was_faster_in_earlier_nights_is_told(book: Book) -> None:
    """And one of storage, which is as slow as ever, is not."""
    usual = {"mlx5_0:1": 400, "mlx5_1:1": 400, "mlx5_2:1": 200}
    for number in range(8):
        book.add(with_ports(number, usual))
    assert checked(book, with_ports(8, usual)).findings == []
    (finding,) = checked(book, with_ports(9, usual | {"mlx5_1:1": 200})).findings
    assert (finding.severity, finding.subject.name) == ("warning", "node1: mlx5_1:1")
    assert finding.what == "runs at 200 Gb/s, and ran at 400 Gb/s in earlier nights"
    assert finding.advice.endswith("it is the port's usual rate after 5 nights")
    assert finding.sure is None


def test_a_port_of_a_node_that_has_its_like_is_told(book: Book) -> None:
    """Their environment is kept once, with the name of the first."""
    for number in range(8):
        for host in ("node0", "node1"):
            book.add(with_ports(number, {"mlx5_0:1": 400}, host), host)
    looked = past.add_night(book, [with_ports(9, {"mlx5_0:1": 200})], "node1")
    (finding,) = past.check_past(looked, None, Night([with_ports(9, {"mlx5_0:1": 200})])).findings
    assert finding.subject.name == "node1: mlx5_0:1"


def test_a_slower_port_is_usual_after_five_nights(book: Book) -> None:
    nights = [with_ports(number, {"mlx5_0:1": 400 if number < 20 else 200}) for number in range(27)]
    told_nights = [number for number, file in enumerate(nights) if checked(book, file).findings]
    assert told_nights == [20, 21, 22, 23, 24]


@pytest.mark.parametrize("rate", [0, 10, 200, 400])
@pytest.mark.parametrize("state", ["4: ACTIVE", "1: DOWN"])
def test_a_port_that_is_down_was_up(book: Book, state: str, rate: int) -> None:
    """Whatever rate it reports then: that of a link that is not there."""
    for number in range(8):
        book.add(with_ports(number, {"mlx5_0:1": 200}, state=state))
    findings = checked(book, with_ports(8, {"mlx5_0:1": rate}, state="1: DOWN")).findings
    was_up = state == "4: ACTIVE"
    assert [f.what for f in findings] == ["is down, and was up in earlier nights"] * was_up
    shown = [(f.evidence[0].value, f.evidence[0].expected) for f in findings]
    assert shown == [(f"1: DOWN, {rate} Gb/sec", "ACTIVE, 200 Gb/s")] * was_up
