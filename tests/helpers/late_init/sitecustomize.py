"""On the path of a side of an experiment: rank 1's making of a communicator takes LATE_INIT seconds
longer, in the processes whose lives are measured and nowhere else."""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from typing import Any

MODULE = "collbench.features.lifecycle.torch_life"


class _Late(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        make = module.Torch.make

        def make_late(library: Any) -> None:
            if library.rank == 1:
                time.sleep(float(os.environ["LATE_INIT"]))
            make(library)

        module.Torch.make = make_late


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec and spec.loader:
            spec.loader = _Late(spec.loader)
        return spec


if os.environ.get("LATE_INIT"):
    sys.meta_path.insert(0, _Finder())
