"""Steps as they are asked for, on numbers of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.core.errors import UsageError
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
def test_ranks_that_a_step_does_not_have_are_refused(
    request_: Wanted, ranks: int, own: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text(OWN)
    for make in (request_.make_step, lambda ranks: request_.resolve(ranks, True, ["gloo"])):
        with pytest.raises(UsageError, match=f"{ranks} ranks are given, and .* has {own}"):
            make(ranks)
        assert make(own).world == own
    assert request_.resolve(ranks, False, ["gloo"]).world == own


@pytest.mark.parametrize("is_given", [True, False])
def test_a_layout_in_a_name_is_no_ending_of_a_file(is_given: bool) -> None:
    request = Wanted("redistribute:tp.None->None.tp")
    assert request.resolve(8, is_given, ["gloo"]).world == 8
