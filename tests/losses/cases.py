"""Runs loss sections in credit_jax and in CREDIT."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss
from tests.support import assert_close
from tests.support.whole_fields import field_context, of_pair

LEVELS, LAT, LON = 3, 8, 12
CHANNELS = 2 * LEVELS + 1 + 1
WEIGHTS = {"U": [0.5, 1.0, 2.0], "T": [1.0, 0.25, 3.0], "SP": 4.0, "TP": 0.125}
CHANNELS_OF = {"S/p/3d/U": 3, "S/p/3d/T": 3, "S/p/2d/SP": 1, "S/d/2d/TP": 1}


def credit_loss(tmp_path, latitude, section, pred, target, *, validation=False):
    """Returns value and gradient by CREDIT's `load_loss`, as its trainer calls it."""
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


def assert_equals_credit(
    name: str,
    section: dict[str, Any],
    folder: Any,
    fields: Any,
    latitude: Any,
    gradient_tolerance: float = 1e-5,
) -> None:
    """Asserts that value and gradient of the training loss equal CREDIT's."""
    pred, target = fields
    value, gradient = credit_loss(folder, latitude, section, pred, target)
    loss = our_loss(section, latitude)
    ours, our_gradient = jax.value_and_grad(of_pair(loss))(
        jnp.asarray(pred), jnp.asarray(target), field_context(LAT)
    )
    assert_close(ours, value, 1e-6, f"{name} loss")
    assert_close(our_gradient, gradient, gradient_tolerance, f"{name} gradient")
