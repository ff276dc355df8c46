"""What a library ran: in words, against the settings asked for, and over the wires."""

from __future__ import annotations

from fractions import Fraction

import factories
import pytest
from msgspec.structs import replace

from collbench.records.choice import (
    IN_SWITCH,
    add_names,
    describe_choice,
    is_unlike_sums,
    wire_factor,
    without_effect,
)
from collbench.records.derive import derive_row
from collbench.records.flags import list_doubts
from collbench.records.types import Choice

RING = Choice(algorithm="Ring", protocol="LL128", channels=24, transport="P2P")
TREE = Choice(algorithm="Tree", protocol="Simple", channels=2)
NVLS = Choice(algorithm="NVLS", protocol="Simple", channels=16, transport="NVLS")
SYMMETRIC = Choice(algorithm="Symmetric", protocol="AGxLL_R", channels=8, transport="P2P")
COPIES = Choice(algorithm="CopyEngine", transport="P2P")


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (RING, "Ring/LL128 x24 P2P"),
        (TREE, "Tree/Simple x2"),
        (SYMMETRIC, "Symmetric/AGxLL_R x8 P2P"),
        (COPIES, "CopyEngine P2P"),
        (Choice(transport="NET/IB/GDRDMA+P2P"), "NET/IB/GDRDMA+P2P"),
        (Choice(adds_as=("ring",)), "ring (by its sums)"),
        (Choice(adds_as=("recursive_doubling", *"abcd")), "recursive_doubling +4 (by its sums)"),
        (Choice(adds_as=("ring",), transport="P2P"), "ring (by its sums) P2P"),
        (replace(RING, adds_as=("ring:down",)), "Ring/LL128 x24 P2P"),
        (Choice(), ""),
        (None, ""),
    ],
)
def test_in_words(choice: Choice | None, text: str) -> None:
    assert describe_choice(choice) == text


@pytest.mark.parametrize(
    ("env", "choice", "reason"),
    [
        ({"NCCL_ALGO": "Tree"}, RING, "NCCL_ALGO=Tree asked, NCCL ran Ring"),
        ({"NCCL_ALGO": "ring"}, RING, ""),
        ({"NCCL_ALGO": "Tree,Ring"}, RING, ""),
        ({"NCCL_ALGO": "^Ring"}, RING, "NCCL_ALGO=^Ring asked, NCCL ran Ring"),
        ({"NCCL_ALGO": "^Tree,NVLS"}, RING, ""),
        ({"NCCL_ALGO": "^Tree,NVLS"}, NVLS, "NCCL_ALGO=^Tree,NVLS asked, NCCL ran NVLS"),
        ({"NCCL_ALGO": "allreduce:tree"}, RING, "NCCL_ALGO=allreduce:tree asked, NCCL ran Ring"),
        ({"NCCL_ALGO": "allgather:tree"}, RING, ""),
        ({"NCCL_ALGO": "ring;allreduce:tree,nvls"}, NVLS, ""),
        (
            {"NCCL_ALGO": "ring;allreduce:tree,nvls"},
            RING,
            "NCCL_ALGO=ring;allreduce:tree,nvls asked, NCCL ran Ring",
        ),
        ({"NCCL_ALGO": "allreduce:^ring"}, TREE, ""),
        ({"NCCL_ALGO": ""}, RING, ""),
        ({"NCCL_ALGO": "Ring"}, SYMMETRIC, "NCCL_ALGO=Ring asked, NCCL ran Symmetric"),
        ({"NCCL_ALGO": "Ring"}, Choice(transport="P2P"), ""),
        ({"NCCL_ALGO": "Ring"}, None, ""),
        (
            {"OMPI_MCA_coll_tuned_allreduce_algorithm": "4"},
            None,
            "OMPI_MCA_coll_tuned_allreduce_algorithm is not known to have effect: it takes"
            " OMPI_MCA_coll_tuned_use_dynamic_rules=1, and one host",
        ),
        ({"OMPI_MCA_coll_tuned_allreduce_algorithm": "4"}, Choice(algorithm="ring"), ""),
        (
            {"OMPI_MCA_coll_tuned_allreduce_algorithm": "4"},
            Choice(adds_as=("ring",)),
            "OMPI_MCA_coll_tuned_allreduce_algorithm is not known to have effect: it takes"
            " OMPI_MCA_coll_tuned_use_dynamic_rules=1, and one host",
        ),
        ({"NCCL_ALGO": "Tree", "NCCL_MAX_CTAS": "8"}, Choice(adds_as=("ring",)), ""),
        ({"OMPI_MCA_coll_tuned_priority": "40"}, None, ""),
        ({"NCCL_PROTO": "LL"}, RING, "NCCL_PROTO=LL asked, NCCL ran LL128"),
        ({"NCCL_PROTO": "^LL"}, RING, ""),
        ({"NCCL_PROTO": "LL,Simple;allreduce:^LL"}, TREE, ""),
        ({"NCCL_PROTO": "Simple"}, COPIES, ""),
        ({"NCCL_MIN_NCHANNELS": "32"}, RING, "NCCL_MIN_NCHANNELS=32 asked, NCCL ran 24 channels"),
        ({"NCCL_MIN_NCHANNELS": "24", "NCCL_MAX_NCHANNELS": "24"}, RING, ""),
        ({"NCCL_MAX_CTAS": "8"}, RING, "NCCL_MAX_CTAS=8 asked, NCCL ran 24 channels"),
        ({"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "none"}, COPIES, ""),
        (
            {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"},
            RING,
            "NCCL_ALGO=Tree asked, NCCL ran Ring; NCCL_PROTO=LL asked, NCCL ran LL128",
        ),
        ({"NCCL_IB_TC": "106"}, RING, ""),
    ],
)
def test_settings_that_had_no_effect(
    env: dict[str, str], choice: Choice | None, reason: str
) -> None:
    assert without_effect(env.items(), "all_reduce", choice) == reason


def test_functions_are_called_as_nccl_has_them() -> None:
    asked = [("NCCL_ALGO", "reducescatter:tree;allreduce:nvls")]
    assert without_effect(asked, "reduce_scatter", RING) and without_effect(asked, "barrier", RING)
    assert not without_effect(asked, "reduce", RING) and not without_effect(
        asked, "broadcast", RING
    )


def switched(n: int, reduces: bool, multiplies: bool) -> Fraction:
    """Bytes through the busier direction of GPU 0's port for a byte of data, counted message by
    message: each of n GPUs fetches its part added up, then sends it to all."""
    part, out, into = Fraction(1, n), Fraction(), Fraction()
    for owner in range(n):
        if reduces:
            out += part  # the switch reads the part from every GPU, GPU 0 among them
            into += part * (owner == 0)
        if multiplies:
            out += part * (owner == 0)
            into += part
    return max(out, into)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 72])
@pytest.mark.parametrize("way", sorted(IN_SWITCH))
def test_wires_carry_what_the_messages_add_up_to(n: int, way: tuple[str, str]) -> None:
    choice = Choice(algorithm=way[0], protocol=way[1])
    steps = {
        "all_reduce": (True, True),
        "all_gather": (False, True),
        "reduce_scatter": (True, False),
    }
    for collective, (reduces, multiplies) in steps.items():
        assert wire_factor(collective, n, choice) == pytest.approx(
            float(switched(n, reduces, multiplies))
        )
    assert wire_factor("broadcast", n, choice) is None


@pytest.mark.parametrize(
    "choice", [RING, TREE, SYMMETRIC, COPIES, Choice(algorithm="NVLSTree"), Choice(), None]
)
def test_wires_are_known_of_nothing_else(choice: Choice | None) -> None:
    assert wire_factor("all_reduce", 8, choice) is None


@pytest.mark.parametrize(
    ("choice", "names", "is_unlike"),
    [
        (RING, ("ring",), False),
        (RING, ("double_tree", "chain to the root"), False),
        (RING, ("linear up",), False),
        (RING, ("recursive_doubling", "binomial by low bits"), True),
        (RING, (), False),
        (TREE, ("ring", "ring:down"), True),
        (TREE, ("double_tree", "ring"), False),
        (TREE, ("chain to the root",), False),  # NCCL's tree within a host
        (NVLS, ("ring",), False),
        (Choice(algorithm="ring"), ("recursive_doubling",), True),
        (None, ("ring",), False),
    ],
)
def test_sums_are_unlike_what_the_library_named(
    choice: Choice | None, names: tuple[str, ...], is_unlike: bool
) -> None:
    assert is_unlike_sums(add_names(choice, names)) is is_unlike


def test_names_are_added_to_what_the_library_said() -> None:
    assert add_names(RING, ("ring",)) == replace(RING, adds_as=("ring",))
    assert add_names(RING, ()) is RING
    assert add_names(None, ()) is None


def test_sums_alone_do_not_change_the_bytes_over_the_wires() -> None:
    assert wire_factor("all_reduce", 8, Choice(adds_as=("ring",))) is None
    sums = replace(NVLS, adds_as=("ring",))
    assert wire_factor("all_reduce", 8, sums) == wire_factor("all_reduce", 8, NVLS)


def test_a_row_whose_sums_are_unlike_what_the_library_named_is_in_doubt() -> None:
    rows = [
        derive_row(factories.record(factories.case(), chose=add_names(RING, names)))
        for names in (("ring",), ("recursive_doubling",))
    ]
    alike, unlike = (row.flags if row else () for row in rows)
    assert "order-unlike-log" not in alike
    assert "order-unlike-log" in unlike
    assert rows[1] and "order-unlike-log" in list_doubts(rows[1])
