"""Logs of other tools, read as runs."""

from collbench.core.feature import Command, Feature

FEATURE = Feature(
    name="interop",
    commands=(
        Command(
            "import",
            "command:import_",
            "Read logs of nccl-tests, rccl-tests, Inspector, OSU and IMB.",
        ),
    ),
)
