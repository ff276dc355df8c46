"""What the two sides of an experiment are known to be, for tests that are about something else."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from collbench.features.compare.ab import variants
from collbench.machine import environment

GATHERED = functools.cache(environment.gather_facts)


@pytest.fixture
def same_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter is asked what it has, and the machine once for each tree."""

    def answer(python: str, settings: dict[str, str], option: str) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(variants, "ask_software", answer)
    monkeypatch.setattr(variants.environment, "gather_facts", GATHERED)
