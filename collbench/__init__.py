"""Measures collective communication (NCCL, Gloo, MPI, reference algorithms) and shows how far to trust the numbers."""

__version__ = "0.1.0"
