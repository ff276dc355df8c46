"""The command `list`: what can be measured, and how."""

from __future__ import annotations

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import OPS


def list_() -> None:
    """List collectives, reductions, algorithms, backends and suites."""
    from collbench.show import terminal

    for title, (head, *rows) in list_tables().items():
        terminal.print_blocks(
            terminal.make_listing(title, head, rows, single=title == "Algorithms"), ""
        )


def list_tables() -> dict[str, list[tuple[str, ...]]]:
    """Tables by title, a header row first."""
    from collbench.core import algorithms
    from collbench.core.backend_info import find_origin, list_infos
    from collbench.suite import shipped, toml

    rows: list[tuple[str, ...]] = [("name", "busbw factor", "in place", "meaning")]
    rows += [(c.name, c.factor, c.in_place or "-", c.meaning) for c in COLLECTIVES.values()]
    reductions: list[tuple[str, ...]] = [("name (--op)", "datatypes")]
    reductions += [
        (op.name, "integers" if op.integers_only else "integers and floats") for op in OPS.values()
    ]
    reductions.append(("land, lor, lxor", "not measured: MPI's logical ones move band's bytes"))
    algorithm_rows: list[tuple[str, ...]] = [("collective", "algorithm (--algo)", "what it does")]
    for name in COLLECTIVES:
        algorithm_rows += [
            (name, algorithms.describe_spelling(algorithm), algorithm.idea)
            for algorithm in algorithms.list_algorithms(name)
        ]
    suites: list[tuple[str, ...]] = [("name", "tags", "what it is for")]
    suites += [(s.name, ", ".join(s.tags), s.description) for s in toml.built_in().values()]
    for folder in sorted({str(path.parent) for path in shipped.list_suites().values()}):
        suites.append(("FILE.toml", "", f"your own suite; examples to copy: {folder}"))
    backends = [
        (name, " ".join(filter(None, [info.about, origin and f"({origin})"])))
        for name, info in list_infos().items()
        for origin in [find_origin(name)]
    ]
    about_others = "any other backend torch.distributed knows under that name; ./FILE.py: your own"
    backends.append(("NAME", about_others))
    return {
        "Collectives": rows,
        "Reductions": reductions,
        "Algorithms": algorithm_rows,
        "Backends": [("name", "what it is"), *backends],
        "Suites": suites,
    }
