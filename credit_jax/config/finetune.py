"""The sections `trainer.finetune` and `trainer.curriculum`: runs from weights."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from credit_jax.config.base import FolderPath, StrictModel, parse
from credit_jax.config.data import MAX_TIMES, BackpropSteps
from credit_jax.config.loss import LossConfig
from credit_jax.config.messages import got
from credit_jax.config.schedules import ScheduleConfig


class CopyChannels(StrictModel):
    """New outputs that begin as copies of others.

    Attributes:
        copied: `copy`: new output -> output of the base, by the names of variables; one
            level of a variable is "T 500".
    """

    copied: dict[str, str] = Field(alias="copy")


NewChannels = Literal["zero", "mean"] | CopyChannels


Patterns = tuple[str, ...]


class LoraConfig(StrictModel):
    """Low-rank adapters of frozen matrices (LoRA): W + alpha / rank * A B.

    Attributes:
        rank: columns of A and rows of B.
        alpha: numerator of the factor of the product.
        targets: patterns of the matrices that have adapters: of dense layers and of 1 x
            1 convolutions; what else a pattern matches is left as it is.
    """

    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    targets: Patterns = Field(min_length=1)


class FinetuneConfig(StrictModel):
    """What a run begins with, and what of it is trained; CREDIT has no such section.

    Patterns are those of `fnmatch`, in which `*` is any text, slashes and dots
    included. They match whole paths of parameters ("stages/0/embed/*") or whole keys of
    CREDIT ("layers.0.0.*"). A pattern that matches nothing is an error.

    Attributes:
        base: `from`: folder of a run, model package, or file or folder of a checkpoint
            of CREDIT, with `model.yml` beside it.
        weights: "average", "last", or null for the moving average if there is one.
        freeze: patterns of parameters that are not trained: they have no gradient, no
            optimizer state, no weight decay and no average. Their spectral norm stays
            that of the base.
        train: patterns of the only parameters that are trained; not beside `freeze`.
        lora: low-rank adapters, see `LoraConfig`; all parameters of the base but those
            of `train` are frozen.
        new_channels: whether the data may have other variables and levels than those of
            the base, and what the weights of new outputs begin with: "zero", the "mean"
            of those of all outputs, or `copy: {NEW: OLD}`. The weights of new inputs
            are 0 at first. With null the channels must be those of the base.
        moments: whether to begin with the moments of the base's optimizer, too, a run
            of credit_jax; those of new parameters and channels are 0.
        new_grid: whether the grid, padding and windows may be others than those of the
            base.
    """

    base: FolderPath = Field(alias="from", min_length=1)
    weights: Literal["average", "last"] | None = None
    freeze: Patterns = ()
    train: Patterns = ()
    lora: LoraConfig | None = None
    new_channels: NewChannels | None = None
    moments: bool = False
    new_grid: bool = False

    def conflicts(self) -> Iterator[str]:
        if self.freeze and self.train:
            yield (
                "freeze and train are both given; expected one of them: train is the "
                "list of all that is not frozen"
            )
        if self.freeze and self.lora:
            yield (
                "freeze is given beside lora, which freezes all parameters of the base "
                "but those of train; expected one of them"
            )


def finetune_of(written: Mapping[str, Any]) -> FinetuneConfig | None:
    """Returns the `trainer.finetune` of a YAML, whose other sections are not read."""
    trainer = written.get("trainer")
    section = trainer.get("finetune") if isinstance(trainer, Mapping) else None
    if section is None:
        return None
    return parse(FinetuneConfig, section, "trainer.finetune")


Unit = Literal["updates", "epochs"]


class Until(NamedTuple):
    """The end of a stage, in updates or epochs since the start of the run."""

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
        text = super().unknown_key(key, known)
        return f"{text}; all other keys hold for the whole run"

    def changes(self, *names: str) -> dict[str, Any]:
        """The values of those of some keys that the stage gives."""
        values = {name: getattr(self, name, None) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def _check_order(stages: tuple[CurriculumStage, ...]) -> Any:
    """Checks that stages follow each other, and that the last one has no end."""
    ends = [stage.until for stage in stages]
    numbers = [end.number for end in ends if end is not None]
    in_order = len(numbers) == len(ends) - 1 and numbers == sorted({*numbers})
    if ends and not (
        in_order and ends[-1] is None and len({e.unit for e in ends if e}) < 2
    ):
        raise ValueError(
            f"the stages have until {', '.join(map(str, ends))}; expected increasing "
            "ends, counted from the start of the run, all in updates or all in epochs, "
            "and none of the last stage, which ends with the run, at trainer.epochs"
        )
    return stages


Stages = Annotated[tuple[CurriculumStage, ...], AfterValidator(_check_order)]
