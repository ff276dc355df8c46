"""A rank's calls as they become its program: computing in the time between them, and waits where
the program stood still.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec.structs import replace

from collbench.core.text import printable_text
from collbench.features.traces.groups import Families, Place, group_of
from collbench.features.traces.types import HOST, Call, Interval, RankTrace
from collbench.features.training.step import LOCAL, POINT_TO_POINT, Op

LEAST_NS = 1000  # of a gap: less is what a call itself takes


class Hold(NamedTuple):
    """What the program stands still for: until when, -1 where that is unknown, and the operations
    that are waited for: all so far for none, None where they are not replayed. ``itself``: a call
    holds it up, not a wait. ``is_needed``: a later call names it in ``after``."""

    ends: int
    after: tuple[int, ...] | None
    phase: str
    itself: bool = False
    is_needed: bool = False


class Writer:
    """Writes one rank's program. Where another thread went on while a call or a wait held one up,
    what is held up is the program after its end. ``untold`` counts times in which nobody knows what
    was computed, ``inferred`` operations that the trace has no wait for and whose end shows one."""

    def __init__(
        self, rank: RankTrace, calls: Mapping[Place, Call], families: Families, factor: float
    ) -> None:
        self.untold = self.inferred = 0
        self._rank, self._calls, self._families, self._factor = rank, calls, families, factor
        self._ops: list[Op] = []
        self._ids: dict[int, int] = {}  # of operations, by the places of their calls
        self._clock = -1  # since when the program computes, -1 where that is unknown
        self._holds: list[Hold] = []
        self._loose: list[Hold] = []  # calls that the trace has no wait for
        waits = [(at, call) for at, call in enumerate(rank.calls) if call.kind == "wait"]
        self._waited = {number for _, call in waits for number in call.after}
        self._needed = {
            number for call in rank.calls if call.kind != "wait" for number in call.after
        }
        self._all_waited = max((at for at, call in waits if not call.after), default=0)

    def write(self, span: tuple[int, int], times: Interval) -> list[Op]:
        """The program from the first call of the span to that before the second; from its begin to
        its end, as far as they are known."""
        self._clock, end = times
        for at in range(*span):
            call, phase = self._rank.calls[at], printable_text(self._rank.calls[at].phase)[:40]
            now, loose = self._when(call), self._is_loose(at, call)
            if call.issued_ns < 0 and call.kind != "wait":
                self._infer_stop(now)
            if not loose:
                self._infer_wait(now)
            self._come_to(now, phase)
            after = tuple(self._ids[number] for number in call.after if number in self._ids)
            if call.kind == "compute":
                self._compute(call, phase, after)
            elif call.kind == "wait" or (call.kind == "mark" and call.after):
                none = None if call.after else ()  # of those it names, if it names any
                self._holds.append(Hold(call.ends_ns, after or none, phase))
            elif call.kind not in LOCAL:
                op = self._talk(at, call, phase, after)
                if loose and op is not None:
                    needed = at in self._needed
                    self._loose.append(Hold(call.ends_ns, (op,), phase, is_needed=needed))
                elif self._holds_up(call):
                    own = None if op is None else (op,)
                    self._holds.append(Hold(call.ends_ns, own, phase, itself=True))
        self._infer_wait(end)
        self._come_to(end, "")
        self._release(self._holds)
        return self._ops

    def _is_loose(self, at: int, call: Call) -> bool:
        """Whether the trace has no wait for a call, so that its end may show one."""
        alone = at not in self._waited and at >= self._all_waited and not call.waits
        return call.kind not in LOCAL and alone

    def _infer_wait(self, now: int) -> None:
        """Add a wait for the latest calls that the trace has no wait for, if all of them had ended
        by ``now`` (ns), when the program went on: libraries wait so for what they started."""
        loose = [hold for hold in self._loose if not hold.is_needed]
        if loose and all(0 <= hold.ends <= now for hold in loose):
            self._wait_for(loose)

    def _infer_stop(self, now: int) -> None:
        """Add a wait for calls that had ended by ``now`` (ns), when the next call began, if nothing
        was computed until their end. Messages get none, as two ranks may exchange them, but the
        program stands still for them, too."""
        if now < 0 or self._clock < 0:
            return
        self._loose = [
            hold for hold in self._loose if not hold.is_needed or hold.ends > self._clock
        ]
        ended = [hold for hold in self._loose if 0 <= hold.ends <= now]
        latest = max((hold.ends for hold in ended), default=-1)
        stops = [self._clock, *(hold.ends for hold in self._holds)]
        if min(stops) >= 0 and max(stops) < latest:
            self._wait_for([hold for hold in ended if not self._is_message(hold)])
            self._holds.append(Hold(latest, None, ""))

    def _wait_for(self, loose: Sequence[Hold]) -> None:
        """Add a wait for calls of ``self._loose``, which ended before the program went on."""
        if loose:
            ops = tuple(op for hold in loose for op in hold.after or ())
            self._holds.append(Hold(max(hold.ends for hold in loose), ops, loose[-1].phase))
            self.inferred += sum(not hold.is_needed for hold in loose)
            waited = {*loose}
            self._loose = [hold for hold in self._loose if hold not in waited]

    def _is_message(self, hold: Hold) -> bool:
        return any(self._ops[op].kind in POINT_TO_POINT for op in hold.after or ())

    def _holds_up(self, call: Call) -> bool:
        return call.waits

    def _come_to(self, now: int, phase: str) -> None:
        """End the waits that are over by ``now`` (ns), then add what the program computed in the
        rest of the time until then."""
        open_ = [hold for hold in self._holds if 0 <= now < hold.ends]
        self._release([hold for hold in self._holds if hold not in open_])
        self._holds = open_
        self._fill(now, phase)

    def _fill(self, now: int, phase: str) -> None:
        """Add a computation that lasts until ``now`` (ns), if it takes at least LEAST_NS."""
        if 0 <= self._clock <= now - LEAST_NS:
            ns = round(self._computed(self._clock, now) * self._factor)
            if ns:
                self._ops.append(Op("compute", phase, lane="compute", compute_ns=ns))
        if now >= 0:
            self.untold += self._clock < 0 and bool(self._ops)
            self._clock = max(self._clock, now)

    def _release(self, holds: Sequence[Hold]) -> None:
        """Add the waits ``holds``, which are over: the program computes from their end on."""
        for hold in sorted(holds, key=lambda hold: hold.ends):
            self._stand(hold)
            last = len(self._ops) - 1
            if hold.itself and hold.after == (last,):
                self._ops[last] = replace(self._ops[last], wait="call")
            elif hold.after is not None:
                self._ops.append(Op("wait", hold.phase, after=hold.after))
            self._clock = max(self._clock, hold.ends) if hold.ends >= 0 else -1

    def _compute(self, call: Call, phase: str, after: tuple[int, ...]) -> None:
        op = Op(
            "compute",
            phase,
            after=after,
            lane="compute",
            compute_ns=round(max(0, call.took_ns) * self._factor),
            flops=call.flops * self._factor,
            touched=round(call.touched * self._factor),
            source=printable_text(call.source)[:1000],
        )
        if op.compute_ns or op.flops or op.touched:
            self._ops.append(op)
        elif after:
            self._ops.append(Op("wait", phase, after=after))
        self._clock = max(self._clock, call.ends_ns)

    def _talk(self, at: int, call: Call, phase: str, after: tuple[int, ...]) -> int | None:
        """The operation that a call is, ``after`` others; None where it is not replayed."""
        replayed = self._calls.get(Place(self._rank.rank, at))
        if not replayed:
            return None
        self._ids[at] = len(self._ops)
        self._ops.append(
            Op(
                kind=replayed.kind,
                phase=phase,
                group=self._families.name(group_of(self._rank, call)),
                nbytes=replayed.nbytes,
                dtype=call.dtype,
                op=replayed.op,
                root=replayed.root,
                peer=call.peer,
                tag=call.tag,
                sends=replayed.sends,
                # a message that waited would hold up what comes behind it, which others may need
                after=() if replayed.kind in POINT_TO_POINT else after,
                lane=_choose_lane(call),
                source=printable_text(call.source)[:1000],
            )
        )
        return self._ids[at]

    def _stand(self, hold: Hold) -> None:
        """Called before a wait is added; subclasses add what goes on while the program waits."""

    def _when(self, call: Call) -> int:
        """The time in ns at which the program came to a call, or began to compute; -1 where that is
        unknown."""
        return next((ns for ns in (call.issued_ns, call.begins_ns) if ns >= 0), -1)

    def _computed(self, since: int, until: int) -> int:
        """How long it computed then."""
        return until - since


class DeviceWriter(Writer):
    """Writes the program of a rank whose calls and computing are a device's, by the device's times:
    it computed while the device was busy, and waited for a call where the device was not, until the
    call ended."""

    def __init__(
        self, rank: RankTrace, calls: Mapping[Place, Call], families: Families, factor: float
    ) -> None:
        super().__init__(rank, calls, families, factor)
        self._begins = [begin for begin, _ in rank.busy]
        self._sums = [0, *accumulate(end - begin for begin, end in rank.busy)]

    def _is_loose(self, at: int, call: Call) -> bool:
        return False

    def _holds_up(self, call: Call) -> bool:
        """Whether nothing was computed when it ended, whichever stream its program had wait."""
        waits = self._until(call.ends_ns) == self._until(call.ends_ns - 1)
        self.inferred += waits
        return waits

    def _stand(self, hold: Hold) -> None:
        self._fill(hold.ends, hold.phase)

    def _when(self, call: Call) -> int:
        return call.begins_ns if call.begins_ns >= 0 else call.issued_ns

    def _computed(self, since: int, until: int) -> int:
        return self._until(until) - self._until(since)

    def _until(self, now: int) -> int:
        """How long it was busy until then."""
        at = bisect_right(self._begins, now)
        if not at:
            return 0
        begin, end = self._rank.busy[at - 1]
        return self._sums[at - 1] + min(now, end) - begin


def _choose_lane(call: Call) -> str:
    """Messages of each way, peer and tag have a lane of their own: they are under way beside each
    other, as in an exchange in which both ranks send first and receive then."""
    if call.kind not in POINT_TO_POINT:
        return "comm"
    return f"{call.kind} {call.peer}" + f" tag {call.tag}" * (call.tag > 0)


def make_writer(
    rank: RankTrace, calls: Mapping[Place, Call], families: Families, factor: float
) -> Writer:
    """A writer of a rank's program: by its device's times where there are such."""
    kind = DeviceWriter if rank.busy and rank.backend not in HOST else Writer
    return kind(rank, calls, families, factor)
