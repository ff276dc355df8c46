"""Features, a folder each: commands, and what a job can measure besides collectives. Nothing
outside of a folder imports it; core/feature.py finds it by its name here."""

NAMES = (
    "compare",
    "advise",
    "health",
    "training",
    "traces",
    "overlap",
    "order",
    "backends",
    "p2p",
    "forms",
    "lifecycle",
    "predict",
    "study",
    "interop",
    "recipes",
)
