"""`collbench accept` and `collbench expect`: exit codes, what a certificate says, and whose data it
is of; `health --expect` with folders and --gate-power."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from factories import ENVIRONMENT, SUITE, case, expected, night, ranks, write

from collbench.cli import main as commands
from collbench.core.errors import Exit
from collbench.records.types import Record, RunFile
from collbench.suite.case import Limit
from collbench.suite.policy import Policy
from collbench.suite.sweep import Part, Suite, Threshold

ROWS = [case(size, name) for name in ("all_reduce", "all_gather") for size in (1 << 16, 1 << 24)]
CURVE = """
[[curve]]
machine = "^rack"
backend = "gloo"
gpus = 4
collective = "{collective}"
points = {{ "64K" = {small}, "16M" = {large} }}
severity = "{severity}"
source = "contract 17"
day = 2026-01-01
"""
replace = msgspec.structs.replace
Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """Runs a command in this process: its exit code, standard output and standard error."""

    def run(*args: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["collbench", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            commands.main()
        told = capfd.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def sampled(record: Record) -> Record:
    """The record with thirty samples, whose median has an interval."""
    (seed,) = record.times_ns[:1]
    scatter = np.random.default_rng(seed).normal(0, 0.01, 30)
    times = [round(float(np.median(record.times_ns)) * float(np.exp(x))) for x in scatter]
    return replace(record, times_ns=times)


def run_of(folder: Path, number: int = 1, factor: float = 1.0, **fields: Any) -> Path:
    """The file of a run of a node whose calls take so much longer than expected."""
    given = {"rows": ROWS, "change": sampled, "name": f"run-{number}", "seed": number, **fields}
    file: RunFile = night(
        dict.fromkeys(given["rows"], factor),
        worlds={"ranks": ranks([f"rack{number}"] * 4)},
        **given,
    )
    folder.mkdir(exist_ok=True)
    return write(file, folder)


def table(path: Path, *collectives: str, scale: float = 1.0, severity: str = "critical") -> Path:
    """Expected is what ``run_of`` takes, of which 0.9 suffices."""
    text = ""
    for name in collectives or ("all_reduce", "all_gather"):
        small, large = (
            scale * what.row.busbw(4) * what.moved / expected(what)
            for what in ROWS
            if what.collective == name
        )
        text += CURVE.format(collective=name, small=small, large=large, severity=severity)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def values(out: str) -> dict[str, Any]:
    return dict(json.loads(out))


def test_a_healthy_node_is_accepted_and_its_certificate_says_all(
    said: Said, tmp_path: Path
) -> None:
    run, limits = run_of(tmp_path), table(tmp_path / "ours.toml")
    files = [tmp_path / f"certificate{end}" for end in (".html", ".md", ".json")]
    options = [f"-o{path}" for path in files]
    code, out, _ = said("accept", "--run", run, "--expect", limits, "--by", "Ada L.", *options)
    assert code == Exit.OK and "accepted: 4 rows above the limit" in out
    digests = [f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in (run, limits)]
    for path in files:
        text = path.read_text()
        assert all(digest in text for digest in digests) and "Ada L." in text
    page, plain = files[0].read_text(), values(files[2].read_text())
    assert "https://" not in page.split("</head>")[0] and 'id="limits"' in page
    assert plain["state"] == "accepted" and plain["runs"][0]["environment"]["python"]
    assert [row["verdict"] for row in plain["rows"]] == ["passed"] * 4
    row = plain["rows"][0]
    assert row["lo"] < row["busbw"] < row["hi"]
    assert row["margin"] == pytest.approx(row["busbw"] / row["limit"] - 1)


def test_a_slow_node_fails_with_1(said: Said, tmp_path: Path) -> None:
    """A fifth slower, planted in the run's records."""
    run, limits = run_of(tmp_path, factor=1.25), table(tmp_path / "ours.toml")
    code, out, _ = said("accept", "--run", run, "--expect", limits, "--format", "json")
    assert code == Exit.BAD and values(out)["state"] == "not accepted"
    assert {row["verdict"] for row in values(out)["rows"]} == {"failed"}
    assert said("health", "--no-history", "--expect", limits, run)[0] == Exit.BAD


@pytest.mark.parametrize(("factor", "state"), [(1.0, "not decided"), (1.25, "not accepted")])
def test_a_node_that_lost_a_link_between_runs_is_not_accepted(
    said: Said, tmp_path: Path, factor: float, state: str
) -> None:
    facts = [
        {**ENVIRONMENT, "host": "rack1", "nics": {"eth0": {"driver": "mlx5_core", "mbps": mbps}}}
        for mbps in (100_000, 10_000)
    ]
    runs = [
        run_of(tmp_path, factor=factor, name=f"run-{number}", environment=environment)
        for number, environment in enumerate(facts)
    ]
    words = ["--run", runs[0], "--run", runs[1], "--expect", table(tmp_path / "ours.toml")]
    _, out, _ = said("accept", *words, "--format", "json")
    plain = values(out)
    assert plain["state"] == state
    changed = "changed from run to run: nics.eth0.mbps 100000 -> 10000"
    assert any(each["what"] == changed for each in plain["findings"])
    assert "night" not in "".join(each["advice"] for each in plain["findings"])


def planted(record: Record) -> Record:
    return replace(sampled(record), injected="late:1:5ms")


def test_a_planted_fault_marks_the_certificate(said: Said, tmp_path: Path) -> None:
    policy = Policy(inject="late:1:5ms")
    path = run_of(tmp_path, factor=1.25, policy=policy, change=planted)
    code, out, _ = said("accept", "--run", path, "--expect", table(tmp_path / "ours.toml"))
    assert code == Exit.BAD and "TEST, fault injected (late:1:5ms): not accepted" in out


def wrong(record: Record) -> Record:
    return replace(sampled(record), status="wrong", wrong=3) if record.case == ROWS[0] else record


def test_wrong_data_are_not_accepted(said: Said, tmp_path: Path) -> None:
    run = run_of(tmp_path, change=wrong)
    code, out, _ = said("accept", "--run", run, "--expect", table(tmp_path / "ours.toml"))
    assert code == Exit.BAD and "received wrong data" in out


def unchecked(record: Record) -> Record:
    return replace(sampled(record), checked=0)


def broken(record: Record) -> Record:
    if record.case == ROWS[1]:
        return replace(record, status="failed", times_ns=[], note="rank 2 died")
    return sampled(record)


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"launches": 2}, {}, "2 launches, and 3 are needed"),
        ({}, {"severity": "hint"}, "all limits are hints, which decide nothing"),
        ({}, {"scale": 1 / 0.9}, "the interval reaches over the limit"),
        ({"change": unchecked}, {}, "nothing verified yet"),
        ({"change": broken}, {}, "rack1:2 is where 3 cases failed"),
        ({"rows": ROWS[:2]}, {}, "no row of its ranks, implementation and sizes"),
        ({"end": None}, {}, "was cut short"),
    ],
)
def test_what_is_not_shown_is_not_decided(
    said: Said, tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    run, limits = run_of(tmp_path, **fields), table(tmp_path / "ours.toml", **options)
    code, out, _ = said("accept", "--run", run, "--expect", limits, "--format", "json")
    assert code == Exit.NO_VERDICT and values(out)["state"] == "not decided"
    assert re.search(reason, out)


def test_without_any_limit_nothing_is_decided(said: Said, tmp_path: Path) -> None:
    code, out, _ = said("accept", "--run", run_of(tmp_path))
    assert code == Exit.NO_VERDICT and "no row has a limit" in out


@pytest.mark.parametrize(("busbw", "code"), [(1.0, Exit.OK), (5.0, Exit.BAD)])
def test_limits_of_the_suite_count(said: Said, tmp_path: Path, busbw: float, code: int) -> None:
    threshold = Threshold(
        match=Part(collectives=("all_reduce",)), min_busbw=(Limit(busbw=busbw, size=1 << 24),)
    )
    run = run_of(tmp_path, suite=replace(SUITE, thresholds=(threshold,)))
    ended, out, _ = said("accept", "--run", run)
    assert ended == code and "limits of suite pr" in out


def limited(busbw: float) -> Suite:
    """A suite that wants this busbw of the largest all_reduce."""
    match = Part(collectives=("all_reduce",))
    return replace(SUITE, thresholds=(Threshold(match=match, min_busbw=(Limit(busbw=busbw),)),))


@pytest.mark.parametrize(("busbw", "code"), [(1.0, Exit.OK), (5.0, Exit.BAD)])
def test_a_planted_fault_can_fail_the_limits_of_the_suite(
    said: Said, tmp_path: Path, busbw: float, code: int
) -> None:
    policy = Policy(inject="late:1:5ms")
    path = run_of(tmp_path, policy=policy, change=planted, suite=limited(busbw))
    ended, out, _ = said("accept", "--run", path)
    assert ended == code and "TEST, fault injected (late:1:5ms)" in out


def test_limits_of_the_suite_are_decided_by_three_launches_in_one_run_or_several(
    said: Said, tmp_path: Path
) -> None:
    given = {"launches": 1, "suite": limited(1.0)}
    runs = [run_of(tmp_path, name=f"launch-{n}", seed=n, **given) for n in range(3)]
    both = run_of(tmp_path, name="both", launches=2, suite=limited(1.0))
    for paths, code, verdict in (
        (runs, Exit.OK, "passed"),
        (runs[:2], Exit.NO_VERDICT, "not decided"),
        ([both], Exit.NO_VERDICT, "not decided"),
    ):
        words = [word for path in paths for word in ("--run", path)]
        ended, out, _ = said("accept", *words, "--format", "json")
        assert (ended, [row["verdict"] for row in values(out)["rows"]]) == (code, [verdict])
        assert (code == Exit.OK) or "2 launches, and 3 are needed" in values(out)["summary"]


def test_runs_of_suites_with_other_limits_are_held_to_their_own(said: Said, tmp_path: Path) -> None:
    runs = [run_of(tmp_path, name=f"run-{n}", seed=n, suite=limited(n)) for n in (1, 5)]
    code, out, _ = said("accept", "--run", runs[0], "--run", runs[1], "--format", "json")
    assert code == Exit.BAD
    assert [(row["limit"], row["verdict"]) for row in values(out)["rows"]] == [
        (1.0, "passed"),
        (5.0, "failed"),
    ]


def skipped(record: Record) -> Record:
    if record.case == ROWS[3]:
        return replace(record, status="skipped", times_ns=[], note="too little memory")
    return sampled(record)


def test_what_was_not_tested_is_listed(said: Said, tmp_path: Path) -> None:
    """A case that was skipped, a row without a curve, a curve for others, a size without a row."""
    run, limits = run_of(tmp_path, change=skipped), table(tmp_path / "ours.toml", "all_reduce")
    text = limits.read_text().replace('"64K"', '"1M" = 1.2, "64K"')
    other = CURVE.format(collective="all_reduce", small=1, large=2, severity="critical")
    limits.write_text(text + other.replace('machine = "^rack"', 'device = "H200"'))
    code, out, _ = said("accept", "--run", run, "--expect", limits, "--format", "json")
    untested = {(item["kind"], item["why"]) for item in values(out)["untested"]}
    assert code == Exit.OK
    assert untested == {
        ("case", "skipped: too little memory"),
        ("row", "measured, and no curve or suite has a limit for it"),
        ("curve", "it is about other machines"),
        ("size", "no row of this size"),
    }


def skipped_wholly(record: Record) -> Record:
    if record.case.collective == "all_gather":
        return replace(record, status="skipped", times_ns=[], note="too little memory")
    return sampled(record)


def test_a_critical_curve_of_which_every_row_was_skipped_decides(
    said: Said, tmp_path: Path
) -> None:
    run, limits = run_of(tmp_path, change=skipped_wholly), table(tmp_path / "ours.toml")
    code, out, _ = said("accept", "--run", run, "--expect", limits, "--format", "json")
    assert code == Exit.NO_VERDICT and values(out)["state"] == "not decided"
    assert "no row of its ranks, implementation and sizes" in values(out)["summary"]


def test_a_certificate_names_the_run_that_it_is_of(said: Said, tmp_path: Path) -> None:
    run, other = run_of(tmp_path), run_of(tmp_path, 2)
    for end in ("html", "json", "md"):
        page = tmp_path / f"certificate.{end}"
        said("accept", "--run", run, "--expect", table(tmp_path / "ours.toml"), "-o", page)
        assert said("accept", "--verify", page, run)[0] == Exit.OK
        code, out, _ = said("accept", "--verify", page, run, other)
        assert code == Exit.BAD and f"run-2.jsonl: not the data of {page.name}" in out
    run.write_text(run.read_text() + "\n")
    assert said("accept", "--verify", page, run)[0] == Exit.BAD


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give one suite to measure, or recorded runs"),
        (("nightly", "guidelines"), "give one suite to measure"),
        (("nightly", "--run", "RUN"), "give one suite to measure"),
        (("--run", "RUN", "-g", "2"), "--run measures nothing"),
        (("--run", "RUN", "--expect", "nowhere"), "nowhere: "),
        (("--run", "RUN", "--expect", "EMPTY"), "no table"),
        (("--run", "nothing"), "no run called 'nothing'"),
        (("nosuchsuite",), "nosuchsuite"),
        (("--run", "RUN", "-o", "page.pdf"), "its ending"),
        (("--run", "RUN", "--format", "junit"), "--format"),
        (("--verify", "RUN"), "--verify takes runs and nothing else"),
        (("--verify", "RUN", "RUN"), "it is no certificate"),
        (("--verify", "nowhere.html", "RUN"), "nowhere.html: No such file"),
    ],
)
def test_what_cannot_be_accepted_is_told(
    said: Said, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    stand_ins = {"RUN": str(run_of(tmp_path)), "EMPTY": str(tmp_path / "empty")}
    code, out, err = said("accept", *(stand_ins.get(word, word) for word in words))
    assert (code, out) == (Exit.USAGE, "") and message in err and "Traceback" not in err


def nodes_of(folder: Path, count: int = 7, launches: int = 3, **slower: float) -> list[Path]:
    factors = np.exp(np.random.default_rng(1).normal(0, 0.01, count))
    return [
        run_of(folder, number, slower.get(f"n{number}", 1.0) * float(factor), launches=launches)
        for number, factor in enumerate(factors)
    ]


def test_a_table_is_learned_and_gates_nodes(said: Said, tmp_path: Path) -> None:
    """The round trip: from runs to a table to verdicts, and a node a fifth slower is named."""
    runs = nodes_of(tmp_path / "runs", launches=6, n5=1.25)
    path = tmp_path / "tables" / "ours.toml"
    path.parent.mkdir()
    code, out, err = said("expect", "learn", *runs, "-o", path, "--severity", "critical")
    assert code == Exit.OK and "4 rows of 7 nodes; review it" in out
    assert "left out: rack5: an outlier in 4 of 4 rows" in err
    for number, run in enumerate(runs):
        wanted = Exit.BAD if number == 5 else Exit.OK
        assert said("health", "--no-history", "--expect", path.parent, run)[0] == wanted
        assert said("accept", "--run", run, "--expect", path.parent)[0] == wanted


def test_a_table_is_never_replaced(said: Said, tmp_path: Path) -> None:
    path = table(tmp_path / "ours.toml")
    text = path.read_text()
    code, _, err = said("expect", "learn", *nodes_of(tmp_path / "runs"), "-o", path)
    assert code == Exit.USAGE and "ours.toml exists" in err and path.read_text() == text


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("learn", "ONE"), Exit.NO_VERDICT, "1 node given: scatter between nodes needs 6"),
        (("learn", "ONE", "-o", "ours.json"), Exit.USAGE, "a table's name ends in .toml"),
        (("learn", "ONE", "-o", "no/ours.toml"), Exit.CANNOT_RUN, "folder no does not exist"),
        (("learn", "ONE", "--severity", "fatal"), Exit.USAGE, "--severity"),
        (("learn", "ONE", "--machine", "("), Exit.USAGE, "not a regular expression"),
        (("show", "nowhere.toml"), Exit.USAGE, "nowhere.toml: "),
        (("show", "."), Exit.USAGE, "no table"),
        (("power", "TABLE", "ONE", "--launches", "9"), Exit.USAGE, "a run has 3"),
        (("power", "TABLE", "ONE", "--format", "csv"), Exit.USAGE, "--format"),
        (("power", "OTHER", "ONE"), Exit.NO_VERDICT, "no row of 3 launches"),
    ],
)
def test_what_cannot_be_learned_or_shown_is_told(
    said: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    other = table(tmp_path / "tables" / "other.toml")
    other.write_text(other.read_text().replace("^rack", "^other"))
    stand_ins = {
        "ONE": str(run_of(tmp_path / "runs")),
        "TABLE": str(table(tmp_path / "tables" / "ours.toml")),
        "OTHER": str(other),
    }
    monkeypatch.chdir(tmp_path)
    ended, out, err = said("expect", *(stand_ins.get(word, word) for word in words))
    assert (ended, out) == (code, "") and message in err and "Traceback" not in err


def test_tables_are_shown_with_what_contradicts(said: Said, tmp_path: Path) -> None:
    table(tmp_path / "t" / "contract.toml"), table(tmp_path / "t" / "ours.toml", scale=1.2)
    code, out, _ = said("expect", "show", tmp_path / "t", "--format", "json")
    plain = values(out)
    assert code == Exit.OK and len(plain["curves"]) == 4
    assert {(d["strict_file"], d["lax_file"]) for d in plain["disagreements"]} == {
        ("ours.toml", "contract.toml")
    }
    assert "20% more than contract.toml" in plain["disagreements"][0]["sentence"]
    assert said("expect", "show", tmp_path / "t" / "ours.toml")[1].count("ours.toml") >= 2


def test_power_is_shown_for_people_and_programs(said: Said, tmp_path: Path) -> None:
    runs, limits = nodes_of(tmp_path / "runs"), table(tmp_path / "ours.toml")
    code, out, _ = said("expect", "power", limits, *runs)
    assert code == Exit.OK and "Counted over 7 nodes, and sets of 3 launches of each" in out
    _, out, _ = said("expect", "power", limits, *runs, "--format", "json")
    chances = {chance["loss"]: chance for chance in values(out)["chances"]}
    assert chances[0.0]["counted"] == 0 and chances[0.5]["counted"] == 1
    assert chances[0.0]["hi"] == pytest.approx(1 - 0.025 ** (1 / 7))  # of none in seven


def test_a_night_says_what_its_gate_would_find(said: Said, tmp_path: Path) -> None:
    run, limits = run_of(tmp_path), table(tmp_path / "ours.toml")
    page = tmp_path / "night.html"
    gate = ("health", "--no-history", run, "--gate-power")
    code, out, _ = said(*gate, "--expect", limits, "-o", page)
    assert code == Exit.OK and "By the scatter between 3 launches of one node" in out
    assert 'id="gate-power"' in page.read_text()
    code, _, err = said(*gate)
    assert code == Exit.USAGE and "--gate-power is given without --expect" in err


def test_a_folder_with_a_table_that_cannot_be_read_names_it(said: Said, tmp_path: Path) -> None:
    bad = table(tmp_path / "tables" / "bad.toml")
    bad.write_text(bad.read_text().replace("gpus = 4", "gpus = 0"))
    table(tmp_path / "tables" / "ours.toml")
    code, _, err = said("health", "--no-history", run_of(tmp_path), "--expect", bad.parent)
    assert code == Exit.USAGE and "bad.toml: line 5, gpus" in err
