"""Origins of times: which a record has, and what follows from each for its row."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from factories import case, make_file, night, record, world, write

from collbench.core.errors import Exit, NoVerdict
from collbench.features.health.checks import table as checks
from collbench.features.interop import importers
from collbench.features.interop.importers import Asked
from collbench.features.predict.fit import make_series
from collbench.machine.gpu import is_fake
from collbench.records import derive, limits, origins, rows, run_file
from collbench.records import flags as flags_
from collbench.records.flags import FLAGS_BY_NAME as FLAGS
from collbench.records.types import World
from collbench.suite.case import Limit
from collbench.suite.sweep import Threshold

FAKE = {"backend": "nccl", "fake": True}


@pytest.mark.parametrize(
    ("flag", "status", "fields", "effect"),
    [
        ("predicted", "predicted", {}, "apart"),
        ("fake", "ok", {"fake": True}, "excluded"),
        ("interpreted", "ok", {"interpreted": True}, "ungated"),
        ("virtual", "ok", {"virtual": True}, "ungated"),
    ],
)
def test_an_origin_is_a_flag_of_the_row_with_one_effect(
    flag: str, status: str, fields: dict[str, bool], effect: str
) -> None:
    made = record(case(), status=status, world=0)
    (row,) = rows.make_rows([make_file([made], [world(**fields)])])
    assert row.flags == (flag,) and flag in FLAGS
    assert row.unfit == ((flag,) if effect == "excluded" else ())
    assert row.ungated == ((flag,) if effect == "ungated" else ())
    assert (row.derived is None) == (effect == "excluded")
    assert rows.select_gateable([row]) == ([row] if effect == "apart" else [])
    assert row.ran


@pytest.mark.parametrize("name", ["Fake H100 80GB", "Fake"])
def test_a_fake_gpu_is_known_by_the_first_word_of_its_name(name: str) -> None:
    assert is_fake(name)


@pytest.mark.parametrize("name", ["", "NVIDIA H100 80GB HBM3", "Fakery 1", "NVIDIA Fake"])
def test_no_other_gpu_is_fake(name: str) -> None:
    assert not is_fake(name)


def test_wrong_data_of_a_fake_gpu_is_wrong_data() -> None:
    made = record(case(), status="wrong", wrong=3, world=0)
    (row,) = rows.make_rows([make_file([made], [world(**FAKE)])])
    assert row.unfit == ("wrong",)


def test_a_world_of_before_is_read_and_is_not_fake(tmp_path: Path) -> None:
    path = write(make_file([record(case(), world=0)], [world()]), tmp_path)
    assert "fake" not in path.read_text()
    assert not origins.is_fake(run_file.read_file(path)) and not run_file.read_outline(path).fake


def test_a_fake_world_is_told_in_the_file_and_its_outline(tmp_path: Path) -> None:
    path = write(make_file([record(case(), world=0)], [world(**FAKE)]), tmp_path)
    assert origins.is_fake(run_file.read_digest(path)) and run_file.read_outline(path).fake
    assert msgspec.json.decode(path.read_text().splitlines()[1])["fake"] is True


def test_only_rows_of_real_devices_count_in_a_mixed_run() -> None:
    gloo, nccl = case(), case(backend="nccl")
    worlds: list[World] = [world(0), world(1, **FAKE)]
    file = make_file([record(gloo, world=0), record(nccl, 1e3, world=1)], worlds)
    assert [one.case for one in origins.select_counting(file)] == [gloo]
    assert [row.case for row in rows.select_fit(rows.make_rows([file]))] == [gloo]


def test_nothing_is_fitted() -> None:
    records = [record(case(8 << at), 1e4 * (at + 1), world=0) for at in range(9)]
    assert make_series(make_file(records, [world()]))
    fake = make_file(records, [world(**FAKE)])
    assert make_series(fake) == []
    with pytest.raises(NoVerdict, match="nothing to fit: the rows of run were measured on a fake"):
        origins.refuse_fake(fake, "fit")


def test_a_limit_has_no_answer() -> None:
    wanted = Threshold(min_busbw=(Limit(0.001),))
    suite = msgspec.structs.replace(make_file([]).run.suite, thresholds=(wanted,))
    made = record(case(), world=0, times_ns=[10**6 + at % 7 for at in range(40)])
    met, fake = (
        limits.judge_limits(make_file([made], [world(fake=fake)], suite=suite))
        for fake in (False, True)
    )
    assert (
        limits.find_limits_exit(met) == Exit.OK and limits.find_limits_exit(fake) == Exit.NO_VERDICT
    )
    assert fake[0].why == "measured on a fake GPU"


def test_a_night_gets_no_verdict() -> None:
    assert checks.judge_night([night()]).state == "healthy"
    verdict = checks.judge_night([night(worlds={"fake": True})])
    assert verdict.exit == Exit.NO_VERDICT and verdict.fake
    assert verdict.summary == "night was measured on a fake GPU"


def test_every_excluded_row_has_a_reason_and_gates_nothing() -> None:
    assert set(flags_.EXCLUDED) == {"fake", flags_.INVALID}
    derived = derive.derive_row(record(case()), world(**FAKE))
    assert derived and "fake" in derived.flags and not derived.gateable


@pytest.mark.parametrize(("name", "fake"), [("Fake H100 80GB", True), ("NVIDIA H200", False)])
def test_a_log_of_a_fake_gpu_is_imported_as_such(name: str, fake: bool) -> None:
    log = f"""\
# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid  41213 on     node01 device  0 [0000:0f:00] {name}
#  Rank  1 Group  0 Pid  41214 on     node01 device  1 [0000:1f:00] {name}
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1    28.41    0.00    0.00      0    27.90    0.00    0.00      0
"""  # noqa: E501
    reading = importers.read_log(log, Asked(name="all_reduce.log", collective="all_reduce"))
    assert [one.fake for one in reading.worlds] == [fake]
