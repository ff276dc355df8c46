"""The shim over oneCCL's C++ interface, compiled once for each library and kept."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from collbench.core.errors import CannotRun
from collbench.core.files import make_folder
from collbench.run.backends._oneccl_files import Library, cache_folder

SOURCE = Path(__file__).with_name("oneccl.cpp")
COMPILERS = ("c++", "g++", "clang++")
TIMEOUT_S = 300.0
HINT = "install a C++17 compiler (apt install g++), or name one: CXX=g++-13"


def build_shim(library: Library) -> Path:
    """The shim for this library, compiled unless one is kept of it. Raises CannotRun where there
    is no compiler, or it fails. Of several that build at once the last one's is kept; all are
    alike."""
    path = shim_path(library)
    if path.is_file():
        return path
    compiler = find_compiler(os.environ)
    try:
        make_folder(path.parent)
        under_way = path.with_name(f".{path.stem}-{secrets.token_hex(4)}.so")
        try:
            _compile_shim(compiler, library, under_way)
            under_way.replace(path)
        finally:
            under_way.unlink(missing_ok=True)
    except OSError as e:
        raise CannotRun(f"cannot keep {path}: {e.strerror}", "set COLLBENCH_HOME") from e
    return path


def shim_path(library: Library) -> Path:
    """Where the shim is kept: named by what it is compiled of, and linked to."""
    digest = hashlib.blake2b(SOURCE.read_bytes(), digest_size=8)
    digest.update(library.version.encode())
    digest.update(library.ccl.read_bytes())
    return cache_folder() / f"shim-{digest.hexdigest()}.so"


def find_compiler(environment: Mapping[str, str]) -> list[str]:
    """The command of the C++ compiler: that of CXX, else the first of the usual names. Raises
    CannotRun where there is none."""
    if given := shlex.split(environment.get("CXX", "")):
        if shutil.which(given[0], path=environment.get("PATH")) is None:
            raise CannotRun(f"oneccl needs a C++ compiler: CXX={given[0]} is not there", HINT)
        return given
    for name in COMPILERS:
        if path := shutil.which(name, path=environment.get("PATH")):
            return [path]
    raise CannotRun("oneccl needs a C++ compiler, and there is none on the PATH", HINT)


def _compile_shim(compiler: list[str], library: Library, path: Path) -> None:
    command = [*compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-I", str(library.include)]
    command += [str(SOURCE), "-o", str(path), f"-L{library.ccl.parent}", "-l:libccl.so.1"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as e:
        raise CannotRun(f"{compiler[0]} took over {TIMEOUT_S:.0f} s for oneccl.cpp", HINT) from e
    if done.returncode or not path.is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line]
        cause = (errors or lines or [f"exit status {done.returncode}"])[0]
        raise CannotRun(f"{compiler[0]} cannot compile oneccl.cpp: {cause}", HINT)
