"""A whole training run: the model of a config, from the demo data to the scores."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import jax
from rich.console import Console

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.run import run_at
from credit_jax.checkpoint.store import FOLDER as CHECKPOINTS
from credit_jax.config import Config, dump_config, write_config
from credit_jax.config.components import extensions
from credit_jax.config.finetune import CurriculumStage
from credit_jax.config.load import CONFIG_NAME, is_written_config
from credit_jax.config.messages import counted
from credit_jax.data.schema import SCHEMA_FILE
from credit_jax.io.atomic import move_aside
from credit_jax.io.errors import WriteError, writable_folder
from credit_jax.io.folder_lock import NAME as LOCK
from credit_jax.io.folder_lock import folder_lock
from credit_jax.packages.package import base_of_run
from credit_jax.parallel.mesh.devices import training_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.watch import RESUME
from credit_jax.plan import plan_run
from credit_jax.plan.restart import mesh_of_restart
from credit_jax.plan.run_record import RunRecord
from credit_jax.training import loggers, restore
from credit_jax.training.display import Display
from credit_jax.training.loggers import LOG_NAME, RECORDS_NAME
from credit_jax.training.loop import Loggers, NonFiniteLossError, Outcome, TrainingLoop
from credit_jax.training.setup import CompiledSteps, Setup, Stage, prepare

_PREFIX, _MOVING = "earlier_", ".moving"
# Scripts and logs of `submit`, which run now, and compiled programs: of no single run.
_SHARED = ("jobs", "cache", LOCK)
# What is of a run whatever reads it, and keys of configs that name what is written.
_RUN = (CHECKPOINTS, CONFIG_NAME, LOG_NAME, RECORDS_NAME)
_OUTPUTS = ("save_loc", "save_forecast")


def refuse_earlier_run(folder: Path) -> None:
    """Checks that a run which begins in a folder finds no work of another one there."""
    # Checkpoints, and logs with rows: of records a start alone is no work.
    checkpoints, records = folder / CHECKPOINTS, folder / RECORDS_NAME
    work = sorted(path.name for path in folder.glob("*checkpoint*.pt"))
    if checkpoints.is_dir() and any(p.name.isdigit() for p in checkpoints.iterdir()):
        work.insert(0, CHECKPOINTS)
    work += [LOG_NAME] if (folder / LOG_NAME).exists() else []
    if records.is_file():
        with records.open(errors="replace") as file:
            if any('"event": "start"' not in line for line in file):
                work.append(RECORDS_NAME)
    if work:
        raise ValueError(
            f"{folder} holds an earlier run ({', '.join(work)}): --resume goes on with "
            "it, --fresh moves it to a dated folder in there and begins anew, and "
            "--save-loc DIR takes another folder"
        )


def files_of(config: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """Paths that a run reads: those that its config names, and that of the config."""
    return source, *_texts(config)


def move_earlier_run(folder: Path, reads: Sequence[str] = ()) -> Path | None:
    """Moves what an earlier run left in a folder, if any, to a dated folder in it."""
    # So that the parts of a run stay together.
    end_interrupted_move(folder, reads)
    if not _entries(folder, reads):
        return None
    moving = folder / f"{_PREFIX}{datetime.now(UTC):%Y%m%d_%H%M%S}{_MOVING}"
    moving.mkdir()
    return _move_into(moving, reads)


def end_interrupted_move(folder: Path, reads: Sequence[str] = ()) -> None:
    """Moves the rest where a process was killed within `move_earlier_run`."""
    for moving in sorted(folder.glob(f"{_PREFIX}*{_MOVING}")):
        _move_into(moving, reads)


def _move_into(moving: Path, reads: Sequence[str]) -> Path:
    # The checkpoints last: without them a run would begin anew among the other files.
    entries = _entries(moving.parent, reads)
    for entry in sorted(entries, key=lambda e: e.name == CHECKPOINTS):
        os.rename(entry, moving / entry.name)
    target = moving.with_suffix("")
    while target.exists():
        target = target.with_name(f"{target.name}_")
    return moving.rename(target)


def _entries(folder: Path, reads: Sequence[str]) -> list[Path]:
    # Patterns of the names in the folder that paths lead to; "forecast", without any
    # of / and ., may be a word in a config.
    patterns, top = [], folder.absolute()
    for path in (path for path in reads if "/" in path or "." in path):
        location = Path(os.path.abspath(Path(os.path.expandvars(path)).expanduser()))
        if location.is_relative_to(top) and location != top:
            # Dates of paths are as in strftime; more than they match may stay.
            name = location.relative_to(top).parts[0]
            patterns.append(re.sub(r"%-?[A-Za-z]", "*", name))
    return [
        entry
        for entry in folder.iterdir()
        if entry.name not in _SHARED
        and not entry.name.startswith(_PREFIX)
        and (entry.name in _RUN or not any(map(entry.match, patterns)))
    ]


def _texts(value: Any) -> Iterator[str]:
    """All texts of nested mappings and lists, but for paths of output."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _OUTPUTS:
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


IF_ANY: Final = "if-any"
_NO_LOCKS = (
    "{}: its file system has no locks, which keep two runs out of one folder; start "
    "none beside this one"
)


def train_model(
    config: Config,
    *,
    num_devices: int | None = None,
    resume: bool | Literal["if-any"] = False,
    fresh: bool = False,
    verify: bool = True,
    stop_at: float | None = None,
    profile: tuple[int, int] | None = None,
    source: str = "config",
) -> Outcome:
    """Trains the model of a config, as the command does, and scores its forecasts.

    Args:
        config: config, as returned by `load_config`.
        num_devices: devices to use; None takes as many as `trainer` asks for.
        resume: whether to go on from the newest checkpoint of `save_loc`; "if-any"
            begins where there is none.
        fresh: whether to begin anew where there is an earlier run, which is moved to a
            dated folder in `save_loc`.
        verify: whether to compare its files with their digests first.
        stop_at: time at which to save and stop, by `time.monotonic`; None for no limit.
        profile: first and last update to trace, counted from 1; None for none.
        source: name of the config in the header of the run.

    Raises:
        ConfigError: the run cannot start; lists all that is wrong.
        NonFiniteLossError: the loss is not finite.
        ValueError: another run uses the folder, it holds an earlier run and neither
            `resume` nor `fresh` is set, or all checkpoints are damaged.
        FileNotFoundError: there is no checkpoint to continue from.
        WriteError: a log or a checkpoint cannot be written.

    >>> options = ["trainer.epochs=1", "trainer.batches_per_epoch=1", "save_loc=NEW"]
    >>> config = credit_jax.load_config("RUN/model.yml", options)
    >>> outcome = credit_jax.train_model(config, num_devices=1)  # doctest: +ELLIPSIS
    credit_jax  config -> NEW
    ...
    >>> outcome.reason
    'finished'
    """
    if num_devices is None:
        num_devices = config.trainer.num_devices
    parallelism, ranks = config.trainer.parallelism, 0
    devices = training_devices(parallelism, num_devices, fewer=bool(resume))
    leads = jax.process_index() == 0
    with (
        writable_folder(config.save_loc, "save_loc (--save-loc)") as folder,
        folder_lock(folder) if leads else nullcontext(True) as is_locked,
    ):
        if leads:
            end_interrupted_move(folder, files_of(dump_config(config), source))
        if leads and not (resume or fresh or config.trainer.load_weights):
            refuse_earlier_run(folder)
        notes = [] if is_locked else [_NO_LOCKS.format(folder)]
        console = Console()
        of_all = config.trainer.num_devices
        if resume == IF_ANY and of_all:
            # Lost before the first checkpoint, too.
            ranks = ParallelDims.from_config(parallelism, of_all).batch_size
        if resume == IF_ANY:
            resume = CheckpointStore(folder, verify=False).latest_step() is not None
        like = base = None
        begins = not (resume or config.trainer.load_weights)
        if not begins:
            store = CheckpointStore(folder, verify=False)
            trained = run_at(store, restore.required_step(store, resume=resume))
            like = trained.coordinates
            notes += trained.notes
            if trained.record is not None:
                notes += trained.record.compare(RunRecord.of(config))
            progress = store.progress(trained.step)
            written = (progress.config or {}).get("trainer", {})
            size = written.get("train_batch_size")
            # Another batch size is one of the ranks that there are.
            same_size = resume and size == config.trainer.train_batch_size
            ranks = (progress.batch_ranks or 0) if same_size else 0
        if ranks:
            parallelism, devices, lines = mesh_of_restart(config, devices, ranks)
            notes += lines
        # What the config alone shows comes before a base is read and data are made.
        planned = partial(
            plan_run,
            config,
            num_devices=len(devices),
            begins=begins,
            parallelism=parallelism,
            batch_ranks=ranks,
        )
        if config.trainer.finetune or config.demo:
            planned(with_data=False)
        finetune = config.trainer.finetune
        if begins and finetune and (base := base_of_run(config)):
            like = base.like(finetune)
            notes += base.notes
        if config.demo is not None and leads:
            extensions("data")["demo"].load()(config.demo, console)
        wait_for_all("the demo data")
        plan = planned(like=like)
        setup = prepare(plan, devices)
        if base is not None:
            assert base.record is not None, "a base has model.yml"
            notes += base.record.compare(plan.record, begins=True)
            calendar = plan.loaders["train"].coordinates().calendar
            of_base = base.coordinates and base.coordinates.calendar
            if of_base not in (None, calendar):
                notes.append(
                    f"data: the dates are in the calendar {calendar}, those of "
                    f"{base.where} in {of_base}; they are taken as they are written"
                )
        display = Display(console, silent=not leads)
        for line in (*header(source, setup), *(f"note: {n}" for n in plan.notes)):
            display.message(line)
        for note in notes:
            display.message(f"note: {note}")
        outcome = run_training(
            setup,
            folder,
            display,
            resume=resume,
            fresh=fresh,
            verify=verify,
            stop_at=stop_at,
            profile=profile,
            base=base,
            source=source,
        )
        if outcome.is_complete and setup.valid_loader is not None:
            for point in extensions("report").values():
                point.load()(setup, folder, outcome, display)
        return outcome


def header(source: str, setup: Setup) -> list[str]:
    """Lines printed before a run: mesh, model, data."""
    config, size = setup.plan.config, setup.train_loader.sampler.samples_per_batch
    model, schema, loader = setup.model.model_def, setup.plan.schema, setup.train_loader
    devices = setup.model.mesh.devices.reshape(-1)
    axes = setup.model.axes
    precision = setup.model.parallel_config.precision.compute.name
    valid = setup.valid_loader
    held_out = ""
    if valid is not None:
        seen = valid.seen_in(config.data)
        subject = "for validation, not held out" if seen else "held out"
        held_out = f", {len(valid.dataset)} {subject}"
    return [
        f"credit_jax  {source} -> {config.save_loc}",
        f"mesh   {axes.summary} on "
        f"{counted(len(devices), f'{devices[0].platform} device')}, {precision}",
        f"model  {config.model['type']}, {model.num_parameters:,} parameters, "
        f"{schema.num_input_channels} -> {schema.num_target_channels} channels on "
        f"{model.image_height} x {model.image_width} points"
        + (", trained by its loss" if model.has_loss else ""),
        f"data   {counted(len(loader.dataset), 'sample')}{held_out}; "
        f"{setup.batches_per_epoch} batches of "
        f"{size} an epoch",
    ]


def run_training(
    setup: Setup,
    folder: Path,
    display: Display,
    *,
    resume: bool = False,  # from the newest checkpoint that is undamaged
    fresh: bool = False,  # what is in `folder` is moved aside
    verify: bool = True,  # compare files with their digests first
    stop_at: float | None = None,  # by `time.monotonic`
    profile: tuple[int, int] | None = None,  # first and last update, from 1
    base: Artifact | None = None,  # weights to begin with
    source: str = "config",  # path of the config, which is not moved
) -> Outcome:
    """Trains to the last epoch, from fresh weights or the checkpoints of `folder`."""
    trainer = setup.plan.config.trainer
    folder.mkdir(parents=True, exist_ok=True)
    keep = {
        "num_latest": 2 if trainer.save_backup_weights else 1,
        "keep_all": trainer.save_every_epoch,
        "keep_best": trainer.save_best_weights,
        "verify": verify,
        "clean": True,
    }
    store = CheckpointStore(folder, **keep)
    run_store = setup.store_in(store)
    if resume or trainer.load_weights:
        step = restore.required_step(store, resume=resume)
        for line in store.damaged():
            display.message(f"not used: {line}")
        run_store.check_fits(step, jax.eval_shape(setup.fresh_state), resume=resume)
    if base is not None and (match := setup.match_channels(base)):
        for line in match.report:
            display.message(line)
    state = setup.fresh_state(base)
    start = restore.start_of_run(trainer, run_store, state, resume=resume)
    if base is not None:
        display.message(f"Beginning with the weights of {base.where}")
    if start.micro_step == 0 and (fresh or store.latest_step() is not None):
        store.close()
        wait_for_all("the checkpoint that the run begins with")
        reads = files_of(dump_config(setup.plan.config), source)
        if jax.process_index() == 0 and (earlier := move_earlier_run(folder, reads)):
            display.message(f"The earlier run is now in {earlier}")
        wait_for_all("the folder of the run")
        store = CheckpointStore(folder, **keep)
        run_store = setup.store_in(store)
    if start.step is not None:
        display.message(
            f"Going on from {store.path(start.step)}: epoch {start.progress.epoch + 1},"
            f" batch {start.progress.batches + 1}, with the last weights"
            + ("" if start.state.ema is None else "; their average goes on beside them")
        )
    if note := restore.epochs_note(trainer, start.progress.epoch):
        display.message(f"note: {note}")
    logs = _loggers(setup, folder, run_store, display, start, profile)
    stages = _stages(setup, first_rate_at=start.progress.first_rate_at)
    loop = TrainingLoop(stages, setup.valid_loader, logs, start, stop_at)
    try:
        outcome = loop.run()
    except BaseException as error:
        # Closing a store waits for all processes. The others do not reach that point,
        # unless all raise this error.
        alone = jax.process_count() > 1 and not isinstance(error, NonFiniteLossError)
        for part in (logs,) if alone else (store, logs):
            # A write that failed before fails again.
            with suppress(WriteError):
                part.close()
        raise
    store.close()
    logs.close()
    if not outcome.is_complete:
        display.message(
            f"Stopped by {outcome.reason} after step {int(outcome.state.micro_step)}; "
            f"saved in {store.folder}. --resume goes on with the very same losses "
            f"(exit code {RESUME})."
        )
    return outcome


def _stages(setup: Setup, *, first_rate_at: int | None) -> list[Stage]:
    """The parts of a run: the stages of its curriculum, or the run itself."""
    shared = setup.steps(first_rate_at=first_rate_at)

    def steps_of(stage: Setup, **counts: int) -> CompiledSteps:
        # All stages validate with one program.
        steps = stage.steps(first_rate_at=first_rate_at, **counts)
        return replace(steps, fuse=shared.fuse, evaluate=shared.evaluate)

    sections = setup.plan.config.trainer.curriculum or (
        CurriculumStage.model_validate({}),
    )
    return [
        Stage(stage, section, partial(steps_of, stage))
        for stage, section in zip(setup.stages or (setup,), sections, strict=True)
    ]


def _loggers(
    setup: Setup,
    folder: Path,
    store: restore.RunStore,
    display: Display,
    start: restore.Start,
    updates: tuple[int, int] | None,
) -> Loggers:
    if jax.process_index() > 0:
        return Loggers(store, display)
    if (path := folder / CONFIG_NAME).exists() and not is_written_config(path):
        display.message(f"note: {path} of before is now {move_aside(path).name}")
    write_config(setup.plan.config, path)
    setup.plan.schema.save(folder / SCHEMA_FILE)
    records = loggers.StepRecords(
        folder / RECORDS_NAME, setup.work, setup.plan.config.trainer.log_every_steps
    )
    records.open(start.micro_step or None)
    trainer = setup.plan.config.trainer
    trackers = [loggers.csv_log(folder / LOG_NAME, keep_until=start.progress.epoch)]
    if trainer.use_tensorboard:
        trackers.append(loggers.tensorboard(folder))
    if trainer.use_wandb:
        parts = setup.plan.config, folder, records.first_start
        trackers.append(loggers.guarded("wandb", lambda: loggers.wandb_run(*parts)))
    if trainer.use_mlflow:
        begin = partial(loggers.mlflow_run, folder, resumes=start.micro_step > 0)
        trackers.append(loggers.guarded("mlflow", begin))
    records.trackers = trackers
    profile = loggers.Profile(folder / "profile", *updates) if updates else None
    return Loggers(store, display, trackers, records, profile)
