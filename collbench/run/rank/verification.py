"""The data of one case on one rank: buffers filled with what tells errors apart, what calls left in
them compared, and digests of results that are rounded."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial

import torch

from collbench.core.dtypes import OPS
from collbench.run.backends import Call
from collbench.run.rank import check
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import Slot, copy_slots
from collbench.run.rank.check import Checker
from collbench.run.rank.measure import Sampler
from collbench.run.rank.outcome import CaseOutcome, find_wrong_data
from collbench.suite.case import Case
from collbench.suite.policy import Policy

CALLED_AGAIN = 4  # calls made once more after timing, on fresh buffers


class Verification:
    """Fills the ``slots`` of a case on this process's ranks and checks what calls leave in them."""

    def __init__(
        self,
        bench: Bench,
        case: Case,
        policy: Policy,
        slots: Sequence[Slot],
        calls: Sequence[Call],
    ) -> None:
        self._bench, self._case, self._policy = bench, case, policy
        self._control = bench.control
        self._count = partial(bench.board.count_calls, bench.rank)
        self._slots, self._calls = slots, calls
        self._fillings = 0  # so far, of all slots
        self._keys = [0] * len(slots)  # what each slot's data were drawn by
        self._kept = [0] * len(slots)  # and those that put_back brings back
        self._groups = (bench.backend.control or bench.control).groups
        key = zlib.crc32(case.key.encode())  # no two cases share data
        self._seed = policy.seed + key
        device = bench.backend.device
        premultiplies = bench.backend.premultiplies
        beat = partial(bench.board.beat, bench.rank)
        self._checkers = [
            Checker(case, policy.seed, rank, device, premultiplies, beat, key)
            for rank in bench.ranks
        ]
        # repeated in place, a reduction feeds on its own result: inputs are put back before each
        # call
        self.feeds_on_itself = case.in_place and case.row.reduces and not OPS[case.op].idempotent
        self.totals = [0] * len(self._groups)  # elements compared so far, by group
        self._compared = 0  # on this process's ranks
        self._copies: list[list[torch.Tensor]] = []

    def fill(self, slot: int) -> None:
        """Fills what a slot's calls read with other data than ever before, as memory that a library
        hands out again may hold an old result, and poisons what they write."""
        self._keys[slot] = self._fillings
        self._fillings += 1
        self._refill(slot)

    def _refill(self, slot: int) -> None:
        for checker, buffers in zip(self._checkers, self._slots[slot], strict=True):
            checker.poison(buffers.written)
            checker.fill_send(buffers.send, self._keys[slot])
        self._calls[slot].load()

    def keep_copies(self) -> None:
        """Has ``put_back`` bring back what the slots hold now: from copies on their GPU where there
        is room."""
        self._kept = list(self._keys)
        stream = self._bench.backend.stream
        if self.feeds_on_itself and stream:
            self._copies = copy_slots(self._slots, stream.room())

    def put_back(self, slot: int) -> None:
        """A slot as it was when copies were kept, by a launch for each rank's buffer where there
        are copies: filling a large one anew takes thousands."""
        self._keys[slot] = self._kept[slot]
        if not self._copies:
            return self._refill(slot)
        for buffers, copy in zip(self._slots[slot], self._copies[slot], strict=True):
            buffers.written.copy_(copy)
        self._calls[slot].load()

    def check_slots(self, slots: Sequence[int], when: str) -> Sequence[CaseOutcome]:
        """The outcome of each group if any rank's receive buffer differs anywhere, else nothing."""
        if not self._policy.check or not self._case.size:
            return []
        wrong, first = 0, None
        for slot in slots:
            self._calls[slot].store()
            for rank, checker, buffers in zip(
                self._bench.ranks, self._checkers, self._slots[slot], strict=True
            ):
                checked, bad, where = checker.check_recv(buffers.recv, self._keys[slot])
                self._compared += checked
                wrong += bad
                first = first or (where and [self._case.members[rank], *where])
        everyone = self._control.collect([self._compared, wrong, first])
        findings = [[everyone[rank] for rank in ranks] for ranks in self._groups]
        self.totals = [
            sum(checked for checked, _, _ in rank_findings) for rank_findings in findings
        ]
        return find_wrong_data(self._case, findings, when)

    def check_after(self, sampler: Sampler, fresh: bool) -> Sequence[CaseOutcome]:
        """The outcome of each group if timed calls left wrong data in their buffers, or calls leave
        it in fresh ones; fresh ones are left out where the only timed call had a ``fresh`` one."""
        slots = sampler.used
        if self.feeds_on_itself:
            # where a batch used a slot twice, its input was no longer what the check knows
            slots = set() if sampler.inner > len(sampler.calls) else set(sampler.dirty)
        wrong = self.check_slots(sorted(slots), "after timing")
        if fresh and sampler.called == 1 and self._policy.check == 1:
            return wrong
        return wrong or self._check_again(sampler)

    def _check_again(self, sampler: Sampler) -> Sequence[CaseOutcome]:
        """What timed calls left behind may be older than the last of them: so some of the buffers
        are poisoned and filled anew, the same calls are made once more, untimed, and all is
        compared again; -c N does so N times.
        """
        again = [(call, slots) for call, slots in sampler.again if sampler.used.issuperset(slots)][
            :CALLED_AGAIN
        ]
        fresh = sorted({slot for _, slots in again for slot in slots})
        for _ in range(self._policy.check):
            for slot in fresh:
                self.fill(slot)
            self._bench.backend.finish()
            self._control.barrier()
            for call, _ in again:
                self._count()
                call()
            self._bench.backend.finish()
            if wrong := self.check_slots(fresh, "after timing, on fresh buffers"):
                return wrong
        return []

    def digest_results(self, call: Callable[[], object]) -> list[list[str]]:
        """Digests by group of what two ``call``s on the first slot made of the same data, which
        must be rounded: one if they agree. Empty where bits are not asked for or nothing rounds."""
        if not self._policy.bitwise or not check.is_rounded(self._case):
            return [[]] * len(self._groups)
        digests = []
        for _ in range(2):
            self.fill(0)
            places = list(zip(self._bench.ranks, self._checkers, self._slots[0], strict=True))
            for rank, checker, buffers in places:
                check.fill_floats(buffers.send, checker.sends, self._seed, rank)
            self._bench.backend.finish()
            self._control.barrier()
            call()
            digests.append(
                check.join_digests(
                    [check.digest_bits(b.recv, checker.receives or ()) for _, checker, b in places]
                )
            )
        everyone = self._control.collect(digests)
        groups_digests = [[everyone[rank] for rank in ranks] for ranks in self._groups]
        return [
            list(dict.fromkeys(map(check.join_digests, zip(*group_digests, strict=True))))
            for group_digests in groups_digests
        ]
