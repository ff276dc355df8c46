"""Bytes that a call sent, as counters have it (types.Sent), against what its table says: the
algorithm's schedule, for a library's own choice the least that the collective takes.

A library that sends more than busbw's factor assumes has busier links than its busbw shows;
``carried`` is by how much. What an algorithm's own schedule sends beyond that factor is not in it:
where that goes, on the busiest link or on others, the model ratio knows (predict/efficiency.py).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from collbench.core import algorithms, simulate
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.records.types import Record, Sent, World
from collbench.suite.case import Case

SILENT = (0.9, 1.15)  # counted over needed, between which there is nothing to say
UNSEEN = 0.05  # below, the data went where no counter is: through shared memory
NOISE = 0.05  # of what is needed, this much may pass in the same time without calls
APART = 0.05  # by which two counts may differ
ALIKE = 0.03  # of what is sent, by which something else is recognised
FRAMED = {"LL": 2.0, "LL128": 128 / 120}  # NCCL's protocols: bytes on links for each of data
MOST_RANKS = 256  # beyond, working out what every algorithm sends takes too long

# What each collective can be made of, sending more than it needs
MADE_OF = {
    "all_gather": (("gather", "broadcast"),),
    "reduce_scatter": (("all_reduce",), ("reduce", "scatter")),
    "broadcast": (("scatter", "all_gather"),),
    "reduce": (("all_reduce",), ("reduce_scatter", "gather")),
    "gather": (("all_gather",),),
    "scatter": (("broadcast",),),
}

# What torch's backends make of which, as counted with its versions up to this one
KNOWN = {("gloo", "reduce_scatter"): ("all_reduce", (2, 13))}
TORCH = re.compile(r"^torch (\d+)\.(\d+)")


class Traffic(NamedTuple):
    """``wire`` is what was counted over what the table has, None where nothing was or something
    else was on the way too; ``carried`` what links carried over the same, 1 unless known to be
    more; ``moves`` says why, or why nothing is known, or empty."""

    wire: float | None = None
    carried: float = 1.0
    moves: str = ""


def needed_bytes(case: Case) -> float:
    """Bytes that the ranks of a group send together in one call, by the table; nan where that is
    unknown. Raises UsageError where a file that says how data is split cannot be read."""
    if case.splits:
        table = case.matrix
        return float(table.sum() - table.trace()) * case.type.size
    return _needed_share(case.collective, case.algorithm, case.n, case.root) * case.size


@functools.lru_cache(maxsize=1024)
def _needed_share(collective: str, algorithm: str, n: int, root: int) -> float:
    """Bytes that the ranks of a group send together for each byte of a case's size; nan for an
    algorithm that this version does not have."""
    if algorithm == "native":
        return COLLECTIVES[collective].traffic(n)
    try:
        variant = algorithms.find_variant(collective, algorithm)
        return float(simulate.count_traffic(variant.schedule(n, root)))
    except UsageError:  # an algorithm of another version
        return math.nan


def is_silent(share: float) -> bool:
    """Whether counters differ from what must be sent by so little that nothing needs to be said."""
    return SILENT[0] <= share <= SILENT[1]


def settle_counts(case: Case, sent: Sequence[Sent]) -> float | None:
    """The bytes counted over those needed, less what left without calls: of the last count during
    which little else did, if that is as much as is needed, or next to nothing, or the one before
    says the same; else None."""
    quiet = [
        share for share, noise in (_count_shares(case, count) for count in sent) if noise <= NOISE
    ]
    if not quiet:
        return None
    last = quiet[-1]
    same = len(quiet) > 1 and _is_close(quiet[-2], last, APART)
    return last if same or is_silent(last) or last < UNSEEN else None


def _count_shares(case: Case, sent: Sent) -> tuple[float, float]:
    """What the calls sent over what is needed, and by how much other traffic may have changed
    that."""
    needed = needed_bytes(case) * case.of * sent.calls or math.nan
    idle_bytes = sum(sent.idle.values())
    lasted = max(1.0, sent.ns / max(1, sent.idle_ns))
    return (sum(sent.bytes.values()) - idle_bytes) / needed, idle_bytes * lasted / needed


def derive_traffic(record: Record, world: World | None) -> Traffic:
    """The traffic by a record's counts; where there are none, by what is known of the library."""
    try:
        has_counts = record.sent and not record.case.subject
        traffic = _derive_counted(record, world) if has_counts else Traffic()
    except UsageError:
        traffic = Traffic()
    return traffic if traffic.wire is not None else _derive_known(record.case, world, traffic)


def _derive_counted(record: Record, world: World | None) -> Traffic:
    case = record.case
    if math.isnan(needed_bytes(case)):
        return Traffic(moves=f"{case.algorithm} is not loaded here: what it needs is unknown")
    wire = settle_counts(case, record.sent)
    if wire is None:
        shares = [_count_shares(case, count) for count in record.sent]
        shares_text = ", ".join(f"{share:.2f} (others {noise:.2f})" for share, noise in shares)
        return Traffic(moves=f"not counted, for other traffic: {shares_text} of what is needed")
    if wire < UNSEEN:
        return Traffic(moves="not counted: no counter saw the data, as in shared memory")
    if is_silent(wire):
        return Traffic(wire)
    if wire < 1:
        rest = "the rest went through memory, or a switch added up"
        return Traffic(wire, moves=f"counters saw {wire:.2f}x what {_name_table(case)}: {rest}")
    return _explain_more(record, world, wire)


def _explain_more(record: Record, world: World | None, wire: float) -> Traffic:
    """The traffic where more was counted than is needed."""
    case = record.case
    sends = f"sends {wire:.2f}x what {_name_table(case)}"
    protocol = record.chose.protocol if record.chose else ""
    framed = wire / FRAMED.get(protocol, 1.0)
    data = framed if framed >= SILENT[0] else wire
    if is_silent(data):
        return Traffic(
            wire, moves=f"{sends}: the {protocol} protocol of NCCL adds flags to the data"
        )
    if why := guess_algorithm(case, data):
        return Traffic(wire, data, f"{sends}: {why}")
    relayed = _bound_relayed_share(record, world) * data / wire
    if relayed >= NOISE and data - relayed <= SILENT[1]:
        reason = "with PXN, data may cross NVLink before the network card and be counted twice"
        return Traffic(wire, moves=f"{sends}: {reason}")
    why = "messages sent again, other traffic, or another algorithm"
    return Traffic(wire, data, f"{sends}: {why}")


def _bound_relayed_share(record: Record, world: World | None) -> float:
    """The most that PXN can have added, over what is needed: what left hosts, once more, as far as
    NVLink carried as much; 0 where all ranks are on one host."""
    if world is None or len({rank.host for rank in world.ranks}) < 2:
        return 0.0
    needed = needed_bytes(record.case) * record.case.of
    return min(
        (sent.bytes.get(kind, 0) - sent.idle.get(kind, 0)) / (needed * sent.calls)
        for sent in record.sent
        for kind in ("ib", "nvlink")
    )


def _name_table(case: Case) -> str:
    """The table whose bytes are needed, in words."""
    if case.algorithm == "native":
        return f"{case.collective} needs"
    return f"the schedule of {case.algorithm} has"


def replaced_collective(library: str, backend: str, collective: str) -> str:
    """The collective that a library is known to run in place of this one; else ""."""
    version, key = TORCH.match(library), (backend, collective)
    if not version or key not in KNOWN:
        return ""
    other, latest = KNOWN[key]
    return other if (int(version[1]), int(version[2])) <= latest else ""


def sent_ratio(other: str, collective: str, n: int) -> float:
    """How much more one collective sends than the other among n ranks."""
    return COLLECTIVES[other].traffic(n) / COLLECTIVES[collective].traffic(n)


def guess_algorithm(case: Case, wire: float) -> str:
    """The algorithm that a library probably chose, by what it sends; empty where nothing fits."""
    if case.algorithm != "native" or case.splits:
        return ""
    least = _needed_share(case.collective, "native", case.n, case.root)
    for parts in MADE_OF.get(case.collective, ()):
        if _is_close(sum(COLLECTIVES[name].traffic(case.n) for name in parts) / least, wire):
            return f"the library seems to run it as {' and '.join(parts)}"
    names = [
        algorithm.name
        for algorithm in algorithms.list_algorithms(case.collective)
        if case.n <= MOST_RANKS
        and _is_close(
            _needed_share(case.collective, algorithm.name, case.n, case.root) / least, wire
        )
    ]
    return f"as much as {' or '.join(names[:2])}" if names else ""


def _is_close(value: float, other: float, share: float = ALIKE) -> bool:
    return abs(value - other) <= share * max(value, other, UNSEEN)


def _derive_known(case: Case, world: World | None, traffic: Traffic) -> Traffic:
    """What links carried where it was not counted, by KNOWN."""
    other = replaced_collective(world.library if world else "", case.backend, case.collective)
    if not other or case.algorithm != "native" or case.n < 2:
        return traffic
    carried = sent_ratio(other, case.collective, case.n)
    phrase = f"sends {carried:.2f}x what {_name_table(case)}, not counted here: "
    return Traffic(None, carried, f"{phrase}the library runs it as {other}")
