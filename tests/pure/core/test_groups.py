"""Groups of ranks: the rules that make them, nccl-tests' spellings, and the cases and jobs that
follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.core import groups
from collbench.core.errors import UsageError
from collbench.records.types import Record
from collbench.run import plan
from collbench.run.memory import Room
from collbench.run.order import fit_to_host
from collbench.show import words as formats
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Override, Part, Suite, expand_axes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("rule", "members"),
    [
        ("", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("mod:2", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("mod:8", [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ("div:4", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("div:8", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("and:0x1", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("and:0x2", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("or:0x1", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("or:0x4", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("node:4", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("rail:4", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("node", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("rail", [[0], [1], [2], [3], [4], [5], [6], [7]]),
    ],
)
def test_which_ranks_are_together(rule: str, members: list[list[int]]) -> None:
    assert [list(group) for group in groups.list_members(rule, 8)] == members


COLOURS: dict[str, Callable[[int, int], int]] = {
    "mod": lambda r, v: r % v,
    "div": lambda r, v: r // v,
    "and": lambda r, v: r & v,
    "or": lambda r, v: r | v,
}


@given(name=st.sampled_from(sorted(COLOURS)), value=st.integers(1, 40), n=st.integers(1, 64))
def test_every_rank_is_in_the_one_group_of_its_colour(name: str, value: int, n: int) -> None:
    colours = [COLOURS[name](rank, value) for rank in range(n)]
    sizes = {colours.count(colour) for colour in colours}
    rule = groups.normalise_rule(f"{name}:{value}")
    if len(sizes) > 1:
        with pytest.raises(UsageError, match="not equally large"):
            groups.list_members(rule, n)
        return
    found = groups.list_members(rule, n)
    assert sorted(rank for group in found for rank in group) == list(range(n))
    assert [{colours[rank] for rank in group} for group in found] == [
        {colour} for colour in sorted(set(colours))
    ]
    assert all(list(group) == sorted(group) for group in found)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mod:8", "mod:8"),
        ("MOD 8", "mod:8"),
        ("%8", "mod:8"),
        ("% 0x10", "mod:16"),
        ("Div 4", "div:4"),
        ("/4", "div:4"),
        ("AND 7", "and:0x7"),
        ("&0x7", "and:0x7"),
        ("&0b111", "and:0x7"),
        ("or:1", "or:0x1"),
        ("| 0X1", "or:0x1"),
        (" node ", "node"),
        ("rail:8", "rail:8"),
        ("mod:08", "mod:8"),
    ],
)
def test_spellings(text: str, rule: str) -> None:
    assert groups.normalise_rule(text) == rule == groups.normalise_rule(rule)


@pytest.mark.parametrize(
    "text",
    ["", "mod", "8", "xor:1", "mod:-1", "mod:8x", "div:4.0", "mod:8,div:2", "&0b12", "node:x"],
)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(UsageError, match=r"--split: unknown grouping '.*'"):
        groups.normalise_rule(text)


@pytest.mark.parametrize("text", ["mod:0", "/0", "&0x0", "or 0b0", "node:0"])
def test_nothing_splits_by_0(text: str) -> None:
    with pytest.raises(UsageError, match="splits by 0"):
        groups.normalise_rule(text)


def test_sizes_that_differ_are_named() -> None:
    with pytest.raises(UsageError, match=r"mod:3 makes groups of 8 ranks .*: 2 of 3, 1 of 2"):
        groups.list_members("mod:3", 8)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, ("", "")),
        ({"NCCL_TESTS_SPLIT": " "}, ("", "")),
        ({"NCCL_TESTS_SPLIT": "MOD 8"}, ("mod:8", "NCCL_TESTS_SPLIT=MOD 8")),
        ({"NCCL_TESTS_SPLIT_MASK": "F"}, ("and:0xf", "NCCL_TESTS_SPLIT_MASK=F")),
        ({"NCCL_TESTS_SPLIT_MASK": "0x0"}, ("", "")),  # all have one colour: "world-level"
        ({"NCCL_TESTS_SPLIT": "AND 0x0"}, ("", "")),
        ({"NCCL_TESTS_SPLIT_MASK": "0x10"}, ("and:0x10", "NCCL_TESTS_SPLIT_MASK=0x10")),
        (
            {"NCCL_TESTS_SPLIT_MASK": "11", "NCCL_TESTS_SPLIT": "/4"},
            ("and:0x11", "NCCL_TESTS_SPLIT_MASK=11"),
        ),
    ],
)
def test_nccl_tests_variables(variables: dict[str, str], told: tuple[str, str]) -> None:
    assert groups.rule_from_environment(variables) == told


def test_errors_name_the_variable() -> None:
    with pytest.raises(UsageError, match=r"^NCCL_TESTS_SPLIT: 'MOD 0' splits by 0"):
        groups.rule_from_environment({"NCCL_TESTS_SPLIT": "MOD 0"})


@pytest.mark.parametrize(
    ("rule", "hosts", "fits"),
    [
        ("", "aab", True),
        ("mod:3", "aab", True),  # goes by rank alone
        ("node:2", "aabb", True),
        ("rail:2", "aabb", True),
        ("node", "aaaa", True),
        ("node:2", "abab", False),
        ("rail:2", "abab", False),
        ("node:2", "aaaa", False),  # two groups of one host
        ("node:2", "aabbaa", False),
        ("node", "aabb", False),
        ("rail:1", "ab", True),
    ],
)
def test_groups_by_host_are_where_the_hosts_are(rule: str, hosts: str, fits: bool) -> None:
    words = groups.describe_misplaced(rule, list(hosts))
    assert (words == "") is fits
    assert fits or "consecutive ranks on each host; there are" in words


def swept(**axes: object) -> list[Case]:
    given = {
        "collectives": ("broadcast",),
        "sizes": (1024,),
        "ranks": (8,),
        "in_place": (False,),
        "groups": "mod:4",
    }
    return expand_axes(Axes(**{**given, **axes}))[0]  # type: ignore[arg-type]


def test_every_group_is_a_case_of_its_own() -> None:
    cases = swept(roots=(-1,))
    assert [(case.group, case.root) for case in cases] == [
        (group, root) for group in range(4) for root in range(2)
    ]
    assert {(case.n, case.of, case.world) for case in cases} == {(2, 4, 8)}
    assert [list(case.members) for case in cases[::2]] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert len({case.key for case in cases}) == len(cases)
    assert not {case.key for case in cases} & {
        case.key for case in swept(groups="and:0x3", roots=(-1,))
    }
    assert cases[0].siblings == [case for case in reversed(cases) if case.root == 0]


def test_a_case_of_no_group_is_refused() -> None:
    with pytest.raises(ValueError, match="group 2 of 2"):
        Case(collective="all_reduce", backend="gloo", n=4, nbytes=8, groups="mod:2", group=2, of=2)
    with pytest.raises(ValueError, match="is none of 4 ranks"):
        Case(collective="all_reduce", backend="gloo", n=4, nbytes=8, groups="mod:2")


def test_an_override_keeps_the_groups() -> None:
    change = Override(match=Part(backends=("gloo",)), axes=Part(sizes=(4096, 8192)))
    axes = Axes(
        collectives=("all_reduce",), sizes=(8,), ranks=(4,), in_place=(False,), groups="div:2"
    )
    cases, _ = Suite(name="s", axes=axes, overrides=(change,)).expand()
    assert sorted((case.group, case.nbytes, case.n) for case in cases) == [
        (0, 4096, 2),
        (0, 8192, 2),
        (1, 4096, 2),
        (1, 8192, 2),
    ]


def test_memory_time_and_worlds_are_of_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    divided, whole = swept(sizes=(64 << 20,))[0], swept(sizes=(64 << 20,), ranks=(2,), groups="")[0]
    monkeypatch.setattr(
        "collbench.run.memory.measure_room",
        lambda backend, n, policy: Room("on this host", GIB, 1 << 20, n, 0),
    )
    jobs, skips = fit_to_host([divided, whole], Policy())
    assert ([job.case for job in jobs], [skip.case for skip in skips]) == ([whole], [divided])
    made = plan.plan_worlds([plan.Job(divided, 2, ""), plan.Job(whole, 2, "")], Policy())
    assert [(p.n, p.groups) for p in made] == [(8, "mod:4"), (2, "")]
    assert plan.choose_timeout([plan.Job(divided, 2, "")], Policy()) > plan.choose_timeout(
        [plan.Job(whole, 2, "")], Policy()
    )


def test_tables_name_the_group_where_it_varies_and_the_rule_above() -> None:
    cases = swept()
    varying, constant = formats.split_axes(cases)
    assert varying == ["group"] and "2 ranks, 4 groups by mod:4" in constant
    assert [
        formats.format_cells(Record(case=case, status="failed"), None)["group"] for case in cases
    ] == list("0123")
    varying, constant = formats.split_axes(cases[:1])
    assert varying == [] and "4 groups by mod:4, group 0" in constant
