"""Fit scalers: `python -m credit_jax.preprocess --config FILE`.

Fits the scalers of each `bridgescaler_transform`, as CREDIT's `credit preprocess` does,
and the means and deviations of each `era5_normalizer`, to the training data. CREDIT can
read the files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from credit_jax.cli.commands import OK, run_module
from credit_jax.cli.options import add_config_options, read_config
from credit_jax.config import Config
from credit_jax.preprocess.fits import ScalerFit
from credit_jax.preprocess.fitting import (
    fit_samples,
    open_samples,
    results,
    write_fits,
)
from credit_jax.preprocess.planning import plan_fits
from credit_jax.training.display import Display

# Defaults of the training sections, which CREDIT's configs for scalers leave out.
_ABSENT = {
    "model": {"type": "none"},
    "loss": {"training_loss": "mse"},
    "trainer": {"parallelism": {"data": "none", "tensor": 1, "domain": 1}},
}

HELP = "Fit the scalers of a config, or its means and deviations, to the training data."
EXAMPLE = "--config configs/demo.yaml"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.preprocess`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.preprocess")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `preprocess`."""
    add_config_options(parser)
    add = parser.add_argument
    add("--threads", type=int, help="that read; by default trainer.thread_workers")
    add(
        "--overwrite",
        action="store_true",
        help="fit files anew that are there; the old ones are moved aside",
    )


def run(args: argparse.Namespace) -> int:
    """Fits the files of a config and writes them, after all have been fitted.

    Raises:
        ValueError, OSError: there is nothing to fit, or the data are damaged.
    """
    config = read_config(args.config, args.set, absent=_ABSENT)
    preprocess(config, num_threads=args.threads, overwrite=args.overwrite)
    return OK


def preprocess(
    config: Config,
    *,
    num_threads: int | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> list[Path]:
    """Fits the scalers, means and deviations of a config, as the command does.

    Args:
        config: the config, see `load_config`.
        num_threads: number of threads that read; None uses `trainer.thread_workers`.
        overwrite: whether to fit existing files again; old ones are renamed.
        console: console that receives messages; None is stdout.

    Returns:
        The files that were written.

    Raises:
        ValueError, OSError: there is nothing to fit, or the data are damaged.
    """
    if num_threads is None:
        num_threads = config.trainer.thread_workers
    plan = plan_fits(config.preblocks, overwrite=overwrite)
    samples = open_samples(config, in_order=plan.in_order)
    schema = samples.dataset.schema.as_read()
    plan = plan.with_units(samples.dataset.units()).with_levels(schema)
    with Display(console) as display:
        for path in plan.existing:
            display.message(f"note: {path} is there and kept")
        for path in plan.unpaired:
            display.message(
                f"note: {path} is there without the other file of the pair: both are "
                "fitted anew, and it is moved to a name with the time"
            )
        for line in (*plan.notes(schema), *_notes_of_channels(plan.fits)):
            display.message(f"note: {line}")
        collected = fit_samples(plan, samples, display, num_threads=num_threads)
        moved = write_fits(plan, collected)
        for _, name, statistics in results(plan, collected):
            display.message(f"  {name}: {statistics.summary()}")
        for old, new in moved:
            display.message(f"{old} is now {new}")
        written = [path for fit in plan.fits for path in fit.files]
        for path in written:
            display.message(f"Fitted to {samples.count} samples: {path}")
    return written


def _notes_of_channels(fits: Sequence[object]) -> list[str]:
    """Notes on scalers whose channels are longitudes, which is CREDIT's default."""
    return [
        f"{fit.path}: one scaler for each longitude, as in CREDIT; for one a level "
        "write scaler_params: {channels_last: false}"
        for fit in fits
        if isinstance(fit, ScalerFit) and fit.params.channels_last
    ]


if __name__ == "__main__":
    sys.exit(main())
