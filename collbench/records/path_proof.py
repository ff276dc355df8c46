"""Whether data went the path that a preset of settings leaves (core/paths.py): by what NCCL's log
says of rank 0's connections, and by the bytes that network interfaces counted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from collbench.core.errors import Exit
from collbench.core.paths import find_path
from collbench.core.text import format_count
from collbench.records.traffic import needed_bytes, settle_counts
from collbench.records.types import Record, Sent
from collbench.suite.case import Case

State = Literal["", "held", "broken", "unknown"]

MOST = 0.9  # of what must be sent, from which on it is taken for all of it
LITTLE = 0.05  # of what was sent, below which it is taken for nothing

UNCOUNTED = "no bytes were counted, as for small sizes"
UNSETTLED = "other traffic was too much to count beside"
UNKNOWN = "its algorithm is not loaded here: bytes that it needs are unknown"


class PathProof(NamedTuple):
    """Whether a case's path held, and by what that is known or why it is not; empty for a case
    without one."""

    state: State = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The proof in words."""
        words = {"held": "was taken", "broken": "was not taken", "unknown": "is not known to be"}
        return f"the path {words[self.state]}: {self.reason}" if self.state else ""


class _Counted(NamedTuple):
    """Bytes that left by network interfaces over those needed, and the part of them by loopback;
    None where they are not known, for the reason."""

    share: float | None
    loopback: float
    reason: str


def prove_path(record: Record) -> PathProof:
    """What is known of the path of a case that was measured."""
    name = find_path(record.case.env)
    if not name or record.status != "ok" or record.case.n < 2:
        return PathProof()
    if record.case.subject:
        return PathProof("unknown", "the bytes of such cases are not counted")
    counted = _count_shares(record)
    if record.case.backend == "nccl":
        transport = record.chose.transport if record.chose else ""
        kinds = set(transport.split("+")) if transport else set()
        return _prove_by_log(name, kinds, transport, counted)
    return _prove_by_counts(name, counted)


def _count_shares(record: Record) -> _Counted:
    if not record.sent:
        return _Counted(None, 0.0, UNCOUNTED)
    if math.isnan(needed_bytes(record.case)):
        return _Counted(None, 0.0, UNKNOWN)
    share = settle_counts(record.case, record.sent)
    if share is None:
        return _Counted(None, 0.0, UNSETTLED)
    return _Counted(share, _measure_loopback(record.sent[-1]), "")


def _measure_loopback(sent: Sent) -> float:
    """The part of the bytes that left by loopback, less what did without calls."""
    total = sum(sent.bytes.values()) - sum(sent.idle.values())
    return (sent.loopback - sent.idle_loopback) / total if total > 0 else 0.0


def _prove_by_counts(name: str, counted: _Counted) -> PathProof:
    """By bytes alone: of a library that does not say what it does."""
    share, loopback, reason = counted
    if share is None:
        return PathProof("unknown", reason)
    seen = f"network interfaces counted {max(0.0, share):.0%} of what ranks must send"
    if share < MOST:
        return PathProof("broken", f"{seen}: the rest went through memory")
    if name == "loopback-nic" and loopback < 1 - LITTLE:
        return PathProof("broken", f"{seen}, {loopback:.0%} of it loopback")
    if name == "nic-only" and loopback > LITTLE:
        return PathProof("broken", f"{seen}, {loopback:.0%} of it loopback, which is no card")
    return PathProof("held", f"{seen}, {loopback:.0%} of it loopback")


def _prove_by_log(name: str, kinds: set[str], transport: str, counted: _Counted) -> PathProof:
    """By the kinds of connection that NCCL's log names, and by bytes where these say more."""
    if not kinds:
        return PathProof("unknown", "NCCL's log says nothing of its connections")
    said = f"NCCL's log says {transport}"
    by_network = {kind for kind in kinds if kind.startswith(("NET/", "COLLNET/"))}
    allowed = {
        "nvlink-only": kinds & {"P2P", "NVLS"},
        "nic-only": by_network,
        "loopback-nic": kinds & {"NET/Socket"},
        "shm-off": kinds - {"SHM"},
    }.get(name, set())
    if odd := kinds - allowed:
        return PathProof("broken", f"{said}, and {'+'.join(sorted(odd))} is another way")
    if name == "nvlink-only" and counted.share is not None and counted.loopback > LITTLE:
        return PathProof("broken", f"{said}, but bytes were counted on loopback")
    if name in ("nic-only", "loopback-nic") and "NET/Socket" in kinds:
        by_bytes = _prove_by_counts(name, counted)
        return by_bytes._replace(reason=f"{said}; {by_bytes.reason}")
    return PathProof("held", said)


def _weigh_proofs(proofs: Sequence[PathProof]) -> PathProof:
    """The proof of a case by those of its launches and cycles: not taken in half of those that
    tell."""
    known = [proof for proof in proofs if proof.state != "unknown"]
    broken = [proof for proof in known if proof.state == "broken"]
    if broken and 2 * len(broken) >= len(known):
        return broken[0]
    return next((proof for proof in known if proof.state == "held"), proofs[0])


def judge_paths(*runs: Iterable[Record]) -> tuple[Exit, str]:
    """The exit code of runs by the paths of their cases, and a sentence: BAD where one was not
    taken, NO_VERDICT where that is not known of any."""
    by_case: dict[tuple[int, Case], list[PathProof]] = {}
    for number, records in enumerate(runs):
        for record in records:
            if (proof := prove_path(record)).state:
                case = msgspec.structs.replace(record.case, cycle=0)
                by_case.setdefault((number, case), []).append(proof)
    proofs = list(map(_weigh_proofs, by_case.values()))
    states = [proof.state for proof in proofs]
    if not proofs:
        return Exit.OK, ""
    count = format_count(len(proofs), "case")
    for state, code, words in (
        ("broken", Exit.BAD, "was not taken"),
        ("held", Exit.OK, "was taken"),
        ("unknown", Exit.NO_VERDICT, "is not known"),
    ):
        if state in states:
            first = next(proof for proof in proofs if proof.state == state)
            number, unknown = states.count(state), states.count("unknown")
            more = f" (in {unknown:,} it is not known)" if unknown and state != "unknown" else ""
            return code, f"the path {words} in {number:,} of {count}{more}: {first.reason}"
    return Exit.OK, ""
