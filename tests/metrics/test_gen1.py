"""Metrics of CREDIT's first generation against CREDIT's, and on every mesh."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.metrics.gen1 import (
    ensemble_fields,
    lat_weighted_metrics,
    lat_weighted_metrics_climatology,
)
from credit_jax.named_fields import latitude_weights
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, run_on_mesh

LAT, LON = 8, 12
NAMES = ["U_0", "U_1", "SP", "TP"]
LATITUDE = np.linspace(85.0, -60.0, LAT)
MESHES = [{"domain": 2}, {"domain": 4}, {"domain": 8}, {"dp": 2, "domain": 4}]


def credit_metrics(name, tmp_path, members):
    import xarray as xr
    from credit.metrics.gen_1 import metrics

    path = tmp_path / "latitude.nc"
    coords = {"latitude": LATITUDE, "longitude": np.arange(float(LON))}
    xr.Dataset(coords=coords).to_netcdf(path)
    conf = {
        "data": {
            "variables": ["U"],
            "surface_variables": ["SP"],
            "diagnostic_variables": ["TP"],
        },
        "model": {"levels": 2},
        "loss": {"use_latitude_weights": True, "latitude_weights": str(path)},
        "trainer": {"ensemble_size": members},
    }
    return getattr(metrics, name)(conf)


def fields(members, lat=LAT):
    target = draw((2, 4, 1, lat, LON), seed=1)
    noise = draw((2 * members, 4, 1, lat, LON), seed=2)
    return np.repeat(target, members, axis=0) + 0.5 * noise, target


def context(members, lat=LAT, mesh=None):
    weights = latitude_weights(np.linspace(85.0, -60.0, lat))
    return dataclasses.replace(
        field_context(lat, mesh, num_members=members), row_weights=weights
    )


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("with_climatology", [False, True])
def test_equals_credit(members, with_climatology, credit, tmp_path):
    import torch

    prediction, target = fields(members)
    mean = draw((4, 1, LAT, LON), seed=5) if with_climatology else None
    theirs = credit_metrics("LatWeightedMetrics", tmp_path, members)(
        torch.tensor(prediction)[:, :, 0],
        torch.tensor(target)[:, :, 0],
        clim=torch.tensor(mean)[:, 0] if mean is not None else None,
    )
    ours = lat_weighted_metrics(
        {"y_pred": jnp.asarray(prediction), "y": jnp.asarray(target)},
        context(members),
        NAMES,
        climatology=None if mean is None else jnp.asarray(mean)[None],
    )
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert_close(ours[name], float(value), 1e-5, name)


def test_errors_of_the_climatology_class_equal_credit(credit, tmp_path):
    import torch

    prediction, target = fields(1)
    theirs = credit_metrics("LatWeightedMetricsClimatology", tmp_path, 1)(
        torch.tensor(prediction)[:, :, 0], torch.tensor(target)[:, :, 0]
    )
    arrays = {"y_pred": jnp.asarray(prediction), "y": jnp.asarray(target)}
    ours = lat_weighted_metrics_climatology(arrays, context(1), NAMES)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        if name != "mse":  # CREDIT's mean includes the root mean squared errors, too.
            assert_close(ours[name], float(value), 1e-5, name)
    mean = jnp.asarray(draw((1, 4, 1, LAT, LON), seed=5))
    own = lat_weighted_metrics_climatology(arrays, context(1), NAMES, climatology=mean)
    other = lat_weighted_metrics(arrays, context(1), NAMES, climatology=mean)
    for name in NAMES:
        assert_close(own[f"acc_{name}"], other[f"acc_{name}"], 1e-6, name)


def test_ensemble_fields_equal_credit(credit, tmp_path):
    import torch

    prediction, target = fields(3)
    theirs = credit_metrics("LatWeightedMetricsEnsemble", tmp_path, 3)(
        torch.tensor(prediction), torch.tensor(target)
    )
    ours = ensemble_fields(
        {"y_pred": jnp.asarray(prediction), "y": jnp.asarray(target)}, context(3)
    )
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert_close(ours[name], value.numpy(), 1e-5, name)


@pytest.mark.slow(but=["16-{'dp': 2, 'domain': 4}", "13-{'domain': 4}"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("lat", [16, 13])
def test_same_on_every_mesh(lat, mesh):
    arrays, built = fields(3, lat), make_mesh(**mesh)
    tree = dict(zip(("y_pred", "y"), map(jnp.asarray, arrays), strict=True))
    serial = lat_weighted_metrics(tree, context(3, lat), NAMES)
    found = run_on_mesh(
        lambda p, t: lat_weighted_metrics(
            {"y_pred": p, "y": t}, context(3, lat, built), NAMES
        ),
        built,
        *arrays,
        out_specs=PartitionSpec(),
    )
    for name, value in found.items():
        assert_close(value, serial[name], 1e-5, f"{name} on {mesh}")
