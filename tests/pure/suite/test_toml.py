"""Suites: what each key of a file does, every mistake it can hold, and that a suite survives its
run's file."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collbench.cli import options
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.machine import cpus, environment
from collbench.run.launch import environments
from collbench.suite import shipped, toml
from collbench.suite.case import Limit
from collbench.suite.sweep import Axes, Suite, expand_axes

SMALL = """
description = "d"
[axes]
collectives = ["all_reduce", "all_to_all"]
sizes = ["1K", "1M"]
ranks = [2, 4]
backends = "gloo"
in_place = false
"""


def load(folder: Path, text: str) -> Suite:
    path = folder / "mine.toml"
    path.write_text(text)
    return toml.load_suite(str(path))


def seen(suite: Suite, *fields: str) -> set[tuple[object, ...]]:
    return {tuple(getattr(case, field) for field in fields) for case in suite.expand()[0]}


def test_every_key_of_axes_reaches_the_cases(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        """
        description = "all of it"
        tags = ["a", "b"]
        [axes]
        collectives = ["allreduce", "bcast", "all_to_allv"]
        sizes = { min = 8, max = "64", factor = 2 }
        ranks = 2
        backends = ["gloo", "shm"]
        algorithms = ["native", "ring"]
        dtypes = ["fp32", "half"]
        ops = ["sum", "mulsum"]
        roots = "all"
        in_place = [true, false]
        modes = ["host", "isolated"]
        env = ["NCCL_ALGO=Ring,Tree", "X=1"]
        splits = ["uniform", "zipf:1"]
        align = 4
        cycles = 2
        [policy]
        precision = "2%"
        max_seconds = "1.5s"
        timeout = "2m"
        min_seconds = 0.1
        sync = "barrier"
        pin = false
        """,
    )
    assert suite.axes == Axes(
        collectives=("all_reduce", "broadcast", "all_to_allv"),
        sizes=(8, 16, 32, 64),
        ranks=(2,),
        backends=("gloo", "shm"),
        algorithms=("native", "ring"),
        dtypes=("float", "half"),
        ops=("sum", "premul_sum"),
        roots=(-1,),
        in_place=(True, False),
        modes=("host", "isolated"),
        envs=((("NCCL_ALGO", "Ring"), ("X", "1")), (("NCCL_ALGO", "Tree"), ("X", "1"))),
        splits=("uniform", "zipf:1"),
        align=4,
        cycles=2,
    )
    policy = suite.policy
    assert (policy.precision, policy.max_seconds, policy.timeout, policy.min_seconds) == (
        0.02,
        1.5,
        120.0,
        0.1,
    )
    assert (policy.sync, policy.pin, suite.tags, suite.description) == (
        "barrier",
        False,
        ("a", "b"),
        "all of it",
    )
    assert (
        load(tmp_path, SMALL + "[policy]\niters = 7").policy.batch == 7
    )  # as -n: in streaming mode, calls a sample


def test_all_is_every_datatype_and_reduction(tmp_path: Path) -> None:
    suite = load(tmp_path, SMALL + 'dtypes = "all"\nops = ["all"]')
    assert suite.axes.dtypes == tuple(DTYPES)
    assert len(suite.axes.ops) == 9


def test_a_path_is_added_to_settings_of_overrides(tmp_path: Path) -> None:
    text = """[[override]]
        match = { min_size = "64K" }
        env = ["A=1"]
        """
    suite = options.change_suite(load(tmp_path, SMALL + text), backend="nccl", path="shm-off")
    names = {tuple(name for name, _ in case.env if name == "A") for case in suite.expand()[0]}
    assert all(("NCCL_SHM_DISABLE", "1") in case.env for case in suite.expand()[0])
    assert names == {(), ("A",)}


def test_a_path_has_the_settings_of_a_sides_backend(tmp_path: Path) -> None:
    given: dict[str, Any] = {"backend": "gloo", "path": "loopback-nic"}
    suite = options.change_suite(load(tmp_path, SMALL), **given, other_backends=["mpi"])
    names = {"GLOO_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"}
    assert all(names <= {name for name, _ in case.env} for case in suite.expand()[0])


@pytest.mark.parametrize(
    ("own", "other"),
    [("arrivals = 'one-late:50us'", "modes = 'host'"), ("modes = 'host'", "arrivals = 'aligned'")],
)
def test_modes_of_an_include_take_the_place_of_arrivals(
    tmp_path: Path, own: str, other: str
) -> None:
    suite = load(tmp_path, SMALL + f"{own}\n[[include]]\n{other}\n")
    for axes, kept in ((suite.axes, own), (suite.includes[0], other)):
        given = {name for name in ("modes", "arrivals") if getattr(axes, name)}
        assert given == {kept.partition(" ")[0]}


def test_an_include_is_a_further_sweep_and_nothing_comes_twice(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        SMALL
        + """
        [[include]]
        collectives = ["all_reduce", "barrier"]
        sizes = ["1M", "2M"]
        ranks = 2
        """,
    )
    cases, _ = suite.expand()
    assert len(cases) == len(set(cases)) == 8 + 2
    assert [(c.collective, c.n, c.nbytes) for c in cases[8:]] == [
        ("all_reduce", 2, 2 << 20),
        ("barrier", 2, 0),
    ]


def test_an_override_replaces_axes_for_what_it_matches_and_the_later_one_wins(
    tmp_path: Path,
) -> None:
    suite = load(
        tmp_path,
        SMALL
        + """
        dtypes = ["float", "half"]
        [[override]]
        match = { collectives = "all_to_all" }
        sizes = "4K"
        dtypes = "float"
        [[override]]
        match = { collectives = "all_to_all", ranks = 4 }
        sizes = "8K"
        """,
    )
    sizes = {
        ("all_reduce", n, size, dtype)
        for n, size, dtype in itertools.product((2, 4), (1024, 1 << 20), ("float", "half"))
    }
    sizes |= {("all_to_all", 2, 4096, "float"), ("all_to_all", 4, 8192, "float")}
    assert seen(suite, "collective", "n", "nbytes", "dtype") == sizes
    assert len(suite.expand()[0]) == 10


def test_overrides_keep_cycles_modes_and_algorithms_of_other_collectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpus, "core_count", lambda: 64)
    suite = load(
        tmp_path,
        SMALL
        + """
        algorithms = ["native", "pairwise"]
        cycles = 2
        [[override]]
        match = { sizes = "1M", algorithms = "native" }
        backends = "nccl"
        """,
    )
    cases, skips = suite.expand()
    assert [case.cycle for case in cases] == [0] * 12 + [1] * 12 and len(set(cases)) == 24
    assert {(c.backend, c.mode) for c in cases} == {("gloo", "isolated"), ("nccl", "streaming")}
    assert {c.algorithm for c in cases if c.backend == "nccl"} == {"native"}
    assert {skip.reason for skip in skips} == {"pairwise: all_reduce has no algorithm 'pairwise'"}


def test_an_exclude_leaves_out_in_silence_or_as_a_skip_with_its_reason(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        SMALL
        + """
        [[exclude]]
        collectives = "all_to_all"
        min_size = "64K"
        ranks = 4
        [[exclude]]
        collectives = "all_to_all"
        min_size = "64K"
        reason = "known to take an hour"
        """,
    )
    cases, skips = suite.expand()
    assert len(cases) == 6
    assert [(s.case.collective, s.case.n, s.case.nbytes, s.reason) for s in skips] == [
        ("all_to_all", 2, 1 << 20, "known to take an hour")
    ]
    with pytest.raises(UsageError, match="mine: nothing to measure"):
        load(tmp_path, SMALL + "[[exclude]]\nmax_size = '1G'").expand()


@pytest.mark.parametrize(
    ("match", "left"),
    [
        ('env = "A=1"', {(), (("A", "2"), ("B", "x"))}),
        ('env = ["B=x", "A=2"]', {(), (("A", "1"), ("B", "x"))}),
        ('env = "B=x"', {()}),
        ('env = "B=y"', {(), (("A", "1"), ("B", "x")), (("A", "2"), ("B", "x"))}),
    ],
)
def test_settings_match_among_others(tmp_path: Path, match: str, left: set[object]) -> None:
    suite = load(tmp_path, SMALL + f'[[include]]\nenv = ["A=1,2", "B=x"]\n[[exclude]]\n{match}')
    assert {env for (env,) in seen(suite, "env")} == left


@pytest.mark.parametrize(
    ("word", "left"),
    [("ring", {"native", "ring:down"}), ("ring:down", {"native", "ring"})],
)
def test_an_algorithm_whose_name_has_a_colon_is_one_of_its_own(
    tmp_path: Path, word: str, left: set[str]
) -> None:
    text = SMALL.replace('["all_reduce", "all_to_all"]', '"all_reduce"')
    excluded = f"[[exclude]]\nalgorithms = '{word}'"
    suite = load(tmp_path, f"{text}algorithms = ['native', 'ring', 'ring:down']\n{excluded}")
    assert {algorithm for (algorithm,) in seen(suite, "algorithm")} == left


def test_a_hyphen_in_the_name_of_an_algorithm_makes_no_other_case(tmp_path: Path) -> None:
    names = "['recursive-doubling', 'recursive_doubling', 'neighbour-exchange', 'ring']"
    text = SMALL.replace("all_to_all", "all_gather") + f"algorithms = {names}\n"
    suite = load(tmp_path, text + "[[exclude]]\nalgorithms = 'neighbour-exchange'")
    assert {algorithm for (algorithm,) in seen(suite, "algorithm")} == {
        "recursive_doubling",
        "ring",
    }


@pytest.mark.parametrize(
    ("word", "left"),
    [
        ("chain", {"binomial", "native"}),
        ("chain:segments=2", {"binomial", "native", "chain:segments=4", "chain"}),
        (
            "tree",
            {"chain", "chain:segments=2", "chain:segments=4", "native"},
        ),  # what binomial is called too
        ("native", {"chain", "chain:segments=2", "chain:segments=4", "binomial"}),
    ],
)
def test_algorithms_match_by_name_alias_and_parameters(
    tmp_path: Path, word: str, left: set[str]
) -> None:
    text = SMALL.replace('["all_reduce", "all_to_all"]', '"broadcast"')
    suite = load(
        tmp_path,
        f"""{text}
        algorithms = ["native", "tree", "chain", "chain:segments=2", "chain:segments=4"]
        [[exclude]]
        algorithms = "{word}"
        """,
    )
    assert {algorithm for (algorithm,) in seen(suite, "algorithm")} == left


def test_thresholds_only_raise_what_is_judged(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        SMALL
        + """
        [[threshold]]
        match = { max_size = "4K" }
        tau = "15%"
        [[threshold]]
        match = { collectives = "all_to_all" }
        tau = 0.2
        """,
    )
    (small, large), (both, other) = (
        [c for c in suite.expand()[0] if c.collective == name and c.n == 2]
        for name in ("all_reduce", "all_to_all")
    )
    assert [suite.tau(case, 0.1) for case in (small, large, both, other)] == [0.15, 0.1, 0.2, 0.2]
    assert suite.tau(other, 0.3) == 0.3
    assert load(tmp_path, SMALL + "[[threshold]]\ntau = '50%'").tau(small, 0.1) == 0.5


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        ("400", (Limit(400.0),)),
        ("'400'", (Limit(400.0),)),
        ("['400@1G', 9]", (Limit(400.0, 1 << 30), Limit(9.0))),
        ("'400@1G,9@1M'", (Limit(400.0, 1 << 30), Limit(9.0, 1 << 20))),
    ],
)
def test_a_threshold_may_want_busbw(tmp_path: Path, said: str, limits: tuple[Limit, ...]) -> None:
    (found,) = load(tmp_path, SMALL + f"[[threshold]]\nmin_busbw = {said}").thresholds
    assert found.min_busbw == limits
    assert found.tau == 0


HEAD = "description = 'x'\n[axes]\ncollectives = 'all_reduce'\nsizes = '8'\n"


@pytest.mark.parametrize(
    ("text", "where", "said", "hint"),
    [
        ("= 3", "", "line 1", ""),
        ("x = " + "[" * 5000 + "]" * 5000, "", "recursion", ""),
        ("x = " + "9" * 5000, "", "digits", ""),
        (HEAD + "ranks = 1048577", ": [axes], ranks", "more than 1048576", ""),
        (HEAD + "[policy]\nseed = 0xffffffffffffffffffff", ": [policy], seed", "more than", ""),
        (
            HEAD.replace("'8'", "{ min = 1, max = '100M', step = 1 }"),
            ": [axes], sizes",
            "more than 10000 sizes",
            "",
        ),
        ("description = 'x'", "", "it has no [axes], which says what to measure", "sizes = ["),
        ("", "", "it has no [axes]", 'collectives = ["all_reduce"]'),
        (
            HEAD.replace("'8'", "{ min = 8, max = 4 }"),
            ": [axes], sizes",
            "min 8 is larger than max 4",
            "lower min or raise max",
        ),
        (
            HEAD.replace("'8'", "{ min = 0, max = 4 }"),
            ": [axes], sizes",
            "min 0 never grows",
            "for example min 4",
        ),
        ("tags = ['<a b>']\n" + HEAD, ", tags", "a name in quotes without blanks and commas", ""),
        ("description = 'x'\naxes = 3", ", axes", "expected a table, not 3", ""),
        ("description = ''\n", ", description", "expected text", ""),
        ("descripton = 'x'\n", ", descripton", "no such key", "did you mean description?"),
        ("tags = [1]\n", ", tags", "expected a name", ""),
        ("description = 'x'\n[axes]\nsizes = 8", ": [axes], collectives", "missing", ""),
        (HEAD + "rank = 2", ": [axes], rank", "no such key", "did you mean ranks?"),
        (HEAD + "ranks = [0]", ": [axes], ranks", "whole number from 1 up, not 0", ""),
        (HEAD + "ranks = [true]", ": [axes], ranks", "whole number", ""),
        (HEAD + "ranks = []", ": [axes], ranks", "at least one", ""),
        (HEAD + "backends = 'gloo,shm'", ": [axes], backends", "as a list", ""),
        (HEAD + 'backends = "\\u001b[31m"', ": [axes], backends", r"not '\x1b[31m'", ""),
        (
            HEAD + "dtypes = ['flot']",
            ": [axes], dtypes",
            "unknown datatype 'flot'",
            "did you mean float?",
        ),
        (HEAD + "ops = 'xyz'", ": [axes], ops", "unknown reduction", "one of sum"),
        (
            HEAD + "modes = 'isolate'",
            ": [axes], modes",
            "one of isolated",
            "did you mean isolated?",
        ),
        (HEAD + "in_place = 1", ": [axes], in_place", "true or false, not 1", ""),
        (HEAD + "roots = [-1]", ": [axes], roots", "from 0 up, not -1", ""),
        (HEAD + "align = 'wide'", ": [axes], align", "'wide' is not a size", ""),
        (HEAD + f"align = {1 << 62}", ": [axes], align", "more than", ""),
        (HEAD + 'dtypes = "\\u202ehalf"', ": [axes], dtypes", r"a name in quotes", ""),
        (HEAD + "[[exclude]]\nalgorithms = '\u202e'", ": [[exclude]] 1, algorithms", "a name", ""),
        (HEAD + "cycles = 0", ": [axes], cycles", "from 1 up", ""),
        (HEAD + "env = 'A'", ": [axes], env", "not NAME=VALUE", ""),
        (HEAD + "env = ['MY_TOKEN=x']", ": [axes], env", "which no run's file keeps", ""),
        (HEAD + "splits = 'triangle'", ": [axes], splits", "does not know 'triangle'", "zipf"),
        (HEAD + "algorithms = 'rign'", ": [axes], algorithms", "no algorithm 'rign'", "ring"),
        (HEAD + "algorithms = 'ring:a=1'", ": [axes], algorithms", "not a parameter", ""),
        (HEAD.replace("'8'", "{ min = 8 }"), ": [axes], sizes", "min, max", ""),
        (HEAD.replace("'8'", "{ min = 8, max = 4 }"), ": [axes], sizes", "larger than", ""),
        (
            HEAD.replace("'8'", "{ min = 8, max = 64, factr = 2 }"),
            ": [axes], sizes, factr",
            "no such",
            "factor?",
        ),
        (
            HEAD.replace("'8'", "{ min = 8, max = 64, factor = 1 }"),
            ": [axes], sizes, factor",
            "above 1",
            "",
        ),
        (
            HEAD.replace("'8'", "{ min = 8, max = 64, factor = 2, step = 8 }"),
            ": [axes], sizes",
            "exclude",
            "",
        ),
        (HEAD.replace("'8'", "1.5"), ": [axes], sizes", "a size such as", ""),
        (
            HEAD.replace("all_reduce", "all_redcue"),
            ": [axes], collectives",
            "unknown",
            "did you mean all_reduce?",
        ),
        (HEAD + "[policy]\nprecision = '200%'", ": [policy], precision", "not a share", ""),
        (HEAD + "[policy]\nprecision = 2", ": [policy], precision", "a share such as", ""),
        (HEAD + "[policy]\nmax_seconds = 'soon'", ": [policy], max_seconds", "not a duration", ""),
        (HEAD + "[policy]\ntimeout = inf", ": [policy], timeout", "a duration from 0.1 s up", ""),
        (HEAD + "[policy]\niters = 0", ": [policy], iters", "from 1 up", ""),
        (HEAD + "arrivals = 'late'", ": [axes], arrivals", "not a pattern of arrival", "one-late"),
        (HEAD + "arrivals = 'random:2s'", ": [axes], arrivals", "between 0 and 1 s", ""),
        (
            HEAD + "[[include]]\nranks = 2\n[[include]]\nbackends = ['gloo', './gone.py']",
            ": [[include]] 2, backends",
            "no file ./gone.py",
            "",
        ),
        (HEAD + "[policy]\ntimeout = '1ms'", ": [policy], timeout", "a duration from 0.1 s up", ""),
        (
            HEAD + "[policy]\nmin_iters = 5000\nmax_iters = 1000",
            ": [policy], min_iters",
            "5,000 is larger than max_iters, 1,000",
            "",
        ),
        (
            HEAD + "[policy]\nmin_seconds = 3\nmax_seconds = 1",
            ": [policy], min_seconds",
            "max_seconds, 1",
            "",
        ),
        (
            HEAD + "[policy]\nsync = 'windows'",
            ": [policy], sync",
            "one of auto",
            "did you mean window?",
        ),
        (HEAD + "[policy]\nblocking = true", ": [policy], blocking", "one of 0, 1", ""),
        (
            HEAD + "[policy]\nmax_second = 1",
            ": [policy], max_second",
            "no such",
            "did you mean max_seconds?",
        ),
        (HEAD + "[exclude]\nranks = 2", ", exclude", "each under [[exclude]]", ""),
        (
            HEAD + "[[exclude]]\nranks = 2\n[[exclude]]\nmin_size = 'big'",
            ": [[exclude]] 2, min_size",
            "a size",
            "",
        ),
        (
            HEAD + "[[exclude]]\nmin_sizes = 8",
            ": [[exclude]] 1, min_sizes",
            "no such key",
            "min_size?",
        ),
        (HEAD + "[[exclude]]\nreason = 'x'", ": [[exclude]] 1", "leaves everything out", ""),
        (
            HEAD + "[[exclude]]\nmin_size = 9\nmax_size = 8",
            ": [[exclude]] 1, min_size",
            "larger than max_size",
            "",
        ),
        (
            HEAD + "[[exclude]]\nalgorithms = 'rign'",
            ": [[exclude]] 1, algorithms",
            "no collective",
            "mean ring?",
        ),
        (HEAD + "[[include]]\nsizes = 'x'", ": [[include]] 1, sizes", "not a size", ""),
        (HEAD + "[[include]]\nmatch = 3", ": [[include]] 1, match", "no such key", ""),
        (
            HEAD + "modes = 'host'\narrivals = 'one-late:50us'",
            ": [axes], modes",
            "say how ranks come to a call",
            "leave one of them out",
        ),
        (HEAD + "env = ['A=1', 'A=2']", ": [axes], env", "A is given twice", "A=V1,V2"),
        (
            HEAD + "[[override]]\nsizes = 8",
            ": [[override]] 1, match",
            "it is missing",
            "for example",
        ),
        (
            HEAD + "[[override]]\nmatch = { ranks = 2 }",
            ": [[override]] 1",
            "nothing is replaced",
            "",
        ),
        (
            HEAD + "[[override]]\nmatch = { rank = 2 }\nsizes = 8",
            ": [[override]] 1, match, rank",
            "no such",
            "ranks?",
        ),
        (HEAD + "[[override]]\nmatch = 2\nsizes = 8", ": [[override]] 1, match", "a table", ""),
        (
            HEAD + "[[override]]\nmatch = {}\ncollectives = 'scan'",
            ": [[override]] 1, collectives",
            "no such",
            "",
        ),
        (
            HEAD + "[[override]]\nmatch = {}\nalgorithms = 'x'",
            ": [[override]] 1, algorithms",
            "no algorithm",
            "",
        ),
        (HEAD + "[[threshold]]\nmatch = {}", ": [[threshold]] 1", "neither tau nor", "400@1G"),
        (HEAD + "[[threshold]]\nmin_busbw = '4@x'", ": [[threshold]] 1, min_busbw", "a size", ""),
        (HEAD + "[[threshold]]\nmin_busbw = ''", ": [[threshold]] 1, min_busbw", "a number", ""),
        (HEAD + "[[threshold]]\ntau = 'all'", ": [[threshold]] 1, tau", "not a share", ""),
    ],
)
def test_a_mistake_is_told_with_file_key_and_what_was_expected(
    tmp_path: Path, text: str, where: str, said: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'mine.toml'}{where}: ")
    assert said in caught.value.message and hint in caught.value.hint
    assert caught.value.hint and "\n" not in caught.value.message


def test_names_that_are_no_suite_and_files_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        toml.load_suite("smok")
    assert (caught.value.message, caught.value.hint) == ("no suite 'smok'", "did you mean smoke?")
    for name in (str(tmp_path), "x" * 300):
        with pytest.raises(UsageError, match="no suite"):
            toml.load_suite(name)
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"binary\.toml: .*utf-8"):
        toml.load_suite(str(path))


def test_a_file_here_does_not_stand_for_a_built_in_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("smoke", "other", "other.toml"):
        Path(name).write_text(SMALL)
    assert toml.load_suite("smoke") == toml.built_in()["smoke"]
    assert toml.load_suite("./smoke") == msgspec.structs.replace(
        toml.load_suite("./other"), name="smoke"
    )
    assert toml.load_suite("other.toml").name == "other"
    with pytest.raises(UsageError, match="no suite 'other'") as found:
        toml.load_suite("other")
    assert found.value.hint == "write ./other for the file here"


def test_suites_beside_the_package_are_taken_in_a_checkout_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "foreign.toml").write_text(SMALL)
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "collbench")
    assert toml.built_in() == {}
    (tmp_path / "pyproject.toml").touch()
    assert list(toml.built_in()) == ["foreign"]


def test_what_a_suite_leaves_open_is_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SMALL.replace("ranks = [2, 4]\n", "").replace('backends = "gloo"\n', "")
    suite = load(
        tmp_path,
        text + '[[include]]\nbackends = "shm"\nsizes = "8K"\n[[include]]\nranks = 3\nsizes = "9K"',
    )

    def machine(gpus: int, cores: int) -> set[tuple[object, ...]]:
        monkeypatch.setattr(environment, "gpu_count", lambda: gpus)
        monkeypatch.setattr(cpus, "core_count", lambda: cores)
        return {
            (c.backend, c.n) for c in options.change_suite(suite).expand()[0] if c.nbytes != 1024
        }

    assert machine(0, 1) == {("gloo", 2), ("shm", 2), ("gloo", 3)}
    assert machine(8, 6) == {("nccl", 8), ("shm", 6), ("nccl", 3)}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert machine(8, 6) == {("nccl", 5), ("shm", 5), ("nccl", 3)}


def test_the_command_line_replaces_and_narrows_every_sweep(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        SMALL
        + """
        [policy]
        max_seconds = 9
        [[include]]
        collectives = "broadcast"
        backends = "shm"
        algorithms = "binomial"
        [[override]]
        match = { collectives = "all_to_all" }
        ranks = 8
        sizes = "2K"
        [[exclude]]
        ranks = 3
        reason = "never mind"
        """,
    )
    told = options.change_suite(
        suite, ngpus="3,5", backend="model", only="bcast,alltoall", max_time="1m"
    )
    cases, skips = told.expand()
    assert {(c.collective, c.backend, c.n, c.nbytes) for c in cases} == {
        ("all_to_all", "model", 5, 2048),
        ("broadcast", "model", 5, 1024),
        ("broadcast", "model", 5, 1 << 20),
    }
    assert {(s.case.collective, s.case.n) for s in skips} == {("all_to_all", 3), ("broadcast", 3)}
    assert told.policy.max_seconds == 60 and options.change_suite(suite).policy.max_seconds == 9
    assert (told.values("backends"), told.values("ranks")) == (("model",), (3, 5))
    with pytest.raises(UsageError, match="--only scan"):
        options.change_suite(suite, only="scan")
    with pytest.raises(UsageError, match="mine fixes the repetitions"):
        options.change_suite(load(tmp_path, SMALL + "[policy]\niters = 5"), max_time="1s")


@pytest.mark.parametrize(
    ("axes", "is_noted"),
    [
        ("", True),
        ('modes = "graph"', False),
        ('[[include]]\ncollectives = "reduce"\nmodes = "graph"', False),
    ],
)
def test_replays_without_mode_graph_are_noted(
    axes: str, is_noted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not refused, as 0.1 took such files."""
    suite = load(tmp_path, f"{HEAD}{axes}\n[policy]\ngraph = 10")
    assert suite.policy.graph == 10
    noted = capsys.readouterr().err
    assert ("[policy]: graph sets the replays of mode graph, but no sweep has" in noted) == is_noted


@pytest.mark.parametrize(
    ("axes", "is_refused"),
    [
        ("", True),
        ('modes = "host"', True),
        ('modes = "streaming"', False),
        ('modes = ["isolated", "streaming"]', False),
        ('backends = "nccl"', False),  # whose mode that is
        ('[[include]]\ncollectives = "reduce"\nmodes = "graph"', False),
        ('[[override]]\nmatch = { ranks = 2 }\nmodes = "graph"', False),
    ],
)
def test_iters_leave_nothing_to_max_seconds_only_where_they_are_samples(
    axes: str, is_refused: bool, tmp_path: Path
) -> None:
    """In other modes they are the calls of a sample."""
    suite = load(tmp_path, f"{HEAD}{axes}\n[policy]\niters = 5\nmax_seconds = 9")
    with pytest.raises(UsageError) if is_refused else nullcontext() as refused:
        assert options.change_suite(suite, ngpus="2").policy.max_seconds == 9
    if refused:
        assert refused.value.message == "mine fixes the repetitions that max_seconds would choose"


def test_groups_of_a_host_are_as_large_as_the_launcher_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = environments.Membership("mpirun", 0, 8, 0, 4)
    monkeypatch.setattr(options.join, "detect_launcher", lambda _="auto": member)
    text = SMALL.replace("ranks = [2, 4]", 'groups = "node"') + '[[include]]\ngroups = "rail"'
    suite = options.change_suite(load(tmp_path, text))
    assert {(case.groups, case.of) for case in suite.expand()[0]} == {("node:4", 2), ("rail:4", 4)}
    member = member._replace(local_n=0)
    with pytest.raises(UsageError, match="mine: groups node: mpirun does not say how many"):
        options.change_suite(load(tmp_path, text))


def test_a_suite_survives_its_runs_file_and_old_files_are_still_read(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        SMALL
        + """
        [[include]]
        env = "A=1,2"
        [[override]]
        match = { ranks = 2 }
        sizes = "3K"
        [[exclude]]
        env = "A=2"
        reason = "because"
        [[threshold]]
        tau = "15%"
        """,
    )
    again = msgspec.json.decode(msgspec.json.encode(suite), type=Suite)
    assert again == suite and again.expand() == suite.expand()
    old = b'{"name":"x","axes":{"collectives":["barrier"],"sizes":[8],"ranks":[2]},"policy":{}}'
    assert len(msgspec.json.decode(old, type=Suite).expand()[0]) == 1


@pytest.mark.parametrize("name", sorted(toml.built_in()))
def test_built_in_suites_say_what_they_are_for_and_leave_little_out(name: str) -> None:
    suite = options.change_suite(toml.load_suite(name), ngpus="4" if name != "pr" else "")
    cases, skips = suite.expand()
    assert suite.description.endswith(".") and suite.tags
    assert len(skips) <= len(cases) / 10, [skip.reason for skip in skips]
    for backend in ("nccl", "shm"):  # what a GPU's owner asks for
        assert options.change_suite(toml.load_suite(name), backend=backend).expand()[0]


def test_guidelines_pair_collectives_at_the_same_vector() -> None:
    """For MEASURING's inequalities: equal sizes, and each collective of a pair with all of them."""
    cases, _ = options.change_suite(toml.load_suite("guidelines"), ngpus="4").expand()
    by_name = {
        name: {c.size for c in cases if c.collective == name}
        for name in {c.collective for c in cases}
    }
    assert set(by_name) == {
        "all_reduce",
        "reduce",
        "broadcast",
        "reduce_scatter",
        "all_gather",
        "gather",
        "scatter",
    }
    assert len({frozenset(sizes) for sizes in by_name.values()}) == 1
    assert set(by_name) <= set(COLLECTIVES)


def test_expanding_axes_alone_is_the_plain_product() -> None:
    cases, skips = expand_axes(
        Axes(collectives=("all_reduce",), sizes=(8, 16, 8), ranks=(2,), in_place=(False,))
    )
    assert [(c.nbytes, c.n) for c in cases] == [(8, 2), (16, 2)] and skips == []


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_the_smallest_suite_has_two_lines_under_axes(tmp_path: Path, start: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"{start}[axes]\ncollectives = ['all_reduce']\nsizes = [8]\n", "utf-8")
    suite = toml.load_suite(str(path))
    assert (suite.name, suite.description, suite.axes.sizes) == ("mine", "", (8,))
