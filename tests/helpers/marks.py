"""Parameters with which a test takes seconds, or long."""

from __future__ import annotations

from functools import partial

import pytest

long = partial(pytest.param, marks=pytest.mark.long)
slow = partial(pytest.param, marks=pytest.mark.slow)
