"""The `trainer.scheduler:` section: one class per learning rate schedule."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from credit_jax.config.base import StrictModel


def _only(value: Any) -> Any:
    """Unpacks a list of one number, which PyTorch accepts for one parameter group."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


_COUNTED = {"last_epoch": "the checkpoint knows where the schedule stands"}


class LinearWarmupCosineConfig(StrictModel):
    """Linear warm-up from 0 to the learning rate, then half a cosine; per micro-batch.

    Attributes:
        warmup_steps: micro-batches of the warm-up.
        total_steps: micro-batches until `min_lr` is reached, including the warm-up.
        min_lr: the final learning rate.
    """

    scheduler_type: Literal["linear-warmup-cosine"]
    warmup_steps: int = Field(1000, ge=0)
    total_steps: int = Field(500_000, ge=1)
    min_lr: float = Field(1e-5, ge=0)

    ignored: ClassVar = _COUNTED


class CosineAnnealingRestartsConfig(StrictModel):
    """Cosine cycles with warm-up and restarts; per micro-batch.

    `trainer.learning_rate` is not used: the rate is between `min_lr` and `max_lr`.

    Attributes:
        first_cycle_steps: micro-batches of the first cycle.
        cycle_mult: factor of the length of each cycle relative to the previous one.
        max_lr, min_lr: highest and lowest learning rate.
        warmup_steps: micro-batches of the warm-up in each cycle.
        gamma: factor of `max_lr` of each cycle relative to the previous one.
    """

    scheduler_type: Literal["cosine-annealing-restarts"]
    first_cycle_steps: int = Field(ge=1)
    cycle_mult: float = Field(1.0, gt=0)
    max_lr: float = Field(0.1, ge=0)
    min_lr: float = Field(0.001, ge=0)
    warmup_steps: int = Field(0, ge=0)
    gamma: float = Field(1.0, gt=0)

    ignored: ClassVar = _COUNTED

    @model_validator(mode="after")
    def _warmup_fits(self) -> "CosineAnnealingRestartsConfig":
        if self.warmup_steps >= self.first_cycle_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} must be less than "
                f"first_cycle_steps {self.first_cycle_steps}"
            )
        return self


class CosineAnnealingConfig(StrictModel):
    """A cosine from the learning rate to `eta_min` in `T_max` epochs, and back.

    Attributes:
        T_max: epochs of half a period.
        eta_min: the lowest learning rate.
    """

    scheduler_type: Literal["cosine-annealing"]
    T_max: int = Field(ge=1)
    eta_min: float = Field(0.0, ge=0)

    ignored: ClassVar = _COUNTED


class LambdaConfig(StrictModel):
    """10 epochs of linear warm-up, then half a cosine over 90 epochs; no arguments."""

    scheduler_type: Literal["lambda"]


class PlateauConfig(StrictModel):
    """Multiplies the learning rate by `factor` if a metric stops improving; per epoch.

    The metric is `trainer.training_metric`, at the end of each epoch; see
    `training.epoch_end`.

    Attributes:
        mode: "min" if smaller values are better, else "max".
        factor: factor of the learning rate, less than 1.
        patience: number of epochs without improvement after which, at the next such
            epoch, the rate is reduced.
        threshold: smallest change that is an improvement.
        threshold_mode: whether `threshold` is a fraction of the best value ("rel") or a
            difference ("abs").
        cooldown: epochs after a reduction that are not counted by `patience`.
        min_lr: the lowest learning rate.
        eps: smallest reduction of the rate; smaller ones are skipped.
    """

    scheduler_type: Literal["plateau"]
    mode: Literal["min", "max"] = "min"
    factor: float = Field(0.1, lt=1)
    patience: int = Field(10, ge=0)
    threshold: float = 1e-4
    threshold_mode: Literal["rel", "abs"] = "rel"
    cooldown: int = Field(0, ge=0)
    min_lr: Annotated[float, BeforeValidator(_only)] = Field(0.0, ge=0)
    eps: float = Field(1e-8, ge=0)

    ignored: ClassVar = {"verbose": "PyTorch's schedule has no such argument any more"}


ScheduleConfig = (
    LinearWarmupCosineConfig
    | CosineAnnealingRestartsConfig
    | CosineAnnealingConfig
    | LambdaConfig
    | PlateauConfig
)
