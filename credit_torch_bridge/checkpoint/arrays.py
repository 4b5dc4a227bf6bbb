"""PyTorch tensors as numpy arrays: memory-mapped, widened to float32, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from credit_jax.state_dict.arrangement import Shape, raise_problems

# Number of elements that are checked at a time.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class LazyArray:
    """A tensor that is converted to float32 when numpy reads it as an array.

    Attributes:
        tensor: tensor of 16 or 32 bits, possibly memory-mapped.
    """

    tensor: torch.Tensor

    @property
    def shape(self) -> Shape:
        return tuple(self.tensor.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.tensor.float().numpy()
        return array if dtype is None else array.astype(dtype)


def as_arrays(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Wraps the tensors of a state dict as `LazyArray`s."""
    return {key: LazyArray(tensor) for key, tensor in state.items()}


def raise_non_finite(state: Mapping[str, Any], subject: str) -> None:
    """Raises one error that names every array with a NaN or an infinity.

    Args:
        state: arrays, or objects that numpy converts to arrays, by name.
        subject: what the arrays are, for the error.

    Raises:
        ValueError: there is such an array.
    """
    problems = [
        f"not finite: {key} {np.shape(value)}"
        for key, value in state.items()
        if not _all_finite(np.asarray(value))
    ]
    raise_problems(problems, f"{subject}: NaN or infinite values")


def _all_finite(array: np.ndarray) -> bool:
    return all(np.isfinite(chunk).all() for chunk in _chunks(array))


def _chunks(array: np.ndarray) -> Iterable[np.ndarray]:
    flat = array.reshape(-1)
    return (flat[i : i + _CHUNK] for i in range(0, flat.size, _CHUNK))


def is_zero(array: np.ndarray) -> bool:
    """Whether every element is zero."""
    return not any(chunk.any() for chunk in _chunks(array))
