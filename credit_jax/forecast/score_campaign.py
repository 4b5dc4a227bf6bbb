"""Makes and scores the forecasts of a plan, as at the end of training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from credit_jax.data.named_data import NamedData
from credit_jax.evaluation.comparison import attributes_of
from credit_jax.evaluation.opening import ScoreOptions
from credit_jax.evaluation.regions import REGIONS
from credit_jax.forecast.archive import Archive, software
from credit_jax.forecast.campaign import Campaign, CampaignSettings
from credit_jax.forecast.identity import identity_of
from credit_jax.forecast.online_scores import online_scores
from credit_jax.forecast.outputs import outputs_of
from credit_jax.forecast.stores import ForecastStore, NoStore
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.plan.forecast import ForecastPlan


def score_campaign(
    plan: ForecastPlan,
    model: ParallelModel,
    weights: Any,
    folder: Path,
    *,
    options: ScoreOptions | None = None,
    batch: int = 1,
    store: ForecastStore | None = None,
    attributes: Mapping[str, Any] | None = None,
    fill_nan: bool = False,
) -> xr.Dataset:
    """Makes and scores forecasts from all start dates of a plan.

    Forecasts that are done in the folder are not made again.

    Args:
        plan: plan, as returned by `plan_forecast`.
        model: model on its mesh.
        weights: weights of `Forecaster.weights`.
        folder: folder of the record and of the sums; the same in all processes.
        options: truth and climatology; by default the data section of the plan, and
            means of the training period.
        batch: forecasts per data-parallel rank; all members of a start date must be in
            one batch.
        store: store to which fields are written; None writes none.
        attributes: further attributes of the data set.
        fill_nan: whether values that are not finite are missing; otherwise an error.

    Returns:
        The data set of `evaluation.scores`.

    Raises:
        ValueError: data for the scores are missing, or the folder contains forecasts
            with another identity.
        NonFiniteForecastError: values are not finite, and `fill_nan` is False.
    """
    schedule, outputs = plan.schedule, outputs_of(plan, model)
    size = batch * model.axes.num_data
    if options is None:
        training = NamedData.before(plan.config.preblocks, plan.config.data)
        options = ScoreOptions(plan.truth, training=training)
    scores = online_scores(options, REGIONS, schedule, model, outputs, size, folder)
    provenance = software()
    identity = identity_of(plan, model)
    archive = Archive(
        folder,
        schedule,
        identity,
        provenance,
        outputs.coordinates,
        plan.digests,
    )
    archive.check(schedule.tasks, resume=True)
    wait_for_all("the folder of scored forecasts")
    store = NoStore() if store is None else store
    Campaign.of_plan(
        plan,
        model,
        weights,
        outputs,
        store,
        archive,
        schedule.groups(size),
        size,
        CampaignSettings(num_writers=1, fill_nan=fill_nan),
        scores=scores,
    ).run()
    wait_for_all("the sums of scored forecasts")
    described = attributes_of(str(folder), scores.comparison, provenance)
    result = scores.scores({**described, **(attributes or {})})
    assert result is not None, "all start dates are done"
    return result
