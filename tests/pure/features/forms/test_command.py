"""Forms as the command line asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.cli.families import LauncherOptions, SaveOptions
from collbench.core.errors import UsageError
from collbench.features.forms.command import SweepOptions, make_suite
from collbench.features.forms.measurable import make_requests
from collbench.suite.sweep import Suite


def ask(launcher: str = "local", **given: Any) -> Suite:
    sweep = SweepOptions(
        **{"backend": "gloo", **given},
        where=LauncherOptions(launcher=launcher),
        saving=SaveOptions(save=False),
    )
    return make_suite(make_requests(["gather"], [8], []), sweep)


def test_two_ranks_are_measured_where_nothing_is_said() -> None:
    assert ask().axes.ranks == (2,)


def test_hosts_of_the_environment_have_a_rank_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLBENCH_HOSTS", "a:4,b:4")
    assert ask(launcher="ssh").axes.ranks == (8,)
    assert ask(launcher="ssh", ngpus="3").axes.ranks == (3,)


def test_a_number_of_samples_is_not_also_chosen_by_time() -> None:
    with pytest.raises(UsageError, match="-n fixes the samples that --max-time would choose"):
        ask(iters=3, max_time="1s")
