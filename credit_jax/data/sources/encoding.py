"""How the values of a variable are stored in its file."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

# Attributes with which xarray decodes values.
_DECODED = ("scale_factor", "add_offset", "_Unsigned", "missing_value")


def is_plain(variable: xr.Variable) -> bool:
    """Whether a variable is stored as floats that xarray does not need to decode."""
    encoding: Mapping[str, Any] = variable.encoding
    stored = np.dtype(encoding.get("dtype", variable.dtype))
    fill = encoding.get("_FillValue")
    undecoded = fill is None or bool(np.isnan(fill))
    return (
        stored == variable.dtype
        and stored in (np.float32, np.float64)
        and undecoded
        and not any(key in encoding for key in _DECODED)
    )
