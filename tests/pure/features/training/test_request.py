"""Steps as they are asked for, on numbers of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.features.training.request import Wanted

OWN = "ranks,op,bytes,dtype,group\n0-1,all_reduce,4096,float,\n"


@pytest.mark.parametrize(
    ("request_", "ranks", "own"),
    [
        (Wanted("own.csv"), 4, 2),
        (Wanted("megatron:llama3-70b", group="tp", layers=4), 4, 8),
        (Wanted("m2n:dp.None->tp.None", layers=1), 8, 12),  # 8 that train and 4 that generate
    ],
)
@pytest.mark.parametrize("is_given", [True, False])
def test_a_step_of_a_fixed_number_of_ranks_runs_on_that_number(
    request_: Wanted,
    ranks: int,
    own: int,
    is_given: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(OWN)
    assert request_.make_step(ranks).world == own
    assert request_.resolve(ranks, is_given, ["gloo"]).world == own


@pytest.mark.parametrize("is_given", [True, False])
def test_a_layout_in_a_name_is_no_ending_of_a_file(is_given: bool) -> None:
    request = Wanted("redistribute:tp.None->None.tp")
    assert request.resolve(8, is_given, ["gloo"]).world == 8
