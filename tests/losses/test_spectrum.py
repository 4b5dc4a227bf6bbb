"""Spectral losses against CREDIT's, alone and as terms of a weighted loss."""

from functools import partial

import numpy as np
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss
from tests.losses.cases import WEIGHTS, assert_equals_credit, our_loss
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw
from tests.support.whole_fields import loss_and_gradient

TERMS = {
    "training_loss": "mse",
    "spectral_lambda_reg": 0.3,
    "spectral_wavenum_init": 2,
}
CASES = {
    "spectral": {
        "training_loss": "spectral",
        "training_loss_parameters": {"wavenum_init": 2},
    },
    "spectral term": TERMS | {"use_spectral_loss": True, "use_latitude_weights": True},
    "power term": TERMS | {"use_power_loss": True, "use_latitude_weights": True},
    "both terms, variable weights": TERMS
    | {
        "use_power_loss": True,
        "use_spectral_loss": True,
        "use_variable_weights": True,
        "variable_weights": WEIGHTS,
    },
    "no weights, no terms": TERMS | {"use_power_loss": True},
}
MESHES = [{"domain": 2}, {"domain": 4}, {"domain": 8}, {"dp": 2, "domain": 4}]


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(name, credit, tmp_path, fields, latitude):
    """The gradient of the logarithm of a power near zero is large: hence 1e-4."""
    assert_equals_credit(name, CASES[name], tmp_path, fields, latitude, 1e-4)


def test_power_alone_equals_credits_class(credit):
    """CREDIT cannot train with this class, but it can be called."""
    import torch
    from credit.losses.gen_1.power import PSDLoss

    prediction, target = (draw((2, 3, 1, 8, 12), seed=seed) for seed in (1, 2))
    own = torch.tensor(prediction[:, :, 0], requires_grad=True)
    value = PSDLoss(wavenum_init=2)(torch.tensor(target[:, :, 0]), own)
    value.backward()
    section = {
        "training_loss": "power",
        "training_loss_parameters": {"wavenum_init": 2},
    }
    ours, gradient = loss_and_gradient(
        build_loss(LossConfig(**section)), prediction, target
    )
    assert_close(ours, value.item(), 1e-6, "power")
    assert_close(gradient[:, :, 0], own.grad.numpy(), 1e-5, "power, gradient")


@pytest.mark.slow(but=["16-{'dp': 2, 'domain': 4}", "13-{'domain': 4}"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("lat", [16, 13])
def test_same_on_every_mesh(lat, mesh):
    section = CASES["both terms, variable weights"] | {"use_latitude_weights": True}
    loss = our_loss(section, np.linspace(80.0, -80.0, lat))
    arrays = [draw((2, 8, 1, lat, 12), seed=seed) for seed in (1, 2)]
    own = partial(loss_and_gradient, loss, *arrays)
    (value, gradient), (serial, serial_gradient) = own(make_mesh(**mesh)), own()
    assert_close(value, serial, 2e-6, f"spectral terms on {mesh}")
    assert_close(gradient, serial_gradient, 1e-5, "gradient")


def test_terms_need_their_settings():
    section = {
        "use_latitude_weights": True,
        "use_power_loss": True,
        "spectral_lambda_reg": 1.0,
    }
    with pytest.raises(ValueError, match="spectral_wavenum_init"):
        our_loss(section, np.zeros(4))
