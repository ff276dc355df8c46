"""Everything that runs, and everything that breaks, on the fake GPU (``make fake-gpu``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import find_environment, run_scenario
from scenarios import FAULTS, RUNS, Scenario

ENVIRONMENT = find_environment()
if ENVIRONMENT is None:
    pytest.skip("no fake GPU here: make fake-gpu makes it", allow_module_level=True)


def marked(scenarios: tuple[Scenario, ...]) -> list[object]:
    return [
        pytest.param(
            scenario,
            id=scenario.name,
            marks=[
                pytest.mark.timeout(scenario.seconds + 60),
                *([pytest.mark.long] if scenario.long else []),
            ],
        )
        for scenario in scenarios
    ]


@pytest.mark.parametrize("scenario", marked(RUNS))
def test_it_runs(scenario: Scenario, tmp_path: Path) -> None:
    assert ENVIRONMENT
    outcome = run_scenario(scenario, ENVIRONMENT, tmp_path)
    assert outcome.faults == [], outcome.output[-6000:]


@pytest.mark.parametrize("scenario", marked(FAULTS))
def test_it_is_told_right(scenario: Scenario, tmp_path: Path) -> None:
    assert ENVIRONMENT
    outcome = run_scenario(scenario, ENVIRONMENT, tmp_path)
    assert outcome.faults == [], outcome.output[-6000:]
