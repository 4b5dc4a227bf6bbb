"""The `preblocks:` and `postblocks:` sections: named transforms, in execution order.

`credit_jax.transforms.build` lists their types and validates their arguments.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import Field

from credit_jax.config.base import StrictModel


class TransformConfig(StrictModel):
    """One transform.

    Attributes:
        type: name in the registry, such as "concat".
        args: arguments of that type.
    """

    type: str
    args: dict[str, Any] = Field(default_factory=dict)


class _Phases(StrictModel):
    """Base class of sections that have blocks by phase."""

    section: ClassVar[str]

    @classmethod
    def unknown_key(cls, key: object, known: Iterable[str]) -> str:
        """See `StrictModel.unknown_key`; often it is a block outside of a phase."""
        return (
            f"blocks stand in {' or '.join(cls.model_fields)}, and CREDIT refuses "
            f"others, too; move it to {cls.section}.per_step.{key}"
        )


class PreblocksConfig(_Phases):
    """Transforms from samples to the model's input.

    Attributes:
        ic_only: transforms that run once, on the initial state.
        per_step: transforms that run before every model step.
    """

    section: ClassVar = "preblocks"

    ic_only: dict[str, TransformConfig] = Field(default_factory=dict)
    per_step: dict[str, TransformConfig] = Field(default_factory=dict)


class PostblocksConfig(_Phases):
    """Transforms from the model's output to named fields.

    Attributes:
        per_step: transforms that run after every model step.
        post_rollout: transforms that run once, after the last step.
    """

    section: ClassVar = "postblocks"

    per_step: dict[str, TransformConfig] = Field(default_factory=dict)
    post_rollout: dict[str, TransformConfig] = Field(default_factory=dict)
