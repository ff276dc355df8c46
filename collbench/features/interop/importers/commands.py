"""The lines of a log that started its tables: which they are, what they set, and how many ranks
they asked a launcher for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain

from collbench.core.collectives import map_collective_names
from collbench.machine import variables

PROGRAM = re.compile(r"(?:^|[\s/])\w+?_perf\w*(?![\w/])")  # not a folder

LAUNCHERS = "mpirun|mpiexec|orterun|prterun|prun|srun|aprun|jsrun|ibrun|yhrun"

LAUNCH = re.compile(rf"(?:^|[\s/;&(])(?:{LAUNCHERS})(?:\.\w+)?\s+(?:[-./~$]|osu_|IMB-)")

TEST = re.compile(r"\W*(\w+?)_perf\w*")  # a program, without the folders it is in

TESTS = {
    *map_collective_names(),
    *("hypercube", "all_reduce_bias"),  # which collbench has no collective for
}

BENCHMARK = re.compile(r"(?:^|/)(?:osu_[a-z]\w*|IMB-\w+|\w+_perf\w*)$")

CALL = re.compile(r"(?:^[\s+$>]*(?:\w+=\S+\s+)*|/)(?:osu_[a-z]\w*|IMB-\w+)(?=\s|$)")

RANKS = ("-n", "-np", "--np", "--n", "--ntasks")

NODES = ("-N", "--nodes", "-nodes")

PER_NODE = ("--ntasks-per-node", "--tasks-per-node", "-ppn", "--ppn", "-perhost", "--npernode")

MAX_TOLD = 1 << 20  # ranks that an option can mean


def words_of(line: str) -> list[str]:
    """The words of a line in which a benchmark or a launcher is called, as a shell prints it; none
    where it is another line."""
    called = not line.lstrip().startswith("#") and any(
        pattern.search(line) for pattern in (CALL, PROGRAM, LAUNCH)
    )
    return line.strip().lstrip("+$>% ").split() if called else []


def find_test(command: Sequence[str]) -> str:
    """The test of nccl-tests that a command runs, without _perf: the first that is known, else the
    first program that is named like one; "" where there is none, as of a script that starts it."""
    matches = [TEST.match(word.rpartition("/")[2]) for word in command]
    known = (match[1] for match in matches if match and match[1] in TESTS)
    unknown = (
        match[1]
        for before, word, match in zip(["", *command], command, matches, strict=False)
        if match and match.end() == len(word.rpartition("/")[2]) and _is_program(word, before)
    )
    return next(chain(known, unknown), "")


def _is_program(word: str, before: str) -> bool:
    """Whether a word may be a program: no variable, no folder and no option's value."""
    return "=" not in word and before != "cd" and ("/" in word or not before.startswith("-"))


def is_launch(command: Sequence[str]) -> bool:
    """Whether a launcher starts it."""
    return any(_is_launcher(word) for word in command)


def _is_launcher(word: str) -> bool:
    return re.fullmatch(rf"(?:.*/)?(?:{LAUNCHERS})(?:\.\w+)?", word) is not None


def settings_of(command: Sequence[str]) -> dict[str, str]:
    """The variables that a command sets."""
    return dict(word.split("=", 1) for word in command if "=" in word)


def varying_variables(every: Sequence[str]) -> set[str]:
    """Variables that not all commands in a log set alike, and that therefore tell its tests
    apart."""
    commands = [
        variables.select_variables(settings_of(tokens))
        for line in filter(None, every)
        if (tokens := words_of(line))
    ]
    names = {name for command in commands for name in command}
    return {name for name in names if len({command.get(name) for command in commands}) > 1}


def count_ranks(command: Sequence[str]) -> int:
    """The number of processes that a command starts, by its launcher's options; 0 where these do
    not say."""
    start = next((i for i, word in enumerate(command) if _is_launcher(word)), len(command))
    if start == len(command) or "jsrun" in command[start]:  # whose -n are sets of ranks
        return 0
    counts = [
        _count_ranks(_words_before_benchmark(part))
        for part in _split_programs(command[start + 1 :])
    ]
    return sum(counts) if all(counts) else 0


def _words_before_benchmark(tokens: Sequence[str]) -> Sequence[str]:
    """The words before the benchmark."""
    at = (i for i, word in enumerate(tokens) if BENCHMARK.search(word))
    return tokens[: next(at, len(tokens))]


def _split_programs(tokens: Sequence[str]) -> list[list[str]]:
    """Words of each of the programs that a colon divides."""
    parts: list[list[str]] = [[]]
    for word in tokens:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _count_ranks(tokens: Sequence[str]) -> int:
    if ranks := _option_value(tokens, RANKS):
        return ranks
    return _option_value(tokens, NODES) * _option_value(tokens, PER_NODE)


def _option_value(tokens: Sequence[str], names: Sequence[str]) -> int:
    """The number behind one of these options, be it a word of its own, after '=' or glued; 0 where
    there is none."""
    text = " ".join(tokens)
    options = "|".join(
        rf"{re.escape(name)}(?:[ =]+{'|' if len(name) == 2 else ''})" for name in names
    )
    matches = re.findall(rf"(?<!\S)(?:{options})(\d{{1,7}})(?!\S)", text)
    return int(matches[0]) if matches and int(matches[0]) < MAX_TOLD else 0


def count_gpus(command: Sequence[str]) -> int:
    """The number of GPUs that a process of nccl-tests has, by -t and -g."""
    arguments = command[len(_words_before_benchmark(command)) :]
    return math.prod(
        _option_value(arguments, names) or 1 for names in (("-t", "--nthreads"), ("-g", "--ngpus"))
    )
