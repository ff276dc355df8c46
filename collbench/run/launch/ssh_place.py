"""The process that --launcher ssh starts on a host (ssh.py): it keeps the places of the host's
ranks, and ends with them when its standard input closes, or brings nothing for a time."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import print_message
from collbench.core.version import __version__
from collbench.machine import cpus, descriptors, environment
from collbench.machine.routes import find_named_interface
from collbench.run.launch import folders, join, rendezvous
from collbench.run.launch.keeper import Keeper
from collbench.run.launch.launched import Errand, carry_out
from collbench.run.launch.ssh import MARK, HostFacts, digest_loader_variables
from collbench.survive import streams


def serve(patience: float) -> None:
    """Keep places until the launching process has gone, of which something is heard within
    ``patience`` seconds. Ends this process."""
    streams.secure_streams()
    descriptors.raise_limit()  # three for each rank of each world
    sink = os.fdopen(os.dup(1), "wb")
    join.divert_stdout()
    sink.write(MARK + msgspec.json.encode(gather_host_facts()) + b"\n")
    sink.flush()
    with folders.make_private() as folder:
        places = _Serving(sink, folder, patience)
        with suppress(KeyboardInterrupt):
            places.serve_until_closed(sys.stdin.buffer)
        places.end_all()
    os._exit(Exit.OK)  # ranks, and threads that read them, end with this process


def gather_host_facts() -> HostFacts:
    """What the launching process is to know of this host."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return HostFacts(
        python=sys.version.split()[0],
        version=__version__,
        host=environment.host_name(),
        boot=environment.boot_id() or "",
        address=find_address(os.environ.get("SSH_CONNECTION", "")),
        gpus=environment.gpu_count(),
        cores=cpus.core_count(),
        torch=torch,
        loader=digest_loader_variables(os.environ),
    )


def find_address(connection: str) -> str:
    """Where ranks on other hosts reach this one: at the interface that GLOO_SOCKET_IFNAME names,
    else where ssh did (SSH_CONNECTION: client, port, server, port), else at the default route's."""
    fields = connection.split()
    reached = fields[2] if len(fields) == 4 else ""
    is_local = reached.startswith("127.") or reached == "::1" or "%" in reached
    if reached and not is_local and not find_named_interface():
        return reached
    return rendezvous.chosen_address() or reached or "127.0.0.1"


class _Serving:
    """The places of this host, and the line to the launching process."""

    def __init__(self, sink: BinaryIO, folder: Path, patience: float) -> None:
        self._sink, self._folder, self._patience = sink, folder, patience
        self._keepers: dict[int, Keeper] = {}
        self._worlds: set[tuple[int, str]] = set()
        self._lock = threading.Lock()
        self._unheard = 0  # signs of life since the launching process's last word
        threading.Thread(target=self._beat, daemon=True, name="collbench-beat").start()

    def serve_until_closed(self, source: BinaryIO) -> None:
        """Do what each line says, in turn, until there are no more."""
        for line in source:
            self._unheard = 0
            seat, _, message = line.rstrip(b"\n").partition(b" ")
            if message:
                self._carry_out(int(seat), msgspec.json.decode(message, type=Errand))

    def _carry_out(self, seat: int, errand: Errand) -> None:
        if seat not in self._keepers:
            (folder := self._folder / str(seat)).mkdir()
            self._keepers[seat] = Keeper(folder)
        if errand.op == "run":
            self._worlds.add((seat, errand.world))
        if errand.op == "end":
            self._worlds.discard((seat, errand.world))
        carry_out(errand, self._keepers[seat], lambda text: self._send(f"{seat} {text}"))

    def end_all(self) -> None:
        """Kill all ranks."""
        for seat, world in self._worlds:
            self._keepers[seat].end(world)

    def _send(self, text: str) -> None:
        with suppress(OSError, ValueError), self._lock:  # the launching process has gone
            self._sink.write(text.encode() + b"\n")
            self._sink.flush()

    def _beat(self) -> None:
        while self._unheard <= 4:  # a suspension, however long, is no more than one of them
            time.sleep(self._patience / 4)
            self._unheard += 1
            self._send("")
        print_message(
            f"{environment.host_name()}: nothing is heard of the launching process for"
            f" {self._patience:.0f} s"
        )
        os._exit(Exit.TIMEOUT)
