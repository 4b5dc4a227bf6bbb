"""Fit scalers, or write a store: `python -m credit_jax.preprocess --config FILE`.

Fits the scalers of each `bridgescaler_transform`, as CREDIT's `credit preprocess` does,
and the means and deviations of each `era5_normalizer`, to the training data. CREDIT can
read the files. The covariance of `assimilation.background` is fitted to forecasts.
`--store DIR` writes what training reads into one Zarr store instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from credit_jax.assimilation.background_fit import fit_background_file
from credit_jax.cli.commands import OK, print_line, run_module
from credit_jax.cli.forecast.options import parse_shard
from credit_jax.cli.options import add_config_options, read_config
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.plan.scaler_fits import NothingToFitError
from credit_jax.training.data_store import write_store
from credit_jax.training.scaler_fitting import fit_scalers

# Defaults of the training sections, which CREDIT's configs for scalers leave out.
_ABSENT = {
    "model": {"type": "none"},
    "loss": {"training_loss": "mse"},
    "trainer": {"parallelism": {"data": "none", "tensor": 1, "domain": 1}},
}

HELP = (
    "Fit the scalers of a config, or its means and deviations, to the training data, "
    "or write the data into a store made for training."
)
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
    add(
        "--store",
        metavar="DIR",
        help="write all that training reads into this Zarr store, go on with a part of "
        "it, or check its digests; prints the config that reads it",
    )
    add(
        "--bits",
        type=int,
        choices=(16, 32),
        default=32,
        help="of a value of --store: float32 (default), or integers of 16 bits",
    )
    add(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="write the I-th of N parts of --store, for job arrays",
    )


def run(args: argparse.Namespace) -> int:
    """Fits the files of a config and writes them, after all have been fitted.

    With `--store` it writes the store, and prints the config on stdout; the exit code
    is 75 if parts are missing.

    Raises:
        ValueError, OSError: there is nothing to fit, or the data are damaged.
    """
    if args.store is not None:
        text = write_store(
            read_config(args.config, args.set),
            Path(args.store),
            bits=args.bits,
            shard=parse_shard(args.shard),
            num_threads=args.threads,
            console=Console(stderr=True),
        )
        print(text or "", end="")
        return RESUME if text is None else OK
    if args.bits != 32 or args.shard != "1/1":
        raise ValueError("--bits and --shard are of a store: name it with --store DIR")
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
