"""Errors of one run against another: relative L2 norms, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from credit_jax.ops.compensated import joint_error, relative_error

# Tolerances of relative errors in float32 (docs/numerics.md).
TOLERANCES: Mapping[str, float] = {
    "forward": 1e-5,
    "gradient": 1e-4,
    "array": 1e-4,
    "loss": 1e-3,
    "rollout": 1e-4,
}

# The error of an array of a gradient is relative to at least this fraction of the
# largest norm, as a gradient may be zero except for rounding.
_FLOOR = 1e-3
# Arrays of a gradient, those with the largest errors, that a report keeps.
_ARRAYS = 4


def errors_of_arrays(
    actual: Mapping[Any, ArrayLike], expected: Mapping[Any, ArrayLike], floor: float
) -> dict[Any, float]:
    """The error of each array, relative to at least a share of the largest norm.

    Args:
        floor: this share; a gradient may be zero except for rounding.
    """
    norms = {
        key: float(np.linalg.norm(np.asarray(array, np.float64)))
        for key, array in expected.items()
    }
    least = floor * max(norms.values(), default=0.0)
    return {
        key: relative_error(actual[key], array)
        * (norms[key] or 1.0)
        / (max(norms[key], least) or 1.0)
        for key, array in expected.items()
    }


class Run(Protocol):
    """The common attributes of `CreditRun` and `MeshRun`."""

    @property
    def loss(self) -> np.ndarray: ...
    @property
    def prediction(self) -> np.ndarray: ...
    @property
    def rollout(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Errors:
    """Relative errors of a run.

    Attributes:
        forward: error of the first prediction.
        gradient: error of the first gradient, all parameters as one vector.
        arrays: errors of the first gradient, by parameter.
        loss: errors of the training loss at each step.
        rollout: errors of the state after each step of the rollout.
        num_arrays: number of arrays that were compared, of which a report keeps the
            worst; None in reports of earlier versions.
    """

    forward: float
    gradient: float
    arrays: dict[str, float]
    loss: list[float]
    rollout: list[float]
    num_arrays: int | None = None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Errors:
        """The inverse of `as_json`; other keys of `record` are ignored."""
        names = [f.name for f in fields(cls) if f.name in record]
        return cls(**{name: record[name] for name in names})

    def worst(self) -> dict[str, float]:
        """The largest error of each kind with a tolerance; "rollout" is optional."""
        errors = {
            "forward": self.forward,
            "gradient": self.gradient,
            "array": max(self.arrays.values()),
            "loss": max(self.loss),
        }
        return errors | ({"rollout": max(self.rollout)} if self.rollout else {})

    def above(self) -> dict[str, float]:
        """The errors above the tolerance of float32, NaN included."""
        return {k: e for k, e in self.worst().items() if not e <= TOLERANCES[k]}

    def as_json(self) -> dict[str, Any]:
        """Errors to four digits, and the worst of each kind; the largest of arrays."""
        names = sorted(self.arrays, key=lambda name: -self.arrays[name])[:_ARRAYS]
        count = {} if self.num_arrays is None else {"num_arrays": self.num_arrays}
        return {
            "worst": {kind: _rounded(error) for kind, error in self.worst().items()},
            "forward": _rounded(self.forward),
            "gradient": _rounded(self.gradient),
            **count,
            "arrays": {name: _rounded(self.arrays[name]) for name in names},
            "loss": [_rounded(error) for error in self.loss],
            "rollout": [_rounded(error) for error in self.rollout],
        }


def errors_of(
    run: Run,
    gradients: Mapping[str, np.ndarray],
    base: Run,
    base_gradients: Mapping[str, np.ndarray],
) -> Errors:
    """The errors of a run against its reference.

    Args:
        run, base: the two runs.
        gradients, base_gradients: gradients and base gradients of their first step, by
            CREDIT's parameter names. Parameters that have no gradient in `base` do not
            count.
    """
    ours = {name: gradients[name] for name in base_gradients}
    return Errors(
        forward=relative_error(run.prediction, base.prediction),
        gradient=joint_error(ours, base_gradients),
        arrays=errors_of_arrays(ours, base_gradients, _FLOOR),
        num_arrays=len(base_gradients),
        loss=[relative_error(a, b) for a, b in zip(run.loss, base.loss, strict=True)],
        rollout=[
            relative_error(a, b) for a, b in zip(run.rollout, base.rollout, strict=True)
        ],
    )


def _rounded(error: float) -> float:
    return float(f"{error:.3e}")
