"""Arguments of metrics against CREDIT's: variances, climatologies, members."""

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from credit_jax.config.loss import MetricsConfig
from credit_jax.metrics import build_metrics
from credit_jax.named_fields import ChannelLayout
from tests.metrics.cases import CHANNELS, draw, named
from tests.reference.bridgescaler import import_bridgescaler
from tests.support import assert_close
from tests.support.whole_fields import field_context

LAT, LON = 8, 12
LATITUDE = np.linspace(85.0, -60.0, LAT)


@pytest.fixture
def scaler_path(torch, tmp_path, rng):
    import_bridgescaler()
    from bridgescaler import save_scaler_dict
    from bridgescaler.distributed_tensor import DStandardScalerTensor

    scalers = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for power, (key, levels) in enumerate(list(CHANNELS.items())[:2]):
            values = rng.normal(size=(3, levels, 1, LAT, LON)) * 10.0**power
            scalers[key] = DStandardScalerTensor(channels_last=False)
            scalers[key].fit(torch.tensor(values, dtype=torch.float32))
    path = tmp_path / "scaler.json"
    save_scaler_dict({"target": {"S": scalers}}, str(path))
    return str(path)


def credit_scores(section, pred, target, tmp_path):
    """Returns scores by CREDIT's combined metric, or by one of its metrics."""
    import torch
    import xarray as xr
    from credit.metrics import _load_metric_entry

    path = tmp_path / "latitude.nc"
    xr.Dataset(coords={"latitude": LATITUDE}).to_netcdf(path)
    schema = SimpleNamespace(target_layout=[{"var_key": key} for key in CHANNELS])
    args = dict(section["args"], channel_schema=schema)
    if section["type"] != "combined":
        args["metric_name"] = section["type"]
    if args.get("use_latitude_weights"):
        args["latitude_weights"] = str(path)
    places = ChannelLayout.of(CHANNELS).slices

    def split(x: Any) -> dict[str, Any]:
        return {"S": {key: torch.tensor(x[:, own]) for key, own in places.items()}}

    metric = _load_metric_entry(section["type"])(**args)
    return metric({"y_processed": split(pred), "y_target_processed": split(target)})


def our_scores(section, pred, target, members=1, **files):
    metrics = build_metrics(
        MetricsConfig(**section), CHANNELS, latitude=LATITUDE, **files
    )
    tree = {"y_processed": named(pred), "y_target_processed": named(target)}
    return metrics(tree, field_context(LAT, num_members=members))


def assert_scores(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert_close(found[name], value, 1e-5, name)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("mode", ["inverse_variance", None])
def test_inverse_variance(normalize, mode, credit, scaler_path, tmp_path, rng):
    """The weight has the unit's power in each metric, and is 1 without a scaler."""
    args = {
        "metrics": {
            "rmse": {},
            "mse": {},
            "mae": {"variable_weights": {"S/prognostic/2d/SP": 2.0}},
            "bias": {},
            "r2score": {},
            "log_variance_ratio": {"eps": 1e-3},
        },
        "scaler_path": scaler_path,
        "normalize_weights": normalize,
        "use_latitude_weights": True,
    }
    if mode is not None:
        args["var_weighting"] = mode
    section = {"type": "combined", "args": args}
    pred, target, _ = draw(rng, LAT)
    expected = credit_scores(section, pred, target, tmp_path)
    assert_scores(our_scores(section, pred, target), expected)


@pytest.mark.parametrize("name", ["acc", "activity"])
@pytest.mark.parametrize("source", ["file", "part of a file", "batch"])
def test_climatologies(name, source, credit, tmp_path, rng):
    import xarray as xr

    pred, target, mean = draw(rng, LAT)
    places = ChannelLayout.of(CHANNELS).slices
    fields = {key.rsplit("/", 1)[-1]: mean[own] for key, own in places.items()}
    fields = {key: x[0] if len(x) == 1 else x for key, x in fields.items()}
    if source == "part of a file":
        del fields["SP"]
    dims = ("level", "latitude", "longitude")
    path = tmp_path / "climatology.nc"
    xr.Dataset({k: (dims[3 - x.ndim :], x) for k, x in fields.items()}).to_netcdf(path)
    args: dict[str, Any] = {"var_weighting": "none", "use_latitude_weights": True}
    if source == "batch":
        args["accumulate_climatology"] = False
    else:
        args["climatology_path"] = str(path)
    section = {"type": name, "args": args}
    expected = credit_scores(section, pred, target, tmp_path)
    found = our_scores(section, pred, target, climatology=lambda path: fields)
    assert_scores(found, expected)


def test_wrong_climatology_is_named(rng):
    pred, target, _ = draw(rng, LAT)
    section = {"type": "acc", "args": {"climatology_path": "a.nc"}}
    with pytest.raises(ValueError, match="acc need a climatology"):
        our_scores(section, pred, target)
    for bad in (np.zeros((2, LAT, LON)), np.zeros((LAT + 1, LON))):
        with pytest.raises(ValueError, match=r"of S/prognostic/3d/T: got shape"):
            our_scores(section, pred, target, climatology=lambda _, x=bad: {"T": x})


def test_members_are_scored_one_by_one(credit, tmp_path, rng):
    """As CREDIT does with one sample per batch; it supports no other batch size."""
    members, target, _ = draw(rng, LAT, batch=3)
    args = {"metrics": {"rmse": {}, "r2score": {}, "bias": {}}, "var_weighting": "none"}
    section = {"type": "combined", "args": args}
    expected = credit_scores(section, members, target[:1], tmp_path)
    assert_scores(our_scores(section, members, target[:1], members=3), expected)
