"""Steps of training and inference, run as their programs have communication and computation."""

from collbench.core.feature import Command, Entry, Feature

KIND = "step"
FEATURE = Feature(
    name="training",
    commands=(
        Command(
            "workload",
            "command:workload",
            "Run, count or predict a training step's communication.",
            starts_ranks=True,
        ),
    ),
    sections=(Entry("steps", "views.steps:make_section", after="skips"),),
    row_tables=(Entry(KIND, "rows:TABLE"),),
    measurables=(Entry(KIND, "measurable:STEPS"),),
    runners=(Entry(KIND, "runner:RUNNER"),),
    explanations=(Entry("operations", "compare_operations:explain_rows"),),
)
