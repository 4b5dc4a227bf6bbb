"""Forward passes with fixed weights, in evaluation mode, on any mesh."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import ModelState
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.placement import place_batch


class Forecaster:
    """A model with its weights, as a function of its inputs.

    No dropout; spectral norm is applied to the weights once, at construction, as in
    double precision.

    Args:
        model: model on its mesh.
        params, model_state: weights and state on that mesh.

    >>> forecaster = credit_jax.Forecaster(model, params, model_state)
    >>> forecaster(np.ones((2, 7, 1, 6, 10), np.float32)).shape
    (2, 6, 1, 6, 10)
    """

    def __init__(
        self, model: ParallelModel, params: Weights, model_state: ModelState
    ) -> None:
        self.model = model
        fuse = partial(model.fuse_spectral_norm, compensated=True)
        self.weights = compile_program(fuse, model.mesh)(params, model_state)
        self._apply = compile_program(model.apply, model.mesh)

    def __call__(
        self,
        x: Float[np.ndarray, "batch channel time lat lon"] | Mapping[str, np.ndarray],
        noise: Noise | None = None,
    ) -> Float[np.ndarray, "batch channel_out time_out lat lon"]:
        """Predicts a whole batch; every process returns the whole prediction, float32.

        Args:
            x: the same in every process; the data-parallel degree divides the batch. Of
                a model with several inputs all of them, by name.
            noise: noise of models that draw noise; another key gives another member.

        Raises:
            ValueError: the data-parallel degree does not divide the batch, or the model
                draws noise and none is given.
        """
        rows = self.model.model_def.image_height
        return to_host(self.step(self.place(x), noise))[..., :rows, :]

    def step(
        self,
        inputs: Mapping[str, Array],
        noise: Noise | None = None,
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from arrays on the mesh (of `place`); rows stay padded."""
        return self._apply(*self.weights, dict(inputs), noise)

    def place(
        self,
        x: Float[np.ndarray, "batch channel time lat lon"] | Mapping[str, np.ndarray],
    ) -> dict[str, Array]:
        """Puts a batch on the mesh: samples split over dp, rows padded and over domain.

        Args:
            x: see `__call__`.

        Returns:
            The inputs by name.

        Raises:
            ValueError: the data-parallel degree does not divide the batch.
        """
        return place_batch(x if isinstance(x, Mapping) else {"x": x}, self.model.mesh)


def to_host(array: jax.Array) -> Float[np.ndarray, ...]:
    """Returns the whole array in every process, float32; a collective of processes."""
    if not array.is_fully_addressable:
        assert isinstance(array.sharding, NamedSharding), array.sharding
        array = _gather(array.sharding.mesh)(array).addressable_data(0)
    return np.asarray(array, np.float32)


@cache
def _gather(mesh: Any) -> Any:
    """Makes each device of a mesh hold the whole array."""
    full = NamedSharding(mesh, PartitionSpec())
    return compile_program(lambda x: jax.lax.with_sharding_constraint(x, full), mesh)
