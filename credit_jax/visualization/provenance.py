"""Where scores come from, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Attributes of scores that have a name of their own; others follow with blanks.
_NAMES = {
    "title": "what",
    "num_start_dates": "start dates",
    "first_start_date": "first start date",
    "last_start_date": "last start date",
    "num_members": "members",
    "weights": "weights of area",
    "credit_jax": "scored with credit_jax",
    "forecast": "forecasts",
    "forecast_credit-jax": "forecast with credit_jax",
}
_OF_FORECAST = "forecast_"


def provenance_texts(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Name and value of the attributes of scores, in words.

    Args:
        attributes: attributes of the data set, see `credit_jax.evaluation.scores`.
    """
    texts = {}
    for key, value in attributes.items():
        name = _NAMES.get(str(key))
        if name is None:
            name = str(key)
            if name.startswith(_OF_FORECAST):
                name = f"forecasts: {name.removeprefix(_OF_FORECAST)}"
            name = name.replace("_", " ")
        texts[name] = str(value)
    return texts
