"""What is said of machines that others used too, and when nothing is."""

from __future__ import annotations

import factories
import pytest

from collbench.machine.load import Load
from collbench.records.types import End, Record
from collbench.show import busy

QUIET, LOUD = Load(0.04, 2), Load(1.26, 2)
CASE = factories.case()


def records(*loads: tuple[float, dict[str, Load]]) -> list[Record]:
    return [factories.record(CASE, seconds=seconds, load=load) for seconds, load in loads]


def sentence(*loads: tuple[float, dict[str, Load]], before: Load | None = None) -> str:
    run = factories.run(load={"vm": before} if before else {})
    return busy.describe_run_load(run, records(*loads), End(exit=0, ended="", load={"vm": QUIET}))


def test_a_busy_machine_is_told_before_with_what_to_do() -> None:
    assert busy.describe_now({"vm": LOUD}) == (
        "other processes use 1.3 of 2 CPUs: expect noisy results; stop them or use an idle machine"
    )
    assert busy.describe_now({"vm": QUIET}) == busy.describe_now({}) == ""


def test_what_was_while_measuring_decides() -> None:
    assert sentence((1.0, {"vm": LOUD}), before=QUIET).startswith(
        "other processes used 1.3 of 2 CPUs while measuring (0.0 before, 0.0 after): results"
    )
    assert sentence((1.0, {"vm": QUIET}), before=LOUD) == ""


def test_where_that_is_not_known_the_load_before_does() -> None:
    assert "used 1.3 of 2 CPUs before (0.0 after)" in sentence(before=LOUD)
    assert sentence() == ""


def test_cases_weigh_by_the_time_they_took() -> None:
    loads = [(9.0, {"vm": Load(0.0, 2)}), (1.0, {"vm": Load(2.0, 2)})]
    assert busy.mean_load(records(*loads)) == {"vm": Load(pytest.approx(0.2), 2)}


def test_of_several_hosts_the_busiest_is_named() -> None:
    load = {"a": QUIET, "b": Load(1.0, 8), "c": Load(1.9, 2)}
    assert "1.9 of 2 CPUs on c (and on 1 more host)" in sentence((1.0, load))


def test_others_never_use_more_than_there_is() -> None:
    assert "use 2.0 of 2 CPUs" in busy.describe_now({"vm": Load(2.04, 2)})


def test_of_several_runs_the_busy_ones_are_counted() -> None:
    def file(load: Load) -> object:
        return factories.make_file(records((1.0, {"vm": load})))

    assert busy.of_files([file(QUIET), file(LOUD)]).endswith("idle machine")  # type: ignore[list-item]
    assert busy.of_files([file(LOUD)] * 3).endswith("(and in 2 more of the runs)")  # type: ignore[list-item]
