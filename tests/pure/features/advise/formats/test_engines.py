"""Tables of inference engines: one size per kernel where it wins from the bottom up, and entries of
which all shapes are advised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from advised import advice, advise_nccl, gain, unadvised

from collbench.core.errors import UsageError
from collbench.features.advise.formats import choose
from collbench.features.advise.formats.engines import FORMATS, Entry, find_capability
from collbench.features.advise.types import Advice, Advised, Cell, Crossing, Series, Setting

VLLM, SGLANG, TRT = FORMATS
CUTS = (VLLM, SGLANG)
EIGHT = Series("all_reduce", 8, 1)
FOUR = Series("all_reduce", 4, 1)
KIB, MIB = 1 << 10, 1 << 20
SMALL = (8 * KIB, 16 * KIB, 32 * KIB)


def kernel_row(
    kernel: str, sizes: tuple[int, ...], series: Series = EIGHT, **changes: Any
) -> Advice:
    return advice(sizes, series=series, setting=Setting(backend=kernel), **changes)


def won(kernel: str = "torch_multimem", series: Series = EIGHT, **changes: Any) -> Advised:
    """The kernel wins at the three smallest sizes of four."""
    row = kernel_row(kernel, SMALL, series, high=45 * KIB, **changes)
    return advise_nccl([row], [unadvised(64 * KIB, series)])


def read_ends(form: Any, given: Advised) -> list[tuple[int | None, int | None, str]]:
    return [(rule.n, rule.high, rule.name) for rule in form.read(form.write(given))]


@pytest.mark.parametrize(
    ("device", "capability"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA H200", (9, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA B200", (10, 0)),
        ("NVIDIA GB200", (10, 0)),
        ("NVIDIA B300 SXM6 AC", (10, 3)),
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA GeForce RTX 4090", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_gpus_are_known_by_their_names(device: str, capability: tuple[int, int] | None) -> None:
    assert find_capability(advise_nccl(device=device)) == capability


@pytest.mark.parametrize("form", CUTS, ids=lambda form: form.key)
@pytest.mark.parametrize(
    ("series", "kernel"),
    [
        (EIGHT, "torch_multimem"),
        (FOUR, "torch_multimem"),
        (Series("all_reduce", 2, 1), "torch_two_shot"),
    ],
)
def test_a_kernel_that_wins_from_the_bottom_gets_its_size(
    form: Any, series: Series, kernel: str
) -> None:
    given = won(kernel, series)
    assert form.refuse(given) == ""
    assert read_ends(form, given) == [(series.n, 32 * KIB, kernel)]
    rules = form.read(form.write(given))
    assert choose(rules, series, 32 * KIB) == kernel
    assert choose(rules, series, 64 * KIB) == ""


@pytest.mark.parametrize(
    ("lo", "end"),
    [(33_000.5, 33_000), (40_003.0, 40_000), (60_000.0, 45 * KIB), (20_000.0, 32 * KIB)],
)
def test_the_size_is_the_sure_end_of_the_cross_over(lo: float, end: int) -> None:
    given = won(above=Crossing(lo, 70_000.0))
    assert read_ends(VLLM, given) == [(8, end, "torch_multimem")]


@pytest.mark.parametrize("form", CUTS, ids=lambda form: form.key)
def test_a_kernel_that_loses_at_the_smallest_size_is_refused(form: Any) -> None:
    given = won()
    given = msgspec.structs.replace(given, unadvised=(unadvised(4 * KIB, EIGHT),))
    assert "does not win from the smallest measured size of 8 ranks" in form.refuse(given)


def test_where_another_kernel_is_advised_the_engines_may_win_all_the_same() -> None:
    rows = [kernel_row("torch_one_shot", SMALL[:2]), kernel_row("torch_multimem", SMALL[2:] * 2)]
    rivals = {Cell(EIGHT, size): {"torch_multimem": gain(size)} for size in SMALL[:2]}
    given = advise_nccl(rows, [unadvised(64 * KIB, EIGHT)], rivals=rivals)
    assert read_ends(VLLM, given) == [(8, 32 * KIB, "torch_multimem")]
    unsure = {Cell(EIGHT, size): {"torch_multimem": gain(size, lo=-0.01)} for size in SMALL[:2]}
    assert "does not win" in VLLM.refuse(advise_nccl(rows, rivals=unsure))
    doubt = "flagged throttled"
    flagged = {
        Cell(EIGHT, size): {"torch_multimem": msgspec.structs.replace(gain(size), doubt=doubt)}
        for size in SMALL[:2]
    }
    assert "does not win" in VLLM.refuse(advise_nccl(rows, rivals=flagged))
    by_chance = {Cell(EIGHT, size): {"torch_multimem": gain(size, p=0.2)} for size in SMALL[:2]}
    assert "does not win" in VLLM.refuse(advise_nccl(rows, rivals=by_chance))


@pytest.mark.parametrize("form", CUTS, ids=lambda form: form.key)
def test_another_kernel_than_the_engine_runs_is_refused(form: Any) -> None:
    given = won("torch_one_shot")
    assert "is of torch_multimem, which the engine runs there" in form.refuse(given)


def test_sglangs_four_gpus_of_blackwell_need_both_kernels() -> None:
    given = msgspec.structs.replace(won("torch_multimem", FOUR), device="NVIDIA B200")
    assert "torch_two_shot" in SGLANG.refuse(given)
    both = [*given.rows, kernel_row("torch_two_shot", SMALL[:2] + SMALL[2:], FOUR)]
    rivals = {Cell(FOUR, size): {"torch_two_shot": gain(size)} for size in SMALL[:2]}
    given = msgspec.structs.replace(given, rows=tuple(both), rivals=rivals)
    assert read_ends(SGLANG, given) == [(4, 32 * KIB, "torch_multimem or torch_two_shot")]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"library": "openmpi"}, "had another default"),
        ({"backend": "gloo"}, "had another default"),
        ({"version": "RCCL 2.27.7"}, "RCCL's"),
        ({"device": ""}, "unknown is none that they have"),
        ({"device": "NVIDIA L4"}, "NVIDIA L4 is none that they have"),
    ],
)
def test_advice_about_something_else_is_refused(
    form: Any, changes: dict[str, Any], why: str
) -> None:
    assert why in form.refuse(msgspec.structs.replace(won(), **changes))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
@pytest.mark.parametrize("dtypes", [("float",), ("bfloat16", "float"), ("half",), ()])
def test_times_of_another_datatype_than_the_engine_runs_are_refused(
    form: Any, dtypes: tuple[str, ...]
) -> None:
    rows = [
        kernel_row("torch_multimem", SMALL, high=45 * KIB),
        kernel_row("torch_one_shot", (8 * KIB, 256 * KIB), FOUR),
    ]
    assert form.refuse(advise_nccl(rows)) == ""
    why = form.refuse(advise_nccl(rows, dtypes=dtypes))
    if form is TRT and dtypes == ("half",):
        assert why == ""
    else:
        measured = dtypes[-1] if dtypes else "an unknown datatype"
        assert f"only, and these runs are of {measured}: measure with -d bfloat16" in why


@pytest.mark.parametrize("form", CUTS, ids=lambda form: form.key)
@pytest.mark.parametrize(
    "series", [Series("all_reduce", 8, 2), Series("all_gather", 8, 1)], ids=lambda each: each[0]
)
def test_several_hosts_and_other_collectives_have_no_table(form: Any, series: Series) -> None:
    assert "no all_reduce on one host" in form.refuse(won(series=series))


@pytest.mark.parametrize("form", CUTS, ids=lambda form: form.key)
def test_gpus_without_a_switch_have_no_table(form: Any) -> None:
    given = msgspec.structs.replace(won(), device="NVIDIA A100-SXM4-80GB")
    assert "lacks 8 ranks of NVIDIA A100" in form.refuse(given)


def test_settings_with_variables_are_no_kernel_that_an_engine_runs() -> None:
    setting = Setting(backend="torch_multimem", env=(("X", "1"),))
    row = advice(SMALL, series=EIGHT, setting=setting)
    assert "no row for 8 ranks" in VLLM.refuse(advise_nccl([row]))


def test_lines_are_assignments_to_the_engines_tables() -> None:
    lines = [line for line in VLLM.write(won()).splitlines() if line[0] != "#"]
    assert lines == ['SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault("9.0", {})[8] = 32772']
    lines = [line for line in SGLANG.write(won()).splitlines() if line[0] != "#"]
    assert lines == ["TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault(9, {})[8] = 32772"]
    tables: dict[str, dict[str, dict[int, int]]] = {
        "SYMM_MEM_ALL_REDUCE_MAX_SIZES": {"9.0": {2: 1}}
    }
    exec(VLLM.write(won()), tables)
    assert tables["SYMM_MEM_ALL_REDUCE_MAX_SIZES"] == {"9.0": {2: 1, 8: 32772}}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
def test_nothing_advised_is_a_file_that_changes_nothing(form: Any) -> None:
    assert form.refuse(advise_nccl(device="NVIDIA L4", dtypes=("float",))) == ""
    assert form.read(form.write(advise_nccl())) == []
    assert form.read("") == []
    assert form.use(Path("table.py")) == {}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "SYMM_MEM_ALL_REDUCE_MAX_SIZES = {}",
        'SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault("9.0", {})[8] = 64 * MiB',
        'SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault("9.0", {})[8] = 4',
        'SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault("9.9", {})[8] = 4096',
        'SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault("9.0", {})[1] = 4096',
        "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault(8, {})[8] = 4096",
        'TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault("9", {})[8] = 4096',
        "AllReduceBestStrategyTableSM90[0][1][0][0] = 4;",
        "AllReduceBestStrategyTableSM90[3][0][0][0] = 4;",
        "AllReduceBestStrategyTableSM90[0][0][7][0] = 4;",
        "AllReduceBestStrategyTableSM90[0][0][0][15] = 4;",
        "AllReduceBestStrategyTableSM90[0][0][0][0] = 8;",
        "AllReduceBestStrategyTableSM90[0][0][0] = 4;",
        "\0",
        "x" * 10_000,
    ],
)
def test_lines_that_collbench_does_not_write_get_one_line(form: Any, line: str) -> None:
    with pytest.raises(UsageError, match=r"^line 2: ") as caught:
        form.read(f"\n{line}\n")
    assert "\n" not in str(caught.value)


def test_a_later_line_is_the_one_that_counts() -> None:
    lines = VLLM.write(won()) + 'SYMM_MEM_ALL_REDUCE_MAX_SIZES.setdefault("9.0", {})[8] = 4096\n'
    assert [rule.high for rule in VLLM.read(lines)] == [4092]


# TensorRT-LLM


def list_shapes(entry: Entry) -> list[tuple[int, int]]:
    """Corners of an entry's shapes: hidden size and tokens."""
    hidden, tokens = 1 << entry.hidden, 1 << entry.tokens
    return [(h, t) for h in (hidden, 2 * hidden - 1) for t in (tokens, 2 * tokens - 1)]


def look_up(text: str, n: int, hidden: int, tokens: int) -> int:
    """The strategy that TensorRT-LLM finds after these assignments, 0 where none set it: it cuts
    the logarithms."""
    place = f"[{n.bit_length() - 2}][0][{hidden.bit_length() - 8}][{tokens.bit_length() - 1}] = "
    found = [line for line in text.splitlines() if place in line and line[0] != "/"]
    return int(found[-1].split(" = ")[1].split(";")[0]) if found else 0


@pytest.mark.parametrize(("kernel", "code"), [("torch_one_shot", 4), ("torch_two_shot", 5)])
@pytest.mark.parametrize(("low", "high"), [(8 * KIB, 256 * KIB), (3000, 77_777), (256, 64 * MIB)])
def test_each_shape_that_gets_a_strategy_is_advised(
    kernel: str, code: int, low: int, high: int
) -> None:
    row = kernel_row(kernel, (low, high), FOUR)
    given = advise_nccl([row])
    assert TRT.refuse(given) == ""
    text = TRT.write(given)
    rules = TRT.read(text)
    found = 0
    for hidden in range(7, 14):
        for tokens in range(15):
            for shape in list_shapes(Entry(hidden, tokens)):
                strategy = look_up(text, 4, *shape)
                nbytes = 2 * shape[0] * shape[1]
                if strategy:
                    found += 1
                    assert strategy == code
                    assert low <= nbytes <= high
                    assert choose(rules, FOUR, nbytes) == kernel
                    assert kernel == "torch_one_shot" or shape[1] >= 4
    assert found


def test_another_kernel_than_its_strategies_is_refused() -> None:
    assert "no row is of torch_one_shot or torch_two_shot" in TRT.refuse(won())


def test_a_row_narrower_than_an_entry_is_refused() -> None:
    row = kernel_row("torch_one_shot", (8 * KIB, 12 * KIB), FOUR)
    assert "four times the size" in TRT.refuse(advise_nccl([row]))


def test_blackwell_has_a_table_of_its_own_and_older_gpus_share_hoppers() -> None:
    row = kernel_row("torch_one_shot", (8 * KIB, 256 * KIB), FOUR)
    for device, table in (("B200", "SM100"), ("H200", "SM90"), ("A100", "SM90")):
        text = TRT.write(advise_nccl([row], device=f"NVIDIA {device}"))
        assert f"AllReduceBestStrategyTable{table}[1][0]" in text
