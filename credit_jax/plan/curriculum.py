"""The stages of `trainer.curriculum`: their data, losses, and numbers of updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from credit_jax.config import Config
from credit_jax.config.base import as_problems, together
from credit_jax.config.data import num_samples
from credit_jax.data import ChannelSchema, Loader, build_loader
from credit_jax.plan.objective import Objective, WeightFiles, plan_objective
from credit_jax.transforms import Pipeline

# Share of the micro-batches that a schedule is to reach; their number depends on the
# ranks, by rounding.
_ENOUGH = 0.9


@dataclass(frozen=True)
class StagePlan:
    """A stage of a run."""

    config: Config  # the config of the stage, which has no curriculum
    loader: Loader  # training data of data-parallel rank 0
    objective: Objective  # its losses, with the validation of the run


@dataclass(frozen=True)
class StageLength:
    """How long a stage lasts."""

    updates: int  # number of its updates; 0 if the run ends before it
    epochs: int  # number of its epochs, the last of which may end early


def plan_stages(
    config: Config,
    schema: ChannelSchema,
    pipeline: Pipeline | None,
    files: WeightFiles,
    objective: Objective,
    *,
    dp_size: int,
) -> tuple[tuple[StagePlan, ...], list[str]]:
    """Plans the stages of `trainer.curriculum` with their data; and returns notes."""
    datasets = {} if files.loader is None else {config.data.forecast_len: files.loader}
    of_run = {
        name: getattr(objective, name)
        for name in ("evaluate", "evaluated", "valid_rollout")
    }

    def open_stage(stage: Config) -> Loader | None:
        """The training data of a stage; those with equal windows are opened once."""
        loader, steps = files.loader, stage.data.forecast_len
        if loader is None:
            return None
        ranks = 1 if stage.shares_batches else dp_size
        if steps not in datasets:
            datasets[steps] = build_loader(
                stage,
                split="train",
                dp_size=ranks,
                pipeline=loader.pipeline,
                open_files=files.open_files,
                like=loader.coordinates(),
            )
        equal, size = datasets[steps], stage.trainer.train_batch_size
        sampler = replace(equal.sampler, batch_size=size, dp_size=ranks)
        return replace(equal, sampler=sampler)

    def plan_stage(index: int, stage: Config) -> tuple[list[StagePlan], list[str]]:
        with as_problems(key=f"trainer.curriculum.{index}"):
            loader, (planned, notes) = together(
                lambda: open_stage(stage),
                lambda: plan_objective(stage, schema, pipeline, files),
            )
        if loader is None:
            return [], notes
        mine = StagePlan(stage, loader, replace(planned, **of_run))
        return [mine], [*loader.notes, *notes]

    planned = together(
        *(partial(plan_stage, *each) for each in enumerate(config.stages))
    )
    plans, lines = zip(*planned, strict=True) if planned else ((), ())
    return tuple(chain.from_iterable(plans)), [*chain.from_iterable(lines)]


def plan_lengths(
    config: Config, loaders: Sequence[Loader | None], dp_size: int
) -> tuple[list[StageLength], list[str]]:
    """Updates and epochs of each stage, [] without, up to `trainer.epochs`; notes."""
    stages, run = config.stages, config.trainer
    done, epochs, lengths = 0, run.start_epoch, list[StageLength]()
    # Micro-batches that a schedule counts, and the key of the schedule.
    parts = [["trainer.scheduler", run, 0]]
    for index, (stage, loader) in enumerate(
        zip(stages or (config,), loaders, strict=True)
    ):
        trainer, ranks = stage.trainer, 1 if stage.shares_batches else dp_size
        if loader is not None:
            batches = loader.sampler.num_batches
        else:
            batches = -(-num_samples(stage.data) // ranks) // trainer.train_batch_size
        batches = min(batches, trainer.batches_per_epoch or batches)
        if not stages:
            parts[0][2] = run.epochs * batches
            break
        section = run.curriculum[index]
        until, each = section.until, max(-(-batches // trainer.grad_accum_every), 1)
        left = max(run.epochs - epochs, 0)
        if until is not None and until.unit == "epochs":
            left = min(left, max(until.number - epochs, 0))
        updates = left * each
        if until is not None and until.unit == "updates":
            updates = min(updates, max(until.number - done, 0))
        # A stage that ends within an epoch ends that epoch.
        lengths.append(StageLength(updates, -(-updates // each)))
        done, epochs = done + updates, epochs + lengths[-1].epochs
        if section.scheduler is not None:
            parts.append([f"trainer.curriculum.{index}.scheduler", trainer, 0])
        parts[-1][2] += updates * trainer.grad_accum_every
    notes = [
        f"trainer.curriculum.{index}: the run ends before this stage, after {done:,} "
        f"updates in trainer.epochs {run.epochs}"
        for index, length in enumerate(lengths)
        if length.updates == 0
    ]
    for path, each, count in parts:
        if (schedule := each.schedule) is None or not (key := schedule.length):
            continue
        unit = "micro-batch"
        if schedule.by_epoch:
            unit, count = "epoch", 0 if stages else run.epochs
        if (end := getattr(schedule, key)) < _ENOUGH * count:
            is_key = key in schedule.model_dump()
            notes.append(
                f"{path}{f'.{key}' if is_key else ''}: the rate {schedule.then} from "
                f"{unit} {end:,} of {count:,} on, as in CREDIT; "
                f"{f'write {key}: {count}, or ' if is_key else ''}train fewer epochs"
            )
    return lengths, notes
