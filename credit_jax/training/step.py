"""Training and evaluation steps: one `shard_map` around a whole step.

Both are functions of global arrays, jitted without options: a user may call them, or
compose them with `jax.jit`, `lax.scan` and the like. Our own loop compiles them with
`parallel.compiler.compile_program`, and donates the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from credit_jax.fields import FieldContext, FieldTree
from credit_jax.losses import Loss
from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.model_state import ModelState
from credit_jax.nn.noise import Noise
from credit_jax.ops.vma import pvary, varying_axes
from credit_jax.parallel.params.frozen import split_frozen
from credit_jax.parallel.params.fsdp import pvary_params
from credit_jax.training.ema import update_ema
from credit_jax.training.loss_scale import keep_if, loss_factor, unscale
from credit_jax.training.optimizer import global_norm
from credit_jax.training.optimizer_state import check_updates
from credit_jax.training.state import TrainState, state_specs
from credit_jax.transforms import Postprocess

Batch = Mapping[str, Array]
Scalar = Float[Array, ""]
Metrics = Callable[[FieldTree, FieldContext], dict[str, Scalar]]


def make_train_step(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    loss: Loss,
    *,
    schedule: optax.Schedule | None = None,
    accumulate: int = 1,
    ema_decay: float | None = None,
    postprocess: Postprocess | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """The training step: one optimizer update from k micro-batches.

    Spectral norm makes one power iteration a micro-batch. Gradients add up locally; the
    transpose of casting the parameters to vary over dp and domain sums them once.
    Frozen parameters stay as they are; the optimizer does not see them.
    In float16 an update whose gradient overflowed is left out (`training.loss_scale`).

    Args:
        model: on its mesh.
        optimizer: any transformation with elementwise state, which is split like the
            parameters. Its `update` gets the extra arguments `grad_norm` (the global
            norm of the gradient) and `learning_rate`, if it takes extra arguments.
        loss: of the fields after `postprocess`, and a `FieldContext` for global means.
        schedule: micro-batches seen -> learning rate; None for an optimizer that has
            its own.
        accumulate: what each micro-batch's loss is divided by (CREDIT's
            grad_accum_every, also where the last group of an epoch is shorter).
        ema_decay: of the averaged parameters; None keeps none.
        postprocess: transforms between the model and the loss, see
            `Pipeline.postprocess`.

    Returns:
        `step(state, {"x": (k, b, c, t, lat, lon), "y": ...}) -> (state, info)`; info
        has "loss" (k,), "grad_norm", with a schedule "learning_rate", and in float16
        "loss_scale" and "skipped".
    """
    update = optax.with_extra_args_support(optimizer).update
    specs = state_specs(model, optimizer, ema=ema_decay is not None)
    param_specs = model.model_def.param_specs

    def train_step(
        state: TrainState, batch: Batch
    ) -> tuple[TrainState, dict[str, Array]]:
        grads, model_state, losses = _accumulate(
            state, batch, model, loss, accumulate, postprocess
        )
        micro_step = state.micro_step + batch["y"].shape[0]
        norm = global_norm(grads)
        extra = {"grad_norm": norm}
        if schedule is not None:
            rate = jnp.asarray(schedule(micro_step - 1), jnp.float32)
            extra["learning_rate"] = rate
        info = {"loss": losses, **extra}
        trained, frozen = split_frozen(state.params, param_specs)
        updates, opt_state = update(grads, state.opt_state, trained, **extra)
        check_updates(updates, trained)
        moved: Any = optax.apply_updates(trained, updates)
        loss_scale = state.loss_scale
        if loss_scale is not None:
            finite = jnp.isfinite(norm)
            moved = keep_if(finite, moved, trained)
            opt_state = keep_if(finite, opt_state, state.opt_state)
            info |= {"loss_scale": loss_scale.scale, "skipped": ~finite}
            loss_scale = loss_scale.after(finite)
        update_step = state.update_step + 1
        ema = state.ema
        if ema is not None and ema_decay is not None:
            averaged = {path: ema[path] for path in trained}
            new_ema = update_ema(averaged, moved, update_step, ema_decay)
            ema = {**ema, **new_ema}
        new = TrainState(
            micro_step=micro_step,
            update_step=update_step,
            params={**moved, **frozen},
            model_state=model_state,
            opt_state=opt_state,
            ema=ema,
            loss_scale=loss_scale,
            key=state.key,
        )
        return new, info

    sharded = jax.shard_map(
        train_step,
        mesh=model.mesh,
        in_specs=(specs, model.batch_specs(stacked=True)),
        out_specs=(specs, PartitionSpec()),
    )
    return jax.jit(sharded)


def make_eval_step(
    model: ParallelModel, metrics: Metrics, *, postprocess: Postprocess | None = None
) -> Callable[..., dict[str, Scalar]]:
    """The evaluation step: metrics of one batch with stored spectral norm state.

    Args:
        model: on its mesh.
        metrics: of the same as a loss; include the validation loss here.
        postprocess: transforms between the model and the metrics, see
            `Pipeline.postprocess`.

    Returns:
        `evaluate(params, model_state, {"x": (b, c, t, lat, lon), "y": ...},
        noise=None) -> scalars`; `noise` is for models that draw noise.
    """

    def eval_step(
        params: Weights, model_state: ModelState, given: tuple[Batch, Noise | None]
    ) -> dict[str, Scalar]:
        batch, noise = given
        prediction = model.local_forward(
            params, model_state, _inputs(batch), noise, interleaved=True
        )
        context = FieldContext(model.reducer)
        tree = _postprocessed(postprocess, batch, prediction, context)
        return metrics(tree, context)

    run = model.shard_map(
        eval_step,
        batch_specs=(model.batch_specs(), PartitionSpec()),
        out_specs=PartitionSpec(),
    )

    def evaluate(
        params: Weights,
        model_state: ModelState,
        batch: Batch,
        noise: Noise | None = None,
    ) -> dict[str, Scalar]:
        return run(params, model_state, (batch, noise))

    return evaluate


def _inputs(batch: Batch) -> dict[str, Array]:
    """What of a batch goes into the model."""
    return {name: array for name, array in batch.items() if name != "y"}


def _postprocessed(
    postprocess: Postprocess | None,
    batch: Batch,
    prediction: Array,
    context: FieldContext,
) -> FieldTree:
    """The fields of a step, with "y_pred" and "y", after its transforms."""
    tree = {**batch, "y_pred": prediction}
    return tree if postprocess is None else postprocess(tree, context)


def _accumulate(
    state: TrainState,
    batch: Batch,
    model: ParallelModel,
    loss: Loss,
    accumulate: int,
    postprocess: Postprocess | None,
) -> tuple[Weights, ModelState, Array]:
    """Summed gradient, new vectors and the loss of each of k micro-batches."""
    axes, precision = model.axes.batch, model.parallel_config.precision
    trained, frozen = split_frozen(state.params, model.model_def.param_specs)
    weights, pullback = jax.vjp(lambda p: pvary_params(p, axes, precision), trained)
    frozen = pvary_params(frozen, axes, precision)
    factor = loss_factor(state.loss_scale)

    def micro(model_state: ModelState, index: Array, batch: Batch) -> Any:
        model_state = model.local_iterate(state.params, model_state)
        key = jax.random.fold_in(state.key, state.micro_step + index)

        def objective(
            weights: Weights,
        ) -> tuple[Scalar, tuple[Scalar, ModelState]]:
            prediction, after = model.local_training_forward(
                {**weights, **frozen}, model_state, _inputs(batch), key
            )
            context = FieldContext(model.reducer)
            tree = _postprocessed(postprocess, batch, prediction, context)
            value = loss(tree, context)
            return value * factor / accumulate, (value, after)

        grads, (value, after) = jax.grad(objective, has_aux=True)(weights)
        for further in range(1, model.power_iterations):
            after = model.local_iterate(state.params, after, index=further)
        return after, grads, value

    def summed(grads: Weights) -> Weights:
        return unscale(pullback(grads)[0], state.loss_scale)

    count = batch["y"].shape[0]
    if count == 1:
        model_state, grads, value = micro(
            state.model_state,
            jnp.zeros((), jnp.int32),
            {name: array[0] for name, array in batch.items()},
        )
        return summed(grads), model_state, value[None]

    def body(carry: tuple[ModelState, Weights], inputs: Any) -> Any:
        model_state, grads, value = micro(carry[0], *inputs)
        return (model_state, jax.tree.map(jnp.add, carry[1], grads)), value

    zeros = {
        path: pvary(jnp.zeros_like(p), sorted(varying_axes(p)))
        for path, p in weights.items()
    }
    inputs = (jnp.arange(count), dict(batch))
    (model_state, grads), losses = jax.lax.scan(
        body, (state.model_state, zeros), inputs
    )
    return summed(grads), model_state, losses
