"""The parts of a step, which are measured in turns, each a case."""

from __future__ import annotations

from collbench.core.collectives import Collective, make_subject_row

STEP, COMPUTATION, COMMUNICATION = "step", "computation", "communication"
PARTS: dict[str, Collective] = {
    row.name: row
    for row in (
        make_subject_row(STEP, "Communication and computation as the program of a step has them."),
        make_subject_row(COMPUTATION, "The same without its communication.", moves_data=False),
        make_subject_row(COMMUNICATION, "The same without its computation."),
    )
}
