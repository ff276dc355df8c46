"""What ranks at places are told, and who is to blame by what they and who keeps their places say.
No Ray, no processes."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from collbench.core.errors import CannotRun, CollbenchError, RunBroken
from collbench.features.compare.ab import variants
from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch import awake, fresh, places
from collbench.run.launch import watch as watches
from collbench.run.launch.environments import Membership
from collbench.run.launch.fresh import Side, Told
from collbench.run.launch.interpreter import Home, is_asked_for
from collbench.run.launch.keeper import Answer, Keeper, Question
from collbench.run.launch.places import Node, Places, Seat, SeatWatch, make_instructions
from collbench.run.launch.ray import select_driver_settings
from collbench.run.launch.world import Channel, Failure, Listener
from collbench.run.memory import Room
from collbench.suite.case import Case
from collbench.suite.policy import Policy

CASES = [
    Case(collective="all_reduce", backend="gloo", n=2, nbytes=size, op="sum")
    for size in (4096, 8192)
]
PLAN = Plan(0, "gloo", 2, (), Policy(), [Job(case, 1, "cold") for case in CASES], 30.0)
SEATS = [Seat(None, Node(f"n{rank}", f"10.0.0.{rank}", f"node{rank}", ""), 0) for rank in range(2)]
WORLD = World(
    index=0,
    backend="gloo",
    n=2,
    env=(),
    launcher="ray",
    ranks=[],
    oversubscribed=False,
    same_clock=True,
)
BEGUN: list[tuple[int, dict[str, Any]]] = [
    (0, {"pid": 70}),
    (1, {"pid": 71}),
    (0, {"line": WORLD}),
    (0, {"line": Record(case=CASES[0], status="ok")}),
]
AT_WORK = "while at work on all_reduce 8192 B float out of place on gloo (case 2 of 2)"
NOTICED = (
    "lost another rank (it or the launcher says why): NCCL error in: X.cpp:77, remote process"
    " exited or there was a network error"
)


def broken(message: str, code: int = 4) -> dict[str, Any]:
    return {"error": {"message": message, "hint": "", "exit": code}}


def told(events: list[tuple[int, dict[str, Any]]], last: bool = True) -> SeatWatch:
    watch = SeatWatch(PLAN, SEATS, Listener(lambda line: None))
    for rank, event in events:
        watch.handle_line(rank, msgspec.json.encode(event).decode())
    watch.check(last)
    return watch


@pytest.mark.parametrize(
    ("events", "kind", "message", "job"),
    [
        (
            [
                (1, {"exit": -9}),
                (0, broken("rank 0 on node0 lost rank 1 on node1")),
                (0, {"exit": 1}),
            ],
            RunBroken,
            f"rank 1 on node1 (pid 71) was killed by SIGKILL {AT_WORK}",
            1,
        ),
        (
            [
                (0, broken("rank 0 on node0 lost rank 1 on node1")),
                (0, {"exit": 1}),
                (1, broken("rank 1 raised X")),
                (1, {"exit": 1}),
            ],
            RunBroken,
            "rank 1 raised X",
            1,
        ),
        (
            [(0, {"exit": -6}), (1, broken("rank 1 raised X")), (1, {"exit": 1})],
            RunBroken,
            "rank 1 raised X",
            1,
        ),
        (
            [(1, {"stopped": True}), (0, broken("rank 0 has not moved")), (0, {"exit": 4})],
            RunBroken,
            f"rank 1 on node1 (pid 71) is stopped (SIGSTOP) {AT_WORK}",
            1,
        ),
        (
            [(1, {"stopped": True}), (1, {"stopped": False}), (0, broken("rank 0 has not moved"))],
            RunBroken,
            "rank 0 has not moved",
            1,
        ),
        (
            [(0, broken("rank 0 lost rank 1")), (1, broken("no such thing", 5))],
            CannotRun,
            "no such thing",
            None,
        ),
        (
            [(0, broken(f"rank 0 on node0 {NOTICED}")), (1, broken("rank 1 raised X"))],
            RunBroken,
            "rank 1 raised X",
            1,
        ),
        (
            [
                (0, broken(f"rank 0 on node0 {NOTICED}")),
                (1, broken("rank 1 on node1 lost rank 0 on node0")),
            ],
            RunBroken,
            "rank 1 on node1 lost rank 0 on node0",
            1,
        ),
        (
            [
                (0, broken("rank 0 on node0 lost others, as rank 1 on node1 is stopped")),
                (1, broken("rank 1 raised X")),
            ],
            RunBroken,
            "rank 1 raised X",
            1,
        ),
        ([(1, {"exit": 3})], RunBroken, f"rank 1 on node1 (pid 71) exited with 3 {AT_WORK}", 1),
    ],
)
def test_the_culprit_is_named(
    events: list[tuple[int, dict[str, Any]]],
    kind: type[CollbenchError],
    message: str,
    job: int | None,
) -> None:
    with pytest.raises(kind) as raised:
        told(BEGUN + events)
    assert raised.value.message == message
    assert getattr(raised.value, "job", None) == job


def test_before_the_first_case_a_rank_is_starting_up() -> None:
    with pytest.raises(RunBroken) as raised:
        told([(0, {"pid": 70}), (1, {"exit": -11})])
    assert (
        raised.value.message
        == "rank 1 on node1 (pid unknown) was killed by SIGSEGV while starting up"
    )
    assert raised.value.job is None


def test_who_is_to_blame_has_a_moment_to_say_so() -> None:
    assert told([*BEGUN, (0, broken("rank 0 lost rank 1"))], last=False).progress.job(0) == 1
    assert told([*BEGUN, (0, {"exit": 0}), (1, {"exit": 0})]).progress.job(0) == 1


def test_ranks_that_are_done_have_a_limit_to_their_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    done = [(rank, {"done": True}) for rank in range(2)]
    assert not told([*BEGUN, *done]).overdue()
    monkeypatch.setattr(watches, "LEAVE_SECONDS", -1.0)
    assert told([*BEGUN, *done]).overdue()
    assert not told([*BEGUN, done[0]]).overdue()


def test_once_a_rank_is_done_others_may_be_killed() -> None:
    told([*BEGUN, (1, {"exit": -9}), (0, {"done": True})])


def test_a_rank_that_was_stopped_before_it_was_killed_was_stopped() -> None:
    with pytest.raises(RunBroken, match=r"rank 1 .* is stopped \(SIGSTOP\)"):
        told([*BEGUN, (1, {"stopped": True}), (1, {"exit": -9}), (0, broken("rank 0 says so"))])


def test_a_rank_is_told_of_the_gpus_beside_it_and_of_settings() -> None:
    passed = select_driver_settings(
        {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Tree", "AWS_SECRET": "planted"}
    )
    where = [("a", "10"), ("a", "2"), ("b", "0")]
    seats = [Seat(None, Node(id, f"10.0.0.{id}", id, gpu), 0) for id, gpu in where]
    plan = msgspec.structs.replace(PLAN, n=3, env=(("NCCL_ALGO", "Ring"),))
    told = make_instructions(plan, seats, "ray", passed)
    assert [(each.member.rank, each.member.local_rank, each.member.local_n) for each in told] == [
        (0, 0, 2),
        (1, 1, 2),
        (2, 0, 1),
    ]
    assert [each.env["CUDA_VISIBLE_DEVICES"] for each in told] == ["2,10", "2,10", "0"]
    assert {(each.env["NCCL_DEBUG"], each.env["NCCL_ALGO"], each.meeting) for each in told} == {
        ("WARN", "Ring", "10.0.0.a")
    }
    assert all("AWS_SECRET" not in each.env and each.key not in each.env.values() for each in told)
    assert (
        len({(each.key, each.world) for each in told}) == 1
        and told[0].key != make_instructions(plan, seats, "ray", passed)[0].key
    )
    assert [each.plan is None for each in told] == [False, True, True]


class Name(str):
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.comparisons += 1
        return str.__eq__(self, other)


def test_seats_beside_each_other_are_found_in_few_comparisons_among_many() -> None:
    n, per_host = 400, 8
    nodes = [Node(Name(f"n{rank // per_host}"), "10.0.0.1", "h", "") for rank in range(n)]
    seats = [Seat(None, node, 0) for node in nodes]
    told = make_instructions(msgspec.structs.replace(PLAN, n=n), seats, "ssh", {})
    assert [(each.member.local_rank, each.member.local_n) for each in told] == [
        (rank % per_host, per_host) for rank in range(n)
    ]
    assert Name.comparisons <= 8 * n


@pytest.mark.parametrize(("timeout", "seconds"), [(30.0, 120.0), (600.0, 600.0)])
def test_fresh_ranks_have_as_long_to_come_together_as_the_timeout(
    timeout: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = msgspec.structs.replace(PLAN, timeout=timeout)
    instructions = make_instructions(plan, SEATS, "ssh", {})
    assert [each.seconds for each in instructions] == [seconds] * 2
    limits: list[float] = []
    ranks = SimpleNamespace(run=lambda *_: None)
    monkeypatch.setattr(fresh.join, "Joined", lambda _, limit: limits.append(limit) or ranks)
    monkeypatch.setattr(fresh.os, "environ", {})
    fresh._take_part(instructions[0], Channel(BytesIO(), BytesIO()))
    assert limits == [seconds]


def test_ranks_on_ray_have_the_modules_and_the_settings_of_the_driver() -> None:
    passed = {"COLLBENCH_IMPORTS": "mine", "RCCL_X": "1", "HIP_X": "1", "HSA_X": "1"}
    of_ray = {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0", "PYTHONPATH": "/driver"}
    assert select_driver_settings({**passed, **of_ray, "COLLBENCH_TOKEN": "secret"}) == passed


def test_what_ranks_are_started_with_is_in_the_run() -> None:
    """A place describes the environment that it has itself."""
    described = {"variables": {"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "1"}}
    passed = {"NCCL_ALGO": "Ring", "COLLBENCH_IMPORTS": "mine"}
    found, _ = held([Answer(described=described)], ["a"], passed)
    settings = {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"}
    assert found.environment()["variables"] == settings
    home = msgspec.structs.replace(HOME, variables={"NCCL_PROTO": "LL"})
    assert found.resolve(home, "head").described["variables"] == {**settings, "NCCL_PROTO": "LL"}


def test_a_place_that_is_lost_is_to_blame_at_once() -> None:
    with pytest.raises(RunBroken) as raised:
        told([*BEGUN, (1, {"lost": "its process has ended"})], last=False)
    lost = f"rank 1 on node1 (pid 71) was lost (its process has ended) {AT_WORK}"
    assert raised.value.message == lost


def test_jobs_beside_each_other_are_one() -> None:
    jobs = [msgspec.structs.replace(PLAN.jobs[0], companion=PLAN.jobs[1])] * 2
    watch = SeatWatch(msgspec.structs.replace(PLAN, jobs=jobs), SEATS, Listener(lambda line: None))
    at = []
    for line in (WORLD, *[Record(case=case, status="ok") for case in CASES]):
        watch.handle_line(0, msgspec.json.encode({"line": line}))
        at.append(watch.progress.job(0))
    assert at == [0, 0, 1]


def test_only_finished_cases_count() -> None:
    """Interim records of a step, then those of its three parts, the leader's last."""
    step = Case(collective="step", backend="gloo", n=2, nbytes=0, dtype="uint8", subject="s")
    jobs = [Job(step, 1, "cold"), *PLAN.jobs]
    watch = SeatWatch(msgspec.structs.replace(PLAN, jobs=jobs), SEATS, Listener(lambda line: None))
    at = []
    for stop in ("cut", "cut", "fixed"):
        for case in step.siblings:
            line = Record(case=case, status="ok", stop=stop)
            watch.handle_line(0, msgspec.json.encode({"line": line}))
            at.append(watch.progress.job(0))
    assert at == [0] * 8 + [1]


@pytest.fixture
def high() -> Iterator[Callable[[socket.socket], socket.socket]]:
    """A socket again, by a descriptor above those that select() takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("no descriptor above 1023 may be had here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))

    def move(at: socket.socket) -> socket.socket:
        return socket.socket(fileno=fcntl.fcntl(at.detach(), fcntl.F_DUPFD, 1024))

    yield move
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_may_be_many(high: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    woken, wake = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda: (high(woken), wake))
    watch = SeatWatch(PLAN, SEATS, Listener(lambda line: None), guard=lambda: "")
    watch.move(0)
    watch.take(1, '{"turn": 0}')
    watch.move(20)
    assert watch.waiting


def test_a_world_is_moved_by_what_was_taken_in_another_thread() -> None:
    watch = SeatWatch(PLAN, SEATS, Listener(lambda line: None), guard=lambda: "")
    taking = threading.Thread(target=watch.take, args=(1, '{"turn": 0}'))
    taking.start()
    watch.move(20)
    assert watch.waiting and watch.busy()
    taking.join()


def test_who_is_not_heard_of_breaks_a_world() -> None:
    watch = SeatWatch(
        PLAN, SEATS, Listener(lambda line: None), guard=lambda: "nothing is heard of X"
    )
    with pytest.raises(RunBroken, match="nothing is heard of X while starting up"):
        watch.move(0)


def watch_silence(
    monkeypatch: pytest.MonkeyPatch, *events: tuple[int, dict[str, Any]]
) -> SeatWatch:
    """A watch that has heard no more than this for 1000 s."""
    now = 1000.0
    time = SimpleNamespace(monotonic=lambda: now)
    for module in (awake, watches, places):
        monkeypatch.setattr(module, "time", time)
    watch = SeatWatch(PLAN, SEATS, Listener(lambda line: None), guard=lambda: "")
    for rank, event in events:
        watch.handle_line(rank, msgspec.json.encode(event).decode())
    for _ in range(1000):
        watch.move(0)
        now += 1.0
    return watch


def test_a_world_that_never_opens_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the file server of all hosts hangs, from which Python is loaded."""
    with pytest.raises(RunBroken) as caught:
        watch_silence(monkeypatch, *BEGUN[:2])
    assert caught.value.message == "no world opened within 270 s on node0, node1"
    assert "-T" in caught.value.hint
    assert caught.value.job is None


def test_a_world_that_is_open_is_for_its_ranks_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch_silence(monkeypatch, *BEGUN).busy()


def test_a_world_whose_ranks_are_all_stopped_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunBroken, match=r"rank 0 on node0 \(pid 70\) is stopped \(SIGSTOP\)"):
        watch_silence(monkeypatch, *BEGUN, (0, {"stopped": True}), (1, {"stopped": True}))


@pytest.mark.parametrize("event", [{"stopped": False}, {"turn": 0}, {"done": True}])
def test_who_is_stopped_harms_nobody_who_waits_or_is_done(
    event: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_silence(monkeypatch, *BEGUN, (1, {"stopped": True}), (1, event))
    assert not watch.ended


@pytest.mark.parametrize("side", [None, Side(option="--base")])
@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EAGAIN, r"raise the limit of processes \(ulimit -u; .*podPidsLimit\)"),
        (errno.ENXIO, r"this is a bug .*: its traceback is in \S+/crashes/collbench-crash-\S+"),
    ],
)
def test_a_place_without_a_process_to_be_had_is_lost(
    side: Side | None, number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says what to do, or where the traceback lies."""

    def start(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", start)
    keeper, lines = Keeper(tmp_path), []
    instructions = Told(Membership("ssh", 0, 1, 0, 1), "10.0.0.1", "w", "key", {}, None, side)
    if side:
        keeper.run(instructions, lines.append)
    else:
        lines += keeper.lines(instructions)
    (said,) = (msgspec.json.decode(line) for line in lines)
    assert re.fullmatch(f".*{os.strerror(number)}; {advice}", said["lost"])


class Asked:
    """A place that answers as told, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.questions: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        return self.answer


def held(
    answers: list[Answer], hosts: list[str], passed: Mapping[str, str] = MappingProxyType({})
) -> tuple[Places, list[Asked]]:
    places, asked = Places("torchrun", passed), [Asked(answer) for answer in answers]
    places.seats = [
        Seat(at, Node(host, "", host, ""), hosts[:rank].count(host))  # type: ignore[arg-type]
        for rank, (at, host) in enumerate(zip(asked, hosts, strict=True))
    ]
    return places, asked


HOME = Home(
    python="/opt/python", settings={}, described={"git": "g"}, variables={"X": "1"}, tree="/t"
)


def test_a_side_is_looked_for_once_on_each_host() -> None:
    places, asked = held([Answer(described={"python": "3.11"})] * 3, ["a", "a", "b"])
    described = {"python": "3.11", "git": "g", "variables": {}}
    assert places.resolve(HOME, "head").described == described
    side = Side("/opt/python", {"X": "1"}, "/t", "--head")
    assert [at.questions for at in asked] == [[Question(side=side)], [], [Question(side=side)]]


def test_a_host_without_a_sides_interpreter_is_named() -> None:
    wrong = Answer(error=Failure("--head: /opt/python does not start", "try it by hand"))
    places, _ = held([Answer(), wrong], ["a", "b"])
    with pytest.raises(CannotRun) as raised:
        places.resolve(HOME, "head")
    assert raised.value.message == "b: --head: /opt/python does not start"


def test_the_tightest_host_has_the_room() -> None:
    rooms = [Room("", available, 0, 1, 0) for available in (9, 3)]
    places, asked = held([Answer(room=room) for room in rooms], ["a", "b"])
    assert places.room("gloo", 2, Policy()) == rooms[1]
    assert asked[0].questions == [Question(room=("gloo", 1, Policy()))]


def test_hosts_that_read_another_file_are_named(tmp_path: Path) -> None:
    rules = tmp_path / "rules.conf"
    rules.write_text("0")
    alike = Keeper(tmp_path).ask(Question(path=str(rules)))
    absent = Keeper(tmp_path).ask(Question(path=f"{tmp_path}/none"))
    assert alike.digest and absent == Answer()
    places, _ = held([alike, absent], ["node0", "node1"])
    assert places.list_unlike(rules) == ["node1"]
    guarded = trusting(tmp_path, "GLOO_SOCKET_IFNAME=lo").ask(Question(path=str(rules)))
    assert guarded.digest == ""  # whoever asks might be anybody


@pytest.mark.parametrize(
    ("backend", "n", "why"),
    [
        ("gloo", 2, ""),
        ("gloo", 3, "3 ranks are more than the 2 places there are"),
        ("mpi", 2, "mpi needs ranks that mpirun has started, and ab starts new ones:"),
    ],
)
def test_why_a_case_cannot_run_at_places(backend: str, n: int, why: str) -> None:
    places, _ = held([Answer()] * 2, ["a", "b"])
    case = msgspec.structs.replace(CASES[0], backend=backend, n=n)
    assert places.refuse(case).startswith(why) and bool(places.refuse(case)) == bool(why)


def test_a_keeper_says_what_its_host_lacks(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    tree = keeper.ask(Question(side=Side("", {}, f"{tmp_path}/none", "--head")))
    python = keeper.ask(Question(side=Side("/no/python", {}, "", "--head")))
    assert tree.error and f"--head: {tmp_path}/none, where the" in tree.error.message
    assert python.error and "--head: /no/python does not start" in python.error.message


def trusting(folder: Path, head: str) -> Keeper:
    """A place whose own command line says so of the head."""
    return Keeper(folder, lambda: {"head": variants.parse_variant(head, "--head")})


HERE = Side("", {}, "", "--head")


@pytest.mark.parametrize(
    ("head", "told", "env"),
    [
        ("NCCL_ALGO=Ring", Side("", {"NCCL_ALGO": "Tree"}, "", "--head"), {}),
        ("NCCL_ALGO=Ring", Side("", {"LD_PRELOAD": "x.so"}, "", "--head"), {}),
        ("backend:gloo", Side("/tmp/python", {}, "", "--head"), {}),
        ("backend:gloo", Side("", {}, "/tmp/tree", "--head"), {}),
        ("git:main A={tree}", Side("", {"A": "/tmp/tree"}, "/tmp/tree", "--head"), {}),
        ("backend:gloo", Side("", {}, "", "--base"), {}),
        ("backend:gloo", HERE, {"LD_PRELOAD": "x.so"}),
        ("backend:gloo", None, {}),
    ],
)
def test_a_place_starts_nothing_that_its_command_line_does_not_name(
    tmp_path: Path, head: str, told: Side | None, env: dict[str, str]
) -> None:
    heard: list[str] = []
    asked = Told(Membership("torchrun", 1, 2, 0, 1), "h", "w", "key", env, None, told)
    if told:
        asked = msgspec.structs.replace(asked, env={**env, **told.env})
    trusting(tmp_path, head).run(asked, heard.append)
    assert [list(msgspec.json.decode(line)) for line in heard] == [["lost"]]


def test_a_place_has_the_builds_of_its_own_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    (tree := tmp_path / "builds" / "nccl-1").mkdir(parents=True)
    side = Side("", {"A": f"{tree}/lib"}, str(tree), "--head")
    variant = variants.parse_variant("git:main A={tree}/lib", "--head")
    assert is_asked_for(variant, "--head", side.python, side.env, side.tree)
    other = str(tmp_path / "builds" / ".." / "x")
    assert not is_asked_for(variant, "--head", "", {"A": f"{other}/lib"}, other)


def test_a_place_answers_for_what_its_command_line_names(tmp_path: Path) -> None:
    side = Side("", {"GLOO_SOCKET_IFNAME": "lo"}, "", "--head")
    answer = trusting(tmp_path, "GLOO_SOCKET_IFNAME=lo").ask(Question(side=side))
    assert answer.error is None


def test_ranks_of_the_host_that_has_most_are_counted() -> None:
    places, _ = held([Answer()] * 3, ["a", "b", "b"])
    assert [places.count_sharers(n) for n in (1, 2, 3)] == [1, 1, 2]


def test_what_is_no_message_is_passed_on_and_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A library prints before the rank keeps its output apart."""
    watch = SeatWatch(PLAN, SEATS, Listener(lambda line: None))
    watch.handle_line(0, b"loaded \xff from a banner")
    assert "loaded" in capsys.readouterr().err
