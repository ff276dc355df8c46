"""Open MPI's settings, and its file of rules: written, and read as the library does, by mistakes
too."""

from __future__ import annotations

from pathlib import Path

import pytest
from advised import advised, assert_misread, find_differences, flatten, row, some_rows
from factories import world
from hypothesis import given, settings

from collbench.core.errors import UsageError
from collbench.features.advise.formats import Rule, choose
from collbench.features.advise.formats.openmpi import FORMATS
from collbench.features.advise.libraries.openmpi import DYNAMIC, FUNCTIONS, LIBRARY, PREFIX
from collbench.features.advise.types import Series, Setting, Variables

(FORMAT,) = FORMATS
COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "all_to_all", "reduce", "reduce_scatter")
ON = (DYNAMIC, "1")


def forced(word: str, value: str, *more: tuple[str, str]) -> Variables:
    return tuple(sorted([(f"{PREFIX}{word}_algorithm", value), *more, ON]))


@given(some_rows(LIBRARY, COLLECTIVES))
@settings(max_examples=60, deadline=None)
def test_what_is_read_back_chooses_the_rows_and_nothing_else(rows) -> None:
    assert find_differences(LIBRARY, FORMAT, rows) == []


def test_every_setting_is_reduced_to_itself_and_has_a_name_of_its_own() -> None:
    for collective in FUNCTIONS:
        for n in (2, 3, 4, 8, 64):
            listed = LIBRARY.list_settings(collective, n, "5.0.11")
            assert len(listed) < 10
            assert [LIBRARY.reduce(collective, env) for env in listed] == list(listed)
            made = [Setting(backend="mpi", env=env) for env in listed]
            assert len({LIBRARY.name_setting(collective, one) for one in made}) == len(listed)
            for one, env in zip(made, listed, strict=True):
                name = LIBRARY.name_setting(collective, one)
                text = FORMAT.write(advised(LIBRARY, [row(LIBRARY, collective, n, 0, 64, env)]))
                assert choose(FORMAT.read(text), Series(collective, n, 1), 0) == name


def test_algorithms_for_two_ranks_are_tried_by_two_only() -> None:
    for n in (2, 3, 4):
        names = set(LIBRARY.list_settings("all_to_all", n, ""))
        assert (forced("alltoall", "5") in names) == (n == 2)


@pytest.mark.parametrize(
    ("collective", "env", "reduced"),
    [
        ("all_reduce", (ON,), ()),
        ("all_reduce", forced("bcast", "6"), ()),
        ("all_reduce", forced("allreduce", "0"), ()),
        ("all_reduce", forced("allreduce", "ignore"), ()),
        ("all_reduce", forced("allreduce", "ring"), forced("allreduce", "4")),
        ("all_reduce", forced("allreduce", "4", ("UCX_TLS", "tcp")), None),
        ("all_reduce", (("UCX_TLS", "tcp"), ON), (("UCX_TLS", "tcp"),)),
        ("all_reduce", ((f"{PREFIX}allreduce_algorithm", "4"), (DYNAMIC, "0")), ()),
        (  # segments of an algorithm that has none
            "all_reduce",
            forced("allreduce", "4", (f"{PREFIX}allreduce_algorithm_segmentsize", "8192")),
            forced("allreduce", "4"),
        ),
        (  # reduces and broadcasts by whatever is set for those
            "all_reduce",
            forced("allreduce", "2", (f"{PREFIX}reduce_algorithm", "3")),
            None,
        ),
        ("reduce_scatter", forced("reduce", "3"), None),  # which the library's choice may call
        ("reduce_scatter", forced("reduce_scatter", "3"), ()),  # of another function
        ("sendrecv", forced("bcast", "6"), ()),
    ],
)
def test_only_what_bears_on_a_collective_stays(collective, env, reduced) -> None:
    assert LIBRARY.reduce(collective, env) == (env if reduced is None else reduced)


def test_settings_are_named_in_the_librarys_words() -> None:
    def name(collective: str, env: Variables, algorithm: str = "native") -> str:
        setting = Setting(backend="mpi", env=env, algorithm=algorithm)
        return LIBRARY.name_setting(collective, setting)

    assert name("all_reduce", forced("allreduce", "3")) == "recursive_doubling"
    segment = (f"{PREFIX}bcast_algorithm_segmentsize", "131072")
    assert name("broadcast", forced("bcast", "3", segment)) == "pipeline/128K"
    fanout = (f"{PREFIX}bcast_algorithm_chain_fanout", "2")
    assert name("broadcast", forced("bcast", "2", fanout)) == "chain/x2"
    assert name("broadcast", (("UCX_TLS", "tcp"),)) == "UCX_TLS=tcp"
    assert name("broadcast", (), "ring") == "ring@mpi"
    assert name("broadcast", ()) == "default"


def test_it_is_told_by_what_its_worlds_say() -> None:
    assert LIBRARY.is_of(world(backend="mpi", library="Open MPI 5.0.11"))
    assert not LIBRARY.is_of(world(backend="mpi", library="MPICH 5.0.2"))
    assert not LIBRARY.is_of(world(backend="gloo", library="Open MPI 5.0.11"))


def test_rules_for_fewer_and_more_ranks_leave_the_choice_to_the_library() -> None:
    text = FORMAT.write(
        advised(LIBRARY, [row(LIBRARY, "all_reduce", 4, 8, 64, forced("allreduce", "4"))])
    )
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "1 # collectives",
        "2 # all_reduce",
        "3 # numbers of ranks",
        *("0 # ranks", "1 # size", "0 0 0 0"),
        *("4 # ranks", "3 # sizes", "0 0 0 0", "8 4 0 0", "65 0 0 0"),
        *("5 # ranks", "1 # size", "0 0 0 0"),
    ]
    assert (
        "all_reduce, 4 ranks, 8 B to 64 B: ring, 14.0% less time [9.0%, 18.0%], 6 launches a"
        " side, measured 2026-11-28"
    ) in flatten(text)


def test_a_chain_has_the_fan_out_that_variables_give_it() -> None:
    text = FORMAT.write(
        advised(LIBRARY, [row(LIBRARY, "broadcast", 4, 8, 64, forced("bcast", "2"))])
    )
    assert "8 2 4 0" in text.splitlines()


def head_of(*collectives: tuple[str, str], n: int = 4, nodes: int = 1) -> str:
    rows = [
        row(LIBRARY, name, n, 8, 64, forced(word, "3"), nodes=nodes) for name, word in collectives
    ]
    return flatten(FORMAT.write(advised(LIBRARY, rows)))


def test_files_tell_what_calls_in_place_must_give() -> None:
    told = "MPI_Allgather in place must give sendcount and sendtype as for receiving, on all ranks"
    assert told in head_of(("all_gather", "allgather"))
    assert "in place must" not in head_of(("all_to_all", "alltoall"), ("all_reduce", "allreduce"))


def test_files_tell_which_functions_of_the_librarys_choice_rows_change() -> None:
    told = "Rows of reduce also change what calls it where the library chooses: "
    own = "MPI_Reduce_scatter, MPI_Reduce_scatter_block."
    assert f"{told}{own}" in head_of(("reduce", "reduce"), n=64)
    assert f"{told}MPI_Allreduce, {own}" in head_of(("reduce", "reduce"), n=128)
    assert "library chooses: " not in head_of(("all_gather", "allgather"))


def test_rows_of_one_host_are_told_not_to_hold_on_several() -> None:
    assert "coll_han, not coll_tuned" in head_of(("all_reduce", "allreduce"))
    assert "coll_han" not in head_of(("all_reduce", "allreduce"), nodes=2)


def test_no_rows_are_a_file_of_no_rules() -> None:
    text = FORMAT.write(advised(LIBRARY, []))
    assert FORMAT.read(text) == []
    assert text.splitlines()[-1] == "0 # collectives"


def test_the_library_reads_it_by_two_variables() -> None:
    assert FORMAT.use(Path("a.conf")) == {
        DYNAMIC: "1",
        f"{PREFIX}dynamic_rules_filename": "a.conf",
    }


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("all_to_allv", 4, forced("alltoallv", "2"))], "compares no size of all_to_allv"),
        ([("scan", 4, forced("scan", "2"))], "compares no size of scan"),
        ([("scatter", 4, forced("scatter", "2"))], "hang"),
        ([("gather", 4, forced("gather", "2"))], "hang"),
        ([("sendrecv", 4, (("UCX_TLS", "tcp"),))], "rules have no UCX_TLS"),
        ([("all_reduce", 4, (("UCX_TLS", "tcp"),))], "rules have no UCX_TLS"),
        ([("all_reduce", 4, forced("allreduce", "9"))], "no algorithm algorithm 9"),
        (
            [("all_reduce", 4, forced("allreduce", "2")), ("reduce", 4, forced("reduce", "3"))],
            "nonoverlapping of all_reduce calls reduce",
        ),
    ],
)
def test_what_rules_cannot_say_is_refused(rows, reason: str) -> None:
    made = advised(LIBRARY, [row(LIBRARY, name, n, 8, 64, env) for name, n, env in rows])
    assert reason in FORMAT.refuse(made)
    with pytest.raises(UsageError):
        FORMAT.write(made)


def test_hosts_and_overlaps_are_refused() -> None:
    env = forced("allreduce", "4")
    hosts = [row(LIBRARY, "all_reduce", 4, 8, 64, env, nodes=nodes) for nodes in (1, 2)]
    assert "hosts" in FORMAT.refuse(advised(LIBRARY, hosts))
    twice = [row(LIBRARY, "all_reduce", 4, low, 64, env) for low in (8, 64)]
    assert "overlap at 64 bytes" in FORMAT.refuse(advised(LIBRARY, twice))
    own = row(LIBRARY, "all_reduce", 4, 8, 64, (), algorithm="ring")
    assert FORMAT.refuse(advised(LIBRARY, [own]))
    other = row(LIBRARY, "all_reduce", 4, 8, 64, env, backend="gloo")
    assert "backend gloo" in FORMAT.refuse(advised(LIBRARY, [other]))


# one collective, one number of ranks, sizes
START = "1\n2\n1\n2\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "the file ends before the number of collectives"),
        ("# nothing\n", 1, "the file ends before the number of collectives"),
        ("rule-file-version-3\n0\n", 1, "is no version"),
        ("rule-file-version-x\n0\n", 1, "is no version"),
        ("one\n", 1, "'one' is not the number of collectives, a decimal number"),
        ("23\n", 1, "23 is too much"),
        ("99999999999999999999\n", 1, "is not the number of collectives"),
        ("1\n22\n", 2, "22 is too much"),
        ("1\n5\n", 2, "has no collective 5"),
        ("1\n2\n1\n99999999999\n", 4, "99999999999 is too much for a number of ranks"),
        (START + "1\n8 4 0 0\n", 6, "the first size is not 0"),
        (START + "2\n0 4 0 0\n0 3 0 0\n", 7, "size 0 comes after 0"),
        (START + "3\n0 4 0 0\n64 3 0 0\n8 2 0 0\n", 8, "size 8 comes after 64"),
        (START + "1\n0 7 0 0\n", 6, "7 is too much for an algorithm of all_reduce, at most 6"),
        (START + "1\n0 -1 0 0\n", 6, "'-1' is not an algorithm"),
        (START + "1\n0 010 0 0\n", 6, "'010' is not an algorithm"),
        (START + "1\n0 0x4 0 0\n", 6, "'0x4' is not an algorithm"),
        (START + "1\n0 ring 0 0\n", 6, "'ring' is not an algorithm"),
        (START + "1\n0 4 0\n", 6, "the file ends before a segment's size"),
        (START + "1\n0 4 0 0\n9\n", 7, "'9' follows the last announced number"),
        (START + "1\n0 4 0 0 8\n", 6, "'8' follows"),  # a number of requests has version 2
        (START + "1\n0 4\N{NO-BREAK SPACE}0 0 0\n", 6, "is not an algorithm"),
        ("1\n2\n2\n4\n1\n0 4 0 0\n2\n1\n0 0 0 0\n", 7, "2 ranks come after 4"),
        ("2\n2\n0\n2\n0\n", 4, "all_reduce has rules twice"),
        ("1\n3\n1\n2\n1\n0 5 0 0\n", 6, "two_proc fails with more ranks than two"),
        ("1\n15\n1\n2\n2\n0 1 0 0\n8 2 0 0\n", 7, "hang"),
    ],
)
def test_what_the_library_would_misread_is_told_with_its_line(text, line, reason) -> None:
    assert_misread(FORMAT, text, line, reason)


def test_lines_end_as_they_may_and_comments_say_what_they_like() -> None:
    text = START + "1 # größer\n0 4 0 0# ring\n"
    for given_text in (text, text.replace("\n", "\r\n"), text.rstrip("\n")):
        assert FORMAT.read(given_text) == [Rule("all_reduce", None, None, 0, None, "ring")]


def test_the_second_version_may_have_requests() -> None:
    text = "rule-file-version-2 # of 5.0\n1\n3\n1\n2\n1\n0 4 0 0 8\n"
    assert FORMAT.read(text) == [Rule("all_to_all", None, None, 0, None, "linear_sync/r8")]


def test_ranks_between_two_numbers_go_by_the_smaller_one() -> None:
    rules = FORMAT.read("1 2 2  4 1 0 4 0 0  8 1 0 3 0 0")
    by_ranks = {n: choose(rules, Series("all_reduce", n, 1), 8) for n in (2, 4, 7, 8, 99)}
    assert by_ranks == {
        **dict.fromkeys((2, 4, 7), "ring"),
        **dict.fromkeys((8, 99), "recursive_doubling"),
    }
