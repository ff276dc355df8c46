"""The link that --link or --from names, for commands that predict."""

from __future__ import annotations

from collbench.core import network
from collbench.core.errors import UsageError
from collbench.core.feature import load_entries
from collbench.core.network import Link


def find_link(link: str, source: str) -> tuple[Link, str]:
    """The link asked for, or the one that a recorded run shows, and what it rests on. Raises
    UsageError."""
    if not source:
        return network.parse_link(link or "ib200"), ""
    if link:
        raise UsageError("a run and --link both say what the link is", "give one of them")
    fit = load_entries("link_sources").get("run")
    if fit is None:
        raise UsageError("nothing is installed that fits a link to a run", "--link names one")
    speed, note = fit(source)
    return speed, f"; {note}"
