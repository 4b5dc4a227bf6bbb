"""The registry of losses, by CREDIT's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from credit_jax.config import parse
from credit_jax.config.components import Registry
from credit_jax.config.messages import hint
from credit_jax.losses.base import Loss, LossEntry, Pointwise, pointwise
from credit_jax.losses.covariance import CovarianceParameters, build_covmse
from credit_jax.losses.crps import (
    AlmostFairParameters,
    KcrpsParameters,
    build_almost_fair,
    build_kcrps,
    build_ring_crps,
)
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
from credit_jax.losses.harmonics import (
    HarmonicParameters,
    build_amse,
    build_spherical,
)
from credit_jax.losses.spectrum import (
    SpectrumParameters,
    build_power,
    build_spectral,
)

LOSSES: Registry[LossEntry] = Registry("loss", LossEntry)
LOSSES |= {
    "mse": elementwise(mse),
    "mae": elementwise(mae),
    "huber": elementwise(huber, HuberParameters),
    "msle": elementwise(msle),
    "logcosh": elementwise(logcosh),
    "xtanh": elementwise(xtanh),
    "xsigmoid": elementwise(xsigmoid),
    "KCRPS": LossEntry(build_kcrps, KcrpsParameters, num_members=2),
    "almost-fair-crps": LossEntry(
        build_almost_fair, AlmostFairParameters, num_members=2
    ),
    "ring-crps": pointwise(build_ring_crps),
    "spectral": LossEntry(build_spectral, SpectrumParameters),
    "power": LossEntry(build_power, SpectrumParameters),
    "spherical": LossEntry(build_spherical, HarmonicParameters),
    "amse": LossEntry(build_amse, HarmonicParameters),
    "covmse": LossEntry(build_covmse, CovarianceParameters),
}


def choose_loss(
    name: str,
    parameters: Mapping[str, Any],
    key: str,
    *,
    parameters_key: str | None = None,
) -> Loss:
    """Returns the loss `name` with its parameters bound.

    Args:
        name: a key of `LOSSES`.
        parameters: parameters by name; `reduction` (none or mean) is accepted and
            ignored, since a loss is always the mean over the grid.
        key: dotted path of the setting, for the error.
        parameters_key: dotted path of the parameters; None is `key` with "_parameters".

    Raises:
        ValueError: the name or a parameter is unknown, or a value is invalid.
    """
    entry = _entry(name, key)
    return entry.build(_parsed(name, parameters, parameters_key or f"{key}_parameters"))


def choose_pointwise(
    name: str,
    parameters: Mapping[str, Any],
    key: str,
    *,
    parameters_key: str | None = None,
) -> Pointwise:
    """Returns the function of values at every point of a loss; see `choose_loss`.

    Raises:
        ValueError: as `choose_loss`, or the loss is defined for whole fields only.
    """
    entry = _entry(name, key)
    if entry.build_pointwise is None:
        pointwise = [
            loss_name for loss_name, each in LOSSES.items() if each.build_pointwise
        ]
        raise ValueError(
            f"{key}: {name!r} gives no value at every point, which `type: base` needs; "
            f"expected one of {', '.join(pointwise)}"
        )
    parameters_key = parameters_key or f"{key}_parameters"
    return entry.build_pointwise(_parsed(name, parameters, parameters_key))


def _entry(name: str, key: str) -> LossEntry:
    if name not in LOSSES:
        raise ValueError(
            f"{key}: got {name!r}, expected one of {', '.join(LOSSES)}"
            f"{hint(name, LOSSES)}"
        )
    return LOSSES[name]


def _parsed(name: str, parameters: Mapping[str, Any], key: str) -> Any:
    entry, arguments = LOSSES[name], dict(parameters)
    reduction = arguments.pop("reduction", "mean")
    if reduction not in ("mean", "none"):
        raise ValueError(
            f"{key}.reduction: got {reduction!r}, expected 'mean' or 'none' "
            "(the loss is always the mean over samples, channels and grid points)"
        )
    unknown = sorted(set(arguments) - set(entry.parameters.model_fields))
    if unknown:
        known = ", ".join(entry.parameters.model_fields) or "none"
        raise ValueError(f"{key}: loss {name!r} has no {unknown}; known: {known}")
    return parse(entry.parameters, arguments, key)
