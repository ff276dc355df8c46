"""The command `runs`: what has been saved."""

from __future__ import annotations

from collbench.core.errors import CollbenchError


def runs(last: int = 20) -> None:
    """List saved runs."""
    from collbench.records import store
    from collbench.show import terminal
    from collbench.show.views import cases

    found, unreadable = [], []
    paths = store.saved()[-last:]
    if not paths:
        return terminal.show(f"no run is saved yet under {store.home()}")
    for back, path in zip(range(len(paths) - 1, -1, -1), paths, strict=True):
        try:
            found.append((f"@last~{back}" if back else "@last", store.outline(path)))
        except CollbenchError as e:
            unreadable.append(e.message)
    terminal.show(cases.saved(found), *(f"left out: {message}" for message in unreadable))
