"""Models that tests of training steps share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from collbench.features.training.models import MODELS


@pytest.fixture(scope="session", autouse=True)
def share_models() -> Iterator[None]:
    """Each model is made once: the largest has 45,000 tensors, and nothing changes a model."""
    made = dict(MODELS)
    MODELS.update({name: functools.cache(make) for name, make in made.items()})
    yield
    MODELS.update(made)
