"""The plan of a curriculum: lengths and problems of stages, and what `check` says."""

import json
from pathlib import Path

import pytest

from credit_jax.cli.check import main
from credit_jax.config import ConfigError, load_config
from credit_jax.plan import plan_run
from credit_jax.plan.estimates import estimate_memory

CONFIG = Path(__file__).parents[2] / "configs" / "wxformer_6h_curriculum.yaml"


def plan(*overrides):
    return plan_run(load_config(CONFIG, overrides), with_data=False)


def test_lengths_of_credits_two_runs():
    """1,781 updates an epoch for 70 epochs, then 759 for 35."""
    planned = plan()
    lengths = [(each.updates, each.epochs) for each in planned.stage_lengths]
    assert lengths == [(70 * 1781, 70), (35 * 759, 35)]


def test_a_stage_ends_within_an_epoch():
    planned = plan("trainer.curriculum.0.until=2000", "trainer.epochs=3")
    lengths = [(each.updates, each.epochs) for each in planned.stage_lengths]
    assert lengths == [(2000, 2), (759, 1)]


def test_stages_that_are_not_reached_are_a_note():
    notes = [line for line in plan("trainer.epochs=9").notes if "curriculum" in line]
    assert notes == [
        "trainer.curriculum.1: the run ends before this stage, after 16,029 updates in "
        "trainer.epochs 9"
    ]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "loss={training_loss: mea}",
            "trainer.curriculum.1: loss.training_loss: loss type 'mea' is not",
        ),
        (
            "loss={training_loss: ring-crps}",
            "trainer.ensemble_size: ring-crps has one member on each data-parallel",
        ),
    ],
)
def test_problems_of_a_stage(override, problem):
    with pytest.raises(ConfigError) as error:
        plan(f"trainer.curriculum.1.{override}")
    assert problem in str(error.value)


def test_memory_of_longer_forecasts():
    """Seven more targets, and with full gradients seven inputs, in float32."""
    planned = plan("trainer.curriculum.1.backprop=full")
    one, eight = (
        estimate_memory(stage, planned.model.model_def, planned.model.axes).parts
        for stage in planned.config.stages
    )
    field = 4 * 160 * 1280
    assert eight["batch"] - one["batch"] == 7 * 71 * field
    assert eight["inputs of later steps"] == 7 * 74 * field
    rest = {"batch", "inputs of later steps"}
    assert {k: v for k, v in one.items() if k not in rest} == {
        k: v for k, v in eight.items() if k not in rest
    }


def check(capsys, *arguments):
    code = main(["--config", str(CONFIG), "--no-data", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_what_check_prints(capsys):
    code, printed = check(capsys)
    assert code == 0
    (first, second) = (
        line.rsplit("mse", 1)
        for line in printed.split("Curriculum")[1].splitlines()
        if line.lstrip().startswith("forecast_len")
    )
    assert "forecast_len 1, learning rate 0.001 " in first[0]
    assert "forecast_len 8, backprop truncated, learning rate 0.0001 " in second[0]
    assert first[1].split()[:3] == ["1", "124,670", "70"]
    assert second[1].split()[:3] == ["8", "26,565", "35"]


@pytest.mark.slow
def test_a_stage_that_no_device_has_memory_for(capsys):
    """It is one problem; the document has the time and the memory of each stage."""
    arguments = (
        "--device",
        "h100",
        "--set",
        "trainer.curriculum.1.train_batch_size=64",
    )
    code, printed = check(capsys, *arguments, "--json")
    assert code == 1
    report = json.loads(printed)
    (problem,) = report["problems"]
    assert problem["where"] == "trainer.curriculum.1"
    assert "NVIDIA H100 has 80 GB" in problem["message"]
    first, second = report["curriculum"]
    assert first["bytes_a_device"] < 80e9 < second["bytes_a_device"]
    assert second["update_seconds_at_least"] > first["update_seconds_at_least"] > 0
    assert (first["updates"], second["forecast_len"]) == (124_670, 8)
