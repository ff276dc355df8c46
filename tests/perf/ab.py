"""How often `collbench ab` is wrong here, and whether it finds what is planted. Writes a report of
both.

python tests/perf/ab.py --home FOLDER --output reports/ab.md [--repetitions 20] [--planted 10]

Repetitions of `ab --suite pr --aa --budget 5m`, then as many experiments of each share as
`--planted` says, in which calls of three of eight sizes take longer by so many microseconds as are
15 % or 8 % of what they took in a run before (a backend of tests/ranks/plugins, $DRAG; 8 % against
`--tau 5%`). Experiments already in FOLDER count, so that it
can be gone on with. A section of the report of which FOLDER has nothing stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import sections

from collbench.core.text import format_size
from collbench.features.compare import comparison
from collbench.records import run_file
from collbench.records.derive import derive_row
from collbench.records.types import RunFile
from collbench.suite.grammar import parse_share, parse_size

PLUGINS = Path(__file__).parents[1] / "ranks" / "plugins"
IMPORTED = {
    "PYTHONPATH": os.pathsep.join(filter(None, (str(PLUGINS), os.environ.get("PYTHONPATH"))))
}
SIZES = ("1K", "4K", "16K", "64K", "256K", "1M", "4M", "16M")
SLOWED = ("256K", "1M", "4M")
SHARES = {"15%": "10%", "8%": "5%"}  # what is planted, and what matters then
TITLE = "Is collbench ab right?"
SUITE = """
description = "Eight sizes, three of which head slows down."
[axes]
collectives = "all_reduce"
sizes = {sizes}
ranks = 2
backends = "dragging"
algorithms = "ring"
in_place = true
[policy]
max_seconds = "{max_time}"
"""


def run(home: Path, *args: str, **env: str) -> None:
    command = [sys.executable, "-m", "collbench", *args]
    surroundings = {**os.environ, "COLLBENCH_HOME": str(home), **env}
    done = subprocess.run(command, env=surroundings, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{' '.join(args)}: exit {done.returncode}", file=sys.stderr)


def experiments(home: Path, tag: str) -> list[tuple[RunFile, RunFile]]:
    """Base and head of every finished experiment of that tag."""
    files = [run_file.read_digest(path) for path in sorted((home / "runs").glob("*.jsonl"))]
    mine = [
        file
        for file in files
        if file.run.tag.startswith(tag) and file.end and file.end.exit in comparison.WHOLE
    ]
    sides = {
        (file.run.pairing.experiment, file.run.pairing.side): file
        for file in mine
        if file.run.pairing
    }
    return [
        (sides[name, "base"], sides[name, "head"])
        for name, side in sides
        if side == "base" and (name, "head") in sides
    ]


def plant(args: argparse.Namespace, share: str, number: int) -> None:
    """Times of base, measured first, say how many microseconds a share is."""
    home, suite = args.home, args.home / "planted.toml"
    suite.write_text(SUITE.format(sizes=json.dumps(SIZES), max_time=args.max_time))
    run(home, "run", str(suite), "--tag", "unslowed", "--format", "csv", **IMPORTED)
    before = run_file.read_file(sorted((home / "runs").glob("*-planted-*.jsonl"))[-1])
    medians = {r.case.nbytes: row.times.median for r in before.records if (row := derive_row(r))}
    slowed = [parse_size(size) for size in SLOWED]
    more = {size: parse_share(share) * medians[size] / 1000 for size in slowed}
    drag = ",".join(f"{size}:{us:.3f}" for size, us in more.items())
    sides = "--suite", str(suite), "--head", f"DRAG={drag}", "--tau", SHARES[share]
    pairs = "--rounds", args.rounds, "--budget", args.budget
    run(home, "ab", *sides, *pairs, "--tag", f"planted-{share}-{number}", **IMPORTED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--planted", type=int, default=10)
    parser.add_argument("--budget", default="5m", help="of an experiment")
    parser.add_argument("--rounds", default="8,12", help="of an experiment, at least")
    parser.add_argument("--max-time", default="0.2s", help="of a planted row and launch")
    parser.add_argument("--suite", default="pr", help="of which both sides are the same")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.home.mkdir(parents=True, exist_ok=True)
    for number in range(len(experiments(args.home, "aa")), args.repetitions):
        same = "--suite", args.suite, "--aa", "--rounds", args.rounds, "--budget", args.budget
        run(args.home, "ab", *same, "--tag", f"aa{number + 1}")
        sections.write(args.output, TITLE, told(args))
    for number in range(args.planted):
        for share in SHARES:
            if number >= len(experiments(args.home, f"planted-{share}")):
                plant(args, share, number + 1)
            sections.write(args.output, TITLE, told(args))


def took(pair: tuple[RunFile, RunFile]) -> float:
    """Minutes of an experiment."""
    end = max(file.end.ended for file in pair if file.end)
    began = datetime.fromisoformat(pair[0].run.started)
    return (datetime.fromisoformat(end) - began).total_seconds() / 60


def told(args: argparse.Namespace) -> list[list[str]]:
    """A section on experiments with two equal sides, and one on each share that was planted."""
    pairs = experiments(args.home, "aa")
    found = [alike_lines(pairs)] if pairs else []
    for share in SHARES:
        if pairs := experiments(args.home, f"planted-{share}"):
            found.append(planted_lines(share, pairs))
    return found


def describe_machine(pairs: list[tuple[RunFile, RunFile]]) -> str:
    """Where and when these experiments were made."""
    return sections.machine("ab.py", [file.run for pair in pairs for file in pair])


def list_given(pairs: list[tuple[RunFile, RunFile]], option: str) -> str:
    """What the experiments' own commands have after an option."""
    commands = [base.run.command for base, _ in pairs]
    given = {words[words.index(option) + 1] for words in commands if option in words}
    return ",".join(sorted(given))


def alike_lines(pairs: list[tuple[RunFile, RunFile]]) -> list[str]:
    """A table of experiments with two equal sides."""
    suite, budget = (list_given(pairs, option) for option in ("--suite", "--budget"))
    found = [
        f"## Both sides the same (`collbench ab --suite {suite} --aa --budget {budget}`)",
        "",
        describe_machine(pairs),
        "",
        "| experiment | rows | could have failed | verdicts | median MDE | minutes | exit |",
        "|---|--:|--:|---|--:|--:|--:|",
    ]
    total: Counter[str] = Counter()
    unable: Counter[str] = Counter()
    able = 0
    for number, pair in enumerate(pairs, 1):
        judged = comparison.compare_runs(*pair, comparison.Rules())
        verdicts = Counter(row.verdict for row in judged.rows)
        total.update(verdicts)
        middle = sorted(row.mde or 0.0 for row in judged.rows)[len(judged.rows) // 2]
        words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        gates = sum(row.gates for row in judged.rows)
        able += gates
        unable.update(describe_unable(row) for row in judged.rows if not row.gates)
        found.append(
            f"| {number} | {len(judged.rows)} | {gates} | {words} |"
            f" {middle:.1%} | {took(pair):.1f} | {judged.exit} |"
        )
    together = ", ".join(f"{count} {verdict}" for verdict, count in total.most_common())
    rows = f"{total.total()} rows: {together}"
    found += ["", f"{rows}. Rows that could have failed: {able}."]
    if unable:
        found += ["", "Rows that could not, and in how many of the experiments:", ""]
        found += [f"- {what}: {count}" for what, count in unable.most_common()]
    return found


def describe_unable(row: comparison.Judged) -> str:
    """A row that could fail no comparison, and why."""
    case = row.case
    what = f"{case.collective} of {format_size(case.nbytes)} on {case.label}"
    return f"{what}, {row.verdict}: {row.spared or row.why}"


def added(pair: tuple[RunFile, RunFile]) -> dict[int, float]:
    """What head's calls took longer (ns), by size."""
    variant = pair[1].run.pairing.variant if pair[1].run.pairing else ""
    said = (each.split(":") for each in variant.partition("DRAG=")[2].split(",") if each)
    return {int(nbytes): 1e3 * float(us) for nbytes, us in said}


def planted_lines(share: str, pairs: list[tuple[RunFile, RunFile]]) -> list[str]:
    """A table of the experiments in which that share was planted."""
    tau = parse_share(SHARES[share])
    found = [
        f"## {share} planted at {', '.join(SLOWED)}, of eight sizes (`--tau {SHARES[share]}`)",
        "",
        describe_machine(pairs),
        "",
        f"Rows are ring in shared memory. {share} are of medians of a run before each experiment:",
        "so many microseconds were added to each call. *Planted* says what share that is of the",
        "experiment's own base.",
        "",
        "| experiment | slowed sizes found | others called changed | planted | changes found"
        " | minutes |",
        "|---|--:|--:|---|---|--:|",
    ]
    slowed = {parse_size(size) for size in SLOWED}
    whole = 0
    for number, pair in enumerate(pairs, 1):
        rows = comparison.compare_runs(*pair, comparison.Rules(tau=tau)).rows
        hit = [r for r in rows if r.case.nbytes in slowed and r.verdict == "REGRESSED"]
        wrong = [
            r
            for r in rows
            if r.case.nbytes not in slowed and r.verdict in ("REGRESSED", "IMPROVED")
        ]
        whole += len(hit) == len(slowed) and not wrong
        more, those = added(pair), [r for r in rows if r.case.nbytes in slowed]
        shares = ", ".join(f"{more[r.case.nbytes] / r.base.median:+.1%}" for r in those if r.base)
        changes = ", ".join(f"{r.delta or 0:+.1%}" for r in those)
        cells = (number, len(hit), len(wrong), shares, changes, f"{took(pair):.1f}")
        found.append(f"| {' | '.join(map(str, cells))} |")
    return [*found, "", f"Exactly these rows in {whole} of {len(pairs)}."]


if __name__ == "__main__":
    main()
