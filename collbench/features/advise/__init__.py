"""Which setting of a library is surely faster than its own choice, written where it reads it."""

from collbench.core.feature import Command, Feature

FEATURE = Feature(
    name="advise",
    needs=("compare",),
    commands=(
        Command(
            "advise",
            "command:advise",
            "Write the settings that runs show to be surely faster, where the library reads them.",
        ),
        Command(
            "tune",
            "tune.command:tune",
            "Measure which settings are surely faster, verify them, and write them.",
            starts_ranks=True,
            resume_command="",
        ),
    ),
)
