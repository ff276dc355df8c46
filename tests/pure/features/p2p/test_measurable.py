"""Transfers as suites and the command line ask for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collbench.cli.families import LauncherOptions, SaveOptions
from collbench.core.errors import UsageError
from collbench.features.p2p.command import (
    EffortOptions,
    PatternOptions,
    TransferOptions,
    make_order,
    make_suite,
)
from collbench.features.p2p.measurable import TRANSFERS, Transfer, TransferRequest
from collbench.features.p2p.runner import RUNNER
from collbench.run.jobs import Job
from collbench.run.memory import PAGE, Room
from collbench.suite.case import Skip
from collbench.suite.measurable import decode_subject
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite
from collbench.suite.toml import load_suite

TABLE = {"patterns": ["ping-pong", "window:16"], "sizes": ["8", "64K"]}


def parse(**table: Any) -> list[TransferRequest]:
    return TRANSFERS.parse(table, "suite.toml: [[p2p]]", Path("suite.toml"))


def options(**fields: Any) -> TransferOptions:
    effort = {name: fields.pop(name) for name in [*fields] if hasattr(EffortOptions, name)}
    return TransferOptions(
        what=PatternOptions(**{"backend": "gloo", **fields}),
        effort=EffortOptions(**effort),
        saving=SaveOptions(save=False),
        where=LauncherOptions(launcher="local"),
    )


def test_a_table_asks_for_each_pattern_at_each_size() -> None:
    asked = [(request.pattern, request.nbytes) for request in parse(**TABLE)]
    assert asked == [("ping-pong", 8), ("ping-pong", 65536), ("window:16", 8), ("window:16", 65536)]


def test_a_single_pattern_and_size_need_no_list() -> None:
    (request,) = parse(patterns="incast", sizes=64)
    assert (request.pattern, request.nbytes) == ("incast", 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pattern": ["x"]}, "pattern: there is no such key"),
        ({"patterns": []}, "it needs patterns and sizes"),
        ({"sizes": None}, "it needs patterns and sizes"),
        ({"sizes": [True]}, "it needs patterns and sizes"),
        ({"sizes": [8.5]}, "it needs patterns and sizes"),
        ({"sizes": ["much"]}, "'much' is not a size"),
        ({"sizes": [0]}, "a message has no 0 B"),
        ({"sizes": ["2T"]}, "a message has no"),
        ({"patterns": ["pong"]}, "'pong' is no pattern"),
        ({"pairs": 3}, "pairs is no text"),
        ({"patterns": ["rate"], "sizes": ["1M"]}, "no size is at most 8192 B"),
    ],
)
def test_a_bad_table_is_refused_by_its_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(**{**TABLE, **change})
    assert refused.value.message.startswith("suite.toml: [[p2p]]: ")
    assert message in refused.value.message and refused.value.hint


def test_a_suite_of_transfers_is_laid_out_on_its_ranks(tmp_path: Path) -> None:
    path = tmp_path / "transfers.toml"
    path.write_text(
        '[axes]\nranks = 4\nbackends = "gloo"\n\n[[p2p]]\npatterns = ["ping-pong", "incast"]\n'
        'sizes = ["8"]\npairs = "all"\n'
    )
    suite = load_suite(str(path)).resolve()
    assert [subject.title for subject in suite.subjects] == [
        "ping-pong of 8 B, 4 ranks, all pairs",
        "incast of 8 B, 4 ranks",
    ]
    cases, skips = suite.expand()
    assert [case.collective for case in cases] == ["p2p_ping_pong", "p2p_incast"] and not skips
    assert {case.n for case in cases} == {4}


def test_transfers_among_different_ranks_have_different_titles() -> None:
    (request,) = parse(patterns="ping-pong", sizes=8)
    titles = {TRANSFERS.resolve(request, n, True, ["gloo"]).title for n in (2, 4, 8)}
    assert len(titles) == 3


def test_transfers_of_a_title_are_the_same() -> None:
    pairs = ["0-1", "1-0", "0-1,2-3", "0-2,1-3", "2-0,1-3", "all"]
    asked = [
        TransferRequest(pattern=pattern, nbytes=nbytes, pairs=text)
        for pattern in ("ping-pong", "both-ways", "both-ways:2", "window:2", "rate:2", "outcast")
        for nbytes in (1024, 1025)
        for text in pairs
    ]
    resolved = [TRANSFERS.resolve(request, 4, True, ["gloo"]) for request in asked]
    assert len({what.title for what in resolved}) == len(set(resolved))


def test_a_long_list_of_pairs_stays_short_in_the_title() -> None:
    text = ",".join(f"{rank}-{rank + 1}" for rank in range(0, 400, 2))
    request = TransferRequest(pattern="window", nbytes=8, pairs=text)
    assert len(TRANSFERS.resolve(request, 400, True, ["gloo"]).title) < 80


def test_one_rank_has_nobody_to_talk_to() -> None:
    (request,) = parse(patterns="incast", sizes=8)
    with pytest.raises(UsageError, match="2 ranks at least, not 1"):
        TRANSFERS.resolve(request, 1, True, ["gloo"])


def test_a_subject_survives_a_file() -> None:
    request = TransferRequest(pattern="window:3", nbytes=8, pairs="1-0")
    subject = TRANSFERS.resolve(request, 2, True, ["gloo"])
    assert decode_subject(msgspec.json.decode(msgspec.json.encode(subject))) == subject


@pytest.mark.parametrize(
    "fields",
    [
        {"pattern": "pong"},
        {"pattern": "window", "window": 0},
        {"pattern": "ping-pong", "window": 3},
        {"pattern": "incast"},  # with pairs
        {"pairs": ((0, 5),)},
        {"pairs": ()},
        {"world": 1},
    ],
)
def test_what_a_file_says_of_a_subject_is_checked(fields: dict[str, Any]) -> None:
    given = {"pattern": "ping-pong", "nbytes": 8, "world": 2, "pairs": ((0, 1),), **fields}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({"kind": "transfer", **given}), type=Transfer)


def test_the_command_measures_8_B_to_4_MiB_by_4_on_two_ranks() -> None:
    suite = make_suite(options())
    sizes = [8 * 4**power for power in range(10)]
    assert [request.nbytes for request in suite.requests] == [*sizes, 4 << 20]
    assert suite.axes.ranks == (2,)


def test_hosts_of_the_environment_have_a_rank_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLBENCH_HOSTS", "a:4,b:4")
    asked = replace(options(), where=LauncherOptions(launcher="ssh"))
    assert make_suite(asked).axes.ranks == (8,)
    assert make_suite(replace(asked, what=replace(asked.what, ngpus="3"))).axes.ranks == (3,)
    assert make_suite(options()).axes.ranks == (2,)


@pytest.mark.parametrize(
    ("end", "sizes"),
    [("8", [8]), ("16", [8, 16]), ("32", [8, 32]), ("1K", [8, 32, 128, 512, 1024])],
)
def test_the_largest_size_is_always_measured(end: str, sizes: list[int]) -> None:
    requests = make_suite(options(maxbytes=end)).requests
    assert [request.nbytes for request in requests] == sizes


def test_rate_has_small_messages_unless_larger_ones_are_asked_for() -> None:
    sizes = [request.nbytes for request in make_suite(options(pattern="rate")).requests]
    assert max(sizes) == 8192


def test_messages_that_rate_has_not_are_skipped_with_the_reason() -> None:
    suite = make_suite(options(pattern="rate", minbytes="8192", maxbytes="32K")).resolve()
    cases, _ = suite.expand()
    reasons = [RUNNER.refuse(case, suite.subject_finder(case), lambda _: "") for case in cases]
    assert [bool(reason) for reason in reasons] == [False, True]
    assert "8192 B at most" in reasons[1]


def test_pairs_without_effect_are_refused() -> None:
    with pytest.raises(UsageError, match="--pairs has no effect on incast and outcast"):
        make_suite(options(pattern="incast,outcast", pairs="all"))
    assert make_suite(options(pattern="incast,ping-pong", pairs="all")).requests
    with pytest.raises(UsageError, match=r"suite.toml: \[\[p2p\]\]: pairs has no effect on incast"):
        parse(patterns="incast", sizes=8, pairs="0-1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": ""}, "--pattern names none"),
        ({"pattern": "ping"}, "'ping' is no pattern"),
        ({"minbytes": "x"}, "-b: 'x' is not a size"),
        ({"minbytes": "0", "maxbytes": "0"}, "a message has no 0 B"),
        ({"minbytes": "8", "maxbytes": "4"}, "larger than -e"),
        ({"iters": 3, "max_time": "1s"}, "-n fixes the samples"),
        ({"iters": 3, "budget": "9s"}, "fixes the repetitions"),
    ],
)
def test_a_bad_option_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_order(options(**fields))


def test_a_backend_without_messages_is_refused_with_those_that_have_them() -> None:
    (case,), _ = make_suite(options(backend="shm", maxbytes="8")).resolve().expand()
    reason = RUNNER.refuse(case, None, lambda _: "")  # type: ignore[arg-type]
    assert reason.endswith("backends with messages: gloo, mpi, nccl, ucc, xccl")


def test_a_model_is_refused() -> None:
    (case,), _ = make_suite(options(backend="model", maxbytes="8")).resolve().expand()
    assert "no single messages" in RUNNER.refuse(case, None, lambda _: "")  # type: ignore[arg-type]


MESSAGE = (1 << 20) + PAGE  # of 1 MiB, and its acknowledgement: a rank's bytes


@pytest.mark.parametrize(
    ("pattern", "pairs", "backend", "nbytes"),
    [
        ("incast", "0-1", "gloo", (63 << 20) + PAGE + 63 * MESSAGE),
        ("outcast", "0-1", "gloo", (63 << 20) + PAGE + 63 * MESSAGE),
        ("one-way", "0-1", "gloo", 2 * MESSAGE),
        ("one-way", "all", "gloo", 64 * MESSAGE),
        ("incast", "0-1", "nccl", 64 * ((63 << 20) + PAGE)),  # as each GPU has it
    ],
)
def test_room_on_a_host_is_counted_for_ranks_that_have_messages(
    pattern: str, pairs: str, backend: str, nbytes: int
) -> None:
    """Each with its own, and as much for the library's copies."""
    request = TransferRequest(pattern=pattern, nbytes=1 << 20, pairs=pairs)
    subject = TRANSFERS.resolve(request, 64, True, [backend])
    axes = Axes(collectives=(), sizes=(), ranks=(64,), backends=(backend,))
    ((case,), _) = Suite(name="", axes=axes, subjects=(subject,)).expand()
    needed = 2 * nbytes + 64 * PAGE
    for available, kind in ((needed, Job), (needed - 1, Skip)):
        room = Room("", available, 1 << 20, 64, 0)
        assert isinstance(RUNNER.fit(case, Policy(), room, subject), kind)
