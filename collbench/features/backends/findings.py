"""What checks of a backend come to."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "note", "skipped", "failed"]


class CheckRow(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a backend: what it looks at, how it went and what was seen."""

    check: str
    state: State
    text: str


class ContractFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Checks that ranks have made; ``at`` is the one that they are in, empty once all are done."""

    rows: list[CheckRow]
    at: str = ""


MEANINGS = {
    "import": "INFO is read without loading a library",
    "meaning": "every collective, datatype and reduction gives the right bits",
    "first calls": "the first calls of new sizes are right",
    "stale": "a result comes from the call that was made last, and from no other",
    "honest": "run() returns when the result is there, not before",
    "input": "out of place, what was sent is as it was",
    "worlds": "two worlds live in one process",
    "groups": "groups of ranks keep to themselves",
    "overhead": "bare() calls the library with nothing to do, on one rank alone",
    "leaks": "calls and prepared calls leave nothing behind",
    "threads": "as many threads run as INFO says",
    "output": "nothing is written to standard output",
    "planted": "faults are noticed, and the right rank is named",
    "again": "two commands at once do not disturb each other",
}
