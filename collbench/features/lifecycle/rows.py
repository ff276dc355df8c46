"""What stands where a collective does in cases of a communicator's life: its phases."""

from __future__ import annotations

from collbench.core.collectives import Collective, RowTable, make_subject_row
from collbench.features.lifecycle import KIND, LOSS_KIND

INIT = "communicator_init"  # the leader, which stands for the others
START = "process_start"
JOIN = "rendezvous"
FIRST = "first_call"
NTH = "nth_call"
GROUPS = "new_groups"
DESTROY = "communicator_destroy"
KNOWN = "loss_known"
RECOVERED = "loss_recovered"

PHASES = (START, JOIN, INIT, FIRST, NTH, GROUPS, DESTROY)  # in the order of a life


def _make_rows(meanings: dict[str, str]) -> dict[str, Collective]:
    return {
        name: make_subject_row(name, meaning, moves_data=False)
        for name, meaning in meanings.items()
    }


TABLE = RowTable(
    KIND,
    _make_rows(
        {
            INIT: "The library makes its communicator of all ranks.",
            START: "A process starts and loads the library.",
            JOIN: "Ranks find each other in a store, from the last one's coming.",
            FIRST: "The first collective of the communicator.",
            NTH: "A later call of the same collective.",
            GROUPS: "Further groups of all ranks are made, one after the other.",
            DESTROY: "The communicator is destroyed.",
        }
    ),
    together=True,
    noun="life",
    once=True,
    planned_as_one=True,
)
LOSS_TABLE = RowTable(
    LOSS_KIND,
    _make_rows(
        {
            KNOWN: "From a rank's being killed until every other rank has detected it.",
            RECOVERED: "From a rank's being killed until the others' first correct all_reduce.",
        }
    ),
    together=True,
    noun="loss",
    once=True,
    planned_as_one=True,
)
