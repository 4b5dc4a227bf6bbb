"""`python -m credit_jax.check`: its reports and its errors."""

import json
import math
from pathlib import Path

import pytest
import xarray as xr
import yaml

from credit_jax.cli.check import check_config, main
from credit_jax.config import ConfigError, build_config, write_config
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.plan import plan_run
from credit_jax.plan.estimates import estimate_memory, local_size
from tests.config.example import example
from tests.models.cases import BASE, section
from tests.support.configs import plan_problems

MODEL = section(BASE, (32, 64), depth=[1, 1, 1, 1], padding_conf=None)


def plan(num_devices=None, **changes):
    changes.setdefault("preblocks", {"per_step": {"concat": {"type": "concat"}}})
    config = build_config(example(model=dict(MODEL), **changes))
    return plan_run(config, num_devices=num_devices, with_data=False)


@pytest.mark.parametrize(
    ("changes", "devices", "message"),
    [
        (
            {"trainer__parallelism": {"tensor": 4}},
            4,
            "stage 0 has 2 heads, which tensor = 4",
        ),
        ({"model__levels": 3}, None, "model: has 9 input channels, but data.source"),
        ({"model__frames": 2}, None, "model.frames: 2 differs from data.history_len"),
        (
            {"model__global_window_size": [3, 2, 2, 1]},
            None,
            "model.global_window_size[0] is 3, which does not divide the height 16",
        ),
        ({"metrics": {"args": {"metrics": {"rmze": {}}}}}, None, "rmze"),
        (
            {"preblocks": {"per_step": {"a": {"type": "regird"}}}},
            None,
            "preblocks.per_step.a.type: preblock type 'regird' is not available",
        ),
    ],
)
def test_problems(changes, devices, message):
    model = {k.split("__")[1]: v for k, v in changes.items() if k.startswith("model")}
    rest = {k: v for k, v in changes.items() if not k.startswith("model")}
    rest.setdefault("preblocks", {"per_step": {"concat": {"type": "concat"}}})
    config = build_config(example(model={**MODEL, **model}, **rest))
    problems = plan_problems(config, num_devices=devices, with_data=False)
    assert any(message in line for line in problems), problems


def test_uneven_rows_are_a_note_and_no_problem():
    found = plan(trainer__parallelism={"domain": 3})
    uneven, windows = found.notes
    rows = "32 rows over domain 3 are uneven (11, 11, 10)"
    assert uneven == f"{rows}; results are exact nonetheless"
    assert "windows of attention over domain 3 are uneven" in windows, windows


def test_parameters_over_domain():
    """All parameters are halved but small ones and those that 2 does not divide."""
    degrees = {"trainer__parallelism": {"domain": 2}}
    whole = plan(**degrees)
    shared = plan(**degrees, trainer__fsdp={"over_domain": True})
    before, after = (
        estimate_memory(p.config, p.model.model_def, p.model.axes).parts
        for p in (whole, shared)
    )
    for name in ("parameters", "gradients", "optimizer (AdamW)"):
        assert 0.5 < after[name] / before[name] < 0.6, name
    assert before.keys() | {"gathered over domain"} == after.keys()
    assert 0.9 < after["gathered over domain"] / before["parameters"] < 1


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("pp", "no model has pipeline stages: .*; use pp: 1 and data: fsdp2"),
        ("ep", "wxformer has no experts to share; use ep: 1, or wxformer_moe"),
    ],
)
def test_degrees_that_a_model_has_no_use_for(key, why):
    with pytest.raises(ConfigError, match=f"1 problem\n.*{key} is 2, but {why}"):
        plan(trainer__parallelism={key: 2})


def test_missing_files_are_problems():
    preblocks = {"per_step": {"concat": {"type": "concat"}}}
    config = build_config(example(model=dict(MODEL), preblocks=preblocks))
    first, *others = plan_problems(config)
    assert len(others) == 3, others
    assert "data.source.ERA5.variables.prognostic.path: no file matches" in first
    assert "'./d_%Y.nc' (searched './d_*.nc' in" in first


def test_files_that_the_first_training_makes_are_notes():
    preblocks = {"per_step": {"concat": {"type": "concat"}}}
    config = build_config(example(model=dict(MODEL), preblocks=preblocks))
    (problem,) = plan_problems(config, expected_files=["./d_2000.nc"])
    assert "static.path: no file matches './static.nc'" in problem
    found = plan_run(config, expected_files=["./d_2000.nc", "./static.nc"])
    assert len(found.notes) == 4, found.notes
    assert found.notes[0].endswith("./d_%Y.nc is made by the first training")
    assert (found.loaders, found.objective) == ({}, None)


def latitudes(section, path):
    """Changes of a config by which a section weights latitudes from a file."""
    weights = {"use_latitude_weights": True, "latitude_weights": str(path)}
    if section == "loss":
        return {f"loss__{key}": value for key, value in weights.items()}
    metrics = {"type": "combined", "args": {"metrics": {"rmse": {}}, **weights}}
    return {"loss__use_latitude_weights": False, "metrics": metrics}


def test_missing_latitudes_of_the_metrics():
    changes = latitudes("metrics", "absent.nc")
    config = build_config(example(model=dict(MODEL), **changes))
    line = "metrics.args.latitude_weights: absent.nc does not exist"
    assert line in plan_problems(config)
    changes["trainer__skip_validation"] = True
    config = build_config(example(model=dict(MODEL), **changes))
    assert line not in plan_problems(config), "nothing reads it"


@pytest.mark.parametrize("section", ["loss", "metrics"])
def test_files_without_latitudes(section, tmp_path):
    path = tmp_path / "other.nc"
    xr.Dataset(coords={"y": [10.0]}).to_netcdf(path, engine="h5netcdf")
    changes = latitudes(section, path)
    changes["preblocks"] = {"per_step": {"concat": {"type": "concat"}}}
    config = build_config(example(model=dict(MODEL), **changes))
    with pytest.raises(ConfigError, match="has no one-dimensional `latitude`") as error:
        plan_run(config, expected_files=["./d_2000.nc", "./static.nc"])
    (line,) = error.value.problems
    assert line.startswith(f"{section}."), line


def test_data_none_leaves_devices_idle():
    found = plan(num_devices=4)
    assert found.notes == ("data: none uses 1 of 4 devices",)
    assert found.model.axes.num_data == 1


def test_local_sizes_are_shares_of_the_whole():
    kernel = ParamSpec((64, 4, 16), ("embed", "heads", "head_dim"))
    fsdp = MeshAxes(data=("dp_shard",), shard="dp_shard", num_data=4, num_shard=4)
    both = MeshAxes(
        data=("dp_shard",),
        shard="dp_shard",
        tensor="tp",
        num_data=4,
        num_shard=4,
        num_tensor=2,
    )
    assert local_size(kernel, MeshAxes()) == 64 * 4 * 16
    assert local_size(kernel, fsdp) == 64 * 4 * 16 // 4
    assert local_size(kernel, both) == 64 * 4 * 16 // 8


@pytest.mark.slow
def test_memory_falls_with_every_kind_of_parallelism():
    def total(devices, **block):
        found = plan(num_devices=devices, trainer__parallelism=block)
        return estimate_memory(found.config, found.model.model_def, found.model.axes)

    one = total(1)
    assert one.parts["parameters"] == 4 * plan().model.model_def.num_parameters
    assert total(8, data="fsdp2").parts["parameters"] < one.parts["parameters"] / 4
    activations = "activations (estimate)"
    assert total(2, tensor=2).parts[activations] < one.parts[activations]
    assert total(2, domain=2).parts[activations] < one.parts[activations]
    assert one.total == math.fsum(one.parts.values())


def test_the_command_ends_with_1_on_problems(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    preblocks = {"per_step": {"concat": {"type": "concat"}}}
    config = build_config(example(model=dict(MODEL), preblocks=preblocks))
    write_config(config, path)
    assert main(["--config", str(path), "--no-data"]) == 0
    printed = capsys.readouterr().out
    for word in (
        "Channels: input",
        "Mesh",
        "Geometry: stages",
        "Model: parts",
        "Memory: parts",
        "OK so far: data",
    ):
        assert word in printed, printed
    assert main(["-c", str(path), "--set", "model.dim_head=5", "--no-data"]) == 0
    arguments = ["-c", str(path), "--set", "trainer.parallelism.tensor=3", "--no-data"]
    assert main(arguments) == 1
    assert "which tensor = 3 of the parallelism" in capsys.readouterr().out
    assert main(["-c", str(path), "--set", "trainer.epoch=3"]) == 1
    assert "nearest known key is 'epochs'" in capsys.readouterr().out
    assert main(["-c", str(tmp_path / "no.yaml")]) == 1
    assert "does not exist" in capsys.readouterr().out


def test_a_pattern_that_matches_no_file(tmp_path, capsys, monkeypatch):
    """The first training makes the demo data, but this file is none of them."""
    demo = str(Path("configs/demo.yaml").resolve())
    monkeypatch.chdir(tmp_path)
    assert main(["-c", demo]) == 0
    printed = capsys.readouterr().out
    assert "note: data.source.demo.variables.static.path: demo_data/T21/sta" in printed
    key, pattern = (
        "data.source.demo.variables.prognostic.path",
        "demo_data/T21/nope_%Y.zarr",
    )
    assert main(["-c", demo, "--set", f"{key}={pattern}"]) == 1
    printed = capsys.readouterr().out
    assert f"{key}: no file matches '{pattern}' (searched " in printed
    assert "the folder 'demo_data/T21' does not exist" in printed
    assert "1 problem:" in printed


@pytest.mark.parametrize("dates", [{}, {"start_datetime": "2000-01-05"}])
def test_configs_of_forecasts_alone(tmp_path, capsys, dates):
    """They are checked without loss, trainer and dates, as `forecast` takes them."""
    whole = example(
        model=dict(MODEL), preblocks={"per_step": {"concat": {"type": "concat"}}}
    )
    alone = {k: v for k, v in whole.items() if k not in ("loss", "trainer")}
    alone.pop("validation_data", None)
    gone = ("start_datetime", "end_datetime", "date_ranges", "forecast_len")
    alone["data"] = {k: v for k, v in whole["data"].items() if k not in gone} | dates
    alone["inference"] = {"output": {"format": "zarr"}}
    path = tmp_path / "alone.yml"
    path.write_text(yaml.safe_dump(alone))
    assert main(["--config", str(path)]) == 0
    assert "neither loss nor trainer" in capsys.readouterr().out
    alone["inference"] = {"members": 3, "perturbation": {"type": "singular"}}
    path.write_text(yaml.safe_dump(alone))
    assert main(["--config", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "for each start date some 15 forecasts of 48h, with the tangent" in shown
    alone["inference"] = {"output": {"format": "grib"}}
    alone["model"]["levels"] = 3
    path.write_text(yaml.safe_dump(alone))
    assert main(["--config", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "inference.output.format" in shown
    assert "model: has 9 input channels" in shown


ROOT = Path(__file__).parents[2]
CREDIT = ROOT / "tests/reference/credit_configs"
KEYS = {
    "schema_version": int,
    "config": str,
    "kind": str,
    "ok": bool,
    "problems": list,
    "notes": list,
    "ignored": list,
    "channels": dict,
    "further_inputs": dict,
    "data": dict,
    "model": dict,
    "mesh": dict,
    "geometry": dict,
    "memory": dict,
    "curriculum": list,
    "roofline": type(None),
}


@pytest.fixture
def path(tmp_path):
    preblocks = {"per_step": {"concat": {"type": "concat"}}}
    config = build_config(example(model=dict(MODEL), preblocks=preblocks))
    write_config(config, tmp_path / "config.yaml")
    return str(tmp_path / "config.yaml")


def printed_document(capsys, *arguments):
    code = main([*arguments, "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert code == (0 if found["ok"] else 1)
    assert list(found) == list(KEYS)
    return found


def test_a_sound_config(path, capsys):
    found = printed_document(capsys, "-c", path, "--no-data", "--devices", "2")
    assert found["ok"]
    assert found["schema_version"] == 1
    for key, kind in KEYS.items():
        assert isinstance(found[key], kind), key
    channels = found["channels"]
    assert [len(channels[side]) for side in ("input", "target")] == [7, 6]
    assert channels["input"][1] == {
        "channel": 1,
        "variable": "T",
        "source": "ERA5",
        "field_type": "prognostic",
        "level": 2,
        "level_value": 2.0,
    }
    assert channels["target"][-1] == {
        "channel": 5,
        "variable": "TP",
        "source": "ERA5",
        "field_type": "diagnostic",
        "level": None,
        "level_value": None,
    }
    numbers = [own["channel"] for own in channels["input"]]
    assert numbers == list(range(7))
    assert found["data"]["sources"] == {"ERA5": "local"}
    assert found["model"]["grid"] == [32, 64]
    assert found["model"]["parameters"] == sum(found["model"]["parts"].values())
    assert found["mesh"]["devices"] == 2
    assert found["memory"]["bytes_a_device"] == sum(found["memory"]["parts"].values())


def test_ignored_keys_and_problems(path, capsys):
    changes = {
        "trainer.epoch": "3",
        "trainer.xyzzy": "1",
        "model.post_conf": "{activate: true, tracer_fixer: {activate: true}}",
    }
    words = [word for k, v in changes.items() for word in ("--set", f"{k}={v}")]
    found = printed_document(capsys, "-c", path, "--no-data", *words)
    assert found["problems"] == [
        {
            "where": "trainer.epoch",
            "message": "unknown key",
            "fix": "the nearest known key is 'epochs'",
        }
    ]
    assert len(found["channels"]["input"]) == 7, "the data section is sound"
    assert (found["model"], found["mesh"], found["memory"]) == (None, None, None)
    found = printed_document(capsys, "-c", path, "--no-data", *words[2:])
    assert found["ok"]
    reasons = {own["key"]: own["reason"] for own in found["ignored"]}
    assert reasons["trainer.xyzzy"].startswith("unknown key; CREDIT passes over it")
    assert "gen2 training drops it, too" in reasons["model.post_conf"]


def test_the_first_generation(capsys):
    """The report names the command that converts a config of generation 1."""
    path = CREDIT / "config/gen_1/arXiv_2024/wxformer_6h_single_step.yml"
    found = printed_document(capsys, "-c", str(path))
    (problem,) = found["problems"]
    assert (found["kind"], problem["where"]) == ("gen1", "data")
    assert f"credit-jax config --to jax {path} --out " in problem["fix"]


def test_data_alone():
    """The channels of a config without model and trainer are reported."""
    report = check_config(CREDIT / "config/gen_2/examples/multi_source_data.yml")
    # Without loss and trainer it is a config for forecasts.
    assert [line.split(":")[0] for line in report.problems] == ["save_loc", "model"]
    found = report.document()
    assert [len(found["channels"][side]) for side in ("input", "target")] == [74, 71]
    level = found["channels"]["input"][40]
    assert (level["source"], level["variable"]) == ("ERA5_UpperAir", "U")
    assert level["level_value"] == 10.0
