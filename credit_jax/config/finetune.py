"""The `trainer.finetune` section: a run that begins with the weights of another."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from credit_jax.config.base import StrictModel
from credit_jax.config.messages import got


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
    """

    base: str = Field(alias="from", min_length=1)
    weights: Literal["average", "last"] | None = None
    freeze: tuple[str, ...] = ()
    train: tuple[str, ...] = ()

    @field_validator("freeze", "train", mode="before")
    @classmethod
    def _patterns(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"must be a list of patterns, got {got(value)}")
        return value

    @model_validator(mode="after")
    def _one_list(self) -> "FinetuneConfig":
        if self.freeze and self.train:
            raise ValueError(
                "freeze and train are both given; expected one of them: train is the "
                "list of all that is not frozen"
            )
        return self
