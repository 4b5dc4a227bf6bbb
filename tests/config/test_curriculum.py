"""The section `trainer.curriculum`: what stages change, and what they may not."""

from pathlib import Path
from typing import Any

import pytest

from credit_jax.config import Config, ConfigError, build_config
from tests.data.world import raw_config

STAGES = [{"until": 100}, {"until": 200, "forecast_len": 3}, {"learning_rate": 1e-5}]


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


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            [{"until": 5}],
            "the last stage has until 5 updates, but it ends with the run",
        ),
        ([{}, {}], "stage 1 has no until, which only the last stage, 2, leaves out"),
        (
            [{"until": 9}, {"until": 9}, {}],
            "stage 2 ends at 9 updates, not after the stage before, at 9 updates",
        ),
        (
            [{"until": 9}, {"until": "3 epochs"}, {}],
            "stage 2 ends by epochs, the stage before by updates",
        ),
        ([{"until": 0}, {}], "curriculum.0.until: must be a number of updates"),
        ([{"until": "2e4"}, {}], "number of updates, such as 20000, or of epochs"),
        ([{"until": True}, {}], "'5 epochs', got True"),
        ([{"until": -3}, {}], "'5 epochs', got -3"),
        (
            [{"forecast_length": 3}],
            "curriculum.0.forecast_length: unknown key; the nearest known key is "
            "'forecast_len'; all other keys hold for the whole run",
        ),
        ([{"source": {}}], "curriculum.0.source: unknown key; known keys here: "),
        ([{"forecast_len": 0}], "curriculum.0.forecast_len: "),
        ([{"learning_rate": 0}], "curriculum.0.learning_rate: "),
        (
            [{"until": 5}, {"forecast_len": 99}],
            "trainer.curriculum.1: data: no sample fits into 1999-12-28 to "
            "2000-01-05: history_len 1 + forecast_len 99 times",
        ),
        (
            [{"train_batch_size": 99}],
            "trainer.curriculum.0: data: 32 samples in 1999-12-28 to 2000-01-05 do "
            "not fill one batch of 99",
        ),
        (
            [{"backprop_on_timestep": [2]}],
            "trainer.curriculum.0: trainer.backprop_on_timestep: got [2], but "
            "data.forecast_len is 1",
        ),
        (
            [{"loss": {"type": "base", "args": {"var_weighting": "learnable"}}}],
            "trainer.curriculum.0: loss.args.var_weighting: learnable has parameters",
        ),
        (
            [{"loss": {"train_loss": "mae"}}],
            "curriculum.0.loss.train_loss: unknown",
        ),
        ([{"loss": "mae"}], "curriculum.0.loss: "),
        ({"until": 5}, "trainer.curriculum: "),
        (["until"], "trainer.curriculum.0: "),
    ],
)
def test_bad_stages(stages: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(stages)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            [1, 2, 3],
            "loss.lead_weights: got [1.0, 2.0, 3.0], but data.forecast_len is 2",
        ),
        ([0, 0], "loss.lead_weights: got [0.0, 0.0], which leave no loss of the steps"),
        (-1, "loss.lead_weights: "),
        ([], "loss.lead_weights: "),
        (["one", 2], "loss.lead_weights"),
    ],
)
def test_bad_weights_of_steps(weights: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config([], data__forecast_len=2, loss__lead_weights=weights)
    assert message in str(caught.value)


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
    with pytest.raises(ConfigError) as caught:
        config([*stages[:2], {"forecast_len": 4}])
    assert "trainer.curriculum.2: loss.lead_weights: got [1.0, 3.0]" in str(
        caught.value
    )


def test_a_problem_of_the_run_is_said_once() -> None:
    changes = {"data__start_datetime": "2001-01-01", "data__end_datetime": "2000-01-01"}
    with pytest.raises(ConfigError) as caught:
        config(STAGES, **changes)
    (line,) = [line for line in caught.value.problems if "before it begins" in line]
    assert line.startswith("data: ")
