"""The autoregressive rollout."""

import numpy as np

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


def test_a_predicted_frame_follows_the_frames_of_the_input():
    x = np.arange(4.0).reshape(1, 2, 2, 1, 1)
    states = roll_out(lambda x: x[:, :1].sum(2), x, 3, 1)
    np.testing.assert_array_equal(states.ravel(), [1, 2, 3])
