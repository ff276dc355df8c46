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
from advised import make_mpich_tree

from collbench.core.errors import Exit
from collbench.features.advise.formats import load_formats, mpich
from collbench.features.advise.formats.intelmpi import FORMATS as INTELMPI
from collbench.features.advise.formats.openmpi import FORMATS as OPENMPI
from collbench.features.advise.formats.words import FORMATS as WORDS
from collbench.features.advise.tune import confirm, schedule
from collbench.features.advise.tune.experiment import Outcome, Variation, judge_files
from collbench.features.advise.tune.keeping import Fault
from collbench.features.advise.tune.schedule import VerifyRequest, list_sizes
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Series, Setting, Variables
from collbench.features.compare.comparison import Rules
from collbench.features.compare.verdict import Judged, Side
from collbench.records.types import Choice, Pairing, RunFile
from collbench.suite.sweep import Axes, Suite
from tests import factories

SIZES = (1024, 4096, 16384, 65536, 262144)
SERIES = Series("all_reduce", 2, 1)
AXES = Axes(
    **{"collectives": ("all_reduce",), "sizes": SIZES, "ranks": (2,)},
    **{"backends": ("mpi",), "in_place": (False,)},
)
BROADCAST = SERIES._replace(collective="broadcast")
BOTH = msgspec.structs.replace(AXES, collectives=("all_reduce", "broadcast"))
CHAIN = (
    ("OMPI_MCA_coll_tuned_bcast_algorithm", "2"),
    ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
)
RING = (
    ("OMPI_MCA_coll_tuned_allreduce_algorithm", "4"),
    ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
)


def request(**fields: Any) -> VerifyRequest:
    given = {"format": OPENMPI[0], "sweeps": (AXES,), "command": ["collbench"], **fields}
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


READ: list[list[bool]] = []  # whether files that heads name were there


def make_read() -> list[list[bool]]:
    READ.clear()
    return READ


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have experiments come out as told, by cell, and note what they were asked to measure."""
    asked: list[Variation] = []
    read = make_read()

    def make(
        changes: dict[int, float],
        code: Exit = Exit.OK,
        faults: dict[Cell, Fault] | None = None,
        **choices: Any,
    ) -> list[Variation]:
        class Pretended:
            def __init__(self, head: Variation, request: VerifyRequest, folder: Path) -> None:
                asked.append(head)
                read.append([Path(value).is_file() for _, value in head.env if "/" in value])
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

            def list_choices(self, nodes: Any) -> dict[Cell, Any]:
                return {cell: choices["heard"] for head in asked for cell in head.cells if choices}

            def list_faults(self, nodes: Any) -> dict[Cell, Fault]:
                return faults or {}

        monkeypatch.setattr(confirm, "Outcome", Pretended)
        return asked

    return make


def sizes_of(rows: Sequence[Advice]) -> list[list[int]]:
    return [[gain.nbytes for gain in each.gains] for each in rows]


def test_what_holds_is_verified_today(pretend: Any) -> None:
    asked = pretend(dict.fromkeys(SIZES[1:3], -0.1))
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert [cell.nbytes for cell in asked[0].cells] == list(SIZES)  # all that were swept
    assert READ == [[True]] and not Path(asked[0].env[1][1]).exists()  # gone afterwards
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
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert verified.code == Exit.NO_VERDICT and verified.advised.notes == ()


def test_an_interrupted_experiment_is_judged_as_far_as_it_came(pretend: Any) -> None:
    pretend(dict.fromkeys(SIZES, -0.1), Exit.INTERRUPTED)
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert verified.code == Exit.INTERRUPTED and len(verified.advised.rows) == 1


def test_words_are_verified_by_setting_over_all_sizes(pretend: Any) -> None:
    asked = pretend(dict.fromkeys(SIZES[1:3], -0.1))
    broadcast = row(*SIZES[2:4], series=SERIES._replace(collective="broadcast"), env=(("X", "2"),))
    both = advised(row(*SIZES[1:3], env=(("X", "1"),)), broadcast)
    verified = confirm.verify_advice(both, request(format=WORDS[0], sweeps=(BOTH,)))
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
    rows = [row(*SIZES[:2], gain=0.1), row(*SIZES[3:], gain=0.3, series=BROADCAST, env=CHAIN)]
    short = request(budget=100.0, start_seconds=2.0, fixed_seconds=0.5, sweeps=(BOTH,))
    verified = confirm.verify_advice(advised(*rows), short)
    assert sizes_of(asked[0].rows) == [[*SIZES[3:]]]  # which promises more
    assert {cell.series for cell in asked[0].cells} == {BROADCAST} and len(asked[0].cells) == 5
    assert [each.why for each in verified.removed] == [confirm.NO_TIME] * 2


def test_where_time_is_short_sizes_far_from_rows_are_not_checked(pretend: Any) -> None:
    asked = pretend(dict.fromkeys(SIZES, -0.1))
    shorter = request(budget=30.0, start_seconds=1.0, fixed_seconds=0.5)
    verified = confirm.verify_advice(advised(row(*SIZES[:2])), shorter)
    assert [cell.nbytes for cell in asked[0].cells] == [*SIZES[:3]]  # with the next one
    assert verified.advised.checked.endswith("; 2 sizes not checked: the budget has no time")


def test_the_slowest_size_is_told(pretend: Any) -> None:
    pretend({SIZES[0]: 0.012, **dict.fromkeys(SIZES[3:], -0.1)}, heard=(None, None))
    given = advised(row(*SIZES[3:]))
    verified = confirm.verify_advice(given, request())
    # 1.2 % is called slower here, at a size far from the row: the file is to blame
    assert verified.advised.rows == () and verified.advised.checked == ""
    pretend(dict.fromkeys(SIZES[3:], -0.1))
    verified = confirm.verify_advice(given, request())
    assert verified.advised.checked == (
        "checked: 5 sizes, slowest with the file +0.0 % time [-1, +1]"
    )
    read = "the library read the file: with it some sizes were surely faster"
    assert read in verified.advised.notes


def test_a_file_that_was_not_read_is_told(pretend: Any) -> None:
    pretend({})
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert verified.advised.notes == ("whether the library read the file did not show",)
    ring, tree = (Choice(algorithm=name) for name in ("Ring", "Tree"))
    pretend({}, heard=(ring, tree))
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert verified.advised.notes == ("the library read the file: it logged other choices with it",)
    pretend({}, heard=(ring, ring))
    verified = confirm.verify_advice(advised(row(*SIZES[1:3])), request())
    assert verified.advised.notes == ("whether the library read the file did not show",)


def test_wrong_data_with_the_file_are_named_and_have_their_exit_code(pretend: Any) -> None:
    wrong = {Cell(SERIES, SIZES[0]): Fault("wrong", "5 of 16 elements")}
    pretend(dict.fromkeys(SIZES, -0.1), faults=wrong)
    other = row(*SIZES[:2], series=BROADCAST, env=CHAIN)
    verified = confirm.verify_advice(advised(row(*SIZES[3:]), other), request(sweeps=(BOTH,)))
    assert verified.code == Exit.WRONG_DATA
    assert "all_reduce" in verified.wrong and "gives wrong data" in verified.wrong
    assert [each.series.collective for each in verified.advised.rows] == ["broadcast"]


def presets(*sizes: int, number: int = 2) -> Advice:
    """A row of Intel MPI's."""
    return msgspec.structs.replace(
        row(*sizes, env=(("I_MPI_ADJUST_ALLREDUCE", str(number)),)), name=f"preset {number}"
    )


def intel(*rows: Advice) -> Advised:
    return msgspec.structs.replace(advised(*rows), library="intelmpi")


def test_sizes_that_are_as_fast_fill_a_file_that_has_to_name_all(pretend: Any) -> None:
    asked = pretend(dict.fromkeys(SIZES[3:], -0.1))
    both = intel(presets(*SIZES[:3], number=1), presets(*SIZES[3:]))
    verified = confirm.verify_advice(both, request(format=INTELMPI[0]))
    assert asked[0].env[0][0] == "I_MPI_ADJUST_ALLREDUCE"
    assert sizes_of(verified.advised.rows) == [[*SIZES[3:]]]
    assert sizes_of(verified.advised.fills) == [[*SIZES[:3]]]
    assert INTELMPI[0].refuse(verified.advised) == ""
    assert verified.removed == ()


def test_one_slow_size_leaves_no_file_that_has_to_name_all(pretend: Any) -> None:
    pretend({SIZES[0]: 0.2, **dict.fromkeys(SIZES[3:], -0.1)})
    both = intel(presets(*SIZES[:3], number=1), presets(*SIZES[3:]))
    verified = confirm.verify_advice(both, request(format=INTELMPI[0]))
    assert verified.advised.rows == () == verified.advised.fills
    whys = " ".join(each.why for each in verified.removed)
    assert "none is known to be as fast as the library's own choice at 1 KiB" in whys


def test_what_the_file_cannot_say_is_told_in_place_of_an_error() -> None:
    alien = msgspec.structs.replace(
        row(*SIZES[:2]), setting=Setting(backend="mpi", env=(("UCX_TLS", "tcp"),))
    )
    verified = confirm.verify_advice(advised(alien), request())
    assert verified.code == Exit.NO_VERDICT and verified.advised.rows == ()
    assert "rules have no UCX_TLS" in verified.removed[0].why


def test_a_launch_that_was_disturbed_is_lost_and_no_more() -> None:
    """One of thirteen without a valid sample costs its pair; a size with none has no verdict."""
    files = []
    for side in ("base", "head"):
        cases = [factories.case(size, n=2) for size in (64, 256)]
        records = [
            factories.record(case, 1e6, world=number) for case in cases for number in range(13)
        ]
        if side == "head":
            lost = {"status": "failed", "note": "no valid sample (9 x disturbed)", "times_ns": []}
            records[3] = msgspec.structs.replace(records[3], **lost)
        worlds = [factories.world(i, n=2, stage=2, round=i) for i in range(13)]
        run = factories.run(f"e-{side}", pairing=Pairing(experiment="e", side=side, variant=""))
        files.append(RunFile(run=run, worlds=worlds, records=records, end=None, path=Path(side)))
    rows = judge_files((files[0], files[1]), Rules()).rows
    assert [(each.verdict, each.pairs) for each in rows] == [("SAME", 12), ("SAME", 13)]


def test_faults_are_those_of_the_file_alone() -> None:
    outcome = object.__new__(Outcome)
    outcome.broken = ""
    cases = [factories.case(size, n=2) for size in (64, 256, 1024)]
    base = [factories.record(cases[0], status="failed", note="refused", times_ns=[])]
    head = [
        factories.record(cases[0], status="failed", note="refused", times_ns=[]),
        factories.record(cases[1], status="failed", note="no valid sample (3 x x)", times_ns=[]),
        factories.record(cases[2], status="wrong", note="5 of 16 elements", times_ns=[]),
    ]
    outcome.files = (SimpleNamespace(records=base), SimpleNamespace(records=head))  # type: ignore[assignment]
    faults = outcome.list_faults({})
    assert faults == {Cell(SERIES, 1024): Fault("wrong", "5 of 16 elements")}
    outcome.files = (SimpleNamespace(records=[]), SimpleNamespace(records=[]))  # type: ignore[assignment]
    outcome.broken = "rank 1 hung"
    assert outcome.list_faults({}) == {}


def test_more_time_buys_rounds_and_then_longer_cases() -> None:
    plans = [
        schedule.plan_rounds(request(budget=budget), 10, 2, heads=1)
        for budget in (100.0, 200.0, 400.0, 4000)
    ]
    assert [plan.rounds for plan in plans] == sorted(plan.rounds for plan in plans)
    assert plans[-1].rounds == schedule.ROUNDS
    assert plans[-1].case_seconds == schedule.MAX_SECONDS
    assert plans[0].case_seconds == schedule.MIN_SECONDS
    assert plans[0].max_cells < 10 <= plans[-1].max_cells


def test_a_cell_of_two_forms_is_planned_as_two() -> None:
    placed = msgspec.structs.replace(AXES, in_place=(False, True))
    for sweeps in ((placed,), (AXES, msgspec.structs.replace(AXES, in_place=(True,)))):
        assert schedule.count_forms(sweeps) == 2
    two = schedule.plan_rounds(request(budget=600.0, sweeps=(placed,)), 10, 2, heads=1)
    one = schedule.plan_rounds(request(budget=600.0), 20, 2, heads=1)
    assert (two.rounds, two.case_seconds) == (one.rounds, one.case_seconds)
    assert two.max_cells == one.max_cells // 2


def test_many_cells_take_as_many_rounds_as_bonferroni_needs() -> None:
    plan = schedule.plan_rounds(request(budget=1e5), 200, 2, heads=1)
    assert plan.rounds == 13  # 2 / 2^13 is below 5 % / 200
    plan = schedule.plan_rounds(request(budget=1e5), 50, 2, heads=4)
    assert plan.rounds == 13  # as many tests in all


def test_the_suite_has_exactly_the_cells() -> None:
    cells = [Cell(SERIES, 1024), Cell(SERIES._replace(n=4), 4096), Cell(SERIES, 16384)]
    axes = msgspec.structs.replace(AXES, ranks=(2, 4))
    cases, skips = schedule.make_suite(cells, request(sweeps=(axes,))).expand()
    assert not skips
    assert sorted((case.n, case.nbytes) for case in cases) == [(2, 1024), (2, 16384), (4, 4096)]


def test_sweeps_are_of_exactly_their_cases() -> None:
    """A form of one collective, of one placement, or at one size is not measured for others."""
    forms: list[dict[str, Any]] = [
        {"collective": "all_reduce", "dtype": "float", "mode": "host"},
        {"collective": "all_reduce", "dtype": "half", "in_place": True, "mode": "streaming"},
        {"collective": "all_gather", "op": "none", "root": -1, "align": 4},
        {"collective": "broadcast", "op": "none", "root": 1, "arrival": "one-late:100us"},
    ]
    cases = [
        factories.case(size, n=n, backend="mpi", **form)
        for form in forms
        for n in (4, 2)
        for size in (65536, 1024)
    ]
    cases.append(factories.case(256, n=2, backend="mpi", **forms[1]))
    sweeps = schedule.make_sweeps(cases)
    suite = Suite(name="x", axes=sweeps[0], includes=sweeps[1:])
    expanded, skips = suite.expand()
    assert not skips
    assert {case.key for case in expanded} == {case.key for case in cases}
    assert len(expanded) == len(cases) and schedule.count_forms(sweeps) == 2
    cells = [Cell(SERIES, 256), Cell(SERIES, 1024), Cell(BROADCAST, 1024)]
    measured, _ = schedule.make_suite(cells, request(sweeps=sweeps)).expand()
    assert {case.key for case in measured} == {
        case.key
        for case in cases
        if case.n == 2 and case.nbytes <= 1024 and case.collective != "all_gather"
    }
    assert [*list_sizes([SERIES], sweeps)[SERIES]] == [256, 1024, 65536]


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


@pytest.mark.parametrize(
    ("name", "backend", "env"),
    [
        ("openmpi", "mpi", RING),
        (
            "mpich",
            "mpi",
            (
                ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "ring"),
                ("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "mpir"),
            ),
        ),
        ("intelmpi", "mpi", (("I_MPI_ADJUST_ALLREDUCE", "8"),)),
        ("oneccl", "oneccl", (("CCL_ALLREDUCE", "ring"),)),
        ("words", "mpi", RING),
    ],
)
def test_files_can_hold_what_is_not_verified_yet(
    name: str, backend: str, env: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpich, "find_tree", make_mpich_tree)
    form = load_formats()[name]
    given = msgspec.structs.replace(row(*SIZES[1:3]), setting=Setting(backend=backend, env=env))
    assert form.refuse(advised(given)) == ""
    assert form.read(form.write(advised(given)))


def test_sizes_are_those_that_calls_send() -> None:
    """3 ranks cannot share 64 bytes of floats evenly: the sweep asks for 64, the call sends 60."""
    series = Series("all_gather", 3, 1)
    axes = msgspec.structs.replace(
        AXES, collectives=("all_gather",), sizes=(64, 256), ranks=(3,), in_place=(False,)
    )
    assert list_sizes([series], (axes,)) == {series: {60: 64, 252: 256}}
    suite = schedule.make_suite([Cell(series, 60)], request(sweeps=(axes,)))
    assert [case.nbytes for case in suite.expand()[0]] == [64]


def test_one_slow_start_does_not_drop_words_that_fit() -> None:
    rows = [row(*SIZES[:2], env=(("X", str(value)),)) for value in range(3)]
    sizes = list_sizes([SERIES], (AXES,))
    form = WORDS[0]
    long = schedule.fit_budget(rows, sizes, request(format=form, budget=1e4))
    assert len(long.rows) == 3 and not long.others
    short = schedule.fit_budget(rows, sizes, request(format=form, budget=100.0))
    assert len(short.rows) == 1 and len(short.others) == 2  # each is an experiment of its own
