"""The trained model and the plan of a command that forecasts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax

from credit_jax.cli.commands import print_line
from credit_jax.cli.options import warnings_as_notes
from credit_jax.config import Config, load_config
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.forecast.outputs import Outputs, outputs_of
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.packages.channel_table import channel_groups
from credit_jax.packages.package import Package, is_package, open_package
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.forecast import ForecastPlan, plan_forecast
from credit_jax.training.channel_match import check_forecast_units
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
        if args.base is not None:
            raise ValueError("--base belongs to --package; a run has all its weights")
        return None
    if conflicting:
        raise ValueError(
            f"--package has its config and weights; leave out {', '.join(conflicting)}"
        )
    return open_package(args.package, args.base)


def config_of(
    args: argparse.Namespace,
    package: Package | None,
    sections: Mapping[str, Any] = MappingProxyType({}),
) -> Config:
    """The config of the run or of the package; its sections are checked.

    Args:
        args: the options.
        package: the package; None for a run.
        sections: further sections of the config of a package.
    """
    with warnings_as_notes():
        config = (
            load_config(args.config, args.set, forecasts=True)
            if package is None
            else package.config(args.set, args.data, sections=sections)
        )
    with warnings_as_notes():
        _ = config.inference
    return config


def weights_of(args: argparse.Namespace, config: Config) -> RunWeights:
    """The weights of a checkpoint of the run.

    Raises:
        ValueError: there is a package in its place, or no checkpoint, or the config is
            not that of the run.
    """
    source = args.checkpoint or config.save_loc
    if is_package(source):
        raise ValueError(
            f"--checkpoint: {source} is a package, which has its config and weights; "
            f"give --package {source} instead of --config and --checkpoint"
        )
    weights = open_weights(source, args.step, args.weights, verify=args.verify)
    print_lines([f"note: {note}" for note in weights.compare(config)], "yellow")
    return weights


@dataclass(frozen=True, eq=False)
class PlannedForecasts:
    """A trained model on its mesh, and the forecasts that it is to make.

    Attributes:
        checkpoint: the run or the package.
        plan: the plan of the forecasts.
        model: the model of the plan, on its mesh.
        outputs: variables of the forecasts.
    """

    checkpoint: Package | RunWeights
    plan: ForecastPlan
    model: ParallelModel
    outputs: Outputs


def planned_forecasts(
    args: argparse.Namespace,
    config: Config,
    package: Package | None,
    *,
    init_times: Sequence[str],
    num_steps: int | None = None,
    length: str | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    state_before: int | None = None,
) -> PlannedForecasts:
    """Opens the weights, plans the forecasts, and builds the model on its mesh.

    Notes are printed, also on files that have changed since the training.

    Args:
        args: the options.
        config: config of the run or the package.
        package: the package; None for a run.
        init_times, num_steps, length, state_before: see `plan_forecast`.
        changes: keys of the inference section that the command line replaces.

    Raises:
        ConfigError: the forecasts cannot be made.
        ValueError, OSError: there are no weights, or the data are not those of the
            package.
    """
    # Before a checkpoint is opened, which initializes JAX and fixes the devices.
    devices = forward_devices(parse_parallelism(args.parallelism), args.devices)
    checkpoint = package or weights_of(args, config)
    like = checkpoint.coordinates
    plan = plan_forecast(
        config,
        parse_parallelism(args.parallelism),
        num_devices=len(devices),
        init_times=init_times,
        num_steps=num_steps,
        length=length,
        overrides=changes,
        like=like,
        state_before=state_before,
    )
    units = checkpoint.units, plan.reader.units
    others = check_forecast_units(*units, plan.inference, "this forecast cannot start")
    if like is None:
        print_lines([f"note: {no_coordinates(checkpoint.path)}"], "yellow")
    print_lines([f"note: {note}" for note in (*plan.notes, *others)], "yellow")
    policy = default_mp_policy(args.precision, matmul_precision=args.matmul_precision)
    model = plan.model.build(devices, mp_policy=policy)
    if isinstance(checkpoint, RunWeights):
        checkpoint = replace(checkpoint, channels=plan.schema.names)
    outputs = outputs_of(plan, model)
    if package is not None:
        groups = channel_groups(plan.schema, plan.reader.data.further)
        package.check_data(groups, outputs.latitude, outputs.longitude)
        outputs = package.described(outputs)
    return PlannedForecasts(checkpoint, plan, model, outputs)


def print_lines(lines: Iterable[str], style: str = "") -> None:
    """Prints lines, in the first process."""
    for line in lines if jax.process_index() == 0 else ():
        print_line(line, style)
