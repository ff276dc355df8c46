"""One plain TCP stream: ``stream.py recv PORT BYTES`` prints the seconds from the first byte to the
last, ``stream.py send HOST PORT BYTES`` sends to it."""

from __future__ import annotations

import socket
import sys
import time

PIECE = 1 << 20


def recv(port: str, nbytes: str) -> None:
    with socket.create_server(("", int(port))) as door:
        print("open", flush=True)
        stream, _ = door.accept()
    buffer, left, began = bytearray(PIECE), int(nbytes), 0.0
    while left:
        left -= stream.recv_into(buffer, min(PIECE, left))
        began = began or time.perf_counter()
    print(time.perf_counter() - began)


def send(host: str, port: str, nbytes: str) -> None:
    with socket.create_connection((host, int(port))) as stream:
        for _ in range(int(nbytes) // PIECE):
            stream.sendall(bytes(PIECE))


if __name__ == "__main__":
    {"recv": recv, "send": send}[sys.argv[1]](*sys.argv[2:])
