"""Where the built-in suites lie."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def list_suites() -> dict[str, Path]:
    """Files of suites by name: a wheel has them within the package, a checkout beside it, where
    files of any other package may lie too."""
    folders = [PACKAGE.parent / "suites"] if (PACKAGE.parent / "pyproject.toml").is_file() else []
    paths = sorted(
        path for folder in (PACKAGE / "suites", *folders) for path in folder.glob("*.toml")
    )
    return {path.stem: path for path in paths}
