"""How ranks come to a call: what may be asked for, and the cases that it makes."""

from __future__ import annotations

import pytest

from collbench.core.errors import UsageError
from collbench.machine import cpus
from collbench.suite import arrivals
from collbench.suite.sweep import Axes, default_mode, expand_axes


@pytest.mark.parametrize(
    ("text", "told"),
    [("one-late:50us", ("one-late", 50e-6)), ("random:0.1ms", ("random", 100e-6))],
)
def test_a_pattern_has_a_kind_and_a_time(text: str, told: tuple[str, float]) -> None:
    kind, seconds = arrivals.parse_arrival(text)
    assert (kind, seconds) == (told[0], pytest.approx(told[1]))


@pytest.mark.parametrize(
    "text",
    ["late", "one-late", "one-late:", "random:0", "random:2s", "one-late:fast", "natural:1s"],
)
def test_what_is_no_pattern_says_what_is(text: str) -> None:
    with pytest.raises(UsageError) as found:
        arrivals.parse_cadence(text)
    assert "--arrival" in found.value.message


def test_the_axis_stands_for_modes() -> None:
    names = ("aligned", "natural", "one-late:50us", "random:100us")
    cases, _ = expand_axes(
        Axes(
            collectives=("all_reduce",),
            sizes=(8,),
            ranks=(2,),
            in_place=(False,),
            arrivals=names,
        )
    )
    assert [(case.mode, case.arrival) for case in cases] == [
        ("isolated", ""),
        ("host", ""),
        ("isolated", "one-late:50us"),
        ("isolated", "random:100us"),
    ]
    assert len({case.key for case in cases}) == 4


@pytest.mark.parametrize(
    ("backend", "ranks", "cores", "mode"),
    [
        ("gloo", 2, 4, "isolated"),
        ("gloo", 2, 2, "host"),  # two threads each
        ("gloo", 1, 1, "isolated"),  # which waits for nobody
        ("mpi", 2, 2, "isolated"),
        ("mpi", 4, 2, "host"),
        ("shm", 2, 2, "isolated"),
        ("nccl", 8, 2, "streaming"),
        ("model", 1024, 2, "isolated"),
    ],
)
def test_the_default_is_what_a_program_sees_where_cores_are_few(
    backend: str, ranks: int, cores: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "core_count", lambda: cores)
    assert default_mode(backend, ranks) == mode


def test_only_the_ranks_of_a_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "core_count", lambda: 4)
    axes = Axes(collectives=("barrier",), sizes=(0,), ranks=(8,))
    assert {case.mode for case in expand_axes(axes)[0]} == {"host"}
    assert {case.mode for case in expand_axes(axes.resolve(8, 2))[0]} == {"isolated"}


@pytest.mark.parametrize("here", [1, 1000])
def test_the_cores_of_hosts_that_are_known_count_and_not_this_ones(
    here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "core_count", lambda: here)
    monkeypatch.setattr(cpus, "launched_core_count", lambda _: here)
    axes = Axes(collectives=("barrier",), sizes=(0,), ranks=(2, 16), per_host=8, cores=8)
    modes = {case.n: case.mode for case in expand_axes(axes)[0]}
    assert modes == {2: "isolated", 16: "host"}
