"""A collective beside something else on the same ranks."""

from collbench.core.feature import Command, Entry, Feature

FEATURE = Feature(
    name="overlap",
    commands=(
        Command(
            "overlap",
            "command:overlap",
            "Measure a collective beside something else on the same ranks: how much slower each"
            " is.",
            starts_ranks=True,
            show_command="overlap",
        ),
    ),
    sections=(Entry("overlap", "view:make_section", after="skips"),),
)
