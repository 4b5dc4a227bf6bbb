"""Config files: values, dates, sections and keys."""

import ast
import datetime
import shutil
import time
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
    not_available,
    parse,
    write_config,
)
from credit_jax.config.base import ConfigWarning
from credit_jax.config.credit_keys import NEVER_READ
from credit_jax.config.data import DataConfig, in_training, num_samples, raw_ranges
from credit_jax.config.dates import date_label
from credit_jax.config.load import FRAMES_OF_DATA
from credit_jax.config.trainer import TrainerConfig
from credit_jax.config.yaml_file import parse_yaml
from credit_jax.parallel.params.precision import Float8
from credit_jax.plan import plan_run
from credit_jax.plan.run import precision_of
from tests.config.example import Outer, example
from tests.data.world import raw_config
from tests.messages.test_config import TEXTS
from tests.support.configs import write_base


def test_the_example_is_valid():
    config = build_config(example())
    assert config.seed == 42
    assert config.validation_data == config.data
    assert config.trainer.training_metric == "valid_loss"


def test_validation_inherits_what_it_does_not_give():
    config = build_config(example(validation_data={"start_datetime": "2000-01-05"}))
    assert config.validation_data.start_datetime == "2000-01-05"
    assert config.validation_data.end_datetime == "2000-01-14"
    assert config.validation_data.source == config.data.source


def test_dynamic_norm_never_clips():
    with pytest.warns(ConfigWarning):
        config = build_config(example(trainer__grad_max_norm="dynamic"))
    assert config.trainer.clip_norm == 0.0
    assert build_config(example(trainer__grad_max_norm=1)).trainer.clip_norm == 1.0


@pytest.mark.parametrize(
    ("value", "mode"), [(True, "full"), (False, "none"), ("selective", "selective")]
)
def test_activation_checkpoint(value, mode):
    config = build_config(example(trainer__activation_checkpoint=value))
    assert config.trainer.activation_checkpoint == mode


def test_training_metric_follows_skip_validation():
    trainer = build_config(example(trainer__skip_validation=True)).trainer
    assert trainer.training_metric == "train_loss"


def test_samples():
    assert num_samples(build_config(example()).data) == 13 * 4 + 1 - 1


def test_date_ranges_stand_for_start_and_end():
    ranges = [["2000-01-01", "2000-01-02"], ["2000-03-01", "2000-03-03"]]
    config = build_config(
        example(
            data__start_datetime=None,
            data__end_datetime=None,
            data__date_ranges=ranges,
            validation_data={
                "start_datetime": "2001-01-01",
                "end_datetime": "2001-02-01",
            },
        )
    )
    assert num_samples(config.data) == 4 + 8
    assert config.validation_data.date_ranges is None, config.validation_data
    assert config.validation_data.ranges == (("2001-01-01", "2001-02-01"),)


def test_a_wrong_inference_section_is_no_matter_of_training():
    """Only forecasts read it, in credit_jax as in CREDIT."""
    config = build_config(example(inference={"batch_forecast": {"length": "1d"}}))
    with pytest.raises(ConfigError, match=r"batch_forecast\.length: unknown"):
        _ = config.inference


def test_matmul_precision():
    assert precision_of(build_config(example()).trainer).matmul == "highest"
    narrow = {"trainer__amp": True, "trainer__fsdp2_mp_policy": {}}
    for given in ({}, narrow):
        config = build_config(example(trainer__matmul_precision="high", **given))
        assert precision_of(config.trainer).matmul == "high"


def test_float8_needs_a_wide_format():
    narrow = {"trainer__amp": True, "trainer__fp8": True}
    policy = {"param_dtype": "bfloat16"}
    config = build_config(example(**narrow, trainer__fsdp2_mp_policy=policy))
    assert precision_of(config.trainer).float8 == Float8()
    given = {"trainer__fp8": True, "trainer__float8": {"min_channels": 256}}
    config = build_config(example(**given))
    assert precision_of(config.trainer).float8 == Float8(256)
    given["trainer__float8"]["gradient_dtype"] = "float8_e5m2"
    config = build_config(example(**given))
    assert precision_of(config.trainer).float8 == Float8(256, "float8_e5m2")
    with pytest.warns(ConfigWarning):
        config = build_config(example(trainer__float8={"min_channels": 256}))
    assert precision_of(config.trainer).float8 is None


# Dates of configs and of command lines: ISO 8601 alone.


@pytest.mark.parametrize(
    ("given", "label"),
    [
        ("2001-06-02", "2001-06-02"),
        ("2001-06-02T06", "2001-06-02T06"),
        ("2001-06-02 06:30:15.5", "2001-06-02T06:30:15.5"),
        ("2001-06-02T06:00Z", "2001-06-02T06"),
        ("2001-06-02T06:00+02:00", "2001-06-02T04"),
        ("20010602T0600", "2001-06-02T06"),
        ("20010602", "2001-06-02"),
        ("2001-06", "2001-06-01"),
        ("2001", "2001-01-01"),
        (datetime.datetime(2001, 6, 2, 6), "2001-06-02T06"),
        (np.datetime64("2001-06-02T06", "ns"), "2001-06-02T06"),
        (str(np.datetime64("2001-06-02T06", "ns")), "2001-06-02T06"),
    ],
)
def test_dates_of_iso_8601(given, label):
    assert date_label(given) == pd.Timestamp(label)


# Texts that are no configs: one error, in little time and memory.


@pytest.mark.parametrize("name", [*TEXTS][5:-1])
def test_an_error_at_once(name):
    began = time.process_time()
    with pytest.raises(yaml.YAMLError):
        parse_yaml(TEXTS[name])
    assert time.process_time() - began < 10


def test_aliases_of_configs_are_read():
    text = "a: &a {x: [1, 2]}\nb: *a\nc: {<<: *a, y: 3}"
    expected = {"a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "c": {"x": [1, 2], "y": 3}}
    assert parse_yaml(text) == expected
    assert parse_yaml("") is None


def test_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    config = load_config("configs/demo.yaml", ["save_loc=~/runs/a~b"])
    assert config.save_loc == "/home/someone/runs/a~b"


# The section `data`: its dates.


PERIODS = (("2000-01-01", "2000-01-31T18:00"), ("2001-01-01", "2001-01-31"))


@pytest.mark.parametrize(
    ("times", "count"),
    [
        (["2000-02-01", "1999-12-31T18", "2001-01-31T06"], 0),
        (["2000-01-01", "2000-01-31T18", "2000-02-01"], 2),
        (["2001-01-31", "2001-01-15T12"], 2),
    ],
)
def test_dates_of_the_training_are_counted(times, count):
    text = in_training(times, PERIODS)
    if not count:
        assert text == ""
        return
    assert text.startswith(f"{count} of {len(times)} dates are in the training period")
    assert "2000-01-01 to 2000-01-31T18:00, 2001-01-01 to 2001-01-31" in text
    assert text.endswith("and not held out")


@pytest.mark.parametrize(
    ("data", "ranges"),
    [
        ({"start_datetime": "2000-01-01", "end_datetime": "2000-01-02"}, 1),
        ({"date_ranges": [["2000-01-01", "2000-01-02"]]}, 1),
        ({"start_datetime": "2000-01-01"}, 0),
        (None, 0),
    ],
)
def test_ranges_of_a_config_that_was_written(data, ranges):
    assert raw_ranges({"data": data}) == (("2000-01-01", "2000-01-02"),) * ranges


# The configs in `configs/` are valid, and those of the demo fit together.


CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
DEMOS = ("tp2_domain2", "fsdp8", "domain8")


def test_the_configs_are_there():
    names = {path.stem for path in CONFIGS}
    assert names >= {"demo", *DEMOS, "wxformer_1deg", "wxformer_025deg"}, names


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_is_sound_and_raises_no_warning(path, tmp_path):
    config = load_config(path)
    if config.trainer.finetune is not None:  # its base is a run of another config
        base = write_base(config.trainer.finetune.base, tmp_path)
        config = load_config(path, [f"trainer.finetune.from={base}"])
    assert plan_run(config, with_data=False).notes is not None


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_header_says_what_it_is(path):
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


def test_defaults_and_values():
    section = parse(Outer, {"name": "x", "inner": {"size": 3}, "free": {"a": [1]}})
    assert section.inner.size == 3, section
    assert section.free == {"a": [1]}, section
    assert section.maybe is None, section


def test_is_frozen():
    section = parse(Outer, {"name": "x"})
    with pytest.raises(ValueError, match="frozen"):
        section.name = "y"


def test_the_error_names_its_source_and_counts():
    with pytest.raises(ValueError, match=r"(?s)^my\.yaml: 1 problem\n  name: missing"):
        parse(Outer, {}, source="my.yaml")


def test_null_is_the_default():
    section = parse(Outer, {"name": "x", "rate": None, "inner": None})
    assert (section.rate, section.inner.size) == (1.0, 1), section


def test_a_harmless_value_of_an_unavailable_key_is_accepted():
    assert parse(Outer, {"name": "x", "later": 0}).name == "x"
    assert parse(Outer, {"name": "x", "later": None}).name == "x"


def test_environment_variables_are_expanded(monkeypatch):
    monkeypatch.setenv("PLACE", "/data")
    section = parse(Outer, {"name": "$PLACE/x", "free": {"a": ["${PLACE}/y", "$NO"]}})
    assert section.name == "/data/x", section
    assert section.free == {"a": ["/data/y", "$NO"]}, section


def test_not_available_names_what_there_is():
    error = not_available("preblock type", "regrid", ["concat", "era5_normalizer"])
    assert str(error) == (
        "preblock type 'regrid' is not available; there are: concat, era5_normalizer"
    )
    assert str(not_available("loss", "mze", ["mse", "mae"])).endswith(
        "(nearest: 'mse')"
    )


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(example()))
    return path


def test_overrides_reach_every_kind_of_place(config_file):
    config = load_config(
        config_file,
        [
            "trainer.epochs=3",
            "trainer.learning_rate=1e-4",
            "data.source.ERA5.levels.1=5",
            "trainer.parallelism={data: fsdp2, tensor: 2, domain: 1}",
            "model.dim=[8, 16]",
            "validation_data.end_datetime=2000-01-10",
            "preblocks.per_step.concat.type=concat",
        ],
    )
    assert config.trainer.epochs == 3, config.trainer
    assert config.trainer.learning_rate == 1e-4, config.trainer
    assert config.data.source["ERA5"].levels == (1.0, 5.0), config.data
    assert config.trainer.parallelism.tensor == 2, config.trainer
    assert config.model["dim"] == [8, 16], config.model
    assert config.validation_data.end_datetime == "2000-01-10", config.validation_data
    assert config.preblocks.per_step["concat"].args == {}, config.preblocks


def test_overrides_leave_the_mapping_as_it_is():
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


def test_dump_keeps_ignored_keys_and_unexpanded_paths(monkeypatch):
    monkeypatch.setenv("PLACE", "/data")
    mapping = example(save_loc="$PLACE/run", pbs={"queue": "main"})
    with pytest.warns(UserWarning, match="pbs"):
        config = build_config(mapping)
    assert config.save_loc == "/data/run"
    assert dump_config(config) == mapping


def test_numbers_and_dates():
    parsed = parse_yaml("[1e-3, 1.5, 3, 2000-01-01, 1e8, x, 1_000]")
    assert parsed == [0.001, 1.5, 3, "2000-01-01", 1e8, "x", 1000], parsed


def test_merge_keys_are_no_duplicates():
    parsed = parse_yaml("x: &x {a: 1, b: 2}\ny: {<<: *x, a: 3}")
    assert parsed["y"] == {"a": 3, "b": 2}, parsed


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
    data = f"{original}/d_%Y.nc"
    raw = example(
        save_loc=f"{original}/",
        inference={
            "save_forecast": f"{original}/forecast",
            "output": {"metadata": f"{original}/std.nc"},
        },
    )
    raw["data"]["source"]["ERA5"]["variables"]["prognostic"]["path"] = data
    raw["loss"]["latitude_weights"] = f"{original}/elsewhere.nc"
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


# Keys of CREDIT's own configs that it does not read are notes, however spelled.


FOLDER = Path(__file__).parents[1] / "reference/credit_configs"
SECTIONS = {"": Config, "data": DataConfig, "trainer": TrainerConfig}
# Modules of CREDIT's training and forecasts of generation 2.
GEN2 = (
    "applications/train_gen2.py",
    "applications/rollout_gen2.py",
    "trainers/trainer_gen2.py",
    "trainers/rollout_utils.py",
    "datasets/gen_2/*.py",
    "parallel/*.py",
    "samplers.py",
    "output_gen2.py",
)
# They give names to what is read from the sources, or are keys of a source.
GEN2_NAMES = {
    "dataset_type",
    "diagnostic_variables",
    "save_loc",
    "surface_variables",
    "variables",
}


def written_by_credit(section):
    """The keys of a section in all configs of CREDIT."""
    keys = set()
    for path in FOLDER.rglob("*.yml"):
        config = yaml.load(path.read_text(), Loader=yaml.SafeLoader)
        if isinstance(config.get("data"), dict) and "model" in config:
            keys |= set(config.get(section) or {} if section else config)
    return keys


def never_read(section):
    """The keys of a section that are noted as read by no code of generation 2."""
    ignored = SECTIONS[section].ignored
    return {key for key, why in ignored.items() if why == NEVER_READ}


@pytest.mark.slow(but=["data"])
@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_credits_configs_is_known(section):
    cls = SECTIONS[section]
    known = {field.alias or name for name, field in cls.model_fields.items()}
    known |= {*cls.ignored, *cls.unavailable}
    assert written_by_credit(section) <= known
    assert never_read(section) <= written_by_credit(section)


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
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield node.slice.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop", "setdefault")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value


def test_steps_beyond_the_forecast_are_a_note():
    """CREDIT's trainer passes over them, and `credit convert` leaves them."""
    config = example(data__forecast_len=2, data__backprop_on_timestep=[1, 3, 7])
    with pytest.warns(ConfigWarning, match=r"of steps 3, 7: data\.forecast_len is 2"):
        assert build_config(config).backprop_on_timestep == (1,)


def test_flat_padding_is_that_of_generation_1():
    """CREDIT's gen2 pads nothing for these keys, which `credit convert` leaves."""
    with pytest.warns(ConfigWarning, match="gen2 pads only with padding_conf"):
        config = build_config(example(model__pad_lat=8, model__pad_lon=8))
    assert not {"pad_lat", "pad_lon"} & set(config.model)
    conf = {"activate": True, "mode": "earth", "pad_lat": [1, 1], "pad_lon": [1, 1]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_config(example(model__padding_conf=conf, model__pad_lat=None))
