"""A Gaussian diffusion process: noised targets, and samplers that remove the noise.

Ho et al. (2020), with v-prediction of Salimans and Ho (2022); credit/diffusion.py. With
a = alpha_bar(t), a noised target is x_t = sqrt(a) x_0 + sqrt(1 - a) e.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from credit_jax.models.common.config import FieldSpec
from credit_jax.nn.context import Context
from credit_jax.ops.custom_vjp import pvary
from credit_jax.parallel.rows.layout import Field

PerStep = Float[np.ndarray, " step"]
# Largest beta of the cosine and the sigmoid schedule.
LARGEST_BETA = 0.999


def linear_betas(timesteps: int) -> PerStep:
    """Linear schedule, betas from 0.1 / T to 20 / T: Ho et al. (2020) scaled to T."""
    scale = 1000 / timesteps
    return np.linspace(scale * 0.0001, scale * 0.02, timesteps)


def cosine_betas(timesteps: int, s: float = 0.008) -> PerStep:
    """Cosine schedule: Nichol and Dhariwal (2021).

    alpha_bar(t) is proportional to cos^2((t / T + s) / (1 + s) pi / 2).
    """
    t = np.linspace(0, timesteps, timesteps + 1) / timesteps
    return _betas_of(np.cos((t + s) / (1 + s) * np.pi * 0.5) ** 2)


def sigmoid_betas(
    timesteps: int, start: float = -3, end: float = 3, tau: float = 1
) -> PerStep:
    """Sigmoid schedule: Jabri et al. (2022), figure 8.

    alpha_bar(t) follows a sigmoid from `start` to `end` with temperature `tau`. The
    values at both ends are computed in float32, as in CREDIT.
    """
    t = np.linspace(0, timesteps, timesteps + 1) / timesteps
    first, last = (
        np.float64(np.float32(1.0 / (1.0 + np.exp(-np.float64(np.float32(x / tau))))))
        for x in (start, end)
    )
    inner = (t * (end - start) + start) / tau
    return _betas_of((-1.0 / (1.0 + np.exp(-inner)) + last) / (last - first))


SCHEDULES: Mapping[str, Callable[..., PerStep]] = {
    "linear": linear_betas,
    "cosine": cosine_betas,
    "sigmoid": sigmoid_betas,
}


def _betas_of(alphas_cumprod: Float[np.ndarray, " edge"]) -> PerStep:
    """Returns betas from alpha_bar at the T + 1 edges of the steps."""
    relative = alphas_cumprod / alphas_cumprod[0]
    return np.clip(1 - relative[1:] / relative[:-1], 0, LARGEST_BETA)


def tables(
    betas: PerStep, objective: str, largest_snr: float | None
) -> dict[str, PerStep]:
    """Returns all quantities that depend only on the step, float32, in CREDIT's order.

    Args:
        largest_snr: maximum signal-to-noise ratio in "loss_weight" (Hang et al., 2023);
            None for no maximum.
    """
    alphas = 1.0 - betas
    product = np.cumprod(alphas)
    previous = np.concatenate([[1.0], product[:-1]])
    variance = betas * (1.0 - previous) / (1.0 - product)
    snr = product / (1 - product)
    clipped = snr if largest_snr is None else np.minimum(snr, largest_snr)
    weights = {
        "pred_noise": clipped / snr,
        "pred_x0": clipped,
        "pred_v": clipped / (snr + 1),
    }
    wide = {
        "betas": betas,
        "alphas_cumprod": product,
        "alphas_cumprod_prev": previous,
        "sqrt_alphas_cumprod": np.sqrt(product),
        "sqrt_one_minus_alphas_cumprod": np.sqrt(1.0 - product),
        "log_one_minus_alphas_cumprod": np.log(1.0 - product),
        "sqrt_recip_alphas_cumprod": np.sqrt(1.0 / product),
        "sqrt_recipm1_alphas_cumprod": np.sqrt(1.0 / product - 1),
        "posterior_variance": variance,
        "posterior_log_variance_clipped": np.log(np.maximum(variance, 1e-20)),
        "posterior_mean_coef1": betas * np.sqrt(previous) / (1.0 - product),
        "posterior_mean_coef2": (1.0 - previous) * np.sqrt(alphas) / (1.0 - product),
        "loss_weight": weights[objective],
    }
    return {name: table.astype(np.float32) for name, table in wide.items()}


def ddim_times(timesteps: int, samples: int) -> list[int]:
    """Returns the steps of DDIM, from T - 1 down to -1, which is the sample itself.

    They are `samples` + 1 numbers from -1 to T - 1, equally spaced in float32 as by
    torch.linspace (each half from its end, with product and sum rounded once), then
    truncated towards 0.
    """
    first, last = np.float64(-1), np.float64(timesteps - 1)
    step = np.float64(np.float32(last - first) / np.float32(samples))
    index = np.arange(samples + 1)
    upward, downward = first + step * index, last - step * (samples - index)
    spaced = np.where(index < (samples + 1) // 2, upward, downward)
    return [int(time) for time in spaced.astype(np.float32)[::-1]]


# Additional inputs of the network: the noised target, and the step t of its noise.
NOISED, TIME = "noised", "time"

# Local samples and rows, in equal blocks.
NoisySample = Float[Array, "batch channel 1 rows lon"]
# (x_t, step) -> output of the network.
Network = Callable[[Array, Array], Array]

# Range of the standard deviation of log-uniform noise.
SMALLEST_SIGMA, LARGEST_SIGMA = 0.02, 200.0


class Noised(NamedTuple):
    """Training data of the network.

    Attributes:
        x: the noised target.
        time: (batch, 1) float, step t of the noise.
        target: the desired output of the network.
        weights: (batch,), weight of each sample in the loss.
    """

    x: NoisySample
    time: Float[Array, "batch 1"]
    target: NoisySample
    weights: Float[Array, " batch"]


@dataclass(frozen=True)
class Process:
    """A Gaussian diffusion process, see the module.

    Attributes:
        output: spec of a target.
        betas: variances that the T steps add, float64.
        objective: "pred_noise", "pred_x0" or "pred_v".
        num_samples: number of network evaluations for a sample, 0 to T.
        log_uniform: whether noise is scaled by a random factor at each point.
        eta: strength of the noise that DDIM adds.
        offset: strength of noise in training that is constant over all points.
        largest_snr: maximum signal-to-noise ratio in the weights of the loss; None for
            no maximum.
        clip: whether samplers clip the inferred target to [-1, 1].
    """

    output: FieldSpec
    betas: tuple[float, ...]
    objective: str
    num_samples: int
    log_uniform: bool = False
    eta: float = 0.0
    offset: float = 0.0
    largest_snr: float | None = None
    clip: bool = True

    @property
    def num_steps(self) -> int:
        """Number of steps T."""
        return len(self.betas)

    @cached_property
    def tables(self) -> dict[str, Float[np.ndarray, " step"]]:
        """The buffers of CREDIT's checkpoints, float32; see `schedule.tables`."""
        return tables(np.array(self.betas), self.objective, self.largest_snr)

    def noised(self, target: NoisySample, context: Context) -> Noised:
        """Adds the noise of a random step to each sample of a target.

        Draws "time", "noise", with `log_uniform` "noise scale", and with an `offset`
        "noise offset" from the noise of the context.
        """
        batch, channels = target.shape[:2]
        time = context.uniform_integer("time", batch, self.num_steps)
        noise = self._noise("noise", batch, context).astype(target.dtype)
        if self.offset > 0:
            offset = context.normal_vector("noise offset", batch, channels)
            offset = offset.astype(target.dtype)[:, :, None, None, None]
            noise = noise + self.offset * offset
        at = {name: jnp.asarray(table)[time] for name, table in self.tables.items()}

        def of(name: str) -> Array:
            return at[name].astype(target.dtype)[:, None, None, None, None]

        signal, remainder = (
            of("sqrt_alphas_cumprod"),
            of("sqrt_one_minus_alphas_cumprod"),
        )
        targets = {
            "pred_noise": noise,
            "pred_x0": target,
            "pred_v": signal * noise - remainder * target,
        }
        return Noised(
            signal * target + remainder * noise,
            time[:, None].astype(target.dtype),
            targets[self.objective],
            at["loss_weight"],
        )

    def sample(self, network: Network, batch: int, context: Context) -> NoisySample:
        """Draws samples by DDPM or DDIM, with a `lax.scan` over the steps.

        With `num_samples` 0, the samples are the initial noise.

        Draws "start", and "step" at every step that adds noise, with the index of the
        step folded into the key. The sampler computes in float32 or wider.
        """
        dtype = context.precision.wide
        start = self._noise("start", batch, context).astype(dtype)
        start = pvary(start, context.axes.batch)
        if not self.num_samples:
            return start
        if self.num_samples < self.num_steps:
            step, tables = self._ddim, self._ddim_tables
        else:
            step, tables = self._ddpm, self._ddpm_tables

        def body(x: Array, at: Mapping[str, Array]) -> tuple[Array, None]:
            time = at["time"]
            at = {name: number.astype(dtype) for name, number in at.items()}
            output = network(x, jnp.full((batch, 1), time, dtype)).astype(dtype)
            step_context = context.fold_in(time)
            return step(x, output, at, step_context), None

        return lax.scan(body, start, jax.tree.map(jnp.asarray, tables))[0]

    def _noise(self, name: str, batch: int, context: Context) -> Array:
        """Draws noise at every point and channel of the local part of a target."""
        output, rows = self.output, context.rows(self.output.height)
        shape = batch, rows.length, output.width, output.channels
        field = Field(jnp.zeros(shape), rows)
        noise = context.normal_field(name, field)
        if self.log_uniform:
            smallest, largest = np.log((SMALLEST_SIGMA, LARGEST_SIGMA))
            uniform = context.uniform_field(f"{name} scale", field).astype(noise.dtype)
            noise = noise * jnp.exp(smallest + (largest - smallest) * uniform)
        return noise.transpose(0, 3, 1, 2)[:, :, None]

    @cached_property
    def _ddpm_tables(self) -> dict[str, np.ndarray]:
        """Tables by step, from T - 1 down to 0."""
        down = {name: table[::-1] for name, table in self.tables.items()}
        return {**down, "time": np.arange(self.num_steps, dtype=np.int32)[::-1]}

    @cached_property
    def _ddim_tables(self) -> dict[str, np.ndarray]:
        """Tables at the steps of DDIM, and the factors of the terms of a step."""
        times = ddim_times(self.num_steps, self.num_samples)
        time, following = np.array(times[:-1]), np.array(times[1:])
        product = self.tables["alphas_cumprod"].astype(np.float64)
        # The last step, to -1, is the inferred target itself.
        now, after = product[time], np.where(following < 0, 1.0, product[following])
        sigma = self.eta * np.sqrt((1 - now / after) * (1 - after) / (1 - now))
        return {
            **{name: table[time] for name, table in self.tables.items()},
            "time": time.astype(np.int32),
            "target": np.sqrt(after),
            "noise": np.sqrt(np.maximum(1 - after - sigma**2, 0)),
            "sigma": sigma,
        }

    def _ddpm(
        self, x: Array, output: Array, at: Mapping[str, Array], context: Context
    ) -> Array:
        """Draws x_{t-1} from its distribution given x_t and the inferred target."""
        target, _ = self._inferred(x, output, at)
        mean = at["posterior_mean_coef1"] * target + at["posterior_mean_coef2"] * x
        deviation = jnp.exp(0.5 * at["posterior_log_variance_clipped"])
        noise = self._noise("step", len(x), context).astype(x.dtype)
        return mean + jnp.where(at["time"] > 0, deviation, 0.0) * noise

    def _ddim(
        self, x: Array, output: Array, at: Mapping[str, Array], context: Context
    ) -> Array:
        """Returns x at the next step of DDIM: Song et al. (2021)."""
        target, noise = self._inferred(x, output, at)
        x = at["target"] * target + at["noise"] * noise
        if self.eta == 0:
            return x
        return x + at["sigma"] * self._noise("step", len(x), context).astype(x.dtype)

    def _inferred(
        self, x: Array, output: Array, at: Mapping[str, Array]
    ) -> tuple[Array, Array]:
        """Infers the target and the noise from an output of the network."""
        recip, recipm1 = (
            at["sqrt_recip_alphas_cumprod"],
            at["sqrt_recipm1_alphas_cumprod"],
        )
        if self.objective == "pred_noise":
            target = recip * x - recipm1 * output
        elif self.objective == "pred_x0":
            target = output
        else:
            target = (
                at["sqrt_alphas_cumprod"] * x
                - at["sqrt_one_minus_alphas_cumprod"] * output
            )
        if self.clip:
            target = jnp.clip(target, -1.0, 1.0)
        elif self.objective == "pred_noise":
            return target, output
        return target, (recip * x - target) / recipm1
