"""Ports of this machine for tests that choose one themselves."""

from __future__ import annotations

import socket


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as at:
        return int(at.getsockname()[1])
