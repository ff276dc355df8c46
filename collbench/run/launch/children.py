"""Child processes that the kernel ends with their parent, however that ends (Linux).

A parent is the thread that starts a child: where that ends first, the child ends with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1

# Becomes a command, to which the kernel sends a signal when its parent ends: from its first moment,
# not from when it has loaded its modules.
_BECOME = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]))
if os.getppid() == int(sys.argv[2]) or sys.argv[2] == "0":
    os.execvp(sys.argv[3], [str(os.getpid()) if a == "{pid}" else a for a in sys.argv[3:]])
"""

# Says why a process is killed that has had its time, and kills it.
_KILL = """
import os, sys, time
time.sleep(float(sys.argv[1]))
os.write(2, sys.argv[2].encode())
os.kill(int(sys.argv[3]), 9)
"""

# Runs a module as ``python -m`` does, but not with the current folder on the path, where files may
# be named as modules are. The module may lie in the folder of the first argument.
_RUN = """
import sys
sys.path += filter(None, [sys.argv.pop(1)])
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def module_command(python: str, name: str, *arguments: str) -> list[str]:
    """A command that runs a module of collbench with an interpreter: with another than this one it
    has to find collbench by PYTHONPATH."""
    folder = str(Path(__file__).parents[3]) if python == sys.executable else ""
    return [python, "-P", "-c", _RUN, folder, name, *arguments]


def bound_command(python: str, number: signal.Signals, parent: int, *command: str) -> list[str]:
    """A command to which the kernel sends a signal when the process that starts it ends, which has
    the pid ``parent`` (0: it may be any). ``{pid}`` in it is the command's own."""
    return [python, "-I", "-S", "-c", _BECOME, str(int(number)), str(parent), *command]


@contextmanager
def killed_after(seconds: float, message: str) -> Iterator[None]:
    """Have another process write ``message`` and kill this one, unless the block ends in time: for
    a library that keeps Python's lock while it waits, so that no thread of this process runs."""
    me = os.getpid()
    guard = [sys.executable, "-I", "-S", "-c", _KILL, str(seconds), message, str(me)]
    process = subprocess.Popen(
        bound_command(sys.executable, signal.SIGKILL, me, *guard), stdin=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def die_with_parent(made_by: int | None = None) -> None:
    """Have the kernel kill this process when the one that made it ends, however it ends (Linux):
    now, if that is known and has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if made_by not in (None, os.getppid()):
        os._exit(1)
