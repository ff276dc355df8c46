"""Patterns of transfers: that what is sent is received, that no rank waits for ever, and how they
are written."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from collbench.core.errors import UsageError
from collbench.features.p2p.layout import lay_out, list_own, measure_buffers
from collbench.features.p2p.measurable import Transfer
from collbench.features.p2p.patterns import (
    ACK_BYTES,
    PATTERNS,
    Pairs,
    list_phases,
    list_timed_ranks,
    parse_pairs,
    parse_pattern,
)
from collbench.run.memory import PAGE

TWO: Pairs = ((0, 2), (1, 3))


def transfer(pattern: str, nbytes: int = 64, world: int = 4, pairs: Pairs = TWO) -> Transfer:
    name, window = parse_pattern(pattern)
    return Transfer(
        pattern=name,
        window=window,
        nbytes=nbytes,
        world=world,
        pairs=pairs if PATTERNS[name].is_paired else (),
    )


EVERY = [*PATTERNS, "window:3", "rate:5", "both-ways:4"]


def play(what: Transfer) -> Counter[tuple[int, int]]:
    """Messages that arrive by sender and receiver, where each rank goes through its own phases, a
    message waits for its receiver, and both are there before either goes on: as the strictest
    library has it."""
    left = [deque(list_own(what, rank)) for rank in range(what.world)]
    arrived: Counter[tuple[int, int]] = Counter()
    open_phases = [({m.number for m in phases[0]} if phases else set()) for phases in left]
    while any(left):
        posted = [{m.number: m for m in phases[0]} if phases else {} for phases in left]
        moved = False
        for rank, messages in enumerate(posted):
            for number, message in messages.items():
                if message.source != rank or number not in open_phases[rank]:
                    continue
                if number in open_phases[message.target]:
                    open_phases[rank].remove(number)
                    open_phases[message.target].remove(number)
                    arrived[message.source, message.target] += 1
                    moved = True
        for rank, phases in enumerate(left):
            if phases and not open_phases[rank]:
                phases.popleft()
                open_phases[rank] = {m.number for m in phases[0]} if phases else set()
                moved = True
        assert moved, f"{what.title}: ranks wait for each other for ever"
    return arrived


@pytest.mark.parametrize("pattern", EVERY)
def test_all_that_is_sent_arrives_and_no_rank_waits_for_ever(pattern: str) -> None:
    what = transfer(pattern)
    sent = Counter((m.source, m.target) for phase in what.phases for m in phase)
    assert play(what) == sent


ARRIVALS = {  # of a round on ranks 0 to 3, pairs 0-2 and 1-3: messages by sender and receiver
    "ping-pong": {(0, 2): 1, (2, 0): 1, (1, 3): 1, (3, 1): 1},
    "one-way": {(0, 2): 1, (2, 0): 1, (1, 3): 1, (3, 1): 1},
    "both-ways:4": {(0, 2): 4, (2, 0): 4, (1, 3): 4, (3, 1): 4},
    "window:3": {(0, 2): 3, (2, 0): 1, (1, 3): 3, (3, 1): 1},
    "incast": {(r, 0): 1 for r in (1, 2, 3)} | {(0, r): 1 for r in (1, 2, 3)},
    "outcast": {(r, 0): 1 for r in (1, 2, 3)} | {(0, r): 1 for r in (1, 2, 3)},
}


@pytest.mark.parametrize("pattern", ARRIVALS)
def test_who_sends_to_whom(pattern: str) -> None:
    assert play(transfer(pattern)) == ARRIVALS[pattern]


SENT = {  # bytes of the messages that are no acknowledgements, and of those that are
    "ping-pong": (4 * 64, 0),
    "one-way": (2 * 64, 2 * ACK_BYTES),
    "both-ways:4": (16 * 64, 0),
    "window:3": (6 * 64, 2 * ACK_BYTES),
    "incast": (3 * 64, 3 * ACK_BYTES),
    "outcast": (3 * 64, 3 * ACK_BYTES),
}


@pytest.mark.parametrize("pattern", SENT)
def test_how_much_is_sent(pattern: str) -> None:
    what = transfer(pattern)
    every = [message for phase in what.phases for message in phase]
    sums = [sum(what.length_of(m.is_ack) for m in every if m.is_ack == ack) for ack in (0, 1)]
    assert tuple(sums) == SENT[pattern]


@pytest.mark.parametrize("pattern", EVERY)
def test_the_flows_are_the_messages_of_a_round_by_what_its_time_is_divided_by(pattern: str) -> None:
    what = transfer(pattern)
    data = sum(not message.is_ack for phase in what.phases for message in phase)
    assert what.flows * what.messages == data


def test_clocks_that_count_are_of_ranks_that_see_beginning_and_end() -> None:
    assert list_timed_ranks("window", TWO) == [0, 1]
    assert list_timed_ranks("ping-pong", ((2, 0),)) == [2]
    assert list_timed_ranks("both-ways", ((2, 0),)) == [0, 2]
    assert list_timed_ranks("incast", ()) == list_timed_ranks("outcast", ()) == [0]


def test_messages_of_a_round_have_numbers_of_their_own() -> None:
    phases = list_phases("both-ways", 3, TWO, 4)
    numbers = [message.number for phase in phases for message in phase]
    assert numbers == [*range(12)]


@pytest.mark.parametrize("nbytes", [1, 8, 4096, 10_000])
@pytest.mark.parametrize("pattern", EVERY)
def test_no_two_messages_share_memory(pattern: str, nbytes: int) -> None:
    what = transfer(pattern, nbytes)
    room = measure_buffers(what)
    for rank in range(what.world):
        offsets, total = lay_out(what, rank)
        own = [message for phase in list_own(what, rank) for message in phase]
        spans = sorted(
            (offsets[m.number], offsets[m.number] + what.length_of(m.is_ack)) for m in own
        )
        ends = [0, *(end for _, end in spans)]
        assert all(start >= end for (start, _), end in zip(spans, ends, strict=False))
        assert ends[-1] <= total <= room


def test_what_is_sent_and_what_is_received_share_no_page() -> None:
    what = transfer("both-ways:4", 8)
    offsets, _ = lay_out(what, 0)
    own = [message for phase in list_own(what, 0) for message in phase]
    pages = [{offsets[m.number] // PAGE for m in own if (m.source == 0) == sent} for sent in (0, 1)]
    assert not pages[0] & pages[1]


def test_patterns_are_written_with_their_window() -> None:
    assert parse_pattern("window:16") == ("window", 16)
    assert parse_pattern("window") == ("window", 64)
    assert parse_pattern("both_ways") == ("both-ways", 1)
    assert parse_pattern("ping-pong") == ("ping-pong", 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pingpong", "is no pattern"),
        ("", "is no pattern"),
        ("ping-pong:4", "has no window"),
        ("window:", "1 to 1024 messages"),
        ("window:0", "1 to 1024 messages"),
        ("window:-3", "1 to 1024 messages"),
        ("window:1e3", "1 to 1024 messages"),
        ("window:²", "1 to 1024 messages"),
        ("window:" + "9" * 5000, "1 to 1024 messages"),
    ],
)
def test_a_bad_pattern_is_refused_in_a_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        parse_pattern(text)
    assert refused.value.hint and len(refused.value.message) < 200


def test_pairs_are_listed_or_all() -> None:
    assert parse_pairs("0-1", 2) == ((0, 1),)
    assert parse_pairs("3-0, 1-2", 4) == ((3, 0), (1, 2))
    assert parse_pairs("all", 4) == TWO


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        ("0-2", 2, "rank 2 does not exist among 2 ranks"),
        ("0-0", 2, "is its own partner"),
        ("0-1,1-2", 3, "a rank is in two pairs"),
        ("0:1", 2, "is no pair of ranks"),
        ("-1-0", 2, "is no pair of ranks"),
        ("0-", 2, "is no pair of ranks"),
        ("", 2, "no pair is named"),
        ("all", 3, "cannot be divided into pairs"),
        ("0-" + "9" * 5000, 2, "does not exist"),
    ],
)
def test_bad_pairs_are_refused_in_a_line(text: str, ranks: int, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        parse_pairs(text, ranks)
    assert refused.value.hint and len(refused.value.message) < 250
