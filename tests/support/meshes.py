"""Meshes of simulated devices for tests."""

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, TP


def dealt(samples: int, ranks: int) -> np.ndarray:
    """Returns the order of samples in a batch: rank r of n reads r, r + n, ..."""
    return np.arange(samples).reshape(-1, ranks).T.ravel()


def make_mesh(*, dp: int = 1, tp: int = 1, domain: int = 1) -> Mesh:
    """Returns a mesh of the first dp * tp * domain devices without axes of degree 1."""
    degrees = {DP_SHARD: dp, TP: tp, DOMAIN: domain}
    axes = {name: degree for name, degree in degrees.items() if degree > 1}
    axes = axes or {DP_SHARD: 1}
    num_devices = math.prod(axes.values())
    devices = jax.devices()
    if num_devices > len(devices):
        raise ValueError(
            f"dp {dp} x tp {tp} x domain {domain} = {num_devices} devices, "
            f"but there are {len(devices)}"
        )
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=devices[:num_devices],
    )
