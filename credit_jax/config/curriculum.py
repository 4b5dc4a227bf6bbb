"""The `trainer.curriculum:` section: stages of a run, with other lead times."""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from credit_jax.config.base import StrictModel
from credit_jax.config.data import MAX_TIMES, BackpropSteps
from credit_jax.config.loss import LossConfig
from credit_jax.config.messages import got
from credit_jax.config.schedules import ScheduleConfig

Unit = Literal["updates", "epochs"]


class Until(NamedTuple):
    """The end of a stage.

    Attributes:
        number: updates or epochs since the start of the run.
        unit: what is counted.
    """

    number: int
    unit: Unit

    def __str__(self) -> str:
        return f"{self.number} {self.unit}"


def _until(value: Any) -> Any:
    if isinstance(value, Until) or value is None:
        return value
    text = "" if isinstance(value, bool) else str(value)
    match = re.fullmatch(r"(?a:(\d+)(?: (updates?|epochs?))?)", text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError(
            f"must be a number of updates, such as 20000, or of epochs, such as "
            f"'5 epochs', got {got(value)}"
        )
    unit: Unit = "epochs" if (match[2] or "").startswith("epoch") else "updates"
    return Until(int(match[1]), unit)


class StageLoss(LossConfig):
    """The keys of `loss` that a stage changes."""

    def without_effect(self) -> dict[str, str]:
        """See `StrictModel.without_effect`; the other keys are those of the run."""
        return {}


class CurriculumStage(StrictModel):
    """A part of a run; CREDIT has no such key.

    A key that is not given is that of the stage before, of the first stage that of the
    run.

    Attributes:
        until: updates (20000), or epochs ("5 epochs"), from the start of the run until
            the stage ends; null for the last stage, which ends with the run.
        forecast_len: steps of a training sample, see `DataConfig`.
        learning_rate: the constant rate of the stage, instead of the rate or the
            schedule before; `plateau` goes on from it. With `scheduler`, its rate.
        scheduler: a schedule that counts from the start of the stage; that of the run
            counts from the start of the run.
        train_batch_size, grad_accum_every, batches_per_epoch: see `TrainerConfig`.
        backprop, backprop_on_timestep: see `TrainerConfig`.
        loss: keys of `loss` that change; the validation loss is that of the run.
    """

    until: Annotated[Until | None, BeforeValidator(_until)] = None
    forecast_len: int | None = Field(None, ge=1, le=MAX_TIMES)
    learning_rate: float | None = Field(None, gt=0)
    scheduler: ScheduleConfig | None = Field(None, discriminator="scheduler_type")
    train_batch_size: int | None = Field(None, ge=1)
    grad_accum_every: int | None = Field(None, ge=1)
    batches_per_epoch: int | None = Field(None, ge=0)
    backprop: Literal["truncated", "full"] | None = None
    backprop_on_timestep: BackpropSteps | None = None
    loss: StageLoss | None = None

    @classmethod
    def unknown_key(cls, key: object, known: Iterable[str]) -> str:
        """See `StrictModel.unknown_key`."""
        text = super().unknown_key(key, known)
        return f"{text}; all other keys hold for the whole run"

    def changes(self, *names: str) -> dict[str, Any]:
        """The values of those of some keys that the stage gives."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def check_order(stages: tuple[CurriculumStage, ...]) -> None:
    """Checks that the stages follow each other, and that the last one has no end.

    Raises:
        ValueError: they do not.
    """
    if not stages:
        return
    *ends, last = (stage.until for stage in stages)
    if last is not None:
        raise ValueError(
            f"the last stage has until {last}, but it ends with the run, at "
            "trainer.epochs; leave its until out, or add a stage after it"
        )
    open_ones = [number for number, end in enumerate(ends, 1) if end is None]
    if open_ones:
        raise ValueError(
            f"stage {open_ones[0]} has no until, which only the last stage, "
            f"{len(stages)}, leaves out; say when it ends, such as until: 20000"
        )
    known = [end for end in ends if end is not None]
    for number, (previous, after) in enumerate(pairwise(known), 2):
        if previous.unit != after.unit:
            raise ValueError(
                f"stage {number} ends by {after.unit}, the stage before by "
                f"{previous.unit}; count all stages in one of them"
            )
        if after.number <= previous.number:
            raise ValueError(
                f"stage {number} ends at {after}, not after the stage before, at "
                f"{previous}; until counts from the start of the run and must increase"
            )
