"""Real ranks under launchers, real and false: several hosts, what does not belong together,
strangers and secrets."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from forked import Server
from paths import before
from ports import find_free_port
from relay import Relay, find_agent
from warm import Started, Warm

from collbench.core.errors import Exit
from collbench.records import run_file
from collbench.records.types import RunFile

SRUN = str(Path(__file__).parent / "fake_slurm" / "srun")
COLLBENCH = [sys.executable, "-m", "collbench"]
ARGS = [
    "all_reduce",
    "--sizes",
    "1K,64K",
    "-n",
    "5",
    "-w",
    "2",
    "--place",
    "out",
    "--sync",
    "barrier",
    "--format",
    "nccl",
]
PLUGINS = Path(__file__).parent / "plugins"
PATHS = before(PLUGINS)
ByHand = Callable[..., list[Started]]
TOKEN = "planted-token-2718"


def ended(command: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env}
    )


@pytest.fixture
def by_hand(warm: Warm) -> ByHand:
    """A process for each (rank, of how many), as somebody would start them on several machines."""

    def start(
        ranks: Sequence[tuple[int, int]], path: Path, *more: str, **env: str
    ) -> list[Started]:
        settings = {**os.environ, "MASTER_ADDR": "127.0.0.1"}
        places = [{"RANK": str(rank), "WORLD_SIZE": str(n)} for rank, n in ranks]
        words = (*ARGS, "--output", str(path), *more)
        return [warm.start(*words, env={**settings, **place, **env}) for place in places]

    return start


def brief(seconds: int) -> dict[str, str]:
    """Variables by which ranks of several hosts may have less time to come together than ever."""
    return {"MEETING_SECONDS": str(seconds), "PYTHONPATH": PATHS}


def needs_host_names() -> None:
    named = shutil.which("unshare") and subprocess.run(
        ["unshare", "--uts", "hostname", "elsewhere"], capture_output=True, check=False
    )
    if not named or named.returncode:
        pytest.skip("host names of their own need root and unshare")


def measured(path: Path) -> RunFile:
    run = run_file.read_file(path)
    assert [record.status for record in run.records] == ["ok"] * 2
    return run


def test_a_limit_is_judged_and_told_by_rank_0_alone(by_hand: ByHand, tmp_path: Path) -> None:
    """Five samples bound no interval, on however quiet a machine."""
    path, port = tmp_path / "run.jsonl", str(find_free_port())
    processes = by_hand([(0, 2), (1, 2)], path, "--min-busbw", "1", MASTER_PORT=port)
    told = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [3, 0], told
    lines = [line for _, err in told for line in err.splitlines() if "1 wanted" in line]
    assert len(lines) == 1 and "n<6" in lines[0] and "1 wanted" in told[0][1]


def test_what_rank_0_refuses_ends_all(by_hand: ByHand, tmp_path: Path) -> None:
    """The others wait for it no longer than they need to meet; rank 0 alone says why."""
    path = tmp_path / "absent" / "run.jsonl"
    processes = by_hand([(0, 3), (1, 3), (2, 3)], path, MASTER_PORT=str(find_free_port()))
    told = [process.communicate(timeout=100)[1] for process in processes]
    assert [process.returncode for process in processes] == [5, 5, 5], told
    assert "absent does not exist" in told[0]
    assert told[1:] == ["", ""]


def test_a_setting_that_one_host_lacks_is_named_by_rank_0(by_hand: ByHand, tmp_path: Path) -> None:
    """As mpirun leaves it where it is not told to pass it on."""
    path, port = tmp_path / "run.jsonl", str(find_free_port())
    env = {"CLOCKS": "one", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": PATHS, "MASTER_PORT": port}
    first = by_hand([(0, 2)], path, NCCL_ALGO="Ring", **env)
    other = by_hand([(1, 2)], path, **env)
    told = [process.communicate(timeout=100)[1] for process in (*first, *other)]
    assert [process.returncode for process in (*first, *other)] == [0, 0], told
    assert "NCCL_ALGO is Ring on host0, not set on host1" in told[0]
    assert "NCCL_ALGO" not in told[1]


def test_slurm_on_one_node(relay: Relay, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    done = ended([SRUN, "-n", "2", *relay.command, *ARGS, "--output", str(path)])
    assert done.returncode == 0, done.stderr
    (world,) = measured(path).worlds
    assert (world.launcher, world.n, world.hosts) == ("srun", 2, [])
    assert done.stdout.count("# Out of bounds values : 0 OK") == 1


@pytest.mark.slow
def test_a_rank_that_does_not_leave_is_named_and_ended(relay: Relay, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    settings = {"PYTHONPATH": PATHS, "SABOTAGE": "never-leave:1:0"}
    words = (*ARGS, "--backend", "saboteur", "--output", str(path))
    done = ended([SRUN, "-n", "2", *relay.command, *words], **settings)
    assert "collbench: rank 1 on " in done.stderr and "did not leave within" in done.stderr
    run = measured(path)
    assert run.end is not None and run.end.exit == 0
    assert not any(psutil.pid_exists(rank.pid) for rank in run.worlds[0].ranks)


@pytest.mark.long
def test_who_is_cut_off_is_named_by_all_that_are_left(by_hand: ByHand, tmp_path: Path) -> None:
    """Rank 0, which two hosts lose; and each host says so in one line."""
    path = tmp_path / "run.jsonl"
    ranks = by_hand(
        [(rank, 3) for rank in range(3)],
        path,
        *("-N", "5000", "-T", "20"),
        CLOCKS="one",
        PYTHONPATH=PATHS,
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and '"line":"record"' not in _text(path):
        time.sleep(0.05)
    psutil.Process(ranks[0].pid).suspend()
    told = [rank.communicate(timeout=100)[1] for rank in ranks[1:]]
    ranks[0].kill()
    ranks[0].communicate()
    assert [rank.returncode for rank in ranks[1:]] == [4, 4]
    lines = [[line for line in text.splitlines() if " rank " in line] for text in told]
    assert [line[:51] for (line,) in lines] == [
        "collbench: nothing is heard of rank 0 on host0 whil"
    ] * 2


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.slow
def test_slurm_on_two_nodes_that_are_not_alike(relay: Relay, bare: Server, tmp_path: Path) -> None:
    """Node 1 has another setting; the report says so before anything else of the machines."""
    needs_host_names()
    path = tmp_path / "run.jsonl"
    inner = 'test "$SLURM_NODEID" = 0 || export NCCL_ALGO=Ring; exec "$@"'
    task = ["sh", "-c", inner, "sh", *relay.command, *ARGS, "--output", str(path)]
    done = ended([SRUN, "-N", "2", "-n", "3", *task])
    assert done.returncode == 0, done.stderr
    (world,) = measured(path).worlds
    assert [info.host for info in world.ranks] == ["node0", "node0", "node1"]
    assert [(info.host, info.differs) for info in world.hosts] == [
        ("node0", {"variables.NCCL_ALGO": None}),
        ("node1", {"variables.NCCL_ALGO": "Ring"}),
    ]
    assert world.hosts[0].fingerprint != world.hosts[1].fingerprint
    page = bare("report", str(path), "--format", "md").stdout
    assert (
        page.index("The hosts are not alike")
        < page.index("## Environment")
        < page.index("| node0 | node1 |")
    )
    assert page.index("| node0 | node1 |") < page.index("Runs and machines")


def cut_short(path: Path) -> bytes:
    """The lines of a run's file without its last case and its End, as what is left of it."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
    return path.read_bytes()


def resume_under(relay: Relay, path: Path, *launch: str) -> subprocess.CompletedProcess[str]:
    return ended([*launch, *relay.command, "run", "--resume", str(path)])


def test_only_the_launcher_of_a_run_goes_on_with_it(
    warm: Warm, relay: Relay, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    assert warm(*ARGS, "-g", "2", "--output", str(path)).returncode == 0
    before_all = cut_short(path)
    done = resume_under(relay, path, SRUN, "-n", "2")
    assert done.returncode == 2 and path.read_bytes() == before_all, done.stderr
    words = "collbench on this machine started its ranks, and now srun would"
    assert words in done.stderr and "Traceback" not in done.stderr
    assert warm("run", "--resume", str(path)).returncode == 0
    assert len(measured(path).worlds) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "edit"), [(1, b"node1"), (2, b"elsewhere")], ids=["one host", "another host"]
)
def test_only_the_hosts_of_a_run_go_on_with_it(
    relay: Relay, tmp_path: Path, nodes: int, edit: bytes
) -> None:
    """That all ranks are on one host the launcher says; another host is known once they have
    met."""
    needs_host_names()
    path = tmp_path / "run.jsonl"
    begun = ended([SRUN, "-N", "2", "-n", "2", *relay.command, *ARGS, "--output", str(path)])
    assert begun.returncode == 0, begun.stderr
    ended_line = path.read_bytes().splitlines(keepends=True)[-1]
    cut = cut_short(path).replace(b'"host":"node1"', b'"host":"%s"' % edit)
    path.write_bytes(cut + ended_line.replace(b'"exit":0', b'"exit":130'))
    before = run_file.read_file(path)
    done = resume_under(relay, path, SRUN, "-N", str(nodes), "-n", "2")
    assert done.returncode == 2, done.stderr
    assert f"its ranks were on node0 (1 rank), {edit.decode()} (1 rank), and would" in done.stderr
    assert "Traceback" not in done.stderr
    after = run_file.read_file(path)  # one End longer: the file ends as it did
    assert msgspec.structs.replace(after, nbytes=before.nbytes) == before
    assert before.end and before.end.exit == Exit.INTERRUPTED


def agent_options(kind: str, node: int, port: int) -> list[str]:
    """What torchrun is told on a node, by each of its rendezvous."""
    if kind == "static":
        at = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        return ["--node-rank", str(node), *at]
    at = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "r"]
    return [*at, "--rdzv-conf", f"is_host={int(node == 0)}", "--local-addr", "127.0.0.1"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_torchrun_with_an_agent_for_each_node(
    warm: Warm, relay: Relay, kind: str, tmp_path: Path
) -> None:
    """Both rendezvous; ranks then meet at a port of their own, since MASTER_PORT is torchrun's."""
    path, port = tmp_path / "run.jsonl", find_free_port()
    words = ("--no-python", *relay.command, *ARGS, "--output", str(path))
    each = ("--nnodes", "2", "--nproc-per-node", "1")
    agents = [
        warm.start(*each, *agent_options(kind, node, port), *words, script=find_agent())
        for node in range(2)
    ]
    told = [agent.communicate(timeout=100) for agent in agents]
    assert [agent.wait() for agent in agents] == [0, 0], told
    (world,) = measured(path).worlds
    assert (world.launcher, world.n) == ("torchrun", 2)


@pytest.mark.slow
def test_the_launcher_may_be_named(warm: Warm, relay: Relay, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    one = [SRUN, "-n", "1", *relay.command, *ARGS, "-g", "2"]
    done = ended([*one, "--launcher", "local", "--output", str(path)])
    assert done.returncode == 0, done.stderr
    assert measured(path).worlds[0].launcher == "local"
    done = warm(*ARGS, "--launcher", "srun", "--no-save")
    assert (done.returncode, "SLURM_STEP_ID" in done.stderr) == (2, True)
    done = ended([*one, "--launcher", "srun", "--no-save"])
    assert (done.returncode, "srun started 1 rank" in done.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "code", "words"),
    [
        ([(0, 3), (2, 3)], 4, "rank 1 never came; ranks 0, 2 came from {host}"),
        ([(0, 3), (1, 3), (1, 3)], 5, "rank 1 came twice: from {host} (pid "),
        ([(0, 2), (1, 4)], 5, "two worlds: rank "),
    ],
)
def test_what_does_not_belong_together_is_said(
    by_hand: ByHand, ranks: list[tuple[int, int]], code: int, words: str, tmp_path: Path
) -> None:
    """Every process ends, with the same reason. A world of another size may take itself for another
    launch."""
    path = tmp_path / "run.jsonl"
    processes = by_hand(ranks, path, "-T", "5", MASTER_PORT=str(find_free_port()), **brief(5))
    told = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [code] * len(ranks), told
    assert all(words.format(host=socket.gethostname()) in text for text in told), told
    end = run_file.read_file(path).end
    assert end is not None
    assert (end.exit, words.format(host=socket.gethostname()) in end.note) == (code, True)


@pytest.mark.slow
def test_a_token_keeps_other_ranks_out(by_hand: ByHand, tmp_path: Path) -> None:
    options = (tmp_path / "run.jsonl", "-T", "4")
    env = {"MASTER_PORT": str(find_free_port()), **brief(4)}
    right = by_hand([(0, 2)], *options, COLLBENCH_TOKEN=TOKEN, **env)
    wrong = by_hand([(1, 2)], *options, COLLBENCH_TOKEN="another", **env)
    told = [process.communicate(timeout=60)[1] for process in (*right, *wrong)]
    assert "rank 1 never came" in told[0]
    assert "did not belong here" in told[0]
    assert "has another COLLBENCH_TOKEN" in told[1]


@pytest.mark.slow
def test_no_secret_is_in_any_output(by_hand: ByHand, bare: Server, tmp_path: Path) -> None:
    """The launch's token, and others in variables whose names tell."""
    path = tmp_path / "run.jsonl"
    secrets = {
        "COLLBENCH_TOKEN": TOKEN,
        "NCCL_API_KEY": TOKEN,
        "UCX_PROXY": f"http://user:{TOKEN}@host",
    }
    processes = by_hand([(0, 2), (1, 2)], path, "-J", str(tmp_path / "out.json"), **secrets)
    said = ["".join(process.communicate(timeout=60)) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    measured(path)
    page = ("report", str(path), "-o", str(tmp_path / "page.html"))
    said.append(bare(*page, **secrets).stdout)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"run.jsonl", "out.json", "page.html"} <= {file.name for file in files}
    assert not any(
        TOKEN in text for text in (*said, *(file.read_text(errors="replace") for file in files))
    )


@pytest.mark.slow
def test_processes_that_each_believe_to_be_alone_are_stopped(tmp_path: Path) -> None:
    """A launcher of the name mpirun, whose variables nobody knows; like any, it ends all when one
    fails."""
    launcher = tmp_path / "mpirun"
    launcher.write_text(
        '#!/bin/bash\n"$@" &\n"$@" &\nwait -n || { code=$?; kill $(jobs -p); wait; exit $code;'
        " }\nwait\n"
    )
    launcher.chmod(0o755)
    done = ended([str(launcher), *COLLBENCH, *ARGS, "-g", "1", "--no-save"])
    assert done.returncode == 5, done.stderr
    assert "mpirun started 2 processes like this one" in done.stderr
    assert done.stdout == ""


ABORTS = """
import os
from collbench.cli.main import main
class Library:
    def __del__(self, abort=os.abort):
        abort()
library = Library()
try:
    main()
finally:  # Python's own end, which does the same
    del library
"""


def test_a_rank_that_fails_does_not_take_python_down_around_its_libraries(
    warm: Warm, tmp_path: Path
) -> None:
    """They may abort there; the planted one always does."""
    (script := tmp_path / "planted.py").write_text(ABORTS)
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    words = (*ARGS[:-2], "--sync", "device", "--no-save")
    done = warm(*words, script=str(script), RANK="0", WORLD_SIZE="1", **at)
    assert (done.returncode, "--sync device needs a GPU" in done.stderr) == (5, True), done


class Pest(threading.Thread):
    """Finds whatever these processes and their children listen at, and talks garbage, keeps silent
    and floods there, as long as it can."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._pids, self._over = pids, threading.Event()
        self.addresses: set[str] = set()
        self.ports: set[int] = set()
        self.visits = 0

    def run(self) -> None:
        held: list[socket.socket] = []
        while not self._over.wait(0.02):
            for pid in self._pids:
                with suppress(psutil.Error):
                    process = psutil.Process(pid)
                    for each in (process, *process.children()):
                        held += self._visit_all(each)
            while len(held) > 50:
                held.pop(0).close()

    def _visit_all(self, process: psutil.Process) -> list[socket.socket]:
        visited = []
        for known in process.net_connections("tcp"):
            if known.status == psutil.CONN_LISTEN:
                self.addresses.add(known.laddr.ip)
                self.ports.add(known.laddr.port)
                visited.append(self._visit(known.laddr))
        return visited

    def _visit(self, where: tuple[str, int]) -> socket.socket:
        at = socket.socket()
        at.settimeout(0.2)
        with suppress(OSError):
            at.connect(where)
            at.sendall((b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000)[self.visits % 3])
            self.visits += 1
        return at

    def end(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.slow
def test_strangers_at_every_port_of_a_run_change_nothing(by_hand: ByHand, tmp_path: Path) -> None:
    """Rank 1 comes late, so that there is a meeting to disturb. Only loopback is listened at, as
    MASTER_ADDR says."""
    path = tmp_path / "run.jsonl"
    port = str(find_free_port())
    first = by_hand([(0, 2)], path, MASTER_PORT=port)
    pest = Pest([process.pid for process in first])
    pest.start()
    until = time.monotonic() + 60
    while pest.visits < 30 and time.monotonic() < until:
        time.sleep(0.05)
    second = by_hand([(1, 2)], path, MASTER_PORT=port)
    told = [process.communicate(timeout=100) for process in (*first, *second)]
    pest.end()
    assert [process.returncode for process in (*first, *second)] == [0, 0], told
    assert pest.visits >= 30
    assert pest.addresses == {"127.0.0.1"}
    assert len(pest.ports) > 1  # of the meeting, and of Gloo
    assert [record.wrong for record in measured(path).records] == [0, 0]
