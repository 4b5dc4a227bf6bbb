"""Losses of whole fields as users write them, and the same in numpy.

Simplified ones of CREDIT: spectral, of single variables, of an ensemble, spherical.
"""

import jax.numpy as jnp
import numpy as np

from credit_jax.losses import ConfiguredLoss
from tests.support.gradients import draw


class Spectral(ConfiguredLoss):
    """Error of the zonal amplitude spectrum, averaged over latitude, by sample."""

    wavenum_init: int = 1

    def __call__(self, tree, context):
        spectra = [
            context.row_mean(jnp.abs(jnp.fft.rfft(tree[name], axis=-1)))
            for name in ("y_pred", "y")
        ]
        error = jnp.square(spectra[0] - spectra[1])[..., self.wavenum_init :]
        return context.data_mean(error).mean()


def spectral_in_numpy(prediction, target, weights):
    spectra = [
        (np.abs(np.fft.rfft(x, axis=-1)) * weights).mean(axis=3)
        for x in (prediction, target)
    ]
    return np.square(spectra[0] - spectra[1])[..., 2:].mean()


class ByVariable(ConfiguredLoss):
    """The weighted sum of a loss for each of some variables."""

    def __call__(self, tree, context):
        error = tree["y_pred"] - tree["y"]
        slices = context.layout.slices
        squares = jnp.square(error[:, slices["S/prognostic/3d/T"]])
        flat = jnp.abs(error[:, slices["S/prognostic/2d/SP"]])
        return 2.0 * context.mean(squares) + 0.5 * context.mean(flat)


def by_variable_in_numpy(prediction, target, weights):
    error = prediction - target
    squares = (np.square(error[:, 3:6]) * weights).mean()
    return 2.0 * squares + 0.5 * (np.abs(error[:, 6:7]) * weights).mean()


class Crps(ConfiguredLoss):
    """Fair kernel CRPS: mean |x_i - y| - sum |x_i - x_j| / (2 m (m - 1))."""

    def __call__(self, tree, context):
        members = context.members(tree["y_pred"])
        skill = jnp.abs(members - tree["y"][:, None]).mean(axis=1)
        pairs = jnp.abs(members[:, :, None] - members[:, None]).sum(axis=(1, 2))
        count = context.num_members
        return context.mean(skill - pairs / (2 * count * (count - 1)))


def crps_in_numpy(prediction, target, weights):
    members = prediction.reshape(-1, 3, *prediction.shape[1:])
    skill = np.abs(members - target[:, None]).mean(axis=1)
    pairs = np.abs(members[:, :, None] - members[:, None]).sum(axis=(1, 2))
    return ((skill - pairs / 12) * weights).mean()


class Spherical(ConfiguredLoss):
    """Error after any transform along latitude, which needs all rows at once."""

    def __call__(self, tree, context):
        whole = context.gather_rows(tree["y_pred"] - tree["y"])
        waves = jnp.fft.rfft(whole, axis=-1)
        matrix = jnp.asarray(draw((5, waves.shape[3]), seed=3), whole.dtype)
        error = jnp.einsum("ly,bctym->bctlm", matrix, waves, precision="highest")
        return context.gathered().data_mean(jnp.square(jnp.abs(error))).mean()


def spherical_in_numpy(prediction, target, weights):
    error = np.fft.rfft(prediction - target, axis=-1)
    error = np.einsum("ly,bctym->bctlm", draw((5, len(weights)), seed=3), error)
    return np.square(np.abs(error)).mean()


# Class, parameters, ensemble members, the same in numpy.
TOYS = {
    "toy spectral": (Spectral, {"wavenum_init": 2}, 1, spectral_in_numpy),
    "toy by variable": (ByVariable, {}, 1, by_variable_in_numpy),
    "toy crps": (Crps, {}, 3, crps_in_numpy),
    "toy spherical": (Spherical, {}, 1, spherical_in_numpy),
}
