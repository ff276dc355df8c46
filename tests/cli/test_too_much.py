"""What is too much is refused before any work is done on it, and names that are nearly right get
the right one."""

from __future__ import annotations

import pytest

from collbench.core import algorithms, export
from collbench.core.errors import CannotRun
from collbench.features.study import drawing


def test_too_many_ranks_to_draw_are_refused_before_any_number_is_made(
    inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "example_values", lambda schedule: 1 / 0)
    done = inside("show", "all_reduce", "ring", "-n", "8000")
    assert (done.returncode, "too many to draw" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "algorithm", "n", "what"),
    [
        ("all_reduce", "ring", 1000, "steps between two ranks than the 256 that MSCCL allows"),
        ("all_to_all", "linear", 400, "thread blocks than the 216 that MSCCL allows"),
    ],
)
def test_limits_of_msccl_are_looked_at_first(
    monkeypatch: pytest.MonkeyPatch, name: str, algorithm: str, n: int, what: str
) -> None:
    monkeypatch.setattr(export, "remove_hazards", lambda schedule: 1 / 0)
    with pytest.raises(CannotRun, match=what):
        export.write_msccl_executor(algorithms.find_variant(name, algorithm).schedule(n), 0)


def test_a_list_of_too_many_sizes_is_refused(bare) -> None:
    sizes = ",".join(map(str, range(8, 8 + 10_001)))
    done = bare("all_reduce", "--sizes", sizes, "--backend", "model", "-g", "2", "--dry-run")
    assert (done.returncode, "more than 10000 sizes" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("allreduc", "all_reduce"),
        ("all_reduce_prf", "all_reduce"),
        ("reprot", "report"),
        ("histroy", "history"),
    ],
)
def test_a_command_that_is_nearly_right_gets_the_right_one(bare, word: str, meant: str) -> None:
    done = bare(word, "-b", "8")
    assert done.returncode == 2
    assert done.stderr == f"collbench: no command '{word}'\n  hint: did you mean {meant}?\n"


def test_a_command_like_none_gets_where_they_are_listed(bare) -> None:
    done = bare("zzz")
    assert (done.returncode, "collbench --help lists them" in done.stderr) == (2, True)


def test_nccl_tests_names_are_commands_still(bare) -> None:
    assert bare("allreduce", "--help").returncode == 0
    assert bare("all_reduce_perf", "--help").returncode == 0


def test_a_shell_completes_commands_and_options(bare) -> None:
    def completed(words: str) -> list[str]:
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return bare(_COLLBENCH_COMPLETE="complete_bash", **asked).stdout.split()

    assert "report" in completed("collbench re")
    assert "--precision" in completed("collbench all_reduce --pre")
