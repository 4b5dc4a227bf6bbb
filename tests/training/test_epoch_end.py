"""The schedule `plateau` against CREDIT's ReduceLROnPlateau, epoch by epoch."""

import json
import math

import numpy as np
import pytest

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config import parse
from credit_jax.config.schedules import PlateauConfig
from credit_jax.training.epoch_end import plateau_after

BASE = 2e-3
CASES = {
    "defaults": {},
    "impatient": {"patience": 0, "factor": 0.5},
    "cooldown": {"patience": 1, "cooldown": 3, "factor": 0.7},
    "absolute": {"patience": 1, "threshold": 0.05, "threshold_mode": "abs"},
    "largest": {"mode": "max", "patience": 2, "threshold": 0.02, "factor": 0.3},
    "largest, absolute": {"mode": "max", "patience": 0, "threshold_mode": "abs"},
    "lowest": {"patience": 0, "factor": 0.2, "min_lr": 1e-4},
    "small steps": {"patience": 0, "factor": 0.5, "eps": 3e-4},
}


def metrics() -> list[float]:
    """Returns metrics that fall, stay equal, rise, are NaN, and fall again."""
    noise = np.random.default_rng(0).normal(0, 0.03, 60)
    trend = np.concatenate([np.linspace(1, 0.3, 20), np.full(40, 0.3)])
    values = (trend + noise).tolist()
    return [*values[:30], math.nan, math.inf, -0.2, *values[30:]]


@pytest.mark.parametrize("name", CASES)
def test_equals_credit(name, credit):
    import torch
    from credit.scheduler import load_scheduler

    section = {"scheduler_type": "plateau", **CASES[name]}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    theirs = load_scheduler(
        optimizer, {"trainer": {"use_scheduler": True, "scheduler": dict(section)}}
    )
    config, state, rate = parse(PlateauConfig, section), PlateauState(), BASE
    rates = set()
    for epoch, value in enumerate(metrics()):
        theirs.step(value)
        state, rate = plateau_after(config, state, rate, value)
        # Saved and resumed after each epoch.
        saved = json.dumps(Progress(learning_rate=rate, plateau=state).to_json())
        progress = Progress.from_json(json.loads(saved))
        assert progress.plateau is not None
        assert progress.learning_rate is not None
        state, rate = progress.plateau, progress.learning_rate
        what = f"{name}, epoch {epoch}"
        assert rate == optimizer.param_groups[0]["lr"], what
        best = theirs.mode_worse if state.best is None else state.best
        assert best == theirs.best, what
        assert (state.epochs, state.bad_epochs) == (epoch + 1, theirs.num_bad_epochs)
        assert state.cooldown == theirs.cooldown_counter, what
        rates.add(rate)
    assert len(rates) > 1, "the rate must change"


def test_wrong_settings_are_named():
    for setting, message in (
        ({"factor": 1.0}, "factor: must be less than 1"),
        ({"mode": "least"}, "mode: must be one of 'min' or 'max'"),
        ({"epsilon": 1e-8}, "epsilon: unknown key"),
    ):
        with pytest.raises(ValueError, match=message):
            parse(PlateauConfig, {"scheduler_type": "plateau", **setting})
