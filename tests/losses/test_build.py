"""Weighted losses against CREDIT's, and on meshes against one device."""

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_channel_weights, build_loss
from tests.losses.cases import (
    CHANNELS,
    CHANNELS_OF,
    LAT,
    LON,
    WEIGHTS,
    credit_loss,
    our_loss,
)
from tests.support import assert_close
from tests.support.whole_fields import field_context, loss_and_gradient, of_pair

VARIABLES = {"use_variable_weights": True, "variable_weights": WEIGHTS}


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
    ours = of_pair(our_loss(section, latitude, validation=True))(
        jnp.asarray(pred), jnp.asarray(target), field_context(LAT)
    )
    assert_close(ours, value, 1e-6, "validation loss")


@pytest.mark.parametrize("degrees", [(2, 1), (1, 3), (2, 4), (1, 8)])
@pytest.mark.parametrize("lat", [8, 5])
def test_same_on_every_mesh(degrees, lat, rng, make_mesh):
    dp, domain = degrees
    mesh = make_mesh(dp=dp, domain=domain)
    fields = rng.normal(size=(2, 2, CHANNELS, 1, lat, LON)).astype(np.float32)
    loss = our_loss(
        {"training_loss": "mae", "use_latitude_weights": True, **VARIABLES},
        np.linspace(80.0, -80.0, lat),
    )
    serial, serial_gradient = loss_and_gradient(loss, *fields)
    value, gradient = loss_and_gradient(loss, *fields, mesh)
    assert_close(value, serial, 1e-6, f"loss on {dict(mesh.shape)}")
    assert_close(gradient, serial_gradient, 1e-6, "gradient")


LEVEL_VALUES = {"S/p/3d/U": (100.0, 500.0, 850.0), "S/p/3d/T": (100.0, 500.0, 850.0)}
BY_LEVEL = {"slope": 1e-3, "minimum": 0.2}
# `max(minimum, slope * level)` of U and T, and 1 of SP and TP.
LEVEL_FACTORS = np.array([0.2, 0.5, 0.85, 0.2, 0.5, 0.85, 1.0, 1.0])


@pytest.mark.parametrize("extra", [{}, VARIABLES, {"type": "mae"}])
def test_level_weights_are_numpys(extra, fields, make_mesh):
    pred, target = fields
    section = LossConfig(**extra, level_weights=BY_LEVEL)
    loss = build_loss(section, CHANNELS_OF, levels=LEVEL_VALUES)
    factors = LEVEL_FACTORS
    if "variable_weights" in extra:
        factors = factors * np.concatenate([np.atleast_1d(w) for w in WEIGHTS.values()])
    error = pred.astype(np.float64) - target
    values = np.abs(error) if "type" in extra else error**2
    expected = np.mean(values * factors.reshape(1, -1, 1, 1, 1))
    serial, gradient = loss_and_gradient(loss, pred, target)
    assert_close(serial, expected, 1e-6, "level weights")
    on_mesh = loss_and_gradient(loss, pred, target, make_mesh(dp=2, domain=4))
    assert_close(on_mesh[0], serial, 1e-6, "loss on a mesh")
    assert_close(on_mesh[1], gradient, 1e-6, "gradient on a mesh")


def test_tendency_weights_are_numpys(fields):
    """Inverse variances with mean 1 over U and T, times the weights of levels."""
    pred, target = fields
    variances = {"S/p/3d/U": [0.5, 1.0, 4.0], "S/p/3d/T": [2.0, 2.0, 8.0]}
    inverse = np.array([2.0, 1.0, 0.25, 0.5, 0.5, 0.125])
    factors = np.concatenate([inverse / inverse.mean(), [1.0, 1.0]])
    given = {"levels": LEVEL_VALUES, "tendencies": variances}
    for extra, by_level in (({}, 1.0), ({"level_weights": BY_LEVEL}, LEVEL_FACTORS)):
        section = LossConfig(tendency_weights="tendencies.json", **extra)
        loss = build_loss(section, CHANNELS_OF, **given)
        values = (pred.astype(np.float64) - target) ** 2
        weights = (factors * by_level).reshape(1, -1, 1, 1, 1)
        assert_close(
            loss_and_gradient(loss, pred, target)[0],
            np.mean(values * weights),
            1e-6,
            f"tendency weights, {extra}",
        )


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({}, "the values of the 3 levels of S/p/3d/U are unknown; give levels of its"),
        ({"S/p/3d/U": (1.0, 2.0)}, "the values of the 3 levels of S/p/3d/U are unk"),
    ],
)
def test_levels_that_are_unknown(levels, message):
    section = LossConfig(level_weights=BY_LEVEL)
    with pytest.raises(ValueError, match=message):
        build_loss(section, CHANNELS_OF, levels=levels)


def test_weights_of_steps():
    assert LossConfig().step_weights(3) is None
    assert LossConfig(lead_weights=0.5).step_weights(3) == (1.0, 0.5, 0.25)
    assert LossConfig(lead_weights=[1, 0, 2]).step_weights(3) == (1.0, 0.0, 2.0)


def test_bfloat16_predictions_are_scored_in_float32(fields):
    pred, target = fields
    loss = build_loss(LossConfig(training_loss="mse"))
    low = jnp.asarray(pred, jnp.bfloat16)
    value = of_pair(loss)(low, jnp.asarray(target), field_context(LAT))
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
        ({"use_latitude_weights": True}, r"needs loss.latitude_weights"),
        ({"use_variable_weights": True}, r"needs loss.variable_weights"),
        ({"tendency_weights": "t.json"}, r"tendency_weights needs the variances"),
    ],
)
def test_wrong_settings(section, message):
    with pytest.raises(ValueError, match=message):
        build_loss(LossConfig(**section), CHANNELS_OF)
