"""Writes fitted scalers as `credit preprocess` does, for CREDIT and bridgescaler."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.format import dtype_to_descr

# Attributes of one object of bridgescaler, and its class under "type".
Attributes: TypeAlias = Mapping[str, Any]


def write_scalers(
    path: str | Path, scalers: Mapping[str, Mapping[str, Mapping[str, Attributes]]]
) -> None:
    """Writes scalers as a JSON file that `read_scalers` reads.

    Args:
        path: path of the file.
        scalers: {"input" or "target": {source: {key: attributes}}}; numpy arrays among
            the attributes are written in base64.
    """
    nested = {
        data_type: {
            source: {key: _dumped(scaler) for key, scaler in by_key.items()}
            for source, by_key in sources.items()
        }
        for data_type, sources in scalers.items()
    }
    Path(path).write_text(_dumped(nested))


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=4, sort_keys=True, default=_encoded_array)


def _encoded_array(array: np.ndarray) -> dict[str, Any]:
    """Encodes an array as bridgescaler does."""
    return {
        "__numpy__": b64encode(array.tobytes()).decode(),
        "dtype": dtype_to_descr(array.dtype),
        "shape": array.shape,
    }
