"""Attributes of scores: their provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from credit_jax.evaluation.comparison import Comparison


def attributes_of(
    where: str, comparison: Comparison, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the attributes that describe the provenance of scores.

    Args:
        where: path of the forecasts.
        comparison: truth and climatology of the scores.
        provenance: provenance of the forecasts.
    """
    climatology = comparison.climatology
    return {
        "title": "scores of forecasts",
        "forecast": where,
        "truth": comparison.truth.where,
        "climatology": "none" if climatology is None else climatology.where,
        "training_dates": comparison.training_dates,
        "weights": "cos(latitude)",
        "credit_jax": version("credit-jax"),
        **{
            f"forecast_{key}": value
            if isinstance(value, str | int | float)
            else json.dumps(value)
            for key, value in provenance.items()
        },
    }
