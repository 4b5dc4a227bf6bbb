"""Arguments of the training loop: compiled functions, logs and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from credit_jax.data import Batch
from credit_jax.training.display import Display
from credit_jax.training.loggers import CsvLog
from credit_jax.training.profile import Profile
from credit_jax.training.records import StepRecords
from credit_jax.training.restore import RunStore
from credit_jax.training.state import TrainState


@dataclass(frozen=True)
class Steps:
    """The compiled functions of a run.

    Attributes:
        train: (state, placed micro-batches, learning rate or None for that of the
            schedule) -> (state, {"loss": (k,), "grad_norm", "learning_rate",
            "measured"}).
        compile_train: compiles `train` for arguments with the shapes of its own, a
            state and a learning rate; the first call with such arguments then does
            not.
        fuse: (params, model_state) -> the same with spectral norm fused into params,
            for many forwards (`ParallelModel.fuse_spectral_norm`).
        evaluate: (params, model_state, placed batch, noise) -> {"loss", "rmse", ...};
            None where nothing is validated.
        place_train: micro-batches of one update -> arrays on the mesh.
        place_valid: one batch -> arrays on the mesh.
        learning_rate: micro-batches seen at the end of an epoch -> learning rate that
            CREDIT logs then.
    """

    train: Callable[..., tuple[TrainState, dict[str, Any]]]
    compile_train: Callable[[Any, Any], None]
    fuse: Callable[[Any, Any], tuple[Any, Any]]
    evaluate: Callable[..., dict[str, Any]] | None
    place_train: Callable[[Sequence[Batch]], Any]
    place_valid: Callable[[Batch], Any]
    learning_rate: Callable[[int], float]


@dataclass(frozen=True)
class Loggers:
    """Everything that a run writes to.

    Attributes:
        store: checkpoints of the model.
        display: progress on the console.
        log: the CSV file; None in all processes but the first.
        records: records of steps, and their further destinations; None as for `log`.
        profile: trace of some updates; None for none.
    """

    store: RunStore
    display: Display
    log: CsvLog | None = None
    records: StepRecords | None = None
    profile: Profile | None = None

    def close(self) -> None:
        """Ends the trace and the logs; the checkpoints stay open."""
        if self.profile:
            self.profile.close()
            if note := self.profile.note:
                self.display.message(note)
        if self.records:
            self.records.close()
