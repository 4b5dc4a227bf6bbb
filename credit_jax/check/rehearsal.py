"""Traces a run on one device, to find what only its arrays show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.data import Split
from credit_jax.nn.noise import Noise
from credit_jax.plan import RunPlan
from credit_jax.plan.model import plan_model
from credit_jax.training.step import make_eval_step
from credit_jax.transforms import Rollout


def rehearse(plan: RunPlan) -> list[str]:
    """Returns the problems of the forecasts, losses and metrics of a run.

    They are evaluated abstractly for one sample on one device: shapes meet as in the
    run, and nothing is computed or compiled.

    Args:
        plan: without problems; one without data has none here.
    """
    objective = plan.objective
    # The members of this loss are the data-parallel ranks.
    if objective is None or plan.config.loss.members_are_ranks:
        return []
    alone = plan_model(
        plan.config.model, ParallelismConfig.model_validate({}), num_devices=1
    )
    model = alone.build(jax.devices()[:1])
    noise = Noise(jax.random.key(0))
    state = jax.eval_shape(model.init, noise.key)

    def training(tree: Any, context: Any) -> Mapping[str, Any]:
        metrics = objective.metrics(tree, context)
        return {**metrics, "loss": objective.loss(tree, context)}

    runs: dict[Split, tuple[Callable[..., Any] | None, Rollout]] = {
        "train": (training, objective.rollout),
        "valid": (objective.evaluate, objective.valid_rollout),
    }
    found = []
    for split, (measure, rollout) in runs.items():
        loader = plan.loaders.get(split)
        if loader is None or loader.shapes is None or measure is None:
            continue
        evaluate = make_eval_step(model, measure, rollout=rollout)
        try:
            jax.eval_shape(evaluate, *state, loader.shapes, noise)
        except ValueError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))
