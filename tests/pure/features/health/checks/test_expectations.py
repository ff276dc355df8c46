"""Curves of what machines reached elsewhere: what cannot be is refused, the rest are hints."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from factories import case, hosted, make_file, night, record, world

import collbench
from collbench.core.errors import UsageError
from collbench.features.health.checks import expectations
from collbench.features.health.checks.curves import Curve, load_curves, load_tables
from collbench.features.health.checks.hosts import CheckResult
from collbench.features.health.expect import nodes, power
from collbench.features.health.night import Night
from collbench.records.types import Choice, GpuState, Record, RunFile
from collbench.suite.case import Case

TODAY = date(2027, 1, 1)
CURVE = """
[[curve]]
device = "H200"
gpus = 8
link = 450
points = { "1M" = 40, "1G" = 300 }
source = "a log"
day = 2026-01-01
expires = 2028-01-01
"""
DEVICES = {"gpus": {"devices": [{"name": "NVIDIA H200"}] * 8}}
ROW = Case(collective="all_reduce", backend="nccl", n=8, nbytes=1 << 30, op="sum")


def load(tmp_path: Path, text: str) -> list[Curve]:
    path = tmp_path / "curves.toml"
    path.write_text(text)
    return load_curves(path)


def reaching(busbw: float, chose: Choice | None = None, row: Case = ROW, **fields: Any) -> RunFile:
    """Eight GPUs whose all_reduce of 1 GiB has this busbw in GB/s."""
    time = round(ROW.row.busbw(8) * ROW.size / busbw)

    def exact(record: Record) -> Record:
        return msgspec.structs.replace(
            record, times_ns=[time + i for i in range(-3, 4)], chose=chose
        )

    return night(
        rows=[row],
        change=exact,
        worlds={"n": 8, "ranks": hosted(8, 8, "cuda")},
        environment=DEVICES,
        **fields,
    )


def looked(file: RunFile, curves: list[Curve] | None = None, today: date = TODAY) -> CheckResult:
    return expectations.check_expectations(Night([file]), curves, today)


def test_the_curves_that_come_with_collbench_are_possible_and_say_where_from() -> None:
    curves = load_curves()
    assert len(curves) >= 15
    for curve in curves:
        assert curve.source and not curve.verified and curve.day < curve.expires
        assert max(curve.points.values()) <= curve.most


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ('"1G" = 300', '"1G" = 800'),
            "800 GB/s is above the 450 GB/s",
        ),  # as thresholds are found that were shipped
        (("link = 450", "link = 450\nnodes = 2"), "several nodes, and no rate of a NIC"),
        (("link = 450", "link = 450\nnodes = 2\nnic = 10"), "300 GB/s is above the 150 GB/s"),
        (("link = 450", 'link = 450\ncollective = "barrier"'), "no busbw"),
        (('points = { "1M" = 40, "1G" = 300 }', "points = {}"), "no points"),
        (('"1M" = 40', '"1M" = -40'), ">= 0|> 0|0"),
        (("gpus = 8", "gpu = 8"), "unknown field|gpu"),
        (("[[curve]]", "[[curve"), "curves.toml"),
        (('"1M"', '"lots"'), "'lots' is not a size"),
        (('"1M" = 40', '"0" = 40'), r"points.*: a size of 0 has no bandwidth"),
        (("gpus = 8", 'gpus = 8\nmachine = "a{99999999999}"'), r"machine: .*not a regular"),
        (('"H200"', '"a{99999999999}"'), r"device: .*not a regular"),
    ],
)
def test_a_curve_that_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        load(tmp_path, CURVE.replace(*change))


def test_a_switch_that_adds_up_may_exceed_the_wire(tmp_path: Path) -> None:
    fast = CURVE.replace('"1G" = 300', '"1G" = 480')
    with pytest.raises(UsageError, match="480 GB/s is above"):
        load(tmp_path, fast)
    (curve,) = load(tmp_path, fast + "switch = true\n")
    assert curve.most == pytest.approx(450 * 2 * 7 / 9)  # 2 (n-1) / (n+1)


def test_between_sizes_lines_in_logarithms_and_nothing_far_beyond(tmp_path: Path) -> None:
    (curve,) = load(tmp_path, CURVE)
    assert curve.at(1 << 20) == 40 and curve.at(1 << 30) == 300 and curve.at(1 << 31) == 300
    assert curve.at(1 << 25) == pytest.approx((40 * 300) ** 0.5)
    assert curve.at(1 << 19) is None and curve.at(1 << 32) is None


def test_far_below_is_a_hint_with_source_and_day_never_more(tmp_path: Path) -> None:
    curves = load(tmp_path, CURVE)
    assert not looked(reaching(290), curves).findings
    (found,) = looked(reaching(240), curves).findings
    assert found.severity == "hint" and "80%" in found.what
    assert "a log, noted 2026-01-01, not verified" in found.what and "EXPIRED" not in found.what


def test_an_old_curve_says_so(tmp_path: Path) -> None:
    seen = looked(reaching(240), load(tmp_path, CURVE), date(2028, 1, 2))
    assert "1 of them expired" in seen.note and "EXPIRED" in seen.findings[0].what


def test_what_the_library_ran_chooses_the_curve() -> None:
    """The figure of NVLS is held against what NVLS ran only."""
    ran = Choice(algorithm="NVLS", protocol="Simple")
    assert looked(reaching(400, ran)).findings and not looked(reaching(400)).findings


def test_other_machines_have_no_data_and_cpus_no_expectation() -> None:
    other = reaching(240)
    told = msgspec.structs.replace(
        other.run, environment={"gpus": {"devices": [{"name": "NVIDIA L4"}] * 8}}
    )
    assert "no figures are known" in looked(msgspec.structs.replace(other, run=told)).missing
    assert looked(night()).idle


@pytest.mark.parametrize("own", ["NVIDIA H200", "AMD H200 as torch has it"])
def test_gpus_have_the_name_that_ranks_give_them(tmp_path: Path, own: str) -> None:
    """As NVML and AMD SMI may call them otherwise, and a host may have others as well."""
    file = reaching(240)
    names = ["H200 OAM", "a display"]
    facts = {"gpus": {"devices": [{"name": name} for name in names]}}
    file = msgspec.structs.replace(
        file,
        run=msgspec.structs.replace(file.run, environment=facts),
        records=[
            msgspec.structs.replace(each, gpus=[GpuState(index=0, name=own)] * 8)
            for each in file.records
        ],
    )
    assert expectations.describe_machine(Night([file])).device == own
    assert len(looked(file, load(tmp_path, CURVE)).findings) == 1


@pytest.mark.parametrize(
    ("pattern", "expected"), [("H200", 0), ("^NVIDIA H200 MIG 1g.18gb$", 1), ("H200 MIG", 1)]
)
def test_a_slice_of_a_gpu_is_held_against_figures_of_slices_only(
    tmp_path: Path, pattern: str, expected: int
) -> None:
    slices = [GpuState(index=0, name="NVIDIA H200 MIG 1g.18gb")] * 8
    file = reaching(240)
    file = msgspec.structs.replace(
        file, records=[msgspec.structs.replace(each, gpus=slices) for each in file.records]
    )
    curves = load(tmp_path, CURVE.replace('"H200"', f'"{pattern}"'))
    assert len(looked(file, curves).findings) == expected


EXPECT = """
[[curve]]
machine = "^node"
gpus = 4
collective = "all_reduce"
points = { "1K" = 0.1, "64M" = 5 }
severity = "critical"
source = "acceptance test"
day = 2026-01-01
"""


def expected(tmp_path: Path, *changes: tuple[str, str], slower: float = 1.0) -> CheckResult:
    """What a table of an operator's own finds in a night of four CPU ranks on one host, whose
    all_reduce of 64 MiB has 6 GB/s of busbw, or so many times less."""
    text = EXPECT
    for change in changes:
        assert change[0] in text
        text = text.replace(*change)
    case = Case(collective="all_reduce", backend="gloo", n=4, nbytes=64 << 20, op="sum")
    time = round(case.row.busbw(4) * case.size / 6 * slower)

    def exact(record: Record) -> Record:
        return msgspec.structs.replace(record, times_ns=[time + i for i in range(-3, 4)])

    file = night(rows=[case], change=exact, worlds={"ranks": hosted(4, 4)})
    return looked(file, load(tmp_path, text))


def test_a_table_of_ones_own_is_held_against_cpus_too(tmp_path: Path) -> None:
    seen = expected(tmp_path)
    assert (list(seen.findings), seen.missing, seen.note[:6]) == ([], "", "1 rows")


@pytest.mark.parametrize("severity", ["hint", "warning", "critical"])
def test_below_it_is_a_finding_of_the_severity_it_says(tmp_path: Path, severity: str) -> None:
    seen = expected(tmp_path, ('"critical"', f'"{severity}"'), slower=2.0)
    (finding,) = seen.findings
    assert finding.severity == severity
    assert "60% of what is expected" in finding.what and "acceptance test" in finding.what


def test_the_share_that_suffices_is_its_own(tmp_path: Path) -> None:
    assert not expected(tmp_path, ("gpus", "share = 0.5\ngpus"), slower=2.0).findings
    assert expected(tmp_path, ("gpus", "share = 1.0\ngpus"), slower=1.25).findings


@pytest.mark.parametrize(
    "change",
    [
        ('"^node"', '"^other"'),
        ("gpus = 4", "gpus = 2"),
        ("gpus = 4", "gpus = 4\nnodes = 2"),
        ('"all_reduce"', '"all_gather"'),
        ('"64M" = 5', '"1M" = 5'),
        ("gpus", 'backend = "ring@gloo"\ngpus'),
        ("gpus", 'device = "H200"\ngpus'),
    ],
)
def test_rows_that_nothing_is_expected_of_are_no_pass(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    seen = expected(tmp_path, change, slower=2.0)
    assert seen.missing and not seen.findings


@pytest.mark.parametrize(
    ("points", "slower", "number"),
    [
        ('"1G" = 3', 2.0, 1),  # the lower curve says nothing of 64 MiB
        ('"32M" = 7, "64M" = 4', 1.6, 0),  # the higher one is the lower at 64 MiB
    ],
)
def test_of_several_curves_the_lowest_at_the_size_holds(
    tmp_path: Path, points: str, slower: float, number: int
) -> None:
    """3 or 3.75 GB/s at 64 MiB, where the first curve says 5."""
    other = EXPECT.replace('"1K" = 0.1, "64M" = 5', points)
    seen = expected(tmp_path, ("2026-01-01\n", f"2026-01-01\n{other}"), slower=slower)
    assert len(seen.findings) == number


@pytest.mark.parametrize("setting", ["NCCL_ALGO", "NCCL_PROTO"])
@pytest.mark.parametrize("backend", ["", 'backend = "nccl"'])
def test_a_row_whose_algorithm_was_forced_is_held_to_no_limit_of_the_librarys_choice(
    tmp_path: Path, setting: str, backend: str
) -> None:
    curves = load(tmp_path, f'{CURVE}severity = "critical"\n{backend}\n')
    free, forced = (
        msgspec.structs.replace(ROW, env=((name, "Tree"),)) for name in ("NCCL_DEBUG", setting)
    )
    assert [f.severity for f in looked(reaching(240, row=free), curves).findings] == ["critical"]
    seen = looked(reaching(240, row=forced), curves)
    assert (list(seen.findings), bool(seen.missing)) == ([], True)


def test_a_curve_in_the_shadow_of_a_lower_one_is_not_missing(tmp_path: Path) -> None:
    lower = EXPECT.replace('"64M" = 5', '"64M" = 4')
    seen = expected(tmp_path, ("2026-01-01\n", f"2026-01-01\n{lower}"))
    assert (seen.missing, seen.note[:6]) == ("", "1 rows")


def test_what_was_chosen_is_looked_up_once_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the rows, twice the keys that are made."""
    key, made, counts = Case.key, [], []
    monkeypatch.setattr(Case, "key", property(lambda case: made.append(1) or key.__get__(case)))
    for number in (10, 20):
        rows = [msgspec.structs.replace(ROW, nbytes=(1 << 20) + 4 * i) for i in range(number)]
        worlds = {"n": 8, "ranks": hosted(8, 8, "cuda")}
        seen = Night([night(rows=rows, worlds=worlds, environment=DEVICES)])
        made.clear()
        expectations.check_expectations(seen, load(tmp_path, CURVE), TODAY)
        counts.append(len(made))
    assert counts[1] == 2 * counts[0]


def test_a_curve_is_asked_once_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a curve that some rows say nothing of."""
    read, sizes = Curve.at, list[int]()
    monkeypatch.setattr(Curve, "at", lambda curve, size: sizes.append(size) or read(curve, size))
    other = EXPECT.replace('"64M" = 5', '"8K" = 1')
    seen = expected(tmp_path, ("2026-01-01\n", f"2026-01-01\n{other}"))
    assert "no row says anything of" in seen.missing and sizes == [64 << 20] * 2


def test_a_curve_that_no_row_says_anything_of_is_missing(tmp_path: Path) -> None:
    other = EXPECT.replace("all_reduce", "broadcast")
    seen = expected(tmp_path, ("2026-01-01\n", f"2026-01-01\n{other}"))
    assert "no row says anything of broadcast" in seen.missing


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (("gpus = 4", 'gpus = "4"'), "line 4, gpus", "Expected `int`"),
        (("gpus = 4", "ranks = 4"), "line 4, ranks", "unknown field"),
        (('"critical"', '"fatal"'), "line 7, severity: 'fatal' is not critical", "warning or hint"),
        (('"64M" = 5', '"64M" = "x"'), "line 6, points", "Expected `float`"),
        (('"64M"', '"lots"'), "line 6, points", "'lots' is not a size"),
        (('"^node"', '"("'), "line 3, machine", "not a regular expression"),
        (('machine = "^node"', ""), "line 2, device", "neither device nor machine"),
        (('"all_reduce"', '"all_produce"'), "line 5, collective", "no busbw"),
        (("source", "sauce"), "line 8, sauce", "unknown field"),
        (("[[curve]]", "[curve]"), "", "it has no [[curve]]"),
        (("= 4", "= = 4"), "", "line 4"),
    ],
)
def test_a_mistake_is_told_with_line_and_key(
    tmp_path: Path, change: tuple[str, str], place: str, reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        expected(tmp_path, change)
    assert place in caught.value.message and reason in caught.value.message


def test_a_mistake_has_no_place_of_the_library(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gpus: Expected `int`, got `str`$"):
        load(tmp_path, EXPECT.replace("gpus = 4", 'gpus = "4"'))


def test_a_missing_table_is_named_with_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml: no such file or folder$") as caught:
        load_tables(tmp_path / "absent.toml")
    assert "collbench expect learn" in caught.value.hint


def test_of_two_curves_of_a_table_the_lowest_limit_counts(tmp_path: Path) -> None:
    """Not that of the lowest busbw, where shares differ."""
    (low,) = load(tmp_path, CURVE)
    lax = msgspec.structs.replace(low, points={"1M": 44, "1G": 330}, share=0.5)
    for both in ([low, lax], [lax, low]):
        ((expected,),) = expectations.expect_case(both, {}, ROW, {8: (8, 1)})
        assert (expected.curve, expected.limit) == (lax, 165)


def test_the_line_is_that_of_the_second_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 13, gpus"):
        load(tmp_path, EXPECT + "\n" + EXPECT.replace("gpus = 4", "gpus = -4").lstrip())


def test_the_example_of_the_manual_is_one(tmp_path: Path) -> None:
    page = Path(collbench.__file__).parent / "cli" / "pages" / "acceptance.md"
    (block,) = (text for text in page.read_text().split("```toml\n") if "[[curve]]" in text)
    (curve,) = load(tmp_path, block.split("```")[0])
    assert (curve.n, curve.severity, curve.at(1 << 30)) == (8, "critical", 460)


def tables(tmp_path: Path, slower: float = 1.0, **texts: str) -> CheckResult:
    """What a folder of tables finds, by their names, in the night of ``expected``."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    case = Case(collective="all_reduce", backend="gloo", n=4, nbytes=64 << 20, op="sum")
    time = round(case.row.busbw(4) * case.size / 6 * slower)

    def exact(record: Record) -> Record:
        return msgspec.structs.replace(record, times_ns=[time + i for i in range(-3, 4)])

    file = night(rows=[case], change=exact, worlds={"ranks": hosted(4, 4)})
    return looked(file, load_tables(folder))


STRICTER = EXPECT.replace('"64M" = 5', '"64M" = 6.5').replace("acceptance test", "ours")


def test_the_strictest_of_several_tables_decides_and_is_named(tmp_path: Path) -> None:
    """Limits of 4.5 and 5.85 GB/s, and 5 are reached."""
    slow, differing = tables(tmp_path, 1.2, contract=EXPECT, ours=STRICTER).findings
    assert slow.severity == "critical" and "ours in ours.toml" in slow.what
    assert slow.check == "expected"
    assert differing.severity == "hint"


def test_a_row_that_tables_expect_different_things_of_is_told_with_files_and_sources(
    tmp_path: Path,
) -> None:
    (finding,) = tables(tmp_path, contract=EXPECT, ours=STRICTER).findings
    assert finding.subject.name.startswith("all_reduce 64 MiB")
    assert "ours.toml asks for 5.85 GB/s, 30% more than contract.toml" in finding.what
    assert [proof.what for proof in finding.evidence] == [
        "ours.toml (ours): least busbw",
        "contract.toml (acceptance test): least busbw",
    ]


@pytest.mark.parametrize(("rate", "number"), [("5.2", 0), ("5.3", 1)])
def test_limits_within_five_percent_agree(tmp_path: Path, rate: str, number: int) -> None:
    other = EXPECT.replace('"64M" = 5', f'"64M" = {rate}')
    assert len(tables(tmp_path, contract=EXPECT, ours=other).findings) == number


def test_tables_of_another_severity_do_not_contradict(tmp_path: Path) -> None:
    """6 GB/s are reached, and both are met."""
    hint = STRICTER.replace('"critical"', '"hint"')
    assert not tables(tmp_path, contract=EXPECT, ours=hint).findings


def test_a_folder_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no table"):
        tables(tmp_path)


def test_a_mistake_in_a_folder_is_told_with_file_line_and_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ours\.toml: line 4, gpus: "):
        tables(tmp_path, contract=EXPECT, ours=EXPECT.replace("gpus = 4", "gpus = -4"))


def test_no_table_says_itself_which_file_it_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 2, file: .*unknown field `file`"):
        load(tmp_path, EXPECT.replace("[[curve]]", '[[curve]]\nfile = "x"').lstrip())


def test_a_share_by_size_holds_between_its_sizes(tmp_path: Path) -> None:
    text = EXPECT.replace("gpus", 'share = { "1K" = 0.5, "1M" = 0.9 }\ngpus')
    (curve,) = load(tmp_path, text)
    at = [curve.share_at(size) for size in (1, 1 << 10, 1 << 15, 1 << 20, 1 << 26)]
    assert at == pytest.approx([0.5, 0.5, 0.7, 0.9, 0.9])
    assert curve.limit_at(1 << 26) == pytest.approx(0.9 * 5)


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        ("{}", "it has no sizes"),
        ('{ "lots" = 0.5 }', "'lots' is not a size"),
        ('{ "1K" = 1.5 }', "<= 1"),
        ("[0.5]", "got `array`"),
        ("0", "> 0|>= 0"),
    ],
)
def test_a_share_that_cannot_be_is_told(tmp_path: Path, share: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        load(tmp_path, EXPECT.replace("gpus", f"share = {share}\ngpus"))
    assert "share" in caught.value.message


def without_busbw(tmp_path: Path, *others: Case) -> RunFile:
    """Three launches of an all_to_allv of 64 MiB, whose split file is gone, and of other rows."""
    matrix = tmp_path / "gone.txt"
    rows = [case(64 << 20, "all_to_allv", splits=f"matrix:{matrix}"), *others]
    records = [record(row, world=place) for place in range(3) for row in rows]
    worlds = [world(index=place, ranks=hosted(4, 4)) for place in range(3)]
    return make_file(records, worlds)


CRITICAL = EXPECT.replace("all_reduce", "all_to_allv")


def test_a_row_without_a_busbw_is_no_pass(tmp_path: Path) -> None:
    file, curves = without_busbw(tmp_path), load(tmp_path, CRITICAL)
    seen = looked(file, curves)
    assert (list(seen.findings), seen.missing) == ([], "1 row without a busbw")
    (tmp_path / "gone.txt").write_text(f"{16 << 20} {16 << 20} {16 << 20} {16 << 20}\n" * 4)
    assert not looked(file, curves).missing


def test_a_curve_whose_rows_have_no_busbw_is_missing(tmp_path: Path) -> None:
    file = without_busbw(tmp_path, case(64 << 20))
    seen = looked(file, load(tmp_path, EXPECT + CRITICAL))
    assert "1 row without a busbw" in seen.note
    assert "no row says anything of all_to_allv" in seen.missing


def test_no_power_is_told_of_rows_without_a_busbw(tmp_path: Path) -> None:
    node = nodes.describe_node(Night([without_busbw(tmp_path, case(64 << 20))]))
    rows = power.select_rows(load(tmp_path, EXPECT + CRITICAL), node, ("critical",))
    assert [row.collective for row in rows] == ["all_reduce"]
