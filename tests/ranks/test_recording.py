"""Training jobs of torch's own that record themselves on two ranks of Gloo: what was recorded is
what the program asked for, nothing is left behind, and no failure reaches the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recorded_jobs as jobs
from recorded import Told, as_model, told
from warm import Warm

from collbench.features.traces.formats import own
from collbench.features.traces.types import Call, RankTrace, Trace
from collbench.features.training.layout import Layout
from collbench.features.training.patterns.data_parallel import Ddp, ddp
from collbench.features.training.patterns.fsdp import Fsdp2, fsdp2

RANKS = 2

HEAVY = ("ddp", "fsdp2", "broken", "full", "unwritable")  # for which torch loads its compiler


class Jobs:
    """What jobs recorded, and told, in processes of their own, which are started when the first of
    them is asked for: those of HEAVY on ranks of theirs, all others on the same."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self._warm, self._folder = warm, folder
        self._told: dict[bool, list[dict[str, Any]]] = {}

    def told(self, name: str) -> list[Any]:
        """What each rank told of a job; None of one that ended them."""
        heavy = name in HEAVY
        if heavy not in self._told:
            names = [job.__name__ for job in jobs.JOBS if (job.__name__ in HEAVY) == heavy]
            self._told[heavy] = jobs.start(self._warm, " ".join(names), self._folder, heavy)
        return [of_rank.get(name) for of_rank in self._told[heavy]]

    def trace(self, name: str) -> Trace:
        assert len(self.told(name)) == RANKS
        return own.read_job(sorted((self._folder / name).iterdir()))


@pytest.fixture(scope="module")
def all_jobs(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs(warm, tmp_path_factory.mktemp("jobs"))


def by_weight(*names: str) -> list[Any]:
    """Names of jobs as parameters: those of HEAVY are slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n in HEAVY else []) for n in names]


def talk(rank: RankTrace, span: tuple[int, int] | None = None) -> list[Call]:
    begin, end = span or (0, 1 << 62)
    return [each for each in rank.calls if each.kind != "wait" and begin <= each.issued_ns < end]


def asked(calls: list[Call]) -> list[Told]:
    return [Told(call.kind, call.nbytes, call.dtype) for call in calls]


@pytest.mark.slow
def test_ddps_calls_are_those_of_its_pattern(all_jobs: Jobs) -> None:
    step = ddp(
        as_model(jobs.Layers(buffers=True)), Layout(dp=RANKS), Ddp(bucket_cap_mb=jobs.CAP_MB)
    )
    for rank in all_jobs.trace("ddp").ranks:
        assert len(rank.steps) == 2
        for span in rank.steps:
            assert asked(talk(rank, span)) == told(step)


@pytest.mark.slow
def test_ddp_has_several_buckets_and_waits_for_them_at_the_end_of_backward(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("ddp").ranks:
        buckets = [at for at, call in enumerate(rank.calls) if call.kind == "all_reduce"]
        waits = [call for call in rank.calls if call.kind == "wait"]
        assert len(buckets) >= 2 * 3
        assert [at for wait in waits for at in wait.after] == buckets
        assert {rank.calls[at].phase for at in buckets} == {"backward"}
        for wait in waits:
            assert wait.ends_ns >= max(rank.calls[at].ends_ns for at in wait.after)


@pytest.mark.parametrize("name", by_weight("ddp", "fsdp2", "experts", "calls", "threads"))
def test_every_calls_times_are_known_and_in_order(name: str, all_jobs: Jobs) -> None:
    for rank in all_jobs.trace(name).ranks:
        assert [c for c in rank.calls if not 0 < c.issued_ns <= c.begins_ns <= c.ends_ns] == []


@pytest.mark.slow
def test_fsdp2s_calls_are_those_of_its_pattern(all_jobs: Jobs) -> None:
    step = fsdp2(as_model(jobs.Layers()), Layout(dp=RANKS), Fsdp2())
    for rank in all_jobs.trace("fsdp2").ranks:
        assert asked(talk(rank)) == told(step)


def test_blocks_of_exchanges_are_those_that_were_sent(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("experts").ranks:
        tokens = all_jobs.told("experts")[rank.rank]
        there = [jobs.WIDTH * count for count in tokens[rank.rank]]
        back = [jobs.WIDTH * row[rank.rank] for row in tokens]
        assert [(*call.sends,) for call in rank.calls] == [(*there,), (*back,)] * 2
        assert [(*call.receives,) for call in rank.calls] == [(*back,), (*there,)] * 2
        assert {call.kind for call in rank.calls} == {"all_to_allv"}
        assert len(rank.steps) == 2


# kind, group, bytes, datatype, reduction, root, number in the group
ISSUED = [
    ("all_reduce", "", 32, "float", "max", -1, 0),
    ("barrier", "", 0, "uint8", "none", -1, 1),
    ("broadcast", "turned", 24, "int64", "none", 0, 0),
    ("reduce", "", 32, "double", "prod", 1, 2),
    ("all_gather", "", 16, "float", "none", -1, 3),
    ("all_gather", "", 24, "float", "none", -1, 4),
    ("reduce_scatter", "", 24, "float", "sum", -1, 5),
    ("gather", "", 40, "float", "none", 0, 6),
    ("scatter", "", 56, "float", "none", 1, 7),
    ("all_to_all", "", 16, "float", "none", -1, 8),
    ("all_reduce", "", 40, "float", "sum", -1, 9),
    ("all_reduce", "", 44, "float", "sum", -1, 10),
    ("all_reduce", "", 20, "float", "sum", -1, 11),
    ("barrier", "", 0, "uint8", "none", -1, 12),
    ("all_reduce", "", 2, "uint8", "max", -1, 13),
    ("all_reduce", "", 48, "float", "sum", -1, 14),
    ("broadcast", "", 8, "int64", "none", 0, 15),
]


def test_each_kind_of_call_is_recorded_as_it_was_issued(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("calls").ranks:
        calls = [call for call in talk(rank) if call.kind not in ("send", "recv")]
        named = [(c, rank.described[c.group] if c.group else "") for c in calls]
        found = [(c.kind, g, c.nbytes, c.dtype, c.op, c.root, c.number) for c, g in named]
        assert found[: len(ISSUED)] == ISSUED
        assert [(c.kind, c.dtype) for c in calls[len(ISSUED) :]] == [("broadcast", "uint8")]


def test_groups_have_their_ranks_in_order(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("calls").ranks:
        by_words = {rank.described[name]: ranks for name, ranks in rank.groups.items() if name}
        assert (rank.groups[""], by_words) == ((0, 1), {"turned": (0, 1)})


def test_messages_have_peers_and_tags(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("calls").ranks:
        other = 1 - rank.rank
        first = ("send", "recv")[rank.rank]
        messages = [call for call in talk(rank) if call.kind in ("send", "recv")]
        found = [(c.kind, c.peer, c.tag, c.nbytes, c.waits) for c in messages]
        assert found == [
            (first, other, 5, 36, True),
            (first, other, 6, 40, True),
            ("send", other, 0, 8, False),
            ("recv", other, 0, 8, False),
        ]


def test_waits_are_where_the_program_waited(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("calls").ranks:
        kinds = [call.kind for call in rank.calls]
        assert kinds[:4] == ["all_reduce", "barrier", "wait", "wait"]
        assert [call.after for call in rank.calls[2:4]] == [(1,), (0,)]
        later = [call for call in talk(rank) if not call.waits]
        waited = {at for call in rank.calls for at in call.after}
        assert later == [rank.calls[at] for at in sorted(waited)]


@pytest.mark.slow
def test_a_backward_pass_waits_no_longer_than_its_calls_take(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("ddp").ranks:
        waits = [c for c in rank.calls if c.kind == "wait" and c.phase == "backward"]
        ends = [max(rank.calls[at].ends_ns for at in wait.after) for wait in waits]
        assert waits
        assert [wait.ends_ns for wait in waits] == [
            max(end, wait.issued_ns) for end, wait in zip(ends, waits, strict=True)
        ]


def test_lines_of_the_program_are_told(all_jobs: Jobs) -> None:
    (rank, _) = all_jobs.trace("experts").ranks
    assert {call.source.split(":")[0] for call in rank.calls} == {"recorded_jobs.py"}
    assert {call.source.split()[-1] for call in rank.calls} == {"experts"}


def test_threads_lose_nothing(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("threads").ranks:
        for name in rank.groups:
            numbers = [call.number for call in talk(rank) if call.group == name]
            assert numbers == list(range(300))
        assert rank.lost == ()


@pytest.mark.parametrize(
    "name",
    by_weight("ddp", "calls", "threads", "broken", "full", "unwritable", "twice", "strict"),
)
def test_nothing_is_left_behind(name: str, all_jobs: Jobs) -> None:
    for by_rank in all_jobs.told(name):
        left = {key: by_rank[key] for key in ("hooks", "wrapped", "threads")}
        assert left == {"hooks": [], "wrapped": [], "threads": []}


def test_what_nobody_waits_for_is_let_go_with_the_next_call(all_jobs: Jobs) -> None:
    assert [each["held"] for each in all_jobs.told("unwaited")] == [False, False]


FAILURES = {
    "broken": "planted",
    "full": "No space left on device",
    "unwritable": "unwritable",
    "twice": "already",
}


@pytest.mark.parametrize("name", by_weight(*FAILURES))
def test_a_failure_is_one_warning(name: str, all_jobs: Jobs) -> None:
    for by_rank in all_jobs.told(name):
        (warning,) = by_rank["warned"]
        assert FAILURES[name] in warning
        assert warning.endswith("nothing more is recorded, the job goes on")


@pytest.mark.slow
def test_training_goes_on_as_without(all_jobs: Jobs) -> None:
    assert [each["same"] for each in all_jobs.told("broken")] == [True] * RANKS


@pytest.mark.slow
def test_what_failed_is_told_in_the_trace(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("broken").ranks:
        assert [lost.why for lost in rank.lost] == [
            "the recorder failed: what came later is not in it"
        ]
        assert len(talk(rank)) == 5


def test_a_job_that_is_killed_leaves_what_it_had(all_jobs: Jobs) -> None:
    for rank in all_jobs.trace("killed").ranks:
        assert [call.kind for call in talk(rank)[:5]] == ["all_reduce"] * 5
        assert [lost.why for lost in rank.lost] == [own.INTERRUPTED]
