"""Build wheel and sdist, install the wheel beside each torch on each Python, and use it there.

    python tests/install/matrix.py FOLDER [--pythons 3.11,3.12] [--torches oldest,pinned,newest]

Every cell is an environment of its own under FOLDER, made by uv and deleted when it has been used;
one torch is done before the next, as its libraries take gigabytes. Pythons that are not on this
machine are named in the table and fail nothing; a cell that breaks makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TORCHES = ("oldest", "pinned", "newest")
HEADING = "## Python and torch"  # of the section of `collbench help limits` that is written anew
TIMEOUT_S = 900  # of a command; one that installs torch for CUDA takes minutes
JOB = Path(__file__).resolve().parent / "job.py"  # two ranks of it are recorded


class Python(NamedTuple):
    """A Python as it was asked for, 3.12; its interpreter and full version, empty if not found."""

    name: str
    path: str = ""
    version: str = ""


class Cell(NamedTuple):
    """What became of one torch on one Python: the version that was installed, and what failed."""

    python: Python
    torch: str  # one of TORCHES
    version: str = ""
    failure: str = ""


class Failure(Exception):
    """A command of a cell failed; the message is for the table."""


def run_command(*command: str | Path, cwd: Path, env: dict[str, str], exits: int = 0) -> str:
    """Standard output of a command. Raises Failure with its last line where it exits otherwise."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise Failure(f"{shorten_command(words)} took over {TIMEOUT_S} s") from e
    if done.returncode != exits:
        sys.stderr.write(f"$ {' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}\n")
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise Failure(f"{shorten_command(words)}: exit {done.returncode}: {last[:160]}")
    return done.stdout


def shorten_command(words: Sequence[str]) -> str:
    """The command as a table shows it: the program's name and what fits."""
    return " ".join([Path(words[0]).name, *words[1:]])[:60]


# Pythons and torches


def find_python(name: str) -> Python:
    """The interpreter of version ``name`` (3.12): this one, one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [
        sys.executable,
        shutil.which(f"python{name}") or "",
        *map(str, sorted(pyenv.glob(f"versions/{name}.*/bin/python"), reverse=True)),
    ]
    code = "import platform, venv, ensurepip; print(platform.python_version())"
    for path in filter(None, candidates):
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        version = done.stdout.strip()
        if done.returncode == 0 and version.startswith(f"{name}."):
            return Python(name, path, version)
    return Python(name)


def read_requirement(torch: str) -> str:
    """What an installer is asked for: the oldest torch that pyproject.toml allows, the one of
    constraints.txt, or the newest there is."""
    if torch == "newest":
        return "torch"
    if torch == "pinned":
        return next(line for line in read_constraints() if line.startswith("torch=="))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = (
        match[1] for line in project["dependencies"] if (match := re.match(r"torch>=(.+)", line))
    )
    return f"torch=={oldest}.*"


def read_constraints() -> list[str]:
    """Lines of constraints.txt that pin something."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if "==" in line and line[0] != "#"]


# The wheel and the sdist


def build_packages(tools: Path, folder: Path, env: dict[str, str]) -> Path:
    """The wheel, built of the sdist. Raises Failure where the source makes another one, or where it
    lacks a file of the package."""
    shutil.rmtree(folder, ignore_errors=True)
    build = (tools / "python", "-m", "build", "--outdir")
    run_command(*build, folder / "of-sdist", ROOT, cwd=ROOT, env=env)
    run_command(*build, folder / "of-source", "--wheel", ROOT, cwd=ROOT, env=env)
    (wheel,) = (folder / "of-sdist").glob("*.whl")
    differences = compare_wheels(wheel, folder / "of-source" / wheel.name)
    if differences:
        raise Failure(f"the sdist's wheel differs in {', '.join(differences[:5])}")
    missing = list_missing_files(wheel)
    if missing:
        raise Failure(f"the wheel lacks {', '.join(missing[:5])}")
    return wheel


def compare_wheels(one: Path, other: Path) -> list[str]:
    """Names of files that only one of two wheels has, or that differ."""
    contents = []
    for path in (one, other):
        with zipfile.ZipFile(path) as wheel:
            contents.append({name: wheel.read(name) for name in wheel.namelist()})
    first, second = contents
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def list_missing_files(wheel: Path) -> list[str]:
    """Files of the package and its suites that the wheel lacks."""
    sources = [("collbench", ROOT / "collbench"), ("collbench/suites", ROOT / "suites")]
    needed = {
        f"{prefix}/{path.relative_to(folder).as_posix()}"
        for prefix, folder in sources
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as file:
        return sorted(needed - {*file.namelist()})


# A cell

SMALL = "-b 1K -e 64K -f 8 -g 2 -n 5"
USES = (  # command lines in the order of a first day, and what their output must hold
    ("collbench --version", "collbench"),
    ("collbench doctor", "gloo"),
    ("collbench list", "double_tree"),
    ("collbench help limits", "Python"),
    ("collbench recipe grafana", "panels"),
    ("collbench prove all_reduce ring -n 4", "ring"),
    ("collbench show all_reduce ring -n 4 --step 2", "step 2"),
    ("collbench predict all_reduce -n 8 -b 8 -e 1M", "ring"),
    ("collbench all_reduce -b 8 -e 1M -g 2 -n 5 --output first.jsonl", "1048576"),
    (
        f"collbench all_reduce {SMALL} --algo native,ring,double_tree --backend gloo,shm"
        " --output algorithms.jsonl",
        "double_tree@shm",
    ),
    (f"collbench all_gather {SMALL} -d half,bfloat16 --output half.jsonl", "bfloat16"),
    ("collbench report first.jsonl algorithms.jsonl half.jsonl -o page.html", ""),
    ("collbench report algorithms.jsonl --format md", "ring@shm"),
    ("collbench run smoke --dry-run -g 2", ""),
    ("collbench history add first.jsonl", "night"),
    ("collbench history list", "20"),
)
TORCH_USES = (  # what stands on less public parts of torch
    (f"torchrun --standalone --nproc-per-node 2 {JOB}", ""),
    ("collbench trace trace/", "all_reduce"),
    ("collbench replay trace/ -n 3 --output replay.jsonl", ""),
    ("collbench workload toy:ddp -g 2 -n 3 --output step.jsonl", ""),
    ("collbench objects all_gather -e 1K -g 2 -n 5 --launches 1 --output objects.jsonl", ""),
    ("collbench coalesce all_reduce -e 1K -g 2 -n 5 --launches 1 --output coalesce.jsonl", ""),
    ("collbench lifecycle -g 2 --launches 1 --output lifecycle.jsonl", ""),
    ("collbench p2p -e 1K -g 2 -n 5 --launches 1 --output p2p.jsonl", ""),
    ("collbench order all_reduce -e 1K -g 2 --launches 1 --output order.jsonl", ""),
)


def use_package(commands: Path, folder: Path, env: dict[str, str]) -> None:
    """Run USES and TORCH_USES from the empty ``folder``. Raises Failure where a command exits
    otherwise than 0, or where its output, or the page it writes, lacks what it must hold."""
    for line, text in (*USES, *TORCH_USES):
        name, *words = line.split()
        output = run_command(commands / name, *words, cwd=folder, env=env)
        print(f"  {datetime.now(UTC):%H:%M:%S} {line[:90]}", file=sys.stderr, flush=True)
        if text not in output:
            raise Failure(f"{line[:60]}: no {text} in the output")
    if "Plotly" not in (folder / "page.html").read_text():
        raise Failure("collbench report: a page without figures")
    for file in ("first", "algorithms", "half"):
        statuses = count_statuses(folder / f"{file}.jsonl")
        if statuses.get("ok", 0) == 0 or {*statuses} - {"ok", "skipped"}:
            raise Failure(f"{file}.jsonl: rows are {statuses}")


def count_statuses(path: Path) -> dict[str, int]:
    """How many records of a run have which status."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return dict(Counter(line["status"] for line in lines if line["line"] == "record"))


def try_cell(cell: Cell, wheel: Path, folder: Path, tools: Path) -> Cell:
    """Make the environment of a cell, use it, delete it, and say what came of it."""
    place = folder / f"{cell.python.name}-{cell.torch}"
    shutil.rmtree(place, ignore_errors=True)
    (place / "empty").mkdir(parents=True)
    env = make_variables(place)
    commands = place / "env" / "bin"
    install = (tools / "uv", "pip", "install", "--quiet", "--python", commands / "python")
    constraints: tuple[str | Path, ...] = ()
    if cell.torch == "pinned":
        constraints = ("--constraint", ROOT / "constraints.txt")
    version = ""
    try:
        run_command(
            *(tools / "uv", "venv", "--quiet", "--python", cell.python.path, place / "env"),
            cwd=place,
            env=env,
        )
        run_command(
            *(*install, *constraints, read_requirement(cell.torch), wheel), cwd=place, env=env
        )
        code = "from importlib.metadata import version; print(version('torch'))"
        version = run_command(commands / "python", "-c", code, cwd=place, env=env).strip()
        use_package(commands, place / "empty", env)
    except Failure as e:
        return cell._replace(version=version, failure=str(e))
    finally:
        shutil.rmtree(place)
    return cell._replace(version=version)


def make_variables(place: Path) -> dict[str, str]:
    """The environment of a cell's commands: nothing of this Python's, and a home of their own."""
    dropped = ("PYTHON", "VIRTUAL_ENV", "COLLBENCH_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    kept.setdefault("UV_CACHE_DIR", str(place.parent / "cache"))
    path = f"{place / 'env' / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, "COLLBENCH_HOME": str(place / "runs"), "PATH": path, "COLUMNS": "100"}


# The table


def render_table(cells: Sequence[Cell], day: str) -> str:
    """The section of `collbench help limits`: a row a Python, a column a torch."""
    torches = list(dict.fromkeys(cell.torch for cell in cells))
    words = {"oldest": "oldest allowed", "pinned": "constraints.txt's", "newest": "newest"}
    heads = []
    for torch in torches:
        versions = {cell.version for cell in cells if cell.torch == torch and cell.version}
        heads.append(f"torch {', '.join(sorted(versions)) or '?'} ({words[torch]})")
    lines = [f"| Python | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for python in dict.fromkeys(cell.python for cell in cells):
        results = [describe_result(cell) for cell in cells if cell.python == python]
        lines.append(f"| {python.version or python.name} | {' | '.join(results)} |")
    return "\n".join(
        [
            HEADING,
            "",
            "`make matrix` builds the wheel, installs it in an empty environment per cell and",
            f"runs {len(USES) + len(TORCH_USES)} commands there: Gloo and shared memory, 2 ranks.",
            f"Last on {day} on CPUs, Linux {platform.machine()}.",
            "",
            *lines,
            "",
        ]
    )


def describe_result(cell: Cell) -> str:
    """What a cell of the table says."""
    if not cell.python.path:
        return "not run: no such Python there"
    return f"**fails**: {cell.failure.replace('|', '/')}" if cell.failure else "works"


def write_section(page: Path, section: str) -> None:
    """Put the section in place of the page's own of the same heading, or before the next one."""
    text = page.read_text()
    before, found, rest = text.partition(f"{HEADING}\n")
    if not found:
        before, _, rest = text.partition("## GPUs\n")
        page.write_text(f"{before}{section}\n## GPUs\n{rest}")
        return
    _, heading, after = rest.partition("\n## ")
    page.write_text(f"{before}{section}{heading}{after}")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where environments are made, some 15 GB")
    parser.add_argument("--pythons", default="3.11,3.12,3.13")
    parser.add_argument("--torches", default=",".join(TORCHES))
    parser.add_argument("--wheel", type=Path, help="use this wheel and build none")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    return parser.parse_args()


def main() -> int:
    """Build, try all cells, print the table."""
    options = parse_options()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tools = folder / "tools" / "bin"
    env = make_variables(folder)
    try:
        if not (tools / "uv").exists():
            run_command(sys.executable, "-m", "venv", tools.parent, cwd=folder, env=env)
            pip = (tools / "python", "-m", "pip", "install", "--quiet", "build", "uv")
            run_command(*pip, cwd=folder, env=env)
        wheel = options.wheel or build_packages(tools, folder / "packages", env)
    except Failure as e:
        print(f"not built: {e}")
        return 1
    cells = []
    for torch in options.torches.split(","):
        for python in map(find_python, options.pythons.split(",")):
            cell = Cell(python, torch)
            cells.append(try_cell(cell, wheel, folder, tools) if python.path else cell)
            print(
                f"{python.version or python.name}, {torch}: {describe_result(cells[-1])}",
                flush=True,
            )
    section = render_table(cells, datetime.now(UTC).date().isoformat())
    print(section)
    if options.page:
        write_section(options.page, section)
    return 1 if any(cell.failure for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
