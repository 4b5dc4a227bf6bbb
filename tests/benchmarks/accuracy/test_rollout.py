"""The autoregressive rollout."""

import numpy as np
import pytest

from benchmarks.accuracy.rollout import roll_out


def test_a_rollout_feeds_prognostic_channels_back_and_holds_the_others():
    seen = []

    def predict(x):
        seen.append(x)
        return np.concatenate([x[:, :2, 0] + x[:, 2:, 0], x[:, :1, 0] * 100], axis=1)

    x = np.stack([np.full((1, 1, 2, 3), c) for c in (1.0, 2.0, 10.0)], axis=1)
    states = roll_out(predict, x, 3, 2)
    assert states.shape == (3, 1, 2, 2, 3)
    np.testing.assert_array_equal(states[:, 0, 0, 0, 0], [11, 21, 31])
    np.testing.assert_array_equal(states[:, 0, 1, 0, 0], [12, 22, 32])
    assert all(np.array_equal(s[:, 2], x[:, 2]) for s in seen), "forcing must be held"
    with pytest.raises(ValueError, match="1 frame, got 2"):
        roll_out(predict, np.zeros((1, 3, 2, 2, 3)), 1, 2)
