"""Algorithms looked at: drawn step by step, proved right, written for other tools."""

from collbench.core.feature import Command, Feature

FEATURE = Feature(
    name="study",
    commands=(
        Command(
            "show",
            "show_command:show",
            "Draw an algorithm's steps.",
        ),
        Command(
            "prove",
            "prove_command:prove",
            "Prove algorithms right, by counting contributions of ranks.",
        ),
        Command(
            "export",
            "export_command:export",
            "Write an algorithm's schedule as MSCCL XML, GOAL, DOT, JSON or Chakra.",
        ),
    ),
)
