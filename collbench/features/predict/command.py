"""The command `predict`: times on a model network."""

from __future__ import annotations

from collbench.core.errors import UsageError


def predict(
    name: str,
    n: int = 8,
    minbytes: str = "",
    maxbytes: str = "",
    stepfactor: float | None = None,
    stepbytes: str = "",
    listed: str = "",
    algo: str = "all",
    network: str = "flat",
    link: str = "",
    inside: str = "nvlink",
    source: str = "",
    counts: bool = False,
    output_format: str = "table",
    debug: bool = False,
) -> None:
    """Predict times on a model network, with crossovers and bounds."""
    from collbench.cli import outputs
    from collbench.cli.links import find_link
    from collbench.core import algorithms, simulate
    from collbench.core import network as networks
    from collbench.core.collectives import find_collective
    from collbench.features.predict.views import prediction

    row = find_collective(name)
    outputs.check_outputs(output_format, (), ("table", "json", "csv"))
    if counts and output_format != "table":
        raise UsageError("--counts comes as a table only", "leave --format out")
    sizes = _choose_sizes(minbytes, maxbytes, stepfactor, stepbytes, listed)
    sizes = sizes if row.factor != "-" else (0,)
    speed, note = find_link(link, source)
    model = networks.parse_network(network, n, speed, networks.parse_link(inside, "--inside"))
    spellings = (
        [algorithm.name for algorithm in algorithms.list_algorithms(row.name)]
        if algo == "all"
        else algo.split(",")
    )
    variants = [algorithms.find_variant(row.name, word) for word in spellings]
    view = simulate.forecast_variants(row, n, model, variants, sizes)
    nodes = f", {inside} inside nodes" if isinstance(model, networks.TwoLevel) else ""
    about = f"{row.name}, {n} ranks, {network} network{nodes}, {networks.describe_link(speed)}"
    make = prediction.make_counts if counts else prediction.make_document
    outputs.deliver_document(make(view, sizes, f"predicted: {about}{note}"), output_format)


SWEEP = (8, 1 << 30)  # where nothing says which sizes


def _choose_sizes(
    minbytes: str, maxbytes: str, factor: float | None, stepbytes: str, listed: str
) -> tuple[int, ...]:
    """The sizes asked for, as measuring commands take them; all that matter where none are."""
    from collbench.suite import grammar

    smallest, largest = (
        grammar.parse_size(text, option) if text else None
        for text, option in ((minbytes, "-b"), (maxbytes, "-e"))
    )
    step = grammar.parse_size(stepbytes, "-i") if stepbytes else None
    size_words = grammar.split_words(listed)
    if not size_words and smallest is None:
        smallest, largest = SWEEP[0], SWEEP[1] if largest is None else largest
    chosen = (
        tuple(grammar.parse_size(word, "--sizes") for word in size_words) if size_words else None
    )
    return grammar.choose_sizes(smallest, largest, factor, step, chosen)
