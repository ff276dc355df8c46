"""Small twins of the files that other tools write of a job's communication, made as they make them.

Sizes in ``EXECUTION`` are those of ResNet-50 on two GPUs in PARAM's published trace
(facebookresearch/param 1e115ff, et_replay/tests/inputs/1.1.0-chakra.0.0.4/resnet_2gpu_et.json.gz:
21 calls and 6 waits in three marked steps; per step two broadcasts and five all_reduces).
"""

from __future__ import annotations

import json
import pickle
from typing import Any

from collbench.features.traces.formats import protobuf as pb

BUCKETS = (2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040)  # elements of float
GROUP = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
PAIR = {"name": "1", "desc": "tp", "ranks": "[0, 1]"}


def entry(name: str, number: int, *shapes: list[int], **fields: Any) -> dict[str, Any]:
    """An entry of a flight recorder, of tensors that go in and out as they are."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + number * 1_000_000,
        "input_sizes": list(shapes),
        "input_dtypes": ["Float"] * len(shapes),
        "output_sizes": list(shapes),
        "output_dtypes": ["Float"] * len(shapes),
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    } | fields


DONE = 1_700_000_000_500_000_000
ENTRIES = [
    entry("nccl:all_reduce", 0, [4, 4], duration_ms=0.25, time_discovered_completed_ns=DONE),
    entry("nccl:_all_gather_base", 1, [8], output_sizes=[[16]], process_group=("1", "tp")),
    entry("nccl:send 0->1", 2, [3], is_p2p=True, p2p_seq_id=1),
    entry("nccl:coalesced", 3, is_p2p=True, p2p_seq_id=1),
    entry("nccl:all_to_all", 4, [5], state="scheduled"),
    entry("nccl:broadcast", 5, [7], state="started"),
]
FLIGHT = {
    "version": "2.10",
    "pg_config": {"0": GROUP, "1": PAIR},
    "pg_status": {"0": {"last_enqueued_collective": 5}},
    "entries": ENTRIES,
}


def flight_pickle() -> bytes:
    return pickle.dumps(FLIGHT, protocol=2)


def flight_json() -> bytes:
    return json.dumps(FLIGHT, sort_keys=True).encode()


def attributes(**values: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": "x", "value": value} for name, value in values.items()]


def comms(number: int, name: str, elements: int, place: int = 1, **fields: Any) -> dict[str, Any]:
    """A node record_param_comms of an execution trace."""
    told = {
        "collective_name": name,
        "dtype": "Float",
        "in_msg_nelems": elements,
        "out_msg_nelems": elements,
        "in_split_size": "[]",
        "out_split_size": "[]",
        "global_rank_start": 0,
        "global_rank_stride": 1,
        "pg_name": "0",
        "pg_desc": "default_pg",
        "pg_size": 2,
    } | fields
    values = [[[1, 2, 0, elements, 4, "cuda:1"]], number, ["0", "default_pg"], place, name, [], []]
    if name == "wait":
        told = {"collective_name": "wait", "pg_size": 1}
        values = [number, ["", ""], 1, "wait", [], [], -1, -1, 1]
    return {
        "name": "record_param_comms",
        "ctrl_deps": 7,
        "inputs": {"values": values, "shapes": [], "types": []},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": attributes(rf_id=1, **told),
    }


def numbered(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Nodes with their ids, as a file."""
    return {
        "schema": "1.1.0-chakra.0.0.4",
        "pid": 1,
        "nodes": [{"id": number, **node} for number, node in enumerate(nodes, 2)],
    }


def _plain(name: str, *values: Any) -> dict[str, Any]:
    inputs = {"values": list(values), "shapes": [[]], "types": ["String"]}
    return {"name": name, "inputs": inputs, "outputs": {}, "attrs": attributes(rf_id=2)}


def listed(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The node that lists the groups of an execution trace."""
    return _plain("## process_group:init ##", json.dumps(groups))


GROUPS = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2, "group_count": 1}]
STEP = [
    comms(33, "broadcast", 53_120, place=0),
    comms(34, "broadcast", 53, place=0, dtype="Long"),
    comms(33, "wait", 0),
    comms(34, "wait", 0),
    *(comms(35 + i, "allreduce", elements) for i, elements in enumerate(BUCKETS)),
]
EXECUTION = numbered(
    [
        listed(GROUPS),
        _plain("ProfilerStep#4"),
        *STEP,
        _plain("ProfilerStep#5"),
        *STEP,
    ]
)


def kernel(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": args}


NCCL = {
    "Collective name": "allreduce",
    "dtype": "BFloat16",
    "In msg nelems": 1024,
    "Out msg nelems": 1024,
    "In split size": "[]",
    "Out split size": "[]",
    "Group size": 2,
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
    "Rank": 1,
    "Seq": 7,
    "correlation": 12,
}
KINETO = {
    "schemaVersion": 1,
    "distributedInfo": {
        "backend": "nccl",
        "rank": 1,
        "world_size": 4,
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3], "pg_size": 4},
            {"pg_name": "3", "pg_desc": "ep", "ranks": [1, 3], "pg_size": 2},
        ],
    },
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 1.0, "dur": 90.0},
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernelExC",
            "ts": 4.5,
            "dur": 2,
            "args": {"correlation": 12},
        },
        kernel("gemm", 5.0, 10.0),
        kernel("gemm", 14.0, 6.0),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 10.5, 20.25, **NCCL | {"Group size": 4}),
        kernel(
            "ncclDevKernel_SendRecv",
            40.0,
            5.0,
            **NCCL
            | {
                "Collective name": "all_to_allv",
                "In msg nelems": 60,
                "Out msg nelems": 40,
                "In split size": "[2, 4]",
                "Out split size": "[3, 1]",
                "Process Group Name": "3",
                "Process Group Description": "ep",
                "Process Group Ranks": "[1, ...]",
            },
        ),
        kernel("ncclDevKernel_SendRecv", 50.0, 5.0, stream=3),
    ],
    "traceName": "x",
}
RECORDING = """{"collbench_trace":1,"rank":1,"world":2,"backend":"gloo"}
{"group":"7","ranks":[0,1],"described":"tp"}
{"kind":"all_reduce","nbytes":8,"dtype":"float","op":"sum","number":0,"issued_ns":100,"state":"started"}
{"kind":"all_to_allv","group":"7","nbytes":12,"dtype":"float","sends":[1,2],"receives":[0,2],"issued_ns":120,"begins_ns":120,"ends_ns":150}
{"kind":"wait","issued_ns":160,"ends_ns":170,"after":[0,1],"phase":"backward","source":"a.py:1 f"}
{"until":180}
{"late":[0,175]}
{"step":[90,200]}
{"lost":{"why":"sparse","calls":2,"nbytes":64}}
{"ended":300,"broken":true}
"""
AICB = """[rank0 ~ rank15]
comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,b,c
CommType.all_reduce,CommGroup.dp_group,4,8,init.model_setup,None,None,,None,None,None,1
CommType.broadcast,CommGroup.tp_group,2,40,forward_step,None,0,,None,None,None,1
CommType.computation,None,None,((4096, 1, 5120), (5120, 3840)),f,None,None,,None,None,None,1
CommType.all_gather,CommGroup.tp_group,2,20971520,forward_step,None,None,,None,None,None,1
CommType.isend,CommGroup.pp_group,1,4096,forward_step,None,None,send_next,None,None,None,1
CommType.all_to_all,CommGroup.ep_group,None,64,forward_step,None,None,,None,None,None,1
CommType.epoch_end,None,None,0,,None,None,,None,None,None,1
"""
SIMAI = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 all_gpus: 8
2
embedding -1 556000 ALLREDUCE 16777216 1 NONE 0 1 NONE 0 1
mlp -1 100 ALLGATHER 64 7 REDUCESCATTER 64 5 ALLTOALL_EP 128 1
"""


def attribute(name: str, place: int, value: Any) -> bytes:
    return pb.write_field(10, pb.write_field(1, name) + pb.write_field(place, value))


def node(number: int, kind: int, *rest: bytes, name: str = "x") -> bytes:
    head = pb.write_field(1, number) + pb.write_field(2, name) + pb.write_field(3, kind)
    return pb.delimit_message(head + b"".join(rest))


def chakra() -> bytes:
    """A rank's file as Chakra's generator and converter write them."""
    return b"".join(
        [
            pb.delimit_message(pb.write_field(1, "0.0.4")),
            node(1, 4, pb.write_field(7, 25), attribute("is_cpu_op", 27, 0)),
            node(2, 7, attribute("is_cpu_op", 27, 1), name="c10d::allreduce_"),
            node(
                3,
                7,
                pb.write_packed(5, [1]),
                attribute("comm_type", 9, 0),
                attribute("comm_size", 9, 8_196_000),
                attribute("is_cpu_op", 27, 0),
            ),
            node(
                4,
                7,
                attribute("comm_type", 9, 2),
                attribute("comm_size", 9, 512),
                attribute("pg_name", 29, "1"),
            ),
            node(
                5,
                5,
                pb.write_packed(5, [3, 4]),
                attribute("comm_size", 9, 64),
                attribute("comm_dst", 7, 2),
                attribute("comm_tag", 7, 9),
            ),
            node(6, 7, attribute("comm_size", 9, 8)),
        ]
    )


GROUPS_BESIDE = '{"0": [0, 1, 2, 3], "1": [0, 2]}'
