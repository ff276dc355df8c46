"""Backends and algorithms that nobody has, or that only this machine lacks: told at once, by every
command that measures, and when only a plan is asked for."""

from __future__ import annotations

import pytest

from collbench.cli import list_
from collbench.core.backend_info import list_infos
from collbench.core.errors import UsageError
from collbench.run import refusal

SWEEP = ("all_reduce", "-b", "8", "-e", "8", "-g", "2")
COMMANDS = {
    "a collective": (*SWEEP, "--backend", "gllo"),
    "run": ("run", "smoke", "--backend", "gllo"),
    "pairs": ("pairs", "-g", "4", "--backend", "gllo"),
    "locate": ("locate", "-g", "4", "--backend", "gllo"),
    "ab, base": ("ab", "--base", "backend:gllo", "--suite", "pr"),
    "ab, head": ("ab", "--head", "backend:gllo", "--suite", "pr"),
}


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_an_unknown_backend_is_refused_with_the_name_meant(bare, command, dry) -> None:
    done = bare(*command, *dry)
    assert done.returncode == 2
    assert done.stderr == "collbench: unknown backend 'gllo'\n  hint: did you mean gloo?\n"


def test_a_suite_that_names_an_unknown_backend_is_refused(bare, tmp_path) -> None:
    suite = tmp_path / "mine.toml"
    axes = 'collectives = ["all_reduce"]\nsizes = [8]\nranks = [2]\nbackends = ["shn"]\n'
    suite.write_text(f'description = "x"\n[axes]\n{axes}')
    done = bare("run", str(suite), "--dry-run")
    assert done.returncode == 2
    assert "unknown backend 'shn'\n  hint: did you mean shm?" in done.stderr


@pytest.mark.parametrize("name", ["foo", "fake", "undefined", "_wire"])
def test_what_is_no_name_of_a_backend_gets_the_list(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        refusal.refuse_unknown_backends([name])
    names = [*list_infos()]
    assert {"gloo", "shm"} < {*names}
    assert f"one of {', '.join(names)}; or " in caught.value.hint


def test_all_that_are_listed_are_known() -> None:
    rows = list_.list_tables()["Backends"][1:]
    refusal.refuse_unknown_backends(
        {name for row in rows for name in row[0].split(", ")} - {"NAME"}
    )


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("xccl", "this torch, which was built without XCCL"),
        ("nccl", "needs a GPU that torch can use: torch"),
        ("torch_one_shot", "needs a GPU that torch can use: torch"),
    ],
)
def test_a_backend_that_only_this_torch_lacks_cannot_run_here(
    inside, monkeypatch: pytest.MonkeyPatch, name: str, reason: str, dry
) -> None:
    monkeypatch.setattr("collbench.machine.environment.gpu_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.distributed.is_xccl_available", lambda: False)
    monkeypatch.setattr("collbench.run.session.Launcher.warm", lambda *_: None)
    done = inside(*SWEEP, "--backend", name, "--no-save", *dry)
    assert done.returncode == 5
    assert f"no case can run here: backend {name}" in done.stderr
    assert reason in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("pairs", "-g", "4", "--backend", "xccl"),
        ("locate", "-g", "4", "--backend", "xccl"),
        ("ab", "--head", "backend:xccl", "--suite", "pr"),
    ],
)
def test_no_plan_is_shown_as_fine_that_cannot_run(
    inside, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("torch.distributed.is_xccl_available", lambda: False)
    done = inside(*command, "--dry-run")
    assert done.returncode == 5
    assert "backend xccl is not in this torch" in done.stderr


def test_what_there_is_still_runs_beside_what_is_lacking(
    inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.is_xccl_available", lambda: False)
    done = inside(*SWEEP, "--backend", "model,xccl", "--format", "md")
    assert done.returncode == 0
    assert "this torch, which was built without XCCL" in done.stdout


@pytest.mark.parametrize("side", ["--base", "--head"])
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("algo:nope", "all_reduce has no algorithm 'nope'", "one of central"),
        ("algo:rng", "all_reduce has no algorithm 'rng'", "did you mean ring?"),
        ("algo:ring:x=1", "'x=1' is not a parameter", "no parameters"),
    ],
)
def test_an_unknown_algorithm_of_a_side_is_refused(bare, side, words, message, hint) -> None:
    done = bare("ab", side, words, "--suite", "pr", "--dry-run")
    assert done.returncode == 2
    assert f"collbench: {side}: " in done.stderr
    assert message in done.stderr
    assert hint in done.stderr


def test_an_algorithm_that_one_collective_of_the_suite_has_is_known(bare) -> None:
    done = bare("ab", "--head", "algo:recursive_doubling", "--suite", "pr", "--dry-run")
    assert done.returncode == 0
