"""Error of the forecast beside those of the baselines, persistence and climatology.

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
    """One forecast, for a picture.

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
            standard deviations.
        physical: the same in the variable's own units.
        num_samples: samples that were compared.
        example: the last one of them.
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
    """Compare forecasts of held-out samples with persistence and climatology.

    Args:
        forecaster: model input of `batch_size` samples -> prediction, normalized.
        loader: of the held-out period.
        climatology: of the training period.
        batch_size: samples that `forecaster` takes at once.
        max_samples: beyond it, evenly spaced samples are taken.

    Raises:
        ValueError: no sample has a truth at the time of its input, which persistence
            needs.
    """
    indices, preceding = _with_persistence(loader.dataset, max_samples)
    rows = latitude_weights(loader.dataset.latitude)[:, None]
    sums = dict.fromkeys((FORECAST, *BASELINES), np.zeros(1))
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
        for name, prediction in predictions.items():
            error = np.square(prediction - truth, dtype=np.float64) * rows
            sums[name] = sums[name] + error.mean(axis=(2, 3)).sum(axis=0)
        forecast = predictions[FORECAST]
        example = _example(times[-1], truth[-1], forecast[-1], loader.units)
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
    """The normalized targets of some samples."""
    fields = [loader.dataset.target_array(int(index))[:, 0] for index in indices]
    return loader.units.normalize(np.stack(fields))


def _example(
    time: np.datetime64, truth: np.ndarray, forecast: np.ndarray, units: Units
) -> Example:
    return Example(
        time, units.denormalize(truth[None])[0], units.denormalize(forecast[None])[0]
    )


def _skill(
    sums: dict[str, np.ndarray], num: int, loader: Loader, example: Example
) -> Skill:
    places = loader.schema.target_slices()
    std = np.square(loader.units.std.astype(np.float64))

    def rmse(squares: np.ndarray) -> np.ndarray:
        means = [squares[place].mean() for place in places.values()]
        return np.sqrt(np.asarray(means))

    return Skill(
        tuple(places),
        {name: rmse(total / num) for name, total in sums.items()},
        {name: rmse(total / num * std) for name, total in sums.items()},
        num,
        example,
    )
