"""An mpirun of one world, from its start to its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from collbench.run.launch import mpirun


def test_one_that_a_signal_kept_from_being_started_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*of: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mpirun, "find", lambda python: "mpirun")
    monkeypatch.setattr(mpirun.subprocess, "Popen", interrupted)
    world = mpirun.Mpirun({}, sys.executable, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        world.spawn(2, 0)
    world.close()
    with pytest.raises(ValueError, match="closed"):
        world.fileno()
