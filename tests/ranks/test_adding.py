"""Algorithms that add as measured calls do, by the bits of their sums."""

from __future__ import annotations

import pytest
from needs import needs_mpi

from collbench.records.derive import derive_row
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, expand_axes

SETTINGS = {"iters": 2, "warmup": 1, "adds_as": True}


def cases(**axes: object) -> list[Case]:
    given = {"modes": ("isolated",), "ranks": (4,), "in_place": (False,), **axes}
    return expand_axes(Axes(**given))[0]  # type: ignore[arg-type]


def adds_as(record) -> tuple[str, ...]:
    assert record.status == "ok", record.note
    return record.chose.adds_as if record.chose else ()


@pytest.mark.slow
def test_gloo_adds_as_a_ring_that_goes_down(measure) -> None:
    swept = [
        *cases(collectives=("all_reduce",), sizes=(256,), dtypes=("bfloat16",)),
        *cases(collectives=("all_reduce",), sizes=(70_000,)),
        *cases(collectives=("all_reduce",), sizes=(4096,), in_place=(True,)),
    ]
    for record in measure(swept, **SETTINGS):
        assert adds_as(record)[0].startswith("ring:down"), (record.case.key, adds_as(record))
        assert derive_row(record).chose.endswith("(by its sums)")


@pytest.mark.slow
def test_reference_algorithms_add_as_themselves(measure) -> None:
    three = ("ring", "recursive_doubling", "reduce_broadcast")
    swept = [
        *cases(collectives=("all_reduce",), sizes=(4000,), algorithms=three),
        *cases(collectives=("all_reduce",), sizes=(64,), algorithms=three[:1], ops=("avg",)),
        *cases(collectives=("reduce_scatter",), sizes=(4000,), algorithms=("ring",)),
        *cases(collectives=("reduce",), sizes=(4000,), algorithms=("binomial",), roots=(1,)),
    ]
    for record in measure(swept, **SETTINGS):
        named = [name.partition(",")[0] for name in adds_as(record)]
        assert record.case.algorithm in named, (record.case.key, adds_as(record))


@pytest.mark.slow
def test_what_is_exact_in_any_order_has_no_name(measure) -> None:
    swept = cases(
        collectives=("all_reduce", "all_gather"),
        sizes=(1024,),
        dtypes=("float", "int32"),
        ops=("sum", "max"),
    )
    named = {record.case for record in measure(swept, **SETTINGS) if adds_as(record)}
    assert {(case.collective, case.dtype, case.op) for case in named} == {
        ("all_reduce", "float", "sum")
    }


@pytest.mark.slow
def test_two_ranks_have_one_order_and_no_name(measure) -> None:
    (record,) = measure(cases(collectives=("all_reduce",), sizes=(64,), ranks=(2,)), **SETTINGS)
    assert record.chose is None


def test_nothing_is_looked_for_unless_it_is_asked_for(measure) -> None:
    (record,) = measure(cases(collectives=("all_reduce",), sizes=(64,)), iters=2)
    assert record.chose is None


def test_shared_memory_adds_as_the_algorithm_that_it_runs(measure) -> None:
    swept = cases(
        collectives=("all_reduce",), sizes=(4000,), backends=("shm",), algorithms=("ring",)
    ) + cases(collectives=("scan",), sizes=(800,), backends=("shm",), algorithms=("chain",))
    found = [record for record in measure(swept, **SETTINGS) if record.status == "ok"]
    assert found
    for record in found:
        assert record.case.algorithm in adds_as(record), (record.case.key, adds_as(record))


@pytest.mark.slow
def test_one_call_that_adds_otherwise_leaves_no_name(measure) -> None:
    """Of the 64 calls on random numbers after some ten others, one flips a bit."""
    (case,) = cases(collectives=("all_reduce",), sizes=(64,), backends=("saboteur",))
    settings = {"rotation": 1, **SETTINGS}
    names = [
        adds_as(record)
        for fault in ("corrupt:1:9999", "corrupt:1:40")
        for record in measure([case], sabotage=fault, **settings)
    ]
    assert names[0][0].startswith("ring:down")
    assert names[1] == ()


@pytest.mark.slow
@needs_mpi
def test_mpi_adds_as_recursive_doubling_and_what_adds_alike(measure) -> None:
    (case,) = cases(collectives=("all_reduce",), sizes=(1024,), backends=("mpi",))
    (record,) = measure([case], **SETTINGS)
    assert {"recursive_doubling", "torus2d", "binomial by low bits"} <= {*adds_as(record)}
    assert derive_row(record).chose.startswith("recursive_doubling +")
