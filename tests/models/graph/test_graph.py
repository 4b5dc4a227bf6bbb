"""CREDIT's graph model against serial CREDIT, and on meshes against one device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax import from_state_dict, to_state_dict
from credit_jax.models.conversion import key_map_for
from credit_jax.models.graph.edge_file import read_edges
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build, parse_model
from credit_jax.nn.model_state import SPECTRAL_NORM
from credit_jax.parallel.domain.edges import shard_edges
from credit_jax.parallel.placement import place_batch
from credit_jax.parallel.rows.layout import block_layout
from credit_torch_bridge import compare_with_credit
from tests.models.graph.edges import write_edges
from tests.models.mesh_parity import (
    assert_equals_one_device,
    assert_equals_one_device_in_float64,
)
from tests.models.parity import (
    FORWARD,
    GRADIENT,
    Networks,
    assert_equals_credit,
    assert_equals_credit_in_float64,
    credits_defaults,
)
from tests.support import assert_close, assert_trees_close, make_mesh

HEIGHT, WIDTH, BATCH = 7, 8, 2


@pytest.fixture(scope="session")
def edge_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An edge file with neighbors over both poles; node 20 has no edge."""
    path = tmp_path_factory.mktemp("graph") / "edges.nc"
    return write_edges(path, HEIGHT, WIDTH, 6, alone=20)


def _block(edge_path: str, **changes: Any) -> dict[str, Any]:
    return {
        "type": "graph",
        "n_variables": 2,
        "n_surface_variables": 1,
        "n_static_variables": 2,
        "levels": 2,
        "hidden_size": 8,
        "dim_head": 4,
        "n_blocks": 3,
        "edge_path": edge_path,
        **changes,
    }


CASES: dict[str, dict[str, Any]] = {
    "attributes": {},
    "plain": {"use_edge_attr": False, "use_spectral_norm": False, "n_blocks": 2},
}


@cache
def _x(edge_path: str, dtype: str) -> np.ndarray:
    shape = build(_block(edge_path)).inputs["x"].shape(BATCH)
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


@pytest.mark.slow
@pytest.mark.reference
def test_compare_in_float64(
    credit: Any, edge_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where float32 is beyond its tolerance, both sides run in float64."""

    import torch

    from credit_torch_bridge.compare import comparison

    monkeypatch.setattr(comparison, "FORWARD", 0.0)
    block = _block(edge_path, n_blocks=2)
    state = credit.build_credit(block, seed=5).state_dict()
    torch.save({"model_state_dict": state}, tmp_path / "checkpoint.pt")
    found = compare_with_credit({"model": block}, tmp_path / "checkpoint.pt")
    assert found.wide is not None
    print(*found.wide.lines(), sep="\n")
    assert max(found.wide.prediction, found.wide.gradient) < 1e-12


@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
def test_equals_credit_in_float64(credit: Any, edge_path: str, name: str) -> None:
    """Forward and every gradient array; layers that are not called have no gradient."""
    block = _block(edge_path, **CASES[name])
    if block.get("use_edge_attr", True):
        ours, theirs = read_edges(edge_path), credit.build_credit(block, seed=1)
        np.testing.assert_array_equal(theirs.edge_index.numpy().T, ours.edges)
        attributes = theirs.edge_attr.numpy()
        assert_close(ours.attributes, attributes, 1e-6, "attributes of edges")
    _, grads = assert_equals_credit_in_float64(Networks(credit), block, name)
    assert not any("norm" in key for key in grads), "norms have no scale"


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
def test_equals_credit(credit: Any, edge_path: str, name: str) -> None:
    assert_equals_credit(Networks(credit), _block(edge_path, **CASES[name]), name)


@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
def test_the_round_trip_of_credit_s_state_dict_is_bitwise(
    credit: Any, edge_path: str, name: str
) -> None:
    block = _block(edge_path, **CASES[name])
    model = credit.build_credit(block, seed=1)
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    model_def = build(block)
    back = to_state_dict(model_def, *from_state_dict(model_def, state))
    assert list(back) == list(state), "the keys, or their order, differ"
    for key, value in state.items():
        np.testing.assert_array_equal(back[key], value, err_msg=key)
    names = [name for name, _ in model.named_parameters()]
    assert key_map_for(model_def).parameters.keys == names


def _train_credit(credit: Any, block: dict[str, Any], settle: int) -> Any:
    """Returns state, prediction, gradients and new state of a training forward."""

    import torch

    model = credit.build_credit(block, seed=1).train()
    x = torch.from_numpy(_x(block["edge_path"], "float32").copy())
    with torch.no_grad():
        for _ in range(settle):
            model(x)
    before = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    y = model(x)
    (y**2).mean().backward()
    after = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    named = model.named_parameters()
    grads = {k: p.grad.numpy() for k, p in named if p.grad is not None}
    return before, y.detach().numpy(), grads, after


def _train_ours(
    block: dict[str, Any], degrees: tuple[int, int, int], state: Any
) -> Any:
    """Returns the same of our model on a mesh."""
    mesh = make_mesh(dp=degrees[0], tp=degrees[1], domain=degrees[2])
    model = build_parallel_model(block, mesh, ac_mode="full", min_shard_size=1)
    given = jax.tree.map(jnp.asarray, from_state_dict(model.model_def, state))
    params, model_state = given

    def body(params: Any, model_state: Any, inputs: Any) -> Any:
        iterated = model.local_iterate(params, model_state)

        def loss(params: Any) -> Any:
            key = jax.random.key(0)
            y, after = model.local_training_forward(params, iterated, inputs, key)
            return model.reducer.mean(jnp.square(y)), (y, after)

        grads, aux = jax.grad(loss, has_aux=True)(params)
        return *aux, grads

    output = model.model_def.output.partition_spec(model.axes)
    specs = output, model.model_state_specs, model.specs
    step = model.shard_map(body, batch_specs=model.input_specs(), out_specs=specs)
    inputs = place_batch({"x": _x(block["edge_path"], "float32")}, mesh)
    y, after, grads = step(params, model_state, inputs)
    named = to_state_dict(model.model_def, *jax.device_get((grads, model_state)))
    return np.asarray(y)[..., :HEIGHT, :], named, after


@pytest.mark.slow(but=["(1, 1, 1)-5"])
@pytest.mark.reference
@pytest.mark.parametrize(
    ("degrees", "settle"),
    [
        ((1, 1, 1), 0),
        ((1, 1, 1), 5),
        ((2, 1, 3), 0),
        ((2, 2, 2), 0),
    ],
    ids=str,
)
def test_a_training_forward_equals_credit(
    credit: Any, edge_path: str, degrees: tuple[int, int, int], settle: int
) -> None:
    """Each block's gates have another sigma; fresh vectors make them very different."""
    block = _block(edge_path, hidden_size=32, dim_head=8)
    before, y, grads, after = _train_credit(credit, block, settle)
    ours, named, state = _train_ours(block, degrees, before)
    assert_close(ours, y, FORWARD, f"{degrees}: training forward")
    joined = [np.concatenate([g[k].ravel() for k in grads]) for g in (named, grads)]
    assert_close(*joined, GRADIENT, f"{degrees}: gradient, all")
    _, wanted = from_state_dict(build(block), after)
    for side in ("u", "v"):
        mine, theirs = (
            {path: np.asarray(pair[side]) for path, pair in given.items()}
            for given in (state[SPECTRAL_NORM], wanted[SPECTRAL_NORM])
        )
        assert_trees_close(mine, theirs, FORWARD, f"{side} after the forward")


@pytest.mark.slow(but=["dp2_tp2_domain2"])
@pytest.mark.parametrize("mesh", ["domain3", "domain8", "dp2_tp2_domain2"])
def test_meshes_equal_one_device(edge_path: str, mesh: str) -> None:
    """7 rows; edges over the poles need rows of the same and of the next shard."""
    assert_equals_one_device(_block(edge_path), mesh, "graph", remat="full")


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [(1, 1, 3), (2, 2, 2)])
def test_meshes_equal_one_device_in_float64(
    edge_path: str, degrees: tuple[int, int, int]
) -> None:
    """Every array of the gradient."""
    block = _block(edge_path)
    assert_equals_one_device_in_float64(block, "graph", "full", degrees)


def test_every_edge_is_on_one_shard(edge_path: str) -> None:
    edges = read_edges(edge_path).edges
    assert not (edges == 20).any()
    plan = shard_edges(block_layout(HEIGHT, 3, "domain"), WIDTH, edges)
    numbers = plan.number[plan.number >= 0]
    assert sorted(numbers.tolist()) == list(range(len(edges)))
    fetched = [len({row for row in rows if row >= 0}) for rows in plan.sources.rows]
    assert fetched == [4, 5, 2], "own rows, and one on each side"


def test_the_grid_is_that_of_the_file(edge_path: str, tmp_path: Path) -> None:
    config = parse_model(_block(edge_path))
    assert (config.image_height, config.image_width) == (HEIGHT, WIDTH)
    config.check_files()
    other = parse_model(_block(edge_path, image_height=8, image_width=7))
    with pytest.raises(ValueError, match="7 x 8 nodes; expected the grid 8 x 7"):
        other.check_files()
    with pytest.raises(ValueError, match="image_height"):
        parse_model(_block(str(tmp_path / "absent.nc")))


@pytest.mark.reference
def test_the_defaults_are_those_of_credit(credit: Any, edge_path: str) -> None:
    theirs = credits_defaults("models.graph", "GraphResTransfGRU")
    assert theirs.pop("edge_path")
    config = parse_model({"type": "graph", "edge_path": edge_path})
    assert {key: getattr(config, key) for key in theirs} == theirs
    assert not any(config.problems())


WRONG = {
    "history": ({"history_len": 1}, "history_len is 1; expected 2"),
    "heads": ({"dim_head": 3}, "hidden_size is 8, which model.dim_head = 3 does not"),
    "dropout": ({"dropout": 1.0}, "dropout: must be less than 1.0, got 1.0"),
    "no channels": (
        {"n_variables": 0, "n_surface_variables": 0},
        "0 output channels; expected at least 1",
    ),
    "blocks": ({"n_blocks": 10**9}, "n_blocks: must be at most 1000, got 1000000000"),
    "unknown key": ({"frames": 2}, "frames: unknown key"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_refused(edge_path: str, name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        build(_block(edge_path, **change))


def test_a_missing_edge_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model.edge_path: .* does not exist;"):
        read_edges(str(tmp_path / "edges.nc"))
