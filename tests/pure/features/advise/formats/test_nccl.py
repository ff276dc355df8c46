"""Files of NCCL's tuners: what they say is what was advised, and each trap is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from advised import (
    ALL_REDUCE,
    DEFAULT,
    SIMPLE,
    advice,
    advise_by_chance,
    advise_nccl,
    flatten,
    others,
    unadvised,
)
from tuner_plugin import Said
from tuner_twin import ROW, TRAPS, Twin, list_whole

from collbench.core.errors import UsageError
from collbench.features.advise.formats import choose
from collbench.features.advise.formats.nccl import END, FORMATS, FUNCTIONS, LINE
from collbench.features.advise.libraries.nccl import name_choice
from collbench.features.advise.types import Advised, Series, Setting
from collbench.records.types import Choice

EXAMPLE, RCCL, NCCLX = FORMATS
SIZES = (65536, 1 << 20)
BELOW, ABOVE = 16384, 64 << 20


def advise_one(**changes: object) -> Advised:
    """all_reduce of 16 ranks at two sizes, and what NCCL chose for all else."""
    cells = [unadvised(BELOW), unadvised(ABOVE, ran=SIMPLE), *others()]
    return advise_nccl([advice(SIZES, high=1448154, **changes)], cells)  # type: ignore[arg-type]


def name_said(said: Said) -> str:
    return name_choice(said.algorithm, said.protocol, said.channels)


def list_edges(given: Advised, rules: list[object]) -> list[int]:
    """Every bound and its neighbours, and the measured sizes."""
    bounds = {bound for rule in rules for bound in (rule.low, rule.high or END)}  # type: ignore[attr-defined]
    bounds |= {each.cell.nbytes for each in given.unadvised}
    bounds |= {gain.nbytes for row in given.rows for gain in row.gains}
    edges = {bound + step for bound in bounds for step in (-1, 0, 1)}
    return sorted(size for size in edges if 0 <= size <= END)


@pytest.mark.parametrize("seed", range(40))
def test_the_plug_in_runs_what_the_rules_say_at_every_bound(seed: int) -> None:
    given = advise_by_chance(seed)
    assert EXAMPLE.refuse(given) == ""
    text = EXAMPLE.write(given)
    rules = EXAMPLE.read(text)
    series = given.unadvised[0].cell.series if given.unadvised else given.rows[0].series
    twin = Twin(text, series.n, series.nodes)
    for nbytes in list_edges(given, list(rules)):
        for collective in FUNCTIONS:
            here = Series(collective, series.n, series.nodes)
            assert name_said(twin.ask(collective, nbytes)) == choose(rules, here, nbytes)


@pytest.mark.parametrize("seed", range(40))
def test_each_advised_size_runs_its_setting_and_each_other_the_librarys(seed: int) -> None:
    given = advise_by_chance(seed)
    rules = EXAMPLE.read(EXAMPLE.write(given))
    for row in given.rows:
        for nbytes in (row.low, row.high, *(gain.nbytes for gain in row.gains)):
            assert choose(rules, row.series, nbytes) == row.name
    for each in given.unadvised:
        ran = each.default_ran
        assert ran is not None
        expected = name_choice(ran.algorithm, ran.protocol, 0)
        assert choose(rules, each.cell.series, each.cell.nbytes) == expected


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 1448154, 1448155, 4 << 30, END])
@pytest.mark.parametrize("collective", list(FUNCTIONS))
def test_no_size_of_any_collective_is_left_to_one_channel(collective: str, size: int) -> None:
    said = Twin(EXAMPLE.write(advise_one()), 16, 2).ask(collective, size)
    assert said.algorithm
    assert said.channels != 1


def test_where_nccl_cannot_follow_a_row_its_own_choice_stands_below() -> None:
    twin = Twin(EXAMPLE.write(advise_one()), 16, 2)
    assert twin.ask("all_reduce", SIZES[0]) == Said("Tree", "LL128", 0)
    assert twin.ask("all_reduce", SIZES[0], ("Tree", "LL128")) == Said("Ring", "LL", 0)


def test_a_setting_of_channels_has_those_that_it_had() -> None:
    env = tuple((name, "16") for name in ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"))
    setting = Setting(backend="nccl", env=(("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"), *env))
    ran = Choice(algorithm="Tree", protocol="LL128", channels=12)
    text = EXAMPLE.write(advise_one(setting=setting, ran=ran))
    assert Twin(text, 16, 2).ask("all_reduce", SIZES[0]).channels == 12


def test_a_setting_with_other_channels_at_other_sizes_has_several_rows() -> None:
    env = (("NCCL_ALGO", "Ring"), ("NCCL_MAX_CTAS", "32"), ("NCCL_PROTO", "Simple"))
    row = advice(SIZES, high=1448154, setting=Setting(backend="nccl", env=env))
    rans = tuple(msgspec.structs.replace(SIMPLE, channels=count) for count in (4, 32))
    given = advise_one()
    given = advise_nccl([msgspec.structs.replace(row, rans=rans)], given.unadvised)
    rules = EXAMPLE.read(EXAMPLE.write(given))[:2]
    assert [(rule.low, rule.high, rule.name) for rule in rules] == [
        (65536, 262144, "Ring/Simple x4"),
        (262145, 1448154, "Ring/Simple x32"),
    ]


def test_the_librarys_choice_below_advice_is_that_of_each_size() -> None:
    row = msgspec.structs.replace(advice(SIZES, high=1448154), default_rans=(DEFAULT, SIMPLE))
    given = advise_nccl([row], advise_one().unadvised)
    twin = Twin(EXAMPLE.write(given), 16, 2)
    cannot = ("Tree", "LL128")
    assert twin.ask("all_reduce", SIZES[0], cannot) == Said("Ring", "LL", 0)
    assert twin.ask("all_reduce", SIZES[1], cannot) == Said("Ring", "Simple", 0)


def test_a_choice_that_was_heard_at_one_size_of_a_row_is_not_taken_for_others() -> None:
    row = msgspec.structs.replace(advice(SIZES, high=1448154), default_rans=())
    assert "chooses for all_reduce" in EXAMPLE.refuse(advise_nccl([row], advise_one().unadvised))


def test_an_algorithm_alone_takes_the_protocol_that_was_heard() -> None:
    setting = Setting(backend="nccl", env=(("NCCL_ALGO", "Tree"),))
    ran = Choice(algorithm="Tree", protocol="LL", channels=4)
    text = EXAMPLE.write(advise_one(setting=setting, ran=ran))
    assert Twin(text, 16, 2).ask("all_reduce", SIZES[0]) == Said("Tree", "LL", 0)


def pin_channels(count: str) -> dict[str, object]:
    """A ring of so many channels, no fewer and no more."""
    env = [("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")]
    env += [(name, count) for name in ("NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS")]
    setting = Setting(backend="nccl", env=tuple(sorted(env)))
    return {"setting": setting, "ran": msgspec.structs.replace(SIMPLE, channels=int(count))}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
def test_more_channels_than_nccl_has_by_itself_are_refused(form: object) -> None:
    """NCCL_MIN_NCHANNELS makes more; what a tuner asks for is cut to what there is."""
    version = "RCCL 2.27.7" if form is RCCL else "NCCL 2.30.7"
    for count, is_refused in (("32", True), ("24", False)):  # as SIMPLE
        given = advise_one(**pin_channels(count))
        why = form.refuse(advise_nccl(given.rows, given.unadvised, version))  # type: ignore[attr-defined]
        assert ("not raise it: NCCL by itself said 24 at most" in why) == is_refused
        assert bool(why) == is_refused
    silent = [advice(SIZES, **pin_channels("8"), default_ran=None)]  # type: ignore[arg-type]
    why = form.refuse(advise_nccl(silent, version=version))  # type: ignore[attr-defined]
    assert "NCCL by itself did not say how many it has" in why


GB200 = "NVIDIA GB200"


def test_hosts_that_nvlink_may_join_are_any_number_of_nodes() -> None:
    given = msgspec.structs.replace(advise_one(), device=GB200)
    assert EXAMPLE.refuse(given) == ""
    text = EXAMPLE.write(given)
    for nodes in (1, 2):  # as NCCL counts two trays of one NVLink domain, and of two
        assert Twin(text, 16, nodes).ask("all_reduce", SIZES[0]) == Said("Tree", "LL128", 0)
    assert {(rule.n, rule.nodes) for rule in EXAMPLE.read(text)} == {(16, None)}
    assert "rows of several hosts hold on any number" in flatten(text)
    assert "--for nccl takes any number of nodes" in NCCLX.refuse(given)


@pytest.mark.parametrize(
    ("device", "is_joined"),
    [
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA B200", False),
        ("NVIDIA L40S", False),
        ("NVIDIA GB300", True),
        ("NVIDIA GH200 480GB", True),
        ("", True),
    ],
)
def test_nodes_are_hosts_for_gpus_whose_nvlink_ends_there(device: str, is_joined: bool) -> None:
    given = msgspec.structs.replace(advise_one(), device=device)
    rules = EXAMPLE.read(EXAMPLE.write(given))
    assert {rule.nodes for rule in rules} == {None if is_joined else 2}
    assert (NCCLX.refuse(given) != "") == is_joined
    more = [unadvised(size, ALL_REDUCE._replace(nodes=4), SIMPLE) for size in (1 << 10, 64 << 20)]
    more += others(16, 4)
    both = advise_nccl(given.rows, [*given.unadvised, *more], device=device)
    assert ("rows of 16 ranks on 2 hosts may hold on 4 hosts" in EXAMPLE.refuse(both)) == is_joined
    assert bool(EXAMPLE.refuse(both)) == is_joined


def add_nodes(given: Advised, nodes_by_hosts: dict[int, int]) -> Advised:
    """The advice where NCCL said on how many nodes it runs."""
    rows, cells = [], []
    for row in given.rows:
        nodes = nodes_by_hosts[row.series.nodes]
        rans = tuple(msgspec.structs.replace(ran, nodes=nodes) for ran in row.default_rans if ran)
        rows.append(msgspec.structs.replace(row, default_rans=rans))
    for cell in given.unadvised:
        nodes = nodes_by_hosts[cell.cell.series.nodes]
        ran = msgspec.structs.replace(cell.default_ran or Choice(), nodes=nodes)
        cells.append(cell._replace(default_ran=ran))
    return msgspec.structs.replace(given, rows=tuple(rows), unadvised=tuple(cells))


@pytest.mark.parametrize("nodes", [1, 2])
def test_nodes_are_those_that_nccl_says(nodes: int) -> None:
    """Two trays of one NVLink domain are one node, of two domains two."""
    given = add_nodes(msgspec.structs.replace(advise_one(), device=GB200), {2: nodes})
    for form in (EXAMPLE, NCCLX):
        assert form.refuse(given) == ""
        text = form.write(given)
        assert {(rule.n, rule.nodes) for rule in form.read(text)} == {(16, nodes)}
        assert "-1 nodes" not in flatten(text)


def test_rows_that_nccl_cannot_tell_apart_by_its_nodes_are_refused() -> None:
    cells = [unadvised(size, ALL_REDUCE._replace(nodes=4), SIMPLE) for size in (1 << 10, 64 << 20)]
    one = advise_one()
    cells = [*one.unadvised, *cells, *others(16, 4)]
    both = advise_nccl(one.rows, cells, device=GB200)
    assert EXAMPLE.refuse(add_nodes(both, {2: 1, 4: 2})) == ""
    why = EXAMPLE.refuse(add_nodes(both, {2: 1, 4: 1}))
    assert "rows of 16 ranks on 2 hosts may hold on 4 hosts" in why


def test_one_host_is_one_node_of_any_gpu() -> None:
    series = ALL_REDUCE._replace(n=4, nodes=1)
    cells = [unadvised(BELOW, series), unadvised(ABOVE, series, SIMPLE), *others(4, 1)]
    given = advise_nccl([advice(SIZES, series=series)], cells, device=GB200)
    assert {rule.nodes for rule in EXAMPLE.read(EXAMPLE.write(given))} == {1}


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (Setting(backend="nccl", env=(("NCCL_ALGO", "Tree"),)), "which algorithm and protocol"),
        (Setting(backend="nccl", env=(("NCCL_BUFFSIZE", "1"),)), "cannot set NCCL_BUFFSIZE"),
        (Setting(backend="torch_two_shot"), "no algorithm of NCCL"),
        (Setting(backend="nccl", algorithm="ring"), "no algorithm of NCCL"),
        (
            Setting(
                backend="nccl",
                env=(("NCCL_ALGO", "Tree"), ("NCCL_MAX_CTAS", "4"), ("NCCL_PROTO", "LL")),
            ),
            "how many channels",
        ),
    ],
)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
def test_settings_that_no_row_can_say_are_refused(form: object, setting: Setting, why: str) -> None:
    given = advise_one(setting=setting)
    if form is RCCL:
        given = advise_nccl(given.rows, given.unadvised, version="RCCL 2.27.7")
    assert why in form.refuse(given)  # type: ignore[attr-defined]


def test_a_collective_that_asks_no_tuner_is_refused() -> None:
    row = advice(SIZES, series=Series("all_to_all", 16, 2))
    assert "asks no tuner about all_to_all" in EXAMPLE.refuse(advise_nccl([row], others()))


@pytest.mark.parametrize("missing", [name for name in FUNCTIONS if name != "all_reduce"])
def test_collectives_whose_choice_is_unknown_are_named(missing: str) -> None:
    given = advise_one()
    cells = [each for each in given.unadvised if each.cell.series.collective != missing]
    why = EXAMPLE.refuse(advise_nccl(given.rows, cells))
    assert f"chooses for {missing} with 16 ranks on 2" in why
    assert "one channel" in why


@pytest.mark.parametrize("ran", [None, Choice(), Choice(transport="P2P")])
def test_one_size_without_a_heard_choice_is_one_too_many(ran: Choice | None) -> None:
    given = advise_one()
    cells = [*given.unadvised, unadvised(2 << 20, ran=ran)]
    assert "chooses for all_reduce" in EXAMPLE.refuse(advise_nccl(given.rows, cells))


@pytest.mark.parametrize(
    "ran",
    [
        Choice(algorithm="Symmetric", protocol="LDMC", channels=8),
        Choice(algorithm="CopyEngine"),
        Choice(algorithm="PAT", protocol="Simple"),
    ],
)
def test_kernels_that_ask_no_tuner_are_refused(ran: Choice) -> None:
    assert "for which it asks no tuner" in EXAMPLE.refuse(advise_one(default_ran=ran))


def test_libraries_do_not_take_each_others_files() -> None:
    given = advise_one()
    theirs = advise_nccl(given.rows, given.unadvised, version="RCCL 2.27.7")
    assert "--for rccl" in EXAMPLE.refuse(theirs)
    assert "--for rccl" in NCCLX.refuse(theirs)
    assert "--for nccl" in RCCL.refuse(given)


def test_nothing_measured_is_refused_and_no_advice_repeats_nccls_choices() -> None:
    assert "no collective was measured" in EXAMPLE.refuse(advise_nccl())
    given = advise_nccl([], [unadvised(BELOW), unadvised(ABOVE, ran=SIMPLE), *others()])
    assert EXAMPLE.refuse(given) == ""
    rules = EXAMPLE.read(EXAMPLE.write(given))
    assert {rule.name for rule in rules} == {"Ring/LL", "Ring/Simple"}


@pytest.mark.parametrize(
    ("sizes", "choices", "is_known"),
    [
        ((1 << 10, 64 << 20), (SIMPLE, SIMPLE), True),
        ((2 << 10, 64 << 20), (SIMPLE, SIMPLE), False),
        ((1 << 20, 64 << 20), (DEFAULT, SIMPLE), True),
        ((8, 32 << 20), (DEFAULT, SIMPLE), False),
        ((8, 64 << 20), (DEFAULT, DEFAULT), False),
        ((8, 1 << 30), (DEFAULT, DEFAULT), True),
    ],
)
def test_choices_go_on_only_from_where_they_no_longer_change(
    sizes: tuple[int, ...], choices: tuple[Choice, ...], is_known: bool
) -> None:
    cells = [unadvised(nbytes, ran=ran) for nbytes, ran in zip(sizes, choices, strict=True)]
    why = EXAMPLE.refuse(advise_nccl([], [*cells, *others()]))
    assert ("chooses for all_reduce" not in why) == is_known
    assert (why == "") == is_known


def test_rccls_own_choices_are_said_within_the_measured_sizes_only() -> None:
    cells = [unadvised(8192), unadvised(32768, ran=SIMPLE)]
    text = RCCL.write(advise_nccl([], cells, version="RCCL 2.27.7"))
    rules = [(rule.low, rule.high, rule.name) for rule in RCCL.read(text)]
    assert rules == [(8192, 16384, "Ring/LL"), (16385, 32768, "Ring/Simple")]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
def test_lines_are_short_and_in_ascii_whatever_runs_and_remarks_hold(form: object) -> None:
    given = advise_one()
    given = Advised(
        library="nccl",
        version="NCCL \x1b[31m\n" + "é" * 400,
        runs=("a\nallreduce,0,9,tree,ll,1,2,16", "y" * 900),
        day="2026-11-22",
        taus=(0.03, 0.05),
        rows=given.rows,
        unadvised=given.unadvised,
        notes=("#\r\n" * 9, "z, " * 300),
        device="NVIDIA H100",
    )
    text = form.write(given)  # type: ignore[attr-defined]
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100 < LINE
    assert form.read(text)  # type: ignore[attr-defined]
    assert [line[0] for line in text.split("\n") if line and line[0] not in "#abr"] == []


# the traps: what the plug-in makes of a line, and that it is refused


@pytest.mark.parametrize(("row", "size", "said"), TRAPS)
def test_each_trap_is_what_the_plug_in_does_and_is_refused(row: str, size: int, said: Said) -> None:
    text = list_whole(row)
    assert Twin(text, 16, 2).ask("all_reduce", size) == said
    with pytest.raises(UsageError, match=r"^line 1: "):
        EXAMPLE.read(text)


@pytest.mark.parametrize("rest", ["", "\r", " ", ",-1", ",-1,-1"])
def test_what_the_plug_in_reads_as_meant_is_taken(rest: str) -> None:
    text = list_whole(ROW.removesuffix(",-1,-1") + rest)
    assert choose(EXAMPLE.read(text), ALL_REDUCE, 65536) == "Tree/LL128 x16"
    assert Twin(text, 16, 2).ask("all_reduce", 65536) == Said("Tree", "LL128", 16)


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("", "no row for all_reduce of 0 bytes with any ranks"),
        ("# nothing\n", "no row for all_reduce of 0 bytes with any ranks"),
        (ROW, "no row for all_reduce of 0 bytes with 16 ranks"),
        (list_whole().replace("broadcast,0,", "broadcast,9,"), "no row for broadcast of 0 bytes"),
        (list_whole().replace(f"reduce,0,{END}", "reduce,0,100", 2), "of 101 bytes"),
        (list_whole(ROW.replace("2,16", "4,32")), "no row for all_reduce of 0 bytes with 32 ranks"),
    ],
)
def test_a_gap_is_one_channel_and_refused(text: str, gap: str) -> None:
    with pytest.raises(UsageError, match=gap):
        EXAMPLE.read(text)


def test_rows_for_any_rank_and_node_hold_for_all() -> None:
    text = list_whole("").replace(",2,16,", ",-1,-1,")
    assert choose(EXAMPLE.read(text), Series("reduce", 5, 5), 4 << 40) == "Ring/Simple"


def test_a_plug_in_of_another_number_of_ranks_gives_one_channel() -> None:
    assert Twin(EXAMPLE.write(advise_one()), 8, 1).ask("all_reduce", SIZES[0]) == Said(channels=1)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.key)
@pytest.mark.parametrize("text", ["\0", "{}", "a,b", ",,,,,,,,", "é" * 300, "\ud800,1", "[" * 99])
def test_garbage_gets_one_line(form: object, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        form.read(text)  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


def test_variables_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tuner.csv"
    assert EXAMPLE.use(path) == {
        "NCCL_TUNER_PLUGIN": "libnccl-tuner-example.so",
        "NCCL_TUNER_CONFIG_FILE": str(path),
    }
    assert RCCL.use(path) == {"NCCL_TUNER_CONFIG_FILE": str(path)}
    assert NCCLX.use(path) == {"NCCLX_TUNER_CONFIG_FILE": str(path)}
    with pytest.raises(UsageError, match="as JSON"):
        NCCLX.use(tmp_path / "tuner.json")


# RCCL


@pytest.mark.parametrize("seed", range(20))
def test_rccl_reads_what_was_advised(seed: int) -> None:
    given = advise_by_chance(seed, version="RCCL 2.27.7")
    assert RCCL.refuse(given) == ""
    rules = RCCL.read(RCCL.write(given))
    for row in given.rows:
        assert choose(rules, row.series, row.low) == choose(rules, row.series, row.high) == row.name


def test_rccl_keeps_its_own_number_by_minus_one_and_needs_no_other_rows() -> None:
    row = advice(SIZES, default_ran=None)
    given = advise_nccl([row], [unadvised(BELOW, ran=None)], version="RCCL 2.27.7")
    assert RCCL.refuse(given) == ""
    rows = [line for line in RCCL.write(given).splitlines() if line[0] != "#"]
    assert rows == ["allreduce,65536,1048576,tree,ll128,-1,2,16,-1,-1"]
    assert choose(RCCL.read("\n".join(rows)), ALL_REDUCE, BELOW) == ""


@pytest.mark.parametrize(
    "row",
    [
        ROW.replace("tree", "trees"),
        ROW.replace("ll128", " "),
        ROW.replace("16,2,16", "0,2,16"),
        ROW.replace("16,2,16", "-2,2,16"),
        "x" * 300,
    ],
)
def test_what_rccl_would_skip_is_refused(row: str) -> None:
    with pytest.raises(UsageError, match=r"^line 1: "):
        RCCL.read(row)


def test_rccl_without_rows_changes_nothing() -> None:
    given = advise_nccl([], [], version="RCCL 2.27.7")
    assert RCCL.refuse(given) == ""
    assert RCCL.read(RCCL.write(given)) == []


# NCCLX


@pytest.mark.parametrize("seed", range(20))
def test_ncclx_reads_what_was_advised_at_every_measured_size(seed: int) -> None:
    given = advise_by_chance(seed)
    assert NCCLX.refuse(given) == ""
    rules = NCCLX.read(NCCLX.write(given))
    for row in given.rows:
        n = row.series.n
        sizes = [gain.nbytes for gain in row.gains if gain.nbytes >= n]
        below = [each.high // n for each in given.rows if each.series == row.series]
        for nbytes in sizes:
            if nbytes // n not in [each for each in below if each < row.high // n]:
                assert choose(rules, row.series, nbytes) == row.name


@pytest.mark.parametrize(
    ("interval", "low", "high"),
    [
        ("5", 80, 95),
        ("*", 0, None),
        ("[0,8]", 0, 143),
        ("(1,)", 32, None),
        ("[2,9)", 32, 143),
        ("(,4]", 0, 79),
    ],
)
def test_intervals_are_bytes_a_rank_rounded_down(interval: str, low: int, high: int | None) -> None:
    (rule,) = NCCLX.read(f"allgather,{interval},ring,simple,-1,2,8\n")
    assert (rule.low, rule.high, rule.n, rule.nodes) == (low, high, 16, 2)


@pytest.mark.parametrize(
    "row",
    [
        "allgather,[9,1],ring,simple,-1,2,8",
        "allgather,[1;9],ring,simple,-1,2,8",
        "allgather,[1,9,ring,simple,-1,2,8",
        "allgather,,ring,simple,-1,2,8",
        "allgather,1,rings,simple,-1,2,8",
        "allgather,1,ring,simple,0,2,8",
        "allgather,1,ring,simple,x,2,8",
        "allgather,1,ring,simple,-1,[1,2],8",
        "allgather,1,ring,simple,-1,*,*",
        "allgather,1,ring,simple,-1,2",
        "allgather,1,ring,simple,-1,2,8,-5",
        "allgather,1,ring,simple,-1,2,8,5,5",
    ],
)
def test_what_keeps_ncclx_from_opening_is_refused(row: str) -> None:
    with pytest.raises(UsageError, match=r"^line 2: "):
        NCCLX.read(f"# a comment\n{row}\n")


def test_ncclx_needs_as_many_ranks_on_each_node() -> None:
    row = advice(SIZES, series=Series("all_reduce", 7, 2))
    assert "7 ranks on 2 nodes have no equal number" in NCCLX.refuse(advise_nccl([row]))


def test_default_of_a_series_is_spread_by_geometric_means() -> None:
    large = [unadvised(nbytes, ran=SIMPLE) for nbytes in (4096, 8192, 64 << 20)]
    cells = [unadvised(1024), *large, *others()]
    rows = [
        line
        for line in EXAMPLE.write(advise_nccl([], cells)).splitlines()
        if line.startswith("allreduce")
    ]
    assert rows == [
        "allreduce,0,2048,ring,ll,0,2,16,-1,-1",
        f"allreduce,2049,{END},ring,simple,0,2,16,-1,-1",
    ]
