"""The simulated figures that the protocol of comparisons was chosen by, beside those documented for
it.

``python tests/perf/judging.py`` prints them within minutes; ``--repeat .1`` takes a tenth of the
repetitions. They are seeded; whether they agree is for the reader to see, with the Monte Carlo
error beside each.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import simulated

Line = tuple[str, str, float, float]  # what, as documented, as found, its standard error

DESIGNS = {
    "one launch each": ("57-61 %", "57-61 %"),
    "pooled": ("76 %", "81 %"),
    "one block after the other": ("24 %", "38 %"),
    "pairs": ("4 %", "3.5 %"),
}
COVERAGE = {6: 0.969, 7: 0.953, 8: 0.961, 10: 0.951, 12: 0.958, 15: 0.952, 20: 0.952}
MDE = {6: 2.5, 8: 1.8, 10: 1.45, 12: 1.36, 16: 1.1, 20: 0.94}


def error(share: float, runs: int) -> float:
    return math.sqrt(max(share * (1 - share), 1 / runs) / runs)


def lines(repeat: float, pool: ProcessPoolExecutor) -> Iterator[Line]:
    runs = math.ceil(4000 * repeat)
    for place, rounds in enumerate((10, 16)):
        for design, share in simulated.false_positives(runs, rounds).items():
            documented = DESIGNS[design][place]
            yield (
                f"false positives, {rounds} launches a side, {design}",
                documented,
                share,
                error(share, runs),
            )
    runs = math.ceil(20_000 * repeat)
    for rounds, exact in COVERAGE.items():
        for scatter in (simulated.normal, simulated.heavy):
            share = simulated.coverage(runs, rounds, scatter)
            yield (
                f"coverage of the interval, R={rounds}, {scatter.__name__}",
                str(exact),
                share,
                error(share, runs),
            )
    for rounds, mde in MDE.items():
        at = {step: simulated.power(runs, rounds, mde * step) for step in (0.9, 1.0, 1.1)}
        slope = (at[1.1] - at[0.9]) / (0.2 * mde)
        found = mde + (0.8 - at[1.0]) / slope
        yield (
            f"smallest change found 4 times in 5, in sigma, R={rounds}",
            str(mde),
            found,
            error(0.8, runs) / slope,
        )
    runs = math.ceil(300 * repeat)
    for scatter, power in ((simulated.normal, ".997"), (simulated.heavy, ".98")):
        found = list(
            pool.map(partial(simulated.pull_request, scatter=scatter), range(runs), chunksize=4)
        )
        false, right, same, within, early = (
            np.array([pr[name] for pr in found])
            for name in ("false", "found", "same", "within", "uncorrected")
        )
        what = f"{runs} pull requests of 100 rows, {scatter.__name__}:"
        yield f"{what} false rows", "0", float(false.sum()), 0.0
        yield f"{what} power", power, float(right.mean()), error(float(right.mean()), 5 * runs)
        for row, shares in (("called SAME", same), ("within 5 %, SAME or SMALL", within)):
            share = float(shares.mean())
            yield f"{what} unchanged rows {row}", ".95", share, error(share, 95 * runs)
        share = float((early > 0).mean())
        yield f"{what} with a false row if uncorrected", ".83", share, error(share, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=float, default=1.0)
    print("| figure | documented | found | error |\n|---|--:|--:|--:|")
    with ProcessPoolExecutor() as pool:
        for what, documented, found, spread in lines(parser.parse_args().repeat, pool):
            print(f"| {what} | {documented} | {found:.3f} | {spread:.3f} |", flush=True)


if __name__ == "__main__":
    main()
