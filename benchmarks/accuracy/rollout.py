"""The rollout of both sides, so that they feed back the same channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def roll_out(
    predict: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    num_steps: int,
    num_prognostic: int,
) -> np.ndarray:
    """Feeds predictions back as the next inputs.

    The state is the first `num_prognostic` channels: in x and in the prediction the
    prognostic variables come first and in the same order. After each step the predicted
    state replaces that of x. The other channels of x (static, dynamic forcing) are held
    at their first values; what else is predicted (diagnostics) is dropped. Fields stay
    normalized, nothing is clamped.

    Args:
        predict: (batch, channel, 1, lat, lon) -> (batch, channel_out, lat, lon).
        x: (batch, channel, 1, lat, lon) at the start.
        num_steps: how many predictions.
        num_prognostic: channels of the state.

    Returns:
        (step, batch, prognostic, lat, lon), the state after each step.

    Raises:
        ValueError: an input of several frames, whose window would have to slide.
    """
    if x.shape[2] != 1:
        raise ValueError(
            f"a rollout starts from 1 frame, got {x.shape[2]} in {x.shape}"
        )
    states = []
    for _ in range(num_steps):
        states.append(predict(x)[:, :num_prognostic])
        x = np.concatenate([states[-1][:, :, None], x[:, num_prognostic:]], axis=1)
    return np.stack(states)
