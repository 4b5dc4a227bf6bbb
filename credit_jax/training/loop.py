"""The epochs of a run: training, validation, logs, checkpoints, early stopping."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TrainerConfig
from credit_jax.data import Batch, Loader
from credit_jax.io.activity import activity, hang_limit
from credit_jax.nn.context import Noise
from credit_jax.parallel.processes.watch import RESUME, end_all
from credit_jax.training import setup
from credit_jax.training.display import Display
from credit_jax.training.loggers import (
    LogRow,
    Profile,
    StepRecords,
    Tracker,
    logged_metrics,
)
from credit_jax.training.restore import RunStore, Start, last_epoch
from credit_jax.training.rollout import SUSPICION
from credit_jax.training.signals import Agreement, StopRequests
from credit_jax.training.state import TrainState


def progress_after(
    trainer: TrainerConfig, progress: Progress, value: float | None, micro_step: int
) -> Progress:
    """The position after an epoch; `value` is of the training metric, if measured."""
    config, rate, plateau = trainer.scheduler, progress.learning_rate, progress.plateau
    if plateau is not None and rate is not None:
        assert isinstance(config, PlateauConfig), "`start_of_run` sets it for that"
        metric = math.nan if value is None else value
        plateau, rate = plateau_after(config, plateau, rate, metric)
    after = dataclasses.replace(
        progress,
        learning_rate=rate,
        plateau=plateau,
        epoch=progress.epoch + 1,
        batches=0,
        samples=0,
        epoch_losses=(),
        epoch_sums={},
    )
    direction = trainer.training_metric_direction
    if value is None or not is_better(value, after.best_metric, direction):
        return after
    return dataclasses.replace(
        after,
        best_metric=value,
        best_epoch=progress.epoch,
        best_step=micro_step if trainer.save_best_weights else None,
    )


def is_better(value: float, best: float | None, direction: str) -> bool:
    """Whether a metric beats the best one; NaN never does."""
    if best is None or math.isnan(value):
        return not math.isnan(value)
    return value < best if direction == "min" else value > best


def plateau_after(
    config: PlateauConfig, state: PlateauState, rate: float, value: float
) -> tuple[PlateauState, float]:
    """State and rate of PyTorch's ReduceLROnPlateau after one more epoch."""
    sign = 1.0 if config.mode == "max" else -1.0
    if state.best is None:
        bound = -sign * math.inf
    elif config.threshold_mode == "rel":
        bound = state.best * (1.0 + sign * config.threshold)
    else:
        bound = state.best + sign * config.threshold
    better = value > bound if config.mode == "max" else value < bound
    bad, cooldown = 0 if better else state.bad_epochs + 1, state.cooldown
    if cooldown > 0:
        bad, cooldown = 0, cooldown - 1
    if bad > config.patience:
        lower = max(rate * config.factor, config.min_lr)
        rate = lower if rate - lower > config.eps else rate
        bad, cooldown = 0, config.cooldown
    best = value if better else state.best
    return PlateauState(state.epochs + 1, best, bad, cooldown), rate


@dataclass
class EpochNumbers:
    """Losses, further measured values, waiting times, and the number of bad samples."""

    losses: list[float] = field(default_factory=list)  # losses of each micro-batch
    # Further measured values by name, summed over the micro-batches.
    sums: dict[str, float] = field(default_factory=dict)
    # Seconds that each update of this process waited for data.
    waits: list[float] = field(default_factory=list)
    num_bad: int = 0  # bad samples that were replaced by others
    # Time at which the first update was finished, by `time.monotonic`.
    since: float | None = None

    def add(self, losses: np.ndarray, measured: Mapping[str, Any]) -> None:
        """Adds the losses of an update and what else was measured, (k,) arrays."""
        self.losses += losses.tolist()
        self.since = self.since or time.monotonic()
        for name, values in jax.device_get(dict(measured)).items():
            self.sums[name] = self.sums.get(name, 0.0) + float(np.sum(values))

    @property
    def wait_percent(self) -> float:
        """Share of the time since the first update in which one waited for data, %."""
        elapsed = time.monotonic() - (self.since or time.monotonic())
        return 100 * sum(self.waits[1:]) / elapsed if elapsed > 0 else 0.0


def validate(
    trainer: TrainerConfig,
    steps: setup.CompiledSteps,
    loader: Loader | None,
    state: TrainState,
    display: Display,
    *,
    epoch: int,
    last: int,
    seen: Callable[[Batch], None],
) -> dict[str, float]:
    """Loss and metrics, averaged over batches as CREDIT does; {} without validation."""
    if loader is None or steps.evaluate is None:
        return {}
    total = setup.num_batches(loader, trainer.valid_batches_per_epoch)
    display.start(f"validation {epoch + 1}/{last}", total=total)
    weights = steps.fuse(*state.evaluated)
    collected: dict[str, list[float]] = {}
    for index, batch in enumerate(itertools.islice(loader.epoch(epoch), total)):
        noise = Noise(jax.random.key(index))
        with activity(f"validation batch {index + 1}/{total}"):
            values = steps.evaluate(*weights, steps.place_valid(batch), noise)
            suspicion = int(values.pop(SUSPICION, 0))
            if suspicion > 1:
                batch = loader.again(batch, is_suspect=True)
                values = steps.evaluate(*weights, steps.place_valid(batch), noise)
                values.pop(SUSPICION)
            elif suspicion:
                loader.note(batch)
            for name, value in values.items():
                collected.setdefault(name, []).append(float(value))
        seen(batch)
        display.advance(1, len(batch.indices) * jax.process_count())
    return {name: float(np.mean(values)) for name, values in collected.items()}


FINISHED, EARLY = "finished", "stopped early"
# Columns of the log that depend on the clock.
TIME_COLUMNS = frozenset(
    {
        "data_wait_seconds",
        "data_wait_percent",
        "save_seconds",
        "save_percent",
        "saved_minutes_ago",
    }
)
_SAVE = "save"
# Share of the time, %, that updates wait for data, above which the log says what to do.
MUCH_WAITING = 5.0


@dataclass(frozen=True)
class Loggers:
    """Everything that a run writes to."""

    store: RunStore  # checkpoints of the model
    display: Display  # progress on the console
    # Of the rows of epochs, the CSV file first; the first process alone has them.
    trackers: Sequence[Tracker] = ()
    records: StepRecords | None = None  # of steps, which the trackers get, too
    profile: Profile | None = None  # trace of some updates; None for none

    def close(self) -> None:
        """Ends the trace and the logs; the checkpoints stay open."""
        if self.profile:
            self.profile.close()
            if note := self.profile.note:
                self.display.message(note)
        if self.records:
            self.records.close()


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: TrainState  # state after the last update
    progress: Progress
    # "finished", "stopped early", or what stopped it: the name of a signal or
    # "--stop-after".
    reason: str

    @property
    def is_complete(self) -> bool:
        """Whether the run is complete; if not, it can be resumed."""
        return self.reason in (FINISHED, EARLY)


class TrainingLoop:
    """Trains from a start to the last epoch."""

    # The part of the run that trains now, its trainer section, batches and programs.
    stage: setup.Stage
    trainer: TrainerConfig
    train_loader: Loader
    steps: setup.CompiledSteps

    def __init__(
        self,
        stages: Sequence[setup.Stage],
        valid_loader: Loader | None,
        loggers: Loggers,
        start: Start,
        stop_at: float | None = None,
    ) -> None:
        """Begins at a position."""
        # The limit is by `time.monotonic`; each stage begins with an epoch.
        self.stages, self.valid_loader, self.loggers = stages, valid_loader, loggers
        self._state, self._progress = start.state, start.progress
        if self._progress.updates is None:
            updates = int(self._state.update_step)
            self._progress = dataclasses.replace(self._progress, updates=updates)
        trainer = stages[0].setup.plan.config.trainer
        self._hang_minutes = trainer.hang_minutes
        self._last = last_epoch(trainer, start.progress.epoch)
        self._micro_step = start.micro_step
        progress = self._progress  # within an epoch where a run resumes there
        self._numbers = EpochNumbers(
            list(progress.epoch_losses), dict(progress.epoch_sums)
        )
        self._saves = SaveSchedule(
            trainer.save_every_steps,
            trainer.save_every_minutes,
            leads=jax.process_index() == 0,
        )
        self._requests, self._agreement = StopRequests(stop_at), Agreement()
        self._num_started = 0  # updates, in this command
        self._saved = 0.0  # seconds of checkpoints up to the last epoch
        # Updates that are started, with their samples, and whether the next one counts.
        self._pending = deque[tuple[dict[str, Any], Sequence[Batch]]]()
        self._proceed: Any = None

    def run(self) -> Outcome:
        """Trains to the last epoch."""
        reason: str | None = None
        limit = hang_limit(60 * self._hang_minutes, self._end_hanging)
        with self.loggers.display, self._requests as requests, limit:
            requests.has_work = False
            for epoch in range(self._progress.epoch, self._last):
                self._enter_stage()
                with activity(f"epoch {epoch + 1}/{self._last}"):
                    reason = self._train_epoch(epoch) or self._end_epoch(epoch)
                if epoch + 1 < self._last:
                    reason = reason or requests.of_any_process()
                if reason:
                    break
            with activity("writing the last checkpoint"):
                self.loggers.store.checkpoints.wait()
        return Outcome(self._state, self._progress, reason or FINISHED)

    def _end_hanging(self, text: str) -> None:
        """Ends all processes: a collective that never returns lets nothing else."""
        text = f"no progress for {self._hang_minutes:g} minutes: {text or 'training'}"
        text += "; trainer.hang_minutes sets the limit, and --resume goes on"
        end_all(RESUME, text, alone=True)

    def _enter_stage(self) -> None:
        """Begins the stage that trains next, if it is another one than before."""
        index = setup.stage_at(self.stages, self._progress)
        stage = self.stages[index]
        if stage is vars(self).get("stage"):
            return
        self._progress = setup.entered(
            self._progress, self.stages, index, self._micro_step
        )
        # The programs of the stage before go first.
        vars(self).pop("steps", None)
        self.stage, config = stage, stage.setup.plan.config
        self.trainer, self.train_loader = config.trainer, stage.setup.train_loader
        step = self._progress.schedule_step if len(self.stages) > 1 else 0
        self.steps = stage.steps(schedule_step=step)
        if self.loggers.records:
            self.loggers.records.change_work(stage.setup.work)
        if len(self.stages) > 1:
            self.loggers.display.message(
                f"stage {index + 1}/{len(self.stages)}, from update "
                f"{(self._progress.updates or 0) + 1} to "
                f"{stage.section.until or 'the end'}: {setup.summary_of(config)}; "
                f"{len(self.train_loader.dataset)} samples"
            )

    @property
    def _stage_number(self) -> dict[str, int]:
        """The number of the stage, counted from 1; {} without a curriculum."""
        if len(self.stages) == 1:
            return {}
        return {"stage": self.stages.index(self.stage) + 1}

    def _label(self, epoch: int) -> str:
        """The epoch and the stage for the display."""
        stage = "".join(
            f", stage {number}/{len(self.stages)}"
            for number in self._stage_number.values()
        )
        return f"epoch {epoch + 1}/{self._last}{stage}"

    def _rate(self, epoch: int) -> np.float32 | None:
        """Learning rate of an update; None for that of the schedule of batches."""
        rate = self._progress.learning_rate
        schedule = self.trainer.schedule
        if rate is None and len(self.stages) > 1 and schedule and schedule.by_epoch:
            # Epochs of a curriculum have different numbers of batches, so that the
            # number of batches does not give the epoch.
            number = epoch - self._progress.schedule_epoch
            rate = np.asarray(schedule.rate(self.trainer.learning_rate, number, jnp))
        return None if rate is None else np.float32(rate)

    def _train_epoch(self, epoch: int) -> str | None:
        """Trains the rest of an epoch; returns what stopped it, if anything."""
        done = self._progress.batches
        samples = self._samples_done
        cap = self.trainer.batches_per_epoch
        left = batches_left(self.train_loader, cap, samples)
        until = self.stage.section.until
        if until is not None and until.unit == "updates":
            updates = until.number - (self._progress.updates or 0)
            left = min(left, updates * self.trainer.grad_accum_every)
        total, full = done + left, setup.num_batches(self.train_loader, cap)
        self.loggers.display.start(
            self._label(epoch),
            total=total,
            done=done,
            left=(self._last - epoch - 1) * full,
        )
        batches = itertools.islice(self.train_loader.epoch(epoch, samples), left)
        groups = grouped(batches, self.trainer.grad_accum_every)
        # Simulated devices share the cores: two programs at once block each other.
        ahead = 0 if jax.default_backend() == "cpu" else 2
        if self.loggers.records:
            self.loggers.records.resume_clock()
        for group, seconds in with_wait(groups):
            self._numbers.waits.append(seconds)
            self._num_started += 1
            if (profile := self.loggers.profile) and profile.before(self._num_started):
                self._finish_updates(epoch)
                profile.switch(self._num_started)
            with activity(f"update {self._num_started}"):
                self._start_update(epoch, group)
            self._finish_updates(epoch, ahead)
            # All processes stop and save after the same update: saving is collective.
            decision = self._agreement.reached(
                self._num_started,
                self._requests.caught or (_SAVE if self._saves.due_by_clock else None),
            )
            if decision or self._saves.due_by_steps:
                self._finish_updates(epoch)
                if self._progress.batches < total:
                    self._progress = dataclasses.replace(
                        self._progress,
                        epoch_losses=tuple(self._numbers.losses),
                        epoch_sums=dict(self._numbers.sums),
                    )
                    self._save()
                if decision not in (None, _SAVE):
                    return decision if self._progress.batches < total else None
        self._finish_updates(epoch)
        return None

    def _start_update(self, epoch: int, group: Sequence[Batch]) -> None:
        """Starts an update, which counts only if those before it do."""
        placed = self.steps.place_train(group)
        first = self._proceed is None
        proceed = self.steps.proceed(1) if first else self._proceed
        arguments = self._state, placed, self._rate(epoch), proceed
        self._state, info = self.steps.train(*arguments)
        self._proceed = info["proceed"]
        # The memory of its arrays is free for another batch once they are placed.
        samples = [batch.without_arrays() for batch in group]
        self._pending.append((info, samples))

    @property
    def _samples_done(self) -> int:
        """Samples of the epoch that were trained on, also with another batch size."""
        if self._progress.samples is not None:
            return self._progress.samples
        return self._progress.batches * self.train_loader.sampler.samples_per_batch

    def _finish_updates(self, epoch: int, num_left: int = 0) -> None:
        """Waits for the updates that are started, but for the last ones."""
        while len(self._pending) > num_left:
            info, group = self._pending.popleft()
            with activity("waiting for the devices"):
                suspicion = np.atleast_1d(info.get(SUSPICION, 0))
                is_taken = bool(info["proceed"])
            if is_taken or not (suspicion > 1).any():
                self._finish_update(epoch, info, group)
                for batch, code in zip(group, suspicion, strict=False):
                    if code == 1:
                        self.train_loader.note(batch)
                continue
            # Neither this update nor one after it has counted: they are done again.
            groups = [group, *(later for _, later in self._pending)]
            self._pending.clear()
            for number, batches in enumerate(groups):
                self._proceed = None if number else self.steps.proceed(2)
                read = partial(self.train_loader.again, is_suspect=not number)
                self._start_update(epoch, [*map(read, batches)])
                self._finish_updates(epoch)

    def _finish_update(
        self, epoch: int, info: dict[str, Any], group: Sequence[Batch]
    ) -> None:
        """Checks the numbers of an update, and displays them."""
        losses = np.asarray(info["loss"], np.float64).reshape(-1)
        norm = float(info["grad_norm"])
        skipped = bool(info.get("skipped", False))
        self._check_finite(epoch, losses, 0.0 if skipped else norm, group)
        self._micro_step, self._requests.has_work = self._micro_step + len(group), True
        self._progress = dataclasses.replace(
            self._progress,
            epoch=epoch,
            batches=self._progress.batches + len(group),
            updates=(self._progress.updates or 0) + 1,
            samples=self._samples_done
            + len(group) * self.train_loader.sampler.samples_per_batch,
        )
        self._numbers.add(losses, info["measured"])
        self._saves.updated()
        self._report_bad(*group)
        scale = float(info["loss_scale"]) if "loss_scale" in info else None
        scales = {} if scale is None else {"loss_scale": scale}
        if records := self.loggers.records:
            previous, self._saved = self._saved, self._saves.total_seconds
            records.updated(
                step=self._micro_step,
                epoch=epoch,
                batch=self._progress.batches,
                count=len(group),
                loss=float(losses.mean()),
                grad_norm=norm,
                learning_rate=float(info["learning_rate"]),
                data_wait_seconds=self._numbers.waits[-1],
                save_seconds=self._saved - previous,
                **self._stage_number,
                **scales,
            )
        if scale is not None and scale <= 1 and skipped:
            self.loggers.display.message(
                f"The gradient overflowed float16 though the loss scale is {scale:g}; "
                "the update is skipped. bfloat16 (trainer.fsdp2_mp_policy) has the "
                "range of float32."
            )
        self.loggers.display.advance(
            len(group),
            sum(len(batch.indices) for batch in group) * jax.process_count(),
            {
                "loss": float(losses.mean()),
                "lr": float(info["learning_rate"]),
                "grad norm": norm,
                "data wait %": self._numbers.wait_percent,
                **(records.shown if records else {}),
                **self._saves.minutes_ago("saved min ago"),
                **({} if scale is None else {"loss scale": scale}),
            },
        )

    def _check_finite(
        self, epoch: int, losses: np.ndarray, norm: float, group: Sequence[Batch]
    ) -> None:
        """Checks the numbers of an update; the error names its samples."""
        if np.isfinite(losses).all() and math.isfinite(norm):
            return
        bad = ~np.isfinite(losses)
        index = int(np.argmax(bad)) if bad.any() else len(group) - 1
        subject = f"the loss is {losses[index]}"
        if not bad.any():
            subject = f"the norm of the gradient is {norm}"
        times = sorted(str(time)[:16] for time in group[index].input_times)
        dates = times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
        checkpoints = self.loggers.store.checkpoints
        checkpoints.wait()
        saved, newest = checkpoints.latest_step(), "No checkpoint had been written yet."
        if saved is not None:
            path = checkpoints.path(saved)
            newest = f"The newest checkpoint is {path}; --resume continues from it."
        raise NonFiniteLossError(
            f"{subject} at step {self._micro_step + index + 1} (epoch {epoch + 1}, "
            f"batch {self._progress.batches + index + 1}, samples of {dates}); "
            f"training has stopped. {newest} A lower trainer.learning_rate or a "
            "trainer.grad_max_norm of 1.0 may help."
        )

    def _report_bad(self, *batches: Batch) -> None:
        """Prints and counts the bad samples that were replaced by others."""
        for line in itertools.chain(*(batch.replaced for batch in batches)):
            self.loggers.display.message(f"bad sample: {line}")
            self._numbers.num_bad += 1

    def _end_epoch(self, epoch: int) -> str | None:
        """Validates, logs and saves; returns "stopped early" if patience ran out."""
        began, waited = time.monotonic(), self._numbers.wait_percent
        waits = self._numbers.waits
        valid = validate(
            self.trainer,
            self.steps,
            self.valid_loader,
            self._state,
            self.loggers.display,
            epoch=epoch,
            last=self._last,
            seen=self._report_bad,
        )
        rate = self._progress.learning_rate
        if rate is None and (rate := self._rate(epoch)) is None:
            rate = self.steps.learning_rate(self._micro_step)
        skips, losses = self.train_loader.dataset.replaces, self._numbers.losses
        sums, chosen = self._numbers.sums, self.trainer.save_metric_vars
        # What was measured besides the loss, averaged over the micro-batches.
        means = {name: total / len(losses) for name, total in sums.items()}
        row: LogRow = {
            "epoch": epoch,
            **self._stage_number,
            **self.stage.setup.lengths,
            "train_loss": float(np.mean(losses)) if losses else math.nan,
            **{
                f"{phase}_{name}": value
                for phase, metrics in (("train", means), ("valid", valid))
                for name, value in logged_metrics(metrics, chosen).items()
            },
            "lr": float(rate),
            "data_wait_seconds": float(np.mean(waits)) if waits else 0.0,
            "save_seconds": self._saves.seconds(),
            "save_percent": self._saves.percent,
            **self._saves.minutes_ago("saved_minutes_ago"),
            **({"bad_samples": self._numbers.num_bad} if skips else {}),
            "data_wait_percent": waited,
        }
        measured = row | {f"valid_{name}": value for name, value in valid.items()}
        measured |= {f"train_{name}": value for name, value in means.items()}
        value = measured.get(self.trainer.training_metric)
        progress = dataclasses.replace(self._progress, epoch=epoch)
        self._progress = progress_after(self.trainer, progress, value, self._micro_step)
        self._numbers = EpochNumbers()
        for tracker in self.loggers.trackers:
            tracker.write_epoch(row)
        self._save()
        hidden = {*self.stage.setup.lengths, "epoch"}
        parts = [
            f"{name} {value:.5g}"
            for name, value in row.items()
            if name not in hidden and "/" not in name
        ]
        records, seconds = self.loggers.records, time.monotonic() - began
        for name, value in (records.shown if records else {}).items():
            parts.append(f"{name} {value:.3g}")
        best, patience = self._progress.best_epoch, self.trainer.stopping_patience
        self.loggers.display.message(
            f"{self._label(epoch)} done{' (best so far)' if best == epoch else ''}: "
            f"{'  '.join(parts)}  validation {seconds:.1f} s"
        )
        if waited > MUCH_WAITING:
            self.loggers.display.message(
                f"Updates waited for data {waited:.0f} % of the time: "
                f"raise trainer.thread_workers ({self.trainer.thread_workers}) or "
                f"trainer.prefetch_factor ({self.trainer.prefetch_factor})."
            )
        if best is None or epoch - best < patience or self.trainer.skip_validation:
            return None
        self.loggers.display.message(
            f"No better {self.trainer.training_metric} for {patience} epochs; "
            f"epoch {best + 1} was best."
        )
        return EARLY

    def _save(self) -> None:
        # A killed run resumes from this checkpoint and keeps the records up to it.
        records = self.loggers.records
        if records:
            records.flush()
        with self._saves.saving(), activity(f"saving step {self._micro_step}"):
            self.loggers.store.save(self._micro_step, self._state, self._progress)
        if records:
            records.resume_clock()


def batches_left(loader: Loader, cap: int, done: int) -> int:
    """Batches of an epoch of `cap` ones, if not 0, after some of its samples."""
    # `done` has the samples of all data-parallel ranks.
    left, size = loader.sampler.batches_left(done), loader.sampler.samples_per_batch
    return min(left, max(cap * size - done, 0) // size) if cap else left


def grouped(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """Yields the micro-batches of each update; the last group may be smaller."""
    while group := list(itertools.islice(batches, size)):
        yield group


def with_wait(
    groups: Iterator[list[Batch]],
) -> Iterator[tuple[list[Batch], float]]:
    """Yields each group with the seconds that the step waited for it."""
    while True:
        began = time.monotonic()
        with activity("reading a batch"):
            group = next(groups, None)
        if group is None:
            return
        yield group, time.monotonic() - began


class NonFiniteLossError(RuntimeError):
    """The loss or the gradient is NaN or infinite; the state was not saved."""


@dataclass
class SaveSchedule:
    """Decides when to save, by the number of updates and by the clock."""

    every_steps: int | None = None  # updates between saves; None for none
    every_minutes: float = 0.0  # minutes between saves; 0 for none
    # Whether this process checks the clock; exactly one process of a run does.
    leads: bool = True
    clock: Callable[[], float] = time.monotonic  # monotonic time in seconds
    _updates: int = 0
    _has_saved: bool = False
    _saved_at: float = field(init=False)
    _began_at: float = field(init=False)
    # Seconds that training was blocked by saving since the start.
    total_seconds: float = 0.0
    _asked: float = 0.0

    def __post_init__(self) -> None:
        self._saved_at = self._began_at = self.clock()

    def updated(self) -> None:
        self._updates += 1

    @property
    def due_by_steps(self) -> bool:
        """Whether enough updates have ended; the same in all processes."""
        return self.every_steps is not None and self._updates >= self.every_steps

    @property
    def due_by_clock(self) -> bool:
        """Whether enough time has passed; False in processes that do not lead."""
        if not self.leads or not self.every_minutes or not self._updates:
            return False
        return self.minutes >= self.every_minutes

    @property
    def minutes(self) -> float:
        """Minutes since the last save, or since the start."""
        return (self.clock() - self._saved_at) / 60

    def minutes_ago(self, name: str) -> dict[str, float]:
        """`minutes` by this name; {} before the first save of this command."""
        return {name: self.minutes} if self._has_saved else {}

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Wraps a save: restarts the schedule, and adds up the time of saving."""
        began = self.clock()
        yield
        self._updates, self._saved_at = 0, self.clock()
        self._has_saved = True
        self.total_seconds += self._saved_at - began

    @property
    def percent(self) -> float:
        """Percentage of the time since the start that saving has blocked training."""
        return 100 * self.total_seconds / max(self.clock() - self._began_at, 1e-9)

    def seconds(self) -> float:
        """Seconds that training was blocked by saving since the last call."""
        previous, self._asked = self._asked, self.total_seconds
        return self._asked - previous
