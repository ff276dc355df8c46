"""Make a Python environment whose torch is a CUDA build and whose CUDA is the fake.

    python tests/fakegpu/build.py FOLDER [--torch 2.14.1]

torch is installed without NVIDIA's wheels: what it links against is either compiled from this
folder or made of stubs, one for each symbol that torch leaves undefined. A stub that is called
says its name and returns an error. FOLDER/bin/fakegpu runs a command on the fake.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADERS = (
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-crt==13.0.*",
)  # 2.4 MB; only headers are used
TORCH_NEEDS = (
    "filelock",
    "typing-extensions",
    "sympy",
    "networkx",
    "jinja2",
    "fsspec",
    "setuptools",
)
FOR_TESTS = ("pytest", "pytest-timeout", "pytest-rerunfailures")  # of tests/gpu
OURS = {  # sources of each library, beside the stubs for what torch needs and they lack
    "libcudart.so.13": ("runtime.cpp", "kernels.cpp"),
    "libcuda.so.1": ("driver.cpp", "walk.cpp"),
    "libnccl.so.2": ("nccl.cpp",),
    "libnvidia-ml.so.1": ("nvml.cpp",),
}
FAILS_WITH = {
    "libcudart.so.13": 801,
    "libcuda.so.1": 801,
    "libnccl.so.2": 5,
}  # not supported; 1 else
PREFIXES = {  # of symbols without a version: whose they are
    "nccl": "libnccl.so.2",
    "cuFile": "libcufile.so.0",
    "cuda": "libcudart.so.13",
    "nvml": "libnvidia-ml.so.1",
    "cu[A-Z]": "libcuda.so.1",
}
LOADED_BY_NAME = {  # folders for LD_LIBRARY_PATH
    "fake": ("libcuda.so.1", "libnvidia-ml.so.1"),
    "fake-without-nvml": ("libcuda.so.1",),
}
OLD_NCCL = "nccl-before-2.24"  # the folder of an NCCL that lacks what 2.24 brought
COMPILE = ("g++", "-std=c++17", "-O2", "-Wall", "-fPIC", "-shared")


class Elf:
    """Symbols and versions of a shared library, as readelf has them."""

    def __init__(self, path: Path) -> None:
        text = run_quietly("readelf", "-W", "--dyn-syms", "--dynamic", str(path))
        self.needed = re.findall(r"\(NEEDED\).*\[(.+)\]", text)
        self.defined: set[str] = set()
        self.undefined: set[tuple[str, str]] = set()  # name, version or ""
        for line in text.splitlines():
            columns = line.split()
            if len(columns) < 8 or not columns[0].rstrip(":").isdigit():
                continue
            name, _, version = columns[7].partition("@")
            if columns[6] != "UND":
                self.defined.add(name)
            elif columns[4] != "WEAK":
                self.undefined.add((name, version.lstrip("@").partition(" ")[0]))


def run_quietly(*command: str) -> str:
    """Standard output of a command; what it printed goes to stderr where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ...: {done.stdout}{done.stderr}")
    return done.stdout


def create_environment(folder: Path, torch: str, extras: Sequence[str]) -> Path:
    """Make a virtual environment with torch, Triton, what else collbench needs, and collbench;
    return its Python. Nothing brings torch's own dependencies, among them NVIDIA's libraries."""
    python = folder / "bin/python"
    if not python.exists():
        run_quietly(sys.executable, "-m", "venv", str(folder))
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # "===" takes exactly this version: a CPU build of the same number has a longer one
    run_quietly(*pip, "--no-deps", f"torch==={torch}")
    run_quietly(*pip, "--no-deps", find_triton(python))
    pinned = ("--constraint", str(write_constraints(folder)))
    run_quietly(*pip, *pinned, *TORCH_NEEDS, *FOR_TESTS, *read_requirements(extras))
    run_quietly(*pip, "--no-deps", "--editable", str(ROOT))
    return python


def read_requirements(extras: Sequence[str]) -> list[str]:
    """What collbench needs with these extras, but for torch and Triton."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    needed = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    return [line for line in needed if not re.match(r"(torch|triton)\b", line)]


def write_constraints(folder: Path) -> Path:
    """The project's constraints without torch and Triton, which the fake picks itself."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    path = folder / "constraints.txt"
    path.write_text("\n".join(line for line in lines if not re.match(r"(torch|triton)==", line)))
    return path


def find_triton(python: Path) -> str:
    """The Triton that torch's metadata asks for, as pip takes it."""
    code = "from importlib.metadata import requires; print(*requires('torch'), sep='\\n')"
    needs = run_quietly(str(python), "-c", code)
    match = re.search(r"^triton[^;\n]*", needs, re.MULTILINE)
    if match is None:
        raise SystemExit("this torch asks for no Triton: is it a build for CUDA on Linux?")
    return match[0].strip()


def collect_missing(torch_lib: Path) -> dict[str, dict[str, set[str]]]:
    """Symbols that torch's libraries leave undefined and none of them defines: by the library that
    should have them and the version they need there ("" for none)."""
    libraries = [Elf(path) for path in sorted(torch_lib.glob("*.so"))]
    defined = set().union(*(library.defined for library in libraries))
    sonames = {name for library in libraries for name in library.needed if not is_found(name)}
    missing: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in sonames}
    # a home for symbols that have no other
    rest = next(name for name in sonames if "cudnn" in name)
    for library in libraries:
        for name, version in library.undefined:
            if name in defined or is_of_system(version):
                continue
            home = find_home(name, version, sonames) or rest
            missing.setdefault(home, defaultdict(set))[version].add(name)
    return missing


def is_found(soname: str) -> bool:
    """Whether the system or torch itself has a library."""
    return soname.startswith(("libc10", "libtorch", "libshm", "libcaffe2")) or not re.match(
        r"lib(cu|nv|nccl)", soname
    )


def is_of_system(version: str) -> bool:
    return version.startswith(("GLIBC", "GCC", "CXXABI", "LIBGOMP", "OMP", "GOMP"))


def find_home(name: str, version: str, sonames: Iterable[str]) -> str | None:
    if version in sonames:
        return version
    if version == "NVSHMEM" or name.startswith("nvshmem"):
        return next((soname for soname in sonames if "nvshmem" in soname), None)
    return next((lib for prefix, lib in PREFIXES.items() if re.match(prefix, name)), None)


def write_stubs(path: Path, soname: str, names: Iterable[str]) -> None:
    """C with a function for each name, which says so and returns an error."""
    lines = [
        "#include <stdio.h>",
        "static int fail(const char* name) {",
        f'  fprintf(stderr, "[fake {soname}] %s is not there\\n", name);',
        f"  return {FAILS_WITH.get(soname, 1)};",
        "}",
        *(f'int {name}() {{ return fail("{name}"); }}' for name in sorted(names)),
    ]
    path.write_text("\n".join(lines) + "\n")


def build_library(
    soname: str,
    by_version: dict[str, set[str]],
    headers: Path,
    target: Path,
    work: Path,
    options: Sequence[str] = (),
) -> None:
    """Compile a library of ours, or one of stubs alone, into ``target``."""
    output = target / soname
    sources = [str(HERE / name) for name in OURS.get(soname, ())]
    links = ["-L", str(target), "-l:libcudart.so.13"] if soname == "libnccl.so.2" else []
    names = set().union(*by_version.values()) if by_version else set()
    versions = [version for version in by_version if version]
    flags = ["-I", str(headers), f"-Wl,-soname,{soname}", "-ldl", "-lpthread", "-lrt", *options]
    if versions:
        script = work / f"{soname}.map"
        script.write_text(f"{versions[0]} {{ global: *; }};\n")
        flags.append(f"-Wl,--version-script={script}")
    objects = []
    if sources:
        names -= find_defined(sources, headers, work)
    if names:
        stubs = work / f"{soname}.c"
        write_stubs(stubs, soname, names)
        objects = [str(work / f"{soname}.o")]
        run_quietly("gcc", "-w", "-c", "-fPIC", "-fno-builtin", str(stubs), "-o", objects[0])
    if sources or objects:
        run_quietly(*COMPILE, *sources, *objects, "-o", str(output), *links, *flags)
    else:
        empty = work / "empty.c"
        empty.write_text("")
        run_quietly(*COMPILE, "-x", "c", str(empty), "-o", str(output), f"-Wl,-soname,{soname}")


def build_old_nccl(
    by_version: dict[str, set[str]], headers: Path, torch_lib: Path, work: Path, python: Path
) -> None:
    """Compile NCCL without ncclResetDebugInit, which the launcher preloads for old versions: where
    torch's own folder is searched, nothing else can take its place."""
    folder = python.parent.parent / OLD_NCCL
    folder.mkdir(exist_ok=True)
    runtime = f"-Wl,-rpath,{torch_lib}"
    options = ("-DWITHOUT_RESET_DEBUG_INIT", "-L", str(torch_lib), runtime)
    build_library("libnccl.so.2", by_version, headers, folder, work, options)


def find_defined(sources: Sequence[str], headers: Path, work: Path) -> set[str]:
    """What sources define, read off their object files."""
    defined: set[str] = set()
    for source in sources:
        target = work / (Path(source).stem + ".o")
        run_quietly(
            "g++",
            "-std=c++17",
            "-O0",
            "-w",
            "-c",
            "-fPIC",
            "-I",
            str(headers),
            source,
            "-o",
            str(target),
        )
        text = run_quietly("nm", "--defined-only", "-g", str(target))
        defined |= {line.split()[-1] for line in text.splitlines()}
    return defined


def unpack_headers(python: Path, work: Path) -> Path:
    """NVIDIA's headers of the CUDA runtime, from its two small wheels."""
    pip = (str(python), "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    run_quietly(*pip, "--no-deps", "--dest", str(work), *HEADERS)
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "headers")
    return next((work / "headers").rglob("cuda_runtime_api.h")).parent


def build_libraries(python: Path) -> None:
    site = Path(
        run_quietly(
            str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
        ).strip()
    )
    torch_lib = site / "torch/lib"  # which torch's RPATH ends with
    missing = collect_missing(torch_lib)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        headers = unpack_headers(python, work)
        for soname in (*OURS, *sorted(set(missing) - set(OURS))):
            build_library(soname, missing.get(soname, {}), headers, torch_lib, work)
        build_old_nccl(missing.get("libnccl.so.2", {}), headers, torch_lib, work, python)
    for name, sonames in LOADED_BY_NAME.items():
        place = python.parent.parent / name
        place.mkdir(exist_ok=True)
        for soname in sonames:
            shutil.copy(torch_lib / soname, place / soname)
    (torch_lib / "libnvidia-ml.so.1").unlink()  # FAKE_NO_NVML must be able to hide it
    shutil.copy(HERE / "fakeops.py", site / "fakeops.py")
    install_hook(site)
    write_launcher(python)


def install_hook(site: Path) -> None:
    """Have torch give its element-wise work to the CPU as it is imported."""
    init = site / "torch/__init__.py"
    hook = "\nimport fakeops  # of the fake GPU\n\nfakeops.install()\n"
    text = init.read_text()
    if hook not in text:
        init.write_text(text + hook)


def write_launcher(python: Path) -> None:
    launcher = python.parent / "fakegpu"
    launcher.write_text(f"#!{python}\n" + (HERE / "launcher.py").read_text())
    launcher.chmod(0o755)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", default="2.14.1")
    parser.add_argument("--extras", default="test,gpu")
    options = parser.parse_args()
    began = time.monotonic()
    folder = options.folder.absolute()
    python = create_environment(folder, options.torch, options.extras.split(","))
    build_libraries(python)
    megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) >> 20
    seconds = time.monotonic() - began
    print(f"{folder}: torch {options.torch} on a fake CUDA, {megabytes} MB, {seconds:.0f} s")


if __name__ == "__main__":
    main()
