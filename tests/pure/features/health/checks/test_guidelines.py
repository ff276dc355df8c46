"""Guidelines between rows: planted breaches are found and named, healthy nights raise no false
alarm."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from factories import case, expected, hosted, night, nightly, timings

from collbench.features.health.checks import guidelines
from collbench.features.health.checks import table as checks
from collbench.features.health.checks.guidelines import ALPHA, GROSS, find_missed
from collbench.features.health.findings import Finding
from collbench.features.health.night import Night
from collbench.features.training.parts import PARTS
from collbench.records.types import RankInfo, Record, RunFile
from collbench.suite.case import Case


def of(collective: str, nbytes: int, **fields: object) -> Case:
    (found,) = (one for one in nightly() if (one.collective, one.nbytes) == (collective, nbytes))
    return msgspec.structs.replace(found, **fields)


def findings(check: str, *args: object, **fields: object) -> list[Finding]:
    verdict = checks.judge_night([night(*args, **fields)])  # type: ignore[arg-type]
    return [one for one in verdict.findings if one.check == check]


@pytest.mark.parametrize(
    ("check", "broken", "factor"),
    [
        ("monotony", ("broadcast", 16 << 10), 100.0),  # slower than 1 MiB
        ("split", ("all_to_all", 64 << 20), 3.0),
        ("composition", ("all_reduce", 1 << 20), 4.0),
        ("composition", ("gather", 64 << 20), 3.0),
        ("link", ("reduce", 64 << 20), 4.0),
    ],
)
def test_a_planted_breach_is_found_and_names_its_row(
    check: str, broken: tuple[str, int], factor: float
) -> None:
    row = of(*broken)
    found = findings(check, {row: factor})
    assert [one.evidence[0].case for one in found] == [row.key]
    assert found[0].sure is not None and found[0].sure > 1 - ALPHA
    assert found[0].subject.name.startswith(f"{broken[0]} ")


@pytest.mark.parametrize(
    ("ranks", "severity"),
    [(hosted(4, 4), "hint"), (hosted(4, 4, "cuda"), "warning"), (hosted(4, 2), "warning")],
)
def test_links_of_one_hosts_memory_make_nobody_ill(ranks: list[RankInfo], severity: str) -> None:
    (found,) = findings("link", {of("reduce", 64 << 20): 9.0}, worlds={"ranks": ranks})
    assert found.severity == severity


def test_nothing_is_planted_and_nothing_found() -> None:
    verdict = checks.judge_night([night()])
    assert verdict.findings == [] and verdict.state == "healthy"


def test_a_breach_within_twofold_is_a_hint_and_beyond_it_makes_unhealthy() -> None:
    row = of("all_reduce", 64 << 20)
    parts = expected(of("reduce_scatter", 64 << 20)) + expected(of("all_gather", 64 << 20))
    granted = parts * guidelines.COMPOSITION / expected(row)
    for factor, severity, state in (
        (1.4, "hint", "healthy"),
        (1.4 * GROSS, "warning", "unhealthy"),
    ):
        verdict = checks.judge_night([night({row: granted * factor})])
        (found,) = (one for one in verdict.findings if one.check == "composition")
        assert (found.severity, verdict.state) == (severity, state)


def test_a_library_worse_than_an_algorithm_is_found() -> None:
    own, other = of("all_reduce", 1 << 20), of("all_reduce", 1 << 20, algorithm="ring")
    rows = [*nightly(), other]
    assert findings("library", {other: 0.5}, rows=rows)[0].evidence[0].case == own.key
    assert findings("library", {other: 0.95}, rows=rows) == []  # 10 % are granted


FORCED = of("all_reduce", 1 << 20, env=(("NCCL_ALGO", "Tree"),))


def test_an_algorithm_forced_by_a_setting_counts_too() -> None:
    """Though a setting has worlds of its own, so that no launch has both."""
    seen = night({FORCED: 0.5}, rows=[*nightly(), FORCED])
    assert [world.env for world in seen.worlds] == [(), FORCED.env] * 3
    (found,) = (one for one in checks.judge_night([seen]).findings if one.check == "library")
    assert found.evidence[0].case == of("all_reduce", 1 << 20).key
    assert "NCCL_ALGO=Tree, launched apart, over 3 launches" in found.what


@pytest.mark.parametrize(
    ("check", "names"), [("composition", ["reduce_scatter", "all_gather"]), ("link", ["sendrecv"])]
)
def test_what_a_setting_forced_is_no_choice_of_the_librarys(check: str, names: list[str]) -> None:
    rows = [of(name, 1 << 20) for name in ("all_reduce", *names)]
    assert len(findings(check, {rows[0]: 20.0}, rows=rows)) == 1
    forced = [msgspec.structs.replace(row, env=FORCED.env) for row in rows]
    assert findings(check, {forced[0]: 20.0}, rows=[*rows, *forced]) == []


def noted(*files: RunFile, check: str) -> tuple[str, str]:
    """What became of a check, and its note."""
    return next((c.outcome, c.note) for c in checks.judge_night(files).checks if c.check == check)


def test_a_setting_that_is_hardly_faster_passes() -> None:
    seen = night({FORCED: 0.95}, rows=[*nightly(), FORCED])  # 10 % are granted
    assert noted(seen, check="library") == ("passed", "1 claim over 3 launches or more")


def test_a_setting_whose_cycles_no_launch_of_the_librarys_has_is_not_tested() -> None:
    apart = night(rows=[FORCED], name="apart")
    outcome, note = noted(night(), apart, check="library")
    assert (outcome, note) == ("no data", f"not tested: needs {TOGETHER}")


TOGETHER = "3 launches that have all rows of a claim"
PAIR = [of("all_reduce", 1 << 20), of("sendrecv", 1 << 20)]
SLOW = {PAIR[0]: 20.0}


def test_rows_of_one_run_that_miss_a_guideline_make_unhealthy() -> None:
    assert checks.judge_night([night(SLOW, rows=PAIR)]).state == "unhealthy"


def test_rows_that_share_no_launch_make_no_claim_that_passes() -> None:
    """The same rows as runs of their own: nothing is tested, which is not healthy."""
    files = [night(SLOW, rows=[row], name=row.collective) for row in PAIR]
    assert noted(*files, check="link") == ("no data", f"not tested: needs {TOGETHER}")
    assert checks.judge_night(files).state == "no verdict"


def test_claims_that_are_not_tested_are_counted_apart() -> None:
    files = [night(rows=PAIR), night(rows=[of("reduce", 1 << 20)], name="reduce")]
    expected = f"1 claim over 3 launches or more; 1 claim not tested: needs {TOGETHER}"
    assert noted(*files, check="link") == ("passed", expected)


def test_partners_share_root_and_reduction() -> None:
    """A gather to rank 0 and a broadcast from rank 1 make no all_gather, a maximum and a broadcast
    no sum."""
    rows = [
        of("gather", 64),
        of("scatter", 64),
        of("broadcast", 64, root=1),
        of("all_reduce", 64),
        of("reduce", 64, op="max"),
        of("all_gather", 64),
    ]
    found = guidelines.claim_composition(timings(np.random.default_rng(1), rows, 3, [0.01] * 6))  # type: ignore[arg-type]
    told = [
        (claim.timing.case.collective, *(timing.case.collective for timing in claim.alternative))
        for claim in found
    ]
    assert told == [("gather", "all_gather")]


def test_few_launches_are_no_data() -> None:
    verdict = checks.judge_night([night(launches=2)])
    told = {one.check: one for one in verdict.checks}
    assert (
        told["monotony"].outcome == "no data" and "fewer than 3 launches" in told["monotony"].note
    )
    assert verdict.state == "no verdict" and "times" in verdict.summary


def test_a_guideline_that_has_no_rows_says_which_it_needs() -> None:
    verdict = checks.judge_night([night(rows=[of("broadcast", 1 << 20)])])
    told = {one.check: one.note for one in verdict.checks if one.outcome == "no data"}
    assert {name: told[name] for name in checks.NEEDS} == {
        name: f"not tested: needs {needs}" for name, needs in checks.NEEDS.items()
    }


def test_rows_between_two_modes_are_left_out_and_counted() -> None:
    row = of("broadcast", 16 << 10)

    def bimodal(made: Record) -> Record:
        times = [made.times_ns[3]] * 20 + [20 * made.times_ns[3]] * 20
        jitter = [t + 50 * i for i, t in enumerate(times)]
        return msgspec.structs.replace(made, times_ns=jitter) if made.case == row else made

    verdict = checks.judge_night([night({row: 100.0}, change=bimodal)])
    told = {one.check: one for one in verdict.checks}
    assert (
        told["monotony"].outcome == "passed"
        and "1 row left out: bimodal (1)" in told["monotony"].note
    )


def test_scatter_between_launches_is_no_breach() -> None:
    """Twice the time in one launch of three proves nothing."""
    row = of("all_reduce", 64 << 20)
    hit: list[int] = []

    def once(made: Record) -> Record:
        if made.case != row or hit.append(made.world) or len(hit) > 1:
            return made
        return msgspec.structs.replace(made, times_ns=[8 * t for t in made.times_ns])

    assert findings("composition", change=once) == [] and len(hit) == 3


@pytest.mark.parametrize("unlike", [0.0, 0.8], ids=["alike", "each with its own scatter"])
def test_false_alarms_keep_to_their_level(unlike: float) -> None:
    """Rows exactly at what a claim grants, which is as near to a breach as well can be: 8 claims, 3
    launches, 400 nights; a check may err with ALPHA, which 6 of 400 would exceed surely
    (binomial, p < .001).
    """
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(400):
        found = []
        for place in range(8):
            sigma = 0.02 * float(np.exp(rng.normal(0, unlike)))
            left, right = timings(
                rng, [case(64 + place), case(4096 + place)], 3, [sigma] * 2, lambda _: 1e6
            ).fit
            found.append(guidelines.Claim(left, (right,), 1.0, "the same"))
        alarms += bool(find_missed(found))
    assert alarms < 6


def test_power_with_three_launches() -> None:
    """30 % beyond what is granted, with a scatter of 2 %, among 40 claims that hold: found in 9
    nights of 10."""
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(40):
        medians = {case(64 + place): 1e6 for place in range(41)} | {case(64): 1.3e6}
        rows = timings(rng, list(medians), 3, [0.02] * 41, medians.__getitem__).fit
        rights = timings(rng, list(medians), 3, [0.02] * 41, lambda _: 1e6).fit
        claims = [
            guidelines.Claim(left, (right,), 1.0, "")
            for left, right in zip(rows, rights, strict=True)
        ]
        hits += any(one.claim.timing.case == case(64) for one in find_missed(claims))
    assert hits >= 36


def test_faster_than_the_links_allow_is_a_hint_about_the_measuring() -> None:
    rows = nightly(sizes=(64, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20))
    large = [row for row in rows if row.collective == "all_gather" and row.nbytes >= 16 << 20]
    (found,) = findings("bound", dict.fromkeys(large, 0.3), rows=rows)
    assert found.severity == "hint" and {one.case for one in found.evidence} == {
        row.key for row in large
    }
    assert findings("bound", rows=rows) == []


def test_links_are_judged_by_what_they_carried() -> None:
    """A library that runs reduce_scatter as an all_reduce uses its links twice as well as busbw
    shows."""
    rows = [case(64 << 20, name) for name in ("sendrecv", "reduce_scatter")]
    slow = {rows[0]: 1e6, rows[1]: 0.75 * 1e6 * guidelines.LINK * 1.5}
    night = timings(np.random.default_rng(1), rows, 5, [0.001] * 2, slow.__getitem__)
    (found,) = find_missed(guidelines.claim_link(night))
    assert found.ratio == pytest.approx(1.5, rel=0.01)
    night.fit = [one._replace(carried=2.0) for one in night.fit[1:]] + night.fit[:1]
    assert find_missed(guidelines.claim_link(night)) == []


def test_a_training_step_is_held_to_no_guideline_of_collectives() -> None:
    parts = [
        msgspec.structs.replace(
            case(), collective=part, subject="x layers=2 #1", op="none", dtype="uint8", nbytes=8
        )
        for part in PARTS
    ]
    seen = night(rows=[*nightly(), *parts])
    assert {one.case for one in Night([seen]).fit} >= set(parts)
    verdict = checks.judge_night([seen])
    assert verdict.findings == [] and verdict.state == "healthy"
