"""The configs of the accuracy benchmarks."""

import pytest

from benchmarks.accuracy.case import ROWS, case_config
from benchmarks.small_models import NUM_PROGNOSTIC
from credit_jax.models.registry import build


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="--rows must be from 22 to 62, got 64"):
        case_config(64, 20, 8)
    with pytest.raises(ValueError, match="must be a multiple of it, got 7"):
        case_config(32, 7, 8)


@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize("model", ROWS)
def test_models_fit_the_data(model):
    """The data have 5 channels of state, 2 of further inputs and 1 diagnostic."""
    config = case_config(ROWS[model], 20, 2, model=model)
    section = config["model"]
    if model == "graph":
        section = {**section, "image_height": 32, "image_width": 64}
    model_def = build(section)
    grid = ROWS[model], 64
    assert (model_def.image_height, model_def.image_width) == grid
    diagnostics = "diagnostic" in config["data"]["source"]["ERA5"]["variables"]
    assert model_def.input_channels == NUM_PROGNOSTIC + 2
    assert model_def.output_channels == NUM_PROGNOSTIC + diagnostics
