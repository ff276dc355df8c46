"""Nights: what a run says of one, where levels change, which nights may be held against each other,
and how often the rules err."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import watched
from factories import ENVIRONMENT, case, dated, make_file, nights, record, run, stored, swept, world
from scipy import stats as reference

from collbench.core.errors import CannotRun, UsageError
from collbench.features.health.history import baselines
from collbench.features.health.history import nights as history
from collbench.features.health.history import view as trends
from collbench.features.health.history.gates import confirm_reruns, find_creep, gate_night
from collbench.features.health.history.levels import find_changes
from collbench.features.health.history.nights import Night, Review, Series
from collbench.features.health.history.outlook import make_outlook
from collbench.features.health.history.shifts import find_shifts
from collbench.features.health.history.ways import find_past
from collbench.features.training.parts import PARTS
from collbench.records.types import HostInfo, Pairing, RunFile
from collbench.show import html
from collbench.suite.case import Case

CASE = case()


def series(values: list[float], of: object = CASE, **fields: object) -> Series:
    """A row of valid nights with these values; ``fields`` are those of every night."""
    given = {"launches": 3, "samples": 21, "fingerprint": "f", "manner": "m", "runs": ()} | fields
    made = [
        Night(day=f"2026-{1 + n // 28:02}-{1 + n % 28:02}", value=v, **given)
        for n, v in enumerate(values)
    ]
    return Series(machine="node1", case=of, nights=made)


def test_a_runs_fingerprint_is_made_once_for_each_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each launch of each row: it reads all facts of the machine."""
    made: list[str] = []
    real = history.run_fingerprint

    def count(facts: Mapping[str, Any], backend: str = "") -> str:
        made.append(backend)
        return real(facts, backend)

    monkeypatch.setattr(history, "run_fingerprint", count)
    rows = [*swept("all_reduce"), case(8, backend="mpi")]
    launches = history.launches_of(dated(1, dict.fromkeys(rows, 1e6)))
    assert len(launches) == len(rows) and sorted(made) == ["gloo", "mpi"]


def accept_since(row: Series, begins: str, reason: str) -> Series:
    """The row with a level that was accepted after its last night."""
    review = Review(begins, reason, accepted=True, level=row.nights[-1].value, night=row.nights[-1])
    return msgspec.structs.replace(row, reviews=[*row.reviews, review])


def histories(files: list[RunFile]) -> list[Series]:
    """What a book would make of these runs, without one."""
    found: dict[object, list[Night]] = {}
    for file in files:
        for what, each in history.launches_of(file).items():
            found.setdefault(what, []).extend(history.merge_nights(each))
    rows = sorted(found.items(), key=lambda item: item[0].nbytes)
    return [
        Series(
            machine="node1",
            case=what,
            nights=each,
            environments={
                history.run_fingerprint(facts, what.backend): facts
                for facts in map(history.run_facts, files)
            },
        )
        for what, each in rows
    ]


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize(("skewed", "unfit"), [(2, ""), (3, "skewed!")])
def test_no_launch_of_a_night_is_left_out_for_its_time(runs: int, skewed: int, unfit: str) -> None:
    """Skew of 0.25 ms is too much for the faster ones."""
    medians = [*[1e6] * skewed, *[2e6] * (6 - skewed)]
    files = []
    for number in range(runs):
        made = [
            record(CASE, median, world=i, skew_ns=[250_000] * 7)
            for i, median in enumerate(medians[number::runs])
        ]
        worlds = [world(index=i) for i in range(len(made))]
        files.append(make_file(made, worlds, name=f"run{number}"))
    (night,) = history.merge_nights(
        launch for file in files for launch in history.launches_of(file)[CASE]
    )
    assert (night.launches, night.unfit) == (6, unfit)
    assert night.value == pytest.approx(math.log(np.median(medians)))


def test_flags_are_shared_over_the_launches_of_a_night_once() -> None:
    """The fastest of four launches is half of its own run's."""
    files = []
    for number, medians in enumerate([(1e6, 2e6), (2e6, 2e6)]):
        made = [
            record(CASE, median, world=i, skew_ns=[250_000] * 7) for i, median in enumerate(medians)
        ]
        worlds = [world(index=i) for i in range(2)]
        files.append(make_file(made, worlds, name=f"run{number}"))
    (night,) = history.nights_of(files).values()
    assert (night.launches, night.unfit) == (4, "")


@pytest.mark.parametrize("least", [3, 4, 7])
def test_a_step_is_found_where_it_is_with_welchs_p(least: int) -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 0.01, 30)
    values[30 - least :] += 0.2
    (found,) = find_changes(values.tolist())
    before, after = values[:-least], values[-least:]
    assert found.position == 30 - least
    assert found.delta == pytest.approx(math.expm1(after.mean() - before.mean()))
    assert found.p == pytest.approx(
        reference.ttest_ind(before, after, equal_var=False).pvalue, rel=1e-6
    )


def test_two_odd_nights_are_no_level_three_are() -> None:
    quiet = [0.001 * (-1) ** n for n in range(30)]
    assert find_changes([*quiet, 0.2, 0.201]) == []
    assert [one.position for one in find_changes([*quiet, 0.2, 0.201, 0.199])] == [30]


def test_steps_up_and_down_and_in_long_series_are_all_found() -> None:
    rng = np.random.default_rng(4)
    levels = np.repeat([0, 0.1, 0.05, 0.2], [60, 40, 35, 70])
    found = find_changes((levels + rng.normal(0, 0.01, len(levels))).tolist())
    assert [one.position for one in found] == pytest.approx([60, 100, 135], abs=1)
    assert [round(one.delta, 2) for one in found] == pytest.approx([0.105, -0.049, 0.162], abs=0.01)


@pytest.mark.parametrize(("tau", "number"), [(0.03, 0), (0.01, 1)])
def test_a_change_smaller_than_what_matters_is_none(tau: float, number: int) -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0, 0.005, 40)
    values[20:] += 0.02
    assert len(find_changes(values.tolist(), tau)) == number


@pytest.mark.parametrize("values", [[], [1.0] * 5, [1.0] * 40, [math.nan][:0]])
def test_nothing_changes_in_too_few_or_equal_nights(values: list[float]) -> None:
    assert find_changes(values) == []


def test_a_step_between_levels_that_do_not_scatter_at_all_is_found() -> None:
    (found,) = find_changes([1.0] * 20 + [1.1] * 5)
    assert (found.position, found.p) == (20, 0.0)


@pytest.mark.parametrize(
    ("tonight", "state"),
    [
        (0.0, "quiet"),
        (0.02, "quiet"),
        (0.045, "quiet"),
        (0.065, "candidate"),
        (0.5, "candidate"),
        (-0.5, "quiet"),
    ],
)
def test_tonight_is_a_candidate_beyond_four_of_the_scatter_and_what_matters(
    tonight: float, state: str
) -> None:
    before = [0.01 * (-1) ** n for n in range(30)]  # MAD .01
    found = gate_night(before, tonight, 0.03)
    assert found.state == state
    assert found.z == pytest.approx(tonight / 0.014826) and found.delta == pytest.approx(
        math.expm1(tonight)
    )


def test_a_candidate_must_matter_and_scatter_has_a_floor() -> None:
    still = [0.0] * 30
    assert gate_night(still, 0.025, 0.03).state == "quiet"  # z is 5, but it does not matter
    assert gate_night(still, 0.031, 0.03).z == pytest.approx(6.2)
    assert gate_night(still, 0.031, 0.03).state == "candidate"


def test_only_the_last_thirty_nights_count_and_five_are_needed() -> None:
    assert gate_night([9.0] * 10 + [0.0] * 30, 0.1, 0.03).nights == 30
    assert gate_night([9.0] * 10 + [0.0] * 30, 0.1, 0.03).state == "candidate"
    assert (
        gate_night([0.0] * 4, 5.0, 0.03).state == "learning"
        and gate_night([0.0] * 5, 5.0, 0.03).state == "candidate"
    )
    assert gate_night([], 5.0, 0.03) == ("learning", 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("again", "state"),
    [([0.0, 0.0, 0.3], "quiet"), ([0.0, 0.1, 0.1], "alarm"), ([0.014] * 3, "quiet")],
)
def test_the_median_of_three_launches_confirms(again: list[float], state: str) -> None:
    assert confirm_reruns([0.0] * 30, again, 0.03).state == state
    with pytest.raises(UsageError, match="2 launches are too few to confirm"):
        confirm_reruns([0.0] * 30, again[:2], 0.03)


def test_many_small_steps_creep_past_the_anchor() -> None:
    values = [0.002 * n for n in range(60)]
    assert not find_creep(values[:30], 0.0, 0.03).found and find_creep(values, 0.0, 0.03).found
    assert not find_creep(values[-6:], 0.0, 0.03).found  # too few to prove anything
    row = series([0.0005 * n + 0.01 * (-1) ** n for n in range(170)])
    found = make_outlook("node1", [row])
    assert not found.changed and list(found.creeping) == [row.key]
    assert "crept beyond the baseline" in trends.make_headline(found)


def test_a_slow_spell_that_is_over_is_no_creep() -> None:
    """Five of seven nights 20 % slower, and well since."""
    spell = [0.0] * 20 + [math.log(1.2)] * 5
    assert not any(find_creep(spell + [0.0] * nights, 0.0, 0.03).found for nights in (1, 2, 3))
    assert find_creep([*spell, *[math.log(1.2)] * 2], 0.0, 0.03).found


@pytest.mark.parametrize("rule", list(watched.RULES))
def test_rules_err_no_more_often_than_they_were_chosen_for(rule: str) -> None:
    """25 trials; the documented figures are themselves of some 300."""
    trials = 25
    for setting, documented in zip(watched.SETTINGS, watched.DOCUMENTED[rule], strict=True):
        share = len(watched.flagged(setting, watched.RULES[rule], trials)) / trials
        error = 4 * math.sqrt(max(documented * (1 - documented), 0.01) * (1 / trials + 1 / 300))
        if setting.step:
            assert share >= documented - error, (setting, share)
        else:
            assert share <= documented + error, (setting, share)


def test_two_rows_must_agree_so_that_even_nights_that_resemble_each_other_raise_no_alarm() -> None:
    trials = 20
    assert len(watched.agreed(watched.Setting(0.01, rho=0.5), trials)) <= 1
    assert len(watched.agreed(watched.Setting(0.01, 0.05), trials)) >= 0.6 * trials


def test_neighbours_share_odd_nights_and_as_much_of_their_variance_as_is_said() -> None:
    rng = np.random.default_rng(3)
    setting = watched.Setting(0.01, rho=0.5, shared=0.5)
    pairs = [watched.neighbours(rng, setting) for _ in range(200)]
    both = [np.concatenate(rows) for rows in zip(*pairs, strict=True)]
    odd, other = (rows > 0.048 for rows in both)
    assert np.mean(other[odd]) > 0.8
    assert np.corrcoef(*(rows[~odd & ~other] for rows in both))[0, 1] == pytest.approx(0.5, abs=0.1)
    apart = watched.neighbours(rng, setting._replace(shared=0.0))
    assert abs(np.corrcoef(*apart)[0, 1]) < 0.4


def test_sixty_nights_with_a_step_in_one_band_of_sizes_name_night_and_rows_and_nothing_else() -> (
    None
):
    def level(what: object, number: int) -> float:
        slower = (
            what.collective == "all_reduce" and 1 << 20 <= what.nbytes <= 8 << 20 and number >= 40
        )
        return 0.05 if slower else 0.0

    rows = histories(list(nights(swept("all_reduce", "all_gather"), 60, level)))
    found = make_outlook("node1", rows)
    (shift,) = found.changed
    assert abs(found.days.index(shift.day) - 40) <= 3 and shift.standing
    assert shift.collective == "all_reduce" and shift.sizes == [1 << 20, 2 << 20, 4 << 20, 8 << 20]
    assert shift.delta == pytest.approx(0.05, abs=0.01)
    assert not found.creeping and not found.beginnings
    assert trends.make_headline(found) == "1 slower" and trends.find_weight(found) == "bad"
    assert "1 MiB to 8 MiB: 5." in trends.describe_shift(
        shift
    ) and f"slower since {shift.day}" in trends.describe_shift(shift)


def test_a_row_alone_agrees_with_nobody_and_neighbours_must_agree_in_time_and_direction() -> None:
    quiet, up = [0.001 * (-1) ** n for n in range(40)], 0.1
    early, late = (
        quiet[:20] + [up + v for v in quiet[:20]],
        quiet[:30] + [up + v for v in quiet[:10]],
    )
    down = quiet[:20] + [v - up for v in quiet[:20]]
    one, two, three = (case(1 << (20 + n)) for n in range(3))
    assert [shift.agreed for shift in find_shifts([series(early, one)])] == [False]
    assert [shift.agreed for shift in find_shifts([series(early, one), series(early, two)])] == [
        True
    ]
    aligned = msgspec.structs.replace(two, align=16)  # it was this first that the row was kept with
    assert [
        shift.agreed for shift in find_shifts([series(early, one), series(early, aligned)])
    ] == [True]
    assert not any(shift.agreed for shift in find_shifts([series(early, one), series(late, two)]))
    assert not any(shift.agreed for shift in find_shifts([series(early, one), series(down, two)]))
    assert not any(
        s.agreed
        for s in find_shifts([series(early, one), series(quiet, two), series(early, three)])
    )
    other = case(2 << 20, collective="broadcast", op="none", root=0)
    assert not any(
        shift.agreed for shift in find_shifts([series(early, one), series(early, other)])
    )


def parts(name: str) -> list[Case]:
    """The rows of a training step."""
    return [
        case(64 << 20, part, subject=f"{name} #1", op="none", root=-1, dtype="uint8")
        for part in PARTS
    ]


@pytest.mark.parametrize("slower", ["communication", "computation"])
def test_a_step_that_gets_slower_on_a_night_is_named_by_the_part_that_does(slower: str) -> None:
    """Beside one that does not, and collectives."""
    ddp, fsdp = parts("ddp:gpt2-124m"), parts("fsdp2:llama3-8b")

    def level(what: Case, number: int) -> float:
        more = {"step": 0.07, slower: 0.10}
        return more.get(what.collective, 0.0) if what in ddp and number >= 40 else 0.0

    rows = histories(list(nights([*ddp, *fsdp, *swept("all_reduce")], 60, level)))
    found = make_outlook("node1", rows)
    (shift,) = found.changed
    assert abs(found.days.index(shift.day) - 40) <= 3 and shift.standing
    assert {row.case.collective for row in shift.rows} == {"step", slower}
    assert {row.case.subject for row in shift.rows} == {"ddp:gpt2-124m #1"}
    told = trends.describe_shift(shift)
    for words in ("ddp:gpt2-124m", "step", slower, f"slower since {shift.day}"):
        assert words in told


def test_a_part_of_a_step_that_changes_alone_is_no_alarm() -> None:
    ddp = parts("ddp:gpt2-124m")
    level = lambda what, night: 0.1 * (what.collective == "communication" and night >= 20)
    found = make_outlook("node1", histories(list(nights(ddp, 40, level))))
    assert found.changed == []
    assert any(shift.rows[0].case.collective == "communication" for shift in found.shifts)


def test_what_came_back_stands_no_more() -> None:
    quiet = [0.001 * (-1) ** n for n in range(20)]
    there_and_back = [*quiet, *(v + 0.1 for v in quiet), *quiet]
    found = find_shifts(
        [series(there_and_back, case(1 << 20)), series(there_and_back, case(2 << 20))]
    )
    assert [(shift.delta > 0, shift.standing) for shift in found] == [(True, False), (False, False)]


def begun(values: list[float], place: int, **fields: object) -> list[Series]:
    """Two neighbouring rows of these values, where from night ``place`` on every night has these
    fields."""
    rows = [series(values, case(1 << 20)), series(values, case(2 << 20))]
    replace = msgspec.structs.replace
    return [
        replace(
            row,
            nights=[*row.nights[:place], *(replace(one, **fields) for one in row.nights[place:])],
        )
        for row in rows
    ]


def test_what_changed_before_a_new_segment_is_history_and_stands_no_more() -> None:
    quiet = [0.001 * (-1) ** n for n in range(80)]
    slow = [v + 0.08 * (30 <= n < 50) for n, v in enumerate(quiet)]
    found = make_outlook("node1", begun(slow, 50, fingerprint="g"))
    (shift,) = found.changed
    assert (shift.agreed, shift.standing, shift.over) == (True, False, True)
    assert (
        trends.make_headline(found) == "no change"
        and trends.find_weight(found) == "good"
        and not found.creeping
    )
    assert trends.describe_shift(shift).endswith("; a new segment began since")
    for fields in (
        {"fingerprint": "f"},
        {"manner": "m"},
    ):  # nothing new began: the level before is back
        assert [one.over for one in make_outlook("node1", begun(slow, 50, **fields)).changed] == [
            False,
            False,
        ]
    again = [v + 0.08 * (n >= 70) for n, v in enumerate(slow)]
    changed = make_outlook("node1", begun(again, 50, fingerprint="g")).changed
    assert [(one.standing, one.over) for one in changed] == [(False, True), (True, False)]


@pytest.mark.parametrize("later", [0, 1, 12])
def test_a_level_accepted_since_the_change_or_later_ends_its_alarm(later: int) -> None:
    values = [0.001 * (-1) ** n + 0.08 * (n >= 30) for n in range(60)]
    rows = begun(values, 60)
    (before,) = make_outlook("node1", rows).changed
    assert before.standing
    day = rows[0].nights[30 + later].day
    found = make_outlook("node1", [accept_since(row, day, "a new switch") for row in rows])
    assert (
        not any(shift.standing for shift in found.changed) and trends.find_weight(found) == "good"
    )
    half = make_outlook("node1", [accept_since(rows[0], before.day, "this one"), rows[1]])
    assert [row.key for shift in half.shifts for row in shift.stands] == [rows[1].key]


def test_what_changed_before_a_new_segment_hides_no_creep_since() -> None:
    values = [0.001 * (-1) ** n + 0.1 * (n >= 20) for n in range(60)]

    def reviewed(rows: list[Series]) -> list[Series]:
        level = Review("2026-01-01", "as measured", False, 0.0, rows[0].nights[0])
        return [msgspec.structs.replace(row, reviews=[level]) for row in rows]

    unbroken = make_outlook("node1", reviewed(begun(values, 60)))
    assert not unbroken.creeping  # the change stands, and says as much
    found = make_outlook("node1", reviewed(begun(values, 40, fingerprint="g")))
    assert [(shift.delta > 0, shift.standing) for shift in found.changed] == [(True, False)]
    assert (
        set(found.creeping) == {row.key for row in found.series}
        and trends.find_weight(found) == "bad"
    )


@pytest.mark.parametrize("reviewed", [0.0, 0.25])
def test_a_ramp_since_a_segment_began_creeps_whatever_was_reviewed_before(reviewed: float) -> None:
    """From 80 to 108 us after an upgrade, where 100 us had been learned."""
    values = [0.22] * 15 + [0.001 * (-1) ** n + 0.0075 * n for n in range(40)]
    row, _ = begun(values, 15, fingerprint="g")
    level = Review("2026-01-01", "as measured", False, reviewed, row.nights[10])
    found = make_outlook("node1", [msgspec.structs.replace(row, reviews=[level])])
    assert list(found.creeping) == [row.key]


def test_a_level_reviewed_since_the_segment_began_is_its_only_anchor() -> None:
    values = [0.004 * n for n in range(40)]
    row = series(values)
    assert make_outlook("node1", [row]).creeping
    level = Review("2026-01-01", "as it is", False, values[-4], row.nights[-1])
    assert not make_outlook("node1", [msgspec.structs.replace(row, reviews=[level])]).creeping


def test_a_night_is_three_launches_and_goes_from_noon_to_noon() -> None:
    def one(started: str, median: float, launches: int = 1, **fields: object) -> RunFile:
        return dated(0, {CASE: median}, launches, name=f"at {started}", started=started, **fields)

    evening, morning = one("2026-03-01T23:50:00+00:00", 1e6), one("2026-03-02T11:59:00+00:00", 3e6)
    noon, far = one("2026-03-02T12:00:00+00:00", 1e6), one("2026-03-02T22:10:00+09:00", 2e6)
    found = history.nights_of([evening, morning])[CASE.key]
    assert (found.day, found.launches, found.unfit_reason) == ("2026-03-01", 2, "2 of 3 launches")
    assert (
        history.nights_of([noon])[CASE.key].day
        == history.nights_of([far])[CASE.key].day
        == "2026-03-02"
    )
    with pytest.raises(UsageError, match="of 2 nights"):
        history.nights_of([morning, noon])
    three = history.nights_of([evening, morning, one("2026-03-02T00:00:00+00:00", 2e6)])[CASE.key]
    assert (
        three.valid
        and math.exp(three.value) == pytest.approx(2e6, rel=1e-5)
        and len(three.runs) == 3
    )


def test_launches_that_may_not_be_judged_count_only_where_all_are_such() -> None:
    crowded = world(index=1, oversubscribed=True)
    good = [record(CASE, 1e6, world=0), record(CASE, 9e6, world=1)]
    mixed = RunFile(run=run("a"), worlds=[world(), crowded], records=good, end=None, path=Path("a"))
    found = history.nights_of([mixed])[CASE.key]
    assert (found.launches, found.unfit) == (1, "") and math.exp(found.value) == pytest.approx(1e6)
    bad = msgspec.structs.replace(mixed, records=good[1:])
    assert history.nights_of([bad])[CASE.key].unfit_reason == "oversubscribed"
    wrong = stored({CASE: record(CASE, 1e6, status="wrong", wrong=1)})
    assert history.nights_of([wrong]) == {}
    side = stored({CASE: 1e6}, pairing=Pairing(experiment="e", side="base", variant=""))
    with pytest.raises(UsageError, match="a side of an experiment"):
        history.nights_of([side])


def test_a_new_fingerprint_or_manner_or_an_accepted_level_begins_a_segment_and_says_why() -> None:
    newer = ENVIRONMENT | {"host": "node1", "kernel": "6.2.0"}
    files = [dated(n, {CASE: 1e6}, **({"environment": newer} if n >= 5 else {})) for n in range(8)]
    (row,) = histories(files)
    assert [(part.why, len(part.nights)) for part in row.segments] == [
        ("first night", 5),
        ("kernel 6.1.0 -> 6.2.0", 3),
    ]
    taken = accept_since(row, "2026-01-03", "a new switch")
    assert [part.why for part in taken.segments][1] == "accepted: a new switch"
    assert [len(part.nights) for part in taken.segments] == [2, 3, 3]
    assert len(find_past(taken, taken.nights[4]).values) == 2
    assert find_past(taken, taken.nights[5]).values == []
    otherwise = [msgspec.structs.replace(n, manner="m, start barrier") for n in row.nights[5:]]
    told = msgspec.structs.replace(row, nights=[*series([0.0] * 5).nights, *otherwise])
    assert "measured otherwise:  -> start barrier" in told.segments[1].why
    of_old = [msgspec.structs.replace(n, fingerprint="f", manner="") for n in otherwise]
    assert len(msgspec.structs.replace(told, nights=[*told.nights[:5], *of_old]).segments) == 1


def test_a_library_that_a_row_does_not_use_begins_no_segment() -> None:
    newer = ENVIRONMENT | {"libraries": {"torch": "2.6.0", "mpi4py": "4.1.2", "openmpi": "5.0"}}
    rows = dict.fromkeys((CASE, case(backend="mpi")), 1e6)
    files = [dated(n, rows, **({"environment": newer} if n >= 5 else {})) for n in range(8)]
    gloo, mpi = histories(files)
    assert [part.why for part in gloo.segments] == ["first night"]
    assert [(part.why, len(part.nights)) for part in mpi.segments] == [
        ("first night", 5),
        ("libraries.mpi4py absent -> 4.1.2, libraries.openmpi absent -> 5.0", 3),
    ]
    again = dated(4, {CASE: 2e6}, name="again", environment=newer)  # in the same night
    assert history.nights_of([files[4], again])[CASE.key].launches == 6


def test_a_host_counts_for_rows_of_the_backends_that_ran_on_it() -> None:
    def of(gloo: str, mpi: str) -> dict[str, Any]:
        worlds = [
            world(n, backend=backend, hosts=[HostInfo(host="a", fingerprint=digest)])
            for n, (backend, digest) in enumerate((("gloo", gloo), ("mpi", mpi)))
        ]
        return history.run_facts(make_file([], worlds))

    before, after = of("1", "1"), of("1", "2")
    for backend, same in (("gloo", True), ("mpi", False), ("", False)):
        prints = {history.run_fingerprint(facts, backend) for facts in (before, after)}
        assert (len(prints) == 1) == same


def test_no_change_point_reaches_over_the_beginning_of_a_segment() -> None:
    newer = ENVIRONMENT | {"host": "node1", "kernel": "6.2.0"}
    pair = swept("all_reduce", sizes=[1 << 20, 2 << 20])
    files = [
        dated(
            n,
            dict.fromkeys(pair, 1000000.0 * (1.1 if n >= 20 else 1) * (1 + 0.001 * (-1) ** n)),
            **({"environment": newer} if n >= 20 else {}),
        )
        for n in range(40)
    ]
    assert find_shifts(histories(files)) == []
    found = make_outlook("node1", histories(files))
    assert [(one.why, one.rows) for one in found.beginnings] == [("kernel 6.1.0 -> 6.2.0", 2)]
    same = [
        msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, environment=newer))
        for file in files
    ]
    assert [shift.day for shift in find_shifts(histories(same))] == ["2026-01-21"]


@pytest.mark.parametrize("length", [5, 10])
def test_no_level_stands_on_a_night_after_a_slow_spell(length: int) -> None:
    pair = swept("all_reduce", sizes=[1 << 20, 2 << 20])
    spell = range(20, 20 + length)
    rows = histories(list(nights(pair, 40, lambda _, night: 0.2 * (night in spell))))
    days = [night.day for night in rows[0].nights]
    standing = [
        number
        for number in range(10, 40)
        if any(
            shift.standing and shift.delta > 0
            for shift in find_shifts([row.until(days[number]) for row in rows])
        )
    ]
    assert standing == list(range(22, spell.stop))


def test_a_reviewed_level_is_a_file_that_says_who_why_and_what(tmp_path: Path) -> None:
    rows = histories(list(nights(swept("all_reduce", sizes=[1 << 20]), 12)))
    learned = baselines.learn_baseline(rows, "as delivered", "")
    path = tmp_path / "b.json"
    path.write_text(baselines.render_baseline(learned))
    assert (
        baselines.read_baseline(path) == learned
        and not learned.accepted
        and learned.begins == "2026-01-01"
    )
    assert learned.rows[rows[0].key].nights == 12 and learned.rows[
        rows[0].key
    ].median == pytest.approx(1e6, rel=0.02)
    accepted = baselines.accept_baseline(rows, "2026-01-08", "NCCL 2.31", "abc123")
    assert (accepted.rows[rows[0].key].nights, accepted.commit, accepted.reason) == (
        5,
        "abc123",
        "NCCL 2.31",
    )
    assert accepted.who and accepted.when.endswith("+00:00")
    few = histories(
        [*nights(swept("all_reduce", sizes=[1 << 20]), 3), dated(3, {case(): 9e6}, launches=2)]
    )
    assert baselines.accept_baseline(few, "2026-01-03", "x", "").rows[few[0].key].nights == 1
    with pytest.raises(UsageError, match="at most 3"):
        baselines.learn_baseline(histories(list(nights(swept("all_reduce"), 3))), "", "")
    with pytest.raises(UsageError, match="since 2027"):
        baselines.accept_baseline(rows, "2027-01-01", "x", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reason": " "}, "no reason"),
        ({"schema": 2}, "schema 2, not 1"),
        ({"extra": 1}, "extra"),
        *(
            ({"rows": {"row": {"median": median, "nights": 5}}}, "float")
            for median in (0, -1.0, None)
        ),
        ({"rows": {"row": {"median": 1e6, "nights": 0}}}, "int"),
        ({"begins": "2026-3-1"}, "2026-3-1"),
        ({"begins": "20260301"}, "not written as 2026-03-01"),
        ({"begins": "2026-02-30"}, "day is out of range"),
    ],
)
def test_a_level_that_is_none_without_a_reason_or_of_another_version_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    rows = histories(list(nights(swept("all_reduce", sizes=[1 << 20]), 6)))
    whole = msgspec.to_builtins(baselines.learn_baseline(rows, "as delivered", "")) | change
    path = tmp_path / "b.json"
    path.write_bytes(msgspec.json.encode(whole))
    with pytest.raises(UsageError, match=words):
        baselines.read_baseline(path)
    with pytest.raises(CannotRun, match="cannot read"):
        baselines.read_baseline(tmp_path / "none.json")


def test_the_trend_as_page_and_text_shows_series_changes_and_beginnings_and_escapes_names() -> None:
    evil = "<script>alert(1)</script>"
    newer = ENVIRONMENT | {"host": "node1", "kernel": evil}
    pair = swept("all_reduce", sizes=[1 << 20, 2 << 20])
    files = [
        dated(
            n,
            dict.fromkeys(pair, 1000000.0 * (1.1 if n >= 20 else 1) * (1 + 0.001 * (-1) ** n)),
            **({"environment": newer} if n >= 30 else {}),
        )
        for n in range(40)
    ]
    found = make_outlook(evil, histories(files))
    page = html.render_page(trends.make_document(found))
    assert (
        evil not in page
        and "10.0% slower since 2026-01-21" in page
        and "a new segment of 2 rows begins" in page
    )
    (drawn,) = trends.make_document(found).sections[1].figures
    assert {shape["x0"] for shape in drawn.layout["shapes"]} == {"2026-01-21", "2026-01-31"}
    assert all(len(curve["x"]) == 40 for curve in drawn.data) and len(drawn.data) == 2
    assert evil not in msgspec.json.encode(drawn.layout["annotations"]).decode()
    values = trends.flatten_outlook(found)
    assert [change["day"] for change in values["changes"]] == ["2026-01-21"] and len(
        values["nights"]
    ) == 80
    assert trends.draw_bars([1.0, 1.1, 1.2]) == "▁▅█" and trends.draw_bars([1.0, 1.01]) == "▁▁"
    assert trends.draw_bars([1.0, 1.0, 1.0, 1.2, 1.2, 1.2], 2) == "▁█"


@pytest.mark.parametrize(("nights", "weight"), [(1, "notice"), (5, "notice"), (6, "good")])
def test_too_few_nights_show_no_change_and_none_is_claimed(nights: int, weight: str) -> None:
    row = swept("all_reduce", sizes=[1 << 20])[0]
    found = make_outlook("h", histories([dated(n, {row: 1e6}) for n in range(nights)]))
    assert trends.find_weight(found) == weight
    headline = trends.make_headline(found)
    assert headline.endswith("a change needs at least 6" if weight == "notice" else "no change")


@pytest.mark.parametrize(
    ("kept", "completed"),
    [
        (
            "agg_iters 1, cache cold, pin True",
            "agg_iters 1, cache cold, launches of -m one, pin True, register 0",
        ),
        (
            "agg_iters 8, cache cold, pin True",
            "agg_iters 8, cache cold, pin True, register 0",  # launches of -m are not known
        ),
        ("agg_iters 1, launches of -m one a call, pin True, register 2",) * 2,
        ("start window, times measured",) * 2,  # of an imported run
        ("", ""),
    ],
)
def test_a_manner_of_before_is_written_as_today(kept: str, completed: str) -> None:
    assert history.complete_manner(kept) == completed
