"""Areas to read of a grid."""

from credit_jax.config.base import StrictModel

# West, east, south, north.
Extent = tuple[float, float, float, float]


class Corners(StrictModel):
    """The corners of an area, (latitude, longitude) each, degrees."""

    nw: tuple[float, float]
    se: tuple[float, float]
