"""Recognizes models of CREDIT that cannot be converted, for errors."""

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


def unsupported_model(keys: Collection[str], known: Collection[str] = ()) -> str | None:
    """The unsupported model that a state dict belongs to, in words; None if unknown.

    Args:
        keys: of the state dict.
        known: keys that are in the key table of the config's model.
    """
    unknown = set(keys) - set(known)
    for name, signature in SIGNATURES.items():
        if any(signature.search(key) for key in unknown):
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
        ValueError: an unsupported model, or a layer that CREDIT removed.
    """
    other = unsupported_model(keys, known)
    if other is not None:
        raise ValueError(
            f"these are the weights of a {other}; that model is not supported, and "
            f"model.type {model_type!r} is another one"
        )
    unknown = [key for key in keys if key not in known]
    for layer in removed:
        for key in unknown:
            if layer.pattern.fullmatch(key):
                raise ValueError(f"{key}: {layer.reason}")
