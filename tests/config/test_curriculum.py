"""The section `trainer.curriculum`: what stages change, and what they may not."""

from pathlib import Path
from typing import Any

from credit_jax.config import Config, build_config
from tests.data.world import raw_config


def config(stages: list[dict[str, Any]], **changes: Any) -> Config:
    changes = {"trainer__curriculum": stages} | changes
    return build_config(raw_config(Path("/data"), **changes))


def test_keys_of_a_stage_hold_until_another_changes_them() -> None:
    loss = {"use_latitude_weights": True, "latitude_weights": "file.nc"}
    stages = [
        {"until": "2 epochs", "loss": {"training_loss": "mae"}},
        {"until": "1_000 epochs".replace("_", ""), "forecast_len": 3},
        {"learning_rate": 1e-5, "train_batch_size": 1, "backprop": "full"},
    ]
    run = config(stages, loss=loss, validation_data__forecast_len=2)
    stages_of_run = run.stages
    assert [stage.data.forecast_len for stage in stages_of_run] == [1, 3, 3]
    assert [stage.validation_data.forecast_len for stage in stages_of_run] == [2] * 3
    assert [stage.trainer.train_batch_size for stage in stages_of_run] == [3, 3, 1]
    assert [stage.trainer.backprop for stage in stages_of_run][1:] == [
        "truncated",
        "full",
    ]
    assert {stage.loss.training_loss for stage in stages_of_run} == {"mae"}
    assert all(stage.loss.use_latitude_weights for stage in stages_of_run)
    assert not any(stage.trainer.curriculum for stage in stages_of_run)
    ends = [stage.until for stage in run.trainer.curriculum]
    assert [str(end) for end in ends] == ["2 epochs", "1000 epochs", "None"]


def test_validation_is_that_of_the_run() -> None:
    """Also where `validation_data` takes the forecast_len of `data`."""
    run = config([{"until": 5, "forecast_len": 2}, {"forecast_len": 4}])
    assert [stage.validation_data.forecast_len for stage in run.stages] == [1, 1]


def test_weights_of_steps_by_stage() -> None:
    stages = [
        {"until": 5},
        {"until": 9, "forecast_len": 2, "loss": {"lead_weights": [1, 3]}},
        {"forecast_len": 3, "loss": {"lead_weights": 0.5}},
    ]
    weights = [
        stage.loss.step_weights(stage.data.forecast_len)
        for stage in config(stages).stages
    ]
    assert weights == [None, (1.0, 3.0), (1.0, 0.5, 0.25)]
