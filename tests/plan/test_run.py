"""A plan: its fields, and all problems of a config in one report."""

import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest
import xarray as xr

from credit_jax.config import ConfigError, build_config
from credit_jax.plan import plan_run
from tests.data.world import EXACT, set_key
from tests.training.conftest import tiny_model, world
from tests.training.tiny import TinyConfig, tiny_config

__all__ = ["tiny_model", "world"]

pytestmark = pytest.mark.usefixtures("tiny_model")


@pytest.fixture
def plan(world, tmp_path):
    """`plan(**changes)` of the small model on the small data set."""

    def plan_it(with_data=True, num_devices=None, **changes):
        config = build_config(tiny_config(world, tmp_path, **changes))
        return plan_run(config, with_data=with_data, num_devices=num_devices)

    def problems(**changes):
        with pytest.raises(ConfigError, match="this run cannot start") as error:
            plan_it(**changes)
        return error.value.problems

    plan_it.problems = problems

    return plan_it


def test_a_plan_holds_what_a_run_is_made_of(plan):
    found = plan(**EXACT)
    (note,) = found.notes
    assert "std.nc (U, T): without values of levels, taken in the order" in note
    assert list(found.loaders) == ["train", "valid"]
    assert found.schema is found.loaders["train"].schema
    assert found.loaders["train"].pipeline is found.loaders["valid"].pipeline
    assert found.objective.evaluated[:3] == (
        "loss",
        "rmse",
        "rmse/ERA5/prognostic/3d/U",
    )
    assert found.objective.evaluate is not None
    assert found.model.grid == (6, 10)
    assert plan(trainer__skip_validation=True).objective.evaluate is None


def test_a_plan_without_data_opens_no_file(plan, monkeypatch):
    monkeypatch.setattr("credit_jax.io.open_files.xr.open_dataset", None)
    preblocks = {"per_step": {"concat": {"type": "concat"}}}
    found = plan(with_data=False, preblocks=preblocks)
    assert (found.loaders, found.objective) == ({}, None)
    assert found.schema.num_input_channels == 7


def test_float8_without_a_layer_for_it_is_noted(plan):
    note, *_ = plan(trainer__fp8=True, **EXACT).notes
    assert note.startswith("float8: no dense layer of the model has 1024 input")
    assert note not in plan(trainer__fp8=False, **EXACT).notes


STAGES = {
    "the mesh and the section of the model": (
        {
            "num_devices": 6,
            "trainer__parallelism": {"data": "fsdp2", "tensor": 4, "domain": 1},
            "model__hidden": 0.5,
        },
        [
            "trainer.parallelism: world_size=6 not divisible by tensor*domain=4",
            "model.hidden: must be an integer",
        ],
    ),
    "parameters": (
        {
            "num_devices": 4,
            "trainer__parallelism": {"data": "fsdp2", "tensor": 4, "domain": 1},
            "trainer__fsdp": {"keep_whole": ["dance/*"]},
            "model__hidden": 6,
        },
        [
            "dense/down: 6 mlp are not divisible by tensor 4; would fit: 1, 2, 3, 6",
            "trainer.fsdp.keep_whole has 'dance/*', which matches no parameter",
        ],
    ),
    "files": (
        {
            "loss__latitude_weights": "absent.nc",
            "preblocks__per_step__norm__args__std_path": "std.nc",
            "data__source__ERA5__variables__static__path": "mask.nc",
        },
        [
            "data.source.ERA5.variables.static.path: no file matches 'mask.nc'",
            "loss.latitude_weights: absent.nc does not exist",
            "preblocks.per_step.norm.args.std_path: std.nc does not exist; `credit-jax",
        ],
    ),
    "how all fits": (
        {
            "model__surface_channels": 2,
            "loss__training_loss": "mze",
            "trainer__training_metric": "valid_crps",
        },
        [
            "model: has 8 input channels, but data.source has 7: model 2 x 2 + 2 + 2",
            "model: has 7 output channels, but data.source has 6",
            "loss.training_loss: loss type 'mze'",
            "trainer.training_metric: got 'valid_crps', expected one of train_loss",
        ],
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_all_problems_of_a_stage_at_once(plan, stage):
    changes, expected = STAGES[stage]
    found = plan.problems(**changes)
    assert len(found) == len(expected), found
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start), (line, start)


def test_packages_and_schedules_that_the_run_lacks(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    schedule = {"scheduler_type": "linear-warmup-cosine", "warmup_steps": 1}
    trainer = {"trainer__epochs": 5, "trainer__batches_per_epoch": 3}
    trainer |= {"trainer__use_scheduler": True}
    short = plan(**trainer, trainer__scheduler=schedule | {"total_steps": 13})
    (line,) = (n for n in short.notes if "trainer.scheduler.total_steps" in n)
    assert "the rate is at min_lr" in line
    assert "13 of 15" in line
    for kind, epochs, key, end in (
        ({"scheduler_type": "cosine-annealing", "T_max": 4}, 5, ".T_max", 4),
        ({"scheduler_type": "lambda"}, 70, "", 50),
    ):
        changes = {**trainer, "trainer__epochs": epochs, "trainer__scheduler": kind}
        (line,) = (n for n in plan(**changes).notes if "trainer.scheduler" in n)
        start = f"trainer.scheduler{key}: the rate rises again from epoch {end} of "
        assert line.startswith(f"{start}{epochs} on, as in CREDIT; ")
        enough = plan(**changes | {"trainer__epochs": end}).notes
        assert not [n for n in enough if "trainer.scheduler" in n]
    (problem,) = plan.problems(trainer__use_wandb=True)
    assert "pip install 'credit-jax[wandb]'" in problem
    stage = {"until": "5 updates", "scheduler": schedule | {"total_steps": 4}}
    lines = plan(
        trainer__curriculum=[stage, {"scheduler": schedule | {"total_steps": 10}}],
        **trainer,
        trainer__scheduler=schedule,
    ).notes
    (line,) = (n for n in lines if "total_steps: the rate is at min_lr" in n)
    assert "curriculum.0.scheduler.total_steps" in line
    assert "4 of 5" in line


def test_what_validation_shares_with_training_is_said_once(plan, world, tmp_path):
    source = tiny_config(world, tmp_path)["data"]["source"]
    source["ERA5"]["variables"]["static"]["path"] = "mask.nc"
    changes = {f"{own}__source": source for own in ("data", "validation_data")}
    (problem,) = plan.problems(model__surface_channels=2, **changes)
    assert problem.startswith("data.source.ERA5.variables.static.path")


def test_channels_of_another_validation_source(plan, world, tmp_path):
    config = tiny_config(world, tmp_path)
    source = {"ERA5": {**config["data"]["source"]["ERA5"], "levels": [1.0]}}
    (problem,) = plan.problems(validation_data__source=source)
    assert problem.startswith("data.source.ERA5.levels: [1.0] are 1 levels, but")
    found = plan.problems(with_data=False, validation_data__source=source)
    text = "has 7 input channels, but validation_data.source has 5"
    assert any(text in line for line in found), found


@pytest.mark.parametrize("text", ["no data", None])
def test_a_latitude_file_that_cannot_be_read_is_one_problem(plan, tmp_path, text):
    path = tmp_path / "rows.nc"
    if text is None:
        xr.Dataset(coords={"latitude": [1.0, 2.0]}).to_netcdf(path)
    else:
        path.write_text(text)
    found = plan.problems(
        loss__use_latitude_weights=True, loss__latitude_weights=str(path)
    )
    reason = "has 2 latitudes, expected" if text is None else "cannot be opened"
    assert len(found) == 1, found
    assert found[0].startswith(f"loss.latitude_weights: {path}")
    assert reason in found[0]


@pytest.mark.parametrize("degree", ["tensor", "domain"])
def test_huge_degrees_take_no_time(plan, degree):
    sizes = {f"trainer__parallelism__{degree}": 10**9}
    with suppress(ConfigError):
        assert plan(with_data=False, **sizes).num_devices == 10**9


def test_huge_depth_is_a_problem(plan, world, tmp_path):
    config = tiny_config(world, tmp_path)
    set_key(config, "model__type", "wxformer")
    for key in ("channels", "depth"):
        set_key(config, f"model__{key}", 2 if key == "channels" else 10**9)
    found = plan.problems(with_data=False, model=config["model"])
    assert any(
        line.startswith("model.depth: must be at most 1000") for line in found
    ), found


@pytest.mark.slow
def test_a_process_learns_single_steps_by_losses_at_points(plan, monkeypatch):
    """Losses that need transforms, later steps or members are refused."""
    monkeypatch.setattr(TinyConfig, "process", SimpleNamespace(num_samples=20))
    single = plan()
    assert any("takes 20 evaluations of the network" in note for note in single.notes)
    found = plan.problems(data__forecast_len=2, loss__training_loss="KCRPS")
    assert any("trained on single steps, got 2" in line for line in found)
    assert any("KCRPS cannot be weighted by the step" in line for line in found)
    found = plan.problems(trainer__ensemble_size=2)
    assert any("trained on single samples, got 2" in line for line in found)
    terms = {"loss__use_power_loss": True, "loss__spectral_lambda_reg": 0.1}
    found = plan.problems(**terms, loss__spectral_wavenum_init=1)
    assert any("loss.use_power_loss" in line for line in found)
