"""A search as the command runs it, without ranks: when it ends, and what is printed of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import factories
import pytest

from collbench.cli.families import LauncherOptions
from collbench.core.errors import CannotRun, CollbenchError, Exit, NoVerdict
from collbench.features.health.locate import command as locate
from collbench.features.health.locate.findings import make_findings
from collbench.features.health.locate.search import Culprit, Located, Rules
from collbench.records.types import FirstWrong
from collbench.run import session
from collbench.run.order import Order

CASE = factories.case(collective="sendrecv", n=4)
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(("seconds", "rounds"), [(-1.0, 1), (1e9, 3)])
def test_when_its_time_is_over_no_round_is_begun(seconds: float, rounds: int) -> None:
    searching = locate.Searching(Rules(), seconds)
    searching.world(factories.world(n=4, ranks=factories.hosted(4)))
    searching.record(factories.record(CASE), None)
    while searching.next_cases():
        searching._reached = defaultdict(lambda: 1.0)
    assert searching.located and searching.located.rounds == rounds


def test_a_search_on_refused_hosts_ends_before_its_first_round() -> None:
    """As in a job on other nodes than the night's: which these are is known once ranks have met."""
    searching = locate.Searching(Rules(), refuse_hosts=lambda hosts: ", ".join(sorted(hosts)))
    searching.world(factories.world(n=4, ranks=factories.hosted(4)))
    searching.record(factories.record(CASE), None)
    assert searching.next_cases() == []
    assert (searching.refusal, searching.located) == ("node0, node1, node2, node3", None)


def printed(culprits: list[Culprit], capsys: pytest.CaptureFixture[str]) -> list[str]:
    located = Located(culprits, [], 4, 8, 5, 0.01, 0.01, 1.0)
    told = list(make_findings(located, ["a", "b", "c", "d"]))
    file = factories.make_file([factories.record(CASE)])
    found = locate.Found(located, told, "words", Exit.OK, file)
    locate._show_found(found, "table", "to find the slow direction: collbench pairs")
    return capsys.readouterr().out.splitlines()


def test_the_last_line_is_the_command_that_tells_the_direction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = printed([Culprit((1, 2), 0.5, 3)], capsys)[-1]
    assert last == "to find the slow direction: collbench pairs"


@pytest.mark.parametrize(
    ("variables", "launcher", "under", "more"),
    [
        ({}, "auto", "", ""),
        (SRUN, "auto", ", under srun", ""),
        (SRUN, "local", "", " --launcher local"),
        (SRUN, "ssh", "", " --launcher ssh --hosts a:4,b:4"),
    ],
)
def test_the_command_that_tells_the_direction_is_started_as_the_search_was(
    variables: dict[str, str],
    launcher: str,
    under: str,
    more: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    where = LauncherOptions(launcher=launcher, hosts="a:4,b:4" if launcher == "ssh" else "")
    saving = locate.SearchSaveOptions()
    next_step = locate._describe_next_step(locate.LocateOptions(where=where, saving=saving))
    command = "collbench pairs --one-way --large 4M --small 0"
    assert next_step == f"to find the slow direction{under}: {command}{more}"


def test_where_nothing_is_slow_no_direction_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed([], capsys) == ["words"]


@pytest.mark.parametrize("fake", [True, False])
def test_nobody_is_named_by_the_times_of_fake_gpus(
    monkeypatch: pytest.MonkeyPatch, fake: bool
) -> None:
    located = Located([Culprit((1,), 0.5, 3)], [], 4, 8, 5, 0.01, 0.01, 1.0)
    ranks = factories.hosted(4)

    def execute(order: Any, make: Callable[[], Any]) -> Exit:
        reporter = make()
        reporter.begin(factories.run(), [CASE], [])
        reporter.world(factories.world(ranks=ranks, fake=fake))
        order.next_cases.__self__.located = located
        reporter.end(factories.ENDED, None)
        return Exit.OK

    monkeypatch.setattr(session, "execute_order", execute)
    order = Order(suite=factories.SUITE, command=[])
    if fake:
        with pytest.raises(NoVerdict, match="measured on a fake GPU"):
            locate.run_search(order, Rules())
    else:
        found = locate.run_search(order, Rules())
        assert found and found.exit == Exit.BAD


def searched_without_rate(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Runs a search whose first case has no rate; raises what the search comes to."""
    untimed = factories.record(CASE, times_ns=[], **fields)

    def execute(order: Any, make: Callable[[], Any]) -> Exit:
        reporter = make()
        reporter.begin(factories.run(), [CASE], [])
        reporter.world(factories.world(n=4, ranks=factories.hosted(4)))
        reporter.record(untimed, None)
        assert order.next_cases() == []
        reporter.end(factories.ENDED, None)
        return Exit.OK

    monkeypatch.setattr(session, "execute_order", execute)
    locate.run_search(Order(suite=factories.SUITE, command=[]), Rules())


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({"status": "failed", "note": "no valid sample"}, NoVerdict, "no valid sample"),
        ({"status": "skipped", "note": "no sendrecv"}, CannotRun, "no sendrecv"),
    ],
)
def test_what_has_no_rate_is_not_a_rate_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, str],
    kind: type[CollbenchError],
    says: str,
) -> None:
    with pytest.raises(kind, match=says):
        searched_without_rate(monkeypatch, **fields)


def test_wrong_data_in_a_search_is_wrong_data(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FirstWrong(rank=1, index=0, got="1", expected="2", when="before timing")
    with pytest.raises(locate.WrongDataFound, match="received wrong data: 5 elements") as raised:
        searched_without_rate(monkeypatch, status="wrong", wrong=5, first_wrong=first)
    assert raised.value.exit == Exit.WRONG_DATA
    assert raised.value.finding.severity == "critical"
