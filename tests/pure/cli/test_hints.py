"""Hints name what the command in question has: options, commands, keys of a suite's file."""

from __future__ import annotations

import re

import pytest
from command_lines import list_options

from collbench.core.collectives import COLLECTIVES
from collbench.features.compare.verdict import LAUNCHED_ONCE
from collbench.records.flags import FLAGS
from collbench.run.plan import REMEDIES
from collbench.show.flags import explain_flag, fill_limits
from collbench.suite.policy import Policy
from collbench.suite.suite_keys import OPTIONS, name_keys

RUN = ["collbench", "run", "nightly"]
OTHERS = {"srun", "mpirun", "nvidia-smi", "--resume", "--dry-run"}  # whose options hints name, too


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_remedy_of_a_flag_names_what_the_command_has(flag: object) -> None:
    for policy, stops in ((Policy(), ["budget"]), (Policy(), ["max_n"]), (Policy(iters=3), [])):
        limits = fill_limits(policy, [True], stops) | {"call_path": ""}
        for command in (RUN, ["collbench", "all_reduce"]):
            remedy = explain_flag(flag.name, limits, command).remedy
            words = [part for part in re.split("[;:,]", remedy) if not OTHERS & {*part.split()}]
            named = re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", " ".join(words))
            assert {*named} <= list_options(command[1])


@pytest.mark.parametrize(
    ("hint", "keys"),
    [
        ("put several calls into each sample (-m 20)", "agg_iters = 20 in [policy]"),
        ("measure (--mode isolated,graph)", 'modes = ["isolated", "graph"] in [axes]'),
        ("ask for less (--precision 20%)", 'precision = "20%" in [policy]'),
        (REMEDIES["no in-place form"], "use in_place = false in [axes]"),
        (REMEDIES["integers only"], 'use dtypes = "int32" in [axes]'),
        (REMEDIES["--scale"], "use scale in [[workload]] for"),
        ("nvidia-smi -q -d PERFORMANCE, srun -c N, -g 2", "-q -d PERFORMANCE, srun -c N, -g 2"),
    ],
)
def test_a_suites_hint_names_keys_of_its_file(hint: str, keys: str) -> None:
    assert keys in name_keys(hint, RUN)
    assert name_keys(hint, ["collbench", "all_reduce"]) == hint


def test_options_that_are_no_keys_are_those_of_run() -> None:
    assert list_options("run") >= OPTIONS


def test_commands_that_launch_once_have_no_option_for_more() -> None:
    measuring = [*LAUNCHED_ONCE, "all_reduce", "run", "p2p", "lifecycle", "order"]
    once = {name for name in measuring if "--launches" not in list_options(name)}
    assert once == {*LAUNCHED_ONCE} and not once & {*COLLECTIVES}
