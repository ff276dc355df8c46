"""A verification: what is measured, in how many rounds, and what comes of it. The experiment itself
is made up here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collbench.core.errors import Exit
from collbench.features.advise.formats.openmpi import FORMATS as OPENMPI
from collbench.features.advise.formats.words import FORMATS as WORDS
from collbench.features.advise.tune import confirm
from collbench.features.advise.tune.confirm import Variation, VerifyRequest
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Series, Setting, Variables
from collbench.features.compare.verdict import Judged, Side
from collbench.suite.sweep import Axes
from tests import factories

SIZES = (1024, 4096, 16384, 65536, 262144)
SERIES = Series("all_reduce", 2, 1)
AXES = Axes(collectives=("all_reduce",), sizes=SIZES, ranks=(2,), backends=("mpi",))
RING = (
    ("OMPI_MCA_coll_tuned_allreduce_algorithm", "4"),
    ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
)


def request(**fields: Any) -> VerifyRequest:
    given = {"format": OPENMPI[0], "axes": AXES, "command": ["collbench"], **fields}
    return VerifyRequest(**given)


def row(*sizes: int, series: Series = SERIES, env: Variables = RING, gain: float = 0.2) -> Advice:
    gains = tuple(
        Gain(
            nbytes=size,
            gain=gain,
            lo=-math.inf,  # of short launches
            hi=math.inf,
            p=1.0,
            launches=1,
            is_paired=False,
            default=1000.0,
            setting=1000 * (1 - gain),
        )
        for size in sizes
    )
    return Advice(
        series=series,
        setting=Setting(backend="mpi", env=env),
        name="ring",
        low=sizes[0],
        high=sizes[-1],
        gains=gains,
    )


def advised(*rows: Advice) -> Advised:
    return Advised(
        library="openmpi", version="Open MPI 5.0.11", runs=(), day="", taus=(0.03, 0.1), rows=rows
    )


def judged(cell: Cell, delta: float, verdict: str) -> Judged:
    case = factories.case(cell.nbytes, cell.series.collective, n=cell.series.n, backend="mpi")
    sides = [Side(median=m, half=0.01, launches=12, samples=100) for m in (1e3, 1e3 * (1 + delta))]
    return Judged(
        key=case.key,
        case=case,
        verdict=verdict,  # type: ignore[arg-type]
        base=sides[0],
        head=sides[1],
        delta=delta,
        lo=delta - 0.01,
        hi=delta + 0.01,
        p=0.0005,
        tau=0.04,
        pairs=12,
        stage=2,
    )


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have experiments come out as told, by cell, and note what they were asked to measure."""
    asked: list[Variation] = []

    def make(changes: dict[int, float], code: Exit = Exit.OK) -> list[Variation]:
        class Outcome:
            def __init__(self, head: Variation, request: VerifyRequest, folder: Path) -> None:
                asked.append(head)
                rows = [
                    judged(cell, delta, verdict)
                    for cell in head.cells
                    for delta in [changes.get(cell.nbytes, 0.0)]
                    for verdict in [
                        "IMPROVED" if delta < -0.04 else "REGRESSED" if delta else "SAME"
                    ]
                ]
                sides = {
                    name: SimpleNamespace(id=f"e{len(asked)}-{name}") for name in ("base", "head")
                }
                self.comparison = SimpleNamespace(rows=rows, skipped=[], **sides)
                self.code, self.paths = code, [Path(f"e{len(asked)}.jsonl")]

            def list_choices(self, nodes: int) -> dict[Cell, Any]:
                return {}

        monkeypatch.setattr(confirm, "_Outcome", Outcome)
        return asked

    return make


def sizes_of(rows: Sequence[Advice]) -> list[list[int]]:
    return [[gain.nbytes for gain in each.gains] for each in rows]


def test_what_holds_is_verified_today(pretend: Any) -> None:
    asked = pretend(dict.fromkeys(SIZES[1:3], -0.1))
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert [cell.nbytes for cell in asked[0].cells] == list(SIZES[:4])  # the neighbours, too
    names = [name for name, _ in asked[0].env]
    assert names == [
        "OMPI_MCA_coll_tuned_use_dynamic_rules",
        "OMPI_MCA_coll_tuned_dynamic_rules_filename",
    ]
    (only,) = verified.advised.rows
    assert only.verified == confirm.find_day() and only.gains[0].gain == pytest.approx(0.1)
    assert verified.code == Exit.OK and verified.removed == ()
    assert verified.advised.runs == ("e1-base", "e1-head")
    assert verified.advised.taus == (0.04, 0.04)


def test_what_does_not_hold_is_told_and_leaves_an_empty_file(pretend: Any) -> None:
    pretend({})
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert verified.advised.rows == ()
    assert verified.code == Exit.OK  # it was decided
    assert [each.kind for each in verified.removed] == ["not held"] * 2
    assert {each.cell.nbytes for each in verified.advised.unadvised} == set(SIZES[1:3])
    assert all(each.decided for each in verified.advised.unadvised)
    assert OPENMPI[0].read(OPENMPI[0].write(verified.advised)) == []


def test_no_row_is_as_verified_as_can_be() -> None:
    verified = confirm.verify_advice(advised(), request())
    assert (verified.advised.rows, verified.code, verified.paths) == ((), Exit.OK, ())


def test_undecided_rows_have_no_verdict(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend({})
    monkeypatch.setattr(confirm.keeping, "choose_worst", lambda rows, nodes: {})
    assert confirm.verify_advice(advised(row(*SIZES[1:3])), request()).code == Exit.NO_VERDICT


def test_an_interrupted_experiment_is_judged_as_far_as_it_came(pretend: Any) -> None:
    pretend(dict.fromkeys(SIZES, -0.1), Exit.INTERRUPTED)
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert verified.code == Exit.INTERRUPTED and len(verified.advised.rows) == 1


def test_words_are_verified_by_setting_over_all_sizes(pretend: Any) -> None:
    asked = pretend(dict.fromkeys(SIZES[1:3], -0.1))
    broadcast = row(*SIZES[2:4], series=SERIES._replace(collective="broadcast"), env=(("X", "2"),))
    both = advised(row(*SIZES[1:3], env=(("X", "1"),)), broadcast)
    verified = confirm.verify_advice(both, request(format=WORDS[0]))
    assert [head.env for head in asked] == [(("X", "1"),), (("X", "2"),)]
    assert [len(head.cells) for head in asked] == [5, 5]
    assert [each.series.collective for each in verified.advised.rows] == ["all_reduce"]
    assert verified.paths == (Path("e1.jsonl"), Path("e2.jsonl"))


def test_a_setting_in_words_that_slows_another_size_goes(pretend: Any) -> None:
    pretend({SIZES[0]: 0.2, **dict.fromkeys(SIZES[3:], -0.1)})
    words = request(format=WORDS[0])
    verified = confirm.verify_advice(advised(row(*SIZES[3:], env=(("X", "1"),))), words)
    assert verified.advised.rows == ()
    assert {each.kind for each in verified.removed} == {"slower"}


def test_rows_that_the_budget_has_no_time_for_are_told(pretend: Any) -> None:
    asked = pretend(dict.fromkeys(SIZES, -0.1))
    rows = [row(*SIZES[:2], gain=0.1), row(*SIZES[3:], gain=0.3)]
    short = request(budget=60.0, start_seconds=2.0, fixed_seconds=0.5)
    verified = confirm.verify_advice(advised(*rows), short)
    assert sizes_of(asked[0].rows) == [[*SIZES[3:]]]  # which promises more
    assert [each.why for each in verified.removed] == [confirm.NO_TIME] * 2


def test_more_time_buys_rounds_and_then_longer_cases() -> None:
    plans = [
        confirm.plan_rounds(request(budget=budget), 10, 2) for budget in (100.0, 200.0, 400.0, 4000)
    ]
    assert [plan.rounds for plan in plans] == sorted(plan.rounds for plan in plans)
    assert plans[-1].rounds == confirm.ROUNDS
    assert plans[-1].case_seconds == confirm.MAX_SECONDS
    assert plans[0].case_seconds == confirm.MIN_SECONDS
    assert plans[0].max_cells < 10 <= plans[-1].max_cells


def test_many_cells_take_as_many_rounds_as_bonferroni_needs() -> None:
    plan = confirm.plan_rounds(request(budget=1e5), 200, 2)
    assert plan.rounds == 13  # 2 / 2^13 is below 5 % / 200


def test_the_suite_has_exactly_the_cells() -> None:
    cells = [Cell(SERIES, 1024), Cell(SERIES._replace(n=4), 4096), Cell(SERIES, 16384)]
    axes = msgspec.structs.replace(AXES, in_place=(False,), ranks=(2, 4))
    cases, skips = confirm.make_suite(cells, request(axes=axes)).expand()
    assert not skips
    assert sorted((case.n, case.nbytes) for case in cases) == [(2, 1024), (2, 16384), (4, 4096)]


def test_a_sweep_is_made_of_its_cases() -> None:
    cases = [
        factories.case(size, name, n=n, backend="mpi", in_place=in_place, mode="host")
        for size in (64, 8)
        for name in ("all_reduce", "broadcast")
        for n in (4, 2)
        for in_place in (False, True)
    ]
    axes = confirm.make_axes(cases)
    assert (axes.sizes, axes.ranks, axes.backends) == ((8, 64), (2, 4), ("mpi",))
    assert axes.collectives == ("all_reduce", "broadcast")
    assert (axes.in_place, axes.modes, axes.envs) == ((False, True), ("host",), ((),))


def test_the_map_has_what_fresh_launches_measured(pretend: Any) -> None:
    pretend({SIZES[1]: -0.1, SIZES[2]: -0.1, SIZES[4]: 0.01})
    seemed = row(*SIZES[3:]).gains
    before = {Cell(SERIES, gain.nbytes): {"tree": gain} for gain in seemed}
    given = msgspec.structs.replace(advised(row(*SIZES[1:3])), rivals=before)
    rivals = confirm.verify_advice(given, request()).advised.rivals
    assert rivals[Cell(SERIES, SIZES[1])]["ring"].gain == pytest.approx(0.1)
    assert set(rivals[Cell(SERIES, SIZES[3])]) == {"tree"}  # beside the row, the file does nothing
    words = msgspec.structs.replace(given, rows=(row(*SIZES[1:3], env=(("X", "1"),)),))
    rivals = confirm.verify_advice(words, request(format=WORDS[0])).advised.rivals
    assert rivals[Cell(SERIES, SIZES[0])]["ring"].gain == 0.0  # where a variable holds, too


@pytest.mark.parametrize("name", ["openmpi", "mpich", "intelmpi", "oneccl", "words"])
def test_files_can_hold_what_is_not_verified_yet(name: str) -> None:
    from collbench.features.advise.formats import load_formats

    form = load_formats()[name]
    if not form.refuse(proposal := advised(row(*SIZES[1:3]))):
        assert form.write(proposal)
