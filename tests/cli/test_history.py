"""`collbench history` as a user runs it: nights kept, listed and shown, levels learned and
accepted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from factories import case, dated, nights, swept, write

from collbench.core.errors import CannotRun, Exit
from collbench.features.health import history
from collbench.features.health.history.command import (
    AcceptOptions,
    HistoryOptions,
    KeepOptions,
    PartOptions,
    accept,
)
from collbench.features.health.history.storage import Book
from collbench.records import store
from collbench.suite.policy import Policy

BAND = range(1 << 20, (4 << 20) + 1)


@pytest.fixture
def fortnights(tmp_path: Path) -> list[str]:
    """Files of 50 nights; from night 40 on all_reduce of 1 to 4 MiB is 7 % slower."""
    cases = swept("all_reduce", "broadcast", sizes=[1 << power for power in range(18, 25)])
    made = nights(
        cases,
        50,
        lambda c, n: 0.07 * (c.collective == "all_reduce" and c.nbytes in BAND and n >= 40),
    )
    (tmp_path / "runs").mkdir()
    return [str(write(file, tmp_path / "runs")) for file in made]


@pytest.mark.slow
def test_nights_are_added_listed_and_their_trend_names_what_changed(
    inside, fortnights: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = inside("history", "add", *fortnights)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()[0] == "night-000: 14 rows, 3 launches; night 2026-01-01 of node1"
    )
    assert "was there already" in inside("history", "add", fortnights[3]).stdout
    listed = inside("history", "list", "--last", "2").stdout
    assert "2026-02-19" in listed and "2026-02-18" in listed and "2026-02-17" not in listed

    page = tmp_path / "trend.html"
    told = inside("history", "trend", "--html", str(page))
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert lines[1] == "1 slower"
    assert "1 MiB to 4 MiB: " in told.stdout and "slower since 2026-02-10" in " ".join(
        lines[2:4]
    )  # it may be wrapped
    assert "not shown: 11 rows without a change" in lines[-1]
    assert "slower since 2026-02-10" in page.read_text() and 'src="http' not in page.read_text()

    values = json.loads(
        inside(
            "history", "trend", "--format", "json", "--only", "allreduce", "-b", "1M", "-e", "2M"
        ).stdout
    )
    (change,) = [change for change in values["changes"] if change["agreed"]]
    assert (
        change["sizes"] == [1 << 20, 2 << 20]
        and change["day"] == "2026-02-10"
        and change["standing"]
    )
    assert {night["size"] for night in values["nights"]} == {1 << 20, 2 << 20} and len(
        values["nights"]
    ) == 100

    why = ("--reason", "new switch", "--commit", "abc")
    accepted = inside(
        "history", "baseline", "accept", *why, "--since", "2026-02-10", "--only", "all_reduce"
    )
    assert accepted.returncode == 0, accepted.stderr
    path = tmp_path / "baselines" / "node1-2026-02-10.json"
    kept = json.loads(path.read_text())
    assert (kept["reason"], kept["commit"], kept["accepted"], len(kept["rows"])) == (
        "new switch",
        "abc",
        True,
        7,
    )
    after = inside("history", "trend").stdout.splitlines()
    assert (
        after[1] == "no change"
        and "a new segment of 7 rows begins: accepted: new switch" in after[2]
    )

    more = ("history", "baseline", "accept", "--reason", "x", "--since", "2026-02-10")
    again = inside(*more, "-o", str(path))
    assert again.returncode == Exit.USAGE and "never replaced" in again.stderr
    again = inside(*more, "--only", "broadcast")
    assert again.returncode == 0, again.stderr
    second = json.loads((tmp_path / "baselines" / "node1-2026-02-10-2.json").read_text())
    assert (second["reason"], len(second["rows"])) == ("x", 7)
    other = str(tmp_path / "other.sqlite")
    assert (
        "kept; 7 rows of node1 accepted"
        in inside("history", "baseline", "load", str(path), "--history", other).stdout
    )
    assert (
        "was there already"
        in inside("history", "baseline", "load", str(path), "--history", other).stdout
    )


def test_learned_levels_catch_what_creeps(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with history.open_book() as kept:
        for file in nights(swept("all_reduce", sizes=[1 << 20]), 10, sigma=0.002):
            kept.add(file)
        learned = inside("history", "baseline", "learn", "--commit", "abc", "-o", "level.json")
        assert learned.returncode == 0, learned.stderr
        assert "1 row of node1 learned since 2026-01-01: as measured; commit it" in learned.stdout
        for number in range(10, 45):
            kept.add(
                dated(
                    number, {swept("all_reduce", sizes=[1 << 20])[0]: 1e6 * 1.0025 ** (number - 10)}
                )
            )
    shown = inside("history", "trend").stdout
    assert (
        "1 row crept beyond the baseline" in shown
        and "against the baseline, by the last 7 nights" in shown
    )


def test_a_level_that_the_history_does_not_take_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the same command can be given again."""
    monkeypatch.chdir(tmp_path)
    with history.open_book() as kept:
        for file in nights(swept("all_reduce", sizes=[1 << 20]), 3):
            kept.add(file)
    given = AcceptOptions(
        reason="new switch", history=HistoryOptions(), part=PartOptions(), keep=KeepOptions()
    )

    def refuse(*_: object) -> bool:
        raise CannotRun("history: database is locked")

    with monkeypatch.context() as locked:
        locked.setattr(Book, "accept", refuse)
        with pytest.raises(CannotRun, match="locked"):
            accept(given)
    assert not list(tmp_path.rglob("*.json"))
    accept(given)
    assert [path.name for path in tmp_path.rglob("*.json")] == ["node1-2026-01-03.json"]


def test_a_run_of_the_model_backend_becomes_a_night(inside) -> None:
    assert (
        inside("all_reduce", "-b", "1K", "-e", "4K", "-g", "4", "--backend", "model").returncode
        == 0
    )
    added = inside("history", "add", "@last")
    assert added.returncode == 0 and "rows, 1 launch; night 2" in added.stdout, added.stderr
    shown = inside("history", "trend", "--all").stdout
    assert (
        "of rows ignored, most for: 1 of 3 launches" in shown
        and "1 KiB" in shown
        and store.list_saved()
    )


def test_no_history_takes_a_run_with_planted_faults(inside, tmp_path: Path) -> None:
    cases = swept("all_reduce", sizes=[1 << 20])
    path = write(dated(0, dict.fromkeys(cases, 1e6), policy=Policy(inject="late:2:1ms")), tmp_path)
    done = inside("history", "add", str(path))
    assert done.returncode == Exit.USAGE and "planted faults (late:2:1ms)" in done.stderr, (
        done.stderr
    )
    with history.open_book() as kept:
        assert not kept.machines()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("list",), "no night is kept"),
        (("trend", "--machine", "nowhere"), "no night is kept"),
        (("add", "nowhere"), "no run called"),
        (("baseline", "accept"), "--reason"),
        (("baseline", "accept", "--reason", " "), "--reason is empty"),
        (("baseline", "accept", "--reason", "x", "--since", "yesterday"), "is not a date"),
        (("baseline", "load", "none.json"), "cannot read"),
        (("trend", "--format", "xml"), "is not one of table, json"),
    ],
)
def test_bad_input_is_told_in_words(inside, args: tuple[str, ...], words: str) -> None:
    done = inside("history", *args)
    assert done.returncode in (Exit.USAGE, Exit.CANNOT_RUN)
    assert words in done.stderr and "Traceback" not in done.stderr


def test_of_several_machines_one_must_be_named(inside) -> None:
    cases = swept("all_reduce", sizes=[1 << 20])
    with history.open_book() as kept:
        for name in ("node1", "node2"):
            kept.add(dated(0, dict.fromkeys(cases, 1e6), name=name), name)
    done = inside("history", "trend")
    assert done.returncode == Exit.USAGE and "choose --machine from node1, node2" in done.stderr
    assert "other machines: node1" in inside("history", "list", "--machine", "node2").stdout


def test_help_of_history_loads_no_database() -> None:
    import subprocess

    code = (
        "import sys; sys.argv=['collbench','history','trend','--help']\n"
        "from collbench.cli.main import"
        " main\ntry: main()\nexcept SystemExit:"
        " pass\nprint(sorted({'sqlite3','numpy','torch'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]" and "Smallest change that matters" in done.stdout


@pytest.mark.parametrize("given", [(), ("--history", "{folder}/new/x.sqlite")])
def test_reading_a_history_that_is_not_there_makes_none(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "home"))
    for command in (("list",), ("trend",), ("baseline", "learn")):
        done = inside("history", *command, *(word.format(folder=tmp_path) for word in given))
        assert done.returncode == Exit.USAGE, command
        assert "no night is kept: there is no" in done.stderr
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "new").exists()


def test_a_history_in_a_folder_that_is_not_there_is_refused(inside, tmp_path: Path) -> None:
    path = str(write(dated(0, {case(): 1e6}), tmp_path))
    done = inside("history", "add", path, "--history", str(tmp_path / "new" / "x.sqlite"))
    assert done.returncode == Exit.CANNOT_RUN
    assert not (tmp_path / "new").exists()


def test_a_run_that_is_added_again_is_told_with_the_machine_it_is_kept_under(
    inside, tmp_path: Path
) -> None:
    path = str(write(dated(0, {case(): 1e6}), tmp_path))
    assert inside("history", "add", path).stdout.rstrip().endswith("of node1")
    again = inside("history", "add", path, "--machine", "rack 7").stdout.rstrip()
    assert "was there already; --machine has no effect" in again
    assert again.endswith("night 2026-01-01 of node1")
    with history.open_book() as kept:
        assert kept.machines() == ["node1"]
