"""A fleet of nodes: odd ones are found, healthy ones accused of nothing, and who has no verdict is
named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fleets
import msgspec
import numpy as np
import pytest
from factories import ENDED, ENVIRONMENT, ranks
from fleets import (
    CASES,
    DEDICATED,
    Scatter,
    draw_logs,
    name_node,
    node_lines,
    plain_batch,
    write_node,
)

from collbench.cli import main as commands
from collbench.core.errors import UsageError
from collbench.features.health.blame import list_blamed
from collbench.features.health.checks import table
from collbench.features.health.findings import Finding, Subject
from collbench.features.health.fleet import judgement, places
from collbench.features.health.fleet.judgement import ALL, Fleet
from collbench.features.health.fleet.reading import SINGLE, Batch, Blind, NodeRun
from collbench.features.health.fleet.tails import fit_tail
from collbench.features.health.fleet.view import make_document, make_verdict
from collbench.machine.load import Load
from collbench.records import run_file
from collbench.records.derive import NO_SAMPLE
from collbench.records.types import FirstWrong, GpuState, Record, World

NODES = 40
Said = Callable[..., tuple[int, str, str]]


def fleet(
    seed: int = 0,
    nodes: int = NODES,
    slower: Mapping[int, float] | None = None,
    scatter: Scatter = DEDICATED,
    **facts: Any,
) -> Fleet:
    rng = np.random.default_rng(seed)
    logs = draw_logs(rng, nodes, 3, CASES, scatter)
    return judgement.judge_batches([plain_batch(logs, slower=slower, **facts)])


def odd_nodes(judged: Fleet) -> list[str]:
    return [node.host for node in judged.odd]


def test_planted_nodes_are_found_and_nobody_else() -> None:
    judged = fleet(nodes=200, slower={7: 0.08, 90: 0.12, 151: 0.2})
    assert odd_nodes(judged) == [name_node(151), name_node(90), name_node(7)]
    assert [round(node.worst[1], 2) for node in judged.odd] == pytest.approx(
        [0.2, 0.12, 0.08], abs=0.02
    )


@pytest.mark.parametrize("heavy", [0.0, 3.0])
def test_nobody_is_accused_in_healthy_fleets(heavy: float) -> None:
    for seed in range(6):
        assert not fleet(seed, scatter=Scatter(heavy=heavy)).odd


def test_a_node_slow_in_large_sizes_alone_is_found_there() -> None:
    logs = draw_logs(np.random.default_rng(3), 60, 3, CASES)
    large = [index for index, case in enumerate(CASES) if case.size >= 16 << 20]
    logs[5][:, large] += 0.3
    judged = judgement.judge_batches([plain_batch(logs)])
    assert odd_nodes(judged) == [name_node(5)]
    assert judged.odd[0].worst[0] == "sizes from 1 MiB"


def test_a_node_slow_in_one_collective_is_found_there() -> None:
    logs = draw_logs(np.random.default_rng(3), 60, 3, CASES)
    own = [index for index, case in enumerate(CASES) if case.collective == "broadcast"]
    logs[5][:, own] += 0.25
    judged = judgement.judge_batches([plain_batch(logs)])
    assert [(node.host, node.worst[0]) for node in judged.odd] == [(name_node(5), "broadcast")]


def test_one_disturbed_row_accuses_nobody() -> None:
    logs = draw_logs(np.random.default_rng(3), 60, 3, CASES)
    logs[5][:, 0] += 3
    assert not judgement.judge_batches([plain_batch(logs)]).odd


def test_machine_types_are_compared_apart_and_told() -> None:
    """A second type that is 30 % slower is no reason to accuse its nodes; one of them that is 15 %
    slower than its like is found."""
    facts = {n: {"kernel": "6.1", "cpu.model": "old" if n % 2 else "new"} for n in range(60)}
    slower = {n: 0.3 for n in range(60) if n % 2}
    slower[11] = 1.3 * 1.15 - 1
    judged = fleet(nodes=60, slower=slower, facts=facts)
    assert odd_nodes(judged) == [name_node(11)]
    assert [len(group.nodes) for group in judged.groups] == [30, 30]
    findings = make_verdict(judged).findings
    assert any("cpu.model" in finding.what for finding in findings if finding.check == "alike")


def test_two_levels_that_nothing_explains_are_told() -> None:
    judged = fleet(nodes=60, slower=dict.fromkeys(range(0, 60, 2), 0.12))
    assert not judged.odd
    assert any("gather around two times" in f.what for f in make_verdict(judged).findings)


def test_too_few_like_nodes_have_no_verdict() -> None:
    judged = fleet(nodes=judgement.FEWEST - 1)
    assert make_verdict(judged).state == "no verdict"
    assert {node.trouble for node in judged.nodes} == {"few like it"}


def test_nodes_that_scatter_too_much_have_no_verdict() -> None:
    judged = fleet(nodes=12, scatter=Scatter(node=0.1))
    assert make_verdict(judged).state == "no verdict"
    assert {node.trouble for node in judged.nodes} == {"scatter"}


def test_a_tail_is_what_was_drawn() -> None:
    """The oracle draws: of many healthy nodes, so many exceed a limit as its chance says."""
    values = np.random.default_rng(1).standard_t(5, 2000) * 0.01
    limit = fit_tail(values).limit(0.01)
    fresh = np.random.default_rng(2).standard_t(5, 200_000) * 0.01
    assert np.mean(fresh > limit) == pytest.approx(0.01, rel=0.4)


# by files


@pytest.fixture
def said(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Said:
    """Runs the command in this process: its exit code, standard output and standard error."""
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "home"))

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["collbench", "health", "--fleet", *args])
        with pytest.raises(SystemExit) as ended:
            commands.main()
        printed = capfd.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


SMALL = CASES[:6]


def save_fleet(
    folder: Path, nodes: int = 24, slower: Mapping[int, float] = {}, seed: int = 4, **fields: Any
) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    logs = draw_logs(np.random.default_rng(seed), nodes, 2, SMALL)
    for number in range(nodes):
        lines = node_lines(number, logs[number], SMALL, slower=slower.get(number, 0.0), **fields)
        write_node(folder / f"{number:03}.jsonl", lines)
    return logs


def fleet_values(said: Said, *args: str) -> tuple[int, dict[str, Any]]:
    code, out, err = said(*args, "--format", "json")
    assert not err, err
    values: dict[str, Any] = json.loads(out)
    return code, values


def states(values: Mapping[str, Any]) -> dict[str, str]:
    return {node["node"]: node["state"] for node in values["fleet"]["nodes"]}


def test_odd_nodes_of_a_folder_exit_1_and_are_named(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night", slower={3: 0.15})
    code, values = fleet_values(said, str(tmp_path / "night"))
    assert code == 1
    assert [node for node, state in states(values).items() if state != "like"] == [name_node(3)]
    assert values["findings"][0]["subject"] == {"kind": "host", "name": name_node(3)}
    assert values["findings"][0]["severity"] == "warning"


def test_a_fleets_verdict_has_the_night_of_its_page(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night")
    _, values = fleet_values(said, str(tmp_path / "night"))
    assert values["night"] == values["fleet"]["night"] != ""


def test_a_healthy_fleet_exits_0(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night")
    code, out, _ = said(str(tmp_path / "night" / "*.jsonl"))
    assert (code, "24 of 24 nodes judged, none odd" in out) == (0, True)


def test_one_node_alone_has_no_verdict(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night", nodes=1)
    code, out, _ = said(str(tmp_path / "night"))
    assert code == 3
    assert "8 are needed" in out


def test_missing_nodes_are_named_and_no_pass(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night")
    listed = tmp_path / "nodes"
    listed.write_text("\n".join([*map(name_node, range(24)), "r77-n01 # new", ""]))
    code, values = fleet_values(said, str(tmp_path / "night"), "--nodes", str(listed))
    assert (code, states(values)["r77-n01"]) == (3, "missing")
    assert "r77-n01" in values["summary"]
    assert said(str(tmp_path / "night"), "--nodes", str(listed), "--max-missing", "1")[0] == 0


def test_only_listed_nodes_count(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night", slower={3: 0.15})
    listed = tmp_path / "nodes"
    listed.write_text("\n".join(name_node(n) for n in range(24) if n != 3))
    assert said(str(tmp_path / "night"), "--nodes", str(listed))[0] == 0


def test_wrong_data_is_critical(said: Said, tmp_path: Path) -> None:
    logs = save_fleet(tmp_path / "night")
    lines = node_lines(5, logs[5], SMALL)
    wrong = msgspec.structs.replace(
        lines[2],
        status="wrong",
        wrong=7,
        first_wrong=FirstWrong(rank=1, index=3, got="1", expected="2"),
    )
    write_node(tmp_path / "night" / "005.jsonl", [*lines[:2], wrong, *lines[3:]])
    code, values = fleet_values(said, str(tmp_path / "night"))
    assert (code, states(values)[name_node(5)]) == (1, "wrong data")
    assert values["findings"][0]["severity"] == "critical"


def test_wrong_data_names_the_run_that_has_it_and_its_host() -> None:
    """Of two runs of a host the second is wrong; no other host was in it."""
    batch = plain_batch(draw_logs(np.random.default_rng(5), NODES, 2, CASES))
    bad = msgspec.structs.replace(
        batch.runs[5], run="bad", wrong=7, wrong_cases=["x"], started="2026-01-02T04:00:00+00:00"
    )
    verdict = make_verdict(judgement.judge_batches([Batch([*batch.runs, bad], batch.cases)]))
    (found,) = [finding for finding in verdict.findings if finding.check == "data"]
    assert [(item.run, item.value) for item in found.evidence] == [("bad", 7)]
    assert [entry.host for entry in list_blamed(verdict)] == [name_node(5)]


def test_wrong_data_of_a_run_of_several_hosts_are_no_pass() -> None:
    """Not even where nodes may be missing; and no host is blamed for it."""
    batch = plain_batch(draw_logs(np.random.default_rng(5), NODES, 2, CASES))
    several = NodeRun(
        path="s.jsonl",
        run="several",
        trouble="not of one node",
        why="several is of 2 hosts",
        wrong=7,
        wrong_cases=["x"],
        checked=9,
    )
    judged = judgement.judge_batches([Batch([*batch.runs, several], batch.cases)])
    verdict = make_verdict(judged, max_missing=1)
    assert verdict.state == "unhealthy" and "wrong data in several" in verdict.summary
    assert [finding.sentence for finding in verdict.findings] == [
        "several received wrong data: 7 elements in x; several is of 2 hosts"
    ]
    assert {check.check: check.outcome for check in verdict.checks}["data"] == "found"
    assert list_blamed(verdict) == []


@pytest.mark.parametrize("count", [1, NODES])
def test_data_that_nobody_verified_are_no_pass(count: int) -> None:
    batch = plain_batch(draw_logs(np.random.default_rng(5), NODES, 2, CASES))
    for run in batch.runs[:count]:
        run.checked = 0
    judged = judgement.judge_batches([batch])
    verdict = make_verdict(judged)
    assert verdict.state == "no verdict" and "whose data nobody verified" in verdict.summary
    assert {check.check: check.outcome for check in verdict.checks}["data"] == "no data"
    assert len(judged.unverified) == count
    if count == 1:
        assert make_verdict(judged, max_missing=1).state == "healthy"
    values = make_document(judged, verdict).values["fleet"]
    assert [node["state"] for node in values["nodes"]].count("not verified") == count


def test_unfinished_disturbed_and_broken_runs_are_named_apart(said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "night"
    logs = save_fleet(folder, slower={1: 0.4})
    write_node(folder / "001.jsonl", node_lines(1, logs[1], SMALL, slower=0.4, end=None))
    busy = {name_node(2): Load(4.0, 8)}
    records = [
        msgspec.structs.replace(line, load=busy, seconds=1.0) if hasattr(line, "case") else line
        for line in node_lines(2, logs[2], SMALL)
    ]
    write_node(folder / "002.jsonl", records)
    (folder / "003.jsonl").write_text("no run at all\n")
    failed = node_lines(4, logs[4], SMALL)
    failed[2] = msgspec.structs.replace(failed[2], status="failed", note="hung", times_ns=[])
    write_node(folder / "004.jsonl", failed)
    code, values = fleet_values(said, str(folder))
    apart = {node: state for node, state in states(values).items() if state != "like"}
    assert apart == {
        name_node(1): "unfinished",
        name_node(2): "disturbed",
        name_node(4): "unfinished",
    }
    assert [run["path"] for run in values["fleet"]["unnamed"]] == [str(folder / "003.jsonl")]
    assert (code, [found["check"] for found in values["findings"]]) == (1, ["completeness"])


def change_records(
    path: Path, change: Callable[[Record], Record], worlds: Callable[[World], World] = lambda w: w
) -> None:
    """Write a run's file again with these records and worlds."""
    file = run_file.read_file(path)
    lines = [file.run, *map(worlds, file.worlds), *map(change, file.records), ENDED]
    write_node(path, lines)


def test_a_case_without_a_valid_sample_leaves_a_node_in_the_fleet(
    said: Said, tmp_path: Path
) -> None:
    save_fleet(tmp_path / "night")
    row = SMALL[2]

    def empty(made: Record) -> Record:
        fields = {"status": "failed", "note": f"{NO_SAMPLE}: others ran", "times_ns": []}
        is_row = msgspec.structs.replace(made.case, cycle=0) == row
        return msgspec.structs.replace(made, **fields) if is_row else made

    change_records(tmp_path / "night" / "005.jsonl", empty)
    code, values = fleet_values(said, str(tmp_path / "night"))
    assert (code, states(values)[name_node(5)], values["findings"]) == (0, "like", [])


@pytest.mark.parametrize("nodes", [24, SINGLE + 1])
def test_a_node_that_hung_is_no_missing_one(said: Said, tmp_path: Path, nodes: int) -> None:
    """By one process and by several, whatever nodes may be missing."""
    save_fleet(tmp_path / "night", nodes=nodes)

    def hung(made: Record) -> Record:
        fields = {"status": "failed", "note": "hung: ranks 1 and 2 stand still", "times_ns": []}
        return msgspec.structs.replace(made, **fields) if made.case.cycle else made

    change_records(tmp_path / "night" / "005.jsonl", hung)
    code, values = fleet_values(said, str(tmp_path / "night"), "--max-missing", "5")
    (found,) = values["findings"]
    assert (code, found["severity"], found["check"]) == (1, "critical", "completeness")
    assert found["subject"] == {"kind": "host", "name": name_node(5)}
    assert f"1 unsound node: {name_node(5)} (completeness)" in values["summary"]
    assert [entry["host"] for entry in values["blamed"]] == [name_node(5)]
    (alone,) = judge_alone(tmp_path / "night" / "005.jsonl", "completeness")
    assert (alone.severity, alone.what) == ("critical", found["what"])


def judge_alone(path: Path, check: str) -> list[Finding]:
    """What `health` of one file finds."""
    verdict = table.judge_night([run_file.read_file(path)])
    return [finding for finding in verdict.findings if finding.check == check]


FAST = GpuState(index=0, name="Fast GPU", sm_mhz=1980)


@pytest.mark.parametrize(
    "state",
    [
        {"ecc": 2},
        {"nvlink_errors": 7},
        {"throttle": ("hw_slowdown",)},
    ],
)
def test_what_a_gpu_says_of_itself_is_found_as_by_health(
    said: Said, tmp_path: Path, state: dict[str, Any]
) -> None:
    save_fleet(tmp_path / "night")
    bad = msgspec.structs.replace(FAST, **state)
    path = tmp_path / "night" / "005.jsonl"
    for number in range(24):
        states_of = [FAST, FAST, bad if number == 5 else FAST, FAST]
        change_records(
            tmp_path / "night" / f"{number:03}.jsonl",
            lambda made, gpus=states_of: msgspec.structs.replace(made, gpus=gpus),  # type: ignore[misc]
            lambda made: msgspec.structs.replace(
                made, ranks=ranks([rank.host for rank in made.ranks], "cuda")
            ),
        )
    code, values = fleet_values(said, str(tmp_path / "night"))
    (found,) = values["findings"]
    (alone,) = judge_alone(path, "gpus")
    assert (found["subject"]["name"], found["what"]) == (alone.subject.name, alone.what)
    assert (code, states(values)[name_node(5)]) == (1, "unsound")
    checks = {check["check"]: check["outcome"] for check in values["checks"]}
    assert (checks["gpus"], checks["counters"]) == ("found", "no data")


def test_errors_that_ports_counted_are_found_as_by_health(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night")
    path, host = tmp_path / "night" / "005.jsonl", name_node(5)

    def counting(made: World) -> World:
        return msgspec.structs.replace(
            made, counters={host: {"mlx5_0:1 symbol_error": 9 * made.index}}
        )

    change_records(path, lambda made: made, counting)
    code, values = fleet_values(said, str(tmp_path / "night"))
    (found,), (alone,) = values["findings"], judge_alone(path, "counters")
    assert code == 1 and found["what"] == alone.what
    assert found["subject"]["name"] == f"{host}: mlx5_0:1"
    assert (found["alone"], values["blamed"]) == (True, [])


GPULESS = Blind("no GPU took part", idle=True)
STATELESS = Blind("no record holds a GPU's state: is nvidia-ml-py installed?", idle=False)


@pytest.mark.parametrize(
    ("reasons", "outcome", "note"),
    [
        ([GPULESS], "not applicable", f"24 nodes: {GPULESS.why}"),
        ([STATELESS, GPULESS], "no data", f"12 nodes: {STATELESS.why}; 12 nodes: {GPULESS.why}"),
        (
            [None, STATELESS, GPULESS],
            "passed",
            f"8 nodes looked at; 8 nodes: {STATELESS.why}; 8 nodes: {GPULESS.why}",
        ),
    ],
)
def test_a_check_of_nodes_says_why_it_saw_nothing(
    reasons: list[Blind | None], outcome: str, note: str
) -> None:
    batch = plain_batch(draw_logs(np.random.default_rng(5), 24, 3, CASES))
    for number, run in enumerate(batch.runs):
        if reason := reasons[number % len(reasons)]:
            run.blind = {"gpus": reason}
    verdict = make_verdict(judgement.judge_batches([batch]))
    (found,) = (each for each in verdict.checks if each.check == "gpus")
    assert (found.outcome, found.note) == (outcome, note)


def test_a_fleet_of_cpus_has_no_gpus_to_look_at_as_health_says(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night")
    _, values = fleet_values(said, str(tmp_path / "night"))
    alone = table.judge_night([run_file.read_file(tmp_path / "night" / "005.jsonl")])
    (found,) = (each for each in alone.checks if each.check == "gpus")
    checks = {check["check"]: check for check in values["checks"]}
    assert checks["gpus"]["outcome"] == found.outcome == "not applicable"
    assert checks["gpus"]["note"].endswith(f" nodes: {found.note}")


@pytest.mark.parametrize(
    ("blind", "why"),
    [
        ([{}, {"gpus": STATELESS}], None),
        ([{"gpus": STATELESS}, {"gpus": GPULESS}], STATELESS),
        ([{"gpus": GPULESS}, {"gpus": GPULESS}], GPULESS),
        ([], judgement.NO_RUN),
    ],
)
def test_a_check_is_blind_at_a_node_that_is_blind_in_all_of_its_runs(
    blind: list[dict[str, Blind]], why: Blind | None
) -> None:
    """Of the night: what runs of another one saw does not count."""
    batch = plain_batch(draw_logs(np.random.default_rng(5), 24, 3, CASES))
    runs = [
        msgspec.structs.replace(batch.runs[5], run=f"run-{number}", blind=reasons)
        for number, reasons in enumerate(blind)
    ]
    old = msgspec.structs.replace(batch.runs[5], run="old", night="2025-12-25", blind={})
    old.started = "2025-12-25T20:00:00+00:00"
    batch.runs[5:6] = [old, *runs]
    judged = judgement.judge_batches([batch])
    (node,) = (each for each in judged.nodes if each.host == name_node(5))
    assert node.blind.get("gpus") == why


def test_findings_of_another_night_are_left_out() -> None:
    """As those of a run that did not finish a week ago."""
    batch = plain_batch(draw_logs(np.random.default_rng(5), NODES, 2, CASES))
    finding = Finding(
        check="completeness",
        severity="critical",
        subject=Subject("host", name_node(5)),
        what="is where 1 case failed",
        advice="look",
    )
    old = msgspec.structs.replace(
        batch.runs[5], run="old", night="2025-12-25", trouble="unfinished", findings=[finding]
    )
    old.started = "2025-12-25T20:00:00+00:00"
    judged = judgement.judge_batches([Batch([*batch.runs, old], batch.cases)])
    assert make_verdict(judged).state == "healthy"


@pytest.mark.parametrize(
    ("slower", "runs", "is_sure"), [(0.08, 1, False), (0.08, 2, True), (0.3, 1, True)]
)
def test_a_warning_about_one_run_is_not_sure(slower: float, runs: int, is_sure: bool) -> None:
    """As healthy nodes of a skewed fleet have such runs: nobody drains a host for it."""
    batch = plain_batch(draw_logs(np.random.default_rng(0), NODES, 3, CASES), slower={7: slower})
    again = [
        msgspec.structs.replace(
            batch.runs[7],
            run=f"again-{number}",
            medians={name: [*values] for name, values in batch.runs[7].medians.items()},
        )
        for number in range(runs - 1)
    ]
    verdict = make_verdict(judgement.judge_batches([Batch([*batch.runs, *again], batch.cases)]))
    (found,) = [finding for finding in verdict.findings if finding.check == "fleet"]
    assert (found.sure is not None) == is_sure
    assert [entry.host for entry in list_blamed(verdict)] == [name_node(7)] * is_sure


def test_runs_of_one_host_are_one_node(said: Said, tmp_path: Path) -> None:
    """Given twice a run counts once; a second run adds its launches."""
    folder = tmp_path / "night"
    logs = save_fleet(folder)
    again = node_lines(99, logs[5], SMALL, host=name_node(5))
    write_node(folder / "second.jsonl", again)
    (folder / "copy.jsonl").write_bytes((folder / "006.jsonl").read_bytes())
    _, values = fleet_values(said, str(folder))
    launches = {node["node"]: node["launches"] for node in values["fleet"]["nodes"]}
    assert len(launches) == 24
    assert (launches[name_node(5)], launches[name_node(6)]) == (4, 2)


def test_runs_of_another_night_are_named_apart(said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "night"
    logs = save_fleet(folder)
    old = node_lines(5, logs[5], SMALL, started="2025-12-02T03:04:05+00:00")
    write_node(folder / "005.jsonl", old)
    _, values = fleet_values(said, str(folder))
    assert states(values)[name_node(5)] == "another night"


def test_a_node_with_another_torch_is_not_judged_and_told(said: Said, tmp_path: Path) -> None:
    folder = tmp_path / "night"
    logs = save_fleet(folder)
    other = {**ENVIRONMENT, "libraries": {"torch": "2.7.0"}}
    write_node(folder / "005.jsonl", node_lines(5, logs[5], SMALL, slower=0.3, environment=other))
    code, values = fleet_values(said, str(folder))
    assert (code, states(values)[name_node(5)]) == (3, "few like it")
    assert any("libraries.torch 2.6.0 -> 2.7.0" in f["what"] for f in values["findings"])


def test_racks_by_pattern_and_by_file(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night")
    _, by_pattern = fleet_values(said, str(tmp_path / "night"), "--rack", r"^(r\d+)")
    assert {node["rack"] for node in by_pattern["fleet"]["nodes"]} == {"r00", "r01"}
    racks = tmp_path / "racks"
    racks.write_text("r00-n00 left\nr00-n01,left\n")
    _, by_file = fleet_values(said, str(tmp_path / "night"), "--racks", str(racks))
    found = {node["node"]: node["rack"] for node in by_file["fleet"]["nodes"]}
    assert (found["r00-n01"], found["r00-n02"]) == ("left", places.NO_RACK)


def test_every_output_is_written(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night", slower={3: 0.15})
    files = [tmp_path / f"x.{ending}" for ending in ("html", "md", "json", "prom", "xml")]
    args = [word for file in files for word in ("-o", str(file))]
    code, out, _ = said(str(tmp_path / "night"), "--rack", r"^(r\d+)", "--format", "line", *args)
    assert code == 1
    assert name_node(3) in out
    for file in files:
        assert name_node(3) in file.read_text(), file
    assert 'collbench_fleet_node_odd{node="r00-n03",rack="r00"} 1' in files[3].read_text()
    assert '"type":"heatmap"' in files[0].read_text().replace(" ", "")


@pytest.mark.parametrize(("days", "code", "text"), [(2, 0, "OK"), (3, 3, "UNKNOWN")])
def test_a_plugin_says_unknown_once_a_fleet_is_no_longer_measured(
    said: Said, tmp_path: Path, days: int, code: int, text: str
) -> None:
    at = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    save_fleet(tmp_path / "night", started=at, end=msgspec.structs.replace(ENDED, ended=at))
    ended, out, _ = said(str(tmp_path / "night"), "--nagios")
    assert ended == code and out.startswith(f"COLLBENCH {text} - ")
    assert (" is 3 days old; " in out) == bool(code)


def test_nagios_and_the_hook_get_the_names(said: Said, tmp_path: Path) -> None:
    end = msgspec.structs.replace(ENDED, ended=datetime.now(UTC).isoformat())
    save_fleet(tmp_path / "night", slower={3: 0.15}, end=end)
    told = tmp_path / "told"
    hook = f"sh -c 'cat > {told}'"
    code, out, _ = said(str(tmp_path / "night"), "--nagios", "--on-unhealthy", hook)
    assert (code, out.startswith("COLLBENCH WARNING"), name_node(3) in out) == (1, True, True)
    assert name_node(3) in json.loads(told.read_text())["summary"]


@pytest.mark.parametrize(
    "args",
    [
        ["--fleet", "x", "--rerun"],
        ["--fleet", "x", "--history", "h.sqlite"],
        ["--fleet"],
        ["--rack", "(r)"],
        ["--fleet", "x", "--rack", "("],
        ["--fleet", "x", "--rack", "r"],
        ["--fleet", "x", "--rack", "(r)", "--racks", "x"],
        ["--fleet", "absent/no*run"],
        ["--fleet", "absent"],
        ["--fleet", "/absent/night"],
    ],
)
def test_mistakes_exit_2(
    args: Sequence[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["collbench", "health", *args])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 2
    assert len(capfd.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("name", ["", "*.jsonl"])
def test_an_empty_folder_is_no_verdict(name: str, said: Said, tmp_path: Path) -> None:
    code, _, error = said(str(tmp_path / name))
    assert (code, error.startswith("collbench: nothing was read: ")) == (3, True), error


def test_a_missing_folder_is_called_one(said: Said, tmp_path: Path) -> None:
    code, _, error = said(str(tmp_path / "absent"))
    assert (code, f"{tmp_path / 'absent'}: no such folder, file or readable run" in error) == (
        2,
        True,
    )


def test_a_finding_names_the_median(said: Said, tmp_path: Path) -> None:
    save_fleet(tmp_path / "night", slower={3: 0.15})
    _, values = fleet_values(said, str(tmp_path / "night"))
    assert " slower than the median of 23 nodes like it in " in values["findings"][0]["what"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "a b c\n", "\x00\xff"])
def test_a_bad_file_of_racks_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "racks"
    path.write_text(text)
    with pytest.raises(UsageError):
        places.read_racks(path)


def test_a_node_in_two_racks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "racks"
    path.write_text("a r1\na r2\n")
    with pytest.raises(UsageError, match="two racks"):
        places.read_racks(path)


def test_nodes_are_in_the_order_that_a_person_counts() -> None:
    names = ["n10", "n9", "a2b10", "a2b9", "n"]
    assert sorted(names, key=judgement.natural_key) == ["a2b9", "a2b10", "n", "n9", "n10"]


def test_the_map_has_a_cell_for_each_node() -> None:
    judged = fleet(nodes=90)
    for node in judged.nodes:
        node.rack = node.host[:3]
    figure = make_document(judged, make_verdict(judged)).sections[1].figures[0]
    cells = [value for line in figure.data[0]["z"] for value in line if value is not None]
    assert len(cells) == 90
    assert figure.layout["yaxis"]["ticktext"][:2] == ["r00", "r01"]


def test_deviations_are_of_all_rows() -> None:
    judged = fleet(slower={3: 0.5})
    assert fleets.name_node(3) in odd_nodes(judged)
    assert set(judged.nodes[0].deviations) >= {ALL, "all_reduce", "broadcast"}


@pytest.mark.parametrize(
    ("nights", "chosen"),
    [
        (["a"] * 500 + ["b"] * 480, "b"),  # last night's, of a folder that holds two
        (["a"] * 500 + ["b"] * 3, "a"),  # three clocks are wrong
        ([], ""),
    ],
)
def test_the_last_whole_night_is_judged(nights: list[str], chosen: str) -> None:
    assert judgement._choose_night(nights) == chosen


def test_a_node_without_a_verdict_is_not_said_to_be_fine(said: Said, tmp_path: Path) -> None:
    """Node Health Check takes a node back that a verdict does not blame."""
    save_fleet(tmp_path / "night")
    listed = tmp_path / "nodes"
    listed.write_text("\n".join([*map(name_node, range(12)), "absent"]))
    metrics = tmp_path / "x.prom"
    words = ("--nodes", str(listed), "--max-missing", "1", "-o", str(metrics))
    assert said(str(tmp_path / "night"), *words)[0] == 0
    text = metrics.read_text()
    assert f'host_blamed{{host="{name_node(3)}"}} 0' in text and "absent" not in text
