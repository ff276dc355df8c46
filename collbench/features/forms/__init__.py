"""Other forms of torch's calls beside the plain ones: objects for tensors, several calls in one."""

from collbench.core.feature import Command, Entry, Feature

KIND = "form"
FEATURE = Feature(
    name="forms",
    commands=(
        Command(
            "objects",
            "command:objects",
            "Measure torch's collectives of objects beside those of tensors.",
            starts_ranks=True,
        ),
        Command(
            "coalesce",
            "command:coalesce",
            "Measure small calls coalesced into one beside the same calls apart.",
            starts_ranks=True,
        ),
    ),
    sections=(Entry("forms", "view:make_section", after="skips"),),
    row_tables=(Entry(KIND, "rows:TABLE"),),
    measurables=(Entry(KIND, "measurable:FORMS"),),
    runners=(Entry(KIND, "runner:RUNNER"),),
)
