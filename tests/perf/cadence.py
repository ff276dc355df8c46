"""Which cadence decides best: the scatter of identical launches in each, from one A/A experiment
whose rounds go through all of them.

python tests/perf/cadence.py --rounds 12 --output reports/cadence.md
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from scipy import stats

from collbench.core.text import format_size
from collbench.machine import environment
from collbench.records import run_file
from collbench.records.rows import make_rows

MODES = ("isolated", "host", "streaming")
SUITE = """
description = "all cadences, as rows of the same launches"
[axes]
collectives = "all_reduce"
backends = "gloo"
sizes = ["1K", "64K", "4M"]
ranks = 2
in_place = true
ops = "max"
modes = ["isolated", "host", "streaming"]
[policy]
max_seconds = "{seconds}"
[[include]]
backends = "shm"
algorithms = "ring"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--max-time", default="0.25s", help="of a row and launch")
    parser.add_argument("--budget", help="as of collbench ab")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "cadence.toml"
        suite.write_text(SUITE.format(seconds=given.max_time))
        command = [sys.executable, "-m", "collbench", "ab", "--aa", "--suite", str(suite)]
        command += ["--rounds", f"{given.rounds},6", "--format", "md"]
        command += ["--budget", given.budget] if given.budget else []
        surroundings = {**os.environ, "COLLBENCH_HOME": folder}
        done = subprocess.run(command, env=surroundings, check=False, stdout=subprocess.DEVNULL)
        if done.returncode not in (0, 1, 3):
            raise SystemExit(done.returncode)
        files = [run_file.read_file(path) for path in sorted(Path(folder, "runs").glob("*.jsonl"))]
    text = report(scatter(files), given.rounds, given.max_time)
    if given.output:
        given.output.write_text(text)
    print(text)


def scatter(files: list) -> dict[tuple[str, int, str], list[float]]:  # type: ignore[type-arg]
    """Logarithms of head's median over base's, by implementation, size and mode, one a round; none
    where a busy machine kept ranks from starting together."""
    medians: dict[tuple[str, int, str], dict[int, dict[str, float]]] = defaultdict(dict)
    for row in make_rows(files):
        side = row.run.pairing.side if row.run.pairing else ""
        if row.launch.stage == 1 and row.derived:
            key = row.case.label, row.case.nbytes, row.case.mode
            medians[key].setdefault(row.launch.round, {})[side] = row.median
    found: dict[tuple[str, int, str], list[float]] = {}
    for label, nbytes in dict.fromkeys(key[:2] for key in medians):
        for mode in MODES:
            pairs = [p for p in medians[label, nbytes, mode].values() if len(p) == 2]
            found[label, nbytes, mode] = [math.log(p["head"] / p["base"]) for p in pairs]
    return found


def least(logs: dict[str, list[float]]) -> str:
    """The cadence whose standard deviation is surely the least, or "-"."""
    if min(map(len, logs.values())) < 2:
        return "-"
    spans = {}
    for mode, values in logs.items():
        free = len(values) - 1
        edges = stats.chi2.ppf([0.975, 0.025], free)
        spans[mode] = np.sqrt(free * np.var(values, ddof=1) / edges)
    first, *others = sorted(spans, key=lambda mode: spans[mode][1])
    return first if all(spans[first][1] < spans[mode][0] for mode in others) else "-"


def find_deviation(values: list[float]) -> float:
    """The standard deviation; NaN of fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def report(found: dict[tuple[str, int, str], list[float]], rounds: int, max_time: str) -> str:
    lines = ["| implementation | size | " + " | ".join(MODES) + " | least |"]
    lines += ["|---|--:|" + "--:|" * len(MODES) + "---|"]
    each: dict[str, list[float]] = defaultdict(list)
    for label, nbytes in dict.fromkeys(key[:2] for key in found):
        sds = {mode: find_deviation(found[label, nbytes, mode]) for mode in MODES}
        for mode, sd in sds.items():
            each[mode].append(sd)
        cells = [label, format_size(nbytes), *(f"{100 * sds[mode]:.1f}" for mode in MODES)]
        logs = {mode: found[label, nbytes, mode] for mode in MODES}
        lines.append("| " + " | ".join([*cells, least(logs)]) + " |")
    means = {mode: float(np.exp(np.nanmean(np.log(sds)))) for mode, sds in each.items()}
    cells = ["geometric mean", "", *(f"{100 * means[mode]:.1f}" for mode in MODES)]
    lines.append("| " + " | ".join([*cells, "-"]) + " |")
    cpu = environment.gather_facts(Path.cwd())["cpu"]
    return (
        "# Which cadence decides best\n\n"
        "Standard deviation of ln(head / base) of identical launches, in hundredths (of log units,"
        f" which are near percent only where small), {rounds} rounds, 2 ranks,"
        f" all_reduce in place, {max_time} a row and launch; {cpu['model']}, {cpu['physical']}"
        f" cores, {datetime.now(UTC):%F}. All cadences are rows of the same rounds. A comparison"
        " needs as many more rounds as the square of this is larger. *Least* is the cadence whose"
        " 95 % interval (chi-squared, as of normal scatter) lies below those of both others; -"
        " where none does. Made by"
        " `python tests/perf/cadence.py`.\n\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    main()
