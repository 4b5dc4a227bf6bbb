"""WXFormer with experts: training on meshes with ep, checkpoints, samples, counts.

The layer itself is tested in tests/nn/test_blocks.py.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.data.sampler import epoch_order
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn.experts import ExpertFeedForward
from credit_jax.nn.parameters import BATCH_STATS
from credit_jax.parallel.mesh.credit import data_parallel_coords, local_dp_ranks
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.plan.estimates import local_size
from credit_jax.training.restore import RunStore
from credit_jax.training.state import init_state
from tests.models.cases import BASE, CASES
from tests.models.parity import assert_joint, train
from tests.support import assert_close, assert_trees_close

EXPERTS = CASES["wxformer experts"].block
LAYER = "stages/2/blocks/long_feed_forward"
ON_8 = ({"dp_shard": 2, "ep": 2, "tp": 2}, {"dp_shard": 2, "ep": 4})


def _dims(degrees: dict[str, int]) -> ParallelDims:
    return ParallelDims(**degrees, world_size=math.prod(degrees.values()))


@cache
def trained(**degrees: int) -> Any:
    """Returns state and metrics after two updates, as whole arrays."""
    model = build_parallel_model(EXPERTS, _dims(degrees))
    return train(model, optax.sgd(0.1), 2, batch=8)[1:]


@pytest.mark.slow
@pytest.mark.parametrize("degrees", ON_8, ids=str)
def test_training_equals_that_of_one_device(degrees: dict[str, int]) -> None:
    """Losses, statistics and weights after two updates, in float32."""
    (state, infos), (expected, expected_infos) = trained(**degrees), trained()
    for one, other in zip(infos, expected_infos, strict=True):
        assert one["measured"].keys() == {"expert_balance", "router_z"}
        assert_trees_close(one["measured"], other["measured"], 1e-5, "measured")
        assert_close(one["loss"], other["loss"], 1e-5, f"{degrees}: loss")
        assert_close(one["grad_norm"], other["grad_norm"], 1e-4, f"{degrees}: norm")
    stats = (s.model_state[BATCH_STATS][LAYER] for s in (state, expected))
    assert_trees_close(*stats, 1e-5, "statistics")
    assert_joint(state.params, expected.params, 1e-5, f"{degrees}: weights")


@pytest.mark.slow
def test_a_checkpoint_goes_to_another_ep(tmp_path: Any) -> None:
    """Written on ep 2 x tp 2 x dp 2 and restored on ep 4, it has the same bits."""
    one_layer = ModelDef(
        build(EXPERTS).config,
        lambda config: ExpertFeedForward(64, routing=config.routing),
    )
    state, other = (
        init_state(
            build_parallel_model(one_layer, _dims(degrees)),
            optax.adam(1e-3),
            jax.random.key(key),
        )
        for key, degrees in enumerate((ON_8[0], {"ep": 4}))
    )
    checkpoints = CheckpointStore(tmp_path)
    store = RunStore(checkpoints, one_layer.param_specs)
    store.save(1, state, Progress(epoch=1))
    checkpoints.wait()
    params = store.restore(1, other).params
    jax.tree.map(np.testing.assert_array_equal, params, state.params)
    assert {shard.data.shape[0] for shard in params["up"].addressable_shards} == {1}
    checkpoints.close()


@pytest.mark.parametrize("num_samples", [16, 21])
def test_every_rank_reads_samples_of_its_own(num_samples: int) -> None:
    """`ep` is a data axis: each sample is read once, as with dp alone."""
    read = []
    for degrees in ({"dp_shard": 2, "ep": 4}, {"dp_shard": 8}):
        mesh = _dims(degrees).build_mesh()
        (rank, size), ranks = data_parallel_coords(mesh), local_dp_ranks(mesh)
        assert (rank, size, ranks) == (0, 8, tuple(range(8)))
        order = epoch_order(num_samples, dp_size=size, seed=3, epoch=1, shuffle=True)
        read.append([order[r::size].tolist() for r in ranks])
    assert read[0] == read[1]
    every = [number for numbers in read[0] for number in numbers]
    assert set(every) == set(range(num_samples))
    assert len(every) == -(-num_samples // 8) * 8


def test_sizes() -> None:
    """Most parameters are experts; a token passes through the chosen ones only."""
    model_def = build(EXPERTS)
    dense = build({**BASE, "depth": EXPERTS["depth"]})
    specs = model_def.param_specs
    assert sorted(model_def.batch_stats) == [LAYER]
    one = sum(
        spec.size // 4
        for path, spec in specs.items()
        if spec.dims[1:2] == ("experts",) and "long_feed_forward" in path
    )
    router = sum(spec.size for path, spec in specs.items() if path.endswith("/router"))
    assert model_def.num_parameters == dense.num_parameters + 3 * one + router
    assert model_def.num_active_parameters == dense.num_parameters + one + router
    assert dense.num_active_parameters == dense.num_parameters
    up, axes = specs[f"{LAYER}/up"], _dims({"dp_shard": 2, "ep": 2}).mesh_axes
    assert local_size(up, axes) == up.size // 4, "the check counts ep and dp_shard"
    every = build({**EXPERTS, "moe_frequency": 1, "moe_shared_experts": 2})
    assert len(every.batch_stats) == 2
    assert any(path.endswith("shared_up/kernel") for path in every.matrices)
    assert not any(path.endswith(("/up", "/router")) for path in every.matrices)
    assert model_def.auxiliary_losses({}) == {}
