"""`covmse` against CREDIT's class, and on every mesh."""

from functools import partial

import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss
from tests.losses.cases import WEIGHTS, our_loss
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import loss_and_gradient

MESHES = [{"domain": 2}, {"domain": 4}, {"domain": 8}, {"dp": 2, "domain": 4}]
SETTINGS = [
    {},
    {"batch_normalize": True},
    {"batch_normalize": True, "off_diagonal_scale": 0.5},
]


def arrays(lat: int) -> list[np.ndarray]:
    """A prediction and target whose errors are correlated between channels."""
    target, noise = (draw((2, 3, 2, lat, 12), seed=seed) for seed in (1, 2))
    return [target + noise + 0.5 * noise[:, :1] + 0.2, target]


def our(settings: dict[str, object]) -> object:
    return build_loss(
        LossConfig(training_loss="covmse", training_loss_parameters=settings)
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equals_credit(settings, credit):
    import torch
    from credit.losses.gen_1.covariance import CovarianceWeightedMSELoss

    prediction, target = arrays(8)
    own = torch.tensor(prediction, requires_grad=True)
    value = CovarianceWeightedMSELoss(**settings)(torch.tensor(target), own)
    value.backward()
    ours, gradient = loss_and_gradient(our(settings), prediction, target)
    assert_close(ours, value.item(), 1e-5, "covmse")
    assert_close(gradient, own.grad.numpy(), 1e-4, "covmse, gradient")


@pytest.mark.slow(but=["16-{'dp': 2, 'domain': 4}", "13-{'domain': 4}"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("lat", [16, 13])
def test_same_on_every_mesh(lat, mesh):
    own = partial(loss_and_gradient, our(SETTINGS[2]), *arrays(lat))
    (value, gradient), (serial, serial_gradient) = own(make_mesh(**mesh)), own()
    assert_close(value, serial, 1e-5, f"covmse on {mesh}")
    assert_close(gradient, serial_gradient, 1e-4, "covmse, gradient")


def test_variable_weights_are_refused():
    section = {
        "training_loss": "covmse",
        "use_variable_weights": True,
        "variable_weights": WEIGHTS,
    }
    fields = [draw((1, 8, 1, 4, 12), seed=seed) for seed in (1, 2)]
    with pytest.raises(ValueError, match="use_variable_weights: false"):
        loss_and_gradient(our_loss(section, np.zeros(4)), *fields)
