"""How many files and sockets this process may have open at once."""

from __future__ import annotations

import resource
from contextlib import suppress

MAX_DESCRIPTORS = 65536  # some programs close each descriptor that they may have, one by one


def raise_limit() -> None:
    """Raise this process's soft limit of open files (RLIMIT_NOFILE) to its hard one, to at most
    MAX_DESCRIPTORS: a rank has a socket for each other rank in every group of Gloo's, and 1024 is
    the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
