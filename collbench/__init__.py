"""collbench: measures collective communication (NCCL, Gloo, MPI and reference algorithms) and shows how far to trust the numbers."""

__version__ = "0.1.0"
