"""Pairs of ranks: who meets when, which cases that makes, what stands out of the matrix, and how it
is shown."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import factories
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.cli import outputs
from collbench.core import groups
from collbench.core.errors import Exit, UsageError
from collbench.core.groups import Pair
from collbench.features.health.checks import hosts as health
from collbench.features.health.checks.table import judge_night
from collbench.features.health.findings import Finding
from collbench.features.health.night import Night
from collbench.features.health.pairs import command
from collbench.features.health.pairs import judgement as uniformity
from collbench.features.health.pairs import view as matrices
from collbench.machine import topology
from collbench.records.types import End, Record, RunFile
from collbench.run import plan, refusal
from collbench.run.jobs import Job
from collbench.show import terminal
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, expand_axes

HEALTHY = 12.5  # GB/s


def swept(rule: str, n: int, **more: object) -> list[Case]:
    given = {
        "collectives": ("sendrecv",),
        "sizes": (8, 1 << 20),
        "ranks": (n,),
        "in_place": (False,),
        "groups": rule,
    }
    return expand_axes(Axes(**{**given, **more}))[0]  # type: ignore[arg-type]


def met(cases: list[Case], size: int = 8) -> list[Pair]:
    return sorted(tuple(sorted(case.members)) for case in cases if case.nbytes == size)  # type: ignore[misc]


@given(n=st.integers(2, 40))
def test_every_pair_meets_once_in_as_few_rounds_as_there_can_be(n: int) -> None:
    rounds = [groups.list_turn(n, at) for at in range(groups.count_turns(n))]
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(n), 2))
    assert len(rounds) == n - 1 + n % 2
    for pairs in rounds:
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) == n - n % 2


@given(each=st.integers(1, 5), hosts=st.integers(1, 5))
def test_by_hosts_every_pair_of_a_kind_meets_once(each: int, hosts: int) -> None:
    n = each * hosts
    every = list(combinations(range(n), 2))
    wanted = {
        "node": [(a, b) for a, b in every if a // each == b // each],
        "inter": [(a, b) for a, b in every if a // each != b // each],
        "rail": [(a, b) for a, b in every if a // each != b // each and a % each == b % each],
    }
    for among, pairs in wanted.items():
        if not pairs:
            with pytest.raises(UsageError, match="cannot form pairs"):
                groups.list_rounds(f"pairs:{among}:{each}", n)
            continue
        for kind in ("pairs", "alone"):
            rounds = [
                groups.list_members(rule, n)
                for rule in groups.list_rounds(f"{kind}:{among}:{each}", n)
            ]
            assert sorted(tuple(sorted(pair)) for found in rounds for pair in found) == pairs
            assert all(
                len({rank for pair in found for rank in pair}) == 2 * len(found) for found in rounds
            )
            assert kind == "pairs" or {len(found) for found in rounds} == {1}


@pytest.mark.parametrize("n", [2, 5, 6])
def test_a_sweep_of_pairs_is_one_world(n: int) -> None:
    cases = swept("pairs", n)
    assert met(cases) == met(cases, 1 << 20) == list(combinations(range(n), 2))
    assert {case.world for case in cases} == {n} and {case.n for case in cases} == {2}
    assert len({case.key for case in cases}) == len(cases)
    assert [msgspec.convert(msgspec.to_builtins(case), Case) for case in cases] == cases
    (world,) = plan.plan_worlds([Job(case, 2, "") for case in cases if case.group == 0], Policy())
    assert (world.n, world.groups, len(world.jobs)) == (n, "", 2 * (n - 1 + n % 2))


@pytest.mark.parametrize(
    "rule",
    [
        "pairs 9/6",
        "pairs 0/7",
        "ranks 0,1;1,2/6",
        "ranks 0,1;2/6",
        "ranks 0,6/6",
        "ranks 0,1/5",
        "pairs:rail:4 0/6",
    ],
)
def test_groups_that_cannot_be(rule: str) -> None:
    with pytest.raises(UsageError):
        groups.list_members(rule, 6)


def test_named_ranks_keep_their_order_and_the_others_idle() -> None:
    case = Case(
        collective="sendrecv",
        backend="gloo",
        n=3,
        nbytes=8,
        groups="ranks 5,0,2;1,3,6/8",
        group=1,
        of=2,
    )
    assert (case.members, case.world) == ((1, 3, 6), 8)
    from collbench.run.rank.control import Control

    places = [Control(rank, 8).among(groups.list_members(case.groups, 8)) for rank in range(8)]
    assert [place.idle for place in places] == [
        False,
        False,
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert [(place.number, place.rank) for place in places if not place.idle] == [
        (0, 1),
        (1, 0),
        (0, 2),
        (1, 1),
        (0, 0),
        (1, 2),
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"backend": "mpi"}, "no pairs among more"),
        ({"backend": "model"}, "no groups"),
        ({"collective": "all_reduce", "op": "sum"}, "needs all ranks"),
    ],
)
def test_what_measures_no_pairs(more: dict[str, str], why: str) -> None:
    case = Case(
        **{
            "collective": "sendrecv",
            "backend": "gloo",
            "n": 2,
            "nbytes": 8,
            "groups": "pairs 0/4",
            "of": 2,
            **more,
        }
    )  # type: ignore[arg-type]
    assert why in refusal.refuse_case(case, Policy())
    ring = msgspec.structs.replace(
        case, backend="gloo", collective="all_reduce", op="sum", algorithm="ring"
    )
    assert not refusal.refuse_case(ring, Policy())


def measured(
    hosts: list[str],
    slow: Mapping[int, float] = {},
    links: Mapping[Pair, float] = {},
    between: float = 1.0,
    where: Mapping[str, str] = {},
    noise: float = 0.01,
    injected: str = "",
    seed: int = 1,
) -> RunFile:
    """A run of all pairs, where some ranks and some links reach only a share, and pairs of two
    racks another."""
    rng, n = random.Random(seed), len(hosts)
    cases = swept("pairs", n)
    records = []
    for case in cases:
        a, b = sorted(case.members)
        share = min(slow.get(a, 1.0), slow.get(b, 1.0), links.get((a, b), 1.0))
        share *= between if where and where[hosts[a]] != where[hosts[b]] else 1.0
        ns = case.size / (HEALTHY * share) if case.size > 8 else 20_000
        records.append(
            Record(
                case=case,
                status="ok",
                world=0,
                injected=injected,
                times_ns=[round(ns * rng.gauss(1, noise)) for _ in range(10)],
            )
        )
    world = factories.world(n=n, ranks=factories.ranks(hosts))
    suite = factories.suite("pairs", ("sendrecv",), (8, 1 << 20), n, groups="pairs")
    about = {"suite": suite, "environment": {}, "policy": Policy(inject=injected)}
    return factories.make_file(records, [world], None, **about)


def directed(
    hosts: list[str],
    sends: Mapping[int, float] = {},
    receives: Mapping[int, float] = {},
    links: Mapping[Pair, float] = {},
    seed: int = 1,
) -> RunFile:
    """A run of all pairs one way at a time, where some ranks send or receive only a share, and some
    links (from, to) carry one."""
    rng, n = random.Random(seed), len(hosts)
    one_way = {"algorithms": ("binomial",), "roots": (0, 1), "in_place": (True,)}
    cases = swept("pairs", n, collectives=("broadcast",), **one_way)
    records = []
    for case in cases:
        a, b = (case.members[case.root], case.members[1 - case.root])
        share = min(sends.get(a, 1.0), receives.get(b, 1.0), links.get((a, b), 1.0))
        ns = case.size / (HEALTHY * share) if case.size > 8 else 20_000
        times = [round(ns * rng.gauss(1, 0.01)) for _ in range(10)]
        records.append(Record(case=case, status="ok", world=0, times_ns=times))
    world = factories.world(n=n, ranks=factories.ranks(hosts))
    return factories.make_file(records, [world], None, environment={})


def blamed(file: RunFile, where: Mapping[str, str] = {}) -> list[tuple[str, str]]:
    return [
        (finding.subject.kind, finding.subject.name)
        for finding in uniformity.judge_pairs(file, where)
    ]


SIX = [f"h{host}" for host in range(6)]
RACKS = {host: f"r{place // 3}" for place, host in enumerate(SIX)}


def test_where_all_are_alike_nobody_stands_out() -> None:
    for seed in range(10):
        assert not blamed(measured(SIX, seed=seed, noise=0.03))


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_slow_host_is_named_alone(share: float) -> None:
    assert blamed(measured(SIX, {4: share})) == [("host", "h4")]


def test_two_slow_hosts_of_six() -> None:
    assert sorted(blamed(measured(SIX, {1: 0.5, 4: 0.8}))) == [("host", "h1"), ("host", "h4")]


def test_a_slow_link_is_no_slow_host() -> None:
    assert blamed(measured(SIX, links={(2, 5): 0.7})) == [("link", "h2 -> h5")]


def test_a_host_and_a_link() -> None:
    assert sorted(blamed(measured(SIX, {0: 0.6}, {(2, 5): 0.5}))) == [
        ("host", "h0"),
        ("link", "h2 -> h5"),
    ]


def test_one_way_both_directions_of_every_pair_are_measured() -> None:
    found = uniformity.make_matrix(directed(SIX))
    assert found and found.one_way
    assert sorted(found.rates) == [(a, b) for a in range(6) for b in range(6) if a != b]


@pytest.mark.parametrize("n", [3, 4, 6])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_one_way_a_host_that_sends_or_receives_slowly_is_told(n: int, share: float) -> None:
    for way, fault in (("sends", {"sends": {1: share}}), ("receives", {"receives": {1: share}})):
        (finding,) = uniformity.judge_pairs(directed(SIX[:n], **fault))
        assert (finding.subject.kind, finding.subject.name) == ("host", "h1")
        assert finding.what.startswith(f"h1 {way} at {share * 100:.0f}"[:-1])


def test_one_way_a_host_slow_both_ways_is_told_for_both() -> None:
    found = uniformity.judge_pairs(directed(SIX, sends={4: 0.5}, receives={4: 0.5}))
    assert [one.what.split(" at ")[0] for one in found] in (
        ["h4 sends", "h4 receives"],
        ["h4 receives", "h4 sends"],
    )


def test_one_way_two_hosts_with_faults_of_other_directions() -> None:
    found = uniformity.judge_pairs(directed(SIX, sends={1: 0.5}, receives={4: 0.6}))
    assert [one.what.split(" at ")[0] for one in found] == ["h1 sends", "h4 receives"]


def test_one_way_a_link_is_named_with_its_direction() -> None:
    (finding,) = uniformity.judge_pairs(directed(SIX, links={(5, 2): 0.5}))
    assert finding.subject.name == "h5 -> h2"
    assert finding.what.startswith("h5 -> h2 one way reaches 5")


def test_one_way_nobody_stands_out_where_all_are_alike() -> None:
    assert not [
        finding
        for seed in range(10)
        for finding in uniformity.judge_pairs(directed(SIX, seed=seed))
    ]


def test_one_way_an_uplink_is_named_with_its_direction() -> None:
    nine = [f"h{rank}" for rank in range(9)]
    where = {host: f"r{place // 3}" for place, host in enumerate(nine)}
    links = {(b, a): 0.5 for a in range(3) for b in range(3, 6)}
    assert blamed(directed(nine, links=links), where) == [("link", "r1 -> r0")]


def test_both_ways_at_once_the_advice_says_what_tells_the_direction() -> None:
    (finding,) = uniformity.judge_pairs(measured(SIX, {4: 0.5}))
    assert "pairs --one-way" in finding.advice
    (finding,) = uniformity.judge_pairs(directed(SIX, sends={4: 0.5}))
    assert "pairs --one-way" not in finding.advice


def test_one_way_the_matrix_shows_both_directions() -> None:
    file = directed(SIX, sends={4: 0.5})
    found = uniformity.make_matrix(file)
    assert found
    shown_ = json.loads(shown(told(file), "json"))
    rates = {(pair["a"], pair["b"]): pair["busbw"] for pair in shown_["pairs"]}
    assert rates[4, 0] == pytest.approx(HEALTHY / 2, rel=0.05)
    assert rates[0, 4] == pytest.approx(HEALTHY, rel=0.05)
    assert shown_["one_way"] and shown_["scores"][0]["name"] == "h4 sends"
    assert "4 -> " in shown(told(file), "table")


def test_of_several_ranks_on_a_host_the_slow_one_is_named_or_the_host() -> None:
    eight = [f"h{rank // 4}" for rank in range(16)]
    assert (
        blamed(measured(eight, {5: 0.6})) == [("rank", "h1:5")] * 2
    )  # on one host, and between hosts
    assert ("host", "h2") in blamed(measured(eight, dict.fromkeys(range(8, 12), 0.6)))


def test_an_uplink_is_named_where_there_are_others_to_tell_by() -> None:
    nine = [f"h{rank}" for rank in range(9)]
    where = {host: f"r{place // 3}" for place, host in enumerate(nine)}
    links = {(a, b): 0.5 for a in range(3) for b in range(3, 6)}
    assert blamed(measured(nine, links=links), where) == [("link", "r0 -> r1")]


def test_a_thin_uplink_by_design_is_no_fault_but_is_told() -> None:
    file = measured(SIX, between=0.4, where=RACKS)
    assert not blamed(file, RACKS)
    found = uniformity.make_matrix(file)
    assert found
    within, between = uniformity.summarise_pairs(found, RACKS)
    assert "6 pairs in one rack: 12." in within and "9 pairs between racks: " in between


def test_a_pair_that_failed_is_the_worst_of_links() -> None:
    file = measured(SIX)
    records = [
        (
            msgspec.structs.replace(record, status="wrong", note="3 wrong elements", times_ns=[])
            if set(record.case.members) == {1, 2} and record.case.nbytes > 8
            else record
        )
        for record in file.records
    ]
    (finding,) = uniformity.judge_pairs(msgspec.structs.replace(file, records=records))
    assert finding.subject.name == "h1 -> h2" and "3 wrong elements" in finding.what


def test_a_pair_that_was_disturbed_all_the_time_is_no_broken_link() -> None:
    file = measured(SIX)
    records = [
        (
            msgspec.structs.replace(
                record, status="failed", note="no valid sample (3 x late start)", times_ns=[]
            )
            if set(record.case.members) == {1, 2}
            else record
        )
        for record in file.records
    ]
    file = msgspec.structs.replace(file, records=records)
    assert uniformity.judge_pairs(file) == []
    assert matrices.list_verdicts(told(file)) == ["no verdict: 1 pair without a rate: ranks 1 - 2"]


def test_a_run_that_was_cut_short_is_no_pass(tmp_path: Path) -> None:
    """Though all pairs that it has are alike."""
    whole = measured(SIX)
    left = [r for r in whole.records if max(r.case.members) < 4]
    file = msgspec.structs.replace(whole, records=left)
    path = factories.write(file, tmp_path)
    assert command._show_recorded(str(path), {}, "table") == Exit.NO_VERDICT
    assert "9 pairs without a rate: ranks 0 - 4, 0 - 5" in matrices.list_verdicts(told(file))[0]
    assert "9 pairs without a rate" in health.check_pairs(Night([file])).missing


def test_a_pair_that_failed_among_too_few_to_blame_it_is_no_pass(tmp_path: Path) -> None:
    file = measured(["h0", "h0", "h1", "h1"])
    records = [
        (
            msgspec.structs.replace(record, status="failed", note="rank 1 stopped", times_ns=[])
            if set(record.case.members) == {0, 1}
            else record
        )
        for record in file.records
    ]
    path = factories.write(msgspec.structs.replace(file, records=records), tmp_path)
    assert command._show_recorded(str(path), {}, "table") == Exit.NO_VERDICT


def on_nodes(file: RunFile, numas: list[int]) -> RunFile:
    """The run with ranks on these NUMA nodes."""
    (world,) = file.worlds
    ranks = [
        msgspec.structs.replace(info, numa=numa)
        for info, numa in zip(world.ranks, numas, strict=True)
    ]
    return msgspec.structs.replace(file, worlds=[msgspec.structs.replace(world, ranks=ranks)])


def test_pairs_on_one_numa_node_are_of_another_kind_than_pairs_between_two() -> None:
    """Six ranks on one socket and two on the other, whose way to the six is slower for all."""
    numas = [0] * 6 + [1] * 2
    across = {(a, b): 0.72 for a in range(6) for b in (6, 7)}
    file = measured(["h0"] * 8, links=across)
    assert blamed(file)
    assert blamed(on_nodes(file, numas)) == []
    slow = on_nodes(measured(["h0"] * 8, {2: 0.6}, across), numas)
    assert ("rank", "h0:2") in blamed(slow)
    kinds = [line.split(": ")[0] for line in matrices.make_document(told(slow)).brief[:2]]
    assert kinds == ["16 pairs on one NUMA node", "12 pairs between NUMA nodes of a host"]


@pytest.mark.parametrize("apart", ["numas", "racks"])
@pytest.mark.parametrize("between", [1.0, 0.7])
def test_a_slow_link_among_two_near_and_four_far_pairs_stands_out(
    apart: str, between: float
) -> None:
    """Near pairs are too few to be held against each other."""

    def judged(links: Mapping[Pair, float]) -> list[tuple[str, str]]:
        far = {(a, b): between for a in (0, 1) for b in (2, 3)} | links
        if apart == "numas":
            return blamed(on_nodes(measured(["h0"] * 4, links=far), [0, 0, 1, 1]))
        racks = {f"h{n}": f"r{n // 2}" for n in range(4)}
        return blamed(measured(list(racks), links=far), racks)

    assert judged({}) == []
    assert judged({(0, 1): 0.3})
    assert [kind for kind, _ in judged({(0, 2): between * 0.4})] == ["link"]


@pytest.mark.parametrize("numas", [[0, 0, 1], [0, 0, 1, 2]])
def test_a_rank_alone_on_its_node_is_none_that_stands_out(numas: list[int]) -> None:
    links = {(a, b): 0.6 for a, b in combinations(range(len(numas)), 2) if numas[a] != numas[b]}
    assert blamed(on_nodes(measured(["h0"] * len(numas), links=links), numas)) == []


@pytest.mark.parametrize("n", [2, 3])
def test_few_ranks(n: int) -> None:
    assert not blamed(measured(SIX[:n]))
    assert blamed(measured(SIX[:n], {2: 0.5})) == ([("host", "h2")] if n == 3 else [])


@pytest.mark.parametrize(
    ("hosts", "slow", "code"),
    [
        (SIX[:2], {}, Exit.NO_VERDICT),
        (["h0", "h0", "h1"], {}, Exit.NO_VERDICT),
        (SIX[:3], {}, Exit.OK),
        (SIX[:3], {2: 0.5}, Exit.BAD),
    ],
)
def test_fewer_pairs_than_can_tell_are_no_pass(
    hosts: list[str], slow: dict[int, float], code: Exit, tmp_path: Path
) -> None:
    """Two pairs between hosts, or one anywhere, have nothing to stand out from."""
    file = measured(hosts, slow)
    path = factories.write(msgspec.structs.replace(file, end=End(exit=0, ended="")), tmp_path)
    assert command._show_recorded(str(path), {}, "table") == code
    state = health.check_pairs(Night([file]))
    assert bool(state.missing) == (code == Exit.NO_VERDICT)


def died_early(file: RunFile) -> list[Record]:
    """The records of a run as they are where a rank dies before the world opens."""
    fields = {"status": "failed", "note": "rank 3 on h3 ended with 1", "world": -1, "times_ns": []}
    return [msgspec.structs.replace(record, **fields) for record in file.records]


def test_a_run_whose_world_never_opened_has_no_pairs_and_is_unhealthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No host is known then."""
    end = End(exit=Exit.CANNOT_RUN, ended="", note="rank 3 on h3 ended with 1")
    whole = measured(SIX)
    file = msgspec.structs.replace(whole, records=died_early(whole), worlds=[], end=end)
    assert uniformity.make_matrix(file) is None and uniformity.judge_pairs(file) == []
    path = factories.write(file, tmp_path)
    assert command._show_recorded(str(path), {}, "table") == Exit.NO_VERDICT
    assert "before it had measured any pair: rank 3 on h3 ended with 1" in capsys.readouterr().err
    assert health.check_pairs(Night([file])).missing
    verdict = judge_night([file])
    assert verdict.state == "unhealthy" and verdict.findings[0].check == "completeness"


def test_pairs_of_a_larger_world_that_never_opened_are_left_out() -> None:
    small, large = measured(SIX[:3]), measured(SIX)
    file = msgspec.structs.replace(small, records=[*small.records, *died_early(large)])
    matrix = uniformity.make_matrix(file)
    assert matrix and sorted(matrix.rates) == [(0, 1), (0, 2), (1, 2)]
    uniformity.judge_pairs(file)


def told(file: RunFile, where: Mapping[str, str] = {}) -> matrices.Pairs:
    found = uniformity.make_matrix(file)
    assert found
    return matrices.Pairs(file, found, where, uniformity.judge_pairs(file, where))


def shown(one: matrices.Pairs, name: str) -> str:
    return outputs.render_text(matrices.make_document(one), name)


def test_every_format_tells_the_same() -> None:
    six = told(measured(SIX, {4: 0.5}, injected="slow-rank:4:100%"), RACKS)
    whole = json.loads(shown(six, "json"))
    lines = list(csv.DictReader(io.StringIO(shown(six, "csv"))))
    assert (
        len(whole["pairs"]) == len(lines) == 15
        and whole["injected"] == lines[0]["injected"] == "slow-rank:4:100%"
    )
    assert [pair["busbw"] for pair in whole["pairs"]] == [float(line["busbw"]) for line in lines]
    assert whole["scores"][0]["name"] == "h4" and whole["scores"][0]["share"] == pytest.approx(
        0.5, rel=0.05
    )
    assert msgspec.convert(whole["findings"], list[Finding])[0].subject.name == "h4"
    for text in (shown(six, "table"), shown(six, "md")):
        assert "PLANTED" in text and "host h4 reaches 50% of what others do" in text.replace(
            "\\", ""
        )
    assert "0 -" not in matrices.list_verdicts(told(measured(SIX)))[0]
    assert matrices.list_verdicts(told(measured(SIX))) == ["no pair, rank, host or link stands out"]
    assert "too few" in matrices.list_verdicts(told(measured(SIX[:2])))[0]


def test_a_matrix_wider_than_the_terminal_goes_on_below() -> None:
    six = told(measured(SIX))
    text = terminal.render_text(matrices.make_document(six), 30)
    matrix = text.partition("The slowest")[0].splitlines()
    assert max(map(len, matrix)) <= 30 and text.count("busbw between") == 1
    heads = [line.split() for line in matrix if line.startswith(" ")]
    assert heads == [["0", "1", "2", "3"], ["4", "5"]]
    rows = [line.split()[1:] for line in matrix if re.match(r"[0-5] ", line)]
    assert sum(map(len, rows)) == 2 * len(six.matrix.rates)


def test_a_host_with_a_hostile_name() -> None:
    hosts = ["<script>|`x`", "a\nb\x1b[31m", "=1+1"]
    three = told(measured(hosts, {0: 0.5}))
    assert "\x1b" not in shown(three, "table") and "<script>" not in shown(three, "md")
    assert "'=1+1" in shown(three, "csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.toml", '[hosts]\nh0 = "r1"\n"h1" = "r2"\n'),
        ("t.json", '{"hosts": {"h0": "r1", "h1": "r2"}}'),
    ],
)
def test_a_topology_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = topology.read_racks(tmp_path / name)
    assert found == {"h0": "r1", "h1": "r2"} and topology.list_missing_hosts(
        found, ["h0", "h9"]
    ) == ["h9"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hosts = 1",
        "[hosts]\nh0 = 1",
        '[racks]\nh0 = "r"',
        '[hosts]\nh0 = ""',
        "[hosts]",
        "\x00",
        "[" * 5000,
    ],
)
def test_a_file_that_is_no_topology(tmp_path: Path, text: str) -> None:
    for name in ("t.toml", "t.json"):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match="--topology"):
            topology.read_racks(tmp_path / name)
