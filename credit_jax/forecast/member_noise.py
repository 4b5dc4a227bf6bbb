"""The noise of ensemble members of models that draw noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.data.schedule import Schedule, Task
from credit_jax.forecast.perturbation import member_keys
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.noise import Noise


@dataclass(frozen=True, eq=False)
class MemberNoise:
    """The noise inside a model: of each member by its key.

    Attributes:
        keys: (start, member, 2) uint32, of `member_keys`.
    """

    keys: np.ndarray

    def of(self, tasks: Sequence[Task]) -> Noise:
        """The noise of a batch; each step of a forecast folds in its number.

        Args:
            tasks: tasks of the batch, in all processes.
        """
        words = np.stack([self.keys[task.start, task.member] for task in tasks])
        return Noise(jax.random.wrap_key_data(jnp.asarray(words)))


def member_noise(
    seed: int, schedule: Schedule, model: ParallelModel
) -> MemberNoise | None:
    """The noise of the members of a schedule; None for models that draw none."""
    if not model.model_def.draws_noise:
        return None
    return MemberNoise(member_keys(seed, schedule))
