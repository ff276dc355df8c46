"""Backends, this package's and others': listed, checked against their contract, begun anew."""

from collbench.core.feature import Command, Entry, Feature

KIND = "contract"
FEATURE = Feature(
    name="backends",
    commands=(
        Command(
            "backends",
            "command:make_group",
            "List backends, check that one keeps its contract, start your own.",
            is_group=True,
        ),
    ),
    row_tables=(Entry(KIND, "rows:TABLE"),),
    measurables=(Entry(KIND, "measurable:CONTRACTS"),),
    runners=(Entry(KIND, "runner:RUNNER"),),
)
