"""Ranks whose clocks are not one: what is measured on the common clock, against clocks whose truth
is known."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import before
from warm import Warm

from collbench.records import derive, run_file
from collbench.records.types import RunFile
from collbench.run.rank import clock_links
from collbench.run.rank.clock_links import Links
from collbench.show.views import run

PLUGINS = Path(__file__).parent / "plugins"
HELPERS = Path(__file__).parents[1] / "helpers"  # of this file where it is a rank's program
NEVER, ALWAYS = "0", str(10**12)  # limits that no model keeps, and that each does


def hosts(warm: Warm, n: int, tmp_path: Path, limit: str, *more: str, **env: str) -> RunFile:
    """A run of ``n`` ranks that believe to be on a host each."""
    path = tmp_path / "run.jsonl"
    command = [
        "all_reduce",
        "-b",
        "4K",
        "-e",
        "4K",
        "-w",
        "5",
        "--place",
        "out",
        "--output",
        str(path),
        *(() if "--mode" in more else ("--mode", "isolated")),
        *more,
    ]
    seen = {"CLOCKS": limit, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": before(PLUGINS), **env}
    done = warm.join(n, *command, **seen)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_file.read_file(path)


@pytest.mark.slow
def test_a_window_across_hosts(warm: Warm, tmp_path: Path) -> None:
    file = hosts(warm, 2, tmp_path, ALWAYS, "--sync", "window", "-n", "8")
    (world,), (record,) = file.worlds, file.records
    assert [info.host for info in world.ranks] == ["host0", "host1"]
    assert not world.same_clock and not world.oversubscribed
    assert world.clock_error_ns > 0 and world.clock_hidden_ns > 0
    assert (record.status, record.sync, record.note) == ("ok", "window", "")
    assert record.clock_error_ns > 0 and len(record.starts_ns) == 2
    for slowest, whole, apart in zip(record.times_ns, record.glob_ns, record.skew_ns, strict=True):
        assert (
            slowest <= whole <= slowest + apart < 10**11
        )  # and not by the hours between the clocks


@pytest.mark.slow
def test_hosts_of_one_kernel_have_one_clock(warm: Warm, tmp_path: Path) -> None:
    file = hosts(warm, 2, tmp_path, "one", "--sync", "window", "-n", "5")
    (world,), (record,) = file.worlds, file.records
    assert world.same_clock and world.clock_error_ns == world.clock_hidden_ns == 0
    assert [info.host for info in world.ranks] == ["host0", "host1"]
    assert (record.status, record.sync, record.note, record.clock_error_ns) == (
        "ok",
        "window",
        "",
        0,
    )
    assert len(record.skew_ns) == len(record.times_ns) > 0


@pytest.mark.slow
def test_shared_memory_is_refused_where_hosts_differ(warm: Warm) -> None:
    command = ("all_reduce", "--backend", "shm", "--algo", "ring", "-b", "4K", "-e", "4K")
    done = warm.join(2, *command, "--no-save", CLOCKS="one", PYTHONPATH=before(PLUGINS))
    assert done.returncode == 1
    assert "shm needs all ranks on one host" in done.stderr


@pytest.mark.slow
def test_a_rank_that_hangs_on_another_host_is_named(warm: Warm) -> None:
    command = ("all_reduce", "--sizes", "4K", "-T", "6", "--inject", "hang:1", "--no-save")
    done = warm.join(2, *command, CLOCKS="one", PYTHONPATH=before(PLUGINS))
    assert "rank 1 on host1 has not moved" in done.stderr
    assert "rank 0" not in done.stderr and "same call" not in done.stderr


@pytest.mark.slow
def test_without_a_good_clock_ranks_meet_by_messages(warm: Warm, tmp_path: Path) -> None:
    file = hosts(warm, 2, tmp_path, NEVER, "-n", "5")
    (record,) = file.records
    assert (record.status, record.sync, record.clock_error_ns) == ("ok", "barrier", 0)
    assert not (record.starts_ns or record.glob_ns or record.skew_ns)
    assert (
        "no window: hosts' clocks are known to" in record.note
        and "no T_glob: hosts'" in record.note
    )


@pytest.mark.long  # test_pairs_ranks.py has a late rank of one host
def test_the_rank_that_comes_late_is_named_with_its_host(warm: Warm, tmp_path: Path) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two ranks on one core are both late")
    file = hosts(warm, 2, tmp_path, ALWAYS, "-n", "100", "--mode", "host", SABOTAGE="straggle:1:0")
    row = derive.derive_row(file.records[0], file.worlds[0])
    assert row is not None and row.late_rank == 1 and "late:1" in row.flags
    assert row.lateness[0] < 1_000_000 < row.lateness[1] < 100_000_000  # it sleeps 2 ms
    (skew,) = [section for section in run.make_document([file]).sections if section.name == "skew"]
    assert [line.cells[:2] for line in skew.tables[0].lines] == [("rank 1 of 2 (gloo)", "host1")]


@pytest.mark.slow
def test_the_common_clock_is_true_to_its_word(warm: Warm, tmp_path: Path) -> None:
    ranks = [
        warm.start(
            str(rank),
            str(tmp_path / "store"),
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": before(HELPERS)},
            script=__file__,
        )
        for rank in range(4)
    ]
    said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4
    assert said[2]["model"] == said[1]["model"] != said[3]["model"]  # ranks 1 and 2 share a clock
    for told in said:
        assert told["limits"] == said[0]["limits"]
        assert len(told["off"]) == 2 and max(map(abs, told["off"])) <= sum(told["limits"])
    starts = np.array([told["starts"] for told in said])  # true times
    assert (np.ptp(starts, axis=0) <= 2 * sum(said[0]["limits"])).all()
    assert starts.shape == (4, 5) and (np.diff(starts) > 0).all()


class Told:
    """A control group of threads."""

    def __init__(self, n: int) -> None:
        self.said: list[Any] = [None] * n
        self.barrier = threading.Barrier(n, timeout=30)

    def at(self, rank: int) -> Any:
        told = self

        class Control:
            def __init__(self) -> None:
                self.rank, self.heard = rank, []  # type: ignore[var-annotated]

            def collect(self, value: Any) -> list[Any]:
                told.barrier.wait()
                told.said[rank] = json.loads(json.dumps(value))
                told.barrier.wait()
                self.heard.append(list(told.said))
                return list(told.said)

        return Control()


def linked(monkeypatch: pytest.MonkeyPatch, stray: Any = None, absent: bool = False) -> list[Links]:
    """Rank 0 with children 1 and 2; ``stray(address, port)`` comes before them, and rank 2 not at
    all if ``absent``."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    control, found = Told(3), [None] * 3  # type: ignore[var-annotated]

    def child(rank: int) -> None:
        mine = control.at(rank)
        collect = mine.collect

        def first(value: Any) -> list[Any]:
            offers = collect(value)
            if len(mine.heard) == 1 and stray and rank == 1:
                stray(*offers[0][:2])
            return offers

        mine.collect = first
        found[rank] = Links(mine, None if absent and rank == 2 else 0, [])

    threads = [threading.Thread(target=child, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    found[0] = Links(control.at(0), None, [1, 2])
    for thread in threads:
        thread.join(30)
    return found  # type: ignore[return-value]


def test_strangers_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def stray(host: str, port: int) -> None:
        assert host == "127.0.0.1"
        for said in (b"", b"x" * 16, b"GET / HTTP/1.1\r\n\r\n" * 100, b"x"):
            kept.append(socket.create_connection((host, port), 5))
            kept[-1].sendall(said)

    links = linked(monkeypatch, stray)
    assert [one.trouble for one in links] == [""] * 3
    server = threading.Thread(
        target=lambda: [links[0].serve(child, 3, lambda: 7) for child in (1, 2)]
    )
    server.start()
    times = iter(range(100))
    assert [links[child].ask(0, 3, lambda: next(times)) for child in (1, 2)] == [
        [(0, 7, 1), (2, 7, 3), (4, 7, 5)],
        [(6, 7, 7), (8, 7, 9), (10, 7, 11)],
    ]
    server.join(30)
    for one in (*links, *kept):
        one.close()


def test_a_child_that_stays_away_leaves_no_clock_but_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock_links, "CONNECT_S", 0.3)
    assert {one.trouble for one in linked(monkeypatch, absent=True)} == {
        "rank 0 has no connection: rank 2 did not connect in 0.3 s"
    }


def test_a_peer_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    links = linked(monkeypatch)
    links[0].close()
    with pytest.raises(OSError, match=r"closed by peer|reset|Broken pipe"):
        links[1].ask(0, 1, lambda: 0)
    links[2].close()


def rank_of_its_own(rank: int, path: str) -> None:
    """One of four ranks, 1 and 2 on one host, by clocks that are made up of the true one."""
    import time

    import torch.distributed as dist

    from collbench.run.rank.control import Control
    from collbench.run.rank.global_clock import GlobalClock

    host = [0, 1, 1, 2][rank]
    offset, ppm = [0, 10**16, -(10**15)][host], [0, 50, -30][host]

    def read(true: int | None = None) -> int:
        true = time.perf_counter_ns() if true is None else true
        return true + offset + true * ppm // 10**6

    dist.init_process_group("gloo", store=dist.FileStore(path, 4), rank=rank, world_size=4)  # type: ignore[attr-defined]
    control = Control(rank, 4)
    clock = GlobalClock(control, [f"host {h}" for h in (0, 1, 1, 2)], lambda: None, read)
    before = time.perf_counter_ns()
    for _ in range(3):
        clock.meet()
    clock.check()
    times = [before, time.perf_counter_ns()]
    off = clock.converted(np.array([[read(at) for at in times]] * 4))[rank] - times
    model = clock._models[clock._places[rank]]
    (now,) = control.decide([times[-1]])
    starts = [(model.back(now + k * 10**6) - offset) * 10**6 // (10**6 + ppm) for k in range(5)]
    limits = [clock.error_ns, clock.hidden_ns]
    print(json.dumps({"model": model, "off": off.tolist(), "limits": limits, "starts": starts}))


if __name__ == "__main__":
    rank_of_its_own(int(sys.argv[1]), sys.argv[2])
