"""Random forecasts, truth and climatology on a small grid."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from credit_jax.evaluation.mesh_sums import PointWeights, ScoreGrid, area_sums
from credit_jax.evaluation.regions import band_weights, region_weights
from credit_jax.evaluation.sums import ScoredChannel, ScoreDims, ScoreSums
from credit_jax.parallel.mesh.device_mesh import MeshAxes

STARTS = np.array(["2000-01-01", "2000-01-02"], "datetime64[ns]")
LEADS = np.array([6], "timedelta64[h]").astype("timedelta64[ns]")
CHANNELS = (ScoredChannel("T", 500.0, "K"), ScoredChannel("Q", 500.0))
MEMBER_DIM = "ensemble_member_label"  # CREDIT's name


def random_fields(
    latitude: np.ndarray, num_lon: int, num_members: int, seed: int = 0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns forecasts (start, member, channel, lat, lon) and references, float32."""
    rng = np.random.default_rng(seed)
    shape = (len(STARTS), len(CHANNELS), len(latitude), num_lon)
    size = np.array([10.0, 1e-3])[:, None, None]
    mean = np.array([280.0, 5e-3])[:, None, None]

    def draw(scale: float, *more: int) -> np.ndarray:
        whole = shape[:1] + more + shape[1:]
        return size * scale * rng.standard_normal(whole)

    climatology = mean + draw(1.0)
    truth = climatology + draw(0.7)
    forecast = truth[:, None] + 0.1 * size + draw(0.5, num_members)
    references = {
        "truth": truth,
        "persistence": truth + draw(0.9),
        "climatology": climatology,
    }
    return np.float32(forecast), {k: np.float32(x) for k, x in references.items()}


def sums_of(
    forecast: np.ndarray, references: Any, grid: ScoreGrid
) -> dict[str, np.ndarray]:
    """Returns area sums on one device."""
    own = band_weights(grid.bands, grid.latitude) if grid.bands else None
    bands = None if own is None else jnp.asarray(own)
    regions = region_weights(grid.regions, grid.latitude, grid.longitude)
    weights = PointWeights(jnp.asarray(regions), bands)
    measure = jax.jit(lambda x, fields: area_sums(x, fields, weights, MeshAxes()))
    return jax.device_get(measure(forecast, references))


def dims_of_scores(grid: ScoreGrid, num_members: int) -> ScoreDims:
    """Returns the dims of the scores of `random_fields`."""
    names = [tuple(r.name for r in own) for own in (grid.regions, grid.bands)]
    return ScoreDims(CHANNELS, LEADS, *names, num_members=num_members)


def scores_of(forecast: np.ndarray, references: Any, grid: ScoreGrid) -> xr.Dataset:
    """Returns scores over both start dates, merged from the sums of each."""
    found = sums_of(forecast, references, grid)
    parts = [
        ScoreSums.of_start(start, [{name: x[i] for name, x in found.items()}])
        for i, start in enumerate(STARTS)
    ]
    return dims_of_scores(grid, forecast.shape[1]).scores(parts[0].merge(parts[1]))


def labeled(fields: np.ndarray, grid: ScoreGrid) -> xr.DataArray:
    """Returns fields in float64 with named dims, members first if there are any."""
    dims = ["time", "channel", "latitude", "longitude"]
    if fields.ndim == 5:
        dims.insert(1, MEMBER_DIM)
    coords = {"latitude": grid.latitude, "longitude": grid.longitude}
    return xr.DataArray(fields.astype(np.float64), dims=dims, coords=coords)
