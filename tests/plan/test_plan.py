"""Plans: files, findings, rooflines, and records of runs."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.check import check_config, main
from credit_jax.config import ConfigError, build_config, parse
from credit_jax.config.data import DataConfig
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.models.flops import gradient_flops
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.devices import free_memory
from credit_jax.plan.estimates import DEVICES, FLOPS, MODEL
from credit_jax.plan.run_record import RunRecord, static_files
from credit_jax.transforms import build_pipeline, notes_on_initial
from tests.data.world import raw_config, set_key
from tests.training.tiny import tiny_config


def test_files_of_static_fields_alone(tmp_path):
    raw = tiny_config(tmp_path, tmp_path / "run")["data"]
    kinds = raw["source"]["ERA5"]["variables"]
    named = static_files(DataConfig(**raw), "data")
    assert named == {
        "data.source.ERA5.variables.static.path": kinds["static"]["path"],
    }
    kinds["static"]["path"] = kinds["prognostic"]["path"]
    assert static_files(DataConfig(**raw), "data") == {}, "times are added to it"
    del kinds["static"]
    assert static_files(DataConfig(**raw), "data") == {}


@pytest.mark.parametrize("restored", [False, True])
def test_fields_that_are_written_without_units(restored):
    """A log of the initial state alone, which nothing undoes, is noted."""
    args = {"variables": ["ERA5/prognostic/2d/SP"]}
    preblocks = {
        "ic_only": {"log": {"type": "log_transform", "args": args}},
        "per_step": {"concat": {"type": "concat"}},
    }
    after = {"reconstruct": {"type": "reconstruct"}}
    if restored:
        after["exp"] = {"type": "exp_transform", "args": args}
    pipeline = build_pipeline(
        parse(PreblocksConfig, preblocks), parse(PostblocksConfig, {"per_step": after})
    )
    notes = notes_on_initial(pipeline)
    assert len(notes) == (not restored)
    for note in notes:
        assert "preblocks.ic_only.log (type log_transform): changes the initial" in note
        assert "not in physical units" in note


ROOT = Path(__file__).parents[2]
DEMO = ROOT / "configs" / "demo.yaml"


def _bound(*overrides, config=DEMO, devices=None):
    report = check_config(
        config, overrides, with_data=False, device="h100", num_devices=devices
    )
    assert report.bound is not None, report.problems
    return report.bound


def test_a_run_that_needs_more_memory_than_the_device_has():
    dims = "model.dim=[512, 2048, 8192, 32768]"
    (line,) = check_config(DEMO, [dims], with_data=False, device="h100").problems
    assert line.startswith("trainer: needs about ")
    assert "GB a device, NVIDIA H100 has 80 GB; take a smaller train_batch" in line
    memory, where = free_memory(2)
    assert 0 < memory < 1e13
    assert "for each of 2 devices" in where


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


def test_operations_of_the_compiled_model():
    model = read_yaml(ROOT / MODEL)["model"]
    assert gradient_flops(build(model)) == pytest.approx(FLOPS, rel=0.01)


@pytest.mark.slow
def test_work_follows_operations_and_launches_stay():
    one, four = _bound(), _bound("trainer.train_batch_size=4")
    assert four.launches == one.launches
    plan = check_config(DEMO, with_data=False).plan
    assert plan is not None
    batch = plan.config.trainer.train_batch_size
    assert four.work == pytest.approx(4 / batch * one.work)
    assert "not compiled" in one.explanation
    assert one.seconds > one.launches > 0


@pytest.mark.slow
def test_the_nearest_mesh():
    bound = _bound(
        "trainer.parallelism={data: none, tensor: 1, domain: 4}",
        "trainer.num_devices=4",
        devices=4,
    )
    assert bound.step.tensor * bound.step.domain == 8
    assert _bound().step.remat == "none", "as the config has it"


@pytest.mark.slow
def test_what_check_prints(capsys):
    main(["--config", str(DEMO), "--no-data", "--device", "h100"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "NVIDIA H100: a micro-batch takes at least" in printed
    assert "no measurement" in printed
    main(["--config", str(DEMO), "--no-data", "--json"])
    assert json.loads(capsys.readouterr().out)["roofline"] is None


NORM = "preblocks.per_step.norm"


@pytest.fixture
def raw(tmp_path):
    """A config with the files of its normalizer, and others beside them."""
    for name, value in (("mean", 1.0), ("std", 2.0), ("other", 3.0)):
        xr.Dataset({"T": ("level", np.full(4, value))}).to_netcdf(
            tmp_path / f"{name}.nc"
        )
    return raw_config(tmp_path)


def compared(raw, changed, **options):
    run, here = (RunRecord.of(build_config(each)) for each in (raw, changed))
    return replace(run, where="RUN/checkpoints/3").compare(here, **options)


def changed_by(raw, key, value):
    changed = copy.deepcopy(raw)
    set_key(changed, key, value)
    return changed


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("data__timestep", "12h", r"data.timestep \('6h' there, '12h' here\)"),
        ("data__history_len", 2, r"data.history_len \(1 there, 2 here\)"),
        ("model__dim", [8, 16, 32, 64], r"model.dim \(\["),
        (f"{NORM.replace('.', '__')}__args__levels", [0, 1], rf"{NORM}.args.levels \("),
    ],
)
def test_what_may_not_differ_is_an_error_with_both_values(raw, key, value, text):
    for options in ({}, {"forecasts": True}):
        with pytest.raises(ConfigError, match=text):
            compared(raw, changed_by(raw, key, value), **options)
    if key.startswith("data"):
        section = changed_by(raw, key, value)["data"]
        other = {**raw, "inference": {"data": section}}
        assert not compared(raw, other)
        with pytest.raises(ConfigError, match=rf"inference\.{text}"):
            compared(raw, other, forecasts=True)
    # A new run may begin with these weights, which is said.
    (note,) = compared(raw, changed_by(raw, key, value), begins=True)
    assert note.startswith("not as RUN/checkpoints/3 was trained: ")


def test_blocks_are_compared_by_order_type_arguments_and_files(raw, tmp_path):
    changed = copy.deepcopy(raw)
    blocks = changed["preblocks"]["per_step"]
    norm = blocks.pop("norm")
    with pytest.raises(ConfigError, match=r"\('era5_normalizer, concat' there"):
        compared(raw, changed)
    changed["preblocks"]["per_step"] = {"renamed": norm, **blocks}
    assert not compared(raw, changed)
    norm["args"]["std_path"] = f"{tmp_path}/other.nc"
    with pytest.raises(ConfigError, match=r"renamed.args.std_path \('SHA-256 "):
        compared(raw, changed)
    # The same contents at another path; and defaults that are written out.
    (tmp_path / "copy.nc").write_bytes((tmp_path / "std.nc").read_bytes())
    norm["args"]["std_path"] = f"{tmp_path}/copy.nc"
    # Forecasts undo what preblocks do, whether the config says so or not.
    undone = {"reconstruct": {"type": "reconstruct"}, "back": copy.deepcopy(norm)}
    changed["postblocks"] = {"per_step": undone}
    changed["data"]["history_len"] = None
    changed["data"]["timestep"] = "360min"
    assert not compared(raw, changed)
    norm["args"]["std_path"] = f"{tmp_path}/nowhere.nc"
    (note,) = compared(raw, changed)
    assert f"not compared, as there is no {tmp_path}/nowhere.nc" in note


def test_what_may_differ_is_said_once(raw):
    changed = changed_by(raw, "trainer__train_batch_size", 2)
    changed = changed_by(changed, "data__end_datetime", "2000-01-04")
    changed = changed_by(changed, "model__attn_dropout", 0.1)
    changed["data"]["source"]["ERA5"]["variables"]["static"]["path"] = "elsewhere.nc"
    (note,) = compared(raw, changed)
    assert "trainer.train_batch_size (3 there, 2 here)" in note
    assert note.count("there") == 3
    (note,) = compared(raw, changed, forecasts=True)
    assert "data.end_datetime" in note
    assert "trainer" not in note
