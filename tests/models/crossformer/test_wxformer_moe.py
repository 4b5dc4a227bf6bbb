"""WXFormer with experts: training on meshes with ep, checkpoints, samples, counts.

The layer itself is tested in tests/nn/test_experts.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.data.sampler import epoch_order
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn.experts import ExpertFeedForward
from credit_jax.nn.parameters import BATCH_STATS
from credit_jax.parallel.mesh.credit import data_parallel_coords, local_dp_ranks
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.placement import place_batch
from credit_jax.plan.estimates import local_size
from credit_jax.training.restore import RunStore
from credit_jax.training.state import TrainState, init_state
from credit_jax.training.step import make_train_step
from tests.models.cases import BASE, WXFORMER
from tests.support import assert_close, assert_trees_close, dealt

EXPERTS = WXFORMER["experts"].block
LAYER = "stages/2/blocks/long_feed_forward"
BATCH = 8


@cache
def model_on(**degrees: int) -> ParallelModel:
    count = int(np.prod(list(degrees.values()) or [1]))
    mesh = ParallelDims(**degrees, world_size=count).build_mesh()
    return build_parallel_model(EXPERTS, mesh)


def _mse(tree: Any, context: Any) -> Any:
    return context.mean((tree["y_pred"] - tree["y"]) ** 2)


@cache
def trained(**degrees: int) -> Any:
    """Returns weights, statistics and metrics after two updates, as whole arrays."""
    model = model_on(**degrees)
    optimizer = optax.sgd(0.1)
    rng = np.random.default_rng(0)
    shapes = {"x": (7, 1, 30, 32), "y": (6, 1, 30, 32)}
    step = make_train_step(model, optimizer, _mse)
    state = init_state(model, optimizer, jax.random.key(0))
    losses = []
    for _ in range(2):
        arrays = {
            name: rng.normal(size=(1, BATCH, *shape)).astype(np.float32)
            for name, shape in shapes.items()
        }
        order = dealt(BATCH, model.axes.num_data)
        batch = {name: array[:, order] for name, array in arrays.items()}
        state, info = step(state, place_batch(batch, model.mesh))
        losses.append(jax.device_get(info))
    params = state.params
    return jax.device_get((params, state.model_state[BATCH_STATS], losses))


@pytest.mark.slow
@pytest.mark.parametrize(
    "degrees",
    [
        {"dp_shard": 2, "ep": 2, "tp": 2},
        {"dp_shard": 2, "ep": 4},
    ],
    ids=str,
)
def test_training_equals_that_of_one_device(degrees: dict[str, int]) -> None:
    """Losses, statistics and weights after two updates, in float32."""
    params, stats, losses = trained(**degrees)
    expected, expected_stats, expected_losses = trained()
    for one, other in zip(losses, expected_losses, strict=True):
        assert one["measured"].keys() == {"expert_balance", "router_z"}
        for name in ("expert_balance", "router_z"):
            ours, theirs = one["measured"][name], other["measured"][name]
            assert_close(ours, theirs, 1e-5, f"{degrees}: {name}")
        assert_close(one["loss"], other["loss"], 1e-5, f"{degrees}: loss")
        assert_close(one["grad_norm"], other["grad_norm"], 1e-4, f"{degrees}: norm")
    assert_trees_close(stats[LAYER], expected_stats[LAYER], 1e-5, "statistics")
    flat = [
        np.concatenate([p[k].ravel() for k in sorted(p)]) for p in (params, expected)
    ]
    assert_close(*flat, 1e-5, f"{degrees}: weights")


def _layer_of(config: Any) -> ExpertFeedForward:
    return ExpertFeedForward(64, routing=config.routing)


@pytest.mark.slow
def test_a_checkpoint_goes_to_another_ep(tmp_path: Any) -> None:
    """Written on ep 2 x tp 2 x dp 2 and restored on ep 4, it has the same bits."""

    def state_on(key: int, **degrees: int) -> TrainState:
        count = int(np.prod(list(degrees.values()) or [1]))
        mesh = ParallelDims(**degrees, world_size=count).build_mesh()
        model = build_parallel_model(one_layer, mesh)
        return init_state(model, optax.adam(1e-3), jax.random.key(key))

    one_layer = ModelDef(build(EXPERTS).config, _layer_of)
    state = state_on(0, dp_shard=2, ep=2, tp=2)
    saved = state.params
    checkpoints = CheckpointStore(tmp_path)
    store = RunStore(checkpoints, one_layer.param_specs)
    store.save(1, state, Progress(epoch=1))
    checkpoints.wait()
    found = store.restore(1, state_on(1, ep=4)).params
    for path, ours in found.items():
        assert np.array_equal(ours, saved[path]), path
    assert {shard.data.shape[0] for shard in found["up"].addressable_shards} == {1}
    checkpoints.close()


@pytest.mark.parametrize("num_samples", [16, 21])
def test_every_rank_reads_samples_of_its_own(num_samples: int) -> None:
    """`ep` is a data axis: each sample is read once, as with dp alone."""
    read = {}
    for name, degrees in {
        "ep": {"dp_shard": 2, "ep": 4},
        "dp": {"dp_shard": 8},
    }.items():
        mesh = ParallelDims(**degrees, world_size=8).build_mesh()
        (rank, size), ranks = data_parallel_coords(mesh), local_dp_ranks(mesh)
        assert (rank, size, ranks) == (0, 8, tuple(range(8)))
        order = epoch_order(num_samples, dp_size=size, seed=3, epoch=1, shuffle=True)
        read[name] = [order[r::size].tolist() for r in ranks]
    assert read["ep"] == read["dp"]
    every = sorted(n for own in read["ep"] for n in own)
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
    axes = ParallelDims(dp_shard=2, ep=2, world_size=4).mesh_axes
    up = specs[f"{LAYER}/up"]
    assert local_size(up, axes) == up.size // 4, "the check counts ep and dp_shard"
    every = build({**EXPERTS, "moe_frequency": 1, "moe_shared_experts": 2})
    assert len(every.batch_stats) == 2
    assert any(path.endswith("shared_up/kernel") for path in every.matrices)
    assert not any(path.endswith(("/up", "/router")) for path in every.matrices)


def _fails(message: str, **changes: Any) -> None:
    with pytest.raises(ValueError, match=message):
        build({**EXPERTS, **changes})


def test_what_is_rejected() -> None:
    _fails("moe_top_k is 5, more than the 4 experts", moe_top_k=5)
    _fails("moe_frequency", moe_frequency=3)
    _fails("moe_router", moe_router="sigmoid_topk")
    mesh = ParallelDims(ep=8, world_size=8).build_mesh()
    with pytest.raises(ValueError, match=r"num_experts is 4, which ep 8 .*: 1, 2, 4"):
        build_parallel_model(EXPERTS, mesh)
    with pytest.raises(ValueError, match="wxformer has no experts to share"):
        build_parallel_model(BASE, mesh)
    mesh = ParallelDims(tp=2, world_size=2).build_mesh()
    with pytest.raises(ValueError, match="etp is 3; expected tp or 1, that is 2 or 1"):
        build_parallel_model(EXPERTS, mesh, etp=3)
    model_def = build(EXPERTS)
    assert isinstance(model_def, ModelDef)
    assert model_def.auxiliary_losses({}) == {}
