"""Folders are the layers: what each may import; and how text is laid out."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import collbench

ROOT = Path(collbench.__file__).parent
TESTS = Path(__file__).parent

# Top to bottom: a module imports its own folder and those above it.
LAYERS = (
    "core",  # what a collective is, what algorithms do and cost
    "machine",  # where we are
    "workload",  # steps of training and inference
    "suite",  # what is asked for
    "records",  # what came out
    "run",  # how it is measured
    "judge",  # what it means
    "show",  # how it is told
    "cli",  # how it is asked for
    "features",  # what a job measures besides collectives; found by name alone
)
HOME = {  # where alone each package of others may be imported
    "torch": {"run", "cli.doctor"},
    "triton": {"run"},
    "mpi4py": {"run"},
    "ray": {"run"},
    "sqlalchemy": {"judge.history"},
    "scipy": {"records", "judge"},
    "pandas": {"records", "show"},
    "rich": {"show"},
    "jinja2": {"show"},
    "plotly": {"show"},
    "typer": {"cli"},
}
LONG_MODULE, LONG_FUNCTION = 800, 60  # lines from which a reader is warned


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__") if name != "__init__" else name] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported(name: str) -> set[str]:
    """What a module imports, anywhere in it and for type checking too: modules of this package
    without its name, others' packages by theirs."""
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name} imports relatively"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [w if w.removeprefix("collbench.") in MODULES else node.module for w in whole]
        else:
            continue
        for each in names:
            first, _, rest = each.partition(".")
            found.add((rest or "__init__") if first == "collbench" else f"/{first}")
    return found


def test_nothing_lies_flat() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders - {"suites"} == set(LAYERS)  # the wheel's copy of the built-in suites
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"__init__", "__main__"}))
def test_imports_point_up(name: str) -> None:
    order = list(LAYERS)
    mine = order.index(name.partition(".")[0])
    for target in imported(name):
        if target.startswith("/"):
            homes = HOME.get(target[1:], {name})
            assert any(f"{name}.".startswith(f"{home}.") for home in homes), f"imports {target[1:]}"
        elif target != "__init__":
            assert order.index(target.partition(".")[0]) <= mine, f"{name} imports {target}"


def test_there_are_no_circles() -> None:
    left = {name: imported(name) & set(MODULES) - {name} for name in MODULES}
    while ends := {name for name, targets in left.items() if not targets}:
        left = {name: targets - ends for name, targets in left.items() if name not in ends}
    assert sorted(left) == []


def test_long_modules_and_functions_are_warned_of() -> None:
    for name, tree in TREES.items():
        lines = len(MODULES[name].read_text().splitlines())
        if lines > LONG_MODULE:
            warnings.warn(f"{name} has {lines} lines: is it one subject?", stacklevel=1)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION:
                    warnings.warn(f"{name}.{node.name} has {length} lines", stacklevel=1)


def test_no_layout_but_ruffs() -> None:
    for path in {*MODULES.values(), *TESTS.rglob("*.py")} - {Path(__file__)}:
        text = path.read_text().splitlines()
        assert not any("fmt: skip" in line or "fmt: off" in line for line in text), path


@pytest.mark.parametrize("name", sorted(MODULES))
def test_docstrings_begin_with_a_noun_or_a_verb(name: str) -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(n) or "" for n in ast.walk(TREES[name]) if isinstance(n, kinds)]
    assert [text for text in texts if text.startswith(("Of ", "As "))] == []


def test_nobody_imports_the_command_line() -> None:
    assert [name for name in MODULES if "cli.main" in imported(name)] == ["__main__"]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv=['collbench','--help']\nfrom collbench.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "bad={'torch','numpy','pandas','scipy','msgspec'} & set(sys.modules)\n"
        "print(sorted(bad), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
