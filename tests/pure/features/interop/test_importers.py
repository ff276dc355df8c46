"""Logs of other tools, written here by the rules of their formats with numbers of our own, and what
is read of them."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
from pathlib import Path

import factories
import msgspec
import pytest

from collbench.core.errors import UsageError
from collbench.features.interop import assemble, importers
from collbench.features.interop.importers import Asked, Reading, nccltests
from collbench.features.interop.importers.text import (
    bound_log,
    decode_log,
    split_processes,
    strip_prefixes,
)
from collbench.records import derive
from collbench.records import flags as flags_
from collbench.records.types import End, Record, Run, ToolTime, World
from collbench.run import reporter as reporter_
from collbench.show import nccl, nccl_json, programs
from collbench.show import words as words_

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
}
HEAD = (
    "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw  #wrong"
)


def read(text: str, name: str = "some.log", kind: str = "auto", **known: object) -> Reading:
    return importers.read_log(text, Asked(name=name, **known), kind)  # type: ignore[arg-type]


def devices(n: int, each: int = 8, group: bool = True) -> str:
    lines = []
    for r in range(n):
        words = f" Group {0:2}" if group else ""
        lines.append(
            f"#  Rank {r:2}{words} Pid {100 + r // each:6} on     node{r // each:02} device"
            f" {r % each:2} [0000:{r % each:02x}:00] NVIDIA H200"
        )
    return "\n".join(lines)


def half(size: int, us: float, factor: float, wrong: str = "0") -> str:
    rate = size / us / 1e3
    return f"  {us:7.2f}  {rate:6.2f}  {rate * factor:6.2f}  {wrong:>6}"


def row(
    size: int, us: float, n: int = 8, *, test: str = "all_reduce", lead: str = "", wrong: str = "0"
) -> str:
    """A row with both halves, in place 1 us faster."""
    factor = FACTORS[test](n)
    count = size // 4 if test != "all_gather" else size // 4 // n
    lead = (
        lead
        or {"all_reduce": "sum      -1", "all_gather": "none      -1", "broadcast": "none       2"}[
            test
        ]
    )
    text = f"{size:>12}  {count:>12}     float  {lead:>14}"
    return text + half(size, us, factor, wrong) + half(size, us - 1, factor, wrong)


def test_groups_that_name_their_ranks_leave_the_rest_of_the_line() -> None:
    line = (
        "# implementation: gloo, ranks 2, mode isolated, group 0 of 2 by ranks 0,1;2,3/4,"
        " env A=1, library gloo (torch 2.13)"
    )
    found = nccltests.OURS.match(line)
    assert found and found["groups"] == "ranks 0,1;2,3/4"
    assert (found["env"], found["library"]) == ("A=1", "gloo (torch 2.13)")


def log(
    rows: list[str],
    *,
    n: int = 8,
    test: str = "all_reduce",
    head: str = HEAD,
    graph: int = 0,
    foot: str = "0 OK",
) -> str:
    return "\n".join(
        [
            "# nccl-tests version 2.19.6 nccl-headers=23004 nccl-library=23004",
            f"# Collective test starting: {test}_perf",
            (
                "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters:"
                f" 20 agg iters: 1 validation: 1 graph: {graph} unalign: 0"
            ),
            "#",
            "# Using devices",
            devices(n),
            "#",
            "#                                      out-of-place                       in-place",
            head,
            *rows,
            f"# Out of bounds values : {foot}",
            "# Avg bus bandwidth    : 1.5 ",
            "#",
            f"# Collective test concluded: {test}_perf",
            "#",
            "",
        ]
    )


def seen(reading: Reading) -> list[tuple[str, int, bool, float]]:
    """(collective, size, in place, microseconds) of each record that is not skipped."""
    return [
        (r.case.collective, r.case.size, r.case.in_place, round(r.told.time / 1e3, 6))
        for r in reading.records
        if r.told
    ]


def test_a_table_becomes_a_record_for_each_half_with_what_the_log_says_and_no_more() -> None:
    found = read(log([row(1 << 20, 50.0), row(2 << 20, 81.25, wrong="N/A")]))
    assert seen(found) == [
        ("all_reduce", 1 << 20, False, 50.0),
        ("all_reduce", 1 << 20, True, 49.0),
        ("all_reduce", 2 << 20, False, 81.25),
        ("all_reduce", 2 << 20, True, 80.25),
    ]
    assert not found.warnings and not found.lost and found.closed
    assert found.tool == "nccl-tests 2.19.6 text"
    first, unchecked = found.records[0], found.records[2]
    assert (first.case.n, first.case.backend, first.case.mode, first.case.op) == (
        8,
        "nccl",
        "streaming",
        "sum",
    )
    assert (first.wrong, unchecked.wrong) == (0, None)
    assert first.told and (first.told.over, first.told.ranks, first.told.samples) == (
        "mean",
        "mean",
        1,
    )
    (world,) = found.worlds
    assert (
        world.library == "NCCL 2.30.4"
        and world.n == 8
        and world.ranks[3].device == "cuda:3 [0000:03:00] NVIDIA H200"
    )
    assert (found.policy.iters, found.policy.warmup) == (20, 1)


def test_rows_shown_of_imports_leave_open_what_is_unknown() -> None:
    record = read(log([row(1 << 20, 50.0)])).records[0]
    shown = derive.derive_row(record)
    assert (
        shown
        and shown.times.median == 50_000
        and shown.flags == ("imported",)
        and not shown.gateable
    )
    assert shown.algbw == pytest.approx((1 << 20) / 50_000) and shown.busbw == pytest.approx(
        shown.algbw * 14 / 8
    )
    assert math.isinf(shown.times.hi) and all(
        math.isnan(v)
        for v in (shown.times.min, shown.times.max, shown.times.mad, shown.times.n_eff)
    )
    cells = words_.format_cells(record, shown)
    assert (cells["±"], cells["tail"], cells["min"], cells["median"]) == ("-", "-", "-", "50.0 µs")
    flat = words_.flatten_record(record, shown)
    assert flat["min"] is None and flat["mad"] is None and flat["mean"] == 50_000
    out = io.StringIO()
    writer = programs.Csv(out)
    writer.begin(factories.run(), [], [])
    writer.record(record, shown)
    writer.end(End(exit=0, ended=""), None)
    assert "nan" not in out.getvalue()


@pytest.mark.parametrize(
    ("samples", "p95", "p99"),
    [(0, None, None), (20, None, None), (100, 7.0, None), (500, 7.0, 9.0)],
)
def test_quantiles_stand_only_where_the_samples_bound_them(
    samples: int, p95: float | None, p99: float | None
) -> None:
    case = read(log([row(1 << 20, 50.0)])).records[0].case
    shown = derive.derive_row(
        Record(case=case, status="ok", told=ToolTime(time=5.0, samples=samples, p95=7.0, p99=9.0))
    )
    assert shown and (shown.times.p95, shown.times.p99) == (p95, p99)


OLD = "#       size         count      type   redop{root}" + 2 * "     time   algbw   busbw   error"


@pytest.mark.parametrize(
    ("head", "lead"),
    [
        (OLD.format(root="    root"), "sum      -1"),
        (OLD.format(root=""), "sum"),
        (OLD.format(root="").replace("   redop", ""), " "),
        (HEAD.replace("    root", ""), "sum"),
    ],
)
def test_older_dialects_lack_columns_and_print_a_relative_error(head: str, lead: str) -> None:
    wrong = "2e-07" if "error" in head else "0"
    found = read(log([row(4096, 12.5, lead=lead, wrong=wrong)], head=head))
    assert seen(found) == [("all_reduce", 4096, False, 12.5), ("all_reduce", 4096, True, 11.5)]
    assert not found.lost and not found.warnings
    assert found.records[0].wrong == (None if "error" in head else 0)
    assert ("2e-07" in found.records[0].note) == ("error" in head)


def test_a_row_without_redop_and_root_in_a_table_that_has_both_names_is_read() -> None:
    lead = "            -1"  # copy collectives left redop blank
    assert (
        len(seen(read(log([row(8192, 20.0, test="all_gather", lead=lead)], test="all_gather"))))
        == 2
    )


def test_headers_of_each_collective_alone_in_one_old_log() -> None:
    def table(test: str, names: str, lead: str) -> str:
        head = (
            f"#       size         count    type{names}     time   algbw   busbw  error     time  "
            " algbw   busbw  error"
        )
        text = log(
            [row(1 << 20, 50.0, 4, test=test, lead=lead, wrong="0e+00")], n=4, test=test, head=head
        )
        text = "\n".join(
            line
            for line in text.split("\n")
            if "Collective test" not in line and "version" not in line
        )
        text = text.replace(
            "nThread 1 nGpus 1 minBytes 8", "nThreads: 1 nGpus: 1 nRanks: 1 minBytes: 8"
        )
        text = text.replace(" Group  0", "").replace("warmup iters: 1", "warmupIters: 5")
        return f"Running: CUDA_VISIBLE_DEVICES=1,2 ./build/{test}_perf -g 4\n{text}"

    # net of the own block
    gathered = table("all_gather", "", " ").replace("20.97", "15.73").replace("21.40", "16.05")
    found = read(
        gathered + table("broadcast", "    root", "2") + table("all_reduce", "   redop", "sum")
    )
    assert [r.case.collective for r in found.records[::2]] == [
        "all_gather",
        "broadcast",
        "all_reduce",
    ]
    assert [r.case.root for r in found.records[::2]] == [-1, 2, -1]
    assert not found.warnings and not found.lost and found.policy.warmup == 5


def test_an_error_marked_with_an_asterisk_is_wrong_data() -> None:
    head = OLD.format(root="    root")
    found = read(log([row(4096, 12.5, wrong="4e-01*")], head=head, foot="2 FAILED"))
    assert [r.status for r in found.records] == ["wrong", "wrong"]
    end = assemble.assemble_runs(found)[-1]
    assert isinstance(end, End) and end.exit == 7 and "2 checks" in end.note


def test_failed_checks_that_no_row_shows_are_kept() -> None:
    found = read(log([row(4096, 12.5)], foot="3 FAILED"))
    end = assemble.assemble_runs(found)[-1]
    assert isinstance(end, End) and end.exit == 7 and "3 checks" in end.note


def test_number_formats_of_all_versions() -> None:
    big = 8 << 30
    lead = f"{big:>12}  {big // 4:>12}     float     sum      -1"
    lines = [
        lead + "  32480.7  264.46  462.81       0  32466.1  264.58  463.02  1e+06",
        lead + "    32481  264.46  462.81   0  1.2e+07    0.72    1.25   0",
    ]
    found = read(log(lines))
    assert [us for *_, us in seen(found)] == [32480.7, 32466.1, 32481.0, 1.2e7]
    assert found.records[1].status == "wrong" and found.records[1].wrong == 10**6
    assert [r.case.cycle for r in found.records] == [0, 0, 1, 1]
    assert not found.warnings


def test_columns_of_I_S_and_rccl_A_are_told_apart() -> None:
    ours = "    time   algbw   busbw  #wrong   i_min   i_max   i_p99   i_cv%"
    head = HEAD.split("time", maxsplit=1)[0].rstrip() + 2 * ours + "            timestamp"
    extra = "    11.00    19.00    18.50     3.1"
    size = 1 << 16
    text = row(size, 12.0)
    at = len(text) - len(half(size, 11.0, 1.75))
    found = read(log([text[:at] + extra + text[at:] + extra + "  2026-07-09 12:30:00"], head=head))
    told = found.records[1].told
    assert told and (told.time, told.min, told.max, told.p99, told.samples) == (
        11_000,
        11_000,
        19_000,
        18_500,
        20,
    )
    assert found.records[0].started == "2026-07-09T12:30:00"
    shown = derive.derive_row(found.records[0])
    assert (
        shown and shown.times.min == 11_000 and shown.times.p99 is None
    )  # the p99 of 20 is their maximum
    head = HEAD + "      algo     proto nchannels"
    found = read(log([row(size, 12.0) + "    RING    SIMPLE          32"], head=head))
    assert [us for *_, us in seen(found)] == [12.0, 11.0] and not found.lost


def test_output_of_others_in_a_row_is_cut_out_and_what_stays_torn_is_reported() -> None:
    whole = row(1 << 20, 50.0)
    lines = [
        whole[:55] + "node01:4121:4130 [0] NCCL INFO Channel 00/02 : 0 1",
        whole[55:],
        row(2 << 20, 60.0)[:70],
        "node01:4121:4130 [0] NCCL INFO comm 0x55 rank 0",
        row(4 << 20, 70.0) + "NCCL version 2.30.4+cuda13.0",
        "   8388608       2097152 ",
        "       12345       1 quux sum -1 1.0 2.0",
        "some other program says 12 things",
    ]
    found = read(log(lines))
    assert [(size, us) for _, size, in_place, us in seen(found) if not in_place] == [
        (1 << 20, 50.0),
        (4 << 20, 70.0),
    ]
    assert [where for where, _ in found.lost] == ["line 19", "line 22", "line 23"]
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in log([whole]).split("\n"))
    assert len(seen(read(tagged))) == 2


@pytest.mark.parametrize("cut", range(3, 11))
def test_a_row_that_ends_early_is_reported_whatever_columns_it_lacks(cut: int) -> None:
    head = HEAD.replace("   redop    root", "")
    whole = row(1 << 20, 50.0, test="all_gather").split()
    words = [*whole[:3], *whole[-8:]]
    lines = [" ".join(words[:cut]), "node01:4121:4130 [0] NCCL INFO comm 0x55", " ".join(words)]
    found = read(log(lines, head=head, test="all_gather"))
    assert [us for *_, us in seen(found)] == [50.0, 49.0]
    assert [why for _, why in found.lost] == [
        "a row torn apart by other output, or of unknown columns"
    ]


@pytest.mark.parametrize("size", ["3276x", "x3276", "32,768", "32768B", "32K", "-1", "3276.8"])
def test_a_row_whose_size_is_damaged_is_named(size: str) -> None:
    damaged = row(32768, 10.0).replace("32768", size, 1)
    found = read(log([row(16384, 9.0), damaged, row(65536, 11.0)]))
    assert [bytes_ for _, bytes_, in_place, _ in seen(found) if not in_place] == [16384, 65536]
    assert found.lost == [("line 18", "not a row of the table it stands in")]
    reason = ("line 6", "not a row of the table it stands in")
    table = osu("Allreduce", ["16384  9.00", f"{size}  10.00", "65536  11.00"])
    found = read(table, ranks=4)
    assert len(seen(found)) == 2 and found.lost == [reason]
    rows = [f"{bytes_} 1000 1.00 3.00 2.00" for bytes_ in (16384, size, 65536)]
    found = read(IMB + imb("Allreduce", 4, rows), ranks=4)
    assert len(seen(found)) == 2 and [why for _, why in found.lost] == [reason[1]]


def test_several_tests_in_one_log_each_with_its_ranks() -> None:
    text = log([row(4096, 9.0)]) + log(
        [row(4096, 7.0, 4, test="all_gather")], n=4, test="all_gather"
    )
    found = read(text + log([row(4096, 6.0, 4, test="broadcast")], n=4, test="broadcast", graph=2))
    kinds = [
        (r.case.collective, r.case.n, r.case.root, r.case.mode)
        for r in found.records
        if not r.case.in_place
    ]
    assert kinds == [
        ("all_reduce", 8, -1, "streaming"),
        ("all_gather", 4, -1, "streaming"),
        ("broadcast", 4, 2, "graph"),
    ]
    assert [w.n for w in found.worlds] == [8, 4] and not found.warnings
    assert found.records[2].case.count == 4096 // 4 // 4


def test_which_collective_it_is_comes_from_the_command_the_option_or_the_files_name() -> None:
    nameless = "\n".join(
        line for line in log([row(4096, 9.0)]).split("\n") if "Collective test" not in line
    )
    assert seen(read(nameless, "all-reduce-8.txt"))[0][0] == "all_reduce"
    assert seen(read(nameless, collective="allreduce"))[0][0] == "all_reduce"
    command = (
        "+ mpirun -np 8 ./build/all_reduce_perf_mpi -b 4K -a 3 -x NCCL_ALGO=Ring -x"
        " API_TOKEN=s3cret\n"
    )
    found = read(command + nameless)
    assert seen(found)[0][0] == "all_reduce"
    assert found.records[0].told and found.records[0].told.ranks == "slowest"
    run = assemble.assemble_runs(found)[0]
    assert (
        isinstance(run, Run)
        and run.command[:3] == ["mpirun", "-np", "8"]
        and "s3cret" not in str(run)
    )
    assert run.environment["variables"] == {"NCCL_ALGO": "Ring"}
    with pytest.raises(UsageError, match="which collective"):
        read(nameless)


def nameless(command: str = "") -> str:
    """A log that does not name its test, but for a command."""
    lines = log([row(4096, 9.0)]).split("\n")
    return "\n".join([command, *(line for line in lines if "Collective test" not in line)])


@pytest.mark.parametrize(
    "command",
    [
        "+ srun -N 2 /opt/nccl_perf/build/all_reduce_perf -b 8",
        "+ mpirun -np 8 ./run_perf.sh ./build/all_reduce_perf -b 8",
        "+ srun -N 2 bash -c './all_reduce_perf -b 8'",
    ],
)
def test_the_test_of_a_command_is_a_program_and_no_folder_or_script(command: str) -> None:
    assert seen(read(nameless(command)))[0][0] == "all_reduce"
    content = document([result(1 << 20, 50.0)], args=command.split()[1:])
    assert seen(read(json.dumps(content)))[0][0] == "all_reduce"


@pytest.mark.parametrize(
    ("command", "is_known"),
    [
        ("+ mpirun -np 8 ./build/new_perf -b 8", False),
        ("+ mpirun -np 8 new_perf -b 8", False),
        ("+ mpirun -np 8 ./run_perf ./build/new_perf_mpi -b 8", False),
        ("+ srun -N 2 ./run_perf.sh", True),
        ("+ srun -J new_perf ./run.sh", True),
        ("+ cd /opt/new_perf", True),
        ("+ mpirun -x HOME=/opt/new_perf ./run.sh", True),
    ],
)
def test_a_table_of_a_program_that_is_unknown_is_not_of_the_collective_of_the_files_name(
    command: str, is_known: bool
) -> None:
    content = json.dumps(document([result(1 << 20, 50.0)], args=command.split()[1:]))
    for text in (nameless(command), content):
        if is_known:
            assert seen(read(text, "all_reduce.log"))[0][0] == "all_reduce"
            continue
        with pytest.raises(UsageError, match=r"collbench has no collective '(new|run)'"):
            read(text, "all_reduce.log")


def test_what_the_user_says_is_taken_before_the_test_that_a_command_names() -> None:
    script = "+ srun -N 2 ./run_perf.sh"
    with pytest.raises(UsageError, match="which collective"):
        read(nameless(script))
    for command in (script, "+ srun -N 2 ./broadcast_perf -b 8"):
        assert seen(read(nameless(command), collective="allreduce"))[0][0] == "all_reduce"
        content = document([result(1 << 20, 50.0)], args=command.split()[1:])
        assert seen(read(json.dumps(content), collective="allreduce"))[0][0] == "all_reduce"


def test_what_a_table_says_is_taken_before_what_the_user_says() -> None:
    text = log([row(4096, 9.0)]) + log([row(4096, 9.0)], test="all_reduce").replace(
        "all_reduce_perf", "hypercube_perf"
    )
    found = read(text, collective="broadcast")
    assert {name for name, *_ in seen(found)} == {"all_reduce"}
    assert list(found.omitted) == ["collbench has no collective 'hypercube'"]
    assert seen(read(text.replace("hypercube", "x"), collective="broadcast"))[2][0] == "broadcast"


def test_ranks_and_hosts_that_a_log_says_are_not_those_that_the_user_gives() -> None:
    gathered = log([row(4096, 7.0, 4, test="all_gather")], n=4, test="all_gather")
    listed = log([row(4096, 9.0)]) + gathered
    untold = "\n".join(line for line in log([row(4096, 8.0, 16)]).split("\n") if "Rank" not in line)
    for text, counts in ((listed, [8, 4]), (untold + log([row(4096, 9.0)]), [16, 8])):
        found = read(text, ranks=16)
        assert [record.case.n for record in found.records[::2]] == counts
        assert "the log says 8 ranks; --ranks 16 is for tables that do not say" in found.warnings
    found = read(log([row(4096, 9.0, 16)], n=16), host="x")
    assert [rank.host for rank in found.worlds[0].ranks[::8]] == ["node00", "node01"]
    assert found.warnings == ["the log says on which hosts it ran; --host x is left out"]
    run, *_ = assemble.assemble_runs(found)
    assert isinstance(run, Run) and run.environment["host"] == "node00"


def test_ranks_come_from_the_devices_or_the_option_and_a_wrong_number_is_noticed() -> None:
    bare = "\n".join(line for line in log([row(1 << 20, 50.0)]).split("\n") if "Rank" not in line)
    with pytest.raises(UsageError, match="how many ranks"):
        read(bare)
    assert not read(bare, ranks=8).warnings
    assert (
        "busbw 36.70 is not what 4 ranks make of 1048576 B in 50.00 us"
        in read(bare, ranks=4).warnings[0]
    )
    gathered = log([row(1 << 20, 50.0, test="all_gather")], test="all_gather", n=4)
    assert any("32768 elements are not what 4 ranks" in w for w in read(gathered).warnings)
    told = read(gathered, ranks=8)
    assert told.records[0].case.n == 8
    assert told.warnings == ["the log says 4 ranks; --ranks 8 is taken"]
    split = (
        log([row(4096, 9.0, 2)], n=4)
        .replace("Rank  2 Group  0", "Rank  2 Group  1")
        .replace("Rank  3 Group  0", "Rank  3 Group  1")
    )
    found = read(split)
    assert found.records[0].case.n == 2 and "at once" in found.warnings[0]


@pytest.mark.parametrize(
    ("left", "n", "words"),
    [
        ((0, 7, 8, 15), 16, "12 of 16 ranks, by the highest number, are not listed"),
        ((0, 15), 16, "14 of 16 ranks"),
        ((0, 0), 1, "rank 0 is listed more than once"),
    ],
)
def test_the_highest_rank_tells_how_many_there_are(
    left: tuple[int, ...], n: int, words: str
) -> None:
    every = devices(16).split("\n")
    text = log([row(1 << 20, 50.0, n)]).replace(devices(8), "\n".join(every[r] for r in left))
    found = read(text)
    assert {record.case.n for record in found.records} == {n}
    assert words in found.warnings[0]
    assert found.worlds[0].ranks == []


def test_a_list_of_devices_with_gaps_names_no_host_unless_a_person_does() -> None:
    """Readers count hosts, and ranks on each, by the list."""
    text = log([row(1 << 20, 50.0)]).replace(devices(8), devices(8).replace("Rank  3", "Rank 15"))
    assert "no host is named" in read(text).warnings[0]
    run, *_ = assemble.assemble_runs(read(text))
    assert isinstance(run, Run) and "host" not in run.environment
    run, *_ = assemble.assemble_runs(read(text, host="node07"))
    assert isinstance(run, Run) and run.environment["host"] == "node07"


def test_a_device_whose_hash_was_torn_off_is_a_rank() -> None:
    text = log([row(1 << 20, 50.0, 16)], n=16).replace("#  Rank 15", "  Rank 15")
    found = read(text)
    assert {record.case.n for record in found.records} == {16}
    assert found.warnings == []


def test_a_number_of_ranks_that_is_off_by_one_is_noticed() -> None:
    found = read(log([row(1 << 26, 350.0, 16)], n=15))
    assert "is not what 15 ranks make" in found.warnings[0]


@pytest.mark.parametrize(
    "prefix",
    [
        " 0: ",
        "[prterun-h-1@1,0]<stdout>: ",
        "[1,0]<stdout>:",
        "(worker1, rank=1, pid=4711) ",
        "node-01: ",
        "    ",
        "> ",
        "nccl-worker-0 | ",
        "2026-07-09T10:00:{at:02}.{at:07}Z ",
        "run-tests\tall reduce\t2026-07-09T10:00:{at:02}.1{at}Z ",
        "2026-07-09T10:00:{at:02}.{at:09}+00:00 stdout F ",
        "[{at}.5] ",
    ],
)
def test_what_others_put_before_each_line_is_cut_off(prefix: str) -> None:
    text = log([row(1 << 20, 50.0), row(2 << 20, 81.25)])
    lines = [prefix.format(at=at) + line for at, line in enumerate(text.split("\n"))]
    found, plain = read("\n".join(lines)), read(text)
    assert found.records == plain.records
    assert (found.worlds, found.tool, found.closed) == (plain.worlds, plain.tool, plain.closed)
    assert found.warnings == found.lost == []


def test_a_label_is_cut_off_where_rank_numbers_are_padded() -> None:
    text = log([row(1 << 20, 50.0)])
    lines = [f"{at % 2 * 10:2}: {line}" for at, line in enumerate(text.split("\n"))]
    assert read("\n".join(lines)).records == read(text).records


@pytest.mark.parametrize("number", ["12 ", "12 13 "])
def test_rows_keep_their_sizes_where_numbers_stand_before_two_hashes(number: str) -> None:
    text = log([row(1 << 20, 50.0)]).replace("# nThread", f"{number}# nThread")
    assert len(seen(read(text.replace("# Using", f"{number}# Using"), ranks=8))) == 2


def test_a_prefix_of_many_numbers_is_looked_for_in_one_pass() -> None:
    prefix = "1 " * 70 + "x"
    lines = [f"{prefix}# Using devices"] * 2 + ["1" * 4000, "1 " * 2000]
    assert strip_prefixes("\n".join(lines)).split("\n")[:2] == ["# Using devices"] * 2


@pytest.mark.parametrize("value", ["nan", "evil", None, 0])
def test_an_average_that_is_no_number_is_left_out(value: object) -> None:
    more = {"average_bus_bandwidth": {"bandwidth": value}}
    run = assemble.assemble_runs(read(json.dumps(document([result(1 << 20, 50.0)], **more))))[0]
    assert isinstance(run, Run)
    assert run.suite.description == ""


def test_the_average_bus_bandwidth_of_a_log_is_kept() -> None:
    run = assemble.assemble_runs(read(log([row(1 << 20, 50.0)])))[0]
    assert isinstance(run, Run)
    assert run.suite.description == "Average bus bandwidth in the log: 1.5 GB/s"


def test_a_python_dict_before_a_log_makes_it_no_json() -> None:
    text = log([row(1 << 20, 50.0)])
    assert seen(read(f"{{'NCCL_DEBUG': 'INFO', 'np': 8}}\n{text}")) == seen(read(text))


@pytest.mark.parametrize("name", ["reduced-run.log", "weak_scattered.log", "gathering.txt"])
def test_parts_of_words_in_a_files_name_mean_nothing(name: str) -> None:
    with pytest.raises(UsageError, match="which collective this is"):
        read(
            "\n".join(
                line for line in log([row(1 << 20, 50.0)]).split("\n") if "_perf" not in line
            ),
            name,
        )


def test_tests_with_other_settings_in_one_log_are_other_cases() -> None:
    def called(command: str, us: float) -> str:
        return f"+ {command} -g 8\n{log([row(1 << 20, us)])}"

    program = "NCCL_DEBUG=WARN SECRET=x ./all_reduce_perf"
    reading = read(
        called(f"NCCL_ALGO=Ring {program}", 50.0) + called(f"NCCL_ALGO=Tree {program}", 90.0)
    )
    assert [(r.case.env, r.case.cycle, r.told and r.told.time) for r in reading.records[::2]] == [
        ((("NCCL_ALGO", "Ring"),), 0, 50e3),
        ((("NCCL_ALGO", "Tree"),), 0, 90e3),
    ]
    assert [w.env for w in reading.worlds] == [(("NCCL_ALGO", "Ring"),), (("NCCL_ALGO", "Tree"),)]
    run, *_ = assemble.assemble_runs(reading)
    assert isinstance(run, Run) and run.environment["variables"] == {"NCCL_DEBUG": "WARN"}
    assert not reading.warnings
    reading = read(
        called(f"{program} -n 20", 50.0)
        + called(f"{program} -n 99", 90.0)
        + log([row(1 << 20, 70.0)])
    )
    assert [r.case.cycle for r in reading.records] == [0, 0, 1, 1, 2, 2]
    assert ["-n 99 -g 8' repeats what" in w for w in reading.warnings] == [True, False]


def test_a_barrier_within_the_time_is_flagged() -> None:
    said = (
        "# Blocking Enabled: wait for completion and barrier after each collective\n#\n# Using"
        " devices"
    )
    text = log([row(1 << 20, 50.0)])
    found = [
        derive.derive_row(read(one).records[0])
        for one in (text, text.replace("#\n# Using devices", said))
    ]
    assert ["blocking" in r.flags for r in found if r] == [
        False,
        True,
    ] and "blocking" in flags_.FLAGS_BY_NAME


def test_what_has_no_place_here_is_left_out_with_a_reason() -> None:
    found = read(
        log(
            [
                row(4096, 9.0),
                row(4096, 9.0).replace("   float", "float128"),
                row(8192, 9.0).replace("sum", "xor"),
            ]
        )
    )
    assert len(seen(found)) == 2
    assert {reason: n for reason, n in found.omitted.items() if "xor" in reason} == {
        "there is no reduction 'xor' in collbench": 2
    }
    assert any("float128" in why for why in [*found.omitted, *(reason for _, reason in found.lost)])
    for program in ("hypercube", "all_reduce_bias", "alltoallv"):
        both = read(
            log([row(4096, 9.0)])
            + log([row(4096, 9.0)], test="all_reduce").replace("all_reduce_perf", f"{program}_perf")
        )
        assert len(seen(both)) == 2 and program in next(iter(both.omitted))
    zero = read(
        log([row(8192, 9.0, test="all_gather"), row(0, 9.0, test="all_gather")], test="all_gather")
    )
    assert [r.status for r in zero.records] == ["ok", "ok", "skipped", "skipped"]


def test_all_to_all_in_place_is_skipped() -> None:
    text = log([row(8192, 20.0, test="all_gather")], test="alltoall")
    assert [r.status for r in read(text).records] == ["ok", "skipped"]


def test_a_submit_time_is_replaced_by_the_time_behind_the_bandwidth_where_that_is_sharp() -> None:
    head = HEAD.replace("   time", "cputime")
    sharp, blunt = (
        f"{size:>12}  {size // 4:>12}     float     sum      -1" for size in (1 << 20, 64)
    )
    lines = [sharp + "     3.00   20.00   35.00       0     3.00   20.00   35.00       0"]
    lines += [blunt + "     3.00    0.01    0.02       0     3.00    0.01    0.02       0"]
    found = read(log(lines, head=head))
    assert seen(found)[0][3] == pytest.approx((1 << 20) / 20e3)
    assert len(seen(found)) == 2 and sum(found.omitted.values()) == 2
    assert "printed algbw" in found.records[0].note
    assert "-C" in found.warnings[0]


def test_a_log_that_ends_early_makes_a_run_that_was_cut_short() -> None:
    found = read(log([row(4096, 9.0)]).partition("# Out of bounds")[0])
    assert not found.closed and not any(
        isinstance(line, End) for line in assemble.assemble_runs(found)
    )


# --- JSON


def result(size: int, us: float, **more: object) -> dict[str, object]:
    one = {
        "time": us,
        "alg_bw": round(size / us / 1e3, 6),
        "bus_bw": round(size / us / 1e3 * 1.75, 6),
        "nwrong": 0.0,
    }
    return {
        "size": size,
        "count": size // 4,
        "type": "float",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": one,
        "in_place": {**one, "nwrong": None},
        "actual_iterations": 20,
        "experiment_name": "",
        **more,
    }


def document(results: list[dict[str, object]], **more: object) -> dict[str, object]:
    device = {
        "rank": 0,
        "group": 0,
        "pid": 7,
        "device": 0,
        "device_hex": "0000:0f:00",
        "device_info": "NVIDIA H200",
    }
    config = {
        "nthreads": 1,
        "ngpus": 4,
        "warmup_iters": 1,
        "iterations": 20,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": "false",
        "parallel_init": "false",
        "devices": [{**device, "hostname": "a"}, {**device, "rank": 4, "hostname": "b"}],
    }
    return {
        "version": 3,
        "start_time": "2026-07-09 10:00:00",
        "args": ["./all_reduce_perf", "-g", "4"],
        "env": ["HOME=/root", "AWS_SECRET=x", "NCCL_PROTO=LL"],
        "nccl_version": 23004,
        "config": config,
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "errors": [],
        "end_time": "2026-07-09 10:01:00",
        **more,
    }


def test_json_counts_all_gpus_of_each_process_and_takes_no_whole_environment() -> None:
    found = read(json.dumps(document([result(1 << 20, 50.0)])))
    assert found.records[0].case.n == 8 and not found.warnings
    assert [r.wrong for r in found.records] == [0, None]
    run = assemble.assemble_runs(found)[0]
    assert isinstance(run, Run) and run.environment["variables"] == {"NCCL_PROTO": "LL"}
    assert run.started == "2026-07-09T10:00:00" and run.environment["host"] == "a"
    assert len(run.environment["gpus"]["devices"]) == 4
    assert (
        found.worlds[0].library == "NCCL 2.30.4"
        and [r.host for r in found.worlds[0].ranks] == ["a"] * 4 + ["b"] * 4
    )


def test_json_iterations_are_samples() -> None:
    times = [50.0 + i * 7 % 20 for i in range(25)]
    series = {
        "skipped_iterations": 5,
        "min_us": 50.0,
        "times_us": times,
        "per_process_max_times_us": [times, times],
    }
    content = document([result(1 << 20, 60.0, out_of_place_per_iter=series)])
    content["config"]["ngpus"] = 1  # type: ignore[index]
    record = read(json.dumps(content)).records[0]
    assert (
        record.times_ns == [1000 * (50 + i * 7 % 20) for i in range(5, 25)]
        and len(record.per_rank) == 2
    )
    shown = derive.derive_row(record)
    assert (
        shown
        and shown.times.samples == 20
        and shown.times.median == 59_500
        and math.isfinite(shown.times.hi)
    )
    assert "imported" in shown.flags and not shown.gateable


def test_json_with_bare_infinity_and_torn_files_are_still_read() -> None:
    text = json.dumps(document([result(1 << 20, 50.0), result(2 << 20, 90.0)])).replace(" ", "")
    assert len(seen(read(text.replace('"bus_bw":36.70016', '"bus_bw":inf')))) == 4
    torn = read(text[: text.rindex('"in_place"')])
    assert (
        len(seen(torn)) == 2 and "only 1 results are whole" in torn.warnings[0] and not torn.closed
    )
    with pytest.raises(UsageError, match="no result in it"):
        read(text[: text.index('{"size"')])


@pytest.mark.parametrize(
    "change",
    [
        {"count": "many"},
        {"out_of_place": [1]},
        {"root": "x"},
        {"out_of_place_per_iter": {"times_us": ["a"]}},
    ],
)
def test_malformed_results_are_reported_one_by_one(change: dict[str, object]) -> None:
    found = read(json.dumps(document([result(1 << 20, 50.0), result(2 << 20, 50.0, **change)])))
    assert len(seen(found)) == 2 and found.lost[0][0] == "result 2"


def test_json_bandwidths_may_be_texts() -> None:
    plain = result(1 << 20, 50.0)
    one = {**plain["out_of_place"], "alg_bw": "20.97152", "bus_bw": "36.70016"}  # type: ignore[dict-item]
    found = read(json.dumps(document([{**plain, "out_of_place": one}])))
    assert seen(found) == seen(read(json.dumps(document([plain]))))
    assert not found.warnings and not found.lost


def test_times_out_of_this_world_are_reported() -> None:
    series = {"times_us": [1e300, 5.0]}
    found = read(
        json.dumps(
            document([result(1 << 20, 50.0), result(2 << 20, 50.0, out_of_place_per_iter=series)])
        )
    )
    assert [where for where, _ in found.lost] == ["result 2"]
    for us in (1e200, -1.0):
        assert (
            len(read(json.dumps(document([result(1 << 20, 50.0), result(1 << 21, us)]))).lost) == 2
        )


# --- rccl-tests


def test_rccl_csv_with_and_without_the_column_its_header_forgets() -> None:
    head = (
        "numCycle,collective,ranks,rankspernode,gpusperrank,size,type,redop,inplace,time,"
        "algbw,busbw,#wrong\n"
    )
    size, us = 1 << 20, 50.0
    rest = f'{size},"float","sum",%d,{us:f},{size / us / 1e3:f},{size / us / 1e3 * 1.75:f},"0"\n'
    shifted = head + f'0,"AllReduce",2,4,2,2,{rest % 0}0,"AllReduce",2,4,2,2,{rest % 1}'
    straight = head + f'0,"AllReduce",4,2,2,{rest % 0}'
    single = (
        head.replace("ranks,rankspernode,gpusperrank", "gpus")
        + f'0,"AllReduce",8,{rest % 0}0,"AllReduce",8\n'
    )
    for text, number in ((shifted, 2), (straight, 1), (single, 1)):
        found = read(text)
        assert len(seen(found)) == number and seen(found)[0] == ("all_reduce", size, False, us)
        assert (
            found.records[0].case.n == 8
            and not found.warnings
            and found.records[0].case.backend == "nccl"
        )
    assert found.lost == [("line 3", "3 fields under a header of 11")]
    assert read(f"\n\n{single}").lost == [("line 5", "3 fields under a header of 11")]


def test_rccl_json() -> None:
    one = {
        "numCycle": 0,
        "name": "AllGather",
        "nodes": 1,
        "ranks": 4,
        "ranksPerNode": 4,
        "gpusPerRank": 1,
        "size": 4096,
        "type": "bfloat16",
        "redop": "none",
        "inPlace": 1,
        "time": 8.0,
        "algBw": 0.512,
        "busBw": 0.384,
        "wrong": "N/A",
    }
    found = read(json.dumps([one, {**one, "numCycle": 1}, {"numCycle": 2}]))
    assert seen(found) == [("all_gather", 4096, True, 8.0)] * 2 and found.tool == "rccl-tests JSON"
    assert (
        found.records[1].case.cycle == 1
        and found.lost[0][0] == "result 3"
        and found.worlds[0].library == "RCCL"
    )
    with pytest.raises(UsageError, match="no result"):
        read(json.dumps([{"numCycle": 2}]))


def test_rccl_json_of_one_process_takes_the_ranks_given() -> None:
    one = {"numCycle": 0, "name": "AllReduce", "size": 1 << 20, "type": "float", "redop": "sum"}
    one |= {"inPlace": 0, "time": 50.0, "algBw": 20.97, "busBw": 36.7, "wrong": "0"}
    with pytest.raises(UsageError, match="how many ranks"):
        read(json.dumps([one]))
    found = read(json.dumps([one]), ranks=8)
    assert [record.case.n for record in found.records] == [8]
    assert found.warnings == []


def test_rccl_text_with_one_half_and_its_version_line() -> None:
    head = HEAD[: HEAD.rindex("    time")]
    text = log([row(4096, 9.0)[: -len(half(4096, 8.0, 1.75))]], head=head).replace(
        "out-of-place                 ", ""
    )
    text = text.replace(
        "# nccl-tests version 2.19.6 nccl-headers=23004 nccl-library=23004",
        "rccl-tests: Version develop:1a2b",
    )
    text = text.replace("Group  0 ", "").replace("#  Rank", "#   Rank")
    found = read(
        text.replace("# Out of bounds", "# Errors with asterisks indicate errors.\n# Out of bounds")
    )
    assert (
        seen(found) == [("all_reduce", 4096, True, 9.0)]
        and found.tool == "rccl-tests develop:1a2b text"
    )


# --- OSU and Intel


def osu(test: str, rows: list[str], columns: str = "       Avg Latency(us)", more: str = "") -> str:
    return (
        f"\n# OSU MPI{more} {test} Latency Test v7.4\n# Datatype: MPI_CHAR.\n# Size{columns}\n"
        + "\n".join(rows)
        + "\n"
    )


FULL = "       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"


@pytest.mark.parametrize(
    ("test", "name", "size"),
    [
        ("Allreduce", "all_reduce", 1024),
        ("Broadcast", "broadcast", 1024),
        ("Reduce", "reduce", 1024),
        ("Allgather", "all_gather", 4096),
        ("All-to-All Personalized Exchange", "all_to_all", 4096),
        ("Gather", "gather", 4096),
        ("Scatter", "scatter", 4096),
        ("Reduce_scatter", "reduce_scatter", 1024),
    ],
)
def test_osu_sizes_are_those_of_a_block_where_there_is_one_for_each_rank(
    test: str, name: str, size: int
) -> None:
    found = read(osu(test, ["1024                    3.25"]), ranks=4)
    assert seen(found) == [(name, size, False, 3.25)]
    record = found.records[0]
    assert (record.case.backend, record.case.mode, record.sync, record.case.dtype) == (
        "mpi",
        "isolated",
        "barrier",
        "int8",
    )
    assert record.told and record.told.ranks == "mean" and record.told.samples == 0
    assert found.tool == "OSU Micro-Benchmarks 7.4"


@pytest.mark.parametrize(
    ("table", "warnings"),
    [
        (log([row(4096, 9.0)]), 0),
        (osu("Allreduce", ["4096      9.00", "8192     12.00"]), 1),  # of how many ranks?
    ],
)
def test_a_table_that_a_log_has_twice_is_two_cycles_of_one_world(table: str, warnings: int) -> None:
    """Whatever its figures: they may be alike by chance, and imports decide nothing."""
    reading = read(table + table, ranks=8)
    assert [record.case.cycle for record in reading.records] == [0, 0, 1, 1]
    assert len(reading.worlds) == 1 and len(reading.warnings) == warnings


def test_a_secret_in_a_tag_is_not_kept() -> None:
    run, *_ = assemble.assemble_runs(read(log([row(4096, 9.0)])), "token=hunter2")
    assert isinstance(run, Run) and "hunter2" not in run.tag


def test_osu_with_all_columns_takes_the_slowest_rank() -> None:
    text = osu(
        "Allreduce",
        ["4    3.25    2.00    5.50    1000                Pass        6.10"],
        FULL + "          Validation     P99 Tail Lat(us)",
        "-CUDA",
    )
    told = read(text.replace("CHAR", "FLOAT"), ranks=4).records[0].told
    assert told == ToolTime(time=5500, ranks="slowest", samples=1000, by_rank=(2000, 3250, 5500))
    failed = read(text.replace("CHAR", "FLOAT").replace("Pass", "Fail"), ranks=4).records[0]
    assert failed.status == "wrong"


def test_osu_barrier_and_what_is_left_out_of_osu() -> None:
    text = "# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n             2.75\n"
    assert seen(read(text, ranks=4)) == [("barrier", 0, False, 2.75)]
    for other in (
        "OSU MPI Latency",
        "OSU MPI Bandwidth",
        "OSU MPI Allgatherv Latency",
        "OSU MPI Non-blocking Allreduce Latency",
    ):
        column = (
            "Bandwidth (MB/s)"
            if "Band" in other
            else "Overall(us)"
            if "Non" in other
            else "Latency (us)"
        )
        more = f"# {other} Test v7.4\n# Size          {column}\n8                    1.25\n"
        found = read(text + more, ranks=4)
        assert len(seen(found)) == 1 and sum(found.omitted.values()) == 1
    with pytest.raises(UsageError, match="how many ranks"):
        read(text)


def test_osu_tables_of_host_and_device_memory_are_kept_apart() -> None:
    rows = ["1024                    3.25"]
    where = "# Send Buffer on DEVICE (D) and Receive Buffer on HOST (H)\n# Size "
    texts = [
        osu("Allreduce", rows),
        osu("Allreduce", rows, more="-CUDA"),
        osu("Allreduce", rows, more="-CUDA MANAGED"),
        osu("Allreduce", rows, more="-CUDA").replace("# Size", where),
    ]
    found = read("".join(texts), ranks=4)
    named = [(), (("buffers", "CUDA"),), (("buffers", "CUDA-MANAGED"),), (("buffers", "CUDA-D-H"),)]
    assert [record.case.env for record in found.records] == named
    assert {record.case.cycle for record in found.records} == {0}


def test_one_sided_tests_of_osu_are_called_so() -> None:
    get = "# OSU MPI_Get latency Test v5.6\n# Size          Latency (us)\n8               1.25\n"
    found = read(osu("Allreduce", ["1024     3.25"]) + get, ranks=4)
    assert list(found.omitted) == ["OSU MPI_Get latency: one-sided, so no collective"]


IMB = """#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.7, MPI-1 part
#----------------------------------------------------------------
# Date                  : Thu Jul  9 10:00:00 2026
# MPI Version           : 3.1

# Calling sequence was:

# IMB-MPI1 Allreduce -npmin 4

# MPI_Datatype                   :   MPI_BYTE
# MPI_Datatype for reductions    :   MPI_FLOAT
"""


def imb(
    name: str,
    n: int,
    rows: list[str],
    columns: str = "#bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]",
) -> str:
    line = "#" + 64 * "-"
    waiting = "# ( 2 additional processes waiting in MPI_Barrier)"
    head = f"\n{line}\n# Benchmarking {name} \n# #processes = {n} \n{waiting}\n{line}\n"
    return head + f"       {columns}\n" + "\n".join(rows) + "\n"


def test_imb_tables_one_for_each_number_of_processes() -> None:
    text = IMB + imb(
        "Allreduce",
        2,
        [
            "            0         1000         0.03         0.05         0.04",
            "         1024         1000         1.50         2.50         2.00",
        ],
    )
    text += imb(
        "Alltoall", 4, ["         1024          640         5.50         7.50         6.50"]
    )
    text += imb(
        "Sendrecv",
        4,
        ["         1024          640         5.50         7.50         6.50       273.07"],
        "#bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec",
    )
    text += imb(
        "Barrier",
        4,
        ["         1000         1.50         2.50         2.00"],
        "#repetitions  t_min[usec]  t_max[usec]  t_avg[usec]",
    )
    text += imb(
        "PingPong",
        2,
        ["         1024         1000         1.50       682.67"],
        "#bytes #repetitions t[usec] Mbytes/sec",
    )
    text += imb("Allgather", 4, [' 4194304 out-of-mem.; needed X=   1.500 GB; use flag "-mem X"'])
    found = read(text)
    assert seen(found) == [
        ("all_reduce", 1024, False, 2.5),
        ("all_to_all", 4096, False, 7.5),
        ("sendrecv", 1024, False, 7.5),
        ("barrier", 0, False, 2.5),
    ]
    kept = [r for r in found.records if r.told]
    assert [r.case.n for r in kept] == [2, 4, 4, 4] and [r.case.mode for r in kept][
        2
    ] == "streaming"
    assert kept[0].told == ToolTime(
        time=2500, ranks="slowest", samples=1000, by_rank=(1500, 2000, 2500)
    )
    assert [r.case.dtype for r in kept[:2]] == ["float", "uint8"]
    skipped = [r for r in found.records if r.status == "skipped"]
    assert [r.case.nbytes for r in skipped] == [0, 4 * 4194304] and skipped[1].note.startswith(
        "out-of-mem"
    )
    assert "PingPong" in next(iter(found.omitted)) and not found.lost
    run = assemble.assemble_runs(found)[0]
    assert (
        isinstance(run, Run)
        and run.imported == "Intel MPI Benchmarks 2021.7"
        and run.started == "2026-07-09T10:00:00"
    )
    assert run.command == ["IMB-MPI1", "Allreduce", "-npmin", "4"]


def test_an_imb_head_with_a_blank_before_the_mark_has_its_version() -> None:
    text = IMB.replace("Intel(R)", "Intel (R)") + imb(
        "Allreduce", 2, ["         1024         1000         1.50         2.50         2.00"]
    )
    assert read(text).tool == "Intel MPI Benchmarks 2021.7"


def test_imb_without_blank_lines_is_read_and_rows_without_columns_are_counted() -> None:
    text = "\n".join(
        [
            "# Intel(R) MPI Benchmarks 2021.3, MPI-1 part",
            "# Calling sequence was:",
            "# IMB-MPI1 Allreduce",
            "# Benchmarking Allreduce",
            "# #processes = 4",
            "#bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]",
            "1024 1000 1.00 2.00 1.50",
            "# Benchmarking Bcast",
            "# #processes = 4",
            "2048 1000 1.00 2.00 1.50",
        ]
    )
    reading = read(text)
    assert seen(reading) == [("all_reduce", 1024, False, 2.0)] and reading.command == [
        "IMB-MPI1",
        "Allreduce",
    ]
    assert reading.lost == [("line 10", "a row of numbers under no names of columns")]


IMB_ROW = "         1024         1000         1.50         2.50         2.00"


def mixed(*parts: str) -> str:
    return "\n".join(parts)


def test_tables_of_imb_and_osu_in_one_log_are_each_read_as_their_own() -> None:
    called = "+ srun -n 4 ./osu_allgather -f"
    after = "+ srun -n 8 ./osu_allreduce -f"
    rows = ["1024   3.25   2.00   5.50   1000"]
    text = mixed(
        IMB + imb("Allreduce", 2, [IMB_ROW]),
        called,
        osu("Allgather", rows, FULL),
        after,
        osu("Allreduce", rows, FULL),
        IMB + imb("Bcast", 2, [IMB_ROW]),
    )
    found = read(text)
    assert seen(found) == [
        ("all_reduce", 1024, False, 2.5),
        ("all_gather", 4096, False, 5.5),
        ("all_reduce", 1024, False, 5.5),
        ("broadcast", 1024, False, 2.5),
    ]
    assert [record.case.n for record in found.records] == [2, 4, 8, 2]
    assert found.tool == "Intel MPI Benchmarks 2021.7, OSU Micro-Benchmarks 7.4"
    assert not found.lost and not found.omitted and not found.warnings


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("other", "left_out"),
    [
        (osu("Allreduce", ["1024   3.25   2.00   5.50   1000"], FULL), "osu"),
        (IMB + imb("Allreduce", 8, [IMB_ROW]), "imb"),
    ],
)
def test_tables_of_nccl_tests_beside_others_are_said_to_be_left_out(
    order: int, other: str, left_out: str
) -> None:
    text = mixed(*[log([row(4096, 9.0)]), other][::order])
    found = read(text, ranks=8)
    assert [(r.case.collective, r.case.backend) for r in found.records] == [("all_reduce", "mpi")]
    assert dict(found.omitted) == {"nccl-tests' tables: --from nccl-tests reads them": 1}
    assert not found.lost
    assert not found.warnings
    rest = read(text, kind="nccl-tests", ranks=8)
    assert [(r.case.backend, r.case.size) for r in rest.records] == [("nccl", 4096)] * 2
    assert not rest.lost and not rest.omitted


def test_rows_under_columns_that_are_not_osus_say_of_which_test() -> None:
    text = osu("Allreduce", ["1024     3.25"]) + "# Size      Bandwidth (MB/s)\n1024    99.5\n"
    found = read(text, ranks=4)
    assert dict(found.omitted) == {"OSU Allreduce: columns that are not read": 1}


def test_blocks_too_uneven_to_be_the_same_case_are_left_out() -> None:
    text = imb(
        "Reduce_scatter",
        6,
        [
            "           64         1000         1.50         2.50         2.00",
            "      1048576         1000       150.00       250.00       200.00",
        ],
    )
    found = read(text)
    assert [r.case.nbytes for r in found.records] == [1 << 20] and "do not divide evenly" in next(
        iter(found.omitted)
    )


# --- files


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a log of a known kind"),
        (b"hello\nworld\n", "not a log of a known kind"),
        (b"\x7fELF\0\0\1", "not text"),
        ("# nThread 1 nGpus 8".encode("utf-16"), "UTF-16"),
        (b"\x1f\x8bnonsense", "cannot unpack"),
        (b'{"line":"run","id":"x"}', "already"),
        (b'{"results":[' + b"[" * 100_000, "no result"),
        (b"numCycle", "no result"),
        (b"# OSU MPI Allreduce Latency Test v7\n", "no result"),
        (b'{"results":[{}]}', "which"),
        (b'{"results":{}, "results": [', "no result"),
        (b"# Benchmarking x", "no result"),
        (b'{"args":["all_reduce_perf"],"results":[],"config":{"nthreads":"x"}}', "nthreads"),
    ],
)
def test_what_is_no_log_is_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        importers.read_log(decode_log(data, "x"), Asked(name="x"))


@pytest.mark.parametrize(
    ("limit", "line", "words"),
    [
        ("MOST_LINES", b"x\n", "more than 9 lines"),
        ("MOST_BYTES", b"x\n", "larger than"),
        ("MOST_EMPTY", b"\n", "more than 9 lines that are empty or NCCL's"),
    ],
)
def test_a_packed_log_is_no_larger_than_it_may_be(
    limit: str, line: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"collbench.features.interop.importers.text.{limit}", 9)
    with pytest.raises(UsageError, match=words):
        decode_log(gzip.compress(line * 10), "x")


def test_a_packed_log_above_four_mebibytes_is_unpacked() -> None:
    """As one that is full of NCCL's own lines, which take no room."""
    noise = random.Random(1)
    lines = (f"node1:12:34 [0] NCCL INFO {noise.randbytes(60).hex()}\n" for _ in range(90_000))
    plain = log([row(4096, 9.0)])
    packed = gzip.compress(("".join(lines) + plain).encode(), 1)
    assert len(packed) > 4 << 20
    assert seen(read(decode_log(bound_log(io.BytesIO(packed)), "x.gz"))) == seen(read(plain))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("MOST_PACKED", "x.gz is larger than 0 MiB though packed"),
        ("MOST_PARTS", "more than 9 parts"),
    ],
)
def test_the_limit_that_a_packed_log_is_beyond_is_named(
    limit: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importers.text, limit, 9)
    with pytest.raises(UsageError, match=words) as refused:
        decode_log(gzip.compress(b"a line\n") * 10, "x.gz")
    assert "zcat" in refused.value.hint


def test_torn_gzip_is_told_in_words() -> None:
    packed = bytearray(gzip.compress(bytes(range(1, 256)) * 99))
    packed[20:40] = b"\xff" * 20
    with pytest.raises(UsageError, match="cannot unpack"):
        decode_log(bytes(packed), "x")


@pytest.mark.parametrize("name", ["min", "max", "p99"])
def test_no_time_that_a_run_may_not_hold_gets_into_one(name: str) -> None:
    reading = Reading(Asked(name="x"))
    told = ToolTime(time=5.0, **{name: 1e15})
    line = importers.Line(where="here", size=8, dtype="float", op="sum", tool_time=told)
    reading.add(importers.Table(collective="all_reduce", n=2), line)
    assert (reading.records, reading.lost) == ([], [("here", "a time of 1e+12 us")])


def test_line_ends_byte_order_marks_gzip_and_monstrous_lines_do_no_harm() -> None:
    text = log([row(4096, 9.0), "1 2 float " + "9 " * 10_000, "x" * 50_000])
    expected = seen(read(text))
    data = text.replace("\n", "\r\n").encode("utf-8-sig")
    assert seen(read(decode_log(gzip.compress(data), "x"))) == expected
    assert len(expected) == 2


@pytest.mark.parametrize("size", [10**17, 10**18 - 8])
def test_numbers_beyond_all_machines_still_make_a_file(size: int) -> None:
    lines = [
        f"{size:>18}  {size // 4:>18}     float     sum      -1   1.0e+09  0.00  0.00  1e+300 "
        " 1.0e+09  0.00  0.00  0"
    ]
    for line in assemble.assemble_runs(read(log(lines))):
        msgspec.json.encode(line)


def test_hostile_numbers_of_ranks_are_refused_before_they_cost_memory() -> None:
    content = document([result(1 << 20, 50.0)])
    content["config"]["ngpus"] = 1 << 40  # type: ignore[index]
    with pytest.raises(UsageError, match="no machine has"):
        read(json.dumps(content))


@pytest.mark.parametrize("kind", sorted(importers.FORMATS))
def test_a_wrong_kind_of_log_is_refused_with_a_reason(kind: str) -> None:
    with pytest.raises(UsageError, match="no result in it: nothing in it looks like '"):
        read("hello\nworld\n", kind=kind)


# --- collbench's own output


def _shown(case_times: list[Record], reporter: reporter_.Reporter, run: Run, world: World) -> None:
    reporter.begin(run, [r.case for r in case_times], [])
    reporter.world(world)
    for r in case_times:
        reporter.record(r, derive.derive_row(r, world))
    reporter.end(End(exit=0, ended="2026-07-09T10:00:00+00:00"), None)


def test_own_output_reads_back_within_what_printing_rounds(tmp_path) -> None:
    original = read(log([row(1 << 20, 50.0), row(2 << 20, 81.25)]))
    run, world, *_ = assemble.assemble_runs(original)
    assert isinstance(run, Run) and isinstance(world, World)
    gloo = [
        msgspec.structs.replace(
            r,
            told=None,
            times_ns=[round(r.told.time) + i for i in range(9)],
            case=msgspec.structs.replace(r.case, backend="gloo", algorithm="ring", mode="isolated"),
        )
        for r in original.records
        if r.told
    ]
    local = msgspec.structs.replace(world, backend="gloo")
    out = io.StringIO()
    _shown(gloo, nccl.Text(out), run, local)
    _shown(gloo, saved := nccl_json.Document(tmp_path / "x.json"), run, local)
    for text, exact in ((out.getvalue(), False), (saved.written.read_text(), True)):
        again = read(text)
        assert (
            [r.case for r in again.records] == [r.case for r in gloo]
            and not again.warnings
            and not again.lost
        )
        for before, after in zip(gloo, again.records, strict=True):
            assert after.told and after.told.over == "median" and after.told.ranks == "slowest"
            assert after.told.time == pytest.approx(before.times_ns[4], abs=5.1)
            assert after.times_ns == (before.times_ns if exact else [])


def _both(records: list[Record], run: Run, world: World, path: Path) -> tuple[str, str]:
    """collbench's text and JSON of these records."""
    out = io.StringIO()
    _shown(records, nccl.Text(out), run, world)
    _shown(records, saved := nccl_json.Document(path), run, world)
    return out.getvalue(), saved.written.read_text()


def test_own_output_of_groups_keeps_the_groups(tmp_path: Path) -> None:
    run = factories.run(suite=factories.suite(n=4))
    world = factories.world(n=4, ranks=factories.hosted(4), library="Gloo")
    cases = [
        factories.case(n=2, groups="mod:2", group=group, of=2, mode="isolated") for group in (0, 1)
    ]
    for text in _both([factories.record(c) for c in cases], run, world, tmp_path / "x.json"):
        again = read(text)
        assert [record.case for record in again.records] == cases
        assert [found.n for found in again.worlds] == [4]
        assert again.warnings == []


def test_own_output_keeps_how_ranks_arrive(tmp_path: Path) -> None:
    cases = [factories.case(mode="isolated", arrival=name) for name in ("", "one-late:50us")]
    records = [factories.record(case) for case in cases]
    for text in _both(records, factories.run(), factories.world(), tmp_path / "x.json"):
        assert [record.case for record in read(text).records] == cases


def test_own_text_keeps_settings_with_commas(tmp_path: Path) -> None:
    case = factories.case(env=(("NCCL_PROTO", "LL,LL128"), ("X", "1")))
    world = factories.world(library="Gloo", env=case.env)
    text, _ = _both([factories.record(case)], factories.run(), world, tmp_path / "x.json")
    again = read(text)
    assert [record.case.env for record in again.records] == [case.env]
    assert again.worlds[0].library == "Gloo"


def test_own_output_of_wrong_data_alone_is_read_as_wrong(tmp_path: Path) -> None:
    run = factories.run()
    bad = Record(case=factories.case(), status="wrong", wrong=12, checked=99, world=0)
    for text in _both([bad], run, factories.world(), tmp_path / "x.json"):
        again = read(text)
        assert [(r.status, r.wrong, r.told) for r in again.records] == [("wrong", 12, None)]
        assert again.records[0].note == "12 wrong elements"


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("wrong", [None, 0])
@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("per_iter", [False, True])
@pytest.mark.parametrize("filled", [False, True])
def test_a_half_that_own_text_repeats_or_has_no_numbers_for_is_no_result(
    in_place: bool, wrong: int | None, timestamps: bool, per_iter: bool, filled: bool
) -> None:
    options = nccl.Options(timestamps=timestamps, per_iter=per_iter, filled=filled)
    run, world, first, *_ = assemble.assemble_runs(read(log([row(1 << 20, 50.0)])))
    assert isinstance(run, Run) and isinstance(world, World) and isinstance(first, Record)
    case = msgspec.structs.replace(first.case, in_place=in_place)
    only = Record(case=case, status="ok", times_ns=[50_000] * 9, wrong=wrong)
    _shown([only], nccl.Text(out := io.StringIO(), options), run, world)
    again = read(out.getvalue())
    assert [r.case.in_place for r in again.records] == [in_place] and not again.lost
    assert again.records[0].told.time == pytest.approx(50_000)


@pytest.mark.parametrize("packed", [False, True])
def test_what_nccl_says_of_itself_takes_no_room(
    monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    plain = log([row(1 << 20, 50.0)])
    loud = "node1:12:34 [0] NCCL INFO Channel 00/32 : 0 1 2 3\n" * 999 + plain
    monkeypatch.setattr(importers.text, "MOST_BYTES", len(plain) + 99)
    monkeypatch.setattr(importers.text, "MOST_LINES", plain.count("\n") + 1)
    data = gzip.compress(loud.encode()) if packed else bound_log(io.BytesIO(loud.encode()))
    assert read(decode_log(data, "x")).records == read(plain).records
    with pytest.raises(UsageError, match="larger than"):
        decode_log(bound_log(io.BytesIO(loud.encode() + b"more" * 99)), "x")


def test_lines_have_the_numbers_of_the_file_where_nccl_writes_between() -> None:
    loud, torn_row = "node1:12:34 [0] NCCL INFO Channel 00/32\n", "   8388608       2097152 "
    text = loud * 3 + log([row(1 << 20, 50.0), *[loud.strip()] * 4, torn_row])
    found = read(decode_log(bound_log(io.BytesIO(text.encode())), "x"))
    number = text.split("\n").index(torn_row) + 1
    assert [where for where, _ in found.lost] == [f"line {number}"]


def test_processes_do_not_each_have_the_empty_lines_of_all() -> None:
    plain = log([row(1 << 20, 50.0), "   8388608       2097152 "])
    labels = [f"n{k}: " for k in range(4)]
    lines = [label + line for line in plain.split("\n") for label in labels]
    text = "\n" * 2000 + ("\n" * 50).join(lines)
    parts = split_processes(text)
    assert [*parts] == labels
    assert sum(len(part.numbers) for part in parts.values()) <= 2 * len(lines) + 2 * len(parts)
    every = text.split("\n")
    torn_rows = [at for at, line in enumerate(every, 1) if line.endswith("2097152 ")]
    assert [where for where, _ in read(text).lost] == [f"line {at}" for at in torn_rows]


def test_a_log_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers.text, "MOST_READ", 1 << 20)
    endless = "node1:12:34 [0] NCCL INFO Channel 00/32\n" * 99_999
    with pytest.raises(UsageError, match="larger than"):
        decode_log(bound_log(io.BytesIO(endless.encode())), "x")


# --- what stands beside rows, and what must not be pooled


TEAR = 52  # characters of a row: up to its root


def torn(whole: str, output: str) -> list[str]:
    return [whole[:TEAR] + output, whole[TEAR:]]


@pytest.mark.parametrize(
    "output",
    [
        "n-1:41:43 [0] NCCL INFO 64 Bytes -> Algo 1 proto 2 time 9.5",
        "n-1:41:43 [3] transport/net.cc:77 NCCL WARN no plugin",
        "[2026-01-05 10:00:00] n-1:41:43 [3] transport/net.cc:77 NCCL WARN no plugin",
        "[2026-01-05 10:00:00.123] n-1:41:43 [-1] NCCL INFO x",
        "n-1:41:43 [0] 17.500000 enqueue.cc:12 NCCL TRACE x",
        "3f2a9c:41:43 [0] NCCL INFO 1048576 Bytes",
        "10-0-0-7:41:43 [0] NCCL INFO x",
        "192.168.0.7:41:43 [0] init.cc:9 NCCL WARN x",
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_a_row_that_nccl_writes_into_is_whole_again(output: str, known: bool) -> None:
    whole = row(1 << 20, 50.0)
    rows = [*torn(whole, output), row(2 << 20, 60.0) + output, row(4 << 20, 70.0)]
    if known or not output[0].isdigit():  # else the number cannot be told from the host
        rows = [output, *rows] if known else rows
        data = bound_log(io.BytesIO(log(rows).encode()))
        found = read(decode_log(data, "x"))
        assert [(size, us) for _, size, place, us in seen(found) if not place] == [
            (1 << 20, 50.0),
            (2 << 20, 60.0),
            (4 << 20, 70.0),
        ]
        assert found.lost == [] and {record.wrong for record in found.records} == {0}


def test_a_library_version_in_a_debugging_line_is_kept() -> None:
    text = log([row(1 << 20, 50.0)]).partition("\n")[2]  # without the tool's own version line
    loud = f"n1:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n{text}"
    data = bound_log(io.BytesIO(loud.encode()))
    assert read(decode_log(data, "x")).worlds[0].library == "NCCL 2.21.5+cuda12.4"


def test_docker_and_journal_lines_are_unwrapped() -> None:
    text = log([*torn(row(1 << 20, 50.0), "n1:1:2 [0] NCCL INFO x"), row(2 << 20, 60.0)])
    for key, end in (("log", "\n"), ("MESSAGE", "")):
        wrapped = [json.dumps({key: line + end, "x": 1}) for line in text.split("\n")]
        data = bound_log(io.BytesIO("\n".join(wrapped).encode()))
        assert seen(read(decode_log(data, "x"))) == seen(read(text))


def test_lines_that_a_web_form_left_without_a_hash_are_read() -> None:
    for text in (
        log([row(4096, 12.5, lead="sum", wrong="2e-07")], head=OLD.format(root="")),
        imb("Allreduce", 2, ["         1024         1000         1.50         2.50         2.00"]),
    ):
        bare = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.split("\n"))
        found, before = read(bare, kind="auto"), read(text)
        assert seen(found) == seen(before)
        assert (found.lost, found.closed, found.averages) == ([], True, before.averages)


def test_halves_are_in_the_order_of_the_header() -> None:
    text = log([row(1 << 20, 50.0)]).replace(
        "out-of-place                       in-place", "in-place                   out-of-place"
    )
    assert [(place, us) for _, _, place, us in seen(read(text))] == [(True, 50.0), (False, 49.0)]


@pytest.mark.parametrize("value", ["nan", "-nan", "inf"])
def test_a_half_without_a_number_is_named(value: str) -> None:
    text = log([row(1 << 20, 50.0).replace("49.00", f"{value:>5}"), row(2 << 20, 60.0)])
    found = read(text)
    assert len(seen(found)) == 3
    assert [why for _, why in found.lost] == [f"a time of {value}"]
    content = document([result(1 << 20, 50.0), result(2 << 20, 60.0)])
    content["results"][0]["in_place"]["time"] = value  # type: ignore[index]
    found = read(json.dumps(content))
    assert len(seen(found)) == 3 and len(found.lost) == 1


COMMANDS = {
    "$ mpirun -n 4 --map-by node ./osu_allreduce -x 9 -i 9": 4,
    "+ mpirun -np 6 -H a,b ./osu_allreduce": 6,
    "mpiexec.hydra --np 3 -genv A=1 ./osu_allreduce": 3,
    "srun -N 2 --ntasks-per-node=5 ./osu_allreduce": 10,
    "srun -N2 -n12 ./osu_allreduce": 12,
    "user@host:~$ srun --nodes=2 --ntasks-per-node 8 -- ./osu_allreduce": 16,
    "mpirun -np 2 ./osu_allreduce : -np 3 ./osu_allreduce": 5,
    "mpirun \\\n  -n 7 \\\n ./osu_allreduce": 7,
}


def test_ranks_are_those_of_the_command_that_started_the_table() -> None:
    table = osu("Allreduce", ["4096      9.00"])
    text = "".join(f"{command}\n{table}" for command in COMMANDS)
    found = read(text)
    assert [record.case.n for record in found.records] == [*COMMANDS.values()]
    assert {record.case.cycle for record in found.records} == {0} and not found.warnings


def test_a_table_more_that_no_command_started_is_a_warning() -> None:
    table = osu("Allreduce", ["4096      9.00"])
    found = read(f"mpirun -n 4 ./osu_allreduce\n{table}{table}")
    assert [record.case.n for record in found.records] == [4, 4] and len(found.warnings) == 1


def test_tables_of_other_ranks_stay_apart_where_ranks_are_given() -> None:
    table = osu("Allreduce", ["4096      9.00"])
    commands = [f"mpirun -n {n} ./osu_allreduce\n{table}" for n in (4, 6)]
    found = read("".join(commands), ranks=8)
    assert len({record.case.key for record in found.records}) == 2


def alone(hosts: list[str], rows: list[str], tables: int = 2) -> str:
    """What processes of a test without MPI print at once, each on a host of its own."""
    head, _, rest = log([]).partition("# Using devices\n")
    settings = head.split("\n")[2]
    columns = rest.split("#\n", 1)[1].split("\n# Out")[0]
    listed = [devices(2).replace("node00", host) for host in hosts]
    parts = [settings, "# Using devices"] * 2 + listed + ["#", columns] * tables + rows
    return "\n".join(
        ["+ mpirun -np 2 ./all_reduce_perf -g 2", *parts, "# Out of bounds values : 0 OK"]
    )


@pytest.mark.parametrize(("hosts", "name"), [(["a", "b"], "host"), (["a", "a"], "process")])
def test_processes_that_ran_alone_are_results_of_their_own(hosts: list[str], name: str) -> None:
    rows = [row(size, us, 2) for size in (1 << 20, 2 << 20) for us in (50.0, 90.0)]
    found = read(alone(hosts, rows))
    firsts = [record for record in found.records if not record.case.in_place]
    assert [(r.case.nbytes >> 20, r.told and r.told.time, r.case.cycle) for r in firsts] == [
        (1, 50e3, 0),
        (1, 90e3, 0),
        (2, 50e3, 0),
        (2, 90e3, 0),
    ]
    assert len({r.case.env for r in firsts}) == 2 and {r.case.n for r in firsts} == {2}
    assert [r.case.env[0][0] for r in firsts] == [name] * 4
    hosted = [found.worlds[r.world].ranks[0].host for r in firsts]
    assert hosted == hosts * 2
    assert "listed more than once" in found.warnings[0]


def test_one_table_of_several_processes_names_no_host() -> None:
    found = read(alone(["a", "b"], [row(1 << 20, 50.0, 2), row(2 << 20, 50.0, 2)], tables=1))
    assert len(seen(found)) == 4 and {record.case.collective for record in found.records} == {
        "all_reduce"
    }
    assert {record.case.n for record in found.records} == {2}
    assert [world.ranks for world in found.worlds] == [[]]


def test_labels_tell_whose_rows_are_whose() -> None:
    """Process 1 is ahead, so that the order in which rows stand would mislead."""
    texts = [
        log([row(size, us)]).replace("node00", host)
        for size, us, host in ((1 << 20, 50.0, "a"), (1 << 20, 90.0, "b"))
    ]
    lines = [
        f"[1,{process}]<stdout>:{line}" for process in (1, 0) for line in texts[process].split("\n")
    ]
    lines.sort(key=lambda line: "float" in line)  # rows last, of process 1 first
    found = read("\n".join(lines))
    hosted = {found.worlds[r.world].ranks[0].host: r.told for r in found.records[::2]}
    assert {host: told and told.time for host, told in hosted.items()} == {"a": 50e3, "b": 90e3}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("node00", "node77"),  # the host
        ("H200", "H100"),
        ("nccl-library=23004", "nccl-library=22706"),
        ("agg iters: 1", "agg iters: 4"),
        ("nThread 1 nGpus 1", "nThread 1 nGpus 8"),
        ("#\n# Using", "# Blocking Enabled: wait for completion and barrier\n#\n# Using"),
    ],
)
def test_tables_that_differ_in_what_a_case_does_not_hold_are_not_repetitions(
    old: str, new: str
) -> None:
    text = log([row(1 << 20, 50.0)])
    found = read(text + text.replace(old, new))
    assert len({record.case.key for record in found.records}) == 4
    assert {record.case.cycle for record in found.records} == {0}


def test_the_number_of_gpus_in_the_head_and_in_the_list_must_agree() -> None:
    text = log([row(1 << 20, 50.0, 2)], n=2)
    assert read(text).warnings == []
    warnings = read(text.replace("nGpus 1", "nGpus 8")).warnings
    assert len(warnings) == 1 and "8 GPUs" in warnings[0] and "2 ranks" in warnings[0]


# --- wrong data


def test_defects_of_imb_are_wrong_data() -> None:
    found = read(
        imb(
            "Allreduce",
            2,
            [
                "         1024         1000         1.50         2.50         2.00         0.00",
                "         2048         1000         1.50         2.50         2.00         3.00",
            ],
            "#bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]      defects",
        )
    )
    assert [record.status for record in found.records] == ["ok", "wrong"]


def test_failed_checks_of_a_json_are_kept() -> None:
    found = read(json.dumps(document([result(1 << 20, 50.0)], out_of_bounds={"count": 2})))
    end = assemble.assemble_runs(found)[-1]
    assert isinstance(end, End) and end.exit == 7 and "2 checks" in end.note


def test_a_failed_validation_between_rows_of_osu_is_kept() -> None:
    rows = ["4096      9.00", "DATA VALIDATION ERROR: osu_allreduce exited with status 1"]
    found = read(osu("Allreduce", rows), ranks=4)
    end = assemble.assemble_runs(found)[-1]
    assert isinstance(end, End) and end.exit == 7 and "1 check " in end.note


# --- forms of rccl-tests and of others


def rccl_rows(**layout: int) -> list[dict[str, object]]:
    size, us = 1 << 20, 50.0
    rate = size / us / 1e3
    return [
        {"name": "AllReduce", **layout, "size": size, "type": "float", "redop": "sum"}
        | {"inPlace": place, "time": us, "algBw": rate, "busBw": rate * 1.75, "wrong": "0"}
        for place in (0, 1)
    ]


@pytest.mark.parametrize("wrong", ["wrong", "#wrong"])
@pytest.mark.parametrize(
    "layout", [{"gpus": 8}, {"nodes": 2, "ranks": 4, "ranksPerNode": 2, "gpusPerRank": 2}]
)
def test_older_flat_files_of_rccl_tests(layout: dict[str, int], wrong: str) -> None:
    rows = rccl_rows(**layout)
    for fields in rows:
        fields[wrong] = fields.pop("wrong")
    names = {"name": "collective", "inPlace": "inplace", "algBw": "algbw", "busBw": "busbw"}
    head = ", ".join(names.get(name, name) for name in rows[0])
    table = "\n".join([head, *(", ".join(map(str, fields.values())) for fields in rows)])
    lines = "\n".join(json.dumps(dict(sorted(fields.items()))) for fields in rows)
    for text in (table, lines, json.dumps(rows)):
        found = read(text)
        assert [place for _, _, place, _ in seen(found)] == [False, True]
        assert {record.case.n for record in found.records} == {8}
        assert {record.wrong for record in found.records} == {0} and not found.lost


def test_rccl_rows_of_other_layouts_are_not_pooled() -> None:
    rows = rccl_rows(nodes=1, ranks=8, ranksPerNode=8, gpusPerRank=1)
    rows += rccl_rows(nodes=2, ranks=8, ranksPerNode=4, gpusPerRank=1)
    assert len({record.case.key for record in read(json.dumps(rows)).records}) == 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\3\4\x14", "zip"),
        (b"\xfd7zXZ\0\0", "xz"),
        (b"\x28\xb5\x2f\xfd\x24", "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"a.log" + bytes(252) + b"ustar\x0000", "tar"),
        (gzip.compress(b"a.log" + bytes(252) + b"ustar\x0000", mtime=0), "tar"),
    ],
)
def test_archives_are_named_with_what_unpacks_them(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        decode_log(bound_log(io.BytesIO(data)), "logs")
    assert "unpack it" in refused.value.hint


def test_a_neighbour_is_named() -> None:
    text = (
        "# minBytes 8 maxBytes 8 step: 2(factor) graph: 10, kernel num: 0\n# Initializing MSCCL++"
    )
    with pytest.raises(UsageError, match="mscclpp-test"):
        read(text)
