"""Tables of vLLM and SGLang, read by the engines' own modules.

COLLBENCH_TEST_VLLM and COLLBENCH_TEST_SGLANG name folders with the packages; nothing of them but
the table and the communicator is run.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from advised import advice, advise_nccl, unadvised

from collbench.features.advise.formats import choose
from collbench.features.advise.formats.engines import FORMATS
from collbench.features.advise.types import Advised, Series, Setting

pytestmark = pytest.mark.slow
VLLM, SGLANG, _ = FORMATS
ENGINES = {
    "vllm": (
        VLLM,
        "vllm/distributed/device_communicators",
        "symm_mem.py",
        "SymmMemCommunicator",
        "should_use_symm_mem",
    ),
    "sglang": (
        SGLANG,
        "sglang/srt/distributed/device_communicators",
        "torch_symm_mem.py",
        "TorchSymmMemCommunicator",
        "should_torch_symm_mem_allreduce",
    ),
}


def find_folder(engine: str) -> Path:
    name = f"COLLBENCH_TEST_{engine.upper()}"
    if not os.environ.get(name):
        pytest.skip(f"{name} names no folder with {engine}")
    return Path(os.environ[name]) / ENGINES[engine][1]


PLAIN = (
    ast.Assign,
    ast.BinOp,
    ast.Constant,
    ast.Dict,
    ast.Name,
    ast.expr_context,
    ast.operator,
)


def load_table(path: Path, fragment: str) -> dict[str, Any]:
    """The module's tables with the fragment pasted below: its assignments of plain values."""
    names: dict[str, Any] = {}
    for node in ast.parse(path.read_text()).body:
        if all(isinstance(each, PLAIN) for each in ast.walk(node)):
            exec(ast.unparse(node), names)
    exec(fragment, names)
    return names


def load_communicator(path: Path, engine: str, table: dict[str, Any]) -> dict[str, Any]:
    """The communicator's module, all imports of the engine's own being stand-ins."""
    source = path.read_text()
    modules = {
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(engine)
    } | {f"{engine}.envs"}
    parts = {".".join(name.split(".")[: end + 1]) for name in modules for end in range(9)}
    stands = {name: MagicMock() for name in parts}
    for name, stand in stands.items():
        if name.endswith("all_reduce_utils"):
            for key, value in table.items():
                setattr(stand, key, value)
    names: dict[str, Any] = {"__name__": "communicator"}
    with patch.dict(sys.modules, stands):
        exec(compile(source, str(path), "exec"), names)
    return names


def won(n: int, kernel: str) -> Advised:
    series = Series("all_reduce", n, 1)
    sizes = (8 << 10, 16 << 10, 1 << 20)
    row = advice(sizes, series=series, setting=Setting(backend=kernel))
    return advise_nccl([row], [unadvised(2 << 20, series)])


@pytest.mark.parametrize(("n", "kernel"), [(8, "torch_multimem"), (2, "torch_two_shot")])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engine_runs_its_kernel_where_the_rules_say(engine: str, n: int, kernel: str) -> None:
    import torch
    import torch.distributed._symmetric_memory  # while nothing stands in for modules

    folder = find_folder(engine)
    form, _, file, communicator, should = ENGINES[engine]
    given = won(n, kernel)
    text = form.write(given)
    rules = form.read(text)
    table = load_table(folder / "all_reduce_utils.py", text)
    names = load_communicator(folder / file, engine, table)
    kind = names[communicator]
    self = kind.__new__(kind)
    device = torch.device("meta")
    capability = {"vllm": "9.0", "sglang": 9}[engine]
    (sizes,) = (value for name, value in names.items() if name.endswith("MEM_ALL_REDUCE_MAX_SIZES"))
    vars(self).update(
        disabled=False, dtype=torch.bfloat16, device=device, max_size=sizes[capability][n]
    )
    is_multimem = n in kind._WORLD_SIZES_MULTIMEM[capability]
    assert kernel == ("torch_multimem" if is_multimem else "torch_two_shot")
    series = given.rows[0].series
    for nbytes in (4, 8 << 10, 999_996, (1 << 20) - 4, 1 << 20, (1 << 20) + 8, 2 << 20, 1 << 30):
        message = torch.empty(nbytes // 2, dtype=torch.bfloat16, device=device)
        ran = kernel if getattr(self, should)(message) else ""
        assert ran == choose(rules, series, nbytes)
