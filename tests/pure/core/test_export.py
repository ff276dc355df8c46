"""What is exported is read back by interpreters written from the formats' own rules, and run in
hostile orders."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from collbench.core import algorithms, export
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import CannotRun, UsageError
from collbench.core.schedule import (
    Moves,
    Schedule,
    find_hazards,
    join_neighbours,
    prove_schedule,
    run_schedule,
)
from collbench.features.study import export_command as command
from collbench.features.study.export_command import ExportOptions

EVERY = list(algorithms.list_catalogue())
EXECUTED = [key for key in EVERY if key[0] in export.COLLS]


def schedules(key: tuple[str, str], ranks: range = range(1, 10)) -> list[Schedule]:
    variant = algorithms.find_variant(*key)
    return [variant.schedule(n, n // 2, ratio=9.0) for n in ranks if not variant.refuse(n)]


def inputs(schedule: Schedule, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 1 << 60, len(schedule.input_cells(r))) for r in range(schedule.n)]


def results(schedule: Schedule, given: list[Any]) -> list[Any]:
    row, cells = COLLECTIVES[schedule.collective], schedule.cells
    given = [v.reshape(-1, cells) for v in given] if row.uneven else given
    return row.result(given, np.add, max(0, schedule.root))


# --- MSCCL
# ------------------------------------------------------------------------------------------


class Machine:
    """GPUs whose thread blocks run MSCCL's steps one after the other, in an order drawn at random.

    ``eager``: a send leaves at once and waits in a queue without end; otherwise sender and receiver
    must meet.
    """

    def __init__(self, text: str, given: list[Any], eager: bool, seed: int) -> None:
        root = ElementTree.fromstring(text)
        self.eager, self.rng = eager, random.Random(seed)
        n, most = int(root.attrib["ngpus"]), int(root.attrib["nchunksperloop"])
        assert [int(gpu.attrib["id"]) for gpu in root] == list(range(n))
        assert (root.attrib["inplace"], root.attrib["outofplace"]) in [("1", "0"), ("0", "1")]
        self.buffers = [self.memory(root.attrib, gpu, most, n, given) for gpu in root]
        self.blocks = {
            (g, b): [dict(s.attrib) for s in tb]
            for g, gpu in enumerate(root)
            for b, tb in enumerate(gpu)
        }
        self.ends = {
            (g, b): dict(tb.attrib) for g, gpu in enumerate(root) for b, tb in enumerate(gpu)
        }
        self.done = dict.fromkeys(self.blocks, 0)
        self.wires: dict[Any, deque[Any]] = defaultdict(deque)
        self.check(int(root.attrib["nchannels"]))

    @staticmethod
    def memory(
        top: dict[str, str], gpu: Any, most: int, n: int, given: list[Any]
    ) -> dict[str, Any]:
        """Buffers as NCCL's rules for in-place calls lay them out; what nobody has written is
        -1."""
        rank, mine = int(gpu.attrib["id"]), given[int(gpu.attrib["id"])]
        i, o, s = (int(gpu.attrib[f"{name}_chunks"]) for name in "ios")
        times = {"allgather": (n, 1), "reducescatter": (1, n)}.get(top["coll"], (1, 1))
        assert (i == 0 or i * times[0] == most) and (o == 0 or o * times[1] == most) and i + o > 0
        scratch = np.full(s, -1)
        if top["inplace"] == "0":
            return {"i": mine.copy(), "o": np.full(o, -1), "s": scratch}
        whole = np.full(most, -1)
        size = len(mine)
        start = rank * size if size < most else 0
        whole[start : start + size] = mine
        return (
            {"i": whole[start : start + size], "o": whole, "s": scratch}
            if size < most
            else {"i": whole, "o": whole, "s": scratch}
        )

    def check(self, channels: int) -> None:
        """Limits of the runtime's parser."""
        ends = Counter()
        for (gpu, block), end in self.ends.items():
            assert int(end["id"]) == block < 216 and 0 <= int(end["chan"]) < channels
            ends.update(
                (gpu, way, end[way], end["chan"]) for way in ("send", "recv") if end[way] != "-1"
            )
            assert str(gpu) not in (end["send"], end["recv"])
            steps = self.blocks[gpu, block]
            assert [int(step["s"]) for step in steps] == list(range(len(steps))) and len(
                steps
            ) <= 256
            assert all(0 <= int(step["cnt"]) < 72 for step in steps)
            for step, after in itertools.pairwise(steps):
                assert step["type"] != "nop" or after["depid"] != "-1", (
                    "a chain of waits ends in an operation that waits"
                )
            assert not steps or steps[-1]["type"] != "nop"
            waited = [(int(s["depid"]), int(s["deps"])) for s in steps if s["depid"] != "-1"]
            assert all(self.blocks[gpu, other][at]["hasdep"] == "1" for other, at in waited)
        assert set(ends.values()) <= {1}, "two thread blocks on one connection"
        peers = Counter((gpu, way, chan) for gpu, way, _, chan in ends)
        assert all(count <= 32 for count in peers.values())

    def ready(self, place: tuple[int, int]) -> dict[str, str] | None:
        if self.done[place] == len(self.blocks[place]):
            return None
        step = self.blocks[place][self.done[place]]
        waits = step["depid"] != "-1" and self.done[place[0], int(step["depid"])] <= int(
            step["deps"]
        )
        return None if waits else step

    def cells(self, gpu: int, step: dict[str, str], end: str) -> Any:
        buffer, at = self.buffers[gpu][step[f"{end}buf"]], int(step[f"{end}off"])
        assert at >= 0 and at + int(step["cnt"]) <= len(buffer)
        return buffer[at : at + int(step["cnt"])]

    def partner(self, place: tuple[int, int]) -> tuple[int, int]:
        end = self.ends[place]
        wanted = (int(end["send"]), str(place[0]), end["chan"])
        return next(
            p for p, other in self.ends.items() if (p[0], other["recv"], other["chan"]) == wanted
        )

    def act(self, place: tuple[int, int]) -> bool:
        """One step of a thread block, if it can be done now."""
        step, gpu, end = self.ready(place), place[0], self.ends[place]
        if step is None:
            return False
        kind = step["type"]
        if kind == "s":
            taker = self.partner(place)
            if not self.eager and self.ready(taker) is None:
                return False
            self.wires[gpu, taker[0], end["chan"]].append(self.cells(gpu, step, "src").copy())
            self.done[place] += 1
            return self.eager or self.act(taker)
        if kind in ("r", "rrc"):
            wire = self.wires[int(end["recv"]), gpu, end["chan"]]
            if not wire:
                return False
            came = wire.popleft()
            assert len(came) == int(step["cnt"])
            self.cells(gpu, step, "dst")[:] = (
                came + self.cells(gpu, step, "src") if kind == "rrc" else came
            )
        elif kind in ("cpy", "re"):
            assert (end["send"], end["recv"]) == ("-1", "-1")
            self.cells(gpu, step, "dst")[:] = self.cells(gpu, step, "src") + (
                self.cells(gpu, step, "dst") if kind == "re" else 0
            )
        else:
            assert kind == "nop"
        self.done[place] += 1
        return True

    def go(self) -> None:
        while any(self.done[place] < len(steps) for place, steps in self.blocks.items()):
            places = [place for place in self.blocks if self.ready(place)]
            self.rng.shuffle(places)
            if not any(
                [self.act(place) for place in places[: self.rng.randint(1, len(places))]]
                if places
                else []
            ):
                assert any(map(self.act, places)), "deadlock"
        assert not any(self.wires.values()), "messages nobody took"


def executed(schedule: Schedule, text: str, eager: bool, seed: int) -> None:
    given = inputs(schedule, seed)
    machine = Machine(text, given, eager, seed)
    machine.go()
    gpus = ElementTree.fromstring(text)
    for rank, wanted in enumerate(results(schedule, given)):
        if wanted is None:
            continue
        buffers, size = machine.buffers[rank], len(wanted)
        at = rank * size if gpus.attrib["inplace"] == "1" and size < len(buffers["o"]) else 0
        np.testing.assert_array_equal(buffers["o"][at : at + size], wanted, f"rank {rank}")


@pytest.mark.parametrize("key", EXECUTED, ids="-".join)
def test_msccl_computes_the_collective_in_any_order(key: tuple[str, str]) -> None:
    for schedule in schedules(key):
        text = export.write_msccl_executor(schedule, 0)
        for seed, eager in enumerate((True, False)):
            executed(schedule, text, eager, seed)


def test_the_executor_has_its_own_word_and_nothing_custom() -> None:
    def coll(collective: str) -> str:
        algorithm = algorithms.find_variant(
            collective, algorithms.list_algorithms(collective)[0].name
        )
        text = export.write_msccl_executor(algorithm.schedule(4), 0)
        return ElementTree.fromstring(text).attrib["coll"]

    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
    assert [coll(name) for name in names] == [name.replace("_", "") for name in names[:2]] + [
        "reducescatter",
        "alltoall",
        "broadcast",
        "reduce",
    ]
    for name in ("gather", "scatter", "scan", "sendrecv"):
        with pytest.raises(CannotRun, match="run no"):
            coll(name)
    with pytest.raises(CannotRun, match="moves no data"):
        coll("barrier")


def test_msccl_needs_its_dependencies() -> None:
    schedule = algorithms.find_variant("all_reduce", "recursive_doubling").schedule(8)
    loose = re.sub(
        r'depid="\d+" deps="\d+"', 'depid="-1" deps="-1"', export.write_msccl_executor(schedule, 0)
    ).replace("nop", "cpy")
    loose = re.sub(r'.*type="cpy".*cnt="0".*\n', "", loose)
    with pytest.raises(AssertionError):
        for seed in range(5):
            executed(schedule, loose, True, seed)


def test_msccl_needs_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = algorithms.find_variant("all_reduce", "recursive_doubling").schedule(4)
    monkeypatch.setattr(export, "remove_hazards", lambda s: s)
    with pytest.raises(AssertionError, match=r"rank|deadlock"):
        executed(schedule, export.write_msccl_executor(schedule, 0), False, 0)


@pytest.mark.parametrize("collective", ["barrier", "all_to_allv"])
def test_msccl_refuses_what_it_has_no_words_for(collective: str) -> None:
    with pytest.raises(CannotRun, match="MSCCL moves equal chunks"):
        export.write_msccl_executor(
            schedules((collective, algorithms.list_algorithms(collective)[0].name))[3], 0
        )


def test_msccl_keeps_the_runtimes_limits() -> None:
    with pytest.raises(CannotRun, match="more steps between two ranks than the 256"):
        export.write_msccl_executor(
            algorithms.find_variant("broadcast", "chain:segments=300").schedule(3), 0
        )
    with pytest.raises(CannotRun, match="thread blocks"):
        export.write_msccl_executor(
            algorithms.find_variant("all_reduce", "two_shot").schedule(110), 0
        )
    # up to 64 neighbouring cells in a message
    long = algorithms.find_variant("broadcast", "scatter_allgather").schedule(90)
    executed(long, export.write_msccl_executor(long, 0), True, 0)
    wide = algorithms.find_variant("all_gather", "gather_broadcast").schedule(80)
    executed(wide, export.write_msccl_executor(wide, 0), False, 0)


# --- staging
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", EVERY, ids="-".join)
def test_staging_removes_hazards_and_changes_nothing_else(key: tuple[str, str]) -> None:
    class Wide(Schedule):
        width = 400

    for schedule in schedules(key):
        wide = Wide(*export.remove_hazards(schedule))
        assert not find_hazards(wide)
        if schedule.has_data:
            given = inputs(schedule)
            states = [
                list(run_schedule(s, given, lambda a, b: a + b))[-1] for s in (schedule, wide)
            ]
            np.testing.assert_array_equal(states[0], states[1][:, : schedule.width])


# --- GOAL
# ------------------------------------------------------------------------------------------

OPERATION = re.compile(r"(l\d+): (?:(send|recv) (\d+)b (to|from) (\d+) tag (\d+)|calc (\d+))")
NEED = re.compile(r"(l\d+) requires (l\d+)")


def simulated(text: str, eager: bool, seed: int) -> dict[tuple[int, int], int]:
    """Bytes between each pair of ranks, once all is done; ``eager`` as above. Matches by source and
    tag only."""
    head, *parts = re.split(r"rank (\d+) \{", text)
    n = int(re.fullmatch(r"num_ranks (\d+)\s*", head)[1])
    ops: dict[tuple[int, str], Any] = {}
    needs: dict[tuple[int, str], set[str]] = defaultdict(set)
    assert [int(rank) for rank in parts[::2]] == list(range(n))
    for rank, body in enumerate(parts[1::2]):
        for line in body.strip().removesuffix("}").strip().splitlines():
            if found := NEED.fullmatch(line):
                assert (rank, found[1]) in ops and (rank, found[2]) in ops
                needs[rank, found[1]].add(found[2])
            else:
                found = OPERATION.fullmatch(line)
                assert found and (rank, found[1]) not in ops
                ops[rank, found[1]] = found.groups()[1:]
    rng, done, moved, sent = random.Random(seed), set(), Counter(), defaultdict(deque)
    while len(done) < len(ops):
        ready = [
            op for op in ops if op not in done and all((op[0], need) in done for need in needs[op])
        ]
        rng.shuffle(ready)
        posted = {(int(ops[o][3]), o[0], ops[o][4]): o for o in ready if ops[o][0] == "recv"}
        before = len(done)
        for rank, label in ready:
            way, size, _, peer, tag, _ = ops[rank, label]
            if way == "send":
                assert int(size) > 0 and int(peer) != rank
                if eager or (rank, int(peer), tag) in posted:
                    sent[rank, int(peer), tag].append(int(size))
                    moved[rank, int(peer)] += int(size)
                    done.add((rank, label))
            elif way == "recv" and sent[int(peer), rank, tag]:
                assert sent[int(peer), rank, tag].popleft() == int(size)
                done.add((rank, label))
            elif way is None:
                done.add((rank, label))
        assert len(done) > before, "deadlock"
    assert not any(sent.values())
    return dict(moved)


@pytest.mark.parametrize("key", EVERY, ids="-".join)
def test_goal_runs_to_its_end_and_moves_the_schedules_bytes(key: tuple[str, str]) -> None:
    for schedule in schedules(key):
        nbytes = 10 * schedule.cells * (schedule.n if schedule.row.total else 1)
        length = 10 if schedule.has_data else 1
        wanted: Counter[tuple[int, int]] = Counter()
        for moves in schedule.steps():
            cells = Counter((move.src, move.dst) for move in moves if move.src != move.dst)
            wanted.update({pair: count * length for pair, count in cells.items()})
        text = export.write_goal(schedule, nbytes)
        for seed, eager in enumerate((True, False)):
            assert simulated(text, eager, seed) == wanted


def test_goal_loses_no_byte_of_uneven_cells() -> None:
    moved = simulated(
        export.write_goal(algorithms.find_variant("all_reduce", "ring").schedule(4), 1003), True, 0
    )
    assert sum(moved.values()) == 2 * 3 * 1003


def test_goal_waits_for_what_it_passes_on() -> None:
    text = export.write_goal(
        algorithms.find_variant("broadcast", "chain:segments=1").schedule(3), 64
    )
    assert "rank 1 {\nl0: recv 64b from 0 tag 0\nl1: send 64b to 2 tag 1\nl1 requires l0\n}" in text


def test_goal_reader_sees_deadlocks() -> None:
    crossed = "num_ranks 2\n" + "".join(
        f"rank {r} {{\nl0: send 8b to {1 - r} tag 0\nl1: recv 8b from {1 - r} tag 0\nl1 requires"
        " l0\n}\n"
        for r in (0, 1)
    )
    assert simulated(crossed, True, 0) == {(0, 1): 8, (1, 0): 8}
    with pytest.raises(AssertionError, match="deadlock"):
        simulated(crossed, False, 0)


def test_goal_takes_no_empty_messages() -> None:
    with pytest.raises(UsageError, match="7 B are too few") as caught:
        export.write_goal(algorithms.find_variant("all_reduce", "ring").schedule(8), 7)
    assert "--bytes 8 " in caught.value.hint
    assert "0b" not in export.write_goal(
        algorithms.find_variant("barrier", "tree").schedule(4), 0
    ).replace("10b", "")


# --- DOT and JSON
# ------------------------------------------------------------------------------------------

EDGE = re.compile(r"  r(\d+)s(\d+) -> r(\d+)s(\d+) \[(.*)\];")
LABEL = re.compile(r'label="(\+?)(\d+)(?:-(\d+))?(?: to (\d+)(?:-\d+)?)?"(, style=dashed)?')


def drawn(schedule: Schedule, text: str) -> Schedule:
    """The schedule that a drawing shows."""
    steps: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    kept = set()
    for src, start, dst, end, style in EDGE.findall(text):
        assert int(end) == int(start) + 1
        if found := LABEL.fullmatch(style):
            plus, first, last, into, dashed = found.groups()
            assert bool(plus) == bool(dashed)
            for k in range(int(last or first) - int(first) + 1):
                steps[int(start)].append(
                    (int(src), int(dst), int(first) + k, int(into or first) + k, bool(plus))
                )
        else:
            assert src == dst
            kept.add((int(src), int(start)))
    assert len(kept) == schedule.n * len(list(schedule.steps()))
    return schedule._replace(
        steps=lambda: (Moves(*map(np.array, zip(*steps[k], strict=True))) for k in sorted(steps))
    )


@pytest.mark.parametrize("key", EVERY, ids="-".join)
def test_dot_shows_the_schedule(key: tuple[str, str]) -> None:
    for schedule in schedules(key):
        again = drawn(schedule, export.write_dot(schedule, 0))
        assert not prove_schedule(again)
        steps = [moves for moves in schedule.steps() if len(moves)]
        for moves, seen in zip(steps, again.steps(), strict=True):
            assert sorted(moves) == sorted(seen)


@pytest.mark.parametrize("key", [key for key in EVERY if key[0] != "barrier"], ids="-".join)
def test_json_computes_the_collective(key: tuple[str, str]) -> None:
    for schedule in schedules(key):
        read = json.loads(export.as_json(schedule, 0))
        assert (read["format"], read["version"]) == ("collbench schedule", 1)
        given = inputs(schedule)
        state = np.full((read["n"], read["width"]), -1)
        for rank, (start, end) in enumerate(read["inputs"]):
            state[rank, start:end] = given[rank]
        for step in read["steps"]:
            random.Random(0).shuffle(step)
            before = state.copy()
            for src, dst, chunk, into, length, reduce in step:
                came = before[src, chunk : chunk + length]
                state[dst, into : into + length] = came + (
                    state[dst, into : into + length] if reduce else 0
                )
        for rank, wanted in enumerate(results(schedule, given)):
            assert (wanted is None) == (read["outputs"][rank] is None)
            if wanted is not None:
                start, end = read["outputs"][rank]
                np.testing.assert_array_equal(state[rank, start:end], wanted)


def test_json_joins_runs() -> None:
    schedule = algorithms.find_variant("all_gather", "bruck").schedule(8)
    read = json.loads(export.as_json(schedule, 0))
    assert [len(step) for step in read["steps"]] == [
        len(join_neighbours(moves).src) for moves in schedule.steps()
    ]


def test_command_writes_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = algorithms.find_variant("gather", "binomial").schedule(5, 3)

    def write(to: str, output: Path | None = None) -> None:
        gather = ExportOptions(
            collective="gather",
            algorithm="binomial",
            n=5,
            root=3,
            to=to,
            nbytes="1K",
            output=output,
        )
        command.export(gather)

    with pytest.raises(CannotRun, match="run no gather"):
        write("msccl-executor")
    for form, render in export.FORMATS.items():
        if form == "msccl-executor":
            continue
        write(form, tmp_path / form)
        assert (tmp_path / form).read_text() == render(schedule, 1024)
        assert capsys.readouterr().out.startswith(f"wrote {tmp_path / form} (")
    write("goal")
    assert capsys.readouterr().out == export.write_goal(schedule, 1024)
    with pytest.raises(UsageError, match="--to 'xml' is unknown"):
        write("xml")
    with pytest.raises(CannotRun, match="none does not exist"):
        write("dot", tmp_path / "none" / "x")
