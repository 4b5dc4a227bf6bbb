"""Training and evaluation steps: one `shard_map` around a whole step.

Both are functions of global arrays, jitted without options: a user may call them, or
compose them with `jax.jit`, `lax.scan` and the like. The training loop compiles them
with `parallel.compiler.compile_program`, and donates the state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from credit_jax.losses import Loss
from credit_jax.metrics import Measure
from credit_jax.models.arguments import check_arrays, on_mesh
from credit_jax.models.function import user_error
from credit_jax.models.model_def import Weights
from credit_jax.models.parallel_model import ParallelModel, packing_of
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Noise
from credit_jax.nn.parameters import BATCH_STATS, ModelState
from credit_jax.parallel.compiler import UPDATE
from credit_jax.parallel.params.fsdp import pvary_params
from credit_jax.parallel.params.spec import split_frozen
from credit_jax.training.optimizer import (
    all_finite,
    global_norm,
    keep_if,
    unscale,
    update_by_path,
)
from credit_jax.training.rollout import (
    SUSPICION,
    ForecastLoss,
    Trained,
    evaluate_forecast,
    zeros_like,
)
from credit_jax.training.state import (
    LossState,
    TrainState,
    check_state,
    init_loss_state,
    state_specs,
    update_ema,
)
from credit_jax.transforms import ONE_STEP, Rollout
from credit_jax.transforms.rollout import RAW

PlacedBatch = Mapping[str, Any]
Scalar = Float[Array, ""]


def make_train_step(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    loss: Loss,
    *,
    schedule: optax.Schedule | None = None,
    accumulate: int = 1,
    parts: int = 1,
    ema_decay: float | None = None,
    rollout: Rollout = ONE_STEP,
    loss_optimizer: optax.GradientTransformation | None = None,
    measure: Measure | None = None,
    metrics: Measure | None = None,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """The training step: one optimizer update from k micro-batches.

    Spectral norm makes one power iteration per forward pass. Gradients are summed
    locally; the transpose of casting the parameters to vary over dp and domain sums
    them once. Frozen parameters stay as they are; the optimizer does not see them. In
    float16 an update whose gradient overflows is skipped (`training.optimizer`).

    Args:
        model: model on its mesh.
        optimizer: any transformation with elementwise state, which is split like the
            parameters. It is given flat dicts by path, so that masks, labels and
            factors may go by name. Its `update` gets the extra arguments `grad_norm`
            (the global norm of the gradient) and `learning_rate`, if it takes extra
            arguments.
        loss: loss of the fields after a step of `rollout`, and a `FieldContext` for
            global means. A model that brings its loss (`credit_jax.wrap`) is trained by
            that instead.
        schedule: micro-batches seen -> learning rate; None for an optimizer that has
            its own.
        accumulate: divisor of each micro-batch's loss (CREDIT's grad_accum_every, also
            if the last group of an epoch is shorter).
        parts: parts of equal size in which a rank takes the samples of a micro-batch,
            one after another; the loss must be a mean over samples.
        ema_decay: decay rate of the averaged parameters; None for no average.
        rollout: steps of a forecast, transforms after each, and which losses count.
        loss_optimizer: optimizer of the parameters of the loss, if it has some. They
            are neither clipped nor averaged, and their gradient is not in the norm.
        measure: (tree, context) -> further numbers of each step that counts, by name.
        metrics: (tree, context) -> numbers of the last step of `rollout`, by name.

    Returns:
        `step(state, {"x": (k, b, c, t, lat, lon), "y": (k, b, c, step, lat, lon), ...},
        learning_rate=None, proceed=None) -> (state, info)`; `learning_rate` replaces
        that of the schedule. With `proceed` the state stays as it is if that is 0, or
        the loss or the norm of the gradient is not finite, or, unless it is 2, a value
        of a raw batch is suspicious; "proceed" of info, 0 or 1, is that of the next
        update, so that none after it counts either. Info has "loss" (k,), the sum over
        the steps that count, "grad_norm", with a schedule "learning_rate", in float16
        "loss_scale" and "skipped", and in "measured" by name (k,) the parts of the loss
        and the results of `measure`, summed over these steps, and those of `metrics`
        for the last step.

    Raises:
        ValueError: the state of the optimizer is not elementwise, or the loss has
            parameters and no `loss_optimizer`.

    >>> def mse(tree, context):
    ...     return context.mean((tree["y_pred"] - tree["y"]) ** 2)
    >>> optimizer = optax.sgd(0.1)
    >>> step = credit_jax.make_train_step(model, optimizer, mse)
    >>> state = credit_jax.init_state(model, optimizer, jax.random.key(0))
    >>> state, info = step(state, {name: x[None] for name, x in batch.items()})
    >>> int(state.micro_step), info["loss"].shape
    (1, (1,))
    """
    updated = _update_of(
        model,
        optimizer,
        schedule=schedule,
        ema_decay=ema_decay,
        loss_optimizer=loss_optimizer,
    )
    specs = state_specs(
        model,
        optimizer,
        ema=ema_decay is not None,
        loss_state=init_loss_state(loss, loss_optimizer),
    )

    def train_step(
        state: TrainState,
        batch: PlacedBatch,
        rate: Scalar | None,
        proceed: Int[Array, ""] | None,
    ) -> tuple[TrainState, dict[str, Array]]:
        accumulated = _accumulate(
            state, batch, model, loss, accumulate, parts, rollout, measure, metrics
        )
        return updated(state, rate, proceed, *accumulated)

    @jax.jit
    def step(
        state: TrainState,
        batch: PlacedBatch,
        learning_rate: Scalar | None = None,
        proceed: Int[Array, ""] | None = None,
    ) -> tuple[TrainState, dict[str, Array]]:
        batch_specs = _batch_specs(model, tuple(batch), stacked=True)
        sharded = model.parallel_config.shard_map(
            train_step,
            in_specs=(specs, batch_specs, PartitionSpec(), PartitionSpec()),
            out_specs=(specs, PartitionSpec()),
        )
        return sharded(state, dict(batch), learning_rate, proceed)

    return _CheckedStep(model, rollout, specs, step)


def custom_step(
    make: Callable[..., Any], name: str, *arguments: Any, **options: Any
) -> Callable[..., Any]:
    """The step that a function of the user makes, whose results are checked."""
    signature = inspect.signature(make)
    title = f"trainer.type {name!r}: {make.__name__}{signature}"
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(
            f"{title}: {error}; expected (model, optimizer, loss, *, "
            f"{', '.join(options)}), or **options"
        ) from error
    try:
        step = make(*arguments, **options)
    except Exception as error:
        raise user_error(title, error) from error
    if not callable(step):
        raise ValueError(
            f"{title} returns a {type(step).__name__}; expected a function (state, "
            "batch, learning_rate, proceed) -> (state, info)"
        )

    def checked(state: TrainState, *further: Any) -> tuple[TrainState, dict[str, Any]]:
        try:
            result = step(state, *further)
        except Exception as error:
            raise user_error(f"{title}: its step", error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueError(
                f"{title}: its step returns a {type(result).__name__}; expected "
                "(state, info)"
            )
        new, info = result
        before, after = (
            {
                jax.tree_util.keystr(path): f"{jnp.result_type(x)} {np.shape(x)}"
                for path, x in jax.tree_util.tree_leaves_with_path(tree)
            }
            for tree in (state, new)
        )
        if not isinstance(new, TrainState) or before != after:
            listed = [
                f"{path} is {after.get(path, 'missing')}, expected {shape}"
                for path, shape in before.items()
                if after.get(path) != shape
            ]
            raise ValueError(
                f"{title}: the state of its step is a {type(new).__name__}, expected "
                "the TrainState that it is given, with new values"
                + "".join(f"; state{line}" for line in listed[:3])
            )
        num = len(jax.tree.leaves(dict(further[0]))[0])
        shapes = {"loss": (num,), "grad_norm": (), "learning_rate": (), "proceed": ()}
        numbers = info if isinstance(info, Mapping) else {}
        problems = [
            f"{key} {np.shape(numbers[key]) if key in numbers else 'is missing'}"
            for key, shape in shapes.items()
            if key not in numbers or np.shape(numbers[key]) != shape
        ]
        if problems:
            expected = ", ".join(f"{key} {shape}" for key, shape in shapes.items())
            raise ValueError(
                f"{title}: the info of its step: {', '.join(problems)}; expected those "
                f"of credit_jax.make_train_step: {expected}"
            )
        return new, {"measured": {}, **numbers}

    return checked


def make_update(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    *,
    ema_decay: float | None = None,
) -> Callable[..., TrainState]:
    """`make_train_step`'s update from a gradient: (state, gradient, rate) -> state."""
    updated = _update_of(model, optimizer, ema_decay=ema_decay)
    specs = state_specs(model, optimizer, ema=ema_decay is not None)

    def update(state: TrainState, gradient: Any, rate: Scalar) -> TrainState:
        measured = {"loss": jnp.zeros(1)}
        gradients = gradient, {}
        return updated(state, rate, None, gradients, state.model_state, measured)[0]

    gradient_specs, _ = split_frozen(specs.stored_params, model.model_def.param_specs)
    return jax.jit(
        model.parallel_config.shard_map(
            update,
            in_specs=(specs, gradient_specs, PartitionSpec()),
            out_specs=specs,
        )
    )


def _update_of(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    *,
    schedule: optax.Schedule | None = None,
    ema_decay: float | None = None,
    loss_optimizer: optax.GradientTransformation | None = None,
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """What follows the gradient in a step; local shards."""
    update = update_by_path(optimizer, packing_of(model))
    param_specs = model.model_def.param_specs

    @jax.named_scope(UPDATE)
    def updated(
        state: TrainState,
        rate: Scalar | None,
        proceed: Int[Array, ""] | None,
        both_grads: Trained,
        model_state: ModelState,
        measured: dict[str, Array],
    ) -> tuple[TrainState, dict[str, Array]]:
        grads, loss_grads = both_grads
        micro_step = state.micro_step + len(measured["loss"])
        norm = global_norm(grads)
        extra = {"grad_norm": norm}
        if rate is None and schedule is not None:
            # That of the last micro-batch: CREDIT's schedulers step after each of them,
            # whether or not the optimizer does.
            rate = jnp.asarray(schedule(micro_step - 1), jnp.float32)
        if rate is not None:
            extra["learning_rate"] = rate
        info = {"loss": measured.pop("loss"), **extra, "measured": measured}
        if SUSPICION in measured:
            info[SUSPICION] = measured.pop(SUSPICION)
        taken = None
        if proceed is not None:
            taken = (proceed > 0) & all_finite(info["loss"])
            if SUSPICION in info:
                taken &= (proceed > 1) | (info[SUSPICION] < 2).all()
            if state.loss_scale is None:  # else an infinite norm is an update to skip
                taken &= jnp.isfinite(norm)
            info["proceed"] = taken.astype(jnp.int32)
        trained, frozen = split_frozen(state.stored_params, param_specs)
        updates, opt_state = update(grads, state.stored_opt_state, trained, **extra)
        moved: Any = optax.apply_updates(trained, updates)
        loss_state, loss_scale, is_new = state.loss_state, state.loss_scale, taken
        if loss_state is not None and loss_optimizer is not None:
            of_loss = optax.with_extra_args_support(loss_optimizer).update
            arguments = dict(loss_grads), loss_state.opt_state, loss_state.params
            updates, loss_opt_state = of_loss(*arguments, **extra)
            new_params = optax.apply_updates(loss_state.params, updates)
            loss_state = LossState(new_params, loss_opt_state)
        if loss_scale is not None:
            # The norm is finite only if all gradients in it are; those of the loss's
            # parameters are not.
            finite = jnp.isfinite(norm) & all_finite(loss_grads)
            info |= {"loss_scale": loss_scale.scale, "skipped": ~finite}
            loss_scale = loss_scale.after(finite)
            is_new = finite if taken is None else taken & finite
        if is_new is not None:
            moved = keep_if(is_new, moved, trained)
            opt_state = keep_if(is_new, opt_state, state.stored_opt_state)
            loss_state = keep_if(is_new, loss_state, state.loss_state)
        update_step = state.update_step + 1
        changes: dict[str, Any] = {
            "micro_step": micro_step,
            "update_step": update_step,
            "model_state": model_state,
            "loss_scale": loss_scale,
        }
        if state.stored_ema is not None and ema_decay is not None:
            pairs = {
                "stored_ema": (state.stored_ema, moved),
                "ema_stats": (state.ema_stats, model_state[BATCH_STATS]),
            }
            changes |= {
                name: update_ema(average, current, update_step, ema_decay)
                for name, (average, current) in pairs.items()
            }
        if taken is not None:
            # Each part of the state is selected where it is made, so that no pass over
            # memory is added.
            old = {name: getattr(state, name) for name in changes}
            changes = keep_if(taken, changes, old)
        new = replace(
            state,
            stored_params={**moved, **frozen},
            stored_opt_state=opt_state,
            loss_state=loss_state,
            **changes,
        )
        return new, info

    return updated


class _CheckedStep:
    """A jitted training step whose arguments are checked before it is compiled."""

    def __init__(
        self, model: ParallelModel, rollout: Rollout, specs: TrainState, step: Any
    ) -> None:
        self._model = model
        self._rollout = rollout
        self._specs = specs
        self._step = step
        # What else jitted functions have are methods: `functools.wraps`, by which
        # `jax.jit` names its result, copies attributes.
        self.__name__ = "step"  # the name of the program of a user's own jit

    def __call__(
        self, state: TrainState, batch: PlacedBatch, *further: Any, **named: Any
    ) -> tuple[TrainState, dict[str, Array]]:
        check_state(state, self._specs)
        _check_batch(self._model, batch, self._rollout, stacked=True)
        with on_mesh(self._model.mesh, state=state, batch=batch):
            return self._step(state, dict(batch), *further, **named)

    def lower(self, *args: Any, **keywords: Any) -> Any:
        return self._step.lower(*args, **keywords)

    def trace(self, *args: Any, **keywords: Any) -> Any:
        return self._step.trace(*args, **keywords)


def make_eval_step(
    model: ParallelModel, metrics: Measure, *, rollout: Rollout = ONE_STEP
) -> Callable[..., dict[str, Scalar]]:
    """The evaluation step: metrics of one batch with stored spectral norm state.

    Args:
        model: model on its mesh.
        metrics: metrics of the fields after the last step of `rollout`; include the
            validation loss here.
        rollout: steps of a forecast, and transforms after each.

    Returns:
        `evaluate(params, model_state, {"x": (b, c, t, lat, lon), "y": (b, c, step, lat,
        lon), ...}, noise=None) -> scalars`; `noise` is for models that draw noise.

    >>> def metrics(tree, context):
    ...     return {"mse": context.mean((tree["y_pred"] - tree["y"]) ** 2)}
    >>> evaluate = credit_jax.make_eval_step(model, metrics)
    >>> sorted(evaluate(params, model_state, batch))
    ['mse']
    """
    run = partial(evaluate_forecast, model, rollout, metrics)

    @cache
    def run_on(names: tuple[str, ...]) -> Callable[..., dict[str, Scalar]]:
        return model.shard_map(
            lambda params, model_state, inputs: run(params, model_state, *inputs),
            batch_specs=(_batch_specs(model, names), PartitionSpec()),
            out_specs=PartitionSpec(),
        )

    def evaluate(
        params: Weights,
        model_state: ModelState,
        batch: PlacedBatch,
        noise: Noise | None = None,
    ) -> dict[str, Scalar]:
        model.check_weights(params, model_state)
        _check_batch(model, batch, rollout, stacked=False)
        trees = {"params": params, "model_state": model_state, "batch": batch}
        with on_mesh(model.mesh, **trees):
            return run_on(tuple(batch))(params, model_state, (dict(batch), noise))

    return evaluate


def _check_batch(
    model: ParallelModel, batch: Any, rollout: Rollout, *, stacked: bool
) -> None:
    """Checks the fields that every step takes; see `check_arrays`."""
    if rollout.prepare is not None and isinstance(batch, Mapping):
        names = {raw: name for name, raw in RAW.items()}
        batch = {names.get(name, name): x for name, x in batch.items()}
    definition, compute = model.model_def, model.parallel_config.precision.compute
    options = {"stacked": stacked, "num_steps": rollout.num_steps}
    fields = {**definition.inputs, "y": definition.output}
    check_arrays("batch", batch, fields, model.axes, compute, **options)


def _batch_specs(
    model: ParallelModel, names: tuple[str, ...], *, stacked: bool = False
) -> dict[str, PartitionSpec]:
    """PartitionSpecs of a batch; trees of further fields are split like "y"."""
    specs = model.batch_specs(stacked=stacked)
    return {name: specs.get(name, specs["y"]) for name in names}


def _accumulate(
    state: TrainState,
    batch: PlacedBatch,
    model: ParallelModel,
    loss: Loss,
    accumulate: int,
    parts: int,
    rollout: Rollout,
    measure: Measure | None,
    metrics: Measure | None,
) -> tuple[Trained, ModelState, dict[str, Array]]:
    """Summed gradient, new model state, and numbers of each of k micro-batches."""
    axes, precision = model.axes.batch, model.parallel_config.precision
    trained, frozen = split_frozen(state.stored_params, model.model_def.param_specs)
    vary = partial(pvary_params, axes=axes, precision=precision)
    # One cast for all micro-batches: its transpose, the all-reduce of the step, is
    # applied to their sum. Frozen parameters have no gradient to reduce.
    weights, pullback = jax.vjp(jax.named_scope(UPDATE)(vary), trained)
    frozen = vary(frozen)
    factor = 1.0 if state.loss_scale is None else state.loss_scale.scale
    loss_parameters = {} if state.loss_state is None else state.loss_state.params
    variables: Trained = (weights, loss_parameters)
    forecast = ForecastLoss(
        model,
        rollout,
        loss,
        state.packing,
        state.stored_params,
        frozen,
        lambda value: value * factor / (accumulate * parts),
        measure,
        metrics,
    )

    @jax.named_scope(UPDATE)
    def summed(grads: Trained) -> Trained:
        both = (pullback(grads[0])[0], grads[1])
        return unscale(both, state.loss_scale)

    def micro(model_state: ModelState, index: Array, batch: PlacedBatch) -> Any:
        # By number, so that a run that goes on draws as one without a break.
        key = jax.random.fold_in(state.key, state.micro_step + index // parts)
        batch, suspicion = rollout.prepared(batch, FieldContext(model.reducer))
        start = index % parts * len(jax.tree.leaves(batch)[0])
        gradient = replace(forecast, start=start).gradient
        grads, after, values = gradient(variables, model_state, batch, key)
        if suspicion is not None:
            values[SUSPICION] = suspicion
        return grads, after, values

    batch = dict(batch)
    if parts > 1:
        split = lambda x: x.reshape(-1, x.shape[1] // parts, *x.shape[2:])  # noqa: E731
        batch = jax.tree.map(split, batch)
    count = len(jax.tree.leaves(batch)[0])
    if count == 1:
        grads, model_state, values = micro(
            state.model_state,
            jnp.zeros((), jnp.int32),
            jax.tree.map(lambda leaf: leaf[0], batch),
        )
        return summed(grads), model_state, {k: v[None] for k, v in values.items()}

    def body(carry: tuple[ModelState, ModelState, Trained], inputs: Any) -> Any:
        before, after, total = carry
        if parts > 1:  # a micro-batch is one power iteration
            before = keep_if(inputs[0] % parts == 0, after, before)
        else:
            before = after
        grads, after, values = micro(before, *inputs)
        return (before, after, jax.tree.map(jnp.add, total, grads)), values

    # One after another, as power iterations and running statistics go on from each
    # micro-batch to the next.
    inputs = (jnp.arange(count), batch)
    start = state.model_state, state.model_state, zeros_like(variables)
    (_, model_state, grads), values = jax.lax.scan(body, start, inputs)
    values = {k: v.reshape(-1, parts) for k, v in values.items()}
    means = {k: v.max(1) if k == SUSPICION else v.mean(1) for k, v in values.items()}
    return summed(grads), model_state, means
