"""Windows of the small model of the tests, with observations drawn at random."""

from dataclasses import replace

import numpy as np
import pandas as pd

from credit_jax.config.assimilation import AssimilationConfig
from credit_jax.extensions.adjoint import forecast_map
from credit_jax.extensions.assimilation import (
    BackgroundCovariance,
    TrajectoryGrid,
    Window,
)
from credit_jax.extensions.assimilation.background import (
    Harmonics,
    covariance_of,
    symmetric_root,
)
from credit_jax.extensions.assimilation.operators import Observer, operators_of
from credit_jax.named_fields.variables import Variable
from tests.data.world import GRID

START = np.datetime64("2000-01-01", "ns")
STEP = np.timedelta64(6, "h")
NUM_STEPS, TRUNCATION = 3, 2
LEVELS = np.array([1.0, 5.0])
VARIABLES = (
    Variable("ERA5/prognostic/3d/U", LEVELS),
    Variable("ERA5/prognostic/3d/T", LEVELS),
    Variable("ERA5/prognostic/2d/SP"),
)
CHANNELS = tuple(
    (v.name, level)
    for v in VARIABLES
    for level in (LEVELS if v.levels is not None else [np.nan])
)
DEVIATIONS = {"U": 2.0, "T": 3.0, "SP": 300.0}
GRID_OF_RUN = TrajectoryGrid(
    {v.name: v for v in VARIABLES},
    GRID["latitude"],
    GRID["longitude"],
    START + STEP * np.arange(NUM_STEPS + 1),
    {"T": "K"},
)


def config(**changes):
    """An `assimilation` section for windows that are not read from files."""
    whole = {
        "observations": ["none.csv"],
        "background": {"file": "none.nc"},
        "start": "2000-01-01",
    }
    return AssimilationConfig.model_validate(whole | changes)


def covariance(seed=0):
    """A covariance with correlated channels, large scales first."""
    rng, count = np.random.default_rng(seed), len(CHANNELS)
    factors = rng.standard_normal((TRUNCATION + 1, count, 2 * count))
    factors /= (1 + np.arange(TRUNCATION + 1))[:, None, None] * np.sqrt(10)
    deviation = np.stack([np.full(6, DEVIATIONS[name]) for name, _ in CHANNELS])
    harmonics = Harmonics(GRID["latitude"], GRID["longitude"], TRUNCATION)
    root = symmetric_root(factors @ factors.transpose(0, 2, 1))
    return BackgroundCovariance(CHANNELS, harmonics, deviation, root)


def drawn(count=60, seed=1, hours=18.0):
    """Places of observations of all variables, with errors; their values are 0."""
    rng = np.random.default_rng(seed)
    names = rng.choice([*DEVIATIONS], count)
    nanoseconds = np.int64(rng.uniform(0, hours, count) * 3.6e12)
    return pd.DataFrame(
        {
            "time": START + nanoseconds.astype("timedelta64[ns]"),
            "latitude": rng.uniform(-75, 75, count),
            "longitude": rng.uniform(-180, 360, count),
            "level": np.where(names == "SP", np.nan, rng.uniform(1, 5, count)),
            "variable": names,
            "value": 0.0,
            "error": [0.3 * DEVIATIONS[name] for name in names],
            "file": "drawn.csv",
            "row": np.arange(1, count + 1),
        }
    )


def window(forecaster, initial, table, operators=None):
    """The window of the run, whose background is the state of the data."""
    forecast = forecast_map(forecaster, initial, range(1, NUM_STEPS + 1))
    observer = Observer(
        operators_of(operators or {}, GRID_OF_RUN), forecast.step.model.mesh
    )
    background = {key: x[0, :, -1] for key, x in forecast.state.items()}
    of_state = covariance_of(
        covariance(), VARIABLES, GRID["latitude"], GRID["longitude"]
    )
    observed = observer.observed(table, GRID_OF_RUN)
    return Window(forecast, background, of_state, observer, observed)


def with_truth(problem, seed=2):
    """The observations of a truth drawn from the background, and this truth.

    Returns:
        The window with their values, and the control variable of the truth.
    """
    rng = np.random.default_rng(seed)
    truth = problem.at(rng.standard_normal(problem.covariance.size))
    table = problem.observed.table.copy()
    noise = rng.standard_normal(len(table)) * table["error"]
    table["value"] = truth.values + noise
    return observing(problem, table), truth


def observing(problem, table):
    """The window with other observations."""
    return replace(problem, observed=problem.observer.observed(table, GRID_OF_RUN))
