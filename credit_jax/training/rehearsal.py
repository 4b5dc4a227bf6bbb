"""Traces a run on one device, to find what only its arrays show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from credit_jax.config import ConfigError
from credit_jax.config.base import together
from credit_jax.config.trainer import TRAINERS
from credit_jax.data import Loader, build_loader
from credit_jax.nn.context import Noise
from credit_jax.packages.package import base_of_run
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan import RunPlan
from credit_jax.plan.objective import with_parts
from credit_jax.training.setup import Setup, prepare
from credit_jax.training.step import make_eval_step
from credit_jax.transforms import Rollout


def rehearse(plan: RunPlan) -> list[str]:
    """Returns the problems of the base, forecasts, losses and metrics of a run."""
    if not plan.loaders:
        return []
    parts: list[Callable[[], Any]] = [partial(_check_base, plan)]
    # The members of this loss are the data-parallel ranks.
    if not plan.config.loss.members_are_ranks:
        # Abstractly, for one sample on one device: shapes meet as in the run, and
        # nothing is computed or compiled.
        parts += _evaluations(plan)
        if TRAINERS[plan.config.trainer.type] is not None:
            parts += _updates(plan)
    try:
        together(*parts)
    except ConfigError as error:
        return [*error.problems]
    return []


def _evaluations(plan: RunPlan) -> Iterator[Callable[[], Any]]:
    """Yields what evaluates each forecast of a run abstractly."""
    model = replace(plan.model, dims=ParallelDims()).build(jax.devices())
    noise = Noise(jax.random.key(0))
    state = jax.eval_shape(model.init, noise.key)
    objective = plan.objective
    trained = [(stage.loader, stage.objective) for stage in plan.stages]
    runs: list[tuple[Loader | None, Callable[..., Any] | None, Rollout]]
    runs = [
        (loader, with_parts(each.loss, each.metrics), each.rollout)
        for loader, each in trained or [(plan.loaders["train"], objective)]
    ]
    valid = plan.loaders.get("valid")
    runs.append((valid, objective.evaluate, objective.valid_rollout))
    for loader, measure, rollout in runs:
        if loader is None or loader.shapes is None or measure is None:
            continue
        evaluate = make_eval_step(model, measure, rollout=rollout)
        yield partial(jax.eval_shape, evaluate, *state, loader.shapes, noise)


def _updates(plan: RunPlan) -> Iterator[Callable[[], Any]]:
    """Yields what runs a training step of the user's own abstractly."""
    model = replace(plan.model, dims=ParallelDims())
    setup = prepare(replace(plan, model=model), jax.devices()[:1])
    for stage in setup.stages or (setup,):
        shapes = stage.train_loader.shapes

        def update(stage: Setup = stage, shapes: Any = shapes) -> Any:
            batch = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), shapes
            )
            state, proceed = jax.eval_shape(stage.fresh_state), jnp.int32(1)
            step = stage.train_step(stage.schedule)
            return jax.eval_shape(step, state, batch, None, proceed)

        if shapes is not None:
            yield update


def _check_base(plan: RunPlan) -> None:
    """Compares the data of a run with its base, if it has one."""
    finetune, config = plan.config.trainer.finetune, plan.config
    base = base_of_run(config)
    if finetune is None or base is None:
        return
    options = {"open_files": plan.open_files, "grid": plan.model.grid}
    loader = build_loader(config, split="train", like=base.like(finetune), **options)
    base.match(loader.schema, config, plan.units, plan.model.model_def)
