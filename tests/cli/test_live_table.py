"""The table of a run that goes on, in a real terminal that changes its size: tmux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Terminal = Callable[..., str]
TESTS = Path(__file__).parents[1]
SHOWN = """
import sys, time
sys.path.insert(0, {tests!r})
import factories
from collbench.records.derive import derive_row
from collbench.show.live import LiveTable

print("earlier line\\n" * 50)
world = factories.world(ranks=factories.ranks(["node01"] * 4), library="gloo (torch 2.13)")
cases = [factories.case(8 << power) for power in range(20)]
table = LiveTable()
table.begin(factories.run(), cases, [])
table.world(world)
for case in cases[:-1]:
    record = factories.record(case, world=0)
    table.record(record, derive_row(record, world))
table.phase(cases[-1], "measuring", 0.0)
time.sleep(60)
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """Give words to a tmux of its own, whose window has 120 columns and shows the table."""
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("no tmux on this machine")
    script = tmp_path / "shown.py"
    script.write_text(SHOWN.format(tests=str(TESTS)))
    own = ("TMUX", "STY", "COLUMNS", "LINES")
    known = {name: value for name, value in os.environ.items() if name not in own}

    def tell(*words: str) -> str:
        command = [tmux, "-f", "/dev/null", "-S", str(tmp_path / "socket"), *words]
        done = subprocess.run(command, env=known, capture_output=True, text=True, check=True)
        return done.stdout

    tell("new-session", "-d", "-x", "120", "-y", "40", sys.executable, str(script))
    yield tell
    tell("kill-server")


def seen(terminal: Terminal, words: str) -> str:
    """All that was ever on the screen, once ``words`` are."""
    until = time.monotonic() + 60
    while words not in (shown := terminal("capture-pane", "-p", "-S", "-")):
        assert time.monotonic() < until, shown
        time.sleep(0.2)
    return shown


# a frame that is under way while the terminal changes has its old width, and leaves a line
@pytest.mark.flaky(reruns=2)
def test_a_table_that_gets_narrower_leaves_nothing_behind(terminal: Terminal) -> None:
    wide = seen(terminal, "measuring")
    assert wide.count("earlier line") == 50
    assert max(map(len, wide.splitlines())) > 80
    terminal("resize-window", "-x", "80", "-y", "40")
    narrow = seen(terminal, "hidden at")  # which the first frame for 80 columns says
    assert narrow.count("collbench") == 1
    assert narrow.count("median") == 1
    assert narrow.count("earlier line") == 50
