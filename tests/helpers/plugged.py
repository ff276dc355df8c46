"""Commands of collbench where torch has loaded a package's backend, by a process that had loaded
torch before. How torch finds such packages when it is loaded is for cold commands to test.

Started as a script it is such a command: MODULE:FUNCTION of the package, then ``collbench``'s
arguments, or ``-c`` and code."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import Any

import collbench.__main__


def run_plugged(warm: Any, load: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``collbench ARGS``, or code, once ``load`` (MODULE:FUNCTION) has registered its backend."""
    process = warm.start(load, *args, env={**os.environ, **env}, script=__file__)
    out, err = process.communicate(100)
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def main() -> None:
    load, *args = sys.argv[1:]
    module, function = load.split(":")
    getattr(importlib.import_module(module), function)()
    if args[0] == "-c":
        exec(args[1])
    else:
        sys.argv = ["collbench", *args]
        collbench.__main__.main()


if __name__ == "__main__":
    main()
