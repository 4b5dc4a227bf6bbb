"""Losses by name: unknown names and parameters."""

import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"training_loss": "MSE"}, r"loss.training_loss: got 'MSE', .*mse, mae"),
        (
            {"training_loss": "mse", "training_loss_parameters": {"delta": 1.0}},
            r"loss 'mse' has no \['delta'\]",
        ),
        (
            {"training_loss": "mse", "training_loss_parameters": {"reduction": "sum"}},
            r"got 'sum', expected 'mean' or 'none'",
        ),
        (
            {"training_loss": "huber", "training_loss_parameters": {"delta": "wide"}},
            r"loss.training_loss_parameters.delta: ",
        ),
    ],
)
def test_wrong_settings(section, message):
    with pytest.raises(ValueError, match=message):
        build_loss(LossConfig(**section))
