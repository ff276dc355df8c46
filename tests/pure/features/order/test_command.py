"""What the command line of `order` asks for."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.cli.families import LauncherOptions, SaveOptions
from collbench.core.errors import UsageError
from collbench.features.order.command import (
    EffortOptions,
    OrderOptions,
    SweepOptions,
    make_requests,
    make_suite,
)
from collbench.features.order.measurable import OrderRequest
from collbench.features.order.plan import describe_calls
from collbench.features.order.request import SumOrder
from collbench.features.order.runner import RUNNER
from collbench.run.jobs import Job
from collbench.run.refusal import refuse_anywhere
from collbench.show import terminal
from collbench.show.document import Document


def options(**fields: Any) -> OrderOptions:
    effort = {name: fields.pop(name) for name in [*fields] if hasattr(EffortOptions, name)}
    return OrderOptions(
        what="all_reduce",
        sweep=SweepOptions(**fields),
        effort=EffortOptions(**effort),
        where=LauncherOptions(),
        saving=SaveOptions(),
    )


def requests(collective: str = "all_reduce", **fields: Any) -> tuple[OrderRequest, ...]:
    return make_requests(collective, options(**fields), (4,))


def test_sizes_are_4_B_to_16_MiB_by_4() -> None:
    (request,) = requests()
    assert request.sizes == tuple(4**power for power in range(1, 13))


def test_a_sweep_of_its_own() -> None:
    (request,) = requests(minbytes="1K", maxbytes="4K", stepfactor=2.0)
    assert request.sizes == (1024, 2048, 4096)


def test_each_rank_has_an_element_of_a_divided_buffer() -> None:
    assert requests("reduce_scatter")[0].sizes[0] == 16
    assert requests("reduce_scatter", minbytes="4", maxbytes="64")[0].sizes == (16, 64)


def test_sizes_without_an_element_for_each_rank_are_refused() -> None:
    with pytest.raises(UsageError, match="each of 4 ranks"):
        requests("reduce_scatter", minbytes="4", maxbytes="8")


def test_types_reductions_and_roots_are_lists() -> None:
    asked = requests("reduce", dtype="float,half", op="sum,avg", root="0,2")
    assert len(asked) == 8
    assert {request.root for request in asked} == {0, 2}


def test_all_roots() -> None:
    assert [request.root for request in requests("reduce", root="all")] == [0, 1, 2, 3]


def test_a_root_means_nothing_to_all_reduce() -> None:
    assert len(requests(root="all")) == 1


@pytest.mark.parametrize(
    ("text", "places"), [("out,in", ("out", "in")), ("both", ("out", "in")), ("in", ("in",))]
)
def test_places(text: str, places: tuple[str, ...]) -> None:
    assert requests(place=text)[0].places == places


@pytest.mark.parametrize(
    ("collective", "fields", "words"),
    [
        ("all_reduce", {"op": "max"}, "max has no order: it never rounds"),
        ("all_reduce", {"dtype": "int32"}, "sum of int32 is exact in any order"),
        ("barrier", {}, "barrier does not reduce"),
        ("all_gather", {}, "all_gather does not reduce"),
        ("all_reduce", {"pairs": "packed"}, "--pairs"),
        ("all_reduce", {"place": "beside"}, "--place"),
        ("all_reduce", {"shift": "x"}, "--shift"),
    ],
)
def test_what_has_no_order_is_refused(collective: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        requests(collective, **fields)


def test_the_budget_is_divided_among_cases() -> None:
    asked = options(budget="60s", backend="shm", algo="ring,one_shot", ngpus="2", launches=3)
    suite = make_suite("all_reduce", asked)
    assert [request.budget for request in suite.requests] == [pytest.approx(10.0)]
    assert len(suite.expand()[0]) == 6


def test_launches_are_of_fresh_ranks() -> None:
    suite = make_suite("all_reduce", options(backend="shm", algo="ring", ngpus="2", launches=3))
    assert suite.policy.fresh and suite.axes.cycles == 3


def calls(world: int, **fields: Any) -> str:
    subject = SumOrder(collective="all_reduce", sizes=(64, 1024), world=world, **fields)
    blocks = describe_calls([subject])
    return terminal.render_text(Document(title="", brief=blocks), 120)


def test_calls_are_counted_beforehand() -> None:
    assert "248" in calls(16)


def test_a_cheaper_way_is_named() -> None:
    assert "--pairs adaptive" in calls(64, strategy="all")
    assert "--pairs adaptive" not in calls(64)


@pytest.mark.parametrize(
    ("collective", "backend", "words"),
    [
        ("all_reduce", "mlx", "does nothing in place"),
        ("all_reduce", "torch_multimem_one_shot", "reads what in place is overwritten"),
        ("reduce_scatter", "mpi", "MPI's in-place reduce_scatter"),
    ],
)
def test_a_first_place_that_a_backend_never_takes_is_refused(
    collective: str, backend: str, words: str
) -> None:
    for place in ("in", "in,out"):
        asked = options(backend=backend, ngpus="4", place=place, maxbytes="64")
        ((case,), _), (subject,) = expand(collective, asked)
        assert words in RUNNER.refuse(case, subject, refuse_anywhere)
    asked = options(backend=backend, ngpus="4", place="out,in", maxbytes="64")
    ((case,), _), (subject,) = expand(collective, asked)
    assert RUNNER.refuse(case, subject, refuse_anywhere) == ""


def test_a_first_place_is_the_one_that_is_probed() -> None:
    ((case,), _), (subject,) = expand("all_reduce", options(backend="gloo", ngpus="4", place="in"))
    (probe,) = RUNNER.list_probes(Job(case, 1, "hot", subject=subject))
    assert probe.in_place


def expand(collective: str, asked: OrderOptions) -> tuple[Any, Any]:
    """The cases of what is asked for, with those left out, and its subjects."""
    suite = make_suite(collective, asked).resolve()
    return suite.expand(), suite.subjects
