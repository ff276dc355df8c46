"""Times by a model of the network: predicted, fitted to runs, and how near runs come to them."""

from collbench.core.feature import Command, Entry, Feature

FEATURE = Feature(
    name="predict",
    commands=(
        Command(
            "predict",
            "command:predict",
            "Predict times on a model network, with crossovers and bounds.",
        ),
        Command(
            "fit",
            "fit_command:fit",
            "Fit latency and bandwidth of the model to recorded runs.",
        ),
    ),
    sections=(
        Entry("crossovers", "views.efficiency:make_crossovers", after="skips"),
        Entry("efficiency", "views.efficiency:make_efficiency", after="skips"),
    ),
    checks=(Entry("bound", "health_check:BOUND", after="link"),),
    link_sources=(Entry("run", "fit:link_from"),),
)
