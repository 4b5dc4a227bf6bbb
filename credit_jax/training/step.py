"""One jitted `shard_map` around a whole step: training, evaluation or forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.models.architecture import Architecture, Weights
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.nn.spectral_norm import Vectors
from credit_jax.parallel.axes import MeshAxes
from credit_jax.parallel.collectives import axis_index, vary, varying_axes
from credit_jax.parallel.compiler import compiler_options
from credit_jax.parallel.layouts import home_layout
from credit_jax.parallel.packing import packed_declarations, unpack
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.sharding import matrix_specs
from credit_jax.training.batches import batch_spec
from credit_jax.training.ema import update_ema
from credit_jax.training.optimisers import AdamW, global_norm
from credit_jax.training.state import Execution, TrainState, state_specs

Batch = Mapping[str, Array]
Scalar = Float[Array, ""]
Loss = Callable[[Array, Array, FieldReducer], Scalar]
Metrics = Callable[[Array, Array, FieldReducer], dict[str, Scalar]]
Schedule = Callable[[Array], Scalar]


def make_train_step(
    architecture: Architecture,
    optimiser: AdamW,
    schedule: Schedule,
    loss: Loss,
    execution: Execution,
    *,
    accumulate: int = 1,
    ema_decay: float | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """The training step: one optimiser update from k micro-batches.

    Spectral norm makes one power iteration a micro-batch. Gradients add up locally; the
    transpose of casting the parameters to vary over dp and domain sums them once.

    Args:
        architecture: the model.
        optimiser: update rule, on local shards.
        schedule: learning rate by micro-batch number.
        loss: of local prediction and target, and a reducer for global means.
        execution: mesh, rules, precision, remat.
        accumulate: what each micro-batch's loss is divided by (CREDIT's
            grad_accum_every, also where the last group of an epoch is shorter).
        ema_decay: of the averaged parameters; None keeps none.

    Returns:
        `step(state, {"x": (k, b, c, t, lat, lon), "y": ...}) -> (state, info)`; info
        has "loss" (k,), "grad_norm" and "learning_rate". The state passed in is
        donated.
    """
    forward = _Forward(architecture, execution)
    specs = state_specs(architecture, optimiser, execution, ema=ema_decay is not None)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        grads, vectors, losses = _accumulate(state, batch, forward, loss, accumulate)
        micro_step = state.micro_step + batch["x"].shape[0]
        learning_rate = schedule(micro_step - 1)
        norm = global_norm(grads)
        updates, opt_state = optimiser.update(
            grads, state.opt_state, state.params, learning_rate, grad_norm=norm
        )
        params = jax.tree.map(jnp.add, state.params, updates)
        update_step = state.update_step + 1
        ema = state.ema
        if ema is not None and ema_decay is not None:
            ema = update_ema(ema, params, update_step, ema_decay)
        new = TrainState(
            micro_step, update_step, params, vectors, opt_state, ema, state.key
        )
        info = {"loss": losses, "grad_norm": norm, "learning_rate": learning_rate}
        return new, info

    spec = batch_spec(execution.axes, stacked=True)
    sharded = jax.shard_map(
        step,
        mesh=execution.mesh,
        in_specs=(specs, spec),
        out_specs=(specs, PartitionSpec()),
    )
    return jax.jit(sharded, donate_argnums=0, compiler_options=compiler_options())


def make_eval_step(
    architecture: Architecture,
    execution: Execution,
    metrics: Metrics,
) -> Callable[[Weights, Vectors, Batch], dict[str, Scalar]]:
    """The evaluation step: metrics of one batch with stored spectral norm vectors.

    Args:
        architecture: the model.
        execution: mesh, rules, precision.
        metrics: of local prediction and target; include the validation loss here.

    Returns:
        `evaluate(params, vectors, {"x": (b, c, t, lat, lon), "y": ...}) -> scalars`.
    """
    forward = _Forward(architecture, execution)

    def evaluate(params: Weights, vectors: Vectors, batch: Batch) -> dict[str, Scalar]:
        prediction = forward(params, vectors, batch["x"])
        return metrics(prediction, batch["y"], forward.reducer)

    spec = batch_spec(execution.axes)
    return forward.jit(evaluate, batch_specs=spec, out_specs=PartitionSpec())


def make_forecast_step(
    architecture: Architecture, execution: Execution
) -> Callable[[Weights, Vectors, Array], Array]:
    """One forward pass in evaluation mode.

    Returns:
        `forecast(params, vectors, x (b, c, t, lat, lon)) ->
        (b, c_out, t_out, lat, lon)`; rows keep the filler of `place_batch`.
    """
    forward = _Forward(architecture, execution)
    spec = batch_spec(execution.axes)
    return forward.jit(forward, batch_specs=spec, out_specs=spec)


class _Forward:
    """The model on local shards: spectral norm, then `Architecture.apply`."""

    def __init__(self, architecture: Architecture, execution: Execution) -> None:
        self.architecture = architecture
        self.execution = execution
        self.axes: MeshAxes = execution.axes
        self.specs = execution.rules.specs(architecture.declarations, self.axes)
        rows = home_layout(
            architecture.image_height, self.axes.num_domain, self.axes.domain, dim=3
        )
        self.reducer = FieldReducer(rows, self.axes)

    def __call__(
        self, params: Weights, vectors: Vectors, x: Array, key: Array | None = None
    ) -> Array:
        """Prediction in float32 or wider, with dropout where a key is given."""
        matrices = self.architecture.matrices
        weights = unpack(params, self.architecture.declarations)
        weights = spectral_norm.normalise(weights, vectors, matrices, self.specs)
        context = Context(
            axes=self.axes,
            rules=self.execution.rules,
            precision=self.execution.precision,
            remat=self.execution.remat,
            key=key,
            first_sample=_data_rank(self.execution, self.axes),
            sample_stride=self.axes.num_data,
        )
        return self.architecture.apply(weights, x, context)

    def iterate(self, params: Weights, vectors: Vectors) -> Vectors:
        """The vectors after one power iteration."""
        weights = unpack(params, self.architecture.declarations)
        matrices = self.architecture.matrices
        return spectral_norm.iterate(weights, vectors, matrices, self.specs)

    def jit(self, body: Callable[..., Any], batch_specs: Any, out_specs: Any) -> Any:
        """`body(params, vectors, batch)` under shard_map and jit."""
        vectors = {
            path: matrix_specs(declaration, self.specs[path])
            for path, declaration in self.architecture.matrices.items()
        }
        declarations = packed_declarations(self.architecture.declarations)
        params = self.execution.rules.specs(declarations, self.axes)
        sharded = jax.shard_map(
            body,
            mesh=self.execution.mesh,
            in_specs=(params, vectors, batch_specs),
            out_specs=out_specs,
        )
        return jax.jit(sharded, compiler_options=compiler_options())


def _data_rank(execution: Execution, axes: MeshAxes) -> Array | int:
    """This device's rank among the data-parallel ones, dp_replicate outermost."""
    rank: Array | int = 0
    for name in axes.data:
        rank = rank * execution.mesh.shape[name] + axis_index(name)
    return rank


def _accumulate(
    state: TrainState, batch: Batch, forward: _Forward, loss: Loss, accumulate: int
) -> tuple[Weights, Vectors, Array]:
    """Summed gradient, new vectors and the loss of each of k micro-batches."""
    axes = forward.axes.batch
    spread, pullback = jax.vjp(
        lambda params: {path: vary(p, axes) for path, p in params.items()},
        state.params,
    )

    def micro(vectors: Vectors, index: Array, x: Array, y: Array) -> Any:
        vectors = forward.iterate(state.params, vectors)
        key = jax.random.fold_in(state.key, state.micro_step + index)

        def objective(spread: Weights) -> tuple[Scalar, Scalar]:
            value = loss(forward(spread, vectors, x, key), y, forward.reducer)
            return value / accumulate, value

        grads, value = jax.grad(objective, has_aux=True)(spread)
        return vectors, grads, value

    count = batch["x"].shape[0]
    if count == 1:
        vectors, grads, value = micro(
            state.vectors, jnp.zeros((), jnp.int32), batch["x"][0], batch["y"][0]
        )
        return pullback(grads)[0], vectors, value[None]

    def body(carry: tuple[Vectors, Weights], inputs: Any) -> Any:
        vectors, grads, value = micro(carry[0], *inputs)
        return (vectors, jax.tree.map(jnp.add, carry[1], grads)), value

    zeros = {
        path: vary(jnp.zeros_like(p), sorted(varying_axes(p)))
        for path, p in spread.items()
    }
    inputs = (jnp.arange(count), batch["x"], batch["y"])
    (vectors, grads), losses = jax.lax.scan(body, (state.vectors, zeros), inputs)
    return pullback(grads)[0], vectors, losses
