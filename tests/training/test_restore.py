"""A run's model and weights on a mesh, for use as a library."""

import logging
import shutil

import chex
import jax
import pytest

from credit_jax.config import ConfigError
from credit_jax.config.yaml_file import read_yaml
from credit_jax.forecast import Forecaster
from credit_jax.packages.package import restore
from credit_jax.plan.run_record import RunRecord
from tests.cli.test_predict import AVERAGED, expected, run, x
from tests.support import assert_close

__all__ = ["run", "x"]


@pytest.fixture
def folder(run):
    """The folder of a run with its config."""
    shutil.copyfile(run[0], run[1] / "model.yml")
    return run[1]


@pytest.mark.slow(but=["{'dp': 2, 'tp': 2, 'domain': 2}"])
@pytest.mark.parametrize("degrees", [{}, {"dp": 2, "tp": 2, "domain": 2}], ids=str)
def test_the_newest_checkpoint_on_a_mesh(run, folder, x, make_mesh, degrees):
    model, *weights = restore(folder, make_mesh(**degrees))
    assert model.model_def.config == run[2].config
    wanted = expected(run, x, AVERAGED)
    assert_close(Forecaster(model, *weights)(x), wanted, 1e-6, str(degrees))


def test_another_checkpoint_and_the_average(run, folder, x, make_mesh):
    last = {"step": 1, "weights": "last"}
    for scale, chosen in ((0.5, last), (2.0, {}), (2.0, {"weights": "average"})):
        model, *weights = restore(folder, make_mesh(), **chosen)
        y = Forecaster(model, *weights)(x)
        assert_close(y, expected(run, x, scale), 1e-6, str(chosen))


def test_nothing_is_printed_or_logged(folder, make_mesh, caplog, capfd):
    # Commands, which other tests run, silence this logger for good.
    caplog.set_level(logging.WARNING, "absl")
    restore(folder, make_mesh())
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_another_config_is_refused_as_in_forecasts(folder, make_mesh, monkeypatch):
    config = read_yaml(folder / "model.yml")
    recorded = {**config, "data": {**config["data"], "timestep": "12h"}}
    record = RunRecord.of(recorded, "checkpoint 2", forecasts=True)
    monkeypatch.setattr("credit_jax.checkpoint.run.RunArtifact.record", record)
    with pytest.raises(ConfigError, match=r"data.timestep \('12h' there, '6h' here"):
        restore(folder, make_mesh())


def test_options_are_those_of_build_parallel_model(folder, make_mesh):
    model, params, _ = restore(folder, make_mesh(dp=2), min_shard_size=2**30)
    assert model.parallel_config.rules.min_shard_size == 2**30
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(params))


def test_what_is_missing_is_named(folder, tmp_path, make_mesh):
    with pytest.raises(FileNotFoundError, match=r"model\.yml"):
        restore(tmp_path / "nothing", make_mesh())
    (tmp_path / "empty").mkdir()
    shutil.copyfile(folder / "model.yml", tmp_path / "empty/model.yml")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):
        restore(tmp_path / "empty", make_mesh())


def test_the_weights_are_those_that_were_saved(run, folder, make_mesh):
    _, params, _ = restore(folder, make_mesh(), weights="last")
    chex.assert_trees_all_equal(params, run[3])
