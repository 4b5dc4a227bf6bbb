"""CREDIT's configs of both generations become ours, and those of gen2 again.

The table is `tests/messages/convert.txt`: a row is a config with changes, then what is
said of each key and each value that is another one after the conversion; of a changed
config, what the change makes of these. A row with nothing below is a new case.
"""

import random
import re
import sys
import warnings
from functools import partial
from importlib.metadata import EntryPoint

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.config import build_config, custom_objects, load_config, parse
from credit_jax.config.load import config_of as forecast_config
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data.schedule import make_schedule
from credit_jax.transforms import Phase, build_pipeline, for_forecast
from credit_torch_bridge import convert_config
from credit_torch_bridge.__main__ import main
from credit_torch_bridge.checkpoint.jax_checkpoint import read_run_config
from credit_torch_bridge.config.convert import dump
from credit_torch_bridge.config.credit_blocks import complete_inference
from credit_torch_bridge.config.editor import leaves
from credit_torch_bridge.config.from_gen1_data import template_of
from tests.bridge.config.conversions import (
    FOLDER,
    config_of,
    converted,
    effect,
)
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close
from tests.support.configs import CONFIGS

CASES = Cases("convert")

NAMES = "gen1", "gen2", "jax"
POST = "model.post_conf.activate=true"


def accepted(config):
    """The config as credit_jax parses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_config({**config, "save_loc": "run"})


ROW = re.compile(
    r"(?P<name>\w+)(?P<by> by jax)? to (?P<to>gen2|jax)"
    r"(?: without (?P<drop>[\w.]+))?(?:: (?P<changes>.+))?"
)
# Changes of generation 1 with which it becomes generation 2.
GEN1 = []
for _text, _block in CASES.blocks().items():
    if _row := ROW.fullmatch(_text):
        CASES.call(_text, partial(effect, **_row.groupdict()))
        if (
            _text.startswith("gen1 to gen2")
            and _block[:4] == "says"
            and not _row["drop"]
        ):
            GEN1.append(_row["changes"] or "")


# `read_yaml` refuses others (`tests/messages/config.txt`).
STRANGE = {
    "binary": b"\x89HDF\r\n\x1a\n\x00\xff",
    "nothing": b"",
    "a python object": b"data: !!python/object/apply:os.system ['touch bad']\n",
    "in itself": b"data: &a {source: *a}\nmodel: {}\nloss: {}\ntrainer: {}\n",
    "no sections": b"data: {source: {}}\n",
    "odd sections": b"data: {source: 3}\nmodel: {type: [1]}\nloss: {}\ntrainer: {}\n",
    # The type checker looks at the first key.
    "odd keys": b"data: {1: 2}\n1: 2\nnull: 3\n",
}


def command(name, to, *options, tmp_path, out="new.yml"):
    """Invalid files and options give one error, exit code 2 and no output."""
    path = tmp_path / "odd.yml"
    if name in STRANGE:
        path.write_bytes(STRANGE[name])
    elif name in NAMES:
        path.write_bytes((FOLDER / f"{name}.yml").read_bytes())
    given = "config", "--to", to, path, "--out", tmp_path / out, *options
    return lambda: main([*map(str, given)])


CASES.rows(command, *((name, to) for to in ("gen2", "jax") for name in STRANGE))
CASES.rows(
    command,
    ("no file", "jax"),
    {"name": "gen1", "to": "gen2", "out": "odd.yml"},
    ("gen1", "gen2", "--set", POST),
    name="file",
)


@CASES.case
def training_names_this_command(monkeypatch):
    monkeypatch.chdir(FOLDER)
    load_config("gen1.yml")


def alike(left, right):
    """Whether values are equal, in any order of keys except that of the sources."""
    sources = [list(config["data"]["source"]) for config in (left, right)]
    one, other = (dict(leaves(config)) for config in (left, right))
    odd = [p for p in {**one, **other} if repr(one.get(p)) != repr(other.get(p))]
    print(odd)
    return sources[0] == sources[1] and not odd


@pytest.mark.parametrize("changes", GEN1)
def test_gen1_to_jax(changes):
    given = config_of("gen1", changes)
    out, _ = converted(given, "jax")
    assert alike(converted(given, "gen2")[0], convert_config(out, to="gen2")[0])
    steps = 3 if "data.forecast_len=2" in changes else 1
    assert accepted(out).data.forecast_len == steps


@pytest.mark.parametrize("name", ["gen2", "jax"])
def test_jax_and_back(name):
    credit, report = converted(config_of(name), "gen2")
    assert report.unchanged == (name == "gen2")
    ours, report = converted(credit, "jax")
    assert report.unchanged
    assert repr(convert_config(ours, to="gen2")[0]) == repr(credit)
    assert accepted(ours).trainer.learning_rate == 1e-3


def test_a_trainer_of_ensembles():
    """CREDIT's `ensemble-gen2`: its loss and its updates, whatever the keys say."""
    changes = (
        "trainer.type=ensemble-gen2; trainer.ensemble_size=2; "
        "trainer.grad_accum_every=4; "
        "loss={training_loss: mae, use_latitude_weights: true}"
    )
    given = config_of("gen2", changes)
    config = accepted(convert_config(given, to="jax")[0])
    loss, trainer = config.loss, config.trainer
    assert (loss.members_are_ranks, config.shares_batches) == (True, True)
    assert (loss.weighs_rows, loss.validation_loss) == (False, "mae")
    assert (trainer.type, trainer.grad_accum_every) == ("gen2", 1)
    out, _ = converted(given, "gen2")
    assert out["loss"]["training_loss"] == "ring-crps"
    with pytest.raises(ValueError, match=r"loss.type: ensemble-gen2 trains by ring-"):
        convert_config(config_of("gen2", f"{changes}; loss.type=base"), to="jax")


def test_corrections_need_the_order_of_channels():
    out, _ = convert_config(config_of("gen1", POST), to="jax")
    section = out["model"]["gen1_post_conf"]
    section["data"]["surface_variables"] = ["t2m", "SP"]
    with pytest.raises(ValueError, match=r"those of the target are U 3, .*same order"):
        convert_config(out, to="jax")


@pytest.mark.filterwarnings("ignore:.*ignored here")
def test_the_section_forecasts_from_these_dates():
    dates = {"start_year": 2020, "start_month": 2, "start_day": 27, "duration": 3}
    dates |= {"start_hours": [0, 12], "days": 2}
    changes = [f"predict.forecasts.{key}={value}" for key, value in dates.items()]
    mapping = config_of("gen1", "; ".join([*changes, "save_loc=run"]))
    config = forecast_config(convert_config(mapping, to="jax")[0])
    schedule = make_schedule(config.inference, config.data.time_step, "standard")
    starts = pd.date_range("2020-02-27", "2020-02-29T12", freq="12h")
    assert (schedule.starts == starts.values).all()
    assert schedule.num_steps == 8


@pytest.mark.filterwarnings("ignore:.*ignored here")
def test_a_file_of_prediction_alone():
    """No optimizer, no loss: `forecast` needs neither."""
    mapping = config_of("gen1", "-loss; -trainer; -pbs; save_loc=run")
    mapping["trainer"] = {"mode": "none", "type": "standard"}
    mapping["loss"] = {"use_latitude_weights": True, "latitude_weights": "lat.nc"}
    new, report = converted(mapping, "jax")
    assert not {"trainer", "loss", "predict"} & set(new)
    assert any("a config of forecasts alone" in line for line in report.lines())
    config = forecast_config(new, forecasts=True)
    assert config.inference.batch_forecast.forecast_length == "2d"


@pytest.mark.torch
def test_arguments_that_credits_models_lack():
    """Converted with a checkpoint they are left out, else they are noted."""
    from credit_torch_bridge.checkpoint.jax_to_torch import config_for_credit

    left, lines = config_for_credit(read_run_config(CONFIGS / "graph_1deg.yaml"))
    assert "image_height" not in left.raw["model"]
    assert "dropped: model.image_height: 192 (CREDIT's model has no such" in lines[0]


@pytest.mark.parametrize(
    ("name", "to"),
    [("gen1", "gen2"), ("gen1", "jax"), ("jax", "gen2"), ("gen2", "gen2")],
)
def test_files(bridge, tmp_path, name, to):
    """The output is that of `convert_config`; the report names each change."""
    path, out = FOLDER / f"{name}.yml", tmp_path / "deep" / "new.yml"
    config, report = convert_config(read_yaml(path), to=to)
    lines = [f"  {line}\n" for line in report.lines()]
    bridge("config", "--to", to, path, "--out", out, says=lines)
    assert read_yaml(out) == config
    assert "&id" not in out.read_text()
    again, words = tmp_path / "again.yml", f"is {to} already; written as it is"
    bridge("config", "--to", to, out, "--out", again, says=words)
    assert again.read_bytes() == out.read_bytes()
    assert [p for p in tmp_path.rglob("*") if ".part-" in p.name] == []
    if name == to:  # comments stay
        assert out.read_bytes() == path.read_bytes()


def test_options_of_the_command(bridge, tmp_path):
    out = tmp_path / "new.yml"
    given = ["config", "--to", "gen2", FOLDER / "gen1.yml", "--out", out]
    given += ["--set", POST, "--level-coord", "lev"]
    bridge(*given, "--drop", "model.post_conf")
    assert read_yaml(out)["data"]["source"]["ERA5"]["level_coord"] == "lev"


VALUES = (None, True, 0, -3, 2.5, "text", [], [1, None], {}, {"a": {"b": 1}}, "%", "*")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_any_value_in_any_place(name):
    """A config with any value in any place converts or raises ValueError."""
    whole = config_of(name)
    draw = random.Random(name)
    counts = {"converted": 0, "refused": 0}
    for _ in range(150):
        config = here = yaml.safe_load(dump(whole))
        key = draw.choice(list(here))
        while isinstance(here[key], dict) and here[key] and draw.random() >= 0.15:
            here = here[key]
            key = draw.choice(list(here))
        here[key] = draw.choice(VALUES)
        try:
            convert_config(config, to=draw.choice(["gen2", "jax"]))
            counts["converted"] += 1
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
    names = {"none/y_*.nc": "none/y_%Y*.nc", "y_????.nc": "y_%Y.nc"}
    names |= {"y_????_*.nc": "y_%Y_*.nc", "one.nc": "one.nc"}
    assert {name: template_of(name)[0] for name in names} == names


def test_yaml_of_a_converted_config():
    """Numbers, dates and strings keep their types, also in CREDIT's YAML reader."""
    config, _ = convert_config(config_of("gen1"), to="gen2")
    config["odd"] = {"small": 1e-8, "on": "on", "date": "1999-01-01"}
    assert yaml.load(dump(config), Loader=yaml.FullLoader) == config


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
    return config_of("gen2") | {"custom_objects": objects}


@pytest.mark.torch
def test_custom_objects(tmp_path):
    """Entries are read here; classes of PyTorch are refused here, kept for CREDIT."""
    config = with_objects(tmp_path / "theirs.py", THEIRS, Loss="loss")
    with pytest.raises(
        ValueError, match=r"custom_objects.Loss: .* a loss here is a subclass"
    ):
        convert_config(config, to="jax")
    new, _ = convert_config(config, to="gen2")
    assert new["custom_objects"] == config["custom_objects"]
    config = with_objects(tmp_path / "ours.py", OURS, crps="loss")
    config["loss"] = {"training_loss": "crps"}
    new, _ = convert_config(config, to="jax")
    assert new["custom_objects"] == config["custom_objects"]
    # CREDIT has of a model the PyTorch class; of a loss it has nothing.
    with pytest.raises(ValueError, match=r"custom_objects.crps: a loss of credit_jax"):
        convert_config(config, to="gen2")
    config = with_objects(tmp_path / "ours.py", OURS, net="model")
    new, report = convert_config(config, to="gen2")
    assert "custom_objects" not in new
    assert any("custom_models names files" in line for line in report.lines())


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
    config = config_of("gen2", "loss={training_loss: crps}")
    with pytest.raises(ValueError, match="crps: a loss of an installed") as caught:
        convert_config(config, to="gen2")
    assert "1 problem" in str(caught.value)
    config = config_of("gen2", "model.type=net")
    assert [*custom_objects.offered_objects(config)] == [("model", "net")]


KEYS = {"demo/prognostic/3d/T": 2, "demo/prognostic/2d/SP": 1}


def after_step(config, y, change=lambda pipeline: pipeline):
    """The named fields of a prediction, from normalized channels."""
    pipeline = build_pipeline(
        parse(PreblocksConfig, config["preblocks"]),
        parse(PostblocksConfig, config["postblocks"]),
    )
    channels, place = {}, 0
    for key, count in KEYS.items():
        channels[key], place = slice(place, place + count), place + count
    tree = {"y_pred": y, "y": y, "x": y, "channel_map": channels}
    tree["input_channel_map"] = channels
    return change(pipeline).run(Phase.AFTER_STEP, tree)


def test_training_of_several_steps_has_the_inverse_as_a_postblock(tmp_path):
    paths = {f"{name}_path": str(tmp_path / f"{name}.nc") for name in ("mean", "std")}
    for path, scale in zip(paths.values(), (1.0, 0.1), strict=True):
        fields = {"T": ("level", [250.0 * scale, 280.0 * scale]), "SP": 1e5 * scale}
        xr.Dataset(fields).to_netcdf(path)
    config = config_of("demo", "model.levels=2")
    config["preblocks"]["per_step"]["normalize"]["args"] = paths
    variables = {"prognostic": {"vars_3D": ["T"], "vars_2D": ["SP"]}}
    config["data"]["source"]["demo"]["variables"] = variables
    single = {**config, "data": dict(config["data"])}
    complete_inference(single, tmp_path, tmp_path)
    assert single["preblocks"] == config["preblocks"], "nothing is fed back"
    several = {**config, "data": {**config["data"], "forecast_len": 2}}
    complete_inference(several, tmp_path, tmp_path)
    kinds = [block["type"] for block in several["postblocks"]["per_step"].values()]
    assert kinds == ["reconstruct", "bridgescaler_transform"] * 2
    y = np.random.default_rng(0).normal(size=(1, 3, 1, 2, 4)).astype(np.float32)
    ours = after_step(config, y, for_forecast)["y_processed"]
    theirs = after_step(several, y)
    for key in KEYS:
        for entry in ("y_processed", "y_target_processed"):
            assert_close(theirs[entry]["demo"][key], ours["demo"][key], 1e-6, entry)
