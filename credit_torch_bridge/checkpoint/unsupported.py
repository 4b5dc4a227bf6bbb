"""Recognizes models by their unique keys, and layers that CREDIT has removed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from credit_jax.state_dict.torch_model import RemovedLayer

# Keys that occur in no other model of CREDIT.
SIGNATURES: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "nextgen_wxformer": re.compile(
            r"(^|\.)(level_embedding|col_attn|spectral_bottleneck|to_q)\."
        ),
    }
)
_CONVOLUTIONS = ", in the older layout with convolutions in place of linear layers"


def recognized_model(keys: Collection[str]) -> str | None:
    """Describes the model that a state dict belongs to; None if unknown."""
    for name, signature in SIGNATURES.items():
        if any(signature.search(key) for key in keys):
            old = any(".to_qkv." in key for key in keys)
            return name + (_CONVOLUTIONS if old else "")
    return None


def refuse_unsupported(
    keys: Collection[str],
    known: Collection[str],
    model_type: str,
    removed: Iterable[RemovedLayer],
) -> None:
    """Raises if the keys of a file show that it cannot be converted.

    Args:
        keys: of the file, with their current names.
        known: keys of the key table.
        model_type: `model.type` of the config.
        removed: layers of older versions of that model.

    Raises:
        ValueError: weights of another model, or a layer that CREDIT removed.
    """
    unknown = [key for key in keys if key not in known]
    other = recognized_model(unknown)
    if other is not None and model_type not in SIGNATURES:
        raise ValueError(
            f"these are the weights of a {other}; model.type {model_type!r} is another "
            "model"
        )
    for layer in removed:
        for key in unknown:
            if layer.pattern.fullmatch(key):
                raise ValueError(f"{key}: {layer.reason}")
