"""CREDIT's configs of both generations become ours, and those of gen2 again."""

import copy
import random
import sys
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.config import apply_overrides, build_config, custom_objects, parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.config.yaml_file import parse_yaml, read_yaml
from credit_jax.transforms import Phase, build_pipeline, for_forecast
from credit_torch_bridge import convert_config
from credit_torch_bridge.config.convert import dump
from credit_torch_bridge.config.editor import leaves
from credit_torch_bridge.config.from_gen1_sources import template_of
from credit_torch_bridge.config.inference_section import complete_inference
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close
from tests.support.custom_objects import no_objects_left
from tests.support.processes import ROOT

CASES = Cases("convert")

__all__ = ["no_objects_left"]


FOLDER = Path(__file__).parent / "configs"
NAMES = ("gen1", "gen2", "jax")
CONFIGS = {name: read_yaml(FOLDER / f"{name}.yml") for name in NAMES}

SPLIT = "data.save_loc_surface=/data/surface_????.zarr"
NO_DIAGNOSTIC = "data.diagnostic_variables=[]"
PERIODIC = "data.forcing_variables=[sst]"
STATIC_LAST = "data.static_first=false"
BOTH = ["data.history_len=2", "data.valid_history_len=2"]
GEN1 = {
    "plain": [],
    "other files at the surface": [SPLIT],
    "static last": [STATIC_LAST],
    "static last, nothing diagnosed": [STATIC_LAST, NO_DIAGNOSTIC],
    "periodic": [PERIODIC],
    "periodic, static last": [PERIODIC, STATIC_LAST, SPLIT],
    "upper air alone": [
        f"data.{kind}_variables=[]" for kind in ("surface", "dynamic_forcing", "static")
    ],
    "several steps of normalized files": [
        "data.scaler_type=std_cached",
        "data.forecast_len=2",
        "data.backprop_on_timestep=[2, 3, 9]",
        "data.data_clamp=[-5, 5]",
    ],
    "no schedule": ["trainer.use_scheduler=false", "trainer.grad_max_norm=1.0"],
    "domain": ["trainer.mode=domain_parallel", "trainer.domain_parallel_size=2"],
    "fsdp and domain": [
        "trainer.mode=fsdp+domain_parallel",
        "trainer.domain_parallel_size=4",
    ],
    "padding_conf": [
        "model.padding_conf={activate: true, mode: earth, pad_lat: 32, pad_lon: 64}"
    ],
    "no padding": ["model.pad_lat=null"],
    "one epoch": ["trainer.train_one_epoch=true", "trainer.mode=none"],
    "one sample": ["data.dataset_type=ERA5_and_Forcing_MultiStep"],
    "hourly": ["data.lead_time_periods=1", "model.frames=2", *BOTH],
}


def gen1(case):
    return apply_overrides(CONFIGS["gen1"], GEN1[case])


def check(mapping, to):
    """Converts; asserts a stable result that covers all keys and shares no object."""
    before = copy.deepcopy(mapping)
    out, report = convert_config(mapping, to=to)
    assert repr(mapping) == repr(before)
    again, second = convert_config(out, to=to)
    assert repr(again) == repr(out)
    assert second.unchanged, [str(c) for c in second.changes]
    named = {change.path for change in report.changes if change.kind != "note"}
    for path, value in leaves(mapping):
        kept = path in report.kept
        assert kept or any(path[:n] in named for n in range(1, len(path) + 1)), path
        assert not kept or repr(dict(leaves(out))[path]) == repr(value)
    return out, report


def alike(left, right):
    """Whether values are equal, in any order of keys except that of the sources."""
    sources = [list(config["data"]["source"]) for config in (left, right)]
    one, other = (dict(leaves(config)) for config in (left, right))
    odd = [p for p in {**one, **other} if repr(one.get(p)) != repr(other.get(p))]
    print(odd)
    return sources[0] == sources[1] and not odd


def accepted(config):
    """The config as credit_jax parses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_config({**config, "save_loc": "run"})


@pytest.mark.parametrize("case", GEN1)
def test_gen1_to_jax(case):
    refused = {
        "upper air alone": "model: has 17 input channels, but data.source has 12",
        "static last": None,
    }
    given = gen1(case)
    if case == "upper air alone":
        with pytest.raises(ValueError, match=refused[case]):
            convert_config(given, to="jax")
        given["model"] |= {"surface_channels": 0, "input_only_channels": 0}
    elif refused.get(case):
        with pytest.raises(ValueError, match="cannot become jax") as caught:
            convert_config(given, to="jax")
        assert refused[case] in str(caught.value)
        return
    if case == "static last, nothing diagnosed":
        given["model"]["output_only_channels"] = 0
    if case.startswith("periodic"):
        given["model"]["input_only_channels"] = 4
    out, report = check(given, "jax")
    assert alike(check(given, "gen2")[0], convert_config(out, to="gen2")[0])
    steps = 3 if case == "several steps of normalized files" else 1
    assert accepted(out).data.forecast_len == steps
    print("\n".join(report.lines()))


@pytest.mark.parametrize("name", ["gen2", "jax"])
def test_jax_and_back(name):
    credit, report = check(CONFIGS[name], "gen2")
    assert report.unchanged == (name == "gen2")
    ours, report = check(credit, "jax")
    assert report.unchanged
    assert repr(convert_config(ours, to="gen2")[0]) == repr(credit)
    assert accepted(ours).trainer.learning_rate == 1e-3


def test_what_credit_lacks():
    out, report = check(CONFIGS["jax"], "gen2")
    assert out["trainer"]["parallelism"] == {"data": "fsdp2", "domain": 2}
    assert out["trainer"]["activation_checkpoint"] is True
    assert out["model"]["local_window_size"] == 2
    assert out["model"]["padding_conf"] == {
        "activate": True,
        "mode": "mirror",
        "pad_lat": [32, 32],
        "pad_lon": [64, 64],
    }
    assert out["loss"]["validation_loss"] == "mae"
    assert out["data"]["date_ranges"] == [["1999-01-01", "2001-12-31"]]
    assert set(out["data"]) - {"source"} == set(out["validation_data"])
    assert not {"demo"} & set(out)
    assert not {"num_devices", "fsdp"} & set(out["trainer"])
    words = "\n".join(report.lines())
    assert "dropped: trainer.num_devices: 8 (CREDIT's launcher says" in words
    assert "note: trainer.parallelism.domain: 2: CREDIT's own domain" in words


def test_gen1_numbers():
    """Keys whose meaning changed between the generations."""
    out, _ = check(gen1("plain"), "gen2")
    assert out["data"]["forecast_len"] == out["validation_data"]["forecast_len"] == 1
    assert out["data"]["date_ranges"] == [
        [f"{year}-01-01 00:00:00", f"{year}-12-31 18:00:00"]
        for year in (1999, 2000, 2001)
    ]
    assert out["model"]["padding_conf"] == {
        "activate": True,
        "mode": "mirror",
        "pad_lat": [32, 32],
        "pad_lon": [64, 64],
    }
    assert "post_conf" not in out["model"]
    trainer = out["trainer"]
    assert trainer["parallelism"] == {"data": "fsdp2", "tensor": 1, "domain": 1}
    assert (trainer["grad_accum_every"], trainer["grad_max_norm"]) == (1, 0.0)
    assert (trainer["activation_checkpoint"], trainer["stopping_patience"]) == (
        True,
        999,
    )
    assert trainer["update_learning_rate"] is False
    assert "predict" not in out
    assert list(out["loss"]["variable_weights"]) == [*"UVTQ", "SP", "t2m", "rain"]
    assert out["data"]["source"]["ERA5"]["variables"]["prognostic"] == {
        "vars_3D": [*"UVTQ"],
        "vars_2D": ["SP", "t2m"],
        "path": "/data/upper_%Y.zarr",
    }
    assert out["preblocks"]["per_step"]["norm"]["args"]["std_path"].endswith(
        "std_residual.nc"
    )


def test_a_trainer_of_gen1_beside_sources():
    """A half-converted config counts as gen2, and its conversion is completed."""
    mixed = apply_overrides(CONFIGS["gen2"], ["trainer.mode=ddp"])
    del mixed["trainer"]["parallelism"]
    out, report = check(mixed, "gen2")
    assert report.found == "gen2"
    assert out["data"] == mixed["data"]
    assert out["trainer"]["parallelism"]["data"] == "ddp"


def test_a_trainer_of_ensembles():
    """CREDIT's `ensemble-gen2`: its loss and its updates, whatever the keys say."""
    given = apply_overrides(
        CONFIGS["gen2"],
        [
            "trainer.type=ensemble-gen2",
            "trainer.ensemble_size=2",
            "trainer.grad_accum_every=4",
            "loss={training_loss: mae, use_latitude_weights: true}",
        ],
    )
    config = accepted(convert_config(given, to="jax")[0])
    assert config.loss.members_are_ranks
    assert config.shares_batches
    assert not config.loss.weighs_rows
    assert config.loss.validation_loss == "mae"
    trainer = config.trainer
    assert (trainer.type, trainer.grad_accum_every) == ("gen2", 1)
    out, _ = check(given, "gen2")
    assert out["loss"]["training_loss"] == "ring-crps"
    given["loss"]["type"] = "base"
    with pytest.raises(ValueError, match=r"loss.type: ensemble-gen2 trains by ring-"):
        convert_config(given, to="jax")


def test_unknown_keys():
    """Keys that no code reads are dropped and named; misspelt blocks are errors."""
    odd = apply_overrides(
        CONFIGS["gen2"],
        ["trainer.learning_rat=1", "model.static_channels=3", "extra=1"],
    )
    out, report = check(odd, "jax")
    words = "\n".join(report.lines())
    assert "trainer.learning_rat: 1 (CREDIT does not read it; the nearest" in words
    assert "model.static_channels: 3 (CREDIT does not read it" in words
    assert "extra" not in out
    assert repr(convert_config(odd, to="gen2")[0]) == repr(odd)
    for key in ("trainer.parallelism.tenser=2", "preblocks.norm={type: concat}"):
        with pytest.raises(ValueError, match=key.partition("=")[0]):
            convert_config(apply_overrides(CONFIGS["gen2"], [key]), to="jax")


def convert_changed(name: str, change: str) -> None:
    key, _, text = change.partition("=")
    odd = copy.deepcopy(CONFIGS[name])
    *parents, last = key.split(".")
    here = odd
    for part in parents:
        here = here.setdefault(part, {})
    here[last] = parse_yaml(text)
    convert_config(odd, to="gen2")


CASES.rows(
    convert_changed,
    ("gen1", "model.post_conf.activate=true"),
    ("gen1", "model.type=samudra"),
    ("gen1", "model.type=wxformer_moe"),
    ("gen1", "data.forecast_len=3"),
    ("gen1", "data.skip_periods=6"),
    ("gen1", "data.scaler_type=quantile-cached"),
    ("gen1", "data.sst_forcing.activate=true"),
    ("gen1", "data.dataset_type=Ocean_Tensor_Batcher"),
    ("gen1", "data.levels=5"),
    ("gen1", "data.train_years=[2000, 1990]"),
    ("gen1", "data.train_years=1990"),
    ("gen1", "data.lead_time_periods=6h"),
    ("gen1", "data.surface_variables=[SP, mask]"),
    ("gen1", "data.variables=U"),
    ("gen1", "data.save_loc=null"),
    ("gen1", "data.mean_path=null"),
    ("gen1", "trainer.type=samudra"),
    ("gen1", "trainer.mode=horovod"),
    ("gen1", "trainer.mode=domain_parallel"),
    ("gen1", "trainer.use_mixed_precision=true"),
    ("gen1", "loss=null"),
    ("gen2", "postblocks={per_step: []}"),
    ("gen2", "model.local_window_size=[2, 2, 2, 1]"),
    ("gen2", "model.dim=[8, 16, 16, 64]"),
    ("gen2", "data={datasets: 1}"),
    ("gen2", "data={a: 1}"),
    ("gen2", "data=1"),
)


def test_lists_of_four_are_for_models_of_four_stages():
    """CREDIT's fuxi, wrf and dscale take numbers, and fail with lists."""
    for name, made in {"fuxi": 64, "wxformer": [64] * 4}.items():
        change = f"model={{type: {name}, depth: 64}}"
        out, _ = convert_config(apply_overrides(CONFIGS["gen2"], [change]), to="gen2")
        assert out["model"]["depth"] == made


def test_weights_are_one_for_each_channel():
    """CREDIT reads them in order, without their names."""
    given = apply_overrides(
        CONFIGS["jax"],
        ["loss.use_variable_weights=true", "metrics={type: rmse, args: {}}"],
    )
    given["loss"]["variable_weights"] = {"SP": 0.25, "V": 0.5, "U": [1.0, 2.0, 3.0]}
    out, report = convert_config(given, to="gen2")
    assert list(out["loss"]["variable_weights"].items()) == [
        ("U", [1.0, 2.0, 3.0]),
        ("V", [0.5] * 3),
        ("SP", 0.25),
    ]
    assert out["metrics"]["args"]["var_weighting"] == "none"
    assert "one for each channel" in "\n".join(report.lines())


def test_left_out_by_the_user():
    odd = apply_overrides(CONFIGS["gen1"], ["model.post_conf.activate=true"])
    out, report = convert_config(odd, to="gen2", drop=("model.post_conf",))
    assert repr(out) == repr(convert_config(CONFIGS["gen1"], to="gen2")[0])
    assert "dropped: model.post_conf" in "\n".join(report.lines())
    with pytest.raises(
        ValueError,
        match=r"model\.nothing: cannot be left out: the config has no such key",
    ):
        convert_config(odd, to="gen2", drop=("model.nothing",))


def test_corrections_inside_the_model():
    """gen1's `post_conf` becomes a section of credit_jax."""
    changes = [
        "model.post_conf.activate=true",
        "model.post_conf.scaling_coefs={U: 1}",
        "model.post_conf.global_energy_fixer_updown={activate: true, "
        "activate_outside_model: true}",
    ]
    given = apply_overrides(CONFIGS["gen1"], changes)
    out, report = check(given, "jax")
    words = "\n".join(report.lines())
    assert "post_conf.scaling_coefs: {'U': 1} (no model of gen1 reads it)" in words
    assert "(gen1's training does not apply it outside of the model)" in words
    conf = out["model"]["gen1_post_conf"]
    assert list(conf) == ["tracer_fixer", "data"]
    assert conf["data"] == {
        "variables": [*"UVTQ"],
        "surface_variables": ["SP", "t2m"],
        "diagnostic_variables": ["rain"],
        "levels": 3,
        "lead_time_periods": 6,
        "save_loc_physics": "/data/static.nc",
        "mean_path": "/data/mean.nc",
        "std_path": "/data/std_residual.nc",
    }
    with pytest.raises(ValueError, match=r"gen1_post_conf: tracer_fixer active"):
        convert_config(out, to="gen2")
    order = {"activate": True, "activate_outside_model": True}
    given["model"]["post_conf"]["global_mass_fixer"] = order
    given["model"]["post_conf"]["global_water_fixer"] = {"activate": True}
    with pytest.raises(ValueError, match="global_mass_fixer runs outside of the model"):
        convert_config(given, to="jax")
    conf["data"]["surface_variables"] = ["t2m", "SP"]
    with pytest.raises(ValueError, match=r"those of the target are U 3, .*same order"):
        convert_config(out, to="jax")


def test_steps_with_a_normalizer():
    """In credit_jax a postblock inverts it; CREDIT's gen2 would normalize twice."""
    changes = ["data.forecast_len=2", "data.retain_graph=true"]
    given = apply_overrides(CONFIGS["gen1"], changes)
    out, _ = check(given, "jax")
    blocks = out["postblocks"]["per_step"]
    assert [block["type"] for block in blocks.values()] == [
        *("reconstruct", "era5_normalizer", "reconstruct", "era5_normalizer")
    ]
    norm = out["preblocks"]["per_step"]["norm"]["args"]
    assert blocks["denormalize"]["args"] == norm
    target = {**norm, "key": "y_target_processed"}
    assert blocks["denormalize_target"]["args"] == target
    assert out["trainer"]["backprop"] == "full"
    with pytest.raises(
        ValueError, match="cannot become CREDIT's gen2, 3 problems"
    ) as caught:
        convert_config(out, to="gen2")
    assert "trainer.backprop: full: CREDIT's gen2 cuts" in str(caught.value)
    assert "denormalize: CREDIT has no postblock era5" in str(caught.value)
    given["data"]["history_len"] = given["data"]["valid_history_len"] = 2
    with pytest.raises(ValueError, match="true with several input times"):
        convert_config(given, to="jax")


VALUES = (None, True, 0, -3, 2.5, "text", [], [1, None], {}, {"a": {"b": 1}}, "%", "*")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gen1", "gen2", "jax"])
def test_any_value_in_any_place(name):
    """A config with any value in any place converts or raises ValueError."""
    whole = read_yaml(FOLDER / f"{name}.yml")
    draw = random.Random(name)
    counts = {"converted": 0, "refused": 0}
    for _ in range(150):
        config = yaml.safe_load(dump(whole))
        here = config
        while True:
            key = draw.choice(list(here))
            inner = here[key]
            if not isinstance(inner, dict) or not inner or draw.random() < 0.15:
                break
            here = inner
        here[key] = draw.choice(VALUES)
        try:
            out, _ = convert_config(config, to=draw.choice(["gen2", "jax"]))
            counts["converted"] += 1
            assert isinstance(out, dict)
        except ValueError:
            counts["refused"] += 1
    print(counts)
    assert min(counts.values()) > 10


def test_years_in_names(tmp_path):
    """The position of the year is found from the names of existing files."""
    for year in (1999, 2000):
        (tmp_path / f"y_TOTAL_{year}-01-01_{year}-12-31.zarr").mkdir()
    found, doubt = template_of(f"{tmp_path}/y_TOTAL*")
    assert (found, doubt) == (f"{tmp_path}/y_TOTAL_%Y*", "")
    for given, template in {
        "none/y_*.nc": "none/y_%Y*.nc",
        "y_????.nc": "y_%Y.nc",
        "y_????_*.nc": "y_%Y_*.nc",
        "one.nc": "one.nc",
    }.items():
        assert template_of(given)[0] == template


def test_yaml_of_a_converted_config():
    """Numbers, dates and strings keep their types, also in CREDIT's YAML reader."""
    config, _ = convert_config(read_yaml(FOLDER / "gen1.yml"), to="gen2")
    config["odd"] = {"small": 1e-8, "on": "on", "date": "1999-01-01"}
    again = yaml.load(dump(config), Loader=yaml.FullLoader)
    assert again == config


CONFIG = read_yaml(Path(__file__).parent / "configs/gen2.yml")
OURS = """
from credit_jax.losses import LOSSES
from credit_jax.models.registry import MODELS
crps = LOSSES["mse"]
net = MODELS["wxformer"]
"""
THEIRS = """
import torch
class Loss(torch.nn.Module):
    pass
"""


def with_objects(path, text, **names):
    path.write_text(text)
    objects = {
        name: {"object_type": kind, "module_path": str(path)}
        for name, kind in names.items()
    }
    return {**CONFIG, "custom_objects": objects}


@pytest.mark.usefixtures("no_objects_left")
def test_entries_are_read_here(tmp_path):
    config = with_objects(tmp_path / "ours.py", OURS, crps="loss")
    config["loss"] = {"training_loss": "crps"}
    new, _ = convert_config(config, to="jax")
    assert new["custom_objects"] == config["custom_objects"]


@pytest.mark.usefixtures("no_objects_left")
def test_classes_of_pytorch_are_refused_here_and_kept_for_credit(tmp_path):
    config = with_objects(tmp_path / "theirs.py", THEIRS, Loss="loss")
    with pytest.raises(
        ValueError, match=r"custom_objects.Loss: .* a loss here is a subclass"
    ):
        convert_config(config, to="jax")
    new, _ = convert_config(config, to="gen2")
    assert new["custom_objects"] == config["custom_objects"]


@pytest.mark.usefixtures("no_objects_left")
def test_credit_gets_no_entries(tmp_path):
    """Of a model it has the PyTorch class; of a loss it has nothing."""
    config = with_objects(tmp_path / "ours.py", OURS, net="model")
    new, report = convert_config(config, to="gen2")
    assert "custom_objects" not in new
    assert any("custom_models names files" in line for line in report.lines())
    config = with_objects(tmp_path / "ours.py", OURS, crps="loss")
    with pytest.raises(ValueError, match=r"custom_objects.crps: a loss of credit_jax"):
        convert_config(config, to="gen2")


@pytest.mark.usefixtures("no_objects_left")
def test_entries_of_installed_packages(tmp_path, monkeypatch):
    """A config names them without a section; a variable of that name is none."""
    (tmp_path / "offers.py").write_text(OURS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "offers", raising=False)
    points = (
        EntryPoint("crps", "offers", "credit_jax.loss"),
        EntryPoint("U", "offers:crps", "credit_jax.metric"),
        EntryPoint("net", "offers", "credit_jax.model"),
    )
    monkeypatch.setattr(custom_objects, "_entry_points", lambda: points)
    config = {**CONFIG, "loss": {"training_loss": "crps"}}
    with pytest.raises(ValueError, match="crps: a loss of an installed") as caught:
        convert_config(config, to="gen2")
    assert "1 problem" in str(caught.value)
    config = {**CONFIG, "model": {**CONFIG["model"], "type": "net"}}
    assert [*custom_objects.offered_objects(config)] == [("model", "net")]


KEYS = {"demo/prognostic/3d/T": 2, "demo/prognostic/2d/SP": 1}


def built(config):
    return build_pipeline(
        parse(PreblocksConfig, config["preblocks"]),
        parse(PostblocksConfig, config["postblocks"]),
    )


def after_step(pipeline, y):
    """The named fields of a prediction, from normalized channels."""
    channels, place = {}, 0
    for key, count in KEYS.items():
        channels[key], place = slice(place, place + count), place + count
    tree = {"y_pred": y, "y": y, "x": y, "channel_map": channels}
    return pipeline.run(Phase.AFTER_STEP, {**tree, "input_channel_map": channels})


def test_training_of_several_steps_has_the_inverse_as_a_postblock(tmp_path):
    paths = {f"{name}_path": str(tmp_path / f"{name}.nc") for name in ("mean", "std")}
    for path, scale in zip(paths.values(), (1.0, 0.1), strict=True):
        fields = {"T": ("level", [250.0 * scale, 280.0 * scale]), "SP": 1e5 * scale}
        xr.Dataset(fields).to_netcdf(path)
    config = yaml.safe_load((ROOT / "configs/demo.yaml").read_text())
    config["preblocks"]["per_step"]["normalize"]["args"] = paths
    variables = {"prognostic": {"vars_3D": ["T"], "vars_2D": ["SP"]}}
    config["data"]["source"]["demo"]["variables"] = variables
    config["model"]["levels"] = 2
    single = {**config, "data": dict(config["data"])}
    complete_inference(single, tmp_path, tmp_path)
    assert single["preblocks"] == config["preblocks"], (
        "a single step feeds nothing back"
    )

    several = {**config, "data": {**config["data"], "forecast_len": 2}}
    complete_inference(several, tmp_path, tmp_path)
    kinds = [block["type"] for block in several["postblocks"]["per_step"].values()]
    assert kinds == ["reconstruct", "bridgescaler_transform"] * 2
    y = np.random.default_rng(0).normal(size=(1, 3, 1, 2, 4)).astype(np.float32)
    ours = after_step(for_forecast(built(config)), y)["y_processed"]
    theirs = after_step(built(several), y)
    for key in KEYS:
        for entry in ("y_processed", "y_target_processed"):
            assert_close(theirs[entry]["demo"][key], ours["demo"][key], 1e-6, entry)
