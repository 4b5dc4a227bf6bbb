"""Attributes of scores: where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from credit_jax.evaluation.comparison import Comparison


def attributes_of(
    where: str, comparison: Comparison, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Where scores come from.

    Args:
        where: the forecasts are.
        comparison: with what they are compared.
        provenance: of the forecasts.
    """
    climatology = comparison.climatology
    return {
        "title": "scores of forecasts",
        "forecast": where,
        "truth": comparison.truth.where,
        "climatology": "none" if climatology is None else climatology.where,
        "weights": "cos(latitude)",
        "credit_jax": version("credit-jax"),
        **{
            f"forecast_{key}": value
            if isinstance(value, str | int | float)
            else json.dumps(value)
            for key, value in provenance.items()
        },
    }
