"""Transfers as suites have them: tables [[p2p]] with patterns and sizes, each of which is measured
at each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError, first_line
from collbench.core.text import suggest_name
from collbench.features.p2p import KIND
from collbench.features.p2p.patterns import (
    ACK_BYTES,
    MAX_RATE_BYTES,
    MAX_WINDOW,
    PATTERNS,
    Pairs,
    Pattern,
    Phase,
    list_phases,
    list_timed_ranks,
    parse_pairs,
    parse_pattern,
    refuse_pairs,
)
from collbench.suite.case import Ranks
from collbench.suite.grammar import list_words, parse_size

Bytes = Annotated[int, Meta(ge=1, le=1 << 40)]
DEFAULT_PAIRS = "0-1"
MANY_PAIRS = 8  # from which on a title does not list them
KEYS = ("patterns", "sizes", "pairs")
EXAMPLE = 'patterns = ["ping-pong", "window:16"] and sizes = ["8", "64K"], for example'


class TransferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pattern at a size that is asked for, before it is known among how many ranks."""

    pattern: str  # as parse_pattern takes it
    nbytes: Bytes
    pairs: str = DEFAULT_PAIRS  # as parse_pairs takes it


class Transfer(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=KIND):
    """Rounds of a pattern with messages of ``nbytes``, among ``pairs`` of ``world`` ranks; of
    patterns that have no pairs, among all. Raises ValueError for what cannot be."""

    pattern: str
    nbytes: Bytes
    world: Ranks
    window: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 0
    pairs: Annotated[Pairs, Meta(max_length=1 << 19)] = ()

    def __post_init__(self) -> None:
        kind = PATTERNS.get(self.pattern)
        if kind is None:
            raise ValueError(f"no pattern {self.pattern[:40]!r}")
        if bool(kind.window) != bool(self.window) or kind.is_paired != bool(self.pairs):
            raise ValueError(f"{self.pattern} of {self.window} messages, {len(self.pairs)} pairs")
        if reason := refuse_pairs(self.pairs, self.world) if self.pairs else "":
            raise ValueError(reason)
        if self.world < 2:
            raise ValueError("a transfer has two ranks at least")

    @property
    def kind_of(self) -> Pattern:
        """The row of its pattern."""
        return PATTERNS[self.pattern]

    @property
    def label(self) -> str:
        """The pattern as it is asked for: "window:16"."""
        is_plain = not self.window or (self.pattern == "both-ways" and self.window == 1)
        return self.pattern if is_plain else f"{self.pattern}:{self.window}"

    @property
    def title(self) -> str:
        """What it is, in words."""
        ranks = f", {self.world} ranks" if self.world != 2 else ""
        return f"{self.label} of {self.nbytes} B{ranks}{self._describe_pairs()}"

    def _describe_pairs(self) -> str:
        if not self.pairs or self.pairs == ((0, 1),):
            return ""
        if self.world % 2 == 0 and self.pairs == parse_pairs("all", self.world):
            return ", all pairs"
        text = self.pairs_text
        if len(self.pairs) > MANY_PAIRS:
            text = f"{len(self.pairs)} #{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"
        return f", pairs {text}"

    @property
    def pairs_text(self) -> str:
        """The pairs as --pairs takes them."""
        return ",".join(f"{first}-{second}" for first, second in self.pairs)

    @property
    def phases(self) -> list[Phase]:
        """The phases of a round."""
        return list_phases(self.pattern, self.window, self.pairs, self.world)

    @property
    def timed_ranks(self) -> list[int]:
        """The ranks whose clocks count."""
        return list_timed_ranks(self.pattern, self.pairs)

    @property
    def messages(self) -> int:
        """Messages by which a round's time is divided."""
        return self.kind_of.messages(self.window)

    @property
    def flows(self) -> int:
        """Messages that all ranks together send in the time of one."""
        return self.kind_of.flows(len(self.pairs), self.world)

    def length_of(self, is_ack: bool) -> int:
        """Bytes of a message, or of an acknowledgement."""
        return ACK_BYTES if is_ack else self.nbytes


def refuse_pairs_without_effect(where: str, pairs: str | None, patterns: Sequence[str]) -> None:
    """Raises UsageError where pairs are given and none of the patterns has any."""
    names = [parse_pattern(text)[0] for text in patterns]
    if pairs is not None and not any(PATTERNS[name].is_paired for name in names):
        raise UsageError(
            f"{where} has no effect on {' and '.join(dict.fromkeys(names))}",
            f"leave {where} out: rank 0 and all others take part",
        )


def make_requests(
    patterns: Sequence[str], sizes: Sequence[int], pairs: str | None = None
) -> list[TransferRequest]:
    """A request for each pattern at each size. Raises UsageError for what cannot be, and where
    rate has no size that it measures; its others are skipped with the reason, by the runner."""
    requests = []
    for text in patterns:
        name, window = parse_pattern(text)
        if name == "rate" and all(size > MAX_RATE_BYTES for size in sizes):
            raise UsageError(
                f"{text}: no size is at most {MAX_RATE_BYTES} B, as messages that are counted have",
                f"-b 8, or window:{window} for larger ones",
            )
        for size in sizes:
            if not 1 <= size <= 1 << 40:
                raise UsageError(f"a message has no {size} B", "1 B at least, 1T at most")
            pattern = f"{name}:{window}" if window else name
            requests.append(
                TransferRequest(pattern=pattern, nbytes=size, pairs=pairs or DEFAULT_PAIRS)
            )
    return requests


class _Transfers:
    """A suite.measurable.Measurable."""

    table = "p2p"
    request = TransferRequest
    subject = Transfer

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> list[TransferRequest]:
        try:
            if unknown := next((key for key in table if key not in KEYS), None):
                hint = suggest_name(unknown, KEYS) or f"use {', '.join(KEYS)}"
                raise UsageError(f"{unknown}: there is no such key", hint)
            patterns, sizes = (_read_list(table, key) for key in KEYS[:2])
            pairs = table.get("pairs")
            if "pairs" in table and not (isinstance(pairs, str) and pairs):
                raise UsageError('pairs is no text such as "0-1,2-3"', 'pairs = "all", for example')
            refuse_pairs_without_effect("pairs", pairs, patterns)
            return make_requests(patterns, [parse_size(size, "sizes") for size in sizes], pairs)
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", e.hint) from e

    def resolve(
        self, request: TransferRequest, ranks: int, is_given: bool, backends: Sequence[str]
    ) -> Transfer:
        name, window = parse_pattern(request.pattern)
        if ranks < 2:
            raise UsageError(f"{name} has 2 ranks at least, not {ranks}", "-g 2")
        pairs = parse_pairs(request.pairs, ranks) if PATTERNS[name].is_paired else ()
        values = {"pattern": name, "window": window, "nbytes": request.nbytes}
        try:
            return msgspec.convert(
                {**values, "world": ranks, "pairs": pairs, "kind": KIND}, Transfer
            )
        except msgspec.ValidationError as e:
            raise UsageError(first_line(e), "collbench help p2p has the patterns") from e

    def measure(self, subject: Transfer) -> tuple[str, int]:
        return subject.kind_of.row, subject.nbytes


def _read_list(table: Mapping[str, Any], key: str) -> list[str]:
    """A list of texts and whole numbers, or one of them, as texts. Raises UsageError."""
    if words := list_words(table.get(key)):
        return words
    raise UsageError("it needs patterns and sizes", EXAMPLE)


TRANSFERS = _Transfers()
