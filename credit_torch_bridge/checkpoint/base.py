"""The weights of a checkpoint of CREDIT as those that a run begins with."""

from __future__ import annotations

from credit_jax.checkpoint.store import label_of, takes_average
from credit_jax.models.model_def import ModelDef
from credit_jax.plan.finetune import Base, base_channels
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.training.base_weights import BaseWeights
from credit_torch_bridge.checkpoint.run_config import RunConfig
from credit_torch_bridge.checkpoint.torch_checkpoint import open_checkpoint
from credit_torch_bridge.checkpoint.torch_to_jax import to_jax_checkpoint


def open_torch_base(base: Base, weights: str | None) -> BaseWeights:
    """Opens a file or a folder of a checkpoint of CREDIT.

    Args:
        base: the checkpoint and its config.
        weights: "average", "last", or None for the moving average if there is one.

    Raises:
        FileNotFoundError, ValueError: see `open_checkpoint`; or there is no average.
    """
    opened = open_checkpoint(base.path)
    has_average = opened.average is not None
    average = takes_average(weights, has_average=has_average, where=base.path)

    def read(model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        del model_def  # that of model.yml
        config = RunConfig(base.written, f"{base.path}: model.yml")
        checkpoint = to_jax_checkpoint(config, opened, weights_only=True)
        alone = checkpoint.weights_alone(average=average)
        return alone.params, alone.model_state

    where = f"{opened.path}, {label_of(average=average)}"
    return BaseWeights(base, where, read, base_channels(base))
