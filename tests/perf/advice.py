"""Whether `collbench tune` advises what is true: nothing where nothing helps, a gain that is
planted, and settings of MPI libraries that an independent `collbench ab` confirms. Writes a report.

python tests/perf/advice.py control --home FOLDER --output reports/advice.md [--repetitions 20]
python tests/perf/advice.py planted --home FOLDER --output reports/advice.md [--repetitions 10]
python tests/perf/advice.py libraries --home FOLDER --output reports/advice.md \\
  --library openmpi=PYTHON --library mpich=PYTHON --library intelmpi=PYTHON

``control``: tune tries values of a variable that no library reads; any row of a file is false.
``planted``: tune tries a setting of tests/helpers/planted_gain.py that saves 15 % at three sizes.
``libraries``: for each PYTHON, whose mpi4py is that library's, a file by tune; then an ab in fresh
launches of the default against the file, at all sizes. What is in FOLDER already counts, so that it
can be gone on with. Sections of the report of which nothing is asked stay as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sections

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

import planted_gain

from collbench.core.text import format_size
from collbench.features.advise.formats import load_formats
from collbench.features.compare import comparison
from collbench.features.compare.verdict import Judged
from collbench.records import run_file
from collbench.records.types import Run, RunFile

TITLE = "Does collbench tune advise what is true?"
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "all_to_all")
CONTROL = ("NO_SUCH_SETTING", "1,2,3")
BACKEND = Path(planted_gain.__file__)
FORMATS = {"openmpi": "openmpi", "mpich": "mpich", "intelmpi": "intelmpi"}
ENDED = (0, 3)  # exit codes of a tune that came to its end
FOUND = 0.9  # of planted gains, at least
SUITE = """
description = "What tune advised, measured anew."
[axes]
collectives = {collectives}
sizes = {{ min = 8, max = "16M", factor = 8 }}
ranks = {n}
backends = "mpi"
in_place = false
"""


class GainFound(NamedTuple):
    """The gain of a row at one of its measured sizes, with its interval."""

    nbytes: int
    gain: float
    lo: float
    hi: float


class RowFound(NamedTuple):
    """A row of a file of advice."""

    collective: str
    n: int
    low: int
    high: int
    name: str
    gains: tuple[GainFound, ...]

    @property
    def label(self) -> str:
        sizes = f"{format_size(self.gains[0].nbytes)} to {format_size(self.gains[-1].nbytes)}"
        return f"{self.collective} on {self.n} ranks, {sizes}: {self.name}"


class Tuned(NamedTuple):
    """What came of one tune: its exit code, seconds, and rows; None where it wrote no report. Of
    its runs, the first lines."""

    command: str
    exit: int
    seconds: float
    rows: tuple[RowFound, ...] | None
    runs: tuple[Run, ...] = ()


def parse_rows(report: Mapping[str, Any]) -> tuple[RowFound, ...]:
    """The rows of a report of `tune`, of its JSON."""
    return tuple(
        RowFound(
            row["collective"],
            row["ranks"],
            row["low"],
            row["high"],
            row["setting"],
            tuple(
                GainFound(gain["nbytes"], gain["gain"], gain["lo"], gain["hi"])
                for gain in row["gains"]
            ),
        )
        for row in report["rows"]
    )


def is_planted_found(rows: Sequence[RowFound]) -> bool:
    """Whether the rows name the planted setting at the planted sizes, and nothing else."""
    setting = f"{planted_gain.VARIABLE}={planted_gain.FAST}"
    sizes = [gain.nbytes for row in rows for gain in row.gains]
    return sorted(sizes) == sorted(planted_gain.SIZES) and {row.name for row in rows} == {setting}


def count_true(rows: Sequence[RowFound]) -> tuple[int, int]:
    """How many gains' intervals hold what is planted, and of how many."""
    gains = [gain for row in rows for gain in row.gains if gain.nbytes in planted_gain.SIZES]
    return sum(gain.lo <= planted_gain.GAIN <= gain.hi for gain in gains), len(gains)


def tune(folder: Path, python: str, *args: str, write_format: str = "words") -> Tuned:
    """One tune, with its runs and what it writes in a folder; that of before, where it is there."""
    saved = folder / "tuned.json"
    if not saved.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["collbench", "tune", *args, "--for", write_format]
        outputs = ["--write", str(folder / "advice"), "-o", str(folder / "advice.json")]
        code, seconds = run(folder, python, [*command, *outputs])
        if code not in ENDED:
            raise SystemExit(f"{shlex.join(command)}: exit {code}, see above")
        told = {"command": shlex.join(command), "exit": code, "seconds": seconds}
        saved.write_text(json.dumps(told))
    told = json.loads(saved.read_text())
    report = folder / "advice.json"
    rows = parse_rows(json.loads(report.read_text())) if report.exists() else None
    runs = tuple(map(run_file.read_run, sorted((folder / "runs").glob("*.jsonl"))))
    return Tuned(told["command"], told["exit"], told["seconds"], rows, runs)


def describe_machine(part: str, outcomes: Sequence[Tuned]) -> str:
    """Where and when these tunes were made."""
    return sections.machine(f"advice.py {part}", [run for of in outcomes for run in of.runs])


def list_commands(outcomes: Sequence[Tuned]) -> str:
    """The commands of tunes, each once, without this machine's folders."""
    commands = dict.fromkeys(shorten(outcome.command) for outcome in outcomes)
    return ", ".join(f"`{command}`" for command in commands)


def run(home: Path, python: str, command: Sequence[str]) -> tuple[int, float]:
    """The exit code of a command of collbench, and the seconds that it took."""
    began = time.monotonic()
    done = subprocess.run(
        [python, "-m", *command],
        env={**os.environ, "COLLBENCH_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    (home / f"{command[1]}.txt").write_text(done.stdout)
    print(f"{shlex.join(command)}: exit {done.returncode}", file=sys.stderr)
    return done.returncode, time.monotonic() - began


def read_experiment(home: Path, tag: str) -> tuple[RunFile, RunFile] | None:
    """Base and head of the finished ab with a tag; None where there is none."""
    files = [run_file.read_digest(path) for path in sorted((home / "runs").glob("*.jsonl"))]
    sides = {
        file.run.pairing.side: file
        for file in files
        if file.run.tag.startswith(tag)
        and file.run.pairing
        and file.end
        and file.end.exit in comparison.WHOLE
    }
    return (sides["base"], sides["head"]) if {*sides} >= {"base", "head"} else None


def run_control(given: argparse.Namespace) -> list[list[str]]:
    name, values = CONTROL
    backend = BACKEND if given.backend == "planted" else given.backend
    args = ("all_reduce", "--backend", str(backend), "-g", "2", "-b", "8", "-e", "1M", "-f", "8")
    asked = (*args, "--env", f"{name}={values}", "--budget", given.budget or "2m")
    outcomes = []
    for number in range(1, (given.repetitions or 20) + 1):
        outcomes.append(tune(given.home / f"control-{number:02}", sys.executable, *asked))
        sections.write(given.output, TITLE, [control_lines(outcomes)])
    return [control_lines(outcomes)]


def control_lines(outcomes: Sequence[Tuned]) -> list[str]:
    """A section on settings that do nothing."""
    reports = [outcome.rows for outcome in outcomes if outcome.rows is not None]
    empty = sum(not rows for rows in reports)
    right = sum(outcome.rows == () and outcome.exit == 0 for outcome in outcomes)
    false = [row.label for rows in reports for row in rows]
    lines = [
        "## Settings that do nothing",
        "",
        describe_machine("control", outcomes),
        "",
        f"{list_commands(outcomes)}, {len(outcomes)} times: {CONTROL[0]} is read by nobody.",
        f"**{empty} of {len(outcomes)} files are empty**: {right} of tunes that decided some of"
        f" their sizes (exit 0), {empty - right} of tunes that decided none (exit 3), which shows"
        " nothing.",
    ]
    lines += [f"{len(outcomes) - len(reports)} wrote no report."] * (len(reports) < len(outcomes))
    return lines + (["", "False rows:", *(f"- {label}" for label in false)] if false else [])


def shorten(command: str) -> str:
    """The command without this machine's folders."""
    return command.replace(str(BACKEND), "tests/helpers/planted_gain.py")


def run_planted(given: argparse.Namespace) -> list[list[str]]:
    setting = f"{planted_gain.VARIABLE}={planted_gain.FAST},slow"
    args = ("all_reduce", "--backend", str(BACKEND), "-g", "2", "-b", "16K", "-e", "16M", "-f", "4")
    asked = (*args, "--env", setting, "--budget", given.budget or "3m")
    outcomes: list[Tuned] = []
    for number in range(1, (given.repetitions or 10) + 1):
        outcomes.append(tune(given.home / f"planted-{number:02}", sys.executable, *asked))
        sections.write(given.output, TITLE, [planted_lines(outcomes)])
    return [planted_lines(outcomes)]


def planted_lines(outcomes: Sequence[Tuned]) -> list[str]:
    """A section on a gain that is planted."""
    sizes = ", ".join(map(format_size, planted_gain.SIZES))
    lines = [
        f"## {planted_gain.GAIN:.0%} planted at {sizes}",
        "",
        describe_machine("planted", outcomes),
        "",
        list_commands(outcomes),
        "",
        "| tune | rows | exactly the planted | gains [interval] | interval holds it | minutes |",
        "|--:|---|---|---|--:|--:|",
    ]
    exact = held = total = 0
    for number, outcome in enumerate(outcomes, 1):
        rows = outcome.rows or ()
        found, (true, gains) = is_planted_found(rows), count_true(rows)
        exact, held, total = exact + found, held + true, total + gains
        cells = (
            str(number),
            "; ".join(row.label for row in rows) or "none",
            "yes" if found else "no",
            ", ".join(format_gain(*gain[1:]) for row in rows for gain in row.gains),
            f"{true} of {gains}",
            f"{outcome.seconds / 60:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"**Found exactly in {exact} of {len(outcomes)}** (wanted: {FOUND:.0%}). The interval holds"
        f" {planted_gain.GAIN:.0%} in {held} of {total} gains.",
    ]


def run_libraries(given: argparse.Namespace) -> list[list[str]]:
    made: list[list[str]] = []
    for entry in given.library:
        key, _, python = entry.partition("=")
        if key not in FORMATS or not python:
            raise SystemExit(f"--library {entry}: give {'|'.join(FORMATS)}=PYTHON")
        for n in given.ranks:
            made.append(tune_library(given, key, python, n))
            sections.write(given.output, TITLE, made[-1:])
    return made


def tune_library(given: argparse.Namespace, key: str, python: str, n: int) -> list[str]:
    """A section on one library and number of ranks: tuned, and measured independently."""
    folder = given.home / f"{key}-{n}"
    budget = given.budget or "10m"
    args = (
        ",".join(given.collectives),
        "--backend",
        "mpi",
        "-g",
        str(n),
        "-b",
        "8",
        "-e",
        "16M",
        "-f",
        "8",
    )
    shares = ("--oversubscribed",) if n > (os.cpu_count() or 1) else ()
    outcome = tune(folder, python, *args, *shares, "--budget", budget, write_format=FORMATS[key])
    if not outcome.rows or given.confirm == "0":
        return library_lines(key, n, outcome, "", [])
    variables = load_formats()[FORMATS[key]].use(folder / "advice")
    head = shlex.join(f"{name}={value}" for name, value in variables.items())
    suite, tag = folder / "confirmed.toml", f"{key}-{n}-confirmed"
    suite.write_text(SUITE.format(collectives=json.dumps([*given.collectives]), n=n))
    command = ["collbench", "ab", "--suite", str(suite), "--head", head, "--rounds", "12,12"]
    if not read_experiment(folder, tag):
        run(folder, python, [*command, "--budget", given.confirm, "--tag", tag])
    sides = read_experiment(folder, tag)
    judged = comparison.compare_runs(*sides, comparison.Rules()).rows if sides else []
    bare = shlex.join([*command, "--budget", given.confirm]).replace(f"{folder}/", "")
    return library_lines(key, n, outcome, bare, judged)


def library_lines(
    key: str, n: int, outcome: Tuned, command: str, judged: Sequence[Judged]
) -> list[str]:
    """The section on one library: each size of each row, by tune and by the independent ab, and
    rows of all measured cells that are slower."""
    lines = [
        f"## {key}, {n} ranks",
        "",
        describe_machine("libraries", [outcome]),
        "",
        f"`{outcome.command}`: {outcome.seconds / 60:.1f} minutes, exit {outcome.exit}.",
    ]
    if not outcome.rows:
        return [*lines, "", "No report." if outcome.rows is None else "Nothing is advised."]
    if not command:
        lines += ["", "| collective | setting | size | gain |", "|---|---|--:|--:|"]
        return [*lines, *(line.rsplit(" | ", 2)[0] + " |" for line in list_gains(outcome.rows, []))]
    lines += [f"Then, in fresh launches, `{command}`.", ""]
    lines += ["| collective | setting | size | gain by tune | gain by ab | verdict of ab |"]
    lines += ["|---|---|--:|--:|--:|---|", *list_gains(outcome.rows, judged), ""]
    slower = [row for row in judged if row.verdict == "REGRESSED"]
    names = ", ".join(f"{row.case.collective} of {format_size(row.case.nbytes)}" for row in slower)
    total = f"{len(judged)} cells, of all sizes" if judged else "no cell: the ab did not end"
    return [*lines, f"**Slower by ab: {len(slower)}** of {total}. {names}".rstrip()]


def list_gains(rows: Sequence[RowFound], judged: Sequence[Judged]) -> Iterator[str]:
    """A line of the table for each measured size of each row."""
    by_cell = {(row.case.collective, row.case.n, row.case.nbytes): row for row in judged}
    for row in rows:
        for gain in row.gains:
            cell = by_cell.get((row.collective, row.n, gain.nbytes))
            is_known = cell and cell.delta is not None
            cells = (
                row.collective,
                row.name,
                format_size(gain.nbytes),
                format_gain(gain.gain, gain.lo, gain.hi),
                format_gain(*gain_of(cell)) if cell and is_known else "-",
                cell.verdict if cell else "not measured",
            )
            yield f"| {' | '.join(cells)} |"


def gain_of(row: Judged) -> tuple[float, float, float]:
    """What head saves of base's time, with its interval: ab's change with the sign turned."""
    return -(row.delta or 0.0), -(row.hi or 0.0), -(row.lo or 0.0)


def format_gain(gain: float, lo: float, hi: float) -> str:
    return f"{100 * gain:+.1f} % [{100 * lo:+.1f}, {100 * hi:+.1f}]"


PARTS = {"control": run_control, "planted": run_planted, "libraries": run_libraries}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--budget", help="of each tune")
    parser.add_argument("--confirm", default="10m", help="of the independent ab; 0: none")
    parser.add_argument("--backend", default="mpi", help="of the control; planted: as planted's")
    parser.add_argument("--library", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--collectives", nargs="+", default=COLLECTIVES, help="of libraries")
    given = parser.parse_args()
    given.home = given.home.resolve()
    given.home.mkdir(parents=True, exist_ok=True)
    sections.write(given.output, TITLE, PARTS[given.part](given))


if __name__ == "__main__":
    main()
