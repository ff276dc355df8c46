"""How a model lies on ranks, and how much of the data a step takes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError
from collbench.core.text import suggest_name
from collbench.features.training.models import Model
from collbench.features.training.step import Grid

Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Struct = TypeVar("Struct", bound=msgspec.Struct)


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks of tensor (``tp``), context (``cp``), expert (``ep``), data (``dp``) and pipeline
    parallelism (``pp``); with ``sp`` activations between the layers are split over the ranks of tp
    (sequence parallelism). ``chunks`` are the parts of the model a pipeline stage has
    (interleaved), ``micro_batches`` those of a step, each of ``micro_batch`` sequences of
    ``sequence`` tokens, of the model's context where it is 0. Ranks of ep are among those of tp,
    cp and dp."""

    tp: Size = 1
    cp: Size = 1
    ep: Size = 1
    dp: Size = 1
    pp: Size = 1
    sp: bool = True
    chunks: Size = 1
    micro_batches: Size = 1
    micro_batch: Size = 1
    sequence: Annotated[int, Meta(ge=0, le=1 << 30)] = 0

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def grid(self) -> Grid:
        """Ranks in Megatron's order, tp-cp-dp-pp."""
        return Grid({"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp})

    def tokens(self, model: Model) -> int:
        """Tokens of a micro-batch that a rank of cp has. Raises UsageError where they are not
        equally many."""
        sequence = self.sequence or model.context or 1
        if sequence % self.cp:
            raise UsageError(
                f"{sequence} tokens are not divisible by cp={self.cp}",
                "choose another --layout cp=",
            )
        return self.micro_batch * sequence // self.cp

    def on(self, world: int) -> Layout:
        """The layout with as many ranks of dp as make a world of so many. Raises UsageError."""
        model_parallel = self.world // self.dp
        if world % model_parallel:
            raise UsageError(
                f"{world} ranks are no multiple of tp={self.tp} cp={self.cp} pp={self.pp}",
                f"take -g {math.ceil(world / model_parallel) * model_parallel} or another --layout",
            )
        return msgspec.structs.replace(self, dp=world // model_parallel)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a pattern that has none beside its layout."""


def parse_struct(text: str, into: type[Struct], option: str, base: Struct | None = None) -> Struct:
    """The struct that ``tp=4,dp=2`` means; what is not said is as in ``base``. Lists are written
    with a slash: ``bucket_cap_mb=1/25``. Raises UsageError with what there is."""
    fields = {field.name: field for field in msgspec.structs.fields(into)}
    values: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or name not in fields:
            keys = (
                f"set {', '.join(fields)}, each with = and a value"
                if fields
                else f"leave {option} out"
            )
            if name in fields:
                raise UsageError(f"{option}: '{name}' has no value", f"write {name}= and a value")
            raise UsageError(
                f"{option}: '{part[:40]}' is no known setting", suggest_name(name, fields) or keys
            )
        listed = str(fields[name].type).startswith("tuple")
        values[name] = value.split("/") if listed else value
    before: Mapping[str, Any] = msgspec.structs.asdict(base) if base is not None else {}
    try:
        return msgspec.convert({**before, **values}, into, strict=False)
    except msgspec.ValidationError as e:
        where = re.search(r"`\$\.(\w+)", str(e))
        wrong = f"{where[1]}={values.get(where[1], '')}: " if where else ""
        raise UsageError(f"{option}: {wrong}{str(e).split(' - ')[0].lower()}") from e
