"""The rollout of both sides, so that they feed back the same channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.small_models import NUM_PROGNOSTIC


def roll_out(
    predict: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    num_steps: int,
    num_prognostic: int = NUM_PROGNOSTIC,
) -> np.ndarray:
    """Feeds predictions back as the next inputs.

    The state is the first `num_prognostic` channels: in x and in the prediction the
    prognostic variables come first and in the same order. After each step the predicted
    state is appended to x as its last frame, and the first one is dropped. The other
    channels of x (static, dynamic forcing) keep their last values; further predicted
    channels (diagnostics) are dropped. Fields stay normalized, nothing is clamped.

    Args:
        predict: (batch, channel, time, lat, lon) -> (batch, channel_out, lat, lon).
        x: (batch, channel, time, lat, lon) at the start.
        num_steps: number of predictions.
        num_prognostic: channels of the state.

    Returns:
        (step, batch, prognostic, lat, lon), the state after each step.
    """
    states = []
    for _ in range(num_steps):
        states.append(predict(x)[:, :num_prognostic])
        held = x[:, num_prognostic:, -1:]
        frame = np.concatenate([states[-1][:, :, None], held], axis=1)
        x = np.concatenate([x[:, :, 1:], frame], axis=2)
    return np.stack(states)
