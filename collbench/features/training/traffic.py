"""Bytes that a step sent, as counters have it, against what its operations need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collbench.features.training.count import count_step
from collbench.features.training.step import Step
from collbench.records.traffic import NOISE, replaced_collective, sent_ratio
from collbench.records.types import Sent
from collbench.suite.case import Case


class Carried(NamedTuple):
    """Bytes that left all hosts in a step's communication, what its operations need at least, and
    what they take as far as is known of the library."""

    counted_bytes: float
    needed_bytes: float
    known_bytes: float


def count_traffic(step: Step, case: Case, sent: Sequence[Sent], library: str) -> Carried | None:
    """The bytes that links carried for a step: of the counts, that during which least else did;
    None where there is none, or as much came from others."""
    count = count_step(step)
    total = needed = count.total
    for part in count.parts:
        other = replaced_collective(library, case.backend, part.kind)
        if other and part.members > 1:
            needed += part.total * (sent_ratio(other, part.kind, part.members) - 1)
    quiet = [
        (idle, sum(sent_bytes.bytes.values()) - idle)
        for sent_bytes in sent
        if (idle := sum(sent_bytes.idle.values())) <= NOISE * total
    ]
    if not (quiet and total):
        return None
    _, measured = min(quiet)
    return Carried(measured, total, needed)
