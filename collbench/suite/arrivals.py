"""How ranks come to a call, as ``--arrival`` and a suite's ``arrivals`` name it.

``aligned`` is mode isolated and ``natural`` mode host. In the other patterns ranks are aligned
first and then come apart: ``one-late:50us`` has one of them late by so much, by turns;
``random:100us`` each by a time of its own up to so much, drawn anew for each call.
"""

from __future__ import annotations

from collbench.core.errors import UsageError
from collbench.suite import grammar
from collbench.suite.case import Mode

KINDS = ("one-late", "random")

MODES: dict[str, Mode] = {"aligned": "isolated", "natural": "host"}

MOST = 1.0  # second


def parse_arrival(text: str, option: str = "--arrival") -> tuple[str, float]:
    """Kind and seconds of a pattern. Raises UsageError."""
    kind, _, amount = text.partition(":")
    if kind not in KINDS or not amount:
        raise UsageError(
            f"{option}: '{text}' is not a pattern of arrival",
            "aligned, natural, one-late:50us or random:100us; several with commas",
        )
    seconds = grammar.parse_duration(amount, option)
    if not 0 < seconds <= MOST:
        raise UsageError(
            f"{option}: {amount} is not between 0 and 1 s", "give a time such as one-late:50us"
        )
    return kind, seconds


def normalise_arrival(text: str, option: str = "--arrival") -> str:
    """``text``, where it names a pattern or a mode. Raises UsageError."""
    parse_cadence(text, option)
    return text


def parse_cadence(text: str, option: str = "--arrival") -> tuple[Mode, str]:
    """Mode and pattern of a case whose ranks arrive so. Raises UsageError."""
    if text in MODES:
        return MODES[text], ""
    parse_arrival(text, option)
    return "isolated", text
