"""What every command prints and writes, kept in a folder, to see what a change of the code changes.

``python tests/snapshots.py keep FOLDER`` before it, ``python tests/snapshots.py check FOLDER``
after: the second makes all of it again and shows each difference, line by line. Nothing measures:
what runs is recorded in reports/runs or predicted by the ``model`` backend. Times of day, ages and
places of files are masked, figures of pages are not.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from collbench.cli.main import list_commands
from collbench.core.collectives import COLLECTIVES

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "reports" / "runs"
PAGES = sorted(path.stem for path in (ROOT / "collbench" / "cli" / "pages").glob("*.md"))
WIDTHS = (60, 80, 120)  # of terminals
SHOWN, WIDEST = 40, 300  # lines of a difference, and characters of one
MASKS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?( UTC|Z|\+00:00)?", "TIME"),
    (r"\b\d{8}-\d{6,9}\b(-[\w.-]*?-[0-9a-f]{4}\b)?", "RUN"),
    (r"\b\d{1,2} (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)( \d\d:\d\d)?", "DAY"),
    (r'"available": ?\d+', '"available": MASKED'),
    (r'"(started|created|ended|uuid|id|seconds)": ?("[^"]*"|[\d.]+)', r'"\1": MASKED'),
)


class Snapshot(NamedTuple):
    """A command line, whose exit code and output are kept, with the file ``out`` that it writes;
    ``columns`` is the terminal's width."""

    name: str
    command: tuple[str, ...]
    out: str = ""
    columns: int = 100


def list_snapshots() -> list[Snapshot]:
    return [*list_help(), *list_recorded(), *list_predicted()]


def list_help() -> Iterator[Snapshot]:
    yield Snapshot("help", ("--help",))
    yield Snapshot("list", ("list",))
    for name in (*list_commands(), *COLLECTIVES):
        yield Snapshot(f"help-{name}", (name, "--help"))
    for topic in PAGES:
        yield Snapshot(f"topic-{topic}", ("help", topic))


def list_recorded() -> Iterator[Snapshot]:
    """All that can be made of reports/runs."""
    stories = {
        folder.name: tuple(str(path) for path in sorted(folder.glob("*.jsonl")))
        for folder in sorted(RUNS.iterdir())
    }
    traced = stories.pop("recorded-job")
    for name, runs in stories.items():
        for ending in ("html", "md"):
            out = f"{name}.{ending}"
            yield Snapshot(f"report-{out}", ("report", *runs, "--plotlyjs", "cdn", "-o", out), out)
        yield Snapshot(f"runs-{name}", ("runs", *runs[:1]))
    for run in [run for runs in stories.values() for run in runs]:
        yield Snapshot(f"frame-{Path(run).stem}", ("frame", run))
        yield Snapshot(f"fit-{Path(run).stem}", ("fit", run))
    base, head = stories["ring-or-one-shot"]
    for form in ("table", "md", "json", "html", "junit"):
        yield Snapshot(f"compare-{form}", ("compare", base, head, "--format", form))
    for width in WIDTHS:
        yield Snapshot(f"compare-{width}", ("compare", base, head, "--all"), columns=width)
    night = ("health", *stories["night"], "--history", "sqlite://")
    for form in ("table", "md", "json", "html", "junit", "prometheus"):
        yield Snapshot(f"health-{form}", (*night, "--format", form))
    for width in WIDTHS:
        yield Snapshot(f"health-{width}", night, columns=width)
    for form in ("table", "md", "json", "html"):
        yield Snapshot(f"trace-{form}", ("trace", *traced, "--format", form))


def list_predicted() -> Iterator[Snapshot]:
    """What needs no machine: predictions, proofs, drawings, steps that are counted."""
    sweep = ("all_reduce", "-b", "8", "-e", "16M", "-f", "8", "-g", "4", "--backend", "model")
    sweep = (*sweep, "--algo", "ring,double_tree", "--no-save")
    for form in ("nccl", "nccl-filled", "imb", "csv", "json", "table"):
        yield Snapshot(f"model-{form}", (*sweep, "--format", form))
    for width in WIDTHS:
        yield Snapshot(f"model-{width}", (*sweep, "--format", "table"), columns=width)
    yield Snapshot("dry-run", ("all_reduce", "-g", "2", "--backend", "shm", "--dry-run"))
    for name in COLLECTIVES:
        yield Snapshot(f"dry-{name}", (name, "-g", "4", "--backend", "model", "--dry-run"))
        yield Snapshot(f"prove-{name}", ("prove", name, "-n", "2-5"))
    for algorithm in ("ring", "recursive_doubling", "double_tree"):
        yield Snapshot(f"show-{algorithm}", ("show", "all_reduce", algorithm, "-n", "4"))
        for form in ("json", "dot", "goal", "msccl-executor"):
            command = ("export", "all_reduce", algorithm, "-n", "4", "--to", form)
            yield Snapshot(f"export-{algorithm}-{form}", command)
    yield Snapshot("predict", ("predict", "all_reduce", "-n", "8"))
    for preset in ("ddp:gpt2-124m", "fsdp2:llama3-8b", "megatron:llama3-70b", "moe:deepseek-v3"):
        yield Snapshot(f"workload-{preset.replace(':', '-')}", ("workload", preset, "--show"))
    yield Snapshot("unknown-command", ("all_reduced",))
    yield Snapshot("unknown-option", ("all_reduce", "--sizs", "8"))
    yield Snapshot("no-such-run", ("compare", "one", "two"))


def take(snapshot: Snapshot) -> str:
    """What it prints and writes, in a folder of its own without any saved run."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"COLLBENCH_HOME": f"{folder}/home", "COLUMNS": str(snapshot.columns)}
        settings |= {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONHASHSEED": "0"}
        words = [sys.executable, "-m", "collbench", *snapshot.command]
        if snapshot.command[0] == "frame":
            code = "import sys, collbench; print(collbench.frame(sys.argv[1]).to_csv())"
            words = [sys.executable, "-c", code, *snapshot.command[1:]]
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        written = Path(folder, snapshot.out)
        page = written.read_text() if snapshot.out and written.is_file() else ""
        text = f"exit {done.returncode}\n{done.stdout}\n--- stderr\n{done.stderr}\n--- file\n{page}"
        return mask(text, folder)


def mask(text: str, folder: str) -> str:
    for place, name in ((folder, "FOLDER"), (str(ROOT), "ROOT")):
        text = text.replace(place, name)
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("keep", "check"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    snapshots = list_snapshots()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(take, snapshots))
    if given.action == "keep":
        shutil.rmtree(given.folder, ignore_errors=True)
        given.folder.mkdir(parents=True)
        for snapshot, text in zip(snapshots, texts, strict=True):
            (given.folder / snapshot.name).write_text(text)
        print(f"{len(snapshots)} snapshots kept in {given.folder}")
        return 0
    kept = {path.name: path.read_text() for path in given.folder.iterdir()}
    made = {snapshot.name: text for snapshot, text in zip(snapshots, texts, strict=True)}
    differ = [name for name in kept | made if kept.get(name) != made.get(name)]
    for name in differ:
        lines = (each.get(name, "").splitlines() for each in (kept, made))
        difference = list(difflib.unified_diff(*lines, "kept", "made", n=0, lineterm=""))
        cut = [
            line if len(line) <= WIDEST else f"{line[:WIDEST]}..." for line in difference[:SHOWN]
        ]
        print(f"=== {name}: {len(difference)} lines", *cut, sep="\n")
    print(f"{len(differ)} of {len(kept | made)} snapshots differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
