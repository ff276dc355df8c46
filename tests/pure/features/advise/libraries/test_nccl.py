"""NCCL's settings: what bears on a collective, what is worth trying, and how it is named."""

from __future__ import annotations

import pytest
from factories import world

from collbench.features.advise.libraries.nccl import IMPLEMENTED, LIBRARY, list_allowed
from collbench.features.advise.types import Setting
from collbench.run.rank.ncclog import ALGORITHMS

COLLECTIVES = (*IMPLEMENTED, "all_to_all", "sendrecv")


def reduce(collective: str, **env: str) -> dict[str, str]:
    return dict(LIBRARY.reduce(collective, tuple(env.items())))


def name(collective: str = "all_reduce", backend: str = "nccl", **env: str) -> str:
    return LIBRARY.name_setting(collective, Setting(backend=backend, env=tuple(env.items())))


@pytest.mark.parametrize(("backend", "is_nccl"), [("nccl", True), ("rccl", True), ("gloo", False)])
def test_worlds_of_nccl_and_rccl_are_known_by_their_backend(backend: str, is_nccl: bool) -> None:
    assert LIBRARY.is_of(world(n=2, backend=backend)) == is_nccl


@pytest.mark.parametrize(
    ("value", "collective", "allowed"),
    [
        ("tree", "all_reduce", "Tree"),
        ("NVLSTree,ring", "all_reduce", "Ring,NVLSTree"),
        ("ring;allreduce:tree", "all_reduce", "Tree"),
        ("ring;allreduce:tree", "all_gather", ""),
        ("ring;allgather:pat", "all_gather", "PAT"),
        ("^tree", "all_reduce", "Ring,CollNetDirect,CollNetChain,NVLS,NVLSTree"),
        ("ring", "broadcast", None),
        ("^tree", "broadcast", None),
        ("mesh", "all_reduce", "mesh"),
        ("tree", "all_to_all", None),
    ],
)
def test_an_algorithm_is_reduced_to_what_applies(
    value: str, collective: str, allowed: str | None
) -> None:
    expected = {} if allowed is None else {"NCCL_ALGO": allowed or "Ring"}
    assert reduce(collective, NCCL_ALGO=value) == expected


def test_a_list_of_all_protocols_leaves_the_choice_to_nccl() -> None:
    assert reduce("all_reduce", NCCL_PROTO="ll,ll128,simple") == {}


@pytest.mark.parametrize("value", ["-2", "0", "", "many", "9999999"])
def test_numbers_of_channels_that_nccl_ignores_say_nothing(value: str) -> None:
    assert reduce("all_reduce", NCCL_MAX_NCHANNELS=value) == {}


def test_the_log_says_nothing_and_unknown_variables_stay() -> None:
    env = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": "x",
        "NCCL_BUFFSIZE": "1048576",
        "UCX_TLS": "tcp",
    }
    assert reduce("all_reduce", **env) == {"NCCL_BUFFSIZE": "1048576", "UCX_TLS": "tcp"}


def test_channels_of_messages_bear_on_all_to_all_only() -> None:
    env = {"NCCL_MIN_P2P_NCHANNELS": "32", "NCCL_NTHREADS": "256"}
    assert reduce("all_to_all", **env) == {"NCCL_MIN_P2P_NCHANNELS": "32"}
    assert reduce("all_gather", **env) == {"NCCL_NTHREADS": "256"}


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("", None),
        ("^", None),
        ("ring,,mesh", None),
        ("ring;all_reduce:mesh", ("Ring",)),
        (":tree", ("Tree",)),
    ],
)
def test_bad_lists_are_told_from_good_ones_or_hold_nobody_up(
    value: str, allowed: tuple[str, ...] | None
) -> None:
    assert list_allowed(value, "all_reduce", ALGORITHMS) == allowed


@pytest.mark.parametrize("version", ["NCCL 2.30.7", "RCCL 2.27.7"])
@pytest.mark.parametrize("n", [2, 8, 64])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_settings_worth_trying_are_few_known_and_reduced(
    collective: str, n: int, version: str
) -> None:
    settings = LIBRARY.list_settings(collective, n, version)
    assert 0 < len(set(settings)) == len(settings) < 12
    assert all(LIBRARY.reduce(collective, env) == env for env in settings)
    assert len({name(collective, **dict(env)) for env in settings}) == len(settings)


@pytest.mark.parametrize(("collective", "lacks"), [("all_gather", "Tree"), ("all_reduce", "PAT")])
def test_no_algorithm_is_tried_that_nccl_has_not_for_the_collective(
    collective: str, lacks: str
) -> None:
    tried = [
        dict(env).get("NCCL_ALGO") for env in LIBRARY.list_settings(collective, 64, "NCCL 2.30")
    ]
    assert lacks not in tried
    assert "Ring" in tried


def test_rccl_is_not_asked_for_switches() -> None:
    tried = {dict(env)["NCCL_ALGO"] for env in LIBRARY.list_settings("all_reduce", 64, "RCCL 2.27")}
    assert tried == {"Tree", "Ring"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"}, "Tree/LL128"),
        (
            {
                "NCCL_ALGO": "Tree",
                "NCCL_PROTO": "LL128",
                "NCCL_MIN_NCHANNELS": "16",
                "NCCL_MAX_NCHANNELS": "16",
            },
            "Tree/LL128 x16",
        ),
        ({"NCCL_ALGO": "NVLS"}, "NVLS/Simple"),
        ({"NCCL_ALGO": "Tree"}, "Tree"),
        ({"NCCL_PROTO": "LL"}, "LL"),
        ({"NCCL_MAX_CTAS": "4"}, "at most 4 channels"),
        ({"NCCL_MIN_CTAS": "4", "UCX_TLS": "tcp"}, "at least 4 channels UCX_TLS=tcp"),
        ({}, "default"),
    ],
)
def test_settings_are_named_in_nccls_words(env: dict[str, str], expected: str) -> None:
    assert name(**env) == expected


def test_a_broadcast_has_rings_only_and_is_named_so() -> None:
    assert name("broadcast", NCCL_PROTO="LL") == "Ring/LL"


def test_other_backends_and_own_algorithms_are_named_as_such() -> None:
    assert name(backend="torch_two_shot") == "torch_two_shot"
    own = Setting(backend="symm", algorithm="ring")
    assert LIBRARY.name_setting("all_reduce", own) == "ring@symm"
