"""`collbench compare` as a user runs it, on runs made up here: exit codes, outputs, names, the
workflow for GitHub Actions."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

import collbench
from collbench.cli import main as commands
from collbench.core import files
from collbench.records import run_file
from collbench.records.types import End, Pairing, RankInfo, Record, Run, World
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

SMALL, LARGE = 1 << 12, 1 << 20
MACHINE = {"cpu": {"model": "A", "physical": 8}}
WORKFLOW = Path(collbench.__file__).parents[1] / "docker" / "github-actions.yml"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside GitHub Actions, also where these tests run in it, and without torch."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "blocker").mkdir()
    (tmp_path / "blocker" / "torch.py").write_text(
        "raise ImportError('torch must not be needed here')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "blocker"))


def stored(
    side: str,
    slower: float = 1.0,
    *,
    experiment: str = "20250101-e",
    sizes: tuple[int, ...] = (SMALL, LARGE),
    machine: dict[str, Any] = MACHINE,
    paired: bool = True,
    noise: float = 0.003,
    tag: str = "",
    wrong: int = 0,
    aa: bool = False,
) -> Path:
    """A saved run: 8 launches of all sizes, 12 more of the large one, which takes ``slower`` times
    as long."""
    suite = Suite(
        name="pr",
        axes=Axes(collectives=("all_reduce",), sizes=sizes, ranks=(2,), backends=("gloo",)),
    )
    variant = f"git:{side}1"
    pairing = (
        Pairing(experiment=experiment, side=side, variant=variant, aa=aa) if paired else None  # type: ignore[arg-type]
    )
    path = files.home_folder() / "runs" / f"{experiment}-{side}.jsonl"
    run = Run(
        id=path.stem,
        started="2025-01-01T00:00:00+00:00",
        command=["collbench", "ab"],
        suite=suite,
        policy=Policy(iters=20),
        environment=machine,
        pairing=pairing,
        tag=tag,
    )
    path.unlink(missing_ok=True)
    writer = run_file.Writer(path, run)
    launches = [(1, i) for i in range(8)] + [(2, i) for i in range(12)]
    for index, (stage, launch) in enumerate(launches):
        ranks = [RankInfo(rank=r, host="h", pid=2 * index + r, cpus=[r]) for r in range(2)]
        at = {"stage": stage, "round": launch} if paired else {}
        writer.write(
            World(
                index=index,
                backend="gloo",
                n=2,
                env=(),
                launcher="local",
                ranks=ranks,
                oversubscribed=False,
                same_clock=True,
                **at,
            )
        )
        for nbytes in sizes if stage == 1 else [size for size in sizes if size == LARGE]:
            case = Case(collective="all_reduce", backend="gloo", n=2, nbytes=nbytes, op="sum")
            shift = 1 + noise * ((launch * 7 + (5 if side == "head" else 0)) % 11 - 5) / 5
            median = 10 * nbytes * shift * (slower if nbytes == LARGE else 1)
            times = [int(median * (1 + 0.001 * (i % 5 - 2))) for i in range(20)]
            writer.write(
                Record(
                    case=case,
                    status="wrong" if wrong else "ok",
                    world=index,
                    times_ns=times,
                    stop="fixed",
                    sync="window",
                    wrong=wrong,
                )
            )
    writer.write(End(exit=0, ended="2025-01-01T00:01:00+00:00"))
    writer.close()
    return path


def pair(slower: float = 1.0, **more: Any) -> tuple[str, str]:
    return str(stored("base", **more)), str(stored("head", slower, **more))


def test_nothing_slower_is_0(bare) -> None:
    done = bare("compare", *pair(noise=0.001))
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "2 same" in done.stdout
        and "fingerprints identical" in done.stdout
        and "8+12 pairs" in done.stdout
    )


def test_a_row_that_regressed_is_1_and_said_on_stderr(bare) -> None:
    done = bare("compare", *pair(1.15))
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if "REGRESSED" in line)
    assert "1 MiB" in line and "+15." in line
    assert (
        done.stderr.startswith("collbench: 1 of 2 rows is slower than base")
        and "1 MiB" in done.stderr
    )
    assert re.search(r"^4 KiB .* SAME ", done.stdout, re.MULTILINE)


def test_what_is_not_shown_is_shown_by_the_command_that_is_named(inside) -> None:
    sizes = tuple(4096 + 4 * i for i in range(30))
    pair(noise=0.001, sizes=sizes)
    done = inside("compare", "20250101-e", "--tau", "20%")
    assert done.returncode == 0 and done.stdout.count(" SAME ") == 20
    hint = next(line for line in done.stdout.splitlines() if line.startswith("not shown"))
    found = re.search(r"collbench (compare .* --all)", hint)
    assert found and "--tau 20%" in found[1]
    again = inside(*shlex.split(found[1]))
    assert again.returncode == 0 and again.stdout.count(" SAME ") == 30


def test_a_faster_head_is_0(bare) -> None:
    done = bare("compare", *pair(0.8))
    assert done.returncode == 0 and "1 improved" in done.stdout


def test_a_row_that_is_gone_is_1(bare) -> None:
    done = bare("compare", str(stored("base")), str(stored("head", sizes=(LARGE,))))
    assert done.returncode == 1 and "1 gone" in done.stdout


def test_tau_says_what_is_too_small_to_matter(bare) -> None:
    assert bare("compare", *pair(1.15), "--tau", "30%").returncode == 0


def test_other_machines_are_3_unless_accepted(bare) -> None:
    names = (
        str(stored("base")),
        str(stored("head", 1.15, machine={"cpu": {"model": "B", "physical": 8}})),
    )
    done = bare("compare", *names)
    assert done.returncode == 3 and done.stderr.startswith("collbench: ")
    assert done.stdout.index("differs: cpu.model: A → B") < done.stdout.index("incomparable")
    assert bare("compare", *names, "--across-machines").returncode == 1


@pytest.mark.slow
def test_unpaired_runs_fail_nothing_unless_told_to(bare) -> None:
    names = pair(1.15, paired=False)
    done = bare("compare", *names)
    assert done.returncode == 0 and "unpaired" in done.stdout
    assert bare("compare", *names, "--gate-unpaired").returncode == 1


@pytest.mark.parametrize("options", [(), ("--strict",), ("--tau", "1%"), ("--gate-unpaired",)])
@pytest.mark.parametrize("paired", [True, False])
def test_a_comparison_without_any_verdict_is_3_everywhere(
    inside, paired: bool, options: tuple[str, ...]
) -> None:
    names = pair(noise=0.4, paired=paired)
    done = inside("compare", *names, *options, "--format", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["exit"], found["rows_decided"]) == (3, 3, 0)
    assert found["verdict"].startswith(("inconclusive", "no verdict"))
    suite = ElementTree.fromstring(inside("compare", *names, "--format", "junit").stdout)[0]
    assert (suite.get("errors"), suite.get("skipped")) == ("1", "2")
    plain = inside("compare", *names, *options)
    assert plain.stdout.splitlines()[0][:24] == found["verdict"][:24]


def test_wrong_results_of_head_are_7(bare) -> None:
    done = bare("compare", str(stored("base")), str(stored("head", wrong=3)), "--format", "junit")
    assert done.returncode == 7 and "wrong" in done.stderr and 'errors="1"' in done.stdout


def test_several_runs_of_a_side_count_as_one(inside, tmp_path: Path) -> None:
    bases = [str(stored("base", experiment=name, paired=False)) for name in "ab"]
    heads = [str(stored("head", 1.15, experiment=name, paired=False)) for name in "ab"]
    done = inside("compare", ",".join(bases), ",".join(heads), "--format", "json")
    assert done.returncode == 0
    assert {row["base"]["launches"] for row in json.loads(done.stdout)["rows"]} == {16, 40}
    folder = tmp_path / "bases"
    folder.mkdir()
    for name in bases:
        shutil.copy(name, folder)
    alike = inside("compare", str(folder), ",".join(heads), "--format", "json")
    assert json.loads(alike.stdout)["rows"] == json.loads(done.stdout)["rows"]
    again = inside("compare", f"{bases[0]},{bases[0]}", heads[0])
    assert again.returncode == 2 and "named twice" in again.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("@last", "nothing-like-it"), "no run called"),
        (("@last", "@last"), "is named twice"),
        (("@last~1", "@last", "--format", "xml"), "not one of"),
        (("@last~1", "@last", "-o", "out.txt"), "not one of .md"),
        (("@last~1", "@last", "--tau", "0"), "not a share"),
        (("@last~1", "@last", "--marker", "a --> b"), "is not a name"),
        (("@last", "foreign.jsonl"), "foreign.jsonl"),
        (("@last", "empty.jsonl"), "empty.jsonl"),
        (("@last", "binary.jsonl"), "binary.jsonl"),
        (("@last", ","), "HEAD is empty"),
        (("alone.jsonl",), "not a side of an experiment"),
        (("lonely.jsonl",), "whose base is not at"),
    ],
)
def test_what_cannot_be_meant_is_2_with_a_hint(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("foreign.jsonl").write_text('{"some": "thing"}\n')
    Path("empty.jsonl").write_text("")
    Path("binary.jsonl").write_bytes(bytes(range(256)) * 3)
    stored("head", experiment="alone", paired=False).rename("alone.jsonl")
    stored("head", experiment="lonely").rename("lonely.jsonl")
    pair()
    done = inside("compare", *args)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert words in done.stderr and done.stdout == ""


def test_runs_without_a_row_in_common_are_an_error(inside) -> None:
    names = (
        str(stored("base", sizes=(8,), paired=False)),
        str(stored("head", sizes=(16,), paired=False)),
    )
    done = inside("compare", *names)
    assert done.returncode == 2 and "no row in common" in done.stderr


def test_an_output_that_cannot_be_written_is_5(bare, tmp_path: Path) -> None:
    done = bare("compare", *pair(), "-o", str(tmp_path / "nowhere" / "out.md"))
    assert done.returncode == 5 and "choose another place" in done.stderr


@pytest.mark.parametrize("name", ["@last", "@last~1", "20250101-e", "20250101-e-base", "nightly"])
def test_one_name_of_an_experiment_means_both_its_sides(inside, name: str) -> None:
    stored("base", experiment="20240101-e")
    pair(1.15, tag="nightly")
    done = inside("compare", name)
    assert done.returncode == 1 and "base git:base1 → head git:head1" in done.stdout
    assert "+15." in done.stdout


def untimed(text: str) -> str:
    """A format's text without the second in which it was made."""
    return re.sub(r'timestamp="[^"]*"', "", text).strip()


def test_every_format_on_standard_output_and_in_files(bare, inside, tmp_path: Path) -> None:
    names = pair(1.15)
    outputs = [tmp_path / f"out{suffix}" for suffix in (".md", ".json", ".html", ".xml")]
    done = bare("compare", *names, *(word for path in outputs for word in ("-o", str(path))))
    assert done.returncode == 1 and "REGRESSED" in done.stdout
    text, data, page, xml = (path.read_text() for path in outputs)
    assert text.startswith("<!-- collbench:compare -->\n### collbench: ❌ 1 regressed")
    assert json.loads(data)["counts"]["REGRESSED"] == 1
    assert page.lstrip().lower().startswith("<!doctype html") and "REGRESSED" in page
    suite = ElementTree.fromstring(xml).find("testsuite")
    assert suite is not None and suite.get("failures") == "1"
    for name, file in (("md", text), ("json", data), ("junit", xml)):
        printed = inside("compare", *names, "--format", name)
        assert (printed.returncode, untimed(printed.stdout)) == (1, untimed(file))


def test_in_github_actions_a_step_gets_annotations_and_a_summary(bare, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    done = bare(
        "compare",
        *pair(1.15),
        "--format",
        "json",
        "--marker",
        "mine",
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert json.loads(done.stdout)["exit"] == done.returncode == 1
    (command,) = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert (
        command.startswith("::error title=collbench%3A ")
        and "1 MiB" in command
        and "+15." in command
    )
    assert summary.read_text().startswith("<!-- collbench:mine -->\n### collbench: ❌")


@pytest.mark.parametrize("command", ["compare", "report"])
def test_how_often_this_machine_was_wrong_is_told(inside, command: str) -> None:
    pair(experiment="20250102-e")
    told, none = "A/A (both sides the same) on this machine: ", "no A/A check of this machine yet"
    ask = (command, "20250102-e-base", "20250102-e-head", "--format", "md")
    assert none in inside(*ask).stdout
    pair(experiment="20240101-aa", aa=True, noise=0.001)
    found = inside(*ask).stdout
    assert f"{told}1 experiment, 2 rows, 0 small at 95% for each row, 0 suspected" in found


def called(text: str) -> list[list[str]]:
    """The words after ``collbench`` of every command in the workflow's scripts."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [
        re.fullmatch(r" *(?:run: )?collbench (.*?)(?: > /dev/null)?(?: \|\| .*)?", line)
        for line in lines
    ]
    return [shlex.split(match[1]) for match in found if match]


def test_the_workflow_calls_ab_and_compare() -> None:
    assert [words[0] for words in called(WORKFLOW.read_text())] == ["ab", "compare"]


@pytest.mark.parametrize("words", called(WORKFLOW.read_text()), ids=" ".join)
def test_the_workflows_commands_are_taken(words: list[str]) -> None:
    """Raises a usage error where an option or an argument is none of theirs."""
    root = typer.main.get_command(commands.app)
    command = root.get_command(None, words[0])  # type: ignore[attr-defined]
    command.make_context(words[0], words[1:])


def test_the_workflow_is_what_github_reads() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install 'collbench[test]'")
    found = yaml.safe_load(WORKFLOW.read_text())
    assert found[True] == {"pull_request": None}  # `on` is a boolean
    assert found["permissions"] == {"contents": "read"}
    measure, verdict = found["jobs"]["measure"], found["jobs"]["verdict"]
    assert "permissions" not in measure
    assert verdict["permissions"] == {"pull-requests": "write"}
    assert verdict["needs"] == "measure"
    assert verdict["if"] == "${{ !cancelled() }}"  # skipped, it would let the request be merged


@pytest.mark.parametrize(
    ("measured", "code", "exit"),
    [("success", "0", 0), ("success", "7", 7), ("failure", "0", 1), ("failure", "", 1)],
)
def test_the_workflows_last_word_is_the_comparisons_code(
    measured: str, code: str, exit: int
) -> None:
    yaml = pytest.importorskip("yaml", reason="pip install 'collbench[test]'")
    step = yaml.safe_load(WORKFLOW.read_text())["jobs"]["verdict"]["steps"][-1]
    env = {**os.environ, "MEASURED": measured, "CODE": code}
    assert set(step["env"]) == {"MEASURED", "CODE"}
    assert subprocess.run(["bash", "-ec", step["run"]], env=env, check=False).returncode == exit


def test_the_workflows_marker_is_the_comments() -> None:
    text = WORKFLOW.read_text()
    assert "--marker pr " in text and 'MARKER: "<!-- collbench:pr -->"' in text
    assert "pull_request_target" not in text  # which would give a fork's code a token that writes


def test_compare_is_listed_and_explains_itself(bare) -> None:
    assert re.search(r"^  compare ", bare("--help").stdout, re.MULTILINE)
    text = bare("compare", "--help").stdout
    assert all(
        option in text
        for option in ("--strict", "--gate-unpaired", "--across-machines", "--tau", "--marker")
    )
    assert "HEAD" in text and os.environ["PYTHONPATH"]
