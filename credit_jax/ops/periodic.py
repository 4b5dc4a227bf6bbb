"""CREDIT's PeriodicConv2d: convolution with periodic longitude."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.ops.conv import conv2d

LAT, LON = 1, 2


def periodic_conv2d(
    x: Float[Array, "batch lat lon channel_in"],
    kernel: Float[Array, "kernel_h kernel_w channel_in channel_out"],
    *,
    padding: int = 1,
) -> Float[Array, "batch lat_out lon_out channel_out"]:
    """Pads longitude periodically and latitude by reflection, then convolves.

    The reflection does not repeat the row at the pole: row -1 is row 1. The convolution
    adds no zeros. The two paddings commute, so the corners are well defined.

    Args:
        x: (batch, lat, lon, channel_in).
        kernel: (kernel_h, kernel_w, channel_in, channel_out).
        padding: rows and columns to add on every side; (kernel - 1) / 2 keeps the size.

    Returns:
        (batch, lat + 2 * padding - kernel_h + 1, lon + 2 * padding - kernel_w + 1,
        channel_out).

    Raises:
        ValueError: negative padding, or more padding than lat - 1 rows or lon columns.
    """
    check_periodic(padding, x.shape[LAT], x.shape[LON])
    for dim in (LON, LAT):
        x = pad_periodic(x, padding, dim)
    return conv2d(x, kernel)


def pad_periodic(
    x: Float[Array, "batch lat lon channel"], padding: int, dim: int
) -> Float[Array, "batch lat_out lon_out channel"]:
    """The padding of `periodic_conv2d` along one dim.

    Args:
        x: (batch, lat, lon, channel).
        padding: rows or columns to add at both ends.
        dim: 1 to reflect latitude, or 2 to wrap longitude.
    """
    widths = [(padding, padding) if d == dim else (0, 0) for d in range(x.ndim)]
    mode = "reflect" if dim == LAT else "wrap"
    return jnp.pad(x, widths, mode=mode) if padding else x


def check_periodic(padding: int, rows: int, columns: int) -> None:
    """Raises ValueError if the field has too few rows or columns for the padding."""
    most = min(rows - 1, columns)
    if not 0 <= padding <= most:
        raise ValueError(
            f"padding is {padding}; {rows} rows and {columns} columns can be padded "
            f"with 0 to {most}: latitude is mirrored without the pole row, longitude "
            "goes around once"
        )
