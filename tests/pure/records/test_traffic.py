"""Counted bytes against tables: what is believed, what is doubted, what is said of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from factories import case, hosted, record, world

from collbench.core.collectives import COLLECTIVES
from collbench.features.training.step import Op, Program, Step
from collbench.features.training.traffic import count_traffic
from collbench.records import traffic
from collbench.records.derive import derive_row
from collbench.records.types import Choice, Sent
from collbench.suite.case import Case

MIB = 1 << 20
GLOO = "torch 2.13.0+cpu gloo"


def sent(share: float, what: Case, noise: float = 0.0, calls: int = 2) -> Sent:
    """A count of ``share`` times what is needed, and of others' traffic beside it."""
    whole = traffic.needed_bytes(what) * what.of * calls
    idle = {"tcp": round(noise * whole)} if noise else {}
    counted = {"tcp": round((share + noise) * whole)}
    return Sent(calls=calls, ns=10**6, idle_ns=10**6, bytes=counted, idle=idle)


def told(what: Case, *shares: float | tuple[float, float], library: str = "") -> traffic.Traffic:
    pairs = [share if isinstance(share, tuple) else (share, 0.0) for share in shares]
    counts = [sent(share, what, noise) for share, noise in pairs]
    return traffic.derive_traffic(record(what, sent=counts), world(library=library))


@pytest.mark.parametrize("order", [1, -1])
def test_of_counts_of_a_step_the_quietest_counts_not_the_least(order: int) -> None:
    op = Op(kind="all_reduce", nbytes=MIB, dtype="float", op="sum")
    step = Step(name="x", world=2, programs=(Program(ranks=(0, 1), ops=(op,)),))
    counts = [(2 * MIB, 0), (2 * MIB, MIB // 20)][::order]
    seen = [
        Sent(calls=1, ns=10**6, idle_ns=10**6, bytes={"tcp": got}, idle={"tcp": idle})
        for got, idle in counts
    ]
    found = count_traffic(step, case(MIB, n=2), seen, "")
    assert found is not None and (found.counted_bytes, found.needed_bytes) == (2 * MIB, 2 * MIB)


@pytest.mark.parametrize(
    ("name", "n", "share"),
    [
        ("all_reduce", 4, 6),
        ("all_gather", 4, 3),
        ("reduce_scatter", 4, 3),
        ("all_to_all", 4, 3),
        ("broadcast", 4, 3),
        ("reduce", 4, 3),
        ("gather", 4, 3 / 4),
        ("scatter", 4, 3 / 4),
        ("sendrecv", 4, 4),
        ("scan", 4, 3),
    ],
)
def test_what_a_collective_takes(name: str, n: int, share: float) -> None:
    assert traffic.needed_bytes(case(MIB, name, n=n)) == share * MIB
    assert COLLECTIVES[name].traffic(n) == share


@pytest.mark.parametrize(
    ("name", "algorithm", "share"),
    [
        ("all_reduce", "ring", 6),
        ("all_reduce", "recursive_doubling", 8),
        ("gather", "binomial", 1),
        ("broadcast", "chain:segments=4", 3),
    ],
)
def test_what_an_algorithm_sends(name: str, algorithm: str, share: float) -> None:
    assert traffic.needed_bytes(case(MIB, name, algorithm=algorithm)) == share * MIB


def test_blocks_of_unequal_length_count_as_they_are() -> None:
    uniform = case(MIB, "all_to_allv", splits="uniform")
    assert traffic.needed_bytes(uniform) == 3 * MIB


def test_an_algorithm_of_another_version_is_not_judged() -> None:
    gone = case(MIB, algorithm="spiral")
    assert math.isnan(traffic.needed_bytes(gone))
    one = Sent(calls=1, ns=1, idle_ns=1, bytes={"tcp": MIB})
    found = traffic.derive_traffic(record(gone, sent=[one]), world())
    assert found.wire is None and "spiral is not loaded here" in found.moves


@pytest.mark.parametrize("share", [0.95, 1.0, 1.1])
def test_about_what_is_needed_is_silence(share: float) -> None:
    found = told(case(MIB), share)
    assert found.wire == pytest.approx(share, rel=1e-3)
    assert (found.carried, found.moves) == (1.0, "")


@pytest.mark.parametrize(
    ("protocol", "share", "carried", "moves"),
    [
        (
            "LL",
            2.0,
            1.0,
            "sends 2.00x what reduce_scatter needs: the LL protocol of NCCL adds flags",
        ),
        ("LL", 4.0, 2.0, "seems to run it as all_reduce"),
        ("LL", 1.5, 1.5, "messages sent again"),  # less than its flags take: other calls were LL
        ("LL128", 2 * 128 / 120, 2.0, "seems to run it as all_reduce"),
        ("Simple", 2.0, 2.0, "seems to run it as all_reduce"),
    ],
)
def test_flags_that_a_protocol_sends_are_no_other_algorithm(
    protocol: str, share: float, carried: float, moves: str
) -> None:
    what = case(MIB, "reduce_scatter")
    counts = [sent(share, what, 0.0)] * 2
    chose = Choice(algorithm="Ring", protocol=protocol)
    found = traffic.derive_traffic(record(what, sent=counts, chose=chose), world())
    assert found.wire == pytest.approx(share, rel=1e-3)
    assert found.carried == pytest.approx(carried, rel=1e-3) and moves in found.moves


@pytest.mark.parametrize(
    ("hosts", "ports", "nvlink", "is_pxn"),
    [
        (2, 0.5, 1.0, True),
        (1, 0.5, 1.0, False),
        (2, 0.01, 1.49, False),  # others' bytes: too few for what is too much
        (2, 1.49, 0.01, False),
        (2, 0.5, 1.5, False),  # more than what leaves hosts once more
    ],
)
def test_pxn_may_count_twice_no_more_than_what_leaves_hosts(
    hosts: int, ports: float, nvlink: float, is_pxn: bool
) -> None:
    what = case(MIB, "all_to_all")
    needed = traffic.needed_bytes(what)
    counted = {"ib": round(ports * needed), "nvlink": round(nvlink * needed)}
    count = Sent(calls=1, ns=1, idle_ns=1, bytes=counted)
    ranks = hosted(4, per_host=4 // hosts)
    found = traffic.derive_traffic(record(what, sent=[count] * 2), world(ranks=ranks))
    assert found.wire == pytest.approx(ports + nvlink, rel=1e-3)
    assert found.carried == (1 if is_pxn else found.wire)
    assert ("with PXN, data may cross NVLink" in found.moves) == is_pxn


def test_more_than_is_needed_must_be_counted_twice() -> None:
    what = case(MIB, "reduce_scatter")
    assert told(what, 2.0).wire is None
    found = told(what, 2.0, 2.01)
    assert found.wire == found.carried == pytest.approx(2.01, rel=1e-3)
    assert told(what, 2.0, 3.0).wire is None
    assert told(what, 2.0, 3.0).moves.startswith("not counted")
    assert told(what, 2.0, 1.0).wire == pytest.approx(1.0)  # what came once is none of the calls'


@pytest.mark.parametrize(
    ("name", "n", "share", "words"),
    [
        ("reduce_scatter", 4, 2.0, "run it as all_reduce"),
        ("reduce_scatter", 2, 1.5, "run it as reduce and scatter"),
        ("reduce", 4, 1.25, "run it as reduce_scatter and gather"),
        ("gather", 4, 4.0, "run it as all_gather"),
        ("all_gather", 4, 1.25, "run it as gather and broadcast"),
        ("all_reduce", 4, 8 / 6, "as much as recursive_doubling"),
        ("all_reduce", 4, 3.0, "messages sent again, other traffic"),
    ],
)
def test_what_it_is_likely_to_be(name: str, n: int, share: float, words: str) -> None:
    found = told(case(MIB, name, n=n), share, share)
    assert words in found.moves and f"sends {share:.2f}x what {name}" in found.moves


def test_a_reference_algorithm_has_no_choice() -> None:
    found = told(case(MIB, "reduce_scatter", algorithm="ring"), 2.0, 2.0)
    assert "the schedule of ring" in found.moves and "sent again" in found.moves


def test_shared_memory_is_not_counted_and_never_zero() -> None:
    found = told(case(MIB), 0.001)
    assert (found.wire, found.carried) == (None, 1.0) and "shared memory" in found.moves


def test_less_than_is_needed_is_told_and_flags_nothing() -> None:
    found = told(case(MIB), 0.5, 0.5)
    assert found.wire == pytest.approx(0.5, rel=1e-3) and found.carried == 1.0
    assert "counters saw 0.50x" in found.moves


def test_other_traffic_leaves_nothing_known() -> None:
    found = told(case(MIB), (1.0, 0.2), (1.02, 0.3))
    assert found.wire is None and "other traffic" in found.moves
    assert told(case(MIB), (1.4, 0.2), (1.02, 0.01)).wire == pytest.approx(1.02, rel=1e-2)


def test_a_short_pause_stands_for_all_of_long_calls() -> None:
    what = case(MIB)
    one = sent(1.0, what, noise=0.01)
    assert traffic.settle_counts(what, [one]) == pytest.approx(1.0, rel=1e-3)
    long = Sent(calls=one.calls, ns=10**8, idle_ns=10**7, bytes=one.bytes, idle=one.idle)
    assert traffic.settle_counts(what, [long]) is None


def test_groups_are_counted_together() -> None:
    pair = case(MIB, n=2, groups="div:2", of=2)
    assert told(pair, 1.0).wire == pytest.approx(1.0)
    assert sent(1.0, pair).bytes["tcp"] == 2 * 2 * 2 * MIB


@pytest.mark.parametrize(
    ("library", "carried"),
    [(GLOO, 2.0), ("torch 2.6.0 gloo", 2.0), ("torch 3.1.0 gloo", 1.0), ("", 1.0)],
)
def test_what_is_known_of_gloo_holds_where_nothing_was_counted(
    library: str, carried: float
) -> None:
    what = case(MIB, "reduce_scatter")
    found = told(what, library=library)
    assert (found.wire, found.carried) == (None, carried)
    assert told(what, 1.0, library=library).carried == 1.0  # counters know better
    ring = case(MIB, "reduce_scatter", algorithm="ring")
    assert told(ring, library=library).carried == 1.0


def test_a_row_has_it_and_a_flag_that_ungates_nothing() -> None:
    def row(what: Case, **fields: Any) -> Any:
        return derive_row(record(what, **fields), world(library=GLOO))

    counted = row(case(MIB, "reduce_scatter"), sent=[sent(2.0, case(MIB, "reduce_scatter"))] * 2)
    assert "wire" in counted.flags and counted.gateable
    assert counted.wire == counted.carried == pytest.approx(2.0)
    quiet = row(case(MIB), sent=[sent(1.0, case(MIB))])
    assert "wire" not in quiet.flags and quiet.wire == pytest.approx(1.0)
