"""Traces of jobs: read in others' formats, recorded, judged, and run again as steps."""

from collbench.core.feature import Command, Entry, Feature

FEATURE = Feature(
    name="traces",
    needs=("training",),
    commands=(
        Command(
            "trace",
            "command:trace",
            "Say what is in a job's trace, who comes late, and who hung it.",
        ),
        Command(
            "replay",
            "replay_command:replay",
            "Run one iteration of a recorded job again, from its trace.",
            starts_ranks=True,
        ),
    ),
    writers=(Entry("chakra", "writer:CHAKRA"),),
    step_sources=(Entry("trace", "suite:read_step"),),
)
