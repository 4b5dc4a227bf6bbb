"""Errors of the forecast and of two baselines, persistence and climatology.

On held-out samples, for each variable, with area weights `w` of mean 1 and means over
samples, levels and grid points: `rmse = sqrt(mean(w (prediction - truth)^2))`, where
the prediction is that of

    forecast      the model
    persistence   a baseline: the truth at the time of the input
    climatology   a baseline: the mean of the training period for that season
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from credit_jax.data import Climatology, Dataset, Loader
from credit_jax.fields import latitude_weights
from credit_jax.transforms import Units

FORECAST: str = "forecast"
PERSISTENCE: str = "persistence"
CLIMATOLOGY: str = "climatology"
BASELINES: tuple[str, ...] = (PERSISTENCE, CLIMATOLOGY)

Fields = Float[np.ndarray, "sample channel lat lon"]
# Model input (b, C, T, H, W) -> prediction (b, C_out, T_out, H, W), host arrays.
Forecaster = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Example:
    """One forecast, for a figure.

    Attributes:
        time: datetime64 of the forecast field.
        truth: (channel, lat, lon), physical units.
        forecast: like `truth`.
    """

    time: np.datetime64
    truth: Float[np.ndarray, "channel lat lon"]
    forecast: Float[np.ndarray, "channel lat lon"]


@dataclass(frozen=True)
class Skill:
    """Errors on held-out samples.

    Attributes:
        variables: var_key of every target variable.
        normalized: by name of the forecast or baseline, the RMSE of each variable, in
            the units of the model's output.
        physical: the same in the variable's own units.
        num_samples: samples that were compared.
        example: the last of these samples.
    """

    variables: tuple[str, ...]
    normalized: dict[str, Float[np.ndarray, " variable"]]
    physical: dict[str, Float[np.ndarray, " variable"]]
    num_samples: int
    example: Example

    def wins(self, variable: int) -> bool:
        """Whether the forecast is better than every baseline, in both units."""
        return all(
            bool(errors[FORECAST][variable] < errors[baseline][variable])
            for errors in (self.normalized, self.physical)
            for baseline in BASELINES
        )


def measure_skill(
    forecaster: Forecaster,
    loader: Loader,
    climatology: Climatology,
    *,
    batch_size: int,
    max_samples: int = 256,
) -> Skill:
    """Compares forecasts of held-out samples with persistence and climatology.

    Args:
        forecaster: model input of `batch_size` samples -> prediction, normalized.
        loader: of the held-out period.
        climatology: of the training period.
        batch_size: number of samples in a call of `forecaster`.
        max_samples: beyond it, evenly spaced samples are taken.

    Raises:
        ValueError: no sample has a truth at the time of its input, which persistence
            needs.
    """
    indices, preceding = _with_persistence(loader.dataset, max_samples)
    rows = latitude_weights(loader.latitude)[:, None]
    num = loader.schema.num_target_channels
    sums = {name: np.zeros((2, num)) for name in (FORECAST, *BASELINES)}
    example: Example | None = None
    for part in _parts(len(indices), batch_size):
        batch = loader.read(_filled(indices[part], batch_size))
        kept = len(indices[part])
        truth, times = batch.y[:kept, :, 0], batch.target_times[:kept, 0]
        predictions = {
            FORECAST: forecaster(batch.x)[:kept, :, 0],
            PERSISTENCE: _truth(loader, preceding[part]),
            CLIMATOLOGY: loader.units.normalize(climatology.at(times)[:, :, 0]),
        }
        physical = _physical(truth, loader.units)
        for name, prediction in predictions.items():
            sums[name][0] += _squares(prediction - truth, rows)
            other = _physical(prediction, loader.units)
            sums[name][1] += _squares(other - physical, rows)
            if name == FORECAST:
                example = _example(times[-1], physical[-1], other[-1])
    assert example is not None, "there is at least one sample"
    return _skill(sums, len(indices), loader, example)


def _with_persistence(
    dataset: Dataset, max_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Samples, and for each the sample whose target is at the time of its input."""
    by_time = {dataset.target_time(i): i for i in range(len(dataset))}
    pairs = [
        (index, by_time[start])
        for index, start in enumerate(dataset.starts)
        if start in by_time
    ]
    if not pairs:
        raise ValueError(
            f"none of the {len(dataset)} held-out samples begins where another one "
            "ends; validation_data must cover two or more consecutive time steps"
        )
    places = np.linspace(0, len(pairs) - 1, min(len(pairs), max_samples))
    chosen = np.asarray(pairs)[places.round().astype(int)]
    return chosen[:, 0], chosen[:, 1]


def _parts(num: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, num, size))


def _filled(indices: np.ndarray, size: int) -> np.ndarray:
    """The indices, the last one repeated up to `size`: one shape, one program."""
    return np.concatenate([indices, np.repeat(indices[-1:], size - len(indices))])


def _truth(loader: Loader, indices: np.ndarray) -> Fields:
    """The normalized targets of given samples."""
    fields = [loader.dataset.target_array(int(index))[:, 0] for index in indices]
    return loader.units.normalize(np.stack(fields))


def _physical(fields: Fields, units: Units) -> Fields:
    """Fields of the model's output in physical units, float64."""
    return units.denormalize(fields.astype(np.float64))


def _squares(error: Fields, rows: np.ndarray) -> Float[np.ndarray, " channel"]:
    """Sum over samples of the mean square over the area."""
    squares = np.square(error, dtype=np.float64) * rows
    return squares.mean(axis=(2, 3)).sum(axis=0)


def _example(time: np.datetime64, truth: np.ndarray, forecast: np.ndarray) -> Example:
    return Example(time, truth.astype(np.float32), forecast.astype(np.float32))


def _skill(
    sums: dict[str, np.ndarray], num: int, loader: Loader, example: Example
) -> Skill:
    places = loader.schema.target_slices()

    def rmse(squares: np.ndarray) -> np.ndarray:
        means = [squares[place].mean() for place in places.values()]
        return np.sqrt(np.asarray(means))

    return Skill(
        tuple(places),
        {name: rmse(total[0] / num) for name, total in sums.items()},
        {name: rmse(total[1] / num) for name, total in sums.items()},
        num,
        example,
    )
