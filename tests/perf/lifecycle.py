"""Ranks that are killed at random moments, and what the others make of it; and what a communicator
costs on this machine.

``python tests/perf/lifecycle.py --output reports/lifecycle.md --runs FOLDER``

Each run of FOLDER is kept and counted; those that are lacking are made. A kill without a record, or
whose record neither tells that the others came back nor names what failed, is a silence: there must
be none, and exit code 1 says that there is one.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import sections

from collbench.core.text import format_duration
from collbench.features.lifecycle import rows
from collbench.features.lifecycle.findings import LossFindings
from collbench.features.lifecycle.request import NOTIFIED, TOLD
from collbench.features.lifecycle.summary import summarize_lives
from collbench.features.lifecycle.view import make_phase_table
from collbench.records import run_file
from collbench.records.types import Record, RunFile
from collbench.show import markdown
from collbench.show.document import Document

RANKS, LIMIT = 3, 30
WAYS = ("rebuild", NOTIFIED)
LIVES = ("gloo", "mpi")


def run_command(*arguments: str, output: Path) -> None:
    """Run ``collbench lifecycle``, unless its run is there already."""
    if output.exists():
        return
    command = [sys.executable, "-m", "collbench", "lifecycle", *arguments, "--output", str(output)]
    print(" ".join(command[2:]), file=sys.stderr)
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def make_runs(folder: Path, kills: int, groups: str, launches: int) -> None:
    """The runs that are lacking: lives, and kills of each rank by turns."""
    share = math.ceil(kills / len(WAYS) / 2)
    for victim in (0, 1):
        run_command(
            "-g",
            str(RANKS),
            "--backend",
            "gloo",
            "--kill",
            str(victim),
            "--kill-at",
            "random",
            "--launches",
            str(share),
            "--way",
            ",".join(WAYS),
            "--timeout",
            str(LIMIT),
            "--seed",
            str(victim + 1),
            output=folder / f"kill-{victim}.jsonl",
        )
    for name in LIVES:
        life = "-g", "2", "--backend", name, "--groups", groups, "--sizes", "1K,1M"
        life += "--launches", str(launches)
        run_command(*life, output=folder / f"life-{name}.jsonl")


def is_named(record: Record) -> bool:
    """Whether a record says how the loss came out."""
    return record.status == "ok" or (record.status == "failed" and bool(record.note))


def list_losses(files: list[RunFile]) -> list[tuple[str, Record, Record]]:
    """Way, what is known of knowing and of coming back, for each kill."""
    found = []
    for file in files:
        known = {
            (record.case.subject, record.case.cycle): record
            for record in file.records
            if record.case.collective == rows.KNOWN
        }
        for record in file.records:
            if record.case.collective == rows.RECOVERED and record.status != "skipped":
                way = record.case.subject.split(", ")[1].replace(TOLD, NOTIFIED)
                key = record.case.subject, record.case.cycle
                found.append((way, known[key], record))
    return found


def quantiles(times: list[int]) -> str:
    """Median, and the largest."""
    if not times:
        return "-"
    ordered = sorted(times)
    return f"{format_duration(ordered[len(ordered) // 2])}, {format_duration(ordered[-1])}"


def shorten_error(text: str) -> str:
    """The first sentence of a library's error, without places in its sources and addresses."""
    return re.sub(r"\[[^\]]*\](:\d+)?:? ?", "", text).partition(". ")[0]


def describe_losses(files: list[RunFile], asked: int) -> tuple[list[str], int]:
    """The table of kills, and the number of silences."""
    losses = list_losses(files)
    silent = asked - len(losses) + sum(not is_named(back) for _, _, back in losses)
    lines = [
        "| way | killed while | kills | came back | named failures | detected: median, most |"
        " recovered: median, most |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    doing: dict[tuple[str, str], list[tuple[Record, Record]]] = {}
    for way, known, back in losses:
        source = back.findings or known.findings
        phase = msgspec.convert(source, LossFindings).doing if source else "not known"
        doing.setdefault((way, phase), []).append((known, back))
    for (way, phase), pairs in sorted(doing.items()):
        failed = sum(back.status != "ok" for _, back in pairs)
        lines.append(
            f"| {way} | {phase} | {len(pairs)} | {len(pairs) - failed} | {failed} |"
            f" {quantiles([k.times_ns[0] for k, _ in pairs if k.times_ns])} |"
            f" {quantiles([b.times_ns[0] for _, b in pairs if b.times_ns])} |"
        )
    how: Counter[str] = Counter()
    for _, _, back in losses:
        if back.findings:
            for rank in msgspec.convert(back.findings, LossFindings).ranks:
                name = NOTIFIED if rank.how == TOLD else rank.how
                how[f"{name}: {shorten_error(rank.text)}"] += 1
    lines += [
        "",
        f"{len(losses)} kills, {silent} silences.",
        "",
        "How ranks detected it, most often:",
        "",
    ]
    lines += [f"- {count} times {text}" for text, count in how.most_common(6)]
    failures = [back.note for _, _, back in losses if back.status != "ok"]
    lines += ["", "Failures, as they are named:", ""] if failures else ["", "Nothing failed."]
    lines += [f"- {note}" for note in failures]
    return lines, silent


def describe_load(files: Sequence[RunFile]) -> str:
    """What others used before the runs began, on the host where it was most."""
    others = [load.others for file in files for load in file.run.load.values()]
    if not others:
        return "How much other processes used before it began is not known."
    return f"Other processes used at most {max(0.0, *others):.1f} CPUs before it began."


def describe_life(file: RunFile, name: str) -> list[str]:
    """The table of lives of one backend."""
    table = make_phase_table(summarize_lives(file).phases)
    text = markdown.render_markdown(Document(title="", brief=[], comment=_comment(table)))
    body = [line for line in text.splitlines() if line.startswith("|")]
    return [f"### {name}", "", *body, "", describe_load([file]), ""]


def _comment(table: object) -> object:
    from collbench.show.document import Comment

    return Comment(blocks=[table])  # type: ignore[list-item]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=100, help="a multiple of 4")
    parser.add_argument("--launches", type=int, default=6, help="of lives")
    parser.add_argument("--groups", default="1,4,16", help="numbers of groups, of lives")
    parser.add_argument("--as-they-are", action="store_true", help="make no run that is lacking")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    if not given.as_they_are:
        make_runs(given.runs, given.kills, given.groups, given.launches)
    killed = [run_file.read_file(path) for path in sorted(given.runs.glob("kill-*.jsonl"))]
    lines, silent = describe_losses(killed, given.kills)
    runs = [file.run for file in killed]
    text = [
        "# Lives and losses of communicators",
        "",
        f"{sections.machine('lifecycle.py', runs)} Library:"
        f" {', '.join(dict.fromkeys(w.library for f in killed for w in f.worlds))}.",
        "",
        "## Ranks killed at random moments",
        "",
        f"{RANKS} ranks on Gloo, all_reduce of 1 MiB without a pause; rank 0 or 1 is killed within"
        f" 2 s of the moment when all have loaded torch; a library waits {LIMIT // 3} s at most,"
        f" all of it {LIMIT} s. `rebuild`: ranks go by what Gloo says; `notified`: the process that"
        f" watches says so, too. {describe_load(killed)}",
        "",
        *lines,
        "",
    ]
    lives = [name for name in LIVES if (given.runs / f"life-{name}.jsonl").exists()]
    text += ["## Lives", "", "Two ranks; what `collbench lifecycle` prints.", ""] * bool(lives)
    for name in lives:
        text += describe_life(run_file.read_file(given.runs / f"life-{name}.jsonl"), name)
    given.output.write_text("\n".join(text).rstrip() + "\n")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
