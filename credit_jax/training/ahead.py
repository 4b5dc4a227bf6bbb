"""The program of the next stage of a run, compiled while the present one trains."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import numpy as np

from credit_jax.io.activity import activity, duration_text
from credit_jax.training.curriculum import Stage
from credit_jax.training.state import TrainState
from credit_jax.training.steps import Steps

# Seconds before the end of a stage at which the next one's program is compiled.
NEAR = 900.0


class NextStage:
    """The functions of the stage that comes next; a thread compiles its update.

    Nothing is executed, so that devices that share cores run one program at a time. The
    interpreter does not end before the thread does, as XLA would abort the process.

    Args:
        stage: the stage.
        schedule_step: the value of `Progress` that it will begin with.
        state: the present state, whose shapes are those of then.
        rate: a learning rate, or None, as the stage will begin with.
    """

    def __init__(
        self, stage: Stage, schedule_step: int, state: TrainState, rate: Any
    ) -> None:
        self._key = stage, schedule_step
        self._steps = stage.steps(schedule_step=schedule_step)
        self._seconds, self._error = 0.0, ""
        arguments = jax.tree.map(_shape_of, state), rate
        self._thread = threading.Thread(target=self._compile, args=arguments)
        self._thread.start()

    def _compile(self, state: Any, rate: np.float32 | None) -> None:
        began = time.monotonic()
        try:
            self._steps.compile_train(state, rate)
        except Exception as error:  # the same, if it is one, ends the run at the stage
            lines = str(error).strip().splitlines()
            self._error = f"{type(error).__name__} ({lines[0] if lines else ''})"
        self._seconds = time.monotonic() - began

    def wait(self) -> None:
        """Waits until the program is compiled."""
        with activity("compiling the program of the next stage"):
            self._thread.join()

    def steps(self, stage: Stage, schedule_step: int) -> tuple[Steps | None, str]:
        """The functions of a stage that begins, when they are compiled.

        Args:
            stage, schedule_step: what begins.

        Returns:
            The functions, and how long they took; None, and the reason, if what begins
            is not what was compiled.
        """
        if (stage, schedule_step) != self._key:
            return None, "is compiled now, as the run changed its course"
        self.wait()
        if self._error:
            return None, f"is compiled now, as it failed before: {self._error}"
        return self._steps, f"was compiled ahead, in {duration_text(self._seconds)}"


def _shape_of(x: jax.Array) -> jax.ShapeDtypeStruct:
    about = {"sharding": x.sharding, "weak_type": jax.typeof(x).weak_type}
    return jax.ShapeDtypeStruct(x.shape, x.dtype, **about)
