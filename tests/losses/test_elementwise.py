"""Elementwise losses against CREDIT's, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import LOSSES, build_loss
from tests.losses.cases import assert_equals_credit
from tests.support import assert_close
from tests.support.whole_fields import field_context, of_pair

NAMES = [
    name
    for name, entry in LOSSES.items()
    if entry.build_pointwise and name != "ring-crps"
]
CASES = {
    **{name: {"training_loss": name} for name in NAMES},
    "huber_delta": {
        "training_loss": "huber",
        "training_loss_parameters": {"delta": 0.4},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(name, credit, tmp_path, fields, latitude):
    assert_equals_credit(name, CASES[name], tmp_path, fields, latitude)


def test_logcosh_is_finite_for_large_errors():
    loss = build_loss(LossConfig(training_loss="logcosh"))
    pred = jnp.full((1, 1, 1, 2, 2), 1000.0)
    value = of_pair(loss)(pred, jnp.zeros_like(pred), field_context(2))
    assert_close(value, 1000.0 - np.log(2.0), 1e-6, "log cosh 1000")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", [0.0, 0.5])
def test_gradient_where_nothing_is_wrong(name, target):
    """It is 0, as PyTorch's; JAX's derivative of an absolute value there is 1."""
    loss = of_pair(build_loss(LossConfig(training_loss=name)))
    y = jnp.full((1, 1, 1, 2, 2), target)
    assert not jax.grad(loss)(y, y, field_context(2)).any()
