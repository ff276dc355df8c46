"""Parameters with which a test takes long."""

from __future__ import annotations

from functools import partial

import pytest

long = partial(pytest.param, marks=pytest.mark.long)
