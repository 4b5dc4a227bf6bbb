"""Area weights of latitude rows."""

import numpy as np
from jaxtyping import Float


def latitude_weights(latitude: Float[np.ndarray, " lat"]) -> Float[np.ndarray, " lat"]:
    """Area weights `cos(latitude) / mean(cos(latitude))` of rows, in float32.

    Args:
        latitude: (lat,) degrees north.

    Returns:
        (lat,) weights with mean 1.

    >>> latitude_weights(np.array([60.0, 0.0, -60.0])).round(2).tolist()
    [0.75, 1.5, 0.75]
    """
    weights = np.cos(np.deg2rad(np.asarray(latitude, np.float64)))
    return (weights / weights.mean()).astype(np.float32)
