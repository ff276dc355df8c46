"""Counts and times of schedules: against plain loops over moves, and against the closed forms of
the literature."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from collbench.cli import main
from collbench.core import algorithms, simulate, splits
from collbench.core import text as text_
from collbench.core.algorithms import count_doublings
from collbench.core.algorithms.blocks import find_power_of_two
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import CannotRun, CollbenchError, UsageError
from collbench.core.network import LINKS, Link, Network
from collbench.core.schedule import Moves, Schedule
from collbench.features.predict.views import prediction
from collbench.run.backends import _model
from collbench.run.jobs import Job, Plan
from collbench.run.launch.world import Listener
from collbench.show import terminal
from collbench.suite.case import Case
from collbench.suite.policy import Policy

LINK = Link(alpha=3e-6, beta=2e-9, gamma=5e-10)
FLAT = Network(LINK)
ROWS = list(algorithms.list_catalogue())


def scheduled(collective: str, text: str, n: int, root: int = 0, ratio: float = 1.0) -> Schedule:
    return algorithms.find_variant(collective, text).schedule(n, root, ratio)


def plainly(schedule: Schedule, nbytes: float) -> tuple[simulate.Counts, float]:
    """Counts, and seconds on FLAT, by a loop over single moves."""
    unit = Fraction(schedule.has_data, schedule.cells * (schedule.n if schedule.row.total else 1))
    rounds = most = reduced = 0
    sent: Counter[int] = Counter()
    seconds = 0.0
    for moves in schedule.steps():
        pairs, adds = Counter(), Counter()
        for move in moves:
            if move.src != move.dst:
                pairs[move.src, move.dst] += 1
                adds[move.dst] += move.reduce
        peers = [Counter(pair[end] for pair in pairs) for end in (0, 1)]
        cells = [Counter(), Counter()]
        for pair, number in pairs.items():
            sent[pair[0]] += number
            for end in (0, 1):
                cells[end][pair[end]] += number
        rounds += max([0, *peers[0].values(), *peers[1].values()])
        most += max([0, *cells[0].values(), *cells[1].values()])
        reduced += max([0, *adds.values()])
        byte = float(unit) * nbytes
        seconds += max(
            max(
                k[rank] * LINK.alpha + c[rank] * byte * LINK.beta
                for k, c in zip(peers, cells, strict=True)
            )
            + adds[rank] * byte * LINK.gamma
            for rank in range(schedule.n)
        )
    counts = Fraction(rounds), most * unit, reduced * unit, max(sent.values(), default=0) * unit
    return simulate.Counts(*counts), seconds


@pytest.mark.parametrize(("collective", "name"), ROWS)
def test_counts_and_times_are_those_of_a_plain_loop_over_moves(collective: str, name: str) -> None:
    variant = algorithms.find_variant(collective, name)
    for n in (n for n in (1, 2, 3, 4, 7, 8, 12) if not variant.refuse(n)):
        for root in {0, n // 2} if COLLECTIVES[collective].rooted else {0}:
            schedule = variant.schedule(n, root, 40.0)
            for nbytes in (0.0, 100.0, 1e5):
                counts, seconds = plainly(schedule, nbytes)
                assert simulate.cost_schedule(schedule, FLAT).seconds(nbytes) == pytest.approx(
                    seconds, rel=1e-12
                )
            assert simulate.count_costs(schedule) == counts


def e(p: int) -> Fraction:
    return Fraction(p - 1, p)


def low(p: int) -> int:
    return p.bit_length() - 1


def folds(p: int) -> int:
    """1 where ranks beyond the last power of two hand their data to others first, and get the
    result last."""
    return int(p != find_power_of_two(p))


def bruck(p: int) -> Fraction:
    return Fraction(sum(j >> bit & 1 for bit in range(count_doublings(p)) for j in range(p)), p)


def subtree(p: int) -> Fraction:
    """Blocks of the largest binomial subtree below the root."""
    half = 1 << (count_doublings(p) - 1)
    return Fraction(max(p - half, half // 2), p)


def grid(p: int, group: int) -> int:
    return 2 * (group - 1) + 2 * (p // group - 1)


def side(p: int, most: float) -> int:
    return max(d for d in range(1, int(most) + 1) if p % d == 0)


# rounds A, bytes B, reduced bytes G and bytes sent by the busiest rank; None where the literature
# gives no value
FORMS: dict[tuple[str, str], Callable[[int], tuple[object, ...]]] = {
    ("sendrecv", "direct"): lambda p: (1, 1, 0, 1),
    ("broadcast", "linear"): lambda p: (p - 1, p - 1, 0, p - 1),
    ("broadcast", "binomial"): lambda p: (
        count_doublings(p),
        count_doublings(p),
        0,
        count_doublings(p),
    ),
    ("broadcast", "scatter_allgather"): lambda p: (count_doublings(p) + p - 1, 2 * e(p), 0, None),
    ("reduce", "linear"): lambda p: (p - 1, p - 1, p - 1, 1),
    ("reduce", "binomial"): lambda p: (
        count_doublings(p),
        count_doublings(p),
        count_doublings(p),
        1,
    ),
    ("reduce", "reduce_scatter_gather"): lambda p: (
        p - 1 + count_doublings(p),
        2 * e(p),
        e(p),
        None,
    ),
    ("reduce", "rabenseifner"): lambda p: (
        2 * low(p) + folds(p),
        2 * e(find_power_of_two(p)) + folds(p),
        e(find_power_of_two(p)) + folds(p),
        None,
    ),
    ("all_reduce", "central"): lambda p: (2 * (p - 1), 2 * (p - 1), p - 1, p - 1),
    ("all_reduce", "reduce_broadcast"): lambda p: (
        2 * count_doublings(p),
        2 * count_doublings(p),
        count_doublings(p),
        count_doublings(p),
    ),
    ("all_reduce", "ring"): lambda p: (2 * (p - 1), 2 * e(p), e(p), 2 * e(p)),
    ("all_reduce", "ring:down"): lambda p: (2 * (p - 1), 2 * e(p), e(p), 2 * e(p)),
    ("all_reduce", "recursive_doubling"): lambda p: (
        low(p) + 2 * folds(p),
        low(p) + 2 * folds(p),
        low(p) + folds(p),
        low(p) + folds(p),
    ),
    ("all_reduce", "halving_doubling"): lambda p: (
        2 * low(p) + 2 * folds(p),
        2 * e(find_power_of_two(p)) + 2 * folds(p),
        e(find_power_of_two(p)) + folds(p),
        2 * e(find_power_of_two(p)) + folds(p),
    ),
    ("all_reduce", "torus2d"): lambda p: (grid(p, side(p, p**0.5)), 2 * e(p), e(p), 2 * e(p)),
    ("all_reduce", "hierarchical:group=4"): lambda p: (grid(p, 4), 2 * e(p), e(p), 2 * e(p)),
    ("all_reduce", "swing"): lambda p: (2 * count_doublings(p), 2 * e(p), e(p), 2 * e(p)),
    ("all_reduce", "swing_latency"): lambda p: (
        count_doublings(p),
        count_doublings(p),
        count_doublings(p),
        count_doublings(p),
    ),
    ("all_reduce", "one_shot"): lambda p: (p - 1, p - 1, p - 1, p - 1),
    ("all_reduce", "two_shot"): lambda p: (2 * (p - 1), 2 * e(p), e(p), 2 * e(p)),
    ("all_gather", "ring"): lambda p: (p - 1, e(p), 0, e(p)),
    ("all_gather", "recursive_doubling"): lambda p: (count_doublings(p), e(p), 0, e(p)),
    ("all_gather", "bruck"): lambda p: (count_doublings(p), e(p), 0, e(p)),
    ("all_gather", "neighbour_exchange"): lambda p: (p // 2, e(p), 0, e(p)),
    ("all_gather", "gather_broadcast"): lambda p: (
        2 * count_doublings(p),
        e(p) + count_doublings(p),
        0,
        count_doublings(p),
    ),
    ("reduce_scatter", "ring"): lambda p: (p - 1, e(p), e(p), e(p)),
    ("reduce_scatter", "pairwise"): lambda p: (p - 1, e(p), e(p), e(p)),
    ("reduce_scatter", "recursive_halving"): lambda p: (count_doublings(p), e(p), e(p), e(p)),
    ("gather", "linear"): lambda p: (p - 1, e(p), 0, Fraction(1, p)),
    ("gather", "binomial"): lambda p: (count_doublings(p), e(p), 0, subtree(p)),
    ("scatter", "linear"): lambda p: (p - 1, e(p), 0, e(p)),
    ("scatter", "binomial"): lambda p: (count_doublings(p), e(p), 0, e(p)),
    ("all_to_all", "linear"): lambda p: (p - 1, e(p), 0, e(p)),
    ("all_to_all", "pairwise"): lambda p: (p - 1, e(p), 0, e(p)),
    ("all_to_all", "xor"): lambda p: (p - 1, e(p), 0, e(p)),
    ("all_to_all", "bruck"): lambda p: (count_doublings(p), bruck(p), 0, bruck(p)),
    ("all_to_allv", "pairwise"): lambda p: (p - 1, e(p), 0, e(p)),
    ("barrier", "dissemination"): lambda p: (count_doublings(p), 0, 0, 0),
    ("barrier", "central"): lambda p: (2 * (p - 1), 0, 0, 0),
    ("barrier", "tree"): lambda p: (2 * count_doublings(p), 0, 0, 0),
    ("scan", "recursive_doubling"): lambda p: (
        count_doublings(p),
        count_doublings(p),
        count_doublings(p),
        count_doublings(p),
    ),
}
CHAINS: dict[str, Callable[[int, int], tuple[object, ...]]] = {
    "broadcast": lambda p, k: (k + p - 2, Fraction(k + p - 2, k), 0, 1),
    "reduce": lambda p, k: (k + p - 2, Fraction(k + p - 2, k), Fraction(k + p - 2, k), 1),
    "scan": lambda p, k: (k + p - 2, Fraction(k + p - 2, k), Fraction(k + p - 2, k), 1),
}


def agrees(schedule: Schedule, form: tuple[object, ...]) -> None:
    found = simulate.count_costs(schedule)
    assert [f if wanted is None else wanted for f, wanted in zip(found, form, strict=True)] == list(
        found
    )


@pytest.mark.parametrize(("collective", "text"), FORMS)
def test_closed_forms(collective: str, text: str) -> None:
    variant = algorithms.find_variant(collective, text)
    able = [p for p in range(2, 34) if not variant.refuse(p)]
    assert len(able) >= 5
    for p in able:
        agrees(variant.schedule(p), FORMS[collective, text](p))


@pytest.mark.parametrize("collective", CHAINS)
@pytest.mark.parametrize("k", [1, 2, 5, 16])
def test_closed_forms_of_chains(collective: str, k: int) -> None:
    for p in range(2, 34):
        agrees(scheduled(collective, f"chain:segments={k}", p), CHAINS[collective](p, k))


@pytest.mark.parametrize(
    ("collective", "passes"), [("broadcast", 1), ("reduce", 1), ("all_reduce", 2)]
)
def test_double_trees_stay_within_their_bounds(collective: str, passes: int) -> None:
    """2L + 2k rounds for each pass, of size / 2k each; what is added is what one pass moves."""
    for p in (*range(2, 10), 15, 16, 17, 31, 32, 33, 64, 100):
        for k in (1, 3, 8):
            found = simulate.count_costs(scheduled(collective, f"double_tree:segments={k}", p))
            assert passes * (2 * count_doublings(p) + 2 * k) >= found.A
            assert passes * Fraction(2 * count_doublings(p) + 2 * k, 2 * k) >= found.B
            assert found.sent <= passes
            assert (0 if collective == "broadcast" else found.B / passes) == found.G


def test_every_algorithm_has_a_closed_form_tested() -> None:
    tested = {
        (row.collective, row.name)
        for row in (algorithms.find_variant(*form).algorithm for form in FORMS)
    }
    tested |= {(collective, "chain") for collective in CHAINS}
    tested |= {(collective, "double_tree") for collective in ("broadcast", "reduce", "all_reduce")}
    assert set(ROWS) - tested == set(), "a closed form in FORMS, above, for each of these"


def test_no_algorithm_beats_the_bounds_in_the_table() -> None:
    for collective, name in ROWS:
        variant = algorithms.find_variant(collective, name)
        for p in (p for p in range(2, 20) if not variant.refuse(p)):
            found, bound = (
                simulate.count_costs(variant.schedule(p)),
                COLLECTIVES[collective].bound(p),
            )
            least = [
                bound.alpha,
                bound.beta * (e(p) if COLLECTIVES[collective].uneven else 1),
                bound.gamma,
            ]
            if COLLECTIVES[collective].uneven or name in ("one_shot", "linear", "two_shot"):
                least[0] = 1  # more than one peer in a step counts as several rounds already
            assert all(f >= b - 1e-12 for f, b in zip(found, least, strict=False)), (
                collective,
                name,
                p,
            )


def made(n: int, steps: Callable[[], Iterator[Moves]]) -> Schedule:
    return Schedule("made", "broadcast", n, 0, 2, steps)


def test_equal_steps_are_costed_once_and_counted_often() -> None:
    groups = list(simulate.list_step_messages(scheduled("all_reduce", "ring", 8)))
    assert [times for _, times in groups] == [7, 7]  # seven that add, seven that copy


def test_steps_are_told_apart_by_value_not_by_identity() -> None:
    """A generator may change its arrays between steps, or make equal ones anew."""

    def steps() -> Iterator[Moves]:
        src, dst, reduce = np.array([0, 1]), np.array([1, 2]), np.array([False, False])
        yield Moves(src, dst, 0, reduce=reduce)
        yield Moves(src.copy(), dst.copy(), 1, reduce=reduce.copy())
        dst[1] = 1
        yield Moves(src[1:] * 0, dst[1:], 0)
        dst[:] = 1, 0
        yield Moves(src, dst, 0, reduce=reduce)
        reduce[1] = True
        yield Moves(src, dst, 0, reduce=reduce)
        yield Moves(src[:, None], dst[:, None], np.arange(2), reduce=reduce[:, None])
        yield Moves(src[:, None], dst[:, None], np.arange(1), reduce=reduce[:, None])
        yield Moves(np.array([0, 1]), 2, 0)
        yield Moves(2, np.array([0, 1]), 0)

    schedule = made(3, steps)
    assert [times for _, times in simulate.list_step_messages(schedule)] == [2, 1, 1, 1, 1, 1, 1, 1]
    counts, seconds = plainly(schedule, 1e4)
    assert simulate.count_costs(schedule) == counts
    assert simulate.cost_schedule(schedule, FLAT).seconds(1e4) == pytest.approx(seconds, rel=1e-12)


def test_a_stream_is_read_once_and_never_held() -> None:
    alive: list[int] = []

    def steps() -> Iterator[Moves]:
        for step in range(1000):
            alive.append(step)
            yield Moves(step, (step + 1) % 1000, 0)

    groups = simulate.list_step_messages(made(1000, steps))
    next(groups)
    assert len(alive) <= 3
    assert 1 + len(list(groups)) == 1000
    assert len(alive) == 1000


def test_two_steps_in_turns_are_costed_once() -> None:
    """As in a pipeline whose edges send in every second step."""

    def steps() -> Iterator[Moves]:
        for step in range(1000):
            yield Moves(step % 2, 1 - step % 2, 0)

    assert [times for _, times in simulate.list_step_messages(made(2, steps))] == [500, 500]


@pytest.mark.parametrize("name", ["ring", "ring:down", "hierarchical", "torus2d"])
def test_steps_that_share_ranks_are_not_compared_rank_by_rank(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring of a million ranks has two million steps of a million messages."""
    compared: list[object] = []
    equal = np.array_equal
    monkeypatch.setattr(np, "array_equal", lambda *a: compared.append(a) or equal(*a))
    schedule = scheduled("all_reduce", name, 256)
    assert sum(times for _, times in simulate.list_step_messages(schedule)) >= 2 * 15
    assert len(compared) < 40


def test_default_segments_reach_the_optimum_of_the_chain() -> None:
    link = Link(2e-6, 1e-9, 0)
    for p in (8, 33):
        for size in (1e5, 1e6, 3e6):
            variant = algorithms.find_variant("broadcast", "chain")
            found = simulate.Predictor(variant, Network(link), p).seconds(size)
            ideal = (((p - 2) * link.alpha) ** 0.5 + (size * link.beta) ** 0.5) ** 2
            assert ideal <= found * (1 + 1e-12)
            assert found <= 1.01 * ideal


def test_default_segments_of_trees_reach_their_optimum() -> None:
    link, p, size = Link(2e-6, 1e-9, 0), 64, 1e6
    found = simulate.Predictor(
        algorithms.find_variant("broadcast", "double_tree"), Network(link), p
    ).seconds(size)
    high = (
        2 * count_doublings(p) * link.alpha
        + size * link.beta
        + (8 * count_doublings(p) * link.alpha * link.beta * size) ** 0.5
    )
    assert size * link.beta < found <= high * 1.01
    for k in (1, 4, 256):
        other = algorithms.find_variant("broadcast", f"double_tree:segments={k}")
        assert found < simulate.Predictor(other, Network(link), p).seconds(size)


def foreseen(collective: str, n: int, link: Link, *texts: str) -> simulate.Forecast:
    variants = [algorithms.find_variant(collective, text) for text in texts]
    return simulate.forecast_variants(COLLECTIVES[collective], n, Network(link), variants, [1])


@pytest.mark.parametrize(
    ("collective", "first", "second", "rounds", "bytes_"),
    [
        (
            "all_reduce",
            "recursive_doubling",
            "ring",
            lambda p: 2 * (p - 1) - count_doublings(p),
            lambda p: count_doublings(p) - 2 * e(p),
        ),
        (
            "all_reduce",
            "recursive_doubling",
            "halving_doubling",
            count_doublings,
            lambda p: count_doublings(p) - 2 * e(p),
        ),
        (
            "broadcast",
            "binomial",
            "scatter_allgather",
            lambda p: p - 1,
            lambda p: count_doublings(p) - 2 * e(p),
        ),
    ],
)
def test_crossovers_lie_where_the_closed_forms_put_them(
    collective: str,
    first: str,
    second: str,
    rounds: Callable[[int], int],
    bytes_: Callable[[int], Fraction],
) -> None:
    link = Link(2e-6, 1e-9, 0)
    for p in (8, 16, 64):
        view = foreseen(collective, p, link, first, second)
        ((size, before, after),) = view.crossovers([1 << k for k in range(3, 31, 3)])
        exact = link.alpha * rounds(p) / (link.beta * float(bytes_(p)))
        assert (before, after) == (first, second)
        assert size - 1 <= exact * (1 + 1e-9) and size >= exact * (1 - 1e-9)


def test_crossovers_find_a_third_that_wins_in_between() -> None:
    view = foreseen(
        "all_reduce",
        64,
        LINKS["ib200"],
        "recursive_doubling",
        "double_tree",
        "ring",
        "halving_doubling",
    )
    two = foreseen("all_reduce", 64, LINKS["ib200"], "recursive_doubling", "ring", "double_tree")
    assert [after for _, _, after in view.crossovers([8, 1 << 40])] == ["halving_doubling"]
    assert [after for _, _, after in two.crossovers([8, 1 << 40])] == ["double_tree", "ring"]
    assert two.crossovers([1 << 40, 8, 8]) == two.crossovers([8, 1 << 40])


def test_worked_figures() -> None:
    """1 TB over 200 Gb/s takes 40 s; 175e9 parameters are 700 GB of gradients, of which a ring
    moves 2(n-1)/n."""
    moved = simulate.cost_schedule(
        scheduled("sendrecv", "direct", 2), Network(LINKS["ib200"])
    ).seconds(1e12)
    assert moved == pytest.approx(40, rel=1e-6)
    gradients = 175e9 * 4
    assert gradients == 700e9
    wire = LINKS["ib200"]._replace(gamma=0.0)
    ring = simulate.cost_schedule(scheduled("all_reduce", "ring", 8), Network(wire)).seconds(
        gradients
    )
    assert ring == pytest.approx(2 * 7 / 8 * 28, rel=1e-4)


def test_a_pipelined_ring_broadcast_tends_to_size_over_bandwidth() -> None:
    """N bytes in S pieces over k ranks on links of bandwidth B take N (S + k - 2) / (S B)."""
    k, bandwidth, size = 8, 2e9, 1e8
    for pieces in (1, 6, 60, 6000):
        schedule = scheduled("broadcast", f"chain:segments={pieces}", k)
        found = simulate.cost_schedule(schedule, Network(Link(0, 1 / bandwidth, 0))).seconds(size)
        assert found == pytest.approx(size * (pieces + k - 2) / (pieces * bandwidth), rel=1e-12)
    assert found == pytest.approx(size / bandwidth, rel=2e-3)


def test_a_centre_is_the_bottleneck_that_a_ring_avoids() -> None:
    n, size = 64, 1e9
    central, ring = (
        simulate.cost_schedule(scheduled("all_reduce", name, n), FLAT).seconds(size)
        for name in ("central", "ring")
    )
    assert central / ring > 0.9 * n


def test_what_would_take_minutes_or_gigabytes_is_refused_before_it_starts() -> None:
    big = simulate.Predictor(algorithms.find_variant("all_reduce", "one_shot"), FLAT, 1 << 16)
    with pytest.raises(CannotRun, match="messages") as caught:
        big.check([8])
    assert "-n" in caught.value.hint
    with pytest.raises(CannotRun, match="min"):
        simulate.Predictor(algorithms.find_variant("broadcast", "linear"), FLAT, 1 << 20).check([8])
    for name in ("ring", "double_tree", "hierarchical", "halving_doubling", "swing"):
        simulate.Predictor(algorithms.find_variant("all_reduce", name), FLAT, 1 << 20).check([8])
    simulate.Predictor(
        algorithms.find_variant("all_reduce", "recursive_doubling"), FLAT, 1 << 16
    ).check([8])


def run(*args: str, command: str = "predict") -> str:
    done = CliRunner().invoke(main.app, [command, *args])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.mark.parametrize(
    ("word", "network", "group"),
    [
        ("hierarchical", "two-level:4", 4),
        ("hierarchical", "two-level:5", 8),  # 5 do not divide 16 ranks
        ("hierarchical", "flat", 8),
        ("hierarchical:group=2", "two-level:4", 2),
    ],
)
def test_groups_of_hierarchical_are_the_networks_nodes(word: str, network: str, group: int) -> None:
    """Every table names them: a group that lies on two nodes is not what the name promises."""
    text = run("all_reduce", "-n", "16", "--algo", f"ring,{word}", "--network", network)
    names = [line.split()[0] for line in text.splitlines() if line.startswith("hierarchical")]
    assert names and {*names} == {f"hierarchical:group={group}"}


def test_predict_shows_winners_crossovers_and_what_is_left_out() -> None:
    text = run("all_reduce", "-n", "6", "--link", "ib200,adding=2TB", "-f", "4")
    assert "predicted" in text.splitlines()[0]
    assert "recursive_doubling beats" in text
    assert "left out: swing: needs a power of two, not 6 ranks" in text
    assert "40.0 s" in run("sendrecv", "-n", "2", "-b", "1000000000000")
    assert "n/a" in run("barrier", "-n", "5")
    assert "5/3" in run("all_reduce", "-n", "6", "--algo", "ring", "--counts")


def test_predict_takes_the_link_from_a_recorded_run(tmp_path: Path) -> None:
    recorded = str(tmp_path / "run.jsonl")
    run(
        "-g",
        "4",
        "-b",
        "8",
        "-e",
        "1G",
        "--backend",
        "model",
        "--algo",
        "ring",
        "--output",
        recorded,
        command="all_gather",
    )
    whole = json.loads(
        run("all_gather", "-n", "64", "--from", recorded, "--format", "json", "--algo", "ring")
    )
    assert "predicted" in whole["about"] and "ring@model on 4" in whole["about"]
    for row in whole["predictions"]:
        seconds = simulate.cost_schedule(
            scheduled("all_gather", "ring", 64), Network(_model.TEN_GIGABIT)
        ).seconds(row["size"])
        assert row["time_ns"] == pytest.approx(seconds * 1e9, rel=0.01)


def test_predict_writes_rows_for_programs() -> None:
    args = ("all_gather", "-n", "8", "-b", "1K", "-e", "1M", "-f", "32", "--algo", "ring,bruck")
    whole = json.loads(run(*args, "--format", "json"))
    assert [crossing["below"] for crossing in whole["crossovers"]] == []
    rows = whole["predictions"]
    assert len(rows) == 3 * 2
    for row, line in zip(
        rows, csv.DictReader(io.StringIO(run(*args, "--format", "csv"))), strict=True
    ):
        assert {key: str(value) for key, value in row.items()} == line
        assert row["status"] == "predicted"
        seconds = simulate.cost_schedule(
            scheduled("all_gather", row["algorithm"], 8), Network(LINKS["ib200"])
        ).seconds(row["size"])
        assert row["time_ns"] == pytest.approx(seconds * 1e9)
        assert row["busbw"] == pytest.approx(row["size"] / seconds / 1e9 * 7 / 8)
        assert row["time_ns"] >= row["bound_ns"]
        assert row["best"] == (row["algorithm"] == "bruck")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nothing",), "unknown collective"),
        (("all_reduce", "--algo", "nope"), "no algorithm 'nope'"),
        (("all_reduce", "--algo", ","), "--algo is empty"),
        (("all_reduce", "--network", "moon"), "not a network"),
        (("all_reduce", "--link", "fast"), "no link and no setting of one"),
        (("all_reduce", "--format", "xml"), "not one of table, json, csv"),
        (("all_reduce", "--counts", "--format", "csv"), "--counts can only be a table"),
        (("all_reduce", "--from", "@last", "--link", "ib200"), "both say"),
        (("all_reduce", "-b", "2G", "-e", "1G"), "larger than"),
        (("all_reduce", "-n", "6", "--algo", "swing"), "needs a power of two"),
    ],
)
def test_predict_explains_what_is_wrong(args: tuple[str, ...], words: str) -> None:
    with pytest.raises(CollbenchError, match=words):
        run(*args)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_tables_fit_the_terminal_and_show_every_algorithm(width: int) -> None:
    sizes = [1 << k for k in range(3, 31, 9)]
    every = [algorithms.Variant(row) for row in algorithms.list_algorithms("all_reduce")]
    view = simulate.forecast_variants(COLLECTIVES["all_reduce"], 16, FLAT, every, sizes)
    text = terminal.render_text(prediction.make_document(view, sizes, "title"), width)
    assert max(map(len, text.splitlines())) <= max(width, 61)
    for name in view.predictors:
        for word in re.split("[_:]", name):
            assert word in text
    for seconds in view.seconds(sizes[-1]).values():
        assert text_.format_duration(seconds * 1e9) in text


def case(**fields: object) -> Case:
    given = {
        "collective": "all_reduce",
        "backend": "model",
        "n": 6,
        "nbytes": 6000,
        "algorithm": "ring",
        **fields,
    }
    return Case(**given)  # type: ignore[arg-type]


def test_the_model_backend_simulates_reference_algorithms() -> None:
    network = Network(_model.TEN_GIGABIT)
    cases = [
        case(),
        case(algorithm="native"),
        case(collective="gather", algorithm="binomial", root=4),
        case(n=7),
        case(collective="broadcast", algorithm="chain:segments=5"),
        case(algorithm="swing"),
    ]
    records = []
    jobs = [Job(one, 1, "cold") for one in cases]
    plans = [Plan(0, "model", 6, (), Policy(), jobs, 1.0)]
    _model.Predicted().run(plans, Listener(records.append))
    _, *records = records
    assert [record.status for record in records] == ["predicted"] * 5 + ["skipped"]
    assert "power of two" in records[-1].note
    for record in (r for r in records[:-1] if r.case.algorithm != "native"):
        one = record.case
        schedule = scheduled(one.collective, one.algorithm, one.n, one.root)
        assert record.times_ns == [
            round(simulate.cost_schedule(schedule, network).seconds(one.size) * 1e9)
        ]
        assert one.algorithm in record.note
    (native,) = records[1].times_ns
    assert native == round(_model.predict_seconds(cases[1]) * 1e9)
    assert _model.predict_seconds(cases[1]) == pytest.approx(
        3 * 20e-6 + 6000 * (5 / 3 / 1.18e9 + 5 / 6 / 8e9)
    )  # the lower bound


def test_uneven_blocks_are_simulated_with_their_lengths(tmp_path: Path) -> None:
    table = np.random.default_rng(1).integers(0, 40_000, (5, 5))
    np.savetxt(tmp_path / "table", table)
    split = f"matrix:{tmp_path / 'table'}"
    one = case(collective="all_to_allv", algorithm="pairwise", n=5, nbytes=100_000, splits=split)
    blocks = splits.split_matrix(split, 5, 100_000, 4) * 4
    link = _model.TEN_GIGABIT
    wanted = sum(
        link.alpha + max(blocks[r, (r + k) % 5] for r in range(5)) * link.beta for k in range(1, 5)
    )
    found, _ = _model.Model(Network(link)).seconds(one)
    assert found == pytest.approx(wanted, rel=1e-12)
    even, _ = _model.Model(Network(link)).seconds(
        case(collective="all_to_allv", algorithm="pairwise", n=5, nbytes=100_000, splits="uniform")
    )
    assert even < found
    assert math.isclose(
        even,
        simulate.cost_schedule(scheduled("all_to_allv", "pairwise", 5), Network(link)).seconds(
            100_000
        ),
    )


def test_the_model_backend_says_when_a_world_is_too_large() -> None:
    with pytest.raises(CannotRun, match="messages"):
        _model.Model(FLAT).seconds(case(n=1 << 16, algorithm="one_shot"))
    with pytest.raises(UsageError, match="power of two"):
        _model.Model(FLAT).seconds(case(algorithm="swing"))
