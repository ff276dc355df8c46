"""What files of /proc and /sys say: text, numbers, lists of cores; None where nothing is said."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def read_text(path: Path, most: int = -1) -> str | None:
    """A file's text, stripped; None where it cannot be read or is empty."""
    try:
        with path.open(errors="replace") as f:
            return f.read(most).strip() or None
    except OSError:
        return None


def find_in_file(path: Path, pattern: str) -> str | None:
    """The text that the first group of ``pattern`` matches in the first 8 KiB of a file."""
    match = re.search(pattern, read_text(path, 8192) or "", re.MULTILINE)
    return match[1].strip() if match else None


def read_integer(path: Path, pattern: str = r"^(-?\d+)$") -> int | None:
    """The integer that the pattern's first group finds in a file; None without a file or a
    match."""
    digits = find_in_file(path, pattern)
    return int(digits) if digits else None


def read_kib(path: Path, key: str) -> int | None:
    """Bytes in a line ``key: 1234 kB``."""
    kib = read_integer(path, rf"\b{key}:\s+(\d+) kB")
    return kib and kib << 10


def cpu_list(path: Path, pattern: str = "(.*)") -> list[int]:
    """CPUs a file names in the kernel's notation: 0-3,8."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", find_in_file(path, pattern) or "")
    return [cpu for first, last in ranges for cpu in range(int(first), int(last or first) + 1)]


def hash_identity(identity: str) -> str:
    """Sixteen hexadecimal digits that are equal for equal identities and do not tell them."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


ROOT = Path("/")


def list_cgroups(controller: str, root: Path) -> list[Path]:
    """This process's groups and all above them, versions 1 and 2; in a container, as far as they
    are mounted."""
    groups: list[Path] = []
    for controllers, path in re.findall(
        r"^\d+:(.*?):/(.*)", read_text(root / "proc/self/cgroup") or "", re.MULTILINE
    ):
        if not controllers or controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            groups += [
                group for group in (top / path, *(top / path).parents) if group.is_relative_to(top)
            ]
    return groups
