"""`convert`: a checkpoint from PyTorch to JAX, or back."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from credit_jax.commands import OK
from credit_jax.training.loggers import LOG_NAME
from credit_torch_bridge.checkpoint.jax_checkpoint import JaxCheckpoint
from credit_torch_bridge.checkpoint.jax_to_torch import (
    cautions,
    credits_config,
    to_torch_files,
)
from credit_torch_bridge.checkpoint.orbax_run import read_run, write_run, write_yaml
from credit_torch_bridge.checkpoint.output import Scratch, new_folder, writing
from credit_torch_bridge.checkpoint.run_config import (
    CONFIG_FILE,
    RunConfig,
    read_run_config,
)
from credit_torch_bridge.checkpoint.torch_checkpoint import (
    CHECKPOINT,
    TorchCheckpoint,
    open_checkpoint,
)
from credit_torch_bridge.checkpoint.torch_to_jax import to_jax_checkpoint

HELP = "Convert a checkpoint with everything in it."
EXAMPLE = "--to jax --checkpoint RUN --out NEW_RUN"
BEST, BACKUP = "best_", "backup_"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `convert`."""
    add = parser.add_argument
    add("--to", choices=("jax", "torch"), required=True, help="which way")
    add("--config", "-c", help="CREDIT's YAML; model.yml beside the checkpoint if not")
    add("--checkpoint", required=True, help="file or folder to convert")
    add("--out", required=True, help="folder to write; must not be there yet")
    add(
        "--weights-only",
        action="store_true",
        help="leave optimizer, schedule and position out",
    )
    add("--step", type=int, help="--to torch: which checkpoint; the newest if not")
    add(
        "--batches-per-epoch",
        type=int,
        metavar="N",
        help="of the run in JAX, if the config does not say it (for schedules that "
        "count epochs)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value of the config by its dotted path; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Converts.

    Raises:
        OSError, ValueError: what is wrong; nothing was written.
    """
    for line in _convert(args):
        print(line)
    return OK


def _convert(args: argparse.Namespace) -> Iterator[str]:
    path, out = Path(args.checkpoint), Path(args.out).absolute()
    run_config = read_run_config(config_file(args.config, path), tuple(args.set))
    convert = _to_jax if args.to == "jax" else _to_torch
    with new_folder(out) as folder, Scratch(folder) as scratch:
        yield from convert(run_config, path, out, folder, scratch, args)
    yield f"written: {out}"


def config_file(given: str | None, checkpoint: Path) -> Path:
    """The config that is given, or that beside the checkpoint.

    Raises:
        FileNotFoundError: neither is there.
    """
    if given is not None:
        return Path(given)
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    if not (folder / CONFIG_FILE).is_file():
        raise FileNotFoundError(
            f"{folder}: no {CONFIG_FILE} beside the checkpoint; name the config with "
            "--config"
        )
    return folder / CONFIG_FILE


def _to_jax(
    run_config: RunConfig,
    path: Path,
    out: Path,
    folder: Path,
    scratch: Scratch,
    args: argparse.Namespace,
) -> Iterator[str]:
    def read(found: TorchCheckpoint) -> JaxCheckpoint:
        return to_jax_checkpoint(
            run_config,
            found,
            weights_only=args.weights_only,
            batches_per_epoch=args.batches_per_epoch,
            allocate=scratch.allocate,
        )

    found = open_checkpoint(path)
    newest = read(found)
    yield f"{found.path}: {found.format}, epoch {found.epoch}"
    earlier: dict[int, JaxCheckpoint] = {}
    if path.is_dir() and newest.moments is not None:
        for prefix in (BACKUP, BEST):
            beside = _beside(path, prefix, found.epoch)
            checkpoint = newest if beside is None else read(beside)
            if checkpoint.micro_step < newest.micro_step:
                earlier[checkpoint.micro_step] = checkpoint
        newest = _with_best(newest, [*earlier.values(), newest])
    settings = {**newest.settings, "save_loc": str(out)}
    if newest.moments is None and run_config.raw.get("trainer"):
        settings["trainer.load_weights"] = True
    checkpoints = [earlier[step] for step in sorted(earlier)]
    with writing(out):
        write_run(folder, run_config.with_settings(settings), [*checkpoints, newest])
    _copy_log(path, folder)
    yield from _notes_to_jax(run_config, newest, out)


def _beside(folder: Path, prefix: str, epoch: int | None) -> TorchCheckpoint | None:
    """The best or the last but one checkpoint of a run, if it is of another epoch."""
    path = folder / f"{prefix}{CHECKPOINT}"
    found = open_checkpoint(path) if path.is_file() else None
    return None if found is None or found.epoch == epoch else found


def _with_best(
    newest: JaxCheckpoint, checkpoints: Iterable[JaxCheckpoint]
) -> JaxCheckpoint:
    """The newest with the place of the best."""
    progress = newest.progress
    for checkpoint in checkpoints:
        if checkpoint.progress.epoch - 1 == progress.best_epoch:
            progress = replace(progress, best_step=checkpoint.micro_step)
    return replace(newest, progress=progress)


def _copy_log(path: Path, folder: Path) -> None:
    log = (path if path.is_dir() else path.parent) / LOG_NAME
    if log.is_file():
        shutil.copyfile(log, folder / LOG_NAME)


def _notes_to_jax(
    run_config: RunConfig, checkpoint: JaxCheckpoint, out: Path
) -> Iterator[str]:
    for key, value in checkpoint.settings.items():
        yield f"note: {key} is {value} in the checkpoint, and now in {CONFIG_FILE}, too"
    for note in checkpoint.notes:
        yield f"note: {note}"
    if run_config.full_config is None:
        yield (
            "note: training will not take this config as it is; python -m "
            f"credit_jax.check --config {out / CONFIG_FILE} says why"
        )
    if checkpoint.moments is None:
        yield (
            "no optimizer: python -m credit_jax.train "
            f"--config {out / CONFIG_FILE} begins with these weights"
        )
        return
    yield (
        f"{checkpoint.micro_step} micro-batches, {checkpoint.moments.count} updates: "
        f"python -m credit_jax.train --config {out / CONFIG_FILE} --resume goes on "
        f"with epoch {checkpoint.progress.epoch + 1}"
    )


def _to_torch(
    run_config: RunConfig,
    path: Path,
    out: Path,
    folder: Path,
    scratch: Scratch,
    args: argparse.Namespace,
) -> Iterator[str]:
    newest = read_run(path, run_config.model_def, args.step, scratch.allocate)
    chosen = [("", newest)]
    best = newest.progress.best_step
    if best is not None and args.step is None:
        found = (
            newest
            if best == newest.micro_step
            else _best(run_config, path, best, scratch)
        )
        chosen += [(BEST, found)] if found is not None else []
    for prefix, checkpoint in chosen:
        if args.weights_only:
            checkpoint = replace(checkpoint, moments=None)
        files = to_torch_files(
            run_config,
            checkpoint,
            batches_per_epoch=args.batches_per_epoch,
            allocate=scratch.allocate,
        )
        for name, content in files.items():
            with writing(out / f"{prefix}{name}"):
                torch.save(content, folder / f"{prefix}{name}")
    if args.weights_only:
        newest = replace(newest, moments=None)
    credit = credits_config(run_config, out, newest)
    write_yaml(folder / CONFIG_FILE, credit.raw)
    _copy_log(path, folder)
    for note in cautions(run_config, newest):
        yield f"note: {note}"
    yield f"credit train -c {out / CONFIG_FILE} goes on from it"


def _best(
    run_config: RunConfig, path: Path, step: int, scratch: Scratch
) -> JaxCheckpoint | None:
    """The best checkpoint; None where it was not kept."""
    try:
        return read_run(path, run_config.model_def, step, scratch.allocate)
    except FileNotFoundError:
        return None
