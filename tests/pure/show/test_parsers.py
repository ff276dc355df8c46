"""nccl-tests' text and JSON as the field's parsers read them: each finds what was recorded, of
every collective, under every launcher and with every setting that changes the text."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import factories
import msgspec
import parsers
import pytest
from parsers import Half, Row

from collbench.core.collectives import COLLECTIVES
from collbench.records import derive
from collbench.records.types import Record
from collbench.run.reporter import Outcome
from collbench.show import nccl, nccl_json
from collbench.show.nccl import Options
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

SIZES = (4096, 1 << 20, 1 << 26)
LAUNCHERS = ("local", "torchrun", "mpirun", "srun", "flux", "pbs", "environment", "ray", "ssh")
HOSTILE = "no in-place form here, out-of-place bandwidth 7 busbw and time, Out of bounds values : 0"
ROWS = {name for name, row in COLLECTIVES.items() if row.moves_data}


class Scenario(NamedTuple):
    """How a run differs from the plainest. ``places`` are those asked for, ``skipped`` those that
    the library lacks; ``unfit`` are readers that nccl-tests' own text of the kind is too much for.
    """

    places: tuple[bool, ...] = (False, True)
    skipped: tuple[bool, ...] = ()
    options: Options = nccl.DEFAULTS
    launcher: str = "local"
    backend: str = "gloo"
    samples: int = 7
    record: dict[str, Any] = {}
    case: dict[str, Any] = {}
    policy: Policy = Policy()
    unfit: tuple[str, ...] = ()


WIDE = (  # with -I there are more columns than these expect
    *("perfkit", "ramble", "aws_csv", "cloudai", "latencies"),
    *("cluster_health_scanner", "aws_healthcheck", "ncclscout"),
)
STAMPED = ("superbench", "cloudai", "cluster_health_scanner", "aws_healthcheck", "ncclscout")
SCENARIOS = {
    **{launcher: Scenario(launcher=launcher) for launcher in LAUNCHERS},
    "predicted": Scenario(backend="model"),
    "nccl": Scenario(backend="nccl", case={"mode": "streaming"}),
    "isolated beside": Scenario(
        backend="nccl",
        case={"mode": "streaming"},
        record={"control_ns": [60_000] * 20, "control_inner": 10},
    ),
    "ring": Scenario(case={"algorithm": "ring"}),
    "only out": Scenario(places=(False,)),
    "only in": Scenario(places=(True,)),
    "no in": Scenario(skipped=(True,)),
    "no out": Scenario(skipped=(False,)),
    "unchecked": Scenario(record={"wrong": None}),
    "unchecked out": Scenario(places=(False,), record={"wrong": None}),
    "flagged": Scenario(record={"preempted": 7, "copies_first": True, "steady": False}),
    "many": Scenario(samples=900),
    "fixed": Scenario(policy=Policy(iters=20, warmup=5, agg_iters=2)),
    "faulty": Scenario(policy=Policy(inject="slow-rank:3:20%")),
    "half": Scenario(case={"dtype": "half"}, unfit=("cluster_health_scanner",)),
    "split": Scenario(case={"n": 2, "groups": "mod:2", "of": 2}),
    "rank 0": Scenario(options=Options(average=0)),
    "mean": Scenario(options=Options(average=1)),
    "stamped": Scenario(options=Options(timestamps=True), unfit=STAMPED),
    "per iteration": Scenario(options=Options(per_iter=True), unfit=WIDE),
    "cpu": Scenario(options=Options(cpu_time=True), unfit=("superbench",)),
}


def cases(name: str, chosen: Scenario) -> list[Case]:
    """In plan order, those that there are."""
    given = {"backend": chosen.backend, **chosen.case}
    made = [
        factories.case(size, name, in_place=place, **given)
        for size in SIZES
        for place in chosen.places
        if not place or COLLECTIVES[name].in_place
    ]
    return made or cases(name, chosen._replace(places=(False,)))


def outcome(case: Case, chosen: Scenario) -> Outcome:
    """Its ranks take longer the higher they are; those of even size longer in place."""
    if case.in_place in chosen.skipped and COLLECTIVES[case.collective].in_place:
        return Record(case=case, status="skipped", note=HOSTILE), None
    base = 1000 + case.nbytes // 9 * (1 + case.in_place)
    ranks = [
        [base + 10 * r + sample % 17 for sample in range(chosen.samples)] for r in range(case.n)
    ]
    given = {"wrong": 0, "status": "ok", **chosen.record}
    record = Record(
        case=case,
        world=0,
        times_ns=ranks[-1],
        per_rank=[times[:200] for times in ranks],
        submit_ns=[base // 3] * chosen.samples,
        checked=64,
        started="2026-07-09T10:00:07+00:00",
        sync="window",
        cache="cold",
        **given,
    )
    return record, derive.derive_row(record, factories.world())


def skips(name: str, chosen: Scenario) -> list[Skip]:
    if COLLECTIVES[name].in_place:
        return []
    return [
        Skip(factories.case(size, name, in_place=True, backend=chosen.backend), HOSTILE)
        for size in SIZES
    ]


@cache
def shown(name: str, kind: str) -> tuple[str, str, list[Outcome]]:
    """Text, JSON and outcomes of a run."""
    chosen = SCENARIOS[kind]
    planned = cases(name, chosen)
    outcomes = [outcome(case, chosen) for case in planned]
    n = planned[0].world
    world = factories.world(
        backend=chosen.backend,
        n=n,
        launcher=chosen.launcher,
        ranks=factories.hosted(n, 2, "cuda" if chosen.backend == "nccl" else "cpu"),
        library=HOSTILE if kind == "flagged" else "",
    )
    run = factories.run(policy=chosen.policy)
    filled = msgspec.structs.replace(chosen.options, filled=True)
    text = nccl.Text(out := io.StringIO(), filled)
    text.begin(run, planned, skips(name, chosen))
    text.world(world)
    for each in outcomes:
        text.record(*each)
    text.end(factories.ENDED, None)
    document = nccl_json.make_json(run, [world], outcomes, factories.ENDED, chosen.options)
    return out.getvalue(), json.dumps(document), outcomes


def half(record: Record, options: Options) -> Half:
    """What is to be printed of a record, by its times alone."""
    over = {3: max, 0: lambda times: times[0], 1: statistics.fmean}[options.average]
    kept = record.per_rank if options.average != 3 else [record.times_ns]
    wall = statistics.median(map(over, zip(*kept, strict=True)))  # type: ignore[arg-type]
    time = statistics.median(record.submit_ns) if options.cpu_time else wall
    algbw = record.case.moved / wall
    busbw = algbw * record.case.row.busbw(record.case.n)
    return Half(
        *(float(nccl.format_number(v, w)) for v, w in ((time / 1e3, 7), (algbw, 6), (busbw, 6)))
    )


@cache
def expected(name: str, kind: str) -> list[Row]:
    """Every line, whose missing half is the other one."""
    lines: dict[int, dict[bool, Half]] = {}
    for record, row in shown(name, kind)[2]:
        if row:
            told = half(record, SCENARIOS[kind].options)
            lines.setdefault(record.case.size, {})[record.case.in_place] = told
    return [
        Row(size, halves.get(False, halves.get(True)), halves.get(True, halves.get(False)))
        for size, halves in lines.items()
    ]


@cache
def average(name: str, kind: str) -> float:
    values = [
        half(record, SCENARIOS[kind].options).busbw for record, row in shown(name, kind)[2] if row
    ]
    return statistics.fmean(values)


def only_out(rows: Sequence[Row]) -> list[Row]:
    return [row._replace(back=None) for row in rows]


def times(rows: Sequence[Row]) -> list[Any]:
    return [(row.size, row.out and row.out.time, row.back and row.back.time) for row in rows]


def whole(rows: Sequence[Row]) -> list[Any]:
    return [(row.size, int(row.back.busbw), int(row.back.time)) for row in rows if row.back]


def in_place(rows: Sequence[Row]) -> list[float]:
    return [row.back.busbw for row in rows if row.back]


READERS: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
    "superbench": (parsers.superbench, only_out),
    "perfkit": (parsers.perfkit, list),
    "ramble": (parsers.ramble, list),
    "aws_csv": (parsers.aws_csv, list),
    "cloudai": (parsers.cloudai, list),
    "latencies": (lambda text: times(parsers.latencies(text)), times),
    "cluster_health_scanner": (parsers.cluster_health_scanner, whole),
    "aws_healthcheck": (parsers.aws_healthcheck, lambda rows: max(in_place(rows))),
    "ncclscout": (parsers.ncclscout, in_place),
}
AVERAGES = {
    "gcm": parsers.gcm,
    "azure_nhc": parsers.azure_nhc,
    "ramble": parsers.ramble_average,
    "perfkit": parsers.perfkit_average,
    "aws": parsers.aws_average,
    "deepops": parsers.deepops,
    "cluster_toolkit": parsers.cluster_toolkit,
    "oci": parsers.oci,
    "cvs": parsers.cvs,
    "reframe": parsers.reframe,
}


@pytest.mark.parametrize("kind", SCENARIOS)
@pytest.mark.parametrize("reader", READERS)
def test_every_row_is_read_as_it_was_recorded(reader: str, kind: str) -> None:
    if reader in SCENARIOS[kind].unfit:
        pytest.skip("nccl-tests' own text of the kind is too much for it")
    read, seen = READERS[reader]
    found = {name: read(shown(name, kind)[0]) for name in ROWS}
    assert found == {name: seen(expected(name, kind)) for name in ROWS}


@pytest.mark.parametrize("kind", SCENARIOS)
@pytest.mark.parametrize("reader", AVERAGES)
def test_the_average_is_that_of_what_was_measured(reader: str, kind: str) -> None:
    found = {name: AVERAGES[reader](shown(name, kind)[0]) for name in ROWS}
    wanted = {name: pytest.approx(average(name, kind), rel=2e-3, abs=5e-3) for name in ROWS}
    assert found == wanted


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_run_without_fault_is_a_success(kind: str) -> None:
    assert all(parsers.successful(shown(name, kind)[0]) for name in ROWS)


def test_wrong_data_is_no_success() -> None:
    record, _ = outcome(factories.case(), Scenario())
    wrong = Record(case=record.case, status="wrong", wrong=3)
    text = nccl.Text(out := io.StringIO())
    text.begin(factories.run(), [record.case], [])
    text.record(wrong, None)
    text.end(factories.ENDED, None)
    assert not parsers.successful(out.getvalue())
    with pytest.raises(ValueError, match="not sane"):
        parsers.reframe(out.getvalue())


@pytest.mark.parametrize("kind", SCENARIOS)
@pytest.mark.parametrize("place", ["out_of_place", "in_place"])
def test_nccl_tests_own_analysis_finds_times_consistent(place: str, kind: str) -> None:
    found = [each for name in ROWS for each in parsers.analyzer(shown(name, kind)[1], place)]
    assert all(each.consistent for each in found)


@pytest.mark.parametrize("kind", SCENARIOS)
def test_json_holds_the_numbers_of_the_text_and_null_where_it_repeats(kind: str) -> None:
    options = SCENARIOS[kind].options
    for name in ROWS:
        _, document, outcomes = shown(name, kind)
        measured = {(r.case.size, r.case.in_place): half(r, options) for r, row in outcomes if row}
        for result in json.loads(document)["results"]:
            for place in (False, True):
                told = list(result["in_place" if place else "out_of_place"].values())[:3]
                wanted = measured.get((result["size"], place), (None,) * 3)
                assert told == [w and pytest.approx(w, rel=1e-2, abs=0.51) for w in wanted]


@pytest.mark.parametrize("kind", SCENARIOS)
def test_only_the_header_and_the_footer_have_their_words(kind: str) -> None:
    header = next(nccl.write_header(SCENARIOS[kind].options))
    for name in COLLECTIVES:
        lines = shown(name, kind)[0].splitlines()
        assert [line for line in lines if "out-of-place" in line] == [header], name
        assert sum("bandwidth" in line for line in lines) == 1, name
        assert sum("Out of bounds" in line for line in lines) == 1, name


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - ROWS))
def test_what_has_no_bandwidth_prints_numbers_all_the_same(name: str) -> None:
    halves = [row[1:] for row in parsers.cloudai(shown(name, "local")[0])]
    assert halves and not any(
        math.isnan(value) for pair in halves for h in pair if h for value in h
    )
