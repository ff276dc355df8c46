"""Whether a path held: by what NCCL's log says, by bytes that were counted, or not known."""

from __future__ import annotations

from typing import Any

import pytest
from factories import case, make_file, record

from collbench.core.errors import Exit
from collbench.core.paths import VARIABLE
from collbench.records import traffic
from collbench.records.derive import derive_row
from collbench.records.path_proof import judge_paths, prove_path
from collbench.records.types import Choice, Record, Sent
from collbench.run.rank.ncclog import parse_connections
from collbench.show.words import notes_of
from collbench.suite.case import Case

MIB = 1 << 20


def on_path(name: str, backend: str = "gloo", **fields: Any) -> Case:
    return case(MIB, n=2, backend=backend, env=((VARIABLE, name),), **fields)


def count(what: Case, share: float, loopback: float, idle: float = 0.0) -> Sent:
    """A count of ``share`` of what is needed, ``loopback`` of it over loopback, and of as much on
    other business beside it as ``idle`` says."""
    needed = traffic.needed_bytes(what)
    noise = round(idle * needed)
    return Sent(
        calls=1,
        ns=10**6,
        idle_ns=10**6,
        bytes={"tcp": round(share * needed) + noise},
        idle={"tcp": noise} if noise else {},
        loopback=round(share * loopback * needed) + noise,
        idle_loopback=noise,
    )


def counted(name: str, share: float, loopback: float, backend: str = "gloo") -> Record:
    what = on_path(name, backend)
    return record(what, sent=[count(what, share, loopback)])


def logged(name: str, *lines: str, **fields: Any) -> Record:
    """A record of NCCL, whose log has these ways of its channels."""
    head = "node7:1:2 [0] NCCL INFO "
    text = "\n".join(f"{head}Channel 00/0 : 0[0] -> 1[1] {line}" for line in lines)
    choice = Choice(transport="+".join(sorted(parse_connections(text))))
    return record(on_path(name, "nccl"), chose=choice, **fields)


@pytest.mark.parametrize(
    ("name", "share", "loopback", "state"),
    [
        ("loopback-nic", 1.0, 1.0, "held"),
        ("loopback-nic", 1.02, 0.97, "held"),
        ("loopback-nic", 1.0, 0.5, "broken"),
        ("loopback-nic", 0.01, 1.0, "broken"),
        ("nic-only", 1.0, 0.0, "held"),
        ("nic-only", 1.0, 1.0, "broken"),
        ("nic-only", 1.0, 0.2, "broken"),
        ("shm-off", 1.0, 1.0, "held"),
        ("shm-off", 0.0, 0.0, "broken"),
    ],
)
def test_counted_bytes_tell(name: str, share: float, loopback: float, state: str) -> None:
    assert prove_path(counted(name, share, loopback, "mpi")).state == state


def test_what_passes_anyway_is_taken_off_loopback_too() -> None:
    what = on_path("nic-only")
    quiet = record(what, sent=[count(what, 1.0, 0.0, idle=0.04)])
    assert prove_path(quiet).state == "held"


def test_other_traffic_hides_what_was_sent() -> None:
    what = on_path("loopback-nic")
    proof = prove_path(record(what, sent=[count(what, 1.0, 1.0, idle=3.0)]))
    assert (proof.state, proof.reason) == ("unknown", "other traffic was too much to count beside")


def test_what_an_unknown_algorithm_sends_is_not_put_down_to_others() -> None:
    sent = [count(on_path("nic-only"), 1.0, 0.0)]
    proof = prove_path(record(on_path("nic-only", algorithm="line.py:line"), sent=sent))
    assert (proof.state, "is not loaded here" in proof.reason) == ("unknown", True)


def test_small_sizes_are_not_counted() -> None:
    assert prove_path(record(on_path("loopback-nic"))).state == "unknown"


P2P, SHM = "via P2P/CUMEM", "via SHM/direct/direct"
IB, SOCKET = "via NET/IB/0/GDRDMA", "via NET/Socket/0"


@pytest.mark.parametrize(
    ("name", "lines", "state"),
    [
        ("nvlink-only", (P2P,), "held"),
        ("nvlink-only", (P2P, SHM), "broken"),
        ("nvlink-only", (P2P, IB), "broken"),
        ("nic-only", (IB,), "held"),
        ("nic-only", (P2P, IB), "broken"),
        ("nic-only", (SOCKET,), "unknown"),  # by a card or by loopback: bytes would tell
        ("loopback-nic", (IB,), "broken"),
        ("loopback-nic", (SHM,), "broken"),
        ("shm-off", (P2P,), "held"),
        ("shm-off", (IB, P2P), "held"),
        ("shm-off", (SHM,), "broken"),
        ("shm-off", (), "unknown"),
    ],
)
def test_nccls_log_tells(name: str, lines: tuple[str, ...], state: str) -> None:
    assert prove_path(logged(name, *lines)).state == state


@pytest.mark.parametrize(("loopback", "state"), [(1.0, "held"), (0.0, "broken")])
def test_of_nccls_sockets_bytes_tell_which_interface(loopback: float, state: str) -> None:
    what = on_path("loopback-nic", "nccl")
    sockets = logged("loopback-nic", SOCKET, sent=[count(what, 1.0, loopback)])
    assert prove_path(sockets).state == state


def test_bytes_on_loopback_belie_a_log_of_nvlink() -> None:
    what = on_path("nvlink-only", "nccl")
    belied = logged("nvlink-only", P2P, sent=[count(what, 1.0, 1.0)])
    assert prove_path(belied).state == "broken"


def test_no_preset_no_proof() -> None:
    assert prove_path(record(case(MIB, n=2))).state == ""
    assert judge_paths([record(case(MIB, n=2))]) == (Exit.OK, "")


def flags_of(what: Record) -> tuple[str, ...]:
    row = derive_row(what, None)
    assert row is not None
    return row.flags


def test_a_path_that_was_not_taken_is_a_doubt_that_decides_nothing() -> None:
    broken = counted("shm-off", 0.0, 0.0, "mpi")
    assert "off-path" in flags_of(broken)
    assert notes_of(broken)[-1].startswith("the path was not taken: ")


def test_a_path_that_is_not_known_is_a_doubt() -> None:
    assert "path-unproved" in flags_of(record(on_path("shm-off", "mpi")))


def test_a_path_that_was_taken_is_no_doubt_and_is_noted() -> None:
    held = counted("loopback-nic", 1.0, 1.0)
    assert not {"off-path", "path-unproved"} & {*flags_of(held)}
    assert notes_of(held)[-1].startswith("the path was taken: ")


HELD, BROKEN = counted("shm-off", 1.0, 1.0, "mpi"), counted("shm-off", 0.0, 0.0, "mpi")
UNKNOWN = record(on_path("shm-off", "mpi"))


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([HELD, UNKNOWN], Exit.OK),
        ([HELD, BROKEN, UNKNOWN], Exit.BAD),
        ([HELD, HELD, BROKEN], Exit.OK),  # of one case: launches tell by majority
        ([UNKNOWN], Exit.NO_VERDICT),
    ],
)
def test_a_run_is_judged_by_its_paths(records: list[Record], code: Exit) -> None:
    assert judge_paths(make_file(records).records)[0] == code


def test_each_side_has_paths_of_its_own() -> None:
    code, sentence = judge_paths([HELD] * 3, [BROKEN] * 2)
    assert code == Exit.BAD and "was not taken in 1 of 2 cases" in sentence
