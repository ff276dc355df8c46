"""What JAX's collectives are called, and what is said where it is not there."""

from __future__ import annotations

COLLECTIVES = {  # jax.lax's names; of reductions, by op
    "all_reduce": {"sum": "psum", "min": "pmin", "max": "pmax", "avg": "pmean"},
    "reduce_scatter": {"sum": "psum_scatter"},
    "all_gather": {"none": "all_gather"},
    "all_to_all": {"none": "all_to_all"},
    "sendrecv": {"none": "ppermute"},
}
MISSING = "jax is not installed: pip install 'collbench[jax]'"
