"""Where a rank has the messages of a round in its memory."""

from __future__ import annotations

from collbench.features.p2p.measurable import Transfer
from collbench.features.p2p.patterns import Transmission
from collbench.run.memory import PAGE

CACHE_LINE = 64


def list_own(transfer: Transfer, rank: int) -> list[list[Transmission]]:
    """The rank's messages of each phase that it has any in."""
    phases = (
        [message for message in phase if rank in (message.source, message.target)]
        for phase in transfer.phases
    )
    return [phase for phase in phases if phase]


def lay_out(transfer: Transfer, rank: int) -> tuple[dict[int, int], int]:
    """The offset of each of the rank's messages by its number, and the bytes of all: those that it
    sends first, each on cache lines of its own and large ones on pages of their own."""
    offsets: dict[int, int] = {}
    end = 0
    own = [message for phase in list_own(transfer, rank) for message in phase]
    for is_sent in (True, False):
        end = _round_up(end, PAGE)
        for message in own:
            if (message.source == rank) == is_sent:
                length = transfer.length_of(message.is_ack)
                end = _round_up(end, PAGE if length >= PAGE else CACHE_LINE)
                offsets[message.number] = end
                end += length
    return offsets, _round_up(end, PAGE)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def measure_buffers(transfer: Transfer) -> int:
    """The bytes that every rank allocates: as many as the rank that has most. Ranks of pairs have
    the same, others nothing; of incast and outcast rank 0 has most."""
    first = transfer.pairs[0] if transfer.pairs else (0,)
    return max(lay_out(transfer, rank)[1] for rank in first)


def measure_messages(transfer: Transfer, sharers: int) -> int:
    """The bytes that so many ranks write to, those that have most: of incast and outcast rank 0
    and others."""
    most = measure_buffers(transfer)
    if transfer.pairs:
        return min(sharers, 2 * len(transfer.pairs)) * most
    return most + (sharers - 1) * lay_out(transfer, 1)[1]
