"""`type: base` against CREDIT's BaseLoss on the same named fields."""

import warnings
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss
from credit_jax.named_fields import ChannelLayout, target_variances
from tests.reference.bridgescaler import import_bridgescaler
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import loss_and_gradient

LAT, LON = 8, 12
CHANNELS = {"S/prognostic/3d/T": 3, "S/prognostic/2d/SP": 1, "S/diagnostic/2d/TP": 1}
COMPUTED = "S/computed/2d/Z"
UNITS = {"T": (8.0, 250.0), "SP": (900.0, 1e5), "TP": (1e-3, 2e-3)}
LATITUDE = np.linspace(85.0, -60.0, LAT)
CASES: dict[str, dict[str, Any]] = {
    "inverse variance": {},
    "not normalized": {"normalize_weights": False},
    "multipliers": {"variable_weights": {"S/prognostic/2d/SP": 3.0}},
    "manual": {
        "var_weighting": "manual",
        "variable_weights": {"S/prognostic/3d/T": 2.0, "S/diagnostic/2d/TP": 0.5},
    },
    "none, latitude": {"var_weighting": "none", "use_latitude_weights": True},
    "huber, latitude": {
        "training_loss": "huber",
        "base_loss_parameters": {"delta": 0.7},
        "use_latitude_weights": True,
    },
    "overrides": {
        "base_loss_overrides": {
            "S/prognostic/2d/SP": {"loss": "mae", "parameters": {}},
            "S/diagnostic/2d/TP": {"loss": "huber", "parameters": {"delta": 1e-3}},
        }
    },
    "no computed": {"include_computed_diagnostics": False},
    "ring-crps": {"training_loss": "ring-crps"},
}
MESHES = [{"domain": 2}, {"domain": 4}, {"domain": 8}, {"dp": 2, "domain": 4}]


@pytest.fixture(scope="module")
def scaler_path(torch: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scalers of T (standard) and SP (quantile); that of TP has no variance."""
    import_bridgescaler()
    from bridgescaler import save_scaler_dict
    from bridgescaler.distributed_tensor import (
        DMinMaxScalerTensor,
        DQuantileScalerTensor,
        DStandardScalerTensor,
    )

    kinds = [DStandardScalerTensor, DQuantileScalerTensor, DMinMaxScalerTensor]
    scalers = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (key, levels), kind in zip(CHANNELS.items(), kinds, strict=True):
            scale, offset = UNITS[key.rsplit("/", 1)[-1]]
            values = draw((4, levels, 1, LAT, LON), seed=9) * scale + offset
            scalers[key] = kind(channels_last=False)
            scalers[key].fit(torch.tensor(values, dtype=torch.float32))
    path = tmp_path_factory.mktemp("scaler") / "scaler.json"
    save_scaler_dict({"target": {"S": scalers}}, str(path))
    return path


@cache
def channels(lat: int = LAT) -> tuple[np.ndarray, np.ndarray]:
    """Prediction and target, normalized, with all variables and a computed one."""
    target = draw((2, 5, 1, lat, LON), seed=1)
    return target + 0.5 * draw(target.shape, seed=2), target


def named(x: Any, stack: Any) -> dict[str, dict[str, Any]]:
    """Fields in physical units, and one that a postblock would compute."""
    fields = {}
    for key, place in ChannelLayout.of(CHANNELS).slices.items():
        scale, offset = UNITS[key.rsplit("/", 1)[-1]]
        fields[key] = x[:, place] * scale + offset
    fields[COMPUTED] = stack([fields["S/prognostic/2d/SP"] ** 2 / 1e8])
    return {"S": fields}


def credit_value(
    args: dict[str, Any], path: Path, folder: Path, *, validation: bool = False
) -> tuple[float, np.ndarray]:
    import torch
    import xarray as xr
    from credit.losses.base import BaseLoss

    latitude = folder / "latitude.nc"
    xr.Dataset(coords={"latitude": LATITUDE}).to_netcdf(latitude)
    schema = SimpleNamespace(target_layout=[{"var_key": key} for key in CHANNELS])
    criterion = BaseLoss(
        **{"scaler_path": str(path), "latitude_weights": str(latitude)} | args,
        channel_schema=schema,
        validation=validation,
    )
    prediction, target = channels()
    own = torch.tensor(prediction, requires_grad=True)
    value = criterion(
        {
            "y_processed": named(own, lambda x: x[0]),
            "y_target_processed": named(torch.tensor(target), lambda x: x[0]),
        }
    )
    value.backward()
    return value.item(), own.grad.numpy()


def our_loss(
    args: dict[str, Any], path: Path, latitude: Any = LATITUDE, **settings: Any
) -> Any:
    loss = build_loss(
        LossConfig(type="base", args=args),
        CHANNELS,
        latitude=latitude,
        variances=target_variances(path),
        **settings,
    )

    def of_channels(tree: Any, context: Any) -> Any:
        fields = {
            "y_processed": named(tree["y_pred"], lambda x: x[0]),
            "y_target_processed": named(tree["y"], lambda x: x[0]),
        }
        return loss(fields, context)

    return of_channels


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(name, credit, scaler_path, tmp_path):
    value, gradient = credit_value(CASES[name], scaler_path, tmp_path)
    ours, own_gradient = loss_and_gradient(
        our_loss(CASES[name], scaler_path), *channels()
    )
    assert_close(ours, value, 1e-5, name)
    assert_close(own_gradient, gradient, 1e-4, f"{name}, gradient")


@pytest.mark.parametrize(
    ("key", "own"),
    [("variable_weights", 2.0), ("base_loss_overrides", {"loss": "mae"})],
)
def test_names_that_are_not_scored(key, own, credit, scaler_path, tmp_path):
    """They count for nothing, as in CREDIT: a postblock might compute them."""
    args = {key: {"S/prognostic/3d/t": own}}
    value, _ = credit_value(args, scaler_path, tmp_path)
    text = (
        rf"{key}: 'S/prognostic/3d/t' is not scored .* \(nearest: 'S/prognostic/3d/T'"
    )
    with pytest.warns(UserWarning, match=text):
        ours, _ = loss_and_gradient(our_loss(args, scaler_path), *channels())
    assert_close(ours, value, 1e-5, key)


@pytest.mark.parametrize("own", [None, "mae"])
def test_validation_loss_equals_credit(own, credit, scaler_path, tmp_path):
    args = {"validation_loss": own, "use_latitude_weights": True}
    value, _ = credit_value(args, scaler_path, tmp_path, validation=True)
    loss = our_loss(args, scaler_path, validation=True)
    assert_close(loss_and_gradient(loss, *channels())[0], value, 1e-5, f"{own}")


@pytest.mark.slow(but=["16-{'dp': 2, 'domain': 4}", "13-{'domain': 4}"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("lat", [16, 13])
def test_same_on_every_mesh(lat, mesh, scaler_path):
    args = CASES["overrides"] | {"use_latitude_weights": True}
    loss = our_loss(args, scaler_path, np.linspace(80.0, -80.0, lat))
    own = partial(loss_and_gradient, loss, *channels(lat))
    (value, gradient), (serial, serial_gradient) = own(make_mesh(**mesh)), own()
    assert_close(value, serial, 1e-5, f"base on {mesh}")
    assert_close(gradient, serial_gradient, 1e-5, "base, gradient")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"training_loss": "KCRPS"}, r"args\.training_loss: 'KCRPS' gives no value at"),
        ({"training_loss": "spectral"}, r"expected one of mse, .*ring-crps"),
        (
            {"base_loss_overrides": {"S/prognostic/3d/T": {"loss": "ring-crps"}}},
            r"base_loss_overrides\.S/prognostic/3d/T: .*only as training_loss",
        ),
        ({"var_weighting": "learned"}, r"loss\.args\.var_weighting"),
        (
            {
                "base_loss_overrides": {
                    "S/prognostic/3d/T": {"loss": "huber", "parameters": {"beta": 2.0}}
                }
            },
            r"3d/T\.parameters\.beta: unknown key",
        ),
        (
            {"base_loss_overrides": {"S/prognostic/3d/T": {"loss": "l1"}}},
            r"3d/T\.loss: .*'l1' is not available; there are: mse, mae",
        ),
        ({"variable_weights": {"T": 1.0}}, r"\['T'\] are no targets"),
        ({"base_loss_parameters": {"a": 1}}, r"args\.base_loss_parameters\.a: unknown"),
        ({"scaler": "a"}, r"loss\.args\.scaler: unknown key"),
    ],
)
def test_wrong_settings(args, message):
    with pytest.raises(ValueError, match=message):
        build_loss(LossConfig(type="base", args=args), CHANNELS, variances={})


def test_what_is_missing_is_named():
    section = LossConfig(type="base", args={})
    with pytest.raises(ValueError, match=r"needs loss\.args\.scaler_path"):
        build_loss(section, CHANNELS)
    with pytest.raises(ValueError, match="needs the target channels"):
        build_loss(section)
    loss = build_loss(section, CHANNELS, variances={})
    with pytest.raises(ValueError, match=r"add .type: reconstruct. and what"):
        loss_and_gradient(loss, *channels())


def test_level_weights_are_numpys() -> None:
    """They count within a variable, on a mesh, too; a computed variable has none."""
    args = {"var_weighting": "none", "use_latitude_weights": True}
    section = {"type": "base", "args": args, "level_weights": {"slope": 0.01}}
    levels = {"S/prognostic/3d/T": (10.0, 50.0, 200.0)}
    loss = build_loss(LossConfig(**section), CHANNELS, latitude=LATITUDE, levels=levels)

    def of_channels(tree: Any, context: Any) -> Any:
        fields = {
            "y_processed": named(tree["y_pred"], lambda x: x[0]),
            "y_target_processed": named(tree["y"], lambda x: x[0]),
        }
        return loss(fields, context)

    pair = channels()
    rows = np.cos(np.deg2rad(LATITUDE))
    rows = (rows / rows.mean()).reshape(1, 1, 1, -1, 1)
    ours, theirs = (named(x.astype(np.float64), lambda x: x[0])["S"] for x in pair)
    means = {
        key: np.mean((ours[key] - theirs[key]) ** 2 * rows, axis=(0, 2, 3, 4))
        for key in ours
    }
    means["S/prognostic/3d/T"] = means["S/prognostic/3d/T"] * [0.1, 0.5, 2.0]
    expected = np.mean([mean.mean() for mean in means.values()])
    value, gradient = loss_and_gradient(of_channels, *pair)
    assert_close(value, expected, 1e-6, "level weights of type base")
    on_mesh = loss_and_gradient(of_channels, *pair, make_mesh(dp=2, domain=4))
    assert_close(on_mesh[0], value, 1e-6, "on a mesh")
    assert_close(on_mesh[1], gradient, 1e-6, "gradient on a mesh")
