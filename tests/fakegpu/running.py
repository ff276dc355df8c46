"""Run a scenario on the fake GPU that ``make fake-gpu`` has made, and compare what came of it with
what must be seen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scenarios import ROOT, Scenario


class Outcome(NamedTuple):
    """What a scenario did: exit code (None where it did not end in time), output, and what is
    wrong with it."""

    exit: int | None
    output: str
    faults: list[str]


def find_environment() -> Path | None:
    """The environment that build.py made, as ``make fake-gpu`` names it; None where it does not."""
    folder = os.environ.get("COLLBENCH_FAKE_GPU")
    if folder is None:
        return None
    path = (ROOT / folder).resolve()
    if not (path / "bin/fakegpu").exists():
        raise FileNotFoundError(f"COLLBENCH_FAKE_GPU={folder}: build.py has made nothing there")
    return path


def run_scenario(scenario: Scenario, environment: Path, folder: Path) -> Outcome:
    """Run it in ``folder``; what it left running is killed."""
    settings = {
        **os.environ,
        "FAKE_GPUS": str(scenario.gpus),
        "FAKE_STATE": str(folder),
        "COLLBENCH_HOME": str(folder / "home"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
        **scenario.settings,
    }
    command = [str(environment / "bin/fakegpu"), "bash", "-c", scenario.command]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=scenario.seconds)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if code is None:
        output = process.communicate()[0]
    return Outcome(code, output, find_faults(scenario, code, output))


def find_faults(scenario: Scenario, code: int | None, output: str) -> list[str]:
    """What is not as it must be, a sentence each."""
    if code is None:
        return [f"not done in {scenario.seconds} s"]
    faults = [f"exit code {code}, not {scenario.exit}"] if code != scenario.exit else []
    faults += [f"does not say {text!r}" for text in scenario.sees if not re.search(text, output)]
    faults += [f"says {text!r}" for text in scenario.never if re.search(text, output)]
    return faults
