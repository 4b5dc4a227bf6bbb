"""Losses against CREDIT's, values and gradients, and on meshes against one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import LOSSES, build_channel_weights, build_loss
from tests.support import assert_close
from tests.support.whole_fields import field_context, loss_and_gradient

LEVELS, LAT, LON = 3, 8, 12
CHANNELS = 2 * LEVELS + 1 + 1
WEIGHTS = {"U": [0.5, 1.0, 2.0], "T": [1.0, 0.25, 3.0], "SP": 4.0, "TP": 0.125}


CHANNELS_OF = {"S/p/3d/U": 3, "S/p/3d/T": 3, "S/p/2d/SP": 1, "S/d/2d/TP": 1}


@pytest.fixture
def fields(rng):
    shape = (2, CHANNELS, 1, LAT, LON)
    draw = lambda: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return 2.0 * draw(), draw()


@pytest.fixture
def latitude():
    return np.linspace(88.0, -70.0, LAT)


def credit_loss(tmp_path, latitude, section, pred, target, *, validation=False):
    """Value and gradient by CREDIT's load_loss, as its trainer calls it."""
    import torch
    import xarray as xr
    from credit.losses import load_loss

    path = tmp_path / "latitude.nc"
    lon = np.arange(float(LON))
    xr.Dataset(coords={"latitude": latitude, "longitude": lon}).to_netcdf(path)
    defaults = {
        "use_latitude_weights": False,
        "use_variable_weights": False,
        "use_spectral_loss": False,
        "latitude_weights": str(path),
    }
    conf = {
        "loss": defaults | section,
        "data": {
            "variables": ["U", "T"],
            "surface_variables": ["SP"],
            "diagnostic_variables": ["TP"],
        },
        "model": {"levels": LEVELS},
    }
    criterion = load_loss(conf, validation=validation)
    p = torch.tensor(pred).flatten(1, 2).requires_grad_()
    value = criterion(torch.tensor(target).flatten(1, 2), p).mean()
    value.backward()
    return value.item(), p.grad.numpy().reshape(pred.shape)


def our_loss(section, latitude, *, validation=False):
    return build_loss(
        LossConfig(**section), CHANNELS_OF, latitude=latitude, validation=validation
    )


CASES = {
    **{name: {"training_loss": name} for name in LOSSES},
    "huber_delta": {
        "training_loss": "huber",
        "training_loss_parameters": {"delta": 0.4},
    },
    "latitude": {"training_loss": "mse", "use_latitude_weights": True},
    "variables": {
        "training_loss": "mse",
        "use_variable_weights": True,
        "variable_weights": WEIGHTS,
    },
    "both": {
        "training_loss": "mae",
        "use_latitude_weights": True,
        "use_variable_weights": True,
        "variable_weights": WEIGHTS,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(name, credit, tmp_path, fields, latitude):
    section = CASES[name]
    pred, target = fields
    value, gradient = credit_loss(tmp_path, latitude, section, pred, target)
    loss = our_loss(section, latitude)
    ours, our_gradient = jax.value_and_grad(loss)(
        jnp.asarray(pred), jnp.asarray(target), field_context(LAT)
    )
    assert_close(ours, value, 1e-6, f"{name} loss")
    assert_close(our_gradient, gradient, 1e-5, f"{name} gradient")


@pytest.mark.parametrize(
    "section",
    [
        {"training_loss": "mse", "use_latitude_weights": True},
        {
            "training_loss": "mse",
            "validation_loss": "huber",
            "validation_loss_parameters": {"delta": 2.0},
        },
    ],
)
def test_validation_loss_equals_credit(section, credit, tmp_path, fields, latitude):
    pred, target = fields
    value, _ = credit_loss(tmp_path, latitude, section, pred, target, validation=True)
    ours = our_loss(section, latitude, validation=True)(
        jnp.asarray(pred), jnp.asarray(target), field_context(LAT)
    )
    assert_close(ours, value, 1e-6, "validation loss")


@pytest.mark.parametrize("degrees", [(2, 1), (1, 3), (2, 4), (1, 8)])
@pytest.mark.parametrize("lat", [8, 5])
def test_same_on_every_mesh(degrees, lat, rng, make_mesh):
    dp, domain = degrees
    mesh = make_mesh(dp=dp, domain=domain)
    fields = rng.normal(size=(2, 2, CHANNELS, 1, lat, LON)).astype(np.float32)
    loss = our_loss(CASES["both"], np.linspace(80.0, -80.0, lat))
    serial, serial_gradient = loss_and_gradient(loss, *fields)
    value, gradient = loss_and_gradient(loss, *fields, mesh)
    assert_close(value, serial, 1e-6, f"loss on {dict(mesh.shape)}")
    assert_close(gradient, serial_gradient, 1e-6, "gradient")


def test_logcosh_is_finite_for_large_errors():
    loss = build_loss(LossConfig(training_loss="logcosh"))
    pred = jnp.full((1, 1, 1, 2, 2), 1000.0)
    value = loss(pred, jnp.zeros_like(pred), field_context(2))
    assert_close(value, 1000.0 - np.log(2.0), 1e-6, "log cosh 1000")


def test_bfloat16_predictions_are_scored_in_float32(fields):
    pred, target = fields
    loss = build_loss(LossConfig(training_loss="mse"))
    low = jnp.asarray(pred, jnp.bfloat16)
    value = loss(low, jnp.asarray(target), field_context(LAT))
    assert value.dtype == jnp.float32
    expected = np.mean((np.asarray(low, np.float32) - target) ** 2)
    assert_close(value, expected, 1e-6, "bfloat16 prediction")


def test_scalar_weight_holds_for_all_levels():
    weights = build_channel_weights({"U": 2.0, "SP": 3.0}, {"SP": 1, "U": 3})
    assert weights.tolist() == [3.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"U": 1.0}, r"missing \['T', 'SP', 'TP'\]"),
        (WEIGHTS | {"Z": 1.0}, r"not a target \['Z'\]"),
        (WEIGHTS | {"U": [1.0, 2.0]}, r"variable_weights.U: got 2 weights, .*3"),
    ],
)
def test_wrong_variable_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        build_channel_weights(weights, CHANNELS_OF)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"training_loss": "KCRPS"}, r"loss.training_loss: got 'KCRPS', .*mse, mae"),
        (
            {"training_loss": "mse", "training_loss_parameters": {"delta": 1.0}},
            r"loss 'mse' has no \['delta'\]",
        ),
        (
            {"training_loss": "mse", "training_loss_parameters": {"reduction": "sum"}},
            r"got 'sum', expected 'mean' or 'none'",
        ),
        ({"use_latitude_weights": True}, r"needs loss.latitude_weights"),
        ({"use_variable_weights": True}, r"needs loss.variable_weights"),
    ],
)
def test_wrong_settings(section, message):
    with pytest.raises(ValueError, match=message):
        build_loss(LossConfig(**section))
