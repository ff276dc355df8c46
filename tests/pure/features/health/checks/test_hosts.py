"""What a night's records say of data, ranks, GPUs and hosts: each planted fault is found, and who
is at fault named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from factories import ENVIRONMENT, hosted, night, nightly, stored

from collbench.core.errors import Exit
from collbench.features.health.blame import list_blamed
from collbench.features.health.checks import hosts
from collbench.features.health.checks import table as checks
from collbench.features.health.findings import Verdict
from collbench.features.health.history.nights import nights_of
from collbench.records.types import FirstWrong, GpuState, HostInfo, Record, RunFile

replace = msgspec.structs.replace
ROW = nightly()[1]  # all_reduce 16 KiB
ROWS = [
    case
    for case in nightly()
    if case.collective in ("all_reduce", "all_gather", "reduce_scatter", "sendrecv")
]
GPUS = {"ranks": hosted(4, 2, "cuda")}


def judged(
    change: Callable[[Record], Record | None] = lambda record: record, **fields: Any
) -> Verdict:
    return checks.judge_night([night(change=change, rows=ROWS, **fields)])


def in_row(**fields: Any) -> Callable[[Record], Record]:
    return lambda made: replace(made, **fields) if made.case == ROW else made


def blamed(verdict: Verdict, check: str) -> list[tuple[str, str, str]]:
    return [
        (f.severity, f.subject.kind, f.subject.name) for f in verdict.findings if f.check == check
    ]


def outcome(verdict: Verdict, check: str) -> str:
    return next(one.outcome for one in verdict.checks if one.check == check)


FIRST = FirstWrong(
    rank=2, index=7, got="1.0 0x3f800000", expected="3.0 0x40400000", when="after timing"
)
WRONG = {"status": "wrong", "wrong": 3, "first_wrong": FIRST}


def test_wrong_data_is_critical_and_names_rank_host_and_bits() -> None:
    verdict = judged(in_row(**WRONG))
    assert blamed(verdict, "data") == [("critical", "rank", "node2:2")]
    (found,) = (f for f in verdict.findings if f.check == "data")
    assert (
        found.evidence[0].value == "1.0 0x3f800000"
        and found.evidence[0].expected == "3.0 0x40400000"
    )
    assert found.evidence[0].case == ROW.key and "9 elements" in found.what
    assert (verdict.state, verdict.exit) == ("unhealthy", Exit.BAD)


def test_wrong_data_on_a_gpu_names_the_gpu() -> None:
    assert blamed(judged(in_row(**WRONG), worlds=GPUS), "data") == [
        ("critical", "gpu", "node1:cuda:0 (rank 2)")
    ]


def test_a_gpu_keeps_its_name_where_the_record_tells_its_address_and_product() -> None:
    """Nights before and after are of the same subjects."""
    ranks = [replace(r, device=f"{r.device} [0000:0f:00] Fast GPU") for r in GPUS["ranks"]]
    assert blamed(judged(in_row(**WRONG), worlds={"ranks": ranks}), "data") == [
        ("critical", "gpu", "node1:cuda:0 (rank 2)")
    ]


def test_unchecked_data_is_no_pass() -> None:
    verdict = judged(lambda made: replace(made, checked=0))
    assert outcome(verdict, "data") == "no data" and verdict.state == "no verdict"


@pytest.mark.parametrize(
    ("note", "who"),
    [
        ("rank 3 on node3 stopped in measuring", "node3:3"),
        ("ranks 2, 3 never came", "no one rank alone"),
    ],
)
def test_a_failed_case_is_critical(note: str, who: str) -> None:
    verdict = judged(in_row(status="failed", note=note, times_ns=[]))
    assert [found[2] for found in blamed(verdict, "completeness")] == [who]
    assert verdict.state == "unhealthy"


def test_a_failed_case_names_the_file_that_its_run_goes_on_in(tmp_path: Path) -> None:
    change = in_row(status="failed", note="rank 3 on node3 stopped in measuring", times_ns=[])
    file = replace(night(change=change, rows=ROWS), path=tmp_path / "night.jsonl")
    (finding,) = (f for f in checks.judge_night([file]).findings if f.check == "completeness")
    assert f"collbench run --resume {file.path} measures" in finding.advice


def test_a_case_that_broke_in_its_second_pass_is_critical() -> None:
    """Though the samples of its first stand."""
    note = "broke in its second pass: rank 3 on node3 was killed"
    verdict = judged(in_row(stop="cut", note=note))
    assert [found[2] for found in blamed(verdict, "completeness")] == ["node3:3"]
    assert verdict.state == "unhealthy"


def test_a_case_that_was_disturbed_all_the_time_is_told_and_no_fault() -> None:
    verdict = judged(in_row(status="failed", note="no valid sample (3 x late start)", times_ns=[]))
    told = {one.check: one for one in verdict.checks}
    assert (
        verdict.state == "healthy" and "3 cases without a valid sample" in told["completeness"].note
    )


class Incomparable(Record, frozen=True, kw_only=True, tag="record"):
    """A record that may not be held against another, which takes as long as all its samples."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("records were compared")

    __hash__ = Record.__hash__


def test_cases_without_a_valid_sample_are_counted_without_comparing_records() -> None:
    lost = {"status": "failed", "note": "no valid sample (3 x late start)", "times_ns": []}
    change = lambda made: Incomparable(**{**msgspec.structs.asdict(made), **lost})
    (told,) = (c for c in judged(change).checks if c.check == "completeness")
    assert f"{3 * len(ROWS)} cases without a valid sample" in told.note


@pytest.mark.parametrize("end", [None, Exit.INTERRUPTED, Exit.CANNOT_RUN])
def test_a_run_without_its_end_gives_no_verdict(end: int | None) -> None:
    verdict = judged(end=end)
    assert verdict.state == "no verdict" and "complete runs" in verdict.summary


def late(which: int, starts: bool = True, waiting: bool = True) -> Callable[[Record], Record]:
    """Rank ``which`` comes late by half of the time; or, all coming at once, leaves last. Only
    where ranks wait for each other, unless ``waiting`` is False."""

    def change(made: Record) -> Record:
        if (waiting and not made.case.row.synchronising) or made.case.n < 2:
            return made
        times = [t + i % 7 for i, t in enumerate(made.times_ns * 6)]
        wait = [t // 2 for t in times]
        durations = [
            [t - w if (r == which) == starts else t for t, w in zip(times, wait, strict=True)]
            for r in range(4)
        ]
        begins = [[w if r == which and starts else 0 for w in wait] for r in range(4)]
        return replace(made, times_ns=times, per_rank=durations, starts_ns=begins, glob_ns=times)

    return change


def test_a_late_rank_is_told_apart_from_slow_links() -> None:
    verdict = judged(late(2))
    assert blamed(verdict, "stragglers") == [("warning", "rank", "node2:2")]
    assert "comes late" in verdict.findings[0].what and verdict.state == "unhealthy"
    verdict = judged(late(1, starts=False))
    assert blamed(verdict, "stragglers") == [("warning", "rank", "node1:1")]
    assert "leaves last" in verdict.findings[0].what


def test_a_rank_so_late_that_rows_are_skewed_is_still_named() -> None:
    skewed = lambda made: replace(late(2)(made), skew_ns=[t // 2 for t in made.times_ns])
    verdict = judged(skewed)
    assert blamed(verdict, "stragglers") == [("warning", "rank", "node2:2")]
    assert outcome(verdict, "monotony") == "no data"


OTHERS = {
    "whose ranks do not all wait": ("broadcast", "reduce", "gather", "scatter"),
    "of few samples": ("all_gather", "reduce_scatter", "all_to_all", "sendrecv"),
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_records_that_can_name_nobody_take_no_part(others: tuple[str, ...]) -> None:
    """Rank 2 is late in all of them: seen in 3 records of 3, not of 15."""
    rows = [ROW, *(row for row in nightly(sizes=[ROW.nbytes]) if row.collective in others)]
    few = {"per_rank": [[7] * 7] * 4, "starts_ns": [[0] * 7] * 4}

    def change(made: Record) -> Record:
        if made.case == ROW or not made.case.row.synchronising:
            return late(2, waiting=False)(made)
        return replace(made, **few)

    verdict = checks.judge_night([night(rows=rows, change=change)])
    assert blamed(verdict, "stragglers") == [("warning", "rank", "node2:2")]
    assert "in 3 of 3 records" in verdict.findings[0].what


def test_records_without_a_common_clock_do_not_count_against_a_rank_that_leaves_last() -> None:
    rows = [row for row in nightly() if row.collective in ("all_reduce", "all_gather")]

    def change(made: Record) -> Record:
        if made.case == ROW:
            return late(1, starts=False)(made)
        return replace(late(9)(made), starts_ns=[], glob_ns=[])

    verdict = checks.judge_night([night(rows=rows, change=change)])
    assert blamed(verdict, "stragglers") == [("warning", "rank", "node1:1")]


def test_a_rank_late_in_a_few_records_is_not_accused() -> None:
    verdict = judged(lambda made: (late(2) if made.case == ROW else late(9))(made))
    assert blamed(verdict, "stragglers") == [] and outcome(verdict, "stragglers") == "passed"


def watched(**fault: Any) -> Callable[[Record], Record]:
    """GPU states of four ranks, of which the third has a fault in one row."""
    well = [
        GpuState(index=r % 2, name="H100", sm_mhz=1900, ecc=0, xid=0, nvlink_errors=0)
        for r in range(4)
    ]
    ill = [*well[:2], replace(well[2], **fault), well[3]]
    return lambda made: replace(made, gpus=ill if made.case == ROW else well)


@pytest.mark.parametrize(
    ("fault", "severity", "words"),
    [
        ({"xid": 79}, "critical", "Xid 79"),
        ({"xid": 45}, "hint", "Xid 45 while collectives ran, which is a program's fault"),
        ({"ecc": 2}, "critical", "6 uncorrected ECC errors"),
        ({"nvlink_errors": 5}, "warning", "15 NVLink or xGMI errors"),
        ({"pcie_replays": 1}, "hint", "3 PCIe replays"),
        (
            {"throttle": ("hw_slowdown",), "celsius": 91},
            "warning",
            "hw_slowdown in 3 readings, at most 91 °C",
        ),
        ({"throttle": ("sw_power_cap",)}, "hint", "sw_power_cap"),
        ({"throttle": ("package_power_limit",)}, "hint", "package_power_limit"),
    ],
)
def test_a_gpus_trouble_is_told(fault: dict[str, Any], severity: str, words: str) -> None:
    verdict = judged(watched(**fault), worlds=GPUS)
    assert blamed(verdict, "gpus") == [(severity, "gpu", "node1:cuda:0 (rank 2)")]
    assert words in next(f.what for f in verdict.findings if f.check == "gpus")


def test_gpus_that_are_well_pass_and_without_states_have_no_data() -> None:
    assert outcome(judged(watched(), worlds=GPUS), "gpus") == "passed"
    assert outcome(judged(worlds=GPUS), "gpus") == "no data"
    assert outcome(judged(), "gpus") == "not applicable"


def test_a_clock_below_the_others_is_found() -> None:
    states = [GpuState(index=r % 2, name="H100", sm_mhz=1400 if r == 1 else 1900) for r in range(4)]
    verdict = judged(lambda made: replace(made, gpus=states), worlds=GPUS)
    assert blamed(verdict, "gpus") == [("warning", "gpu", "node0:cuda:1 (rank 1)")]


def test_a_gpu_of_a_group_is_found_on_its_host() -> None:
    """A row of a group holds the states of its ranks alone."""
    well = GpuState(index=0, name="H100", ecc=0)

    def second_group(made: Record) -> Record:
        grouped = replace(made.case, n=2, groups="div:2", of=2, group=1)
        return replace(made, case=grouped, gpus=[replace(well, ecc=3), replace(well, index=1)])

    verdict = judged(second_group, worlds=GPUS)
    assert blamed(verdict, "gpus") == [("critical", "gpu", "node1:cuda:0 (rank 2)")]


def test_each_gpu_of_a_launch_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of its readings, of which a fleet's runs have a million."""
    looked_up: list[int] = []
    find = hosts._find_gpu
    monkeypatch.setattr(
        hosts, "_find_gpu", lambda *words: (looked_up.append(words[1]), find(*words))[1]
    )
    states = [GpuState(index=rank, name="Fast GPU") for rank in range(4)]
    verdict = judged(lambda made: replace(made, gpus=states), worlds=GPUS)
    assert outcome(verdict, "gpus") == "passed"
    assert len(looked_up) == 3 * 4


def test_gpus_of_two_models_are_two_where_no_rank_names_them() -> None:
    def change(made: Record) -> Record:
        gpu = GpuState(index=0, name="A" if made.case == ROW else "B", ecc=int(made.case == ROW))
        return replace(made, world=99, gpus=[gpu])

    assert blamed(judged(change, worlds=GPUS), "gpus") == [("critical", "gpu", "GPU 0, A")]
    (note,) = (each.note for each in judged(change, worlds=GPUS).checks if each.check == "gpus")
    assert note.startswith("2 GPUs watched")


def test_the_host_that_is_not_like_the_others_is_named() -> None:
    facts = [{"cpu.governor": "performance"}] * 3 + [{"cpu.governor": "powersave"}]
    hosts = [
        HostInfo(host=f"node{i}", fingerprint=f["cpu.governor"], differs=f)
        for i, f in enumerate(facts)
    ]
    verdict = judged(worlds={"hosts": hosts, "ranks": hosted()})
    assert blamed(verdict, "alike") == [("hint", "host", "node3")] and verdict.state == "healthy"


def test_a_port_slower_than_others_of_its_kind_is_a_hint() -> None:
    """As ports of a storage network are, which may be of the same adapter."""
    ports = {
        "mlx5_0:1": {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE"},
        "mlx5_1:1": {"rate": "200 Gb/sec (4X HDR)", "state": "4: ACTIVE"},
    }
    verdict = judged(environment={**ENVIRONMENT, "host": "node0", "rdma": ports})
    assert blamed(verdict, "ports") == [("hint", "link", "node0: mlx5_1:1")]
    assert verdict.state == "healthy"


def test_no_port_is_slower_than_one_that_is_down() -> None:
    """Which reports a rate nonetheless."""
    ports = {
        "mlx5_0:1": {"rate": "25 Gb/sec (1X EDR)", "state": "4: ACTIVE"},
        "mlx5_1:1": {"rate": "40 Gb/sec (4X QDR)", "state": "1: DOWN"},
    }
    verdict = judged(environment={**ENVIRONMENT, "host": "node0", "rdma": ports})
    (finding,) = [one for one in verdict.findings if one.check == "ports"]
    assert (finding.subject.name, finding.what) == ("node0: mlx5_1:1", "is down")
    assert finding.evidence[0].expected == "ACTIVE, 25 Gb/s"


def test_a_slower_port_of_another_kind_is_none_that_trained_down() -> None:
    ports = {
        "mlx5_0:1": {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE", "firmware": "28.39"},
        "mlx5_1:1": {"rate": "100 Gb/sec (4X EDR)", "state": "4: ACTIVE", "firmware": "16.35"},
    }
    assert outcome(judged(environment={**ENVIRONMENT, "rdma": ports}), "ports") == "passed"


def counted(*counts: dict[str, int], host: str = "node1") -> Verdict:
    """Of launches in each of which the ports had counted so much."""
    made = night(rows=ROWS, launches=len(counts))
    worlds = [
        replace(world, counters={"node0": {"eth0 rx_errors": 5}, host: of})
        for world, of in zip(made.worlds, counts, strict=True)
    ]
    return checks.judge_night([replace(made, worlds=worlds)])


def test_errors_that_ports_count_between_launches_are_told() -> None:
    verdict = counted(
        {"mlx5_0:1 symbol_error": 3}, {"mlx5_0:1 symbol_error": 3}, {"mlx5_0:1 symbol_error": 9}
    )
    assert blamed(verdict, "counters") == [("warning", "link", "node1: mlx5_0:1")]
    (finding,) = verdict.findings
    assert finding.what == "counted 6 symbol_error" and verdict.state == "unhealthy"


@pytest.mark.parametrize(
    "verdict",
    [
        lambda: counted({"mlx5_0:1 symbol_error": 3}, {"mlx5_0:1 symbol_error": 4}),
        lambda: judged(watched(nvlink_errors=1), worlds=GPUS),
    ],
)
def test_an_error_of_a_link_which_its_other_end_may_have_made_blames_no_host(
    verdict: Callable[[], Verdict],
) -> None:
    assert [f.sure for f in verdict().findings if f.severity == "warning"] == [None]
    assert list_blamed(verdict()) == []


def test_what_congestion_raises_is_a_hint_and_a_reset_no_rise_below_zero() -> None:
    verdict = counted(
        {"eth1 rx_missed_errors": 90}, {"eth1 rx_missed_errors": 2}, {"eth1 rx_missed_errors": 2}
    )
    assert (
        blamed(verdict, "counters") == [("hint", "link", "node1: eth1")]
        and verdict.state == "healthy"
    )
    assert verdict.findings[0].what == "counted 2 rx_missed_errors"


def test_a_counter_that_is_full_is_no_pass() -> None:
    full = {"mlx5_0:1 symbol_error": 65535}
    assert blamed(counted(full, full, full), "counters") == [("hint", "link", "node1: mlx5_0:1")]


def test_ports_that_count_nothing_pass_and_one_look_is_no_data() -> None:
    still = {"eth1 rx_errors": 7}
    assert outcome(counted(still, still, still), "counters") == "passed"
    assert outcome(counted(still), "counters") == outcome(judged(), "counters") == "no data"


def summed(*bits: list[str], **fields: Any) -> Verdict:
    """Of launches whose sums had these digests."""
    return judged(
        lambda made: (
            replace(made, bits=bits[made.world], **fields) if made.case.row.reduces else made
        )
    )


def test_sums_are_the_same_to_the_bit_or_it_is_told_where_not() -> None:
    same = ["aa"]
    assert outcome(summed(same, same, same), "repeatability") == "passed"
    assert outcome(judged(), "repeatability") == "no data"
    for bits, words in (
        ((same, ["bb"], same), "launch by launch"),
        ((same, same, ["aa", "bb"]), "call by call"),
    ):
        verdict = summed(*bits)
        assert (
            blamed(verdict, "repeatability") == [("hint", "collective", "gloo")]
            and verdict.state == "healthy"
        )
        what = next(
            finding.what for finding in verdict.findings if finding.check == "repeatability"
        )
        assert words in what and "all_reduce" in what


NIGHT = night(rows=ROWS)


def again(**fields: Any) -> RunFile:
    """The same night by another name."""
    return replace(NIGHT, run=replace(NIGHT.run, id="again", **fields))


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([NIGHT, again(environment={**ENVIRONMENT, "kernel": "6.2"})], "kernel 6.1.0 -> 6.2"),
        (
            [NIGHT, replace(again(), worlds=night(worlds={"ranks": hosted(4, 2)}).worlds)],
            "different hosts",
        ),
        ([night(rows=ROWS, change=lambda made: replace(made, status="predicted"))], "predicted"),
        ([stored({ROW: 1e6}, imported="nccl-tests")], "imported"),
        ([], "no runs"),
    ],
)
def test_what_is_no_night_gets_no_verdict(files: list[RunFile], why: str) -> None:
    verdict = checks.judge_night(files)
    assert (
        verdict.state == "no verdict" and why in verdict.summary and verdict.exit == Exit.NO_VERDICT
    )


NDR, SDR = "400 Gb/sec (4X NDR)", "10 Gb/sec (4X SDR)"


def of_node(name: str = "node0", **facts: Any) -> dict[str, Any]:
    return {**ENVIRONMENT, "host": name, **facts}


def with_port(rate: str, **facts: Any) -> dict[str, Any]:
    port = {"rate": rate, "state": "4: ACTIVE", "link": "InfiniBand", "firmware": "28.39"}
    return of_node(rdma={"mlx5_0:1": port | facts})


def with_gpus(*links: int, **facts: Any) -> dict[str, Any]:
    device = {"name": "Fast GPU", "power_limit": 700, "mig": [0, 0]} | facts
    devices = [device | {"nvlinks": count} for count in links]
    return of_node(gpus={"driver": "570", "devices": devices})


def with_gpus_on(*nodes: int) -> dict[str, Any]:
    """GPUs by the NUMA nodes that they are on."""
    devices = [{"name": "Fast GPU", "numa": node} for node in nodes]
    return of_node(gpus={"driver": "570", "devices": devices})


def with_card(**facts: Any) -> dict[str, Any]:
    return of_node(nics={"eth0": {"driver": "mlx5_core", "mbps": 100_000, "mtu": 9000} | facts})


def night_of_runs(*environments: dict[str, Any], **fields: Any) -> list[RunFile]:
    """Runs one after the other, the last with these fields."""
    last = len(environments) - 1
    return [
        night(
            rows=ROWS,
            seed=number,
            name=f"run{number}",
            started=f"2026-01-02T0{3 + number}:00:00+00:00",
            environment=facts,
            **(fields if number == last else {}),
        )
        for number, facts in enumerate(environments)
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (with_port(NDR), with_port(SDR), f"rdma.mlx5_0:1.rate {NDR} -> {SDR}"),
        (with_port(NDR), of_node(), "rdma.mlx5_0:1.firmware 28.39 -> absent"),
        (with_gpus(18, 18), with_gpus(18, 17), "gpus.devices.1.nvlinks 18 -> 17"),
        (with_gpus(18, 18), with_gpus(18), "gpus.devices.1.name Fast GPU -> absent"),
        (with_gpus_on(0, 0, 1), with_gpus_on(0, 1), "gpus.devices.1.numa 0 -> 1"),
        (with_card(), with_card(mbps=10_000), "nics.eth0.mbps 100000 -> 10000"),
    ],
)
def test_what_a_host_loses_between_two_runs_is_said_of_it(
    before: dict[str, Any], after: dict[str, Any], words: str
) -> None:
    verdict = checks.judge_night(night_of_runs(before, before, after))
    assert verdict.state == "unhealthy" and words in verdict.summary
    assert blamed(verdict, "alike") == [("warning", "host", "node0")]
    assert len(verdict.findings) == 1 and verdict.findings[0].evidence[0].run == "run2"
    assert verdict.findings[0].advice.endswith("not held against earlier nights together")
    assert list_blamed(verdict) == []  # it may be a switch's


def test_a_run_after_a_port_has_trained_down_is_judged_as_any() -> None:
    files = night_of_runs(with_port(NDR), with_port(SDR), change=in_row(**WRONG))
    verdict = checks.judge_night(files)
    assert blamed(verdict, "data") == [("critical", "rank", "node2:2")]
    assert outcome(verdict, "completeness") == "passed" and len(verdict.checks) > 10


def test_another_host_that_loses_a_port_is_named() -> None:
    """Of other hosts than the first a run has the facts in which hosts differ."""

    def hosts(rate: str) -> list[HostInfo]:
        rates = [NDR, rate, NDR, NDR]
        differs = [{"rdma.mlx5_0:1.rate": r} if rate != NDR else {} for r in rates]
        return [
            HostInfo(host=f"node{i}", fingerprint=r, differs=d)
            for i, (r, d) in enumerate(zip(rates, differs, strict=True))
        ]

    before, after = night_of_runs(with_port(NDR), with_port(NDR))
    before, after = (
        replace(file, worlds=[replace(world, hosts=hosts(rate)) for world in file.worlds])
        for file, rate in ((before, NDR), (after, SDR))
    )
    assert blamed(checks.judge_night([before, before]), "alike") == []
    verdict = checks.judge_night([before, after])
    warnings = [each for each in blamed(verdict, "alike") if each[0] == "warning"]
    assert warnings == [("warning", "host", "node1")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (with_port(NDR), with_port(NDR, firmware="28.41")),
        (with_gpus(18), with_gpus(18) | {"variables": {"NCCL_ALGO": "Ring"}}),
        (with_gpus(18), with_gpus(18, power_limit=500)),
        (with_gpus(18), with_gpus(18, mig=[1, 0])),
        (with_card(), with_card(mtu=1500)),
        (with_port(NDR), with_port(SDR) | {"host": "node1"}),
    ],
)
def test_other_versions_settings_and_machines_make_no_night(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    verdict = checks.judge_night(night_of_runs(before, after))
    assert verdict.state == "no verdict" and "are no night: " in verdict.summary


def test_runs_before_and_after_a_change_are_nights_of_their_own() -> None:
    """Only those of one kind are held against earlier nights."""
    tonight = nights_of(night_of_runs(with_port(NDR), with_port(SDR)))
    assert {night.runs for night in tonight.values()} == {("run1",)}


def test_several_runs_of_one_launch_make_a_night_whatever_libraries_of_others_came() -> None:
    files = [
        night(
            launches=1,
            seed=i,
            name=f"run{i}",
            environment=ENVIRONMENT | {"libraries": {"torch": "2.6.0", "mpi4py": f"4.{i}"}},
        )
        for i in range(3)
    ]
    verdict = checks.judge_night(files)
    assert verdict.state == "healthy" and verdict.runs == ["run0", "run1", "run2"]


def test_a_planted_fault_is_judged_as_if_it_were_none() -> None:
    """Rows with the flag gate nothing elsewhere; here the alarm must ring."""
    planted = lambda made: replace(made, injected="delay:rank=2")
    assert judged(planted).state == "healthy"
    verdict = judged(lambda made: planted(late(2)(made)))
    assert blamed(verdict, "stragglers") == [("warning", "rank", "node2:2")]
