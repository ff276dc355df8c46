"""On a test's PYTHONPATH, lets ranks find the backends of this folder beside the real ones."""

from pathlib import Path

import collbench.backends

collbench.backends.__path__.append(str(Path(__file__).parent / "backends"))
