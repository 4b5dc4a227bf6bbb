"""Small forms of configs, and what is stored of their programs."""

import json

import pytest

from benchmarks.mesh_cases import (
    BATCH,
    CASES,
    CHOICES,
    job_of,
    stored_account,
)
from benchmarks.meshes import num_data, num_devices
from credit_jax.config import build_config
from credit_jax.models.registry import build


def test_meshes_are_of_eight_devices_that_share_the_batch():
    assert {num_devices(mesh) for mesh, _, _ in CHOICES} == {8}
    assert all(BATCH % num_data(mesh) == 0 for mesh, _, _ in CHOICES)
    assert len(set(CHOICES)) == len(CHOICES)


@pytest.mark.parametrize("name", ["swin_6h", "wxformer_moe_1deg"])
def test_a_small_config_is_valid(name, tmp_path):
    config = build_config(CASES[name].mapping(tmp_path))
    assert build(config.model).num_parameters > 1e6
    assert not config.trainer.use_ema
    assert config.trainer.mp_policy is not None


def test_what_is_stored_is_not_compiled_again(tmp_path):
    job = job_of(CASES["swin_6h"], tmp_path, "ddp2xtp4")
    assert job.samples == BATCH // 2
    assert stored_account(job, tmp_path, compiles=False) is None
    path = job.folder(tmp_path).with_suffix(".json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"step": 1.0}))
    assert stored_account(job, tmp_path) == {"step": 1.0}
