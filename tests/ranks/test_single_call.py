"""One call of a long case before others are measured to the end, on ranks of this machine."""

from __future__ import annotations

from pathlib import Path

import called_first
import msgspec
import pytest

from collbench.records import run_file
from collbench.records.types import Record


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_calls_come_first_and_are_not_kept(warm, tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "run.jsonl"
    process = warm.start(algorithm, str(path), script=called_first.__file__)
    out, err = process.communicate(100)
    assert process.wait() == 0, err
    told = [msgspec.json.decode(line, type=tuple[str, Record]) for line in out.splitlines()]
    assert [what for what, _ in told] == ["called"] * 2 + ["measured"] * 4
    called = [record for _, record in told[:2]]
    assert [(r.case.nbytes, r.case.in_place) for r in called] == [(1 << 12, True), (1 << 16, True)]
    assert all(r.times_ns == [r.setup_ns] and r.wrong is None for r in called)
    saved = [record for record in run_file.read_file(path).records if record.status == "ok"]
    assert len(saved) == 4 and all(r.wrong == 0 and r.checked for r in saved)
    assert not {r.setup_ns for r in called} & {r.setup_ns for r in saved}  # made anew, on others
