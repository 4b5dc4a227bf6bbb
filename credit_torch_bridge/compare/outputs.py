"""The outputs of one forward and backward pass, under CREDIT's names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ModelOutputs:
    """One forward and backward pass of a model.

    Attributes:
        prediction: (batch, channel, time, lat, lon).
        blocks: output of each block, (batch, channel, lat, lon), by the name of
            CREDIT's module.
        gradients: gradients of mean(prediction**2), by CREDIT's parameter names.
    """

    prediction: np.ndarray
    blocks: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
