"""Run every scenario on the fake GPU and write what was seen: ``python tests/fakegpu/report.py
--output reports/fake-gpu.md``."""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from running import Outcome, find_environment, run_scenario
from scenarios import FAULTS, ROOT, RUNS, Scenario

SHOWN = 150  # characters of a line that was seen
ENDING = 4000  # characters of the output where something is not as it must be


def read_versions(environment: Path) -> str:
    """torch, Triton and NCCL of the fake's environment."""
    code = "import torch, triton; print('torch', torch.__version__, '· Triton', triton.__version__)"
    command = [str(environment / "bin/fakegpu"), "python", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def find_seen(scenario: Scenario, outcome: Outcome) -> list[str]:
    """The lines of the output that show what the scenario must show, shortened."""
    lines = []
    for text in scenario.sees:
        for line in outcome.output.splitlines():
            match = re.search(text, line)
            if match:
                begin = max(0, match.start() - SHOWN // 2) if len(line) > SHOWN else 0
                lines.append(line[begin : begin + SHOWN].strip())
                break
    return list(dict.fromkeys(lines))


def shorten(command: str) -> str:
    """A command without this checkout's path, on one line of a table."""
    return command.replace(f"{ROOT}/", "").replace(str(ROOT), ".").replace("|", "\\|")


def write_rows(outcomes: Iterable[tuple[Scenario, Outcome, float]]) -> list[str]:
    lines = ["| what | command | exit | seen | as it must be |", "|---|---|--:|---|---|"]
    for scenario, outcome, seconds in outcomes:
        settings = " ".join(f"{key}={value}" for key, value in scenario.settings.items())
        variables = " ".join(filter(None, (f"FAKE_GPUS={scenario.gpus}", settings)))
        command = f"`{variables} {shorten(scenario.command)}`"
        seen = "<br>".join(
            f"`{line.replace('|', ' ').replace('`', ' ')}`" for line in find_seen(scenario, outcome)
        )
        verdict = "yes" if not outcome.faults else "**no**: " + "; ".join(outcome.faults)
        verdict = verdict.replace("|", "\\|")
        code = "none in time" if outcome.exit is None else outcome.exit
        lines.append(
            f"| {scenario.name} ({seconds:.0f} s) | {command} | {code} | {seen} | {verdict} |"
        )
    return lines


def run_all(
    scenarios: Iterable[Scenario], environment: Path
) -> list[tuple[Scenario, Outcome, float]]:
    outcomes = []
    for scenario in scenarios:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            outcome = run_scenario(scenario, environment, Path(folder))
        seconds = time.monotonic() - began
        print(
            f"{seconds:5.0f} s  {scenario.name}: {outcome.faults or 'ok'}",
            file=sys.stderr,
            flush=True,
        )
        if outcome.faults:
            print(outcome.output[-ENDING:], file=sys.stderr, flush=True)
        outcomes.append((scenario, outcome, seconds))
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--short", action="store_true", help="leave out what is marked as long")
    options = parser.parse_args()
    environment = find_environment()
    if environment is None:
        raise SystemExit("no fake GPU here: make fake-gpu makes it")
    chosen = [
        [
            scenario
            for scenario in scenarios
            if re.search(options.only, scenario.name) and not (options.short and scenario.long)
        ]
        for scenarios in (RUNS, FAULTS)
    ]
    is_part = bool(options.only or options.short)
    began = time.monotonic()
    runs, faults = (run_all(scenarios, environment) for scenarios in chosen)
    right = sum(not outcome.faults for _, outcome, _ in runs + faults)
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    revision = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    lines = [
        "# On the fake GPU",
        "",
        "Made by `python tests/fakegpu/report.py` on"
        f" {datetime.now(UTC):%Y-%m-%d}, revision {revision}, Python {platform.python_version()}:"
        f" {read_versions(environment)}, on the fake CUDA of tests/fakegpu, whose README says what"
        " is real there. No number of these runs means anything; that they ran, what they said, and"
        " their exit codes do.",
        "",
        f"**{right} of {len(runs + faults)}** are as they must be"
        f" ({(time.monotonic() - began) / 60:.0f} minutes).",
        "",
        *([f"Only a selection was run: `{' '.join(sys.argv[1:])}`.", ""] if is_part else []),
        "## What runs",
        "",
        *write_rows(runs),
        "",
        "## What is told when something breaks",
        "",
        *write_rows(faults),
        "",
    ]
    options.output.write_text("\n".join(lines))
    raise SystemExit(right != len(runs + faults))


if __name__ == "__main__":
    main()
