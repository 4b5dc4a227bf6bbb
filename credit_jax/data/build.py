"""Builds the loaders of a config, and checks their data."""

from typing import Literal, get_args

from credit_jax.config import Config
from credit_jax.config.dates import duration
from credit_jax.data.checks import check_dataset
from credit_jax.data.dataset import open_dataset
from credit_jax.data.loader import Loader
from credit_jax.data.sampler import Sampler
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.transforms import (
    Grid,
    Pipeline,
    build_pipeline,
    check_schema,
    check_units,
)

Split = Literal["train", "valid"]


def splits(config: Config) -> tuple[Split, ...]:
    """The splits of a run: without "valid" if `skip_validation` is set."""
    return ("train",) if config.trainer.skip_validation else get_args(Split)


def build_loader(
    config: Config,
    *,
    split: Split,
    local_dp_ranks: tuple[int, ...] = (0,),
    dp_size: int = 1,
    keep_partial: bool | None = None,
    pipeline: Pipeline | None = None,
    open_files: OpenFiles | None = None,
    grid: tuple[int, int] | None = None,
    like: Coordinates | None = None,
) -> Loader:
    """Builds the loader of a split; checks its files, times, grids and some samples.

    Args:
        config: the whole config; its model section is not read.
        split: "train" (shuffled) or "valid" (in order of time).
        local_dp_ranks: dp ranks whose devices belong to this process, increasing. Peers
            along tp and domain are one dp rank and get the same samples.
        dp_size: number of dp ranks of the whole mesh.
        keep_partial: whether an epoch ends with a smaller batch if samples are left
            over; by default only in validation, so that training compiles one program.
        pipeline: transforms of `build_pipeline`; None builds those of the config.
        open_files: cache of open files, shared with other loaders.
        grid: (latitudes, longitudes) of the model; None skips the comparison.
        like: coordinates of a run, at which fields are read; None takes those of the
            first file.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: the data or the transforms have problems, see `check_dataset`,
            `Sampler`, `build_pipeline`.

    Differs from CREDIT: training drops samples that do not fill a batch; CREDIT ends
    the epoch with a smaller one.
    """
    train = split == "train"
    if pipeline is None:
        pipeline = build_pipeline(config.preblocks, config.postblocks)
    shared_grid = pipeline.grid is None
    dataset = open_dataset(
        config.data if train else config.validation_data,
        open_files,
        like=like,
        shared_grid=shared_grid,
    )
    lines = check_dataset(dataset, grid, shared_grid=shared_grid)
    _check_new_grid(pipeline.grid, grid)
    check_schema(pipeline, dataset.schema.as_read())
    pipeline = pipeline.at(dataset.schema.as_read(), dataset.coordinates().grid)
    if dataset.further is not None:
        for schema in dataset.further.schemas.values():
            check_schema(pipeline, schema.as_read())
    check_units(pipeline, dataset.units())
    trainer = config.trainer
    size = trainer.train_batch_size if train else trainer.valid_batch_size
    workers = trainer.thread_workers if train else trainer.valid_thread_workers
    length = duration(trainer.shuffle.window) if trainer.shuffle.window else None
    if train and length is not None:
        dataset = dataset.keeping(length)
    sampler = Sampler(
        num_samples=len(dataset),
        batch_size=size,
        local_dp_ranks=tuple(local_dp_ranks),
        dp_size=dp_size,
        seed=config.seed,
        shuffle=train,
        keep_partial=not train if keep_partial is None else keep_partial,
        window=length.to_timedelta64() if train and length is not None else None,
        starts=dataset.starts,
    )
    ahead = trainer.prefetch_factor
    return Loader(dataset, sampler, pipeline, workers, ahead, tuple(lines)).probe()


def _check_new_grid(new_grid: Grid | None, grid: tuple[int, int] | None) -> None:
    """Checks that preblocks that regrid make the model's grid."""
    if new_grid is not None and grid is not None and new_grid.shape != grid:
        raise ValueError(
            f"preblocks: regrid makes fields of {new_grid.shape[0]} x "
            f"{new_grid.shape[1]} (latitude x longitude), the model has image_height "
            f"{grid[0]} x image_width {grid[1]}; take other weights, or set them to "
            f"{new_grid.shape[0]} and {new_grid.shape[1]}"
        )
