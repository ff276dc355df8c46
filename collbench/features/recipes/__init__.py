"""Files to copy for other programs: what acts on a verdict, a dashboard, alerting rules."""

from collbench.core.feature import Command, Feature

FEATURE = Feature(
    name="recipes",
    commands=(
        Command(
            "recipe",
            "command:recipe",
            "Print a file for Slurm, Kubernetes, NHC, a chat, Prometheus or Grafana.",
        ),
    ),
)
