"""Steps of training as they are to be run: each operation as a case of its group's, and what all of
them need. Loads no torch."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core import splits
from collbench.core.backend_info import backend_info, list_capable
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.text import format_size
from collbench.features.training.parts import PARTS
from collbench.features.training.reshape import LONG
from collbench.features.training.step import POINT_TO_POINT, Op, Step, split_programs
from collbench.run import refusal
from collbench.suite.case import Case
from collbench.suite.policy import Policy

FEWEST, SETTLED = 6, 3  # rounds that bound a median, and those before that only warm up
SLOW = 0.5  # seconds of a step of which one round warms up all there is
LEAST, MORE = 10, 3  # rounds that may take so much more than the policy's time
WATCHED = 5  # steps in which each operation is timed
MOST_TIMED = 200_000  # operations of rank 0; of a step with more, none is timed by itself
ALONE, ALONE_SHARE = 7, 0.5  # calls of each operation by itself, in so much of the steps' own time
COUNTED = 2  # times that a step's bytes are counted
BLAMED, BLAME_ROUNDS = 5, 20  # operations that are left out, each in so many rounds

LIKE = "broadcast"  # of two ranks, which a message between them is like
MESSAGE = "message"
CROSSING = (f"{MESSAGE} down", f"{MESSAGE} up")  # lanes of messages on a device


def site_of(op: Op) -> tuple[str, str]:
    """The group and the lane (a queue of its own at the library) that an operation runs on;
    messages have one lane of their own."""
    return op.group, MESSAGE if op.kind in POINT_TO_POINT else op.lane


class Played(NamedTuple):
    """An operation of a rank's program that has somebody to talk to: its place there, the case of
    its group, the group's members and this rank's place among them; ``turn`` counts operations of
    the kind in the group (of a message, those between the two), and so is the same on all members.
    """

    at: int
    op: Op
    case: Case
    members: tuple[int, ...]
    rank: int
    turn: int

    @property
    def site(self) -> tuple[str, str]:
        """The group and the lane that it runs on."""
        return site_of(self.op)

    def find_site(self, on_device: bool) -> tuple[str, str]:
        """``site``, but that on a device messages to higher ranks and to lower ones have a lane
        each: torch has NCCL put all messages of a process group between two ranks on one stream,
        where two that cross would wait for each other."""
        if self.op.kind not in POINT_TO_POINT or not on_device:
            return self.site
        goes_up = (self.op.peer > self.rank) == (self.op.kind == "send")
        return self.op.group, CROSSING[goes_up]

    @property
    def both_ends(self) -> tuple[int, ...]:
        """The two ranks of a message as the world counts them, the lower first; empty for a
        collective."""
        if self.op.kind not in POINT_TO_POINT:
            return ()
        return tuple(sorted((self.members[self.rank], self.members[self.op.peer])))

    @property
    def meeting(self) -> str:
        """A phrase for the ranks that meet in the operation, the same on all of them, and for the
        tag of a message."""
        label = f"{' '.join(self.site)} {min(self.members)}"
        if self.op.kind not in POINT_TO_POINT:
            return label
        ends = (self.rank, self.op.peer)
        way = ">".join(map(str, ends[:: 1 if self.op.kind == "send" else -1]))
        return f"{label} {way} {self.op.tag}"

    @property
    def who(self) -> tuple[str, Case, int]:
        """The key that tells it from all others of the step, the same on all that meet in it."""
        return self.meeting, self.case, self.turn


def list_played(step: Step, rank: int, backend: str, algorithm: str = "native") -> list[Played]:
    """The operations of a rank's program that talk to others, in order. Those of groups of one rank
    do nothing."""
    turns: Counter[object] = Counter()
    tables: dict[tuple[str, str], Iterator[tuple[str, int]]] = {}
    operations = []
    for at, op in enumerate(step.program(rank).ops):
        if not op.communicates:
            continue
        members = step.members(op.group, rank)
        if len(members) == 1:
            continue
        index = members.index(rank)
        lane = op.group, op.lane
        if op.sends and lane not in tables:
            tables[lane] = _list_split_tables(step, *lane, members)
        blocks, nbytes = next(tables[lane]) if op.sends else ("", op.nbytes)
        case = _make_case(op, len(members), backend, algorithm, blocks, nbytes)
        operation = Played(at, op, case, members, index, 0)
        turn_key = (operation.meeting, case)
        operations.append(operation._replace(turn=turns[turn_key]))
        turns[turn_key] += 1
    return operations


def _list_split_tables(
    step: Step, group: str, lane: str, members: tuple[int, ...]
) -> Iterator[tuple[str, int]]:
    """What _write_table makes of each all_to_allv of a group, in order."""
    rows = (
        [
            (op.sends, DTYPES[op.dtype].size)
            for op in step.program(rank).ops
            if op.sends and (op.group, op.lane) == (group, lane)
        ]
        for rank in members
    )
    return map(_write_table, zip(*rows, strict=True))


@functools.lru_cache(maxsize=1 << 10)
def _write_table(rows: tuple[tuple[tuple[int, ...], int], ...]) -> tuple[str, int]:
    """The splits of an all_to_allv, a table in words of what every member sends, and the bytes of
    the largest buffer, which a scaled step's op does not have, as every block of it is rounded up.
    ``rows``: each member's elements, and the size of one."""
    table = [[count * itemsize for count in sends] for sends, itemsize in rows]
    blocks = splits.write_table(table)
    return blocks, splits.table_bytes(blocks, len(table)) or 0


def _make_case(
    op: Op,
    n: int,
    backend: str,
    algorithm: str,
    blocks: str = "uniform",
    nbytes: int | None = None,
) -> Case:
    """The case that an operation is in its group: in place where frameworks have it so."""
    message = op.kind in POINT_TO_POINT
    row = COLLECTIVES[LIKE if message else op.kind]
    return Case(
        collective=row.name,
        backend=backend,
        n=2 if message else n,
        nbytes=op.nbytes if nbytes is None else nbytes,
        algorithm="native" if message or not row.moves_data else algorithm,
        dtype=op.dtype,
        op=op.op if row.reduces else "none",
        root=0 if message else op.root,
        in_place=row.in_place == "same",
        splits=blocks if row.uneven else "",
    )


def refuse_step_case(
    step: Step, case: Case, refuse: Callable[[Case], str] = refusal.refuse_anywhere
) -> str:
    """The reason why a step cannot be run as ``case`` asks, else an empty string. ``refuse`` is
    called for each operation of the step."""
    info = backend_info(case.backend)
    if info.groups == "none":
        return f"{case.backend} runs no steps; {list_capable(lambda o: o.groups != 'none')} do"
    families = {op.group for op in _list_communicating(step)}
    if info.worlds == "one" and len(families) > 1:
        return (
            f"{case.backend} joins one world in a process, and {step.name} has"
            f" {len(families)} families of groups"
        )
    if not info.tags and (crossed := _find_crossed_messages(step)):
        return f"{step.name}: {crossed}, and {case.backend} tells messages apart by order alone"
    judged_cases: set[Case] = set()
    for op in _list_communicating(step):
        where = f"{step.name}: {op.kind}"
        if op.kind in POINT_TO_POINT and not info.messages:
            return f"{where}: {case.backend} has no messages from rank to rank"
        for n in {len(group) for group in step.family(op.group)} - {1}:
            operation_case = _make_case(op, n, case.backend, case.algorithm)
            if operation_case not in judged_cases and (reason := refuse(operation_case)):
                return f"{where} of {format_size(op.nbytes)} {op.dtype}: {reason}"
            judged_cases.add(operation_case)
    return ""


def _find_crossed_messages(step: Step) -> str:
    """A clause on two ranks, one of which receives the other's messages in another order than they
    are sent, by their tags; empty where there are none."""
    sent: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    received: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    groups = {
        name: {rank: group for group in step.family(name) for rank in group} for name in step.used
    }
    for program in step.programs:
        messages = [op for op in program.ops if op.kind in POINT_TO_POINT]
        for rank, op in itertools.product(program.ranks, messages):
            other = groups[op.group][rank][op.peer]
            if op.kind == "send":
                sent[op.group, rank, other].append(op.tag)
            else:
                received[op.group, other, rank].append(op.tag)
    for way, tags in sent.items():
        for at, (tag, asked) in enumerate(zip(tags, received[way], strict=False)):
            if tag != asked:
                _, source, target = way
                return (
                    f"rank {target} receives message {at} of rank {source} by tag {asked}, which"
                    f" was sent with tag {tag}"
                )
    return ""


def _list_communicating(step: Step) -> Iterator[Op]:
    return (op for program in step.programs for op in program.ops if op.communicates)


def list_kinds(step: Step, case: Case) -> list[Case]:
    """A case for each kind of operation of a step, among all ranks, by which to try whether a
    library has it."""
    cases = {}
    for op in _list_communicating(step):
        if op.kind not in POINT_TO_POINT and any(len(g) > 1 for g in step.family(op.group)):
            operation_case = _make_case(op, case.n, case.backend, case.algorithm)
            cases[op.kind, op.dtype, op.op] = replace(
                operation_case, root=min(operation_case.root, 0)
            )
    return [*cases.values()]


def list_dtypes(step: Step) -> list[str]:
    """The element types of all operations that communicate, sorted."""
    return sorted({op.dtype for op in _list_communicating(step)})


def count_buffer_bytes(step: Step, case: Case, count_bytes: Callable[[Case], int]) -> int:
    """Bytes of all buffers on the rank that needs most. Every operation has its own buffers, of
    ``count_bytes(case)`` bytes."""
    count_bytes = functools.cache(count_bytes)
    return max(
        (
            sum(
                count_bytes(operation.case)
                for operation in list_played(step, rank, case.backend, case.algorithm)
            )
            for rank in _list_first(step)
        ),
        default=0,
    )


def list_calls(step: Step, case: Case) -> list[Case]:
    """The operations of the rank that talks most, as cases."""
    every = (
        [operation.case for operation in list_played(step, rank, case.backend, case.algorithm)]
        for rank in _list_first(step)
    )
    return max(every, key=len, default=[])


def _list_first(step: Step) -> list[int]:
    """A rank of each program, and of each size that its groups have."""
    return [program.ranks[0] for program in split_programs(step)]


def choose_warmup(policy: Policy, seconds: float) -> int:
    """Rounds that only warm up, where a step takes so many seconds."""
    return (1 if seconds > SLOW else SETTLED) if policy.warmup is None else policy.warmup


def most_rounds(policy: Policy, seconds: float) -> int:
    """Rounds that are taken of a resolved policy, at most, where one takes so many seconds."""
    if policy.iters is not None:
        return policy.iters
    within = len(PARTS) * (policy.max_seconds or 0.0) / seconds
    few = max(FEWEST, math.ceil(MORE * within - 0.5))
    return few if few < LEAST else min(policy.max_iters, max(LEAST, math.ceil(within - 0.5)))


class Rounds(NamedTuple):
    """What measuring a step takes once it is warm: ``number`` of rounds at most, and seconds,
    ``least`` where its times hardly scatter, ``most`` where they do."""

    number: int
    least: float
    most: float


def forecast_rounds(policy: Policy, parts: Sequence[float]) -> Rounds:
    """The rounds that a resolved policy comes to where each of PARTS takes so many seconds."""
    step, _, communication = parts
    round_seconds = sum(parts)
    rounds = most_rounds(policy, round_seconds)
    extra = step * (WATCHED + 1 + BLAME_ROUNDS * (1 + BLAMED) * policy.blame)  # 1: data is checked
    extra += communication * COUNTED

    def seconds(number: int) -> float:
        alone = min(ALONE_SHARE * number * round_seconds, communication * (1 + ALONE))
        return number * round_seconds + alone + extra

    fewest = rounds if policy.iters is not None else min(rounds, LEAST)
    return Rounds(rounds, seconds(fewest), seconds(rounds))


def estimate_computing(step: Step, flops: float, copied: float) -> float:
    """A rough guess of the seconds that a rank computes, where it does so much in a second."""

    def seconds(op: Op) -> float:
        if step.compute in LONG:
            return op.compute_ns / 1e9
        products, copies = op.flops / flops, op.touched / copied
        return {"none": 0.0, "gemm": products, "copy": copies}.get(step.compute, products + copies)

    return max((sum(map(seconds, program.ops)) for program in step.programs), default=0.0)
