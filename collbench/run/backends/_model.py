"""Predicted times, so that a sweep can be planned, and every command tested, without ranks or
clocks.

A library is taken to reach the lower bound of its collective on a flat network: ``a*alpha +
b*S*beta + g*S*gamma`` with the multiples of collectives.py. Reference algorithms are simulated on
the same network. Records made here are marked predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from collbench.core import algorithms, simulate, splits
from collbench.core.errors import AlgorithmError, CollbenchError
from collbench.core.network import Link, Network
from collbench.machine import environment
from collbench.machine.load import Load
from collbench.records import types
from collbench.records.types import RankInfo, Record
from collbench.run.jobs import Plan
from collbench.run.launch.world import Hear, Listener, World
from collbench.suite.case import Case

TEN_GIGABIT = Link(alpha=20e-6, beta=1 / 1.18e9, gamma=1 / 8e9)


def predict_seconds(case: Case, link: Link = TEN_GIGABIT) -> float:
    """The bound's time for one call of ``case``."""
    bound = case.row.bound(case.n)
    return bound.alpha * link.alpha + case.moved * (
        bound.beta * link.beta + bound.gamma * link.gamma
    )


class Model:
    """Predicts cases on a flat network; what one case costs helps with the next sizes."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._predictors: dict[tuple[str, str, int, int], simulate.Predictor] = {}

    def seconds(self, case: Case) -> tuple[float, str]:
        """One call's time, and by which model. Raises UsageError where the algorithm cannot run,
        CannotRun where simulating it would take too long."""
        if case.algorithm == "native":
            return predict_seconds(case, self._network.link), "lower bound of the model"
        key = case.collective, case.algorithm, case.n, case.root
        if key not in self._predictors:
            variant = algorithms.find_variant(case.collective, case.algorithm)
            self._predictors[key] = simulate.Predictor(variant, self._network, case.n, case.root)
        predictor = self._predictors[key]
        predictor.check([case.size])
        note = f"simulated {predictor.schedule(case.size).name} on the flat network"
        if not case.splits:
            return predictor.seconds(case.size), note
        lengths = splits.block_lengths(case.matrix) * case.type.size
        return simulate.cost_schedule(
            predictor.schedule(case.size), self._network, lengths
        ).seconds(1), note


class Predicted(World):
    """Plans that need no ranks."""

    def load(self) -> dict[str, Load]:
        return {}

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        for plan in plans:
            self._predict(plan, listener.line)

    def _predict(self, plan: Plan, on_line: Hear) -> None:
        ranks = [
            RankInfo(rank=r, host=environment.host_name(), pid=0, cpus=[], device="model")
            for r in range(plan.n)
        ]
        on_line(
            types.World(
                index=plan.index,
                backend=plan.backend,
                n=plan.n,
                env=plan.env,
                launcher="none",
                ranks=ranks,
                oversubscribed=False,
                same_clock=True,
                library="alpha-beta-gamma model, 10 Gb/s links",
            )
        )
        model = Model(Network(TEN_GIGABIT))
        for job in plan.jobs:
            try:
                seconds, note = model.seconds(job.case)
            except AlgorithmError:
                raise
            except CollbenchError as e:
                on_line(Record(case=job.case, status="skipped", note=e.message, world=plan.index))
                continue
            times = [max(1, round(seconds * 1e9))]
            on_line(
                Record(
                    case=job.case, status="predicted", times_ns=times, world=plan.index, note=note
                )
            )
