"""On a test's PYTHONPATH: ranks find the backends of this folder; SABOTAGE=slow-start:RANK:0 delays a rank."""

import os
import time
from pathlib import Path

import collbench.backends

collbench.backends.__path__.append(str(Path(__file__).parent / "backends"))

what, _, rest = os.environ.get("SABOTAGE", "").partition(":")
if what == "slow-start":
    slow, forks = int(rest.partition(":")[0]), []
    os.register_at_fork(
        before=lambda: forks.append(1),
        after_in_child=lambda: time.sleep(3600) if len(forks) == slow + 1 else None,
    )
