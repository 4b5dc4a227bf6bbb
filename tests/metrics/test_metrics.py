"""Each metric beside CREDIT's, those of users beside numpy, and all on meshes."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from jax.sharding import PartitionSpec

from credit_jax.config.loss import MetricsConfig
from credit_jax.metrics import METRICS, ConfiguredMetric, build_metrics, parse_metrics
from credit_jax.named_fields import ChannelLayout, latitude_weights
from tests.losses import rows
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, of_pair, run_on_mesh

PLACES = ChannelLayout.of(rows.CHANNELS).slices
CLIMATOLOGY = draw((8, 8, rows.LON), seed=7)
ANOMALIES = ("acc", "activity")
ALL = {name: {} for name in METRICS}
ALL |= {key: {"climatology_path": "means.nc"} for key in ANOMALIES}
PLAIN = {"metrics": ALL, "var_weighting": "none"}
MANUAL = {"var_weighting": "manual", "variable_weights": {rows.T: 3.0, rows.TP: 0.5}}
UNEVEN = {"normalize_weights": False}
SCALER = {
    "metrics": {
        **{key: {} for key in ("rmse", "mse", "bias", "r2score")},
        "mae": {"variable_weights": {rows.SP: 2.0}},
        "log_variance_ratio": {"eps": 1e-3},
    },
    "scaler_path": "scaler.json",
    **rows.BY_ROW,
}
INVERSE = {"var_weighting": "inverse_variance"}
# Arguments of "combined".
CASES = {
    "plain": PLAIN,
    "members": PLAIN,
    "rows": PLAIN | rows.BY_ROW,
    "manual": PLAIN | MANUAL,
    "manual, not normalized": PLAIN | MANUAL | UNEVEN,
    # The weight has the unit's power in each metric, and is 1 without a scaler.
    "inverse variance": SCALER | INVERSE,
    "inverse variance, not normalized": SCALER | INVERSE | UNEVEN,
    "a scaler": SCALER,
    "a scaler, not normalized": SCALER | UNEVEN,
    "means of a part": {
        **PLAIN,
        "metrics": {key: {"climatology_path": "part.nc"} for key in ANOMALIES},
    },
    "means of the batch": {
        **PLAIN,
        "metrics": {key: {"accumulate_climatology": False} for key in ANOMALIES},
    },
}


def split(x):
    return {"S": {key: x[:, own] for key, own in PLACES.items()}}


def tree_of(prediction, target):
    return {"y_processed": split(prediction), "y_target_processed": split(target)}


def our_metrics(args, lat=8, **settings):
    config = MetricsConfig(args=args)
    return build_metrics(config, rows.CHANNELS, latitude=rows.rows_of(lat), **settings)


def means(path=None):
    """Mean fields by the names of variables; those of one level have no such dim."""
    made = {key.rsplit("/", 1)[-1]: CLIMATOLOGY[own] for key, own in PLACES.items()}
    if path == "part.nc":
        del made["SP"]
    return {name: x[0] if len(x) == 1 else x for name, x in made.items()}


@pytest.fixture(scope="module")
def folder(credit, tmp_path_factory):
    """Files of latitudes, scalers and mean fields."""
    folder, dims = tmp_path_factory.mktemp("files"), ("level", "latitude", "longitude")
    rows.write_scalers(folder)
    xr.Dataset(coords={"latitude": rows.rows_of(8)}).to_netcdf(folder / "latitude.nc")
    for path in ("means.nc", "part.nc"):
        data = {key: (dims[3 - x.ndim :], x) for key, x in means(path).items()}
        xr.Dataset(data).to_netcdf(folder / path)
    return folder


@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
def test_as_credit(name, folder, monkeypatch):
    """CREDIT scores members one by one, with one sample per batch alone."""
    import torch
    from credit.metrics import _load_metric_entry

    monkeypatch.chdir(folder)
    prediction, target = rows.close(8, 1)
    target = target[:1] if name == "members" else target
    schema = SimpleNamespace(target_layout=[{"var_key": key} for key in rows.CHANNELS])
    args = {"latitude_weights": "latitude.nc"} | CASES[name]
    theirs = _load_metric_entry("combined")(**args, channel_schema=schema)
    expected = theirs(tree_of(*map(torch.tensor, (prediction, target))))
    ours = our_metrics(CASES[name], climatology=means)
    context = field_context(8, num_members=len(prediction) // len(target))
    found = of_pair(ours)(jnp.asarray(prediction), jnp.asarray(target), context)
    assert list(found) == ours.names
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert_close(found[key], value, 2e-6 if "ratio" in key else 1e-6, key)


class SpectrumError(ConfiguredMetric):
    """Error of the zonal power spectrum of each variable."""

    wavenum_init: int = 0

    def __call__(self, pair):
        spectra = [
            pair.context.row_mean(jnp.square(jnp.abs(jnp.fft.rfft(x, axis=-1))))
            for x in (pair.ensemble_mean, pair.truth)
        ]
        error = jnp.abs(spectra[0] - spectra[1])[..., self.wavenum_init :]
        error = pair.context.data_mean(error)
        return pair.context.layout.per_variable(error.mean(axis=(1, 2)))


class Spread(ConfiguredMetric):
    """Standard deviation of the members about their mean."""

    def __call__(self, pair):
        deviation = pair.members - pair.ensemble_mean[:, None]
        return jnp.sqrt(pair.mean(jnp.square(deviation).mean(axis=1)))


class UpperLevelError(ConfiguredMetric):
    """Mean error of the first level of each variable, over all variables."""

    def __call__(self, pair):
        first = [place.start for place in pair.context.layout.slices.values()]
        error = (pair.ensemble_mean - pair.truth)[:, np.asarray(first)]
        return pair.context.channel_mean(jnp.abs(error))


TOYS = {
    "spectrum_error": SpectrumError,
    "spread": Spread,
    "upper_level_error": UpperLevelError,
}


@pytest.fixture
def toys(monkeypatch):
    """Metrics of users and one of this package, of ensembles on 13 rows."""
    for name, cls in TOYS.items():
        monkeypatch.setitem(METRICS, name, cls)
    own = {
        **{key: {} for key in (*TOYS, "rmse")},
        "spectrum_error": {"wavenum_init": 2},
    }
    return our_metrics({"metrics": own, **rows.BY_ROW}, 13)


def test_metrics_of_users_as_numpy(toys):
    prediction, target = rows.fields(13, 3)
    context = field_context(13, num_members=3)
    found = of_pair(toys)(jnp.asarray(prediction), jnp.asarray(target), context)
    weights = latitude_weights(rows.rows_of(13)).astype(np.float64)[:, None]
    members = prediction.reshape(2, 3, *target.shape[1:]).astype(np.float64)
    forecast = members.mean(axis=1)
    power = [
        (np.square(np.abs(np.fft.rfft(x, axis=-1))) * weights).mean(axis=3)
        for x in (forecast, target)
    ]
    variance = np.square(members - forecast[:, None]).mean(axis=1) * weights
    error = (np.abs(forecast - target) * weights).mean(axis=(0, 2, 3, 4))
    squares = np.square(members - target[:, None]) * weights

    def by_variable(values):
        return [values[own].mean() for own in PLACES.values()]

    expected = {
        "spectrum_error": by_variable(
            np.abs(power[0] - power[1])[..., 2:].mean(axis=(0, 2, 3))
        ),
        "spread": np.sqrt(by_variable(variance.mean(axis=(0, 2, 3, 4)))),
        "upper_level_error": error[[own.start for own in PLACES.values()]],
        "rmse": np.sqrt(by_variable(squares.mean(axis=(0, 1, 3, 4, 5)))),
    }
    for name, values in expected.items():
        ours = [found[f"{name}/{key}"] for key in rows.CHANNELS]
        assert_close(ours, values, 1e-6, name)
        assert_close(found[name], np.mean(values), 1e-6, f"{name}, all variables")


# Degrees, number of rows.
MESHES = [({"dp": 2, "domain": 4}, 13), ({"domain": 8}, 13), ({"dp": 2}, 8)]


@pytest.mark.slow(but=["mesh0"])
@pytest.mark.parametrize("mesh", MESHES)
def test_same_on_every_mesh(mesh, toys):
    degrees, lat = mesh
    made, built = (
        make_mesh(**degrees),
        our_metrics(
            PLAIN | rows.BY_ROW, lat, climatology=lambda _: rows_climatology(lat)
        ),
    )
    for scores, members in ((built, 1), (toys if lat == 13 else built, 3)):
        arrays = rows.fields(lat, members)

        def run(prediction, target, mesh=None, scores=scores, members=members):
            context = field_context(lat, mesh, num_members=members)
            return of_pair(scores)(prediction, target, context)

        serial = run(*map(jnp.asarray, arrays))
        found = run_on_mesh(
            lambda *own, run=run: run(*own, made),
            made,
            *arrays,
            out_specs=PartitionSpec(),
        )
        assert set(found) == set(serial)
        for name, value in found.items():
            expected = serial[name]
            if name.startswith("log_variance_ratio"):
                # Rounding is relative to the ratio, not to its logarithm near zero.
                value, expected = np.exp(value), np.exp(expected)
            assert_close(value, expected, 2e-6, f"{name} on {degrees}")


def rows_climatology(lat):
    mean = draw((8, lat, rows.LON), seed=7)
    return {key: mean[own] for key, own in PLACES.items()}


def names_of(metrics, tree):
    return [name for name in metrics(tree, field_context(8)) if "/" not in name]


def test_what_is_scored():
    """Fields of the postblocks instead of the output; the default; computed ones."""
    prediction, target = map(jnp.asarray, rows.close(8, 1))
    metrics = our_metrics(PLAIN, climatology=means)
    expected = of_pair(metrics)(prediction, target, field_context(8))
    tree = {"y_pred": 0 * prediction, "y": 0 * target, **tree_of(prediction, target)}
    found = metrics(tree, field_context(8))
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert_close(found[name], value, 1e-7, name)
    default = ["rmse", "r2score", "bias"]
    assert names_of(build_metrics(None, rows.CHANNELS), tree) == default
    with_acc = build_metrics(None, rows.CHANNELS, climatology=means)
    assert names_of(with_acc, tree) == [*default, "acc"]
    one = build_metrics(MetricsConfig(type="mae"), rows.CHANNELS)
    assert [*one(tree, field_context(8))] == one.names
    assert one.names == ["mae", *(f"mae/{key}" for key in rows.CHANNELS)]
    tree = {
        "y_processed": rows.named(prediction),
        "y_target_processed": rows.named(target),
    }
    own = {"mae": {}, "bias": {"include_computed_diagnostics": False}}
    found = our_metrics({"metrics": own})(tree, field_context(8))
    keys = [name.removeprefix("mae/") for name in found if "mae/" in name]
    assert keys == [*rows.CHANNELS, rows.COMPUTED]
    assert f"bias/{rows.COMPUTED}" not in found


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        (None, False),
        (MetricsConfig(args={"metrics": {"rmse": {}, "acc": {}}}), True),
        (MetricsConfig(args={"metrics": {"rmse": {}}}), False),
        (MetricsConfig(type="activity"), True),
    ],
)
def test_who_needs_a_climatology(config, needed):
    metrics = [metric for _, metric in parse_metrics(config).values()]
    assert any(metric.needs_climatology for metric in metrics) is needed
