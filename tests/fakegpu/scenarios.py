"""What is run on the fake GPU, and what a user must see: one table for the tests and the report.

A command is a line of bash; ``collbench`` is this checkout's, and the current folder is empty.
``sees`` are regular expressions that standard output or standard error must hold, ``never`` those
that neither may.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SRUN = ROOT / "tests/ranks/fake_slurm/srun"
COUNTED = "-w 1 --max-time 0.2s --sync barrier"  # times decide nothing here: few samples do
CONNECT = "torchrun --standalone --nproc-per-node 2 -m collbench"
TRACEBACK = "Traceback"
FAKE = "(?i)fake"

AB_SUITE = (
    """printf '[axes]\\ncollectives=["all_reduce"]\\nsizes=["64K"]\\n"""
    """[policy]\\nsync="barrier"\\n' > ab.toml;"""
)


class Scenario(NamedTuple):
    """A command on ``gpus`` fake GPUs, with settings of the fake, and what comes of it."""

    name: str
    command: str
    sees: tuple[str, ...] = ()
    exit: int = 0
    settings: dict[str, str] = {}
    gpus: int = 2
    never: tuple[str, ...] = (TRACEBACK,)
    long: bool = False
    seconds: int = 300


def swept(collectives: str, mode: str) -> str:
    """Every one of some collectives, in and out of place, verified, as CSV."""
    commands = (
        f"collbench {name} --mode {mode} --sizes 64,100K --place both -g 2 {COUNTED} --format csv"
        for name in collectives.split()
    )
    return " && ".join(commands)


ALL = (
    "all_reduce all_gather reduce_scatter all_to_all all_to_allv broadcast reduce gather scatter"
    " sendrecv barrier"
)
RAN_RIGHT = r",ok,[^\n]*,0,"  # columns status, note, wrong
FAILED = r",(failed|wrong),(?!checked)"  # a status, not the header's column

RUNS = (
    Scenario(
        "doctor",
        "collbench doctor",
        ("nccl +yes", "symmetric memory +yes", "Fake H100", "a fake GPU"),
    ),
    Scenario(
        "as it is, 8 ranks",
        "collbench all_reduce -b 8 -e 64M -g 8 --max-time 0.2s",
        (r"\n +67108864 +16777216 +float +sum +-1 .* 0\n", "Out of bounds values : 0 OK", FAKE),
        gpus=8,
        settings={"FAKE_MIB": "4096"},
        long=True,
        seconds=900,
    ),
    Scenario(
        "as it is, 2 ranks",
        "collbench all_reduce -b 8 -e 16M -f 8 -g 2 --sync barrier",
        (r"\n +16777216 +4194304 +float +sum +-1 .* 0\n", "Out of bounds values : 0 OK", FAKE),
    ),
    Scenario(
        "1 GiB",
        "collbench all_reduce --sizes 1G -g 2 -w 1 --max-time 10s --place in --sync barrier",
        (r"\n +1073741824 .* 0\n", "Out of bounds values : 0 OK"),
        long=True,
    ),
    *(
        Scenario(
            f"every collective, {mode}",
            swept(ALL.removesuffix(" barrier") if mode == "graph" else ALL, mode),
            (RAN_RIGHT,),
            never=(TRACEBACK, FAILED),
            long=mode != "streaming",
            seconds=600,
        )
        for mode in ("streaming", "isolated", "graph", "host")
    ),
    Scenario(
        "datatypes and reductions",
        "collbench all_reduce -d all -o sum,prod,min,max,avg,band,bor,bxor --sizes 4K -g 2"
        f" {COUNTED} --format csv && collbench all_reduce -d half,float,double -o premul_sum"
        f" --sizes 4K -g 2 {COUNTED} --format csv",
        (RAN_RIGHT,),
        never=(TRACEBACK, FAILED),
        long=True,
        seconds=600,
    ),
    Scenario(
        "three libraries",
        "collbench all_reduce --backend nccl,symm,torch_two_shot --algo native,ring,two_shot"
        f" -b 1K -e 1M -f 32 -g 2 {COUNTED} --format csv",
        (r"all_reduce,nccl,.*,ok", r"all_reduce,symm,.*,ok", r"all_reduce,torch_two_shot,.*,ok"),
        never=(TRACEBACK, FAILED),
    ),
    Scenario(
        "torch's kernels",
        "for name in all_reduce all_gather reduce_scatter reduce; do collbench $name --backend"
        " torch_one_shot,torch_two_shot,torch_multimem,torch_multimem_one_shot -d float,bfloat16"
        f" --sizes 64,1M -g 2 {COUNTED} --format csv || exit; done",
        (
            "all_reduce,torch_one_shot,.*,ok",
            "reduce_scatter,torch_two_shot,.*,ok",
            "all_gather,torch_multimem,.*,ok",
            "reduce,torch_multimem_one_shot,.*,ok",
        ),
        settings={"FAKE_MULTICAST": "1"},
        never=(TRACEBACK, FAILED),
        long=True,
    ),
    Scenario(
        "reference algorithms on NCCL",
        "collbench all_reduce --algo ring,reduce_broadcast --sizes 64,1M -g 2"
        f" {COUNTED} --format csv",
        (r"ring@nccl,.*,ok", r"reduce_broadcast@nccl,.*,ok"),
        never=(TRACEBACK, FAILED),
    ),
    Scenario(
        "order of additions",
        "collbench order all_reduce -b 4 -e 4K -f 32 -g 4 -d float,bfloat16 --repeats 20",
        (r"\(\(0\+1\)\+2\)\+3 .*100 % of", "call +same", FAKE),
        exit=3,  # fake GPUs decide nothing
        gpus=4,
    ),
    Scenario(
        "NCCL's own all_to_all",
        f"collbench all_to_all --sizes 64 -g 2 {COUNTED}",
        (r"fake NCCL\] AlltoAll", "Out of bounds values : 0 OK"),
        settings={"FAKE_NCCL_TRACE": "1"},
        long=True,
    ),
    Scenario(
        "barriers of groups, each on its ranks' GPUs",
        f"collbench barrier --split div:2 -g 4 {COUNTED} --format csv",
        (RAN_RIGHT,),
        gpus=4,
        never=(TRACEBACK, FAILED, "Guessing device ID"),  # torch's word
    ),
    *(
        Scenario(
            f"{name} by sends and receives",
            f"collbench {name} --sizes 64 -g 2 {COUNTED}",
            (r"fake NCCL\] Recv", f"instead of {function}"),
            settings={"FAKE_NCCL_TRACE": "1"},
            never=(TRACEBACK, rf"fake NCCL\] {function[4:]}"),
            long=name == "scatter",
        )
        for name, function in (("gather", "ncclGather"), ("scatter", "ncclScatter"))
    ),
    *(
        Scenario(
            f"registered buffers, -R {level}",
            f"collbench all_reduce -R {level} --sizes 64K -g 2 {COUNTED}",
            ("Out of bounds values : 0 OK",),
            settings={"FAKE_MULTICAST": "1"},
            long=level == 1,
        )
        for level in (1, 2)
    ),
    Scenario(
        "-m 4",
        f"collbench all_reduce -m 4 --sizes 64K -g 2 {COUNTED}",
        ("agg iters: 4", "Out of bounds values : 0 OK"),
    ),
    Scenario(
        "--share-gpu",
        f"collbench all_reduce --share-gpu --sizes 64K -g 2 {COUNTED}",
        ("Out of bounds values : 0 OK", "(?i)share"),
        gpus=1,
    ),
    Scenario(
        "--share-gpu of symm",
        f"collbench all_reduce --share-gpu --backend symm --algo ring --sizes 64K -g 2 {COUNTED}",
        ("Out of bounds values : 0 OK", "(?i)shared-gpu"),
        gpus=1,
        long=True,
    ),
    Scenario(
        "--virtual-ranks",
        "collbench all_reduce --backend symm --virtual-ranks --algo ring,two_shot,one_shot"
        f" --sizes 8,1M -g 8 --mode isolated,graph {COUNTED}",
        ("Out of bounds values : 0 OK", "virtual"),
        gpus=1,
        long=True,
    ),
    Scenario(
        "torchrun, NCCL",
        f"{CONNECT} all_reduce --sizes 64,1M {COUNTED}",
        ("Out of bounds values : 0 OK",),
    ),
    Scenario(
        "torchrun, symm and torch's kernels",
        f"{CONNECT} all_reduce --backend symm,torch_two_shot,nccl --algo native,ring"
        f" -b 64 -e 1M -f 2 {COUNTED} --format csv",
        (r"all_reduce,symm,.*,ok", r"all_reduce,torch_two_shot,.*,ok", r"all_reduce,nccl,.*,ok"),
        never=(TRACEBACK, FAILED),
        seconds=200,
    ),
    Scenario(
        "mpirun, NCCL and symm",
        "mpirun --allow-run-as-root --oversubscribe -n 2 python -m collbench all_reduce"
        f" --backend nccl,symm --algo native,ring --sizes 64,1M {COUNTED} --format csv",
        (r"all_reduce,nccl,.*,ok", r"all_reduce,symm,.*,ok"),
        never=(TRACEBACK, FAILED),
        long=True,
    ),
    Scenario(
        "srun, NCCL and symm",
        f"{SRUN} -n 2 python -m collbench all_reduce --backend nccl,symm --algo native,ring"
        f" --sizes 64,1M {COUNTED} --format csv",
        (r"all_reduce,nccl,.*,ok", r"all_reduce,symm,.*,ok"),
        never=(TRACEBACK, FAILED),
        long=True,
    ),
    Scenario(
        "Ray, NCCL and symm",
        "ray start --head --num-cpus 2 --num-gpus 2 --disable-usage-stats > ray.log &&"
        " collbench all_reduce --launcher ray --backend nccl,symm --algo native,ring -g 2"
        f" --sizes 64,1M {COUNTED} --format csv; code=$?; ray stop > ray.log; exit $code",
        (r"all_reduce,nccl,.*,ok", r"all_reduce,symm,.*,ok"),
        never=(TRACEBACK, FAILED),
        long=True,
    ),
    *(
        Scenario(
            f"20 starts: {name}",
            f"for i in $(seq 20); do {launch} all_reduce --backend nccl,symm --algo native,ring"
            f" --sizes 64 -n 2 -w 1 --place in --format csv > $i.csv || exit; done;"
            " grep -l 'symm,2,64,ring.*,ok' *.csv | wc -l",
            (r"(?m)^20$",),
            long=True,
            seconds=1200,
        )
        for name, launch in {
            "torchrun": CONNECT,
            "srun": f"{SRUN} -n 2 python -m collbench",
        }.items()
    ),
    Scenario(
        "a night and its health",
        "collbench run nightly --budget 5m --format csv > night.csv; echo night $?;"
        " collbench health",
        ("night 0", "(?i)fake"),
        exit=3,
        long=True,
        seconds=900,
    ),
    *(
        Scenario(
            f"ab of two {what}",
            f"{AB_SUITE} collbench ab --suite ab.toml --base '{base}' --head '{head}' -g 2"
            " --rounds 6,6 --budget 0 --max-time 0.1s",
            (FAKE, "wrong|nothing to compare"),
            exit=3,
            long=True,
        )
        for what, base, head in (
            ("algorithms", "", "algo:ring"),
            ("settings", "NCCL_ALGO=Ring", "NCCL_ALGO=Tree"),
            ("libraries", "backend:nccl", "backend:torch_two_shot"),
        )
    ),
    *(
        Scenario(
            f"workload {pattern}",
            f"collbench workload {pattern} --backend nccl -g 2 --scale {scale} --layers 1 -n 3"
            f" {options}",
            ("(?i)fake",),
            never=(TRACEBACK, "(?i)wrong data"),
            long=pattern != "ddp:toy",
            seconds=600,
        )
        for pattern, scale, options in (
            ("ddp:toy", "1", ""),
            ("ddp:gpt2-124m", "1/64", "--compute copy"),
            ("fsdp2:toy", "1", ""),
            ("megatron:llama3-8b", "1/4096", "--layout tp=2"),
            ("deepep:normal", "1/256", "--layout dp=2"),
        )
    ),
    Scenario(
        "workload of a pipeline, whose messages cross",
        "collbench workload megatron:llama3-8b --backend nccl -g 3 --scale 1/4096 --layers 3 -n 3"
        " --compute none --layout tp=1,pp=3,micro_batches=4 -T 30",
        (r"communication .* 0  ", "none wrong"),
        gpus=3,
    ),
    *(
        Scenario(
            f"p2p {pattern}",
            f"collbench p2p --pattern {pattern} -g 3 -b 64K -e 64K -n 3 -T 30",
            (rf"{pattern} +64 KiB", "messages, nccl, 3 ranks", FAKE),
            exit=3,  # fake GPUs decide nothing
            gpus=3,
            long=pattern != "incast",
        )
        for pattern in ("incast", "outcast", "ping-pong")
    ),
    Scenario(
        "overlap",
        "collbench overlap all_reduce --sizes 64K -g 2 --with gemm,copy,sleep -n 3",
        (FAKE, "0 rounds"),
        exit=3,
        long=True,
    ),
    Scenario(
        "pairs",
        "collbench pairs -g 3 --large 64K -n 3",
        (FAKE,),
        exit=3,
        gpus=3,
        long=True,
    ),
    Scenario(
        "locate",
        "collbench locate -g 4 --size 64K --tests 3",
        (FAKE,),
        exit=3,
        gpus=4,
        long=True,
    ),
    Scenario(
        "gpu-check, all slices",
        f"GPU_CHECK_LARGEST=1048576 GPU_CHECK_SECONDS=150 python {ROOT}/tests/perf/gpu.py"
        " --output out --slice quick --slice algorithms --slice nccl --slice shared; ls out",
        ("gpu-check.md", "gpu-check-shared.json"),
        never=(TRACEBACK, "wrong data"),
        long=True,
        seconds=900,
    ),
    Scenario(
        "tests/gpu",
        f"cd {ROOT} && GPU_CHECK_LARGEST=131072 GPU_CHECK_RACES=30"
        " python -m pytest -q -p no:cacheprovider tests/gpu",
        (r"\d+ passed",),
        settings={"FAKE_MULTICAST": "1"},
        never=(r"\d+ failed",),
        long=True,
        seconds=2400,
    ),
    Scenario(
        "recording of DDP, its trace, its replay",
        f"torchrun --standalone --nproc-per-node 2 {HERE / 'ddp_job.py'} job"
        " && collbench trace job* && collbench replay job* --backend nccl -n 2",
        ("rank 0 done", "all_reduce", "FAKE: recorded on a fake GPU", "FAKE: measured"),
        long=True,
    ),
    Scenario(
        "recording of FSDP2, its trace, its replay",
        f"torchrun --standalone --nproc-per-node 2 {HERE / 'fsdp_job.py'} job"
        " && collbench trace job* && collbench replay job* --backend nccl -n 2",
        ("rank 0 done", "all_gather", "FAKE: recorded on a fake GPU", "FAKE: measured"),
        long=True,
    ),
)

TWO_SIZES = f"collbench all_reduce --sizes 64,1M -g 2 {COUNTED} --format csv"
WITHOUT_COMPILER = (
    "mkdir bin && for name in collbench python bash env uname; do"
    ' ln -s "$(command -v $name)" bin/$name; done; PATH=$PWD/bin TRITON_CACHE_DIR=$PWD/cache'
)


def faulty(
    name: str, command: str, sees: tuple[str, ...], exit: int = 0, **fields: object
) -> Scenario:
    """A scenario in which something is planted; its keyword arguments in capitals are settings."""
    settings = {key: str(value) for key, value in fields.items() if key.isupper()}
    others = {key: value for key, value in fields.items() if not key.isupper()}
    return Scenario(name, command, sees, exit, settings, **others)  # type: ignore[arg-type]


FAULTS = (
    faulty(
        "a GPU is held back for good",
        "collbench all_reduce --sizes 64K,128K,256K -g 2 --max-time 0.2s --format csv",
        ("rank 1: GPU 1 was held back", "hw_thermal_slowdown", "failed"),
        exit=5,
        FAKE_REASONS="1:0x40",
    ),
    faulty(
        "a GPU is held back for a while",
        "collbench all_reduce --sizes 64K,1M -g 2 --max-time 0.5s --format csv",
        (r"all_reduce,nccl,.*,ok", "throttled"),
        FAKE_REASONS="1:0x40@3-8",
    ),
    *(
        faulty(
            f"a GPU is held back for good, {command.split()[0]}",
            f"collbench {command} --backend nccl -g 2 --max-time 0.3s",
            ("GPU 1 was held back", "throttled"),
            exit=5,
            long=True,
            FAKE_REASONS="1:0x40",
        )
        for command in (
            "workload toy:ddp --compute none",
            "objects all_gather -b 1K -e 1K",
            "coalesce all_reduce -b 1K -e 1K",
        )
    ),
    faulty(
        "a GPU is held back for a while, workload",
        "collbench workload toy:ddp --compute none --backend nccl -g 2 --max-time 0.3s",
        ("throttled", "none wrong"),
        FAKE_REASONS="1:0x40@3-4",
    ),
    faulty(
        "clocks are locked low",
        "collbench all_reduce --sizes 64K -g 2 --max-time 0.2s",
        ("1410", "Out of bounds values : 0 OK"),
        FAKE_SM_MHZ="1410",
    ),
    *(
        faulty(
            f"{what} in the middle",
            "collbench all_reduce --sizes 64K,1M -g 2 --max-time 0.3s --format json",
            (sees,),
            long=what not in ("an Xid",),
            **{setting: value},
        )
        for what, setting, value, sees in (
            ("an Xid", "FAKE_XID", "1:79", "79"),
            ("ECC errors", "FAKE_ECC", "1", "ecc"),
            ("NVLink errors", "FAKE_NVLINK_ERRORS", "1", "nvlink"),
            ("PCIe replays", "FAKE_PCIE_REPLAYS", "1", "pcie"),
        )
    ),
    faulty(
        "a GPU is gone in the middle",
        "collbench all_reduce --sizes 64,1M,4M -g 2 --max-time 0.3s --format csv",
        (r"all_reduce,nccl,2,64,.*,ok", "rank 1"),
        exit=4,
        FAKE_NCCL_FAULT="1:5@1000000:lost",
    ),
    faulty(
        "a rank is killed within NCCL",
        "collbench all_reduce --sizes 64,1M,4M -g 2 --max-time 0.3s --format csv",
        (r"all_reduce,nccl,2,64,.*,ok", "rank 1", "SIGKILL"),
        exit=4,
        FAKE_NCCL_FAULT="1:5@1000000:kill",
    ),
    faulty(
        "NCCL hangs",
        "collbench all_reduce --sizes 64,1M,4M -g 2 --max-time 0.3s -T 15 --format csv",
        (r"all_reduce,nccl,2,64,.*,ok", "all 2 ranks hang in the same call"),
        exit=4,
        FAKE_NCCL_FAULT="1:5@1000000:hang",
    ),
    faulty(
        "ncclSystemError",
        "collbench all_reduce --sizes 64,1M,4M -g 2 --max-time 0.3s -T 15 --format csv",
        (r"all_reduce,nccl,2,64,.*,ok", "rank 1", "system error"),
        exit=4,
        FAKE_NCCL_FAULT="1:5@1000000:system",
    ),
    faulty(
        "ncclRemoteError",
        "collbench all_reduce --sizes 64,1M,4M -g 2 --max-time 0.3s -T 15 --format csv",
        (r"all_reduce,nccl,2,64,.*,ok", "rank"),
        exit=4,
        FAKE_NCCL_FAULT="1:5@1000000:remote",
    ),
    faulty(
        "one GPU makes wrong data",
        "collbench all_reduce --sizes 64,1M -g 2 --max-time 0.3s --format csv",
        ("rank 1", "wrong"),
        exit=7,
        FAKE_NCCL_FAULT="1:1:wrong",
    ),
    faulty(
        "one GPU is slow",
        "collbench all_reduce --sizes 64K --mode isolated -g 3 --max-time 0.3s --format json",
        ("rank",),
        gpus=3,
        long=True,
        FAKE_NCCL_FAULT="1:1:slow",
    ),
    faulty(
        "the check finds nothing on this device",
        TWO_SIZES,
        ("check",),
        exit=5,
        FAKE_BLIND="1",
    ),
    faulty(
        "the check finds nothing in one datatype",
        f"collbench all_reduce -d float,half --sizes 64 -g 2 {COUNTED} --format csv",
        (r",float,[^\n]*,ok,", r",half,[^\n]*,failed,not verified", "2 of 4 cases not verified"),
        exit=5,
        FAKE_BLIND="int16",  # as which the bits of half are compared
    ),
    faulty(
        "out of memory at the start",
        TWO_SIZES,
        ("on a GPU, 63 MiB are available",),
        exit=5,
        FAKE_MIB="64",
    ),
    faulty(
        "out of memory in the middle",
        "collbench all_reduce --sizes 64,16M,64M -g 2 --max-time 0.2s --format csv",
        (r"all_reduce,nccl,2,64,.*,ok", r"67108864,.*skipped,\"?rank 1 on \S+: CUDA out of memory"),
        FAKE_OUT_OF_MEMORY="1:12",
    ),
    faulty(
        "no peer-to-peer access",
        "collbench all_reduce --backend symm,torch_two_shot,nccl --algo native,ring --sizes 64,1M"
        f" -g 2 {COUNTED} --format csv",
        (r"all_reduce,nccl,.*,ok", "symm,.*,skipped,.*memory", "torch_two_shot,.*,skipped"),
        FAKE_NO_P2P="1",
    ),
    faulty(
        "no multicast",
        "collbench all_reduce --backend torch_multimem,nccl --sizes 64,1M"
        f" -g 2 {COUNTED} --format csv",
        (r"all_reduce,nccl,.*,ok", "torch_multimem,.*,skipped,.*multicast"),
    ),
    faulty(
        "no multicast, -R 2",
        f"collbench all_reduce -R 2 --sizes 64 -g 2 {COUNTED}",
        ("multicast",),
        exit=5,
        long=True,
    ),
    faulty(
        "the NVSwitch fabric is not up",
        "collbench all_reduce --backend symm,torch_two_shot --algo native,ring --sizes 64 -g 2"
        f" {COUNTED} --format csv",
        (r"all_reduce,symm,.*,ok", r"all_reduce,torch_two_shot,.*,ok"),
        FAKE_MULTICAST="1",
        FAKE_NO_FABRIC="1",
    ),
    faulty("MIG", "collbench doctor; " + TWO_SIZES, ("MIG", RAN_RIGHT), FAKE_MIG="1", long=True),
    faulty(
        "UUIDs in CUDA_VISIBLE_DEVICES",
        TWO_SIZES.replace("csv", "nccl"),
        (r"0000:1d:00|0000:1d", r"0000:1b", "Out of bounds values : 0 OK"),
        gpus=3,
        CUDA_VISIBLE_DEVICES="GPU-10111213-1415-1617-1819-1a1b1c1d1e02,GPU-10111213-1415-1617-1819-1a1b1c1d1e00",
    ),
    faulty(
        "fewer GPUs than ranks",
        f"collbench all_reduce --sizes 64 -g 4 {COUNTED}",
        ("--share-gpu",),
        exit=5,
    ),
    faulty(
        "no NVML",
        f"collbench all_reduce --backend symm,nccl --algo native,ring --sizes 64 -g 2 {COUNTED}"
        " --format csv",
        ("NCCL needs NVML", "symm.* needs NVML"),
        exit=5,
        FAKE_NO_NVML="1",
    ),
    faulty(
        "no NVML, doctor",
        "collbench doctor",
        ("Fake H100", "nccl +no .*NCCL needs NVML"),
        FAKE_NO_NVML="1",
        long=True,
    ),
    faulty(
        "no C compiler",
        f"{WITHOUT_COMPILER} collbench all_reduce --backend symm,nccl --algo native,ring"
        f" --sizes 64 -g 2 {COUNTED} --format csv",
        (r"all_reduce,nccl,.*,ok", "symm,.*,skipped,.*compile"),
    ),
    faulty(
        "the fabric is down",
        "collbench doctor; collbench all_reduce --backend nccl -g 2 --sizes 64",
        ("gpu driver +no .*error 802.*nvidia-fabricmanager", "nccl.*error 802.*fabricmanager"),
        exit=5,
        FAKE_CUDA_ERROR="802",
    ),
    faulty(
        "an algorithm of NCCL that has no all_reduce",
        f"collbench all_gather --env NCCL_ALGO=PAT --sizes 64K -g 2 {COUNTED} --format csv;"
        f" collbench all_reduce --env NCCL_ALGO=PAT --sizes 64K -g 2 {COUNTED} --format csv",
        ("all_gather,nccl.*" + RAN_RIGHT, "NCCL.* refuses all_reduce of float"),
        exit=5,
    ),
    faulty(
        "a rank is killed, and the others go on",
        "collbench lifecycle --kill 1 --backend nccl -g 2 -T 30",
        ("rebuild +1 +1 .* an error",),
        exit=3,  # a loss on a fake GPU has no time
    ),
    faulty(
        "a driver too old for torch",
        TWO_SIZES + " --backend nccl",
        (r"built for CUDA 13\.\d, the driver runs 12\.4",),
        exit=5,
        FAKE_DRIVER_CUDA="12040",
    ),
    *(
        faulty(
            f"NCCL {version}",
            f"collbench all_reduce --sizes 64K -g 2 {COUNTED}",
            (
                f"NCCL {version}".replace(".", r"\."),
                "Out of bounds values : 0 OK",
                *(["no ncclResetDebugInit"] if version < "2.24" else []),
            ),
            long=version != "2.18.5",
            FAKE_NCCL=version,
        )
        for version in ("2.18.5", "2.21.5", "2.24.3", "2.27.7", "2.30.7")
    ),
    *(
        faulty(
            f"NCCL_DEBUG={level} set by the site",
            f"collbench all_reduce --sizes 64K -g 2 {COUNTED} --format csv > x.csv;"
            " grep -c NCCL x.csv; head -1 x.csv",
            (r"(?m)^0$", r"(?m)^collective,"),
            long=level != "VERSION",
            NCCL_DEBUG=level,
        )
        for level in ("VERSION", "WARN", "INFO")
    ),
    faulty(
        "NCCL_DEBUG=VERSION under torchrun",
        f"{CONNECT} all_reduce --sizes 64K {COUNTED} --format csv > x.csv; grep -c NCCL x.csv;"
        " head -1 x.csv",
        (r"(?m)^0$", r"(?m)^collective,"),
        long=True,
        NCCL_DEBUG="VERSION",
    ),
)
