"""Converts the checkpoints of a run, with its config and its log, or lists them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from credit_jax.checkpoint import EMA, CheckpointStore
from credit_jax.checkpoint.store import AVERAGE, DIGESTS, label_of, takes_average
from credit_jax.config.load import read_model_section
from credit_jax.data.opened_data import open_data
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_folder
from credit_jax.io.digests import record_files, write_records
from credit_jax.io.errors import write_errors
from credit_jax.io.remote import is_url
from credit_jax.models.registry import build
from credit_jax.packages.package import open_artifact, open_package
from credit_jax.plan.finetune import kind_of
from credit_jax.state_dict.key_table import compare_shapes
from credit_jax.state_dict.torch_model import is_domain_parallel
from credit_jax.training.loggers import LOG_NAME
from credit_torch_bridge.checkpoint import torch_to_jax
from credit_torch_bridge.checkpoint.jax_checkpoint import (
    CONFIG_FILE,
    JaxCheckpoint,
    RunConfig,
    read_run,
    read_run_config,
    write_run,
)
from credit_torch_bridge.checkpoint.jax_to_torch import (
    cautions,
    config_for_credit,
    resume_settings,
    to_torch_files,
)
from credit_torch_bridge.checkpoint.torch_checkpoint import (
    CHECKPOINT,
    TorchCheckpoint,
    open_checkpoint,
)
from credit_torch_bridge.config.convert import dump
from credit_torch_bridge.config.credit_blocks import complete_inference
from credit_torch_bridge.config.to_gen2 import ONLY_WEIGHTS


def contents(path: Path, find_config: Callable[[], Path]) -> Iterator[str]:
    """Yields lines on what a checkpoint holds and what each of its keys becomes."""
    if path.is_dir() and (path / "checkpoints").is_dir():
        store = CheckpointStore(path, num_latest=10**9, keep_best=False, pins=True)
        with closing(store):
            yield f"{path}: run of credit_jax"
            for step in store.steps():
                progress, items = store.progress(step), store.item_names(step)
                label = label_of(average=EMA in items)
                yield (
                    f"  {step} micro-batches: {', '.join(items)}; epoch "
                    f"{progress.epoch + 1}, batch {progress.batches + 1} is next; "
                    f"forecasts take the {label}"
                )
        if (config := path / "model.yml").exists():
            for name, spec in build(read_model_section(config)).param_specs.items():
                yield f"  {name} {spec.shape}"
        return
    checkpoint = open_checkpoint(path)
    numbers = {
        key: tensor.numel()
        for key, tensor in checkpoint.model.items()
        if not key.endswith(("_u", "_v"))
    }
    vectors = len(checkpoint.model) - len(numbers)
    domain = is_domain_parallel(checkpoint.model)
    kind = ", of a domain-parallel run" if domain else ""
    yield f"{checkpoint.path}: {checkpoint.format}{kind}"
    yield (
        f"  weights: {sum(numbers.values()):,} numbers in {len(numbers)} arrays"
        + (f", {vectors} vectors of spectral norm" if vectors else "")
    )
    if recognized := torch_to_jax.recognized_model(checkpoint.model):
        yield f"  model: {recognized}"
    states = {
        "optimizer": checkpoint.optimizer,
        "schedule": checkpoint.scheduler,
        "loss scaling": checkpoint.scaler,
        "average": checkpoint.average and checkpoint.average.shadow,
    }
    present = [name for name, state in states.items() if state]
    yield f"  besides: {', '.join(present) or 'nothing'}; epoch {checkpoint.epoch}"
    yield from (f"  note: {note}" for note in checkpoint.notes)
    try:
        config = find_config()
    except FileNotFoundError:
        yield "no config: name it with --config to see what becomes of each key"
        for key, tensor in checkpoint.model.items():
            yield f"  {key} {tuple(tensor.shape)}"
        return
    yield from _keys(read_run_config(config), checkpoint)


def _keys(run_config: RunConfig, checkpoint: TorchCheckpoint) -> Iterator[str]:
    """Yields a line for each key of the file: shape, and parameter it becomes."""
    yield f"model.type {run_config.model_def.config.type} ({run_config.source})"
    checkpoint, is_older = torch_to_jax.upgraded(run_config, checkpoint)
    if is_older:
        yield f"  note: {checkpoint.notes[-1]}"
    renamed = torch_to_jax.renamed_keys(run_config, checkpoint)
    entries = {mapping.key: mapping for mapping in run_config.key_map.entries}
    for entry in renamed:
        mapping = entries.get(entry.name)
        done = f" [{', '.join(entry.steps)}]" if entry.steps else ""
        shape = tuple(checkpoint.model[entry.file_key].shape)
        if mapping is None:
            yield f"  {entry.file_key} {shape}{done} -> not known"
            continue
        layer = "" if mapping.layer is None else f"[{mapping.layer}]"
        leaf = f" ({mapping.leaf})" if mapping.leaf else ""
        yield f"  {entry.file_key} {shape}{done} -> {mapping.path}{layer}{leaf}"
    actual = {r.name: tuple(checkpoint.model[r.file_key].shape) for r in renamed}
    expected = {
        key: mapping.arrangement.torch_shape(mapping.shape)
        for key, mapping in entries.items()
    }
    problems = compare_shapes(actual, expected)
    yield f"{len(problems)} problem(s)" if problems else "every key has its place"
    yield from (f"  {problem}" for problem in problems)


BEST, BACKUP = "best_", "backup_"


@dataclass(frozen=True)
class RunConversion:
    """A conversion of a run by `to_jax` or `to_torch`, which yield report lines."""

    run_config: RunConfig  # config of the run
    source: Path  # checkpoint or folder to convert
    out: Path  # folder to write
    weights_only: bool = False  # leave out optimizer, schedule and position
    # "average" or "last": these weights alone; None is all that there is.
    weights: str | None = None
    step: int | None = None  # checkpoint of a run of credit_jax; None is the newest
    # Micro-batches of an epoch of the run in credit_jax, if the config does not imply
    # it.
    batches_per_epoch: int | None = None
    # Compare files with their digests and checksums before they are read.
    verify: bool = True
    drop: tuple[str, ...] = ()  # dotted keys of the config to leave out with `to_torch`
    # What the adapters of a package belong to; None for all other sources.
    base: str | None = None

    def to_jax(self) -> Iterator[str]:
        """Converts CREDIT's checkpoints to a run of credit_jax."""
        earlier: list[JaxCheckpoint] = []
        with new_folder(self.out) as folder:
            if self.base is not None:
                newest = self._read_jax(None)
                yield self._weights_line(newest)
            else:
                checkpoint = open_checkpoint(self.source, verify=self.verify)
                newest = self._read_torch(checkpoint)
                epoch = f"epoch {checkpoint.epoch}"
                yield f"{checkpoint.path}: {checkpoint.format}, {epoch}"
                yield self._weights_line(newest)
                if self.source.is_dir() and newest.moments is not None:
                    earlier, progress = (
                        self._earlier(checkpoint, newest),
                        newest.progress,
                    )
                    for stored in (*earlier, newest):
                        if stored.progress.epoch - 1 == progress.best_epoch:
                            progress = replace(progress, best_step=stored.micro_step)
                    newest = replace(newest, progress=progress)
            newest = self._located(newest)
            origin = newest.progress.coordinates
            earlier = [
                replace(x, progress=replace(x.progress, coordinates=origin))
                for x in earlier
            ]
            settings = {**newest.settings, "save_loc": str(self.out)}
            if newest.moments is None and self.run_config.raw.get("trainer"):
                settings["trainer.load_weights"] = True
            with write_errors(self.out):
                run_config = self.run_config.with_settings(settings)
                write_run(folder, run_config, [*earlier, newest])
            self._copy_log(folder)
            yield from self._notes_to_jax(newest)

    def to_torch(self) -> Iterator[str]:
        """Converts a run or a package of credit_jax to CREDIT's checkpoints."""
        moved = self.run_config.with_settings({"save_loc": str(self.out)})
        with new_folder(self.out) as folder:
            credit, changes = config_for_credit(moved, drop=self.drop)
            newest = self._read_jax(self.step)
            checkpoints = {"": newest}
            best = newest.progress.best_step
            if best is not None and self.step is None:
                # The best checkpoint may have been removed.
                with contextlib.suppress(FileNotFoundError):
                    is_newest = best == newest.micro_step
                    checkpoints[BEST] = newest if is_newest else self._read_jax(best)
            for prefix, checkpoint in checkpoints.items():
                with activity("writing CREDIT's checkpoint"):
                    files = to_torch_files(
                        self.run_config,
                        checkpoint,
                        batches_per_epoch=self.batches_per_epoch,
                    )
                    for name, content in files.items():
                        with write_errors(self.out / f"{prefix}{name}"):
                            torch.save(content, folder / f"{prefix}{name}")
            credit = credit.with_settings(resume_settings(self.run_config, newest))
            config, notes = dict(credit.raw), cautions(self.run_config, newest)
            if "source" in (config.get("data") or {}):
                notes += complete_inference(config, folder, self.out)
            (folder / CONFIG_FILE).write_text(dump(config), encoding="utf-8")
            self._copy_log(folder)
            yield self._weights_line(newest)
            yield from (f"{CONFIG_FILE}: {line}" for line in changes)
            yield from (f"note: {note}" for note in notes)
            # CREDIT's commands that go on from the folder.
            file = self.out / CONFIG_FILE
            why = ONLY_WEIGHTS.get(config["model"]["type"])
            if why is not None:
                yield (
                    f"the weights are CREDIT's; no command of its gen2 runs them: {why}"
                )
            if why is None and "parallelism" in (config.get("trainer") or {}):
                yield f"credit train -c {file} goes on from it"
            if why is None and "inference" in config:
                yield f"credit rollout -c {file} forecasts with it"
            write_records(folder / DIGESTS, record_files(folder))

    def _located(self, checkpoint: JaxCheckpoint) -> JaxCheckpoint:
        """The checkpoint with the coordinates of the files that its config names."""
        config = self.run_config.full_config
        if config is None or checkpoint.progress.coordinates is not None:
            return checkpoint
        # Stores of others are read when forecasts need them.
        texts = str([source.model_dump() for source in config.data.source.values()])
        blocks = [
            *config.preblocks.ic_only.values(),
            *config.preblocks.per_step.values(),
        ]
        regrids = "regrid" in [block.type for block in blocks]
        try:
            if is_url(texts):
                raise ValueError("they are remote")
            coordinates = open_data(config.data, shared_grid=not regrids).coordinates()
        except (OSError, ValueError) as error:
            note = (
                "the files of data.source cannot be opened here, so that their "
                "latitudes, longitudes and levels are not recorded; the first forecast "
                f"from them records them: {error}"
            )
            return replace(checkpoint, notes=(*checkpoint.notes, note))
        if regrids:
            coordinates = replace(coordinates, latitude=None, longitude=None)
        progress = replace(checkpoint.progress, coordinates=coordinates.to_json())
        return replace(checkpoint, progress=progress)

    @activity("reading CREDIT's checkpoint")
    def _read_torch(self, torch_file: TorchCheckpoint) -> JaxCheckpoint:
        checkpoint = torch_to_jax.to_jax_checkpoint(
            self.run_config,
            torch_file,
            weights_only=self.weights_only or self.weights is not None,
            batches_per_epoch=self.batches_per_epoch,
        )
        return self._chosen(checkpoint)

    def _chosen(self, checkpoint: JaxCheckpoint) -> JaxCheckpoint:
        """The checkpoint with the weights that are asked for."""
        if self.weights is None:
            return checkpoint
        has_average = checkpoint.ema is not None
        average = takes_average(
            self.weights, has_average=has_average, origin=self.source
        )
        return checkpoint.weights_alone(average=average)

    def _weights_line(self, checkpoint: JaxCheckpoint) -> str:
        """Says which weights are converted."""
        average = self.weights == AVERAGE
        if kind_of(self.source) == "package":
            average = open_package(self.source, self.base).average
        beside = checkpoint.ema is not None
        more = " and their moving average" if beside else ""
        return f"weights: {label_of(average=average)}{more}"

    def _earlier(
        self, newest: TorchCheckpoint, converted: JaxCheckpoint
    ) -> list[JaxCheckpoint]:
        """The backup and the best checkpoint, if they are older, in order of age."""
        by_step: dict[int, JaxCheckpoint] = {}
        for prefix in (BACKUP, BEST):
            path = self.source / f"{prefix}{CHECKPOINT}"
            if not path.is_file():
                continue
            stored = open_checkpoint(path, verify=self.verify)
            if stored.epoch == newest.epoch:
                continue
            checkpoint = self._read_torch(stored)
            if checkpoint.micro_step < converted.micro_step:
                by_step[checkpoint.micro_step] = checkpoint
        return [by_step[step] for step in sorted(by_step)]

    def _notes_to_jax(self, checkpoint: JaxCheckpoint) -> Iterator[str]:
        config = self.out / CONFIG_FILE
        for key, value in checkpoint.settings.items():
            yield f"note: {key} is {value} in the checkpoint, and now in {CONFIG_FILE}"
        yield from (f"note: {note}" for note in checkpoint.notes)
        if self.run_config.full_config is None:
            yield (
                "note: training will not take this config as it is; credit-jax check "
                f"--config {config} says why"
            )
        train = f"credit-jax train --config {config}"
        if checkpoint.moments is None:
            yield f"no optimizer: {train} begins with these weights"
            return
        epoch = checkpoint.progress.epoch + 1
        last = self.run_config.raw.get("trainer", {}).get("epochs", epoch)
        done = ""
        if isinstance(last, int) and last < epoch:
            train += f" --set trainer.epochs={epoch}"
            done = f" (trainer.epochs is {last}, of which all are trained)"
        yield (
            f"{checkpoint.micro_step} micro-batches, {checkpoint.moments.count} "
            f"updates: {train} --resume goes on with epoch {epoch}{done}"
        )

    def _read_jax(self, step: int | None) -> JaxCheckpoint:
        if kind_of(self.source) == "package":
            package = open_artifact(self.source, None, self.weights, base=self.base)
            return JaxCheckpoint(*package.weights)
        model_def, verify = self.run_config.model_def, self.verify
        checkpoint = read_run(self.source, model_def, step, verify=verify)
        checkpoint = (
            replace(checkpoint, moments=None) if self.weights_only else checkpoint
        )
        return self._chosen(checkpoint)

    def _copy_log(self, folder: Path) -> None:
        beside = self.source if self.source.is_dir() else self.source.parent
        if (beside / LOG_NAME).is_file():
            shutil.copyfile(beside / LOG_NAME, folder / LOG_NAME)
