"""Sums over start dates, scores computed from them, and paired differences."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float
from scipy import special

from credit_jax.evaluation import scores
from credit_jax.io.atomic import new_file

_STARTS = "start_dates"
_ROUNDING = 1e-5


@dataclass(frozen=True)
class ScoredChannel:
    """A channel of the scores."""

    variable: str
    level: float | None = None  # None at the surface
    units: str = ""  # "" if unknown
    long_name: str = ""
    level_units: str = ""  # "hPa", "sigma", "" for a number

    @property
    def label(self) -> str:
        """Variable and level, such as "T500"."""
        return self.variable + ("" if self.level is None else f"{self.level:g}")


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Area sums, added up over start dates in float64."""

    starts: tuple[np.datetime64, ...]
    # "system/quantity" of `measures` -> (lead, channel, region, ...).
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def of_start(
        cls, start: np.datetime64, leads: Sequence[Mapping[str, np.ndarray]]
    ) -> ScoreSums:
        """Builds the sums of one start date from those of each lead time."""
        arrays = {
            k: np.stack([sums[k] for sums in leads], dtype=float) for k in leads[0]
        }
        return cls((start,), arrays)

    def merge(self, other: ScoreSums) -> ScoreSums:
        """Adds the sums of other start dates."""
        twice = sorted(set(self.starts) & set(other.starts))
        if twice:
            raise ValueError(f"the start date {str(twice[0])[:16]} is in both sums")
        shapes = [
            {k: x.shape for k, x in sums.arrays.items()} for sums in (self, other)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"sums of other scores cannot be merged: {shapes[0]} and {shapes[1]}"
            )
        arrays = {name: x + other.arrays[name] for name, x in self.arrays.items()}
        return ScoreSums(self.starts + other.starts, arrays)

    def save(self, path: Path) -> None:
        """Writes an .npz file atomically."""
        starts = np.array(self.starts, "datetime64[ns]").astype(np.int64)
        with new_file(path) as partial, partial.open("wb") as file:
            content: dict[str, Any] = {_STARTS: starts, **self.arrays}
            np.savez(file, **content)

    @classmethod
    def load(cls, path: Path) -> ScoreSums:
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        starts = arrays.pop(_STARTS).astype("datetime64[ns]")
        return cls(tuple(starts), arrays)


def path_of_sums(folder: Path, start: np.datetime64) -> Path:
    """The file of the sums of a start date."""
    return folder / f"{str(start)[:16].replace(':', '')}.npz"


def merged_sums(folder: Path, starts: Iterable[np.datetime64]) -> ScoreSums | None:
    """The sums of all start dates that have a file; None if there is none."""
    paths = [path_of_sums(folder, start) for start in starts]
    parts = [ScoreSums.load(path) for path in paths if path.exists()]
    return functools.reduce(ScoreSums.merge, parts) if parts else None


@dataclass(frozen=True, eq=False)
class ScoreDims:
    """The dims of the sums; lead times are timedelta64[ns]."""

    channels: tuple[ScoredChannel, ...]
    leads: np.ndarray
    regions: tuple[str, ...]
    bands: tuple[str, ...]
    num_members: int = 1

    def scores(
        self,
        sums: ScoreSums,
        attributes: Mapping[str, Any] | None = None,
        differences: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    ) -> xr.Dataset:
        """The data set of `evaluation.scores`, of sums over all start dates."""
        with np.errstate(divide="ignore", invalid="ignore"):
            metrics: dict[str, Mapping[str, np.ndarray]] = {
                **_metrics(sums.arrays, self.num_members, len(sums.starts)),
                **(differences or {}),
            }
        systems = [
            k for k in scores.SYSTEMS if any(k in values for values in metrics.values())
        ]
        arrays = {}
        for name, metric in scores.METRICS.items():
            if name not in metrics:
                continue
            one = next(iter(metrics[name].values()))
            empty = np.full(one.shape, np.nan)
            stacked = np.stack([metrics[name].get(system, empty) for system in systems])
            # (system, lead, channel, region, ...) -> the order of the dims.
            stacked = np.moveaxis(stacked, 1, 3)
            if metric.dims != scores.DIMS:
                stacked = stacked.astype(np.float32)
            details = {"long_name": metric.long_name}
            arrays[name] = xr.DataArray(stacked, dims=metric.dims, attrs=details)
        sizes = xr.Dataset(arrays).sizes
        channels = self.channels
        labels = [channel.label for channel in channels]
        if len(set(labels)) < len(labels):
            labels = [
                c.variable + ("" if c.level is None else f"@{c.level:g}")
                for c in channels
            ]
        levels = [math.nan if c.level is None else c.level for c in channels]
        texts = ("units", "long_name", "level_units")
        coords = {
            scores.SYSTEM: list(systems),
            scores.CHANNEL: labels,
            "variable": (scores.CHANNEL, [c.variable for c in channels]),
            "level": (scores.CHANNEL, np.array(levels)),
            **{k: (scores.CHANNEL, [getattr(c, k) for c in channels]) for k in texts},
            scores.REGION: list(self.regions),
            scores.LEAD: self.leads.astype("timedelta64[ns]"),
            scores.RANK: np.arange(self.num_members + 1),
            scores.BAND: list(self.bands),
        }
        coords[scores.WAVENUMBER] = np.arange(sizes.get(scores.WAVENUMBER, 0))
        used = {k: v for k, v in coords.items() if k in sizes or isinstance(v, tuple)}
        starts = np.sort(np.array(sums.starts))
        about = {
            "num_start_dates": len(starts),
            "first_start_date": str(starts[0])[:16],
            "last_start_date": str(starts[-1])[:16],
            "num_members": self.num_members,
        }
        return xr.Dataset(arrays, used, {**about, **(attributes or {})})


def _metrics(
    sums: Mapping[str, np.ndarray], num_members: int, num_starts: int
) -> dict[str, dict[str, np.ndarray]]:
    """Metric -> system -> (lead, channel, region, ...)."""
    metrics: dict[str, dict[str, np.ndarray]] = {name: {} for name in scores.METRICS}
    for system in scores.SYSTEMS:
        of_system = {
            key.partition("/")[2]: array
            for key, array in sums.items()
            if key.startswith(f"{system}/")
        }
        values_of = {}
        if "weight" in of_system:
            weight = of_system["weight"]
            values_of["rmse"] = np.sqrt(of_system["squared"] / weight)
            values_of["mae"] = of_system["absolute"] / weight
            values_of["bias"] = of_system["plain"] / weight
            missing = 1 - weight / num_starts
            # Weights are rounded to float32, so that their sum is not quite 1.
            missing[np.abs(missing) < _ROUNDING] = 0.0
            missing[..., (weight == 0).all(axis=(0, 1))] = np.nan  # empty regions
            if "forecast/count" not in sums:
                values_of["missing"] = missing
            elif "count" in of_system:  # weights are numbers of observations
                values_of["count"] = of_system["count"]
            if "variance" in of_system:
                values_of["crps"] = of_system["crps"] / weight
                values_of["spread"] = np.sqrt(of_system["variance"] / weight)
                factor = np.sqrt((num_members + 1) / num_members)
                values_of["spread_skill_ratio"] = (
                    factor * values_of["spread"] / values_of["rmse"]
                )
            if "rank" in of_system:
                values_of["rank_histogram"] = of_system["rank"] / weight[..., None]
        if "anomaly_weight" in of_system:
            values_of["activity"] = np.sqrt(
                of_system["anomaly"] / of_system["anomaly_weight"]
            )
            if "product" in of_system:
                values_of["acc"] = of_system["product"] / np.sqrt(
                    of_system["anomaly"] * of_system["truth"]
                )
        if "power_weight" in of_system:
            values_of["energy_spectrum"] = (
                of_system["power"] / of_system["power_weight"][..., None]
            )
        for name, values in values_of.items():
            metrics[name][system] = values
    if metrics["spread"]:
        # The CRPS of a deterministic forecast is its mean absolute error.
        for system in {scores.PERSISTENCE, scores.CLIMATOLOGY} & metrics["mae"].keys():
            metrics["crps"][system] = metrics["mae"][system]
    return {name: by_system for name, by_system in metrics.items() if by_system}


CONFIDENCE = 0.95
_QUANTITIES = dict(zip(scores.PAIRED, ("squared", "absolute", "crps"), strict=True))
# Start dates below which no interval is given; one has three parameters.
MIN_STARTS = 5


def paired_differences(
    first: Sequence[ScoreSums], second: Sequence[ScoreSums]
) -> dict[str, dict[str, Float[np.ndarray, "lead channel region"]]]:
    """Metric -> system -> differences of scores, first less second; their intervals."""
    metrics, weight = {}, f"{scores.FORECAST}/weight"
    pairs = [  # start dates may have no observation
        (one, two)
        for one, two in zip(first, second, strict=True)
        if one.arrays[weight].any() or two.arrays[weight].any()
    ]
    for name, quantity in _QUANTITIES.items():
        key, of_both, errors = f"{scores.FORECAST}/{quantity}", [], []
        if not all(key in sums.arrays for pair in pairs for sums in pair):
            continue
        for forecast in zip(*pairs, strict=True):
            weights, values = (
                np.stack([sums.arrays[k] for sums in forecast]) for k in (weight, key)
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                score = values.sum(0) / weights.sum(0)
                # Of a ratio of sums S / W over start dates t, to first order: the mean
                # of (S_t - S / W W_t) / W. What both forecasts have in common cancels
                # below.
                error = (values - score * weights) / weights.mean(0)
                if name == "rmse":
                    score = np.sqrt(score)
                    error = error / (2 * score)
            of_both.append(score)
            errors.append(error)
        metrics[f"{name}_difference"] = {scores.FORECAST: of_both[0] - of_both[1]}
        metrics[f"{name}_interval"] = {
            scores.FORECAST: half_width(errors[0] - errors[1])
        }
    return metrics


def half_width(values: Float[np.ndarray, ...]) -> Float[np.ndarray, ...]:
    """Half the width of the 95 % interval of a mean of serially correlated values."""
    count = len(values)
    if count < MIN_STARTS:
        return np.full(values.shape[1:], np.nan)
    errors = values - values.mean(0)
    squares = (errors**2).sum(0)
    lags = np.arange(1, count).reshape(-1, *[1] * squares.ndim)
    with np.errstate(divide="ignore", invalid="ignore"):
        products = [(errors[k:] * errors[:-k]).sum(0) for k in range(1, 5)]
        # Correlations about a mean are too small by (1 + 4 r) / n (Kendall 1954), and
        # intervals grow faster than they: with 7 instead of 4 these hold.
        r = (count * np.stack(products) / squares + 1) / (count - min(7, 0.4 * count))
        negative, r = np.clip(r[0], -0.2, 0.0), np.clip(r, 0.0, 1.0)
        # Of a first-order autoregression with noise, share * decay**lag.
        ratio = (r[1:] * r[:-1]).sum(0) / (r[:-1] ** 2).sum(0)
        decay = np.clip(np.fmax(ratio, r[0]), 0.0, 0.97)
        share = np.where(decay > 0, np.clip(r[0] / decay, 0.0, 1.0), 0.0)
        # The effective size (Zwiers and von Storch 1995).
        sums = ((1 - lags / count) * share * decay**lags).sum(0)
        sums = np.where(negative < 0, negative / (1 - negative), sums)
        effective = np.maximum(count / (1 + 2 * sums), 2.0)
        # The mean of the values themselves is subtracted, too.
        variance = squares / count / (1 - 1 / effective)
        freedom = np.minimum(effective, count) - 1
        quantile = special.stdtrit(freedom, 0.5 + CONFIDENCE / 2)
        return np.where(squares > 0, quantile * np.sqrt(variance / effective), 0.0)
