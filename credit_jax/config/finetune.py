"""The `trainer.finetune` section: a run that begins with the weights of another."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from credit_jax.config.base import LocalPath, StrictModel, parse
from credit_jax.config.messages import got


class CopyChannels(StrictModel):
    """New outputs that begin as copies of others.

    Attributes:
        copied: `copy`: new output -> output of the base, by the names of variables; one
            level of a variable is "T 500".
    """

    copied: dict[str, str] = Field(alias="copy")


NewChannels = Literal["zero", "mean"] | CopyChannels


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
    targets: tuple[str, ...] = Field(min_length=1)

    @field_validator("targets", mode="before")
    @classmethod
    def _patterns(cls, value: object) -> object:
        return list_of_patterns(value)


def list_of_patterns(value: object) -> object:
    """Refuses a text, whose characters would be patterns."""
    if isinstance(value, str):
        raise ValueError(f"must be a list of patterns, got {got(value)}")
    return value


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

    base: LocalPath = Field(alias="from", min_length=1)
    weights: Literal["average", "last"] | None = None
    freeze: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    lora: LoraConfig | None = None
    new_channels: NewChannels | None = None
    moments: bool = False
    new_grid: bool = False

    @field_validator("freeze", "train", mode="before")
    @classmethod
    def _patterns(cls, value: object) -> object:
        return list_of_patterns(value)

    @model_validator(mode="after")
    def _one_list(self) -> "FinetuneConfig":
        if self.freeze and self.train:
            raise ValueError(
                "freeze and train are both given; expected one of them: train is the "
                "list of all that is not frozen"
            )
        if self.freeze and self.lora:
            raise ValueError(
                "freeze is given beside lora, which freezes all parameters of the base "
                "but those of train; expected one of them"
            )
        return self


def finetune_of(written: Mapping[str, Any]) -> FinetuneConfig | None:
    """Returns the `trainer.finetune` of a YAML, whose other sections are not read.

    Args:
        written: the whole YAML.

    Returns:
        The section; None if there is none.

    Raises:
        ConfigError: the section has unknown keys or wrong values.
    """
    trainer = written.get("trainer")
    section = trainer.get("finetune") if isinstance(trainer, Mapping) else None
    if section is None:
        return None
    return parse(FinetuneConfig, section, "trainer.finetune")
