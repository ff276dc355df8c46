"""Ranks on hosts that ssh reaches: a process on each (ssh_place.py) keeps the places of its ranks,
and fresh processes start for each world (places.py).

The launching process is no rank. The system's ssh client runs once for each host, with the user's
own configuration, and its standard input and output are the line to the process there. Settings and
keys go by that line: no command line shows them. The process there ends with its ranks when the
line closes, however that happens, or when nothing comes by it for a time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from collbench.core.errors import CannotRun, UsageError
from collbench.core.text import format_count, plain_line, print_message
from collbench.core.version import __version__
from collbench.machine import descriptors
from collbench.run.launch import join
from collbench.run.launch.board import LEAVE_SECONDS
from collbench.run.launch.host_list import ListedHost
from collbench.run.launch.launched import PRESENT_SECONDS, Far
from collbench.run.launch.meeting import NAMES_HINT, SILENT_SHARE, say_silent
from collbench.run.launch.places import Node, Places, Seat, select_settings
from collbench.suite.sweep import Axes, Suite
from collbench.survive.crash import HINTS, LIMITS

MARK = b"collbench-place "  # of the first line; what login scripts print comes before it

CONNECT_SECONDS = 20  # for a host to take a connection; its Python may load for longer

_PATIENCE = 5.0  # for all hosts to answer, before it is said which are waited for

_LOOK_SECONDS = 0.2

_LAST_LINES = 3  # of standard error, that say why ssh ended

# The dynamic loader finds libraries by these. sshd, not the command, sets them on a host: what one
# machine preloads may not be there on another.
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD")

STARTUP_FILES = "~/.bashrc above any return, ~/.zshenv"  # as non-interactive shells read them

# what the dynamic loaders of glibc and musl say where a program or module lacks a library
_LACKS_LIBRARY = re.compile(
    r"error (while )?loading shared librar|cannot open shared object file|symbol lookup error"
    r"|version `.+' not found",
    re.IGNORECASE,
)

# What the process there runs first, in whatever version of Python that is: it says what it is, and
# goes on in ssh_place.py if that is the same version of collbench.
BOOT = """
import json, os, sys
def say(**facts):
    sys.stdout.write("collbench-place " + json.dumps(facts) + chr(10))
    sys.stdout.flush()
told = json.loads(sys.stdin.buffer.readline().decode())
sys.path[:] = told["path"] + [p for p in sys.path if p]
os.environ.update(told["env"])
try:
    os.chdir(told["folder"])
except OSError:
    pass
python = sys.version.split()[0]
try:
    from collbench.core.version import __version__
    if __version__ == told["version"]:
        from collbench.run.launch import ssh_place
except Exception as e:
    say(python=python, error=type(e).__name__ + ": " + str(e))
else:
    if __version__ != told["version"]:
        say(python=python, version=__version__)
    else:
        ssh_place.serve(told["patience"])
"""


class HostFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line of the process on a host. ``error`` is why collbench cannot be imported there;
    ``boot`` tells kernels apart; ``address`` is where ranks on other hosts reach this one;
    ``loader`` are digests of LOADER_VARIABLES."""

    python: str = ""
    version: str = ""
    error: str = ""
    host: str = ""
    boot: str = ""
    address: str = ""
    gpus: int = 0
    cores: int = 0
    torch: str = ""
    loader: dict[str, str] = {}


class HostLink:
    """The process on a host, by the ssh client that leads there.

    ``facts`` are there once it has answered; ``trouble`` says why it never did, or no more does, in
    ssh's own last words.
    """

    def __init__(
        self, host: ListedHost, words: Sequence[str], patience: float, by_hand: str = "ssh"
    ) -> None:
        """``by_hand`` is the command as a person writes it, for hints."""
        self.host, self.facts, self.trouble = host, HostFacts(), ""
        self.exit_code = 0  # of an ssh client that ended by itself
        self.by_hand = by_hand
        self.settled = threading.Event()  # it has answered, or never will
        self.unheard = 0  # signs of life of this side since the last word of that one
        self.places: list[Far] = []
        self._closing, self._errors = False, deque[str](maxlen=_LAST_LINES)
        self._printed = deque[str](maxlen=_LAST_LINES)  # in place of an answer
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self.python = host.python or sys.executable
        try:
            self._process = subprocess.Popen(
                make_command(words, host, self.python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        except OSError as e:
            install = "install an ssh client (openssh-client), or name another command with --ssh"
            raise CannotRun(
                f"--launcher ssh: cannot run {plain_line(words[0])}: {e.strerror}",
                HINTS[e.errno] if e.errno in LIMITS else install,
            ) from e
        # json has a way to write a path or a value that is not UTF-8
        orders = json.dumps(self._make_orders(patience))
        self._send_bytes(f"{BOOT}{orders}\n".encode())
        self._reading_errors = self._start_thread(self._read_errors)
        self._start_thread(self._write)
        self._start_thread(self._read)

    def _make_orders(self, patience: float) -> dict[str, Any]:
        path = [] if self.host.python else os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return {
            "version": __version__,
            "folder": str(Path.cwd()),
            "path": [str(Path(folder).absolute()) for folder in path if folder],
            "env": select_settings(os.environ, with_path=not self.host.python),
            "patience": patience,
        }

    def _start_thread(self, work: Any) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True, name=f"collbench-ssh-{self.host.name}")
        thread.start()
        return thread

    def add_place(self) -> Far:
        """Another place on this host."""
        seat = len(self.places)
        far = Far(lambda message: self._send_bytes(b"%d %s\n" % (seat, message)), self.name)
        self.places.append(far)
        return far

    @property
    def name(self) -> str:
        """The host as it is listed, and as it calls itself where that is another name."""
        name = self.host.name
        return name if self.facts.host in ("", name) else f"{name} ({self.facts.host})"

    def beat(self) -> None:
        """Say that the launching process is there."""
        self._send_bytes(b"\n")

    def _send_bytes(self, data: bytes | None) -> None:
        self._outgoing.put(data)

    def _write(self) -> None:
        stdin = self._process.stdin
        assert stdin
        with suppress(OSError):  # it has ended, as who reads finds
            while (data := self._outgoing.get()) is not None:
                stdin.write(data)
                stdin.flush()
        with suppress(OSError):
            stdin.close()

    def _read_errors(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            if text := _read_words(line):
                self._errors.append(text)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.unheard = 0
            if self.settled.is_set():
                seat, _, message = line.rstrip(b"\n").partition(b" ")
                # whatever a shell there prints at its end is none of these lines
                if message and seat.isdigit() and int(seat) < len(self.places):
                    self.places[int(seat)].handle_message(message)
            elif MARK in line:  # after what a login script printed without an end of line
                self._take_facts(line.partition(MARK)[2])
            elif text := _read_words(line):
                self._printed.append(text)
        code = self._process.wait()
        self._reading_errors.join(1.0)
        if not self._closing and not self.trouble:
            self.trouble = describe_end(code, self._last_words)
            self.exit_code = code
        self.settled.set()
        for place in self.places if not self._closing else []:
            place.lose(self.trouble)

    def _take_facts(self, line: bytes) -> None:
        try:
            self.facts = msgspec.json.decode(line, type=HostFacts)
        except msgspec.MsgspecError as e:
            self.trouble = f"its answer is not understood: {e}"
        self.settled.set()

    def give_up(self, why: str) -> None:
        """Note that there is no answer in time; ssh's last words, if any, say more."""
        self.trouble = "; ".join([*self._last_words, why])

    @property
    def _last_words(self) -> list[str]:
        """The last lines of standard error; where there are none, what came in place of an
        answer."""
        return list(self._errors or (() if self.facts.python else self._printed))

    def close(self) -> None:
        """Have the process there end, which ends its ranks; a client that has not reached it is
        killed."""
        self._closing = True
        if not self.settled.is_set():
            self._process.kill()
        self._send_bytes(None)

    def wait(self, seconds: float) -> None:
        """Wait for the ssh client to end, and kill it where it does not."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _read_words(line: bytes) -> str:
    """A line in plain words, without the full stop at its end."""
    return plain_line(line.decode(errors="replace").strip()).rstrip(".")[:300]


def make_command(words: Sequence[str], host: ListedHost, python: str) -> list[str]:
    """The command line that runs BOOT on a host: ssh's options, the host, what its shell runs. A
    program that is not called ssh gets no option."""
    read_boot = f"import sys; exec(sys.stdin.buffer.read({len(BOOT.encode())}).decode())"
    remote = shlex.join([python, "-c", read_boot])
    if Path(words[0]).name != "ssh":
        return [*words, host.target, remote]
    return [*words, "--", host.target, remote]


def split_ssh_words(text: str, silence: float) -> list[str]:
    """The words of --ssh, with what collbench adds: of an option that is there twice, ssh takes the
    first. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise UsageError(
            f"--ssh {plain_line(text)}: {e}", "quote it as a shell's word: --ssh 'ssh -p 2222'"
        ) from e
    if not words:
        raise UsageError("--ssh: no command is named", "leave --ssh out, or --ssh 'ssh -p 2222'")
    if Path(words[0]).name != "ssh":
        return words
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_SECONDS),
        "ServerAliveInterval": str(max(1, int(silence / 4))),
        "ServerAliveCountMax": "3",
        "ClearAllForwardings": "yes",
    }
    added = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return [*words, "-T", "-x", "-a", *added]


def digest_loader_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Digests of those LOADER_VARIABLES that are set, by name."""
    return {
        name: hashlib.sha256(os.fsencode(value)).hexdigest()[:16]
        for name in LOADER_VARIABLES
        if (value := environ.get(name))
    }


def note_unlike_libraries(links: Sequence[HostLink], given: Collection[str] = ()) -> None:
    """Say on standard error, once, which of this process's LOADER_VARIABLES hosts lack or have
    otherwise, but for those that ranks are ``given``."""
    own = digest_loader_variables(os.environ)
    hosts_by_name = {
        name: [link.host.name for link in links if link.facts.loader.get(name) != digest]
        for name, digest in own.items()
        if name not in given
    }
    if names := [name for name, hosts in hosts_by_name.items() if hosts]:
        hosts = list(dict.fromkeys(host for name in names for host in hosts_by_name[name]))
        verb, pronoun = ("has", "it") if len(names) == 1 else ("have", "them")
        settings = " ".join(f'--env "{name}=${name}"' for name in names)
        _print_once(
            f"{' and '.join(names)} {verb} another value on {_join_some(hosts)}, or none:"
            f" --launcher ssh does not pass {pronoun} on, and a library that is found by"
            f" {pronoun} here, such as a net plugin of NCCL, may not be loaded there",
            f"export {pronoun} there in a file that non-interactive shells read"
            f" ({STARTUP_FILES}), or pass {pronoun} to the ranks: {settings}; in a suite, env in"
            " [axes]; in ab, --base and --head (which this check does not read)",
        )


@functools.cache
def _print_once(message: str, hint: str) -> None:
    print_message(message, hint)


def describe_end(code: int, errors: Sequence[str]) -> str:
    """A clause for how an ssh client ended by itself, in its own last words if it has said any."""
    if errors:
        return "; ".join(errors)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"ssh {how} and said nothing"


class SshHosts(msgspec.Struct, frozen=True):
    """Hosts that ssh reaches, and the command that does: a PlaceSource."""

    hosts: tuple[ListedHost, ...]
    command: str = "ssh"
    name: str = "ssh"

    @property
    def slots(self) -> int:
        """The ranks that all hosts may have together."""
        return sum(host.slots for host in self.hosts)

    @property
    def local_n(self) -> int:
        """The ranks of each host, 0 where hosts differ in that."""
        counts = {host.slots for host in self.hosts}
        return counts.pop() if len(counts) == 1 else 0

    def count_hosts(self, n: int) -> int:
        """The hosts that n ranks are on."""
        return len(self._count_ranks(n))

    def _count_ranks(self, n: int) -> list[int]:
        """How many of n ranks each host has that has any; the last may have slots to spare."""
        counts: list[int] = []
        for host in self.hosts:
            if left := n - sum(counts):
                counts.append(min(host.slots, left))
        return counts

    def resolve(self, axes: Axes) -> Axes:
        """The axes as ``Axes.resolve`` gives them: a rank for each slot, and NCCL where the first
        host has GPUs, which is asked only where no backend is named. Hosts are asked for their
        cores where these decide the mode. Raises UsageError for more ranks than slots."""
        ranks = axes.ranks or (self.slots,)
        self._refuse_more(max(ranks))
        backends = axes.backends
        if not backends:
            links = self.connect(self.hosts[:1], join.SECONDS, PRESENT_SECONDS)
            close_links(links)
            backends = ("nccl",) if links[0].facts.gpus else ("gloo",)
        axes = msgspec.structs.replace(axes, backends=backends, ranks=ranks)
        counts = self._count_ranks(max(ranks))
        per_host, cores = max(counts), 0
        if axes.depends_on_cores:
            per_host, cores = self._find_fullest_host(counts) or (per_host, cores)
        return msgspec.structs.replace(
            axes,
            per_host=axes.per_host or per_host,
            uneven_hosts=len({*counts}) > 1,
            cores=cores,
        )

    def _find_fullest_host(self, counts: Sequence[int]) -> tuple[int, int] | None:
        """The ranks and the cores of the host that has the fewest cores for each rank, of those
        with so many ranks; None where one of these does not answer."""
        cores = gather_cores(self, self.hosts[: len(counts)])
        if not all(cores):
            return None
        return max(zip(counts, cores, strict=True), key=lambda pair: pair[0] / pair[1])

    def _refuse_more(self, n: int) -> None:
        if n > self.slots:
            raise UsageError(
                f"-g {n}: --hosts has places for {format_count(self.slots, 'rank')}",
                "say how many a host may have: --hosts a:8,b:8, or a slots=8 in the file",
            )

    def hold_places(self, suite: Suite, seconds: float) -> Places:
        """The places for a suite's largest world, within so many seconds, but no fewer than
        ranks have to come together (join.SECONDS)."""
        if suite.policy.virtual:
            raise UsageError(
                "--virtual-ranks: --launcher ssh starts real ranks", "leave --virtual-ranks out"
            )
        n, timeout = suite.largest_world, suite.policy.timeout
        self._refuse_more(n)
        hosts = self.hosts[: self.count_hosts(n)]
        patience = max(timeout or PRESENT_SECONDS, 5.0) * SILENT_SHARE
        links = self.connect(hosts, max(seconds, join.SECONDS), patience)
        given = {name for env in suite.values("envs") for name, _ in env}
        note_unlike_libraries(links, given)
        return SshPlaces(links, n, patience)

    def connect(
        self, hosts: Sequence[ListedHost], seconds: float, patience: float
    ) -> list[HostLink]:
        """A link to each of these hosts. Raises CannotRun, which names each host that has none
        within ``seconds``, and why."""
        links = self.try_connect(hosts, seconds, patience)
        try:
            refuse_links(links)
        except BaseException:
            close_links(links)
            raise
        return links

    def try_connect(
        self, hosts: Sequence[ListedHost], seconds: float, patience: float
    ) -> list[HostLink]:
        """A link to each host, each of which has answered or has ``trouble``."""
        words = split_ssh_words(self.command, patience)
        descriptors.raise_limit()  # three for each host
        links: list[HostLink] = []
        try:
            for host in hosts:
                links.append(HostLink(host, words, patience, self.command))
            _await_links(links, seconds)
        except BaseException:
            close_links(links)
            raise
        return links


@functools.cache
def gather_cores(source: SshHosts, hosts: tuple[ListedHost, ...]) -> tuple[int, ...]:
    """The physical cores of each of these hosts, 0 for one that does not answer: what holds places
    says why. They are asked once a process."""
    try:
        links = source.try_connect(hosts, join.SECONDS, PRESENT_SECONDS)
    except CannotRun:
        return (0,) * len(hosts)
    close_links(links)
    return tuple(0 if find_trouble(link)[0] else link.facts.cores for link in links)


def _await_links(links: Sequence[HostLink], seconds: float) -> None:
    """Wait until all have answered or ended, ``seconds`` at most."""
    begun, is_said = time.monotonic(), False
    while waiting := [link for link in links if not link.settled.is_set()]:
        passed = time.monotonic() - begun
        if passed > _PATIENCE and not is_said:
            is_said = True
            print_message(f"waiting for {_join_some([link.host.name for link in waiting])}")
        if passed > seconds:
            for link in waiting:
                link.give_up(f"no answer within {seconds:g} s")
            return
        waiting[0].settled.wait(_LOOK_SECONDS)
        for link in links:
            link.beat()


def find_trouble(link: HostLink) -> tuple[str, str]:
    """Why a host cannot keep places and what to do about it; twice "" where it can."""
    facts = link.facts
    python = f"{link.python} (Python {facts.python})"
    install = f"install collbench {__version__}"
    if facts.error:
        lacks_library = _LACKS_LIBRARY.search(facts.error)
        return (
            f"{python} cannot load collbench: {plain_line(facts.error)}",
            _find_libraries(link) if lacks_library else f"{install} there, or {_name_python(link)}",
        )
    if facts.version and facts.version != __version__:
        return (
            f"{python} has collbench {plain_line(facts.version)}, and this is {__version__}",
            f"{install} there, from the same files as here",
        )
    if not link.trouble:
        return "", ""
    if _is_client_broken(link):
        hint = "ssh itself does not start here: does LD_LIBRARY_PATH mislead it? ssh -V"
        return link.trouble, hint
    lacks_library = _LACKS_LIBRARY.search(link.trouble) if _is_reached(link) else None
    if lacks_library or link.exit_code in (126, 127):
        install = f"install collbench there at the same path, or {_name_python(link)}"
        return (
            f"{link.python} cannot be run there ({link.trouble})",
            _find_libraries(link) if lacks_library else install,
        )
    return link.trouble, _suggest_remedy(link)


def _name_python(link: HostLink) -> str:
    return f"name another interpreter in the file of --hosts: {link.host.name} python=PATH"


def _find_libraries(link: HostLink) -> str:
    return (
        "if it needs LD_LIBRARY_PATH, export that there in a file that non-interactive shells read"
        f" ({STARTUP_FILES}), or {_name_python(link)}"
    )


def _is_reached(link: HostLink) -> bool:
    """Whether it is the command on the host that failed: ssh ends with its code, and with 255 for
    errors of its own. Of another program than ssh nothing is known."""
    return _is_ssh(link) and link.exit_code > 0 and link.exit_code != 255


def _is_ssh(link: HostLink) -> bool:
    return Path(shlex.split(link.by_hand)[0]).name == "ssh"


def _is_client_broken(link: HostLink) -> bool:
    """Whether the loader of this machine could not start the ssh client, as its words say."""
    client = shlex.split(link.by_hand)[0]
    return _is_ssh(link) and link.exit_code == 127 and link.trouble.startswith(f"{client}: ")


def _suggest_remedy(link: HostLink) -> str:
    target, text = link.host.target, link.trouble.lower()
    by_hand = f"{link.by_hand} {target}"
    batch = f"{link.by_hand} -o BatchMode=yes {target}"
    if _is_reached(link):
        return f"ssh reaches it: what does this say? {batch} {shlex.quote(link.python)} -V"
    if "has changed" in text:
        return (
            f"if it was installed anew, remove its old key (ssh-keygen -R {link.host.name}) and log"
            f" in once by hand: {by_hand}"
        )
    if "host key verification failed" in text:
        return f"log in once by hand to accept its key, or add it to known_hosts: {by_hand}"
    if "permission denied" in text:
        return f"nobody is asked for a password: give this user's key access: ssh-copy-id {target}"
    return f"does this reach it? {batch} true"


def refuse_links(links: Sequence[HostLink]) -> None:
    """Raises CannotRun with each host that cannot keep places, and why; also where two hosts have
    one name, by which ranks are told apart."""
    troubles = [(link, *trouble) for link in links if (trouble := find_trouble(link))[0]]
    if troubles:
        reasons = [f"{link.host.name}: {reason}" for link, reason, _ in troubles]
        more = f" (and {len(reasons) - 8} others)" if len(reasons) > 8 else ""
        count = f"{len(troubles)} of {format_count(len(links), 'host')}: " if troubles[1:] else ""
        raise CannotRun(
            f"--launcher ssh: {count}{'; '.join(reasons[:8])}{more}",
            troubles[0][2],
        )
    by_name: dict[str, HostLink] = {}
    for link in links:
        other = by_name.setdefault(link.facts.host, link)
        if other.facts.boot != link.facts.boot:
            raise CannotRun(
                f"--launcher ssh: {other.host.name} and {link.host.name} both call themselves"
                f" {plain_line(link.facts.host)}",
                NAMES_HINT,
            )


def close_links(links: Sequence[HostLink]) -> None:
    """End what runs on all hosts, and wait a moment for it."""
    for link in links:
        link.close()
    until = time.monotonic() + LEAVE_SECONDS
    for link in links:
        link.wait(until - time.monotonic())


class SshPlaces(Places):
    """Places on hosts that are connected, held until ``close``. A host of which nothing is heard
    for ``patience`` seconds is lost."""

    def __init__(self, links: Sequence[HostLink], n: int, patience: float) -> None:
        super().__init__("ssh")
        self._links, self._patience = links, patience
        self._closed = threading.Event()
        counts: Counter[str] = Counter()  # of seats, by node: two links may lead to one
        for link in links:
            facts = link.facts
            node = Node(facts.host, facts.address, facts.host, "")
            for _ in range(min(link.host.slots, n - len(self.seats))):
                self.seats.append(Seat(link.add_place(), node, counts[node.id]))
                counts[node.id] += 1
        threading.Thread(target=self._beat, daemon=True, name="collbench-beat").start()

    def _beat(self) -> None:
        while not self._closed.wait(self._patience / 4):
            for link in self._links:
                link.unheard += 1
                link.beat()

    def lost(self) -> str:
        """The hosts that nothing is heard of, in words; "" where there are none."""
        # a suspension of all, however long, is no more than one of them
        silent = [link.name for link in self._links if link.unheard > 4]
        return say_silent([_join_some(silent)]) if silent else ""

    def close(self) -> None:
        """End what runs on all hosts."""
        self._closed.set()
        close_links(self._links)


def _join_some(names: Sequence[str]) -> str:
    shown = ", ".join(plain_line(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} others" if len(names) > 8 else "")
