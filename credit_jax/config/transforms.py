"""The `preblocks:` and `postblocks:` sections: named steps in the order they run.

Which types exist, and what their arguments are, is known where the blocks are.
"""

from typing import Any

from pydantic import Field

from credit_jax.config.base import StrictModel


class TransformConfig(StrictModel):
    """One block.

    Attributes:
        type: name of the block's type, such as "concat".
        args: arguments of the block.
    """

    type: str
    args: dict[str, Any] = Field(default_factory=dict)


class PreblocksConfig(StrictModel):
    """From samples to the model's input tensor.

    Attributes:
        ic_only: blocks that run once, on the initial state.
        per_step: blocks that run before every model step.
    """

    ic_only: dict[str, TransformConfig] = Field(default_factory=dict)
    per_step: dict[str, TransformConfig] = Field(default_factory=dict)


class PostblocksConfig(StrictModel):
    """From the model's output tensor to named fields.

    Attributes:
        per_step: blocks that run after every model step.
        post_rollout: blocks that run once, after the last step.
    """

    per_step: dict[str, TransformConfig] = Field(default_factory=dict)
    post_rollout: dict[str, TransformConfig] = Field(default_factory=dict)
