"""Steps of training and inference, run as their programs have communication and computation."""

from collbench.core.feature import Entry, Feature

KIND = "step"
FEATURE = Feature(
    name="training",
    row_tables=(Entry(KIND, "rows:TABLE"),),
    measurables=(Entry(KIND, "measurable:STEPS"),),
    runners=(Entry(KIND, "runner:RUNNER"),),
)
