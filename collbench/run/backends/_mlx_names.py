"""What MLX's collectives are called, and what is said where it is not there."""

from __future__ import annotations

COLLECTIVES = {  # mlx.core.distributed's names; of reductions, by op
    "all_reduce": {"sum": "all_sum", "min": "all_min", "max": "all_max"},
    "all_gather": {"none": "all_gather"},
    "sendrecv": {"none": "send and recv"},
}
MISSING = "mlx is not installed: pip install 'collbench[mlx]'"
CORELESS = "mlx has no library for CPUs here: pip install 'collbench[mlx]', which brings mlx-cpu"
