"""Labs for tests, where this machine can have them."""

from __future__ import annotations

import network
import pytest
from needs import stop_without


@pytest.fixture(scope="session")
def possible() -> None:
    if reason := network.why_not():
        stop_without("lab", reason)
