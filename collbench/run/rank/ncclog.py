"""What NCCL ran, from its own log: algorithm, protocol and channels of a call, over what its ranks
are connected, and on how many nodes NCCL finds them.

Since 2.24, rank 0 of a communicator says of each call what was chosen (subsystem TUNING), and a
process can have the environment read again that says what to log (ncclResetDebugInit; since 2.27 it
is read at the next line). Lines take time, so no call that is timed may write any: what was chosen
is overheard on a call of its own. Connections are told once, when the first call that needs them
makes them, and nodes when a communicator is made (since 2.20); they are listened for all along, as
calls write nothing to these subsystems. The environment changes only while no collective runs. A
log that the user asked for is left as it is, and read if it is a file; so is a user's
NCCL_DEBUG=WARN on the terminal, but for the calls that are overheard.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from collbench.core.text import plain_line
from collbench.records.types import Choice

NAMES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")

ALL_ALONG = "INIT,P2P,SHM,NET"

# by their numbers in NCCL's log before 2.24; later ones write the names, in capitals
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")

PROTOCOLS = ("LL", "LL128", "Simple")

_TUNED = re.compile(
    r"-?\d+ Bytes -> Algo (?P<algorithm>\w+) proto (?P<protocol>\w+) "
    r"(?:time [\d.]+|channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})"
)

_SYMMETRIC = re.compile(r" \[Symmetric\]: -?\d+ Bytes -> Kernel [A-Za-z]+_(\w+) nchannels (\d+) ")

_COPIED = re.compile(r" \[(?:Copy Engine|Hierarchical CE)\]: -?\d+ Bytes -> ")

_VIA = re.compile(
    r"(?:Channel|CollNet) \d+(?:/\d+)? : \d.* via (P2P|SHM|NET|COLLNET)/([^/\n]*)(.*)"
)

_NODES = re.compile(r"comm \S+ rank \d+ nRanks (\d+) nNodes (\d+) localRanks ")


def parse_choice(text: str) -> Choice | None:
    """The last choice in a piece of NCCL's log, without the transport; None where it has none. A
    line that is cut is not read."""
    choice = None
    for line in text.splitlines():
        if match := _TUNED.search(line):
            groups = match.groupdict()
            channels = int(groups["high"]) - int(groups["low"]) + 1 if groups["high"] else 0
            choice = Choice(
                algorithm=_match_name(groups["algorithm"], ALGORITHMS),
                protocol=_match_name(groups["protocol"], PROTOCOLS),
                channels=channels,
            )
        elif match := _SYMMETRIC.search(line):
            choice = Choice(algorithm="Symmetric", protocol=match[1], channels=int(match[2]))
        elif _COPIED.search(line):
            choice = Choice(algorithm="CopyEngine")
    return choice


def parse_connections(text: str) -> set[str]:
    """Over what connections were made, in a piece of NCCL's log: P2P, SHM, NET/IB, NET/IB/GDRDMA,
    COLLNET/SHARP ..."""
    connections = set()
    for kind, name, rest in _VIA.findall(text):
        direct = "/GDRDMA" if "/GDRDMA" in rest else ""
        connections.add(f"{kind}/{name}{direct}" if kind in ("NET", "COLLNET") else kind)
    return connections


def parse_nodes(text: str) -> set[tuple[int, int]]:
    """The numbers of ranks and nodes of communicators in a piece of NCCL's log."""
    return {(int(n), int(nodes)) for n, nodes in _NODES.findall(text)}


def _match_name(text: str, names: tuple[str, ...]) -> str:
    """NCCL's own spelling in its settings; what is not among ``names``, as it stands."""
    if text.isdigit():
        return names[int(text)] if int(text) < len(names) else text
    return {name.lower(): name for name in names}.get(text.replace("_", "").lower(), text)


class Listener:
    """Hears what NCCL says it ran in this process. ``why_not`` says why it hears no choices, if so.

    ``turn(True)`` has NCCL log its choices, ``turn(False)`` not any more; both return what was
    logged since the last.
    """

    def __init__(
        self, turn: Callable[[bool], str], close: Callable[[], object], why_not: str = ""
    ) -> None:
        self._turn, self.close, self.why_not = turn, close, why_not
        self._connections: set[str] = set()
        self._nodes: set[tuple[int, int]] = set()  # with the number of ranks first

    def overheard(self, call: Callable[[], object], n: int = 0) -> Choice | None:
        """Make the call of ``n`` ranks, and what it ran; rank 0 of the communicator hears all,
        others only of their connections and nodes. ``call`` must return when the device is done."""
        self._read_all_along(self._turn(True))
        try:
            call()
        finally:
            lines = self._turn(False)
        self._read_all_along(lines)
        choice = parse_choice(lines) or Choice()
        choice = Choice(
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            channels=choice.channels,
            transport=self._transport(choice.algorithm),
            nodes=self._count_nodes(n),
        )
        return choice if choice.is_heard else None

    def _read_all_along(self, lines: str) -> None:
        self._connections |= parse_connections(lines)
        self._nodes |= parse_nodes(lines)

    def _count_nodes(self, n: int) -> int:
        """The nodes of the communicators of so many ranks; 0 where these are on different numbers
        of them, as groups within a host and across hosts are."""
        numbers = [nodes for ranks, nodes in self._nodes if ranks == n]
        return numbers[0] if len(numbers) == 1 else 0

    def _transport(self, algorithm: str) -> str:
        """The transports of all connections so far, joined by +. With NVLS the GPUs of a node meet
        in the switch instead."""
        if algorithm.startswith("NVLS"):
            return "+".join(["NVLS", *sorted(kind for kind in self._connections if "NET" in kind)])
        return "+".join(sorted(self._connections))


def start_listening() -> Listener:
    """Has NCCL write its log where it is read; to be called before NCCL does anything."""
    theirs = _read_settings()
    level, path = (theirs["NCCL_DEBUG"] or "").upper(), theirs["NCCL_DEBUG_FILE"]
    if level in ("INFO", "ABORT", "TRACE") and path:
        systems = (theirs["NCCL_DEBUG_SUBSYS"] or "").upper()
        tuning = ("TUNING" in systems or "ALL" in systems) != systems.startswith("^")
        return Listener(
            _File(_expand_path(path)).turn,
            _do_nothing,
            "" if tuning else "NCCL_DEBUG_SUBSYS lacks TUNING",
        )
    if level in ("INFO", "ABORT", "TRACE") or (level == "WARN" and path):
        return Listener(
            _choose_level, _do_nothing, "NCCL_DEBUG is set, but not INFO in NCCL_DEBUG_FILE"
        )
    reset = _find_reset()
    if reset is None:
        why = "no ncclResetDebugInit; NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=nccl.log tell them"
        return Listener(_choose_level, _do_nothing, why)
    log = _Log(reset, theirs)
    return Listener(log.turn, log.close)


class _File:
    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def turn(self, attentive: bool) -> str:
        """The whole lines that were added."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._read)
            lines, end, _ = file.read().rpartition(b"\n")
            self._read += len(lines + end)
            return lines.decode(errors="replace")
        return ""


class _Log:
    """A log of our own, in memory, instead of what the user asked for, which is ``theirs``."""

    def __init__(self, reset: Callable[[], object], theirs: Mapping[str, str | None]) -> None:
        self._reset, self._theirs = reset, theirs
        level = (theirs["NCCL_DEBUG"] or "").upper()
        self._warns, self._always = level == "WARN", level not in ("WARN", "VERSION")
        self._fd = -1
        self.turn(False)

    def turn(self, attentive: bool) -> str:
        text = self._read()
        if not attentive and not self._always:
            self.close()
            return text
        fd = os.memfd_create("nccl-log")  # a new one each time: NCCL may open it late, or never
        subsystems = ALL_ALONG + (",TUNING" if attentive else "")
        self._set(dict(zip(NAMES, ("INFO", subsystems, f"/proc/self/fd/{fd}"), strict=True)), fd)
        return text

    def close(self) -> None:
        """Leave the environment as it was."""
        self._set(self._theirs, -1)

    def _read(self) -> str:
        if self._fd < 0:
            return ""
        text = os.pread(self._fd, os.fstat(self._fd).st_size, 0).decode(errors="replace")
        for line in text.splitlines() if self._warns else ():
            if "NCCL WARN" in line:
                print(plain_line(line), file=sys.stderr)
        return text

    def _set(self, values: Mapping[str, str | None], fd: int) -> None:
        """Sets these values in the C library's environment, which is what NCCL reads; os.environ
        stays as the user has it. ``fd`` is where NCCL then writes."""
        for name, value in values.items():
            if value is None:
                os.unsetenv(name)
            else:
                os.putenv(name, value)
        self._reset()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd


def _choose_level(attentive: bool) -> str:
    return ""


def _do_nothing() -> None:
    return


def _read_settings() -> dict[str, str | None]:
    """What the user has NCCL log, by the environment, else by its configuration files (initEnv in
    NCCL)."""
    user_file = Path(os.path.expanduser(os.environ.get("NCCL_CONF_FILE") or "~/.nccl.conf"))  # noqa: PTH111
    settings: dict[str, str] = {}
    for path in (Path("/etc/nccl.conf"), user_file):
        with suppress(OSError):
            settings |= dict(
                re.findall(
                    r"^(NCCL_DEBUG\w*)=([^\r\n]*)", path.read_text(errors="replace"), re.MULTILINE
                )
            )
    return {name: os.environ.get(name, settings.get(name)) for name in NAMES}


def _expand_path(path: str) -> Path:
    """NCCL_DEBUG_FILE with its %h (host name, without the domain) and %p (process)."""
    replacements = {"%h": socket.gethostname().partition(".")[0], "%p": str(os.getpid()), "%%": "%"}
    return Path(re.sub(r"%.", lambda match: replacements.get(match[0], match[0]), path))


def _find_reset() -> Callable[[], object] | None:
    """ncclResetDebugInit of the NCCL that this process has loaded; None before 2.24."""
    function = find_loaded("ncclResetDebugInit")
    if function is not None:
        function.argtypes, function.restype = [], None
    reset: Callable[[], object] | None = function
    return reset


def find_loaded(name: str) -> Any:
    """A function of the NCCL that this process has loaded, which may be part of torch; None where
    it has none such."""
    paths = re.findall(
        r"/\S.*/lib(?:[nr]ccl|torch_cuda|torch_hip)\.so\S*", Path("/proc/self/maps").read_text()
    )
    functions = (getattr(ctypes.CDLL(path), name, None) for path in sorted(set(paths)))
    return next(filter(None, functions), None)
