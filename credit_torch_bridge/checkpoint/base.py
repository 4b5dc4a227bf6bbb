"""A checkpoint of CREDIT as a trained model of credit_jax."""

from __future__ import annotations

from dataclasses import dataclass

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.store import takes_average
from credit_jax.models.model_def import ModelDef
from credit_jax.plan.finetune import Base
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_torch_bridge.checkpoint.run_config import RunConfig
from credit_torch_bridge.checkpoint.torch_checkpoint import (
    TorchCheckpoint,
    open_checkpoint,
)
from credit_torch_bridge.checkpoint.torch_to_jax import to_jax_checkpoint


@dataclass(frozen=True, kw_only=True)
class TorchArtifact(Artifact):
    """A file or a folder of a checkpoint of CREDIT, with model.yml beside it."""

    checkpoint: TorchCheckpoint

    @classmethod
    def open(cls, files: Base, weights: str | None) -> TorchArtifact:
        """Opens a checkpoint.

        Args:
            files: the checkpoint and its config.
            weights: "average", "last", or None for the moving average if there is one.

        Raises:
            FileNotFoundError, ValueError: see `open_checkpoint`; or there is no
                average.
        """
        opened = open_checkpoint(files.path)
        has_average = opened.average is not None
        average = takes_average(weights, has_average=has_average, origin=files.path)
        return cls(
            files=files, path=opened.path, average=average, step=None, checkpoint=opened
        )

    def on_host(self, model_def: ModelDef) -> tuple[Arrays, HostModelState]:
        """See `Artifact.on_host`; the model is that of model.yml."""
        del model_def
        config = RunConfig(self.files.written, f"{self.files.path}: model.yml")
        checkpoint = to_jax_checkpoint(config, self.checkpoint, weights_only=True)
        alone = checkpoint.weights_alone(average=self.average)
        return alone.params, alone.model_state
