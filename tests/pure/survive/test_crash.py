"""What a person is told of errors that no command expects."""

from __future__ import annotations

import errno
import os

import pytest

from collbench.core.errors import Exit
from collbench.survive.crash import explain_crash


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),  # as Python says it
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
    ],
)
def test_a_limit_of_processes_is_no_fault_to_report(error: Exception) -> None:
    crash = explain_crash(error)
    assert crash.exit == Exit.CANNOT_RUN
    assert "ulimit -u" in crash.hint and "--pids-limit" in crash.hint
