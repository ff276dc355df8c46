"""The list of hosts of --launcher ssh: words of the command line, or a file with a line for each
host, as mpirun's hostfile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from collbench.core import files
from collbench.core.errors import UsageError
from collbench.core.text import plain_line
from collbench.run.launch.environments import HOSTS_MAX, list_slurm_hosts

SLOTS_MAX = 4096  # ranks of a host; more is a mistake

FILE_MAX = 4 << 20  # bytes

FILE_ENDINGS = (".txt", ".conf", ".cfg", ".ini", ".list", ".hosts", ".toml", ".json", ".csv")

HINT = "write --hosts a,b:8 (HOST:RANKS) or --hosts FILE with lines such as: a slots=8"

# neither part begins with "-", which ssh would take for an option
_USER = r"[A-Za-z0-9_][A-Za-z0-9._+-]*"

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"

_IPV6 = r"[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?"

_RANGES = r"[A-Za-z0-9_][A-Za-z0-9._-]*\[[0-9,-]+\][A-Za-z0-9._\[\],-]*"

_HOST = re.compile(
    rf"(?:(?P<user>{_USER})@)?(?:\[(?P<ipv6>{_IPV6})\]|(?P<name>{_NAME})|(?P<ranges>{_RANGES}))"
    r"(?::(?P<slots>\d+))?"
)


class ListedHost(NamedTuple):
    """A host of the list: what ssh is given, ``user@`` included, how many ranks it may have, and
    the interpreter there, "" for this process's path."""

    target: str
    slots: int = 1
    python: str = ""

    @property
    def name(self) -> str:
        """The host without the user."""
        return self.target.rpartition("@")[2]


def parse_hosts(text: str) -> tuple[ListedHost, ...]:
    """The hosts of --hosts: a file where ``@`` says so, where the text has a slash or ends as names
    of files do, or where it names a file; else words. Raises UsageError, also for a host that is
    there twice."""
    is_path = text.startswith("@") or "/" in text or text.endswith(FILE_ENDINGS)
    if is_path or os.path.isfile(text):  # noqa: PTH113 - Path's raises for a name that is too long
        path = files.expand_path(text.removeprefix("@"))
        hosts = [host for where, line in _read_lines(path) for host in _parse_line(line, where)]
        lacking = f"--hosts {plain_line(str(path))}: no host is named in it"
    else:
        words = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\]?|\])+", text)
        hosts = [host for word in words for host in _parse_word(word.strip(), f"--hosts {text}")]
        lacking = f"--hosts '{plain_line(text)}': no host is named"
    if not hosts:
        raise UsageError(lacking, HINT)
    seen: set[str] = set()
    for host in hosts:
        if host.name.casefold() in seen:
            raise UsageError(
                f"--hosts: {host.name} is there twice",
                f"name each host once, with all its ranks: {host.name}:8",
            )
        seen.add(host.name.casefold())
    return tuple(hosts)


def _read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(where it stands, line) of each line of a file that has more than a comment. Raises
    UsageError."""
    shown = plain_line(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX + 1)
        if len(data) > FILE_MAX:
            raise UsageError(f"--hosts {shown}: larger than {FILE_MAX >> 20} MiB", HINT)
        text = data.decode()
    except OSError as e:
        raise UsageError(f"--hosts {shown}: {e.strerror}", HINT) from e
    except UnicodeDecodeError as e:
        raise UsageError(f"--hosts {shown}: not a text file", HINT) from e
    for number, line in enumerate(text.splitlines(), 1):
        if content := line.partition("#")[0].strip():
            yield f"--hosts {shown}, line {number}", content


def _parse_line(line: str, where: str) -> list[ListedHost]:
    word, *settings = line.split()
    hosts = _parse_word(word, where)
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "slots" and ":" not in word.rpartition("]")[2]:
            hosts = [host._replace(slots=_parse_slots(value, where)) for host in hosts]
        elif key == "python" and value:
            hosts = [host._replace(python=value) for host in hosts]
        elif key not in ("max_slots", "max-slots"):
            raise UsageError(
                f"{where}: '{plain_line(setting)}' is not known",
                "a line is HOST, slots=N for its ranks, and python=PATH for its interpreter",
            )
    return hosts


def _parse_word(word: str, where: str) -> list[ListedHost]:
    match = _HOST.fullmatch(word)
    if match is None:
        raise UsageError(f"{where}: '{plain_line(word)[:200]}' is not a host", _explain(word))
    user = f"{match['user']}@" if match["user"] else ""
    slots = _parse_slots(match["slots"], where) if match["slots"] else 1
    if match["ranges"]:
        names = list(list_slurm_hosts(match["ranges"]))
    else:
        names = [match["ipv6"] or match["name"]]
    if len(names) >= HOSTS_MAX:
        raise UsageError(f"{where}: more than {HOSTS_MAX} hosts", HINT)
    return [ListedHost(f"{user}{name}", slots) for name in names]


def _explain(word: str) -> str:
    if word.startswith("-") or "@-" in word:
        return "a name that begins with '-' would be an option of ssh"
    if word.count(":") > 1:
        return "write an IPv6 address in brackets: [fe80::1]:8"
    return HINT


def _parse_slots(text: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not 1 <= int(text) <= SLOTS_MAX:
        raise UsageError(
            f"{where}: {plain_line(text)[:40] or 'nothing'} is not a number of ranks from 1 to"
            f" {SLOTS_MAX}",
            HINT,
        )
    return int(text)
