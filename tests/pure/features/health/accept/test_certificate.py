"""Who wrote a certificate: the same user whom a baseline names."""

from __future__ import annotations

import getpass
import os

import pytest
from factories import case

from collbench.features.health.accept import certificate
from collbench.features.health.history import baselines
from collbench.features.health.history.nights import Night, Series
from collbench.machine import environment


def name_users() -> tuple[str, str]:
    night = Night(
        day="2026-01-01", value=13.0, launches=3, samples=21, fingerprint="f", manner="m", runs=()
    )
    row = Series(machine="node1", case=case(), nights=[night])
    by = certificate.trace_provenance([], None).by
    return by, baselines.accept_baseline([row], "2026-01-01", "new", "").who


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_is_a_number_everywhere(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise error("uid not found")

    monkeypatch.setattr(getpass, "getuser", fail)
    number = str(os.getuid())
    assert name_users() == (f"{number} on {environment.host_name()}", number)


def test_a_user_is_named_alike_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    assert name_users() == (f"ada on {environment.host_name()}", "ada")
