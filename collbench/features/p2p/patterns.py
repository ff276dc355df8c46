"""The patterns of transfers: who sends what to whom, and which ranks' clocks a time is of.

A round of a pattern is a list of phases; in each, all of its messages are under way at once, and a
rank goes on to the next phase once its own are done. An acknowledgement has ACK_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from collbench.core.errors import UsageError
from collbench.core.text import suggest_name

ACK_BYTES = 4  # as osu_bw has it
DEFAULT_WINDOW = 64  # as osu_bw, osu_mbw_mr and IMB have it
MAX_WINDOW = 1024
MAX_RATE_BYTES = 8 << 10  # of messages that are counted rather than weighed
Pairs = tuple[tuple[int, int], ...]  # the rank that sends first, and its partner


class Transmission(NamedTuple):
    """A message of a round, by its ``number`` among all of the round's."""

    number: int
    source: int
    target: int
    is_ack: bool = False


Phase = list[Transmission]


class Pattern(NamedTuple):
    """One pattern. A round has ``messages`` of them in turn or in a window, whose time is what is
    told: ``messages(window)`` divide a round's time. ``flows(pairs, ranks)`` are the messages that
    all ranks together have sent meanwhile. ``window`` is the default, 0 where it takes none."""

    name: str
    meaning: str
    row: str
    window: int
    is_paired: bool
    is_latency: bool  # its time is a message's latency, without an acknowledgement
    messages: Callable[[int], int]
    flows: Callable[[int, int], int]


def _count_window(window: int) -> int:
    return window


def _count_one(window: int) -> int:
    return 1


def _count_two(window: int) -> int:
    return 2


def _one_a_pair(pairs: int, ranks: int) -> int:
    return pairs


def _two_a_pair(pairs: int, ranks: int) -> int:
    return 2 * pairs


def _one_a_rank(pairs: int, ranks: int) -> int:
    return ranks - 1


PATTERNS: dict[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        Pattern(
            "ping-pong",
            "A message to the other rank of a pair, and one of the same size back; half of it.",
            "p2p_ping_pong",
            *(0, True, True, _count_two, _one_a_pair),
        ),
        Pattern(
            "one-way",
            "A message to the other rank of a pair, until its sender has an acknowledgement.",
            "p2p_one_way",
            *(0, True, False, _count_one, _one_a_pair),
        ),
        Pattern(
            "both-ways",
            "Both ranks of a pair send to each other at once, one message or a window of them.",
            "p2p_both_ways",
            *(1, True, False, _count_window, _two_a_pair),
        ),
        Pattern(
            "window",
            "A window of messages at once to the other rank of a pair, then one acknowledgement.",
            "p2p_window",
            *(DEFAULT_WINDOW, True, False, _count_window, _one_a_pair),
        ),
        Pattern(
            "rate",
            "As window, of small messages, for how many there are in a second.",
            "p2p_rate",
            *(DEFAULT_WINDOW, True, False, _count_window, _one_a_pair),
        ),
        Pattern(
            "incast",
            "All ranks send to rank 0 at once, until it has acknowledged each.",
            "p2p_incast",
            *(0, False, False, _count_one, _one_a_rank),
        ),
        Pattern(
            "outcast",
            "Rank 0 sends to all ranks at once, until each has acknowledged.",
            "p2p_outcast",
            *(0, False, False, _count_one, _one_a_rank),
        ),
    )
}


def parse_pattern(text: str) -> tuple[str, int]:
    """The name of a pattern and its window, 0 where it has none: "window:16". Raises UsageError."""
    name, colon, number = text.strip().replace("_", "-").partition(":")
    pattern = PATTERNS.get(name)
    if pattern is None:
        raise UsageError(
            f"'{text[:80]}' is no pattern",
            suggest_name(name, PATTERNS) or f"one of {', '.join(PATTERNS)}",
        )
    if not colon:
        return name, pattern.window
    if not pattern.window:
        raise UsageError(f"{text[:80]}: {name} has no window", f"write {name}")
    if not (number.isdecimal() and number.isascii() and 1 <= int(number[:9]) <= MAX_WINDOW):
        raise UsageError(
            f"{text[:80]}: a window has 1 to {MAX_WINDOW} messages", f"for example {name}:16"
        )
    return name, int(number)


def parse_pairs(text: str, ranks: int) -> Pairs:
    """The pairs that ``text`` names among so many ranks: all (each rank r with r + n/2), or a list,
    0-1,2-3, whose first ranks begin. Raises UsageError."""
    if text == "all":
        if ranks % 2:
            raise UsageError(
                f"--pairs all: {ranks} ranks cannot be divided into pairs",
                f"-g {ranks - 1 or 2}, or a list as in --pairs 0-1",
            )
        return tuple((rank, rank + ranks // 2) for rank in range(ranks // 2))
    pairs = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        first, dash, second = word.partition("-")
        if not (dash and first.isdecimal() and second.isdecimal() and word.isascii()):
            raise UsageError(f"--pairs: '{word[:80]}' is no pair of ranks", "0-1,2-3, or all")
        pairs.append((int(first[:9]), int(second[:9])))
    if reason := refuse_pairs(pairs, ranks):
        raise UsageError(f"--pairs {text[:80]}: {reason}", "0-1,2-3, or all")
    return tuple(pairs)


def refuse_pairs(pairs: Sequence[tuple[int, int]], ranks: int) -> str:
    """Why there are no such pairs among so many ranks; else an empty string."""
    members = [rank for pair in pairs for rank in pair]
    if not members:
        return "no pair is named"
    if max(members) >= ranks or min(members) < 0:
        return f"rank {max(members)} does not exist among {ranks} ranks"
    if len(set(members)) < len(members):
        return "a rank is in two pairs, or is its own partner"
    return ""


def list_phases(name: str, window: int, pairs: Pairs, ranks: int) -> list[Phase]:
    """The phases of a round."""
    ways = {
        "one-way": [_forth(pairs), _back(pairs, is_ack=True)],
        "ping-pong": [_forth(pairs), _back(pairs)],
        "both-ways": [[*_forth(pairs), *_back(pairs)] * window],
        "window": [_forth(pairs) * window, _back(pairs, is_ack=True)],
        "rate": [_forth(pairs) * window, _back(pairs, is_ack=True)],
    }
    others: Pairs = tuple((rank, 0) for rank in range(1, ranks))
    ways["incast"] = [_forth(others), _back(others, is_ack=True)]
    ways["outcast"] = [_back(others), _forth(others, is_ack=True)]
    phases: list[Phase] = []
    number = 0
    for phase in ways[name]:
        phases.append([message._replace(number=number + at) for at, message in enumerate(phase)])
        number += len(phase)
    return phases


def _forth(pairs: Pairs, is_ack: bool = False) -> Phase:
    return [Transmission(0, first, second, is_ack) for first, second in pairs]


def _back(pairs: Pairs, is_ack: bool = False) -> Phase:
    return [Transmission(0, second, first, is_ack) for first, second in pairs]


def list_timed_ranks(name: str, pairs: Pairs) -> list[int]:
    """The ranks whose clocks see a round from its first byte to its last word; a sample's time is
    that of the slowest of them."""
    if not PATTERNS[name].is_paired:
        return [0]
    both = name == "both-ways"
    return sorted(rank for pair in pairs for rank in (pair if both else pair[:1]))
