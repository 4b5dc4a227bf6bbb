"""Losses by name: beside CREDIT's, on every mesh, and what is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss
from credit_jax.losses.base import pointwise_losses
from tests.losses.cases import CHANNELS_OF, WEIGHTS, assert_equals_credit, our_loss
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, loss_and_gradient, of_pair

VARIABLES = {"use_variable_weights": True, "variable_weights": WEIGHTS}
ROWS = {"use_latitude_weights": True}
TERMS = {
    "training_loss": "mse",
    "spectral_lambda_reg": 0.3,
    "spectral_wavenum_init": 2,
}
BOTH = TERMS | VARIABLES | {"use_power_loss": True, "use_spectral_loss": True}


def named(name, **parameters):
    return {"training_loss": name, "training_loss_parameters": parameters}


ELEMENTWISE = [name for name in pointwise_losses() if name != "ring-crps"]
CASES = {
    **{name: named(name) for name in ELEMENTWISE},
    "huber_delta": named("huber", delta=0.4),
    "latitude": {"training_loss": "mse", **ROWS},
    "variables": {"training_loss": "mse", **VARIABLES},
    "both": {"training_loss": "mae", **ROWS, **VARIABLES},
    "spectral": named("spectral", wavenum_init=2),
    "spectral term": TERMS | ROWS | {"use_spectral_loss": True},
    "power term": TERMS | ROWS | {"use_power_loss": True},
    "both terms, variable weights": BOTH,
    "no weights, no terms": TERMS | {"use_power_loss": True},
}
COVMSE = [
    {},
    {"batch_normalize": True},
    {"batch_normalize": True, "off_diagonal_scale": 0.5},
]


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(name, credit, tmp_path, fields, latitude):
    # The gradient of the logarithm of a power near zero is large.
    tolerance = 1e-4 if "spectral" in str(CASES[name]) else 1e-5
    assert_equals_credit(name, CASES[name], tmp_path, fields, latitude, tolerance)


def test_power_alone_equals_credits_class(credit):
    """CREDIT cannot train with this class, but it can be called."""
    import torch
    from credit.losses.gen_1.power import PSDLoss

    prediction, target = (draw((2, 3, 1, 8, 12), seed=seed) for seed in (1, 2))
    own = torch.tensor(prediction[:, :, 0], requires_grad=True)
    value = PSDLoss(wavenum_init=2)(torch.tensor(target[:, :, 0]), own)
    value.backward()
    loss = build_loss(LossConfig(**named("power", wavenum_init=2)))
    ours, gradient = loss_and_gradient(loss, prediction, target)
    assert_close(ours, value.item(), 1e-6, "power")
    assert_close(gradient[:, :, 0], own.grad.numpy(), 1e-5, "power, gradient")


def correlated(lat):
    """A prediction and target whose errors are correlated between channels."""
    target, noise = (draw((2, 3, 2, lat, 12), seed=seed) for seed in (1, 2))
    return [target + noise + 0.5 * noise[:, :1] + 0.2, target]


@pytest.mark.parametrize("settings", COVMSE, ids=str)
def test_covmse_equals_credits_class(settings, credit):
    import torch
    from credit.losses.gen_1.covariance import CovarianceWeightedMSELoss

    prediction, target = correlated(8)
    own = torch.tensor(prediction, requires_grad=True)
    value = CovarianceWeightedMSELoss(**settings)(torch.tensor(target), own)
    value.backward()
    loss = build_loss(LossConfig(**named("covmse", **settings)))
    ours, gradient = loss_and_gradient(loss, prediction, target)
    assert_close(ours, value.item(), 1e-5, "covmse")
    assert_close(gradient, own.grad.numpy(), 1e-4, "covmse, gradient")


MESHES = [{"domain": 2}, {"domain": 4}, {"domain": 8}, {"dp": 2, "domain": 4}]
# Section, fields of some rows, tolerances of the value and of the gradient.
ON_MESHES = {
    "covmse": (named("covmse", **COVMSE[2]), correlated, 1e-5, 1e-4),
    "spectral terms": (
        BOTH | ROWS,
        lambda lat: [draw((2, 8, 1, lat, 12), seed=seed) for seed in (1, 2)],
        2e-6,
        1e-5,
    ),
}


@pytest.mark.slow(
    but=[
        f"{name}-{case}"
        for name in ON_MESHES
        for case in ("16-{'dp': 2, 'domain': 4}", "13-{'domain': 4}")
    ]
)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("lat", [16, 13])
@pytest.mark.parametrize("name", ON_MESHES)
def test_same_on_every_mesh(name, lat, mesh):
    section, arrays, tolerance, gradient_tolerance = ON_MESHES[name]
    channels = CHANNELS_OF if "variable_weights" in section else None
    latitude = np.linspace(80.0, -80.0, lat)
    loss = build_loss(LossConfig(**section), channels, latitude=latitude)
    own = partial(loss_and_gradient, loss, *arrays(lat))
    (value, gradient), (serial, serial_gradient) = own(make_mesh(**mesh)), own()
    assert_close(value, serial, tolerance, f"{name} on {mesh}")
    assert_close(gradient, serial_gradient, gradient_tolerance, f"{name}, gradient")


def test_logcosh_is_finite_for_large_errors():
    loss = build_loss(LossConfig(training_loss="logcosh"))
    pred = jnp.full((1, 1, 1, 2, 2), 1000.0)
    value = of_pair(loss)(pred, jnp.zeros_like(pred), field_context(2))
    assert_close(value, 1000.0 - np.log(2.0), 1e-6, "log cosh 1000")


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("target", [0.0, 0.5])
def test_gradient_where_nothing_is_wrong(name, target):
    """It is 0, as PyTorch's; JAX's derivative of an absolute value there is 1."""
    loss = of_pair(build_loss(LossConfig(training_loss=name)))
    y = jnp.full((1, 1, 1, 2, 2), target)
    assert not jax.grad(loss)(y, y, field_context(2)).any()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (named("MSE"), r"loss.training_loss: .*'MSE' is not .*: mse, mae"),
        (named("mse", delta=1.0), r"training_loss_parameters.delta: unknown key"),
        (
            named("mse", reduction="sum"),
            r"reduction: 'sum' is not available; a loss is",
        ),
        (named("huber", delta="wide"), r"loss.training_loss_parameters.delta: "),
        (
            ROWS | {"use_power_loss": True, "spectral_lambda_reg": 1.0},
            "spectral_wavenum_init",
        ),
    ],
)
def test_wrong_settings(section, message):
    with pytest.raises(ValueError, match=message):
        our_loss(section, np.zeros(4))


def test_variable_weights_are_refused():
    loss = our_loss(named("covmse") | VARIABLES, np.zeros(4))
    fields = [draw((1, 8, 1, 4, 12), seed=seed) for seed in (1, 2)]
    with pytest.raises(ValueError, match="use_variable_weights: false"):
        loss_and_gradient(loss, *fields)
