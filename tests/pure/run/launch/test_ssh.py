"""What ssh is given, which variables go to hosts, how hosts that cannot keep ranks are told, and
where ranks reach a host. No processes."""

from __future__ import annotations

import errno
import io
import os
import shlex
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import factories
import msgspec
import pytest

from collbench.core.errors import CannotRun, UsageError
from collbench.core.version import __version__
from collbench.run.launch import join, rendezvous, ssh, ssh_place
from collbench.run.launch.host_list import ListedHost, parse_hosts
from collbench.run.launch.places import select_settings
from collbench.run.launch.ray import Where
from collbench.run.launch.ssh import BOOT, MARK, HostFacts, SshHosts
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite, expand_axes

HERE = HostFacts(python="3.12.1", version=__version__, host="h1", boot="b1", address="10.0.0.1")
AXES = Axes(
    collectives=("all_reduce",), sizes=(8,), ranks=(), backends=("gloo",), modes=("isolated",)
)

NO_MODULE_LIBRARY = "libx.so.1: cannot open shared object file: No such file or directory"
NO_PYTHON_LIBRARY = f"/opt/python: error while loading shared libraries: {NO_MODULE_LIBRARY}"
NO_VERSION = "/opt/python: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found"
BROKEN_CLIENT = "ssh: symbol lookup error: ssh: undefined symbol: EVP_KDF_ctrl"
CHANGED_KEY = (
    "Host key for h1 has changed and you have requested strict checking; Host key verification"
    " failed"
)


def make_link(**fields: Any) -> Any:
    """A host's link as it is once it has answered."""
    defaults = {
        "host": ListedHost("root@h1", 2),
        "facts": HERE,
        "trouble": "",
        "exit_code": 0,
        "python": "/opt/python",
        "by_hand": "ssh -p 2222",
    }
    return SimpleNamespace(**(defaults | fields))


def test_the_remote_command_is_one_word_for_the_shell_and_shows_nothing() -> None:
    command = ssh.make_command(["ssh", "-T"], ListedHost("u@h1", 2), "/my venv/$x/python")
    assert command[:4] == ["ssh", "-T", "--", "u@h1"]
    python, option, code = shlex.split(command[4])
    assert (python, option) == ("/my venv/$x/python", "-c")
    assert str(len(BOOT.encode())) in code
    assert len(command) == 5


def test_another_program_than_ssh_gets_no_options() -> None:
    words = ssh.split_ssh_words("sh enter.sh", 18)
    assert words == ["sh", "enter.sh"]
    assert ssh.make_command(words, ListedHost("h1"), "p")[:3] == ["sh", "enter.sh", "h1"]


def test_options_of_the_user_come_first_as_ssh_takes_the_first() -> None:
    words = ssh.split_ssh_words("/usr/bin/ssh -o ConnectTimeout=3 -F 'my config'", 18)
    assert words[:5] == ["/usr/bin/ssh", "-o", "ConnectTimeout=3", "-F", "my config"]
    assert words.index("BatchMode=yes") > 5
    assert "ConnectTimeout=20" in words
    assert "ServerAliveInterval=4" in words


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EMFILE, "ulimit -n"), (errno.ENOENT, "openssh-client")]
)
def test_an_ssh_client_that_cannot_be_run_has_a_remedy(
    number: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ssh.subprocess, "Popen", fail)
    with pytest.raises(CannotRun) as raised:
        ssh.HostLink(ListedHost("h1"), ["ssh"], 18)
    assert os.strerror(number) in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize("text", ["", "  ", "ssh 'open"])
def test_a_command_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        ssh.split_ssh_words(text, 18)


def test_settings_go_to_hosts_and_secrets_and_jobs_do_not() -> None:
    environ = {
        "NCCL_ALGO": "Ring",
        "GLOO_SOCKET_IFNAME": "eth0",
        "COLLBENCH_ALGORITHMS": "x.py",
        "PYTHONPATH": "/tree",
        "COLLBENCH_TOKEN": "secret",
        "COLLBENCH_HOME": "/home/me",
        "COLLBENCH_WEBHOOK_URL": "https://hooks/secret",
        "COLLBENCH_WORLD": "w",
        "SLURM_JOB_ID": "7",
        "RANK": "0",
        "MASTER_ADDR": "h9",
        "OMPI_COMM_WORLD_RANK": "0",
        "HOME": "/home/me",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "LD_PRELOAD": "x.so",
    }
    passed = {"NCCL_ALGO", "GLOO_SOCKET_IFNAME", "COLLBENCH_ALGORITHMS"}
    assert set(select_settings(environ)) == passed | {"PYTHONPATH"}
    assert set(select_settings(environ, with_path=False)) == passed


def test_boot_says_the_mark_that_is_looked_for() -> None:
    compile(BOOT, "BOOT", "exec")
    assert f'"{MARK.decode()}"' in BOOT


def read_link(output: bytes, code: int) -> ssh.HostLink:
    """A link once its client, which has written so much to standard output, has ended."""
    link = ssh.HostLink.__new__(ssh.HostLink)
    link._process = SimpleNamespace(stdout=io.BytesIO(output), wait=lambda: code)  # type: ignore[assignment]
    link._reading_errors = SimpleNamespace(join=lambda seconds: None)  # type: ignore[assignment]
    link._closing, link._errors, link.trouble = False, deque(maxlen=3), ""
    link._printed, link.facts = deque(maxlen=3), HostFacts()
    link.settled, link.places = threading.Event(), []
    link._read()
    return link


@pytest.mark.parametrize("printed", ["", "welcome\n", "welcome", "\x1b[0m\nlast login: "])
def test_an_answer_is_found_behind_what_a_login_script_prints(printed: str) -> None:
    answer = printed.encode() + MARK + msgspec.json.encode(HERE) + b"\n0 w {}\n"
    link = read_link(answer, 1)
    assert link.facts == HERE
    assert link.trouble == "ssh ended with code 1 and said nothing"


def test_what_a_host_prints_in_place_of_an_answer_is_the_reason() -> None:
    """As nologin does, and the key of root on many a cloud's machines."""
    link = read_link(b"\nThis account is currently not available.\n", 1)
    assert link.trouble == "This account is currently not available"
    link = read_link(b"Which project?\n", 1)
    link.give_up("no answer within 20 s")
    assert link.trouble == "Which project?; no answer within 20 s"


@pytest.mark.parametrize(
    ("fields", "reason", "hint"),
    [
        ({}, "", ""),
        (
            {"facts": HostFacts(python="3.9.2", error="SyntaxError: x")},
            "/opt/python (Python 3.9.2) cannot load collbench: SyntaxError: x",
            f"install collbench {__version__} there",
        ),
        (
            {"facts": HostFacts(python="3.12.1", version="9.9")},
            f"/opt/python (Python 3.12.1) has collbench 9.9, and this is {__version__}",
            f"install collbench {__version__} there",
        ),
        (
            {"facts": HostFacts(), "trouble": "sh: /opt/python: not found", "exit_code": 127},
            "/opt/python cannot be run there (sh: /opt/python: not found)",
            "h1 python=PATH",
        ),
        (
            {"facts": HostFacts(), "trouble": NO_PYTHON_LIBRARY, "exit_code": 127},
            f"/opt/python cannot be run there ({NO_PYTHON_LIBRARY})",
            "if it needs LD_LIBRARY_PATH, export that there in a file that non-interactive shells",
        ),
        (
            {"facts": HostFacts(), "trouble": NO_VERSION, "exit_code": 1},
            f"/opt/python cannot be run there ({NO_VERSION})",
            "if it needs LD_LIBRARY_PATH, export that there",
        ),
        (
            {"facts": HostFacts(python="3.12.1", error=f"ImportError: {NO_MODULE_LIBRARY}")},
            f"/opt/python (Python 3.12.1) cannot load collbench: ImportError: {NO_MODULE_LIBRARY}",
            "if it needs LD_LIBRARY_PATH, export that there",
        ),
        (
            {"facts": HostFacts(), "trouble": BROKEN_CLIENT, "exit_code": 127},
            BROKEN_CLIENT,
            "ssh itself does not start here: does LD_LIBRARY_PATH mislead it?",
        ),
        (
            {"facts": HostFacts(), "trouble": "bash: /home/u: Permission denied", "exit_code": 1},
            "bash: /home/u: Permission denied",
            "what does this say? ssh -p 2222 -o BatchMode=yes root@h1 /opt/python -V",
        ),
        (
            {
                "facts": HostFacts(),
                "trouble": f"p11.so: {NO_MODULE_LIBRARY}; Permission denied (publickey)",
                "exit_code": 255,
            },
            f"p11.so: {NO_MODULE_LIBRARY}; Permission denied (publickey)",
            "ssh-copy-id root@h1",
        ),
        (
            {"facts": HostFacts(), "trouble": CHANGED_KEY, "exit_code": 255},
            CHANGED_KEY,
            "remove its old key (ssh-keygen -R h1) and log in once by hand: ssh -p 2222 root@h1",
        ),
        (
            {"facts": HostFacts(), "trouble": "Host key verification failed", "exit_code": 255},
            "Host key verification failed",
            "ssh -p 2222 root@h1",
        ),
        (
            {"facts": HostFacts(), "trouble": "root@h1: Permission denied (publickey)"},
            "root@h1: Permission denied (publickey)",
            "ssh-copy-id root@h1",
        ),
        (
            {"facts": HostFacts(), "trouble": "no answer within 5 s"},
            "no answer within 5 s",
            "does this reach it? ssh -p 2222 -o BatchMode=yes root@h1 true",
        ),
    ],
)
def test_why_a_host_cannot_keep_ranks(fields: dict[str, Any], reason: str, hint: str) -> None:
    found = ssh.find_trouble(make_link(**fields))
    assert found[0] == reason
    assert hint in found[1]


def test_many_hosts_that_fail_are_one_line() -> None:
    links = [
        make_link(host=ListedHost(f"h{i}"), facts=HostFacts(), trouble="Connection refused")
        for i in range(20)
    ]
    with pytest.raises(CannotRun) as caught:
        ssh.refuse_links([*links, make_link()])
    assert caught.value.message.startswith("--launcher ssh: 20 of 21 hosts: h0: Connection refused")
    assert caught.value.message.endswith("(and 12 others)")


def test_two_hosts_of_one_name_are_refused_and_two_names_of_one_host_are_not() -> None:
    other = make_link(host=ListedHost("h2"))
    ssh.refuse_links([make_link(), other])
    other.facts = msgspec.structs.replace(HERE, boot="b2")
    with pytest.raises(CannotRun, match="h1 and h2 both call themselves h1"):
        ssh.refuse_links([make_link(), other])


def test_ends_are_told_in_ssh_s_last_words() -> None:
    words = ["Timeout, server h2 not responding"]
    assert ssh.describe_end(255, words) == words[0]
    assert ssh.describe_end(255, []) == "ssh ended with code 255 and said nothing"
    assert ssh.describe_end(-9, []) == "ssh was killed by signal 9 and said nothing"


def test_ranks_are_all_slots_unless_fewer_are_asked_for() -> None:
    hosts = SshHosts(parse_hosts("a:2,b:4"))
    axes = hosts.resolve(AXES)
    assert (axes.ranks, axes.per_host, axes.cores) == ((6,), 4, 0)
    assert hosts.resolve(msgspec.structs.replace(AXES, ranks=(2, 4))).ranks == (2, 4)
    with pytest.raises(UsageError, match="-g 8: --hosts has places for 6 ranks"):
        hosts.resolve(msgspec.structs.replace(AXES, ranks=(2, 8)))
    assert [hosts.count_hosts(n) for n in (1, 2, 3, 6)] == [1, 1, 2, 2]
    assert (hosts.local_n, SshHosts(parse_hosts("a:2,b:2")).local_n) == (0, 2)


@pytest.mark.parametrize(
    ("hosts", "ranks", "name"),
    [
        ("a:4,b:4,c:4,d:4", (), "hierarchical:group=4"),
        ("a:2,b:8,c:6", (), "hierarchical"),
        ("a:8,b:8", (12,), "hierarchical"),  # 8 and 4 of them
        ("a:4,b:4,c:2", (8,), "hierarchical:group=4"),
    ],
)
def test_a_cases_name_depends_on_no_mode_and_on_no_host_among_unlike_ones(
    hosts: str, ranks: tuple[int, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "gather_cores", lambda _, listed: [*[64] * (len(listed) - 1), 1])
    axes = msgspec.structs.replace(
        AXES, collectives=("all_reduce",), algorithms=("hierarchical",), ranks=ranks
    )
    for modes in ((), ("host",)):
        resolved = SshHosts(parse_hosts(hosts)).resolve(msgspec.structs.replace(axes, modes=modes))
        assert {case.algorithm for case in expand_axes(resolved)[0]} == {name}


@pytest.mark.parametrize(
    ("changes", "expected", "asked"),
    [
        ({}, (8, 16), 1),  # b has the fewest cores for each rank
        ({"ranks": (4,)}, (4, 64), 1),  # which are on a alone
        ({"ranks": (5,)}, (4, 64), 1),  # b has one of them, and 16 cores for it
        ({"modes": ("host",)}, (8, 0), 0),
        ({"arrivals": ("random:1",)}, (8, 0), 0),
        ({"backends": ("nccl",)}, (8, 0), 0),
        ({"collectives": ()}, (8, 0), 0),
        ({"cores": 2, "per_host": 1}, (1, 16), 1),
    ],
)
def test_hosts_are_asked_for_their_cores_where_these_decide_the_mode(
    changes: dict[str, Any],
    expected: tuple[int, int],
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores, calls = {"a": 64, "b": 16, "c": 64}, []

    def answer(self: SshHosts, hosts: tuple[ListedHost, ...], *_: float) -> list[Any]:
        calls.append(hosts)
        replace = msgspec.structs.replace
        return [make_link(facts=replace(HERE, cores=cores[host.name])) for host in hosts]

    monkeypatch.setattr(SshHosts, "try_connect", answer)
    monkeypatch.setattr(ssh, "close_links", lambda links: None)
    ssh.gather_cores.cache_clear()
    hosts = SshHosts(parse_hosts("a:4,b:8,c:4"))
    for _ in range(2):
        axes = hosts.resolve(msgspec.structs.replace(AXES, **{"modes": (), **changes}))
        assert (axes.per_host, axes.cores) == expected
    assert len(calls) == asked
    ssh.gather_cores.cache_clear()


@pytest.mark.parametrize("trouble", ["refused", None])
def test_an_unreachable_host_is_reported_when_ranks_start(
    trouble: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(self: SshHosts, hosts: tuple[ListedHost, ...], *_: float) -> list[Any]:
        if trouble is None:
            raise CannotRun("cannot run ssh")
        return [make_link(trouble=trouble) for _ in hosts]

    monkeypatch.setattr(SshHosts, "try_connect", answer)
    monkeypatch.setattr(ssh, "close_links", lambda links: None)
    ssh.gather_cores.cache_clear()
    axes = SshHosts(parse_hosts("a:4,b:8")).resolve(msgspec.structs.replace(AXES, modes=()))
    assert (axes.per_host, axes.cores) == (8, 0)
    ssh.gather_cores.cache_clear()


@pytest.mark.parametrize(
    ("placement", "n", "backend", "cpus", "gpus", "shared"),
    [
        ("pack", 4, "gloo", [8, 16, 0], [], (4, 16)),
        ("pack", 40, "gloo", [8, 16, 16], [], (16, 16)),
        ("spread", 4, "gloo", [8, 16, 0], [], (2, 8)),
        ("spread", 24, "gloo", [8, 16], [], (8, 8)),
        ("pack", 4, "gloo", [], [], (0, 0)),
        ("pack", 32, "gloo", [16] * 4, [8] * 4, (16, 16)),
        ("pack", 32, "nccl", [16] * 4, [8] * 4, (8, 16)),
        ("pack", 8, "nccl", [4, 64], [8, 0], (4, 4)),  # each rank takes a CPU, too
        ("spread", 8, "nccl", [16, 16, 64, 64], [8, 8, 0, 0], (4, 16)),
        ("spread", 8, "nccl", [64], [0], (0, 0)),
    ],
)
def test_ranks_on_ray_share_what_a_node_has_of_all_that_each_takes(
    monkeypatch: pytest.MonkeyPatch,
    placement: str,
    n: int,
    backend: str,
    cpus: list[int],
    gpus: list[int],
    shared: tuple[int, int],
) -> None:
    have_ray(monkeypatch, cpus, gpus)
    axes = msgspec.structs.replace(AXES, ranks=(n,), backends=(backend,))
    resolved = Where("auto", placement).resolve(axes)
    assert (resolved.per_host, resolved.cores) == shared


@pytest.mark.parametrize(
    ("backends", "expected"),
    [((), ("nccl", 12)), (("gloo",), ("gloo", 72)), (("symm",), ("symm", 12))],
)
def test_without_a_number_there_is_a_rank_for_each_place_on_ray(
    monkeypatch: pytest.MonkeyPatch, backends: tuple[str, ...], expected: tuple[str, int]
) -> None:
    have_ray(monkeypatch, [64, 4, 4], [8, 8, 0])
    axes = msgspec.structs.replace(AXES, backends=backends)
    resolved = Where("auto", "pack").resolve(axes)
    assert (resolved.backends[0], resolved.ranks[0]) == expected


def have_ray(monkeypatch: pytest.MonkeyPatch, cpus: list[int], gpus: list[int]) -> None:
    """Has a cluster of nodes with these CPUs and GPUs."""
    nodes = [
        {"Alive": True, "Resources": {"CPU": float(cpu), "GPU": float(gpu)}}
        for cpu, gpu in zip(cpus, gpus or [0] * len(cpus), strict=True)
    ]
    monkeypatch.setattr(Where, "connect", lambda where: SimpleNamespace(nodes=lambda: nodes))


@pytest.mark.parametrize(
    ("connection", "interface", "expected"),
    [
        ("10.0.0.9 4711 10.0.0.1 22", "", "10.0.0.1"),
        ("fd00::9 4711 fd00::1 22", "", "fd00::1"),
        ("10.0.0.9 4711 10.0.0.1 22", "eth1", "10.1.1.1"),
        ("127.0.0.1 4711 127.0.0.1 22", "", "10.1.1.1"),
        ("fe80::9%eth0 4711 fe80::1%eth0 22", "", "10.1.1.1"),
        ("", "", "10.1.1.1"),
    ],
)
def test_where_ranks_reach_a_host(
    connection: str, interface: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    monkeypatch.setattr(rendezvous, "chosen_address", lambda: "10.1.1.1")
    assert ssh_place.find_address(connection) == expected


def test_hosts_have_time_to_load_collbench_whatever_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = []

    def connect(self: SshHosts, hosts: object, seconds: float, patience: float) -> list[Any]:
        waits.append(seconds)
        return [make_link()]

    monkeypatch.setattr(SshHosts, "connect", connect)
    monkeypatch.setattr(ssh, "close_links", lambda links: None)
    monkeypatch.setattr(ssh, "SshPlaces", lambda *_: None)
    hosts = SshHosts(parse_hosts("h1:2"))
    hosts.resolve(msgspec.structs.replace(AXES, backends=()))
    for timeout in (5.0, 600.0):
        axes = msgspec.structs.replace(AXES, ranks=(2,))
        suite = Suite(name="s", axes=axes, policy=Policy(timeout=timeout))
        hosts.hold_places(suite, timeout)
    assert waits == [join.SECONDS, join.SECONDS, 600.0]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """The notes on standard error, of a command that has a path of libraries."""
    notes: list[tuple[str, str]] = []
    monkeypatch.setattr(ssh, "print_message", lambda *words: notes.append(words))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/ofi/lib")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    ssh._print_once.cache_clear()
    yield notes
    ssh._print_once.cache_clear()


def give_loader(**variables: str) -> Any:
    """A link to a host that has these variables."""
    loader = ssh.digest_loader_variables(variables)
    return make_link(facts=msgspec.structs.replace(HERE, loader=loader))


def test_a_path_of_libraries_that_hosts_lack_is_told_once(noted: list[tuple[str, str]]) -> None:
    links = [
        give_loader(LD_LIBRARY_PATH="/opt/ofi/lib"),
        make_link(host=ListedHost("h2")),
        give_loader(LD_LIBRARY_PATH="/usr/lib"),
    ]
    for _ in range(2):
        ssh.note_unlike_libraries(links)
    ((message, hint),) = noted
    assert message.startswith("LD_LIBRARY_PATH has another value on h2, h1, or none: --launcher")
    assert '--env "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"' in hint and "~/.bashrc" in hint


def test_both_variables_of_the_loader_are_one_note(
    noted: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "libx.so")
    ssh.note_unlike_libraries([make_link()])
    ((message, _),) = noted
    assert message.startswith("LD_LIBRARY_PATH and LD_PRELOAD have another value on h1, or none")


@pytest.mark.parametrize(
    ("own", "theirs", "given"),
    [
        ("/opt/\udcff", "/opt/\udcff", ()),
        ("", "/opt/lib", ()),  # theirs alone is no news
        ("/opt/lib", "", ("LD_LIBRARY_PATH",)),
    ],
)
def test_hosts_that_have_the_same_libraries_are_no_news(
    own: str,
    theirs: str,
    given: tuple[str, ...],
    noted: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", own)
    ssh.note_unlike_libraries([give_loader(LD_LIBRARY_PATH=theirs)], given)
    assert noted == []


@pytest.mark.parametrize(("envs", "count"), [(((),), 1), (((("LD_LIBRARY_PATH", "/x"),),), 0)])
def test_hosts_that_are_held_are_looked_at(
    envs: Any, count: int, noted: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that --env gives a path of libraries need none of the host's."""
    monkeypatch.setattr(SshHosts, "connect", lambda *_: [make_link()])
    monkeypatch.setattr(ssh, "SshPlaces", lambda links, n, patience: None)
    hosts = SshHosts(parse_hosts("h1:4"))
    hosts.hold_places(factories.suite(backends=("gloo",), envs=envs), 1.0)
    assert len(noted) == count


def test_a_host_tells_digests_of_its_loaders_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/ofi/lib")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    loader = ssh_place.gather_host_facts().loader
    assert loader == ssh.digest_loader_variables({"LD_LIBRARY_PATH": "/opt/ofi/lib"})
    assert "/opt" not in str(loader)
