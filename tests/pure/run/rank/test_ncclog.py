"""NCCL's log of several versions, and a stand-in for NCCL that logs as the environment says when it
is told to look."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from collbench.records.types import Choice
from collbench.run.backends import _torchdist
from collbench.run.rank import ncclog
from collbench.run.rank.ncclog import parse_choice, parse_connections, start_listening

HEAD = "node7:4711:4802 [0] NCCL INFO "
TUNED = "AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23}"
RING = Choice(algorithm="Ring", protocol="LL128", channels=24)


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        (
            "1048576 Bytes -> Algo 1 proto 2 time 39.600002",
            Choice(algorithm="Ring", protocol="Simple"),
        ),  # 2.20
        (
            "AllReduce: 8 Bytes -> Algo 0 proto 0 time 7.4",
            Choice(algorithm="Tree", protocol="LL"),
        ),  # 2.23
        ("AllReduce: 8 Bytes -> Algo 9 proto 7 time 7.4", Choice(algorithm="9", protocol="7")),
        (TUNED, RING),  # since 2.24
        (
            "AllGather: 64 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={3..3}",
            Choice(algorithm="PAT", protocol="Simple", channels=1),
        ),
        (
            "AllReduce: 64 Bytes -> Algo COLLNET_DIRECT proto SIMPLE channel{Lo..Hi}={0..1}",
            Choice(algorithm="CollNetDirect", protocol="Simple", channels=2),
        ),
        (
            "AllReduce: 64 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}",
            Choice(algorithm="NVLSTree", protocol="Simple", channels=16),
        ),
        (
            "AllReduce: 64 Bytes -> Algo MOEBIUS proto LL256 channel{Lo..Hi}={0..15}",
            Choice(algorithm="MOEBIUS", protocol="LL256", channels=16),
        ),
        (
            (  # 2.27
                "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_RSxLDMC_AGxSTMC nchannels 16"
                " nthreads 512"
            ),
            Choice(algorithm="Symmetric", protocol="RSxLDMC_AGxSTMC", channels=16),
        ),
        (
            (  # 2.28
                "AllGather [Symmetric]: 4096 Bytes -> Kernel AllGather_LL nchannels 2 nthreads 512"
                " nWorks 1"
            ),
            Choice(algorithm="Symmetric", protocol="LL", channels=2),
        ),
        (
            "AlltoAll [Copy Engine]: 4096 Bytes -> cudaMemcpy",
            Choice(algorithm="CopyEngine"),
        ),  # 2.29
        (
            "AllGather [Hierarchical CE]: 4096 Bytes -> RMA proxy + CE",
            Choice(algorithm="CopyEngine"),
        ),  # 2.30
        ("AllReduce: 64 Bytes -> Algo RING proto LL", None),  # cut
        ("AllReduce: 64 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..2", None),
        (
            (
                "AllReduce: opCount 0 sendbuff 0x7f00 recvbuff 0x7f00 count 4 datatype 7 op 0 root"
                " 0 comm 0x5"
            ),
            None,
        ),
        ("TUNER/Plugin: Using tuner plugin best", None),
        (
            (
                "  Algorithm   |                            Tree                  |                "
                "            Ring"
            ),
            None,
        ),
    ],
)
def test_choices_of_several_versions(line: str, choice: Choice | None) -> None:
    assert parse_choice(HEAD + line + "\n") == choice
    assert parse_choice(f"[2026-05-05 06:16:47] {HEAD}{line}\n") == choice


def test_the_last_choice_counts_among_lines_of_other_threads() -> None:
    lines = [
        HEAD + "AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
        HEAD.replace("4802", "4810") + "New proxy send connection 3 from local rank 0, transport 2",
        f"node7:4711:4810 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[{HEAD}{TUNED}",
        "",
        "node7:4711:4810 [0] transport/net.cc:77 NCCL WARN odd things happened -> Algo",
    ]
    assert parse_choice("\n".join(lines)) == RING
    assert parse_choice("") is None


def test_connections_are_told_by_kind() -> None:
    lines = [
        "Channel 00/0 : 0[1a000] -> 1[1b000] via P2P/IPC/read",  # 2.18
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "Channel 01/0 : 0[0] -> 1[1] via P2P/direct pointer",
        "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
        "Channel 02/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
        "Channel 03/0 : 9[1] -> 0[0] [receive] via NET/IB/3(1)/GDRDMA(PCI)/Shared",
        "Channel 02/0 : 0[0] -> 8[0] [send] via NET/Socket/1",
        "Channel 02/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA",
        "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA",
        "Connected all rings, use ring PXN 0 GDR 1",
        "NET/Socket : Using [0]eth0:10.0.0.1<0>",
        "Could not reach it via P2P/CUMEM",
    ]
    found = parse_connections("".join(f"{HEAD}{line}\n" for line in lines))
    assert found == {
        "P2P",
        "SHM",
        "NET/IB/GDRDMA",
        "NET/Socket",
        "NET/AWS Libfabric/GDRDMA",
        "COLLNET/SHARP/GDRDMA",
    }


class Nccl:
    """What a process has of NCCL's log: ``reset`` has the environment read again, at once or, as
    since 2.27, by the next line. Lines that go to the terminal are kept in ``terminal``."""

    def __init__(self, late: bool) -> None:
        self.terminal: list[str] = []
        self.resets = 0
        self._late, self._stale, self._file = late, True, None
        self._getenv = ctypes.CDLL(None).getenv
        self._getenv.restype = ctypes.c_char_p

    def setting(self, name: str) -> str | None:
        value = self._getenv(name.encode())
        return None if value is None else value.decode()

    def reset(self) -> None:
        self.resets += 1
        self._stale = True
        if not self._late:
            self._look()

    def _look(self) -> None:
        if self._file:
            self._file.close()
        self._level, self._systems = (
            self.setting("NCCL_DEBUG"),
            (self.setting("NCCL_DEBUG_SUBSYS") or "INIT").split(","),
        )
        path = self.setting("NCCL_DEBUG_FILE")
        logs = bool(path) and self._level in ("WARN", "INFO")
        self._file = Path(str(path)).open("w", buffering=1) if logs else None  # noqa: SIM115
        self._stale = False

    def say(self, systems: str, line: str, level: str = "INFO") -> None:
        if self._stale:
            self._look()
        if self._level in (level, "INFO") and (
            level == "WARN" or {*systems.split("|")} & {*self._systems}
        ):
            line = (
                f"{HEAD}{line}\n"
                if level == "INFO"
                else f"\n{HEAD.replace('INFO', 'WARN')}{line}\n"
            )
            if self._file:
                self._file.write(line)
            else:
                self.terminal.append(line)

    def all_reduce(self) -> None:
        self.say("COLL", "AllReduce: opCount 0 sendbuff 0x7f00")
        self.say("TUNING", TUNED)


@pytest.fixture(params=[False, True], ids=["at once", "late"])
def nccl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nccl:
    for name in ncclog.NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    found = Nccl(request.param)
    monkeypatch.setattr(ncclog, "_find_reset", lambda: found.reset)
    return found


def logs() -> list[str]:
    """The logs in memory that this process has open."""
    found = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return [name for name in found if "nccl-log" in name]


def connect(nccl: Nccl) -> None:
    nccl.say("INIT|P2P", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")


def test_a_call_is_overheard_and_no_other(nccl: Nccl) -> None:
    listener = start_listening()
    connect(nccl)
    nccl.all_reduce()
    assert listener.overheard(nccl.all_reduce) == Choice(
        algorithm="Ring", protocol="LL128", channels=24, transport="P2P"
    )
    assert not listener.why_not and nccl.setting("NCCL_DEBUG_SUBSYS") == "INIT,P2P,SHM,NET"
    nccl.all_reduce()
    assert listener.overheard(lambda: None) == Choice(
        transport="P2P"
    )  # nothing is left over from the last call
    listener.close()
    nccl.say("INIT", "comm destroyed")
    assert [nccl.setting(name) for name in ncclog.NAMES] == [None] * 3
    assert not nccl.terminal and not logs()


def test_timed_calls_write_nothing(nccl: Nccl) -> None:
    listener = start_listening()
    listener.overheard(nccl.all_reduce)
    fd = nccl.setting("NCCL_DEBUG_FILE")
    assert fd
    nccl.all_reduce()
    assert Path(fd).stat().st_size == 0
    connect(nccl)
    assert Path(fd).stat().st_size > 0
    listener.close()


def test_nodes_are_those_of_a_communicator_of_the_calls_ranks(nccl: Nccl) -> None:
    line = "comm 0x5 rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 1"
    listener = start_listening()
    nccl.say("INIT", line)
    nccl.say("INIT", line.replace("nRanks 8 nNodes 2", "nRanks 2 nNodes 1"))
    nccl.say("INIT", "ncclCommInitRankConfig comm 0x5 rank 0 nranks 8 cudaDev 0 - Init COMPLETE")
    for n, nodes in ((8, 2), (2, 1), (4, 0)):
        assert listener.overheard(nccl.all_reduce, n) == msgspec.structs.replace(RING, nodes=nodes)
    assert listener.overheard(lambda: None, 8) is None
    nccl.say("INIT", line.replace("0x5", "0x6").replace("nNodes 2", "nNodes 1"))
    nccl.say("INIT", line)
    for n, nodes in ((8, 0), (2, 1)):  # groups of 8 across hosts and within one
        assert listener.overheard(nccl.all_reduce, n) == msgspec.structs.replace(RING, nodes=nodes)
    listener.close()


def test_connections_made_by_the_call_itself_are_heard(nccl: Nccl) -> None:
    listener = start_listening()

    def call() -> None:
        nccl.say("INIT|NET", "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA")
        nccl.say("TUNING", TUNED.replace("RING", "NVLS").replace("LL128", "SIMPLE"))

    connect(nccl)
    found = listener.overheard(call)
    assert found == Choice(
        algorithm="NVLS", protocol="Simple", channels=24, transport="NVLS+NET/IB/GDRDMA"
    )
    assert listener.overheard(nccl.all_reduce) == Choice(
        algorithm="Ring", protocol="LL128", channels=24, transport="NET/IB/GDRDMA+P2P"
    )
    listener.close()


def test_the_environment_is_put_back_when_the_call_fails(
    nccl: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    monkeypatch.setenv("NCCL_DEBUG_SUBSYS", "GRAPH")
    listener = start_listening()

    def call() -> None:
        assert nccl.setting("NCCL_DEBUG") == "INFO"
        raise RuntimeError("unhandled cuda error")

    with pytest.raises(RuntimeError, match="unhandled"):
        listener.overheard(call)
    assert [nccl.setting(name) for name in ncclog.NAMES] == ["VERSION", "GRAPH", None]
    assert listener.overheard(nccl.all_reduce) == RING
    listener.close()


def test_warnings_that_the_user_asked_for_are_passed_on(
    nccl: Nccl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "warn")
    listener = start_listening()
    assert nccl.setting("NCCL_DEBUG") == "warn"

    def call() -> None:
        nccl.all_reduce()
        nccl.say("", "cable is loose", "WARN")

    assert listener.overheard(call) == RING
    assert capsys.readouterr().err.rstrip().endswith("NCCL WARN cable is loose")
    assert nccl.setting("NCCL_DEBUG") == "warn" and not nccl.terminal
    listener.close()


@pytest.mark.parametrize("how", ["environment", "file"])
def test_a_log_of_the_users_is_read_and_left_alone(
    how: str, nccl: Nccl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / f"{socket.gethostname().partition('.')[0]}-{os.getpid()}%.log"
    asked = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
        "NCCL_DEBUG_FILE": f"{tmp_path}/%h-%p%%.log",
    }
    if how == "file":
        (tmp_path / "nccl.conf").write_text(
            "# ours\n" + "".join(f"{k}={v}\n" for k, v in asked.items())
        )
    for name, value in asked.items() if how == "environment" else ():
        monkeypatch.setenv(name, value)
    listener = start_listening()
    path.write_text(
        f"{HEAD}Channel 00 : 0[0] -> 1[1] via SHM/direct\n{HEAD}AllReduce: 4 Bytes -> Algo TREE pro"
    )

    def add(text: str) -> Callable[[], None]:
        return lambda: path.write_text(path.read_text() + text) and None

    assert listener.overheard(add("to LL")) == Choice(transport="SHM")  # half a line is none
    whole = Choice(algorithm="Tree", protocol="LL", channels=2, transport="SHM")
    assert listener.overheard(add(" channel{Lo..Hi}={0..1}\n")) == whole
    assert listener.overheard(lambda: None) == Choice(transport="SHM")
    listener.close()
    assert nccl.resets == 0 and not listener.why_not and path.read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"NCCL_DEBUG": "INFO"}, "NCCL_DEBUG is set"),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/nonexistent/x"}, "NCCL_DEBUG is set"),
        ({"NCCL_DEBUG": "trace", "NCCL_DEBUG_FILE": "/nonexistent/x"}, "lacks TUNING"),
        (
            {
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_FILE": "/nonexistent/x",
                "NCCL_DEBUG_SUBSYS": "^TUNING",
            },
            "lacks TUNING",
        ),
        (
            {
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_FILE": "/nonexistent/x",
                "NCCL_DEBUG_SUBSYS": "^COLL",
            },
            "",
        ),
    ],
)
def test_what_cannot_be_heard_has_a_reason(
    asked: dict[str, str], reason: str, nccl: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    listener, made = start_listening(), []
    assert listener.overheard(lambda: made.append(1)) is None and made == [1]
    assert (reason in listener.why_not) and bool(reason) == bool(listener.why_not)
    assert nccl.resets == 0


def test_a_process_without_a_recent_nccl_hears_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ncclog.NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "none"))
    why = start_listening().why_not  # nor has this process any NCCL
    assert "NCCL_DEBUG=INFO and NCCL_DEBUG_FILE" in why
    assert "2.24" not in why  # a later one may have it no longer


def test_the_backend_overhears_a_call_until_the_device_is_done() -> None:
    order: list[str] = []

    class Ear:
        def overheard(self, call: Callable[[], object], n: int) -> Choice:
            assert n == 2
            order.append("listen")
            call()
            order.append("heard")
            return RING

    backend = _torchdist.create("nccl")
    assert backend.overheard(lambda: order.append("on a CPU")) is None
    backend.stream = SimpleNamespace(drain=lambda: order.append("drained"))  # type: ignore[assignment]
    assert backend.overheard(lambda: order.append("unheard")) is None
    backend._listener = Ear()  # type: ignore[assignment]
    backend._at = _torchdist._Site(0, 2, "group")
    assert backend.overheard(lambda: order.append("called")) == RING
    assert order == ["unheard", "drained", "listen", "called", "drained", "heard"]
