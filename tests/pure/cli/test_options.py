"""What stands where a command takes a collective or a run; what reporters are told."""

from __future__ import annotations

import re
from pathlib import Path

import factories
import msgspec
import pytest

from collbench.cli.measure import choose_gravest
from collbench.cli.options import add_paths, find_subject, make_reporter
from collbench.core.errors import Exit, UsageError
from collbench.core.paths import VARIABLE, expand_path
from collbench.show import nccl
from collbench.suite.grammar import expand_envs
from collbench.suite.sweep import Axes


def test_a_subject_is_a_collective_or_a_run(home: Path) -> None:
    factories.saved(factories.make_file([], name="1-a-f575"), home)
    assert find_subject("allreduce", ()) == "all_reduce"
    found = find_subject("1-a-f575", ())
    assert isinstance(found, Path) and found.stem == "1-a-f575"


@pytest.mark.parametrize(
    ("what", "hint"), [("all_redce", "did you mean all_reduce?"), ("zzz", "one of reduce, scan")]
)
def test_what_is_neither_is_refused_with_what_there_is(what: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_subject(what, ("reduce", "scan"))
    assert raised.value.message == f"'{what}' is no collective and no run"
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("codes", "gravest"),
    [
        ([Exit.NO_VERDICT, Exit.BAD], Exit.BAD),
        ([Exit.OK, Exit.NO_VERDICT], Exit.NO_VERDICT),
        ([], Exit.OK),
        ([Exit.BAD, Exit.WRONG_DATA], Exit.WRONG_DATA),
    ],
)
def test_no_verdict_hides_nothing_that_is_bad(codes: list[Exit], gravest: Exit) -> None:
    assert choose_gravest(codes) == gravest


@pytest.mark.parametrize(
    ("name", "asked", "needed"),
    [
        ("nccl", nccl.DEFAULTS, False),
        ("nccl", nccl.Options(average=1), True),
        ("nccl", nccl.Options(cpu_time=True), True),
        ("nccl", nccl.Options(per_iter=True), True),
        ("imb", nccl.DEFAULTS, True),
        *((name, nccl.DEFAULTS, False) for name in ("table", "json", "csv", "md")),
    ],
)
def test_a_reporter_gets_each_ranks_samples_where_it_shows_something_of_them(
    tmp_path: Path, name: str, asked: nccl.Options, needed: bool
) -> None:
    assert make_reporter(name, options=asked).needs_samples == needed
    assert make_reporter(name, tmp_path / "out.json", asked).needs_samples


class Hosts:
    name = "ssh"


@pytest.mark.parametrize("source", [None, Hosts()])
def test_a_card_that_env_names_is_that_of_the_path(source: object) -> None:
    env = (("GLOO_SOCKET_IFNAME", "eth7"), ("OMP_NUM_THREADS", "1"))
    backends = ("gloo", "mpi")
    axes = Axes(collectives=(), sizes=(), ranks=(2,), backends=backends, envs=(env,))
    (settings,) = add_paths(axes, ["nic-only"], source).envs
    assert settings == (env[1], *expand_path("nic-only", backends, "eth7"))


def test_the_interface_in_the_hint_is_accepted() -> None:
    axes = Axes(collectives=(), sizes=(), ranks=(2,), backends=("gloo",))
    with pytest.raises(UsageError, match="cards of hosts that ssh reaches") as raised:
        add_paths(axes, ["nic-only"], Hosts())
    (hinted,) = re.findall(r"--env (\w+=\w+)", raised.value.hint)
    named = msgspec.structs.replace(axes, envs=expand_envs([hinted]))
    (settings,) = add_paths(named, ["nic-only"], Hosts()).envs
    assert dict(settings) == {VARIABLE: "nic-only", "GLOO_SOCKET_IFNAME": "eth0"}


def test_another_setting_of_the_path_is_refused() -> None:
    env = (("OMPI_MCA_btl", "self"),)
    axes = Axes(collectives=(), sizes=(), ranks=(2,), backends=("mpi",), envs=(env,))
    with pytest.raises(UsageError, match="OMPI_MCA_btl and --path shm-off decide the same"):
        add_paths(axes, ["shm-off"])
