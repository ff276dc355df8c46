"""Comparisons of runs, and experiments in which two variants take turns."""

from collbench.core.feature import Command, Entry, Feature

FEATURE = Feature(
    name="compare",
    commands=(
        Command(
            "ab",
            "ab.command:ab",
            "Compare two libraries, settings or algorithms, in turns.",
            starts_ranks=True,
        ),
        Command(
            "compare",
            "command:compare",
            "Judge a run against another: which rows are slower, beyond noise.",
        ),
    ),
    sections=(Entry("comparison", "report:make_section"), Entry("method", "report:make_method")),
    conclusions=(Entry("comparison", "report:conclude_comparison"),),
)
