"""The `trainer.scheduler:` section: one class per learning rate schedule.

`rate` is in float32. Cosines are `sin^2` of the remaining phase: near the end
`1 + cos(pi t / T)` cancels, an error of 1e-3 of the rate in the last 500th of a run.
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from credit_jax.config.base import StrictModel

_COUNTED = {"last_epoch": "the checkpoint knows where the schedule stands"}
# A list of one number, which PyTorch accepts for one parameter group, is that number.
_ONE = BeforeValidator(
    lambda x: x[0] if isinstance(x, list | tuple) and len(x) == 1 else x
)
# Largest number of micro-batches that a schedule counts, of int32.
_MOST = 2**31 - 1


class Schedule(StrictModel):
    """A learning rate that changes in a run.

    Attributes of a class: `by_epoch`, whether it counts epochs, not micro-batches;
    `length`, the attribute that says when the rate has fallen, "" without an end, and
    `then`, what the rate does from there on; `keeps_rate`, whether the rate is part of
    the run's state; `reaches_loss`, whether the parameters of a loss are trained at it,
    too.
    """

    by_epoch: ClassVar[bool] = False
    length: ClassVar[str] = ""
    then: ClassVar[str] = "rises again"
    keeps_rate: ClassVar[bool] = False
    reaches_loss: ClassVar[bool] = True

    def rate(self, base: float, count: Any, xp: Any) -> Any:
        """The learning rate after `count` micro-batches, or epochs, as `xp` arrays."""
        raise NotImplementedError


def _cosine(count: Any, length: Any, xp: Any) -> Any:
    """`(1 + cos(pi * count / length)) / 2`, 0 from `length` on, exact near its end."""
    remaining = xp.clip((length - count) / length, 0.0, 1.0)
    return xp.square(xp.sin(0.5 * xp.pi * remaining))


class LinearWarmupCosineConfig(Schedule):
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

    length: ClassVar = "total_steps"
    then: ClassVar = "is at min_lr"
    ignored: ClassVar = _COUNTED

    def rate(self, base: float, count: Any, xp: Any) -> Any:
        """`base * count / warmup_steps`, then half a cosine down to `min_lr`."""
        warmup = self.warmup_steps
        # Not `optax.linear_schedule`, which is 1e-5 off in the first of 1000 steps.
        ramp = base * (xp.asarray(count) / max(1, warmup))
        fall = _cosine(count - warmup, max(1, self.total_steps - warmup), xp)
        fall = self.min_lr + (base - self.min_lr) * fall
        return xp.where(count < warmup, ramp, fall)


class CosineAnnealingRestartsConfig(Schedule):
    """Cosine cycles with warm-up and restarts; per micro-batch.

    `trainer.learning_rate` is not used: the rate is between `min_lr` and `max_lr`.

    Attributes:
        first_cycle_steps: micro-batches of the first cycle.
        cycle_mult: factor of the length of each cycle relative to the previous one, but
            for its warm-up.
        max_lr, min_lr: highest and lowest learning rate.
        warmup_steps: micro-batches of the warm-up in each cycle.
        gamma: factor of `max_lr` of each cycle relative to the previous one.
    """

    scheduler_type: Literal["cosine-annealing-restarts"]
    first_cycle_steps: int = Field(ge=1)
    cycle_mult: float = Field(1.0, ge=1)
    max_lr: float = Field(0.1, ge=0)
    min_lr: float = Field(0.001, ge=0)
    warmup_steps: int = Field(0, ge=0)
    gamma: float = Field(1.0, gt=0)

    ignored: ClassVar = _COUNTED
    reaches_loss: ClassVar = False

    def conflicts(self) -> Iterator[str]:
        if self.warmup_steps >= self.first_cycle_steps:
            yield (
                f"warmup_steps {self.warmup_steps} must be less than "
                f"first_cycle_steps {self.first_cycle_steps}"
            )

    def rate(self, base: float, count: Any, xp: Any) -> Any:
        """From `min_lr` linearly to the top of a cycle, then half a cosine down."""
        # Start and length of each cycle; the last length repeats.
        starts, lengths, warmup = [0], [self.first_cycle_steps], self.warmup_steps
        while starts[-1] + lengths[-1] < _MOST:
            following = int((lengths[-1] - warmup) * self.cycle_mult) + warmup
            if following == lengths[-1]:
                break
            starts.append(starts[-1] + lengths[-1])
            lengths.append(min(following, _MOST))
        starts, lengths = (xp.asarray(x, xp.int32) for x in (starts, lengths))
        row = xp.searchsorted(starts, count, side="right") - 1
        length = lengths[row]
        beyond = count - starts[row]
        cycle, index = row + beyond // length, beyond % length
        top = self.max_lr * xp.power(self.gamma, cycle.astype(xp.float32))
        warm = index / max(1, warmup)
        fall = _cosine(index - warmup, length - warmup, xp)
        low = self.min_lr
        rate = low + (top - low) * xp.where(index < warmup, warm, fall)
        # As in CREDIT, where `base` has no effect, either.
        return xp.where(count == 0, low, rate)


class CosineAnnealingConfig(Schedule):
    """A cosine from the learning rate to `eta_min` in `T_max` epochs, and back.

    Attributes:
        T_max: epochs of half a period.
        eta_min: the lowest learning rate.
    """

    scheduler_type: Literal["cosine-annealing"]
    T_max: int = Field(ge=1)
    eta_min: float = Field(0.0, ge=0)

    ignored: ClassVar = _COUNTED
    by_epoch: ClassVar = True
    length: ClassVar = "T_max"

    def rate(self, base: float, count: Any, xp: Any) -> Any:
        """`eta_min + (base - eta_min) (1 + cos(pi count / T_max)) / 2`."""
        phase = count % (2 * self.T_max)
        index = xp.minimum(phase, 2 * self.T_max - phase)
        return self.eta_min + (base - self.eta_min) * _cosine(index, self.T_max, xp)


class LambdaConfig(Schedule):
    """10 epochs of linear warm-up, then half a cosine over 90 epochs; no arguments."""

    scheduler_type: Literal["lambda"]

    by_epoch: ClassVar = True
    length: ClassVar = "fall"
    # CREDIT's schedule has no settings; these are constants of its code.
    num_epochs: ClassVar = 100
    warmup_epochs: ClassVar = 10
    fall: ClassVar = num_epochs // 2

    def rate(self, base: float, count: Any, xp: Any) -> Any:
        """The curve at `2 count + 1`."""
        # As CREDIT steps it at the start and at the end of every epoch.
        index = 2 * count + 1
        warm = index / self.warmup_epochs
        remaining = (self.num_epochs - index) / (self.num_epochs - self.warmup_epochs)
        fall = xp.square(xp.sin(0.5 * xp.pi * remaining))
        return base * xp.where(index < self.warmup_epochs, warm, fall)


class PlateauConfig(Schedule):
    """Multiplies the learning rate by `factor` if a metric stops improving; per epoch.

    The metric is `trainer.training_metric`, at the end of each epoch; see
    `training.loop`.

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
    min_lr: Annotated[float, _ONE] = Field(0.0, ge=0)
    eps: float = Field(1e-8, ge=0)

    ignored: ClassVar = {"verbose": "PyTorch's schedule has no such argument any more"}
    keeps_rate: ClassVar = True


ScheduleConfig = (
    LinearWarmupCosineConfig
    | CosineAnnealingRestartsConfig
    | CosineAnnealingConfig
    | LambdaConfig
    | PlateauConfig
)
