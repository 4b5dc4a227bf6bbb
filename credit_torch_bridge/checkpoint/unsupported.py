"""Recognizes models by their unique keys, and layers that CREDIT has removed."""

from __future__ import annotations

from collections.abc import Collection

from credit_jax.models.registry import MODELS, torch_model


def recognized_model(keys: Collection[str]) -> str | None:
    """Describes the model that a state dict belongs to; None if unknown.

    See `TorchModel.signature`.
    """
    for name, entry in MODELS.items():
        model = torch_model(name) if entry.key_table else None
        if model is None or model.signature is None:
            continue
        if any(model.signature.search(key) for key in keys):
            upgrade = model.upgrade
            old = upgrade is not None and any(upgrade.is_older(k, None) for k in keys)
            return name + (", in an older layout" if old else "")
    return None


def refuse_unsupported(
    keys: Collection[str], known: Collection[str], model_type: str
) -> None:
    """Raises if the keys of a file show that it cannot be converted.

    Args:
        keys: keys of the file, with their current names.
        known: keys of the key table.
        model_type: `model.type` of the config.

    Raises:
        ValueError: weights of another model, or a layer that CREDIT removed.
    """
    unknown = [key for key in keys if key not in known]
    other, model = recognized_model(unknown), torch_model(model_type)
    if other is not None and model.signature is None:
        raise ValueError(
            f"these are the weights of a {other}; model.type {model_type!r} is another "
            "model"
        )
    for layer in model.removed:
        for key in unknown:
            if layer.pattern.fullmatch(key):
                raise ValueError(f"{key}: {layer.reason}")
