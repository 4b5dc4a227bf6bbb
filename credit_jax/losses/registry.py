"""The losses by CREDIT's names: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from credit_jax.config.base import parse
from credit_jax.losses.base import Loss, LossEntry
from credit_jax.losses.elementwise import (
    HuberParameters,
    elementwise,
    huber,
    logcosh,
    mae,
    mse,
    msle,
    xsigmoid,
    xtanh,
)

LOSSES: dict[str, LossEntry] = {
    "mse": elementwise(mse),
    "mae": elementwise(mae),
    "huber": elementwise(huber, HuberParameters),
    "msle": elementwise(msle),
    "logcosh": elementwise(logcosh),
    "xtanh": elementwise(xtanh),
    "xsigmoid": elementwise(xsigmoid),
}


def choose_loss(name: str, parameters: Mapping[str, Any], key: str) -> Loss:
    """The loss `name` with its parameters bound.

    Args:
        name: a key of `LOSSES`.
        parameters: by name; `reduction` (none or mean) is accepted, the mean over the
            grid is always taken.
        key: dotted path of the setting, for the error.

    Raises:
        ValueError: the name, a parameter or its value is not known.
    """
    if name not in LOSSES:
        raise ValueError(
            f"{key}: got {name!r}, expected one of {', '.join(LOSSES)}; other "
            "losses of CREDIT are not implemented"
        )
    entry, own = LOSSES[name], dict(parameters)
    reduction = own.pop("reduction", "mean")
    if reduction not in ("mean", "none"):
        raise ValueError(
            f"{key}_parameters.reduction: got {reduction!r}, expected 'mean' or 'none' "
            "(the loss is always the mean over samples, channels and grid points)"
        )
    unknown = sorted(set(own) - set(entry.parameters.model_fields))
    if unknown:
        known = ", ".join(entry.parameters.model_fields) or "none"
        raise ValueError(
            f"{key}_parameters: loss {name!r} has no {unknown}; known: {known}"
        )
    return entry.build(parse(entry.parameters, own, f"{key}_parameters"))
