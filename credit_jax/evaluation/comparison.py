"""Matches the channels of forecasts with those of truth and climatology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.evaluation.references import Climatology, Reference
from credit_jax.evaluation.scores import CLIMATOLOGY, PERSISTENCE, TRUTH
from credit_jax.evaluation.sums import ScoredChannel
from credit_jax.io.netcdf import attribute_value
from credit_jax.named_fields.variables import (
    Alignment,
    Variable,
    Variables,
    is_numbered,
)


@dataclass(frozen=True, eq=False)
class ScoreComparison:
    """The channels of the scores, and their positions in forecast and references."""

    scored: Variables  # variables and levels, on the grid of the forecast
    truth: Reference
    to_truth: Alignment  # from the forecast
    climatology: Climatology | None = None
    to_climatology: Alignment = field(default_factory=Alignment)
    notes: tuple[str, ...] = ()  # what is left out, one line each
    training_dates: str = "unknown"  # how many of the dates are

    @property
    def channels(self) -> tuple[ScoredChannel, ...]:
        """The channels of the scores, in order."""
        return tuple(
            ScoredChannel(
                v.name,
                None if level is None else float(level),
                v.units,
                v.long_name,
                "" if level is None else v.level_units,
            )
            for v in self.scored.table.values()
            for level in ([None] if v.levels is None else v.levels)
        )

    def at(
        self, time: np.datetime64
    ) -> dict[str, Float[np.ndarray, "channel lat lon"]]:
        """Truth and climatology at a time, on the grid of the forecast."""
        references = {TRUTH: self._truth(time)}
        if self.climatology is not None:
            fields = self.climatology.read(time, self.to_climatology.other_levels)
            references[CLIMATOLOGY] = self.to_climatology(fields)
        return references

    def persistence(
        self, start: np.datetime64
    ) -> dict[str, Float[np.ndarray, "channel lat lon"]]:
        """The forecast of persistence: the truth at the start date."""
        return {PERSISTENCE: self._truth(start)}

    def _truth(self, time: np.datetime64) -> Float[np.ndarray, "channel lat lon"]:
        return self.to_truth(self.truth.read(time, self.to_truth.other_levels))


def compare(
    forecast: Variables, truth: Reference, names: Sequence[str] = ()
) -> ScoreComparison:
    """Finds the channels that forecast and truth have in common."""
    reference = truth.table
    common = [name for name in forecast.table if name in reference.table]
    # Variables with levels first, whatever the order in the forecast.
    common.sort(key=lambda name: (forecast.table[name].levels is None, name))
    chosen = [*names] or common
    missing = [name for name in chosen if name not in common]
    if missing or not chosen:
        subject = f"{', '.join(missing)}: not in both" if missing else "none is in both"
        raise ValueError(
            f"--variables: {subject}; the forecast has {', '.join(forecast.table)}; "
            f"{reference.where} has {', '.join(reference.table)}"
        )
    indices = forecast.select(chosen).align(reference)
    others = [] if names else [name for name in forecast.table if name not in common]
    notes = [f"not in the truth, and left out: {', '.join(others)}"] if others else []
    scored = {}
    for name in chosen:
        variable, other = forecast.table[name], reference.table[name]
        levels, level_units = None, variable.level_units or other.level_units
        if variable.levels is not None and other.levels is not None:
            levels = variable.levels[[*(indices.levels[name] or ())]]
            if (
                is_numbered(levels)
                and not np.isin(levels, other.levels).all()
                and (levels[0] == 0 or not is_numbered(other.levels))
            ):  # numbers of levels whose values the truth knows
                levels = other.levels[[*(indices.other_levels[name] or ())]]
        scored[name] = Variable(
            name,
            levels,
            units=variable.units or other.units,
            long_name=variable.long_name or other.long_name,
            level_units=level_units,
        )
    table = Variables("the scores", scored, forecast.latitude, forecast.longitude)
    return ScoreComparison(table, truth, indices, notes=(*notes, *indices.notes))


def attributes_of(
    origin: str, comparison: ScoreComparison, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the attributes that describe the provenance of scores."""
    climatology = comparison.climatology
    return {
        "title": "scores of forecasts",
        "forecast": origin,
        "truth": comparison.truth.table.where,
        "climatology": "none" if climatology is None else climatology.table.where,
        "training_dates": comparison.training_dates,
        "weights": "cos(latitude)",
        "credit_jax": version("credit-jax"),
        **{f"forecast_{k}": attribute_value(v) for k, v in provenance.items()},
    }
