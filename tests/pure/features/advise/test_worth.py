"""What advice is worth for a job: hand-computed, bounded, and of real traces."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from collbench.core.errors import CollbenchError, UsageError
from collbench.features.advise import worth
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Series, Setting, Unadvised
from collbench.features.advise.worth import JobSizes, SizeCalls

ROOT = Path(__file__).parents[4]
SERIES = Series("all_reduce", 2, 1)
KIB, MIB = 1 << 10, 1 << 20


def gain(nbytes: int, default: float, share: float, lo: float, hi: float) -> Gain:
    return Gain(
        nbytes=nbytes,
        gain=share,
        lo=lo,
        hi=hi,
        p=0.001,
        launches=6,
        is_paired=True,
        default=default,
        setting=default * (1 - share),
    )


def advise(series: Series = SERIES, **fields: object) -> Advised:
    """Measured at 1 KiB (10 µs), 4 KiB (40 µs), 16 KiB (90 µs) and 1 MiB (3 ms); the middle two are
    advised, and the row goes from 2 KiB to 128 KiB."""
    gains = (
        gain(4 * KIB, 40_000, 0.2, 0.1, 0.3),
        gain(16 * KIB, 90_000, 0.5, 0.4, 0.6),
    )
    row = Advice(
        series=series,
        setting=Setting(backend="mpi", env=(("A", "1"),)),
        name="ring",
        low=2 * KIB,
        high=128 * KIB,
        gains=gains,
    )
    ends = (
        Unadvised(
            Cell(series, KIB), "nothing is faster", True, gain(KIB, 10_000, -0.1, -0.2, 0.01)
        ),
        Unadvised(Cell(series, MIB), "nothing is faster", True, gain(MIB, 3e6, 0.0, -0.1, 0.1)),
    )
    values = {"rows": (row,), "unadvised": ends} | fields
    return Advised(
        library="openmpi",
        version="4",
        runs=("r",),
        day="2026-11-28",
        taus=(0.03, 0.05),
        **values,  # type: ignore[arg-type]
    )


def job(*calls: SizeCalls) -> JobSizes:
    return JobSizes("a job", calls)


def test_a_step_saves_calls_times_time_times_gain() -> None:
    value = worth.value_advice(
        advise(),
        job(SizeCalls("all_reduce", 2, 4 * KIB, 10), SizeCalls("all_reduce", 2, 16 * KIB, 3)),
    )
    assert value.spent == 10 * 40_000 + 3 * 90_000 == 670_000
    assert value.saved == pytest.approx((80_000 + 135_000, 40_000 + 108_000, 120_000 + 162_000))
    first, *rest = worth.describe_worth(value)
    assert "215 µs [148 µs, 282 µs]" in first and "670 µs" in first
    assert "10 all_reduce of 4 KiB on 2 ranks" in first and "3 all_reduce of 16 KiB" in first
    assert any("overlaps with computing may save less" in sentence for sentence in rest)


def test_times_between_measured_sizes_are_interpolated_on_logarithmic_scales() -> None:
    value = worth.value_advice(advise(), job(SizeCalls("all_reduce", 2, 8 * KIB, 1)))
    assert value.spent == pytest.approx(math.sqrt(40_000 * 90_000))  # 60 µs
    assert value.savings[0].saved / value.spent in (0.2, 0.5)  # as at one of both, not between


@pytest.mark.parametrize(
    ("nbytes", "share"),
    [
        (KIB, 0.0),
        (2 * KIB - 4, 0.0),
        (2 * KIB, 0.2),
        (7 * KIB, 0.2),
        (9 * KIB, 0.5),
        (128 * KIB, 0.5),
        (128 * KIB + 4, 0.0),
        (MIB, 0.0),
    ],
)
def test_a_gain_holds_inside_its_row_and_nowhere_else(nbytes: int, share: float) -> None:
    (saving,) = worth.value_advice(advise(), job(SizeCalls("all_reduce", 2, nbytes, 1))).savings
    assert saving.saved == pytest.approx(share * saving.spent)
    assert bool(saving.setting) == bool(share)


@pytest.mark.parametrize("nbytes", [0, 4, KIB - 4, MIB + 4, 1 << 40])
def test_nothing_is_extrapolated(nbytes: int) -> None:
    value = worth.value_advice(advise(), job(SizeCalls("all_reduce", 2, nbytes, 7)))
    assert not value.savings and value.saved == (0, 0, 0)
    assert value.unmeasured_calls == 1
    first, second = worth.describe_worth(value)
    assert "unknown" in first and "no call of a step has a measured size" in first
    assert "100 % of calls" in second and "1 KiB to 1 MiB" in second


def test_calls_of_other_ranks_and_collectives_are_told_with_their_share() -> None:
    value = worth.value_advice(
        advise(),
        job(
            SizeCalls("all_reduce", 2, 4 * KIB, 97),
            SizeCalls("all_reduce", 8, 4 * KIB, 2),
            SizeCalls("all_gather", 2, 4 * KIB, 1),
        ),
    )
    assert value.unmeasured_calls == pytest.approx(0.03)
    assert value.unmeasured_bytes == pytest.approx(0.03)
    assert value.spent == 97 * 40_000
    last = worth.describe_worth(value)[-1]
    assert last.startswith("3 % of calls with 3 % of bytes are not counted")
    assert "measured on 2 ranks only" in last and "all_gather was not measured" in last


def test_blocks_that_differ_and_unknown_nodes_are_not_counted() -> None:
    series = Series("all_to_allv", 2, 1)
    uneven = SizeCalls("all_to_allv", 2, 4 * KIB, 1, is_uneven=True)
    assert worth.value_advice(advise(series), job(uneven)).unmeasured[0].why == "its blocks differ"
    assert worth.value_advice(advise(series), job(uneven._replace(is_uneven=False))).savings
    other = Cell(Series("all_reduce", 2, 2), KIB)
    both = advise(rivals={other: {"ring": gain(KIB, 50_000, 0, 0, 0)}})
    (entry,) = worth.value_advice(both, job(SizeCalls("all_reduce", 2, KIB, 1))).unmeasured
    assert "1 and 2 hosts" in entry.why


def test_where_no_row_helps_it_says_so() -> None:
    value = worth.value_advice(advise(), job(SizeCalls("all_reduce", 2, MIB, 2)))
    (first,) = worth.describe_worth(value)
    assert "saves nothing" in first and "6.00 ms" in first
    empty = worth.value_advice(advise(), job())
    assert worth.describe_worth(empty) == (
        "a job has no collective: advice is worth nothing for it.",
    )


def test_calls_unlike_those_measured_are_told() -> None:
    """They count, as sizes are all that advice knows of; the reader is told."""
    calls = (SizeCalls("all_reduce", 2, 4 * KIB, 10),)
    one = JobSizes("a job", calls, ("float", "bfloat16"), ("of several groups at a time",))
    advised = advise(forms="float, out of place")
    told = [s for s in worth.describe_worth(worth.value_advice(advised, one)) if "differ" in s]
    assert told == [
        "Some calls count as measured, but may differ: of bfloat16 (measured: float, out of place);"
        " of several groups at a time."
    ]
    alike = worth.value_advice(advised, JobSizes("a job", calls, ("float",)))
    assert not any("differ" in sentence for sentence in worth.describe_worth(alike))


def test_rows_alone_give_times_too() -> None:
    value = worth.value_advice(advise(unadvised=()), job(SizeCalls("all_reduce", 2, 4 * KIB, 1)))
    assert value.spent == 40_000
    assert worth.value_advice(advise(rows=(), unadvised=()), job()).spent == 0


def test_a_recorded_trace_gives_the_sizes_of_its_step() -> None:
    """That of reports/recorded-job: DDP's three buckets; their bytes stand in the trace's lines."""
    folder = ROOT / "reports" / "runs" / "recorded-job"
    sizes = worth.load_sizes([folder])
    text = (folder / "rank-00000.jsonl").read_text()
    nbytes = {
        call["nbytes"] for call in _walk(map(json.loads, text.splitlines())) if "nbytes" in call
    }
    assert sizes.calls
    assert {(c.collective, c.n) for c in sizes.calls} == {("all_reduce", 2)}
    assert {c.nbytes for c in sizes.calls} <= nbytes
    assert sum(c.calls for c in sizes.calls) == 3
    by_files = worth.load_sizes(sorted(folder.glob("*.jsonl")))
    assert by_files.calls == sizes.calls


def _walk(values: object) -> list[dict[str, object]]:
    """All dicts within."""
    if isinstance(values, dict):
        return [values, *(found for value in values.values() for found in _walk(value))]
    if isinstance(values, (str, int, float, bool, type(None))):
        return []
    return [found for value in values for found in _walk(value)]  # type: ignore[attr-defined]


def test_a_recorded_run_a_step_file_and_a_name_do_as_well(tmp_path: Path) -> None:
    run = worth.load_sizes([ROOT / "reports" / "runs" / "training-step" / "ddp.jsonl"])
    assert sum(c.calls for c in run.calls) == 13  # buckets of GPT-2's DDP
    file = tmp_path / "step.toml"
    file.write_text(
        "world = 4\n[groups]\ntp = [[0, 1], [2, 3]]\n"
        '[[phase]]\nname = "forward"\nrepeat = 3\n'
        'ops = [{ kind = "all_reduce", bytes = 4096, dtype = "float", group = "tp" }]\n'
        '[[phase]]\nname = "end"\n'
        'ops = [{ kind = "all_gather", bytes = 4096, dtype = "float" }]\n'
        '[[phase]]\nname = "one"\nranks = "1"\n'
        'ops = [{ kind = "send", bytes = 8, dtype = "float", peer = 0 }]\n'
        '[[phase]]\nname = "two"\nranks = "0"\n'
        'ops = [{ kind = "recv", bytes = 8, dtype = "float", peer = 1 }]\n'
    )
    job = worth.load_sizes([file])
    assert (job.dtypes, job.has) == (("float",), ("of several groups at a time",))
    sizes = {(c.collective, c.n, c.nbytes): c.calls for c in job.calls}
    message = ("recv", 4, 8) if ("recv", 4, 8) in sizes else ("send", 4, 8)
    assert sizes == {("all_reduce", 2, 4096): 3, ("all_gather", 4, 4096): 1, message: 1}
    named = worth.load_sizes(["ddp:gpt2-124m"])
    assert {c.collective for c in named.calls} == {"all_reduce"}


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b'{"line":"run",', b"ranks,op,bytes\n"])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".toml", ""])
def test_what_is_no_trace_gets_one_line(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(content)
    with pytest.raises(CollbenchError) as error:
        worth.load_sizes([path])
    assert "\n" not in error.value.message


@pytest.mark.parametrize("name", ["nothing", "x" * 5000, "", "no/such/folder", "no such.toml"])
def test_what_is_not_there_gets_one_line(name: str) -> None:
    with pytest.raises(UsageError) as error:
        worth.load_sizes([name])
    assert "\n" not in error.value.message and error.value.hint
    with pytest.raises(UsageError):
        worth.load_sizes([])


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(UsageError, match="0 steps"):
        worth.load_sizes([ROOT / "reports" / "runs" / "libraries" / "open-mpi.jsonl"])
