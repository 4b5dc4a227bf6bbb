"""Forecasts of several steps: one compiled step, whose state stays on the mesh.

Feedback, forcing and constants are those of multi-step training (`transforms.rollout`),
but values are not clamped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.tree import by_key
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import ModelState
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.placement import batch_spec
from credit_jax.transforms import FORCING, FieldTree, Rollout
from credit_jax.transforms.rollout import CARRY

StepFields = dict[str, Float[Array, "batch level time rows lon"]]


@dataclass(frozen=True)
class ForecastStep:
    """The step from one state of a forecast to the next."""

    model: ParallelModel  # model on its mesh
    rollout: Rollout
    # The fields that a step returns: key -> positions of its levels, or None for all;
    # None is every field.
    outputs: Mapping[str, tuple[int, ...] | None] | None = None

    def start(self, first: FieldTree) -> tuple[dict[str, Any], dict[str, Any]]:
        """Splits a placed batch into the state before the first step and constants."""
        # All other entries are constant during a forecast.
        carried = (*CARRY, *self.model.model_def.inputs)
        state = {name: first[name] for name in carried if name in first}
        return state, {name: v for name, v in first.items() if name not in state}

    def __call__(
        self,
        weights: tuple[Weights, ModelState],
        state: FieldTree,
        constants: FieldTree,
        forcing: FieldTree,
        noise: Noise | None = None,
    ) -> tuple[dict[str, Any], StepFields]:
        """The next state, and physical fields with padded rows; donates `state`."""
        arguments = state, constants, forcing, noise
        count = state["x"].shape[0] // self.model.axes.num_data
        # CPUs run the samples of a device one after another, with the program of a
        # single one: matrix products of other numbers of rows are summed in other
        # orders, so that forecasts would depend on those beside them in the last bits.
        if count == 1 or self.model.mesh.devices.flat[0].platform != "cpu":
            return self._compiled(*weights, *arguments)
        parts = [self._compiled(*weights, *part) for part in self._split(arguments)]
        return self._join(tuple(parts))

    def steps(
        self,
        weights: tuple[Weights, ModelState],
        first: FieldTree,
        forcing: Iterable[FieldTree],  # the inputs of the next step, of each step
        noise: Noise | None = None,
        number: int = 0,  # of the step before the first one, folded into `noise`
    ) -> Iterator[StepFields]:
        """Yields the fields after each step, as soon as it is started."""
        state, constants = self.start(first)
        for index, inputs in enumerate(forcing, number + 1):
            drawn = None if noise is None else noise.fold_in(index)
            state, fields = self(weights, state, constants, inputs, drawn)
            yield fields

    def shapes(self, first: FieldTree, forcing: FieldTree) -> dict[str, int]:
        """Key -> number of levels of every field that a step makes, in their order."""
        state, constants = self.start(first)
        weights = jax.eval_shape(self.model.init, jax.random.key(0))
        noise = Noise(jax.random.split(jax.random.key(0), first["x"].shape[0]))
        arguments = (*weights, state, constants, forcing, noise)
        # JAX sorts the keys of what a program returns.
        order: list[str] = []
        _, fields = jax.eval_shape(partial(self._step, order=order), *arguments)
        return {key: fields[key].shape[1] for key in order}

    @cached_property
    def _compiled(self) -> Any:
        return compile_program(self._step, self.model.mesh, donate_argnums=2)

    @cached_property
    def _split(self) -> Any:
        """The program that takes the samples of each device apart."""

        def split(arguments: Any) -> Any:
            count = arguments[0]["x"].shape[0]
            return tuple(
                jax.tree.map(lambda x, i=i: x[i : i + 1], arguments)
                for i in range(count)
            )

        def full(arguments: Any) -> Any:
            specs = self._specs(*arguments)
            count = arguments[0]["x"].shape[0] // self.model.axes.num_data
            return self._mapped(split, (specs,), (specs,) * count)(arguments)

        return compile_program(full, self.model.mesh)

    @cached_property
    def _join(self) -> Any:
        """The inverse of `_split`, for the results of a step."""
        join = partial(jax.tree.map, lambda *arrays: jnp.concatenate(arrays))

        def full(parts: Any) -> Any:
            specs = self._specs_of(parts[0][0]), batch_spec(self.model.axes)
            return self._mapped(join, (specs,) * len(parts), specs)(*parts)

        return compile_program(full, self.model.mesh)

    def _mapped(self, body: Any, in_specs: Any, out_specs: Any) -> Any:
        shard_map = self.model.parallel_config.shard_map
        return shard_map(body, in_specs=in_specs, out_specs=out_specs)

    def _specs(self, state: Any, constants: Any, forcing: Any, noise: Any) -> Any:
        """PartitionSpecs of the arguments of a step."""
        field = batch_spec(self.model.axes)
        return (
            self._specs_of(state),
            field,
            self._specs_of(forcing),
            None if noise is None else PartitionSpec(field[0]),
        )

    def _specs_of(self, tree: FieldTree) -> dict[str, PartitionSpec]:
        specs, field = self.model.input_specs(), batch_spec(self.model.axes)
        return {name: specs.get(name, field) for name in tree}

    def _step(
        self,
        params: Weights,
        model_state: ModelState,
        state: FieldTree,
        constants: FieldTree,
        forcing: FieldTree,
        noise: Noise | None,
        order: list[str] | None = None,
    ) -> tuple[dict[str, Any], StepFields]:
        def local_step(params: Weights, model_state: ModelState, arguments: Any) -> Any:
            following, tree = self.advance(params, model_state, arguments)
            fields = self.chosen(tree)
            if order is not None:
                order[:] = fields
            return following, fields

        arguments = state, constants, forcing, noise
        run = self.model.shard_map(
            local_step,
            batch_specs=self._specs(*arguments),
            out_specs=(self._specs_of(state), batch_spec(self.model.axes)),
        )
        return run(params, model_state, arguments)

    def advance(
        self,
        params: Weights,
        model_state: ModelState,
        arguments: Any,  # state, constants, forcing and noise
        target: Float[Array, "batch channel 1 rows lon"] | None = None,
    ) -> tuple[dict[str, Any], FieldTree]:
        """The next state, and the tree after the transforms of a step; local rows."""
        state, constants, forcing, noise = arguments
        model, rollout = self.model, self.rollout
        context = FieldContext(model.reducer)
        inputs = rollout.inputs(model.model_def.input_shapes, state, state)
        prediction = model.local_forward(params, model_state, inputs, noise)
        tree = rollout.outputs(constants, state, target, prediction, context)
        fields_at_end = forcing.get(FORCING, {})
        following = rollout.next_carry(constants, state, tree, fields_at_end, context)
        further = {k: forcing.get(k, state[k]) for k in inputs if k != "x"}
        return {**following, **further}, tree

    def chosen(self, tree: FieldTree) -> StepFields:
        """The fields to return, at the time of the prediction."""
        if "y_processed" not in tree:
            raise ValueError(
                "forecasts are written in physical units: postblocks.per_step needs a "
                "block of type reconstruct"
            )
        fields = by_key(tree["y_processed"])
        selection = dict.fromkeys(fields) if self.outputs is None else self.outputs
        chosen = {}
        for key, levels in selection.items():
            field = fields[key][:, :, :1]
            field = field if levels is None else field[:, jnp.array(levels)]
            wide = jnp.promote_types(field.dtype, jnp.float32)
            chosen[key] = field.astype(wide)
        return chosen
