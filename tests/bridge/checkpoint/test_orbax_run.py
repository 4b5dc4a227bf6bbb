"""Runs of credit_jax that the bridge writes and reads."""

import chex
import pytest
import torch

from credit_torch_bridge import from_torch, to_torch
from credit_torch_bridge.checkpoint.orbax_run import read_run, write_run
from credit_torch_bridge.checkpoint.run_config import read_run_config

pytestmark = pytest.mark.reference


@pytest.fixture
def reference(credit_folder, model_config):
    return from_torch(model_config, credit_folder)


def same(actual, expected):
    chex.assert_trees_all_equal(actual, expected)


def test_our_checkpoints_come_back_bitwise(reference, model_config, tmp_path):
    run_config = read_run_config(model_config)
    write_run(tmp_path / "run", run_config, [reference])
    first = read_run(tmp_path / "run", run_config.model_def)
    files = to_torch(model_config, first)
    (tmp_path / "torch").mkdir()
    for name, content in files.items():
        torch.save(content, tmp_path / "torch" / name)
    second = from_torch(model_config, tmp_path / "torch")
    write_run(tmp_path / "again", run_config, [second])
    third = read_run(tmp_path / "again", run_config.model_def)
    for one, other in ((first, reference), (third, first)):
        same(one.params, other.params)
        same(one.model_state, other.model_state)
        same(one.ema, other.ema)
        same(vars(one.moments), vars(other.moments))
        assert (one.micro_step, one.update_step) == (20, 20)
