"""What is known of a backend by its name alone, without loading what runs it.

A backend is a module of collbench/run/backends with a literal ``INFO`` and a ``create(name)``; its
file's name is the backend's. The module imports nothing heavy at its top, so that suites, plans,
help and login nodes may ask. A name without a module may be one that torch.distributed knows (a
plug-in's): of it nothing is known.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple

HOME = "collbench.run.backends"
NAME = re.compile(r"[a-z][a-z0-9_]*")
NCCL_WHEELS = tuple(f"nvidia-nccl-cu{major}" for major in range(11, 15))


class BackendInfo(NamedTuple):
    """One backend. ``refuse(case)`` says why it runs a case on no machine, ``here()`` why no rank
    of this machine can open it; both return an empty string where nothing is against it.
    ``may_refuse(case)`` says whether its library may, which is known only once it is asked."""

    about: str  # a line for `collbench list`
    packages: tuple[str, ...] = ()  # distributions whose versions decide its times
    settings: tuple[str, ...] = ()  # prefixes of environment variables that it reads
    gpu: Literal["", "each", "shared"] = ""  # every rank has its own | ranks may share one
    threads: int = 0  # of a rank that must run, where the work is done on CPUs; 0: not known
    mode: Literal["isolated", "streaming"] = "isolated"  # by default
    launch: Literal["fork", "mpirun", "none"] = "fork"  # none: times are predicted
    native: bool = True  # has algorithms of its own: without --algo it runs
    messages: bool = True  # from rank to rank, as pairs and steps need
    groups: Literal["any", "partition", "none"] = "any"  # partition: every rank is in one
    background: Literal["any", "computation", "none"] = "any"  # what it may run beside a case
    virtual_ranks: bool = False  # all ranks may live in one process, on one GPU
    registers: bool = False  # buffers can be registered (-R)
    averages: bool = False  # reduces by avg
    lacks: tuple[str, ...] = ()  # collectives that its library has not
    refuse: Callable[[Any], str] = lambda case: ""
    may_refuse: Callable[[Any], bool] = lambda case: False
    here: Callable[[], str] = str

    @property
    def predicts(self) -> bool:
        """Whether it computes times in place of measuring them."""
        return self.launch == "none"


PLUGIN = BackendInfo(about="a backend that torch.distributed knows by this name")


def find_module(name: str) -> ModuleType | None:
    """The module of a backend, None where this package has none of that name."""
    if not NAME.fullmatch(name) or not importlib.util.find_spec(f"{HOME}.{name}"):
        return None
    return importlib.import_module(f"{HOME}.{name}")


@cache
def backend_info(name: str) -> BackendInfo:
    """The entry of the backend ``name``: PLUGIN's where it is none of this package's."""
    info = getattr(find_module(name), "INFO", PLUGIN)
    assert isinstance(info, BackendInfo)
    return info


def backend_names() -> list[str]:
    """The backends of this package, sorted."""
    package = importlib.util.find_spec(HOME)
    folders = package.submodule_search_locations if package else None
    modules = sorted(module.name for module in pkgutil.iter_modules(folders or []))
    return [name for name in modules if NAME.fullmatch(name)]
