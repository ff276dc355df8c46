"""The walk of a step: all programs at once, in lock step, on one clock.

It ends for every step that can be run: what it finds instead is a deadlock, with the circle of
ranks that wait for each other, or ranks that disagree on an operation. Given how long operations
take, it says when each begins and ends, and so what a step takes.

Ranks that do the same with ranks that do the same are one actor, so that a step of 16,384 ranks is
walked as its few dozen kinds of ranks are: ranks are told apart by their programs, then, until
nothing changes, by the kinds of those that they meet (colour refinement; Paige and Tarjan 1987).
Between point-to-point partners a send is a rendezvous: it ends with its receive.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.features.training.step import LOCAL, POINT_TO_POINT, Groups, Op, Step

Sends = tuple[int, ...]  # elements that a rank sends to each member of its group


class Party(NamedTuple):
    """Those that take part in an operation: all ``members`` of its group, or of a message its own
    rank and the peer. ``ranks`` are those for whom it stands: all of one kind where what they send
    differs, else the first of them. ``table`` has what each member of an all_to_allv sends to each,
    in elements."""

    members: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    table: tuple[Sends, ...] = ()


Seconds = Callable[[Op, Party], float]  # what an operation takes among these ranks


class Use(NamedTuple):
    """How an operation needs to know those it meets: all members of its group alike, or some by
    their places."""

    group: str
    places: tuple[int, ...] = ()


def list_uses(ops: Sequence[Op]) -> set[Use]:
    """The groups and peers that a rank's operations need."""
    uses = set()
    for op in ops:
        if op.kind in POINT_TO_POINT:
            uses.add(Use(op.group, (op.peer,)))
        elif op.communicates:
            uses.add(Use(op.group))
            if COLLECTIVES[op.kind].rooted:
                uses.add(Use(op.group, (op.root,)))
    return uses


class Exchange(NamedTuple):
    """What kinds of ranks send in an all_to_allv, and a number for it."""

    number: int
    sends_by_kind: Mapping[int, Sends]


NO_EXCHANGE = Exchange(-1, {})


class Actors:
    """The kinds of ranks of a step. ``kind[rank]`` is a number, ``first[number]`` the lowest rank
    of that kind, ``count[number]`` how many there are."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._families: dict[str, Groups] = {name: step.family(name) for name in step.used}
        self.kind = self._refined()
        self.first: list[int] = []
        for rank, number in enumerate(self.kind):
            if number == len(self.first):
                self.first.append(rank)
        self.count = Counter(self.kind)
        self._groups = {
            name: {rank: group for group in family for rank in group}
            for name, family in self._families.items()
        }
        self._parties: dict[tuple[int, str, int, int], Party] = {}
        self._exchanges: dict[Hashable, Exchange] = {}
        self._tables: dict[tuple[int, int], tuple[Sends, ...]] = {}

    def members(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group of this name in which ``rank`` is."""
        return self._groups[name][rank]

    def find_exchange(self, ops: Mapping[int, Op]) -> Exchange:
        """What kinds of ranks send in one operation that they have together."""
        if not next(iter(ops.values())).sends:
            return NO_EXCHANGE
        key = tuple(sorted((kind, id(op.sends)) for kind, op in ops.items()))  # of the step's own
        if (exchange := self._exchanges.get(key)) is None:
            sends_by_kind = {kind: op.sends for kind, op in ops.items()}
            exchange = self._exchanges[key] = Exchange(len(self._exchanges), sends_by_kind)
        return exchange

    def find_party(self, op: Op, number: int, exchange: Exchange) -> Party:
        """Those that take part in an operation of this kind of rank, by the first of that kind."""
        peer = op.peer if op.kind in POINT_TO_POINT else -1
        key = number, op.group, peer, exchange.number
        if (party := self._parties.get(key)) is None:
            rank = self.first[number]
            group = self.members(op.group, rank)
            members = (rank, group[op.peer]) if op.kind in POINT_TO_POINT else group
            alike = tuple(r for r in group if self.kind[r] == number) if op.sends else (rank,)
            table = self._find_table(group, exchange) if op.sends else ()
            party = self._parties[key] = Party(members, alike, table)
        return party

    def _find_table(self, group: tuple[int, ...], exchange: Exchange) -> tuple[Sends, ...]:
        key = exchange.number, id(group)  # one table for all members
        if key not in self._tables:
            sends_by_kind = exchange.sends_by_kind
            self._tables[key] = tuple(sends_by_kind[self.kind[rank]] for rank in group)
        return self._tables[key]

    def _refined(self) -> list[int]:
        """A number for each rank, in order of appearance."""
        of_program = [0] * self._step.world
        for number, program in enumerate(self._step.programs):
            for rank in program.ranks:
                of_program[rank] = number
        uses_by_program = [list_uses(program.ops) for program in self._step.programs]
        colours, colour_count = _number_marks(of_program), 0
        while len({*colours}) > colour_count:
            colour_count = len({*colours})
            marks: list[list[Hashable]] = [[colour] for colour in colours]
            for use in sorted({use for program_uses in uses_by_program for use in program_uses}):
                for rank, mark in self._marks(use, colours):
                    if use in uses_by_program[of_program[rank]]:
                        marks[rank].append(mark)
            colours = _number_marks([tuple(mark) for mark in marks])
        return colours

    def _marks(self, use: Use, colours: Sequence[int]) -> Iterator[tuple[int, Hashable]]:
        """For each rank a mark that is equal for ranks which meet ranks of the same colours in this
        use of a group."""
        for group in self._families[use.group]:
            if not use.places:
                mark: Hashable = tuple(sorted(Counter(colours[rank] for rank in group).items()))
                for rank in group:
                    yield rank, mark
                continue
            met = tuple(colours[group[at]] if at < len(group) else -1 for at in use.places)
            for at, rank in enumerate(group):
                yield rank, (met, at)


def _number_marks(marks: Sequence[Hashable]) -> list[int]:
    """Marks as numbers from 0, in order of appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(mark, len(numbers)) for mark in marks]


class Span(NamedTuple):
    """When an operation begins and ends, in seconds from the step's begin."""

    begin: float
    end: float


class _Meeting:
    """One operation of several actors: complete once all are there, and all that they wait for is
    done."""

    __slots__ = ("begin", "index_by_actor", "needed", "open")

    def __init__(self, needed: frozenset[int]) -> None:
        self.needed = needed
        self.index_by_actor: dict[int, int] = {}  # index in its program
        self.open = 0  # how many operations it waits for
        self.begin = 0.0  # not before


class Walk:
    """A walk of a step, done once made. ``spans[kind]`` has a Span for each operation of that kind
    of rank's program; ``actors`` are those of an earlier walk of the same step. Raises UsageError
    where ranks disagree, or wait for each other in a circle."""

    def __init__(
        self, step: Step, seconds: Seconds | None = None, actors: Actors | None = None
    ) -> None:
        self._step, self._seconds = step, seconds or (lambda op, party: 0.0)
        self.actors = actors or Actors(step)
        of_rank = {rank: program.ops for program in step.programs for rank in program.ranks}
        self.ops = [of_rank[rank] for rank in self.actors.first]
        number = len(self.ops)
        self.spans: list[list[Span | None]] = [[None] * len(ops) for ops in self.ops]
        self._at, self._clock = [0] * number, [0.0] * number
        self._tails: list[dict[tuple[str, str], int]] = [{} for _ in range(number)]
        self._turns: list[Counter[int]] = [Counter() for _ in range(number)]
        self._meetings: dict[tuple[int, int], _Meeting] = {}
        self._meetings_at: list[list[_Meeting | None]] = [[None] * len(ops) for ops in self.ops]
        self._partners: dict[Hashable, tuple[int, frozenset[int]]] = {}
        self._names: dict[Hashable, int] = {}
        self._waiting: dict[tuple[int, int], list[_Meeting]] = defaultdict(list)
        self._undone: list[set[int]] = [set() for _ in range(number)]
        self._last = [0.0] * number
        self._runnable = deque(range(number))
        self._running = {*self._runnable}  # and that which runs
        while self._runnable:
            self._run(actor := self._runnable.popleft())
            self._running.discard(actor)
        if stuck := [a for a in range(number) if self._at[a] < len(self.ops[a])]:
            raise UsageError(
                f"{step.name}: deadlock: {self._circle(self.actors.first[stuck[0]])}",
                "put operations of a group in the same order on all its ranks, receives before or"
                " beside sends",
            )

    @property
    def seconds(self) -> float:
        """The step's time: until the last rank is through with all its operations."""
        ends = [span.end for spans in self.spans for span in spans if span]
        return max(*self._clock, *ends, 0.0)

    def _run(self, actor: int) -> None:
        """Go on with an actor's program as far as it comes."""
        spans = self.spans[actor]
        for at in range(self._at[actor], len(spans)):
            self._at[actor] = at
            op = self.ops[actor][at]
            if op.kind in LOCAL:
                if not self._do_alone(actor, at, op):
                    return
                continue
            if self._meetings_at[actor][at] is None:
                self._issue(actor, at, op)
            if op.wait == "call":
                if (span := spans[at]) is None:
                    return
                self._clock[actor] = max(self._clock[actor], span.end)
        self._at[actor] = len(spans)

    def _do_alone(self, actor: int, at: int, op: Op) -> bool:
        """Do what needs nobody else, unless it waits for what is not done yet."""
        begin = self._clock[actor]
        for needed in op.after:
            if (span := self.spans[actor][needed]) is None:
                return False
            begin = max(begin, span.end)
        if op.kind == "wait" and not op.after:
            if self._undone[actor]:
                return False
            begin = max(begin, self._last[actor])
        took = self._seconds(op, Party()) if op.kind == "compute" else 0.0
        self.spans[actor][at] = Span(begin, begin + took)
        self._clock[actor] = begin + took
        return True

    def _issue(self, actor: int, at: int, op: Op) -> None:
        """An actor comes to an operation with others."""
        name, needed = self._find_meeting(actor, op)
        turn = self._turns[actor][name]
        self._turns[actor][name] = turn + 1
        if (meeting := self._meetings.get((name, turn))) is None:
            meeting = self._meetings[name, turn] = _Meeting(needed)
        else:
            self._agree(meeting, actor, at, op)
        self._meetings_at[actor][at] = meeting
        self._undone[actor].add(at)
        meeting.index_by_actor[actor] = at
        begin, tails = max(meeting.begin, self._clock[actor]), self._tails[actor]
        tail = tails.get((op.lane, op.group))
        tails[op.lane, op.group] = at
        for earlier in op.after if tail is None else (*op.after, tail):
            if (span := self.spans[actor][earlier]) is None:
                meeting.open += 1
                self._waiting[actor, earlier].append(meeting)
            else:
                begin = max(begin, span.end)
        meeting.begin = begin
        if not meeting.open and len(meeting.index_by_actor) == len(needed):
            self._complete(meeting)

    def _find_meeting(self, actor: int, op: Op) -> tuple[int, frozenset[int]]:
        """A number for the operation in which an actor meets others, equal for all of them, and the
        actors that it needs."""
        end = (op.kind, op.peer, op.tag) if op.kind in POINT_TO_POINT else ()
        key = actor, op.group, end
        if (partner := self._partners.get(key)) is None:
            name, needed = self._name_meeting(actor, op)
            partner = self._partners[key] = self._names.setdefault(name, len(self._names)), needed
        return partner

    def _name_meeting(self, actor: int, op: Op) -> tuple[Hashable, frozenset[int]]:
        """A name that all actors of one operation give it alike, and these actors."""
        kinds = self.actors.kind
        group = self.actors.members(op.group, self.actors.first[actor])
        if op.kind not in POINT_TO_POINT:
            needed = Counter(kinds[rank] for rank in group)
            return (op.group, tuple(sorted(needed.items()))), frozenset(needed)
        pair = (actor, kinds[group[op.peer]])
        way = pair if op.kind == "send" else pair[::-1]
        return (op.group, op.tag, way), frozenset(pair)

    def _agree(self, meeting: _Meeting, actor: int, at: int, own_op: Op) -> None:
        """Raises UsageError where this operation is not what the others there do."""
        for other, partner_at in meeting.index_by_actor.items():
            theirs = self.ops[other][partner_at]
            same = [(op.nbytes, op.dtype, op.op, op.root) for op in (own_op, theirs)]
            one_way = {own_op.kind, theirs.kind} == {*POINT_TO_POINT}
            if same[0] != same[1] or (own_op.kind != theirs.kind and not one_way):
                first = self.actors.first
                raise UsageError(
                    f"{self._step.name}: ranks disagree: op {partner_at} of rank {first[other]} is"
                    f" {theirs.label}, op {at} of rank {first[actor]} is {own_op.label}",
                    "make kind, size, datatype, root and reduction the same on all members",
                )
            return

    def _complete(self, meeting: _Meeting) -> None:
        """The operation, for which all are there and nothing is waited for, and then those that
        waited for it alone."""
        ready = [meeting]
        while ready:
            meeting = ready.pop()
            ops = {actor: self.ops[actor][at] for actor, at in meeting.index_by_actor.items()}
            exchange = self.actors.find_exchange(ops)
            for actor, at in meeting.index_by_actor.items():
                op = ops[actor]
                took = self._seconds(op, self.actors.find_party(op, actor, exchange))
                span = Span(meeting.begin, meeting.begin + took)
                self.spans[actor][at] = span
                self._undone[actor].discard(at)
                self._last[actor] = max(self._last[actor], span.end)
                if actor not in self._running:
                    self._running.add(actor)
                    self._runnable.append(actor)
                for waiting in self._waiting.pop((actor, at), ()):
                    waiting.open -= 1
                    waiting.begin = max(waiting.begin, span.end)
                    if not waiting.open and len(waiting.index_by_actor) == len(waiting.needed):
                        ready.append(waiting)

    def _circle(self, rank: int) -> str:
        """The ranks that wait for each other, from one that waits until one of its kind comes
        again."""
        sentences: list[str] = []
        visited: set[int] = set()
        while (actor := self.actors.kind[rank]) not in visited:
            visited.add(actor)
            if self._at[actor] == len(self.ops[actor]):
                return ", ".join([*sentences, f"which has ended (rank {rank})"])
            at, other = self._find_late(actor)
            op = self.ops[actor][at]
            members = self.actors.members(op.group, rank)
            late = next(member for member in members if self.actors.kind[member] == other)
            sentences.append(f"rank {rank} waits in op {at} ({op.label}) for rank {late}")
            rank = late
        return ", ".join(sentences)

    def _find_late(self, actor: int) -> tuple[int, int]:
        """The operation that an actor stands still for, and an actor that has not come to it."""
        met = {at: meeting for at, meeting in enumerate(self._meetings_at[actor]) if meeting}
        for at in sorted(self._undone[actor]):
            if missing := sorted(met[at].needed - {*met[at].index_by_actor}):
                return at, missing[0]
        at = min(self._undone[actor])  # all are there, and operations of another hold it up
        return at, next(partner for partner in sorted(met[at].index_by_actor) if partner != actor)


def refuse_deadlock(step: Step) -> None:
    """Raises UsageError for a step in which ranks disagree, or wait for each other for ever."""
    Walk(step)
