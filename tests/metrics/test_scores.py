"""Scores against CREDIT's own, and on meshes against one device."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.metrics import METRICS, build_metrics
from credit_jax.metrics.scores import AnomalyMetric
from tests.metrics.cases import CHANNELS, draw, everything, of
from tests.support import assert_close
from tests.support.whole_fields import field_context, of_pair, run_on_mesh


def credit_scores(tmp_path, args, pred, target, climatology, latitude):
    import torch
    import xarray as xr
    from credit.metrics import _load_metric_entry

    path = tmp_path / "latitude.nc"
    xr.Dataset(coords={"latitude": latitude}).to_netcdf(path)
    shared = {k: v for k, v in args.items() if k != "metrics"}
    if shared.get("use_latitude_weights"):
        shared["latitude_weights"] = str(path)
    edges = np.cumsum([0, *CHANNELS.values()])

    def split(x):
        pairs = zip(CHANNELS, edges, edges[1:], strict=False)
        return {key: torch.tensor(x[:, a:b]) for key, a, b in pairs}

    state = {
        "y_processed": {"S": split(pred)},
        "y_target_processed": {"S": split(target)},
    }
    clim = {k: v[0] for k, v in split(climatology[None]).items()}
    clim = {k: v[0] if len(v) == 1 else v for k, v in clim.items()}
    found = {}
    for name in args["metrics"]:
        extra = (
            {"climatology": clim} if issubclass(METRICS[name], AnomalyMetric) else {}
        )
        metric = _load_metric_entry(name)(metric_name=name, **shared, **extra)
        metric.data_var_keys = list(CHANNELS)
        found |= metric(state)
    return found


MANUAL = {"S/prognostic/3d/T": 3.0, "S/diagnostic/2d/TP": 0.5}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_latitude_weights": True},
        {"var_weighting": "manual", "variable_weights": MANUAL},
        {
            "var_weighting": "manual",
            "variable_weights": MANUAL,
            "normalize_weights": False,
        },
    ],
)
def test_equals_credit(settings, credit, tmp_path, rng):
    lat = 8
    latitude = np.linspace(85.0, -60.0, lat)
    pred, target, climatology = draw(rng, lat)
    config = everything(**settings)
    expected = credit_scores(tmp_path, config.args, pred, target, climatology, latitude)
    metrics = build_metrics(
        config, CHANNELS, latitude=latitude, climatology=of(climatology)
    )
    found = of_pair(metrics)(jnp.asarray(pred), jnp.asarray(target), field_context(lat))
    assert set(found) == set(expected)
    assert list(found) == metrics.names
    for name, value in expected.items():
        assert_close(found[name], value, 2e-6 if "ratio" in name else 1e-6, name)


@pytest.mark.slow(but=["8-(2, 4)", "5-(1, 3)"])
@pytest.mark.parametrize("degrees", [(2, 1), (1, 3), (2, 4)], ids=str)
@pytest.mark.parametrize("lat", [8, 5])
def test_same_on_every_mesh(degrees, lat, rng, make_mesh):
    dp, domain = degrees
    mesh = make_mesh(dp=dp, domain=domain)
    pred, target, climatology = draw(rng, lat)
    metrics = build_metrics(
        everything(use_latitude_weights=True),
        CHANNELS,
        latitude=np.linspace(80.0, -80.0, lat),
        climatology=of(climatology),
    )
    scores = of_pair(metrics)
    serial = scores(jnp.asarray(pred), jnp.asarray(target), field_context(lat))
    found = run_on_mesh(
        lambda p, t: scores(p, t, field_context(lat, mesh)),
        mesh,
        pred,
        target,
        out_specs=P(),
    )
    for name, value in found.items():
        expected = serial[name]
        if name.startswith("log_variance_ratio"):
            # rounding errors are relative to the ratio, not to its logarithm near zero
            value, expected = np.exp(value), np.exp(expected)
        assert_close(value, expected, 2e-6, f"{name} on {dict(mesh.shape)}")
