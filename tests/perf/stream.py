"""One plain TCP stream: ``stream.py recv PORT BYTES`` prints the bytes a second that came after the
first piece, ``stream.py send HOST PORT BYTES`` sends to it."""

from __future__ import annotations

import socket
import sys
import time

PIECE = 1 << 20


def recv(port: str, nbytes: str) -> None:
    with socket.create_server(("", int(port))) as door:
        print("open", flush=True)
        stream, _ = door.accept()
    buffer, left = bytearray(PIECE), int(nbytes)
    left -= stream.recv_into(buffer, min(PIECE, left))
    began, rest = time.perf_counter(), left
    while left:
        left -= stream.recv_into(buffer, min(PIECE, left))
    print(rest / (time.perf_counter() - began))


def send(host: str, port: str, nbytes: str) -> None:
    with socket.create_connection((host, int(port))) as stream:
        for _ in range(int(nbytes) // PIECE):
            stream.sendall(bytes(PIECE))


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    (recv if what == "recv" else send)(*given)
