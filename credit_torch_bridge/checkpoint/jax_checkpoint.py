"""A checkpoint as host arrays: the common form of both directions of conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from credit_jax.checkpoint import Progress
from credit_jax.nn.parameters import with_averaged_statistics
from credit_jax.state_dict.key_map import Arrays, HostModelState


@dataclass(frozen=True)
class Moments:
    """The state of AdamW.

    Attributes:
        mu: first moment by path.
        nu: second moment by path.
        count: number of updates.
    """

    mu: Arrays
    nu: Arrays
    count: int


@dataclass(frozen=True)
class JaxCheckpoint:
    """One checkpoint as host arrays.

    Attributes:
        params: parameters by path, float32.
        model_state: state of spectral norm and batch norms (`nn.parameters`).
        moments: moments of the optimizer, or None.
        ema: averaged parameters by path, or None.
        ema_stats: averaged statistics of batch norms, float32, by path and name, or
            None.
        micro_step: micro-batches seen, as the schedule counts them.
        update_step: number of updates averaged.
        progress: epoch and best result.
        loss_scale: state of torch's GradScaler; empty if it was disabled.
        settings: values that a resumed run of CREDIT takes from the checkpoint instead
            of its config: dotted key of the config -> value.
        notes: notes for the user.
    """

    params: Arrays
    model_state: HostModelState
    moments: Moments | None = None
    ema: Arrays | None = None
    ema_stats: Mapping[str, Arrays] | None = None
    micro_step: int = 0
    update_step: int = 0
    progress: Progress = field(default_factory=Progress)
    loss_scale: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def weights_alone(self, *, average: bool) -> JaxCheckpoint:
        """Returns a checkpoint of the weights, without average and optimizer.

        Args:
            average: whether they are the moving average.
        """
        alone = replace(self, moments=None, ema=None, ema_stats=None, loss_scale={})
        if not average:
            return alone
        assert self.ema is not None, "asked for by the caller"
        state = with_averaged_statistics(self.model_state, self.ema_stats)
        return replace(alone, params=self.ema, model_state=state)
