"""Evidence for advice from made-up runs: which launches are of which setting, which form pairs, and
which runs are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from advising import ALGORITHM, DEFAULT, FANOUT, SEGMENT, Tiny, setting
from factories import ENVIRONMENT, case, hosted, make_file, ranks, record, run, world

from collbench.core.errors import NoVerdict, UsageError
from collbench.features.advise import evidence as evidences
from collbench.features.advise.evidence import Evidence, Place, Terms, gather_evidence
from collbench.features.advise.judgement import judge_evidence
from collbench.features.advise.libraries.other import Other
from collbench.features.advise.tune import schedule
from collbench.features.advise.types import Cell, Series, Setting
from collbench.records.choice import add_names
from collbench.records.derive import NO_SAMPLE
from collbench.records.types import Choice, End, Pairing, Record, RunFile
from collbench.suite.policy import Policy

RING, TREE = ((ALGORITHM, "ring"),), ((ALGORITHM, "tree"),)
SIZES = (1024, 4096, 16384)
FRESH = Policy(fresh=True)
SERIES = Series("all_reduce", 4, 1)

Change = Callable[[Record], Record]


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [Tiny(), Other()]
    monkeypatch.setattr(
        evidences, "find_library", lambda world: next(lib for lib in known if lib.is_of(world))
    )


def swept(
    envs: Mapping[tuple[tuple[str, str], ...], float],
    launches: int = 10,
    name: str = "run",
    collective: str = "all_reduce",
    change: Change = lambda record: record,
    worlds: Mapping[str, Any] = {},
    case_fields: Mapping[str, Any] = {},
    **fields: Any,
) -> RunFile:
    """A run of fresh launches, with a world for each setting in every cycle; each takes so many
    times the default's time."""
    made, records = [], []
    for cycle in range(launches):
        for env, factor in envs.items():
            index = len(made)
            given = {"env": env, "library": "Tiny 1.0", "ranks": hosted(4, 4), **worlds}
            made.append(world(index, **given))
            for size in SIZES:
                what = case(size, collective, env=env, cycle=cycle, **case_fields)
                median = 1e6 * factor * (1 + 0.004 * ((cycle * 7 + index) % 5))
                records.append(change(record(what, median, world=index)))
    given = {"policy": FRESH, **fields}
    return make_file(records, made, name=name, **given)


def sided(
    variants: tuple[str, str], factors: tuple[float, float], aa: bool = False, **fields: Any
) -> list[RunFile]:
    """Both sides of an `ab` in 8 rounds."""
    files = []
    for side, variant, factor in zip(("base", "head"), variants, factors, strict=True):
        own = dict(word.split("=") for word in variant.split() if "=" in word)
        worlds = [
            world(i, library="Tiny 1.0", ranks=hosted(4, 4), stage=1, round=i) for i in range(8)
        ]
        records = [
            record(case(size), 1e6 * factor * (1 + 0.003 * (i % 3)), world=i)
            for i in range(8)
            for size in SIZES
        ]
        pairing = Pairing(experiment="e", side=side, variant=variant, aa=aa)  # type: ignore[arg-type]
        facts = {**ENVIRONMENT, "variables": own}
        about = run(f"e-{side}", **{"pairing": pairing, "environment": facts, **fields})
        end = End(exit=0, ended="")
        files.append(msgspec.structs.replace(make_file(records, worlds, end), run=about))
    return files


def rivals(evidence: Evidence, size: int = 1024, series: Series = SERIES) -> dict[Setting, Any]:
    (form,) = evidence.cells[Cell(series, size)].values()
    return form


def test_settings_are_told_by_variables_and_pair_by_cycle() -> None:
    found = gather_evidence([swept({(): 1.0, RING: 0.8, TREE: 1.1})], Terms())
    assert found.default == DEFAULT
    assert {*rivals(found)} == {DEFAULT, setting("ring"), setting("tree")}
    assert [*rivals(found)[DEFAULT].logs] == [Place("run", 0, cycle) for cycle in range(10)]
    assert (found.version, found.day, found.runs) == ("Tiny 1.0", "2026-01-02", ("run",))
    (row,) = judge_evidence(found).rows
    assert (row.name, row.gains[0].is_paired, row.gains[0].launches) == ("ring", True, 10)
    assert row.gain[0] == pytest.approx(0.2, abs=0.01)


def test_variables_of_another_collective_are_the_default() -> None:
    """Two worlds of a cycle leave all_reduce to the library: one launch, not two."""
    other = ((FANOUT, "4"),)
    found = gather_evidence([swept({(): 1.0, other: 1.0, RING: 0.8})], Terms())
    assert {*rivals(found)} == {DEFAULT, setting("ring")}
    assert len(rivals(found)[DEFAULT].logs) == 10
    left = gather_evidence([swept({(): 1.0, ((ALGORITHM, "0"),): 1.0})], Terms())
    assert {*rivals(left)} == {DEFAULT}


def test_sides_of_an_experiment_keep_their_variables_in_the_variant() -> None:
    found = gather_evidence(sided(("", f"{ALGORITHM}=ring"), (1.0, 0.8)), Terms())
    assert {*rivals(found)} == {DEFAULT, setting("ring")}
    assert [*rivals(found)[DEFAULT].logs] == [Place("e", 1, number) for number in range(8)]
    (row,) = judge_evidence(found).rows
    assert (row.name, row.gains[0].launches) == ("ring", 8)


def test_a_variable_that_was_exported_is_a_setting_too() -> None:
    """Else a library told to take the ring would be its own choice."""
    facts = {**ENVIRONMENT, "variables": {ALGORITHM: "ring", "OMP_NUM_THREADS": "1"}}
    found = gather_evidence([swept({(): 1.0}, environment=facts)], Terms())
    assert {*rivals(found)} == {setting("ring")}
    advised = judge_evidence(found)
    assert {each.why for each in advised.unadvised} == {
        f"the library's own choice was not measured, as {ALGORITHM}=ring was exported; unset it"
    }
    chosen = gather_evidence([swept({RING: 0.8})], Terms())  # by the run itself
    (why,) = {each.why for each in judge_evidence(chosen).unadvised}
    assert why == "the library's own choice was not measured"


@pytest.mark.parametrize("envs", [{TREE: 0.8}, {RING: 0.8, TREE: 0.9}])
def test_an_exported_variable_that_the_run_sets_itself_is_not_to_blame(envs: Any) -> None:
    """Without the export no launch would leave the choice to the library either."""
    facts = {**ENVIRONMENT, "variables": {ALGORITHM: "ring"}}
    evidence = gather_evidence([swept(envs, environment=facts)], Terms())
    (why,) = {each.why for each in judge_evidence(evidence).unadvised}
    assert why == "the library's own choice was not measured"


def test_what_is_exported_beside_an_algorithm_is_part_of_the_setting() -> None:
    """A file that leaves the segments out would be of a setting that was never measured."""
    facts = {**ENVIRONMENT, "variables": {SEGMENT: "8"}}
    found = gather_evidence([swept({(): 1.0, RING: 0.8}, environment=facts)], Terms())
    segmented = Setting(backend="gloo", env=(*RING, (SEGMENT, "8")))
    assert {*rivals(found)} == {DEFAULT, segmented}


def test_variables_that_differ_between_runs_are_all_named() -> None:
    files = [
        swept({(): 1.0}, name=value, environment={**ENVIRONMENT, "variables": {ALGORITHM: value}})
        for value in ("ring", "tree")
    ]
    (why,) = {each.why for each in judge_evidence(gather_evidence(files, Terms())).unadvised}
    assert why.endswith(f", as {ALGORITHM}=ring and {ALGORITHM}=tree were exported; unset them")


def test_cases_are_of_all_forms_of_the_default() -> None:
    """A verification measures them: a setting is advised where it is faster in all forms."""
    files = [
        swept({(): 1.0, RING: 0.8}, name=dtype, case_fields={"dtype": dtype})
        for dtype in ("float", "half")
    ]
    found = gather_evidence(files, Terms())
    assert {(case.dtype, case.nbytes, case.env) for case in found.cases} == {
        (dtype, size, ()) for dtype in ("float", "half") for size in SIZES
    }
    assert schedule.count_forms(schedule.make_sweeps(found.cases)) == 2


def test_what_was_exported_beside_settings_is_told() -> None:
    """A file of rules that is in force already is part of what is measured as the default."""
    own = {"GLOO_RULES": "my.conf", "NCCL_ALGO": "Tree", ALGORITHM: "0", "GLOO_LOG_LEVEL": "1"}
    facts = {**ENVIRONMENT, "variables": own}
    found = gather_evidence([swept({(): 1.0, RING: 0.8}, environment=facts)], Terms())
    assert found.notes == ("GLOO_RULES was set in run: it is part of the library's own choice",)
    assert gather_evidence([swept({(): 1.0, RING: 0.8})], Terms()).notes == ()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tag": "tune-screen-1"}, "tune chose settings by it"),
        ({"imported": "nccl-tests"}, "the machine is unknown"),
        ({"environment": {}}, "the machine is unknown"),
        ({"policy": Policy(fresh=True, inject="slow")}, "faults planted on purpose"),
        ({"environment": {**ENVIRONMENT, "kernel": "7.0"}}, "the machines differ: kernel|software"),
        ({"environment": {**ENVIRONMENT, "variables": {"UCX_TLS": "tcp"}}}, "the settings differ"),
        (
            {"worlds": {"library": "Tiny 2.0, of June"}},
            "the software differs: Tiny 1.0 -> Tiny 2.0",
        ),
    ],
)
def test_runs_that_are_no_evidence_are_left_out(fields: dict[str, Any], why: str) -> None:
    first = swept({(): 1.0, RING: 0.8})
    second = swept({(): 1.0, RING: 0.1}, name="second", **fields)
    found = gather_evidence([first, second], Terms())
    assert found.runs == ("run",)
    (note,) = found.notes
    assert note.startswith("run second is left out: ")
    assert any(each in note for each in why.split("|"))
    assert {place.source for place in rivals(found)[DEFAULT].logs} == {"run"}


@pytest.mark.parametrize("head", ["git:main", "python:.venv/bin/python", "as advised"])
def test_sides_that_are_no_settings_are_left_out(head: str) -> None:
    found = gather_evidence(sided(("", head), (1.0, 0.8)), Terms())
    assert found.runs == ("e-base",)
    assert found.notes[0].startswith("run e-head is left out: its side")


def test_sides_that_are_the_same_are_left_out() -> None:
    with pytest.raises(NoVerdict, match="no run can be used: both sides of its experiment"):
        gather_evidence(sided(("", ""), (1.0, 0.8), aa=True), Terms())


def test_runs_of_one_machine_are_pooled() -> None:
    first, second = (swept({(): 1.0, RING: 0.8}, 5, name) for name in ("one", "two"))
    found = gather_evidence([first, second], Terms())
    assert len(rivals(found)[DEFAULT].logs) == 10
    assert judge_evidence(found).rows


def test_ranks_that_share_cores_give_no_advice_unless_asked() -> None:
    file = swept({(): 1.0, RING: 0.8}, worlds={"oversubscribed": True})
    found = judge_evidence(gather_evidence([file], Terms()))
    assert found.rows == ()
    assert "(--oversubscribed judges it)" in found.unadvised[0].why
    (row,) = judge_evidence(gather_evidence([file], Terms(oversubscribed=True))).rows
    assert row.remark == "its ranks share cores"


def test_wrong_data_is_a_fault() -> None:
    def spoil(line: Record) -> Record:
        is_one = line.case.env == RING and line.case.nbytes == 4096 and line.case.cycle == 3
        spoilt = {"status": "wrong", "note": "rank 1 differs", "wrong": 3}
        return msgspec.structs.replace(line, **spoilt) if is_one else line

    found = gather_evidence([swept({(): 1.0, RING: 0.8}, change=spoil)], Terms())
    assert rivals(found, 4096)[setting("ring")].fault == "gave wrong data: rank 1 differs"
    assert rivals(found)[setting("ring")].fault == ""
    advised = judge_evidence(found)
    assert advised.rows == ()  # 1 KiB and 16 KiB are no neighbours
    assert {each.cell.nbytes: each.why for each in advised.unadvised}[4096] == (
        "ring gave wrong data: rank 1 differs"
    )
    assert advised.notes[0].startswith("all_reduce, ring: gave wrong data")


def test_a_disturbed_launch_is_no_fault() -> None:
    def disturb(line: Record) -> Record:
        lost = {"status": "failed", "note": f"{NO_SAMPLE} (1 x late start)", "times_ns": []}
        is_one = line.case.nbytes == 4096 and line.case.cycle == 3
        return msgspec.structs.replace(line, **lost) if is_one else line

    found = gather_evidence([swept({(): 1.0, RING: 0.8}, change=disturb)], Terms())
    one = rivals(found, 4096)[DEFAULT]
    assert (one.fault, len(one.logs), one.launched) == ("", 9, 10)
    assert judge_evidence(found).rows


def test_orders_of_sums_are_read() -> None:
    def sum_as(line: Record) -> Record:
        name = "ring" if line.case.env else "recursive_doubling"
        return msgspec.structs.replace(line, chose=add_names(None, (name,)))

    found = gather_evidence([swept({(): 1.0, RING: 0.8}, change=sum_as)], Terms())
    assert rivals(found)[setting("ring")].orders == ("ring",)
    assert judge_evidence(found).rows
    assert judge_evidence(found, is_same_order=True).rows == ()


@pytest.mark.parametrize(
    ("said", "nodes"), [((0,), 0), ((0, 2), 2), ((2,), 2), ((0, 1, 2), 0), ((1, 2), 0)]
)
def test_runs_that_say_no_nodes_are_of_one_choice_with_those_that_do(
    said: tuple[int, ...], nodes: int
) -> None:
    """4 of 10 launches ran Tree, 6 ran Ring and said various numbers of nodes."""

    def choose(line: Record) -> Record:
        cycle = line.case.cycle
        if cycle < 4:
            return msgspec.structs.replace(line, chose=Choice(algorithm="Tree"))
        choice = Choice(algorithm="Ring", nodes=said[cycle % len(said)])
        return msgspec.structs.replace(line, chose=choice)

    found = gather_evidence([swept({(): 1.0, RING: 0.8}, change=choose)], Terms())
    assert rivals(found)[DEFAULT].chose == Choice(algorithm="Ring", nodes=nodes)


def test_backends_compete_and_one_is_the_default() -> None:
    gloo = swept({(): 1.0})
    other = swept({(): 0.8}, name="shm", case_fields={"backend": "shm"}, worlds={"backend": "shm"})
    found = gather_evidence([gloo, other], Terms())
    assert {*rivals(found)} == {DEFAULT, Setting(backend="shm")}
    assert found.backends == ("gloo", "shm")
    assert judge_evidence(found).backend == "gloo"
    turned = gather_evidence([gloo, other], Terms(default="shm"))
    assert turned.default == Setting(backend="shm")
    with pytest.raises(UsageError, match="no run has this backend"):
        gather_evidence([gloo], Terms(default="nccl"))
    alone = gather_evidence([gloo, other], Terms(only_variables=True))
    assert {*rivals(alone)} == {DEFAULT}
    assert alone.notes == ("left out, as the library's file cannot name it: shm (see --for words)",)


def test_flags_that_forbid_a_verdict_are_doubts() -> None:
    def few(line: Record) -> Record:
        return msgspec.structs.replace(line, times_ns=line.times_ns[:3])

    found = gather_evidence([swept({(): 1.0, RING: 0.8}, change=few)], Terms())
    assert rivals(found)[DEFAULT].doubts == ("n<6",)
    assert judge_evidence(found).rows == ()


def test_what_matters_is_as_in_comparisons() -> None:
    """5 % on a machine of one's own, 10 % on one that others use."""
    file = swept({(): 1.0, RING: 0.8})
    assert rivals(gather_evidence([file], Terms()))[DEFAULT].tau == 0.05
    shared = swept({(): 1.0}, environment={**ENVIRONMENT, "product": "KVM"})
    assert rivals(gather_evidence([shared], Terms()))[DEFAULT].tau == 0.10
    assert rivals(gather_evidence([file], Terms(tau=0.2)))[DEFAULT].tau == 0.2


def test_hosts_make_another_series() -> None:
    file = swept({(): 1.0}, worlds={"ranks": ranks(["a", "a", "b", "b"])})
    assert {cell.series.nodes for cell in gather_evidence([file], Terms()).cells} == {2}
    gpus = [
        msgspec.structs.replace(rank, device=f"cuda:{rank.rank} [0000:0f:00] NVIDIA H200")
        for rank in hosted(4, 4)
    ]
    named = swept({(): 1.0}, worlds={"ranks": gpus})
    assert gather_evidence([named], Terms()).device == "NVIDIA H200"


def test_nothing_measured_is_one_line() -> None:
    with pytest.raises(NoVerdict, match="no row of these runs"):
        gather_evidence([make_file([])], Terms())
    with pytest.raises(NoVerdict, match="no run can be used"):
        gather_evidence([], Terms())


def test_sizes_are_those_of_calls() -> None:
    """1 KiB does not divide into three blocks: rules from 1 KiB on would leave the call out."""
    worlds = {"n": 3, "ranks": hosted(3, 3)}
    file = swept({(): 1.0, RING: 0.8}, collective="all_gather", worlds=worlds, case_fields={"n": 3})
    (row,) = judge_evidence(gather_evidence([file], Terms())).rows
    assert [gain.nbytes for gain in row.gains] == [1020, 4092, 16380]
    assert (row.low, row.high) == (1020, 16380)
