"""Errors of known forecasts and of the baselines."""

import jax
import numpy as np
import pytest

from credit_jax.config import build_config
from credit_jax.data.climatology import build_climatology
from credit_jax.evaluation.skill import measure_skill
from credit_jax.fields import latitude_weights
from credit_jax.plan import plan_run
from credit_jax.training.setup import prepare
from tests.support import assert_close
from tests.training.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("tiny_model")


def everything(loader):
    batches = [loader.read([i]) for i in range(len(loader.dataset))]
    y = np.concatenate([batch.y for batch in batches])[:, :, 0]
    return y, np.concatenate([batch.x for batch in batches])


def weighted_rmse(error, places, latitude):
    squares = np.square(error) * latitude_weights(latitude)[:, None]
    return [np.sqrt(squares[:, place].mean()) for place in places.values()]


def test_errors_of_known_forecasts(setup):
    """The forecast is the input itself: persistence for what the input has."""
    loader, schema = setup.valid_loader, setup.schema
    climatology = build_climatology(setup.train_loader.dataset)
    num = schema.num_target_channels

    def same(x):
        assert x.shape[0] == 4, "always a whole batch"
        return x[:, :num, -1:]

    skill = measure_skill(same, loader, climatology, batch_size=4)
    truth, inputs = everything(loader)
    places, latitude = schema.target_slices(), loader.dataset.latitude
    # The first sample has no truth at the time of its input.
    assert skill.num_samples == len(truth) - 1
    expected = weighted_rmse(truth[1:] - truth[:-1], places, latitude)
    assert_close(skill.normalized["persistence"], expected, 1e-5, "persistence")
    mean = loader.units.normalize(climatology.mean[:, :, 0])
    expected = weighted_rmse(truth[1:] - mean, places, latitude)
    assert_close(skill.normalized["climatology"], expected, 1e-5, "climatology")
    expected = weighted_rmse(truth[1:] - inputs[1:, :num, 0], places, latitude)
    assert_close(skill.normalized["forecast"], expected, 1e-5, "forecast")
    physical = loader.units.denormalize(truth)
    expected = weighted_rmse(physical[1:] - physical[:-1], places, latitude)
    assert_close(skill.physical["persistence"], expected, 1e-4, "physical units")
    prognostic = [i for i, key in enumerate(places) if "/prognostic/" in key]
    assert not any(skill.wins(i) for i in prognostic), "equal is not better"


def test_samples_are_thinned_out(setup):
    climatology = build_climatology(setup.train_loader.dataset)
    num = setup.schema.num_target_channels
    skill = measure_skill(
        lambda x: x[:, :num, -1:],
        setup.valid_loader,
        climatology,
        batch_size=2,
        max_samples=5,
    )
    assert skill.num_samples == 5


def test_one_held_out_step_is_not_enough(world, tmp_path):
    changes = {
        "validation_data__start_datetime": "2000-01-06T00:00",
        "validation_data__end_datetime": "2000-01-06T12:00",
        "validation_data__timestep": "12h",
        "data__timestep": "12h",
        "trainer__valid_batch_size": 1,
    }
    config = build_config(tiny_config(world, tmp_path, **changes))
    setup = prepare(plan_run(config), jax.devices()[:1])
    with pytest.raises(ValueError, match="two or more consecutive time steps"):
        measure_skill(
            lambda x: x,
            setup.valid_loader,
            build_climatology(setup.train_loader.dataset),
            batch_size=1,
        )
