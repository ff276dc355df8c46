"""The command `predict`: times on a model network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from collbench.cli.families import Collective, Debug, LinkSource, PlainTable
from collbench.cli.parameters import make_option
from collbench.core.errors import UsageError
from collbench.core.text import format_count, print_message

SWEEP = (8, 1 << 30)  # where nothing says which sizes
PATIENCE = 10.0, 60.0  # seconds that predicting one of all algorithms may take, and one named


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """The times to predict, and the network."""

    name: Collective
    n: Annotated[int, Option("-n", "--ranks", min=2, help="Ranks.")] = 8
    minbytes: Annotated[
        str, make_option("minbytes", "Smallest size; K, M and G are 1024-based. Default 8.")
    ] = ""
    maxbytes: Annotated[
        str,
        make_option(
            "maxbytes", "Largest size, where a step meets it. Default 32M, or -b; without -b, 1G."
        ),
    ] = ""
    stepfactor: Annotated[float | None, make_option("stepfactor")] = None
    stepbytes: Annotated[str, make_option("stepbytes")] = ""
    listed: Annotated[str, make_option("listed")] = ""
    algo: Annotated[str, Option("--algo", help="ring, chain:segments=8, a list, or all.")] = "all"
    network: Annotated[
        str, Option("--network", help="flat, ring, two-level:8, torus:4x8, fat-tree:16:2.")
    ] = "flat"
    link: Annotated[
        str,
        Option(
            "--link",
            help="ib200 (default), eth10, eth25, ib100, nvlink; or alpha=2us,bandwidth=25GB.",
        ),
    ] = ""
    inside: Annotated[
        str, Option("--inside", help="The link inside nodes of a two-level network.")
    ] = "nvlink"
    source: LinkSource = ""
    counts: Annotated[
        bool, Option("--counts", help="Show rounds and bytes as fractions instead.")
    ] = False
    output_format: PlainTable = "table"
    debug: Debug = False

    def choose_sizes(self) -> tuple[int, ...]:
        """The sizes asked for, as measuring commands take them; all that matter where none are."""
        from collbench.suite import grammar

        smallest, largest = (
            grammar.parse_size(text, option) if text else None
            for text, option in ((self.minbytes, "-b"), (self.maxbytes, "-e"))
        )
        step = grammar.parse_size(self.stepbytes, "-i") if self.stepbytes else None
        size_words = grammar.split_words(self.listed)
        if not size_words and smallest is None:
            smallest, largest = SWEEP[0], SWEEP[1] if largest is None else largest
        chosen = (
            tuple(grammar.parse_size(word, "--sizes") for word in size_words)
            if size_words
            else None
        )
        return grammar.choose_sizes(smallest, largest, self.stepfactor, step, chosen)


def predict(options: PredictOptions) -> None:
    """Predict times on a model network, with crossovers and bounds."""
    from collbench.cli import outputs
    from collbench.cli.links import find_link
    from collbench.core import algorithms, simulate
    from collbench.core import network as networks
    from collbench.core.collectives import find_collective
    from collbench.features.predict.views import prediction

    row = find_collective(options.name)
    outputs.check_outputs(options.output_format, (), ("table", "json", "csv"))
    if options.counts and options.output_format != "table":
        raise UsageError(
            f"--format {options.output_format}: --counts can only be a table", "leave --format out"
        )
    sizes = options.choose_sizes()
    sizes = sizes if row.factor != "-" else (0,)
    speed, note = find_link(options.link, options.source)
    n, network, inside = options.n, options.network, options.inside
    model = networks.parse_network(network, n, speed, networks.parse_link(inside, "--inside"))
    spellings = (
        [algorithm.name for algorithm in algorithms.list_algorithms(row.name)]
        if options.algo == "all"
        else options.algo.split(",")
    )
    variants = [algorithms.find_variant(row.name, word) for word in spellings]
    for word, variant in zip(spellings, variants, strict=True):
        if word in variant.algorithm.aliases:
            print_message(f"{word} is {variant.algorithm.name} (`collbench list` has all names)")
    most = PATIENCE[options.algo != "all"]
    view = simulate.forecast_variants(row, n, model, variants, sizes, most)
    nodes = f", {inside} inside nodes" if isinstance(model, networks.TwoLevel) else ""
    if nodes and n > model.node_ranks and (rest := n % model.node_ranks):
        nodes += f" (the last has {format_count(rest, 'rank')})"
    about = f"{row.name}, {n} ranks, {network} network{nodes}, {networks.describe_link(speed)}"
    make = prediction.make_counts if options.counts else prediction.make_document
    outputs.deliver_document(make(view, sizes, f"predicted: {about}{note}"), options.output_format)
