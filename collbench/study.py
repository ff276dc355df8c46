"""Commands about algorithms that run no ranks: show, prove, predict, fit, export. Heavy imports stay inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from collbench.errors import CollbenchError, Exit, UsageError

Option, Argument = typer.Option, typer.Argument


def show() -> None:
    """Draw an algorithm's steps, in the terminal or as a page with a slider."""
    raise NotImplementedError


def prove() -> None:
    """Check algorithms by counting contributions, for many numbers of ranks."""
    raise NotImplementedError


def predict() -> None:
    """Predict times on a model network: per algorithm and size, crossovers, bounds."""
    raise NotImplementedError


def fit() -> None:
    """Fit latency and bandwidth of the model to recorded runs."""
    raise NotImplementedError


def export() -> None:
    """Write an algorithm's schedule for other tools: MSCCL XML, GOAL, DOT or JSON."""
    raise NotImplementedError
