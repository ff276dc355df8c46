"""Imports point one way: each module may import only what its layer stands on."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import collbench

ROOT = Path(collbench.__file__).parent
LINES_MAX = 28_700

# a layer may import itself where listed in order, and everything below it; outside packages are listed by layer
LAYERS: list[tuple[str, list[str]]] = [
    ("core", ["__init__", "errors", "dtypes", "collectives", "schedule", "algorithms", "algorithms.rooted",
              "algorithms.blocks", "algorithms.all_reduce", "algorithms.exchange", "program", "networks",
              "simulate", "export", "splits", "stats", "paired", "facts", "nvml", "topology", "environment",
              "selection", "grammar", "groups", "racks", "suite", "inject", "catalogue", "lines", "choice", "records",
              "formats", "store", "payload", "room", "plan", "resume", "regression", "fit", "importers",
              "importers.text", "importers.nccltests", "importers.nccljson", "importers.rccl", "importers.mpi"]),
    ("running", ["stream", "ncclog", "launch", "launch.board", "backends", "backends.model", "control", "clock_links",
                 "global_clock", "gpus", "check", "measure", "device_clock", "fields", "reducers", "compiled", "tape",
                 "walker", "planted", "bitwise", "backends._memory", "backends._wire", "backends._cuda", "backends.mpi",
                 "backends.shm",
                 "backends.symm", "backends.torchdist", "backends.torchsymm", "trial", "worker", "launch.forkserver",
                 "launch.environments", "launch.told", "launch.meeting", "launch.doors", "launch.guest",
                 "launch.join", "launch.mpirun", "launch.local", "launch.ray_rank", "launch.on_ray"]),
    ("judging", ["launches", "ruling", "closing", "compare", "efficiency", "health", "health.findings", "uniformity",
                 "health.locate", "health.culprits", "history", "history.levels", "history.gates", "history.nights",
                 "history.neighbours", "history.outlook", "history.baselines", "history.storage",
                 "health.night", "health.guidelines", "health.machine", "health.ports", "health.expectations",
                 "health.past", "health.checks"]),
    ("showing", ["document", "nccltests", "nccljson", "summary", "console", "spacetime",
                 "spacetime_html", "forecast", "fitted", "watch", "verdicts", "annotate", "rows", "figures", "wiring",
                 "machines", "measured", "merit", "sections", "report", "matrices", "trends", "health.outputs",
                 "health.page"]),
    ("top", ["options", "session", "gpu_findings", "doctor", "study", "variants", "rounds", "judge", "ab", "publish",
             "bring", "pairing", "locating", "archive", "rerun", "checkup", "cli", "__main__"]),
]  # fmt: skip
NEVER = {"judging": "running", "showing": "running"}  # they meet only in Record
OUTSIDE = {
    "torch": {
        "bitwise",
        "backends._cuda",
        "backends._memory",
        "backends._wire",
        "backends.mpi",
        "backends.shm",
        "backends.symm",
        "backends.torchdist",
        "backends.torchsymm",
        "check",
        "control",
        "doctor",
        "gpu_findings",
        "gpus",
        "launch.forkserver",
        "launch.guest",
        "measure",
        "planted",
        "reducers",
        "stream",
        "trial",
        "worker",
    },
    "triton": {"walker"},
    "mpi4py": {"backends.mpi", "launch.told"},
    "ray": {"launch.on_ray", "launch.ray_rank"},
    "pandas": {"records", "rows", "sections", "report"},
    "rich": {
        "console",
        "cli",
        "pairing",
        "locating",
        "spacetime",
        "forecast",
        "fitted",
        "verdicts",
        "watch",
        "trends",
        "health.page",
    },
    "jinja2": {"report"},
    "plotly": {"spacetime_html", "figures", "report"},
    "typer": {"cli", "study", "judge", "ab", "publish", "bring", "archive", "checkup", "pairing", "locating"},
    "scipy": {"stats", "fit", "paired", "history.levels", "health.guidelines"},
    "sqlalchemy": {"history.storage"},
}
ORDER = [module for _, modules in LAYERS for module in modules]
LAYER = {module: layer for layer, modules in LAYERS for module in modules}


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__") if name != "__init__" else name] = path
    return found


def imports(path: Path) -> set[str]:
    """Dotted names of everything imported anywhere in a file, those for type checking only left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_module_has_a_layer() -> None:
    assert set(modules()) == set(ORDER)


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_down(name: str) -> None:
    for imported in imports(modules()[name]):
        if not imported.startswith("collbench."):
            package = imported.split(".")[0]
            assert name in OUTSIDE.get(package, {name}), f"{name} imports {package}"
            continue
        target = imported.removeprefix("collbench.")
        if target not in LAYER:
            continue  # a name inside a module, which is listed by itself
        if f"{target}.".startswith(f"{name}."):
            continue  # a package may look into itself
        assert ORDER.index(target) < ORDER.index(name), f"{name} imports {target}, which stands above it"
        assert NEVER.get(LAYER[name]) != LAYER[target], f"{name} ({LAYER[name]}) imports {target} ({LAYER[target]})"


def test_nobody_imports_the_cli() -> None:
    importers = [name for name, path in modules().items() if "collbench.cli" in imports(path)]
    assert importers == ["__main__"]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv=['collbench','--help']\nfrom collbench.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "bad={'torch','numpy','pandas','scipy','msgspec'} & set(sys.modules); print(sorted(bad), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_code_stays_within_its_budget() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert sum(lines.values()) <= LINES_MAX
    assert {name: count for name, count in lines.items() if count > 350} == {}
