"""What a certificate of acceptance rests on: who wrote it when, and digests of the raw data; and
whether a run's data are those of a certificate."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from collbench.core.errors import UsageError
from collbench.core.version import __version__
from collbench.machine import environment

MOST_BYTES = 256 << 20  # of a certificate

DIGEST = re.compile(r"sha256:([0-9a-f]{64})\b")


class DataFile(NamedTuple):
    """A file that the certificate rests on: what is in it, its name without folders, its bytes, and
    the SHA-256 of them."""

    kind: str
    name: str
    nbytes: int
    digest: str


class Provenance(NamedTuple):
    """Who wrote a certificate, when, with which collbench, on what data."""

    by: str
    written: str
    version: str
    files: list[DataFile]


def trace_provenance(runs: list[Path], tables: Path | None, by: str = "") -> Provenance:
    """The provenance of a certificate that is written now. Raises UsageError for a file that cannot
    be read."""
    files = [digest_file(path, "run") for path in runs]
    files += [digest_file(path, "table") for path in list_tables(tables)]
    written = datetime.now(UTC).isoformat(timespec="seconds")
    by = by or f"{environment.user_name()} on {environment.host_name()}"
    return Provenance(by, written, __version__, files)


def list_tables(path: Path | None) -> list[Path]:
    """The files of --expect."""
    if path is None:
        return []
    return sorted(path.glob("*.toml")) if path.is_dir() else [path]


def digest_file(path: Path, kind: str = "run") -> DataFile:
    """The digest of a file as it is now. Raises UsageError."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            nbytes = file.tell()
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}", "give files that you may read") from e
    return DataFile(kind, path.name, nbytes, f"sha256:{digest}")


def read_digests(path: Path) -> set[str]:
    """The digests that a certificate names, be it HTML, Markdown or JSON. Raises UsageError for a
    file that has none."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}", "give a certificate of collbench accept") from e
    digests = {f"sha256:{digest}" for digest in DIGEST.findall(text)}
    if not digests:
        raise UsageError(
            f"{path} names no digest of data: it is no certificate",
            "give a certificate of collbench accept -o FILE",
        )
    return digests
