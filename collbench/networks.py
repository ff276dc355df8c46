"""Model networks: what it costs to move a step's messages."""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """Seconds a message, seconds a byte on the wire, seconds a byte reduced."""

    alpha: float
    beta: float
    gamma: float
