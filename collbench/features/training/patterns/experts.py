"""Mixtures of experts: a training step with expert parallelism, and the exchange of tokens alone.

Each token is computed with by ``top`` experts, which lie on the ranks of ep. Three ways to bring it
there: Megatron-Core's all_to_all and all_gather, and DeepEP, which sends a token once to a node and
once to a rank, in FP8 there and in bfloat16 back. Attention is parallel as in ``model``; experts
are not divided over tp, and their optimizer's states over the ranks that have the same experts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from collbench.core import files
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.features.training.layout import Layout, Size
from collbench.features.training.models import Experts, Model
from collbench.features.training.patterns.data_parallel import refuse_other_parallelism
from collbench.features.training.patterns.megatron import assemble_step
from collbench.features.training.patterns.transformer import (
    Block,
    Blocks,
    Gradients,
    Megatron,
    Part,
    Section,
    is_attention,
)
from collbench.features.training.step import Groups, Step

if TYPE_CHECKING:
    import numpy as np

ROUTED = ".experts."
ROUTER_BIAS = "gate.bias"  # a buffer: it has no gradient
MOST_BYTES = 64 << 20  # of a file with a matrix
MOST_KEYS = 1 << 30  # of random numbers that are drawn for all tokens
SCALED = 128  # elements of FP8 with one scale, which is float
HEADER = 16  # bytes of a token in DeepEP's low latency mode
DEEPEP = "DeepEP dd758ca"
LATENTS = (
    "multi-head latent attention: its inputs are gathered over tp as wide as the model; Megatron"
    " gathers latents, which are narrower"
)

Routing = Annotated[str, Meta(pattern=r"^(even|uniform|zipf:\d+(\.\d+)?|matrix:.+)$")]


class Moe(Megatron, frozen=True, forbid_unknown_fields=True):
    """Settings of a mixture of experts beside Megatron's. ``way`` is how tokens come to experts;
    DeepEP's normal mode goes over ranks of the same place on all nodes (rails) and then within the
    node of ``node_ranks``, its low latency mode straight. ``routing`` is which experts tokens are
    sent to: drawn with equal or zipf's chances, read as counts, a line for each rank and a number
    for each expert, or ``even``, what is expected of equal chances. ``limit``: a token's experts
    are of at most so many of the model's groups, 0: as the model says."""

    way: Literal["alltoall", "allgather", "deepep", "deepep-ll"] = "alltoall"
    routing: Routing = "uniform"
    seed: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    limit: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    node_ranks: Size = 8


class Exchange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exchange of tokens as DeepEP's own tests measure it: ``tokens`` of each rank, each to
    ``top`` experts, drawn as for Moe, of at most ``limit`` nodes where it is not 0."""

    way: Literal["alltoall", "deepep", "deepep-ll"] = "deepep"
    routing: Routing = "uniform"
    seed: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    limit: Annotated[int, Meta(ge=0, le=1 << 16)] = 4
    node_ranks: Size = 8
    tokens: Size = 4096
    experts: Size = 256
    top: Size = 8


def expect_ranks(experts: Experts, ranks: int) -> float:
    """The expected number of these ranks at which a token has an expert, if all experts are equally
    likely, of ``limit`` groups that are, too."""
    per_group, per_rank = experts.number // experts.nodes, experts.number // ranks
    shares = Counter(
        tuple(
            min(first + per_rank, (group + 1) * per_group) - max(first, group * per_group)
            for group in range(first // per_group, -(-(first + per_rank) // per_group))
        )
        for first in range(0, experts.number, per_rank)
    )
    return sum(number * (1 - _miss_chance(experts, share)) for share, number in shares.items())


def _miss_chance(experts: Experts, share: Sequence[int]) -> float:
    """The chance that a token has no expert at a rank with so many of each of some groups."""
    ways = Counter({(0, 0): 1})  # by how many of them are chosen, and their experts at the rank
    for number in share:
        for (chosen, there), count in [*ways.items()]:
            ways[chosen + 1, there + number] += count
    others, within = experts.nodes - len(share), experts.number // experts.nodes * experts.limit
    none = sum(
        count * math.comb(others, experts.limit - chosen) * math.comb(within - there, experts.top)
        for (chosen, there), count in ways.items()
        if chosen <= experts.limit
    )
    return none / (math.comb(experts.nodes, experts.limit) * math.comb(within, experts.top))


class Table(NamedTuple):
    """What ranks send each other: ``copies[i, j]`` tokens of rank i for experts of rank j, a token
    as often as it has experts there, ``tokens[i, j]`` without repetition, and ``nodes[i, b]``
    tokens that have an expert on a node. ``tokens`` and ``nodes`` are None where only counts are
    known."""

    copies: np.ndarray
    tokens: np.ndarray | None
    nodes: np.ndarray | None


def draw_routing(
    routing: str,
    tokens: int,
    experts: Experts,
    ranks: int,
    node_ranks: int,
    seed: int = 0,
    axis: Literal["ep", "dp"] = "ep",
) -> Table:
    """A table of where ranks of an axis of the layout send their tokens. Raises UsageError."""
    import numpy as np

    refuse_experts(experts, ranks, node_ranks, axis)
    places = max(ranks // node_ranks, 1)
    if routing == "even":
        means = [(ranks, experts.top), *((n, expect_ranks(experts, n)) for n in (ranks, places))]
        return Table(*(np.full((ranks, n), math.ceil(tokens * m / n)) for n, m in means))
    if routing.startswith("matrix:"):
        table = _read_counts(
            routing.removeprefix("matrix:"), ranks, experts.number, tokens * experts.top
        )
        return Table(table.reshape(ranks, ranks, -1).sum(axis=2), None, None)
    if ranks * tokens * experts.number > MOST_KEYS:
        raise UsageError(
            f"{ranks * tokens:,} tokens are too many to draw experts for,"
            f" above {MOST_KEYS // experts.number:,}",
            "use routing=even",
        )
    weights = np.arange(1, experts.number + 1, dtype=np.float32)
    weights **= -float(routing.partition(":")[2] or 0)
    rng = np.random.default_rng(seed)
    choices = [_draw_experts(rng, weights, tokens, experts) for _ in range(ranks)]
    at = [chosen // (experts.number // ranks) for chosen in choices]
    copies = np.stack([np.bincount(targets.ravel(), minlength=ranks) for targets in at])
    once = np.stack([_count_once(targets, ranks) for targets in at])
    copies_to_places = np.stack(
        [_count_once(targets // (ranks // places), places) for targets in at]
    )
    return Table(copies, once, copies_to_places)


def _draw_experts(
    rng: np.random.Generator, weights: np.ndarray, tokens: int, e: Experts
) -> np.ndarray:
    """Different experts for each token, (tokens, top): those that come first, if each comes at a
    rate of its weight (Efraimidis and Spirakis 2006)."""
    import numpy as np

    keys = rng.standard_exponential((tokens, e.number), dtype=np.float32) / weights
    if e.limit < e.nodes:
        groups = weights.reshape(e.nodes, -1).sum(axis=1)
        first = rng.standard_exponential((tokens, e.nodes)) / groups
        out = np.argpartition(first, e.limit - 1, axis=1)[:, e.limit :]
        np.put_along_axis(keys.reshape(tokens, e.nodes, -1), out[:, :, None], np.inf, axis=1)
    chosen: np.ndarray = np.argpartition(keys, e.top - 1, axis=1)[:, : e.top]
    return chosen


def _count_once(at: np.ndarray, places: int) -> np.ndarray:
    """The number of tokens that have an expert at each of these places."""
    import numpy as np

    is_sent = np.zeros((len(at), places), bool)
    np.put_along_axis(is_sent, at, True, axis=1)
    counts: np.ndarray = is_sent.sum(axis=0)
    return counts


def _read_counts(path: str, ranks: int, experts: int, total: int) -> np.ndarray:
    """Counts of tokens for experts, a line for each rank. Raises UsageError."""
    import numpy as np

    hint = (
        f"write {ranks} lines of {experts} counts, each line with a sum of {total} = tokens x top"
    )
    try:
        lines = files.read_bytes(files.expand_path(path), MOST_BYTES).decode().splitlines()
        rows = [[int(word) for word in re.split(r"[\s,]+", line.strip())] for line in lines if line]
    except (OSError, ValueError) as e:
        raise UsageError(f"routing=matrix: cannot read {path}: {e}", hint) from e
    if len(rows) != ranks or {len(row) for row in rows} != {experts}:
        raise UsageError(
            f"routing=matrix: {path} has {len(rows)} lines, or some of another length", hint
        )
    for number, row in enumerate(rows, 1):
        if min(row) < 0 or sum(row) != total:
            raise UsageError(f"routing=matrix: {path}, line {number} has a sum of {sum(row)}", hint)
    return np.array(rows)


class Dispatch:
    """The exchange of one rank's tokens, at ``index`` in its group of ep, each with ``hidden``
    numbers."""

    def __init__(self, way: str, table: Table, index: int, hidden: int, node_ranks: int) -> None:
        self.way, self.table, self.index, self.hidden = way, table, index, hidden
        self.inside = min(node_ranks, len(table.copies))
        self.received = int(table.copies[:, index].sum())

    def move(self, block: Block, is_dispatch: bool, forward: bool = True) -> None:
        """Tokens go to their experts, or come back from there; in backward their gradients, and
        those of the probabilities that went with them."""
        scales = 4 * (self.hidden // SCALED) + HEADER * (self.way == "deepep-ll")
        width, dtype = (self.hidden + scales, "uint8") if is_dispatch else (self.hidden, "bfloat16")
        if self.way == "alltoall":
            kinds = [("tokens", self.hidden, "bfloat16"), ("probabilities", 1, "float")]
            for what, numbers, kind in kinds[: 1 + (is_dispatch == forward)][
                :: 1 if forward else -1
            ]:
                self._send(
                    block, "ep", self.table.copies, self.index, is_dispatch, numbers, kind, what
                )
        elif self.way == "deepep-ll":
            self._send(block, "ep", self.table.copies, self.index, is_dispatch, width, dtype)
        else:
            for group, matrix, index in self._hops()[:: 1 if is_dispatch else -1]:
                self._send(block, group, matrix, index, is_dispatch, width, dtype)

    def _hops(self) -> list[tuple[str, np.ndarray, int]]:
        """The groups that tokens cross on their way, with who sends how many to whom, and the place
        there: ranks of the same place on all nodes, then the ranks of a node."""
        _, tokens, nodes = self.table
        if tokens is None or nodes is None:
            raise UsageError(
                f"way={self.way} sends a token once to each rank, which counts do not tell",
                "use routing=uniform or way=alltoall",
            )
        inside, at = self.inside, self.index % self.inside
        places = len(tokens) // inside
        if places == 1:
            return [("ep", tokens, self.index)]
        node = tokens.reshape(places, inside, places, inside).sum(axis=0)[:, self.index // inside]
        return [("rail", nodes[at::inside], self.index // inside), ("node", node, at)]

    @staticmethod
    def _send(
        block: Block,
        group: str,
        matrix: np.ndarray,
        index: int,
        is_dispatch: bool,
        width: int,
        dtype: str,
        what: str = "tokens",
    ) -> None:
        """An all_to_allv of so many tokens, each of ``width`` elements. Its size is what the
        busiest rank sends or receives."""
        way = matrix if is_dispatch else matrix.T
        busiest = int(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))
        fields = {"nbytes": busiest * width * DTYPES[dtype].size, "dtype": dtype, "wait": "call"}
        sends = tuple((way[index] * width).tolist())
        phase = "dispatch" if is_dispatch else "combine"
        block.comm("all_to_allv", group=group, phase=phase, sends=sends, source=what, **fields)


class MoeBlocks(Blocks):
    """Blocks of a model that has no experts but a rank's own (``keep_own_experts``), for the ranks
    at one place in their groups of ep."""

    def __init__(self, model: Model, layout: Layout, options: Moe, dispatch: Dispatch) -> None:
        super().__init__(model, layout, options)
        self.dispatch, self.local_tokens = dispatch, self.tokens // layout.tp

    def ffn(self, block: Block, section: Section, forward: bool) -> None:
        """The router, the dispatch of tokens to experts, these, and their results' way back."""
        rest = [t for t in section.tensors if t.flops and not is_attention(t)]
        experts = [t for t in rest if ROUTED in t.name]
        if not experts:
            super().ffn(block, section, forward)
            return
        gate, shared = rest[0], [t for t in rest[1:] if ROUTED not in t.name]
        per_token = 2.0 * sum(t.numel for t in experts) / self.experts.number * self.layout.ep
        work = (1 if forward else 2) * per_token * self.dispatch.received
        router = (1 if forward else 2) * 2.0 * gate.numel * self.local_tokens
        if forward:
            block.work(router)
            self._routed(block, work, True)
        if shared:
            self.dense(block, shared, forward)
        if not forward:
            self._routed(block, work, False)
            block.work(router)

    def _routed(self, block: Block, work: float, forward: bool) -> None:
        """Tokens to their experts, computation there, and back."""
        if self.dispatch.way == "allgather":
            self._gathered_tokens(block, work, forward)
            return
        if forward and self.dispatch.way == "alltoall":
            number = self.experts.number * self.layout.ep
            fields = {"nbytes": 8 * number, "dtype": "int64", "wait": "call"}
            fields |= {"phase": "dispatch", "source": "counts of tokens"}
            block.comm("all_gather", group="ep", **fields)
        self.dispatch.move(block, True, forward)
        block.work(work)
        self.dispatch.move(block, False, forward)

    def _gathered_tokens(self, block: Block, work: float, forward: bool) -> None:
        """All tokens of all ranks, with the probabilities of all experts and whether they are
        asked, and the sums of what experts make of them; in backward the other way."""
        tokens = self.local_tokens * self.layout.ep
        size, chances = tokens * self.model.hidden * self.itemsize, tokens * self.experts.number
        expert_indices = ("all_gather", chances, "uint8", "which experts")
        probabilities = ("all_gather", 4 * chances, "float", "probabilities")
        token_data = ("all_gather", size, self.model.dtype, "tokens")
        back = ("reduce_scatter", size, self.model.dtype, "tokens")
        chance = ("reduce_scatter", 4 * chances, "float", "probabilities")
        before, after = (
            ([expert_indices, probabilities, token_data], [back])
            if forward
            else ([token_data], [back, chance])
        )
        for phase, calls in (("dispatch", before), ("combine", after)):
            for kind, nbytes, dtype, source in calls:
                op = "sum" if kind == "reduce_scatter" else "none"
                fields = {"nbytes": nbytes, "dtype": dtype, "op": op, "source": source}
                block.comm(kind, group="ep", phase=phase, wait="call", **fields)
            block.work(work if phase == "dispatch" else 0)

    @property
    def experts(self) -> Experts:
        """The number and widths of the model's routed experts (models.Experts). Only for models
        that have experts."""
        assert self.model.experts
        return self.model.experts

    def list_gradients(self, part: Part, chunk: int, stage: int) -> list[Gradients]:
        """The buckets of what all ranks have, and of this rank's experts, by themselves."""
        everywhere = [
            section._replace(tensors=tuple(t for t in section.tensors if ROUTED not in t.name))
            for section in part
        ]
        buckets = super().list_gradients(tuple(everywhere), chunk, stage)
        experts = [
            (tensor.numel, at)
            for at, section in enumerate(part)
            for tensor in section.tensors
            if ROUTED in tensor.name
        ]
        return buckets + self.bucketed(experts, "edp", part, chunk + stage == 0)

    def groups(self) -> dict[str, Groups]:
        """The groups of this layout by name, with the two hops of a dispatch by node."""
        families = super().groups()
        return families | make_hops(families["ep"], self.dispatch.inside)


def make_hops(groups: Groups, inside: int) -> dict[str, Groups]:
    """The nodes of so many ranks in each group of ep, and the ranks of one place on all nodes."""
    node = [group[at : at + inside] for group in groups for at in range(0, len(group), inside)]
    rail = [group[at::inside] for group in groups for at in range(inside)]
    return {"node": tuple(node), "rail": tuple(rail)}


def moe(model: Model, layout: Layout, options: Moe) -> Step:
    """A step of a model with experts, as Megatron-Core's but for what its experts exchange; one
    program for each stage and place in ep, or one for each stage where all send alike. Raises
    UsageError."""
    if not model.experts:
        raise UsageError(
            f"{model.name} has no experts, which the pattern moe needs",
            "take deepseek-v3, or the pattern megatron",
        )
    if layout.tp > 1 and not layout.sp:
        raise UsageError(f"tp={layout.tp} with experts needs sp", "add sp=true to --layout")
    experts = msgspec.structs.replace(model.experts, limit=options.limit or model.experts.limit)
    routing = "even" if options.way == "allgather" else options.routing
    tokens, nodes = layout.tokens(model) // layout.tp, options.node_ranks
    table = draw_routing(routing, tokens, experts, layout.ep, nodes, options.seed)
    model = keep_own_experts(model, experts.number // layout.ep)
    blocks = [
        MoeBlocks(model, layout, options, Dispatch(options.way, table, at, model.hidden, nodes))
        for at in range(1 if routing == "even" else layout.ep)
    ]
    layers = options.layers or fill_parts(model.layers, layout.pp * layout.chunks)
    assumptions = (
        *list_assumptions(options.way, routing, nodes),
        "the router's bias and losses are left out",
    )
    if layout.tp > 1 and any("wkv_a" in tensor.name for tensor in model.tensors):
        assumptions += (LATENTS,)
    return assemble_step("moe", blocks, layers, assumptions)


def keep_own_experts(model: Model, number: int) -> Model:
    """The model with so many experts in each layer only, as many as a rank has, and without the
    router's bias."""
    trained = [tensor for tensor in model.tensors if ROUTER_BIAS not in tensor.name]
    kept_tensors = [
        tensor
        for tensor in trained
        if ROUTED not in tensor.name or int(tensor.name.split(ROUTED)[1].split(".")[0]) < number
    ]
    return msgspec.structs.replace(model, tensors=tuple(kept_tensors))


def fill_parts(layers: int, parts: int) -> tuple[int, ...]:
    """Layers of the pipeline's parts where they are not equally many: so many each that the last
    part has what is left."""
    per_part = -(-layers // parts)
    last = layers - per_part * (parts - 1)
    return (*[per_part] * (parts - 1), last) if layers % parts and last > 0 else ()


def deepep(model: Model, layout: Layout, options: Exchange) -> Step:
    """A step of one exchange of a layer's tokens on all ranks, there and back. Raises
    UsageError."""
    refuse_other_parallelism("deepep", layout, "ranks of dp")
    ranks, nodes = layout.world, max(layout.world // options.node_ranks, 1)
    limit = min(options.limit or nodes, nodes)
    experts = Experts(options.experts, options.top, 0, nodes=nodes, limit=limit)
    if options.way == "deepep-ll":
        experts = msgspec.structs.replace(experts, nodes=1, limit=1)
    table = draw_routing(
        options.routing, options.tokens, experts, ranks, options.node_ranks, options.seed, "dp"
    )
    programs = []
    is_even = options.routing == "even"
    for index in range(1 if is_even else ranks):
        block = Block("dispatch")
        dispatch = Dispatch(options.way, table, index, model.hidden, options.node_ranks)
        dispatch.move(block, True)
        dispatch.move(block, False)
        programs.append(block.program(range(ranks) if is_even else [index]))
    all_ranks = {"ep": (tuple(range(ranks)),)}
    step = Step(f"deepep:{model.name}", ranks, tuple(programs))
    groups = all_ranks | make_hops(all_ranks["ep"], min(options.node_ranks, ranks))
    used = {name: groups[name] for name in step.used}
    assumptions = tuple(list_assumptions(options.way, options.routing, options.node_ranks))
    return msgspec.structs.replace(step, groups=used, assumptions=assumptions)


def list_assumptions(way: str, routing: str, node_ranks: int) -> Iterator[str]:
    """Assumptions: read in a framework's source without running it, or left open."""
    if way.startswith("deepep"):
        yield f"transcribed from {DEEPEP}: FP8 with a float for {SCALED} numbers, bfloat16 back"
        yield "gradients go as tokens do: combine's are dispatched in FP8, dispatch's combined"
    if way == "deepep":
        yield f"ranks of one place on all nodes of {node_ranks} first, then within the node"
    if way != "allgather":
        yield f"experts of tokens: {routing}, the same in all layers, micro-batches and groups"


def refuse_experts(
    experts: Experts, ranks: int, node_ranks: int, axis: Literal["ep", "dp"]
) -> None:
    """Raises UsageError for what cannot be divided so, with the number that is wrong."""
    on_node = min(node_ranks, ranks)
    other = f"change {axis}= in --layout{', or -g' * (axis == 'dp')}"
    for what, number, by, name, hint in (
        ("experts", experts.number, ranks, axis, other),
        ("experts", experts.number, experts.nodes, "groups", "choose another number of groups"),
        (f"ranks of {axis}", ranks, on_node, "node_ranks", f"{other}, or node_ranks"),
    ):
        if number % by:
            raise UsageError(f"{number} {what} are not divisible by {by} ({name})", hint)
    if experts.limit > experts.nodes:
        raise UsageError(
            f"limit={experts.limit} is more than the {experts.nodes} groups of experts",
            "choose a smaller limit",
        )
    within = experts.number // experts.nodes * experts.limit
    if experts.top > within:
        raise UsageError(
            f"limit={experts.limit} leaves {within} experts, and each token needs {experts.top}",
            "choose a larger limit" if experts.limit < experts.nodes else "choose a smaller top",
        )
