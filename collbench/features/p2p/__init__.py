"""Transfers from rank to rank: latency, bandwidth, rate of messages, incast and outcast."""

from collbench.core.feature import Command, Entry, Feature

KIND = "transfer"
FEATURE = Feature(
    name="p2p",
    commands=(
        Command(
            "p2p",
            "command:p2p",
            "Measure messages between ranks: latency, bandwidth, rate, incast.",
            starts_ranks=True,
            show_command="p2p",
        ),
    ),
    sections=(Entry("p2p", "view:make_section", after="skips"),),
    row_tables=(Entry(KIND, "rows:TABLE"),),
    measurables=(Entry(KIND, "measurable:TRANSFERS"),),
    runners=(Entry(KIND, "runner:RUNNER"),),
)
