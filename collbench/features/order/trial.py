"""The order of a collective at all its sizes, on one rank."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from collbench.core.dtypes import DTYPES
from collbench.core.errors import CannotRun, first_line
from collbench.core.sums.families import list_families, list_rings
from collbench.core.sums.rounding import EXACT, Rounding, find_rounding, list_divisions
from collbench.core.sums.search import Finding, Search, ask_subnormals, find_order
from collbench.core.sums.swallowing import list_ranks
from collbench.core.sums.trees import SumTree
from collbench.features.order.buffers import Buffers
from collbench.features.order.calls import (
    FIRST_BYTES,
    FIRST_CALLS,
    choose_strategy,
    count_pooled,
    count_varied,
)
from collbench.features.order.findings import (
    SPENT,
    OrderFindings,
    Piece,
    Proof,
    RankPieces,
    SizeOrder,
)
from collbench.features.order.probing import FoundPiece, Prober
from collbench.features.order.proving import (
    Predicted,
    Prover,
    RandomData,
    Wrong,
    is_slow,
    list_small_trees,
)
from collbench.features.order.request import SumOrder, label_way
from collbench.records.types import FirstWrong
from collbench.run import refusal
from collbench.run.backends import REFUSALS, Call
from collbench.run.jobs import Job
from collbench.run.launch.board import Phase
from collbench.run.rank.adding import find_output_offset
from collbench.run.rank.bench import Bench
from collbench.run.rank.outcome import CaseOutcome, FoundCase, WrongData
from collbench.suite.case import Case

MAX_LISTED = 6  # ranks up to which every order is tried on results that changed


class _Call(NamedTuple):
    """A call at one size, with its buffers in one way, that is ready to be made. ``offset`` is
    Prober's."""

    case: Case
    issue: Callable[[], object]
    prober: Prober
    make_prover: Callable[[RandomData], Prover]
    offset: int | None


class OrderTrial:
    """A run.runner.Trial."""

    def __init__(self, bench: Bench, job: Job, emit: Callable[..., object]) -> None:
        self._bench, self._emit, self._case = bench, emit, job.case
        self._subject: SumOrder = job.subject
        self._began = time.monotonic()
        largest = self._subject.make_case(job.case, self._subject.sizes[-1], in_place=False)
        self._buffers = Buffers(bench.backend, largest, self._subject.shifts)
        self._ways: list[tuple[bool, int]] = self._subject.ways
        self._sizes: list[SizeOrder] = []
        self._varied: list[SizeOrder] = []
        self._dropped: list[str] = []
        self._refused: dict[tuple[bool, int], str] = {}  # by whether in place, and shift
        self._wrong = Wrong(0, None)
        self._subnormals = True
        self._data: dict[tuple[int, ...], RandomData] = {}

    def run(self) -> Generator[None, None, Sequence[CaseOutcome]]:
        """What was found, at rank 0; with a pause before each size."""
        self._bench.board.enter(self._bench.rank, Phase.MEASURING)
        first_results = self._make_first_calls()
        self._subnormals = self._find_subnormals()
        for nbytes in self._subject.sizes:
            yield
            if self._is_late(f"sizes from {nbytes:,} B on"):
                break
            self._sizes.append(self._find(nbytes, *self._ways[0]))
            self._emit_so_far()
        yield from self._bisect_sizes()
        yield from self._try_ways()
        yield from self._repeat_calls()
        self._compare_first_calls(first_results)
        self._bench.board.enter(self._bench.rank, Phase.REPORTING)
        return self._make_outcomes()

    def _emit_so_far(self) -> None:
        if self._bench.rank == 0 and not self._wrong.elements:
            self._emit([self._describe_findings()._replace(stop="cut")])

    def _describe_findings(self) -> FoundCase:
        """What was found so far."""
        sizes = sorted(self._sizes + self._varied, key=lambda s: (s.nbytes, s.varied, s.in_place))
        seconds = time.monotonic() - self._began
        refused = [
            f"{label_way(in_place, shift)}: {reason}"
            for (in_place, shift), reason in self._refused.items()
        ]
        found = OrderFindings(sizes=sizes, dropped=self._dropped + refused, seconds=seconds)
        verified = sum(size.proof.of for size in sizes)
        return FoundCase(msgspec.to_builtins(found), verified)

    def _make_outcomes(self) -> Sequence[CaseOutcome]:
        """The outcome, at rank 0."""
        if self._bench.rank:
            return []
        found, first = self._describe_findings(), self._wrong.first
        if first is None:
            return [found]
        note = (
            f"{self._wrong.elements:,} elements are no sum of what ranks gave, first on rank"
            f" {first.rank} at {first.element}: {first.got} instead of about {first.expected}"
        )
        where = FirstWrong(
            rank=first.rank, index=first.element, got=first.got, expected=first.expected
        )
        return [WrongData(self._wrong.elements, note, where, found.verified, found.findings)]

    def _is_late(self, what: str) -> bool:
        """Whether the budget is spent, as rank 0 has it; ``what`` is then left out."""
        budget = self._subject.budget
        if not budget:
            return False
        spent = time.monotonic() - self._began
        late = bool(self._bench.control.decide([int(spent > budget)])[0])
        if late:
            self._dropped.append(f"{what}: {budget:g}{SPENT}")
        return late

    def _open(self, nbytes: int, in_place: bool, shift: int, probes: bool = False) -> _Call:
        """The call at one size, prepared; to be probed, a product as the sum, as products of powers
        of two lose nothing. Faults that are planted are in the calls that are to be predicted."""
        bench = self._bench
        case = self._subject.make_case(self._case, nbytes, in_place)
        if probes and case.op == "prod":
            case = msgspec.structs.replace(case, op="sum")
        views = self._buffers.cut(case, bench.rank, shift)
        call = bench.backend.prepare(case, views.send, views.recv)
        planted = bench.planted()
        proved_call = planted.within(call, views.recv) if planted else call

        def issue(call: Call) -> None:
            bench.board.count_calls(bench.rank)
            call.run_with_data(bench.backend.finish)

        offset = find_output_offset(case, bench.rank)
        prober = Prober(views, partial(issue, call), bench.control, offset, case.op)
        make_prover = partial(
            Prover, case, views, partial(issue, proved_call), bench.control, offset
        )
        return _Call(case, partial(issue, call), prober, make_prover, offset)

    def _choose_first(self) -> int:
        """The size at which first calls are made: the largest of which many results can be kept; 0
        where none is."""
        return max((size for size in self._subject.sizes if size <= FIRST_BYTES), default=0)

    def _make_first_calls(self) -> list[torch.Tensor]:
        """The results of calls that are made before all others, with numbers for any adder:
        libraries may change how they add once they have been called a few times."""
        nbytes = self._choose_first()
        if not self._subject.repeats or not nbytes:
            return []
        call = self._open(nbytes, *self._ways[0])
        return call.make_prover(self._find_data(call.case, [EXACT])).make_first_calls(FIRST_CALLS)

    def _compare_first_calls(self, results: Sequence[torch.Tensor]) -> None:
        nbytes = self._choose_first()
        index = next((i for i, size in enumerate(self._sizes) if size.nbytes == nbytes), None)
        if index is None or not results:
            return
        size = self._sizes[index]
        call = self._open(nbytes, *self._ways[0])
        predicted = self._recall(size, call)
        prover = call.make_prover(self._find_data(call.case, [EXACT]))
        known = partial(self._list_candidates, call.case, predicted)
        rounding = self._choose_rounding(predicted)
        compared, wrong = prover.compare_first_calls(results, known, rounding)
        self._note_wrong(wrong)
        self._sizes[index] = msgspec.structs.replace(size, first_calls=compared)

    def _choose_rounding(self, predicted: Sequence[Predicted]) -> Rounding:
        """How odd results are rounded: as what was found."""
        dtype = DTYPES[self._subject.dtype]
        return predicted[0].rounding if predicted else Rounding(dtype.precision)

    def _find_subnormals(self) -> bool:
        """Whether numbers below the normal ones are kept on all ranks."""
        call = self._open(self._subject.sizes[0], *self._ways[0], probes=True)
        case = call.case
        ranks = range(case.n)
        found = call.prober.find(lambda: ask_subnormals(ranks, case.type, case.op, case.n))
        kept = all(piece.finding for piece in found)
        return all(self._bench.control.collect(kept))

    def _make_search(self, case: Case) -> Search:
        """What is asked of this rank's output."""
        is_prefix = case.collective == "scan"
        last = self._bench.rank if is_prefix else case.n - 1
        strategy = choose_strategy(self._subject)
        return find_order(range(last + 1), case.type, case.op, case.n, self._subnormals, strategy)

    def _find(self, nbytes: int, in_place: bool, shift: int) -> SizeOrder:
        """The order at one size; asked again, three times over, where what was found does not
        predict every bit."""
        probed = self._open(nbytes, in_place, shift, probes=True)
        call = probed if probed.case.op == self._subject.op else self._open(nbytes, in_place, shift)
        attempts = 0
        for thrice in (False, True):
            attempts += 1
            found = probed.prober.find(lambda: self._make_search(probed.case), thrice)
            calls = probed.prober.calls
            predicted = [_predict(piece, call.case) for piece in found]
            proof, predicted = self._prove(call, predicted, self._subject.proof, thrice, True)
            if proof.is_complete:
                break
        pieces = [
            _describe_piece(piece, order.rounding)
            for piece, order in zip(found, predicted, strict=True)
        ]
        return SizeOrder(
            nbytes=nbytes,
            count=call.case.count,
            in_place=in_place,
            shift=shift,
            strategy=choose_strategy(self._subject),
            calls=calls,
            attempts=attempts,
            ranks=self._collect_pieces(call, pieces),
            proof=proof,
        )

    def _prove(
        self,
        call: _Call,
        predicted: Sequence[Predicted],
        buffers: int,
        thrice: bool = False,
        is_new: bool = False,
    ) -> tuple[Proof, list[Predicted]]:
        """The proof of the orders by random bits, and the orders; new ones with the way in which
        avg divides."""
        dtype, op, collect = call.case.type, call.case.op, self._bench.control.collect
        adders = self._collect_adders(predicted)
        slow = any(collect(is_slow(predicted, dtype, op, adders)))
        prover = call.make_prover(self._find_data(call.case, adders, slow))
        rounding = Rounding(adders[-1], frozenset()) if adders else Rounding(dtype.precision)
        ways = list_divisions(op, rounding) if is_new else [Rounding(EXACT)]
        divisions = [way.division for way in ways]
        proof, wrong, division = prover.prove(predicted, buffers, thrice, divisions)
        self._note_wrong(wrong)
        if not is_new:
            return proof, list(predicted)
        return proof, [
            piece._replace(rounding=piece.rounding._replace(division=division))
            for piece in predicted
        ]

    def _collect_adders(self, predicted: Sequence[Predicted]) -> list[int]:
        """The adders of all ranks' orders that are wider than the type."""
        own = DTYPES[self._subject.dtype].precision
        adders = {piece.rounding.adder for piece in predicted if piece.tree} - {own}
        everyone = self._bench.control.collect(sorted(adders))
        return sorted({adder for of_rank in everyone for adder in of_rank})

    def _note_wrong(self, wrong: Wrong) -> None:
        """Keep the first wrong data."""
        if wrong.elements and not self._wrong.elements:
            self._wrong = wrong

    def _find_data(self, case: Case, adders: list[int], slow: bool = False) -> RandomData:
        """Random numbers for a size, the same in all its ways; those of the size before are let
        go."""
        data = RandomData(case, self._bench.policy.seed, slow, adders)
        if (key := (data.period, *adders)) not in self._data:
            self._data = {key: data}
        return self._data[key]

    def _collect_pieces(self, call: _Call, pieces: Sequence[Piece]) -> list[RankPieces]:
        """The pieces of all ranks that have an output, of those that are alike together."""
        everyone = self._bench.control.collect(
            None if call.offset is None else msgspec.to_builtins(pieces)
        )
        groups: list[tuple[list[int], Any]] = []
        for rank, content in enumerate(everyone):
            if content is None:
                continue
            alike = next((ranks for ranks, other in groups if other == content), None)
            if alike is None:
                groups.append(([rank], content))
            else:
                alike.append(rank)
        return [
            RankPieces(ranks=tuple(ranks), pieces=msgspec.convert(content, list[Piece]))
            for ranks, content in groups
        ]

    def _bisect_sizes(self) -> Generator[None, None, None]:
        """Find the sizes at which the trees change, between neighbours whose trees differ; one
        change is assumed between two."""
        if not self._subject.bisect:
            return
        step = self._subject.make_case(self._case, self._subject.sizes[0], in_place=False)
        unit = step.type.size * (step.n if step.row.total else 1)
        for low, high in list(itertools.pairwise(self._sizes)):
            if _list_trees(low) == _list_trees(high):
                continue
            ends = [low, high]
            while ends[1].nbytes - ends[0].nbytes > unit:
                yield
                sizes = [end.nbytes for end in ends]
                if self._is_late(f"the change between {sizes[0]:,} and {sizes[1]:,} B"):
                    return
                middle = max(sum(sizes) // 2 // unit * unit, sizes[0] + unit)
                found = self._find(middle, *self._ways[0])
                ends[_list_trees(found) != _list_trees(low)] = found
            for end in ends:
                self._add_bisected(end)

    def _add_bisected(self, size: SizeOrder) -> None:
        if all(size.nbytes != other.nbytes for other in self._sizes):
            self._sizes.append(msgspec.structs.replace(size, bisected=True))
            self._sizes.sort(key=lambda other: other.nbytes)

    def _try_ways(self) -> Generator[None, None, None]:
        """Try the order of each size in the other ways to place buffers; ask anew where it does
        not predict every bit."""
        for base in [size for size in self._sizes if not size.bisected]:
            for in_place, shift in self._ways[1:]:
                yield
                if self._is_late(f"other places of buffers from {base.nbytes:,} B on"):
                    return
                if call := self._open_way(base.nbytes, in_place, shift):
                    self._varied.append(self._try_way(base, call, shift))
            self._emit_so_far()

    def _open_way(self, nbytes: int, in_place: bool, shift: int) -> _Call | None:
        """The call in another way to place buffers, which is made once; None where the library
        refuses that way, whose reason is kept."""
        case = self._subject.make_case(self._case, nbytes, in_place)
        opened: list[_Call] = []

        def open_call() -> None:
            if reason := refusal.refuse_opened(case, self._bench.backend):
                raise CannotRun(reason)
            opened.append(self._open(nbytes, in_place, shift))

        # calls are made once all ranks have prepared theirs
        if reason := self._try_action(open_call) or self._try_action(opened[0].issue):
            self._refused.setdefault((in_place, shift), reason)
            return None
        return opened[0]

    def _try_action(self, action: Callable[[], object]) -> str:
        """Do an action; the reason why all ranks are refused it, else "". Raises RuntimeError if
        only some are."""
        reason = ""
        try:
            action()
        except CannotRun as e:
            reason = e.reason
        except REFUSALS as e:
            self._bench.backend.finish()  # raises where the device is broken
            reason = first_line(e)
        reasons = self._bench.control.collect(reason)
        if any(reasons) and not all(reasons):
            rank = next(rank for rank, text in enumerate(reasons) if text)
            raise RuntimeError(f"only some ranks refuse: rank {rank}: {reasons[rank]}")
        return str(reasons[0])

    def _try_way(self, base: SizeOrder, call: _Call, shift: int) -> SizeOrder:
        in_place = call.case.in_place
        predicted = self._recall(base, call)
        proof, _ = self._prove(call, predicted, count_pooled(self._subject, base.nbytes))
        if not proof.is_complete:
            found = self._find(base.nbytes, in_place, shift)
            return msgspec.structs.replace(found, varied=True)
        return SizeOrder(
            nbytes=base.nbytes,
            count=base.count,
            in_place=in_place,
            shift=shift,
            strategy=base.strategy,
            varied=True,
            like=True,
            proof=proof,
        )

    def _recall(self, size: SizeOrder, call: _Call) -> list[Predicted]:
        """The orders of this rank's output, as they were found."""
        pieces = next((r.pieces for r in size.ranks if self._bench.rank in r.ranks), [])
        return [] if call.offset is None else [_recall_piece(piece) for piece in pieces]

    def _repeat_calls(self) -> Generator[None, None, None]:
        """Repeat a call of each size, and change what other elements hold."""
        subject = self._subject
        for index, size in enumerate(self._sizes):
            if size.bisected:
                continue
            yield
            if self._is_late(f"repeats from {size.nbytes:,} B on"):
                return
            call = self._open(size.nbytes, size.in_place, size.shift)
            predicted = self._recall(size, call)
            prover = call.make_prover(self._find_data(call.case, self._collect_adders(predicted)))
            rounding = self._choose_rounding(predicted)
            known = partial(self._list_candidates, call.case, predicted)
            digest = prover.digest()
            repeats, wrong = prover.repeat(subject.repeats, known, rounding)
            self._note_wrong(wrong)
            varied = count_varied(subject, size.nbytes)
            neighbours = prover.vary_neighbours(varied, thrice=repeats.changed > 0)
            self._sizes[index] = msgspec.structs.replace(
                size, digest=digest, repeats=repeats, neighbours=neighbours
            )
            self._emit_so_far()

    def _list_candidates(self, case: Case, predicted: Sequence[Predicted]) -> list[SumTree]:
        """Orders that an odd result may have: those found, and of few ranks all, else those that
        have a name."""
        n = self._bench.rank + 1 if case.collective == "scan" else case.n
        known = [piece.tree for piece in predicted if piece.tree]
        if n <= MAX_LISTED:
            known += list_small_trees(range(n))
        else:
            known += [family.tree for family in list_families(n, max(case.root, 0))]
            known += [tree for trees in list_rings(n).values() for tree in trees]
        return list(dict.fromkeys(known))


def _predict(piece: FoundPiece, case: Case) -> Predicted:
    """What a found piece says of random numbers."""
    finding = piece.finding
    rounding = Rounding(case.type.precision)
    if finding.tree is not None and finding.low_tree is not None:
        rounding = find_rounding(finding.tree, finding.low_tree, case.type, finding.adder)
    return Predicted(piece.first, piece.last, finding.tree, rounding)


def _describe_piece(piece: FoundPiece, rounding: Rounding) -> Piece:
    finding: Finding = piece.finding
    if finding.tree is None:
        return Piece(first=piece.first, last=piece.last, reason=finding.reason)
    at = () if rounding.at is None else tuple(sorted(tuple(list_ranks(m)) for m in rounding.at))
    low = "" if finding.low_tree in (None, finding.tree) else str(finding.low_tree)
    return Piece(
        first=piece.first,
        last=piece.last,
        tree=str(finding.tree),
        reason=finding.reason,
        low=low,
        adder=rounding.adder,
        visible=finding.visible,
        at=at,
        division=rounding.division,
    )


def _recall_piece(piece: Piece) -> Predicted:
    """What a piece that was found before says of random numbers."""
    return Predicted(piece.first, piece.last, piece.parsed, piece.rounding)


def _list_trees(size: SizeOrder) -> list[Any]:
    """The trees along each rank's output, wherever they begin."""
    return [(r.ranks, [(p.tree, p.low, p.reason) for p in r.pieces]) for r in size.ranks]
