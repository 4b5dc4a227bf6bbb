"""The options of `forecast`, and functions that read them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, get_args

from credit_jax.cli.options import (
    add_checkpoint_options,
    add_config_options,
    add_mesh_options,
    add_process_options,
    add_stop_option,
    add_verify_option,
)
from credit_jax.cli.score import add_score_options
from credit_jax.config.inference import InferenceConfig, PerturbationConfig
from credit_jax.parallel.compiler import CACHE_HELP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `forecast`."""
    add_model_options(parser)
    add = parser.add_argument
    add(
        "--init-time",
        action="append",
        default=[],
        metavar="DATE",
        help="start date, instead of those of the inference section; repeatable",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help="steps of each forecast")
    length.add_argument(
        "--length", metavar="DURATION", help="length of each forecast: 10d"
    )
    add("--members", type=int, help="ensemble members of each forecast")
    add(
        "--perturbation",
        choices=get_args(PerturbationConfig.model_fields["type"].annotation),
        help="how their initial states differ, instead of inference.perturbation.type",
    )
    add_mesh_options(parser)
    add_verify_option(parser)
    add("--batch", type=int, default=1, help="forecasts side by side on a device")
    add("--out", metavar="DIR", help="folder, instead of inference.save_forecast")
    add(
        "--format",
        choices=("netcdf", "zarr", "none"),
        help="instead of that of the config; none writes scores alone",
    )
    add("--zarr-format", type=int, choices=(2, 3), default=3, help="version of Zarr")
    add(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="make the I-th of N parts of the forecasts, for job arrays",
    )
    add(
        "--resume", action="store_true", help="make only the forecasts that are missing"
    )
    add(
        "--nan",
        choices=("raise", "fill"),
        default="raise",
        help="values that are not finite end the command, or are missing values",
    )
    add(
        "--writers",
        type=int,
        default=max(1, min(4, (os.cpu_count() or 1) // 2)),
        help="threads that write files (default: half as many as cores, 1 to 4)",
    )
    add("--score", metavar="DIR", help="score the forecasts, and write scores there")
    add_score_options(parser)
    add("--cache", metavar="DIR", help=CACHE_HELP)
    add_stop_option(parser)
    add_process_options(parser)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name a trained model, a run or a package."""
    add_config_options(parser, required=False)
    add = parser.add_argument
    add("--package", metavar="DIR", help="a model package, instead of --config")
    add("--base", metavar="PATH", help="with --package: what its adapters belong to")
    add("--data", metavar="FILE", help="with --package: YAML of its data section")
    add_checkpoint_options(parser)


def folder_of(inference: InferenceConfig | None, out: str | None) -> Path:
    """The folder of the forecasts.

    Raises:
        ValueError: neither the command line nor the config names one.
    """
    named = out or (inference.save_forecast if inference else None)
    if not named:
        raise ValueError("--out DIR is needed: inference.save_forecast names no folder")
    if "$" in (expanded := os.path.expandvars(named)):
        raise ValueError(
            f"inference.save_forecast: {expanded!r} holds an environment variable that "
            "is not set; set it, or give --out"
        )
    return Path(expanded).resolve()


def parse_shard(text: str) -> tuple[int, int]:
    """Parses "I/N" into the number of the part, from 1, and the number of parts.

    >>> parse_shard("2/8")
    (2, 8)
    """
    number, _, count = text.partition("/")
    if number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise ValueError(
        f"--shard must be I/N with I from 1 to N, such as 2/8, got {text!r}"
    )


def overrides(
    args: argparse.Namespace, inference: InferenceConfig | None
) -> dict[str, Any]:
    """Keys of the inference section that the command line replaces.

    Args:
        args: the command line.
        inference: the section.

    Raises:
        ValueError: --members, --batch or --writers is below 1.
    """
    settings: dict[str, Any] = {}
    if args.members is not None:
        if args.members < 1:
            raise ValueError(f"--members must be at least 1, got {args.members}")
        settings["members"] = args.members
    if args.perturbation is not None:
        perturbation = (inference or InferenceConfig()).perturbation
        changed = {"type": args.perturbation}
        settings["perturbation"] = perturbation.model_copy(update=changed)
    for name in ("batch", "writers"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    return settings
