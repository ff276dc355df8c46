"""The command `runs`: what has been saved."""

from __future__ import annotations

from collbench.core.errors import CollbenchError
from collbench.core.text import tell


def runs(last: int = 20, output_format: str = "table") -> None:
    """List saved runs."""
    from collbench.cli import outputs
    from collbench.records import store
    from collbench.show import terminal
    from collbench.show.views import cases

    outputs.check(output_format, (), ("table", "json", "csv"))
    found, unreadable = [], []
    every = store.saved()
    paths = every[-last:]
    back = 0
    for path in reversed(paths):
        try:
            outline = store.outline(path)
            name = f"@last~{back}" if back else "@last"
            found.append(("" if outline.running else name, outline))
        except CollbenchError as e:
            unreadable.append(f"left out: {e.message}")
        back += not store.is_running(path)
    document = cases.saved(found[::-1], len(every))
    if output_format != "table":
        outputs.deliver(document, output_format)
    elif paths:
        terminal.show(*document.brief)
    else:
        terminal.show(f"no run is saved yet under {store.home()}")
    for message in unreadable:
        tell(message)
