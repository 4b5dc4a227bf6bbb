"""Fits files in one pass over the training data, by several threads.

The samples are those of CREDIT's `credit preprocess` in one process: the batches of the
first epoch of training with one forecast step, at most `trainer.batches_per_epoch`.
They are read in order of time, so that neighbors are in the same chunks. Quantile
scalers depend on the order and the size of batches; if there is one, batches are read
in CREDIT's order. All others may be fitted by many jobs, each to a part of the samples:
merged parts are within 1e-12 of what one job fits.

Besides scalers these are the variances of tendencies, by which `loss.tendency_weights`
weighs channels. A tendency is the change of a predicted variable in one step, as the
model sees it: after all preblocks, the target minus the last input time.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from credit_jax.config import Config
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.data import Dataset, Loader, Sample, Sampler, build_loader, open_dataset
from credit_jax.data.dataset import collate
from credit_jax.data.values import check_sample, files_named
from credit_jax.io.activity import activity
from credit_jax.io.atomic import move_aside, new_file
from credit_jax.io.errors import errors_of
from credit_jax.io.mirror import local_path
from credit_jax.plan.run_record import TENDENCIES, weight_files
from credit_jax.training.display import Display
from credit_jax.transforms import FieldTree, TreeSchema, build_pipeline
from credit_jax.transforms.base import OfVariables, variable_of
from credit_jax.transforms.build import GRID_TYPES, parse_pipeline
from credit_jax.transforms.pipeline import Block
from credit_jax.transforms.scaling import ScalerPreblock
from credit_jax.transforms.statistics import (
    Collected,
    Fitted,
    MeanAndVariance,
    Statistics,
    VariableFacts,
    leaves,
    load_statistics,
    merge_trees,
    save_statistics,
)


class NothingToFitError(ValueError):
    """No block of a config is to be fitted."""


@dataclass(frozen=True)
class FitPlan:
    """The blocks to fit."""

    # The preblocks up to the last one to fit, in execution order, without scalers and
    # normalizers whose files exist.
    chain: tuple[Block, ...]
    existing: tuple[Path, ...] = ()  # existing files that are not fitted again
    # Existing files without the other one of their pair, as where the command was
    # killed between them; both are fitted again.
    unpaired: tuple[Path, ...] = ()
    # Path of a block to fit -> what is known of the variables before it.
    facts: Mapping[str, VariableFacts] = field(default_factory=dict)
    # Variables that the data lack, which are ignored, as in CREDIT.
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> dict[str, Fitted]:
        """Path -> block, for those to fit."""
        blocks = ((block.path, block.transform) for block in self.chain)
        return {path: fit for path, fit in blocks if isinstance(fit, Fitted)}

    @property
    def in_order(self) -> bool:
        """Whether a fit depends on the order and the size of batches."""
        return any(fit.in_order for fit in self.fits.values())

    def collect(self, tree: FieldTree) -> dict[str, Collected]:
        """Computes the statistics of one batch, by the path of the block."""
        collected = {}
        # Each is fitted to the output of those before it, without scalers.
        for block in self.chain:
            if isinstance(block.transform, Fitted):
                with errors_of(block.path):
                    collected[block.path] = block.transform.collect(tree)
            else:
                tree = block(tree)
        return collected

    def of_data(
        self, schema: TreeSchema, units: Mapping[str, tuple[str, str]]
    ) -> FitPlan:
        """Returns a copy with what is known of the variables of the data, and notes."""
        facts, notes = {}, list[str]()
        units_by_key = {key: unit for key, (unit, _) in units.items()}
        for block in self.chain:
            transform = block.transform
            if isinstance(transform, Fitted):
                groups = [group for part in schema.values() for group in part]
                facts[block.path] = VariableFacts(
                    {variable_of(key): unit for key, unit in units_by_key.items()},
                    {variable_of(g.var_key): g.levels for g in groups if g.levels},
                )
                if isinstance(transform, OfVariables):
                    lines = transform.unmatched(g.var_key for g in groups)
                    notes += [f"{block.path}.args.variables: {line}" for line in lines]
                continue
            units_by_key = {
                transform.effects.renames.get(key, key): unit
                for key, unit in units_by_key.items()
                if transform.keeps_units or not transform.changes(key)
            }
            schema = transform.schema_after(schema)
        return replace(self, facts=facts, notes=tuple(notes))


def plan_fits(preblocks: PreblocksConfig, *, overwrite: bool = False) -> FitPlan:
    """Finds the blocks whose files are to be fitted."""
    chain, every = list[Block](), dict[str, Fitted]()
    existing, unpaired = list[Path](), list[Path]()
    for block in parse_pipeline(preblocks).blocks:
        fit = block.transform
        if not isinstance(fit, Fitted):
            chain.append(block)
            continue
        if isinstance(fit, ScalerPreblock):
            with errors_of(block.path):
                _ = fit.params  # checks them
        every[block.path] = fit
        files = fit.fitted_files
        present = [] if overwrite else [file for file in files if file.exists()]
        if len(present) < len(files):
            unpaired += present
            present = []
        existing += present
        chain += [] if present else [block]
    if not every:
        raise NothingToFitError(
            "preblocks: there is no block of type bridgescaler_transform or "
            "era5_normalizer, nothing to fit"
        )
    seen: dict[Path, str] = {}
    for path, fit in every.items():
        for file in fit.fitted_files:
            resolved = Path(local_path(str(file))).expanduser().resolve()
            if resolved in seen:
                raise ValueError(
                    f"{seen[resolved]} and {path} name one file, {file}; give each "
                    "block its own"
                )
            seen[resolved] = path
    while chain and not isinstance(chain[-1].transform, Fitted):
        chain.pop()
    if not chain:
        raise NothingToFitError(
            f"nothing to fit: {', '.join(map(str, existing))} "
            f"{'are' if len(existing) > 1 else 'is'} there; --overwrite fits anew and "
            "moves the old file aside"
        )
    for block in chain:
        if not isinstance(block.transform, Fitted):
            with errors_of(block.path):
                block.transform.open()
    return FitPlan(tuple(chain), tuple(existing), tuple(unpaired))


# (function, items) -> results in order, such as `map`.
Mapped = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


@activity("fitting tendencies")
def fit_tendencies(
    config: Config,
    path: Path,
    display: Display,
    *,
    mapped: Mapped = map,
    parts: Parts | None = None,
) -> None:
    """Fits the variances of the tendencies of a config and writes them as JSON."""
    total: dict[str, Any] = {}
    if parts is not None and parts.number is None:
        total, count = parts.merged(path)
    else:
        data = config.data.model_copy(update={"forecast_len": 1})
        loader = build_loader(
            config.model_copy(update={"data": data}),
            split="train",
            keep_partial=True,
            pipeline=build_pipeline(config.preblocks, config.postblocks),
        )
        count = 0
        batches = loader.sampler.batches(0)[: config.trainer.batches_per_epoch or None]
        indices = np.sort(np.concatenate(batches)).tolist()
        indices = indices if parts is None else parts.of(indices)
        display.start("fitting tendencies", total=len(indices))
        for moments, bad in mapped(partial(tendencies_of, loader), indices):
            total = merge_trees(total, moments)
            count += not bad
            for line in bad:
                display.message(f"left out: {line}")
            display.advance(1, 1)
    if parts is not None and parts.number is not None:
        display.message(f"{count} samples: {parts.save(path, total, count)}")
        return
    still = [key for key, moments in total.items() if not (moments.variance > 0).all()]
    if still or not total:
        raise ValueError(
            f"loss.tendency_weights: {', '.join(still) or 'every variable'} has a "
            f"channel that does not change in {count} samples, and so no weight; leave "
            "tendency_weights out"
        )
    values = {key: moments.variance.tolist() for key, moments in total.items()}
    with new_file(path) as partial_file:
        text = json.dumps(values, indent=1) + "\n"
        partial_file.write_text(text, encoding="utf-8")
        if path.exists():
            display.message(f"{path} is now {move_aside(path)}")
    display.message(f"Fitted to {count} samples: {path}")
    for part in parts.paths(path) if parts is not None else ():
        part.unlink()


def tendencies_of(
    loader: Loader, index: int
) -> tuple[dict[str, MeanAndVariance], tuple[str, ...]]:
    """Moments by key of the tendencies of a sample, or the reason why it is bad."""
    batch, schema = loader.read([index]), loader.schema
    if batch.replaced:
        return {}, batch.replaced
    inputs, moments = schema.input_slices(), {}
    for key, part in schema.target_slices().items():
        # Such as diagnostic variables.
        if key not in inputs:
            continue
        previous, after = batch.x[:, inputs[key], -1:], batch.y[:, part]
        change = np.subtract(after, previous, dtype=np.float64)
        moments[key] = MeanAndVariance.of(change, axis=1)
    return moments, ()


Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Parts:
    """Statistics of parts of the samples, one job each, in files beside the result."""

    number: int | None  # of this part, from 1; None merges them
    count: int
    digest: str  # of all that the statistics depend on

    @classmethod
    def of_config(cls, config: Config, number: int | None, count: int) -> Parts:
        sections = config.data, config.preblocks
        trainer = config.trainer.train_batch_size, config.trainer.batches_per_epoch
        text = repr((*(s.model_dump_json() for s in sections), config.seed, trainer))
        return cls(number, count, hashlib.sha256(text.encode()).hexdigest())

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """This part of some items, which are neighbors in time."""
        assert self.number is not None, "a part is made"
        ends = [len(items) * i // self.count for i in (self.number - 1, self.number)]
        return items[slice(*ends)]

    def save(self, file: Path, collected: Collected, num_samples: int) -> Path:
        """Writes the statistics of this part."""
        name = f"{file.name}.part-{self.number}-of-{self.count}.npz"
        facts = {**asdict(self), "num_samples": num_samples}
        save_statistics(file.with_name(name), collected, **facts)
        return file.with_name(name)

    def paths(self, file: Path) -> list[Path]:
        """The files of all parts."""
        return sorted(file.parent.glob(f"{glob.escape(file.name)}.part-*-of-*.npz"))

    def merged(self, file: Path) -> tuple[dict[str, Any], int]:
        """The statistics of all parts, merged in their order, and the samples."""
        read = [(path, *load_statistics(path)) for path in self.paths(file)]
        counts = sorted({facts["count"] for _, _, facts in read})
        if len(counts) != 1:
            parts = f"of arrays of {counts}" if counts else "none"
            raise ValueError(
                f"--merge: the parts beside {file} are {parts}; expected those of one "
                "array, --shard 1/N to N/N; remove others"
            )
        in_order = {facts["number"]: (part, facts) for _, part, facts in read}
        if missing := sorted({*range(1, counts[0] + 1)} - in_order.keys()):
            raise ValueError(
                f"--merge: of the {counts[0]} parts of {file} there is no {missing}; "
                f"make them, with --shard {missing[0]}/{counts[0]} and so on"
            )
        if others := [str(p) for p, _, f in read if f["digest"] != self.digest]:
            raise ValueError(
                f"--merge: {', '.join(others[:3])} is of other data, preblocks or "
                "samples than the config; make the parts anew"
            )
        total: dict[str, Any] = {}
        for _, (part, _) in sorted(in_order.items()):
            total = merge_trees(total, part)
        return total, sum(facts["num_samples"] for _, _, facts in read)


def fit_scalers(
    config: Config,
    *,
    num_threads: int | None = None,
    overwrite: bool = False,
    console: Console | None = None,
    shard: tuple[int, int] | None = None,
    merge: bool = False,
) -> list[Path]:
    """Fits the scalers, means and deviations of a config, as the command does."""
    if num_threads is None:
        num_threads = config.trainer.thread_workers
    weights = weight_files(config).items()
    tendencies = [Path(path) for key, path in weights if key.endswith(TENDENCIES)]
    tendencies = [path for path in tendencies if overwrite or not path.exists()]
    # A shard fits the scalers that are missing, and, where none is, the tendencies,
    # which depend on them; so does merging.
    parts = None
    if shard is not None or merge:
        parts = Parts.of_config(config, *(shard or (None, 1)))
    written = []
    try:
        plan = plan_fits(config.preblocks, overwrite=overwrite)
    except NothingToFitError:
        if not tendencies:
            raise
    else:
        written = _fit_blocks(config, plan, num_threads, console, parts)
        if parts is not None:
            return written
    mapped = partial(in_threads, num_threads=num_threads)
    for path in tendencies:
        with Display(console) as display:
            fit_tendencies(config, path, display, mapped=mapped, parts=parts)
    return written + tendencies


def _fit_blocks(
    config: Config,
    plan: FitPlan,
    num_threads: int,
    console: Console | None,
    parts: Parts | None,
) -> list[Path]:
    """Fits the blocks of a plan; returns the files."""
    dataset, batches = open_samples(config, in_order=plan.in_order)
    plan = plan.of_data(dataset.schema.as_read(), dataset.units())
    written = [path for fit in plan.fits.values() for path in fit.fitted_files]
    if parts is not None and plan.in_order:
        raise ValueError(
            "scaler_type: quantile depends on the order of the samples, so that parts "
            "of them give another scaler; fit it in one job, without --shard"
        )
    with Display(console) as display:
        for path in plan.existing:
            display.message(f"note: {path} is there and kept")
        for path in plan.unpaired:
            display.message(
                f"note: {path} is there without the other file of the pair: both are "
                "fitted anew, and it is moved to a name with the time"
            )
        notes = [
            f"{path}: one scaler for each longitude; without channels_last: true it is "
            "one a level"
            for path, fit in plan.fits.items()
            if isinstance(fit, ScalerPreblock) and fit.params.channels_last
        ]
        for line in (*plan.notes, *notes):
            display.message(f"note: {line}")
        if parts is not None and parts.number is None:
            collected, count = parts.merged(written[0])
        else:
            batches = batches if parts is None else parts.of(batches)
            collected, count = fit_samples(
                plan, dataset, batches, display, num_threads=num_threads
            )
        if parts is not None and parts.number is not None:
            path = parts.save(written[0], collected, count)
            display.message(f"{count} samples: {path}")
            return [path]
        fitted = results(plan, collected)
        if empty := [name for _, name, each in fitted if not each.count.any()]:
            raise ValueError(
                f"{', '.join(empty)}: no value but NaN in {count} samples; leave "
                "it out, or repair the data"
            )
        moved = []
        with ExitStack() as stack:
            for path, fit in plan.fits.items():
                files = [
                    stack.enter_context(new_file(file)) for file in fit.fitted_files
                ]
                with errors_of(path):
                    fit.write(collected[path], files, plan.facts[path])
            for fit in plan.fits.values():
                files = [file for file in fit.fitted_files if file.exists()]
                moved += [(file, move_aside(file)) for file in files]
        for _, name, statistics in results(plan, collected):
            display.message(f"  {name}: {statistics.summary()}")
        for old, new in moved:
            display.message(f"{old} is now {new}")
        for path in written:
            display.message(f"Fitted to {count} samples: {path}")
    for part in parts.paths(written[0]) if parts is not None else ():
        part.unlink()
    return written


def open_samples(
    config: Config, *, in_order: bool
) -> tuple[Dataset, tuple[np.ndarray, ...]]:
    """Opens the training data, of one step, and the samples of each batch."""
    data = config.data.model_copy(update={"forecast_len": 1})
    dataset = open_dataset(data)
    blocks = (*config.preblocks.ic_only.values(), *config.preblocks.per_step.values())
    dataset.check(shared_grid=not any(block.type in GRID_TYPES for block in blocks))
    sampler = Sampler(
        num_samples=len(dataset),
        batch_size=config.trainer.train_batch_size,
        local_dp_ranks=(0,),
        dp_size=1,
        seed=config.seed,
        shuffle=True,
        keep_partial=True,
    )
    batches = sampler.batches(0)[: config.trainer.batches_per_epoch or None]
    # CREDIT's batches, or one for each sample in order of time.
    if not in_order:
        batches = [np.array([index]) for index in np.sort(np.concatenate(batches))]
    return dataset, tuple(batches)


@activity("fitting")
def fit_samples(
    plan: FitPlan,
    dataset: Dataset,
    batches: Sequence[np.ndarray],
    display: Display,
    *,
    num_threads: int,
) -> tuple[dict[str, Collected], int]:
    """Computes the statistics of samples, by the path of the block, and counts them."""
    count = sum(map(len, batches))

    def collect(indices: np.ndarray) -> tuple[dict[str, Collected], list[str]]:
        read, lines = list[Sample](), list[str]()
        for index in indices:
            try:
                sample = dataset[int(index)]
                with files_named(dataset.path_of):
                    check_sample(sample)
                read.append(sample)
            except (ValueError, OSError) as error:
                if dataset.data.on_bad_sample != "skip":
                    raise
                lines.append(str(error))
        return (plan.collect(collate(read)) if read else {}), lines

    display.start("fitting", total=count)
    total: dict[str, Collected] = {}
    bad: list[str] = []
    done = in_threads(collect, batches, num_threads)
    for indices, (part, lines) in zip(batches, done, strict=True):
        total = merge_trees(total, part)
        bad += lines
        for line in lines:
            display.message(f"left out: {line}")
        display.advance(len(indices), len(indices))
    if bad:
        display.message(f"{len(bad)} of {count} samples are bad and left out")
    if bad and not total:
        raise ValueError(f"none of the samples can be used; the first: {bad[0]}")
    return total, count


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], num_threads: int
) -> Iterator[Result]:
    """Maps a function over items by several threads; results keep their order."""
    remainder, num_threads = iter(items), max(1, num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        # At most two items per thread are pending.
        first = itertools.islice(remainder, 2 * num_threads)
        pending = deque(pool.submit(function, item) for item in first)
        try:
            while pending:
                yield pending.popleft().result()
                pending += [
                    pool.submit(function, i) for i in itertools.islice(remainder, 1)
                ]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def results(
    plan: FitPlan, collected: dict[str, Collected]
) -> Iterator[tuple[str, str, Statistics]]:
    """Yields path of the block, name and statistics of every fitted variable."""
    for path in plan.fits:
        for keys, statistics in leaves(collected[path]):
            yield path, " ".join(keys), statistics
