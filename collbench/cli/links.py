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
        raise UsageError(
            "--link and a run both say what the link is", "leave out --link, or the run"
        )
    fit = load_entries("link_sources").get("run")
    if fit is None:
        raise UsageError("this installation cannot fit a link to a run", "name a link with --link")
    speed, note = fit(source)
    return speed, f"; {note}"
