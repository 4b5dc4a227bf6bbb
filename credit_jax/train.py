"""Train a model: `python -m credit_jax.train --config FILE`.

Reads CREDIT's gen2 YAML, makes the demo data it may ask for, trains on the mesh of
`trainer.parallelism`, and ends with a table of errors on held-out days and a figure.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console

from credit_jax.check.job import inspect_job
from credit_jax.checkpoint import CheckpointStore, set_aside
from credit_jax.config import Config, ConfigError, load_config, write_config
from credit_jax.data.channels import SCHEMA_FILE
from credit_jax.data.climatology import build_climatology
from credit_jax.data.demo import ensure_demo_data
from credit_jax.parallel.devices import job_devices
from credit_jax.parallel.mesh import data_parallel_coords
from credit_jax.training.display import Display
from credit_jax.training.loop import (
    EARLY,
    FINISHED,
    NonFiniteLossError,
    Outcome,
    Sinks,
    TrainingLoop,
    averaged,
)
from credit_jax.training.records import LOG_NAME, CsvLog, TensorBoard, read_log
from credit_jax.training.report import FIGURE_NAME, skill_table, write_figure
from credit_jax.training.setup import Setup, check_writable, prepare
from credit_jax.training.skill import measure_skill
from credit_jax.training.snapshots import (
    RunStore,
    Start,
    asked_by,
    required_step,
    start_of_run,
)

CACHE_VARIABLE = "CREDIT_JAX_CACHE"
USER_ERROR, DIVERGED, INTERRUPTED = 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        argv: arguments without the program; None takes those of the process.

    Returns:
        0 at the end of a run, also of one that a signal ended after it had saved; 2 for
        an error of the user, 3 for a loss that is not finite.
    """
    args = _parser().parse_args(argv)
    console = Console()
    try:
        run(args, console)
    except NonFiniteLossError as error:
        return _failed(args, console, error, DIVERGED)
    except (ValueError, OSError) as error:
        return _failed(args, console, error, USER_ERROR)
    except KeyboardInterrupt:
        console.print("interrupted")
        return INTERRUPTED
    return 0


def _failed(
    args: argparse.Namespace, console: Console, error: Exception, code: int
) -> int:
    if args.debug:
        raise error
    text = f"error: {error}"
    console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m credit_jax.train",
        description="Train a model of CREDIT's gen2 YAML on a dp x tp x domain mesh.",
    )
    add = parser.add_argument
    add("--config", "-c", required=True, help="the YAML file")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value by its dotted path: trainer.epochs=3; repeatable",
    )
    add("--devices", type=int, help="devices to use; simulated on a CPU-only machine")
    add("--resume", action="store_true", help="go on from the newest checkpoint")
    add(
        "--save-loc",
        metavar="DIR",
        help="folder of the run, instead of save_loc",
    )
    add(
        "--cache",
        metavar="DIR",
        help="folder of compiled programs, kept between runs; 'none' for no cache "
        f"(default: ${CACHE_VARIABLE}, or credit_jax in the user's cache folder)",
    )
    add(
        "--distributed",
        action="store_true",
        help="one process of a job of several; the launcher tells JAX which",
    )
    add("--debug", action="store_true", help="show where an error comes from")
    return parser


def run(args: argparse.Namespace, console: Console) -> None:
    """Check, train, evaluate."""
    # Orbax and JAX speak of their own affairs there.
    logging.getLogger("absl").setLevel(logging.ERROR)
    config = _read_config(args, console)
    use_cache(args.cache)
    if args.distributed:
        jax.distributed.initialize()
    devices = job_devices(config.trainer, args.devices)
    folder = check_writable(config.save_loc)
    if args.resume or config.trainer.load_weights:
        required_step(CheckpointStore(folder), asked_by(resume=args.resume))
    if config.demo is not None and jax.process_index() == 0:
        ensure_demo_data(config.demo, console)
    _check_job(config, len(devices))
    setup = prepare(config, devices)
    display = Display(console, silent=jax.process_index() > 0)
    for line in header(args.config, setup):
        display.message(line)
    outcome = train(setup, folder, display, resume=args.resume)
    if outcome.reason in (FINISHED, EARLY) and setup.valid_loader is not None:
        evaluate(setup, folder, outcome, display)


def _read_config(args: argparse.Namespace, console: Console) -> Config:
    overrides = list(args.set)
    if args.save_loc:
        overrides.append(f"save_loc={args.save_loc}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        config = load_config(args.config, overrides)
    for warning in caught:
        console.print(f"note: {warning.message}", style="yellow", markup=False)
    return config


def _check_job(config: Config, num_devices: int) -> None:
    """Every problem of config, model and data at once, before anything is compiled."""
    job = inspect_job(config, num_devices=num_devices)
    missing = [note for note in job.notes if "does not exist" in note]
    if job.problems or missing:
        raise ConfigError(job.problems + missing, "this job cannot run")


def use_cache(folder: str | None) -> None:
    """Keep compiled programs between runs.

    Args:
        folder: where; None takes the environment's or the default, "none" is no cache.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "credit_jax"
    chosen = folder or os.environ.get(CACHE_VARIABLE) or str(default)
    if chosen == "none":
        return
    path = Path(chosen).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(path))


def header(source: str, setup: Setup) -> list[str]:
    """What a run is, in a few lines."""
    model, schema, loader = setup.architecture, setup.schema, setup.train_loader
    devices = setup.mesh.devices.reshape(-1)
    axes = setup.execution.axes
    precision = setup.execution.precision.compute.name
    valid = setup.valid_loader
    held_out = "" if valid is None else f", {len(valid.dataset)} held out"
    return [
        f"credit_jax  {source} -> {setup.config.save_loc}",
        f"mesh   dp {axes.num_data} x tp {axes.num_tensor} x domain {axes.num_domain} "
        f"on {len(devices)} {devices[0].platform} device(s), {precision}",
        f"model  {setup.config.model['type']}, {model.num_parameters:,} parameters, "
        f"{schema.num_input_channels} -> {schema.num_target_channels} channels on "
        f"{model.image_height} x {model.image_width} points",
        f"data   {len(loader.dataset)} samples{held_out}; {setup.batches_per_epoch} "
        f"batches of {setup.config.trainer.train_batch_size * axes.num_data} an epoch",
    ]


def train(
    setup: Setup, folder: Path, display: Display, *, resume: bool = False
) -> Outcome:
    """Train to the last epoch, from fresh weights or from the checkpoints of `folder`.

    Args:
        setup: of `prepare`.
        folder: of the run.
        display: shows progress.
        resume: go on from the newest checkpoint.
    """
    trainer = setup.config.trainer
    folder.mkdir(parents=True, exist_ok=True)
    keep = {
        "num_latest": 2 if trainer.save_backup_weights else 1,
        "keep_all": trainer.save_every_epoch,
        "keep_best": trainer.save_best_weights,
    }
    store = CheckpointStore(folder, **keep)
    run_store = RunStore(store, setup.architecture.declarations)
    if resume or trainer.load_weights:
        step = required_step(store, asked_by(resume=resume))
        run_store.check_fits(step, jax.eval_shape(setup.fresh_state), resume=resume)
    start = start_of_run(trainer, run_store, setup.fresh_state(), resume=resume)
    if int(start.state.micro_step) == 0 and store.latest_step() is not None:
        store.close()
        display.message(f"Checkpoints of an earlier run are now in {set_aside(folder)}")
        store = CheckpointStore(folder, **keep)
        run_store = RunStore(store, setup.architecture.declarations)
    if start.step is not None:
        display.message(
            f"Going on from {store.path(start.step)}: epoch {start.progress.epoch + 1},"
            f" batch {start.progress.batches + 1}"
        )
    sinks = _sinks(setup, folder, run_store, display, start)
    loop = TrainingLoop(
        trainer,
        setup.steps(),
        setup.train_loader,
        setup.valid_loader,
        sinks,
        _lengths(setup.config),
    )
    try:
        outcome = loop.run(start)
    finally:
        store.close()
        if sinks.board:
            sinks.board.close()
    if outcome.reason not in (FINISHED, EARLY):
        display.message(
            f"Stopped by {outcome.reason} after step {int(outcome.state.micro_step)}; "
            f"saved in {store.folder}. --resume goes on with the very same losses."
        )
    return outcome


def _sinks(
    setup: Setup, folder: Path, store: RunStore, display: Display, start: Start
) -> Sinks:
    if jax.process_index() > 0:
        return Sinks(store, display)
    write_config(setup.config, folder / "model.yml")
    setup.schema.save(folder / SCHEMA_FILE)
    log = CsvLog(folder / LOG_NAME, keep_before=start.progress.epoch)
    board = TensorBoard(folder) if setup.config.trainer.use_tensorboard else None
    return Sinks(store, display, log, board)


def _lengths(config: Config) -> dict[str, int]:
    lengths = {
        "train_history_len": config.data.history_len,
        "train_forecast_len": config.data.forecast_len,
    }
    if not config.trainer.skip_validation:
        lengths["valid_history_len"] = config.validation_data.history_len
        lengths["valid_forecast_len"] = config.validation_data.forecast_len
    return lengths


def evaluate(setup: Setup, folder: Path, outcome: Outcome, display: Display) -> None:
    """Print the errors of the best weights on held-out samples, and draw a figure."""
    state, valid = outcome.state, setup.valid_loader
    assert valid is not None, "asked for by the caller"
    store = CheckpointStore(folder)
    best = store.best_step()
    if best is not None and best != int(state.micro_step):
        run_store = RunStore(store, setup.architecture.declarations)
        state = run_store.restore_weights(best, state)
    store.close()
    size = setup.config.trainer.valid_batch_size * data_parallel_coords(setup.mesh)[1]
    skill = measure_skill(
        setup.forecaster(averaged(state), state.vectors),
        valid,
        build_climatology(setup.train_loader.dataset, by="season"),
        batch_size=size,
    )
    if jax.process_index() > 0:
        return
    display.console.print(skill_table(skill, setup.config.validation_data.timestep))
    rows = read_log(folder / LOG_NAME) if (folder / LOG_NAME).exists() else []
    data = valid.dataset
    figure = write_figure(
        folder / FIGURE_NAME, skill, rows, setup.schema, data.latitude, data.longitude
    )
    display.message(f"Figure: {figure}")
    display.message(f"Checkpoints: {store.folder}, log: {folder / LOG_NAME}")


if __name__ == "__main__":
    sys.exit(main())
