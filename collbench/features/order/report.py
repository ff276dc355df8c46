"""All that a command says of a run of orders, and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.errors import Exit
from collbench.features.order.judgement import Judgement, UnmeasuredOrder, judge_orders
from collbench.features.order.likeness import Likeness, compare_orders
from collbench.features.order.requirements import (
    Requirement,
    RequirementResult,
    judge_requirements,
)
from collbench.records.origins import is_fake
from collbench.records.types import RunFile


class OrderReport(NamedTuple):
    """A run's orders, judged; what was required of them, and what another run has."""

    file: RunFile
    judgement: Judgement
    requirements: list[RequirementResult]
    likenesses: list[Likeness]
    like: str = ""  # the run that they are held against
    uncompared: Sequence[UnmeasuredOrder] = ()  # of which only that run may know an order
    is_fake: bool = False

    @property
    def exit(self) -> Exit:
        """WRONG_DATA where a result is no sum; BAD where a requirement is broken or an order is
        another than recorded; NO_VERDICT where that is not known, an order is not proved, not at
        every size or not decided, or none is visible and nothing was required."""
        orders, unmeasured = self.judgement
        answers = [result.kept for result in self.requirements]
        answers += [likeness.is_alike for likeness in self.likenesses]
        answers += [None for _ in self.uncompared]
        statuses = {case.status for case in unmeasured}
        if "wrong" in statuses or any(order.wrong for order in orders):
            return Exit.WRONG_DATA
        if False in answers:
            return Exit.BAD
        is_known = all(order.is_proved and not order.missing for order in orders)
        is_known = is_known and bool(orders) and not self.is_fake
        is_visible = bool(answers) or any(order.is_visible for order in orders)
        is_undecided = not statuses.isdisjoint(("failed", "ok"))
        if None in answers or is_undecided or not (is_known and is_visible):
            return Exit.NO_VERDICT
        return Exit.OK


def make_order_report(
    file: RunFile,
    requirements: Sequence[Requirement] = (),
    recorded: RunFile | None = None,
) -> OrderReport:
    """What came of a run: its orders, judged, by requirements and a recorded run."""
    judgement = judge_orders(file)
    report = OrderReport(
        file,
        judgement,
        judge_requirements(requirements, judgement),
        likenesses=[],
        is_fake=is_fake(file),
    )
    if recorded is None:
        return report
    known = judge_orders(recorded)
    skipped = {case.case for case in known.unmeasured if case.status == "skipped"}
    return report._replace(
        likenesses=compare_orders(judgement, known),
        like=recorded.run.tag or recorded.run.id,
        uncompared=[
            case
            for case in judgement.unmeasured
            if case.status != "skipped" or case.case not in skipped
        ],
    )
