"""Ping-pong: a message from rank 0 to rank 1 and one back."""

from collbench.core.feature import Entry, Feature

KIND = "pingpong"
FEATURE = Feature(
    name=KIND,
    row_tables=(Entry(KIND, "rows:TABLE"),),
    measurables=(Entry(KIND, "measurable:PINGPONGS"),),
    runners=(Entry(KIND, "runner:RUNNER"),),
)
