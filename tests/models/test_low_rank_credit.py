"""Low-rank adapters against plain PyTorch on CREDIT's own model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch

from credit_jax.config import parse
from credit_jax.config.finetune import FinetuneConfig
from credit_jax.models.conversion import from_state_dict, key_map_for
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model, place_weights
from credit_jax.models.registry import build
from credit_jax.nn.low_rank import LowRank, merged
from credit_jax.plan.finetune import frozen_parameters, low_rank_of
from credit_jax.training.optimizer import BETAS, EPSILON, adamw
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.models.cases import CASES
from tests.reference.cases import build_credit
from tests.support import assert_close, make_mesh
from tests.training.toy_runs import mse

BLOCK = {**CASES["wxformer earth"].block, "depth": [2, 0, 0, 0]}
RANK, ALPHA, STEPS, RATE, DECAY = 2, 6.0, 20, 1e-3, 0.1
LORA = {
    "rank": RANK,
    "alpha": ALPHA,
    "targets": ["*attention/to_*", "*feed_forward*"],
}


class TorchAdapters:
    """CREDIT's model with W + alpha / rank * B A in its modules.

    Args of the constructor:
        model: CREDIT's model.
        model_def: the same model here, without adapters.
        low_rank: matrices with adapters.
        arrays: first adapters by path, in the layout of credit_jax.
    """

    def __init__(
        self,
        model: Any,
        model_def: ModelDef,
        low_rank: LowRank,
        arrays: dict[str, np.ndarray],
    ) -> None:
        self.model, self.targets = model, []
        model.train()
        for entry in key_map_for(model_def).parameters.entries:
            module = model.get_submodule(entry.key.rpartition(".")[0])
            if entry.path in low_rank.targets:
                layer = slice(None) if entry.layer is None else entry.layer
                down, up = (arrays[p][layer] for p in low_rank.adapters(entry.path))
                pair = [
                    torch.nn.Parameter(torch.tensor(np.array(matrix)))
                    for matrix in (down.reshape(RANK, -1), up.reshape(RANK, -1).T)
                ]
                weight = module._parameters.pop("weight_orig").detach()
                self.targets.append((entry, module, weight, pair))
        trained = {id(module) for _, module, _, _ in self.targets}
        for module in model.modules():
            if hasattr(module, "weight_orig") and id(module) not in trained:
                module.eval()  # no power iteration: u and v of frozen matrices stay

    def __call__(self, x: Any) -> Any:
        for _, module, weight, (down, up) in self.targets:
            added = (up @ down).reshape(weight.shape)
            module.weight_orig = weight + ALPHA / RANK * added
        return self.model(x)

    @property
    def parameters(self) -> list[Any]:
        return [matrix for *_, pair in self.targets for matrix in pair]

    def gradients(self) -> dict[tuple[str, int | None], list[np.ndarray]]:
        return {
            (entry.path, entry.layer): [matrix.grad.numpy().copy() for matrix in pair]
            for entry, _, _, pair in self.targets
        }

    def sums(self) -> dict[tuple[str, int | None], np.ndarray]:
        """The sums in the layout of credit_jax."""
        return {
            (entry.path, entry.layer): entry.arrangement.to_ours(
                (weight + ALPHA / RANK * (up @ down).reshape(weight.shape))
                .detach()
                .numpy(),
                entry.shape,
            )
            for entry, _, weight, (down, up) in self.targets
        }


@pytest.mark.slow
def test_twenty_steps_follow_torch_on_credits_model(credit: Any) -> None:
    """Gradients of the first step, the losses of all, and the last sums."""
    model, base_def = build_credit(BLOCK), build(BLOCK)
    model.train()
    x = torch.zeros(base_def.inputs["x"].shape(1))
    with torch.no_grad():  # sigma of fresh vectors may be near 0
        for _ in range(10):
            model(x)
    state_dict = {k: v.detach().numpy().copy() for k, v in model.state_dict().items()}
    params, model_state = from_state_dict(base_def, state_dict)
    section = {"from": "RUN", "lora": LORA}
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
    fields = [
        rng.normal(size=(STEPS, *spec.shape(2))).astype(np.float32)
        for spec in (model_def.inputs["x"], model_def.output)
    ]

    theirs = TorchAdapters(model, base_def, low_rank, adapters)
    optimizer = torch.optim.AdamW(
        theirs.parameters, lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY
    )
    expected, first = [], {}
    for x, y in zip(*map(torch.tensor, fields), strict=True):
        optimizer.zero_grad()
        loss = ((theirs(x) - y) ** 2).mean()
        loss.backward()
        first = first or theirs.gradients()
        optimizer.step()
        expected.append(float(loss.detach()))

    def start(chosen: Any) -> Any:
        ours = build_parallel_model(model_def, make_mesh())
        placed = place_weights(ours, {**params, **adapters}, model_state)
        schedule = optax.constant_schedule(RATE)
        step = make_train_step(ours, chosen, mse, schedule=schedule)
        return step, init_state(ours, chosen, jax.random.key(0), weights=placed)

    batches = [{"x": x[None], "y": y[None]} for x, y in zip(*fields, strict=True)]
    step, state = start(optax.trace(decay=0.0))
    grads = optax.tree.get(step(state, batches[0])[0].opt_state, "trace")
    for (path, layer), pair in first.items():
        rows = slice(None) if layer is None else layer
        down, up = (np.asarray(grads[p])[rows] for p in low_rank.adapters(path))
        assert_close(down.reshape(RANK, -1), pair[0], 1e-4, f"{path}: A")
        assert_close(up.reshape(RANK, -1).T, pair[1], 1e-4, f"{path}: B")
    step, state = start(adamw(weight_decay=DECAY, max_norm=0.0))
    losses = []
    for batch in batches:
        state, info = step(state, batch)
        losses.append(float(info["loss"][0]))
    assert_close(np.array(losses), np.array(expected), 1e-5, "losses")
    assert losses[0] != losses[-1]
    sums = jax.device_get(merged(state.params, low_rank, model_def.param_specs))
    for (path, layer), theirs_sum in theirs.sums().items():
        rows = slice(None) if layer is None else layer
        assert_close(sums[path][rows], theirs_sum, 1e-5, f"{path}: sum")
