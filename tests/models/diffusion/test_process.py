"""The diffusion process against CREDIT's, with a one-line network."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.models.common.config import FieldSpec
from credit_jax.models.diffusion.process import (
    SCHEDULES,
    DiffusionConfig,
    Process,
    ddim_times,
)
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Context, Noise
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.layout import block_layout
from tests.support import assert_close

pytestmark = pytest.mark.reference

OUTPUT = FieldSpec(channels=3, frames=1, height=5, width=4)
BATCH = 4
SHAPE = OUTPUT.shape(BATCH)


def _process_of_credit(credit: Any, keys: dict[str, Any]) -> Any:
    import torch

    from credit_torch_bridge.compare.jax_side import import_credit

    class Network(torch.nn.Module):
        channels, input_channels, output_channels, frames = 3, 3, 3, 1
        self_condition, condition = False, True

        def forward(self, x: Any, t: Any, x_self_cond: Any, x_cond: Any) -> Any:
            return 0.5 * x + 0.1 * x_cond + 0.01 * t[:, None, None, None, None]

    # As in `credit_torch_bridge.compare.credit_side.new_credit_model`.
    diffusion = import_credit("diffusion")
    is_instance = lambda *args: len(args) == 2 and isinstance(*args)  # noqa: E731
    with mock.patch.object(diffusion, "isinstance", is_instance, create=True):
        return diffusion.ModifiedGaussianDiffusion(Network(), **keys)


def _network(x_cond: np.ndarray) -> Any:
    return lambda x, time: 0.5 * x + 0.1 * x_cond + 0.01 * time[:, :, None, None, None]


def _process(**keys: Any) -> tuple[dict[str, Any], Any]:
    keys = {"image_size": [5, 4], **keys}
    return keys, Process(DiffusionConfig(**keys), OUTPUT)


OBJECTIVES = pytest.mark.parametrize("objective", ["pred_noise", "pred_x0", "pred_v"])


@pytest.mark.parametrize("schedule", SCHEDULES)
@OBJECTIVES
@pytest.mark.parametrize("clipped", [False, True])
def test_tables_are_credit_s_buffers_bit_for_bit(
    credit: Any, schedule: str, objective: str, clipped: bool
) -> None:
    more = {"sigmoid": {"start": -2, "tau": 0.7}, "cosine": {"s": 0.02}}
    for timesteps, arguments in ((1000, {}), (50, more.get(schedule, {}))):
        keys, process = _process(
            timesteps=timesteps,
            beta_schedule=schedule,
            objective=objective,
            min_snr_loss_weight=clipped,
            schedule_fn_kwargs=arguments,
        )
        theirs = _process_of_credit(credit, keys).state_dict()
        assert list(process.tables) == list(theirs)
        for name, table in process.tables.items():
            np.testing.assert_array_equal(table, theirs[name].numpy(), err_msg=name)


def test_the_steps_of_ddim_are_credit_s() -> None:
    import torch

    for timesteps in (2, 16, 32, 50, 101, 1000):
        for samples in range(1, timesteps):
            spaced = torch.linspace(-1, timesteps - 1, steps=samples + 1)
            assert ddim_times(timesteps, samples) == spaced.int().tolist()[::-1]


def _drawn(process: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    nhwc = BATCH, OUTPUT.height, OUTPUT.width, OUTPUT.channels
    drawn = {name: rng.normal(size=nhwc) for name in ("noise", "start", "step")}
    drawn |= {f"{name} scale": rng.uniform(size=nhwc) for name in drawn}
    drawn["noise offset"] = rng.normal(size=(BATCH, OUTPUT.channels))
    drawn = {name: array.astype(np.float32) for name, array in drawn.items()}
    count = len(process.betas)
    return {**drawn, "time": np.array([0, 1, count // 2, count - 1], np.int32)}


def _context(drawn: Any = None) -> Context:
    """Returns the context of a forward with these draws."""
    arrays = jax.tree.map(jnp.asarray, drawn or {})
    return Context(noise=Noise(jax.random.key(0), arrays))


def _fields(drawn: dict[str, np.ndarray], name: str, process: Any) -> Any:
    """Returns the noise of a call site in CREDIT's layout."""
    import torch

    noise = drawn[name]
    if process.config.noise_type == "log-uniform":
        low, high = np.log(0.02), np.log(200.0)
        noise = noise * np.exp(low + (high - low) * drawn[f"{name} scale"])
    return torch.from_numpy(noise.transpose(0, 3, 1, 2)[:, :, None].copy()).float()


@OBJECTIVES
@pytest.mark.parametrize("noise_type", ["normal", "log-uniform"])
def test_the_loss_of_a_noised_target_is_credit_s(
    credit: Any, objective: str, noise_type: str
) -> None:
    """With weights of latitudes and of noise steps."""
    import torch

    keys, process = _process(
        timesteps=60,
        objective=objective,
        noise_type=noise_type,
        min_snr_loss_weight=True,
        min_snr_gamma=3.0,
    )
    rng, drawn = np.random.default_rng(1), _drawn(process)
    x0, x_cond = (rng.normal(size=SHAPE).astype("f") for _ in range(2))
    weights = np.linspace(0.5, 1.5, OUTPUT.height).astype("f")
    theirs = _process_of_credit(credit, keys)
    mse = torch.nn.MSELoss(reduction="none")
    latitude = {"lat_weights": torch.from_numpy(weights), "var_weights": None}
    theirs.load_loss(SimpleNamespace(loss_fn=mse, **latitude))
    output, target, loss = theirs.p_losses(
        torch.from_numpy(x0),
        torch.from_numpy(drawn["time"]).long(),
        torch.from_numpy(x_cond),
        noise=_fields(drawn, "noise", process),
    )
    noised = process.noised(jnp.asarray(x0), _context(drawn))
    ours = _network(x_cond)(noised.x, noised.time)
    assert_close(np.asarray(noised.target), target.numpy(), 1e-6, "target")
    assert_close(np.asarray(ours), output.numpy(), 1e-6, "output")
    reducer = FieldReducer(block_layout(OUTPUT.height, dim=3), MeshAxes())
    context = replace(
        FieldContext(reducer, row_weights=weights), sample_weights=noised.weights
    )
    value = context.mean((ours - noised.target) ** 2)
    assert_close(np.asarray(value), loss.numpy(), 1e-6, "loss")


def test_offset_noise_is_equal_at_all_points() -> None:
    """CREDIT's offset has a shape that does not broadcast to fields of five dims."""
    _, process = _process(timesteps=60, offset_noise_strength=0.1)
    _, without = _process(timesteps=60)
    drawn = _drawn(process)
    context, x0 = _context(drawn), jnp.zeros(SHAPE)
    added = process.noised(x0, context).x - without.noised(x0, context).x
    factor = process.tables["sqrt_one_minus_alphas_cumprod"][drawn["time"]]
    wanted = 0.1 * factor[:, None] * drawn["noise offset"]
    wanted = np.broadcast_to(wanted[:, :, None, None, None], SHAPE)
    np.testing.assert_allclose(added, wanted, atol=1e-6)


@OBJECTIVES
@pytest.mark.parametrize(
    "keys",
    [
        {"timesteps": 50},
        {"timesteps": 50, "sampling_timesteps": 7},
        {"timesteps": 50, "sampling_timesteps": 20, "ddim_sampling_eta": 0.7},
        {"timesteps": 1000, "sampling_timesteps": 1, "noise_type": "log-uniform"},
        {"timesteps": 50, "sampling_timesteps": 0},
    ],
)
def test_samplers_are_credit_s(
    credit: Any, objective: str, keys: dict[str, Any]
) -> None:
    import torch

    keys, process = _process(objective=objective, **keys)
    drawn = _drawn(process)
    theirs = _process_of_credit(credit, keys)
    start, step = (_fields(drawn, name, process) for name in ("start", "step"))
    theirs.randn_like_fn = lambda shape=None, tensor=None, device=None: (
        step if shape is None else start
    ).clone()
    x_cond = np.random.default_rng(1).normal(size=SHAPE).astype("f")
    wanted = theirs.sample(torch.from_numpy(x_cond), batch_size=BATCH)
    ours = process.sample(_network(x_cond), BATCH, _context(drawn))
    assert_close(np.asarray(ours), wanted.numpy(), 2e-6, f"{objective} {keys}")


@pytest.mark.parametrize("samples", [None, 10])
def test_without_the_clamp_a_sample_leaves_the_unit_interval(
    samples: int | None,
) -> None:
    """A network that always infers 3 samples 3, or 1 with CREDIT's clamp."""
    keys = {"timesteps": 50, "sampling_timesteps": samples, "objective": "pred_x0"}
    for clip, expected in ((True, 1.0), (False, 3.0)):
        _, process = _process(clip_denoised=clip, **keys)
        three = process.sample(lambda x, _: jnp.full_like(x, 3.0), 1, _context())
        np.testing.assert_allclose(three, expected, atol=1e-4)


def test_steps_and_noise_have_their_distributions() -> None:
    _, process = _process(timesteps=40, noise_type="log-uniform")
    context = Context(noise=Noise(jax.random.key(1)))
    times = np.asarray(context.uniform_integer("time", 4000, 40))
    counts = np.bincount(times, minlength=40)
    assert (len(counts), counts.min() > 60, counts.max() < 145) == (40, True, True)
    noise = np.asarray(process._noise("noise", 400, context))
    assert abs(noise.mean()) < 4.0
    spread = np.log(np.abs(noise)).std()
    # ln|e|, whose standard deviation is 1.11, plus a uniform number of width ln 10^4.
    assert abs(spread - np.hypot(1.11, np.log(1e4) / np.sqrt(12))) < 0.05
