"""A collective called once, by real ranks, on numbers that somebody has given: what every rank's
buffers hold afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun, CollbenchError, RunBroken, UsageError, first_line
from collbench.run.launch import folders
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.survive.signals import interrupts

Number = int | float

MAX_SECONDS = 120  # that ranks have for their start and one call


class Buffers(NamedTuple):
    """A rank's two buffers after the call; one and the same (``recv`` is None) where the collective
    works in place."""

    send: list[Number]
    recv: list[Number] | None


class _RankResult(msgspec.Struct, frozen=True):
    """What a rank leaves in its file: its buffers, or why it has none."""

    buffers: Buffers | None = None
    refused: tuple[str, str] = ("", "")


def run_collective(
    collective: str,
    algorithm: str,
    backend: str,
    values: Sequence[Sequence[Number]],
    root: int = 0,
) -> list[Buffers]:
    """Call it with ``values[rank]`` at every rank, and return every rank's buffers; in place where
    the collective has such a form and the backend does it. Whole numbers are int64, others double.

    Raises UsageError where the collective does not take so many values a rank, CannotRun where the
    backend cannot run it here.
    """
    from torch.multiprocessing.spawn import (
        ProcessException,
        ProcessExitedException,
        start_processes,
    )

    case = build_case(collective, algorithm, backend, values, root)
    _refuse_mpirun(backend)
    # torch is loaded here: forked ranks need not load it anew, but CUDA may not be forked
    method = "spawn" if backend_info(backend).gpu else "fork"
    with folders.make_private() as folder:
        arguments = (folder, case, values)
        try:
            _wait_for_ranks(
                start_processes(_run_rank, arguments, case.n, join=False, start_method=method)  # type: ignore[no-untyped-call]
            )
        except ProcessException as e:
            if isinstance(e, ProcessExitedException) and e.signal_name:
                raise RunBroken(
                    f"rank {e.error_index} of {backend} was killed by {e.signal_name}"
                ) from e
            raise CannotRun(f"a rank of {backend} failed: {str(e).splitlines()[-1]}") from e
        results = [
            msgspec.msgpack.decode((folder / f"{rank}.result").read_bytes(), type=_RankResult)
            for rank in range(case.n)
        ]
    for message, hint in (result.refused for result in results if result.buffers is None):
        raise CannotRun(message, hint)
    return [result.buffers for result in results if result.buffers]


def _wait_for_ranks(context: Any) -> None:
    """Waits until all ranks have ended. Raises RunBroken where they do not, within MAX_SECONDS."""
    until = time.monotonic() + MAX_SECONDS
    try:
        while not context.join(timeout=1):
            if time.monotonic() > until:
                ranks = [
                    str(r) for r, process in enumerate(context.processes) if process.is_alive()
                ]
                who = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
                raise RunBroken(
                    f"{who} did not return from the call within {MAX_SECONDS} s",
                    "does another rank hang? collbench measures the same call with -T",
                )
    finally:
        for rank_process in context.processes:
            if rank_process.is_alive():
                rank_process.kill()


def _refuse_mpirun(backend: str) -> None:
    if backend_info(backend).launch == "mpirun":
        raise UsageError(f"--on {backend}: its ranks need mpirun", "use --on gloo or --on shm")


def build_case(
    collective: str,
    algorithm: str,
    backend: str,
    values: Sequence[Sequence[Number]],
    root: int = 0,
) -> Case:
    """The case whose ranks send as many elements as they are given. Raises UsageError where there
    is none."""
    n, length = len(values), len(values[0])
    are_whole = all(isinstance(value, int) for row in values for value in row)
    dtype = "int64" if are_whole else "double"
    case = Case(collective=collective, backend=backend, n=n, nbytes=0, algorithm=algorithm)
    row = case.row
    case = msgspec.structs.replace(
        case,
        dtype=dtype,
        op="sum" if row.reduces else "none",
        root=root if row.rooted else -1,
        in_place=row.in_place is not None,
        splits="uniform" if row.uneven else "",
    )
    element = case.type.size
    for count in (length, length * n):
        candidate = msgspec.structs.replace(case, nbytes=count * element)
        if candidate.counts[0] == length:
            return candidate
    raise UsageError(
        f"--values: {collective} of {n} ranks needs multiples of {n} numbers, not {length}",
        f"give {n} or {2 * n} numbers a rank",
    )


def _run_rank(rank: int, folder: Path, case: Case, values: Sequence[Sequence[Number]]) -> None:
    """Run one rank's process, which writes its result to its file in ``folder``."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    interrupts.leave_to_the_system()  # a forked one: torch ends it by SIGTERM when another fails
    try:
        result = _RankResult(_call_on_rank(rank, folder, case, values))
    except CollbenchError as e:
        result = _RankResult(refused=(e.message, e.hint))
    except (RuntimeError, ValueError, OSError) as e:
        result = _RankResult(refused=(f"rank {rank} of {case.label}: {first_line(e)}", ""))
    (folder / f"{rank}.result").write_bytes(msgspec.msgpack.encode(result))


def _call_on_rank(
    rank: int, folder: Path, case: Case, values: Sequence[Sequence[Number]]
) -> Buffers:
    from torch import distributed, tensor

    from collbench.machine import environment
    from collbench.run import backends, refusal
    from collbench.run.rank import calls, worker

    setup = worker.Place(rank, case.n, rank, case.n, "")
    store = distributed.FileStore(str(folder / "store"), case.n)  # type: ignore[attr-defined]
    control = worker.connect_control(setup, store)
    backend = backends.find_backend(case.backend)
    backend.policy, backend.hosts = Policy(), control.collect(environment.host_name())
    backend.open(rank, case.n, rank)
    try:
        if refusal.refuse_opened(case, backend):
            case = msgspec.structs.replace(case, in_place=False)
        if why := refusal.refuse_opened(case, backend):
            raise CannotRun(why)
        ((buffers,),) = calls.allocate_slots(backend, [case], [rank])
        buffers.written.zero_()
        sent = tensor(values[rank], dtype=buffers.send.dtype)
        buffers.send.copy_(sent)
        control.barrier()
        backend.prepare(case, buffers.send, buffers.recv).run_with_data(backend.finish)
        control.barrier()
        if buffers.memory is not None:
            return Buffers(buffers.memory.tolist(), None)
        return Buffers(buffers.send.tolist(), buffers.recv.tolist())
    finally:
        backend.close()
        backend.leave()
