"""Packages of others that a test needs: it is skipped without, with how to have them, or fails
where COLLBENCH_NEED (names with commas between) says that they are to be there."""

from __future__ import annotations

import os

import pytest

from collbench.core.backend_info import backend_info


def need_backend(name: str) -> None:
    """Skip where the backend ``name`` cannot be opened on this machine; fail where
    COLLBENCH_NEED has it."""
    reason = backend_info(name).here()
    if reason and name in os.environ.get("COLLBENCH_NEED", "").split(","):
        pytest.fail(f"COLLBENCH_NEED has {name}: {reason}")
    if reason:
        pytest.skip(reason)
