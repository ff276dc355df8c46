"""Curves of what machines reached elsewhere: what cannot be is refused, the rest are hints."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from factories import hosted, night

from collbench.core.errors import UsageError
from collbench.judge.health import expectations
from collbench.judge.health.expectations import Curve
from collbench.judge.health.hosts import Looked
from collbench.judge.health.night import Night
from collbench.records.types import Choice, Record, RunFile
from collbench.suite.case import Case

TODAY = date(2027, 1, 1)
CURVE = """
[[curve]]
device = "H200"
gpus = 8
link = 450
points = { "1M" = 40, "1G" = 300 }
source = "a log"
day = 2026-01-01
expires = 2028-01-01
"""
DEVICES = {"gpus": {"devices": [{"name": "NVIDIA H200"}] * 8}}
ROW = Case(collective="all_reduce", backend="nccl", n=8, nbytes=1 << 30, op="sum")


def load(tmp_path: Path, text: str) -> list[Curve]:
    path = tmp_path / "curves.toml"
    path.write_text(text)
    return expectations.load(path)


def reaching(busbw: float, chose: Choice | None = None, **fields: Any) -> RunFile:
    """Eight GPUs whose all_reduce of 1 GiB has this busbw in GB/s."""
    time = round(ROW.row.busbw(8) * ROW.size / busbw)

    def exact(record: Record) -> Record:
        return msgspec.structs.replace(
            record, times_ns=[time + i for i in range(-3, 4)], chose=chose
        )

    return night(
        rows=[ROW],
        change=exact,
        worlds={"n": 8, "ranks": hosted(8, 8, "cuda")},
        environment=DEVICES,
        **fields,
    )


def looked(file: RunFile, curves: list[Curve] | None = None, today: date = TODAY) -> Looked:
    return expectations.check(Night([file]), curves, today)


def test_the_curves_that_come_with_collbench_are_possible_and_say_where_from() -> None:
    curves = expectations.load()
    assert len(curves) >= 15
    for curve in curves:
        assert curve.source and not curve.verified and curve.day < curve.expires
        assert max(curve.points.values()) <= curve.most


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ('"1G" = 300', '"1G" = 800'),
            "800 GB/s is above the 450 GB/s",
        ),  # as thresholds are found that were shipped
        (("link = 450", "link = 450\nnodes = 2"), "several nodes, and no rate of a NIC"),
        (("link = 450", "link = 450\nnodes = 2\nnic = 10"), "300 GB/s is above the 150 GB/s"),
        (("link = 450", 'link = 450\ncollective = "barrier"'), "no busbw"),
        (('points = { "1M" = 40, "1G" = 300 }', "points = {}"), "no points"),
        (('"1M" = 40', '"1M" = -40'), ">= 0|> 0|0"),
        (("gpus = 8", "gpu = 8"), "unknown field|gpu"),
        (("[[curve]]", "[[curve"), "curves.toml"),
        (('"1M"', '"lots"'), "'lots' is not a size"),
    ],
)
def test_a_curve_that_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        load(tmp_path, CURVE.replace(*change))


def test_a_switch_that_adds_up_may_exceed_the_wire(tmp_path: Path) -> None:
    fast = CURVE.replace('"1G" = 300', '"1G" = 480')
    with pytest.raises(UsageError, match="480 GB/s is above"):
        load(tmp_path, fast)
    (curve,) = load(tmp_path, fast + "switch = true\n")
    assert curve.most == pytest.approx(450 * 2 * 7 / 9)  # 2 (n-1) / (n+1)


def test_between_sizes_lines_in_logarithms_and_nothing_far_beyond(tmp_path: Path) -> None:
    (curve,) = load(tmp_path, CURVE)
    assert curve.at(1 << 20) == 40 and curve.at(1 << 30) == 300 and curve.at(1 << 31) == 300
    assert curve.at(1 << 25) == pytest.approx((40 * 300) ** 0.5)
    assert curve.at(1 << 19) is None and curve.at(1 << 32) is None


def test_far_below_is_a_hint_with_source_and_day_never_more(tmp_path: Path) -> None:
    curves = load(tmp_path, CURVE)
    assert not looked(reaching(290), curves).findings
    (found,) = looked(reaching(240), curves).findings
    assert found.severity == "hint" and "80%" in found.what
    assert "a log, noted 2026-01-01, not verified" in found.what and "EXPIRED" not in found.what


def test_an_old_curve_says_so(tmp_path: Path) -> None:
    seen = looked(reaching(240), load(tmp_path, CURVE), date(2028, 1, 2))
    assert "1 of them expired" in seen.note and "EXPIRED" in seen.findings[0].what


def test_what_the_library_ran_chooses_the_curve() -> None:
    """The figure of NVLS is held against what NVLS ran only."""
    ran = Choice(algorithm="NVLS", protocol="Simple")
    assert looked(reaching(400, ran)).findings and not looked(reaching(400)).findings


def test_other_machines_have_no_data_and_cpus_no_expectation() -> None:
    other = reaching(240)
    told = msgspec.structs.replace(
        other.run, environment={"gpus": {"devices": [{"name": "NVIDIA L4"}] * 8}}
    )
    assert "no figures are known" in looked(msgspec.structs.replace(other, run=told)).missing
    assert looked(night()).idle
