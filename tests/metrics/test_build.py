"""Metrics against CREDIT's own, and on meshes against one device."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from credit_jax.config.metrics import MetricsConfig
from credit_jax.metrics import METRICS, build_metrics, metric_names
from tests.support import assert_close
from tests.support.whole_fields import field_context, run_on_mesh

LON = 12
CHANNELS = {"S/prognostic/3d/T": 3, "S/prognostic/2d/SP": 1, "S/diagnostic/2d/TP": 1}
NUM = sum(CHANNELS.values())


def draw(rng, lat, batch=2):
    pred = 2.0 * rng.normal(size=(batch, NUM, 1, lat, LON)).astype(np.float32)
    target = pred + rng.normal(size=pred.shape).astype(np.float32) + 0.3
    climatology = rng.normal(size=(NUM, lat, LON)).astype(np.float32)
    return pred, target, climatology


def everything(**settings):
    args = {"metrics": {name: {} for name in METRICS}, "var_weighting": "none"}
    return MetricsConfig(type="combined", args=args | settings)


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
        extra = {"climatology": clim} if METRICS[name].needs_climatology else {}
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
        config, CHANNELS, latitude=latitude, climatology=lambda: climatology
    )
    found = metrics(jnp.asarray(pred), jnp.asarray(target), field_context(lat))
    assert set(found) == set(expected)
    assert list(found) == metric_names(config, CHANNELS, has_climatology=True)
    for name, value in expected.items():
        assert_close(found[name], value, 2e-6 if "ratio" in name else 1e-6, name)


@pytest.mark.parametrize("degrees", [(2, 1), (1, 3), (2, 4)])
@pytest.mark.parametrize("lat", [8, 5])
def test_same_on_every_mesh(degrees, lat, rng, make_mesh):
    dp, domain = degrees
    mesh = make_mesh(dp=dp, domain=domain)
    pred, target, climatology = draw(rng, lat)
    metrics = build_metrics(
        everything(use_latitude_weights=True),
        CHANNELS,
        latitude=np.linspace(80.0, -80.0, lat),
        climatology=lambda: climatology,
    )
    serial = metrics(jnp.asarray(pred), jnp.asarray(target), field_context(lat))
    found = run_on_mesh(
        lambda p, t: metrics(p, t, field_context(lat, mesh)),
        mesh,
        pred,
        target,
        out_specs=P(),
    )
    for name, value in found.items():
        expected = serial[name]
        if name.startswith("log_variance_ratio"):
            # rounding is relative to the ratio, not to its logarithm near zero
            value, expected = np.exp(value), np.exp(expected)
        assert_close(value, expected, 2e-6, f"{name} on {dict(mesh.shape)}")


def test_scores_in_physical_units(rng):
    lat = 4
    pred, target, climatology = draw(rng, lat)
    scale = rng.uniform(1, 5, NUM).astype(np.float32)
    offset = rng.normal(size=NUM).astype(np.float32)
    units = lambda x: x * scale[:, None, None, None] + offset[:, None, None, None]  # noqa: E731
    own = build_metrics(
        everything(),
        CHANNELS,
        climatology=lambda: climatology,
        scale=scale,
        offset=offset,
    )
    plain = build_metrics(
        everything(), CHANNELS, climatology=lambda: units(climatology[:, None])[:, 0]
    )
    found = own(jnp.asarray(pred), jnp.asarray(target), field_context(lat))
    expected = plain(
        jnp.asarray(units(pred)), jnp.asarray(units(target)), field_context(lat)
    )
    for name, value in expected.items():
        assert_close(found[name], value, 1e-5, name)


def test_default_set(rng):
    pred, target, climatology = (x for x in draw(rng, 4))
    arrays = jnp.asarray(pred), jnp.asarray(target), field_context(4)
    names = lambda found: [name for name in found if "/" not in name]  # noqa: E731
    assert names(build_metrics(None, CHANNELS)(*arrays)) == ["rmse", "r2score", "bias"]
    with_acc = build_metrics(None, CHANNELS, climatology=lambda: climatology)(*arrays)
    assert names(with_acc) == ["rmse", "r2score", "bias", "acc"]


def test_one_metric_by_type(rng):
    pred, target, _ = draw(rng, 4)
    config = MetricsConfig(type="mae", args={"var_weighting": "none"})
    found = build_metrics(config, CHANNELS)(
        jnp.asarray(pred), jnp.asarray(target), field_context(4)
    )
    assert list(found) == ["mae", *(f"mae/{key}" for key in CHANNELS)]
    assert list(found) == metric_names(config, CHANNELS, has_climatology=False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"metrics": {"crps": {}}}, r"'crps' not implemented; there are rmse, mse"),
        ({"metrics": {"acc": {}}}, r"acc need a climatology"),
        ({"metrics": {}}, r"expected at least one metric"),
        ({"metrics": None}, r"got nothing, expected at least one metric"),
        ({"metrics": ["rmse"]}, r"metrics\.args\.metrics: got \['rmse'\], expected"),
        ({"metrics": 3}, r"metrics\.args\.metrics: got 3, expected .*\{rmse: \{\}"),
        ({"metrics": {"rmse": {"a": 1}}}, r"metrics.rmse not implemented"),
        ({"metrics": {"rmse": {}}, "other": 1}, r"other not implemented"),
        ({"var_weighting": "inverse_variance"}, r"expected 'none' or 'manual'"),
        ({"variable_weights": {"Z": 1.0}}, r"\['Z'\] are no targets"),
        ({"variable_weights": [1.0]}, r"variable_weights: got \[1\.0\], expected a"),
        ({"use_latitude_weights": True}, r"needs metrics.args.latitude_weights"),
    ],
)
def test_wrong_settings(args, message):
    defaults = {"metrics": {"rmse": {}}, "var_weighting": "none"}
    with pytest.raises(ValueError, match=message):
        build_metrics(MetricsConfig(args=defaults | args), CHANNELS)
