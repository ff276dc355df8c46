"""What `collbench tune` refuses before it measures anything, and what it says that it would do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collbench.cli.families import LauncherOptions
from collbench.core.errors import CannotRun, CollbenchError, UsageError
from collbench.features.advise.formats import load_formats
from collbench.features.advise.libraries import load_libraries
from collbench.features.advise.tune import (
    command,
    joining,
    propose,
    request,
    schedule,
    trial,
)
from collbench.features.advise.tune.command import SearchOptions, TuneOptions, tune
from collbench.features.advise.tune.sayable import drop_unsayable
from collbench.features.advise.types import Advised, Cell, Series, Variables
from collbench.machine import cpus
from collbench.records.types import Choice
from collbench.suite.sweep import Axes, Suite

SEARCH = {field.name for field in dataclasses.fields(SearchOptions)}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "core_count", lambda: 2)


def options(**fields: Any) -> TuneOptions:
    given = {"backend": "shm", "ngpus": "2", "env": ["X=1,2"], **fields}
    search = SearchOptions(**{name: value for name, value in given.items() if name in SEARCH})
    rest = {name: value for name, value in given.items() if name not in SEARCH}
    return TuneOptions(search=search, where=LauncherOptions(), **rest)


def refusal(**fields: Any) -> CollbenchError:
    with pytest.raises(CollbenchError) as caught:
        tune(options(**fields))
    assert caught.value.message and "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"env": None}, "shm has no settings that collbench knows"),
        ({"env": ["X"]}, "'X' is not NAME=VALUE"),
        ({"env": ["OMP_NUM_THREADS=1,4"]}, "it is about how ranks compute"),
        ({"backend": "shm,gloo"}, "one backend's settings"),
        ({"backend": "model"}, "predicts times"),
        ({"backend": "nothing_like_it"}, "unknown backend"),
        ({"ngpus": "1"}, "a single rank"),
        ({"ngpus": "two"}, "-g: 'two'"),
        ({"collectives": "barrier"}, "barrier moves no data"),
        ({"collectives": "all_redcue"}, "all_redcue"),
        ({"minbytes": "1K", "maxbytes": "1K"}, "only size"),
        ({"minbytes": "1M", "maxbytes": "1K"}, "-b 1048576 is larger"),
        ({"minbytes": "many"}, "'many' is not a size"),
        ({"stepfactor": 0.5}, "never grows"),
        ({"dtype": "float,half"}, "one datatype"),
        ({"dtype": "quaternion"}, "quaternion"),
        ({"place": "both"}, "--place"),
        ({"budget": "soon"}, "--budget: 'soon'"),
        ({"tau": "0"}, "--tau"),
        ({"tag": "a,b"}, "--tag"),
        ({"kind": "openmpi"}, "--for openmpi"),
        ({"kind": "papyrus"}, "--for papyrus"),
        ({"output_format": "xml"}, "--format"),
        ({"out": [Path("x.pdf")]}, "x.pdf"),
        ({}, "--write FILE is missing"),
    ],
)
def test_bad_words_are_refused_in_one_line(fields: dict[str, Any], words: str) -> None:
    error = refusal(**fields)
    assert isinstance(error, UsageError) and words in error.message


def test_no_ranks_without_cores_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(ngpus="3,4")
    assert isinstance(error, CannotRun)
    assert error.message.startswith("3 and 4 ranks share 2 cores")
    assert "--oversubscribed" in error.hint
    tune(options(ngpus="3", oversubscribed=True, dry_run=True))
    assert "all_reduce, 3 ranks" in capsys.readouterr().out


def test_series_without_cores_are_left_out_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    tune(options(ngpus="2,8", dry_run=True))
    printed = capsys.readouterr().out
    assert printed.startswith("8 ranks share 2 cores")
    assert "2 ranks, 11 sizes" in printed and "all_reduce, 8 ranks" not in printed


def test_a_place_that_cannot_be_written_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    monkeypatch.setattr(command, "run_screening", measured.append)
    foreign = tmp_path / "mine.conf"
    foreign.write_text("precious")
    for path, words in (
        (tmp_path, "is a folder"),
        (tmp_path / "absent" / "rules.conf", "does not exist"),
        (foreign, "was not written by collbench"),
    ):
        assert words in refusal(write=path).message
    assert foreign.read_text() == "precious" and not measured


def test_a_job_that_cannot_be_read_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    monkeypatch.setattr(command, "run_screening", measured.append)
    assert refusal(write=tmp_path / "x.sh", sizes_of=[str(tmp_path / "no" / "trace.json")])
    assert not measured and not (tmp_path / "x.sh").exists()


def test_ranks_that_a_launcher_started_cannot_be_started_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = SimpleNamespace(launcher="mpirun", rank=0, n=2, local_n=2)
    monkeypatch.setattr(request.join, "detect_launcher", lambda name="auto": member)
    error = refusal()
    assert "starts ranks anew" in error.message and "mpirun" in error.hint


def test_a_dry_run_says_what_it_would_try(capsys: pytest.CaptureFixture[str]) -> None:
    tune(options(collectives="all_reduce,broadcast", dry_run=True, maxbytes="4K"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "all_reduce, 2 ranks, 5 sizes from 8 B to 2 KiB: X=1, X=2"
    assert lines[1].startswith("broadcast, 2 ranks, 5 sizes")
    assert lines[2].startswith("first round: 3 launches, about ")
    assert "3:30 of 10:00" in lines[2]


TUNED = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"]
OPENMPI_RING = "OMPI_MCA_coll_tuned_allreduce_algorithm"


def ask(form: str, *envs: Any, ranks: tuple[int, ...] = (2,)) -> Any:
    key = "intelmpi" if form == "intelmpi" else "openmpi"
    library = next(each for each in load_libraries() if each.key == key)
    field = {Series("all_reduce", n, 1): dict.fromkeys(envs, (8, 32)) for n in ranks}
    return drop_unsayable(field, load_formats()[form], library, "mpi", "")


def test_settings_that_the_file_cannot_say_are_refused_before_anything_is_measured() -> None:
    tcp = (("UCX_TLS", "tcp"),)
    with pytest.raises(UsageError, match="rules have no UCX_TLS") as caught:
        ask("openmpi", tcp)
    assert "--for words" in caught.value.hint
    ring = ((OPENMPI_RING, "4"), ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"))
    field, notes = ask("openmpi", tcp, ring)
    assert list(field[Series("all_reduce", 2, 1)]) == [ring]
    assert "UCX_TLS=tcp of all_reduce" in notes[0]
    assert ask("words", tcp)[1] == []


def test_a_file_that_knows_no_ranks_is_for_one_number_of_them() -> None:
    preset = (("I_MPI_ADJUST_ALLREDUCE", "2"),)
    assert ask("intelmpi", preset)[1] == []
    with pytest.raises(UsageError, match="several numbers of ranks"):
        ask("intelmpi", preset, ranks=(2, 4))


class Shared:
    """A source whose places read ``unlike`` a file; what they were asked for."""

    def __init__(self, unlike: list[str]) -> None:
        self.unlike, self.asked = unlike, []

    def hold_places(self, suite: Any, seconds: float) -> Any:
        def list_unlike(path: Path) -> list[str]:
            self.asked.append(path.read_text())
            return self.unlike

        return SimpleNamespace(list_unlike=list_unlike, close=lambda: None)


def test_a_folder_that_hosts_do_not_share_is_refused(tmp_path: Path) -> None:
    suite = Suite(name="tune", axes=Axes(collectives=("all_reduce",), sizes=(8,), ranks=(2,)))
    forms = load_formats()
    apart: Any = Shared(["node2"])
    with pytest.raises(CannotRun, match="not the same folder on node2"):
        trial.refuse_unshared(forms["openmpi"], apart, suite, tmp_path, 1.0)
    assert apart.asked and not list(tmp_path.iterdir())
    trial.refuse_unshared(forms["openmpi"], Shared([]), suite, tmp_path, 1.0)  # type: ignore[arg-type]
    for form in ("words", "intelmpi", "oneccl"):  # variables need no file
        trial.refuse_unshared(forms[form], apart, suite, tmp_path, 1.0)


def test_a_trial_has_a_name_of_its_own_and_goes(tmp_path: Path) -> None:
    nothing = Advised(library="openmpi", version="", runs=(), day="", taus=(0.1, 0.1))
    form = load_formats()["openmpi"]
    with (
        trial.lay_file(form, nothing, tmp_path, is_shared=True) as one,
        trial.lay_file(form, nothing, tmp_path, is_shared=True) as other,
    ):
        assert len({*one.values(), *other.values()}) == 3  # and one is 1
        assert len(list(tmp_path.iterdir())) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["nccl", "rccl", "ncclx", "words"])
def test_what_tune_sweeps_by_itself_fits_its_file(key: str) -> None:
    library = next(each for each in load_libraries() if each.key == "nccl")
    form = load_formats()[key]
    sweep = command._read_sweep(SearchOptions(), form)
    field = {
        Series(name, 2, 1): {(("NCCL_ALGO", "Ring"),): sweep["sizes"]}
        for name in sweep["collectives"]
    }
    version = "RCCL 2.27.3" if key == "rccl" else "NCCL 2.27.3"
    assert len(drop_unsayable(field, form, library, "nccl", version)[0]) == len(field)
    assert ("all_to_all" in sweep["collectives"]) == (key == "words")


def test_a_tuner_that_needs_all_collectives_says_so_before_anything_is_measured() -> None:
    library = next(each for each in load_libraries() if each.key == "nccl")
    ring = (("NCCL_ALGO", "Ring"),)
    sizes = tuple(1 << power for power in range(10, 27, 2))

    def ask_nccl(*names: str, sizes: tuple[int, ...] = sizes) -> Any:
        field = {Series(name, 2, 1): {ring: sizes} for name in names}
        return drop_unsayable(field, load_formats()["nccl"], library, "nccl", "NCCL 2.27.3")

    with pytest.raises(UsageError, match="broadcast"):
        ask_nccl("all_reduce")
    assert len(ask_nccl(*TUNED)[0]) == 5
    with pytest.raises(UsageError, match="64M or more"):
        ask_nccl(*TUNED, sizes=sizes[:-2])


def ask_tuner(*envs: Variables, names: Sequence[str] = TUNED) -> Any:
    library = next(each for each in load_libraries() if each.key == "nccl")
    sizes = tuple(1 << power for power in range(10, 27, 2))
    field = {Series(name, 2, 1): dict.fromkeys(envs, sizes) for name in names}
    return drop_unsayable(field, load_formats()["ncclx"], library, "nccl", "NCCL 2.27.3")


def test_settings_that_no_tuner_can_set_are_not_tried() -> None:
    threads, ring = (("NCCL_NTHREADS", "512"),), (("NCCL_ALGO", "Ring"),)
    field, notes = ask_tuner(threads, ring)
    assert {env for by_setting in field.values() for env in by_setting} == {ring}
    assert notes == [
        "not tried, as the file cannot say it: NCCL_NTHREADS=512 of all_reduce, broadcast, reduce"
        " and 2 more: a tuner cannot set NCCL_NTHREADS"
    ]
    field, notes = ask_tuner(ring, names=[*TUNED, "all_to_all"])
    assert [series.collective for series in field] == TUNED
    assert "NCCL asks no tuner about all_to_all" in notes[0]


def test_settings_that_no_tuner_can_set_are_named_once_with_their_collectives() -> None:
    some, more = ((("NCCL_NTHREADS", number),) for number in ("256", "512"))
    ring = (("NCCL_ALGO", "Ring"),)
    _, (note,) = ask_tuner(some, more, ring, names=["all_reduce", "broadcast"])
    assert note.endswith(
        ": NCCL_NTHREADS=256, NCCL_NTHREADS=512 of all_reduce, broadcast:"
        " a tuner cannot set NCCL_NTHREADS"
    )


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_collective_without_a_setting_is_measured_where_the_file_needs_it(
    has_threads: bool,
) -> None:
    """broadcast and reduce have Ring alone, so that NCCL_ALGO=Ring is no setting of theirs."""
    library = next(each for each in load_libraries() if each.key == "nccl")
    threads, ring = (("NCCL_NTHREADS", "256"),), (("NCCL_ALGO", "Ring"),)
    sizes = tuple(1 << power for power in range(10, 27, 2))
    axes = Axes(
        **{"collectives": (*TUNED, "all_to_all"), "sizes": sizes, "ranks": (2,)},
        **{"backends": ("nccl",), "in_place": (False,)},
    )
    series = [Series(name, 2, 1) for name in axes.collectives]
    envs = (threads, ring) if has_threads else (ring,)
    asked = request.list_field(series, library, "NCCL 2.27.3", envs, axes)
    form = load_formats()["nccl"]
    field, notes = drop_unsayable(asked, form, library, "nccl", "NCCL 2.27.3")
    assert {each.collective: [*settings] for each, settings in field.items()} == {
        **{name: [ring] for name in ("all_reduce", "all_gather", "reduce_scatter")},
        **{name: [()] for name in ("broadcast", "reduce")},
    }
    assert "only the default is measured for broadcast, reduce: the file repeats" in notes[-1]
    (default,) = joining.list_defaults(field)
    assert default.sizes == dict.fromkeys(TUNED, sizes)
    assert {name for joint in joining.join_settings(library, field) for name in joint.sizes} == {
        *("all_reduce", "all_gather", "reduce_scatter")
    }
    swept = schedule.list_sizes(field, (axes,))
    heard = {
        Cell(each, size): {(): Choice(algorithm="Ring", protocol="Simple" if at else "LL")}
        for each, by_size in swept.items()
        for at, size in enumerate(by_size)
    }
    unadvised = propose.list_unadvised(field, {}, [], {}, heard, swept)
    blank = Advised(library="nccl", version="NCCL 2.27.3", runs=(), day="", taus=(0.1, 0.1))
    assert form.refuse(msgspec.structs.replace(blank, unadvised=tuple(unadvised))) == ""
    for key in ("ncclx", "words"):  # these need none
        field, _ = drop_unsayable(asked, load_formats()[key], library, "nccl", "NCCL 2.27.3")
        assert all(map(any, field.values()))


def test_a_file_that_needs_no_default_leaves_out_what_has_no_setting() -> None:
    library = next(each for each in load_libraries() if each.key == "nccl")
    threads, ring = (("NCCL_NTHREADS", "256"),), (("NCCL_ALGO", "Ring"),)
    sizes = tuple(1 << power for power in range(10, 27, 2))
    left = Series("all_reduce", 2, 1)
    field = {left: {ring: sizes}, Series("broadcast", 2, 1): {threads: sizes}}
    form = load_formats()["ncclx"]
    assert [*drop_unsayable(field, form, library, "nccl", "NCCL 2.27.3")[0]] == [left]


def test_a_number_of_channels_that_nccl_may_not_have_is_told() -> None:
    ring = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"))
    most, least = (("NCCL_MAX_NCHANNELS", "2"),), (("NCCL_MIN_NCHANNELS", "32"),)
    assert ask_tuner(ring, ring + most)[1] == []
    field, (note,) = ask_tuner(ring, ring + least)
    assert len(field[Series("all_reduce", 2, 1)]) == 2
    assert "can have Ring/Simple at least 32 channels only if NCCL has as many" in note
