"""TensorFlow's collective operations, as MultiWorkerMirroredStrategy trains with on CPUs.

collbench all_reduce --backend tests/backends/tensorflow_file.py,gloo -g 2 -b 8 -e 1M
"""

from __future__ import annotations

import importlib.util
import json
import os
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
    settings=("TF_NUM_", "TF_XLA_", "TF_ENABLE_", "OMP_"),
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

    def open(self, rank: int, n: int, local_rank: int) -> None:
        workers = self.find_group(rank, n).collect(self.find_free_address())
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        import tensorflow

        self._tf, self._rank = tensorflow, rank
        # traced functions by what they do; each has a number of its own, alike on all ranks
        self._functions: dict[tuple[Any, ...], Any] = {}
        self._strategy = tensorflow.distribute.MultiWorkerMirroredStrategy()
        self.library = f"TensorFlow {tensorflow.__version__}"
        assert self._strategy.num_replicas_in_sync == n

    def prepare(self, case: Any, send: Any, recv: Any) -> Call:
        tf = self._tf
        key = (case.collective, case.dtype, case.op, case.root, *case.counts)
        if key not in self._functions:
            self._functions[key] = self._trace(case)
        call = self._functions[key]
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

    def _trace(self, case: Any) -> Any:
        """The collective as a function of a tensor."""
        tf, ops, keys = self._tf, self._tf.raw_ops, {"group_size": case.n, "group_key": 1000}
        kind, keys["instance_key"] = getattr(tf, DTYPES[case.dtype]), 1000 + len(self._functions)
        ends = {"merge_op": OPS.get(case.op), "final_op": "Div" if case.op == "avg" else "Id"}

        def run(x: Any) -> Any:
            if case.collective == "all_reduce":
                return ops.CollectiveReduceV2(input=x, ordering_token=[], **keys, **ends)
            if case.collective == "all_gather":
                return ops.CollectiveGatherV2(input=x, ordering_token=[], **keys)
            if self._rank == case.root:
                return ops.CollectiveBcastSendV2(input=x, **keys)
            return ops.CollectiveBcastRecvV2(T=kind, shape=[case.counts[1]], **keys)

        return tf.function(run).get_concrete_function(tf.TensorSpec([case.counts[0]], kind))
