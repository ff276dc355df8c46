"""What a report says of runs of every kind, and that it stays within bounds."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import factories
import msgspec
import numpy as np
import pytest
from marks import long

import collbench
from collbench.core import algorithms
from collbench.core.errors import Exit
from collbench.features.compare.comparison import Comparison, Rules
from collbench.features.compare.views.verdicts import make_readable
from collbench.features.training.parts import PARTS
from collbench.machine.load import Load
from collbench.records import derive
from collbench.records.types import End, FirstWrong, Record, RunFile, ToolTime, World
from collbench.show import figure_style, figures
from collbench.show import words as formats
from collbench.show.document import FILTERS, Document, Section
from collbench.show.views import run as sections
from collbench.show.views import series, summary
from collbench.suite.case import Case
from collbench.suite.policy import Policy

ALWAYS = {"summary", "bandwidth", "environment", "data"}  # the others: where they say something
NAMES = [
    "comparison",
    "method",
    "best",
    "summary",
    "bandwidth",
    "crossovers",
    "efficiency",
    "arrival",
    "skew",
    "pairs",
    "distribution",
    "outliers",
    "environment",
    "data",
]
SIZES = (8, 1 << 10, 1 << 20)
ENDED = End(exit=0, ended="later")
HOSTILE = "<script>alert('&')</script>\x1b[31m|%{x}\n"


def run(
    *records: Record, worlds: list[World] | None = None, end: End | None = ENDED, **more: Any
) -> RunFile:
    given = {"name": more.pop("id", "r1"), "environment": {"host": "h", "kernel": "k"}, **more}
    return factories.make_file(records, worlds or [world()], end, **given)


def world(index: int = 0, host: str = "h", n: int = 2, **more: Any) -> World:
    return factories.world(index, n=n, ranks=factories.ranks([host] * n), **more)


def case(collective: str = "all_reduce", nbytes: int = 1024, **more: Any) -> Case:
    return factories.case(nbytes, collective, **{"n": 2, **more})


def ok(where: Case | None = None, median: int = 1000, samples: int = 40, **more: Any) -> Record:
    times = [median + (i % 7 - 3) * max(1, median // 200) for i in range(samples)]
    return Record(
        **(
            {
                "case": where or case(),
                "status": "ok",
                "world": 0,
                "times_ns": times,
                "checked": 8,
                "wrong": 0,
            }
            | more
        )
    )


def sweep(collective: str = "all_reduce", **more: Any) -> list[Record]:
    return [ok(case(collective, size, **more), 1000 + size) for size in SIZES]


def section(document: Document, name: str) -> Section:
    return next(found for found in document.sections if found.name == name)


def shown(document: Document) -> list[str]:
    return [found.name for found in document.sections]


def texts(value: Any) -> Iterator[str]:
    """Every string in a value, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(texts(inner) for inner in value.values())
    elif isinstance(value, list | tuple):
        yield from itertools.chain.from_iterable(texts(inner) for inner in value)


def sound(document: Document) -> None:
    """All sections stand in order with something to say, all figures are JSON that plotly can
    draw."""
    shown = [found.name for found in document.sections]
    ordered = [name for name in shown if name in NAMES]
    assert ordered == [name for name in NAMES if name in shown] and set(shown) >= ALWAYS
    names = [(found.name, figure.name) for found in document.sections for figure in found.figures]
    assert len(names) == len(set(names))
    for found in document.sections:
        assert found.title and (found.sentences or found.figures or found.tables)
        assert all(words == words.strip() and words for words in map(str, found.sentences))
        for figure in found.figures:
            json.dumps(figure.data, allow_nan=False), json.dumps(figure.layout, allow_nan=False)
            assert figure.data and figure.caption and re.fullmatch(r"[\w-]+", figure.name)
            for trace in figure.data:
                assert set(trace["meta"]) <= set(FILTERS)
        for table in found.tables:
            assert all(
                len(line.cells) == len(table.heads) and set(line.meta) <= set(FILTERS)
                for line in table.lines
            )
    json.dumps(document.data, allow_nan=False)


PREDICTED = Record(case=case(), status="predicted", times_ns=[1000])
FAILED = Record(case=case(), status="failed", note="peer is gone", world=0)
WRONG = ok(
    status="wrong",
    wrong=3,
    first_wrong=FirstWrong(rank=1, index=2, got="7", expected="8"),
    note="bad data",
)
SKIPPED = Record(case=case(), status="skipped", note="no such thing")
BARRIER = ok(case("barrier", 0))
ALONE = ok(case(n=1))
ODD: dict[str, list[RunFile]] = {
    "no run": [],
    "empty": [run()],
    "no world": [run(SKIPPED, worlds=[])],
    "skips only": [run(SKIPPED)],
    "predicted only": [run(PREDICTED)],
    "failed only": [run(FAILED)],
    "wrong only": [run(WRONG)],
    "one rank": [run(ALONE)],
    "barrier": [run(BARRIER)],
    "one sample": [run(ok(samples=1))],
    "few samples": [run(ok(samples=4))],
    "equal samples": [run(ok(times_ns=[1000] * 40))],
    "cut short": [run(ok(), end=None)],
    "mixed modes": [run(ok(), ok(case(mode="streaming")))],
    "imported": [
        run(
            Record(case=case(), status="ok", told=ToolTime(time=1000.5)),
            environment={},
            imported="nccl-tests",
        )
    ],
    "imported, own": [
        run(Record(case=case(), status="ok", told=ToolTime(time=9.0, min=8.0)), imported="OSU"),
        run(ok()),
    ],
    "strange environment": [
        run(ok(), environment={"cpu": "one", "gpus": [], "memory": 3, "nics": {}})
    ],
    "uneven": [run(ok(case("all_to_allv", 4096, splits="zipf:1")))],
    "same tag": [run(ok(), tag="t"), run(ok(), tag="t", id="r2")],
    "all kinds": [run(ok(), PREDICTED, FAILED, WRONG, SKIPPED, BARRIER, ALONE)],
}


def test_the_order_of_all_sections_is_known() -> None:
    runs = [*ODD.values(), [run(*sweep(), *sweep(algorithm="ring"))]]
    every = {name for files in runs for name in shown(sections.make_document(files))}
    assert every - {*NAMES, "left-out"} == set(), "a new section: its place in NAMES, above"


@pytest.mark.parametrize("name", ODD)
def test_every_kind_of_run_has_sound_sections(name: str) -> None:
    sound(sections.make_document(ODD[name]))


@pytest.mark.parametrize(
    ("name", "weight", "says"),
    [
        ("no run", "notice", "nothing to report"),
        ("empty", "notice", "nothing to report"),
        ("skips only", "notice", "skipped"),
        ("predicted only", "notice", "nothing was measured"),
        ("failed only", "bad", "1 of 1 case failed"),
        ("wrong only", "bad", "1 of 1 case gave wrong data"),
        ("cut short", "notice", "cut short"),
        ("imported", "notice", "imported from nccl-tests"),
        ("few samples", "good", "all results correct"),
    ],
)
def test_verdicts(name: str, weight: str, says: str) -> None:
    document = sections.make_document(ODD[name])
    assert document.weight == weight and says in document.verdict


def test_unverified_and_oversubscribed_runs_are_no_good_news() -> None:
    unverified = sections.make_document([run(ok(checked=0, wrong=None))])
    assert (
        unverified.weight == "notice"
        and "Data was not verified." in section(unverified, "summary").sentences
    )
    crowded = sections.make_document([run(ok(), worlds=[world(oversubscribed=True)])])
    assert crowded.weight == "notice" and "not fit for claims" in crowded.verdict
    assert any("not fit for claims" in words for words in section(crowded, "summary").sentences)


def test_wrong_data_is_told_and_its_time_is_not() -> None:
    document = sections.make_document([run(WRONG, *sweep(dtype="double"))])
    assert any(
        "rank 1, element 2: got 7, expected 8" in words
        for words in section(document, "summary").sentences
    )
    assert all(
        "float," not in trace["name"]
        for f in section(document, "bandwidth").figures
        for trace in f.data
        if "name" in trace
    )


def test_curves_show_what_was_measured() -> None:
    document = sections.make_document([run(*sweep(), *sweep(algorithm="ring"))])
    (time,) = section(document, "best").figures  # beside the table of what is best
    (busbw,) = section(document, "bandwidth").figures
    assert [f.name for f in (busbw, time)] == [
        f"all_reduce-isolated-{m}" for m in ("busbw", "time")
    ]
    lines = {trace["name"]: trace for trace in time.data if "name" in trace}
    assert set(lines) == {"gloo", "ring@gloo"}
    assert lines["gloo"]["x"] == list(SIZES) and lines["gloo"]["y"] == pytest.approx(
        [1000 + size for size in SIZES], rel=1e-5
    )
    assert lines["gloo"]["meta"] == {
        "collective": "all_reduce",
        "backend": "gloo",
        "dtype": "float",
        "ranks": "2",
    }
    rate = next(trace for trace in busbw.data if trace.get("name") == "gloo")
    assert rate["y"] == pytest.approx(
        [size / (1000 + size) for size in SIZES], rel=1e-5
    )  # two ranks: the factor is 1
    assert all(
        words in rate["text"][1]
        for words in ("1 KiB", "count 256", "N 40", "GB/s", "median", "max")
    )


def test_modes_never_share_a_figure() -> None:
    streaming = [ok(case(nbytes=size, mode="streaming"), 3 * size + 50) for size in SIZES]
    figures = section(sections.make_document([run(*sweep(), *streaming)]), "bandwidth").figures
    lines = [
        (f.name, [t["y"] for t in f.data if "name" in t])
        for f in figures
        if f.name.endswith("time")
    ]
    assert [(name, len(values)) for name, values in lines] == [
        ("all_reduce-isolated-time", 1),
        ("all_reduce-streaming-time", 1),
    ]
    assert lines[1][1][0] == pytest.approx([3 * size + 50 for size in SIZES], rel=1e-5)


def test_launches_are_what_counts() -> None:
    """Seven worlds: the median of their medians, bounded by launches, far wider than each launch's
    own interval."""
    medians = [1000, 1100, 1200, 1300, 1400, 1500, 1900]
    file = run(
        *(ok(median=m, world=i) for i, m in enumerate(medians)), worlds=[world(i) for i in range(7)]
    )
    (point,) = series.make_view([file]).points
    walsh = sorted(math.sqrt(a * b) for a, b in itertools.combinations_with_replacement(medians, 2))
    assert point.median == 1300 and point.launches == 7 and point.samples == 280
    assert (point.lo, point.hi) == pytest.approx((walsh[2], walsh[-3]))  # K = 2 for 7 launches


def test_cycles_of_a_launch_are_one_and_few_launches_claim_no_more_than_they_cover() -> None:
    cycles = [ok(case(cycle=i), median) for i, median in enumerate([1000, 1040, 1100])]
    (point,) = series.make_view([run(*cycles)]).points
    own = [series.make_view([run(record)]).points[0] for record in cycles]
    assert point.launches == 1 and point.median == 1040
    assert (point.lo, point.hi) == (min(p.lo for p in own), max(p.hi for p in own))


def test_invalid_times_are_shown_nowhere_and_counted_as_left_out() -> None:
    broken = {"invalid": {"late start": 30}}
    worlds = [world(0), world(1)]
    records = [
        ok(median=1000),
        ok(median=7777, world=1, **broken),
        ok(case(nbytes=4096), 8888, **broken),
        Record(case=case(nbytes=8192), status="skipped", note="too large"),
    ]
    document = sections.make_document([run(*records, worlds=worlds)])
    sound(document)
    (point,) = series.make_view([run(*records, worlds=worlds)]).points
    assert (point.median, point.launches) == (1000, 1)
    assert "invalid!" in point.flags
    left = section(document, "left-out")
    assert left.sentences == ["2 invalid!, 1 skipped."]
    rows = [(line.cells[0], line.cells[1], line.cells[3]) for line in left.tables[0].lines]
    why = "more than a quarter of the samples had to be repeated"
    assert rows == [("invalid!", why, "2"), ("skipped", "too large", "1")]
    shown = list(texts(msgspec.to_builtins(document.sections)))
    assert not any("8.89" in text or "7.78" in text for text in shown)


def test_rounds_of_a_comparison_are_launches() -> None:
    worlds = [world(i, stage=1, round=i // 2) for i in range(4)]
    (point,) = series.make_view([run(*(ok(world=i) for i in range(4)), worlds=worlds)]).points
    assert point.launches == 2


def test_runs_stay_apart_and_are_named() -> None:
    files = [
        run(*sweep(), tag="before"),
        run(*sweep(), id="r2", environment={"host": "h", "kernel": "newer"}),
    ]
    document = sections.make_document(files)
    names = {
        trace["name"] for trace in section(document, "bandwidth").figures[0].data if "name" in trace
    }
    assert names == {"before, gloo", "r2, gloo"}
    apart = section(document, "environment").tables[0]
    assert apart.name == "differences" and [line.cells for line in apart.lines] == [
        ("kernel", "k", "newer")
    ]
    assert "best" not in shown(document)  # runs are compared by compare, not as implementations
    assert {row["run"] for row in document.data} == {"before", "r2"}


def test_gpus_are_described_with_their_topology_once() -> None:
    links = [["X", "NV4", "SYS"], ["NV4", "X", "SYS"], ["SYS", "SYS", "X"]]
    devices = [{"name": "Fast GPU", "memory": 80 << 30, "cpus": "0-7", "numa": 0}] * 3
    gpus = {"driver": "570.1", "cuda": "12.8", "devices": devices, "links": links}
    rdma = {"mlx5_0:1": {"rate": "400 Gb/sec", "state": "4: ACTIVE", "path": "PIX", "gpus": [0, 1]}}
    about = {"host": "h", "gpus": gpus, "rdma": rdma}
    other = about | {"gpus": gpus | {"links": [["X", "SYS"], ["SYS", "X"]], "devices": devices[:2]}}
    strange = about | {"gpus": {"links": [["X", "X"], ["X", "X"]], "devices": [1, 2]}, "rdma": [1]}
    files = [
        run(ok(), environment=e, id=f"r{i}") for i, e in enumerate([about, about, other, strange])
    ]
    facts, *topologies = section(sections.make_document(files), "environment").tables[1:-1]
    told = {line.cells[0]: line.cells[1:] for line in facts.lines}
    assert (
        told["GPUs"][0] == "3 x Fast GPU (80 GiB), driver 570.1, CUDA 12.8"
        and told["GPUs"][3] == "unknown"
    )
    assert told["GPU links"][:2] == ("SYS between 2 pairs, NV4 between 1 pair",) * 2
    assert (
        told["RDMA"][0] == "mlx5_0:1 (400 Gb/sec, PIX to GPU 0, 1)" and told["RDMA"][3] == "unknown"
    )
    assert [(table.name, len(table.lines)) for table in topologies] == [
        ("topology-0", 3),
        ("topology-2", 2),
    ]
    assert topologies[0].lines[2].cells == ("GPU 2", "SYS", "SYS", "X", "0-7", "0")


def test_what_is_noted_of_good_cases_is_listed_with_the_cases() -> None:
    note = "-m: calls are launched one after the other"
    records = [
        ok(case(nbytes=8 << k), note=note + "; no window: late" * (k == 2)) for k in range(3)
    ]
    document = sections.make_document([run(*records, ok(case(nbytes=8, mode="host")))])
    (notes,) = (table for table in section(document, "summary").tables if table.name == "notes")
    assert [(line.cells[0], line.cells[2]) for line in notes.lines] == [
        (note, "3"),
        ("no window: late", "1"),
    ]
    assert str(notes.lines[0].cells[1]).endswith("8 B to 32 B")


def test_a_summary_without_notes_has_no_table_of_them() -> None:
    document = sections.make_document([run(ok())])
    assert "notes" not in [table.name for table in section(document, "summary").tables]


@pytest.mark.parametrize("product", ["", " [0000:0f:00] Fast GPU"])
def test_a_worlds_gpus_are_listed_by_their_numbers(product: str) -> None:
    """Their product stands among the machine's facts, once."""
    infos = [
        msgspec.structs.replace(info, device=info.device + product)
        for info in factories.ranks(["h"] * 2, "cuda")
    ]
    document = sections.make_document([run(ok(), worlds=[factories.world(ranks=infos)])])
    assert "h: 2 ranks (cuda:0, cuda:1)" in texts(
        msgspec.to_builtins(section(document, "environment"))
    )


def test_what_ranks_that_come_apart_cost_is_shown() -> None:
    apart = case(arrival="one-late:50us")
    fields = {"skew_ns": [50_000] * 8, "glob_ns": [30_000] * 8, "control_ns": [10_000] * 20}
    records = [
        Record(case=apart, status="ok", world=0, sync="window", times_ns=[6_000] * 8, **fields),
        ok(case(nbytes=8), 1000, control_ns=[4000] * 20, sync="window"),
        ok(case(nbytes=64, mode="host"), 1000, control_ns=[4000] * 20),
        ok(case(nbytes=1 << 20), 1000, control_ns=[1000] * 20, sync="window"),
    ]
    found = section(sections.make_document([run(*records)]), "arrival")
    spread, cadences = found.tables
    ((*_, size, arrival, skew, last, _, absorbed),) = (line.cells for line in spread.lines)
    assert (size, arrival, skew, last) == ("1 KiB", "one-late:50us", "50.0 µs", "6.00 µs")
    assert absorbed == "60%"
    told = [(line.cells[0], *line.cells[2:6]) for line in cadences.lines]
    assert told == [
        ("all_reduce, isolated", "8 B", "4.00 µs", "1.00 µs", "4.0x"),
        ("all_reduce, host", "64 B", "1.00 µs", "4.00 µs", "4.0x"),
    ]


def test_beside_a_stream_stands_what_the_device_takes_alone() -> None:
    streamed = {"control_ns": [52_100] * 20, "control_inner": 10}
    records = [ok(case(nbytes=8, mode="streaming"), 9000, **streamed)]
    records.append(ok(case(nbytes=1 << 20, mode="streaming"), 90_000))
    document = sections.make_document([run(*records)])
    (times,) = section(document, "bandwidth").tables
    at = times.heads.index("isolated")
    assert [line.cells[at] for line in times.lines] == ["5.21 µs", ""]
    assert "arrival" not in [found.name for found in document.sections]


def test_where_arrival_does_not_matter_no_section_is_about_it() -> None:
    document = sections.make_document([run(*sweep())])
    assert "arrival" not in [found.name for found in document.sections]


def test_a_planted_late_rank_is_shown() -> None:
    rng = np.random.default_rng(1)
    records = []
    for size in SIZES:
        starts = [rng.integers(0, 20, 60).tolist(), (400 + rng.integers(0, 20, 60)).tolist()]
        durations = [[1400] * 60, [1000] * 60]
        records.append(ok(case(nbytes=size), 1400, 60, per_rank=durations, starts_ns=starts))
    found = section(
        sections.make_document([run(*records, worlds=[world(host="slow-host")])]), "skew"
    )
    (heat,) = found.figures
    (map_,) = heat.data
    assert map_["y"] == ["rank 0", "rank 1"] and map_["x"] == ["8 B", "1 KiB", "1 MiB"]
    assert all(value == pytest.approx(400 / 1400, rel=0.1) for value in map_["z"][1])
    (line,) = found.tables[0].lines
    assert (
        line.cells[:3] == ("rank 1 of 2 (gloo)", "slow-host", "CPU 1")
        and line.cells[-1] == "3 of 3"
    )


def test_a_slow_transfer_is_no_late_rank_where_clocks_tell() -> None:
    rng = np.random.default_rng(1)
    starts = rng.integers(0, 20, (2, 60)).tolist()
    told = {"per_rank": [[1400] * 60, [1000] * 60]}
    known, unknown = ok(per_rank=told["per_rank"], starts_ns=starts), ok(**told)
    late, slow = (
        section(sections.make_document([run(record, worlds=[world(host="there")])]), "skew").tables
        for record in (unknown, known)
    )
    assert [(t.name, [line.cells[0] for line in t.lines]) for t in late] == [
        ("late", ["rank 1 of 2 (gloo)"])
    ]
    assert [(t.name, [line.cells[:2] for line in t.lines]) for t in slow] == [
        ("slow", [("rank 0 of 2 (gloo)", "there")])
    ]


@pytest.mark.parametrize(
    ("record", "there"),
    [
        (ok(case("broadcast", root=0), per_rank=[[1000] * 40, [400] * 40]), world()),
        (ok(per_rank=[[1000] * 40, [400] * 40]), world(oversubscribed=True)),
    ],
)
def test_lateness_is_not_told_where_it_means_nothing(record: Record, there: World) -> None:
    assert "skew" not in shown(sections.make_document([run(record, worlds=[there])]))


def test_outliers_are_drawn_in_the_order_measured() -> None:
    times = [1000 + i % 9 for i in range(2000)]
    times[700] = 9000
    found = section(sections.make_document([run(ok(times_ns=times))]), "outliers")
    (trace,) = found.figures[0].data
    assert len(trace["x"]) <= 601 and trace["y"][trace["x"].index(700)] == pytest.approx(
        9000 / 1004, rel=1e-3
    )
    assert found.tables[0].lines[0].cells[3:5] == ("1", "2,000")


def test_samples_are_shown_as_they_spread() -> None:
    found = section(sections.make_document([run(*sweep())]), "distribution")
    cdf, *_ = found.figures[0].data
    assert found.folded
    assert cdf["y"][-1] == 1 and cdf["y"] == sorted(cdf["y"]) and cdf["x"] == sorted(cdf["x"])


def test_samples_are_shown_of_the_fastest_and_of_libraries() -> None:
    medians = {"native": 9000, "linear": 8000, "pairwise": 1000, "bruck": 2000, "xor": 3000}
    records = [
        ok(case("all_to_all", size, algorithm=name), median + size)
        for name, median in medians.items()
        for size in SIZES
    ]
    (figure,) = section(sections.make_document([run(*records)]), "distribution").figures
    names = {trace["name"].partition(",")[0] for trace in figure.data}
    assert names == {"gloo", "bruck@gloo", "pairwise@gloo", "xor@gloo"}


def test_what_was_left_out_is_counted_by_reason() -> None:
    skips = [Record(case=case(nbytes=size), status="skipped", note="no GPU") for size in SIZES]
    found = section(sections.make_document([run(*skips, FAILED)]), "left-out")
    cells = [line.cells for line in found.tables[0].lines]
    assert [(c[0], c[1], c[3]) for c in cells] == [
        ("failed", "peer is gone", "1"),
        ("skipped", "no GPU", "3"),
    ]
    assert "8 B to 1 MiB" in cells[1][2]


def test_missing_sendrecv_comes_with_the_command_that_measures_it() -> None:
    found = section(sections.make_document([run(*sweep(n=2))]), "efficiency")
    words = " ".join(map(str, found.sentences))
    assert "sendrecv was not measured with gloo on 2 ranks, float, isolated" in words
    assert (
        "collbench sendrecv --backend gloo -g 2 -d float --mode isolated -b 8 -e 1048576" in words
    )
    assert not found.tables
    both = section(sections.make_document([run(*sweep(), *sweep("sendrecv"))]), "efficiency")
    assert [table.name for table in both.tables] == ["merits", "links"] and both.figures


def test_sendrecv_is_measured_at_all_sizes_that_lack_it() -> None:
    sizes = (4 << 10, 1 << 20, 100 << 20)
    records = [ok(case("all_reduce", size), 1000 + size) for size in sizes]
    found = section(sections.make_document([run(*records)]), "efficiency")
    assert " --sizes 4096,1048576,104857600)," in " ".join(map(str, found.sentences))
    records += [ok(case("sendrecv", size), 1000 + size) for size in sizes[:2]]
    found = section(sections.make_document([run(*records)]), "efficiency")
    words = " ".join(map(str, found.sentences))
    assert "gloo on 2 ranks, float, isolated at 100 MiB: without it there is no link" in words
    assert " -b 104857600 -e 104857600" in words


@pytest.mark.parametrize(
    ("wires", "phrase", "options"),
    [
        ({"env": (("A", "x y"),)}, "A=x y", "-g 2 {} --env 'A=x y'"),
        (
            {"env": (("A", "1"), ("COLLBENCH_PATH", "loopback-nic"), ("GLOO_SOCKET_IFNAME", "lo"))},
            "A=1 COLLBENCH_PATH=loopback-nic",
            "-g 2 {} --env A=1 --path loopback-nic",
        ),
        (
            {"groups": "mod:3", "group": 1, "of": 3},
            "in groups by mod:3",
            "-g 6 {} --split mod:3",
        ),
        (
            {"groups": "pairs 2/4", "group": 1, "of": 2},
            "in groups by pairs 2/4",
            "-g 4 {} --split pairs",
        ),
        (
            {"background": "all_to_all:4M"},
            "beside all_to_all:4M",
            "-g 2 {} --background all_to_all:4M",
        ),
    ],
    ids=["env", "path", "groups", "pairs", "background"],
)
def test_sendrecv_is_measured_over_the_wires_that_lack_it(
    wires: dict[str, Any], phrase: str, options: str
) -> None:
    """What was measured over others does not count."""
    found = section(
        sections.make_document([run(*sweep("sendrecv"), *sweep(**wires))]), "efficiency"
    )
    words = " ".join(map(str, found.sentences))
    assert f"sendrecv was not measured with gloo on 2 ranks, float, isolated, {phrase}, in" in words
    assert options.format("-d float --mode isolated -b 8 -e 1048576") in words


def test_groups_lack_sendrecv_together_and_settings_apart() -> None:
    groups = [{"groups": "mod:2", "group": group, "of": 2} for group in (0, 1)]
    settings = [{"env": (("A", value),)} for value in "12"]
    records = [record for wires in (*groups, *settings) for record in sweep(**wires)]
    found = section(sections.make_document([run(*records)]), "efficiency")
    assert sum("sendrecv was not measured" in str(text) for text in found.sentences) == 3


@pytest.mark.parametrize(
    "wires",
    [{"env": (("A", "1,2"),)}, {"groups": "ranks 2,0;1,3/4", "of": 2}],
    ids=["env", "ranks"],
)
def test_wires_that_no_option_names_have_no_command_for_sendrecv(wires: dict[str, Any]) -> None:
    found = section(sections.make_document([run(*sweep(**wires))]), "efficiency")
    words = " ".join(map(str, found.sentences))
    assert "Measure it in the same run." in words and "collbench sendrecv" not in words


def test_a_comparison_adds_its_section_and_rules_the_verdict() -> None:
    base, head = run(ok()), run(ok(), id="r2")
    given = Comparison(
        base=base.run,
        head=head.run,
        paired=True,
        stages=(8, 0),
        differences=[],
        rows=[],
        aggregates=[],
        rules=Rules(),
        exit=Exit.BAD,
        reason="1 row regressed",
    )
    document = sections.make_document([base, head], make_readable(given))
    sound(document)
    assert "comparison" in [found.name for found in document.sections] and document.weight == "bad"


def test_hostile_text_stays_text() -> None:
    where = {"backend": HOSTILE, "env": (("X", HOSTILE),)}
    records = [
        *sweep(**where),
        *sweep(algorithm="ring", **where),
        *sweep("sendrecv", **where),
        Record(case=case(**where), status="failed", note=HOSTILE),
    ]
    late = [ok(case(nbytes=s, **where), 1000, per_rank=[[1000] * 40, [400] * 40]) for s in SIZES]
    worlds = [world(host=HOSTILE, library=HOSTILE), world(1, host=HOSTILE)]
    about = {"tag": HOSTILE, "id": HOSTILE, "environment": {"host": HOSTILE, "kernel": HOSTILE}}
    files = [run(*records, *late, worlds=worlds, **about), run(*records, worlds=worlds, id="r2")]
    document = sections.make_document(files)
    sound(document)
    plain = [
        *document.runs,
        document.title,
        *(str(w) for s in document.sections for w in s.sentences),
    ]
    plain += [
        str(cell)
        for s in document.sections
        for t in s.tables
        for line in t.lines
        for cell in line.cells
    ]
    assert any("<script>" in text for text in plain)  # escaping these is the page's
    assert not any("\x1b" in text or "\n" in text for text in [*plain, *texts(document.data)])
    for figure in (figure for found in document.sections for figure in found.figures):
        for text in texts(
            [{k: v for k, v in trace.items() if k != "meta"} for trace in figure.data]
            + [figure.layout]
        ):
            assert not re.search(r"<(?!br>|/?b>|/?extra>)", text) and "\x1b" not in text
        for trace in figure.data:  # where %{x} would be a value
            assert "script" not in f"{trace.get('hovertemplate')}{trace.get('texttemplate')}"


@pytest.mark.parametrize("sizes", [10, long(70)])
def test_many_cases_stay_bounded_and_say_so(sizes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The more of them, the less is shown of each: 10 sizes make 2,880 cases."""
    monkeypatch.setattr(sections, "DATA", 57_000 * sizes)
    cases = [
        case(c, size, n=n, algorithm=a, dtype=d, in_place=p)
        for c, n, a, d, p, size in itertools.product(
            ("all_reduce", "all_gather", "broadcast"),
            (2, 4, 8, 16),
            ("native", "ring", "recursive_doubling"),
            ("float", "half", "double", "int32"),
            (False, True),
            [4096 * k for k in range(1, 1 + sizes)],
        )
    ]
    times = [[t, t + 1, t, t + 2, t, t + 1, t] for t in range(100, 1077)]
    records = [
        Record(case=c, status="ok", world=0, checked=1, wrong=0, times_ns=times[i % 977])
        for i, c in enumerate(cases)
    ]
    document = sections.make_document([run(*records)])
    assert len(records) == 288 * sizes
    sound(document)
    assert len(msgspec.json.encode(document)) < 10_000_000
    figures = [figure for found in document.sections for figure in found.figures]
    assert max(len(figure.data) for figure in figures) <= 120
    assert max(len(table.lines) for found in document.sections for table in found.tables) <= 500
    assert any(
        re.search(r"\d of \d+ lines shown; the rest is in the data", w)
        for w in section(document, "bandwidth").sentences
    )
    assert "Largest gains first." in section(document, "best").tables[0].note
    assert (
        len(document.data) < len(records)
        and f"of {len(records):,}" in section(document, "data").sentences[0]
    )


@pytest.mark.parametrize("collective", ["all_reduce", "sendrecv"])
def test_odd_sizes_and_times_are_no_error(collective: str) -> None:
    odd = (0, 1, 3, 10**9, 10**18)
    made = [
        ok(case(collective, nbytes, algorithm=algorithm), times_ns=times)
        for algorithm in ("native", "ring")
        for nbytes, time in itertools.product(odd, odd)
        for times in ([time], [time] * 20, [*odd, *odd], [time, *[time + 1] * 20])
    ]
    sound(sections.make_document([run(*made)]))


def test_places_are_changed_between_sizes_that_move_data_only() -> None:
    def at(algorithm: str, nbytes: int, median: int) -> Record:
        return ok(case("all_reduce", nbytes, algorithm=algorithm), median)

    made = [
        at("native", 0, 100),
        at("ring", 0, 900),
        at("native", 64, 900),
        at("ring", 64, 100),
        at("native", 1024, 100),
        at("ring", 1024, 900),
    ]
    (line,) = section(sections.make_document([run(*made)]), "crossovers").tables[0].lines
    assert "64 B … 1 KiB" in line.cells


@pytest.mark.parametrize("changed", ["", "0 80\n80 0\n", "0 60\n64 0\n8 8 8\n"])
def test_a_split_file_that_is_gone_or_changed_leaves_bandwidth_unknown(
    tmp_path: Path, changed: str
) -> None:
    matrix = tmp_path / "m.txt"
    matrix.write_text("0 64\n64 0\n")
    record = ok(case("all_to_allv", 64, splits=f"matrix:{matrix}"))
    assert derive.derive_row(record).busbw == pytest.approx(0.064)  # type: ignore[union-attr]
    if changed:
        matrix.write_text(changed)
    else:
        matrix.unlink()
    document = sections.make_document([run(record)])
    sound(document)
    assert any("no-splits" in line.cells for line in section(document, "summary").tables[1].lines)
    assert (document.data[0]["flags"], document.data[0]["median"]) == ("no-splits", 1000)
    assert "busbw" not in document.data[0] and "algbw" not in document.data[0]
    assert formats.format_cells(record, derive.derive_row(record))["busbw"] == "n/a"
    assert not collbench.frame(run(record)).empty


def test_labels_are_short_and_told_apart() -> None:
    stamped = [
        run(ok(), id=f"20260101-00000{i}-smoke-{x}") for i, x in enumerate(("ab12", "cd34", "cd34"))
    ]
    assert series.make_view(stamped[:2]).labels == ["smoke-ab12", "smoke-cd34"]
    assert series.make_view(stamped[1:]).labels == [file.run.id for file in stamped[1:]]
    assert series.make_view([run(ok(), id="x", tag="mine"), stamped[0]]).labels == [
        "mine",
        "smoke-ab12",
    ]


def test_text_is_aligned_left_and_figures_right() -> None:
    document = sections.make_document([run(*sweep(), *sweep(algorithm="ring"), *sweep("sendrecv"))])
    tables = {table.name: table for found in document.sections for table in found.tables}
    for name, heads in {
        "best-of": ("at", "collective"),
        "best-isolated": ("best", "next"),
        "links": ("note", "from"),
    }.items():
        columns = tables[name].columns
        assert all(column.is_left for column in columns if column.head in heads)
        assert not all(column.is_left for column in columns)


def test_axes_have_readable_ticks_wherever_values_lie() -> None:
    for least, most in [(1.1e-5, 3e-5), (3.1, 3.3), (4.0, 4.0), (2, 30), (1, 9e5)]:
        axis = figure_style.log_axis("busbw", [least, None, most], figure_style.format_number)
        inside = [tick for tick in axis["tickvals"] if 0.9 * least <= tick <= 1.1 * most]
        assert 1 <= len(inside) <= 12 and not any("e" in text for text in axis["ticktext"])
        assert len(set(axis["ticktext"])) == len(axis["ticktext"])


@pytest.mark.parametrize(
    ("least", "most"), [(0.8, 4.16), (1.1, 5.6), (4.9, 31), (0.9, 18), (2, 41), (1.5, 900)]
)
def test_axes_have_a_tick_near_every_value(least: float, most: float) -> None:
    axis = figure_style.log_axis("busbw", [least, most], figure_style.format_rate)
    inside = [tick for tick in axis["tickvals"] if least <= tick <= most]
    assert 4 <= len(inside) <= 12
    assert axis["title"]["text"] == "busbw (log)"


def test_an_axis_of_sizes_says_that_it_is_logarithmic() -> None:
    assert figure_style.sizes_axis([4, 1024])["title"]["text"] == "size (log)"


def test_what_was_not_measured_precisely_is_no_good_verdict() -> None:
    made = (
        ok(stop="budget"),
        ok(case(nbytes=8), stop="converged"),
        ok(case(nbytes=16), stop="max_n"),
    )
    verdict = sections.make_document([run(*made)])
    assert verdict.weight == "notice" and verdict.verdict.endswith(
        "; 2 of 3 less precise than asked for."
    )


def test_a_log_without_a_date_says_where_it_is_from() -> None:
    file = run(ok(), imported="osu")
    undated = msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, started=""))
    lines = section(sections.make_document([undated]), "environment").tables[0].lines
    assert ("started", "imported from osu") in [line.cells for line in lines]


def table_of(document: Document, where: str, name: str) -> list[tuple[str, ...]]:
    return [
        line.cells
        for found in section(document, where).tables
        if found.name == name
        for line in found.lines
    ]


def test_parts_of_a_step_are_counted_as_in_the_rest_of_the_page() -> None:
    """A verdict on steps alone counts steps."""
    steps = [
        ok(case(part, 8, op="none", dtype="uint8", subject=name), 1000)
        for name in ("x #1", "y #2")
        for part in PARTS
    ]
    assert sections.make_document([run(*steps)]).verdict.startswith("2 steps measured, all results")
    mixed = [msgspec.structs.replace(record, stop="max_n") for record in (*steps, *sweep())]
    document = sections.make_document([run(*mixed), run(id="r2")])
    summary = section(document, "summary")
    (flags,) = (found for found in summary.tables if found.name == "flags")
    assert document.verdict.startswith("9 cases measured, ")
    assert "; 9 of 9 less precise" in document.verdict
    assert str(summary.sentences[0]) == "9 records measured, in 2 runs."
    assert flags.title.startswith("Flags of 9 cases: ") and "unconverged 9" in flags.title


def test_predictions_are_never_reported_as_measurements() -> None:
    model = [
        Record(
            case=case(nbytes=size, backend="model"), status="predicted", times_ns=[1 + size // 1000]
        )
        for size in SIZES
    ]
    document = sections.make_document([run(*sweep(), *model)])
    sound(document)
    assert document.verdict.startswith("3 cases measured, 3 predicted by a model, all results")
    assert (
        section(document, "summary").sentences[0]
        == "3 records measured, 3 predicted by a model, in 1 run."
    )
    floors = table_of(document, "summary", "best-of")
    assert [(cells[0], cells[3]) for cells in floors] == [
        ("isolated", "8 B, gloo"),
        ("isolated, predicted", "8 B, model"),
    ]
    names = [
        figure.name
        for figure in section(document, "bandwidth").figures
        if figure.name.endswith("time")
    ]
    assert names == ["all_reduce-isolated-time", "all_reduce-isolated-predicted-time"]
    assert not {"best", "crossovers"} & {*shown(document)}
    cut = sections.make_document([run(*sweep(), *model, end=None)])
    assert "3 cases measured, 3 predicted by a model before" in cut.verdict
    rings = [
        msgspec.structs.replace(record, case=msgspec.structs.replace(record.case, algorithm="ring"))
        for record in model
    ]
    both = section(sections.make_document([run(*sweep(), *model, *rings)]), "best")
    assert [(t.name, len(t.lines)) for t in both.tables] == [("best-isolated-predicted", 3)]


@pytest.mark.parametrize(
    ("mode", "inner", "told"),
    [
        ("isolated", 1, True),
        ("host", 1, True),
        ("isolated", 8, True),
        ("streaming", 20, False),
    ],
)
def test_pipelined_calls_have_no_latency_to_tell(mode: Any, inner: int, told: bool) -> None:
    """Short isolated calls are several to a sample, for the clock's sake; streaming ones
    overlap."""
    records = [msgspec.structs.replace(record, inner=inner) for record in sweep(mode=mode)]
    document = sections.make_document([run(*records)])
    names = [name for name, *_ in table_of(document, "summary", "answers")]
    assert ("latency floor" in names) == told
    said = any(
        "mean of several calls" in words for words in section(document, "distribution").sentences
    )
    assert said == (inner > 1)


def test_an_imported_mean_is_not_called_a_median() -> None:
    told = [
        Record(
            case=case(nbytes=size), status="ok", told=ToolTime(time=1000.5 + size, ranks="slowest")
        )
        for size in SIZES
    ]
    document = sections.make_document([run(*told, environment={}, imported="osu")])
    found = section(document, "bandwidth")
    assert not any("edian" in words for words in found.closing)
    assert (
        "Imported times are what the tool printed: mean over iterations, of the slowest rank."
        in found.closing
    )
    hover = next(trace["text"][0] for trace in found.figures[0].data if "text" in trace)
    assert "mean over iterations, of the slowest rank 1.01 µs" in hover and "median" not in hover
    assert document.data[0]["over"] == "mean over iterations, of the slowest rank"
    words = " ".join(section(document, "efficiency").sentences)
    assert "into one log" in words and "report both runs" not in words


@pytest.mark.parametrize(
    ("note", "says"),
    [
        ("", "No log says that data was verified."),
        ("validation passed", "The tool validated the data of 1 case."),
        (
            "largest relative error 2e-07",
            "Largest relative error of the data, as its tool saw it: 2e-07.",
        ),
    ],
)
def test_an_imported_run_says_what_its_log_says_of_the_data(note: str, says: str) -> None:
    told = Record(case=case(), status="ok", told=ToolTime(time=1000.5), note=note)
    document = sections.make_document([run(told, environment={}, imported="osu")])
    assert says in section(document, "summary").sentences
    assert "Data was not verified." not in section(document, "summary").sentences


def test_of_a_run_without_data_nothing_is_said_of_its_data() -> None:
    barriers = sections.make_document([run(ok(case("barrier", 0), checked=0, wrong=None))])
    assert barriers.weight == "good" and "none with data to verify" in barriers.verdict
    sentences = section(barriers, "summary").sentences
    assert not any("verified" in sentence for sentence in sentences)


@pytest.mark.parametrize(("samples", "has_interval"), [(0, False), (6, True), (40, True)])
def test_imported_times_with_samples_have_an_interval(samples: int, has_interval: bool) -> None:
    times = [1000 + 10 * (i % 3) for i in range(samples)]
    made = Record(case=case(), status="ok", told=ToolTime(time=1000.5), times_ns=times)
    document = sections.make_document([run(made, environment={}, imported="nccl-inspector")])
    summary = str(section(document, "summary"))
    assert bool(re.search(r"±[\d∞]", summary)) is has_interval
    derived = derive.derive_row(made, None)
    assert derived and (formats.format_cells(made, derived)["±"] != "-") is has_interval


@pytest.mark.parametrize("wrong", [0, 12])
def test_an_imported_run_does_not_claim_that_we_verified_its_data(wrong: int) -> None:
    told = Record(
        case=case(), status="ok", told=ToolTime(time=1000.5), checked=1_431_306_240, wrong=wrong
    )
    words = section(sections.make_document([run(told, imported="nccl-tests")]), "summary").sentences
    assert f"The log reports {wrong} wrong elements." in words
    assert not any("verified" in word for word in words)


def test_an_imported_run_shows_the_average_bus_bandwidth_of_its_log() -> None:
    told = Record(case=case(), status="ok", told=ToolTime(time=1000.5))
    suite = factories.suite()
    average = "Average bus bandwidth in the log: 1.5 GB/s"
    file = run(
        told, imported="nccl-tests", suite=msgspec.structs.replace(suite, description=average)
    )
    assert f"{average}." in section(sections.make_document([file]), "summary").sentences


def test_every_time_and_bandwidth_is_in_a_table() -> None:
    (table,) = section(sections.make_document([run(*sweep(), BARRIER)]), "bandwidth").tables
    rows_ = [line.cells for line in table.lines]
    assert table.title == "Times and bandwidths: isolated"  # of which all lines are
    assert rows_[1][:4] == ("all_reduce", "gloo", "1 KiB", "2.02 µs")
    assert rows_[1][5:] == ("0.51", "0.51", "")
    assert rows_[3][0] == "barrier" and rows_[3][5:7] == ("-", "-") and len(rows_) == 4


def test_sizes_that_are_not_drawn_are_said() -> None:
    many = [ok(case(nbytes=8 * k), 1000 + k) for k in range(1, 61)]
    document = sections.make_document([run(*many)])
    for name in ("bandwidth", "efficiency"):
        assert (
            "Of up to 60 sizes, each line is drawn at 48, evenly spread."
            in section(document, name).sentences
        )
    assert not any(
        "evenly spread" in words
        for words in section(sections.make_document([run(*sweep())]), "bandwidth").sentences
    )


def test_what_is_not_known_is_no_tie_and_the_library_is_named() -> None:
    def said(*algorithms: str, samples: int = 40, backends: tuple[str, ...] = ("gloo",)) -> Section:
        made = [
            ok(case(algorithm=a, backend=b), 1000 + 5 * place, samples)
            for b in backends
            for place, a in enumerate(algorithms)
        ]
        return section(sections.make_document([run(*made)]), "best")

    few = said("native", "ring", samples=3)
    assert [str(line.cells[1]) for line in few.tables[0].lines] == ["gloo ? ring@gloo (n<6)"]
    assert few.sentences == ["gloo is the fastest in 0 of 1 case, not known in 1."]
    both = said("native", backends=("gloo", "shm"))
    assert not any("fastest" in words for words in both.sentences)


def test_pairs_of_runs_and_backends_stay_apart() -> None:
    def pairs(backend: str, times: int) -> list[Record]:
        return [
            ok(case("sendrecv", backend=backend, groups=f"pairs {number}/4", of=2), median)
            for number, median in enumerate((times, 2 * times))
        ]

    files = [run(*pairs("gloo", 1000), *pairs("shm", 100)), run(*pairs("gloo", 10), id="r2")]
    drawn = section(sections.make_document(files), "pairs").figures
    rates = [sorted({rate for row in f.data[0]["z"] for rate in row if rate}) for f in drawn]
    assert rates == [pytest.approx([rate / 2, rate], rel=0.02) for rate in (1.024, 10.24, 102.4)]
    assert all(figure.data[0]["texttemplate"] for figure in drawn)


@pytest.mark.parametrize("value", [[1, [2]], {"a": 1}, 7, "deep"])
def test_facts_of_another_shape_are_no_error(value: Any) -> None:
    if value == "deep":
        value = []
        for _ in range(900):
            value = [value]
    names = (
        "host",
        "cpu",
        "gpus",
        "nics",
        "memory",
        "libraries",
        "variables",
        "container",
        "git",
        "python",
        "product",
        "kernel",
        "boot_id",
    )
    strange = run(ok(), environment=dict.fromkeys(names, value), id="r2")
    sound(sections.make_document([strange, run(ok())]))


@pytest.mark.parametrize(("backend", "same"), [("gloo", True), ("mpi", False)])
def test_runs_are_told_apart_by_libraries_that_their_backends_use(backend: str, same: bool) -> None:
    files = [
        run(ok(case(backend=backend)), id=name, environment={"kernel": "k", "libraries": libraries})
        for name, libraries in (("r1", {}), ("r2", {"mpi4py": "4.1.2"}))
    ]
    environment = section(sections.make_document(files), "environment")
    assert ("The runs' machines are the same" in environment.sentences[-1]) == same
    (prints,) = [
        line.cells
        for table in environment.tables
        for line in table.lines
        if line.cells[0] == "fingerprint"
    ]
    assert (prints[1] == prints[2]) == same


BUSY = {"h": Load(1.26, 2)}


def test_the_headline_says_that_others_used_the_machine() -> None:
    said = sections.make_document([run(ok(seconds=1.0, load=BUSY))])
    assert said.weight == "notice"
    assert "results correct. Other processes used 1.3 of 2 CPUs while measuring" in said.verdict
    assert sections.make_document([run(ok(seconds=1.0, load={"h": Load(0.1, 2)}))]).weight == "good"


def test_of_several_runs_the_summary_says_which_machine_was_busy() -> None:
    quiet, loud = (
        run(ok(), id="r1", tag="quiet"),
        run(ok(seconds=1, load=BUSY), id="r2", tag="loud"),
    )
    words = section(sections.make_document([quiet, loud]), "summary").sentences
    (told,) = (line for line in words if "other processes" in line)
    assert told.startswith("loud: other processes used 1.3 of 2 CPUs")


def test_floors_and_peaks_are_of_rows_to_rely_on() -> None:
    wide = {"stop": "budget", "times_ns": [10 * (1 + i % 20) for i in range(40)]}
    records = [
        ok(case(nbytes=8), 50),
        ok(case(nbytes=8, in_place=True), **wide),
        ok(case(nbytes=1024), 800, stop="budget"),  # whose interval is narrow all the same
        ok(case(nbytes=1 << 20), **wide),
    ]
    (_, floor, at), (_, _, peak_at), _ = table_of(
        sections.make_document([run(*records)]), "summary", "answers"
    )
    assert floor == "50.0 ns" and at.endswith("8 B, gloo, out of place")
    assert peak_at.endswith("1 KiB, gloo, out of place")  # wider than ±50 % is not known
    (_, floor, why), (_, peak, also), _ = table_of(
        sections.make_document([run(*records[1::2])]), "summary", "answers"
    )
    assert (floor, peak) == ("not known", "not known") and "±50 %" in why and "±50 %" in also


def test_a_doubt_stands_beside_the_floor_that_it_is_of() -> None:
    records = [ok(case(nbytes=8), 50, invalid={"late start": 9}), ok(case(nbytes=1024), 800)]
    document = sections.make_document([run(*records)])
    (_, floor, at), *_ = table_of(document, "summary", "answers")
    assert floor == "50.0 ns" and at.startswith("±") and at.endswith("8 B, gloo (invalid)")
    (shown,) = (t for t in section(document, "summary").tables if t.name == "answers")
    assert [line.weight for line in shown.lines] == ["notice", "", ""]


def test_a_case_in_doubt_is_a_hollow_marker() -> None:
    records = [ok(case(nbytes=8), 50, invalid={"late start": 9}), ok(case(nbytes=1024), 800)]
    found = section(sections.make_document([run(*records)]), "bandwidth")
    (_, drawn) = found.figures[1].data
    assert drawn["marker"]["symbol"] == ["circle-open", "circle"]
    certain = section(sections.make_document([run(ok(case(nbytes=64)), records[1])]), "bandwidth")
    assert certain.figures[0].data[-1]["marker"]["symbol"] == "circle"


def test_one_size_has_no_curve_and_an_open_table() -> None:
    rows = [ok(case(nbytes=1024), 800), ok(case(nbytes=1024, algorithm="ring"), 900)]
    document = sections.make_document([run(*rows)])
    found = section(document, "bandwidth")
    assert not found.figures and not found.tables[0].folded
    assert not section(document, "best").figures


def test_curves_of_several_collectives_of_a_mode_stay_out_of_what_is_best() -> None:
    other = [ok(case(collective="broadcast", root=0, op="none", nbytes=size)) for size in SIZES]
    document = sections.make_document([run(*sweep(), *sweep(algorithm="ring"), *other)])
    assert not section(document, "best").figures
    assert len(section(document, "bandwidth").figures) == 4


def test_the_first_screen_has_the_answers_and_the_curves() -> None:
    skipped = Record(case=case(nbytes=8192), status="skipped", note="too large")
    document = sections.make_document([run(*sweep(), skipped)])
    assert [found.name for found in document.sections][:3] == ["summary", "bandwidth", "left-out"]
    answers, *_ = section(document, "summary").tables
    assert [line.cells[0] for line in answers.lines] == ["latency floor", "peak busbw", "data"]
    assert not section(document, "summary").sentences[1:]  # that something was skipped
    failed = sections.make_document([run(*sweep(), FAILED)])
    assert [found.name for found in failed.sections][:3] == ["summary", "left-out", "bandwidth"]


def test_a_case_that_broke_in_its_second_pass_is_no_good_news() -> None:
    broken = ok(stop="cut", note="broke in its second pass: rank 3 was killed")
    document = sections.make_document([run(ok(case(nbytes=8192)), broken)])
    assert (document.verdict, document.weight) == (
        "1 of 2 cases broke in a second pass over them.",
        "bad",
    )


def test_what_all_launches_have_in_common_is_doubted_however_many_there_are() -> None:
    worlds = [world(i, oversubscribed=True) for i in range(6)]
    document = sections.make_document([run(*(ok(world=i) for i in range(6)), worlds=worlds)])
    assert "oversubscribed" in table_of(document, "summary", "answers")[0][2]


def test_over_many_launches_a_flag_of_one_does_not_matter() -> None:
    records = [ok(world=index, invalid={"late start": 9 * (index == 0)}) for index in range(6)]
    document = sections.make_document([run(*records, worlds=[world(i) for i in range(6)])])
    assert table_of(document, "summary", "answers")[0][1] == "1.00 µs"


def test_flags_come_with_what_to_do_in_the_runs_own_numbers() -> None:
    slow = run(ok(stop="budget"), policy=Policy(max_seconds=3.0))
    ((flag, _, meaning, remedy),) = table_of(sections.make_document([slow]), "summary", "flags")
    assert (flag, meaning) == ("unconverged", "ran out of --max-time 3s before reaching ±2 %")
    assert remedy == "allow more (--max-time 10s) or ask for less (--precision 5%)"
    other = run(ok(stop="budget"), id="r2")
    ((*_, general),) = table_of(sections.make_document([slow, other]), "summary", "flags")
    assert general == "allow more (--max-time) or ask for less (--precision)"


def test_it_is_said_which_of_two_modes_a_program_will_see() -> None:
    times = [1000 + i % 7 for i in range(70)] + [4000 + i % 7 for i in range(30)]
    words = section(sections.make_document([run(ok(times_ns=times))]), "bandwidth").closing
    assert (
        "1 KiB all_reduce: two speeds: 1.00 µs (70% of calls) and 4.00 µs (30%), in stretches."
        in words
    )


def test_the_best_at_each_size_is_said_with_how_much_longer_others_take() -> None:
    records = [
        *(ok(case(nbytes=size), 4000) for size in (8, 1024)),
        *(ok(case(nbytes=size, algorithm="ring"), 1000) for size in (8, 1024)),
        ok(case(nbytes=8, algorithm="two_shot"), 1500),
        ok(case(nbytes=1024, algorithm="two_shot"), 1001),
    ]
    found = section(sections.make_document([run(*records)]), "best")
    (table,) = found.tables
    assert sections.make_document([run(*records)]).sections[0].name == "best"
    assert table.title == "all_reduce, 2 ranks, float, sum, out of place, isolated"
    assert table.heads == ("size", "best", "time", "±", "next", "gloo")
    cells = [tuple(map(str, line.cells)) for line in table.lines]
    assert cells[0][:3] == ("8 B", "ring@gloo", "1.00 µs")
    assert cells[0][4:] == ("two_shot@gloo 1.5x", "4x")
    assert cells[1][1] == "ring@gloo = two_shot@gloo" and cells[1][4:] == ("-", "4x")
    assert found.sentences == [
        "gloo is the fastest in 0 of 2 cases, slower than another in 2"
        " (at most 4x, all_reduce of 8 B)."
    ]


def test_a_library_that_is_the_best_or_as_good_is_said_to_be() -> None:
    def at(size: int, ring: int) -> list[Record]:
        return [ok(case(nbytes=size), 1000), ok(case(nbytes=size, algorithm="ring"), ring)]

    table = section(sections.make_document([run(*at(8, 2000), *at(64, 999))]), "best").tables[0]
    assert [str(line.cells[-1]) for line in table.lines] == ["best", "tie"]


def test_collectives_share_a_figure_where_there_is_one_implementation() -> None:
    alone = section(sections.make_document([run(*sweep(), *sweep("all_gather"))]), "bandwidth")
    assert [figure.name for figure in alone.figures] == [
        "all-collectives-isolated-busbw",
        "all-collectives-isolated-time",
    ]
    lines = [trace for trace in alone.figures[0].data if trace.get("name")]
    assert [trace["name"] for trace in lines] == ["all_reduce", "all_gather"]
    assert len({trace["line"]["color"] for trace in lines}) == 2
    two = [*sweep(), *sweep("all_gather"), *sweep(algorithm="ring")]
    several = section(sections.make_document([run(*two)]), "bandwidth")
    assert len(several.figures) == 4


def test_lines_of_a_figure_have_colours_of_their_own() -> None:
    many = [*sweep(), *(r for a in ("ring", "swing", "two_shot") for r in sweep(algorithm=a))]
    lines = [*many, *sweep("sendrecv"), *sweep("sendrecv", backend="shm", algorithm="direct")]
    for figure in section(sections.make_document([run(*lines)]), "bandwidth").figures:
        drawn = [trace["line"]["color"] for trace in figure.data if trace.get("name")]
        assert len(set(drawn)) == len(drawn)


def test_only_where_the_best_gives_way_is_a_crossover_told() -> None:
    medians = {"native": (900, 9000), "ring": (100, 9900), "two_shot": (9000, 500)}
    records = [
        ok(case(nbytes=size, algorithm=name), median)
        for name, pair in medians.items()
        for size, median in zip((64, 1024), pair, strict=True)
    ]
    (line,) = section(sections.make_document([run(*records)]), "crossovers").tables[0].lines
    assert line.cells[:2] == ("ring@gloo", "two_shot@gloo")


def test_what_few_points_reach_does_not_flatten_a_figure() -> None:
    slow = [ok(case("sendrecv", size), 1000 * (50 if size == 8 else 1)) for size in SIZES]
    found = section(sections.make_document([run(*sweep(), *slow)]), "efficiency")
    link = next(figure for figure in found.figures if figure.name.endswith("link"))
    assert max(y for trace in link.data for y in trace["y"]) <= figures.MOST_SHARE
    assert "1 point above 300% left out." in link.caption
    assert any("above 150%: there sendrecv itself is slow" in words for words in found.sentences)


def test_shares_of_a_sendrecv_that_is_not_slow_need_no_words() -> None:
    found = section(sections.make_document([run(*sweep(), *sweep("sendrecv"))]), "efficiency")
    assert not any("there sendrecv itself" in words for words in found.sentences)


def test_dashes_tell_in_place_from_out_of_place_where_there_are_both() -> None:
    def dashes(*places: bool) -> set[str]:
        records = [ok(case(nbytes=n, in_place=p), 1000 + n) for n in SIZES for p in places]
        (figure, *_) = section(sections.make_document([run(*records)]), "bandwidth").figures
        return {trace["line"]["dash"] for trace in figure.data if "dash" in trace["line"]}

    assert dashes(True) == {"solid"}
    assert dashes(True, False) == {"solid", "dash"}


def test_eleven_implementations_have_eleven_colours() -> None:
    names = [found.name for found in algorithms.list_algorithms("all_reduce")][:11]
    records = [ok(case(algorithm=a, nbytes=n), 1000 + n) for n in SIZES for a in names]
    (figure, *_) = section(sections.make_document([run(*records)]), "bandwidth").figures
    assert len({t["line"]["color"] for t in figure.data if "color" in t["line"]}) == 11


def test_the_environment_is_folded_unless_machines_differ() -> None:
    other = run(ok(), id="r2", environment={"host": "h", "kernel": "newer"})
    assert section(sections.make_document([run(ok())]), "environment").folded
    assert not section(sections.make_document([run(ok()), other]), "environment").folded


def test_nobody_late_is_no_section() -> None:
    starts = [[i % 5 for i in range(40)]] * 2
    told = ok(per_rank=[[1000] * 40, [1000] * 40], starts_ns=starts)
    assert "skew" not in shown(sections.make_document([run(told)]))


def test_collectives_that_share_a_figure_keep_what_else_sets_lines_apart() -> None:
    files = [
        run(*sweep(), *sweep("all_gather"), tag="before"),
        run(*sweep(), *sweep("all_gather", in_place=True), id="r2"),
    ]
    figure = section(sections.make_document(files), "bandwidth").figures[0]
    names = [trace["name"] for trace in figure.data if trace.get("name")]
    assert names == [
        "all_reduce, before",
        "all_reduce, r2",
        "all_gather, before, out of place",
        "all_gather, r2, in place",
    ]


@pytest.mark.parametrize("wrong", [0, 3])
def test_what_a_log_reports_of_its_data_was_not_verified_by_collbench(wrong: int) -> None:
    told = Record(
        case=case(),
        status="wrong" if wrong else "ok",
        told=ToolTime(time=1000.5),
        wrong=wrong,
        checked=99,
    )
    document = sections.make_document([run(told, environment={}, imported="nccl-tests")])
    words = section(document, "summary").sentences
    assert f"The log reports {wrong} wrong elements." in words
    assert not any("were verified" in line for line in words)


def made_invalid(cycle: int = 0) -> Record:
    """A record of which over a quarter of the samples was discarded."""
    return ok(case(nbytes=64, cycle=cycle), samples=10, invalid={"disturbed": 10})


@pytest.mark.parametrize(
    ("records", "end", "weight", "says"),
    [
        ([made_invalid()], ENDED, "notice", "No case has a time: 1 without a valid time."),
        (
            [ok(), made_invalid()],
            ENDED,
            "notice",
            "1 case measured, all results correct; 1 more without a valid time.",
        ),
        (
            [ok(case(nbytes=64)), made_invalid(1)],
            ENDED,
            "good",
            "1 case measured, all results correct.",
        ),
        ([SKIPPED], None, "notice", "No case has a time before the run was cut short: 1 skipped."),
    ],
)
def test_what_has_no_valid_time_is_told_and_not_called_skipped(
    records: list[Record], end: End | None, weight: str, says: str
) -> None:
    document = sections.make_document([run(*records, end=end)])
    assert (document.weight, document.verdict) == (weight, says)


@pytest.mark.parametrize(
    ("started", "shown_as"),
    [
        ("2026-03-01T12:30:00", "01 Mar 2026 12:30"),  # of a log that does not say its zone
        ("2026-03-01T12:30:00+02:00", "01 Mar 2026 10:30 UTC"),
    ],
)
def test_a_time_without_a_zone_is_given_none(started: str, shown_as: str) -> None:
    document = sections.make_document([run(ok(), started=started)])
    (line,) = document.runs
    assert line.endswith(shown_as)


@pytest.mark.parametrize(
    ("counts", "said"), [((1,), "1 rank"), ((2, 4, 8, 16, 32), "2/4/8/16/… ranks")]
)
def test_ranks_that_are_not_named_are_hinted_at(counts: tuple[int, ...], said: str) -> None:
    document = sections.make_document([run(*(ok(case(n=n)) for n in counts))])
    assert said in document.runs[0].split(" · ")


def test_a_flag_is_counted_once_a_case() -> None:
    doubled = [ok(case()), ok(case(cycle=1))]
    view = series.make_view([run(*doubled)])
    flags = ("skewed", "skewed!", "late:0", "late:1")
    points = [msgspec.structs.replace(point, flags=flags) for point in view.points]
    table = summary.flag_table(view._replace(points=points))
    assert {line.cells[0]: line.cells[1] for line in table.lines} == {"skewed": "1", "late": "1"}


def test_flags_of_a_report_say_how_its_run_goes_on(tmp_path: Path) -> None:
    view = series.make_view([msgspec.structs.replace(run(ok()), path=tmp_path / "r1.jsonl")])
    flags = ("cut-short", "dispatch")
    points = [msgspec.structs.replace(point, flags=flags) for point in view.points]
    cells = {
        line.cells[0]: line.cells for line in summary.flag_table(view._replace(points=points)).lines
    }
    (file,) = view.files
    assert cells["cut-short"][-1] == f"collbench run --resume {file.path} measures it again"
    assert "its dispatch of a call" in cells["dispatch"][2]
