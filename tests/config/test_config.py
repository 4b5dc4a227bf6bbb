"""Config files: values, dates, sections and keys."""

import ast
import datetime
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from credit_jax.config import (
    Config,
    ConfigError,
    apply_overrides,
    build_config,
    dump_config,
    load_config,
    parse,
    write_config,
)
from credit_jax.config.base import ConfigWarning
from credit_jax.config.credit_keys import NEVER_READ
from credit_jax.config.data import DataConfig, in_training, num_samples, raw_ranges
from credit_jax.config.dates import date_label, duration
from credit_jax.config.load import FRAMES_OF_DATA
from credit_jax.config.trainer import TrainerConfig
from credit_jax.config.yaml_file import parse_yaml
from credit_jax.parallel.params.precision import Float8
from credit_jax.plan import plan_run
from credit_jax.plan.run import precision_of
from tests.config.example import Outer, example
from tests.data.world import raw_config
from tests.support.configs import write_base


def test_values_and_defaults():
    config = build_config(example())
    assert config.seed == 42
    assert config.validation_data == config.data
    assert config.trainer.training_metric == "valid_loss"
    assert num_samples(config.data) == 13 * 4 + 1 - 1
    section = parse(Outer, {"name": "x", "inner": {"size": 3}, "free": {"a": [1]}})
    assert (section.inner.size, section.free, section.maybe) == (3, {"a": [1]}, None)
    with pytest.raises(ValueError, match="frozen"):
        section.name = "y"
    section = parse(Outer, {"name": "x", "rate": None, "inner": None})
    assert (section.rate, section.inner.size) == (1.0, 1), "null is the default"
    for harmless in (0, None):
        assert parse(Outer, {"name": "x", "later": harmless}).name == "x"
    with pytest.raises(ValueError, match=r"(?s)^my\.yaml: 1 problem\n  name: missing"):
        parse(Outer, {}, source="my.yaml")


@pytest.mark.filterwarnings("ignore::credit_jax.config.base.ConfigWarning")
def test_what_keys_mean():
    """Some of them are noted, as CREDIT passes over them: `tests.messages`."""

    def trainer(**changes):
        return build_config(example(**changes)).trainer

    assert trainer(trainer__grad_max_norm=1).clip_norm == 1.0
    assert trainer(trainer__grad_max_norm="dynamic").clip_norm == 0.0
    for given, mode in ((True, "full"), (False, "none"), ("selective", "selective")):
        section = trainer(trainer__activation_checkpoint=given)
        assert section.activation_checkpoint == mode
    assert trainer(trainer__skip_validation=True).training_metric == "train_loss"
    float8 = trainer(trainer__float8={"min_channels": 256})
    assert precision_of(float8).float8 is None
    beyond = {"data__forecast_len": 2, "data__backprop_on_timestep": [1, 3, 7]}
    assert build_config(example(**beyond)).backprop_on_timestep == (1,)
    # CREDIT's gen2 pads nothing for these keys, which `credit convert` leaves.
    config = build_config(example(model__pad_lat=8, model__pad_lon=8))
    assert not {"pad_lat", "pad_lon"} & set(config.model)
    conf = {"activate": True, "mode": "earth", "pad_lat": [1, 1], "pad_lon": [1, 1]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_config(example(model__padding_conf=conf, model__pad_lat=None))


def test_precision():
    def precision(**changes):
        given = {f"trainer__{key}": value for key, value in changes.items()}
        return precision_of(build_config(example(**given)).trainer)

    assert precision().matmul == "highest"
    for given in ({}, {"amp": True, "fsdp2_mp_policy": {}}):
        assert precision(matmul_precision="high", **given).matmul == "high"
    policy = {"param_dtype": "bfloat16"}
    narrow = precision(amp=True, fp8=True, fsdp2_mp_policy=policy)
    assert narrow.float8 == Float8(), "it needs a wide format"
    given = {"min_channels": 256}
    assert precision(fp8=True, float8=given).float8 == Float8(256)
    given["gradient_dtype"] = "float8_e5m2"
    assert precision(fp8=True, float8=given).float8 == Float8(256, "float8_e5m2")


def test_a_wrong_inference_section_is_no_matter_of_training():
    """Only forecasts read it, in credit_jax as in CREDIT."""
    config = build_config(example(inference={"batch_forecast": {"length": "1d"}}))
    with pytest.raises(ConfigError, match=r"batch_forecast\.length: unknown"):
        _ = config.inference


# Dates: ISO 8601 alone.


SIX = "2001-06-02T06"


@pytest.mark.parametrize(
    ("label", "given"),
    [
        ("2001-06-02", ["2001-06-02", "20010602"]),
        ("2001-06-02T06:30:15.5", ["2001-06-02 06:30:15.5"]),
        (SIX, [SIX, f"{SIX}:00Z", "2001-06-02T08:00+02:00", "20010602T0600"]),
        (SIX, [datetime.datetime(2001, 6, 2, 6), np.datetime64(SIX, "ns")]),
        (SIX, [str(np.datetime64(SIX, "ns"))]),
        ("2001-06-01", ["2001-06"]),
        ("2001-01-01", ["2001"]),
    ],
)
def test_dates_of_iso_8601(label, given):
    assert [date_label(each) for each in given] == [pd.Timestamp(label)] * len(given)


@pytest.mark.parametrize("unit", ["d", "D", "h", "min"])
def test_durations(unit):
    expected = pd.Timedelta(36, "D" if unit == "d" else unit)
    assert duration(f"36{unit}") == duration(f"36 {unit}") == expected


def test_dates_of_validation():
    """It inherits what it does not give; ranges stand for start and end."""
    config = build_config(example(validation_data={"start_datetime": "2000-01-05"}))
    assert config.validation_data.start_datetime == "2000-01-05"
    assert config.validation_data.end_datetime == "2000-01-14"
    assert config.validation_data.source == config.data.source
    raw = example(validation_data={})
    del raw["data"]["start_datetime"], raw["data"]["end_datetime"]
    both = [["2000-01-01", "2000-01-02"], ["2000-03-01", "2000-03-03"]]
    raw["data"]["date_ranges"] = both
    start, end = "2001-01-01", "2001-02-01"
    raw["validation_data"] |= {"start_datetime": start, "end_datetime": end}
    config = build_config(raw)
    assert num_samples(config.data) == 4 + 8
    assert config.validation_data.date_ranges is None, config.validation_data
    assert config.validation_data.ranges == ((start, end),)


PERIODS = (("2000-01-01", "2000-01-31T18:00"), ("2001-01-01", "2001-01-31"))


def test_dates_of_the_training_are_counted():
    for times, count in (
        (["2000-02-01", "1999-12-31T18", "2001-01-31T06"], 0),
        (["2000-01-01", "2000-01-31T18", "2000-02-01"], 2),
        (["2001-01-31", "2001-01-15T12"], 2),
    ):
        text = f"{count} of {len(times)} dates are in the training period (2000-01-01 "
        text += "to 2000-01-31T18:00, 2001-01-01 to 2001-01-31), and not held out"
        assert in_training(times, PERIODS) == (text if count else "")


def test_ranges_of_a_config_that_was_written():
    start, end = {"start_datetime": "2000-01-01"}, {"end_datetime": "2000-01-02"}
    both = (("2000-01-01", "2000-01-02"),)
    for data in (start | end, {"date_ranges": [["2000-01-01", "2000-01-02"]]}):
        assert raw_ranges({"data": data}) == both
    assert raw_ranges({"data": start}) == raw_ranges({"data": None}) == ()


def test_values_of_yaml():
    assert parse_yaml("") is None
    numbers = parse_yaml("[1e-3, 1.5, 3, 2000-01-01, 1e8, x, 1_000]")
    assert numbers == [0.001, 1.5, 3, "2000-01-01", 1e8, "x", 1000]
    aliases = parse_yaml("a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3, x: 1}")
    one = {"x": [1, 2]}
    assert aliases == {"a": one, "b": one, "c": {"x": 1, "y": 3}}


def test_the_home_folder_and_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    config = load_config("configs/demo.yaml", ["save_loc=~/runs/a~b"])
    assert config.save_loc == "/home/someone/runs/a~b"
    monkeypatch.setenv("PLACE", "/data")
    section = parse(Outer, {"name": "$PLACE/x", "free": {"a": ["${PLACE}/y", "$NO"]}})
    assert section.name == "/data/x", section
    assert section.free == {"a": ["/data/y", "$NO"]}, section
    mapping = example(save_loc="$PLACE/run", pbs={"queue": "main"})
    with pytest.warns(UserWarning, match="pbs"):
        config = build_config(mapping)
    assert config.save_loc == "/data/run"
    assert dump_config(config) == mapping, "also what is ignored"


# Overrides, and configs that are written.


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(example()))
    return path


def test_overrides_reach_every_kind_of_place(config_file):
    overrides = {
        "trainer.epochs": 3,
        "trainer.learning_rate": "1e-4",
        "data.source.ERA5.levels.1": 5,
        "trainer.parallelism": "{data: fsdp2, tensor: 2, domain: 1}",
        "model.dim": [8, 16],
        "validation_data.end_datetime": "2000-01-10",
        "preblocks.per_step.concat.type": "concat",
    }
    config = load_config(config_file, [f"{k}={v}" for k, v in overrides.items()])
    assert (config.trainer.epochs, config.trainer.learning_rate) == (3, 1e-4)
    assert config.data.source["ERA5"].levels == (1.0, 5.0), config.data
    assert config.trainer.parallelism.tensor == 2, config.trainer
    assert config.model["dim"] == [8, 16], config.model
    assert config.validation_data.end_datetime == "2000-01-10", config.validation_data
    assert config.preblocks.per_step["concat"].args == {}, config.preblocks
    before = {"a": {"b": 1}}
    assert apply_overrides(before, ["a.b=2"]) == {"a": {"b": 2}}
    assert before == {"a": {"b": 1}}


def test_dump_gives_back_what_was_written(config_file, tmp_path):
    config = load_config(config_file, ["trainer.epochs=3"])
    assert dump_config(config) == example(trainer__epochs=3)
    write_config(config, tmp_path / "model.yml")
    again = load_config(tmp_path / "model.yml")
    assert again == config
    assert dump_config(again) == dump_config(config)


@pytest.mark.parametrize("kind", FRAMES_OF_DATA)
def test_frames_that_credit_takes_from_the_data(kind):
    mapping = example(model={"type": kind, "frames": 2}, data__history_len=1)
    with pytest.warns(ConfigWarning, match=r"model.frames .2: the frames are those of"):
        config = build_config(mapping)
    assert config.model["frames"] == 1
    assert dump_config(config)["model"]["frames"] == 1, "as the next command reads it"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build_config(example(model={"type": kind})).model["frames"] == 1
        same = example(model={"type": kind, "frames": 1}, data__history_len=1)
        assert build_config(same).model == same["model"]
        other = example(model={"type": "wxformer", "frames": 2}, data__history_len=1)
        assert build_config(other).model["frames"] == 2


def test_a_run_is_where_its_folder_lies(tmp_path):
    """Also a copy of a run, with the files that were copied with it."""
    original, copied = tmp_path / "run", tmp_path / "copy"
    (original / "checkpoints").mkdir(parents=True)
    for name in ("std.nc", "elsewhere.nc"):
        (original / name).touch()
    prognostic = "data__source__ERA5__variables__prognostic__path"
    changes = {prognostic: f"{original}/d_%Y.nc"}
    changes |= {"loss__latitude_weights": f"{original}/elsewhere.nc"}
    changes |= {"inference__save_forecast": f"{original}/forecast"}
    changes |= {"inference__output__metadata": f"{original}/std.nc"}
    raw = example(save_loc=f"{original}/", **changes)
    write_config(build_config(raw), original / "model.yml")
    assert dump_config(load_config(original / "model.yml")) == raw
    shutil.copytree(original, copied)
    (copied / "elsewhere.nc").unlink()
    for _ in range(2):
        config = load_config(copied / "model.yml")
        assert config.save_loc == str(copied)
        assert config.inference.save_forecast == f"{copied}/forecast"
        assert config.inference.output.metadata == f"{copied}/std.nc"
        variables = config.data.source["ERA5"].variables
        assert variables.prognostic.path == f"{copied}/d_%Y.nc"
        assert config.loss.latitude_weights == f"{original}/elsewhere.nc"
        (original / "std.nc").unlink(missing_ok=True)
    assert load_config(copied / "model.yml", ["save_loc=NEW"]).save_loc == "NEW"
    # A config without checkpoints beside it is that of no run.
    (copied / "checkpoints").rmdir()
    assert load_config(copied / "model.yml").save_loc == f"{original}/"


# The configs in `configs/` are valid, and those of the demo fit together.


CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
DEMOS = ("tp2_domain2", "fsdp8", "domain8")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_sound_and_says_what_it_is(path, tmp_path):
    config = load_config(path)
    if config.trainer.finetune is not None:  # its base is a run of another config
        base = write_base(config.trainer.finetune.base, tmp_path)
        config = load_config(path, [f"trainer.finetune.from={base}"])
    assert plan_run(config, with_data=False).notes is not None
    header = path.read_text().split("\n\n")[0]
    for word in ("# Result", "# Hardware", "# Time", f"--config configs/{path.name}"):
        assert word in header, header


@pytest.mark.parametrize("name", DEMOS)
def test_the_demos_differ_in_their_mesh_only(name):
    folder = CONFIGS[0].parent
    demo, other = (
        dump_config(load_config(folder / f"{stem}.yaml")) for stem in ("demo", name)
    )
    batch = []
    for config in (demo, other):
        config.pop("save_loc")
        trainer, block = config["trainer"], config["trainer"].pop("parallelism")
        dp = trainer.pop("num_devices") // (block["tensor"] * block["domain"])
        assert trainer["train_batch_size"] == trainer.pop("valid_batch_size")
        batch.append(dp * trainer.pop("train_batch_size"))
    assert batch == [8, 8], batch
    assert demo == other


# The section `trainer.curriculum`: what stages change, and what they may not.


def curriculum(*stages: dict[str, Any], **changes: Any) -> Config:
    changes = {"trainer__curriculum": [*stages]} | changes
    return build_config(raw_config(Path("/data"), **changes))


def test_keys_of_a_stage_hold_until_another_changes_them() -> None:
    loss = {"use_latitude_weights": True, "latitude_weights": "file.nc"}
    run = curriculum(
        {"until": "2 epochs", "loss": {"training_loss": "mae"}},
        {"until": "1000 epochs", "forecast_len": 3},
        {"learning_rate": 1e-5, "train_batch_size": 1, "backprop": "full"},
        loss=loss,
        validation_data__forecast_len=2,
    )
    stages = run.stages
    assert [stage.data.forecast_len for stage in stages] == [1, 3, 3]
    assert [stage.validation_data.forecast_len for stage in stages] == [2] * 3
    assert [stage.trainer.train_batch_size for stage in stages] == [3, 3, 1]
    assert [stage.trainer.backprop for stage in stages][1:] == ["truncated", "full"]
    assert {stage.loss.training_loss for stage in stages} == {"mae"}
    assert all(stage.loss.use_latitude_weights for stage in stages)
    assert not any(stage.trainer.curriculum for stage in stages)
    ends = [str(stage.until) for stage in run.trainer.curriculum]
    assert ends == ["2 epochs", "1000 epochs", "None"]


def test_validation_and_weights_of_stages() -> None:
    """Validation is that of the run, also where it takes the forecast_len of `data`."""
    run = curriculum(
        {"until": 5},
        {"until": 9, "forecast_len": 2, "loss": {"lead_weights": [1, 3]}},
        {"forecast_len": 3, "loss": {"lead_weights": 0.5}},
    )
    assert [stage.validation_data.forecast_len for stage in run.stages] == [1, 1, 1]
    weights = [stage.loss.step_weights(stage.data.forecast_len) for stage in run.stages]
    assert weights == [None, (1.0, 3.0), (1.0, 0.5, 0.25)]


# Keys of CREDIT's own configs that it does not read are notes, however spelled.


FOLDER = Path(__file__).parents[1] / "reference/credit_configs"
SECTIONS = {"": Config, "data": DataConfig, "trainer": TrainerConfig}
# Modules of CREDIT's training and forecasts of generation 2.
GEN2 = (
    *("applications/train_gen2.py", "applications/rollout_gen2.py"),
    *("trainers/trainer_gen2.py", "trainers/rollout_utils.py"),
    *("datasets/gen_2/*.py", "parallel/*.py", "samplers.py", "output_gen2.py"),
)
# They give names to what is read from the sources, or are keys of a source.
GEN2_NAMES = {
    *("dataset_type", "diagnostic_variables", "save_loc", "surface_variables"),
    "variables",
}


def never_read(section):
    """The keys of a section that are noted as read by no code of generation 2."""
    ignored = SECTIONS[section].ignored
    return {key for key, why in ignored.items() if why == NEVER_READ}


@pytest.mark.slow(but=["data"])
@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_credits_configs_is_known(section):
    written = set()
    for path in FOLDER.rglob("*.yml"):
        config = yaml.load(path.read_text(), Loader=yaml.SafeLoader)
        if isinstance(config.get("data"), dict) and "model" in config:
            written |= set(config.get(section) or {} if section else config)
    cls = SECTIONS[section]
    known = {field.alias or name for name, field in cls.model_fields.items()}
    known |= {*cls.ignored, *cls.unavailable}
    assert never_read(section) <= written <= known


@pytest.mark.reference
def test_no_code_of_generation_2_reads_them():
    root = Path(find_spec("credit").origin).parent
    read = set()
    for pattern in GEN2:
        for path in root.glob(pattern):
            read |= set(_keys(ast.parse(path.read_text())))
    assert "forecast_len" in read, "the modules that read the config"
    assert read & {key for each in SECTIONS for key in never_read(each)} <= GEN2_NAMES


def _keys(tree):
    """The names that are looked up in a mapping."""
    for node in ast.walk(tree):
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looked_up = node.func.attr in ("get", "pop", "setdefault")
            key = node.args[0] if node.args and looked_up else None
        if isinstance(key, ast.Constant):
            yield key.value
