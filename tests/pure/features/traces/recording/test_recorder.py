"""Recording on torch's fake process group: what Gloo does not have, limits, and iterations."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded import fake_group
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import collbench
from collbench.features.traces.formats import own
from collbench.features.traces.recording import interception
from collbench.features.traces.recording import program as recorded
from collbench.features.traces.recording import recorder as recording
from collbench.features.traces.recording.interception import OPERATORS, _Onward
from collbench.features.traces.types import Call, Lost, RankTrace

RANKS = 8
X = torch.ones(1)
PLACE = recorded.ScriptLine(__file__, 1)


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    with fake_group(RANKS):
        yield


def test_every_operator_of_torch_that_takes_a_group_is_known() -> None:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")]
    schemas = {name.removeprefix("c10d::"): torch._C._get_schema(name, "") for name in names}
    assert {name for name, of in schemas.items() if "ProcessGroup" in str(of)} == {*OPERATORS}


def read(folder: Path) -> RankTrace:
    return own.read_rank(folder / own.file_name(0))


def briefly(calls: tuple[Call, ...]) -> list[tuple[object, ...]]:
    return [(call.kind, call.nbytes, call.dtype, call.op) for call in calls]


def test_calls_that_are_coalesced_are_each_recorded(tmp_path: Path) -> None:
    with collbench.record(tmp_path):
        dist.group.WORLD._start_coalescing(torch.device("cpu"))  # type: ignore[union-attr]
        dist.all_gather_single(torch.empty(16), torch.ones(2), async_op=True)
        dist.all_gather_single(torch.empty(24), torch.ones(3), async_op=True)
        work = dist.group.WORLD._end_coalescing(torch.device("cpu"))  # type: ignore[union-attr]
        work.wait()
    found = read(tmp_path).calls
    assert [call.nbytes for call in found[:2]] == [64, 96]
    assert [(call.kind, call.after) for call in found[2:]] == [("wait", (0, 1))]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tensors_of_one_call_are_its_size(tmp_path: Path) -> None:
    with collbench.record(tmp_path):
        dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
    assert briefly(read(tmp_path).calls) == [("all_reduce", 20, "float", "sum")]


def test_calls_of_unequal_blocks_are_lost(tmp_path: Path) -> None:
    """NCCL makes messages of such; no collective of one size is like them."""
    unequal = [torch.ones(1 + (rank == 3)) for rank in range(RANKS)]
    with collbench.record(tmp_path):
        dist.all_gather(unequal, torch.ones(1))
        dist.reduce_scatter(torch.empty(1), unequal)
        dist.all_gather([torch.empty(2) for _ in range(RANKS)], torch.ones(2))
    found = read(tmp_path)
    assert briefly(found.calls) == [("all_gather", 64, "float", "none")]
    lost = {(loss.why.partition(" (")[0], loss.calls) for loss in found.lost}
    assert lost == {("all_gather of unequal blocks", 1), ("reduce_scatter of unequal blocks", 1)}


def test_datatypes_that_collbench_lacks_move_as_bytes(tmp_path: Path) -> None:
    with collbench.record(tmp_path):
        dist.broadcast(torch.ones(3, dtype=torch.int16), 0)
        counts = [1] * RANKS
        x = torch.ones(RANKS, dtype=torch.int16)
        dist.all_to_all_single(x.clone(), x, counts, counts)
    first, second = read(tmp_path).calls
    assert briefly((first,)) == [("broadcast", 6, "uint8", "none")]
    assert (second.dtype, second.sends) == ("uint8", (2,) * RANKS)


def test_complex_numbers_are_two_real_ones(tmp_path: Path) -> None:
    with collbench.record(tmp_path):
        dist.all_reduce(torch.ones(3, dtype=torch.complex64))
    assert briefly(read(tmp_path).calls) == [("all_reduce", 24, "float", "sum")]


@pytest.mark.slow  # torch compiles
def test_compiled_code_is_recorded_and_its_tracing_is_not(tmp_path: Path) -> None:
    functional = torch.ops._c10d_functional
    with collbench.record(tmp_path):
        compiled = torch.compile(
            lambda x: functional.wait_tensor(functional.all_reduce(x * 2, "sum", "0")) + 1,
            backend="aot_eager",
        )
        compiled(torch.ones(5))
    found = read(tmp_path)
    assert [(call.kind, call.nbytes, call.after) for call in found.calls] == [
        ("all_reduce", 20, ()),
        ("wait", 0, (0,)),
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_calls_without_data_are_none(tmp_path: Path) -> None:
    with collbench.record(tmp_path):
        dist.all_reduce(torch.ones(4, device="meta"))
        dist.barrier()
    assert [call.kind for call in read(tmp_path).calls] == ["barrier"]


@pytest.mark.slow
def test_calls_from_threads_of_c_plus_plus_have_no_line(tmp_path: Path) -> None:
    group, x = dist.group.WORLD, torch.ones(3)
    assert group is not None
    with collbench.record(tmp_path):
        _thread.start_new_thread(group.allreduce, ([x],))  # without a frame of Python
        until = time.monotonic() + 30
        while not (tmp_path / own.file_name(0)).exists() and time.monotonic() < until:
            time.sleep(0.01)
    assert [(c.kind, c.nbytes, c.source) for c in read(tmp_path).calls] == [("all_reduce", 12, "")]


def test_what_cannot_be_told_is_counted(tmp_path: Path) -> None:
    with collbench.record(tmp_path):
        dist.all_reduce(torch.ones(3, dtype=torch.int16))
        dist.all_reduce(torch.ones(3))
    found = read(tmp_path)
    assert briefly(found.calls) == [("all_reduce", 12, "float", "sum")]
    assert found.lost == (Lost("all_reduce that reduces int16", 1, 6),)


@pytest.mark.parametrize("limit", ["MOST_CALLS", "MOST_HELD"])
def test_more_calls_than_memory_may_have_are_counted(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, limit, 3)
    works = []
    with collbench.record(tmp_path):
        works += [dist.isend(torch.ones(1), 1) for _ in range(5)]  # held: nobody waits
    found = read(tmp_path)
    assert len(found.calls) == 3
    assert [(lost.calls, lost.nbytes) for lost in found.lost] == [(2, 8)]
    assert "more than 3 calls" in found.lost[0].why


def test_a_group_of_some_ranks_is_told_with_them_and_its_name(tmp_path: Path) -> None:
    some = dist.new_group([0, 3, 5], group_desc="experts")
    with collbench.record(tmp_path):
        dist.broadcast(torch.ones(1), 3, group=some)
    found = read(tmp_path)
    (call,) = found.calls
    assert found.groups[call.group] == (0, 3, 5)
    assert found.described[call.group] == "experts"
    assert call.root == 1


def again(world: int = RANKS) -> None:
    """Ends all groups, and begins anew."""
    dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


def named(name: str, ranks: list[int]) -> dist.ProcessGroup:
    """A group of these ranks, to which torch has given this name."""
    while (group := dist.new_group(ranks)).group_name != name:
        pass
    return group


def test_a_name_that_a_group_of_other_ranks_had_is_not_taken_for_that_group(tmp_path: Path) -> None:
    some = dist.new_group([0, 3])
    with collbench.record(tmp_path):
        dist.all_reduce(torch.ones(1), group=some)
        again()
        dist.all_reduce(torch.ones(2), group=named(some.group_name, [0, 3]))
        again()
        dist.all_reduce(torch.ones(3), group=named(some.group_name, [0, 5]))
    found = read(tmp_path)
    assert [(call.nbytes, call.number) for call in found.calls] == [(4, 0), (8, 1)]
    assert found.groups == {some.group_name: (0, 3)}
    assert [(lost.calls, lost.nbytes) for lost in found.lost] == [(1, 12)]


def after_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RankTrace:
    """A call that raises one, and another."""
    with collbench.record(folder):
        with monkeypatch.context() as patched, pytest.raises(ValueError, match="planted"):
            patched.setattr(_Onward, "__call__", raises)
            dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(2))
    return read(folder)


def test_a_call_that_raises_an_error_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = after_an_error(tmp_path, monkeypatch)
    assert [(call.nbytes, call.number) for call in found.calls] == [(8, 0)]
    assert found.lost == (Lost("all_reduce raised ValueError, which is no call"),)


def test_a_call_that_raises_an_error_is_none_where_the_job_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collbench.record(tmp_path):
        dist.all_reduce(torch.ones(2))
        with monkeypatch.context() as patched, pytest.raises(ValueError, match="planted"):
            patched.setattr(_Onward, "__call__", raises)
            dist.all_reduce(torch.ones(1))
        (tmp_path / "killed").write_bytes((tmp_path / own.file_name(0)).read_bytes())
    assert [call.nbytes for call in own.read_rank(tmp_path / "killed").calls] == [8]


@pytest.mark.parametrize(
    ("kinds", "left"),
    [
        (("send", "all_reduce"), ["mark", "all_reduce"]),
        (("all_reduce", "send"), ["mark", "send"]),
        (("all_reduce", "barrier"), ["all_reduce", "barrier"]),
    ],
)
def test_a_call_that_raises_an_error_after_another_threads_call_is_a_mark_unless_numbers_follow(
    kinds: tuple[str, str], left: list[str]
) -> None:
    program, group = recorded.Program(recorded.make_clock(), PLACE), dist.group.WORLD
    assert group
    raising, further = (program.add({"kind": kind, "dtype": "float"}, group) for kind in kinds)
    assert raising and further
    program.take_back(raising, "ValueError")
    further.done = True
    calls = [line for line in program.ready() if isinstance(line, Call)]
    assert [call.kind for call in calls] == left


def test_a_call_that_raises_an_error_after_it_waited_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As monitored_barrier does, which others have come to."""
    monkeypatch.setattr(recording, "AT_ONCE_S", 0)
    found = after_an_error(tmp_path, monkeypatch)
    assert [(call.nbytes, call.number) for call in found.calls] == [(4, 0), (8, 1)]
    assert found.lost == ()


def test_waits_for_more_calls_than_are_kept_are_told_to_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "MOST_UNWAITED", 2)
    with collbench.record(tmp_path):
        for work in [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(3)]:
            work.wait()  # type: ignore[union-attr]
    found = read(tmp_path)
    assert [call.after for call in found.calls if call.kind == "wait"] == [(1,), (2,)]
    (lost,) = found.lost
    assert lost.why.startswith("waits for calls that more than 2 came after")


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_waits_of_iterations_after_their_calls_are_recorded_or_told_to_lack(
    steps: int, functional: bool, tmp_path: Path
) -> None:
    operators, group, x = torch.ops._c10d_functional, dist.group.WORLD, torch.ones(5)
    assert group
    with collbench.record(tmp_path, steps=5) as recorder:
        work = None if functional else dist.all_reduce(x, async_op=True)
        reduced = operators.all_reduce(x, "sum", group.group_name) if functional else x
        for _ in range(steps):
            recorder.step()
        if work is None:
            operators.wait_tensor(reduced)
        else:
            work.wait()
    found = read(tmp_path)
    waits = [call.after for call in found.calls if call.kind == "wait"]
    is_kept = steps == 1
    assert waits == [(0,)] * is_kept
    assert found.lost == (() if is_kept else (Lost(recorded.WAITED_LATE),))


def written_late(program: recorded.Program) -> list[own.Note]:
    """What is written now of calls that were written before."""
    return [line for line in program.ready() if isinstance(line, own.Note) and line.late]


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_a_message_that_is_waited_for_after_it_was_written_is_begun_and_has_its_end(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of Gloo, which tells nothing of it before."""
    monkeypatch.setattr(recorded, "HELD_S", -1)
    program, work = (
        recorded.Program(recorded.make_clock(), PLACE),
        dist.all_reduce(X, async_op=True),
    )
    message = program.add({"kind": kind, "dtype": "float", "peer": 1}, dist.group.WORLD)
    assert message and work
    program.under_way(work, [message])
    message.pending = False
    assert written_late(program) == []
    program.waited(work)
    assert [note.late for note in written_late(program)] == [(0, -1)]
    assert written_late(program) == []
    message.ended(message.issued + 7)
    assert [note.late for note in written_late(program)] == [(0, message.issued + 7)]
    assert written_late(program) == []


def test_a_wait_that_ends_after_it_was_written_has_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "HELD_S", -1)
    program = recorded.Program(recorded.make_clock(), PLACE)
    call = program.add({"kind": "send", "dtype": "float", "peer": 1}, dist.group.WORLD)
    assert call
    wait = program.wait([call])
    assert wait
    assert [line.state for line in program.ready() if isinstance(line, Call)] == ["started", ""]
    wait.ended(wait.issued + 7)
    assert [note.late for note in written_late(program)] == [(1, wait.issued + 7)]


@pytest.mark.parametrize("waits", [True, False], ids=["recv", "irecv"])
def test_the_sender_of_a_message_that_ends_after_it_was_written_is_noted(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "HELD_S", -1)
    program, group = recorded.Program(recorded.make_clock(), PLACE), dist.group.WORLD
    assert group
    received = program.add({"kind": "recv", "dtype": "float", "nbytes": 4, "peer": -1}, group)
    assert received
    if not waits:
        received.pending, received.work = False, dist.all_reduce(X, async_op=True)
    (line,) = (line for line in program.ready() if isinstance(line, Call))
    assert (line.peer, line.state) == (-1, "started" if waits else "")
    received.fields["peer"] = 3
    received.ended(received.issued + 7)
    (note,) = written_late(program)
    assert (note.late, note.peer) == ((0, received.issued + 7), 3)


def test_the_mark_of_an_iteration_is_written_once_it_has_ended() -> None:
    program = recorded.Program(recorded.make_clock(), PLACE)
    program.iterated((3, 7))
    notes = [line for line in program.ready() if isinstance(line, own.Note) and line.step]
    assert [note.step for note in notes] == [(3, 7)]


def raises(*_: object) -> None:
    raise ValueError("planted")


def test_the_header_says_whose_it_is(tmp_path: Path) -> None:
    with collbench.record(tmp_path):
        dist.barrier()
    found = read(tmp_path)
    assert (found.rank, found.world, found.backend) == (0, RANKS, "fake")


def test_a_group_of_several_backends_is_of_its_tensors_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda: "undefined")
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl,cpu:gloo")
    with collbench.record(tmp_path):
        dist.all_reduce(torch.ones(2))
    assert read(tmp_path).backend == "gloo"


def test_a_relative_folder_is_where_the_job_was_when_recording_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with collbench.record("trace"):
        monkeypatch.chdir(tmp_path / "other")
        dist.all_reduce(torch.ones(2))
    assert len(read(tmp_path / "trace").calls) == 1


def train(iterations: int, optimizers: int) -> None:
    weights = nn.Parameter(torch.ones(2))
    made = [torch.optim.SGD([weights], lr=0.1) for _ in range(optimizers)]
    for number in range(iterations):
        dist.all_reduce(torch.ones(number + 1))
        weights.grad = torch.ones(2)
        for optimizer in made:
            optimizer.step()


@pytest.mark.parametrize("optimizers", [1, 2])
def test_iterations_end_with_the_first_optimizers_steps(optimizers: int, tmp_path: Path) -> None:
    recorder = collbench.record(tmp_path, steps=2, after=1)
    train(5, optimizers)
    recorder.close()
    found = read(tmp_path)
    assert [call.nbytes for call in found.calls] == [8, 12]
    assert len(found.steps) == 2


def by_hand(folder: Path, after: int, times: int, optimizer: bool) -> RankTrace:
    """Two of five iterations in which the optimizer makes several steps."""
    weights = nn.Parameter(torch.ones(2))
    made = torch.optim.SGD([weights], lr=0.1)
    with collbench.record(folder, steps=2, after=after, optimizer=optimizer) as recorder:
        for number in range(5):
            for _ in range(times):
                dist.all_reduce(torch.ones(number + 1))
                weights.grad = torch.ones(2)
                made.step()
            recorder.step()
    return read(folder)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("after", [0, 1])
def test_iterations_end_where_the_program_says(after: int, times: int, tmp_path: Path) -> None:
    found = by_hand(tmp_path, after, times, optimizer=times == 1)
    sizes = [[4 * (after + 1)] * times, [4 * (after + 2)] * times]
    assert [
        [call.nbytes for call in found.calls if begin <= call.issued_ns < end]
        for begin, end in found.steps
    ] == sizes


def test_an_optimizer_with_several_steps_an_iteration_is_told(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"2 steps .* one iteration: optimizer=False"):
        by_hand(tmp_path, 0, 3, optimizer=True)


def test_marks_of_iterations_before_the_first_call_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PAUSE_S", 0.001)
    with collbench.record(tmp_path, steps=2) as recorder:
        recorder.step()
        time.sleep(0.1)  # in which the writing thread looks for lines
        dist.barrier()
        recorder.step()
    assert len(read(tmp_path).steps) == 2


def test_the_file_of_an_earlier_recording_is_gone_before_the_first_call_that_is_recorded(
    tmp_path: Path,
) -> None:
    file = tmp_path / own.file_name(0)
    with collbench.record(tmp_path):
        dist.barrier()
    recorder = collbench.record(tmp_path, after=1)
    assert file.exists()  # a job that ends here leaves it
    recorder.step()
    assert not file.exists()
    with pytest.warns(RuntimeWarning, match="no call between ranks"):
        recorder.close()


def test_where_no_iteration_ends_a_warning_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.warns(RuntimeWarning, match=r"is recorder.step\(\) called"),
        collbench.record(tmp_path, after=1),
    ):
        dist.barrier()


def test_where_fewer_iterations_ended_than_are_left_out_the_warning_has_their_numbers(
    tmp_path: Path,
) -> None:
    expected = r"2 iterations ended, and after=20 leaves out more"
    with (
        pytest.warns(RuntimeWarning, match=expected),
        collbench.record(tmp_path, after=20) as recorder,
    ):
        recorder.step()
        recorder.step()


@pytest.mark.parametrize("after", [0, 1], ids=["by the writing thread", "at the end"])
def test_a_warning_is_at_the_line_that_began_the_recording(after: int, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning) as warned:
        recorder = collbench.record(tmp_path, after=after)
        recorder.close()
    (warning,) = warned
    line = Path(__file__).read_text().splitlines()[warning.lineno - 1]
    assert (warning.filename, line.strip()) == (
        __file__,
        "recorder = collbench.record(tmp_path, after=after)",
    )


def test_a_call_is_in_the_file_with_its_group_before_the_library_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it is there where the library aborts the process."""
    group, seen = dist.new_group([0, 3]), []
    onward = _Onward.__call__

    def look(*given: object) -> object:
        seen.append(read(tmp_path))
        return onward(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(_Onward, "__call__", look)
    with collbench.record(tmp_path) as recorder:
        dist.all_reduce(torch.ones(1))
        recorder.step()
        dist.broadcast(torch.ones(2), 3, group=group)
    assert [[call.nbytes for call in rank.calls] for rank in seen] == [[4], [4, 8]]
    last = seen[-1]
    assert (last.groups[last.calls[1].group], len(last.steps)) == ((0, 3), 1)
    assert [call.state for call in last.calls] == ["", ""]


def test_no_observing_thread_outlives_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes out of torch while Python ends aborts the process."""
    observe = recorded._observe_calls

    def slowly(*given: Any) -> None:
        observe(*given)
        time.sleep(0.3)

    monkeypatch.setattr(recorded, "_observe_calls", slowly)
    with collbench.record(tmp_path):
        dist.all_reduce(X, async_op=True).wait()  # type: ignore[union-attr]
    assert [t.name for t in threading.enumerate() if t.name.startswith("collbench")] == []


def test_a_job_without_calls_is_told_that_there_is_no_file(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="no call between ranks"), collbench.record(tmp_path):
        pass


@pytest.mark.parametrize("given", [{"steps": 0}, {"after": -1}])
def test_wrong_arguments_are_a_warning(given: dict[str, int], tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="steps is from 1 on"):
        collbench.record(tmp_path, **given).close()


def test_a_reduction_that_torch_does_not_tell_is_a_sum_and_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "name_reduction", lambda _: "")
    with (
        pytest.warns(RuntimeWarning, match="does not tell which reduction") as warned,
        collbench.record(tmp_path) as recorder,
    ):
        for _ in range(2):
            dist.all_reduce(X, dist.ReduceOp.MAX)
            recorder.step()
    assert [call.op for call in read(tmp_path).calls] == ["sum", "sum"]
    assert [Path(each.filename).name for each in warned] == [Path(__file__).name]
    assert interception.name_reduction(object()) == ""


def test_a_reduction_that_torch_tells_has_its_name() -> None:
    class Told:
        def op(self) -> int:
            return 4

    assert interception.name_reduction(Told()) == "max"
