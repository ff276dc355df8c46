"""What of a run that was cut short need not be measured again."""

from __future__ import annotations

import shlex
from pathlib import Path

import factories
import pytest

from collbench.core.backend_sources import IMPORTS
from collbench.core.errors import UsageError
from collbench.records.derive import NO_TIME_LEFT
from collbench.records.types import Record, RunFile
from collbench.run import resumption
from collbench.run.launch.local import Launcher
from collbench.run.order import Order, prepare_order


def test_what_failed_and_what_a_budget_dropped_is_measured_again() -> None:
    done, wrong, lost, late, never, cut = factories.sized(6)
    file = factories.make_file(
        [
            factories.record(done),
            factories.record(wrong, status="wrong"),
            factories.record(lost, status="failed"),
            factories.record(late, status="skipped", times_ns=[], note=f"{NO_TIME_LEFT} 3s"),
            factories.record(never, status="skipped", times_ns=[], note="gloo has none"),
            factories.record(cut, stop="cut"),
        ]
    )
    assert [record.case for record in resumption.Resumption(file).kept_records] == [
        done,
        wrong,
        never,
    ]


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "PATH"])
def test_a_file_sets_no_variable_that_could_run_anything(tmp_path: Path, name: str) -> None:
    suite = factories.suite(envs=((("NCCL_ALGO", "Ring"),), ((name, "evil"),)))
    path = factories.saved(factories.make_file([], suite=suite), tmp_path)
    with pytest.raises(UsageError, match=f"the run sets {name}, which is never taken from a"):
        resumption.find_resumable(str(path))


FOREIGN = factories.suite(
    envs=(
        (("LD_PRELOAD", "./x y.so"), ("NCCL_ALGO", "Ring"), ("CUDA_DEVICE_MAX_CONNECTIONS", "1")),
        (("LD_PRELOAD", "./x y.so"), ("NCCL_ALGO", "Ring"), ("CUDA_DEVICE_MAX_CONNECTIONS", "8")),
    )
)
NAMED = ["LD_PRELOAD=./x y.so", "CUDA_DEVICE_MAX_CONNECTIONS=1,8"]


def test_a_run_goes_on_once_its_variables_are_named(tmp_path: Path) -> None:
    file = factories.make_file([], suite=FOREIGN)
    path = factories.saved(file, tmp_path)
    command = shlex.split(resumption.format_command(file.run, str(path)))
    assert command[:4] == ["collbench", "run", "--resume", str(path)]
    assert sorted(command[5::2]) == sorted(NAMED) and {*command[4::2]} == {"--env"}
    assert resumption.find_resumable(str(path), command[5::2]).run.id == file.run.id


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "sets CUDA_DEVICE_MAX_CONNECTIONS, LD_PRELOAD, which are never taken"),
        (NAMED[:1], "sets CUDA_DEVICE_MAX_CONNECTIONS, which is never taken from"),
        ([NAMED[0], "CUDA_DEVICE_MAX_CONNECTIONS=1"], "the run has another value"),
        (["LD_PRELOAD=./other.so", NAMED[1]], "--env LD_PRELOAD=./other.so: the run has another"),
        ([*NAMED, "NCCL_ALGO=Ring"], "--env NCCL_ALGO has no effect on this run"),
        (["LD_PRELOAD"], "is not NAME=VALUE"),
    ],
)
def test_a_run_does_not_go_on_with_other_variables_than_its_own(
    settings: list[str], message: str, tmp_path: Path
) -> None:
    file = factories.make_file([], suite=FOREIGN)
    path = factories.saved(file, tmp_path)
    with pytest.raises(UsageError, match=message) as raised:
        resumption.find_resumable(str(path), settings)
    if settings != ["LD_PRELOAD"]:
        assert raised.value.hint == resumption.format_command(file.run, str(path))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("locate -g 4", "locate decides while it runs what to measure next, and does not save"),
        ("health @last --locate", "health --locate is not saved in the run file"),
        ("tune all_reduce", "tune decides while it runs what to measure next, and does not save"),
        ("order all_reduce --require proved", "order --require is not saved in the run file"),
        ("order all_reduce --like=@last", "order --like is not saved in the run file"),
    ],
)
def test_runs_of_tune_and_order_require_cannot_be_resumed(
    command: str, reason: str, tmp_path: Path
) -> None:
    file = factories.make_file([], command=["collbench", *command.split()])
    path = factories.saved(file, tmp_path)
    with pytest.raises(UsageError, match=reason):
        resumption.find_resumable(str(path))
    assert resumption.format_command(file.run, str(path)) == ""
    assert resumption.describe_remedy(file.run, str(path)) == "start a new run"


@pytest.mark.parametrize(
    ("command", "way"),
    [
        ("run locate.toml", "run --resume r"),
        ("all_reduce --require", "run --resume r"),
        ("order all_reduce", "run --resume r"),
        ("health --rerun", "run --resume r"),
        ("health --inject drop:3", "run --resume r"),
        ("pairs --launcher ssh --hosts a,b", "pairs --resume r --launcher ssh --hosts a,b"),
        ("pairs --backend ./my.py", "run --resume r --backend ./my.py"),
    ],
)
def test_a_run_goes_on_by_the_command_that_judges_it(command: str, way: str) -> None:
    run = factories.run(command=["collbench", *command.split()])
    assert resumption.format_command(run, "r") == f"collbench {way}"
    assert resumption.describe_remedy(run, "r") == f"collbench {way} measures it again"
    assert resumption.describe_remedy(run, "") == "start a new run"


@pytest.mark.parametrize("undone", [{"status": "failed"}, {"stop": "cut"}])
def test_a_group_that_is_not_done_is_measured_again_with_the_one_that_leads(
    undone: dict[str, str],
) -> None:
    suite = factories.suite(backends=("gloo",), groups="mod:2")
    every, _ = suite.expand()
    other, leader = next(case for case in every if case.is_leader).siblings
    done = [factories.record(case) for case in every if case != other]
    file = factories.make_file([factories.record(other, **undone), *done], suite=suite)
    prepared = prepare_order(Order(suite=suite, command=(), resumed=file))
    assert [job.case for job in prepared.jobs] == [leader]
    earlier = resumption.Resumption(file)
    (plan,) = earlier.plan_remaining(prepared.jobs, suite.policy)
    assert [job.case for job in plan.jobs] == [leader]
    (apart,) = earlier.plan_remaining(prepared.jobs, suite.policy, lambda n: 1)
    assert apart.timeout < plan.timeout


@pytest.mark.parametrize("named", [(), ("isolated",)])
def test_a_run_goes_on_in_the_modes_that_it_has(named: tuple[str, ...]) -> None:
    """Where the default is another now, as it follows the cores of hosts."""
    suite = factories.suite(sizes=(64, 128), ranks=(2, 4), cores=64, modes=named)
    done = [factories.case(64, n=2, mode="host"), factories.case(64, n=4)]
    file = factories.make_file(list(map(factories.record, done)), suite=suite)
    prepared = prepare_order(Order(suite=suite, command=(), resumed=file))
    modes = {n: {case.mode for case in prepared.cases if case.n == n} for n in (2, 4)}
    assert modes == {2: {"isolated"} if named else {"host"}, 4: {"isolated"}}
    assert len(prepared.jobs) == 8 - (1 if named else 2)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["all_reduce", "--import=mine"], ("must name", "add --import mine")),
        (["all_reduce"], ("unknown backend 'nobodys'", "--import MODULE")),
    ],
)
def test_a_backend_that_nobody_knows_now_is_refused(
    command: list[str], words: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(IMPORTS, raising=False)
    run = factories.run("r", command=command, suite=factories.suite(backends=("gloo", "nobodys")))
    with pytest.raises(UsageError) as raised:
        resumption.load_backends(run, ())
    assert words[0] in raised.value.message and words[1] in raised.value.hint
    monkeypatch.setenv(IMPORTS, "mine")
    resumption.load_backends(run, ())


def test_no_record_that_is_kept_waits_for_a_second_pass() -> None:
    (case,) = factories.sized(1)
    file = factories.make_file([factories.record(case, stop="budget", seconds=5.0)])
    (*_, reported) = resumption.Resumption(file).reported
    assert isinstance(reported, Record) and reported.again


def resume_world(launcher: str, hosts: list[str], backend: str = "gloo") -> RunFile:
    ranks = factories.ranks(hosts)
    world = factories.world(0, n=len(hosts), launcher=launcher, ranks=ranks, backend=backend)
    return factories.make_file([], worlds=[world])


@pytest.mark.parametrize(
    ("before", "now"),
    [("ssh", "local"), ("local", "ssh"), ("mpirun (Open MPI)", "local"), ("srun", "torchrun")],
)
def test_ranks_of_another_launcher_do_not_go_on_with_a_run(before: str, now: str) -> None:
    file = resume_world(before, ["a", "a"])
    with pytest.raises(UsageError, match="started its ranks, and now"):
        resumption.refuse_another_launcher(file, now, lambda n: ["a"] * n)


@pytest.mark.parametrize(
    ("launcher", "backend"), [("local", "gloo"), ("local", "mpi"), ("none", "model")]
)
def test_ranks_that_collbench_started_here_go_on_here(launcher: str, backend: str) -> None:
    here = Launcher()
    file = resume_world(launcher, ["a", "a"], backend)
    resumption.refuse_another_launcher(file, here.launcher, here.list_hosts)


@pytest.mark.parametrize("now", [["a", "b"], ["b", "b", "a", "a"], ["a"] * 4, ["a", "a", "c", "c"]])
def test_ranks_on_other_hosts_do_not_go_on_with_a_run(now: list[str]) -> None:
    file = resume_world("ssh", ["a", "a", "b", "b"][: len(now)])
    with pytest.raises(UsageError, match=r"its ranks were on a \(2 ranks\)"):
        resumption.refuse_other_hosts(file, now)


def test_hosts_that_are_the_same_or_not_known_or_one_under_a_new_name_go_on() -> None:
    file = resume_world("ssh", ["a", "b"])
    resumption.refuse_other_hosts(file, ["a", "b"])
    resumption.refuse_other_hosts(file, [])
    resumption.refuse_other_hosts(resume_world("local", ["a", "a"]), ["box", "box"])
    nameless = factories.make_file([], worlds=[factories.world(n=2)])
    resumption.refuse_other_hosts(nameless, ["a", "b"])
