"""Plans: fields, notes, curricula, rooflines, and records of runs."""

import json
from contextlib import suppress

import jax
import numpy as np
import pytest

from credit_jax.cli.check import check_config, main
from credit_jax.config import ConfigError, load_config
from credit_jax.config.data import DataConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.flops import gradient_flops
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.devices import free_memory
from credit_jax.plan import plan_run
from credit_jax.plan.estimates import DEVICES, FLOPS, MODEL, estimate_memory
from credit_jax.plan.run_record import static_files
from credit_jax.training.rollout import SUSPICION
from credit_jax.training.setup import prepare
from tests.data.world import EXACT, GRID
from tests.plan.test_messages import BASE, CURRICULUM, TWIN, weighed, write
from tests.support import assert_close
from tests.support.processes import ROOT
from tests.training.tiny import tiny_config

DEMO = ROOT / "configs" / "demo.yaml"


def test_a_plan_holds_what_a_run_is_made_of(plan):
    found = plan(**EXACT)
    (note,) = found.notes
    assert "std.nc (U, T): without values of levels, taken in the order" in note
    assert list(found.loaders) == ["train", "valid"]
    assert found.schema is found.loaders["train"].schema
    assert found.loaders["train"].pipeline is found.loaders["valid"].pipeline
    first = ("loss", "rmse", "rmse/ERA5/prognostic/3d/U")
    assert found.objective.evaluated[:3] == first
    assert found.objective.evaluate is not None
    assert found.model.grid == (6, 10)
    assert plan(trainer__skip_validation=True).objective.evaluate is None
    note, *_ = plan(trainer__fp8=True, **EXACT).notes
    assert note.startswith("float8: no dense layer of the model has 1024 input")


def test_a_plan_without_data_opens_no_file(plan, monkeypatch):
    monkeypatch.setattr("credit_jax.io.open_files.xr.open_dataset", None)
    preblocks = {"per_step": {"concat": {"type": "concat"}}}
    found = plan(with_data=False, preblocks=preblocks)
    assert (found.loaders, found.stages) == ({}, ())
    assert found.schema.num_input_channels == 7


@pytest.mark.parametrize("degree", ["tensor", "domain"])
def test_huge_degrees_take_no_time(plan, degree):
    sizes = {f"trainer__parallelism__{degree}": 10**9}
    with suppress(ConfigError):
        assert plan(with_data=False, **sizes).num_devices == 10**9


# Losses and metrics of named fields.


def first_loss(plan):
    setup = prepare(plan, jax.devices()[: plan.num_devices])
    steps = setup.steps()
    state, batch = setup.fresh_state(), next(setup.train_loader.epoch(0))
    new, info = steps.train(state, steps.place_train([batch]))
    valid = next(setup.valid_loader.epoch(0))
    scores = steps.evaluate(new.params, new.model_state, steps.place_valid(valid))
    return np.asarray(info["loss"])[0], jax.device_get((new.params, scores))


@pytest.mark.slow
def test_weights_of_latitudes_are_those_of_the_data(plan, world, tmp_path):
    """Row by row: in another order they are put in order."""
    write({"latitude": GRID["latitude"][::-1]}, tmp_path / "rows.nc")
    expected = first_loss(plan(num_devices=1, **weighed(world / "static.nc")))
    value, (_, scores) = first_loss(
        plan(num_devices=1, **weighed(tmp_path / "rows.nc"))
    )
    assert value == expected[0]
    assert scores == expected[1][1]


@pytest.mark.slow
def test_base_trains_on_every_mesh(plan):
    """Its gradient reaches the model through the postblocks."""
    serial = plan(num_devices=1, loss=BASE, postblocks=TWIN)
    value, (params, scores) = first_loss(serial)
    domain = {"num_devices": 4, "trainer__parallelism__domain": 4}
    sharded = plan(loss=BASE, postblocks=TWIN, **domain)
    other, (other_params, other_scores) = first_loss(sharded)
    assert_close(other, value, 1e-6, "loss of single variables on 4 shards")
    for name, own in params.items():
        assert_close(other_params[name], own, 1e-5, name)
    assert set(scores) == {*serial.objective.evaluated, SUSPICION}
    for name, own in scores.items():
        assert_close(other_scores[name], own, 1e-5, name)


# Curricula.


def test_memory_of_longer_forecasts():
    """Seven more targets, and with full gradients seven inputs, in float32."""
    config = load_config(CURRICULUM, ["trainer.curriculum.1.backprop=full"])
    planned = plan_run(config, with_data=False)
    one, eight = (
        estimate_memory(stage, planned.model.model_def, planned.model.axes).parts
        for stage in planned.config.stages
    )
    field = 4 * 160 * 1280
    assert eight.pop("batch") - one.pop("batch") == 7 * 71 * field
    assert eight.pop("inputs of later steps") == 7 * 74 * field
    assert one == eight


# Rooflines.


REPORTS = {"h100": "accelerator_025deg.json", "a100": "accelerator_025deg-a100.json"}


@pytest.mark.parametrize("name", DEVICES)
def test_the_table_is_that_of_the_report(name):
    device = DEVICES[name]
    path = ROOT / "benchmarks" / "reports" / REPORTS[name]
    report = json.loads(path.read_text())
    assert report["target"] == name
    meshes = {"1": (1, 1), "domain8": (1, 8), "tp2xdomain4": (2, 4)}
    programs = {
        (p["remat"], *meshes[p["mesh"]]): p
        for p in report["programs"]
        if p["mesh"] in meshes
    }
    assert len(programs) == len(device.steps)
    for step in device.steps:
        program = programs[step.remat, step.tensor, step.domain]
        assert step.kernels == program["kernels"]
        assert step.work == pytest.approx(program["seconds"], rel=1e-3)
        assert step.waits == pytest.approx(program["exposed_seconds"], rel=1e-3)
        useful = program["useful_flops"] * step.tensor * step.domain
        assert pytest.approx(useful, rel=1e-3) == FLOPS


def test_operations_and_memory():
    model = read_yaml(ROOT / MODEL)["model"]
    assert gradient_flops(build(model)) == pytest.approx(FLOPS, rel=0.01)
    memory, where = free_memory(2)
    assert 0 < memory < 1e13
    assert "for each of 2 devices" in where


@pytest.mark.slow
def test_bounds_of_the_demo(capsys):
    def bound(*overrides, devices=None):
        options = {"with_data": False, "device": "h100", "num_devices": devices}
        report = check_config(DEMO, overrides, **options)
        assert report.bound is not None, report.problems
        return report.bound

    one, four = bound(), bound("trainer.train_batch_size=4")
    assert four.launches == one.launches
    batch = load_config(DEMO).trainer.train_batch_size
    assert four.work == pytest.approx(4 / batch * one.work)
    assert "not compiled" in one.explanation
    assert one.seconds > one.launches > 0
    assert one.step.remat == "none", "as the config has it"
    mesh = "trainer.parallelism={data: none, tensor: 1, domain: 4}"
    nearest = bound(mesh, "trainer.num_devices=4", devices=4)
    assert nearest.step.tensor * nearest.step.domain == 8
    main(["--config", str(DEMO), "--no-data", "--device", "h100"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "NVIDIA H100: a micro-batch takes at least" in printed
    assert "no measurement" in printed
    main(["--config", str(DEMO), "--no-data", "--json"])
    assert json.loads(capsys.readouterr().out)["roofline"] is None


# Records of runs.


def test_files_of_static_fields_alone(tmp_path):
    raw = tiny_config(tmp_path, tmp_path / "run")["data"]
    kinds = raw["source"]["ERA5"]["variables"]
    named = {"data.source.ERA5.variables.static.path": kinds["static"]["path"]}
    assert static_files(DataConfig(**raw), "data") == named
    kinds["static"]["path"] = kinds["prognostic"]["path"]
    assert static_files(DataConfig(**raw), "data") == {}, "times are added to it"
    del kinds["static"]
    assert static_files(DataConfig(**raw), "data") == {}
