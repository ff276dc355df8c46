"""Presets of paths: what is set for whom, what is refused, and what a case is known by."""

from __future__ import annotations

import pytest

from collbench.core.backend_info import BackendInfo, list_infos
from collbench.core.paths import (
    NAMES,
    PRESETS,
    VARIABLE,
    expand_path,
    find_path,
    list_card_names,
    refuse_path,
    strip_preset,
)
from collbench.core.text import format_settings


def test_a_preset_sets_its_name_and_what_its_backends_read() -> None:
    settings = dict(expand_path("loopback-nic", ("gloo",), "eth0"))
    assert settings == {VARIABLE: "loopback-nic", "GLOO_SOCKET_IFNAME": "lo"}


def test_two_backends_get_both_their_settings() -> None:
    settings = dict(expand_path("shm-off", ("nccl", "mpi"), ""))
    assert settings["NCCL_SHM_DISABLE"] == "1"
    assert settings["OMPI_MCA_btl"] == "self,tcp"


def test_the_card_is_named_where_a_preset_needs_one() -> None:
    assert list_card_names("nic-only", ("nccl", "gloo")) == ["GLOO_SOCKET_IFNAME"]
    assert not list_card_names("nic-only", ("nccl",))
    assert dict(expand_path("nic-only", ("gloo",), "eth7"))["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.parametrize("name", NAMES)
def test_nobody_else_reads_the_settings_of_a_backend(name: str) -> None:
    infos: dict[str, BackendInfo] = dict(list_infos())
    for backend, settings in PRESETS[name].settings.items():
        for setting in settings:
            readers = {n for n, info in infos.items() if setting.startswith(info.settings)}
            assert not readers or backend in readers, setting


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi", "shm", "symm"])
def test_a_backend_has_settings_or_a_reason(name: str, backend: str) -> None:
    env = ((VARIABLE, name),)
    assert bool(refuse_path(env, backend)) is (backend not in PRESETS[name].settings)


def test_a_reason_names_path_and_backend() -> None:
    reason = refuse_path(((VARIABLE, "nvlink-only"),), "gloo")
    assert reason.startswith("--path nvlink-only: gloo ")


def test_an_unknown_preset_is_refused() -> None:
    assert "no such path" in refuse_path(((VARIABLE, "by-pigeon"),), "gloo")


def test_a_case_without_a_preset_is_never_refused() -> None:
    assert refuse_path((("NCCL_ALGO", "Ring"),), "gloo") == ""
    assert find_path((("NCCL_ALGO", "Ring"),)) == ""


def test_settings_are_shown_by_their_presets_name_and_others_stay() -> None:
    env = (("OMP_NUM_THREADS", "1"), *expand_path("shm-off", ("mpi",), ""))
    assert strip_preset(env) == (("OMP_NUM_THREADS", "1"), (VARIABLE, "shm-off"))
    assert format_settings(env) == "OMP_NUM_THREADS=1 COLLBENCH_PATH=shm-off"


def test_settings_by_hand_are_shown() -> None:
    assert format_settings((("OMPI_MCA_btl", "self,tcp"),)) == "OMPI_MCA_btl=self,tcp"
