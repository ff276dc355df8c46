"""The command `list`: what can be measured, and how."""

from __future__ import annotations

from collbench.core.collectives import COLLECTIVES, OPS

BACKENDS = (
    ("gloo", "torch.distributed on CPUs; algorithms by its messages (ring@gloo)"),
    ("nccl", "torch.distributed on GPUs (AMD's: RCCL); algorithms by its messages (ring@nccl)"),
    ("mpi", "MPI by mpi4py on CPUs; algorithms by its messages (ring@mpi)"),
    ("shm", "algorithms in memory the ranks of one host share (ring@shm)"),
    ("symm", "algorithms in GPU peer memory, one Triton kernel (ring@symm)"),
    ("torch_one_shot, torch_two_shot", "torch's own all_reduce kernels in such memory"),
    ("torch_multimem, torch_multimem_one_shot", "the same, with the switch adding up (NVLS)"),
    ("NAME", "any other backend torch.distributed knows under that name (ucc, a plug-in's)"),
    ("model", "predicted times on a flat network: the lower bound, and algorithms (ring@model)"),
)


def list_() -> None:
    """List collectives, reductions, algorithms, backends and suites."""
    from collbench.show import terminal

    for title, (head, *rows) in catalogue().items():
        terminal.show(terminal.listing(title, head, rows, single=title == "Algorithms"), "")


def catalogue() -> dict[str, list[tuple[str, ...]]]:
    """Tables by title, a header row first."""
    from collbench.core import algorithms
    from collbench.suite import toml

    rows: list[tuple[str, ...]] = [("name", "busbw factor", "in place", "meaning")]
    rows += [(c.name, c.factor, c.in_place or "-", c.meaning) for c in COLLECTIVES.values()]
    reductions: list[tuple[str, ...]] = [("name (--op)", "datatypes")]
    reductions += [
        (op.name, "integers" if op.integers_only else "integers and floats") for op in OPS.values()
    ]
    reductions.append(("land, lor, lxor", "not measured: MPI's logical ones move band's bytes"))
    named: list[tuple[str, ...]] = [("collective", "algorithm (--algo)", "what it does")]
    for name in COLLECTIVES:
        named += [(name, algorithms.spelling(one), one.idea) for one in algorithms.of(name)]
    suites: list[tuple[str, ...]] = [("name", "tags", "what it is for")]
    suites += [(s.name, ", ".join(s.tags), s.description) for s in toml.built_in().values()]
    return {
        "Collectives": rows,
        "Reductions": reductions,
        "Algorithms": named,
        "Backends": [("name", "what it is"), *BACKENDS],
        "Suites": suites,
    }
