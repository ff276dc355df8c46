"""A real run's text through the field's parsers: what they find is what was recorded."""

from __future__ import annotations

from pathlib import Path

import parsers
import pytest

from collbench.records import derive, run_file
from collbench.show import nccl


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_parsers_find_what_a_real_run_recorded(cli, collective: str, tmp_path: Path) -> None:
    options = ("-b", "4K", "-e", "64K", "-f", "4", "-g", "2", "-n", "8")
    options += ("--format", "nccl-filled", "--output")
    done = cli(collective, *options, str(path := tmp_path / "run.jsonl"))
    assert done.returncode == 0, done.stderr
    records = [record for record in run_file.read_file(path).records if record.times_ns]
    times = {(r.case.size, r.case.in_place): derive.derive_row(r) for r in records}
    for reader in (parsers.perfkit, parsers.ramble, parsers.aws_csv, parsers.cloudai):
        rows = reader(done.stdout)
        assert [row.size for row in rows] == [4096, 16384, 65536]
        for row in rows:
            assert row.out and row.back
            there = times.get((row.size, True), times[row.size, False])
            for half, kept in ((row.out, times[row.size, False]), (row.back, there)):
                assert kept and half.time == float(nccl.format_number(kept.times.median / 1e3, 7))
