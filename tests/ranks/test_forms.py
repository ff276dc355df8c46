"""Other forms of torch's calls among real ranks: all data verified, planted faults found."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from collbench.core.errors import Exit, RunBroken
from collbench.features.forms.measurable import COALESCED, FORMS, OBJECTS, make_requests
from collbench.records.derive import NO_SAMPLE
from collbench.records.flags import EXCLUDED
from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite


def measure_forms(
    launcher: Launcher,
    objects: bool = True,
    ranks: int = 3,
    names: Sequence[str] = (),
    **policy: object,
) -> list[Record]:
    """The records of forms of objects, or of coalesced calls, by default of all, in one world."""
    names = names or [*(OBJECTS if objects else COALESCED)]
    requests = make_requests(list(names), [1, 500], [] if objects else [3])
    subjects = tuple(FORMS.resolve(request, ranks, True, ["gloo"]) for request in requests)
    given = {"iters": 3, "warmup": 1, "timeout": 60.0, "sync": "barrier", **policy}
    settings = Policy(**given)  # type: ignore[arg-type]
    axes = Axes(collectives=(), sizes=(), ranks=(ranks,), backends=("gloo",))
    suite = Suite(name="", axes=axes, subjects=subjects)
    leaders = [case for case in suite.expand()[0] if case.is_leader]
    jobs = [Job(case, 1, "hot", subject=suite.subject_finder(case)) for case in leaders]
    lines: list[World | Record] = []
    launcher.run([Plan(0, "gloo", ranks, (), settings, jobs, 60.0)], Listener(lines.append))
    return [line for line in lines if isinstance(line, Record)]


@pytest.mark.parametrize("objects", [True, False])
def test_both_forms_are_measured_and_verified(launcher: Launcher, objects: bool) -> None:
    records = measure_forms(launcher, objects)
    assert len(records) == 4 * 2 * 2
    assert {(record.status, record.wrong, record.note) for record in records} == {("ok", 0, "")}
    assert all(len(record.times_ns) == 3 and record.checked for record in records)


@pytest.mark.parametrize(
    ("objects", "names", "rank"),
    [
        (True, ("gather",), 0),  # whose data only the root has
        (True, tuple(set(OBJECTS) - {"gather"}), 1),
        (False, tuple(COALESCED), 1),
    ],
    ids=["gather", "objects", "coalesced"],
)
def test_a_flipped_bit_is_found_in_every_form(
    launcher: Launcher, objects: bool, names: tuple[str, ...], rank: int
) -> None:
    records = measure_forms(launcher, objects, names=names, inject=f"corrupt:{rank}")
    wrong = [record for record in records if record.status == "wrong"]
    # of two sizes each, the form asked for: its fault ends the case of both
    assert len({record.case.subject for record in wrong}) == len(wrong) == 2 * len(names)
    assert all(f"first on rank {rank}" in record.note for record in wrong)
    assert all(record.status in ("wrong", "skipped") for record in records)


@pytest.mark.slow
def test_a_rank_that_ends_is_named(launcher: Launcher) -> None:
    with pytest.raises(RunBroken, match="rank 1"):
        measure_forms(launcher, iters=50, inject="drop:1")


@pytest.mark.slow
def test_the_commands_print_both_forms(cli) -> None:
    words = ("-e", "8", "--backend", "gloo", "-n", "50", "--no-save", "--format", "json")
    for command in (("objects", "gather"), ("coalesce", "all-reduce", "--together", "4")):
        done = cli(*command, *words)
        assert done.returncode in (Exit.OK, Exit.NO_VERDICT), done.stderr
        (row,) = json.loads(done.stdout)["rows"]
        if done.returncode == Exit.NO_VERDICT:  # a busy machine may leave no sample that counts
            assert row["ratio"] is None and any(
                why in row["note"] for why in (*EXCLUDED, NO_SAMPLE)
            )
        else:
            assert row["time_us"] > 0 < row["plain_us"] and not row["note"]


@pytest.mark.slow
def test_mpi_is_refused_with_the_reason(cli) -> None:
    done = cli("objects", "gather", "-e", "8", "--backend", "mpi", "--no-save")
    assert done.returncode == Exit.CANNOT_RUN, done.stderr
    assert "no backend of torch.distributed" in done.stderr + done.stdout
