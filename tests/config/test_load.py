import shutil
import warnings

import pytest
import yaml

from credit_jax.config import (
    apply_overrides,
    build_config,
    dump_config,
    load_config,
    write_config,
)
from credit_jax.config.base import ConfigWarning
from credit_jax.config.load import FRAMES_OF_DATA
from credit_jax.config.yaml_file import parse_yaml
from tests.config.example import example


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
