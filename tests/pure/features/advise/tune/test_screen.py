"""A screening with made-up runs: rounds, settings that break their worlds or compute wrong results,
and what it proposes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from advising import ALGORITHM, FANOUT, Tiny

from collbench.core.errors import Exit, RunBroken
from collbench.features.advise.evidence import SHARED
from collbench.features.advise.formats._rows import describe_row
from collbench.features.advise.formats.intelmpi import FORMATS as INTEL_FORMATS
from collbench.features.advise.formats.openmpi import FORMATS
from collbench.features.advise.formats.words import FORMATS as WORDS_FORMATS
from collbench.features.advise.tune import propose, screen
from collbench.features.advise.tune.screen import Screening, ScreenOrder
from collbench.features.advise.types import Cell, Series, Variables
from collbench.records.types import Choice
from collbench.run.order import Order
from collbench.run.reporter import Reporter
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes
from tests import factories

OPENMPI, INTELMPI, WORDS = FORMATS[0], INTEL_FORMATS[0], WORDS_FORMATS[0]
SIZES = (64, 256, 1024, 4096)
SERIES = Series("all_reduce", 2, 1)
RING, TREE, SWING = (((ALGORITHM, name),) for name in ("ring", "tree", "swing"))
AXES = Axes(
    collectives=("all_reduce",), sizes=SIZES, ranks=(2,), backends=("gloo",), in_place=(False,)
)
Time = Callable[[Case], float | str]
SECONDS = 0.1  # that every case takes


class Clock:
    """A clock that only made-up runs move on, in place of the module time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def order(**fields: Any) -> ScreenOrder:
    given = {
        "library": Tiny(),
        "field": {SERIES: dict.fromkeys((RING, TREE, SWING), SIZES)},
        "axes": AXES,
        "policy": Policy(),
        "command": ["collbench", "tune"],
        "seconds": 30.0,
        "first_seconds": 50.0,
        **fields,
    }
    return ScreenOrder(**given)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Time], list[Order]]:
    """Has runs take so many ns a case, or the case end in a status; the orders given."""
    orders: list[Order] = []
    clock = Clock()
    monkeypatch.setattr(screen, "time", clock)

    def execute(time_of: Time, given: Order, make: Callable[[], Reporter]) -> Exit:
        orders.append(given)
        reporter = make()
        cases, _ = given.suite.expand()
        reporter.begin(factories.run(f"run{len(orders)}", suite=given.suite), cases, [])
        envs = list(dict.fromkeys(case.env for case in cases))
        for env in envs:
            index = envs.index(env)
            if time_of(next(case for case in cases if case.env == env)) != "unopened":
                reporter.world(factories.world(index, n=2, env=env, library="Tiny 1.0"))
            for case in (case for case in cases if case.env == env):
                answer = time_of(case)
                clock.seconds += SECONDS
                if answer == "unopened":
                    for each in (each for each in cases if each.env == env):
                        lost = {"status": "failed", "note": "rank 1 was killed", "times_ns": []}
                        reporter.record(factories.record(each, **lost), None)
                    raise RunBroken("rank 1 was killed")
                if answer == "broken":
                    record = factories.record(case, status="failed", times_ns=[], world=index)
                    reporter.record(record, None)
                    raise RunBroken("rank 1 was killed")
                if answer == "wrong":
                    record = factories.record(case, status="wrong", note="1 of 9", world=index)
                else:
                    record = factories.record(case, float(answer), world=index, seconds=SECONDS)
                reporter.record(record, None)
        return Exit.OK

    def set_times(time_of: Time) -> list[Order]:
        def execute_order(given: Order, make: Callable[[], Reporter]) -> Exit:
            return execute(time_of, given, make)

        monkeypatch.setattr(screen.session, "execute_order", execute_order)
        return orders

    return set_times


def by_setting(default: float = 1000.0, **times: float | str) -> Time:
    def find(case: Case) -> float | str:
        return times[case.env[0][1]] if case.env else default

    return find


def run(**fields: Any) -> Screening:
    screening = Screening(order(**fields))
    screening.run()
    return screening


def proposed(screening: Screening, **more: Any) -> list[tuple[str, list[int]]]:
    medians = screen.list_medians(screening, is_same_order=False)
    rows = propose.propose_rows(medians, Tiny(), "gloo", {}, more.pop("form", OPENMPI), **more)
    return [(row.name, [gain.nbytes for gain in row.gains]) for row in rows]


def test_rounds_halve_the_settings(measured: Any) -> None:
    orders = measured(by_setting(ring=700.0, tree=900.0, swing=2000.0))
    screening = run()
    launched = [{case.env for case in each.suite.expand()[0]} for each in orders]
    kinds = [envs for envs, _ in itertools.groupby(launched)]
    assert kinds == [{(), RING, TREE, SWING}, {(), RING, TREE}, {(), RING}]
    assert screening.rounds == len(kinds)
    assert {each.tag for each in orders} == {"tune-screen"}
    assert len(screening.times[Cell(SERIES, 64)][RING]) == screening.cycles == len(orders)
    assert proposed(screening) == [("ring", [*SIZES])]


def test_rounds_share_the_time_and_fill_it(measured: Any) -> None:
    orders = measured(by_setting(ring=700.0, tree=900.0, swing=2000.0))
    run()
    cases = [len(each.suite.expand()[0]) for each in orders]
    # 30 s for three rounds: 10 s of cycles of 1.6 s, then 10 s of 1.2 s, and what is left of 0.8 s
    assert cases == [16] * 6 + [12] * 8 + [8] * 13
    run(seconds=10_000.0)
    assert len(orders) == len(cases) + 3 * screen.MAX_CYCLES


def test_every_cycle_begins_with_another_launch(measured: Any) -> None:
    orders = measured(by_setting(ring=700.0, tree=900.0, swing=2000.0))
    run()
    assert [each.suite.expand()[0][0].env for each in orders[:5]] == [(), RING, TREE, SWING, ()]


def test_a_setting_that_has_bad_luck_once_is_not_out(measured: Any) -> None:
    """A launch of a setting takes twice its time, and slow settings do so as often."""
    launched: Counter[Variables] = Counter()

    def find(case: Case) -> float | str:
        launched[case.env] += case.nbytes == SIZES[0]
        luck = 2.0 if launched[case.env] % 3 == (1 if case.env == RING else 2) else 1.0
        return {(): 1000.0, RING: 800.0, SWING: 1000.0}[case.env] * luck

    measured(find)
    assert proposed(run(field={SERIES: {RING: SIZES, SWING: SIZES}})) == [("ring", [*SIZES])]


def test_nothing_goes_on_where_all_are_slower(measured: Any) -> None:
    orders = measured(by_setting(ring=2000.0, tree=1100.0, swing=2000.0))
    screening = run()
    assert screening.rounds == 1
    assert {len(each.suite.expand()[0]) for each in orders} == {16}
    # the best of them is put to fresh launches all the same
    assert proposed(screening) == [("tree", [64, 256])]


def test_one_setting_for_all_sizes_is_put_to_fresh_launches_at_all(measured: Any) -> None:
    measured(by_setting(ring=2000.0, tree=1100.0, swing=2000.0))
    assert proposed(run(), form=WORDS) == [("tree", [*SIZES])]


def test_a_cycle_that_the_time_cuts_counts_for_nobody(measured: Any) -> None:
    launched: Counter[Variables] = Counter()

    def find(case: Case) -> float | str:
        launched[case.env] += case.nbytes == SIZES[-1]
        if launched[RING] == 2:  # which begins the second cycle
            screen.time.seconds += 50.0  # type: ignore[attr-defined]
        return 700.0 if case.env else 1000.0

    measured(find)
    screening = run()
    for by_setting in screening.times.values():
        assert {len(launches) for launches in by_setting.values()} == {1}


def test_a_default_with_wrong_results_leaves_nothing_to_compare_with(measured: Any) -> None:
    orders = measured(lambda case: 700.0 if case.env else "wrong")
    screening = run()
    assert len(orders) == 1
    assert screening.notes[0].startswith("the default is no longer tried for all_reduce")


def test_the_time_ends_it(measured: Any) -> None:
    orders = measured(by_setting(ring=700.0, tree=900.0, swing=800.0))
    run(seconds=0.5)
    assert len(orders) == 1  # the first round is as long as it takes


def test_a_setting_that_breaks_its_world_is_out_and_the_rest_goes_on(
    measured: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = measured(by_setting(ring=700.0, tree="broken", swing=800.0))
    screening = run()
    assert {case.env for case in orders[1].suite.expand()[0]} == {SWING}
    assert SWING in screening.times[Cell(SERIES, 64)]
    (note,) = screening.notes
    assert note == "TINY_ALLREDUCE=tree is no longer tried for all_reduce: rank 1 was killed"
    assert note in capsys.readouterr().err
    assert all(TREE not in {case.env for case in each.suite.expand()[0]} for each in orders[1:])


def test_a_shared_launch_that_does_not_start_costs_no_innocent_setting(measured: Any) -> None:
    """Swing and a fan-out of 4 share a launch, and swing is what keeps it from starting."""
    other = SERIES._replace(collective="broadcast")
    fanout = ((FANOUT, "4"),)

    def find(case: Case) -> float | str:
        return "unopened" if dict(case.env).get(ALGORITHM) == "swing" else 700.0

    orders = measured(find)
    both = {SERIES: {SWING: SIZES}, other: {fanout: SIZES}}
    screening = run(field=both)
    assert {case.env for case in orders[0].suite.expand()[0]} == {(), (*SWING, *fanout)}
    (note,) = screening.notes
    assert note.startswith("TINY_ALLREDUCE=swing is no longer tried for all_reduce")
    assert fanout in screening.times[Cell(other, 64)]


def test_many_settings_that_break_end_the_search_with_what_there_is(measured: Any) -> None:
    names = [((ALGORITHM, f"a{number}"),) for number in range(screen.MAX_BROKEN + 2)]
    measured(lambda case: "broken" if case.env else 1000.0)
    screening = run(field={SERIES: dict.fromkeys(names, SIZES)})
    assert screening.notes[-1].startswith("the search ended: launches failed with 11 settings")


def test_data_are_checked_in_the_first_round_alone(measured: Any) -> None:
    orders = measured(by_setting(ring=700.0, tree=900.0, swing=2000.0))
    run()
    checks = [each.suite.policy.check for each in orders]
    assert checks[0] and not any(checks[1:])


def test_wrong_results_at_one_size_put_a_setting_out_at_all(measured: Any) -> None:
    def find(case: Case) -> float | str:
        if case.env == RING:
            return "wrong" if case.nbytes == 64 else 500.0
        return 1000.0

    measured(find)
    screening = run()
    assert "ring" not in [name for name, _ in proposed(screening)]


def test_a_file_that_names_all_sizes_gets_a_setting_for_each(measured: Any) -> None:
    def find(case: Case) -> float | str:
        slow = case.nbytes < 1024  # where every setting is slower than the default
        times = {RING: 1100.0 if slow else 700.0, TREE: 1050.0 if slow else 900.0}
        return times.get(case.env, 1000.0 if not case.env else 5000.0)

    measured(find)
    rows = proposed(run(), form=INTELMPI)
    assert rows == [("tree", [64, 256]), ("ring", [1024, 4096])]  # the best, though it is slower


def test_the_default_must_not_break(measured: Any) -> None:
    def find(case: Case) -> float | str:
        return 700.0 if case.env else "broken"

    measured(find)
    with pytest.raises(RunBroken):
        run()


def test_wrong_results_put_a_setting_out(measured: Any) -> None:
    measured(by_setting(ring="wrong", tree=900.0, swing=800.0))
    screening = run()
    assert "wrong results (" in screening.notes[0]
    assert "ring" not in [name for name, _ in proposed(screening)]


def test_rows_of_shared_cores_say_so(measured: Any) -> None:
    measured(by_setting(ring=700.0, tree=900.0, swing=800.0))
    medians = screen.list_medians(run(), is_same_order=False)
    (row,) = propose.propose_rows(medians, Tiny(), "gloo", {2: 3}, OPENMPI, {2})
    assert row.series.nodes == 3
    assert row.remark == SHARED


def test_what_is_proposed_claims_no_launches_and_no_interval(measured: Any) -> None:
    """The comment of the file that a verification tries. Of its gains it is known that they are
    medians of several short launches, as many as each setting stayed in the search."""
    measured(by_setting(ring=700.0, tree=900.0, swing=800.0))
    medians = screen.list_medians(run(), is_same_order=False)
    (row,) = propose.propose_rows(medians, Tiny(), "gloo", {}, OPENMPI)
    text = describe_row(row, "2026-11-29")
    assert text.endswith(f"{row.name}, proposed from short launches, not verified")
    assert "inf" not in text and "a side" not in text


def test_a_default_that_is_measured_alone_leaves_after_a_round(measured: Any) -> None:
    alone = SERIES._replace(collective="broadcast")
    orders = measured(by_setting(ring=700.0, tree=900.0))
    screening = run(field={SERIES: dict.fromkeys((RING, TREE), SIZES), alone: {(): SIZES}})
    cases = [each.suite.expand()[0] for each in orders]
    envs = [{case.env for case in each if case.collective == "broadcast"} for each in cases]
    assert envs[0] == {()} and envs[-1] == set()
    assert all(screening.times[Cell(alone, size)].keys() == {()} for size in SIZES)
    assert proposed(screening) == [("ring", [*SIZES])]


def test_defaults_with_which_nothing_competes_end_the_search(measured: Any) -> None:
    alone = SERIES._replace(collective="broadcast")
    orders = measured(by_setting(ring="wrong"))
    run(field={SERIES: {RING: SIZES}, alone: {(): SIZES}})
    assert len(orders) == 1


def test_cells_say_why_nothing_is_proposed() -> None:
    field: dict[Series, dict[Variables, tuple[int, ...]]] = {SERIES: {RING: (64, 256)}}
    medians: dict[Cell, dict[Variables, float]] = {Cell(SERIES, 64): {(): 1.0, RING: 1.0}}
    sizes = {SERIES: {64: 64, 256: 256}}
    unadvised = propose.list_unadvised(field, medians, [], {}, {}, sizes)
    assert [each.why for each in unadvised] == [propose.SEEMS_SLOW, propose.NOT_TRIED]
    alone = propose.list_unadvised({SERIES: {(): (64, 256)}}, {}, [], {}, {}, sizes)
    assert [each.why for each in alone] == [propose.NONE_TO_TRY] * 2


@pytest.mark.parametrize(
    ("series", "orders", "keeps"),
    [
        (SERIES, (None, None), True),  # two ranks add in one order only
        (Series("broadcast", 4, 1), (None, None), True),
        (Series("all_reduce", 4, 1), (None, None), False),
        (Series("all_reduce", 4, 1), (("ring",), ("ring",)), True),
        (Series("all_reduce", 4, 1), (("ring",), ("tree",)), False),
        (Series("all_reduce", 4, 1), (("ring",), None), False),
    ],
)
def test_the_order_of_sums_must_be_known_to_be_kept(
    series: Series, orders: tuple[Any, Any], keeps: bool
) -> None:
    choices = [None if names is None else Choice(adds_as=names) for names in orders]
    assert screen.keeps_order(*choices, series) is keeps


def test_a_round_without_time_keeps_what_it_has(measured: Any) -> None:
    orders = measured(by_setting(ring=700.0, tree=900.0, swing=800.0))
    screening = run(first_seconds=-1.0, seconds=0.0)
    assert len(orders) == 1
    assert screening.notes == [f"{screen.TIME_OVER}: 3 launches not made"]
    assert list(screening.times) == [Cell(SERIES, 64)]  # as far as it had come
