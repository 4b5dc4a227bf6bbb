"""Where forecasts and their scores are written."""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from credit_jax.cli.commands import print_line
from credit_jax.cli.score import score_options
from credit_jax.config import dump_config
from credit_jax.evaluation.opening import in_order
from credit_jax.evaluation.regions import choose_regions
from credit_jax.forecast.archive import TRAINING_DATES, Archive, software
from credit_jax.forecast.identity import identity_of
from credit_jax.forecast.netcdf import NetcdfStore
from credit_jax.forecast.online_scores import OnlineScores, online_scores
from credit_jax.forecast.outputs import Outputs
from credit_jax.forecast.stores import ForecastStore, NoStore
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.io.netcdf import attribute_value
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.packages.package import Package
from credit_jax.parallel.params.precision import Precision
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.training.run_weights import RunWeights

_SCORE_OPTIONS = ("truth", "climatology", "regions", "variables")


def scores_of(
    args: argparse.Namespace,
    plan: ForecastPlan,
    model: ParallelModel,
    outputs: Outputs,
    size: int,
    folder: Path,
    checkpoint: RunWeights | Package,
) -> OnlineScores | None:
    """Returns the scores requested by `--score`, or None.

    Raises:
        ValueError: an option of scores is given without --score, or data are missing.
    """
    if args.score is None:
        conflicting = [name for name in _SCORE_OPTIONS if getattr(args, name)]
        if conflicting:
            raise ValueError(f"--{conflicting[0]} belongs to --score DIR")
        return None
    scores = online_scores(
        score_options(args, plan.config, checkpoint.training_dates),
        choose_regions(in_order(args.regions)),
        plan.schedule,
        model,
        outputs,
        size,
        folder,
    )
    for note in scores.comparison.notes if jax.process_index() == 0 else ():
        print_line(f"note: {note}", "yellow")
    return scores


def places_of(
    args: argparse.Namespace,
    plan: ForecastPlan,
    model: ParallelModel,
    folder: Path,
    outputs: Outputs,
    checkpoint: RunWeights | Package,
) -> tuple[ForecastStore, Archive]:
    """Returns the store that forecasts are written to, and its archive.

    Raises:
        ValueError: the encoding of NetCDF files is invalid.
    """
    schedule, config = plan.schedule, plan.inference.output
    form = args.format or config.format
    identity = {
        **identity_of(plan, model, form),
        "format": f"zarr {args.zarr_format}" if form == "zarr" else form,
        "checkpoint": checkpoint.digest,
        "precision": _precision(model.parallel_config.precision),
        "weights": "average" if checkpoint.average else "last",
    }
    if args.score is not None:
        identity["scores"] = {name: getattr(args, name) for name in _SCORE_OPTIONS}
    provenance = {
        "config": dump_config(plan.config),
        "checkpoint": str(checkpoint.path),
        "checkpoint_step": checkpoint.step,
        "checkpoint_digest": checkpoint.digest,
        TRAINING_DATES: [list(pair) for pair in checkpoint.training_dates],
        **software(),
    }
    archive = Archive(
        folder,
        schedule,
        identity,
        provenance,
        outputs.coordinates,
        plan.digests,
    )
    if form == "none":
        return NoStore(), archive
    if form == "netcdf":
        store = NetcdfStore(folder, outputs, schedule, config)
        store.check()
        return store, archive
    attributes = {key: attribute_value(value) for key, value in provenance.items()}
    return (
        ZarrStore(folder, outputs, schedule, attributes, args.zarr_format, config),
        archive,
    )


def _precision(precision: Precision) -> str:
    """The dtype of the forecasts, and their matmul precision if it is no default."""
    name = precision.compute.name
    return name if precision.matmul == "highest" else f"{name} {precision.matmul}"
