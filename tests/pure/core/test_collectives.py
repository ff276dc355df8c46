"""The table of collectives against worked examples, identities and published factors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from collbench.core.collectives import COLLECTIVES, find_collective
from collbench.core.dtypes import OPS, premul_factor
from collbench.core.errors import UsageError

START = [np.array([1 + 2 * r, 2 + 2 * r]) for r in range(4)]
SUM = OPS["sum"].combine


def result(name: str, inputs, op=SUM, root: int = 0) -> list[object]:
    return [
        None if out is None else out.tolist() for out in COLLECTIVES[name].result(inputs, op, root)
    ]


def test_the_four_rank_example() -> None:
    assert result("broadcast", START) == [[1, 2]] * 4
    pairs = [np.array([0, 0, 1, 1, 2, 2, 3, 3])] + [np.zeros(8, int)] * 3
    assert result("scatter", pairs) == [[0, 0], [1, 1], [2, 2], [3, 3]]
    whole = [1, 2, 3, 4, 5, 6, 7, 8]
    assert result("gather", START, root=2) == [None, None, whole, None]
    assert result("all_gather", START) == [whole] * 4
    assert result("reduce", START, root=3) == [None, None, None, [16, 20]]
    assert result("all_reduce", START) == [[16, 20]] * 4
    assert result("scan", START) == [[1, 2], [4, 6], [9, 12], [16, 20]]
    assert result("sendrecv", START) == [[7, 8], [1, 2], [3, 4], [5, 6]]
    assert result("barrier", START) == [None] * 4


def test_the_three_rank_example() -> None:
    inputs = [np.array(v) for v in ([2, 4, 6], [1, 2, 3], [4, 8, 12])]
    assert result("all_reduce", inputs) == [[7, 14, 21]] * 3
    assert result("reduce_scatter", inputs) == [[7], [14], [21]]


def test_all_to_all_transposes_blocks() -> None:
    inputs = [np.array([10 * i + j for j in range(3)]) for i in range(3)]
    assert result("all_to_all", inputs) == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    uneven = [[np.arange(i + j) + 100 * i + 10 * j for j in range(3)] for i in range(3)]
    for rank, out in enumerate(result("all_to_allv", uneven)):
        assert out == [v for i in range(3) for v in uneven[i][rank].tolist()]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_identities(n: int) -> None:
    rng = np.random.default_rng(n)
    inputs = [rng.integers(-99, 99, 4 * n) for _ in range(n)]
    whole = result("all_reduce", inputs)
    reduced = COLLECTIVES["reduce"].result(inputs, SUM, 0)
    assert whole == result("broadcast", reduced)
    assert whole == result("all_gather", COLLECTIVES["reduce_scatter"].result(inputs, SUM, 0))
    gathered = COLLECTIVES["gather"].result(inputs, SUM, 0)
    assert result("all_gather", inputs) == result("broadcast", gathered)


def test_results_work_on_any_values() -> None:
    symbols = [np.array([f"r{r}"], dtype=object) for r in range(3)]
    assert result("all_reduce", symbols, lambda a, b: a + b) == [["r0r1r2"]] * 3


@pytest.mark.parametrize("n", range(2, 34))
def test_bus_bandwidth_factors(n: int) -> None:
    others = Fraction(n - 1, n)
    expected = {
        "all_reduce": 2 * others,
        "all_gather": others,
        "reduce_scatter": others,
        "all_to_all": others,
        "gather": others,
        "scatter": others,
        "all_to_allv": 1,
        "broadcast": 1,
        "reduce": 1,
        "sendrecv": 1,
        "scan": 1,
        "barrier": 0,
    }
    for name, row in COLLECTIVES.items():
        assert row.busbw(n) == pytest.approx(float(expected[name]))
        bound = row.bound(n)
        rounds = 1 if name == "sendrecv" else int(np.ceil(np.log2(n)))
        assert bound.alpha == rounds
        assert bound.beta == pytest.approx(
            float(expected[name])
        )  # what must move is what busbw counts
        assert bound.gamma == (pytest.approx(float(others)) if row.reduces else 0)


def test_counts_follow_nccl_tests() -> None:
    n, count = 4, 10
    counts = {name: row.counts(n, count) for name, row in COLLECTIVES.items()}
    same, gathers, scatters, exchanges = (10, 10), (10, 40), (40, 10), (40, 40)
    assert counts == {
        "all_reduce": same,
        "broadcast": same,
        "reduce": same,
        "sendrecv": same,
        "scan": same,
        "all_gather": gathers,
        "gather": gathers,
        "reduce_scatter": scatters,
        "scatter": scatters,
        "all_to_all": exchanges,
        "all_to_allv": exchanges,
        "barrier": (0, 0),
    }


def test_names() -> None:
    assert find_collective("allreduce").name == "all_reduce"
    assert find_collective("alltoall").name == "all_to_all"
    with pytest.raises(UsageError, match="unknown collective"):
        find_collective("all_produce")
    assert [premul_factor(r) for r in range(4)] == [1, 2, 1, 2]


def test_an_error_in_an_item_does_not_end_the_outputs() -> None:
    """Else fewer ranks would be judged than there are."""
    row = find_collective("all_to_allv")
    short = [[np.zeros(1), np.zeros(1)], [np.zeros(1)]]
    with pytest.raises(IndexError):
        list(row.result(short, SUM, 0))
