"""docker/: images, compose, Slurm, Kubernetes and Ray recipes, as far as they can be checked
without their engines.

Linters and schemas read all of them; the command line reads the commands in them; sbatch files run
real ranks under a srun made here, and the environments of compose's nodes and of the Job's pods
bring real ranks together.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from factories import night, nightly, saved
from marks import long
from warm import Warm

import collbench
from collbench.cli import main as commands
from collbench.records import run_file

yaml = pytest.importorskip(
    "yaml", reason="manifests are read by PyYAML: pip install 'collbench[test]'"
)
ROOT = Path(collbench.__file__).parents[1]
DOCKER = ROOT / "docker"
IMAGES = sorted(DOCKER.glob("Dockerfile*"))
MANIFESTS = sorted([*DOCKER.glob("kubernetes/*.yaml"), *DOCKER.glob("ray/*.yaml")])
SHELL = [DOCKER / "nightly.sh", *sorted(DOCKER.glob("slurm/*.sbatch"))]
BIN = Path(sys.executable).parent
FAKE = Path(__file__).parent / "fake_slurm"
QUICK = [
    "--minbytes",
    "1K",
    "--maxbytes",
    "1K",
    "--iters",
    "6",
    "--warmup_iters",
    "1",
    "--format",
    "csv",
    "--no-save",
]

# fields of custom kinds that recipes may use, from the kinds' definitions: kubernetes-sigs/jobset
# 08dfbdfd, kubeflow/mpi-operator caa3c47 and ray-project/kuberay feeaf72f. [] stands for a list's
# items, {} for a pod's template.
FIELDS = {
    "JobSet": (
        """
        spec.network.enableDNSHostnames spec.network.publishNotReadyAddresses
        spec.failurePolicy.maxRestarts spec.ttlSecondsAfterFinished spec.replicatedJobs[].name
        spec.replicatedJobs[].replicas spec.replicatedJobs[].template.spec.completions
        spec.replicatedJobs[].template.spec.parallelism
        spec.replicatedJobs[].template.spec.backoffLimit
        spec.replicatedJobs[].template.spec.activeDeadlineSeconds
        spec.replicatedJobs[].template.spec.template{}"""
    ),
    "MPIJob": (
        """
        spec.slotsPerWorker spec.sshAuthMountPath spec.launcherCreationPolicy
        spec.runPolicy.cleanPodPolicy spec.runPolicy.backoffLimit
        spec.runPolicy.activeDeadlineSeconds spec.runPolicy.ttlSecondsAfterFinished
        spec.mpiReplicaSpecs.Launcher.replicas spec.mpiReplicaSpecs.Launcher.template{}
        spec.mpiReplicaSpecs.Worker.replicas spec.mpiReplicaSpecs.Worker.template{}"""
    ),
    "RayJob": (
        """
        spec.entrypoint spec.shutdownAfterJobFinishes spec.ttlSecondsAfterFinished
        spec.activeDeadlineSeconds spec.backoffLimit
        spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus
        spec.rayClusterSpec.headGroupSpec.template{}
        spec.rayClusterSpec.workerGroupSpecs[].groupName
        spec.rayClusterSpec.workerGroupSpecs[].replicas
        spec.rayClusterSpec.workerGroupSpecs[].minReplicas
        spec.rayClusterSpec.workerGroupSpecs[].maxReplicas
        spec.rayClusterSpec.workerGroupSpecs[].rayStartParams
        spec.rayClusterSpec.workerGroupSpecs[].template{}"""
    ),
}
COMMON = {"apiVersion", "kind", "metadata.name"}
VERSIONS = {
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "MPIJob": "kubeflow.org/v2beta1",
    "RayJob": "ray.io/v1",
}


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"no {name}: pip install 'collbench[test]'")
    return found


def ran(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, check=False, **options
    )


def read(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def pods(found: Any) -> Iterator[dict[str, Any]]:
    """Every pod's template inside, wherever it stands."""
    if isinstance(found, dict):
        if "containers" in found.get("spec", {}):
            yield found
        else:
            for value in found.values():
                yield from pods(value)
    elif isinstance(found, list):
        for value in found:
            yield from pods(value)


def fields(found: Any, at: str = "") -> Iterator[str]:
    """Paths of all fields, as FIELDS has them."""
    if at.endswith(".template") and "containers" in found.get("spec", {}):
        yield at + "{}"
    elif isinstance(found, dict) and found:
        for name, value in found.items():
            yield from fields(value, f"{at}.{name}" if at else name)
    elif isinstance(found, list):
        for value in found:
            yield from fields(value, at + "[]")
    else:
        yield at


def instructions(path: Path) -> list[tuple[str, str]]:
    """(name, rest) of a Dockerfile's, with continued lines joined and comments left out."""
    lines = (
        re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
        .replace("\\\n", " ")
        .splitlines()
    )
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()
    ]


# ---- images


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_images_pass_their_linter(path: Path) -> None:
    done = ran(tool("hadolint"), path)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_the_linter_sees_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM python:latest\nRUN pip install torch\n")
    done = ran(tool("hadolint"), wrong)
    assert done.returncode and all(rule in done.stdout for rule in ("DL3007", "DL3013", "DL3042"))


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_images_are_pinned_private_and_cache_nothing(path: Path) -> None:
    said = instructions(path)
    assert [rest for name, rest in said if name == "USER"][-1] == "1000:1000"
    for base in (rest.split()[0] for name, rest in said if name == "FROM"):
        assert base in ("python:3.12-slim-bookworm", "${BASE}")
    for run in (rest for name, rest in said if name == "RUN"):
        assert all(
            " --no-cache-dir " in step
            for step in run.split("&&")
            if re.search(r"pip (install|wheel)", step)
        )
        assert all(
            " --constraint constraints.txt " in step
            for step in run.split("&&")
            if "pip install" in step
        )
        # an index of torch's has other versions of what torch needs than constraints.txt
        assert all("--no-deps" in step for step in run.split("&&") if "--index-url" in step)
        assert "apt-get install" not in run or (
            "--no-install-recommends" in run and "rm -rf /var/lib/apt/lists" in run
        )
    labels = [rest for name, rest in said if name == "LABEL"]
    assert all(f'version="{collbench.__version__}"' in label for label in labels)


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_what_images_copy_is_there_and_let_through(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[1] == "*"
    for name, rest in instructions(path):
        if name == "COPY" and "--from" not in rest:
            for source in [word for word in rest.split() if not word.startswith("--")][:-1]:
                assert (ROOT / source).exists() and source in allowed, source


def test_images_versions_are_those_of_the_recipes() -> None:
    known = {f"collbench:{collbench.__version__}{kind}" for kind in ("", "-cuda", "-operators")}
    texts = [path.read_text() for path in (*MANIFESTS, DOCKER / "compose.yaml")]
    used = {
        image for text in texts for image in re.findall(r"^ *image: (\S+)$", text, re.MULTILINE)
    }
    assert used == known


# ---- shell


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(path: Path) -> None:
    done = ran(tool("shellcheck"), path)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def slurm(script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    job = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "2", "SLURM_SUBMIT_DIR": str(ROOT)}
    path = f"{FAKE}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    return ran(
        "bash", DOCKER / "slurm" / script, *args, env={**os.environ, **job, "PATH": path, **env}
    )


@pytest.mark.slow
def test_one_off_runs_real_ranks() -> None:
    done = slurm("once.sbatch", "all_reduce", *QUICK)
    header, *rows = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert (
        header.startswith("collective,") and len(rows) == 2 and all(",2," in row for row in rows)
    )  # one table


@pytest.mark.slow
def test_one_off_ends_with_collbenchs_code() -> None:
    done = slurm("once.sbatch", "all_reduce", "--nonsense")
    assert done.returncode == 2 and "--nonsense" in done.stderr


@pytest.mark.slow
def test_a_night_runs_real_ranks(tmp_path: Path) -> None:
    """A small budget, and of the suite barriers alone, of which there can be no verdict; then
    a run that fails ends the night with its code."""
    launcher = tmp_path / "srun"
    launcher.write_text(f'#!/bin/sh\nexec {FAKE}/srun "$@" --only barrier\n')
    launcher.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    done = slurm(
        "nightly.sbatch", NIGHTS=str(tmp_path / "nights"), RUNS="1", BUDGET="30s", PATH=path
    )
    assert done.returncode == 3 and "no verdict" in done.stdout, done.stdout
    assert "data: nothing verified yet" in done.stdout
    (folder,) = (tmp_path / "nights").glob("2*")
    (run,) = folder.glob("*.jsonl")
    assert (
        run_file.read_file(run).run.tag == "nightly"
        and run_file.read_file(run).worlds[0].launcher == "srun"
    )
    assert (folder / "complete").exists() and "<!doctype html>" in (
        folder / "report.html"
    ).read_text()[:99].lower()
    done = slurm(
        "nightly.sbatch", NIGHTS=str(tmp_path / "nights"), RUNS="3", BUDGET="nonsense", PATH=path
    )
    assert done.returncode == 2
    later = max((tmp_path / "nights").glob("2*"))
    assert (
        later != folder
        and not (later / "complete").exists()
        and [f.name for f in later.iterdir()] == ["1.csv"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slower", "baseline", "code"), [long(1.0, "", 0), (1.5, "", 1), long(1.5, "settled", 0)]
)
def test_nights_are_judged_against_each_other(
    tmp_path: Path, slower: float, baseline: str, code: int
) -> None:
    """Runs are made up, four a night, in which all_reduce takes so much longer; report and verdicts
    are real. A night like the baseline is well."""
    nights, launcher = tmp_path / "nights", tmp_path / "launch"
    launcher.write_text(
        '#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\n'
        'cp "$MADE/$(($(ls "$2" | grep -c jsonl) + 1)).jsonl" "$2"\n'
    )
    launcher.chmod(0o755)
    for name, factor in (("first", 1.0), ("second", slower), ("settled", 1.5)):
        (tmp_path / name).mkdir()
        slow = {case: factor for case in nightly() if case.collective == "all_reduce"}
        for number in range(1, 5):
            made = night(slow, seed=ord(name[-1]) + number, name=f"{name}-{number}")
            saved(made, tmp_path / "made").rename(tmp_path / name / f"{number}.jsonl")
    if baseline:
        nights.mkdir()
        (nights / "baseline").symlink_to(tmp_path / baseline)
    env = {**os.environ, "NIGHTS": str(nights), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    env |= {"PROM": str(tmp_path), "MACHINE": "gpu-node-01"}
    first = ran(DOCKER / "nightly.sh", launcher, env={**env, "MADE": str(tmp_path / "first")})
    assert first.returncode == 0, first.stdout + first.stderr
    second = ran(DOCKER / "nightly.sh", launcher, env={**env, "MADE": str(tmp_path / "second")})
    assert second.returncode == code, second.stdout + second.stderr
    verdict = json.loads((max(nights.glob("2*")) / "verdict.json").read_text())
    assert verdict["exit"] == code and ("REGRESSED" in second.stdout) == bool(code)
    health = json.loads((max(nights.glob("2*")) / "health.json").read_text())
    assert (
        health["state"] == "healthy"
        and len(health["runs"]) == 4
        and (nights / "history.sqlite").exists()
    )
    assert (max(nights.glob("2*")) / "report.html").exists()
    assert "collbench_case_time_seconds{" in (tmp_path / "cases.prom").read_text()
    assert 'collbench_health_state{state="healthy"} 1' in (tmp_path / "verdict.prom").read_text()


SLOW_COLLBENCH = """#!/bin/sh
# a collbench whose run keeps what it has when it is terminated, under a launcher's code
echo "$1" >> "$CALLS"
if [ "$1" = report ]; then
    echo reporting >> "$CALLS"
    while [ ! -e "$CALLS.go" ]; do sleep 0.02; done
    echo reported >> "$CALLS"
fi
[ "$1" = run ] || exit 0
while [ "$1" != --output ]; do shift; done
trap 'touch "$2/1.jsonl"; exit 143' TERM
echo measuring >> "$CALLS"
while :; do sleep 0.02; done
"""

REPORTED = ("report", "reporting", "reported", "health")


def test_a_night_that_is_terminated_is_reported_with_what_it_has(tmp_path: Path) -> None:
    """As by the end of a container's grace period, of which its process 1 alone is told. What
    reports is not ended."""
    (tmp_path / "collbench").write_text(SLOW_COLLBENCH)
    (tmp_path / "collbench").chmod(0o755)
    calls = tmp_path / "calls"
    env = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "NIGHTS": str(tmp_path / "nights"),
        "CALLS": str(calls),
    }
    with subprocess.Popen([DOCKER / "nightly.sh"], env=env, start_new_session=True) as shell:
        try:
            for state in ("measuring", "reporting"):
                while not (calls.exists() and state in calls.read_text()):
                    time.sleep(0.02)
                shell.terminate()
            time.sleep(0.1)
            Path(f"{calls}.go").touch()
            assert shell.wait(30) == 130
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert calls.read_text().split() == ["run", "measuring", *REPORTED]
    (folder,) = (tmp_path / "nights").iterdir()
    assert not (folder / "complete").exists()


# ---- manifests


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_keep_to_their_schemas(path: Path) -> None:
    """Those of Kubernetes itself, and all pods, to its own; other kinds to the fields that they are
    known to have."""
    check = pytest.importorskip(
        "kubernetes_validate", reason="pip install 'collbench[test]' has it"
    )
    for found in read(path):
        if found["kind"] in FIELDS:
            assert found["apiVersion"] == VERSIONS[found["kind"]]
            assert set(fields(found)) <= {*COMMON, *FIELDS[found["kind"]].split()}
        else:
            check.validate(found, "1.37", strict=True)
        for pod in pods(found):
            check.validate(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **pod},
                "1.37",
                strict=True,
            )


def test_schemas_see_what_is_wrong() -> None:
    check = pytest.importorskip(
        "kubernetes_validate", reason="pip install 'collbench[test]' has it"
    )
    (pod,) = pods(read(DOCKER / "kubernetes" / "jobset.yaml"))
    pod["spec"]["containers"][0]["resource"] = {}
    with pytest.raises(check.ValidationError, match="resource"):
        check.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **pod},
            "1.37",
            strict=True,
        )
    assert "spec.slotsPerWorkers" in set(fields({"spec": {"slotsPerWorkers": 8}})) - set(
        FIELDS["MPIJob"].split()
    )


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_have_no_more_than_they_need(path: Path) -> None:
    found = [pod["spec"] for kind in read(path) for pod in pods(kind)]
    assert found or all(kind["kind"] == "Service" for kind in read(path))
    for spec in found:
        assert (
            spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 1000
        )
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            held = container["securityContext"]
            assert held == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert container["resources"]["limits"]["memory"]
            if container["name"] not in ("launcher", "head"):  # those have no ranks
                memory = [
                    volume["emptyDir"]["medium"]
                    for volume in spec["volumes"]
                    if volume["name"] == "shm"
                ]
                mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
                assert memory == ["Memory"] and mounts["shm"] == "/dev/shm"


# ---- commands


def called() -> list[list[str]]:
    """The words after ``collbench`` of all commands in all recipes."""
    found: list[list[str]] = []
    for path in (*IMAGES, *SHELL, DOCKER / "compose.yaml", DOCKER / "README.md"):
        text = path.read_text().replace("\\\n", " ")
        found += [
            shlex.split(line)
            for line in re.findall(
                r"(?<![\w/-])collbench (all_\w+.*|(?:run|report|compare) .*)", text
            )
        ]
        found += [shlex.split(line) for line in re.findall(r"collbench:[\w.-]+ (all_.*)", text)]
        found += [shlex.split(line) for line in re.findall(r"(?:command:|set --) (all_.*)", text)]
    for path in MANIFESTS:
        for kind in read(path):
            if "entrypoint" in kind["spec"]:
                found.append(shlex.split(kind["spec"]["entrypoint"])[1:])
            for pod in pods(kind):
                for container in pod["spec"]["containers"]:
                    words = [*container.get("command", ["collbench"]), *container.get("args", [])]
                    if "collbench" in words:
                        found.append(words[words.index("collbench") + 1 :])
    return [words for words in found if words]


def understood(name: str, *words: str) -> None:
    command = typer.main.get_command(commands.app).get_command(None, name)  # type: ignore[attr-defined]
    assert command is not None, name
    assert command.make_context(name, list(words)).params


def test_commands_in_recipes_are_understood() -> None:
    found = [words for words in called() if "ray" not in words]
    assert len(found) >= 10
    for words in found:
        understood(*words)
    with pytest.raises(Exception, match="--nonsense"):
        understood("all_reduce", "--nonsense")


def test_rays_command_is_understood() -> None:
    (words,) = [words for words in called() if "ray" in words]
    understood(*words)


def test_torchruns_options_are_its_own() -> None:
    run = pytest.importorskip("torch.distributed.run", exc_type=ImportError)
    (pod,) = pods(read(DOCKER / "kubernetes" / "jobset.yaml"))
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["torchrun"]
    known = run.get_args_parser().parse_args(
        [word.replace("$(NODE)", "1") for word in container["args"]]
    )
    assert (known.module, known.training_script, known.node_rank) == (True, "collbench", 1)


# ---- ranks by environment


def met(
    warm: Warm, environments: list[dict[str, str]], args: list[str]
) -> list[subprocess.CompletedProcess[str]]:
    """A process for each environment, with rank 0's host here, run to their ends."""
    settings = [{**os.environ, **env, "MASTER_ADDR": "127.0.0.1"} for env in environments]
    started = [warm.start(*args, *QUICK, env=each) for each in settings]
    return [
        subprocess.CompletedProcess(p.args, p.wait(), *p.communicate(timeout=100)) for p in started
    ]


def test_composes_two_nodes_meet(warm: Warm) -> None:
    (compose,) = read(DOCKER / "compose.yaml")
    nodes = compose["services"]
    assert set(nodes) == {"node0", "node1"} and nodes["node1"]["depends_on"] == ["node0"]
    assert compose["networks"] == {"ranks": {"internal": True}} and "ports" not in nodes["node0"]
    environments = [
        {name: str(value) for name, value in node["environment"].items()} for node in nodes.values()
    ]
    assert [env["MASTER_ADDR"] for env in environments] == ["node0", "node0"]
    secret = [
        {**env, "COLLBENCH_TOKEN": env["COLLBENCH_TOKEN"].strip("${}:-")} for env in environments
    ]
    done = met(warm, secret, shlex.split(nodes["node1"]["command"]))
    assert [p.returncode for p in done] == [0, 0], done[0].stderr + done[1].stderr
    assert len(done[0].stdout.splitlines()) == 3 and done[1].stdout == ""


def test_the_jobs_pods_meet(warm: Warm) -> None:
    service, job = read(DOCKER / "kubernetes" / "job.yaml")
    (pod,) = pods(job)
    (container,) = pod["spec"]["containers"]
    given = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert given["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert int(given["WORLD_SIZE"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    ranks = range(int(given["WORLD_SIZE"]))
    done = met(
        warm,
        [{"WORLD_SIZE": given["WORLD_SIZE"], "RANK": str(rank)} for rank in ranks],
        container["args"],
    )
    assert [p.returncode for p in done] == [0, 0], done[0].stderr + done[1].stderr
    assert len(done[0].stdout.splitlines()) == 3 and done[1].stdout == ""


def test_everything_is_explained() -> None:
    text = (DOCKER / "README.md").read_text()
    files = [
        path.relative_to(DOCKER)
        for path in DOCKER.rglob("*")
        if path.is_file() and path.name != "README.md"
    ]
    assert all(f"`{path}`" in text for path in files)
    assert not [
        name
        for name in re.findall(r"`([\w/.-]+\.(?:yaml|sbatch|sh)|Dockerfile[\w.]*)`", text)
        if not any(fnmatch.fnmatch(str(path), name) for path in files)
    ]
