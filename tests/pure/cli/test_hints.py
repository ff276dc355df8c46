"""Hints name what the command in question has: options, commands, keys of a suite's file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import factories
import pytest
from command_lines import every_command, list_options

import collbench
from collbench.core.collectives import COLLECTIVES
from collbench.features.compare.verdict import LAUNCHED_ONCE
from collbench.records.flags import FLAGS, Flag
from collbench.run.plan import REMEDIES
from collbench.run.resumption import describe_remedy
from collbench.show.flags import GENERAL, explain_flag, fill_limits
from collbench.suite.policy import Policy
from collbench.suite.suite_keys import COMMANDS, replace_options

RUN = ["collbench", "run", "nightly"]
# whose options hints name, too; and options that a flag is about, which its run was given
OTHERS = {"srun", "mpirun", "nvidia-smi", "--resume", "--dry-run", "--inject"}


@pytest.mark.parametrize("command", [*COMMANDS, "all_reduce"])
@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_remedy_of_a_flag_names_what_the_command_has(flag: Flag, command: str) -> None:
    for policy, stops in ((Policy(), ["budget"]), (Policy(), ["max_n"]), (Policy(iters=3), [])):
        limits = fill_limits(policy, [True], stops) | {"call_path": ""}
        remedy = explain_flag(flag.name, limits, ["collbench", command]).remedy
        words = [part for part in re.split("[;:,]", remedy) if not OTHERS & {*part.split()}]
        named = re.findall(r"(?<![\w-])--?[a-zA-Z][a-z-]*", " ".join(words))
        assert {*named} <= list_options(command)


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
    assert keys in replace_options(hint, RUN)
    assert replace_options(hint, ["collbench", "all_reduce"]) == hint


def test_the_command_that_goes_on_with_a_suites_run_keeps_its_options() -> None:
    suite = factories.suite(envs=((("LD_PRELOAD", "/x"),),))
    run = factories.run(command=RUN, suite=suite)
    again = describe_remedy(run, "r")
    assert again == "collbench run --resume r --env LD_PRELOAD=/x measures it again"
    limits = {**GENERAL, "again": again}
    assert explain_flag("cut-short", limits, run.command).remedy == again


@pytest.mark.parametrize("command", COMMANDS)
def test_a_suites_hint_keeps_the_options_of_its_command(command: str) -> None:
    assert list_options(command) >= COMMANDS[command]
    keeps = {option: option in list_options(command) for option in ("--max-time", "--backend")}
    hint = replace_options("--max-time 3s, --backend gloo, --inject drop:3", ["", command])
    assert {option: option in hint for option in keeps} == keeps
    assert "--inject drop:3" in hint


def test_commands_that_launch_once_have_no_option_for_more() -> None:
    measuring = [*LAUNCHED_ONCE, "all_reduce", "run", "p2p", "lifecycle", "order"]
    once = {name for name in measuring if "--launches" not in list_options(name)}
    assert once == {*LAUNCHED_ONCE} and not once & {*COLLECTIVES}


def list_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What a module says, by line: strings, with {} for what is filled in."""
    nodes = [*ast.walk(tree)]
    inner = [part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values]
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)} | {*map(id, inner)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            values = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield node.lineno, "".join(map(str, values))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            yield node.lineno, node.value


def list_hints() -> Iterator[tuple[str, str]]:
    """Each clause that begins with `collbench COMMAND`, with where it stands."""
    root = Path(collbench.__file__).parent
    groups = {name.partition(" ")[0] for name in every_command()} | {*COLLECTIVES}
    for path in sorted(root.rglob("*.py")):
        for line, text in list_texts(ast.parse(path.read_text())):
            for match in re.finditer(r"\bcollbench ([a-z][^;,()`\n]*)", text):
                if match[1].split()[0] in groups and match[1].rstrip() not in TITLES:
                    yield f"{path.relative_to(root)}:{line}", match[1]


TITLES = {  # of no command with options
    *("help", "list", "report -->", "history of {}"),
}
VALUES = re.compile(r"[A-Z@/.{0-9]|'|.*[_./=:{…]|(words|gloo|json)?$")  # of options, but no prose


def find_fault(hint: str) -> str:
    """Why a command line is none: its options are not there, or need what is not given."""
    hint = re.sub(r"(?<=[a-z])\{\}", "", hint.replace(" …", ""))  # options, such as --history URL
    words = [word.rstrip(":.|") for word in hint.split()]
    words[:1] = ["all_reduce"] if words[0] in COLLECTIVES else words[:1]
    names = (" ".join(words[:k]) for k in (3, 2, 1))
    name = next((name for name in names if name in every_command()), "")
    if not name:
        is_group = any(command.startswith(f"{words[0]} ") for command in every_command())
        return "" if is_group and not words[1:] else "no such command"
    given = dict(zip(words, [*words[1:], ""], strict=True))
    params = {
        word: p for p in every_command()[name].params for word in (*p.opts, *p.secondary_opts)
    }
    for word, value in given.items():
        if word.startswith("-") and word not in {*params, "--help"}:
            return f"{name} has no {word}"
        option = params.get(word) if word.startswith("-") else None
        if option and not option.is_flag and not VALUES.match(value):
            return f"{word} needs a value"
    needed = (p.opts[0] for p in params.values() if p.required and not given.keys() & {*p.opts})
    return next((f"{name} needs {option}" for option in needed if option.startswith("-")), "")


def test_commands_that_hints_name_are_commands() -> None:
    hints = [*list_hints()]
    assert len(hints) > 80
    assert not [(where, hint, fault) for where, hint in hints if (fault := find_fault(hint))]
