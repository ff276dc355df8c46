"""Whether a cluster is healthy: checks of a night, past nights, who makes a group slow."""

from collbench.core.feature import Command, Feature

FEATURE = Feature(
    name="health",
    commands=(
        Command(
            "health",
            "command:health",
            "Say if a cluster is healthy; if not: who, since when, what to do.",
            starts_ranks=True,
            verdict_options=("--locate",),
        ),
        Command(
            "accept",
            "accept.command:accept",
            "Measure machines for acceptance, and write the certificate.",
            starts_ranks=True,
            show_command="accept --run",
        ),
        Command(
            "expect",
            "expect.command:make_group",
            "Learn tables of expected bandwidths, show them, and what they would find.",
            is_group=True,
        ),
        Command(
            "history",
            "history.command:make_group",
            "Keep nights of runs, show what changed since when, review levels.",
            is_group=True,
        ),
        Command(
            "locate",
            "locate.command:locate",
            "Find who makes a group slow, by halving slow groups.",
            starts_ranks=True,
            resume_command="",
        ),
        Command(
            "pairs",
            "pairs.command:pairs",
            "Measure every pair of ranks: which ranks, hosts, links are slow.",
            starts_ranks=True,
            resume_command="pairs",
            show_command="pairs",
        ),
    ),
)
