"""Disjoint groups of a world's ranks that are measured at once, by a rule as of nccl-tests'
NCCL_TESTS_SPLIT.

A rule gives every rank a colour: ``mod:8`` r % 8, ``div:8`` r // 8, ``and:0x7`` r & 7, ``or:0x1`` r
| 1; ranks of one colour are a group, and groups are numbered by colour. ``node:8`` has the ranks of
a host together, ``rail:8`` those of one place on their hosts, where 8 is how many a host has;
without a number, all ranks are on one host.

Other rules place groups among the ranks, of which some may be in none: ``pairs`` has every pair of
ranks meet once, in as few rounds as there can be, ``alone`` one pair a round; ``pairs:node:8`` only
those on one host, ``pairs:inter:8`` on two hosts, ``pairs:rail:8`` of one place on two hosts. A
case has one round of these: ``pairs 3/16`` is number 3 among 16 ranks. ``ranks 0,5,2;1,4,3/8`` says
who is together, in which order.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from collbench.core.errors import UsageError

COLOURS: dict[str, Callable[[Any, int], Any]] = {
    "mod": operator.mod,
    "div": operator.floordiv,
    "and": operator.and_,
    "or": operator.or_,
    "node": operator.floordiv,
    "rail": operator.mod,
}

SYMBOLS = {"%": "mod", "/": "div", "&": "and", "|": "or"}

BY_HOST = ("node", "rail")

HINT = "mod:8, div:8, and:0x7, or:0x1, node, rail or pairs"

NUMBER = r"0x[0-9a-f]{1,15}|0b[01]{1,60}|\d{1,18}"

MEETING = re.compile(
    r"(pairs|alone)(?::(node|inter|rail):([1-9]\d{0,8}))?(?: (\d{1,9})/(\d{1,9}))?"
)

MOST_MEETING = 4096  # ranks, of which all pairs are too many cases already

MOST_DIVIDED = 1 << 14  # ranks in groups of whatever kind

NAMED = re.compile(r"ranks (\d{1,9}(?:[,;]\d{1,9})*)/(\d{1,9})")

VARIABLES = ("NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_SPLIT")  # the first wins

Groups = tuple[Sequence[int], ...]

Pair = tuple[int, int]


class _Rule(NamedTuple):
    """``value`` is None for all ranks of a world."""

    name: str
    value: int | None


def normalise_rule(text: str, option: str = "--split") -> str:
    """A rule as this module writes it, also from nccl-tests' spellings: ``MOD 8``, ``%8``,
    ``&0b111``."""
    if (meeting := MEETING.fullmatch(text.strip().lower())) and meeting[4] is None:
        return meeting[0]
    match = re.fullmatch(rf"([a-z]+|[%/&|])[\s:]*({NUMBER})?", text.strip().lower())
    name = SYMBOLS.get(match[1], match[1]) if match else ""
    if match is None or name not in COLOURS or (match[2] is None and name not in BY_HOST):
        raise UsageError(f"{option}: unknown grouping '{text}'", HINT)
    if match[2] is None:
        return name
    base = {"0x": 16, "0b": 2}.get(match[2][:2], 10)
    value = int(match[2].removeprefix("0x").removeprefix("0b"), base)
    if not value:
        raise UsageError(
            f"{option}: '{text}' splits by 0",
            "give a number from 1 up; without --split all ranks are one group",
        )
    return f"{name}:{value:#x}" if name in ("and", "or") else f"{name}:{value}"


def rule_from_environment(variables: Mapping[str, str]) -> tuple[str, str]:
    """The rule that nccl-tests' variables ask for, and the setting that does; empty where none is
    set."""
    name = next((name for name in VARIABLES if variables.get(name, "").strip()), "")
    if not name:
        return "", ""
    text = variables[name].strip()
    is_mask = name == VARIABLES[0]  # hexadecimal, with or without 0x
    if re.fullmatch(r"(0x)?0+" if is_mask else r"(and|&)[\s:]*(0[xb])?0+", text.lower()):
        return "", ""  # all ranks have one colour
    return (
        normalise_rule(f"&0x{text.lower().removeprefix('0x')}" if is_mask else text, name),
        f"{name}={text}",
    )


def count_placed_ranks(rule: str) -> int:
    """How many ranks there are, of which some may be in no group; 0 for a rule that divides all of
    them."""
    match = MEETING.fullmatch(rule) or NAMED.fullmatch(rule)
    return int(match[match.re.groups] or 0) if match else 0


def list_rounds(rule: str, n: int) -> list[str]:
    """The rules of a sweep's cases, each of which has all its groups measured at once."""
    if not (match := MEETING.fullmatch(rule)) or match[4]:
        return [rule]
    number, at_once = _count_rounds_and_pairs(match, n)
    if not number * at_once:
        raise UsageError(
            f"{n} ranks cannot form {rule}",
            "take at least two ranks, and two on a host for pairs there",
        )
    return [
        f"{rule} {index}/{n}"
        for index in range(number if match[1] == "pairs" else number * at_once)
    ]


@functools.lru_cache(maxsize=128)
def list_members(rule: str, n: int) -> Groups:
    """The ranks of each group of a world of n; without a rule, all in one. Raises UsageError where
    sizes differ."""
    if not rule:
        return (range(n),)
    if n > MOST_DIVIDED:
        raise UsageError(
            f"groups {rule[:80]}: {n} ranks are too many",
            f"take at most {MOST_DIVIDED} ranks",
        )
    if count_placed_ranks(rule):
        return _list_placed(rule, n)
    import numpy as np

    name, value = _parse_rule(rule)
    every = np.arange(n)
    colours = COLOURS[name](every, value or n)
    group_sizes = np.unique(colours, return_counts=True)[1]
    sizes = Counter(group_sizes.tolist())
    if len(sizes) > 1:
        unlike = ", ".join(
            f"{number} of {size}" for size, number in sorted(sizes.items(), reverse=True)
        )
        raise UsageError(
            f"--split {rule} makes groups of {n} ranks that are not equally large: {unlike}",
            "choose a rule whose groups all have as many ranks",
        )
    grouped = every[np.argsort(colours, kind="stable")].reshape(len(group_sizes), -1)
    return tuple(map(tuple, grouped.tolist()))


def _list_placed(rule: str, n: int) -> Groups:
    """The groups of a rule that names its ranks. Raises UsageError unless it names each of n ranks
    at most once, in groups of one size."""
    if match := MEETING.fullmatch(rule):
        groups: Groups = _list_pairs(match, n)
    else:
        groups = tuple(
            tuple(map(int, group.split(",")))
            for group in rule.removeprefix("ranks ").split("/")[0].split(";")
        )
    ranks = [rank for group in groups for rank in group]
    if (
        count_placed_ranks(rule) != n
        or not ranks
        or len(set(ranks)) < len(ranks)
        or max(ranks) >= n
        or len({*map(len, groups)}) > 1
    ):
        raise UsageError(
            f"'{rule[:80]}' are not groups of {n} ranks",
            "put as many in each, and each rank in one at most",
        )
    return groups


def _count_rounds_and_pairs(match: re.Match[str], n: int) -> tuple[int, int]:
    """How many rounds the pairs of ``n`` ranks take, and how many pairs are in each."""
    group_size = int(match[3] or n)
    if n % group_size or n > MOST_MEETING:
        raise UsageError(
            (
                f"{n} ranks cannot be {group_size} on each host"
                if n % group_size
                else f"{n} ranks have too many pairs"
            ),
            (
                "leave out the hosts, or say how many share one"
                if n % group_size
                else f"take at most {MOST_MEETING} ranks"
            ),
        )
    hosts = n // group_size
    turns = {
        "": count_turns(n),
        "node": count_turns(group_size),
        "inter": count_turns(hosts) * group_size,
        "rail": count_turns(hosts),
    }
    pairs = {
        "": n // 2,
        "node": hosts * (group_size // 2),
        "inter": hosts // 2 * group_size,
        "rail": hosts // 2 * group_size,
    }
    return turns[match[2] or ""], pairs[match[2] or ""]


def _list_pairs(match: re.Match[str], n: int) -> tuple[Pair, ...]:
    """The pairs of a round, of ``n`` ranks of which so many are on a host."""
    number, at_once = _count_rounds_and_pairs(match, n)
    turn, only = (
        (int(match[4]), None) if match[1] == "pairs" else divmod(int(match[4]), max(1, at_once))
    )
    if turn >= number:
        return ()
    group_size = int(match[3] or n)
    if match[2] == "node":
        pairs = [
            (h * group_size + a, h * group_size + b)
            for h in range(n // group_size)
            for a, b in list_turn(group_size, turn)
        ]
    elif match[2]:
        turn, shift = divmod(turn, group_size) if match[2] == "inter" else (turn, 0)
        met = list_turn(n // group_size, turn)
        pairs = [
            (a * group_size + rail, b * group_size + (rail + shift) % group_size)
            for a, b in met
            for rail in range(group_size)
        ]
    else:
        pairs = list_turn(n, turn)
    return tuple(pairs if only is None else pairs[only : only + 1])


def count_turns(n: int) -> int:
    """Rounds in which each of n meets every other."""
    return n - 1 + n % 2 if n > 1 else 0


def list_turn(n: int, at: int) -> list[Pair]:
    """The pairs of n ranks that meet in round ``at``, by the circle method: one rank stays, or sits
    out, and the others go round it."""
    others = count_turns(n)
    pairs = [((at + k) % others, (at - k) % others) for k in range(1, others // 2 + 1)] + [
        (at, others)
    ] * (n % 2 == 0)
    return sorted((min(pair), max(pair)) for pair in pairs)


def describe_misplaced(rule: str, hosts: Sequence[str]) -> str:
    """The reason why ranks on ``hosts``, by rank, are not in the groups by host that ``rule`` takes
    them for; else an empty string."""
    match = MEETING.fullmatch(rule)
    named_rule = ("", None) if count_placed_ranks(rule) or not rule else _parse_rule(rule)
    name, value = (match[2], int(match[3] or 0)) if match else named_rule
    if name not in (*BY_HOST, "inter"):
        return ""
    group_size = value or len(hosts)
    if all(
        host == hosts[rank // group_size * group_size] for rank, host in enumerate(hosts)
    ) and len(set(hosts)) * group_size == len(hosts):
        return ""
    counts = ", ".join(f"{number} on {host}" for host, number in list(Counter(hosts).items())[:4])
    return f"--split {rule} needs {group_size} consecutive ranks on each host; there are {counts}"


def _parse_rule(rule: str) -> _Rule:
    name, _, value = normalise_rule(rule).partition(":")
    return _Rule(name, int(value, 0) if value else None)
