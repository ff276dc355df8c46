"""What ranks do in the background of a case, as ``--background`` and a suite's ``backgrounds`` name
it.

``gemm`` multiplies matrices, on a CPU such as fit a core's cache, ``copy`` copies memory that fits
no cache, ``spin`` takes a core of the host and no memory, and ``sleep`` does nothing, as a control.
Any other name is a collective, on communicators of its own: ``all_to_all`` of the case's size,
``all_to_all:4M`` of its own. It is among all ranks, or, with a rule that divides them
(``groups.py``), in every group at once, ``all_to_all:4M@mod:2``, or in one of them alone,
``all_to_all@div:2#1``. ``none`` is nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core import groups
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.text import format_count, suggest_name
from collbench.suite import grammar
from collbench.suite.case import Case

COMPUTING = ("gemm", "copy", "spin", "sleep")
NOTHING = "none"
PLACES = (*COMPUTING, *(name for name, row in COLLECTIVES.items() if row.moves_data))
WHERE = re.compile(r"(.+?)(?:#(\d{1,7}))?")  # a rule, and the one group that is meant


class Task(NamedTuple):
    """What is done, of how many bytes (None: as many as the case has), in the groups of which
    ``rule`` (empty: among all ranks), and in which of them alone (None: in all)."""

    kind: str
    nbytes: int | None = None
    rule: str = ""
    only: int | None = None

    def family(self, world: int) -> groups.Groups:
        """The groups of a world's ranks in which it is done. Raises UsageError."""
        members = tuple(tuple(group_ranks) for group_ranks in groups.list_members(self.rule, world))
        if self.only is None:
            return members
        if self.only >= len(members):
            raise UsageError(
                f"{self.rule} has no group #{self.only}: it divides {world} ranks into"
                f" {format_count(len(members), 'group')}",
                f"choose a number below {len(members)}: groups count from 0",
            )
        return (members[self.only],)


def parse_background(text: str, option: str = "--background") -> Task:
    """The background that a text asks for. Raises UsageError."""
    what, at, where = text.partition("@")
    kind, colon, amount = what.partition(":")
    if kind not in PLACES or ((colon or at) and kind in COMPUTING):
        raise UsageError(
            f"{option}: '{text[:80]}' cannot be done in the background",
            suggest_name(kind, PLACES)
            or f"use none, {', '.join(COMPUTING)} or a collective: all_to_all:4M, all_to_all@mod:2",
        )
    nbytes = grammar.parse_size(amount, option) if colon else None
    match = WHERE.fullmatch(where) if at else None
    rule = groups.normalise_rule(match[1] if match else "", option) if at else ""
    if groups.MEETING.fullmatch(rule):
        raise UsageError(f"{option}: '{rule}' leaves ranks out", "use mod:8, div:8, node or rail")
    return Task(kind, nbytes, rule, int(match[2]) if match and match[2] else None)


def normalise_background(text: str, option: str = "--background") -> str:
    """``text`` as cases have it: empty where it names nothing. Raises UsageError."""
    if text in ("", NOTHING):
        return ""
    task, (what, _, _) = parse_background(text, option), text.partition("@")
    only = "" if task.only is None else f"#{task.only}"
    return f"{what}@{task.rule}{only}" if task.rule else what


def group_rule(case: Case) -> str:
    """The rule by which ranks are divided for the case's background; "" for all ranks together, or
    without a background."""
    return parse_background(case.background).rule if case.background else ""


def count_ranks(case: Case) -> int:
    """How many of a case's ranks do what is in its background."""
    if not case.background:
        return 0
    members = {*case.members}
    return sum(
        len(members.intersection(g)) for g in parse_background(case.background).family(case.world)
    )


def background_case(case: Case) -> Case | None:
    """The collective in the background of a case, if there is one, of one of its groups: the
    library's own. Raises UsageError where ranks cannot be divided so."""
    if not case.background or (task := parse_background(case.background)).kind in COMPUTING:
        return None
    row = COLLECTIVES[task.kind]
    return replace(
        case,
        collective=row.name,
        n=len(task.family(case.world)[0]),
        groups="",
        group=0,
        of=1,
        nbytes=case.nbytes if task.nbytes is None else task.nbytes,
        algorithm="native",
        op="sum" if row.reduces else "none",
        root=0 if row.rooted else -1,
        in_place=False,
        splits="uniform" if row.uneven else "",
        mode="isolated",
        arrival="",
        background="",
    )


def refuse_background(case: Case) -> str:
    """Why a case can have no such background, or an empty string."""
    if case.background and case.mode == "graph":
        return "a CUDA graph is captured while nothing else is done (--background)"
    try:
        other = background_case(case)
    except UsageError as e:
        return f"{case.background} in the background: {e.message}"
    if other and (other.n < 2 or groups.count_placed_ranks(case.groups)):
        return f"{case.background} in the background takes two ranks or more, and no pairs"
    return ""
