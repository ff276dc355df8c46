"""What is known of a backend by its name alone, without loading what runs it.

A backend is a module with a literal ``INFO`` and a ``create(name)``: one of this package's
(collbench/run/backends, where its file's name is the backend's), one that an installed package
announces, or a file that a command names (core/backend_sources.py). The module imports nothing
heavy at its top, so that suites, plans, help and login nodes may ask. A name without a module may
be one that torch.distributed knows (a plug-in's), of which PLUGIN is assumed.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from collbench.core import backend_sources
from collbench.core.backend_sources import BackendFile
from collbench.core.errors import CollbenchError, UsageError, first_line

HOME = "collbench.run.backends"
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
RESERVED = {"native", "all", "none"}  # words that mean something else where names stand
CONTRACT = 1  # the version of what INFO and a backend's methods are held to
NCCL_WHEELS = tuple(f"nvidia-nccl-cu{major}" for major in range(11, 15))


class BackendInfo(NamedTuple):
    """One backend. ``refuse(case)`` says why it runs a case on no machine, ``here()`` why no rank
    of this machine can open it; both return an empty string where nothing is against it.
    ``may_refuse(case)`` says whether its library may, which is known only once it is asked.
    ``find()`` loads the library and says what is there; it raises CannotRun where nothing is."""

    about: str  # a line for `collbench list`
    packages: tuple[str, ...] = ()  # distributions whose versions decide its times
    settings: tuple[str, ...] = ()  # prefixes of environment variables that it reads
    gpu: Literal["", "each", "shared"] = ""  # every rank has its own | ranks may share one
    threads: int = 0  # of a rank that must run, where the work is done on CPUs; 0: not known
    binds: bool = True  # whether ranks may be bound to cores: not where it places its own threads
    rank_bytes: int = 256 << 20  # that a rank takes before any buffer, on the host
    owns_results: bool = False  # results lie in memory of the library's, besides the case's buffers
    mode: Literal["isolated", "streaming"] = "isolated"  # by default
    launch: Literal["fork", "mpirun", "none"] = "fork"  # none: times are predicted
    native: bool = True  # has algorithms of its own: without --algo it runs
    messages: bool = True  # from rank to rank, as pairs and steps need
    tags: bool = True  # tell the messages between two ranks apart: where not, their order does
    groups: Literal["any", "partition", "none"] = "any"  # partition: every rank is in one
    worlds: Literal["many", "one"] = "many"  # of a process: several families of groups need many
    background: Literal["any", "computation", "none"] = "any"  # what it may run beside a case
    virtual_ranks: bool = False  # all ranks may live in one process, on one GPU
    registers: bool = False  # buffers can be registered (-R)
    averages: bool = False  # reduces by avg
    lacks: tuple[str, ...] = ()  # collectives that its library has not
    call_path: str = ""  # what a call pays beside the collective: "dispatch of a compiled program"
    refuse: Callable[[Any], str] = lambda case: ""
    may_refuse: Callable[[Any], bool] = lambda case: False
    here: Callable[[], str] = str
    find: Callable[[], str] = str
    name: str = ""  # of a file's backend, where that is not the file's own
    contract: int = 0  # of a backend from outside: the version of the contract that it keeps

    @property
    def predicts(self) -> bool:
        """Whether it computes times in place of measuring them."""
        return self.launch == "none"


PLUGIN = BackendInfo(
    about="a backend that torch.distributed knows by this name", threads=2, binds=False
)
_files: dict[str, BackendFile] = {}  # that this process was told of, by the backend's name


def find_module(name: str) -> Any:
    """What has the ``INFO`` and ``create`` of a backend; None where the name is neither this
    package's, nor a file's that was named, nor announced. Raises UsageError where what is from
    outside does not keep the contract."""
    if _is_ours(name):
        return importlib.import_module(f"{HOME}.{name}")
    if file := _files.get(name):
        return backend_sources.load_backend_file(file)
    if name not in backend_sources.list_entry_points():
        return None
    module = backend_sources.load_entry_point(name)
    _check_contract(f"backend {name}", module)
    return module


def _is_ours(name: str) -> bool:
    return bool(NAME.fullmatch(name)) and bool(importlib.util.find_spec(f"{HOME}.{name}"))


@cache
def backend_info(name: str) -> BackendInfo:
    """The entry of the backend ``name``: PLUGIN's where nobody has that name. What functions of an
    outside backend raise is a UsageError that names them."""
    info = getattr(find_module(name), "INFO", PLUGIN)
    assert isinstance(info, BackendInfo)
    if not info.contract:
        return info
    guarded: dict[str, Any] = {word: _guard(getattr(info, word), name, word) for word in FUNCTIONS}
    return info._replace(**guarded, packages=(*info.packages, *_list_packages(name)))


def _list_packages(name: str) -> list[str]:
    """The package that announces a backend."""
    point = backend_sources.list_entry_points().get(name) if name not in _files else None
    return [point.dist.name] if point and point.dist else []


@cache
def list_infos() -> dict[str, BackendInfo]:
    """The entries of all backends, by name, but for those from outside that cannot be loaded."""
    infos = {}
    for name in backend_names():
        with suppress(UsageError):
            infos[name] = backend_info(name)
    return infos


FUNCTIONS = {  # of INFO, and what each is to do
    "refuse": "refuse(case) returns why it never runs the case, or an empty string",
    "may_refuse": "may_refuse(case) returns True or False",
    "here": "here() returns why no rank of this machine can open it, or an empty string",
    "find": "find() returns what there is, or raises CannotRun",
}


def _guard(function: Callable[..., Any], name: str, word: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except CollbenchError:
            raise
        except Exception as e:
            raise UsageError(
                f"backend {name}: {word} of its INFO raised {type(e).__name__}: {first_line(e)}",
                FUNCTIONS[word],
            ) from e

    return call


def runs_on_cpus(name: str) -> bool:
    """Whether a backend is known to do its work on CPUs: not where it is from outside."""
    info = backend_info(name)
    return bool(info.threads) and not info.contract and info is not PLUGIN


def backend_names() -> list[str]:
    """The backends of this package, of files that were named and of installed packages, sorted."""
    return sorted({*own_backends(), *_files, *backend_sources.list_entry_points()})


@cache
def list_settings() -> tuple[str, ...]:
    """The prefixes of environment variables that some backend reads."""
    return tuple(sorted({word for info in list_infos().values() for word in info.settings}))


def list_capable(able: Callable[[BackendInfo], bool]) -> str:
    """Those backends that measure and are ``able``, in words."""
    names = [name for name, info in list_infos().items() if able(info) and not info.predicts]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def own_backends() -> list[str]:
    """The backends of this package, sorted."""
    package = importlib.util.find_spec(HOME)
    folders = package.submodule_search_locations if package else None
    modules = sorted(module.name for module in pkgutil.iter_modules(folders or []))
    return [name for name in modules if NAME.fullmatch(name)]


def find_origin(name: str) -> str:
    """Where a backend comes from, in words: empty for this package's own."""
    if _is_ours(name):
        return ""
    if file := _files.get(name):
        return f"{file.label} {file.version}"
    point = backend_sources.list_entry_points().get(name)
    return backend_sources.describe_entry_point(point) if point else "torch.distributed"


def list_files() -> dict[str, BackendFile]:
    """The files that this process was told of, by the name of their backend."""
    return dict(_files)


def find_file(name: str) -> BackendFile | None:
    """The file that has the backend ``name``, for ranks that are yet to be told."""
    return _files.get(name)


def resolve_backend(word: str, folder: Path | None = None) -> str:
    """The name of the backend that ``word`` stands for: its own, or that of the file which it names
    (``./my.py``, relative to ``folder`` or here), which is known from here on. Raises UsageError
    where the file cannot be had or does not keep the contract."""
    if not backend_sources.names_file(word):
        return word
    return register_file(backend_sources.read_backend_file(word, folder or Path.cwd()))


def register_file(file: BackendFile) -> str:
    """Have a file's backend known in this process; returns its name. Raises UsageError as
    resolve_backend does."""
    path = Path(file.path)
    module = backend_sources.load_backend_file(file)
    _check_contract(path.name, module)
    name = module.INFO.name or path.stem
    if name in RESERVED:
        raise UsageError(
            f"{path.name}: '{name}' is a reserved word",
            "rename the file, or set name in its INFO",
        )
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{path.name}: '{name}' is no name for a backend",
            "a name has at most 32 of a-z, 0-9 and _, a letter first; set name in its INFO",
        )
    if other := _find_other(name, file):
        raise UsageError(
            f"{path.name}: {other} has the name {name} already",
            "rename the file, or set name in its INFO",
        )
    if _files.get(name) != file:
        _files[name] = file
        _clear_caches()
    return str(name)


def forget_file(name: str) -> None:
    """Have a file's backend known no more in this process."""
    del _files[name]
    _clear_caches()


def _clear_caches() -> None:
    for cached in (backend_info, list_infos, list_settings):
        cached.cache_clear()


def _find_other(name: str, file: BackendFile) -> str:
    """What has the name that a file's backend would have, in words; else an empty string."""
    if _is_ours(name):
        return "a backend of collbench's own"
    other, point = _files.get(name), backend_sources.list_entry_points().get(name)
    if other and other.path != file.path:
        return other.path
    return backend_sources.describe_entry_point(point) if point else ""


def _check_contract(origin: str, module: Any) -> None:
    """Raises UsageError where ``module`` is no backend of a contract that this version keeps."""
    info = getattr(module, "INFO", None)
    if not isinstance(info, BackendInfo):
        raise UsageError(
            f"{origin} has no INFO, a collbench.core.backend_info.BackendInfo", backend_sources.HELP
        )
    if not callable(getattr(module, backend_sources.MAKER, None)):
        raise UsageError(f"{origin} has no function create(name)", backend_sources.HELP)
    if info.contract != CONTRACT:
        made = f"is made for contract {info.contract}" if info.contract else "names no contract"
        raise UsageError(
            f"{origin} {made}, and this version keeps {CONTRACT}",
            f"set contract={CONTRACT} in its INFO once it does what collbench help backends says",
        )
    for field, kind in get_type_hints(BackendInfo).items():
        value, possible = getattr(info, field), get_args(kind)
        if get_origin(kind) is Literal and value not in possible:
            words = ", ".join(f'"{word}"' for word in possible)
            raise UsageError(
                f"{origin}: {field} of its INFO is {value!r}", f"set it to one of {words}"
            )
