"""Forms as suites and commands ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from collbench.core.errors import UsageError
from collbench.features.forms.measurable import FORMS, Form, FormRequest, make_requests
from collbench.features.forms.rows import OTHER, PLAIN
from collbench.features.forms.runner import COPIES, RUNNER
from collbench.run.jobs import Job
from collbench.run.memory import Room
from collbench.suite.case import Skip
from collbench.suite.measurable import decode_subject
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

TABLE = {"objects": ["all_gather"], "coalesced": ["all_reduce"], "sizes": ["8", "1K"]}


def parse(**table: Any) -> list[FormRequest]:
    return FORMS.parse(table, "suite.toml: [[forms]]", Path("suite.toml"))


def resolve(request: FormRequest, ranks: int = 2) -> Form:
    return FORMS.resolve(request, ranks, True, ["gloo"])


def test_a_table_asks_for_each_form_at_each_size() -> None:
    titles = [resolve(request).title for request in parse(**TABLE, together=4)]
    assert titles == [
        "all_gather_object of 8 B",
        "all_gather_object of 1024 B",
        "4 x all_reduce of 8 B",
        "4 x all_reduce of 1024 B",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"object": []}, "object: there is no such key"),
        ({"sizes": []}, "it needs sizes"),
        ({"objects": [], "coalesced": []}, "it needs sizes, and objects or coalesced"),
        ({"objects": ["all_reduce"]}, "'all_reduce' has no form for objects"),
        ({"coalesced": ["broadcast"]}, "'broadcast' is never coalesced"),
        ({"together": 1}, "1 calls in one"),
        ({"together": 5000}, "5000 calls in one"),
        ({"together": ["abc"]}, "together: 'abc' is not a whole number"),
        ({"together": [-4]}, "together: '-4' is not a whole number"),
        ({"together": ["16x", 4]}, "together: '16x' is not a whole number"),
        ({"together": "²"}, "together: '²' is not a whole number"),
        ({"together": "9" * 5000}, "is not a whole number"),
        ({"together": [True]}, "together is no list"),
        ({"together": []}, "together names no number"),
        ({"together": 4, "coalesced": []}, "together has no effect on objects"),
        ({"sizes": [True]}, "sizes is no list"),
        ({"sizes": ["8G"]}, "is no size of a call"),
    ],
)
def test_a_bad_table_is_refused_by_its_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(**{**TABLE, **change})
    assert refused.value.message.startswith("suite.toml: [[forms]]: ")
    assert message in refused.value.message and refused.value.hint


def test_a_table_that_names_no_number_coalesces_eight() -> None:
    assert {request.together for request in parse(**TABLE)} == {0, 8}
    assert {request.together for request in parse(**TABLE, together=["2", 4])} == {0, 2, 4}


def test_both_forms_are_cases_of_one_job() -> None:
    (request,) = make_requests(["all_reduce"], [8], [4])
    axes = Axes(collectives=(), sizes=(), ranks=(2,), backends=("gloo",))
    cases, _ = Suite(name="", axes=axes, subjects=(resolve(request),)).expand()
    assert [(case.collective, case.index, case.nbytes) for case in cases] == [
        (OTHER, 0, 32),
        (PLAIN, 1, 32),
    ]


def test_a_subject_survives_a_file() -> None:
    subject = resolve(make_requests(["scatter"], [8], [])[0], ranks=4)
    assert decode_subject(msgspec.json.decode(msgspec.json.encode(subject))) == subject


@pytest.mark.parametrize(
    "fields", [{"collective": "x"}, {"world": 1}, {"together": 3, "collective": "broadcast"}]
)
def test_what_a_file_says_of_a_subject_is_checked(fields: dict[str, Any]) -> None:
    given = {"kind": "form", "collective": "gather", "nbytes": 8, "world": 2, **fields}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(given), type=Form)


@pytest.mark.parametrize("backend", ["mpi", "shm", "model"])
def test_what_is_no_backend_of_torch_is_refused(backend: str) -> None:
    subject = resolve(make_requests(["gather"], [8], [])[0])
    axes = Axes(collectives=(), sizes=(), ranks=(2,), backends=(backend,))
    cases, _ = Suite(name="", axes=axes, subjects=(subject,)).expand()
    assert backend in RUNNER.refuse(cases[0], subject, lambda _: "")


@pytest.mark.parametrize(
    ("collective", "together", "blocks"),
    [
        ("all_reduce", 4, 64),
        ("sendrecv", 4, 64),
        ("all_gather", 4, 64 * 64),
        ("reduce_scatter", 4, 64 * 64),
        ("broadcast", 0, 64),
        ("all_gather", 0, 64 * 64),
        ("gather", 0, 64 + 63),
        ("scatter", 0, 64 + 63),
    ],
)
def test_room_is_counted_by_what_each_rank_has(collective: str, together: int, blocks: int) -> None:
    """Of 64 ranks on a host: where one rank alone has all blocks, it alone is counted for them."""
    requests = make_requests([collective], [1 << 20], [together] if together else [])
    subject = resolve(requests[0], ranks=64)
    axes = Axes(collectives=(), sizes=(), ranks=(64,), backends=("gloo",))
    (case, _), _ = Suite(name="", axes=axes, subjects=(subject,)).expand()
    needed = COPIES * blocks * max(1, together) << 20
    for available, kind in ((needed, Job), (needed - 1, Skip)):
        room = Room("on this host", available, 1 << 20, 64, 0)
        assert isinstance(RUNNER.fit(case, Policy(), room, subject), kind)
