"""Low-rank adapters: beside torch on CREDIT's own model, and on meshes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from credit_jax.config import parse
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.models.conversion import from_state_dict, key_map_for
from credit_jax.models.parallel_model import build_parallel_model, place_weights
from credit_jax.models.registry import build
from credit_jax.nn.low_rank import LowRank, is_adapter, is_matrix, merged
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.plan.finetune import frozen_parameters, low_rank_of
from credit_jax.training.optimizer import BETAS, EPSILON, adamw
from tests.models.cases import CASES
from tests.models.parity import batches, mesh_of, train
from tests.support import assert_close, assert_trees_close, make_mesh
from tests.training.toy_runs import MODEL_DEF, toy_batches

TARGETS = frozenset({"dense/up", "dense/down"})
LOW_RANK = LowRank(2, 2.0, TARGETS)
ADAPTED = replace(MODEL_DEF, frozen=frozenset(MODEL_DEF.param_specs), low_rank=LOW_RANK)


@cache
def start() -> tuple[dict[str, np.ndarray], Any]:
    """Weights and adapters, of which none is 0, and vectors of the sums."""
    model = build_parallel_model(MODEL_DEF, make_mesh())
    params, state = jax.device_get(model.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    for path, spec in LOW_RANK.param_specs(MODEL_DEF.param_specs).items():
        params[path] = 0.3 * rng.normal(size=spec.shape).astype(np.float32)
    return params, state


def gradients(mesh: str, definition: Any, weights: Any, **options: Any) -> Any:
    """Returns the gradients of one step, its loss, and the state after it."""
    model = build_parallel_model(definition, mesh_of(mesh), **options)
    _, state, infos = train(model, optax.trace(decay=0.0), 1, weights=weights)
    return optax.tree.get(state.opt_state, "trace"), infos[0]["loss"], state


@pytest.mark.slow(but=["domain3", "2x2x2"])
@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        *((mesh, {}) for mesh in ("dp2", "tp2", "domain3")),
        ("domain2", {"over_domain": True}),
        ("2x2x2", {"ac_mode": "full"}),
        ("2x2x2", {"over_domain": True}),
    ],
    ids=["dp2", "tp2", "domain3", "domain2 over", "2x2x2", "2x2x2 over"],
)
def test_gradients_are_those_of_one_device(mesh: str, options: Any) -> None:
    grads, loss, _ = gradients(mesh, ADAPTED, start(), **options)
    one, expected, _ = gradients("one", ADAPTED, start())
    assert_close(loss, expected, 1e-6, f"{mesh}: loss")
    assert set(grads) == set(LOW_RANK.param_specs(MODEL_DEF.param_specs))
    assert all(np.any(gradient) for gradient in grads.values())
    assert_trees_close(grads, one, 1e-6, f"{mesh}: gradients")


def test_the_sum_is_the_matrix_of_the_layers() -> None:
    """Loss, gradient and u, v are those of a model that has the sum: dA = dW B'."""
    params, state = start()
    sums = merged(params, LOW_RANK, ADAPTED.param_specs)
    grads, low_loss, low = gradients("one", ADAPTED, (params, state))
    of_sum, loss, full = gradients("one", MODEL_DEF, (sums, state))
    assert_close(low_loss, loss, 1e-6, "loss")
    for path in TARGETS:
        down, up = (params[p].astype(np.float64) for p in LOW_RANK.adapters(path))
        a, b = (grads[p] for p in LOW_RANK.adapters(path))
        product = params[path] + 2.0 * np.einsum("ri,ro->io", down, up)
        assert_close(sums[path], product, 1e-6, f"{path}: sum")
        expected = 2.0 * np.einsum("io,ro->ri", of_sum[path], up)
        assert_close(a, expected, 1e-5, f"{path}: A")
        expected = 2.0 * np.einsum("io,ri->ro", of_sum[path], down)
        assert_close(b, expected, 1e-5, f"{path}: B")
        vectors = (s.model_state[SPECTRAL_NORM][path] for s in (low, full))
        assert_trees_close(*vectors, 1e-6, f"{path}: vectors")


def test_adapters_alone_are_trained() -> None:
    params, _ = start()
    model = build_parallel_model(ADAPTED, mesh_of("2x2x2"), ac_mode="full")
    optimizer = adamw(weight_decay=0.1, max_norm=1.0)
    schedule = optax.constant_schedule(1e-2)
    _, after, _ = train(model, optimizer, 3, weights=start(), schedule=schedule)
    for path, value in after.params.items():
        assert np.array_equal(value, params[path]) != is_adapter(path), path
    moments = optax.tree.get(after.opt_state, "mu")
    assert set(moments) == {path for path in params if is_adapter(path)}


def test_forecasts_of_fused_weights_and_of_the_base() -> None:
    """The sum is in fused weights once; with B = 0 a forecast is that of the base."""
    model = build_parallel_model(ADAPTED, make_mesh())
    base = build_parallel_model(MODEL_DEF, make_mesh())
    params, state = start()
    placed = place_weights(model, params, state)
    x = toy_batches(model, 1)[0]["x"][0]
    fused = model.fuse_spectral_norm(*placed)
    expected = np.asarray(model.apply(*placed, {"x": x}))
    assert_close(model.apply(*fused, {"x": x}), expected, 1e-6, "forecast")
    assert not any(np.any(fused[0][path]) for path in fused[0] if is_adapter(path))
    ups = {LOW_RANK.adapters(path)[1] for path in TARGETS}
    first = params | {path: np.zeros_like(params[path]) for path in ups}
    without = {path: params[path] for path in MODEL_DEF.param_specs}
    expected = base.apply(*place_weights(base, without, state), {"x": x})
    actual = model.apply(*place_weights(model, first, state), {"x": x})
    assert np.array_equal(actual, expected)


def test_what_a_matrix_is() -> None:
    dense = ParamSpec((4, 6), ("embed", "mlp"), matrix_out=(1,))
    small, wide = (
        ParamSpec((n, n, 4, 6), (None, None, "conv_in", "conv_out"), matrix_out=(3,))
        for n in (1, 3)
    )
    bias = ParamSpec((6,), ("mlp",))
    flags = [is_matrix(spec) for spec in (dense, dense.stack(2), small, wide, bias)]
    assert flags == [True, True, True, False, False]


RANK, ALPHA, STEPS, RATE, DECAY = 2, 6.0, 20, 1e-3, 0.1


def adapt(model: Any, entries: Any, low_rank: Any, arrays: Any) -> list[Any]:
    """Makes weights of CREDIT's model W + alpha / rank * B A, and A and B trained.

    Returns (entry, module, adapter) of each.
    """
    import torch

    class Adapter(torch.nn.Module):
        def __init__(self, down: Any, up: Any) -> None:
            super().__init__()
            matrices = (down.reshape(RANK, -1), up.reshape(RANK, -1).T)
            pair = (torch.nn.Parameter(torch.tensor(np.array(m))) for m in matrices)
            self.down, self.up = pair

        def forward(self, weight: Any) -> Any:
            return weight + ALPHA / RANK * (self.up @ self.down).reshape(weight.shape)

    targets = []
    for entry in entries:
        if entry.path in low_rank.targets:
            module = model.get_submodule(entry.key.rpartition(".")[0])
            layer = slice(None) if entry.layer is None else entry.layer
            adapter = Adapter(
                *(arrays[p][layer] for p in low_rank.adapters(entry.path))
            )
            parametrize = torch.nn.utils.parametrize.register_parametrization
            parametrize(module, "weight_orig", adapter)
            targets.append((entry, module, adapter))
    trained = {id(module) for _, module, _ in targets}
    for module in model.modules():
        if hasattr(module, "weight_orig") and id(module) not in trained:
            module.eval()  # no power iteration: u and v of frozen matrices stay
    return targets


@pytest.mark.slow
def test_twenty_steps_follow_torch_on_credits_model(credit: Any) -> None:
    """Gradients of the first step, the losses of all, and the last sums."""
    import torch

    block = {**CASES["wxformer earth"].block, "depth": [2, 0, 0, 0]}
    model, base_def = credit.build_credit(block), build(block)
    model.train()
    x = torch.zeros(base_def.inputs["x"].shape(1))
    with torch.no_grad():  # sigma of fresh vectors may be near 0
        for _ in range(10):
            model(x)
    state_dict = {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}
    params, model_state = from_state_dict(base_def, state_dict)
    lora = {"rank": RANK, "alpha": ALPHA}
    lora |= {"targets": ["*attention/to_*", "*feed_forward*"]}
    section = {"from": "RUN", "lora": lora}
    finetune = parse(FinetuneConfig, section, "trainer.finetune")
    frozen = replace(base_def, frozen=frozen_parameters(base_def, finetune))
    low_rank = low_rank_of(frozen, finetune)
    assert low_rank is not None
    model_def = replace(frozen, low_rank=low_rank)
    rng = np.random.default_rng(1)
    adapters = {
        path: 0.1 * rng.normal(size=spec.shape).astype(np.float32)
        for path, spec in low_rank.param_specs(base_def.param_specs).items()
    }
    entries = key_map_for(base_def).parameters.entries
    targets = adapt(model, entries, low_rank, adapters)
    matrices = [m for *_, adapter in targets for m in (adapter.down, adapter.up)]
    optimizer = torch.optim.AdamW(
        matrices, lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY
    )
    expected, first = [], []
    for fields in batches(model_def, STEPS, 2):
        x, y = (torch.tensor(fields[name][0]) for name in "xy")
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        first = first or [m.grad.numpy().copy() for m in matrices]
        optimizer.step()
        expected.append(float(loss.detach()))
    ours = build_parallel_model(model_def, make_mesh())
    weights = {**params, **adapters}, model_state
    options = {"batch": 2, "weights": weights}
    options["schedule"] = optax.constant_schedule(RATE)
    _, state, _ = train(ours, optax.trace(decay=0.0), 1, **options)
    grads = optax.tree.get(state.opt_state, "trace")
    adam = adamw(weight_decay=DECAY, max_norm=0.0)
    _, state, infos = train(ours, adam, STEPS, **options)
    losses = [info["loss"][0] for info in infos]
    assert_close(losses, expected, 1e-5, "losses")
    assert losses[0] != losses[-1]
    sums = merged(state.params, low_rank, model_def.param_specs)
    pairs = zip(first[::2], first[1::2], strict=True)
    for (entry, module, _), of_pair in zip(targets, pairs, strict=True):
        rows = slice(None) if entry.layer is None else entry.layer
        down, up = (np.asarray(grads[p])[rows] for p in low_rank.adapters(entry.path))
        assert_close(down.reshape(RANK, -1), of_pair[0], 1e-4, f"{entry.path}: A")
        assert_close(up.reshape(RANK, -1).T, of_pair[1], 1e-4, f"{entry.path}: B")
        last = module.weight_orig.detach().numpy()
        last = entry.arrangement.to_ours(last, entry.shape)
        assert_close(sums[entry.path][rows], last, 1e-5, f"{entry.path}: sum")
