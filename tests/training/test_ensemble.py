"""`trainer.ensemble_size`: members by noise, against CREDIT's losses in torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credit_jax.config.loss import LossConfig
from credit_jax.losses import build_loss, error_spread
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import NOISE, ParallelModel
from credit_jax.nn.context import Noise
from credit_jax.ops.random import random_normal
from credit_jax.parallel.placement import place_batch
from credit_jax.parallel.rows.layout import block_layout
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from credit_jax.transforms import Rollout
from tests.support import assert_close, assert_trees_close
from tests.training.noisy import DRAW, Noisy
from tests.training.test_step import rollout_of
from tests.training.toy_runs import CONFIG, HEIGHT, WIDTH, toy_model

# Ten times the measured differences.
VALUE, GRADIENT = 2e-6, 5e-6
SMALL = CONFIG.model_copy(update={"hidden": 8, "use_spectral_norm": False})
NOISY = ModelDef(SMALL, Noisy)
BATCH, MEMBERS = 2, 3
LOSSES: dict[str, dict[str, Any]] = {
    "KCRPS": {},
    "almost-fair-crps": {"alpha": 0.95},
    "mse": {},
    "ring-crps": {},
}
MESHES: dict[str, dict[str, int]] = {
    "one": {},
    "domain4": {"domain": 4},
    "dp2_tp2_domain2": {"dp": 2, "tp": 2, "domain": 2},
    "dp2_domain2": {"dp": 2, "domain": 2},
    "dp4_domain2": {"dp": 4, "domain": 2},
}


@cache
def model_on(mesh: str) -> ParallelModel:
    return toy_model(model_def=NOISY, **MESHES[mesh])


@cache
def batch_of(num_steps: int) -> dict[str, Any]:
    """Returns one micro-batch, on the host."""
    rng = np.random.default_rng(3)

    def field(channels: int, times: int) -> np.ndarray:
        shape = (1, BATCH, channels, times, HEIGHT, WIDTH)
        return rng.normal(size=shape).astype(np.float32)

    x = field(7, 1)
    batch: dict[str, Any] = {"x": x, "y": field(6, num_steps)}
    if num_steps > 1:
        later = field(1, num_steps - 1)
        batch["static"] = {"S": {"S/static/2d/LSM": x[:, :, 5:6]}}
        batch["forcing"] = {"S": {"S/dynamic_forcing/2d/tsi": later}}
    return batch


def ours(
    mesh: str, name: str, num_steps: int, *, members: int, shared: bool
) -> tuple[float, float, Any, Any]:
    """Returns loss, spread, gradient of the first step, and the state before it."""
    model = model_on(mesh)
    section = LossConfig(training_loss=name, training_loss_parameters=LOSSES[name])
    rollout = Rollout(num_members=members)
    if num_steps > 1:
        rollout = rollout_of(num_steps, num_members=members)
    step = make_train_step(
        model,
        optax.trace(0.0),
        build_loss(section, num_members=members),
        rollout=rollout,
        measure=lambda tree, context: {"std": error_spread(tree, context)},
    )
    state = init_state(model, optax.trace(0.0), jax.random.key(0))
    ranks = model.axes.num_data
    order = np.arange(BATCH)
    if not shared:
        # As the sampler assigns them: rank r gets r, r + num_data, ...
        order = order.reshape(-1, ranks).T.ravel()
    batch = jax.tree.map(lambda leaf: leaf[:, order], batch_of(num_steps))
    new, info = step(state, place_batch(batch, model.mesh, shared=shared))
    grads = new.opt_state.trace
    numbers = float(info["loss"][0]), float(info["measured"]["std"][0])
    return *numbers, jax.device_get(grads), state


def draws(state: Any, num_steps: int, numbers: list[int]) -> list[np.ndarray]:
    """Returns the noise of each step for members with these numbers in the batch."""
    found = []
    for index in range(num_steps):
        key = jax.random.fold_in(state.key, 0)
        key = jax.random.fold_in(key, index) if num_steps > 1 else key
        noise = Noise(jax.random.fold_in(key, NOISE)).field(
            random_normal, DRAW, jnp.asarray(numbers), block_layout(HEIGHT), WIDTH, 6
        )
        found.append(np.moveaxis(np.asarray(noise), -1, 1)[:, :, None])
    return found


def in_torch(
    criterion: Any, state: Any, num_steps: int, ranks: list[list[int]], members: int
) -> tuple[float, float, dict[str, np.ndarray]]:
    """Returns mean loss, spread, gradient of CREDIT's step on ranks sharing a batch."""
    import torch

    params = state.params
    own = {
        k: torch.tensor(np.asarray(v), requires_grad=True) for k, v in params.items()
    }
    up, down, bias, spread = (
        own[f"dense/{name}"] for name in ("up", "down", "bias", "spread")
    )
    batch = jax.tree.map(lambda leaf: torch.tensor(leaf[0]), batch_of(num_steps))
    total, std = 0.0, []
    fields = [torch.repeat_interleave(batch["x"], members, 0) for _ in ranks]
    noises = [draws(state, num_steps, numbers) for numbers in ranks]
    for t in range(num_steps):
        target, predictions = batch["y"][:, :, t : t + 1], []
        for rank, x in enumerate(fields):
            hidden = torch.tanh(torch.einsum("bctyx,ch->bhtyx", x, up))
            out = torch.einsum("bhtyx,hc->bctyx", hidden, down)
            noise = torch.tensor(noises[rank][t])
            of_channel = (1, -1, 1, 1, 1)
            noise = spread.reshape(of_channel) * noise
            predictions.append(out + bias.reshape(of_channel) + noise)
        losses = criterion(target, predictions)
        total = total + sum(losses) / len(losses)
        errors = torch.cat(predictions) - torch.repeat_interleave(
            target, members, 0
        ).repeat(len(ranks), 1, 1, 1, 1)
        std.append(errors.std().item())
        if t + 1 < num_steps:
            forcing = batch["forcing"]["S"]["S/dynamic_forcing/2d/tsi"][:, :, t : t + 1]
            kept = torch.cat([batch["x"][:, 5:6], forcing], 1)
            kept = torch.repeat_interleave(kept, members, 0)
            fields = [torch.cat([p[:, :5].detach(), kept], 1) for p in predictions]
    total.backward()
    return total.item(), sum(std), {k: v.grad.numpy() for k, v in own.items()}


def credit_criterion(name: str) -> Any:
    """Returns CREDIT's loss on each rank, as its trainer computes it."""
    import torch
    from credit.losses import _load_loss_entry

    if name == "mse":
        # CREDIT's shapes broadcast for one sample only.
        def mse(target: Any, prediction: Any) -> Any:
            times = len(prediction) // len(target)
            return (prediction - torch.repeat_interleave(target, times, 0)) ** 2

        loss = mse
    else:
        loss = _load_loss_entry(name)(reduction="none", **LOSSES[name])
    return lambda target, predictions: [
        loss(target.flatten(1, 2), p.flatten(1, 2)).mean() for p in predictions
    ]


# Loss, steps, mesh, members, and those of each rank where ranks share their samples, as
# in CREDIT's CRPS training; otherwise every rank has different samples.
SHARED = [[(i * 2 + r) * 2 + m for i in (0, 1) for m in (0, 1)] for r in (0, 1)]
TRAINED = {
    **{
        f"KCRPS-{steps}-{mesh}": ("KCRPS", steps, mesh, MEMBERS, None)
        for steps in (1, 2)
        for mesh in ("one", "domain4", "dp2_tp2_domain2")
    },
    "almost-fair-crps": ("almost-fair-crps", 1, "one", MEMBERS, None),
    "mse": ("mse", 1, "one", MEMBERS, None),
    "shared": ("KCRPS", 1, "dp2_domain2", 2, SHARED),
}


@pytest.mark.slow(but=["KCRPS-2-dp2_tp2_domain2", "mse", "shared"])
@pytest.mark.parametrize("case", TRAINED)
@pytest.mark.usefixtures("credit")
def test_members(case: str) -> None:
    """Results are equal on every mesh."""
    name, num_steps, mesh, members, shared = TRAINED[case]
    value, std, grads, state = ours(
        mesh, name, num_steps, members=members, shared=shared is not None
    )
    ranks, criterion = shared or [[*range(BATCH * members)]], credit_criterion(name)
    expected, spread, gradient = in_torch(criterion, state, num_steps, ranks, members)
    assert_close(value, expected, VALUE, f"{case}: loss")
    assert_close(std, spread, VALUE, f"{case}: spread")
    assert_trees_close(grads, gradient, GRADIENT, f"{case}: gradient")


@pytest.mark.slow
@pytest.mark.usefixtures("credit")
def test_a_member_on_each_rank() -> None:
    """`ring-crps`: values of CREDIT's formula, and the gradient of KCRPS over ranks."""
    value, _, grads, state = ours("dp4_domain2", "ring-crps", 1, members=1, shared=True)
    numbers = [[i * 4 + r for i in range(BATCH)] for r in range(4)]

    def ring(target: Any, predictions: Any) -> Any:
        others = [p.detach() for p in predictions]
        return [
            (((p - target).abs() - sum((p - o).abs() for o in others) / 3) / 4).mean()
            for p in predictions
        ]

    expected, _, gradient = in_torch(ring, state, 1, numbers, 1)
    assert_close(value, expected, VALUE, "ring-crps: loss")
    assert_trees_close(grads, gradient, GRADIENT, "ring-crps: gradient")
    # The members of a sample on one rank have the same numbers.
    members = [[*range(BATCH * 4)]]
    _, _, fair = in_torch(credit_criterion("KCRPS"), state, 1, members, 4)
    fair = {path: gradient / 4 for path, gradient in fair.items()}
    assert_trees_close(grads, fair, GRADIENT, "ring-crps: gradient of KCRPS over 4")
