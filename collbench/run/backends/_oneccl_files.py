"""Where the files of oneCCL lie: those that ``collbench backends fetch oneccl`` has laid out, else
those that pip has installed.

From 2021.17 on the CPU library needs ``libccl.so.2``, which only the distribution ``oneccl`` has.
That one is for GPUs, and owns another ``libccl.so.1``: both cannot be installed together, and so
their wheels are taken apart here.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from collbench.core.errors import CannotRun, UsageError, first_line
from collbench.core.files import home_folder, make_folder

INSTALL = "pip install 'collbench[oneccl]'"
SPLIT = (2021, 17)  # the version from which on the library is in two parts
FABRIC = "libfabric.so.1"
DOWNLOAD = (
    "pip download --no-deps -d W oneccl==2022.2.0 oneccl-cpu==2022.2.0 oneccl-cpu-devel==2022.2.0"
    " impi-rt==2021.18.1"
)
FETCH = f"{DOWNLOAD}, then collbench backends fetch oneccl --wheels W"
WHEEL = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>\d[\w.]*)-.+\.whl")


class Part(NamedTuple):
    """What is taken of a wheel: a file that must be there, and all that match ``names``."""

    needed: str
    names: re.Pattern[str]


PARTS = {
    "oneccl_cpu": Part("lib/libccl.so.1", re.compile(r"lib/libccl\.so\.1")),
    "oneccl": Part("lib/libccl.so.2", re.compile(r"lib/(libccl\.so\.2|libccl_legacy_cpu\.so)")),
    "oneccl_cpu_devel": Part("include/oneapi/ccl.hpp", re.compile(r"include/oneapi/.+")),
    "impi_rt": Part(f"lib/{FABRIC}", re.compile(r"lib/(libfabric\.so\.1|[\w.-]+-fi\.so)")),
}
OF_ONE_VERSION = ("oneccl_cpu", "oneccl", "oneccl_cpu_devel")


class Library(NamedTuple):
    """The files of one oneCCL for CPUs."""

    version: str
    include: Path  # the folder that has oneapi/ccl.hpp
    ccl: Path  # libccl.so.1; libccl.so.2 lies beside it where that needs it
    fabric: Path  # libfabric.so.1; its providers lie beside it


def cache_folder() -> Path:
    """The folder in which libraries are laid out, and shims are built."""
    return home_folder() / "oneccl"


def find_library() -> Library:
    """The oneCCL that ranks use. Raises CannotRun where there is none, or not all of it."""
    return _find_laid_out() or _find_installed()


def refuse_here() -> str:
    """Why this machine has no oneCCL; else an empty string."""
    try:
        find_library()
    except CannotRun as e:
        return e.reason
    return ""


def _find_laid_out() -> Library | None:
    """The newest that was laid out here; None where none was."""
    libraries = []
    with suppress(OSError):
        for folder in cache_folder().iterdir():
            library = _laid_out(folder)
            if library.version[:1].isdigit() and library.ccl.is_file():
                libraries.append(library)
    return max(libraries, key=lambda library: parse_version(library.version), default=None)


def _laid_out(folder: Path) -> Library:
    lib = folder / "lib"
    return Library(folder.name, folder / "include", lib / "libccl.so.1", lib / FABRIC)


def _find_installed() -> Library:
    try:
        version = metadata.version("oneccl-cpu")
    except metadata.PackageNotFoundError:
        raise CannotRun("oneccl is not installed", INSTALL) from None
    ccl = _find_file("oneccl-cpu", "libccl.so.1")
    header = _find_file("oneccl-cpu-devel", "ccl.hpp")
    fabric = _find_file("impi-rt", FABRIC)
    if parse_version(version) >= SPLIT and not ccl.with_name("libccl.so.2").is_file():
        raise CannotRun(
            f"oneccl-cpu {version} needs libccl.so.2, which only the wheel oneccl has", FETCH
        )
    return Library(version, header.parent.parent, ccl, fabric)


def _find_file(distribution: str, name: str) -> Path:
    """A file of an installed distribution. Raises CannotRun where it is not there."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        raise CannotRun(f"oneccl needs {distribution}, which is not installed", INSTALL) from None
    for file in files:
        # a folder of that name has files, too, but is none itself
        if file.name == name and (path := Path(str(file.locate())).resolve()).is_file():
            return path
    raise CannotRun(f"{distribution} has no {name}", INSTALL)


def parse_version(version: str) -> tuple[int, ...]:
    """The numbers of a version, by which versions are sorted."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def lay_out_wheels(wheels: Path) -> Path:
    """The folder in which the files of oneCCL lie now that were in the ``wheels`` of a folder.
    Raises UsageError where one of the wheels is missing or damaged."""
    paths = _find_wheels(wheels)
    version = _match_wheel(paths["oneccl_cpu"])["version"]
    folder = cache_folder() / version
    make_folder(folder.parent)
    under_way = folder.with_name(f".{version}-{secrets.token_hex(4)}")
    try:
        for name, path in paths.items():
            _extract_part(path, PARTS[name], under_way)
        _replace_folder(folder, under_way)
    except OSError as e:
        raise CannotRun(f"cannot lay out {folder}: {e.strerror or first_line(e)}") from e
    finally:
        shutil.rmtree(under_way, ignore_errors=True)
    return folder


def _find_wheels(folder: Path) -> dict[str, Path]:
    """The wheels of a folder by name: one of each that is needed."""
    if not folder.is_dir():
        raise UsageError(f"--wheels {folder}: there is no such folder", DOWNLOAD)
    paths: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        name = _match_wheel(path)["name"]
        if name in paths:
            raise UsageError(
                f"--wheels {folder}: {paths[name].name} and {path.name} are two of one name",
                "leave one of them there",
            )
        if name in PARTS:
            paths[name] = path
    if missing := [name.replace("_", "-") for name in PARTS if name not in paths]:
        raise UsageError(f"--wheels {folder}: no wheel of {', '.join(missing)}", DOWNLOAD)
    versions = {name: _match_wheel(paths[name])["version"] for name in OF_ONE_VERSION}
    if len({*versions.values()}) > 1:
        listing = ", ".join(f"{name.replace('_', '-')} {of}" for name, of in versions.items())
        raise UsageError(f"--wheels {folder}: {listing} are not of one version", DOWNLOAD)
    return paths


def _match_wheel(path: Path) -> dict[str, str]:
    match = WHEEL.fullmatch(path.name)
    return match.groupdict() if match else {"name": "", "version": ""}


def _extract_part(path: Path, part: Part, folder: Path) -> None:
    """Lay out the ``part`` of a wheel, checked against its hashes. Raises UsageError where it is
    not there, or damaged."""
    try:
        with zipfile.ZipFile(path) as wheel:
            hashes = _read_hashes(wheel)
            entries = list(_select_entries(wheel.namelist(), part.names))
            for entry, name in entries:
                data = wheel.read(entry)
                if hashes.get(entry) != hashlib.sha256(data).digest():
                    raise UsageError(f"{path}: {entry} is not what its RECORD says", DOWNLOAD)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as e:
        raise UsageError(f"{path}: not a whole wheel: {first_line(e)}", DOWNLOAD) from e
    if part.needed not in {name for _, name in entries}:
        raise UsageError(f"{path}: no {part.needed} in it", DOWNLOAD)


def _select_entries(entries: Iterable[str], names: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """The entries that have one of the ``names`` below the place where pip lays files out, and
    these. One whose path leads elsewhere is none of them."""
    for entry in entries:
        _, data, name = entry.partition(".data/data/")
        if data and names.fullmatch(name) and ".." not in PurePosixPath(name).parts:
            yield entry, name


def _read_hashes(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """The SHA-256 of each file of a wheel, as its RECORD has it."""
    (record,) = (name for name in wheel.namelist() if name.endswith(".dist-info/RECORD"))
    lines = csv.reader(wheel.read(record).decode().splitlines())
    hashes = {}
    for name, text, *_ in lines:
        algorithm, _, code = text.partition("=")
        if algorithm == "sha256":
            hashes[name] = base64.urlsafe_b64decode(code + "=" * (-len(code) % 4))
    return hashes


def _replace_folder(folder: Path, successor: Path) -> None:
    """Have ``successor`` be the folder, and what was there before no more."""
    former = successor.with_name(f"{successor.name}-former")
    with suppress(FileNotFoundError):
        folder.rename(former)
    try:
        successor.rename(folder)
    finally:
        shutil.rmtree(former, ignore_errors=True)
