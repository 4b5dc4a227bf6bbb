"""Fit scalers: `python -m credit_jax.preprocess --config FILE`.

Fits the scalers of each `bridgescaler_transform`, as CREDIT's `credit preprocess` does,
and the means and deviations of each `era5_normalizer`, to the training data. CREDIT can
read the files. The covariance of `assimilation.background` is fitted to forecasts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from credit_jax.assimilation.background_fit import fit_background_file
from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.options import add_config_options, read_config
from credit_jax.plan.scaler_fits import NothingToFitError
from credit_jax.training.scaler_fitting import fit_scalers

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
    lines = fit_background_file(config, overwrite=args.overwrite)
    try:
        fit_scalers(config, num_threads=args.threads, overwrite=args.overwrite)
    except NothingToFitError:
        if not lines:
            raise
    for line in lines:
        print_line(line)
    return OK


if __name__ == "__main__":
    sys.exit(main())
