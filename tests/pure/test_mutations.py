"""Whatever a file says, what reads it reads it, or says in words why not."""

from __future__ import annotations

from pathlib import Path

import factories
import mutations
import pytest
from marks import long

SEEDS = [range(80), long(range(80, 300))]  # tests/perf/fuzz.py tries as many as one likes


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", mutations.KINDS)
def test_a_changed_file_is_read_or_refused_in_words(
    name: str, seeds: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    factories.write(factories.stored({factories.case(): 1e6}, name="good"), tmp_path)
    kind, path = mutations.KINDS[name], tmp_path / "x.jsonl"
    said = {mutations.tried(kind, seed, path, seed % 30 == 0) for seed in seeds}
    assert {"read", "refused"} <= said


# what further mutations found once
FOUND = {
    "nccl JSON": (870, 2582, 6673),
    "osu": (1591, 1933),
    "imb": (1112, 1703),
    "rccl CSV": (451, 1147),
    "rccl JSON": (1979, 2806),
    "expectations": (5611,),
}


@pytest.mark.parametrize(("name", "seed"), [(n, s) for n, found in FOUND.items() for s in found])
def test_what_was_found_once_is_read_or_refused(name: str, seed: int, tmp_path: Path) -> None:
    assert mutations.tried(mutations.KINDS[name], seed, tmp_path / "x") in ("read", "refused")


def test_csv_with_a_stray_line_end_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(mutations.CollbenchError, match="new-line"):
        mutations.log_reader("rccl")(b"numCycle,name\r1\n2\n", tmp_path)
