"""The script that makes reports/advice.md: what it counts as found, false and slower."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import factories
import msgspec
import pytest
from scripts import load_script

from collbench.features.advise import view
from collbench.features.advise.types import Advice, Advised, Gain, Series, Setting
from collbench.features.compare.verdict import Judged
from collbench.suite.sweep import Axes, expand_axes

SIZES = (256 << 10, 1 << 20, 4 << 20)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("advice")


def report(*sizes: int, name: str = "PLANTED=fast", **gain: float) -> dict[str, Any]:
    gains = [{"nbytes": s, "gain": 0.14, "lo": 0.1, "hi": 0.18} | gain for s in sizes]
    row: dict[str, Any] = {"collective": "all_reduce", "ranks": 2, "setting": name, "gains": gains}
    row |= {"low": 1, "high": 9}
    return {"rows": [row] if sizes else []}


@pytest.mark.parametrize(
    ("sizes", "name", "is_found"),
    [
        (SIZES, "PLANTED=fast", True),
        (SIZES[:2], "PLANTED=fast", False),
        ((4 << 10, *SIZES), "PLANTED=fast", False),
        (SIZES, "PLANTED=slow", False),
        ((), "", False),
    ],
)
def test_found_is_the_planted_setting_at_the_planted_sizes_alone(
    script: ModuleType, sizes: tuple[int, ...], name: str, is_found: bool
) -> None:
    assert script.is_planted_found(script.parse_rows(report(*sizes, name=name))) == is_found


def test_rows_are_read_as_a_report_has_them(script: ModuleType) -> None:
    gains = tuple(
        Gain(
            nbytes=size,
            gain=0.14,
            lo=0.1,
            hi=0.18,
            p=0.01,
            launches=8,
            is_paired=True,
            default=2.0,
            setting=1.72,
        )
        for size in SIZES
    )
    advice = Advice(
        series=Series("all_reduce", 2, 1),
        setting=Setting(backend="planted_gain", env=(("PLANTED", "fast"),)),
        name="PLANTED=fast",
        low=1,
        high=9,
        gains=gains,
    )
    advised = Advised(
        library="other",
        version="",
        runs=("a",),
        day="2026-11-28",
        taus=(0.03, 0.03),
        rows=(advice,),
    )
    written = view.Written("words", "in words", "", {})
    document = view.make_document(advised, written, view.Extras("this library"))
    values = json.loads(msgspec.json.encode(document.values))
    assert script.parse_rows(values) == script.parse_rows(report(*SIZES))


def test_an_interval_holds_the_planted_gain_or_does_not(script: ModuleType) -> None:
    assert script.count_true(script.parse_rows(report(*SIZES))) == (3, 3)
    assert script.count_true(script.parse_rows(report(*SIZES, hi=0.149))) == (0, 3)
    assert script.count_true(script.parse_rows(report(8, hi=0.2))) == (0, 0)


def outcome(script: ModuleType, content: dict[str, Any] | None, code: int = 0) -> Any:
    rows = None if content is None else script.parse_rows(content)
    return script.Tuned("collbench tune all_reduce", code, 61.0, rows)


def test_a_false_row_of_the_control_is_counted_and_named(script: ModuleType) -> None:
    empty, false = outcome(script, report()), outcome(script, report(*SIZES, name="X=1"))
    text = "\n".join(script.control_lines([empty, empty]))
    assert "**2 of 2 files are empty**" in text and "False rows" not in text
    text = "\n".join(script.control_lines([empty, false, outcome(script, None, 3)]))
    assert "**1 of 3 files are empty**" in text and "1 wrote no report" in text
    assert "- all_reduce on 2 ranks, 256 KiB to 4 MiB: X=1" in text


def test_an_empty_file_of_a_tune_that_decided_nothing_is_counted_apart(script: ModuleType) -> None:
    empty, nothing = outcome(script, report()), outcome(script, report(), 3)
    text = "\n".join(script.control_lines([empty, nothing, nothing]))
    assert "**3 of 3 files are empty**: 1 of tunes that decided" in text
    assert "2 of tunes that decided none (exit 3)" in text


def test_a_section_says_where_and_when_its_tunes_were_made(script: ModuleType) -> None:
    """And by which commands, which need not be those of today."""
    made = factories.run(started="2026-01-02T03:04:05+00:00")
    outcomes = [
        outcome(script, report())._replace(
            command=f"collbench tune --budget {budget}", runs=(made,)
        )
        for budget in ("1m", "2m")
    ]
    for lines in (script.control_lines(outcomes), script.planted_lines(outcomes)):
        text = "\n".join(lines)
        assert ", 2026-01-02. Made by" in text and made.environment["cpu"]["model"] in text
        assert "`collbench tune --budget 1m`, `collbench tune --budget 2m`" in text
    (lines,) = (script.library_lines("openmpi", 2, outcomes[0], "", []),)
    assert ", 2026-01-02. Made by" in lines[2]


def test_planted_rows_are_counted(script: ModuleType) -> None:
    outcomes = [outcome(script, report(*SIZES)), outcome(script, report(*SIZES[:2], lo=0.16))]
    text = "\n".join(script.planted_lines(outcomes))
    assert "Found exactly in 1 of 2" in text and "in 3 of 5 gains" in text


def judge(nbytes: int, verdict: Any, delta: float) -> Judged:
    (case,), _ = expand_axes(
        Axes(collectives=("all_reduce",), sizes=(nbytes,), ranks=(2,), in_place=(False,))
    )
    return Judged(
        key=str(nbytes),
        case=case,
        verdict=verdict,
        delta=delta,
        lo=delta - 0.02,
        hi=delta + 0.01,
    )


def test_rows_that_an_independent_ab_finds_slower_are_counted(script: ModuleType) -> None:
    tuned = outcome(script, report(*SIZES, name="ring"))
    judged = [
        judge(SIZES[0], "IMPROVED", -0.13),
        judge(SIZES[1], "UNCHANGED", -0.01),
        judge(8, "REGRESSED", 0.2),
    ]
    text = "\n".join(script.library_lines("openmpi", 2, tuned, "collbench ab", judged))
    assert "+14.0 % [+10.0, +18.0] | +13.0 % [+12.0, +15.0] | IMPROVED |" in text
    assert "| 4 MiB | +14.0 % [+10.0, +18.0] | - | not measured |" in text
    assert "**Slower by ab: 1** of 3 cells, of all sizes. all_reduce of 8 B" in text
    nothing = script.library_lines("openmpi", 2, outcome(script, report()), "", [])
    assert nothing[-1] == "Nothing is advised."
    assert script.library_lines("openmpi", 2, outcome(script, None, 3), "", [])[-1] == "No report."


def test_what_is_there_already_is_not_measured_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def run(home: Path, python: str, command: list[str]) -> tuple[int, float]:
        commands.append(command)
        (home / "advice.json").write_text(json.dumps(report(*SIZES)))
        return 0, 5.0

    monkeypatch.setattr(script, "run", run)
    first = script.tune(tmp_path / "one", "python", "all_reduce")
    assert script.tune(tmp_path / "one", "python", "all_reduce") == first
    assert len(commands) == 1 and script.is_planted_found(first.rows)
    assert first.command == "collbench tune all_reduce --for words"
    monkeypatch.setattr(script, "run", lambda *args: (70, 1.0))
    with pytest.raises(SystemExit, match="exit 70"):
        script.tune(tmp_path / "two", "python", "all_reduce")
    assert not (tmp_path / "two" / "tuned.json").exists()
