"""Ranks on hosts of their own that ssh reaches: one table, hosts that are not there, hosts that are
lost, and what is left on the others."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import shells
from needs import stop_without
from network import Host, Lab
from shells import Shells
from waiting import wait_for

from collbench.records import run_file

pytestmark = pytest.mark.usefixtures("possible")
ONCE = ("all_reduce", "--sizes", "4K,64K", "-n", "5", "-w", "1", "--place", "out")
ENDLESS = (
    *("sendrecv", "--place", "out", "--sizes", "4K", "-n", "100", "-w", "0", "-N", "1000"),
    *("-T", "5"),
)


@pytest.fixture(scope="module", autouse=True)
def has_sshd() -> None:
    if reason := shells.why_not():
        stop_without("sshd", reason)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(hosts=3) as lab:
        yield lab


def commands_on(host: Host) -> list[str]:
    """Command lines of what of collbench runs on a host."""
    lines = subprocess.run(
        host.enter(["ps", "-A", "-ww", "-o", "args="]), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if "python" in line and "ps -A" not in line]


def end_command(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the command, which nsenter has started, and wait for its end."""
    (command,) = psutil.Process(process.pid).children()
    command.send_signal(number)
    process.communicate(timeout=60)


def count_records(path: Path) -> int:
    return path.read_text().count('"line":"record"') if path.exists() else 0


@pytest.mark.slow
def test_ranks_are_on_the_listed_hosts_in_their_order(lab: Lab, tmp_path: Path) -> None:
    """The list is a file, and names a host by its user and another by its address."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"# three hosts\nroot@h2 slots=2\n\n{lab.hosts[0].address}:1 # by address\n")
    path = tmp_path / "run.jsonl"
    done = Shells(lab, tmp_path).run(
        *ONCE, "--format", "csv", "--output", str(path), hosts=str(hosts)
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done.stderr
    run = run_file.read_file(path)
    (world,) = run.worlds
    assert world.launcher == "ssh"
    assert [rank.host for rank in world.ranks] == ["h2", "h2", "h0"]
    assert [(record.status, record.wrong) for record in run.records] == [("ok", 0)] * 2
    assert all(commands_on(host) == [] for host in lab.hosts)


@pytest.mark.slow
def test_each_host_that_cannot_keep_ranks_is_named_with_the_reason(
    lab: Lab, tmp_path: Path
) -> None:
    """In one message, with ssh's own words."""
    made = Shells(lab, tmp_path, closed=["h0"], locked=["h1"], unknown=["h2"])
    done = made.run(*ONCE, "-T", "20", "--backend", "gloo")
    assert (done.returncode, done.stdout) == (5, "")
    message, hint = done.stderr.splitlines()
    assert message.startswith("collbench: --launcher ssh: 3 of 3 hosts: h0: ")
    assert "h0: ssh: connect to host h0 port 2222: Connection refused" in message
    assert "h1: root@h1: Permission denied (publickey)" in message
    assert "h2: No ED25519 host key is known for [h2]:2222" in message
    assert "Host key verification failed" in message
    assert hint.startswith("  hint: does this reach it? ssh -F ")


@pytest.mark.slow
def test_hosts_without_this_collbench_are_refused(lab: Lab, tmp_path: Path) -> None:
    """One has no such Python, one a Python without collbench, one another version."""
    interpreter = Path(sys.executable).resolve()
    older = tmp_path / "tree" / "collbench" / "core"
    older.mkdir(parents=True)
    for folder in (older, older.parent):
        (folder / "__init__.py").touch()
    (older / "version.py").write_text('__version__ = "0.0.1"\n')
    for name, line in {
        "bare": f'exec {interpreter} -I -S "$@"',
        "older": f'PYTHONPATH={tmp_path / "tree"} exec {interpreter} "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    pythons = {f"h{i}": tmp_path / name for i, name in enumerate(("nowhere", "bare", "older"))}
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{name} python={path}\n" for name, path in pythons.items()))
    done = Shells(lab, tmp_path).run(*ONCE, "--backend", "gloo", hosts=str(hosts))
    assert (done.returncode, done.stdout) == (5, "")
    assert f"3 of 3 hosts: h0: {pythons['h0']} cannot be run there (" in done.stderr
    assert "cannot load collbench: ModuleNotFoundError: No module named" in done.stderr
    assert "has collbench 0.0.1, and this is " in done.stderr
    assert "  hint: install collbench there at the same path" in done.stderr


@pytest.mark.long
def test_a_host_that_is_killed_is_named_and_the_others_are_left_clean(
    lab: Lab, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    process = Shells(lab, tmp_path).start(*ENDLESS, "--output", str(path))
    wait_for(lambda: count_records(path) > 3)
    lab.kill(lab.hosts[2])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    wait_for(lambda: not (commands_on(lab.hosts[0]) + commands_on(lab.hosts[1])), 20)
    run = run_file.read_file(path)
    assert run.end is not None and run.end.exit == 4
    assert {record.status for record in run.records[:-1]} == {"ok"}
    assert run.records[-1].status == "failed"
    assert "h2" in run.records[-1].note
    assert "h1" not in run.records[-1].note


@pytest.mark.long
@pytest.mark.parametrize("what", ["cut", "session", "rank"])
def test_who_is_lost_is_named(what: str, lab: Lab, tmp_path: Path) -> None:
    """The link is cut, sshd's session is killed, or a rank is."""
    path = tmp_path / "run.jsonl"
    process = Shells(lab, tmp_path).start(*ENDLESS, "--output", str(path))
    wait_for(lambda: count_records(path) > 3)
    if what == "cut":
        lab.cut(lab.hosts[1])
    else:
        strike(what, lab.hosts[1])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    note = run_file.read_file(path).records[-1].note
    assert "h1" in note, err
    if what == "cut":  # which it finds out itself
        wait_for(lambda: not commands_on(lab.hosts[1]), 30)
    wait_for(lambda: not any(commands_on(host) for host in lab.hosts), 30)


@pytest.mark.slow
def test_a_path_of_libraries_is_told_of_or_given_to_ranks(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sshd gives hosts none; a rank that --env gives one is started with it."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    made = Shells(lab, tmp_path)
    done = made.run(*ONCE, "--no-save")
    assert done.returncode == 0, done.stderr
    assert "collbench: LD_LIBRARY_PATH has another value on h0, h1, h2, or none" in done.stderr
    path = tmp_path / "run.jsonl"
    given = "--env", f"LD_LIBRARY_PATH={tmp_path}"
    process = made.start(*ENDLESS, *given, "--output", str(path))
    wait_for(lambda: count_records(path) > 0)
    environments = [
        find_process("launch.keeper", host).environ().get("LD_LIBRARY_PATH") for host in lab.hosts
    ]
    end_command(process, signal.SIGINT)
    assert environments == [str(tmp_path)] * 3


def find_process(text: str, host: Host) -> psutil.Process:
    """The process of a host whose command line has these words."""
    space = Path(f"/proc/{host.pid}/ns/pid").readlink()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            is_there = Path(f"/proc/{process.pid}/ns/pid").readlink() == space
            if is_there and text in " ".join(process.cmdline()):
                return process
    raise AssertionError(f"{text} does not run on {host.name}")


def strike(what: str, host: Host) -> None:
    """Kill the rank of a host, or all of sshd there."""
    space = Path(f"/proc/{host.pid}/ns/pid").readlink()
    for process in psutil.process_iter():
        try:
            if Path(f"/proc/{process.pid}/ns/pid").readlink() != space:
                continue
            command = " ".join(process.cmdline())
        except (OSError, psutil.Error):
            continue
        if ("sshd" if what == "session" else "launch.keeper") in command:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_where_the_command_is_ended(
    number: signal.Signals, lab: Lab, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    process = Shells(lab, tmp_path).start(*ENDLESS, "--output", str(path))
    wait_for(lambda: count_records(path) > 3)
    end_command(process, number)
    wait_for(lambda: not any(commands_on(host) for host in lab.hosts), 20)
    run = run_file.read_file(path)
    assert run.records[0].status == "ok"
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert run.end is not None and run.end.exit == 130


@pytest.mark.long
def test_no_command_line_shows_a_key_or_a_setting(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLBENCH_TOKEN", "a-secret-of-the-test")
    monkeypatch.setenv("GLOO_TEST_SETTING", "a-setting-of-the-test")
    path = tmp_path / "run.jsonl"
    process = Shells(lab, tmp_path).start(*ENDLESS, "--output", str(path))
    wait_for(lambda: count_records(path) > 0)
    shown = [line for host in (*lab.hosts, lab.login) for line in commands_on(host)]
    end_command(process, signal.SIGINT)
    assert any("launch.keeper" in line for line in shown)
    assert not any("of-the-test" in line for line in shown)
    variables = run_file.read_file(path).run.environment["variables"]
    assert variables["GLOO_TEST_SETTING"] == "a-setting-of-the-test"


def test_doctor_says_of_each_host_what_is_there(tmp_path: Path) -> None:
    with Lab(hosts=2) as lab:
        made = Shells(lab, tmp_path, closed=["h1"])
        here = ["env", "-C", str(Path.cwd()), sys.executable, "-m", "collbench"]
        words = ["doctor", "--hosts", "h0:2,h1", "--ssh", made.command]
        done = subprocess.run(
            lab.login.enter([*here, *words]),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    first, second = done.stdout.splitlines()
    assert (done.returncode, first.split()[:2], second.split()[:2]) == (
        5,
        ["h0", "yes"],
        ["h1", "no"],
    )
    assert "for 2 ranks; collbench " in first
    assert f"ranks reach it at {lab.hosts[0].address}" in first
    assert "Connection refused" in second
