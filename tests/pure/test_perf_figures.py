"""Scripts of tests/perf: what they say of numbers that are given to them, and reports made of
these."""

from __future__ import annotations

import math
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import ENVIRONMENT, make_file
from scripts import load_script

from collbench.machine.load import Load

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ((104.0, 100.0, 101.0), "yes"),
        ((106.0, 100.0, 101.0), "no"),
        ((88.0, 100.0, 101.0), "no"),  # faster than the library's own call by as much
        ((100.0, 100.0, 106.0), "cannot tell"),
        ((120.0, 100.0, 94.0), "cannot tell"),
        ((2.9, 2.0, 2.1), "yes"),
    ],
)
def test_libraries_are_judged_on_both_sides_where_the_loop_repeats_itself(
    times: tuple[float, float, float], verdict: str
) -> None:
    row = dict(zip(("ours", "bare", "again"), (1e3 * each for each in times), strict=True))
    assert load_script("libraries").judge(row) == verdict


def test_the_report_on_libraries_judges_its_numbers_as_the_script_does() -> None:
    text = (REPORTS / "libraries-loops.md").read_text()
    lines = re.findall(r"\| ([\d.]+) us \| ([\d.]+) us \| ([\d.]+) us \| (.*) \|", text)
    judge = load_script("libraries").judge
    assert len(lines) == 28
    for *times, verdict in lines:
        row = dict(zip(("ours", "bare", "again"), (1e3 * float(t) for t in times), strict=True))
        assert judge(row) == verdict, times


def test_the_most_that_others_used_is_told_in_cpus() -> None:
    """Not whether it is much."""
    file = make_file([])
    busy = make_file([], load={"a": Load(1.74, 2), "b": Load(0.3, 2)})
    script = load_script("lifecycle")
    assert "at most 1.7 CPUs before it began" in script.describe_load([file, busy])
    assert script.describe_load([file]).endswith("is not known.")


CODES = (None, -9, 0, 1, 4, 130, 255)  # that a trial may end with


def test_checks_that_a_trial_cannot_fail_are_counted_nowhere() -> None:
    faults = load_script("faults")
    cell = faults.Cell("SIGTERM to collbench", "gloo under mpirun", "leaving", 2)
    every = dict.fromkeys(faults.CHECKS, True)  # as an older script kept them
    table = [*faults.table({cell: [faults.Seen(True, 0, "", 0.1, every)]})]
    assert table[-1].endswith("| 1 | 0 | 0.1 | 1 | - | - | - | 1 | 1 | 1 | 1 |")
    hit = faults.Cell("a rank out of memory", "gloo", "measuring", 2)
    right = faults.Seen(True, 4, "", 0.1, every)
    harmless = faults.Seen(True, 0, "", 0.1, {k: k != faults.OTHERS for k in every})
    line = [*faults.table({hit: [right, harmless]})][-1]
    assert line.endswith("| 2 | 0 | 0.1 | 2 | 2 | 1 of 1 | **1** | 2 | 2 | 2 | 2 |")
    assert f"{faults.RIGHT} 1, {faults.OTHERS} 2" in faults.describe_asked({hit: [right, harmless]})


def test_the_report_on_faults_counts_only_what_was_asked() -> None:
    faults = load_script("faults")
    text = (REPORTS / "faults.md").read_text()
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if " | gloo" in line]
    assert len(lines) > 100
    for fault, world, phase, ranks, *_, shown in (
        (*line[:4], dict(zip(faults.CHECKS, line[-8:], strict=True))) for line in lines
    ):
        asked = [faults.Cell(fault, world, phase, int(ranks)).asks(code) for code in CODES]
        for name, result in shown.items():
            if result == "-" and (phase, name) == ("starting", faults.WHOLE):
                continue  # the file may not have been begun
            if result == "-":
                assert not all(name in each for each in asked), (fault, world, phase, name)
            else:
                assert any(name in each for each in asked), (fault, world, phase, name)


def test_a_copy_is_the_slowest_of_one_turn_in_which_no_rank_was_late() -> None:
    copies = load_script("copies")
    late = math.inf
    assert copies.slowest_median([[1, late, 3, 9], [2, 5, late, 4]]) == 5.5
    assert copies.slowest_median([[late, 1], [1, late]]) is None


def test_ranks_of_a_recorded_job_meet_before_the_clocks_of_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one waits for another there is no cost of recording."""
    recording = load_script("recording")
    done: list[str] = []

    def clock() -> float:
        done.append("clock")
        return float(len(done))

    timers = SimpleNamespace(perf_counter=clock, process_time=clock)
    monkeypatch.setattr(recording, "time", timers)
    monkeypatch.setattr(recording.dist, "barrier", lambda: done.append("barrier"))
    monkeypatch.setattr(recording.dist, "all_reduce", lambda *given: None)
    one = object.__new__(recording.Rank)
    one.job, one.once = recording.JOBS["ddp"], {"plain": []}
    monkeypatch.setattr(recording.Rank, "step", lambda self: done.append("step"))
    took, used = one.block("plain", "")
    text = " ".join(done)
    steps = " ".join(["step"] * recording.STEPS)
    assert text.endswith(f"barrier clock clock {steps} clock clock clock")
    assert (took, used) == (recording.STEPS + 1, recording.STEPS + 4)


def test_sections_on_experiments_made_before_have_their_day_machine_and_options() -> None:
    ab = load_script("ab")
    command = ["collbench", "ab", "--suite", "old.toml", "--aa", "--budget", "7m", "--tag", "aa1"]
    pair = tuple(
        make_file([], command=command, started="2026-01-02T03:04:05+00:00") for _ in range(2)
    )
    text = ab.describe_machine([pair])
    assert ", 2026-01-02. Made by" in text and ENVIRONMENT["cpu"]["model"] in text
    given = [ab.list_given([pair], option) for option in ("--suite", "--budget", "--rounds")]
    assert given == ["old.toml", "7m", ""]


def test_a_process_that_is_killed_while_files_are_read_is_a_fault_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fuzz = load_script("fuzz")
    monkeypatch.setattr(fuzz, "EACH", 5)

    def tried(kind: str, seeds: range, every: int, folder: str) -> tuple[Any, float, int]:
        if 7 in seeds:
            os.kill(os.getpid(), signal.SIGKILL)
        return fuzz.Counter(read=len(seeds)), 0.0, 1

    monkeypatch.setattr(fuzz, "tried", tried)
    counts, _, _ = fuzz.tally("run", range(15), 10, str(tmp_path))
    assert counts == {"read": 10, "fault": 1, "killed": 4}
    assert "killed in seeds 5 to 9" in capsys.readouterr().out
