"""Fit scalers, or write a store: `python -m credit_jax.preprocess --config FILE`.

Fits the scalers of each `bridgescaler_transform`, as CREDIT's `credit preprocess` does,
and the means and deviations of each `era5_normalizer`, to the training data. CREDIT can
read the files. The covariance of `assimilation.background` is fitted to forecasts.
`--store DIR` writes what training reads into one Zarr store instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from credit_jax.cli.commands import OK, ConfigOptions, option, parse_shard, print_line
from credit_jax.config.components import extensions
from credit_jax.extensions.preprocess.data_store import write_store
from credit_jax.extensions.preprocess.scaler_fitting import (
    NothingToFitError,
    fit_scalers,
)
from credit_jax.parallel.processes.watch import RESUME

# Defaults of the training sections, which CREDIT's configs for scalers leave out.
_ABSENT = {
    "model": {"type": "none"},
    "loss": {"training_loss": "mse"},
    "trainer": {"parallelism": {"data": "none", "tensor": 1, "domain": 1}},
}


class Preprocess(ConfigOptions):
    """Fit the scalers of a config, or its means and deviations, to the training data.

    With --store, write the data into a store made for training instead.
    """

    example = "--config configs/demo.yaml"

    threads: int | None = option("that read; by default trainer.thread_workers", None)
    overwrite: bool = option(
        "fit files anew that are there; the old ones are moved aside", False
    )
    store: str | None = option(
        "write all that training reads into this Zarr store, go on with a part of it, "
        "or check its digests; prints the config that reads it",
        None,
        "DIR",
    )
    bits: Literal[16, 32] = option(
        "of a value of --store: float32, or integers of 16 bits", 32
    )
    shard: str | None = option(
        "write the I-th of N parts of --store, or of the statistics, for job arrays",
        None,
        "I/N",
    )
    merge: bool = option(
        "merge the statistics of all --shard, and write the files", False
    )
    exclusive = ("store", "merge")

    def run(self) -> int:
        """Fits the files of a config and writes them, after all have been fitted."""
        if self.store is not None:
            text = write_store(
                self.read_config(),
                Path(self.store),
                bits=self.bits,
                shard=parse_shard(self.shard or "1/1"),
                num_threads=self.threads,
                console=Console(stderr=True),
            )
            print(text or "", end="")
            return RESUME if text is None else OK
        if self.bits != 32:
            raise ValueError("--bits is of a store: name it with --store DIR")
        if self.shard and self.merge:
            raise ValueError("--merge writes all files; give it without --shard")
        shard = parse_shard(self.shard) if self.shard else None
        config = self.read_config(absent=_ABSENT)
        lines: list[str] = []
        # Those that are fitted to forecasts have no parts.
        points = {} if shard else extensions("preprocess")
        for point in points.values():
            lines += point.load()(config, overwrite=self.overwrite)
        try:
            fit_scalers(
                config,
                num_threads=self.threads,
                overwrite=self.overwrite,
                shard=shard,
                merge=self.merge,
            )
        except NothingToFitError:
            if not lines:
                raise
        for line in lines:
            print_line(line)
        return OK


main = Preprocess.main
