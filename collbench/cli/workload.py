"""The command `workload`: what a training step asks of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.core.errors import UsageError

if TYPE_CHECKING:
    from collbench.workload.count import Machine


def workload(
    name: str = "",
    layout: str = "",
    options: str = "",
    ngpus: int | None = None,
    layers: int = 0,
    show: bool = False,
    link: str = "",
    inside: str = "nvlink",
    source: str = "",
    node: int = 1,
    tflops: float = 0.0,
    output_format: str = "table",
    debug: bool = False,
) -> None:
    """Count what a training step asks of the network and of memory, and predict what it takes."""
    from collbench.cli import outputs
    from collbench.show.views import workload as view
    from collbench.workload import files, presets
    from collbench.workload.count import count, forecast
    from collbench.workload.walk import Walk

    outputs.check(output_format, (), ("table", "json", "csv", "md"))
    if not name:
        return outputs.deliver(view.listed(), output_format)
    if not (show or link or source):
        raise UsageError(
            "workloads are counted and predicted, not run yet", "--show, or --link ib200"
        )
    made = presets.find(name, layout, options, ngpus, layers)
    machine = _machine(link, inside, source, node, tflops) if link or source else None
    walk = Walk(made)
    expected = forecast(made, machine, walk.actors) if machine else None
    if output_format == "csv":
        return outputs.show(files.write(made))
    outputs.deliver(view.document(made, count(made), walk, machine, expected), output_format)


def _machine(link: str, inside: str, source: str, node: int, tflops: float) -> Machine:
    """What --link or --from, --inside, --node and --tflops say. Raises UsageError."""
    from collbench.cli.predict import link_of
    from collbench.core import network
    from collbench.workload.count import Machine

    speed, _ = link_of(link, source)
    return Machine(speed, network.parse_link(inside, "--inside"), node, 1e12 * tflops)
