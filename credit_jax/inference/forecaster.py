"""One forward pass for many inputs: fixed weights, evaluation mode, any mesh."""

from __future__ import annotations

from functools import cached_property

import jax
import numpy as np
from jaxtyping import Array, Float

from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.model_state import ModelState
from credit_jax.nn.noise import Noise
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.credit import local_dp_ranks
from credit_jax.parallel.placement import place_batch


class Forecaster:
    """A model with its weights, as a function of its input.

    No dropout; spectral norm is applied to the weights once, at construction.

    Args:
        model: on its mesh.
        params, model_state: weights and state on that mesh.
    """

    def __init__(
        self, model: ParallelModel, params: Weights, model_state: ModelState
    ) -> None:
        self.model = model
        fuse = compile_program(model.fuse_spectral_norm, model.mesh)
        self.weights = fuse(params, model_state)
        self._apply = compile_program(model.apply, model.mesh)

    def __call__(
        self,
        x: Float[np.ndarray, "batch channel time lat lon"],
        noise: Noise | None = None,
    ) -> Float[np.ndarray, "batch channel_out time_out lat lon"]:
        """Prediction of a whole batch, float32, whole in every process.

        Args:
            x: the same in every process; the data-parallel degree divides the batch.
            noise: of models that draw noise; another key gives another member.

        Raises:
            ValueError: the data-parallel degree does not divide the batch, or the model
                draws noise and none is given.
        """
        return to_host(self.step(self.place(x), noise))[..., : self._num_rows, :]

    def step(
        self,
        x: Float[Array, "batch channel time rows lon"],
        noise: Noise | None = None,
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Prediction of an array on the mesh (of `place`); rows stay padded."""
        return self._apply(*self.weights, {"x": x}, noise)

    def place(
        self, x: Float[np.ndarray, "batch channel time lat lon"]
    ) -> Float[Array, "batch channel time rows lon"]:
        """A whole batch on the mesh: samples split over dp, rows over domain, padded.

        Raises:
            ValueError: the data-parallel degree does not divide the batch.
        """
        size = self.model.axes.num_data
        if len(x) % size:
            raise ValueError(
                f"the input has {len(x)} samples, which {size} data-parallel devices "
                "cannot share alike; use data=none, or a multiple"
            )
        own = np.concatenate([np.split(x, size)[rank] for rank in self._ranks])
        mesh = self.model.mesh
        return place_batch({"x": own}, mesh, local_dp_ranks=self._ranks)["x"]

    @property
    def _num_rows(self) -> int:
        return self.model.model_def.image_height

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        return local_dp_ranks(self.model.mesh)


def to_host(array: jax.Array) -> Float[np.ndarray, ...]:
    """The whole array in this process, float32."""
    if array.is_fully_addressable:
        return np.asarray(array, np.float32)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True), np.float32)
