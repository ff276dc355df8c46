"""The house: a kernel that knows no feature, features in folders of their own, and who may import
whom; each feature's folder can go, and the rest works."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from forked import Server

import collbench
from collbench.core.feature import Feature, find_features, load_entry
from collbench.features import NAMES

ROOT = Path(collbench.__file__).parent
TESTS = Path(__file__).parent

# The kernel, top to bottom: a module imports its own folder and those above it.
KERNEL = (
    "core",  # what a collective is, what algorithms do and cost
    "survive",  # signals, a closed pipe, a full disk, a crash
    "machine",  # where we are
    "suite",  # what is asked for
    "records",  # what came out
    "run",  # how it is measured
    "show",  # how it is told
    "cli",  # how it is asked for
)
BETWEEN = {  # features that import others, and why
    ("traces", "training"): "a trace becomes a step",
    ("training.compare_operations", "compare"): "types of a verdict; compare alone calls it",
    ("advise", "compare"): "tests, sides and experiments of comparisons",
    ("predict.health_check", "health"): "types of a check; health alone calls it",
}
HOME = {  # where alone each package of others may be imported
    "torch": {
        "run",
        "cli.doctor",
        "cli.doctor_gpus",
        "features.training.trial",
        "features.training.player",
        "features.traces.recording",
        "features.backends.rig",
        "features.p2p.trial",
        "features.forms.calls",
        "features.forms.trial",
        "features.order.buffers",
        "features.order.probing",
        "features.order.proving",
        "features.order.trial",
        "features.lifecycle.torch_life",
    },
    "triton": {"run"},
    "mpi4py": {"run"},
    "jax": {"run"},
    "jaxlib": {"run"},
    "mlx": {"run"},
    "ray": {"run"},
    "scipy": {"records", "features"},
    "pandas": {"__init__", "records", "show"},
    "rich": {"show"},
    "jinja2": {"show"},
    "plotly": {"show"},
    "typer": {"cli", "features"},
    "pyarrow": {"show"},
}
LONG_MODULE, LONG_FUNCTION = 800, 60  # the most lines


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__") if name != "__init__" else name] = path
    return found


MODULES = modules()


class Module(NamedTuple):
    lines: int
    functions: tuple[tuple[str, int], ...]  # with their lines
    imports: tuple[ast.Import | ast.ImportFrom, ...]


def list_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements within one, or within a module: expressions, of which most nodes are, hold
    none."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for below in getattr(node, field, ()):
            if isinstance(below, ast.stmt):
                yield below
            yield from list_statements(below)


@cache
def parsed(name: str) -> Module:
    text = MODULES[name].read_text()
    functions, imports = [], []
    for node in list_statements(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.FunctionDef):
            functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return Module(len(text.splitlines()), tuple(functions), tuple(imports))


@cache
def imported(name: str) -> set[str]:
    """What a module imports, anywhere in it and for type checking too: modules of this package
    without its name, others' packages by theirs."""
    found = set()
    for node in parsed(name).imports:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0 and node.module, f"{name} imports relatively"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [w if w.removeprefix("collbench.") in MODULES else node.module for w in whole]
        for each in names:
            first, _, rest = each.partition(".")
            found.add((rest or "__init__") if first == "collbench" else f"/{first}")
    return found


def is_within(name: str, folders: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{folder}.") for folder in folders)


def test_nothing_lies_flat() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders - {"suites"} == {*KERNEL, "features"}  # the wheel's copy of the built-in suites
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}
    there = {path.name for path in (ROOT / "features").iterdir() if path.is_dir()}
    assert there - {"__pycache__"} == {*NAMES}


def test_the_kernel_imports_what_is_above_and_no_feature() -> None:
    wrong = []
    for name in sorted(name for name in MODULES if name.partition(".")[0] in KERNEL):
        above = {*KERNEL[: KERNEL.index(name.partition(".")[0]) + 1], "__init__"}
        for target in imported(name):
            if target[0] != "/" and target.partition(".")[0] not in above:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_a_feature_imports_the_kernel_and_itself() -> None:
    wrong = []
    for name in sorted(name for name in MODULES if name.startswith("features.")):
        mine, here = name.split(".")[1], name.removeprefix("features.")
        for target in imported(name):
            if target == "features":
                wrong.append(f"{name} imports the list of features")
            elif target.startswith("features."):
                other = target.split(".")[1]
                allowed = any(other == to and is_within(here, {by}) for by, to in BETWEEN)
                if other != mine and not allowed:
                    wrong.append(f"{name} imports {target}")
    assert wrong == [], "BETWEEN, above, has the exceptions and why"


def test_features_import_from_others_what_the_table_says_and_no_less() -> None:
    used = {
        (by, to)
        for by, to in BETWEEN
        for name in MODULES
        if is_within(name, {f"features.{by}"})
        and any(is_within(target, {f"features.{to}"}) for target in imported(name))
    }
    assert {*BETWEEN} - used == set(), "BETWEEN, above, needs these no more"


def test_packages_of_others_are_imported_where_they_are_at_home() -> None:
    wrong = []
    for name in sorted(MODULES):
        for target in imported(name):
            homes = HOME.get(target[1:]) if target[0] == "/" else None
            if homes and not is_within(name, homes):
                wrong.append(f"{name} imports {target[1:]}")
    assert wrong == [], "HOME, above, has the modules that may"


def test_there_are_no_circles() -> None:
    left = {name: imported(name) & set(MODULES) - {name} for name in MODULES}
    while ends := {name for name, targets in left.items() if not targets}:
        left = {name: targets - ends for name, targets in left.items() if name not in ends}
    assert sorted(left) == []


def test_no_module_and_no_function_is_long() -> None:
    long = []
    for name in MODULES:
        lines, functions, _ = parsed(name)
        if lines > LONG_MODULE:
            long.append(f"{name} has {lines} lines: is it one subject?")
        for function, length in functions:
            if length > LONG_FUNCTION:
                long.append(f"{name}.{function} has {length} lines")
    assert long == [], f"{LONG_MODULE} lines of a module and {LONG_FUNCTION} of a function"


def test_no_layout_but_ruffs() -> None:
    for path in {*MODULES.values(), *TESTS.rglob("*.py")} - {Path(__file__)}:
        text = path.read_text()
        assert "fmt: skip" not in text and "fmt: off" not in text, path


def test_nobody_imports_the_command_line() -> None:
    assert [name for name in MODULES if "cli.main" in imported(name)] == ["__main__"]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv=['collbench','--help']\nfrom collbench.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "bad={'torch','numpy','pandas','scipy','msgspec'} & set(sys.modules)\n"
        "bad|={'socket','tempfile','tomllib'} & set(sys.modules)\n"
        "print(sorted(bad), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def entries(feature: Feature) -> list[tuple[str, str, str]]:
    return [
        (registry, entry.key, entry.target)
        for registry, rows in zip(feature._fields[2:], feature[2:], strict=True)
        for entry in rows
    ]


@pytest.mark.parametrize("feature", find_features(), ids=lambda feature: feature.name)
def test_what_a_feature_names_is_there(feature: Feature) -> None:
    assert entries(feature)
    assert [row for row in entries(feature) if load_entry(feature, row[2]) is None] == []


def test_every_feature_is_found_in_its_folder() -> None:
    assert [feature.name for feature in find_features()] == [*NAMES]


RECORDED = sorted(map(str, (ROOT.parent / "reports/runs/ring-or-one-shot").glob("*.jsonl")))
WORKS = (
    ("--help",),
    ("help",),
    ("list",),
    ("runs",),
    ("all_reduce", "--backend", "model", "-b", "1K", "-e", "4K", "-g", "4", "--format", "json"),
    ("report", *RECORDED, "-o", "page.html"),
)

PACKAGES = ("torch", "pandas", "scipy.stats", "plotly", "jinja2", "rich", "typer")
TOGETHER = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
import collbench
from collbench.cli.main import main

answers = []
for words in json.loads(os.environ["WORKS"]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["collbench", *words]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    answers.append((words, code, out.getvalue(), err.getvalue()))
print(json.dumps([collbench.__file__, answers]))
collbench.record("trace")
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Packages of others are imported once for all copies of the package."""
    server = Server(tmp_path_factory.mktemp("forked"), *PACKAGES)
    yield server
    server.close()


def link_without(feature: str, folder: Path) -> None:
    """Makes ``folder`` one that has the package, but for a feature's folder."""
    (folder / "collbench" / "features").mkdir(parents=True)
    (folder / "suites").symlink_to(ROOT.parent / "suites")
    for within in (".", "features"):
        for path in (ROOT / within).iterdir():
            if path.name not in (feature, "features"):
                (folder / "collbench" / within / path.name).symlink_to(path)


@pytest.mark.parametrize("name", NAMES)
def test_the_rest_works_without_a_feature(
    name: str, forked: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands one after the other in one process, of a package that lacks the feature's folder."""
    link_without(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    gone = [one for one in find_features() if name in (one.name, *one.needs)]
    commands = [command.key for feature in gone for command in feature.commands]
    assert RECORDED
    works = json.dumps([*WORKS, *([command] for command in commands)])
    done = forked("-c", TOGETHER, PYTHONPATH=str(tmp_path), WORKS=works)
    where, answers = json.loads(done.stdout)
    assert where.startswith(str(tmp_path))
    assert [(words, err) for words, code, _, err in answers[: len(WORKS)] if code] == []
    for words, code, _, err in answers[len(WORKS) :]:
        assert (code, f"no command '{words[0]}'" in err) == (2, True)
        assert f"  {words[0]} " not in answers[0][2]
    assert ("cannot record" in done.stderr) == (name in ("traces", "training"))
