"""The graph network and its edges."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from credit_jax import from_state_dict, to_state_dict
from credit_jax.models.graph.graph import nearest_edges, read_edges
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build, parse_model
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.domain.edges import shard_edges
from credit_jax.parallel.placement import place_batch
from credit_jax.parallel.rows.layout import block_layout
from credit_torch_bridge import compare_with_credit
from tests.models.cases import CASES, GRAPH_GRID
from tests.models.graph.edges import write_edges
from tests.models.parity import FORWARD, GRADIENT
from tests.support import assert_close, assert_trees_close, make_mesh

(HEIGHT, WIDTH), BATCH = GRAPH_GRID, 2


def _block(edge_path: str, **changes: Any) -> dict[str, Any]:
    return {**CASES["graph attributes"].block, "edge_path": edge_path, **changes}


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
def test_edges_are_credits(credit: Any, edge_path: str) -> None:
    ours = read_edges(edge_path)
    theirs = credit.build_credit(_block(edge_path), seed=1)
    np.testing.assert_array_equal(theirs.edge_index.numpy().T, ours.edges)
    attributes = theirs.edge_attr.numpy()
    assert_close(ours.attributes, attributes, 1e-6, "attributes of edges")


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


def test_a_missing_edge_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model.edge_path: .* does not exist;"):
        read_edges(str(tmp_path / "edges.nc"))


HEIGHT_EDGE_FILE, WIDTH_EDGE_FILE, NEIGHBORS = 6, 8, 5


def test_the_nearest_points_are_those_of_all_distances(tmp_path):
    latitude, longitude = (
        np.linspace(80, -80, HEIGHT_EDGE_FILE),
        np.arange(WIDTH_EDGE_FILE) * 360 / WIDTH_EDGE_FILE,
    )
    actual = nearest_edges(latitude, longitude, NEIGHBORS)
    write_edges(tmp_path / "all.nc", HEIGHT_EDGE_FILE, WIDTH_EDGE_FILE, NEIGHBORS)
    with xr.open_dataset(tmp_path / "all.nc") as expected:
        distances = [x["distances"].values for x in (actual, expected)]
        np.testing.assert_array_equal(actual["latitude"], expected["latitude"])
    # Of points that are as far as others, any may be the last.
    by_point = [np.sort(x.reshape(-1, NEIGHBORS), axis=1) for x in distances]
    np.testing.assert_allclose(*by_point, rtol=1e-6, atol=1e-3)
    ends = actual["edges"].values[:, 1]
    np.testing.assert_array_equal(ends, np.repeat(np.arange(ends[-1] + 1), NEIGHBORS))
    path = tmp_path / "nearest.nc"
    actual.to_netcdf(path)
    edges = read_edges(str(path))
    assert (edges.height, edges.width) == (HEIGHT_EDGE_FILE, WIDTH_EDGE_FILE)
    assert len(edges.edges) >= HEIGHT_EDGE_FILE * WIDTH_EDGE_FILE * NEIGHBORS
    assert np.isfinite(edges.attributes).all()
