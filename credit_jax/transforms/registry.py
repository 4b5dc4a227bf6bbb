"""The transforms by config section and CREDIT's type names.

Each registers itself when its module is imported, which this one does for all.
"""

from credit_jax.transforms import (
    advection,
    channels,
    conservation,
    diagnostics,
    filters,
    full_levels,
    levels,
    normalize,
    pointwise,
    regrid,
    rename,
    scaling,
    wet_mask,
)
from credit_jax.transforms.base import TRANSFORMS as TRANSFORMS

_MODULES = (channels, normalize, pointwise, rename, regrid, scaling, levels, advection)
_MODULES = (*_MODULES, wet_mask, conservation, diagnostics, full_levels, filters)


def transform_types(section: str) -> tuple[str, ...]:
    """Returns the types that a section may have.

    Args:
        section: "preblocks" or "postblocks".
    """
    return tuple(TRANSFORMS[section])
