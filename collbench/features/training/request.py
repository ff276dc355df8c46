"""A step as somebody asks for it, on a command line or in a suite: made once it is known on which
ranks and by what it is to be run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from collbench.core.backend_info import backend_info
from collbench.core.errors import UsageError
from collbench.features.training import reshape, step_files
from collbench.features.training.step import Compute, Step, refuse_step

Text = Annotated[str, Meta(max_length=1000)]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A preset, PATTERN:MODEL or a file by ``name``, or the ``step`` of that name itself;
    ``layout``, ``options`` and ``layers`` as presets.find_step has them, ``scale``, ``group``,
    ``compute`` and ``tflops`` as reshape does."""

    name: Text
    layout: Text = ""
    options: Text = ""
    layers: Annotated[int, Meta(ge=0, le=10_000)] = 0
    scale: Text = "1"
    group: Text = ""
    compute: Compute = "auto"
    tflops: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    step: Step | None = None

    def make_step(self, world: int | None = None) -> Step:
        """The step on so many ranks; on its own number where that is None or cannot be chosen, as
        of a file, a slice and a trace. Raises UsageError."""
        from collbench.features.training import presets  # which most suites do without

        ranks = None if self.group or step_files.is_step_file(self.name) else world
        base = self.step or presets.find_step(
            self.name, self.layout, self.options, ranks, self.layers
        )
        step = reshape.slice_step(base, self.group) if self.group else base
        step = reshape.scale_step(step, reshape.parse_share(self.scale))
        if step is not base:  # which has been looked at
            refuse_step(step)
        return step

    def resolve(self, ranks: int, is_given: bool, backends: Sequence[str]) -> Step:
        """The step as these backends run it on so many ranks; on its own number of ranks, where the
        user gave none (``is_given``) and the step does not fit the ranks that there are."""
        if self.tflops and self.compute not in reshape.LONG:
            raise UsageError(
                f"tflops={self.tflops:g} has no effect on compute={self.compute}, which computes",
                "leave tflops out, or use compute=sleep or spin, which take as long as it says",
            )
        step = reshape.set_computation(self._on(ranks, is_given), self.compute, self.tflops)
        without = [name for name in backends if not backend_info(name).averages]
        return reshape.replace_averages(step, without[0]) if without else step

    def _on(self, ranks: int, is_given: bool) -> Step:
        try:
            return self.make_step(ranks)
        except UsageError:
            if is_given:
                raise
            return self.make_step()
