"""Where what a test starts looks for modules."""

from __future__ import annotations

import os
from pathlib import Path


def before(folder: Path | str) -> str:
    """A PYTHONPATH of ``folder``, then of what this process was told: the checkout under test."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
