"""Forecasts of several steps: one compiled step, whose state stays on the mesh.

Feedback, forcing and constants are those of multi-step training (`transforms.rollout`),
but values are not clamped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.fields import FieldContext
from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.model_state import ModelState
from credit_jax.nn.noise import Noise
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.placement import batch_spec
from credit_jax.transforms import FORCING, FieldTree, Rollout

# Entries of the carried state; all others are constant during a forecast.
_CARRIED = ("x", "x_physical")
Outputs = dict[str, Float[Array, "batch level time rows lon"]]


@dataclass(frozen=True)
class ForecastStep:
    """The step from one state of a forecast to the next.

    Attributes:
        model: on its mesh.
        rollout: the transforms after a step, and how the next input is made.
        outputs: the fields that a step returns: key -> positions of its levels, or None
            for all; None is every field.
    """

    model: ParallelModel
    rollout: Rollout
    outputs: Mapping[str, tuple[int, ...] | None] | None = None

    def start(self, first: FieldTree) -> tuple[dict[str, Any], dict[str, Any]]:
        """Splits a placed batch into the state before the first step and constants.

        Args:
            first: "x", "static", "x_physical" and "ic_raw" if transforms need them, and
                the further inputs of the model; global arrays.
        """
        carried = (*_CARRIED, *self.model.model_def.inputs)
        state = {name: first[name] for name in carried if name in first}
        return state, {name: v for name, v in first.items() if name not in state}

    def __call__(
        self,
        weights: tuple[Weights, ModelState],
        state: FieldTree,
        constants: FieldTree,
        forcing: FieldTree,
        noise: Noise | None = None,
    ) -> tuple[dict[str, Any], Outputs]:
        """Runs one step; the buffers of `state` are donated.

        Args:
            weights: of `Forecaster.weights`.
            state: of `start`, or of the step before.
            constants: of `start`.
            forcing: inputs of the next step: "forcing", the dynamic forcing at the end
                of this step, and the further inputs of the model; any values at the
                last step.
            noise: of models that draw noise.

        Returns:
            The next state, and the fields after the step in physical units, float32;
            rows stay padded.
        """
        return self._compiled(*weights, state, constants, forcing, noise)

    def shapes(self, first: FieldTree, forcing: FieldTree) -> dict[str, int]:
        """Key -> number of levels of every field that a step makes, in their order.

        Nothing is compiled.

        Args:
            first, forcing: see `start` and `__call__`; arrays or their shapes.

        Raises:
            ValueError: the transforms make no named fields, or cannot make the next
                input from them.
        """
        state, constants = self.start(first)
        weights = jax.eval_shape(self.model.init, jax.random.key(0))
        noise = Noise(jax.random.key(0))
        given = (*weights, state, constants, forcing, noise)
        # JAX sorts the keys of what a program returns.
        order: list[str] = []
        _, fields = jax.eval_shape(partial(self._step, order=order), *given)
        return {key: fields[key].shape[1] for key in order}

    @cached_property
    def _compiled(self) -> Any:
        return compile_program(self._step, self.model.mesh, donate_argnums=2)

    def _step(
        self,
        params: Weights,
        model_state: ModelState,
        state: FieldTree,
        constants: FieldTree,
        forcing: FieldTree,
        noise: Noise | None,
        order: list[str] | None = None,
    ) -> tuple[dict[str, Any], Outputs]:
        def local_step(params: Weights, model_state: ModelState, given: Any) -> Any:
            return self._local_step(params, model_state, given, order)

        field, own = batch_spec(self.model.axes), self.model.input_specs()

        def specs_of(given: FieldTree) -> dict[str, PartitionSpec]:
            return {name: own.get(name, field) for name in given}

        run = self.model.shard_map(
            local_step,
            batch_specs=(specs_of(state), field, specs_of(forcing), PartitionSpec()),
            out_specs=(specs_of(state), field),
        )
        return run(params, model_state, (state, constants, forcing, noise))

    def _local_step(
        self,
        params: Weights,
        model_state: ModelState,
        given: Any,
        order: list[str] | None,
    ) -> tuple[dict[str, Any], Outputs]:
        """One step on local rows; `order` is filled with the keys of the fields."""
        state, constants, forcing, noise = given
        model, rollout = self.model, self.rollout
        context = FieldContext(model.reducer)
        inputs = rollout.inputs(model.model_def.input_shapes, state, state)
        prediction = model.local_forward(params, model_state, inputs, noise)
        tree = rollout.after(constants, state, None, prediction, context)
        fields_at_end = forcing.get(FORCING, {})
        following = rollout.next(constants, state, tree, fields_at_end, context)
        further = {k: forcing.get(k, state[k]) for k in inputs if k != "x"}
        following = {**following, **further}
        fields = self._chosen(tree)
        if order is not None:
            order[:] = fields
        return following, fields

    def _chosen(self, tree: FieldTree) -> Outputs:
        """The fields to return, at the time of the prediction."""
        if "y_processed" not in tree:
            raise ValueError(
                "forecasts are written in physical units: postblocks.per_step needs a "
                "block of type reconstruct, and the inverse of what preblocks scale"
            )
        found = {
            key: field
            for own in tree["y_processed"].values()
            for key, field in own.items()
        }
        wanted = dict.fromkeys(found) if self.outputs is None else self.outputs
        return {
            key: _levels(found[key][:, :, :1], levels).astype(jnp.float32)
            for key, levels in wanted.items()
        }


def _levels(field: Array, levels: tuple[int, ...] | None) -> Array:
    return field if levels is None else field[:, jnp.array(levels)]
