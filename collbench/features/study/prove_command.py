"""The command `prove`: algorithms checked by counting contributions."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from typer import Argument, Option

from collbench.cli.families import Debug
from collbench.core.errors import Exit, UsageError
from collbench.core.text import format_count

if TYPE_CHECKING:
    from collbench.core.algorithms import Variant
    from collbench.core.schedule import Fault


@dataclass(frozen=True, kw_only=True)
class ProveOptions:
    """The algorithms to prove, and the numbers of ranks."""

    name: Annotated[str | None, Argument(metavar="[COLLECTIVE]", help="Default: all.")] = None
    algorithm: Annotated[
        str | None, Argument(metavar="[ALGORITHM]", help="Default: all of them.")
    ] = None
    n: Annotated[
        str,
        Option(
            "-n",
            "--ranks",
            help="Numbers of ranks: 1..33, or 2,4,8. Default: 1..33, with --orders 4.",
        ),
    ] = ""
    root: Annotated[
        str, Option("-r", "--root", help="Root rank, or all. Default: 0 and the middle one.")
    ] = ""
    hazards: Annotated[
        bool, Option("--hazards", help="List cells that a step both reads and writes.")
    ] = False
    orders: Annotated[
        bool,
        Option("--orders", help="Show instead in which order each adds, chunk by chunk."),
    ] = False
    debug: Debug = False


def prove(options: ProveOptions) -> None:
    """Prove algorithms right, by counting contributions of ranks."""
    from collbench.core.collectives import COLLECTIVES, find_collective
    from collbench.show import terminal

    numbers = _parse_ranks(options.n or ("4" if options.orders else "1..33"))
    if options.root not in ("", "all") and not options.root.isdecimal():
        raise UsageError(f"--root: '{options.root}' is not a rank", "give a whole number, or all")
    if options.orders:
        return _show_orders(options, numbers)
    wrong = right = 0
    for owner in [find_collective(options.name).name] if options.name else COLLECTIVES:
        variants = _list_variants(owner, options.algorithm)
        proofs = [_prove_variant(variant, numbers, options.root) for variant in variants]
        head = ("algorithm", "right for n =", "wrong for n =", "hazards", "paper")
        lines = [
            line
            for p in proofs
            for line in (*p.fault_lines(), *p.left_out, *(p.hazards if options.hazards else ()))
        ]
        terminal.print_blocks(
            terminal.make_listing(
                owner, head, [proof.row(bool(options.algorithm)) for proof in proofs]
            ),
            *lines,
            "",
        )
        wrong += sum(len(proof.faults) for proof in proofs)
        right += sum(len(proof.right) for proof in proofs)
    if wrong or not right:
        raise typer.Exit(Exit.WRONG_DATA if wrong else Exit.NO_VERDICT)


def _list_variants(collective: str, algorithm: str | None) -> list[Variant]:
    """The algorithm of that name; without one all of the collective."""
    from collbench.core import algorithms

    if algorithm:
        return [algorithms.find_variant(collective, algorithm)]
    return [algorithms.Variant(row) for row in algorithms.list_algorithms(collective)]


def _show_orders(options: ProveOptions, numbers: Sequence[int]) -> None:
    """Print the trees along which algorithms add."""
    from collbench.core.collectives import COLLECTIVES, find_collective
    from collbench.features.study import orders
    from collbench.show import terminal

    if options.hazards:
        raise UsageError("--hazards: with --orders nothing is proved", "leave one of them out")
    if options.root == "all":
        raise UsageError("--root all: with --orders one root is shown", "-r 2, for example")
    orders.refuse_too_many(numbers)
    reducing = [name for name, row in COLLECTIVES.items() if row.reduces]
    owner = find_collective(options.name).name if options.name else ""
    if owner and owner not in reducing:
        raise UsageError(f"{owner} does not reduce", f"one of {', '.join(reducing)}")
    total = 0
    for name in [owner] if owner else reducing:
        variants = _list_variants(name, options.algorithm)
        root = int(options.root or 0)
        rows = [row for variant in variants for row in orders.list_rows(variant, numbers, root)]
        terminal.print_blocks(terminal.make_listing(name, orders.HEADS, rows), "")
        total += len(rows)
    if not total:
        raise typer.Exit(Exit.NO_VERDICT)


class _Proof(NamedTuple):
    """What ``prove`` found out about one algorithm: for which ranks it is right, and lines on all
    else."""

    name: str
    paper: str
    right: list[int]
    faults: list[_Wrong]
    left_out: list[str]
    hazards: list[str]
    cells: int

    def row(self, alone: bool) -> tuple[str, ...]:
        """The cells of the algorithm's line in the table."""
        authors, year, *_ = [*re.split(r" (?=\d{4},)", self.paper), ""]
        first, _, others = authors.partition(", ")
        short = f"{first} et al. {year[:4]}" if year and "," in others else f"{authors} {year[:4]}"
        paper = self.paper if alone else textwrap.shorten(short, 36, placeholder=" …")
        return (
            self.name,
            _format_spans(self.right).replace(",", ", ") or "-",
            _format_spans({wrong.n for wrong in self.faults}).replace(",", ", ") or "-",
            str(self.cells),
            paper,
        )

    def fault_lines(self) -> list[str]:
        """A line for each kind of fault, with the first of them."""
        by_kind: dict[str, list[_Wrong]] = {}
        for wrong in self.faults:
            by_kind.setdefault(wrong.fault.kind, []).append(wrong)
        return [
            f"  {self.name}: {kind} {_describe_faults(wrong)}" for kind, wrong in by_kind.items()
        ]


def _describe_faults(wrong_cells: Sequence[_Wrong]) -> str:
    """For which ranks and roots there are faults, how many, and the first."""
    roots = sorted({wrong.root for wrong in wrong_cells if wrong.root is not None})
    numbers = f"for n = {_format_spans({wrong.n for wrong in wrong_cells})}"
    numbers += f", root {_format_spans(roots)}" if roots else ""
    first = wrong_cells[0]
    where = f"n={first.n}" + (f" root={first.root}" if roots else "")
    fault = str(first.fault).partition(": ")[2]
    return f"{numbers}, {format_count(len(wrong_cells), 'cell')}; first: {where}: {fault}"


class _Wrong(NamedTuple):
    """A fault of a schedule for n ranks and, if it has one, this root."""

    n: int
    root: int | None
    fault: Fault


def _prove_variant(variant: Variant, numbers: Sequence[int], root: str) -> _Proof:
    """Prove an algorithm right for each of these numbers of ranks, or find its faults."""
    from collbench.core import schedule
    from collbench.core.collectives import COLLECTIVES

    proof = _Proof(variant.name, variant.algorithm.paper, [], [], [], [], 0)
    rooted, left_out, cells = COLLECTIVES[variant.algorithm.collective].rooted, dict[int, str](), 0
    for n in numbers:
        roots = sorted({0, n // 2}) if not root else range(n) if root == "all" else [int(root)]
        reason = variant.refuse(n) or (
            f"there is no rank {root}" if rooted and roots[0] >= n else None
        )
        if reason:
            left_out[n] = reason
            continue
        fault_count = len(proof.faults)
        for plan in [variant.schedule(n, r) for r in (roots if rooted else [0])]:
            where = f"n={n}{f' root={plan.root}' if rooted else ''}: "
            proof.faults.extend(
                _Wrong(n, plan.root if rooted else None, fault)
                for fault in schedule.prove_schedule(plan)
            )
            if len(proof.faults) == fault_count:
                hazards = schedule.find_hazards(plan)
                cells += len(hazards)
                for step, both in itertools.groupby(hazards, lambda hazard: hazard.step):
                    cells_text = ", ".join(
                        f"rank {hazard.rank} cell {hazard.cell}" for hazard in both
                    )
                    proof.hazards.append(
                        f"  {plan.name} {where}step {step} reads and writes {cells_text}"
                    )
        if len(proof.faults) == fault_count:
            proof.right.append(n)
    if left_out:
        first = min(left_out)
        proof.left_out.append(
            f"  {variant.name}: not for {_format_spans(left_out)}: {left_out[first]}"
        )
    return proof._replace(cells=cells)


def _parse_ranks(text: str) -> list[int]:
    """The numbers of ranks in ``1..33`` or ``2,4,8``, or both together."""
    from collbench.core.schedule import MAX_PROVED_RANKS

    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high <= MAX_PROVED_RANKS:
            raise UsageError(
                f"-n: '{part.strip()}' is not a number of ranks up to {MAX_PROVED_RANKS}",
                "as in 1..33 or 2,4,8",
            )
        ranks.update(range(low, high + 1))
    return sorted(ranks)


def _format_spans(numbers: Iterable[int]) -> str:
    """Numbers as spans: [1, 2, 3, 5] as 1..3,5."""
    runs = itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ",".join(
        str(low) if low == high else f"{low}{',' if high == low + 1 else '..'}{high}"
        for low, high in ends
    )
