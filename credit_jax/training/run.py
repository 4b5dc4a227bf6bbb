"""A whole training run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import jax

from credit_jax.checkpoint import CheckpointStore
from credit_jax.config import Config, write_config
from credit_jax.config.load import CONFIG_NAME, is_written_config
from credit_jax.data.channels import SCHEMA_FILE
from credit_jax.io.atomic import move_aside
from credit_jax.io.write_errors import WriteError
from credit_jax.models.flops import gradient_flops
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.training.display import Display
from credit_jax.training.earlier_run import move_earlier_run
from credit_jax.training.loggers import LOG_NAME, CsvLog, TensorBoard
from credit_jax.training.loop import Outcome, TrainingLoop
from credit_jax.training.non_finite import NonFiniteLossError
from credit_jax.training.profile import Profile
from credit_jax.training.records import RECORDS_NAME, StepRecords, Tracker, Work
from credit_jax.training.restore import RunStore
from credit_jax.training.setup import Setup
from credit_jax.training.start import (
    Start,
    asked_by,
    epochs_note,
    required_step,
    start_of_run,
)
from credit_jax.training.steps import Loggers
from credit_jax.training.trackers import GuardedTracker, MlflowTracker, WandbTracker


def train(
    setup: Setup,
    folder: Path,
    display: Display,
    *,
    resume: bool = False,
    fresh: bool = False,
    verify: bool = True,
    stop_at: float | None = None,
    profile: tuple[int, int] | None = None,
) -> Outcome:
    """Trains to the last epoch, from fresh weights or the checkpoints of `folder`.

    Args:
        setup: from `prepare`.
        folder: of the run.
        display: of progress.
        resume: continue from the newest checkpoint that is whole.
        fresh: begin with fresh weights; what is in `folder` is moved aside.
        verify: compare its files with their digests first.
        stop_at: time limit, by `time.monotonic`; None for none.
        profile: first and last update to trace, counted from 1; None for none.

    Raises:
        FileNotFoundError: there is no checkpoint to continue from.
        ValueError: all checkpoints are damaged, or they do not fit the run.
        NonFiniteLossError: the loss or the gradient is NaN or infinite.
    """
    trainer = setup.config.trainer
    folder.mkdir(parents=True, exist_ok=True)
    keep = {
        "num_latest": 2 if trainer.save_backup_weights else 1,
        "keep_all": trainer.save_every_epoch,
        "keep_best": trainer.save_best_weights,
        "verify": verify,
        "clean": True,
    }
    store = CheckpointStore(folder, **keep)
    run_store = _run_store(setup, store)
    if resume or trainer.load_weights:
        step = required_step(store, asked_by(resume=resume))
        for line in store.damaged():
            display.message(f"not used: {line}")
        run_store.check_fits(step, jax.eval_shape(setup.fresh_state), resume=resume)
    start = start_of_run(trainer, run_store, setup.fresh_state(), resume=resume)
    if start.micro_step == 0 and (fresh or store.latest_step() is not None):
        store.close()
        wait_for_all("the checkpoint that the run begins with")
        if jax.process_index() == 0 and (earlier := move_earlier_run(folder)):
            display.message(f"The earlier run is now in {earlier}")
        wait_for_all("the folder of the run")
        store = CheckpointStore(folder, **keep)
        run_store = _run_store(setup, store)
    if start.step is not None:
        display.message(
            f"Going on from {store.path(start.step)}: epoch {start.progress.epoch + 1},"
            f" batch {start.progress.batches + 1}, with the last weights"
            + ("" if start.state.ema is None else "; their average goes on beside them")
        )
    if note := epochs_note(trainer, start.progress.epoch):
        display.message(f"note: {note}")
    loggers = _loggers(setup, folder, run_store, display, start, profile)
    loop = TrainingLoop(
        trainer,
        setup.steps(first_rate_at=start.progress.first_rate_at),
        setup.train_loader,
        setup.valid_loader,
        loggers,
        _lengths(setup.config),
        stop_at,
    )
    try:
        outcome = loop.run(start)
    except BaseException as error:
        # Closing a store waits for all processes. The others do not reach that point,
        # unless all raise this error.
        alone = jax.process_count() > 1 and not isinstance(error, NonFiniteLossError)
        for part in (loggers,) if alone else (store, loggers):
            # A write that failed before fails again.
            with suppress(WriteError):
                part.close()
        raise
    store.close()
    loggers.close()
    if not outcome.is_complete:
        display.message(
            f"Stopped by {outcome.reason} after step {int(outcome.state.micro_step)}; "
            f"saved in {store.folder}. --resume goes on with the very same losses "
            f"(exit code {RESUME})."
        )
    return outcome


def _run_store(setup: Setup, store: CheckpointStore) -> RunStore:
    where = setup.train_loader.coordinates()
    return RunStore(store, setup.model_def.param_specs, setup.schema.names, where)


def _loggers(
    setup: Setup,
    folder: Path,
    store: RunStore,
    display: Display,
    start: Start,
    updates: tuple[int, int] | None,
) -> Loggers:
    if jax.process_index() > 0:
        return Loggers(store, display)
    if (path := folder / CONFIG_NAME).exists() and not is_written_config(path):
        display.message(f"note: {path} of before is now {move_aside(path).name}")
    write_config(setup.config, path)
    setup.schema.save(folder / SCHEMA_FILE)
    log = CsvLog(folder / LOG_NAME, keep_before=start.progress.epoch)
    records = StepRecords(
        folder / RECORDS_NAME, _work(setup), setup.config.trainer.log_every_steps
    )
    records.open(start.micro_step or None)
    records.trackers = _trackers(setup.config, folder, start, records.first_start)
    profile = Profile(folder / "profile", *updates) if updates else None
    return Loggers(store, display, log, records, profile)


def _trackers(
    config: Config, folder: Path, start: Start, first_start: float
) -> list[Tracker]:
    trainer, trackers = config.trainer, list[Tracker]()
    if trainer.use_tensorboard:
        trackers.append(TensorBoard(folder))
    if trainer.use_wandb:
        trackers.append(
            GuardedTracker("wandb", lambda: WandbTracker(config, folder, first_start))
        )
    if trainer.use_mlflow:
        resumes = start.micro_step > 0
        trackers.append(
            GuardedTracker("mlflow", lambda: MlflowTracker(folder, resumes=resumes))
        )
    return trackers


def _work(setup: Setup) -> Work:
    """The work of a micro-batch; a forward pass costs a third of a gradient."""
    config, trainer = setup.config, setup.config.trainer
    ranks = 1 if config.shares_batches else setup.model.axes.num_data
    samples = trainer.train_batch_size * ranks
    steps, counted = config.data.forecast_len, len(config.backprop_on_timestep)
    passes = (counted + (steps - counted) / 3) * trainer.ensemble_size

    def flops() -> float:
        return samples * passes * gradient_flops(setup.model_def)

    return Work(samples, flops, setup.mesh.devices.reshape(-1).tolist())


def _lengths(config: Config) -> dict[str, int]:
    lengths = {
        "train_history_len": config.data.history_len,
        "train_forecast_len": config.data.forecast_len,
    }
    if not config.trainer.skip_validation:
        lengths["valid_history_len"] = config.validation_data.history_len
        lengths["valid_forecast_len"] = config.validation_data.forecast_len
    return lengths
