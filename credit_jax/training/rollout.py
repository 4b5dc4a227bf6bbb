"""A forecast of one or several steps within a training or an evaluation step.

Each step runs the model, the transforms after it, the loss if the step counts, and
makes the input of the next step. With the gradient "truncated", as in CREDIT, the
fields fed back are constants: the gradient of each loss goes through its own step, and
the gradients are added. With "full" it goes through all steps; only the fields fed back
are kept in memory, and each step is recomputed in the backward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.losses import Loss, value_and_parts
from credit_jax.losses.base import check_global
from credit_jax.metrics import Measure
from credit_jax.models.diffusion.process import NOISED, TIME
from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import BATCH_STATS, ModelState
from credit_jax.ops.custom_vjp import pvary, varying_axes
from credit_jax.parallel.compiler import LOSS, PARAMETERS
from credit_jax.parallel.params.packing import Packing
from credit_jax.transforms import FieldTree, Rollout

PlacedBatch = Mapping[str, Any]
Scalar = Float[Array, ""]
# Weights of the model and parameters of the loss, both trained.
Trained = tuple[Weights, Mapping[str, Array]]
# Among the numbers of a batch: how suspicious its values are, see `Rollout.prepared`.
SUSPICION = "suspicion"


@dataclass(frozen=True)
class ForecastLoss:
    """The loss of a forecast in training mode, and its gradient; local shards."""

    model: ParallelModel
    rollout: Rollout
    loss: Loss  # of the fields after a step
    packing: Packing  # of the weights
    # Packed weights of the training state, whose matrices spectral norm iterates on.
    params: Weights
    frozen: Weights  # weights that are not trained, ready for the forward pass
    # Scales every loss before differentiation, value -> value.
    scale: Callable[[Scalar], Scalar]
    # Returns further numbers of a step for the log; None for none.
    measure: Measure | None = None
    # Returns numbers of the fields after the last step for the log; None for none.
    metrics: Measure | None = None
    start: Array | int = 0  # local samples of the micro-batch before those of `batch`

    def gradient(
        self, trained: Trained, model_state: ModelState, batch: PlacedBatch, key: Array
    ) -> tuple[Trained, ModelState, dict[str, Scalar]]:
        """The gradient, the model state after the forecast, and numbers to log."""
        if self.rollout.backprop.mode == "full":
            return self._full(trained, model_state, batch, key)
        start = self.rollout.first_carry(batch, self._context({}))
        carry = (model_state, zeros_like(trained), start)
        # "loss", its parts and results of `measure` are summed over the steps that
        # count; metrics are those of the last step.
        values, scores = [], {}

        def turn(counts: bool, carry: Any, inputs: Any) -> Any:
            model_state, grads, fields = carry
            step = partial(self._step, batch, fields, model_state, inputs, key)
            if counts:
                step_grads, aux = jax.grad(step, has_aux=True)(trained)
                grads = jax.tree.map(jnp.add, grads, step_grads)
            else:
                _, aux = step(trained)
            after, fields, *numbers = lax.stop_gradient(aux)
            return (after, grads, fields), numbers

        inputs = (jnp.arange(self.rollout.num_steps), *self.rollout.per_step(batch))
        # Steps without a loss are another program, without a backward pass: a loop for
        # each run of equal steps.
        begin = 0
        counted = self.rollout.backprop.counts(self.rollout.num_steps)
        for counts, run in itertools.groupby(counted):
            end = begin + len(list(run))
            mine = jax.tree.map(lambda leaf, a=begin, b=end: leaf[a:b], inputs)
            begin = end
            carry, (value, scores) = _turns(partial(turn, counts), carry, mine)
            if counts:
                values.append(jax.tree.map(jnp.sum, value))
        model_state, grads, _ = carry
        total = jax.tree.map(lambda *x: sum(x[1:], x[0]), *values)
        return (
            grads,
            model_state,
            total | {name: value[-1] for name, value in scores.items()},
        )

    def _full(
        self, trained: Trained, model_state: ModelState, batch: PlacedBatch, key: Array
    ) -> tuple[Trained, ModelState, dict[str, Scalar]]:
        fields = self.rollout.first_carry(batch, self._context({}))
        # One loop, as the backward pass goes through all steps: the loss of those that
        # do not count has the factor 0.
        counted = self.rollout.backprop.counts(self.rollout.num_steps)
        factors = jnp.array(counted, jnp.float32)
        steps = jnp.arange(self.rollout.num_steps)
        inputs = (factors, (steps, *self.rollout.per_step(batch)))

        def forecast(trained: Trained) -> tuple[Scalar, Any]:
            @jax.checkpoint
            def turn(carry: Any, inputs: Any) -> Any:
                (model_state, fields), (factor, mine) = carry, inputs
                scaled, aux = self._step(batch, fields, model_state, mine, key, trained)
                after, fields, values, scores = aux
                after = lax.stop_gradient(after)
                values = jax.tree.map(lambda value: value * factor, values)
                return (after, fields), (scaled * factor, values, scores)

            carry, outputs = _turns(turn, (model_state, fields), inputs)
            scaled, values, scores = outputs
            return scaled.sum(), (carry[0], jax.tree.map(jnp.sum, values), scores)

        grads, aux = jax.grad(forecast, has_aux=True)(trained)
        after, values, scores = aux
        return (
            grads,
            after,
            values | {name: value[-1] for name, value in scores.items()},
        )

    def _step(
        self,
        batch: PlacedBatch,
        fields: PlacedBatch,
        model_state: ModelState,
        inputs: Any,
        key: Array,
        trained: Trained,
    ) -> tuple[
        Scalar, tuple[ModelState, PlacedBatch, dict[str, Scalar], dict[str, Scalar]]
    ]:
        """Returns the scaled loss of one step, and auxiliary values."""
        # The latter are the model state, the carried fields, numbers to sum, and
        # metrics.
        index, target, forcing = inputs
        weights, loss_parameters = trained
        rollout, model = self.rollout, self.model
        context = self._context(loss_parameters)
        if rollout.num_steps > 1:
            key = jax.random.fold_in(key, index)
        with jax.named_scope(PARAMETERS):
            params, weights = map(self.packing.unpack, (self.params, weights))
        model_state = model.local_iterate(params, model_state)
        model_inputs = rollout.inputs(
            model.model_def.input_shapes, batch, fields, index
        )
        noised = None
        if model.model_def.process is not None:
            noised = model.local_noised(rollout.clamped(target), key, start=self.start)
            model_inputs |= {NOISED: noised.x, TIME: noised.time}
        prediction, after = model.local_training_forward(
            {**weights, **self.frozen},
            model_state,
            model_inputs,
            key,
            num_members=rollout.num_members,
            start=self.start,
        )
        if noised is None:
            tree = rollout.outputs(batch, fields, target, prediction, context)
        else:
            # The output is not an atmospheric state; transforms do not apply to it.
            tree = {**fields, "y_pred": prediction, "y": noised.target}
        weighted = context
        if noised is not None:
            weighted = replace(context, sample_weights=noised.weights)
        with jax.named_scope(LOSS):
            if model.model_def.has_loss:
                losses = model.local_losses(
                    {**weights, **self.frozen},
                    model_state,
                    model_inputs["x"],
                    jnp.repeat(tree["y"], rollout.num_members, 0),
                    key,
                    num_members=rollout.num_members,
                    start=self.start,
                )
                value, values = context.data_mean(losses), {}
            else:
                value, values = value_and_parts(self.loss, tree, weighted)
            check_global("the loss", value)
            value = rollout.backprop.weighted(value, index)
            auxiliary = model.model_def.auxiliary_losses(after[BATCH_STATS])
            value, values = sum(auxiliary.values(), value), values | auxiliary
        if self.measure is not None:
            values = values | self.measure(tree, context)
        scores = {} if self.metrics is None else self.metrics(tree, context)
        _check_numbers({**values, **scores})
        carried = rollout.next_carry(batch, fields, tree, forcing, context)
        return self.scale(value), (after, carried, {"loss": value, **values}, scores)

    def _context(self, loss_parameters: Mapping[str, Array]) -> FieldContext:
        return FieldContext(
            self.model.reducer,
            num_members=self.rollout.num_members,
            loss_parameters=loss_parameters,
        )


def evaluation_step(
    model: ParallelModel,
    rollout: Rollout,
    params: Weights,
    model_state: ModelState,
    batch: PlacedBatch,
    fields: PlacedBatch,  # the carry of the step, see `Rollout.first_carry`
    index: Array,
    target: Any,
    noise: Noise | None = None,
) -> FieldTree:
    """Fields after one step of a forecast in evaluation mode; local shards."""
    if noise is not None and rollout.num_steps > 1:
        noise = noise.fold_in(index)
    prediction = model.local_forward(
        params,
        model_state,
        rollout.inputs(model.model_def.input_shapes, batch, fields, index),
        noise,
        interleaved=True,
        num_members=rollout.num_members,
    )
    context = FieldContext(model.reducer, num_members=rollout.num_members)
    return rollout.outputs(batch, fields, target, prediction, context)


def evaluate_forecast(
    model: ParallelModel,
    rollout: Rollout,
    metrics: Callable[[FieldTree, FieldContext], dict[str, Scalar]],
    params: Weights,
    model_state: ModelState,
    batch: PlacedBatch,
    noise: Noise | None = None,
) -> dict[str, Scalar]:
    """Metrics of the last step of a forecast in evaluation mode; local shards."""
    context = FieldContext(model.reducer, num_members=rollout.num_members)
    batch, suspicion = rollout.prepared(batch, context)

    def step(fields: PlacedBatch, inputs: Any) -> FieldTree:
        index, target, _ = inputs
        return evaluation_step(
            model, rollout, params, model_state, batch, fields, index, target, noise
        )

    def turn(fields: PlacedBatch, inputs: Any) -> tuple[PlacedBatch, None]:
        tree = step(fields, inputs)
        return rollout.next_carry(batch, fields, tree, inputs[2], context), None

    inputs = (jnp.arange(rollout.num_steps), *rollout.per_step(batch))
    fields: PlacedBatch = rollout.first_carry(batch, context)
    if rollout.num_steps > 1:
        # Up to the last step, whose whole tree the metrics take.
        previous = jax.tree.map(lambda leaf: leaf[:-1], inputs)
        fields, _ = _turns(turn, fields, previous)
    last = jax.tree.map(lambda leaf: leaf[-1], inputs)
    numbers = metrics(step(fields, last), context)
    _check_numbers(numbers)
    return numbers if suspicion is None else numbers | {SUSPICION: suspicion}


def _check_numbers(numbers: Mapping[str, Array]) -> None:
    for name, value in numbers.items():
        check_global(f"the metric {name}", value)


def _turns(turn: Callable[..., Any], carry: Any, inputs: Any) -> Any:
    """`lax.scan`, but without a loop for a single step."""
    if len(jax.tree.leaves(inputs)[0]) > 1:
        return lax.scan(turn, carry, inputs)
    carry, output = turn(carry, jax.tree.map(lambda leaf: leaf[0], inputs))
    return carry, jax.tree.map(lambda leaf: leaf[None], output)


def zeros_like(trained: Trained) -> Trained:
    """Zeros that vary over the same mesh axes."""
    return jax.tree.map(
        lambda leaf: pvary(jnp.zeros_like(leaf), sorted(varying_axes(leaf))), trained
    )
