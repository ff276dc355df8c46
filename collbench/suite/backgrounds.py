"""What ranks do in the background of a case, as ``--background`` and a suite's ``backgrounds`` name
it.

``gemm`` multiplies matrices that fit a core's cache, ``copy`` copies memory that does not, and
``sleep`` does neither, as a control. Any other name is a collective, on a communicator of its own
among the same ranks: ``all_to_all`` of the case's size, ``all_to_all:4M`` of its own. ``none`` is
nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.text import near
from collbench.suite import grammar
from collbench.suite.case import Case

COMPUTING = ("gemm", "copy", "sleep")
NOTHING = "none"
PLACES = (*COMPUTING, *(name for name, row in COLLECTIVES.items() if row.moves_data))


def parsed(text: str, option: str = "--background") -> tuple[str, int | None]:
    """What is done, and of how many bytes; None for as many as the case has. Raises UsageError."""
    kind, colon, amount = text.partition(":")
    if kind not in PLACES or (colon and kind in COMPUTING):
        raise UsageError(
            f"{option}: nothing like '{text[:80]}' can be done in the background",
            near(kind, PLACES) or f"none, {', '.join(COMPUTING)}, or a collective: all_to_all:4M",
        )
    return kind, grammar.parse_size(amount, option) if colon else None


def spelled(text: str, option: str = "--background") -> str:
    """``text`` as cases have it: empty where it names nothing. Raises UsageError."""
    if text in ("", NOTHING):
        return ""
    parsed(text, option)
    return text


def beside(case: Case) -> Case | None:
    """The collective in the background of a case, if there is one: the library's own."""
    if not case.background or (told := parsed(case.background))[0] in COMPUTING:
        return None
    row = COLLECTIVES[told[0]]
    return replace(
        case,
        collective=row.name,
        nbytes=case.nbytes if told[1] is None else told[1],
        algorithm="native",
        op="sum" if row.reduces else "none",
        root=0 if row.rooted else -1,
        in_place=False,
        splits="uniform" if row.uneven else "",
        mode="isolated",
        arrival="",
        background="",
    )


def why_not(case: Case) -> str:
    """Why a case can have no such background, or an empty string."""
    if case.background and case.mode == "graph":
        return "a CUDA graph is captured while nothing else is done (--background)"
    if beside(case) and (case.n < 2 or case.groups):
        return f"{case.background} in the background takes two ranks or more, and no --split"
    return ""
