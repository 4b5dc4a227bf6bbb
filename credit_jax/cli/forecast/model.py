"""The trained model and the plan of a command that forecasts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from credit_jax.cli.commands import print_line
from credit_jax.cli.options import warnings_as_notes
from credit_jax.config import Config, load_config
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.packages.package import Package, is_package, open_package
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.forecast import ForecastPlan, plan_forecast
from credit_jax.training.restore import no_coordinates
from credit_jax.training.run_weights import RunWeights, open_weights


def package_of(args: argparse.Namespace) -> Package | None:
    """The model package of the command line; None for a run.

    Raises:
        ValueError: both or neither are given, or the package is invalid.
    """
    of_run = ("config", "checkpoint", "step", "weights")
    conflicting = [f"--{name}" for name in of_run if getattr(args, name) is not None]
    if args.package is None:
        if args.config is None:
            raise ValueError("--config FILE or --package DIR is needed")
        if args.data is not None:
            raise ValueError("--data belongs to --package; a config has its data")
        return None
    if conflicting:
        raise ValueError(
            f"--package has its config and weights; leave out {', '.join(conflicting)}"
        )
    return open_package(args.package)


def config_of(args: argparse.Namespace, package: Package | None) -> Config:
    """The config of the run or of the package; its sections are checked."""
    with warnings_as_notes():
        config = (
            load_config(args.config, args.set, forecasts=True)
            if package is None
            else package.config(args.set, args.data)
        )
    with warnings_as_notes():
        _ = config.inference
    return config


def weights_of(args: argparse.Namespace, config: Config) -> RunWeights:
    """The weights of a checkpoint of the run.

    Raises:
        ValueError: there is a package in its place, or no checkpoint.
    """
    source = args.checkpoint or config.save_loc
    if is_package(source):
        raise ValueError(
            f"--checkpoint: {source} is a package, which has its config and weights; "
            f"give --package {source} instead of --config and --checkpoint"
        )
    return open_weights(source, args.step, args.weights, verify=args.verify)


def planned(
    args: argparse.Namespace,
    config: Config,
    checkpoint: Package | RunWeights,
    devices: Sequence[Any],
    changes: Mapping[str, Any],
) -> tuple[ForecastPlan, ParallelModel]:
    """Plans the forecasts, builds the model on its mesh, and prints the notes.

    Args:
        args: the options.
        config: config of the run or the package.
        checkpoint: the run or the package.
        devices: devices of the mesh.
        changes: keys of the inference section that the command line replaces.

    Raises:
        ConfigError: the forecasts cannot be made.
    """
    like = checkpoint.coordinates
    plan = plan_forecast(
        config,
        parse_parallelism(args.parallelism),
        num_devices=len(devices),
        init_times=args.init_time,
        num_steps=args.steps,
        length=args.length,
        overrides=changes,
        like=like,
    )
    if like is None:
        print_lines([f"note: {no_coordinates(checkpoint.path)}"], "yellow")
    print_lines([f"note: {note}" for note in plan.notes], "yellow")
    policy = default_mp_policy(args.precision, matmul_precision=args.matmul_precision)
    return plan, plan.model.build(devices, mp_policy=policy)


def print_lines(lines: Iterable[str], style: str = "") -> None:
    """Prints lines, in the first process."""
    for line in lines if jax.process_index() == 0 else ():
        print_line(line, style)
