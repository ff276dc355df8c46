"""`collbench recipe`: files for other programs. Each program is run against a stand-in of what it
calls: scontrol and kubectl that record their arguments, a server, Node Health Check's functions."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from factories import night, nightly, ranks, saved

from collbench.cli.main import main
from collbench.features.health.findings import Finding, Subject, Verdict
from collbench.features.health.views import health
from collbench.features.recipes.command import MARK, RECIPES, read_recipe
from collbench.records.types import End, FirstWrong, Record
from collbench.show import programs

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
STAND_IN = """#!{python}
import json, os, sys
with open({log!r}, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
print({answer!r})
sys.exit({code})
"""
EVIL = [
    "$(touch x)",
    "a b",
    "node[1-9]",
    "a,b",
    "-o",
    "ALL",
    "all.cluster.local",
    "10.0.0.5",
    "",
    "x" * 65,
    "a\nb",
]


def verdict(*hosts: str, **fields: Any) -> Verdict:
    """A verdict that blames these hosts for wrong data."""
    findings = [
        Finding(
            check="gpus",
            severity="critical",
            subject=Subject("host", host),
            what="has wrong data <!channel> & 'quoted' $HOME",
            advice="look at it",
            sure=1.0,
        )
        for host in hosts
    ]
    given: dict[str, Any] = {"state": "unhealthy", "summary": "wrong data", "checks": ()}
    given |= {"findings": findings, "runs": ["run"], "hosts": hosts or ("node1",)}
    given |= {"ended": ended_before(60), **fields}
    return Verdict(**given)


def ended_before(seconds_ago: float) -> str:
    when = time.gmtime(time.time() - seconds_ago)
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", when)


def as_json(made: Verdict) -> str:
    return programs.as_json(health.make_document(made))


HEALTHY = verdict(state="healthy")
QUIET = {
    "healthy": HEALTHY,
    "no verdict": verdict("node1", state="no verdict"),
    "injected": verdict("node1", injected="drop:3"),
    "fake": verdict("node1", fake=True),
    "a hint": verdict(
        findings=[msgspec.structs.replace(f, severity="hint") for f in verdict("node1").findings]
    ),
    "a link": verdict(
        findings=[
            msgspec.structs.replace(f, subject=Subject("link", "node1 -> node2"))
            for f in verdict("node1").findings
        ],
        hosts=("node1", "node2"),
    ),
}


@pytest.fixture
def recipe(inside: Run, tmp_path: Path) -> Callable[[str], Path]:
    """Writes a recipe as users do."""

    def write(name: str) -> Path:
        path = tmp_path / RECIPES[name].file
        assert inside("recipe", name, "-o", str(path)).returncode == 0
        return path

    return write


class Tools:
    """A folder on PATH with programs that record how they are called."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder / "bin", folder / "calls"
        self._folder.mkdir()

    def add(self, name: str, answer: str = "", code: int = 0) -> None:
        path = self._folder / name
        text = STAND_IN.format(python=sys.executable, log=str(self._log), answer=answer, code=code)
        path.write_text(text)
        path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": str(self._folder)}

    @property
    def calls(self) -> list[list[str]]:
        text = self._log.read_text() if self._log.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)


def drain(recipe: Callable[[str], Path], tools: Tools, given: str, *words: str) -> Done:
    command = [sys.executable, str(recipe("drain")), *words]
    return subprocess.run(
        command, input=given, env=tools.environment, capture_output=True, text=True, check=False
    )


# the command


def test_recipes_are_listed_and_printed(inside: Run) -> None:
    listed = inside("recipe")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [*RECIPES]
    for name in RECIPES:
        printed = inside("recipe", name)
        assert printed.returncode == 0 and MARK in printed.stdout[:200]


def test_programs_are_written_executable_and_others_are_not(
    recipe: Callable[[str], Path],
) -> None:
    for name, row in RECIPES.items():
        assert os.access(recipe(name), os.X_OK) == row.is_program, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing",), "NAME: 'nothing' is not one of drain"),
        (("-o", "x"), "-o is given without a name"),
        (("drain", "-o", "mine"), "mine exists and was not written by collbench"),
    ],
)
def test_a_usage_error_is_one_line(
    inside: Run,
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("#!/bin/sh\n")
    done = inside("recipe", *words)
    assert done.returncode == 2 and message in done.stderr.splitlines()[0]


# Slurm and Kubernetes


def test_slurm_drains_a_blamed_node(recipe: Callable[[str], Path], tools: Tools) -> None:
    tools.add("scontrol", "NodeName=node1 State=IDLE ThreadsPerCore=1")
    done = drain(recipe, tools, as_json(verdict("node1.example.org")), "slurm")
    reason = "Reason=collbench: node1.example.org has wrong data <!channel> & 'quoted' $HOME"
    assert done.returncode == 0, done.stderr
    assert tools.calls == [
        ["scontrol", "show", "node", "-o"],
        ["scontrol", "show", "node", "node1", "-o"],
        ["scontrol", "update", "NodeName=node1", "State=DRAIN", reason],
    ]


def test_a_node_that_is_drained_keeps_its_reason(
    recipe: Callable[[str], Path], tools: Tools
) -> None:
    tools.add("scontrol", "NodeName=node1 State=IDLE+DRAIN Reason=DIMM")
    assert drain(recipe, tools, as_json(verdict("node1")), "slurm").returncode == 0
    assert [call[1] for call in tools.calls] == ["show", "show"]


TAKEN = "NodeName={} State=IDLE+DRAIN ThreadsPerCore=1 Reason=collbench: has wrong data [root@now]"


@pytest.mark.parametrize(("names", "code"), [(("node7", "node8"), 1), (("node7", "node1"), 0)])
def test_nodes_that_collbench_has_drained_count_as_well(
    recipe: Callable[[str], Path], tools: Tools, names: tuple[str, ...], code: int
) -> None:
    """Where each node judges itself, each verdict blames but one."""
    others = ["NodeName=node9 State=DOWN+DRAIN Reason=DIMM", "NodeName=node10 State=IDLE"]
    tools.add("scontrol", "\n".join([*map(TAKEN.format, names), *others]))
    done = drain(recipe, tools, as_json(verdict("node1")), "slurm")
    assert done.returncode == code, done.stderr
    assert ("already: node7, node8; together" in done.stderr) == bool(code)
    assert len(tools.calls) == (1 if code else 2)  # of node1, as all lines name it drained


def test_nothing_is_drained_where_it_is_unknown_how_many_are(
    recipe: Callable[[str], Path], tools: Tools
) -> None:
    tools.add("kubectl", "error: you may not list nodes")
    done = drain(recipe, tools, as_json(verdict("node1")), "kubernetes")
    assert done.returncode == 1 and "is not known" in done.stderr
    assert len(tools.calls) == 1


def test_nodes_that_collbench_has_tainted_count_as_well(
    recipe: Callable[[str], Path], tools: Tools
) -> None:
    taint = {"key": "collbench/unhealthy", "effect": "NoSchedule"}
    items = [{"metadata": {"name": name}, "spec": {"taints": [taint]}} for name in ("a", "b")]
    items += [{"metadata": {"name": "c"}, "spec": {}}]
    tools.add("kubectl", json.dumps({"items": items}))
    done = drain(recipe, tools, as_json(verdict("node1")), "kubernetes")
    assert done.returncode == 1 and "already: a, b; together" in done.stderr
    assert drain(recipe, tools, as_json(verdict("a")), "kubernetes").returncode == 0


def test_kubernetes_taints_a_blamed_node_and_says_why(
    recipe: Callable[[str], Path], tools: Tools
) -> None:
    tools.add("kubectl", '{"items": []}')
    done = drain(recipe, tools, as_json(verdict("Node1.example.org")), "kubernetes")
    assert done.returncode == 0, done.stderr
    node, taint = "node1.example.org", "collbench/unhealthy"
    _, taint_call, annotate_call = tools.calls
    assert taint_call == [
        *("kubectl", "taint", "nodes", node),
        *(f"{taint}=true:NoSchedule", "--overwrite"),
    ]
    assert annotate_call[:4] == ["kubectl", "annotate", "nodes", node]
    assert annotate_call[4].startswith(f"{taint}-reason=Node1.example.org has wrong data")


@pytest.mark.parametrize(
    ("where", "name"), [*(("slurm", name) for name in QUIET), ("kubernetes", "no verdict")]
)
def test_nothing_is_drained_without_certainty(
    recipe: Callable[[str], Path], tools: Tools, where: str, name: str
) -> None:
    tools.add("scontrol")
    tools.add("kubectl")
    done = drain(recipe, tools, as_json(QUIET[name]), where)
    assert (done.returncode, tools.calls) == (0, [])
    assert "nothing is done" in done.stderr


@pytest.mark.parametrize("host", EVIL)
def test_a_name_that_is_no_hosts_stops_all(
    recipe: Callable[[str], Path], tools: Tools, host: str
) -> None:
    tools.add("scontrol")
    blamed = [{"host": "node1", "reasons": ["a"]}, {"host": host, "reasons": ["b"]}]
    given = json.dumps({"schema": 1, "state": "unhealthy", "blamed": blamed})
    done = drain(recipe, tools, given, "slurm")
    assert (done.returncode, tools.calls) == (2, [])
    assert "is no host's name; nothing is done" in done.stderr


def test_a_reason_with_control_characters_stays_one_line(
    recipe: Callable[[str], Path], tools: Tools
) -> None:
    tools.add("scontrol")
    blamed = [{"host": "node1", "reasons": ["a\nNodeName=node2\x1b[31m", "b" * 1000]}]
    given = json.dumps(
        {"schema": 1, "state": "unhealthy", "blamed": blamed, "ended": ended_before(60)}
    )
    assert drain(recipe, tools, given, "slurm").returncode == 0
    reason = tools.calls[2][4]
    assert reason.startswith("Reason=collbench: a NodeName=node2 [31m; bbb")
    assert reason.isprintable() and len(reason) < 270


OLD = "2026-01-02T03:04:05+00:00"
TIMELESS = "drain: the verdict does not say when the runs ended"


@pytest.mark.parametrize(
    ("ended", "hosts", "why"),
    [
        (OLD, 1, f"drain: the runs ended {OLD}, longer ago than --max-age"),
        ("", 1, TIMELESS),
        ("yesterday", 1, TIMELESS),
        ("0001-01-01T00:00:00+14:00", 1, TIMELESS),
        (OLD, 3, "longer ago than --max-age; 3 hosts are blamed, more than --most"),
    ],
)
def test_nothing_is_drained_by_runs_of_an_earlier_day(
    recipe: Callable[[str], Path], tools: Tools, ended: str, hosts: int, why: str
) -> None:
    """As where nothing was measured since, and the node was repaired."""
    tools.add("scontrol", "NodeName=node1 State=IDLE")
    names = [f"node{number + 1}" for number in range(hosts)]
    done = drain(recipe, tools, as_json(verdict(*names, ended=ended)), "slurm")
    assert (done.returncode, tools.calls) == (1, [])
    assert f"{why}; nothing is done" in done.stderr
    given = as_json(verdict("node1", ended=ended_before(25 * 3600)))
    assert drain(recipe, tools, given, "slurm", "--max-age", "26").returncode == 0
    assert len(tools.calls) == 3


def test_more_hosts_than_most_are_left_to_people(
    recipe: Callable[[str], Path], tools: Tools
) -> None:
    tools.add("kubectl", '{"items": []}')
    given = as_json(verdict("node1", "node2", "node3"))
    done = drain(recipe, tools, given, "kubernetes")
    assert (done.returncode, tools.calls) == (1, [])
    assert "3 hosts are blamed, more than --most" in done.stderr
    assert drain(recipe, tools, given, "kubernetes", "--most", "3").returncode == 0
    assert len(tools.calls) == 7


def test_a_dry_run_calls_nothing(recipe: Callable[[str], Path], tools: Tools) -> None:
    done = drain(recipe, tools, as_json(verdict("node1")), "slurm", "--dry-run")
    assert (done.returncode, tools.calls) == (0, []) and "'State=DRAIN'" in done.stderr
    tools.add("scontrol", "\n".join(map(TAKEN.format, ("node7", "node8"))))
    done = drain(recipe, tools, as_json(verdict("node1")), "slurm", "--dry-run")
    assert done.returncode == 1 and "'State=DRAIN'" not in done.stderr


@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_what_fails_is_told(recipe: Callable[[str], Path], tools: Tools, where: str) -> None:
    absent = drain(recipe, tools, as_json(verdict("node1")), where)
    assert absent.returncode == 1 and "No such file" in absent.stderr
    tools.add("scontrol", code=1)
    tools.add("kubectl", code=1)
    assert drain(recipe, tools, as_json(verdict("node1")), where).returncode == 1


@pytest.mark.parametrize("given", ["", "[]", '{"schema": 2}', '{"schema": 1}'])
@pytest.mark.parametrize("name", ["drain", "webhook"])
def test_what_is_no_verdict_is_one_line(
    recipe: Callable[[str], Path], tools: Tools, name: str, given: str
) -> None:
    words = ["slurm"] if name == "drain" else []
    done = subprocess.run(
        [sys.executable, str(recipe(name)), *words],
        input=given,
        env={**tools.environment, "COLLBENCH_WEBHOOK_URL": "http://127.0.0.1:9/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "this is no verdict of collbench" in done.stderr and tools.calls == []


# a webhook


class Server:
    """A server on loopback that keeps what is posted to it, and answers with ``status``."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, Any]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"]))
                outer.posts.append((self.headers["Content-Type"], json.loads(text)))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/secret"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


def post(path: Path, url: str, given: str, *words: str) -> Done:
    return subprocess.run(
        [sys.executable, str(path), *words],
        input=given,
        env={**os.environ, "COLLBENCH_WEBHOOK_URL": url, "no_proxy": "*"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_chat_gets_the_findings_and_no_name_calls_people(
    recipe: Callable[[str], Path], server: Server
) -> None:
    done = post(recipe("webhook"), server.url, as_json(verdict("node1")))
    assert done.returncode == 0, done.stderr
    ((kind, body),) = server.posts
    assert kind == "application/json" and body.keys() == {"text"}
    first, second = body["text"].splitlines()
    assert first.startswith("collbench (node1): unhealthy: wrong data (runs until 20")
    assert second.startswith("critical: node1: has wrong data &lt;!channel&gt; &amp; 'quoted'")


def test_teams_gets_a_card_and_json_the_verdict(
    recipe: Callable[[str], Path], server: Server
) -> None:
    given = as_json(verdict("node1"))
    path = recipe("webhook")
    assert post(path, server.url, given, "--teams").returncode == 0
    assert post(path, server.url, given, "--json").returncode == 0
    (_, card), (_, whole) = server.posts
    content = card["attachments"][0]["content"]
    assert content["type"] == "AdaptiveCard" and len(content["body"]) == 2
    assert whole == json.loads(given)


def test_a_test_of_the_alarm_is_posted_as_one(
    recipe: Callable[[str], Path], server: Server
) -> None:
    post(recipe("webhook"), server.url, as_json(QUIET["injected"]))
    ((_, body),) = server.posts
    assert body["text"].startswith("TEST, fault injected (drop:3): collbench")


@pytest.mark.parametrize("name", ["healthy", "no verdict"])
def test_nothing_is_posted_where_nothing_is_wrong(
    recipe: Callable[[str], Path], server: Server, name: str
) -> None:
    done = post(recipe("webhook"), server.url, as_json(QUIET[name]))
    assert (done.returncode, server.posts) == (0, [])


@pytest.mark.parametrize(
    ("url", "fault"),
    [("", "is not set"), ("hooks.example.org", "does not begin with https:// or http://")],
)
def test_a_webhook_without_an_address_says_what_is_wrong_with_it(
    recipe: Callable[[str], Path], url: str, fault: str
) -> None:
    done = post(recipe("webhook"), url, as_json(verdict("node1")))
    assert (done.returncode, done.stderr) == (2, f"webhook: COLLBENCH_WEBHOOK_URL {fault}\n")


def test_a_webhook_that_refuses_is_told_without_its_address(
    recipe: Callable[[str], Path], server: Server
) -> None:
    server.status = 404
    given, path = as_json(verdict("node1")), recipe("webhook")
    refused = post(path, server.url, given)
    assert refused.returncode == 1 and "it answered 404" in refused.stderr
    away = post(path, "http://127.0.0.1:9/secret", given)
    assert away.returncode == 1 and "cannot be reached" in away.stderr
    bad = post(path, "http://127.0.0.1:9/a secret", given)
    assert bad.returncode == 1 and "cannot be reached" in bad.stderr
    for url in ("", "file:///etc/passwd", "secret"):
        assert post(path, url, given).returncode == 2
    assert "secret" not in refused.stderr + away.stderr + bad.stderr


# Node Health Check

NHC = """
set -u
function die() {{ shift; echo "DIED: $*"; }}
function dbg() {{ echo "dbg: $*"; }}
HOSTNAME={host}
source {script}
check_collbench {file} {age} {kept}
echo "rc $?"
"""


def find_mark(host: str, file: Path) -> Path:
    """What is there from the verdict that blames the node to one that has measured it again."""
    return file.with_name(f"blamed-{host.encode().hex()}")


def check_node(script: Path, host: str, file: Path, age: str = "172800") -> str:
    words = {"host": host, "file": str(file), "kept": str(find_mark(host, file))}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    text = NHC.format(script=script, age=age, **quoted)
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout


def write_verdict(path: Path, made: Verdict) -> None:
    path.write_text(programs.render_prometheus(health.make_document(made)))


@pytest.mark.parametrize("host", ["node1", "node1.example.org"])
def test_a_blamed_node_fails_its_check_and_no_other(
    recipe: Callable[[str], Path], tmp_path: Path, host: str
) -> None:
    file, script = tmp_path / "x.prom", recipe("nhc")
    blamed = verdict(host, hosts=(host, "node2", "node11"), ended=ended_before(3600))
    write_verdict(file, blamed)
    assert "DIED: check_collbench: collbench blames this node" in check_node(script, "node1", file)
    assert check_node(script, "node1", file).endswith("rc 1\n")
    for other in ("node2", "node11", "node3", "node", "*", "nod?1"):
        assert check_node(script, other, file) == "rc 0\n", other


@pytest.mark.parametrize("name", QUIET)
def test_a_node_fails_no_check_without_certainty(
    recipe: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    file = tmp_path / "x.prom"
    write_verdict(file, msgspec.structs.replace(QUIET[name], ended=ended_before(3600)))
    assert check_node(recipe("nhc"), "node1", file) == "rc 0\n"


def test_a_verdict_that_is_old_or_missing_fails_nothing(
    recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    file, script = tmp_path / "x.prom", recipe("nhc")
    assert check_node(script, "node1", file).endswith("no verdict\nrc 0\n")
    write_verdict(file, verdict("node1", ended=ended_before(3 * 86400)))
    assert check_node(script, "node1", file).endswith("too old\nrc 0\n")
    assert "DIED" in check_node(script, "node1", file, str(4 * 86400))
    find_mark("node1", file).unlink()
    write_verdict(file, verdict("node1", ended=""))  # nobody knows when
    assert check_node(script, "node1", file).endswith("too old\nrc 0\n")
    file.write_text("")
    assert check_node(script, "node1", file).endswith("rc 0\n")


def test_a_node_that_was_blamed_fails_until_it_is_measured_again(
    recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    """Else NHC would resume it, as nobody measures a node that is drained."""
    file, script, recent = tmp_path / "x.prom", recipe("nhc"), ended_before(60)
    write_verdict(file, verdict("node1", hosts=("node1", "node2"), ended=recent))
    assert check_node(script, "node1", file).endswith("rc 1\n")
    write_verdict(file, verdict(hosts=("node2",), ended=recent))
    assert "not measured it since" in check_node(script, "node1", file)
    write_verdict(file, verdict(hosts=("node1",), ended=ended_before(3 * 86400)))
    assert check_node(script, "node1", file).endswith("rc 1\n")
    for unjudged in ({"state": "no verdict"}, {"injected": "drop:3"}, {"fake": True}):
        write_verdict(file, verdict(hosts=("node1",), ended=recent, **unjudged))
        assert check_node(script, "node1", file).endswith("rc 1\n"), unjudged
    file.unlink()
    assert check_node(script, "node1", file).endswith("rc 1\n")
    write_verdict(file, verdict(hosts=("node1", "node2"), ended=recent))
    assert check_node(script, "node1", file) == "rc 0\n"
    write_verdict(file, verdict(hosts=("node2",), ended=recent))
    assert check_node(script, "node1", file) == "rc 0\n"


# from the verdict to the node


def test_health_drains_the_only_node_where_data_was_wrong(
    tools: Tools,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = nightly()[2]
    first = FirstWrong(rank=1, index=7, got="1", expected="2")

    def corrupt(made: Record) -> Record:
        fields = {"status": "wrong", "wrong": 1, "first_wrong": first}
        return msgspec.structs.replace(made, **fields) if made.case == row else made

    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    alone = {"ranks": ranks(["node1"] * 4)}
    made = night(change=corrupt, worlds=alone)
    saved(msgspec.structs.replace(made, end=End(exit=7, ended=ended_before(60))), tmp_path)
    tools.add("scontrol")
    script = tmp_path / "drain.py"
    script.write_text(read_recipe("drain"))
    words = ["health", "@last", "--no-history"]
    words += ["--on-unhealthy", f"{sys.executable} {script} slurm"]
    monkeypatch.setattr(sys, "argv", ["collbench", *words])
    monkeypatch.setenv("PATH", tools.environment["PATH"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1, capfd.readouterr().err
    assert [call[:4] for call in tools.calls[2:]] == [
        ["scontrol", "update", "NodeName=node1", "State=DRAIN"]
    ]
