"""nccl-tests' text to the letter and its JSON field by field, both read back by code that shares
nothing with ours."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import factories
import msgspec
import pytest

from collbench import __version__
from collbench.core.errors import CannotRun, UsageError
from collbench.machine.load import Load
from collbench.records.derive import Derived
from collbench.records.types import End, RankInfo, Record, Run, ToolTime, World
from collbench.run.reporter import Several
from collbench.show import nccl, nccl_json, nccl_settings
from collbench.show.nccl import Options, Text
from collbench.suite.case import Case, Limit, Skip
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite, Threshold

OURS = tuple(
    f"# {word}"
    for word in [
        "collbench",
        "implementation:",
        "time:",
        "iters:",
        "note:",
        "skipped:",
        "failed:",
        "flags:",
        "limit:",
        "busy:",
        "so far:",
        "not",
    ]
)
SAMPLE = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 1024(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid  41213 on     node01 device  0 [0000:0f:00] NVIDIA H200
#
#                                                              out-of-place                       in-place          \n\
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n\
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n\
           8             2     float     sum      -1    28.41    0.00    0.00       0    27.90    0.00    0.00       0
        8192          2048     float     sum      -1    30.07    0.27    0.48       0    29.55    0.28    0.49       0
     8388608       2097152     float     sum      -1    72.30  116.03  203.04       0    71.90  116.67  204.17       0
  8589934592    2147483648     float     sum      -1  32480.7  264.46  462.81       0  32466.1  264.58  463.02       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 166.751 \n\
#
# Collective test concluded: all_reduce_perf
#

"""  # noqa: E501
TIMES = {
    8: (28410, 27900),
    8192: (30070, 29550),
    1 << 23: (72300, 71900),
    1 << 33: (32480700, 32466100),
}


def a_case(**changes) -> Case:
    base = {
        "collective": "all_reduce",
        "backend": "nccl",
        "n": 8,
        "nbytes": 1024,
        "op": "sum",
        "mode": "streaming",
    }
    return Case(**{**base, **changes})


def a_run(**changes) -> Run:
    policy = changes.pop("policy", Policy(iters=20, warmup=1))
    suite = Suite(
        name="s", axes=Axes(collectives=("all_reduce",), sizes=(8,), ranks=(8,)), policy=policy
    )
    base = {
        "id": "r1",
        "started": "2026-07-09T10:00:00+00:00",
        "command": ["collbench", "all_reduce"],
        "environment": {},
    }
    return Run(**{**base, **changes}, suite=suite, policy=policy)


def a_row(case: Case, median: float) -> Derived:
    algbw = case.moved / median
    return factories.derived(
        median,
        lo=0.99 * median,
        hi=1.01 * median,
        algbw=algbw,
        busbw=None if case.n == 1 else algbw * case.row.busbw(case.n),
    )


def measured(case: Case, ns: int = 10000, **changes) -> tuple[Record, Derived]:
    base = {"case": case, "status": "ok", "times_ns": [ns], "wrong": 0, "checked": 10}
    return Record(**{**base, **changes}), a_row(case, ns / changes.get("inner", 1))


def a_world(case: Case, **changes) -> World:
    device = "cuda:{} [0000:0f:00] NVIDIA H200"
    infos = [
        RankInfo(rank=r, host="node01.a.org", pid=41213, cpus=[r], device=device.format(r))
        for r in range(case.n)
    ]
    base = {
        "index": 0,
        "backend": case.backend,
        "n": case.n,
        "env": case.env,
        "launcher": "local",
        "ranks": infos,
    }
    base |= {"oversubscribed": False, "same_clock": True, "library": "NCCL 2.30.4"}
    return World(**{**base, **changes})


def written(
    outcomes,
    cases=None,
    skips=(),
    options=Options(),  # noqa: B008
    run=None,
    worlds=(),
    end=None,
) -> str:
    out = io.StringIO()
    text = Text(out, options)
    text.begin(
        run or a_run(), [record.case for record, _ in outcomes] if cases is None else cases, skips
    )
    for world in worlds:
        text.world(world)
    for outcome in outcomes:
        text.record(*outcome)
    text.end(end or End(exit=0, ended=""), None)
    return out.getvalue()


def scraped(text: str, stamped: bool = False) -> list[dict[str, float]]:
    """What people's scripts do: skip comments, split on blanks, count from the right."""
    rows = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()[:-2] if stamped else line.split()
        assert len(fields) == 13, line
        numbers = [math.nan if f == "N/A" else float(f) for f in fields[-8:]]
        names = ("time", "algbw", "busbw", "wrong", "in_time", "in_algbw", "in_busbw", "in_wrong")
        rows.append({"size": int(fields[0]), **dict(zip(names, numbers, strict=True))})
    return rows


def comments(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_the_sample_is_reproduced_to_the_letter() -> None:
    cases = [a_case(nbytes=size, in_place=place) for size in TIMES for place in (False, True)]
    outcomes = [measured(case, TIMES[case.nbytes][case.in_place]) for case in cases]
    text = written(outcomes, worlds=[a_world(cases[0])])
    absent = tuple(
        f"#  Rank  {rank}" for rank in range(1, 8)
    )  # the sample, being invented, lists one of 8 devices
    assert (
        "".join(x for x in text.splitlines(keepends=True) if not x.startswith(OURS + absent))
        == SAMPLE
    )
    assert text.startswith(f"# collbench version {__version__} nccl-headers=0 nccl-library=23004\n")
    assert "# nccl-tests version" not in text
    assert len(comments(text, "#  Rank")) == 8


def test_the_first_line_has_the_nccl_that_torch_was_built_with_where_the_run_tells_it() -> None:
    library = "NCCL 2.30.7 (torch 2.14.1+cu130, built with 2.28.3)"
    outcome = measured(a_case(), 10_000)
    text = written([outcome], worlds=[a_world(a_case(), library=library)])
    assert text.startswith(
        f"# collbench version {__version__} nccl-headers=22803 nccl-library=23007\n"
    )


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (9.999, 7, "  10.00"),
        (28.41, 7, "  28.41"),
        (12345.67, 7, "12345.7"),
        (1234567.8, 7, "1234568"),
        (9999.994, 7, "9999.99"),
        (9999.996, 7, "10000.0"),
        (999999.96, 7, "1000000"),
        (9999999.4, 7, "9999999"),
        (9999999.6, 7, "1.0e+07"),
        (12345678, 7, "1.2e+07"),
        (0, 6, "  0.00"),
        (462.81, 6, "462.81"),
        (999.996, 6, "1000.0"),
        (12345.6, 6, " 12346"),
        (1234567, 6, " 1e+06"),
        (math.nan, 7, "    nan"),
        (math.inf, 6, "   inf"),
    ],
)
def test_numbers_take_the_most_decimals_that_fit(value: float, width: int, text: str) -> None:
    assert nccl.format_number(value, width) == text.rjust(width)


@pytest.mark.parametrize(
    ("name", "ours"), [("alltoall", "all_to_all"), ("alltoallv", "all_to_allv"), ("scan", "scan")]
)
def test_programs_have_the_names_of_nccl_tests(name: str, ours: str) -> None:
    case = a_case(collective=ours, op="none", splits="uniform" if ours == "all_to_allv" else "")
    said = comments(written([measured(case)]), "# Collective")
    assert said == [
        f"# Collective test starting: {name}_perf",
        f"# Collective test concluded: {name}_perf",
    ]


def test_lines_come_in_plan_order_as_soon_as_all_before_are_known() -> None:
    cases = [a_case(nbytes=size, in_place=place) for size in (8, 16, 32) for place in (False, True)]
    out = io.StringIO()
    text = Text(out)
    text.begin(a_run(), cases, [])
    seen = []
    for index in (5, 1, 2, 0, 4, 3):
        text.record(*measured(cases[index]))
        seen.append([row["size"] for row in scraped(out.getvalue())])
    assert seen == [[], [], [], [8], [8], [8, 16, 32]]


def test_a_line_waits_for_the_pass_that_is_the_last() -> None:
    cases = [a_case(nbytes=size) for size in (8, 16)]
    out = io.StringIO()
    text = Text(out)
    text.begin(a_run(policy=Policy()), cases, [])
    for coarse in (flagged(cases[0], "unconverged"), measured(cases[1])):
        text.record(*coarse)
    assert scraped(out.getvalue()) == []
    text.record(*measured(cases[0], 30_000, again=True))
    assert [row["time"] for row in scraped(out.getvalue())] == [30, 10]
    shared_out = Text(soon := io.StringIO())
    shared_out.begin(a_run(policy=Policy()), cases, [])
    record, row = flagged(cases[0], "unconverged")
    shared_out.record(msgspec.structs.replace(record, again=True), row)
    assert [row["size"] for row in scraped(soon.getvalue())] == [8]
    never_again = Text(left := io.StringIO())
    never_again.begin(a_run(policy=Policy()), cases, [])
    never_again.record(*flagged(cases[0], "unconverged"))
    never_again.end(End(exit=0, ended=""), None)
    assert [row["size"] for row in scraped(left.getvalue())] == [8]


def test_the_head_stands_once_ranks_have_met() -> None:
    cases = [a_case(nbytes=8), a_case(nbytes=16)]
    text = Text(out := io.StringIO())
    text.begin(a_run(), cases, [])
    text.world(a_world(a_case(backend="gloo")))
    assert out.getvalue() == ""  # of another table
    text.world(a_world(cases[0]))
    early = out.getvalue()
    assert early.splitlines()[-3:] == [*nccl.write_header(Options())]
    outcomes = [measured(case) for case in cases]
    worlds = [a_world(a_case(backend="gloo")), a_world(cases[0])]
    assert written(outcomes, worlds=worlds).startswith(early)


def test_a_run_that_ends_before_its_first_case_has_a_head_and_no_result() -> None:
    case = a_case()
    end = End(exit=130, ended="", note="interrupted")
    lines = written([], [case], worlds=[a_world(case)], end=end).splitlines()
    assert "# no case of this table ran" in lines
    assert "# not run: 1 of the planned cases" in lines and lines[-1] == "# error: interrupted"


@pytest.fixture
def two_passes() -> tuple[list[Case], Text, io.StringIO]:
    """A text whose run has begun, with two sizes in both places."""
    cases = [a_case(nbytes=size, in_place=place) for size in (8, 16) for place in (False, True)]
    text = Text(out := io.StringIO())
    text.begin(a_run(policy=Policy()), cases, [])
    text.world(a_world(cases[0]))
    return cases, text, out


TwoPasses = tuple[list[Case], Text, io.StringIO]


def so_far(out: io.StringIO) -> list[str]:
    return comments(out.getvalue(), "# so far:")


def test_a_long_run_shows_what_is_known_before_the_lines_and_marks_it(
    two_passes: TwoPasses,
) -> None:
    cases, text, out = two_passes
    text._until = 0.0
    text.record(*flagged(cases[3], "unconverged"))
    assert so_far(out) == []  # its other half is to come
    text.record(*flagged(cases[2], "unconverged"))
    intro, line = so_far(out)
    assert "results follow, in lines without #" in intro
    assert line.split()[3:5] == ["16", "4"] and line.split()[8] == "10.00"
    text.show_coarse(*measured(cases[1], 70_000, wrong=None))
    *_, line = so_far(out)
    assert line.endswith("  one call, data not verified") and line.split()[8:12] == ["N/A"] * 4
    assert line.split()[12] == "70.00" and line.split()[15] == "N/A"
    assert scraped(out.getvalue()) == []
    for case in cases:
        text.record(*measured(case, 20_000, again=True))
    text.end(End(exit=0, ended=""), None)
    assert [row["time"] for row in scraped(out.getvalue())] == [20, 20]
    assert len(so_far(out)) == 3


def test_a_short_run_shows_no_first_pass(two_passes: TwoPasses) -> None:
    cases, text, out = two_passes
    text._until = math.inf
    text.show_coarse(*measured(cases[1], wrong=None))
    for case in cases:
        text.record(*flagged(case, "unconverged"))
        text.phase(case, "measuring", 0.5)
    text.end(End(exit=0, ended=""), None)
    assert so_far(out) == []
    assert [row["size"] for row in scraped(out.getvalue())] == [8, 16]


def test_what_was_known_early_is_shown_when_the_run_turns_out_long(two_passes: TwoPasses) -> None:
    cases, text, out = two_passes
    text._until = math.inf
    for case in cases[:2]:
        text.record(*flagged(case, "unconverged"))
    text._until = 0.0
    text.phase(cases[2], "measuring", 0.5)
    assert [line.split()[3] for line in so_far(out)[1:]] == ["8"]


def test_an_interrupted_run_keeps_the_rows_of_its_first_pass(two_passes: TwoPasses) -> None:
    cases, text, out = two_passes
    text._until = 0.0
    for case in cases[:2]:
        text.record(*flagged(case, "unconverged"))
    text.show_coarse(*measured(cases[3], 70_000, wrong=None))
    for case in cases[:2]:
        text.record(*measured(case, again=True, stop="cut", note="interrupted"))
    text.end(End(exit=130, ended="", note="interrupted"), None)
    assert [row["size"] for row in scraped(out.getvalue())] == [8]
    assert [line.split()[3] for line in so_far(out)[1:]] == ["8", "16"]
    assert comments(out.getvalue(), "# not run: 2 of")


NUMBERS = ("time", "algbw", "busbw")


def halves(row: dict[str, float]) -> list[list[float]]:
    return [[row[prefix + name] for name in NUMBERS] for prefix in ("", "in_")]


FILLED = Options(filled=True)


@pytest.mark.parametrize("options", [Options(), Options(per_iter=True), Options(timestamps=True)])
@pytest.mark.parametrize("place", [False, True])
def test_a_half_that_was_not_measured_has_no_number(place: bool, options: Options) -> None:
    text = written([measured(a_case(in_place=place))], options=options)
    (line,) = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    fields = line.split()[5:-2] if options.timestamps else line.split()[5:]
    halves = [fields[: len(fields) // 2], fields[len(fields) // 2 :]]
    assert {*halves[not place]} == {"N/A"} and "N/A" not in halves[place]
    filled = written([measured(a_case(in_place=place))], options=options_filled(options))
    assert len(line) == len(next(x for x in filled.splitlines() if x.startswith("        1024")))


def options_filled(options: Options) -> Options:
    return msgspec.structs.replace(options, filled=True)


def test_why_a_half_was_not_measured_is_said_once() -> None:
    back = a_case(in_place=True)
    text = written([measured(a_case())], skips=[Skip(back, "it has no such form")])
    assert text.count("it has no such form") == 1
    text = written([measured(a_case(nbytes=size)) for size in (8, 16)])
    assert comments(text, "# not measured") == [
        "# not measured: in place: only out of place was asked for (lines: 2)"
    ]


def test_a_half_that_does_not_exist_repeats_the_other_and_enters_no_average() -> None:
    out, back = (
        a_case(collective="all_to_all", op="none"),
        a_case(collective="all_to_all", op="none", in_place=True),
    )
    text = written(
        [measured(out, 100)], skips=[Skip(back, "all_to_all has no in-place form")], options=FILLED
    )
    (row,) = scraped(text)
    assert halves(row) == [[0.1, 10.24, 8.96]] * 2
    assert row["wrong"] == 0 and math.isnan(row["in_wrong"])
    assert "Avg bus bandwidth    : 8.96 " in text
    assert comments(text, "# repeated") == [
        "# repeated: the columns in place are those out of place again, with N/A: all_to_all has no"
        " in place form (lines: 1)"
    ]
    assert comments(text, "# skipped") == ["# skipped: all_to_all has no in place form (cases: 1)"]


def test_a_half_that_nobody_asked_for_repeats_the_other() -> None:
    text = written(
        [measured(a_case(nbytes=size, in_place=True)) for size in (8, 16)], options=FILLED
    )
    assert all(
        a == b and math.isnan(row["wrong"]) for row in scraped(text) for a, b in [halves(row)]
    )
    assert comments(text, "# repeated") == [
        "# repeated: the columns out of place are those in place again, with N/A: only in place was"
        " asked for (lines: 2)"
    ]


def test_a_half_that_cannot_be_measured_or_was_not_reached_repeats_the_other() -> None:
    cases = [a_case(nbytes=size, in_place=place) for size in (8, 16) for place in (False, True)]
    skipped = Record(case=cases[1], status="skipped", note="mpi has none"), None
    text = written([measured(cases[0]), skipped, measured(cases[3])], cases=cases, options=FILLED)
    assert [a == b for a, b in map(halves, scraped(text))] == [True, True]
    assert [
        line.rpartition(": ")[0].rpartition("N/A: ")[2] for line in comments(text, "# rep")
    ] == [
        "mpi has none (lines",
        "not run (lines",
    ]


@pytest.mark.parametrize(("status", "wrong"), [("failed", None), ("wrong", 12)])
def test_a_half_that_failed_or_was_wrong_repeats_nothing(status: str, wrong: int | None) -> None:
    gone = Record(case=a_case(in_place=True), status=status, note="x", wrong=wrong), None
    (row,) = scraped(text := written([measured(a_case()), gone]))
    assert all(map(math.isnan, halves(row)[1]))
    assert comments(text, "# repeated") == []


def test_a_failed_half_is_told_below_its_line_and_a_failed_line_alone() -> None:
    halves = [a_case(nbytes=8), a_case(nbytes=8, in_place=True)]
    gone = (Record(case=halves[1], status="failed", note="rank 2 died\nTraceback"), None)
    text = written([measured(halves[0]), gone])
    assert len(scraped(text)) == 1
    assert comments(text, "# failed") == ["# failed: 8 B in place: rank 2 died Traceback"]
    text = written([(Record(case=halves[0], status="failed", note="x"), None), gone])
    assert scraped(text) == []
    assert len(comments(text, "# failed")) == 2


def test_unchecked_data_is_one_column_narrower_as_in_nccl_tests() -> None:
    text = written([measured(a_case(), wrong=None), measured(a_case(in_place=True))])
    assert "    10.00    0.10    0.18    N/A    10.00    0.10    0.18       0\n" in text
    (row,) = scraped(text)
    assert math.isnan(row["wrong"]) and row["in_wrong"] == 0


def test_wrong_data_is_counted_and_fails_the_footer() -> None:
    outcomes = [
        measured(a_case(), wrong=3, status="wrong"),
        measured(a_case(nbytes=2048), wrong=1234567),
    ]
    outcomes += [measured(a_case(in_place=True))]
    text = written(outcomes)
    assert [row["wrong"] for row in scraped(text)] == [3, 1234570]
    assert "# Out of bounds values : 2 FAILED\n" in text


def test_time_stamps_end_the_row() -> None:
    stamp = "2026-07-09T10:00:07+00:00"
    text = written([measured(a_case(), started=stamp)], options=Options(timestamps=True))
    local = datetime.fromisoformat(stamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    (line,) = [x for x in text.splitlines() if x and not x.startswith("#")]
    assert line.endswith(f"N/A  {local}")
    assert scraped(text, stamped=True)[0]["time"] == 10


def test_every_implementation_gets_a_table_of_its_own_with_its_own_average() -> None:
    env = (("NCCL_ALGO", "Ring"),)
    changes = [
        {},
        {"algorithm": "ring"},
        {"n": 4},
        {"mode": "isolated"},
        {"env": env},
        {"mode": "isolated", "arrival": "one-late:50us"},
        {"dtype": "half"},
        {"root": 2},
    ]
    outcomes = [measured(a_case(**change), 1024 * (1 + i)) for i, change in enumerate(changes)]
    text = written(outcomes, worlds=[a_world(a_case(env=env), index=3)])
    assert (
        len(comments(text, "# Collective test starting"))
        == len(comments(text, "# Collective test concluded"))
        == 7
    )
    said = comments(text, "# implementation")
    assert said[5].endswith("mode isolated, arrival one-late:50us")
    assert said[1] == "# implementation: ring@nccl, ranks 8, mode streaming"
    assert (
        said[4]
        == "# implementation: nccl, ranks 8, mode streaming, env NCCL_ALGO=Ring, library NCCL"
        " 2.30.4"
    )
    averages = [float(line.split(":")[1]) for line in comments(text, "# Avg")]
    assert averages == pytest.approx(
        [1.75, 1.75 / 2, 1.5 / 3, 1.75 / 4, 1.75 / 5, 1.75 / 6, (1.75 / 7 + 1.75 / 8) / 2],
        rel=1e-4,
    )


def test_one_rank_has_no_bus_bandwidth_but_a_number_and_a_word_about_it() -> None:
    text = written([measured(a_case(n=1))])
    assert scraped(text)[0]["busbw"] == 0
    assert comments(text, "# note") and comments(text, "# Avg") == ["# Avg bus bandwidth    : 0 "]
    assert not comments(written([measured(a_case())]), "# note")


@pytest.mark.parametrize(("average", "time"), [(0, 20.0), (1, 25.0), (2, 18.0), (3, 32.0)])
def test_average_says_what_is_made_of_the_ranks_times(average: int, time: float) -> None:
    ranks = [[10000, 20000, 30000]] * 4 + [
        [40000, 32000, 18000]
    ] * 4  # means 25 26 24, fastest 10 20 18, slowest 40 32 30
    record = {"per_rank": ranks, "times_ns": [40000, 32000, 30000]}
    text = written(
        [measured(a_case(nbytes=100_000), 32000, **record)], options=Options(average=average)
    )
    row = scraped(text)[0]
    assert row["time"] == time
    assert row["algbw"] == pytest.approx(100 / time, abs=0.005)
    assert row["busbw"] == pytest.approx(175 / time, abs=0.005)
    assert nccl.AVERAGES[average][0] in comments(text, "# time")[0]


@pytest.mark.parametrize(
    ("average", "judged"),
    [
        (
            1,
            [
                "# limit: by the time of the slowest rank, average of all_reduce on 8 ranks, nccl:"
                " 4.38 GB/s of bus-bw [4.38 to 4.38 in this launch], 5 (90 % of NCCL_TESTS_MIN_BW)"
                " wanted: too little"
            ],
        ),
        (3, []),
    ],
)
def test_a_limit_says_what_was_judged_where_lines_have_other_times(
    average: int, judged: list[str]
) -> None:
    run = a_run()
    wanted = Threshold(min_busbw=(Limit(5.0, average=True),))
    run = msgspec.structs.replace(
        run, suite=msgspec.structs.replace(run.suite, thresholds=(wanted,))
    )
    record = {"per_rank": [[40000] * 40, *[[20000] * 40] * 7], "times_ns": [40000] * 40}
    text = written(
        [measured(a_case(nbytes=100_000), 40000, **record)],
        options=Options(average=average),
        run=run,
    )
    assert comments(text, "# Avg")[0].endswith("FAILED")
    assert comments(text, "# limit") == judged


def test_inner_calls_divide_the_time() -> None:
    outcome = measured(
        a_case(), 40000, inner=4, per_rank=[[20000]] * 4 + [[40000]] * 4, submit_ns=[8000]
    )
    assert scraped(written([outcome]))[0]["time"] == 10
    assert scraped(written([outcome], options=Options(average=2)))[0]["time"] == 5
    assert scraped(written([outcome], options=Options(cpu_time=True)))[0]["time"] == 8


def test_cpu_time_changes_the_time_column_only() -> None:
    wall, cpu = (
        written([measured(a_case(), submit_ns=[3000])], options=Options(cpu_time=c))
        for c in (False, True)
    )
    assert (scraped(cpu)[0]["time"], scraped(cpu)[0]["busbw"]) == (3, scraped(wall)[0]["busbw"])
    assert cpu.count("cputime") == 2 and "cputime" not in wall


def test_names_are_those_of_nccl_tests() -> None:
    fields = next(
        x
        for x in written([measured(a_case(op="premul_sum"))]).splitlines()
        if not x.startswith("#")
    ).split()
    assert fields[2:5] == ["float", "mulsum", "-1"]


def test_ranks_on_cpus_are_listed_as_devices() -> None:
    info = RankInfo(rank=3, host="a.b.c", pid=7, cpus=[0, 1, 2, 8])
    bare = RankInfo(rank=1, host="h", pid=7, cpus=[], device="cuda:5")
    text = written(
        [measured(a_case(backend="gloo"))], worlds=[a_world(a_case(backend="gloo"), ranks=[info])]
    )
    assert (
        "#  Rank  3 Group  0 Pid      7 on          a device  3 [0000:00:00] CPU cores 0-2,8\n"
        in text
    )
    assert "nccl-library=0" in text
    (device,) = nccl_settings.list_devices([bare], "NVIDIA H200")
    assert (device["device"], device["device_hex"], device["device_info"]) == (
        5,
        "0000:00:00",
        "NVIDIA H200",
    )


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((8, 16, 32), "2(factor)"),
        ((8, 24, 40), "16(bytes)"),
        ((8,), "0(bytes)"),
        ((8, 12, 18), "0(bytes)"),
    ],
)
def test_the_step_is_read_off_the_sizes(sizes: tuple[int, ...], step: str) -> None:
    assert f" step: {step} " in written([measured(a_case(nbytes=size)) for size in sizes])


def test_a_run_cut_short_keeps_what_it_has_and_says_so() -> None:
    cases = [a_case(nbytes=size, in_place=place) for size in (8, 16, 32) for place in (False, True)]
    end = End(exit=130, ended="", note="interrupted")
    text = written([measured(cases[2]), measured(cases[5])], cases=cases, end=end)
    assert [row["size"] for row in scraped(text)] == [16, 32]
    assert comments(text, "# not run") == ["# not run: 4 of the planned cases"]
    assert text.endswith("# error: interrupted\n")
    assert written([], cases=cases, end=end).startswith("# collbench version")


def test_hostile_names_stay_on_their_line() -> None:
    info = RankInfo(
        rank=0, host="evil\n8 2 float sum -1 1 1 1 0 1 1 1 0", pid=1, cpus=[0], device="cpu"
    )
    text = written(
        [measured(a_case())], worlds=[a_world(a_case(), ranks=[info], library="x\ny\x1b[31m")]
    )
    assert len(scraped(text)) == 1
    assert "\x1b" not in text


def a_document(**changes):
    cases = [a_case(nbytes=size, in_place=place) for size in (8, 16) for place in (False, True)]
    times = [1000 * (i + 1) for i in range(3)]
    outcomes = [
        measured(*each, per_rank=[[500]] * 4 + [[each[1]]] * 4)
        for each in zip(cases, times, strict=False)
    ]
    run = a_run(environment={"variables": {"NCCL_ALGO": "Ring"}, "secret": "s3cret"})
    end = End(exit=0, ended="2026-07-09T10:05:00+00:00")
    return nccl_json.make_json(
        run, [a_world(cases[0])], changes.pop("outcomes", outcomes), end, **changes
    )


def test_json_has_every_field_of_schema_3_with_its_type() -> None:
    d = a_document()
    assert list(d) == [
        "version",
        "start_time",
        "args",
        "env",
        "nccl_version",
        "config",
        "results",
        "out_of_bounds",
        "average_bus_bandwidth",
        "errors",
        "end_time",
        "collbench",
    ]
    assert (d["version"], d["nccl_version"]) == (3, 23004)
    assert (d["args"], d["env"]) == (["collbench", "all_reduce"], ["NCCL_ALGO=Ring"])
    assert datetime.fromisoformat(d["start_time"]).astimezone() == datetime.fromisoformat(
        "2026-07-09T10:00:00+00:00"
    )
    assert datetime.fromisoformat(d["end_time"]).astimezone() == datetime.fromisoformat(
        "2026-07-09T10:05:00+00:00"
    )
    assert "s3cret" not in json.dumps(d)
    config = dict(d["config"])
    assert config.pop("devices")[3] == {
        "rank": 3,
        "group": 0,
        "pid": 41213,
        "hostname": "node01",
        "device": 3,
        "device_hex": "0000:0f:00",
        "device_info": "NVIDIA H200",
    }
    assert config == {
        "nthreads": 1,
        "ngpus": 8,
        "minimum_bytes": 8,
        "maximum_bytes": 16,
        "step_factor": 2,
        "warmup_iters": 1,
        "iterations": 20,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": "false",
        "per_iter_timing": "true",
        "per_iter_skip": 0,
        "parallel_init": "false",
    }
    assert d["out_of_bounds"] == {"count": 0, "okay": "true"}
    mean = pytest.approx((0.014 + 0.007 + 0.028 / 3) / 3, abs=1e-6)
    assert d["average_bus_bandwidth"] == {"bandwidth": mean, "okay": "unchecked"}
    assert d["errors"] == []


@pytest.mark.parametrize(("mode", "graph"), [("graph", 20), ("streaming", 0)])
def test_settings_say_how_many_graphs_were_launched(mode: str, graph: int) -> None:
    asked = a_run(policy=Policy(graph=20))
    settings = nccl_settings.describe_configuration(asked, [a_case(mode=mode)], None)
    assert settings["graph"] == graph


def test_json_results_hold_both_halves_and_null_where_one_is_missing() -> None:
    first, second = a_document()["results"]
    assert [first[name] for name in ("size", "count", "type", "redop", "root")] == [
        8,
        2,
        "float",
        "sum",
        "    -1",
    ]
    assert (first["actual_iterations"], first["experiment_name"]) == (1, "")
    assert first["out_of_place"] == {"time": 1.0, "alg_bw": 0.008, "bus_bw": 0.014, "nwrong": 0.0}
    assert isinstance(first["out_of_place"]["nwrong"], float)
    assert first["in_place"]["time"] == 2.0
    assert second["in_place"] == {"time": None, "alg_bw": None, "bus_bw": None, "nwrong": None}
    assert "in_place_per_iter" not in second and "out_of_place_per_iter" in second


def test_per_iteration_statistics_by_hand() -> None:
    times = [2000, 4000, 4000, 4000, 5000, 5000, 7000, 9000]  # mean 5000, population deviation 2000
    record = Record(
        case=a_case(),
        status="ok",
        times_ns=[2 * t for t in times],
        inner=2,
        per_rank=[[2 * t for t in times]] * 8,
    )
    got = nccl.per_iteration(record)
    assert got == {
        "skipped_iterations": 0,
        "min_us": 2.0,
        "max_us": 9.0,
        "avg_us": 5.0,
        "p50_us": 5.0,
        "p95_us": 9.0,
        "p99_us": 9.0,
        "stdev_us": 2.0,
        "cv_pct": 40.0,
        "times_us": [2, 4, 4, 4, 5, 5, 7, 9],
        "per_process_max_times_us": [[2, 4, 4, 4, 5, 5, 7, 9]] * 8,
    }
    hundred = nccl.per_iteration(
        Record(case=a_case(), status="ok", times_ns=[1000 * t for t in range(100, 0, -1)])
    )
    assert (hundred["p50_us"], hundred["p95_us"], hundred["p99_us"]) == (51, 95, 99)
    assert "per_process_max_times_us" not in hundred


def test_first_samples_are_left_out_of_statistics_and_never_of_lists() -> None:
    record = Record(case=a_case(), status="ok", times_ns=[9000, 2000, 4000])
    got = nccl.per_iteration(record, skip=1)
    assert (got["skipped_iterations"], got["max_us"], got["avg_us"]) == (1, 4, 3)
    assert got["times_us"] == [9, 2, 4]
    assert nccl.per_iteration(record, skip=7)["avg_us"] == 4


def test_lists_are_equally_long_where_only_some_samples_have_times_by_rank() -> None:
    ranks = [[1000] * 200] * 7 + [[2000] * 200]
    record = Record(case=a_case(), status="ok", times_ns=[2000] * 200 + [9000], per_rank=ranks)
    got = nccl.per_iteration(record)
    assert len(got["times_us"]) == len(got["per_process_max_times_us"][0]) == 200
    assert got["max_us"] == 2
    assert a_document(outcomes=[(record, a_row(record.case, 2000))])["collbench"]["results"][0][
        "samples"
    ] == [1, None]


def test_columns_of_samples_stand_after_each_half() -> None:
    record, row = measured(a_case())
    record = msgspec.structs.replace(record, times_ns=[9000, 2000, 4000])
    text = written([(record, row)], options=Options(per_iter=True, per_iter_skip=1, filled=True))
    (line,) = [line for line in text.splitlines() if line and not line.startswith("#")]
    numbers, more = "    10.00    0.10    0.18", "     2.00     4.00     4.00    33.33"
    assert line.endswith(f"{numbers}       0{more}{numbers}    N/A{more}")
    names = "   #wrong    i_min    i_max    i_p99    i_cv%"
    assert comments(text, "#       size")[0].count(names[2:]) == 2


def test_a_time_stamp_has_its_format_in_the_header() -> None:
    text = written([measured(a_case())], options=Options(timestamps=True))
    names, units = comments(text, "#       size") + comments(text, "#        (B)")
    assert names.endswith("#wrong           timestamp")
    assert units.endswith("(GB/s)           %Y-%m-%d %H:%M:%S")
    assert len(names) == len(units)


def test_json_names_implementations_only_where_there_are_several() -> None:
    d = a_document(outcomes=[measured(a_case()), measured(a_case(algorithm="ring"))])
    assert [r["experiment_name"] for r in d["results"]] == [
        "all_reduce_perf, nccl, ranks 8, mode streaming",
        "all_reduce_perf, ring@nccl, ranks 8, mode streaming",
    ]
    assert [r["algorithm"] for r in d["collbench"]["results"]] == ["native", "ring"]


def test_json_tells_wrong_failed_and_one_rank() -> None:
    gone = (Record(case=a_case(nbytes=64), status="failed", note="rank 1 died"), None)
    d = a_document(outcomes=[measured(a_case(n=1), wrong=2, status="wrong"), gone])
    assert d["out_of_bounds"] == {"count": 1, "okay": "false"}
    assert d["results"][0]["out_of_place"]["bus_bw"] == 0.0
    assert len(d["results"]) == 1 and "rank 1 died" in d["errors"][1]


def test_json_is_valid_whatever_the_numbers(tmp_path: Path) -> None:
    record, row = measured(a_case())
    broken = factories.replace_derived(row, median=0.0, algbw=math.inf, busbw=math.nan)
    made = a_document(outcomes=[(record, broken)], options=Options(cpu_time=True))
    nccl_json.write_json(path := tmp_path / "o.json", made)
    content = path.read_text()
    assert content.count("\n") == 1
    half = json.loads(content, parse_constant=pytest.fail)["results"][0]["out_of_place"]
    assert half == {"cpu_time": None, "alg_bw": None, "bus_bw": None, "nwrong": 0.0}


def test_no_file_is_ever_overwritten(tmp_path: Path) -> None:
    names = [nccl_json.claim_path(tmp_path / "o.json").name for i in range(3)]
    assert names == ["o.json", "o.json.0", "o.json.1"]
    with pytest.raises(CannotRun):
        nccl_json.claim_path(tmp_path / "missing" / "o.json")
    with pytest.raises(CannotRun):
        nccl_json.write_json(tmp_path / "missing" / "o.json", {})


def test_the_text_begins_with_where_json_is_written(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text("older")
    document = nccl_json.Document(tmp_path / "o.json")
    reporter = Several(Text(out := io.StringIO(), get_path=lambda: document.written), document)
    reporter.begin(a_run(), [a_case()], [])
    reporter.record(*measured(a_case()))
    reporter.end(End(exit=0, ended=""), None)
    first, second, *_ = out.getvalue().splitlines()
    assert first == f"# Writing JSON output to {tmp_path / 'o.json.0'}"
    assert second.startswith("# collbench version")
    assert len(json.loads((tmp_path / "o.json.0").read_text())["results"]) == 1


def test_document_writes_its_file_when_the_run_ends(tmp_path: Path) -> None:
    reporter = nccl_json.Document(tmp_path / "o.JSON")
    cases = [a_case(nbytes=8), a_case(nbytes=16)]
    reporter.begin(a_run(), cases, [])
    for case in reversed(cases):
        reporter.record(*measured(case))
    reporter.end(End(exit=0, ended=""), None)
    assert [r["size"] for r in json.loads(reporter.written.read_text())["results"]] == [8, 16]


@pytest.mark.parametrize("name", ["out.txt", "out", "json"])
def test_another_suffix_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(UsageError, match=r"\.json"):
        nccl_json.Document(Path(name))


def flagged(case: Case, *flags: str, **changes) -> tuple[Record, Derived]:
    record, row = measured(case, **changes)
    modes = (250_000.0, 3_700_000.0) if "bimodal" in flags else None
    return record, factories.replace_derived(row, flags=flags, modes=modes)


def test_doubts_stand_below_their_line_with_both_intervals_and_are_explained_once() -> None:
    text = written(
        [
            flagged(a_case(nbytes=8), "unconverged", "bimodal"),
            flagged(a_case(nbytes=8, in_place=True), "preempted", "+copy"),
            flagged(a_case(nbytes=16), "unconverged", "oversubscribed"),
            flagged(a_case(nbytes=16, in_place=True), "oversubscribed", "+copy"),
        ]
    )
    lines = text.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith(f"{8:>12}"))
    modes = "bimodal:250µs|3.70ms"
    assert lines[first + 1] == f"# 8 B: out ±1.0% unconverged {modes} · in ±1.0% preempted"
    assert lines[first + 2].startswith(f"{16:>12}") and lines[first + 3].startswith("# Out of")
    told = comments(text, "# flagged")
    assert [line.split(":")[1] for line in told[:-1]] == [" oversubscribed (2)", " bimodal (1)"]
    assert "unconverged (2), +copy (2), preempted (1)" in told[-1]
    assert [row["size"] for row in scraped(text)] == [8, 16]


def test_a_wide_interval_stands_below_its_line() -> None:
    record, row = measured(a_case(nbytes=8))
    wide = record, factories.replace_derived(row, hi=1.2 * row.times.median)
    text = written([wide, measured(a_case(nbytes=8, in_place=True)), measured(a_case(nbytes=16))])
    assert comments(text, "# 8 B") == ["# 8 B: out ±20% · in ±1.0%"]
    assert comments(text, "# 16 B") == []


def alone(case: Case) -> tuple[Record, Derived]:
    """With what its calls take in the other cadence."""
    record, row = measured(case)
    return record, msgspec.structs.replace(row, control=5210.0)


UNFUSED = "-m: calls are launched one after the other"


def test_what_is_noted_of_good_lines_stands_below_their_table_once() -> None:
    cases = [a_case(nbytes=size, in_place=place) for size in (8, 64) for place in (False, True)]
    found = [measured(case, 10_000, note=f"{UNFUSED}; no window: late") for case in cases]
    text = written([*found[:3], measured(cases[3], 10_000, note=UNFUSED)])
    assert comments(text, "# note:") == [
        f"# note: {UNFUSED} (4 cases)",
        "# note: no window: late (3 cases)",
    ]
    assert text.index("# Avg bus bandwidth") < text.index("# note:") < text.index("concluded")


def test_notes_of_what_went_wrong_or_was_imported_are_no_notes_of_good_lines() -> None:
    bad = measured(a_case(nbytes=8), 10_000, status="wrong", wrong=1, note="1 wrong element")
    imported = measured(a_case(nbytes=64), 10_000, told=ToolTime(time=1.0), note="0 to 1")
    assert not comments(written([bad, imported]), "# note:")


def test_many_notes_are_counted() -> None:
    cases = [a_case(nbytes=8 << number) for number in range(10)]
    text = written([measured(c, 10_000, note=f"note {c.nbytes}") for c in cases])
    assert len(comments(text, "# note:")) == 9
    assert "# note: 2 more notes; collbench report RUN shows them all if the run is saved" in text


def test_below_a_line_of_a_stream_stands_what_the_device_takes_alone() -> None:
    streamed = [alone(a_case(nbytes=8, in_place=place)) for place in (False, True)]
    text = written([*streamed, measured(a_case(nbytes=1 << 20))])
    assert comments(text, "# isolated") == [
        "# isolated: 8 B: out 5.21 · in 5.21 us by the device's clock",
    ]
    assert [row["size"] for row in scraped(text)] == [8, 1 << 20]
    assert comments(written([alone(a_case(mode="host"))]), "# isolated") == []
    document = nccl_json.make_json(a_run(), [], streamed, End(exit=0, ended=""))
    assert document["collbench"]["results"][0]["control"] == [5210.0, 5210.0]


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("all_reduce", "collbench run --resume RUN measures it again"),
        ("all_reduce --no-save", "start a new run"),
        ("locate -g 4", "start a new run"),
        ("pairs", "collbench pairs --resume RUN measures it again"),
    ],
)
def test_what_was_cut_short_says_how_its_run_goes_on(command: str, remedy: str) -> None:
    run = a_run(command=["collbench", *command.split()])
    text = written([flagged(a_case(), "cut-short")], run=run)
    (line,) = comments(text, "# flagged: cut-short")
    assert line.endswith(f"; {remedy}")


def test_what_holds_for_a_whole_table_stands_with_no_line() -> None:
    text = written([flagged(a_case(), "predicted"), flagged(a_case(in_place=True), "predicted")])
    assert comments(text, "# 1024 B") == []
    assert len(comments(text, "# flagged: · predicted (2)")) == 1


def test_a_busy_machine_is_a_comment_at_the_end() -> None:
    load = {"h": Load(1.26, 2)}
    text = written([measured(a_case(), seconds=1.0, load=load)])
    (told,) = comments(text, "# busy")
    assert "other processes used 1.3 of 2 CPUs while measuring" in told
    assert comments(written([measured(a_case())]), "# busy") == []


def test_json_has_the_flags_of_each_line() -> None:
    outcomes = [
        flagged(a_case(nbytes=8), "unconverged"),
        flagged(a_case(nbytes=8, in_place=True), "late:3", "bimodal"),
        flagged(a_case(nbytes=16)),
    ]
    told = nccl_json.make_json(a_run(), [], outcomes, End(exit=0, ended=""))["collbench"]
    assert told["results"][0]["flags"] == {
        "out_of_place": ("unconverged",),
        "in_place": ("late:3", "bimodal"),
    }
    assert "flags" not in told["results"][1]


def without_a_time(case: Case) -> tuple[Record, None]:
    """As a run keeps a case whose data was wrong: without samples."""
    return Record(case=case, status="wrong", wrong=12, checked=64, note="rank 1, index 3"), None


def test_json_never_hides_wrong_data_that_has_no_time() -> None:
    halves = [a_case(nbytes=8), a_case(nbytes=8, in_place=True)]
    d = a_document(outcomes=[without_a_time(case) for case in halves])
    (result,) = d["results"]
    assert result["out_of_place"] == {"time": None, "alg_bw": None, "bus_bw": None, "nwrong": 12.0}
    assert result["in_place"]["nwrong"] == 12.0 and "in_place_per_iter" not in result
    assert d["out_of_bounds"] == {"count": 2, "okay": "false"}
    assert len(d["errors"]) == 2 and "rank 1, index 3" in d["errors"][0]


def test_text_and_json_agree_on_what_was_wrong() -> None:
    halves = [measured(a_case(nbytes=8)), without_a_time(a_case(nbytes=8, in_place=True))]
    assert "# Out of bounds values : 1 FAILED\n" in written(halves)
    assert a_document(outcomes=halves)["out_of_bounds"] == {"count": 1, "okay": "false"}


def test_only_the_header_has_its_words() -> None:
    """By which parsers find it, the last of its kind."""
    outcome = flagged(a_case(), "+copy", "bimodal")
    text = written([outcome], skips=[Skip(a_case(nbytes=9), "no out-of-place form")])
    found = [line for line in text.splitlines() if "out-of-place" in line]
    assert found == [nccl.HEADER[0]]
    assert "# skipped: no out of place form (cases: 1)" in text


def test_a_table_of_which_nothing_ran_has_no_footer_that_says_ok() -> None:
    skipped = Record(case=a_case(), status="skipped", note="nccl has none"), None
    text = written([skipped], worlds=[a_world(skipped[0].case)])
    assert "Out of bounds" not in text and "Avg bus" not in text
    assert comments(text, "# no case") == ["# no case of this table ran"]
    assert comments(text, "# Collective test concluded") == [
        "# Collective test concluded: all_reduce_perf"
    ]


def test_tables_of_which_nothing_ran_are_a_remark_for_each_reason() -> None:
    names = ("all_reduce", "all_gather", "all_reduce")
    ops = {"all_gather": {"op": "none"}}
    cases = [
        a_case(collective=name, nbytes=size, cycle=cycle, **ops.get(name, {}))
        for cycle, name in enumerate(names)
        for size in (8, 16)
    ]
    absent = [(Record(case=case, status="skipped", note="no time"), None) for case in cases]
    lines = written(absent[::-1], cases=cases).splitlines()
    assert not comments("\n".join(lines), "# Collective test")
    assert [line.partition(" (")[2] for line in comments("\n".join(lines), "# skipped")] == [
        "cases: 4 out of place, 8 B, 16 B)",
        "cases: 2 out of place, 8 B, 16 B)",
    ]
    last = written([*absent[:4], *map(measured, cases[4:])], cases=cases)
    assert last.count("Collective test starting") == last.count("concluded") == 1
    assert last.index("# skipped: all_gather_perf") < last.index("Collective test starting")


def test_a_table_of_findings_without_times_has_its_notes_and_an_end() -> None:
    case = a_case(collective="all_reduce_order", subject="sums", op="none")
    record = Record(case=case, status="ok", note="ran ring", findings={"sizes": []})
    lines = written([(record, None)]).splitlines()
    assert "# found: sums: collbench report shows it" in lines
    at = lines.index("# note: ran ring (1 case)")
    assert lines[at + 1] == "# Collective test concluded: order"
    assert not comments("\n".join(lines), "# Avg") + comments("\n".join(lines), "# no case")


def test_a_reason_for_skips_is_told_once_with_a_count_of_cases() -> None:
    cases = [a_case(nbytes=size, in_place=place) for size in (8, 16) for place in (False, True)]
    absent = [(Record(case=case, status="skipped", note="no mpirun"), None) for case in cases]
    lines = written(absent, worlds=[a_world(cases[0])]).splitlines()
    at = lines.index("# skipped: no mpirun (cases: 4, 8 B, 16 B)")
    assert lines[at + 1] == "# no case of this table ran"
    assert len(comments("\n".join(lines), "# skipped")) == 1
    some = written([measured(cases[0]), absent[1], measured(cases[2]), absent[3]])
    assert comments(some, "# skipped") == ["# skipped: no mpirun (cases: 2 in place, 8 B, 16 B)"]
    one = written([measured(cases[0]), measured(cases[1]), absent[2], measured(cases[3])])
    assert comments(one, "# skipped") == ["# skipped: no mpirun (cases: 1 out of place, 16 B)"]


@pytest.mark.parametrize(
    ("skipped", "told"),
    [
        ((0, 9), "cases: 2, 8 B, 4096 B"),
        ((1, 2, 3), "cases: 3, 16 B, 32 B, 64 B"),
        ((1, 2, 3, 4), "cases: 4, 16 B to 128 B"),
        ((1, 2, 3, 9), "cases: 4, 4 sizes from 16 B to 4096 B"),
    ],
)
def test_sizes_between_skipped_ones_are_not_told_as_skipped(
    skipped: Sequence[int], told: str
) -> None:
    cases = [
        a_case(nbytes=8 << power, in_place=place) for power in range(10) for place in (False, True)
    ]
    outcomes = [
        (Record(case=case, status="skipped", note="no room"), None)
        if at // 2 in skipped and not case.in_place
        else measured(case)
        for at, case in enumerate(cases)
    ]
    told = told.replace(",", " out of place,", 1)
    assert comments(written(outcomes), "# skipped") == [f"# skipped: no room ({told})"]


def test_skipped_cases_are_told_from_those_that_ran() -> None:
    cases = [
        a_case(nbytes=size, dtype=dtype) for dtype in ("float", "bfloat16") for size in (8, 16)
    ]
    absent = [(Record(case=case, status="skipped", note="no time"), None) for case in cases]
    place = "in" if cases[0].in_place else "out of"
    text = written([*map(measured, cases[:3]), absent[3]])
    assert comments(text, "# skipped") == [
        f"# skipped: no time (cases: 1 {place} place, bfloat16, 16 B)"
    ]
    text = written([measured(cases[0]), *absent[1:]])
    assert comments(text, "# skipped") == [
        f"# skipped: no time (cases: 1 {place} place, float, 16 B)",
        f"# skipped: no time (cases: 2 {place} place, bfloat16, 8 B, 16 B)",
    ]
    text = written([measured(cases[0]), absent[1], measured(cases[2]), absent[3]])
    assert comments(text, "# skipped") == [f"# skipped: no time (cases: 2 {place} place, 16 B)"]


@pytest.mark.parametrize("case", [a_case(n=1), a_case(collective="barrier", op="none", nbytes=0)])
def test_no_remark_says_bandwidth_before_the_footer(case: Case) -> None:
    text = written([measured(case)])
    said = [line for line in text.splitlines() if "bandwidth" in line]
    assert all(line.startswith("# Avg bus bandwidth") for line in said) and comments(text, "# note")
