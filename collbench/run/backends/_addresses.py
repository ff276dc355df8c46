"""Addresses at which libraries of a rank may listen: on the interface of the control group."""

from __future__ import annotations

import socket

from collbench.core.errors import CannotRun, first_line
from collbench.run.rank.clock_links import control_address


def find_free_address() -> str:
    """``address:port``, free just now. Raises CannotRun."""
    try:
        address = control_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
    except OSError as e:
        raise CannotRun(
            f"no port to meet at: {first_line(e)}", "set GLOO_SOCKET_IFNAME to an interface"
        ) from e
    return f"[{address}]:{port}" if family == socket.AF_INET6 else f"{address}:{port}"
