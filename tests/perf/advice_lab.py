"""The run of reports/advice-slow-links.html: Gloo's broadcast beside chains of pieces, on hosts
with links of 100 Mbit/s each, which are namespaces of this machine. Needs root, ip, tc and sshd.

python tests/perf/advice_lab.py --output reports/runs/advice-slow-links/gloo.jsonl \
  [--suite larger.toml] [--launches 12]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lab"))

from network import Lab
from shells import Shells

RATE, HOSTS = 10**8, 3


def record_run(output: Path, suite: str, launches: int, seconds: float) -> int:
    """Measures a suite beside ``output`` in so many launches; collbench's exit code."""
    written = output.absolute()
    os.chdir(written.parent)
    arguments = ("run", suite, "--launches", str(launches), "--output", written.name)
    with (
        tempfile.TemporaryDirectory(prefix="collbench-", dir="/tmp") as folder,
        Lab(HOSTS, RATE) as lab,
    ):
        done = Shells(lab, Path(folder)).run(*arguments, seconds=seconds)
    print(done.stdout, done.stderr, sep="\n")
    return done.returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--suite", default="suite.toml", help="a file beside the output")
    parser.add_argument("--launches", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1800, help="the longest that it may take")
    given = parser.parse_args()
    sys.exit(record_run(given.output, given.suite, given.launches, given.seconds))
