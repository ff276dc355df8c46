"""The life of a communicator: made, called, divided, destroyed; and what becomes of one whose rank
is killed."""

from collbench.core.feature import Command, Entry, Feature

KIND = "lifecycle"
LOSS_KIND = "lifecycle_loss"
FEATURE = Feature(
    name="lifecycle",
    commands=(
        Command(
            "lifecycle",
            "command:lifecycle",
            "Measure setup, first call, new groups and end of a communicator, and loss of a rank.",
            starts_ranks=True,
            show_command="lifecycle",
        ),
    ),
    sections=(Entry("lifecycle", "view:make_section", after="skips"),),
    row_tables=(Entry(KIND, "rows:TABLE"), Entry(LOSS_KIND, "rows:LOSS_TABLE")),
    measurables=(Entry(KIND, "measurable:LIVES"), Entry(LOSS_KIND, "measurable:LOSSES")),
    runners=(Entry(KIND, "runner:RUNNER"), Entry(LOSS_KIND, "runner:LOSS_RUNNER")),
)
