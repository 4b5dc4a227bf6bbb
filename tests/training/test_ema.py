"""The moving average against CREDIT's EMATracker."""

import jax.numpy as jnp
import numpy as np

from credit_jax.training.ema import effective_decay, update_ema
from tests.support import assert_close


def test_equals_credit(credit, rng):
    import torch
    from credit.trainers.base_trainer import EMATracker

    model = torch.nn.Linear(3, 2)
    weights = rng.normal(size=(8, 2, 3)).astype(np.float32)
    model.weight.data = torch.tensor(weights[0])
    tracker = EMATracker(model, decay=0.4)
    ours = {"weight": jnp.asarray(weights[0])}
    for s, weight in enumerate(weights[1:], start=1):
        model.weight.data = torch.tensor(weight)
        tracker.update(model)
        ours = update_ema(ours, {"weight": jnp.asarray(weight)}, jnp.int32(s), 0.4)
        shadow = tracker.shadow["weight"].numpy()
        assert_close(ours["weight"], shadow, 1e-6, f"average after {s} updates")


def test_decay_ramps_up_to_its_limit():
    decays = [float(effective_decay(jnp.int32(s), 0.9999)) for s in (1, 10, 10**6)]
    assert np.allclose(decays, [2 / 11, 11 / 20, 0.9999], rtol=1e-6)


def test_low_precision_parameters_are_averaged_in_float32():
    ema = {"w": jnp.ones(2, jnp.float32)}
    new = update_ema(ema, {"w": jnp.zeros(2, jnp.bfloat16)}, jnp.int32(1), 0.5)
    assert new["w"].dtype == jnp.float32
