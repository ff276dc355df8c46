"""Models as lists of parameter tensors in the order in which forward uses them first, with the work
that each stands for.

Shapes are those of the published configurations: GPT-2 (Radford et al. 2019), ResNet-50 as
torchvision has it, Llama 3 and 3.1 (arXiv 2407.21783), DeepSeek-V3 (arXiv 2412.19437), DALL-E
(arXiv 2102.12092), GPT-3 (arXiv 2005.14165); ``toy`` is that of PyTorch's tutorial on distributed
data parallel, ``stack-170b`` 170 billion parameters of no model in particular.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.text import suggest_name

OUTSIDE = -1  # the layer of what is in none


class Tensor(msgspec.Struct, frozen=True):
    """A parameter: ``layer`` counts from 0, OUTSIDE for embeddings, the last norm and the head.
    ``flops`` is what forward computes with it for one token or image; backward takes twice that."""

    name: str
    shape: tuple[int, ...]
    layer: int = OUTSIDE
    flops: float = 0

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)


class Experts(msgspec.Struct, frozen=True):
    """The routed experts of each mixture-of-experts layer: ``top`` of ``number`` per token, from at
    most ``limit`` of ``nodes`` groups; ``ffn`` is an expert's width, ``dense`` the first layers
    that have none."""

    number: int
    top: int
    ffn: int
    shared: int = 0
    dense: int = 0
    nodes: int = 1
    limit: int = 1


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model: its tensors in order of first use, its shapes, and the datatype of its parameters.
    ``head_dim`` is the width of a head's queries and keys, ``v_dim`` that of its values where it is
    another. ``buffers`` are (elements, datatype) of what a forward pass broadcasts."""

    name: str
    tensors: tuple[Tensor, ...]
    hidden: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_dim: int = 0
    ffn: int = 0
    vocab: int = 0
    context: int = 0
    tied: bool = False
    dtype: str = "bfloat16"
    buffers: tuple[tuple[int, str], ...] = ()
    experts: Experts | None = None

    @property
    def parameters(self) -> int:
        """Parameters of all tensors."""
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters in the model's type."""
        return self.parameters * DTYPES[self.dtype].size

    def layer(self, number: int) -> list[Tensor]:
        """The tensors of a layer, or of none (OUTSIDE)."""
        return [tensor for tensor in self.tensors if tensor.layer == number]

    def cut(self, layers: int) -> Model:
        """This model with its first ``layers`` layers only. Raises UsageError where it has
        fewer."""
        if not 0 < layers <= self.layers:
            raise UsageError(
                f"{self.name} has {self.layers} layers, not {layers}",
                "take fewer, as in --layers 2",
            )
        selected = tuple(tensor for tensor in self.tensors if tensor.layer < layers)
        return msgspec.structs.replace(self, tensors=selected, layers=layers)

    def set_sequence(self, sequence: int) -> Model:
        """This model with attention's work for sequences of so many tokens; as it is where that is
        0, or where the model has no context."""
        if not sequence or self.context in (0, sequence):
            return self

        def stretch(tensor: Tensor) -> Tensor:
            matrix = 2.0 * tensor.numel
            scores = max(0.0, tensor.flops - matrix) * sequence / self.context
            return msgspec.structs.replace(tensor, flops=matrix + scores) if scores else tensor

        return msgspec.structs.replace(self, tensors=tuple(map(stretch, self.tensors)))


def _make_dense(name: str, *shape: int, layer: int = OUTSIDE, extra: float = 0) -> Tensor:
    """A matrix that every token is multiplied with, and perhaps more work beside."""
    return Tensor(name, shape, layer, 2.0 * math.prod(shape) + extra)


def _make_gpt2() -> Model:
    d, layers, vocab, context = 768, 12, 50257, 1024

    def tensors() -> Iterator[Tensor]:
        yield _make_dense("wte.weight", vocab, d)  # the head is tied to it
        yield Tensor("wpe.weight", (context, d))
        for n in range(layers):
            at = f"h.{n}"
            yield Tensor(f"{at}.ln_1.weight", (d,), n)
            yield Tensor(f"{at}.ln_1.bias", (d,), n)
            yield _make_dense(f"{at}.attn.c_attn.weight", 3 * d, d, layer=n)
            yield Tensor(f"{at}.attn.c_attn.bias", (3 * d,), n)
            scores = 2.0 * context * d  # causal: half of two products with the context
            yield _make_dense(f"{at}.attn.c_proj.weight", d, d, layer=n, extra=scores)
            yield Tensor(f"{at}.attn.c_proj.bias", (d,), n)
            yield Tensor(f"{at}.ln_2.weight", (d,), n)
            yield Tensor(f"{at}.ln_2.bias", (d,), n)
            yield _make_dense(f"{at}.mlp.c_fc.weight", 4 * d, d, layer=n)
            yield Tensor(f"{at}.mlp.c_fc.bias", (4 * d,), n)
            yield _make_dense(f"{at}.mlp.c_proj.weight", d, 4 * d, layer=n)
            yield Tensor(f"{at}.mlp.c_proj.bias", (d,), n)
        yield Tensor("ln_f.weight", (d,))
        yield Tensor("ln_f.bias", (d,))

    return Model(
        name="gpt2-124m",
        tensors=tuple(tensors()),
        hidden=d,
        layers=layers,
        heads=12,
        kv_heads=12,
        head_dim=64,
        ffn=4 * d,
        vocab=vocab,
        context=context,
        tied=True,
        dtype="float",
    )


def _make_llama(name: str, d: int, layers: int, ffn: int, heads: int) -> Model:
    kv, head, vocab, context = 8, 128, 128256, 8192

    def tensors() -> Iterator[Tensor]:
        yield Tensor("tok_embeddings.weight", (vocab, d))
        for n in range(layers):
            at = f"layers.{n}"
            yield Tensor(f"{at}.attention_norm.weight", (d,), n)
            yield _make_dense(f"{at}.attention.wq.weight", heads * head, d, layer=n)
            yield _make_dense(f"{at}.attention.wk.weight", kv * head, d, layer=n)
            yield _make_dense(f"{at}.attention.wv.weight", kv * head, d, layer=n)
            scores = 2.0 * context * heads * head  # causal
            yield _make_dense(f"{at}.attention.wo.weight", d, heads * head, layer=n, extra=scores)
            yield Tensor(f"{at}.ffn_norm.weight", (d,), n)
            yield _make_dense(f"{at}.feed_forward.w1.weight", ffn, d, layer=n)
            yield _make_dense(f"{at}.feed_forward.w3.weight", ffn, d, layer=n)
            yield _make_dense(f"{at}.feed_forward.w2.weight", d, ffn, layer=n)
        yield Tensor("norm.weight", (d,))
        yield _make_dense("output.weight", vocab, d)

    return Model(
        name=name,
        tensors=tuple(tensors()),
        hidden=d,
        layers=layers,
        heads=heads,
        kv_heads=kv,
        head_dim=head,
        ffn=ffn,
        vocab=vocab,
        context=context,
    )


def _make_resnet50() -> Model:
    def convolution(name: str, out: int, into: int, kernel: int, side: int) -> Iterator[Tensor]:
        """One without bias and the batch norm after it; ``side`` is that of its output."""
        weight = (out, into, kernel, kernel)
        yield Tensor(f"{name}.weight", weight, OUTSIDE, 2.0 * math.prod(weight) * side * side)
        yield Tensor(f"{name}.bn.weight", (out,))
        yield Tensor(f"{name}.bn.bias", (out,))

    def tensors() -> Iterator[Tensor]:
        yield from convolution("conv1", 64, 3, 7, 112)
        into, side = 64, 56
        for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
            for block in range(blocks):
                at = f"layer{stage}.{block}"
                before = side
                side = side // 2 if stage > 1 and block == 0 else side
                yield from convolution(f"{at}.conv1", width, into, 1, before)
                yield from convolution(f"{at}.conv2", width, width, 3, side)
                yield from convolution(f"{at}.conv3", 4 * width, width, 1, side)
                if block == 0:
                    yield from convolution(f"{at}.downsample", 4 * width, into, 1, side)
                into = 4 * width
        yield _make_dense("fc.weight", 1000, 2048)
        yield Tensor("fc.bias", (1000,))

    return Model(
        name="resnet50",
        tensors=tuple(tensors()),
        dtype="float",
        buffers=((53120, "float"), (53, "int64")),  # of 53 batch norms
    )


def _make_attention(at: str, n: int, d: int, heads: int, context: int) -> Iterator[Tensor]:
    """DeepSeek-V3's attention over latent keys and values."""
    q_lora, kv_lora, nope, rope, v = 1536, 512, 128, 64, 128
    yield _make_dense(f"{at}.wq_a.weight", q_lora, d, layer=n)
    yield Tensor(f"{at}.q_norm.weight", (q_lora,), n)
    yield _make_dense(f"{at}.wq_b.weight", heads * (nope + rope), q_lora, layer=n)
    yield _make_dense(f"{at}.wkv_a.weight", kv_lora + rope, d, layer=n)
    yield Tensor(f"{at}.kv_norm.weight", (kv_lora,), n)
    yield _make_dense(f"{at}.wkv_b.weight", heads * (nope + v), kv_lora, layer=n)
    scores = context * heads * float(nope + rope + v)  # causal
    yield _make_dense(f"{at}.wo.weight", d, heads * v, layer=n, extra=scores)


def _make_gated(at: str, n: int, d: int, ffn: int, share: float = 1.0) -> Iterator[Tensor]:
    """A gated network of two layers that a share of all tokens comes to."""
    for name, shape in (("w1", (ffn, d)), ("w3", (ffn, d)), ("w2", (d, ffn))):
        yield Tensor(f"{at}.{name}.weight", shape, n, 2.0 * math.prod(shape) * share)


def _deepseek_v3() -> Model:
    d, layers, vocab, heads, context = 7168, 61, 129280, 128, 4096
    experts = Experts(number=256, top=8, ffn=2048, shared=1, dense=3, nodes=8, limit=4)

    def tensors() -> Iterator[Tensor]:
        yield Tensor("embed.weight", (vocab, d))
        for n in range(layers):
            at = f"layers.{n}"
            yield Tensor(f"{at}.attn_norm.weight", (d,), n)
            yield from _make_attention(f"{at}.attn", n, d, heads, context)
            yield Tensor(f"{at}.ffn_norm.weight", (d,), n)
            if n < experts.dense:
                yield from _make_gated(f"{at}.ffn", n, d, 18432)
                continue
            yield _make_dense(f"{at}.ffn.gate.weight", experts.number, d, layer=n)
            yield Tensor(f"{at}.ffn.gate.bias", (experts.number,), n)
            share = experts.top / experts.number
            for expert in range(experts.number):
                yield from _make_gated(f"{at}.ffn.experts.{expert}", n, d, experts.ffn, share)
            yield from _make_gated(f"{at}.ffn.shared_experts", n, d, experts.shared * experts.ffn)
        yield Tensor("norm.weight", (d,))
        yield _make_dense("head.weight", vocab, d)

    return Model(
        name="deepseek-v3",
        tensors=tuple(tensors()),
        hidden=d,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=192,
        v_dim=128,
        ffn=18432,
        vocab=vocab,
        context=context,
        experts=experts,
    )


def _make_transformer(
    name: str, d: int, layers: int, heads: int, dtype: str, context: int, vocab: int = 0
) -> Model:
    """The matrices of a transformer alone, 12 d^2 a layer, and embeddings where there is a
    vocabulary: what a paper tells of it."""

    def tensors() -> Iterator[Tensor]:
        if vocab:
            yield _make_dense("wte.weight", vocab, d)  # the head is tied to it
            yield Tensor("wpe.weight", (context, d))
        for n in range(layers):
            yield _make_dense(f"{n}.attn.qkv.weight", 3 * d, d, layer=n)
            yield _make_dense(f"{n}.attn.out.weight", d, d, layer=n, extra=2.0 * context * d)
            yield _make_dense(f"{n}.mlp.in.weight", 4 * d, d, layer=n)
            yield _make_dense(f"{n}.mlp.out.weight", d, 4 * d, layer=n)

    return Model(
        name=name,
        tensors=tuple(tensors()),
        hidden=d,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=d // heads,
        ffn=4 * d,
        vocab=vocab,
        context=context,
        tied=bool(vocab),
        dtype=dtype,
    )


def _make_toy() -> Model:
    """Two linear layers, 10 to 10 to 5."""
    tensors = (
        _make_dense("net1.weight", 10, 10, layer=0),
        Tensor("net1.bias", (10,), 0),
        _make_dense("net2.weight", 5, 10, layer=1),
        Tensor("net2.bias", (5,), 1),
    )
    return Model(name="toy", tensors=tensors, layers=2, dtype="float")


def _make_stack(name: str, layers: int, rows: int, columns: int) -> Model:
    """Equal matrices and nothing else: a number of parameters, where no more is known of a
    model."""
    tensors = (_make_dense(f"layers.{n}.weight", rows, columns, layer=n) for n in range(layers))
    return Model(name=name, tensors=tuple(tensors), layers=layers, dtype="float")


MODELS: dict[str, Callable[[], Model]] = {
    "gpt2-124m": _make_gpt2,
    "resnet50": _make_resnet50,
    "llama3-8b": lambda: _make_llama("llama3-8b", 4096, 32, 14336, 32),
    "llama3-70b": lambda: _make_llama("llama3-70b", 8192, 80, 28672, 64),
    "llama3-405b": lambda: _make_llama("llama3-405b", 16384, 126, 53248, 128),
    "deepseek-v3": _deepseek_v3,
    "dalle-12b": lambda: _make_transformer("dalle-12b", 3968, 64, 62, "half", 1280),
    "gpt3-175b": lambda: _make_transformer("gpt3-175b", 12288, 96, 96, "float", 2048, 50257),
    "stack-170b": lambda: _make_stack("stack-170b", 80, 42_500, 50_000),
    "toy": _make_toy,
}


def find_model(name: str) -> Model:
    """The model of this name. Raises UsageError."""
    if name not in MODELS:
        raise UsageError(
            f"there is no model '{name[:60]}'",
            suggest_name(name, MODELS) or f"one of {', '.join(MODELS)}",
        )
    return MODELS[name]()
