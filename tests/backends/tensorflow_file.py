"""TensorFlow's collective operations, as MultiWorkerMirroredStrategy trains with on CPUs.

collbench all_reduce --backend tests/backends/tensorflow_file.py,gloo -g 2 -b 8 -e 1M
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends import Base, Call

OPS = {"sum": "Add", "prod": "Mul", "min": "Min", "max": "Max", "avg": "Add"}
DTYPES = {"half": "float16", "float": "float32", "double": "float64"}
DTYPES |= {"int32": "int32", "int64": "int64"}
CALLS = ("all_reduce", "all_gather", "broadcast")


def refuse(case: Any) -> str:
    """Why TensorFlow never runs ``case`` on CPUs; else an empty string."""
    if case.collective not in CALLS:
        return f"TensorFlow has no {case.collective} on CPUs"
    if case.dtype not in DTYPES:
        return f"TensorFlow's collectives have no datatype {case.dtype} on CPUs"
    if case.row.reduces and case.op not in OPS:
        return f"TensorFlow has no reduction {case.op}"
    if case.in_place:
        return "TensorFlow's tensors do not change: nothing is done in place"
    if case.n == 1:
        return "TensorFlow has no cluster of one worker"
    return ""


def here() -> str:
    """Why no rank of this machine can use TensorFlow; else an empty string."""
    found = importlib.util.find_spec("tensorflow")
    return "" if found else "TensorFlow is not installed: pip install tensorflow-cpu"


INFO = BackendInfo(
    about="TensorFlow's collective operations on CPUs, over gRPC",
    packages=("tensorflow", "tensorflow-cpu"),
    settings=("TF_", "GRPC_"),
    threads=2,
    binds=False,
    rank_bytes=800 << 20,
    messages=False,
    groups="partition",
    worlds="one",
    background="none",
    owns_results=True,
    averages=True,
    call_path="dispatch of a traced function",
    refuse=refuse,
    here=here,
    name="tensorflow",
    contract=1,
)


def create(name: str) -> Any:
    """The backend, not opened."""
    return TensorFlow()


class TensorFlow(Base):
    """Raw collective operations, each in a traced function, of a cluster of workers."""

    _instances = 0  # of operations: each has a number of its own, alike on all ranks

    def open(self, rank: int, n: int, local_rank: int) -> None:
        from collbench.run.rank.control import Control

        with socket.create_server(("127.0.0.1", 0)) as free:  # where ranks of this host meet
            address = f"127.0.0.1:{free.getsockname()[1]}"
        workers = (self.control or Control(rank, n)).collect(address)
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        import tensorflow

        self._tf, self._rank = tensorflow, rank
        self._strategy = tensorflow.distribute.MultiWorkerMirroredStrategy()
        self.library = f"TensorFlow {tensorflow.__version__}"
        assert self._strategy.num_replicas_in_sync == n

    def prepare(self, case: Any, send: Any, recv: Any) -> Call:
        tf = self._tf
        kind = getattr(tf, DTYPES[case.dtype])
        call = tf.function(self._operation(case, kind)).get_concrete_function(
            tf.TensorSpec([case.counts[0]], kind)
        )
        array, output, source, result = send.numpy(), recv.numpy(), None, None

        def load() -> None:
            nonlocal source, result
            source, result = tf.constant(array), None

        def run() -> None:
            nonlocal result
            result = call(source)

        def store() -> None:
            if result is not None:
                output[:] = result.numpy()

        return Call(run, None, load=load, store=store)

    def _operation(self, case: Any, kind: Any) -> Any:
        """The collective as a function of a tensor."""
        ops = self._tf.raw_ops
        TensorFlow._instances += 1
        keys = {"group_size": case.n, "group_key": 1000, "instance_key": 1000 + self._instances}
        if case.collective == "broadcast" and self._rank == case.root:
            return lambda x: ops.CollectiveBcastSendV2(input=x, **keys)
        if case.collective == "broadcast":
            return lambda x: ops.CollectiveBcastRecvV2(T=kind, shape=[case.counts[1]], **keys)
        if case.collective == "all_gather":
            return lambda x: ops.CollectiveGatherV2(input=x, ordering_token=[], **keys)
        ends = {"merge_op": OPS[case.op], "final_op": "Div" if case.op == "avg" else "Id"}
        return lambda x: ops.CollectiveReduceV2(input=x, ordering_token=[], **keys, **ends)
