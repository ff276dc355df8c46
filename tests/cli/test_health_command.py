"""`collbench health`: what it writes, how it exits, whom it calls, and what it makes of earlier
nights."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from factories import ENVIRONMENT, NIGHTLY, SUITE, night, nightly, ranks, saved
from forked import Server

from collbench.cli import main as commands
from collbench.cli import outputs
from collbench.core.errors import CannotRun, Exit, NoVerdict, RunBroken
from collbench.features.health import command as health
from collbench.features.health import night as judging
from collbench.features.health.locate.command import RefuseHosts
from collbench.features.health.night import Night
from collbench.machine import environment
from collbench.machine.load import Load
from collbench.records import run_file
from collbench.records.types import Record, RunFile, World
from collbench.suite.case import Case

ROWS = [
    case
    for case in nightly()
    if case.collective in ("all_reduce", "all_gather", "reduce_scatter", "sendrecv")
]
ROW = ROWS[2]  # all_reduce 1 MiB
replace = msgspec.structs.replace

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """Runs the command in this process: its exit code, standard output and standard error."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["collbench", "health", *args])
        with pytest.raises(SystemExit) as ended:
            commands.main()
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def kept(home: Path, name: str = "20260102-night", **fields: Any) -> RunFile:
    """A night among the saved runs."""
    made = night(rows=ROWS, **fields)
    made = replace(made, run=replace(made.run, id=name))
    saved(made, home)
    return made


def test_a_healthy_night_exits_0_and_writes_every_file(
    said: Said, home: Path, tmp_path: Path
) -> None:
    kept(home)
    files = [tmp_path / f"night{suffix}" for suffix in outputs.SUFFIXES if suffix != ".parquet"]
    code, out, _ = said(
        "@last", "--no-history", "--title", "Rack 7", *(f"-o{path}" for path in files)
    )
    assert code == Exit.OK and "healthy: " in out and "no data" in out
    text = {path.suffix: path.read_text() for path in files}
    assert json.loads(text[".json"])["state"] == "healthy"
    assert ElementTree.fromstring(text[".xml"])[0].get("failures") == "0"
    assert 'collbench_health_state{state="healthy"} 1' in text[".prom"]
    assert '"name":"collbench.health.state"' in text[".otlp"]
    assert (
        "# Rack 7" in text[".md"]
        and "<h1>Rack 7</h1>" in text[".html"]
        and 'id="bandwidth"' in text[".html"]
    )


@pytest.mark.parametrize(
    ("machine", "wanted", "severity", "code", "words"),
    [
        ("^node", 0.001, "critical", Exit.OK, "1 rows set against 1 curves"),
        ("^node", 1000, "critical", Exit.BAD, "of what is expected of such machines (acceptance"),
        ("^node", 1000, "warning", Exit.BAD, "of what is expected of such machines (acceptance"),
        ("^node", 1000, "hint", Exit.OK, "of what is expected of such machines (acceptance"),
        ("^rack", 0.001, "critical", Exit.NO_VERDICT, "no figures are known of 4 x 1 CPU ranks"),
        ("(", 1, "hint", Exit.USAGE, "line 2, machine"),
    ],
)
def test_a_night_against_a_table_of_ones_own(
    said: Said, home: Path, machine: str, wanted: float, severity: str, code: int, words: str
) -> None:
    kept(home)
    table = home / "expected.toml"
    table.write_text(
        f"""[[curve]]
        machine = "{machine}"
        gpus = 1
        nodes = 4
        points = {{ "1M" = {wanted} }}
        severity = "{severity}"
        source = "acceptance test"
        day = 2026-01-01
        """
    )
    ended, out, err = said("--no-history", "--format", "json", "--expect", str(table))
    assert ended == code and words in out + err


def test_a_critical_curve_without_a_row_is_no_pass_beside_a_hint(said: Said, home: Path) -> None:
    kept(home)
    table = home / "expected.toml"
    table.write_text(
        "".join(
            f"""[[curve]]
            machine = "^node"
            gpus = 1
            nodes = 4
            collective = "{collective}"
            points = {{ "1M" = 1000 }}
            severity = "{severity}"
            source = "acceptance test"
            day = 2026-01-01
            """
            for collective, severity in (("all_reduce", "hint"), ("broadcast", "critical"))
        )
    )
    code, out, _ = said("--no-history", "--format", "json", "--expect", str(table))
    verdict = json.loads(out)
    (note,) = (check["note"] for check in verdict["checks"] if check["check"] == "expected")
    assert code == Exit.NO_VERDICT and "no row says anything of broadcast" in verdict["summary"]
    assert note.startswith("1 rows set against") and "no row says anything of broadcast" in note


def test_wrong_data_is_unhealthy_and_exits_1(said: Said, home: Path) -> None:
    kept(
        home,
        change=lambda made: replace(made, status="wrong", wrong=1) if made.case == ROW else made,
    )
    code, out, _ = said("--no-history", "--format", "json")
    assert code == Exit.BAD and json.loads(out)["exit"] == Exit.BAD
    assert json.loads(out)["findings"][0]["severity"] == "critical"


@pytest.mark.parametrize(
    ("fields", "code", "word"),
    [
        ({}, 0, "OK"),
        ({"launches": 2}, 3, "UNKNOWN"),
        ({"slower": {ROW: 20.0}}, 1, "WARNING"),
        ({"change": lambda made: replace(made, status="failed", times_ns=[])}, 2, "CRITICAL"),
    ],
)
def test_nagios_has_codes_of_its_own(
    said: Said, home: Path, fields: dict[str, Any], code: int, word: str
) -> None:
    kept_today(home, "20260102-night", environment.host_name(), **fields)
    ended, out, _ = said("--nagios", "--no-history")
    assert ended == code and out.startswith(f"COLLBENCH {word} - ") and out.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "days", "words", "code", "text"),
    [
        ("", 0, (), 0, "OK - "),
        ("", 2, (), 0, "OK - "),
        ("", 3, (), 3, "UNKNOWN - 20260102-night is 3 days old; collbench run nightly measures"),
        ("", 3, ("@last",), 3, "UNKNOWN - 20260102-night is 3 days old"),
        ("another", 0, (), 3, "UNKNOWN - 20260102-night was measured on another; no night of "),
        ("another", 0, ("@last",), 0, "OK - "),
    ],
)
def test_a_plugin_says_unknown_once_this_host_is_no_longer_measured(
    said: Said, home: Path, host: str, days: int, words: Sequence[str], code: int, text: str
) -> None:
    kept_today(home, "20260102-night", host or environment.host_name(), days)
    ended, out, _ = said("--nagios", "--no-history", *words)
    assert ended == code and out.startswith(f"COLLBENCH {text}")


def test_a_plugins_line_names_the_night_as_the_history_does(said: Said, home: Path) -> None:
    kept_today(home, "20260102-night", environment.host_name())
    day = (datetime.now(UTC) - timedelta(hours=12)).date().isoformat()
    assert said("--nagios", "--no-history")[1].startswith(f"COLLBENCH OK - night {day}: ")


def test_a_verdict_has_the_night_of_its_runs(said: Said, home: Path) -> None:
    kept(home, started="2026-12-01T02:17:00+00:00")
    assert json.loads(said("--no-history", "--format", "json")[1])["night"] == "2026-11-30"


def test_a_night_on_a_busy_machine_is_not_healthy_without_that_word(said: Said, home: Path) -> None:
    load = {"node0": Load(1.26, 2), "node1": Load(0.0, 2)}

    def busy(made: Record) -> Record:
        return replace(made, seconds=1.0, load=load)

    kept_today(home, "20260102-night", environment.host_name(), change=busy)
    code, out, _ = said("--no-history", "--format", "line")
    assert code == Exit.OK and "healthy (on a busy machine): " in out
    assert "other processes used 1.3 of 2 CPUs on node0 while measuring" in out
    code, out, _ = said("--no-history", "--format", "json")
    told = json.loads(out)
    assert (code, told["state"], told["busy"][:15]) == (Exit.OK, "healthy", "other processes")
    code, out, _ = said("--no-history", "--nagios")
    assert code == 0 and "other processes used 1.3 of 2 CPUs" in out
    code, out, _ = said("--no-history")
    assert "healthy (on a busy machine): " in out


def test_no_verdict_exits_3_and_says_what_is_missing(said: Said, home: Path) -> None:
    kept(home, launches=1)
    code, out, _ = said("--no-history", "--format", "line")
    assert code == Exit.NO_VERDICT and "fewer than 3 launches" in out


def test_a_planted_fault_is_marked(said: Said, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collbench.features.health.checks import table as checks

    monkeypatch.setattr(checks, "describe_injected", lambda files: "late:2:1ms")
    kept(home)
    code, out, _ = said("--format", "line")
    assert code == Exit.OK and "TEST, fault injected (late:2:1ms)" in out
    for _ in range(2):  # what a test of the alarm has written may be replaced
        code, _, err = said("-o", str(home / "health.xml"))
        assert code == Exit.OK, err
    assert "TEST, fault injected (late:2:1ms)" in (home / "health.xml").read_text()
    assert not (home / "history.sqlite").exists()  # a night like this is none to be remembered


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--format", "nonsense"), "--format: 'nonsense'"),
        (("-o", "night.txt"), "its ending: '.txt'"),
        (("--budget", "1m"), "--rerun"),
        (("--inject", "drop:1", "--rerun"), "planted faults"),
        (("--inject", "drop:1", "@last"), "planted faults"),
        (("--no-history", "--rerun"), "--no-history"),
        (("--no-history", "--history", "x"), "--no-history"),
        (("--tests", "9"), "--locate"),
        (("--inject", "drop:1", "--history", "x"), "planted faults"),
        (("-g", "2"), "--inject"),
        (("--inject", "melt:1"), "is not a fault"),
        (("--inject", "drop:999"), "there is no rank 999"),
        (("--on-unhealthy", "'open"), "--on-unhealthy"),
        (("nowhere",), "no run called 'nowhere'"),
        (("--history", "nonsense://x"), "nonsense"),
        (("--machine", "rack", "--no-history"), "--machine"),
    ],
)
def test_usage_errors_are_one_line(
    said: Said, home: Path, args: Sequence[str], message: str
) -> None:
    kept(home)
    code, _, err = said(*args)
    age = "no night of ", " days old", "collbench run nightly measures one"  # which was kept
    lines = [line for line in err.splitlines() if not any(words in line for words in age)]
    assert code == Exit.USAGE and message in lines[0] and "Traceback" not in err


@pytest.mark.parametrize(
    "args", [("--bogus",), ("--format", "json"), ("--tests", "x"), ("-o", "/nowhere/night.xml")]
)
def test_a_plugin_that_is_called_wrongly_is_unknown_and_not_critical(
    said: Said, home: Path, args: Sequence[str]
) -> None:
    kept(home)
    code, out, _ = said("--nagios", *args)
    assert code == 3 and out.startswith("COLLBENCH UNKNOWN - ") and len(out.splitlines()) == 1


def test_a_plugin_that_cannot_judge_says_unknown(said: Said, home: Path) -> None:
    code, out, _ = said("--nagios")
    assert code == 3 and out.startswith("COLLBENCH UNKNOWN - ") and len(out.splitlines()) == 1


@contextmanager
def running(path: Path) -> Iterator[None]:
    """A run that some process is writing: without an end, and locked."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith('{"line":"end"')))
    with path.open("rb") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def test_a_night_that_is_still_running_is_not_judged(said: Said, home: Path) -> None:
    kept(home, "20260101-night")
    kept(home, "20260102-night")
    whole = said("20260101-night", "--format", "json", "--no-history")
    with running(home / "runs" / "20260102-night.jsonl"):
        code, out, err = said("--format", "json", "--no-history")
        assert (code, out) == whole[:2]
        assert "20260102-night is still running" in err and "20260101-night" in err
        for words in (["20260102-night"], ["--nagios", "20260102-night"]):
            assert said(*words)[0] == Exit.NO_VERDICT


def test_without_another_night_one_that_is_running_gives_no_verdict(said: Said, home: Path) -> None:
    kept(home, "20260102-night")
    with running(home / "runs" / "20260102-night.jsonl"):
        code, out, err = said()
        assert (code, out) == (Exit.NO_VERDICT, "")
        assert "20260102-night is still running" in err and "no other night is saved" in err
        assert said("--nagios")[1].startswith("COLLBENCH UNKNOWN - 20260102-night is still")


def test_without_another_night_of_this_host_one_that_is_running_gives_no_verdict(
    said: Said, home: Path
) -> None:
    kept_today(home, "20260101-other", "another")
    kept_today(home, "20260102-night", environment.host_name())
    with running(home / "runs" / "20260102-night.jsonl"):
        code, _, err = said()
    which = f"no other night of {environment.host_name()} in the last 30 days is saved"
    assert code == Exit.NO_VERDICT and which in err


def test_a_closed_pipe_changes_no_verdict_and_stops_no_hook(
    bare: Server, home: Path, tmp_path: Path
) -> None:
    kept(
        home,
        change=lambda made: replace(made, status="wrong", wrong=1) if made.case == ROW else made,
    )
    for last in ("@last", "--format=json"):
        heard = tmp_path / last.strip("@-")
        words = ("health", "--no-history", "--on-unhealthy", f"touch {heard}", last)
        done = bare(*words, stdout=">|")
        assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
        assert done.returncode == Exit.BAD and heard.exists()


def test_a_file_that_cannot_be_written_silences_nothing(
    said: Said, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collbench.core import files

    def full(path: Path, *_: str, **__: object) -> None:
        raise CannotRun(f"{path}: No space left on device")

    kept_today(
        home,
        "20260102-night",
        environment.host_name(),
        change=lambda made: replace(made, status="wrong", wrong=1) if made.case == ROW else made,
    )
    monkeypatch.setattr(files, "save_text", full)
    words = (
        "--no-history",
        "-o",
        str(tmp_path / "night.prom"),
        "--on-unhealthy",
        f"touch {tmp_path}/heard",
    )
    code, out, err = said(*words)
    assert code == Exit.CANNOT_RUN and "unhealthy: " in out and "No space left" in err
    assert (tmp_path / "heard").exists()
    code, out, err = said(*words, "--nagios")
    assert code == 2 and out.startswith("COLLBENCH CRITICAL") and "No space left" in err


# ---- whom it calls


def test_on_unhealthy_gets_the_verdict(said: Said, home: Path, tmp_path: Path) -> None:
    kept(home, slower={ROW: 20.0})
    heard = tmp_path / "heard it.json"
    hook = tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\ncat > "{heard}"\necho "$1" drained\nexit 3\n')
    hook.chmod(0o755)
    code, out, err = said(
        "--no-history", "--on-unhealthy", f"'{hook}' 'this $HOME'", "--format", "line"
    )
    assert code == Exit.BAD and json.loads(heard.read_text())["state"] == "unhealthy"
    assert "this $HOME drained" in err and "ended with 3" in err and "drained" not in out


def test_on_unhealthy_is_not_called_without_need(said: Said, home: Path, tmp_path: Path) -> None:
    for fields in ({}, {"launches": 1}):
        kept(home, **fields)
        said("--no-history", "--on-unhealthy", f"touch {tmp_path / 'called'}")
        assert not (tmp_path / "called").exists()


def test_a_hook_that_is_not_there_or_reads_nothing_changes_no_verdict(
    said: Said, home: Path
) -> None:
    kept(home, slower={ROW: 20.0})
    code, _, err = said("--no-history", "--on-unhealthy", "/nowhere/hook")
    assert code == Exit.BAD and "--on-unhealthy /nowhere/hook: No such file" in err
    code, _, err = said("--no-history", "--on-unhealthy", "true")
    assert code == Exit.BAD and "--on-unhealthy" not in err


def test_a_hook_that_does_not_end_is_ended_with_all_it_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pid = tmp_path / "pid"
    health.run_hook(["sh", "-c", f"sleep 600 & echo $! > {pid}; wait"], "{}", seconds=0.5)
    assert "did not end in 0.5 s and was ended" in capfd.readouterr().err
    for _ in range(100):  # a signal takes its time on a busy machine
        with suppress(OSError):
            if Path(f"/proc/{pid.read_text().strip()}/stat").read_text().split()[2] != "Z":
                time.sleep(0.1)
                continue
        return
    pytest.fail("what the hook started runs on")


# ---- earlier nights


def nights(
    home: Path, values: Sequence[float], rows: Sequence[Case] = ROWS[1:4], **last: Any
) -> None:
    """A night for each value, by which the rows' times are multiplied; all but the last are in the
    history."""
    from collbench.features.health.history import open_book

    for number, value in enumerate(values):
        started = datetime.fromisoformat("2026-01-01T22:00:00+00:00") + timedelta(days=number)
        final = last if number == len(values) - 1 else {}
        made = night(dict.fromkeys(rows, value), rows=ROWS, seed=number, **final)
        made = replace(
            made,
            run=replace(made.run, id=f"{started:%Y%m%d}-n{number}", started=started.isoformat()),
        )
        saved(made, home)
        with open_book() as all_of_them:
            if number < len(values) - 1:
                all_of_them.add(made)


def history_of(out: str) -> tuple[str, list[dict[str, Any]]]:
    verdict = json.loads(out)
    (checked,) = (one for one in verdict["checks"] if one["check"] == "history")
    return checked["outcome"], [one for one in verdict["findings"] if one["check"] == "history"]


def test_the_first_nights_are_remembered_and_judge_nothing(said: Said, home: Path) -> None:
    nights(home, [1.0, 1.0, 1.3])
    code, out, _ = said("--format", "json")
    outcome, found = history_of(out)
    assert (code, outcome, found) == (Exit.OK, "no data", [])
    _, out, _ = said("--format", "json")  # again: it is one night still
    (note,) = (c["note"] for c in json.loads(out)["checks"] if c["check"] == "history")
    assert note.endswith("no row has more than 2 so far")


def test_a_night_like_the_others_passes(said: Said, home: Path) -> None:
    nights(home, [1.0] * 8)
    code, out, _ = said("--format", "json")
    assert (code, history_of(out)) == (Exit.OK, ("passed", []))


@pytest.mark.parametrize(
    ("factor", "code", "severity"), [(1.2, Exit.BAD, "warning"), (1.0, Exit.OK, "")]
)
def test_only_fresh_launches_confirm_a_slow_night(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch, factor: float, code: int, severity: str
) -> None:
    nights(home, [1.0] * 7 + [1.2], ROWS[2:3])
    ended, out, _ = said("--format", "json")
    assert ended == Exit.OK and [one["severity"] for one in history_of(out)[1]] == ["hint"]
    asked: list[Case] = []

    def again(files: Any, seconds: float | None, wanted: Sequence[Case]) -> Night:
        asked.extend(wanted)
        return Night([night(dict.fromkeys(wanted, factor), rows=wanted, seed=99)])

    monkeypatch.setattr(health, "measure_again", again)
    ended, out, _ = said("--rerun", "--format", "json")
    assert asked == [ROW] and ended == code
    assert [one["severity"] for one in history_of(out)[1]] == [severity] * bool(severity)


@pytest.fixture
def on_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the nights of made_night had been measured on this host."""
    monkeypatch.setattr(environment, "host_name", lambda: "node0")
    monkeypatch.setattr(judging, "list_devices", lambda file: {"node0"})


def test_fresh_launches_elsewhere_confirm_nothing(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this host does in shared memory says nothing of a night of several."""
    nights(home, [1.0] * 7 + [1.2], ROWS[2:3])
    monkeypatch.setattr(health, "launch_cases", lambda *_: pytest.fail("it measures"))
    code, out, err = said("--rerun", "--format", "json")
    assert code == Exit.OK and history_of(out)[1][0]["severity"] == "hint"
    assert "the night's ranks were on node0, node1, node2: nothing is confirmed" in err


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_search_elsewhere_says_nothing_of_the_night(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch, is_launched: bool
) -> None:
    """As on a login node, after a night of four other hosts; or in a job on other nodes."""
    kept(home)
    monkeypatch.setattr(environment, "host_name", lambda: "login")

    def search(tests: int | None, numbers: str, refuse_hosts: RefuseHosts) -> None:
        assert is_launched
        raise NoVerdict(refuse_hosts({"login"}))

    monkeypatch.setattr(health, "search_ranks", search)
    member = SimpleNamespace(rank=0) if is_launched else None
    monkeypatch.setattr(health, "_find_member", lambda: member)
    code, out, _ = said("--locate", "--no-history", "--format", "json")
    verdict = json.loads(out)
    (located,) = (check for check in verdict["checks"] if check["check"] == "locate")
    assert (code, located["outcome"]) == (Exit.OK, "no data")
    assert located["note"].startswith("--locate searches login, but the night ran on node0")


def test_fresh_launches_with_other_software_confirm_nothing(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch, on_their_hosts: None
) -> None:
    nights(home, [1.0] * 7 + [1.2], ROWS[2:3])

    def launch(run: Any, wanted: Sequence[Case], path: Path, seconds: float | None) -> None:
        fast = night(rows=wanted, environment={**ENVIRONMENT, "kernel": "6.2"})
        saved(replace(fast, run=replace(fast.run, id="fast")), home).rename(path)

    monkeypatch.setattr(health, "launch_cases", launch)
    code, out, err = said("--rerun", "--format", "json")
    assert code == Exit.OK and history_of(out)[1][0]["severity"] == "hint" and "kernel" in err


@pytest.mark.parametrize(("now", "is_kept"), [(10_000, True), (100_000, False)])
def test_fresh_launches_count_where_the_host_is_as_in_the_nights_last_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, on_their_hosts: None, now: int, is_kept: bool
) -> None:
    """Whatever changed between the night's own runs."""

    def run_at(name: str, mbps: int, started: str) -> RunFile:
        nics = {"eth0": {"driver": "mlx5_core", "mbps": mbps}}
        facts = {**ENVIRONMENT, "host": "node0", "nics": nics}
        return night(rows=ROWS[2:3], name=name, started=started, environment=facts)

    def launch(run: Any, wanted: Sequence[Case], path: Path, seconds: float | None) -> None:
        saved(run_at("fresh", now, "2026-01-02T05:00:00+00:00"), home).rename(path)

    monkeypatch.setattr(health, "launch_cases", launch)
    files = [
        run_at("before", 100_000, "2026-01-02T03:00:00+00:00"),
        run_at("after", 10_000, "2026-01-02T04:00:00+00:00"),
    ]
    fresh = health.measure_again(files, None, [ROW])
    assert [file.run.id for file in fresh.files] == ["fresh"] * is_kept


def test_interrupted_launches_are_no_verdict(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch, on_their_hosts: None
) -> None:
    from collbench.run import session

    nights(home, [1.0] * 7 + [1.2], ROWS[2:3])
    monkeypatch.setattr(session, "execute_order", lambda *_: Exit.INTERRUPTED)
    for words in (("--rerun",), ("--inject", "drop:1", "-g", "2")):
        code, out, _ = said(*words, "--format", "json")
        assert (code, out) == (Exit.INTERRUPTED, "")


def test_fresh_launches_that_break_confirm_nothing(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch, on_their_hosts: None
) -> None:
    nights(home, [1.0] * 7 + [1.2], ROWS[2:3])

    def broken(*_: Any) -> None:
        raise RunBroken("rank 1 stopped")

    monkeypatch.setattr(health, "launch_cases", broken)
    code, out, err = said("--rerun", "--format", "json")
    (found,) = history_of(out)[1]
    assert code == Exit.OK and found["severity"] == "hint" and "with 0 launches" in found["what"]
    assert "measuring again: rank 1 stopped" in err


def test_a_level_that_rose_says_since_when(said: Said, home: Path) -> None:
    nights(home, [1.0] * 12 + [1.12] * 8)
    code, out, _ = said("--format", "json")
    found = [one for one in history_of(out)[1] if one["severity"] == "warning"]
    assert code == Exit.BAD and any(one["since"] == "2026-01-13" for one in found), found
    assert "all_reduce" in found[0]["subject"]["name"]


@pytest.mark.parametrize("slow", [3, 4])
def test_rows_of_a_level_that_rose_are_not_also_slower_since_tonight(
    said: Said, home: Path, slow: int
) -> None:
    nights(home, [1.0] * 12 + [1.2] * slow)
    code, out, _ = said("--format", "json")
    assert (code, {one["since"] for one in history_of(out)[1]}) == (Exit.BAD, {"2026-01-13"})


def test_a_night_slower_than_a_level_that_rose_is_found_too(said: Said, home: Path) -> None:
    nights(home, [1.0] * 12 + [1.12] * 8 + [1.3])
    _, out, _ = said("--format", "json")
    assert {one["since"] for one in history_of(out)[1]} == {"2026-01-13", "tonight"}


def test_a_history_out_of_reach_is_no_data_and_no_reason_to_be_silent(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collbench.features.health import history

    def closed(url: str = "") -> None:
        raise CannotRun("cannot reach the database")

    kept(home)
    monkeypatch.setattr(history, "open_book", closed)
    code, out, _ = said("--format", "json")
    assert code == Exit.NO_VERDICT and history_of(out)[0] == "no data"
    assert json.loads(out)["summary"] == (
        "earlier nights: cannot reach the database; --no-history judges without it"
    )
    assert said("--no-history")[0] == Exit.OK


def test_a_history_of_a_newer_collbench_is_no_data(said: Said, home: Path) -> None:
    from collbench.features.health import history

    kept(home)
    history.open_book().close()
    with sqlite3.connect(home / "history.sqlite") as to:
        to.execute("UPDATE collbench_schema SET version = 99")
    to.close()
    code, out, _ = said("--format", "json")
    assert code == Exit.NO_VERDICT and history_of(out)[0] == "no data" and "of version 99" in out


def test_the_night_is_kept_and_judged_under_the_name_given(said: Said, home: Path) -> None:
    from collbench.features.health import history

    with history.open_book() as book:
        for number in range(8):
            made = night(rows=ROWS[1:3], seed=number)
            began = (
                datetime.fromisoformat("2026-01-01T22:00:00+00:00") + timedelta(days=number)
            ).isoformat()
            book.add(replace(made, run=replace(made.run, id=f"n{number}", started=began)), "rack 7")
    kept(home, started="2026-01-09T22:00:00+00:00")
    code, out, _ = said("--machine", "rack 7", "--format", "json")
    assert code == Exit.OK and history_of(out) == ("passed", [])
    with history.open_book() as book:
        assert book.machines() == ["rack 7"] and {
            len(one.nights) for one in book.series("rack 7")
        } == {1, 9}


def test_reruns_are_refused_under_a_launcher(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(home)
    told = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "x",
    }
    for name, value in {**told, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    code, _, err = said("--rerun")
    assert code == Exit.USAGE and "torchrun" in err


def test_a_case_is_measured_again_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The suite made for it expands to just these cases, three times, each in a world of its
    own."""
    from collbench.run import plan, session
    from collbench.run.order import Order

    wanted = [
        ROW,
        replace(ROW, collective="all_gather", op="none", env=(("NCCL_ALGO", "Ring"),), align=16),
        nightly()[-1],
        nightly()[20],
        replace(ROW, arrival="one-late:50us"),
    ]
    orders: list[Order] = []
    monkeypatch.setattr(session, "execute_order", lambda order, _: orders.append(order))
    health.launch_cases(night(rows=ROWS[:1]).run, wanted, tmp_path / "again.jsonl", 5.0)
    every, skips = orders[0].suite.expand()
    assert not skips and orders[0].budget == 5.0
    assert {(replace(case, cycle=0), case.cycle) for case in every} == {
        (case, i) for case in wanted for i in range(3)
    }
    worlds = plan.plan_worlds([plan.Job(case, 1, "") for case in every], orders[0].suite.policy)
    assert len(worlds) == 6 and all(
        len({job.case.cycle for job in world.jobs}) == 1 for world in worlds
    )


def test_transfers_and_collectives_are_measured_again_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the run's subjects those alone that were slow, beside collectives of other settings."""
    from collbench.features.p2p.measurable import TransferRequest
    from collbench.run import session
    from collbench.run.order import Order

    asked = [TransferRequest(pattern="ping-pong", nbytes=nbytes) for nbytes in (8, 4096)]
    axes = replace(NIGHTLY.axes, ranks=(4,), backends=("gloo", "mpi"))
    suite = replace(NIGHTLY, axes=axes, requests=tuple(asked)).resolve()
    every, _ = suite.expand()
    transfer = next(case for case in every if case.subject and case.backend == "mpi")
    orders: list[Order] = []
    monkeypatch.setattr(session, "execute_order", lambda order, _: orders.append(order))
    run = night(rows=ROWS[:1], suite=suite).run
    health.launch_cases(run, [ROW, *transfer.siblings], tmp_path / "again.jsonl")
    again, skips = orders[0].suite.expand()
    wanted = {replace(case, cycle=i) for case in (ROW, *transfer.siblings) for i in range(3)}
    assert not skips and set(again) == wanted


def test_suite_nightly_has_what_the_checks_need() -> None:
    """Three launches, and for every guideline its rows."""
    from collbench.features.health.checks import guidelines
    from collbench.run import plan
    from collbench.suite import toml

    suite = toml.load_suite("nightly")
    every, _ = replace(suite, axes=replace(suite.axes, ranks=(2,), backends=("gloo",))).expand()
    assert len(plan.plan_worlds([plan.Job(case, 1, "") for case in every], suite.policy)) == 3
    names = {case.collective for case in every}
    assert names >= {name for left, right in guidelines.COMPOSITIONS for name in (left, *right)} | {
        "sendrecv"
    }


def test_the_last_night_is_judged_whatever_was_run_since(said: Said, home: Path) -> None:
    kept(home)
    kept(home, "20260103-sweep", suite=SUITE)
    code, out, err = said("--no-history", "--format", "json")
    assert json.loads(out)["runs"] == ["20260102-night"] and code == Exit.OK
    assert re.search(r"the last night is [\d,]+ days old \(20260102-night\)", err)


def kept_today(home: Path, name: str, host: str, days: int = 0, **fields: Any) -> None:
    """A night whose ranks were on this host, so many days ago."""
    started = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    kept(home, name, worlds={"ranks": ranks([host] * 4)}, started=started, **fields)


def test_a_night_of_today_is_not_said_to_be_old(said: Said, home: Path) -> None:
    kept_today(home, "20260102-night", environment.host_name())
    assert said("--no-history", "--format", "json")[2] == ""


@pytest.mark.parametrize(
    ("words", "code", "shown"), [((), Exit.CANNOT_RUN, 2), (("--nagios",), 3, 1)]
)
def test_a_night_that_may_not_be_read_is_not_said_to_be_absent(
    said: Said,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
    code: int,
    shown: int,
) -> None:
    def refuse(path: Path) -> None:
        raise CannotRun(f"cannot read {path}: Permission denied")

    kept(home)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(run_file, "read_run", refuse)
    result = said("--no-history", *words)
    assert result[0] == code and "1 of 1 saved run cannot be read: " in result[shown]


def test_a_night_that_may_be_read_is_judged_beside_one_that_may_not(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_today(home, "20260102-night", environment.host_name())
    kept_today(home, "20260103-night", environment.host_name())
    (home / "runs" / "20260103-night.jsonl").write_text("")
    monkeypatch.setattr(os, "access", lambda path, _: "20260103" not in str(path))
    code, _, err = said("--no-history")
    assert code == Exit.OK and "1 of 2 saved runs cannot be read: " in err


def test_of_nights_of_many_hosts_this_hosts_own_is_judged_and_named(said: Said, home: Path) -> None:
    """As where all nodes keep their runs in one folder."""
    host = environment.host_name()
    kept_today(home, "20260101-own", host, days=1)
    kept_today(home, "20260102-other", "another")
    _, out, err = said("--no-history", "--format", "json")
    assert json.loads(out)["runs"] == ["20260101-own"]
    assert f"20260101-own, the last night of {host}; 20260102-other is of another" in err


@pytest.mark.parametrize("own", [False, True])
def test_a_host_without_a_night_of_its_own_judges_the_last_of_others(
    said: Said, home: Path, own: bool
) -> None:
    """As a cluster's head node does, even if it was measured some day."""
    if own:
        kept_today(home, "20250101-own", environment.host_name(), days=health.OWN_DAYS + 1)
    kept_today(home, "20260101-other", "another", days=1)
    kept_today(home, "20260102-other", "another")
    _, out, err = said("--no-history", "--format", "json")
    assert json.loads(out)["runs"] == ["20260102-other"]
    assert err.endswith(
        f"no night of {environment.host_name()} in the last 30 days is saved: this is about"
        " 20260102-other, of another\n"
    )


def test_a_night_of_several_numbers_of_ranks_is_of_the_hosts_of_all_of_them(
    said: Said, home: Path
) -> None:
    """Where the smallest has all of its ranks on the first host."""
    suite = replace(NIGHTLY, axes=replace(NIGHTLY.axes, ranks=(2, 4)))
    started = datetime.now(UTC).isoformat()
    made = night(rows=ROWS, name="20260101-both", suite=suite, started=started)
    hosts = ["another", "another", environment.host_name(), environment.host_name()]
    worlds = [
        replace(world, n=n, ranks=ranks(hosts[:n]))
        for world, n in zip(made.worlds, (2, 4, 2), strict=True)
    ]
    saved(replace(made, worlds=worlds), home)
    kept_today(home, "20260102-other", "another")
    _, out, _ = said("--no-history", "--format", "json")
    assert json.loads(out)["runs"] == ["20260101-both"]


def test_only_as_many_runs_are_read_as_are_needed_to_find_the_own_one(
    said: Said, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        kept_today(home, f"2026010{number}-night", environment.host_name())
    read: list[tuple[str, int]] = []
    read_worlds = run_file.read_worlds

    def count(path: Path, number: int) -> list[World]:
        worlds = read_worlds(path, number)
        read.append((path.stem, len(worlds)))
        return worlds

    monkeypatch.setattr(run_file, "read_worlds", count)
    said("--no-history")
    assert read == [("20260104-night", 1)]


def test_where_there_is_no_night_the_last_run_is_judged_and_that_is_told(
    said: Said, home: Path
) -> None:
    kept(home, suite=SUITE)
    _, out, err = said("--no-history", "--format", "json")
    assert json.loads(out)["runs"] == ["20260102-night"]
    assert "no run of a suite with the tag health is saved: this is about @last" in err


def test_what_is_no_night_enters_no_history_unless_it_is_added(said: Said, home: Path) -> None:
    from collbench.features.health.history import open_book

    made = kept(home, suite=SUITE)
    _, out, _ = said("@last", "--format", "json")
    (checked,) = (one for one in json.loads(out)["checks"] if one["check"] == "history")
    assert checked["outcome"] == "no data"
    assert f"collbench history add {made.run.id} keeps it" in checked["note"]
    with open_book() as known:
        assert known.machines() == []
        known.add(made)
        assert known.holds(made.run.id)
    _, out, _ = said("@last", "--format", "json")
    (checked,) = (one for one in json.loads(out)["checks"] if one["check"] == "history")
    assert "collbench history add" not in checked["note"]
