"""Steps by name: PATTERN:MODEL, presets that pair a pattern and a model with the layout that is
known of them, and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core.errors import UsageError
from collbench.core.text import suggest_name
from collbench.features.training import models
from collbench.features.training import step_files as files
from collbench.features.training.layout import Layout, Nothing, parse_struct
from collbench.features.training.models import Model
from collbench.features.training.patterns import compressed, experts, fsdp, redistribution, zero
from collbench.features.training.patterns import data_parallel as data
from collbench.features.training.patterns import megatron as model
from collbench.features.training.patterns.transformer import Megatron
from collbench.features.training.step import Step, refuse_step

Make = Callable[[Model, Layout, Any], Step]


class Pattern(NamedTuple):
    """``options`` is the struct of what it can be told beside the layout; text that stands in place
    of a model is the one called ``move``. ``scales``: its ranks are those of the layout."""

    meaning: str
    make: Make
    options: type[msgspec.Struct] = Nothing
    source: str = ""
    move: bool = False
    scales: bool = True


DEEPSPEED = "arXiv 1910.02054; DeepSpeed edaa722"

PATTERNS: dict[str, Pattern] = {
    "ddp": Pattern(
        *("gradients all-reduced in buckets during backward", data.ddp, data.Ddp),
        "torch 2.13; arXiv 2006.15704",
    ),
    "averaging": Pattern(
        *("one all_reduce a parameter, after backward", data.averaging, Nothing),
        "PyTorch's tutorial on distributed applications",
    ),
    "horovod": Pattern(
        *("gradients fused up to a buffer's size", data.horovod, data.Horovod),
        "arXiv 1802.05799",
    ),
    "zero1": Pattern(
        *("the optimizer's state divided over ranks", zero.zero1, zero.Zero), DEEPSPEED
    ),
    "zero2": Pattern(*("gradients divided, too", zero.zero2, zero.Zero), DEEPSPEED),
    "zero3": Pattern(
        *("parameters divided, too, gathered where they are used", zero.zero3, zero.Zero3),
        f"{DEEPSPEED}; arXiv 2306.10209",
    ),
    "fsdp2": Pattern(
        *("layers gathered one ahead, gradients reduce-scattered", fsdp.fsdp2, fsdp.Fsdp2),
        "torch 2.13",
    ),
    "megatron": Pattern(
        "tensor, sequence, context, pipeline and data parallelism on one grid",
        *(model.megatron, Megatron, model.SOURCE),
    ),
    "moe": Pattern(
        "the same with experts on the ranks of ep",
        *(experts.moe, experts.Moe, f"{model.SOURCE}; {experts.DEEPEP}"),
    ),
    "deepep": Pattern(
        "an exchange of tokens with experts, there and back",
        *(experts.deepep, experts.Exchange, experts.DEEPEP),
    ),
    "powersgd": Pattern(
        "DDP with PowerSGD: three small all_reduces a bucket",
        *(compressed.powersgd, compressed.PowerSGD, "torch 2.13; arXiv 1905.13727"),
    ),
    "encoded": Pattern(
        "DDP whose sums travel in a 16-bit format",
        *(compressed.encoded, compressed.Encoded, "arXiv 2102.12092"),
    ),
    "int8": Pattern(
        "DDP with torch's quantization hooks",
        *(compressed.quantized, compressed.Quantized, "torch 2.13"),
    ),
    "dalle": Pattern(
        "shards within a machine, PowerSGD between machines",
        *(compressed.dalle, compressed.DallE, "arXiv 2102.12092"),
    ),
    "matmul2": Pattern(
        "two products of matrices, rows and then columns on ranks",
        *(redistribution.matmul2, redistribution.MatMul2),
    ),
    "redistribute": Pattern(
        "a tensor from one layout to another: redistribute:tp.None->None.tp",
        *(redistribution.redistribute, redistribution.Redistribution, "", True),
    ),
    "m2n": Pattern(
        "weights from a trainer's ranks to a generator's: m2n:dp.None->tp.None",
        *(redistribution.m2n, redistribution.M2N, "", True, False),
    ),
}


class Preset(NamedTuple):
    """What a name stands for; layout and options as the command line has them."""

    pattern: str
    model: str
    layout: str = "dp=8"
    options: str = ""


PRESETS: dict[str, Preset] = {
    "toy:ddp": Preset("ddp", "toy", "dp=2"),
    "ddp:gpt2-124m": Preset("ddp", "gpt2-124m", "dp=8,micro_batch=12"),
    "ddp:resnet50": Preset("ddp", "resnet50", "dp=8,micro_batch=32"),
    "zero1:llama3-8b": Preset("zero1", "llama3-8b"),
    "zero2:llama3-8b": Preset("zero2", "llama3-8b"),
    "zero3:llama3-8b": Preset("zero3", "llama3-8b"),
    "fsdp2:llama3-8b": Preset("fsdp2", "llama3-8b"),
    "powersgd:gpt2-124m": Preset("powersgd", "gpt2-124m", "dp=8,micro_batch=12", "rank=4"),
    "megatron:llama3-8b": Preset("megatron", "llama3-8b", "tp=2,dp=2"),
    "megatron:llama3-70b": Preset("megatron", "llama3-70b", "tp=8,pp=4,dp=2,micro_batches=8"),
    "megatron:llama3-405b": Preset("megatron", "llama3-405b", "tp=8,pp=16,dp=64,micro_batches=16"),
    "megatron:llama3-405b-128k": Preset(
        *("megatron", "llama3-405b"),
        "tp=8,cp=16,pp=16,dp=8,sequence=131072,micro_batches=16",
        "cp=all_gather",
    ),
    "megatron:llama3-405b-bridge": Preset("megatron", "llama3-405b", "tp=8,cp=2,pp=8,dp=8"),
    "moe:deepseek-v3": Preset(
        *("moe", "deepseek-v3", "ep=64,dp=64,pp=16,micro_batches=4", "routing=even")
    ),
    "deepep:normal": Preset("deepep", "deepseek-v3", "dp=64"),
    "deepep:ll": Preset(
        *("deepep", "deepseek-v3", "dp=32", "way=deepep-ll,tokens=128,experts=288")
    ),
    "dalle:12b": Preset("dalle", "dalle-12b", "dp=1024"),
    "ddp:gpt3-175b": Preset("ddp", "gpt3-175b"),
    "mindspore:matmul2": Preset("matmul2", "toy", "dp=4"),
    "redistribute:tp.None->None.tp": Preset("redistribute", "llama3-8b", "tp=4"),
    "m2n:dp.None->tp.None": Preset("m2n", "llama3-8b"),
}


def find_step(
    name: str, layout: str = "", options: str = "", world: int | None = None, layers: int = 0
) -> Step:
    """The step of this name or file, laid out and told as asked; on ``world`` ranks, where their
    number is the layout's, with the first ``layers`` of the model only. Raises UsageError."""
    if files.is_step_file(name):
        if layout or options or world or layers:
            raise UsageError(
                f"{name}: a file says itself what its ranks do",
                "leave out --layout, --options, -g, --layers",
            )
        return files.read_step(Path(name))
    preset = _find_preset(name)
    pattern = PATTERNS[preset.pattern]
    shape = models.find_model(preset.model)
    laid = parse_struct(layout, Layout, "--layout", parse_struct(preset.layout, Layout, "--layout"))
    option_values = parse_struct(preset.options, pattern.options, "--options")
    step = pattern.make(
        (shape.cut(layers) if layers else shape).set_sequence(laid.sequence),
        laid.on(world) if world and pattern.scales else laid,
        parse_struct(options, pattern.options, "--options", option_values),
    )
    refuse_step(step)
    parts = [step.name, layout, options, f"layers={layers}" if layers else ""]
    return msgspec.structs.replace(step, name=" ".join(filter(None, parts)))


def _find_preset(name: str) -> Preset:
    """The preset of a name: one of PRESETS, or made of a pattern and a model. Raises UsageError."""
    if name in PRESETS:
        return PRESETS[name]
    word, _, rest = name.partition(":")
    if word not in PATTERNS:
        names = [*PRESETS, *(f"{pattern_name}:" for pattern_name in PATTERNS)]
        hint = suggest_name(name, names) or "collbench workload lists them"
        raise UsageError(f"there is no workload '{name[:60]}'", hint)
    if not rest:
        raise UsageError(
            f"{word}: no {'layout' if PATTERNS[word].move else 'model'} is named",
            f"write {word}:{'LAYOUT->LAYOUT' if PATTERNS[word].move else 'MODEL'}",
        )
    if PATTERNS[word].move:
        return Preset(word, "llama3-8b", options=f"move={rest}")
    return Preset(word, rest)
