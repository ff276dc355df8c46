"""What stands where a collective does in cases of forms: the form asked for, and the plain one,
which are measured in turns."""

from __future__ import annotations

from collbench.core.collectives import RowTable, make_subject_row
from collbench.features.forms import KIND

OTHER, PLAIN = "other_form", "plain_form"
TABLE = RowTable(
    KIND,
    {
        OTHER: make_subject_row(OTHER, "Objects, or several calls in one."),
        PLAIN: make_subject_row(PLAIN, "The same bytes as tensors, or the same calls apart."),
    },
    together=True,
    noun="form",
    planned_as_one=True,
)
