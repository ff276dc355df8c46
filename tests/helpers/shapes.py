"""Models as tests want them."""

from __future__ import annotations

import msgspec

from collbench.features.training.models import OUTSIDE, Model, find_model


def layers_alone(name: str) -> Model:
    """A model without embeddings and head."""
    whole = find_model(name)
    kept = tuple(tensor for tensor in whole.tensors if tensor.layer != OUTSIDE)
    return msgspec.structs.replace(whole, tensors=kept, vocab=0, tied=False)
