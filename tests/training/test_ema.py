"""The moving average against CREDIT's EMATracker."""

import jax.numpy as jnp
import numpy as np

from credit_jax.nn.parameters import (
    BATCH_STATS,
    wide_statistics,
    with_averaged_statistics,
)
from credit_jax.training.state import effective_decay, update_ema
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


def test_running_statistics_are_averaged_as_credit_averages_them(credit, rng):
    """Averaged is the state dict without vectors; forward passes use the averages."""
    import torch
    from credit.trainers.base_trainer import EMATracker

    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3)).train()

    def live():
        own = {k: v.numpy().copy() for k, v in model.state_dict().items()}
        names = {"mean": "running_mean", "variance": "running_var"}
        stats = {ours: own[f"0.{theirs}"] for ours, theirs in names.items()}
        count = own["0.num_batches_tracked"].astype(np.int32)
        norm = {name: jnp.asarray(x) for name, x in {**stats, "count": count}.items()}
        return {BATCH_STATS: {"norm": norm}}

    tracker, ours = EMATracker(model, decay=0.4), wide_statistics(live())
    for s in range(1, 5):
        model(torch.tensor(rng.normal(size=(2, 3, 4, 4)) + s, dtype=torch.float32))
        tracker.update(model)
        ours = update_ema(ours, live()[BATCH_STATS], jnp.int32(s), 0.4)
    before = live()
    tracker.swap(model)
    after = with_averaged_statistics(before, ours)[BATCH_STATS]["norm"]
    swapped = live()[BATCH_STATS]["norm"]
    assert not np.allclose(swapped["mean"], before[BATCH_STATS]["norm"]["mean"])
    for name, value in swapped.items():
        assert after[name].dtype == value.dtype
        assert_close(after[name], value, 1e-6, name)


def test_decay_ramps_up_to_its_limit():
    decays = [float(effective_decay(jnp.int32(s), 0.9999)) for s in (1, 10, 10**6)]
    assert np.allclose(decays, [2 / 11, 11 / 20, 0.9999], rtol=1e-6)


def test_low_precision_parameters_are_averaged_in_float32():
    ema = {"w": jnp.ones(2, jnp.float32)}
    new = update_ema(ema, {"w": jnp.zeros(2, jnp.bfloat16)}, jnp.int32(1), 0.5)
    assert new["w"].dtype == jnp.float32
