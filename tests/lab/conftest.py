"""Labs for tests, where this machine can have them."""

from __future__ import annotations

import network
import pytest


@pytest.fixture(scope="session")
def possible() -> None:
    if reason := network.why_not():
        pytest.skip(reason)
