"""A Gaussian diffusion process: noised targets, samplers, and `model.diffusion`.

Ho et al. (2020), with v-prediction of Salimans and Ho (2022); credit/diffusion.py. With
a = alpha_bar(t), a noised target is x_t = sqrt(a) x_0 + sqrt(1 - a) e.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from pydantic import Field as Key
from pydantic import PositiveInt, model_validator

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.models.common import config as common
from credit_jax.nn.context import Context
from credit_jax.ops.custom_vjp import pvary
from credit_jax.parallel.rows.layout import Field

# Minimum number of steps of the linear schedule: with fewer, betas are above 1.
FEWEST_LINEAR = 21


class DiffusionConfig(StrictModel):
    """Arguments of CREDIT's GaussianDiffusion, with its defaults.

    Attributes:
        image_size: size (lat, lon) of the grid; an integer for both.
        timesteps: number of steps T of the process.
        sampling_timesteps: number of network evaluations for a sample: fewer than T for
            DDIM; T or None for DDPM. With 0 a sample is the noise itself, as in CREDIT,
            one of whose example configs sets it.
        objective: prediction of the network: the noise, the target, or v.
        beta_schedule: "sigmoid", "linear" or "cosine".
        schedule_fn_kwargs: arguments of the schedule.
        noise_type: "normal", or "log-uniform" for normal noise times e^u, with u
            uniform from ln 0.02 to ln 200 at every point.
        ddim_sampling_eta: strength of the noise that DDIM adds, 0 for no noise.
        offset_noise_strength: strength of additional noise in training that is constant
            over all points.
        min_snr_loss_weight, min_snr_gamma: whether to clip the signal-to-noise ratio in
            the weights of the loss, and its maximum.
        condition: whether the input is given to the network; only True.
        clip_denoised: whether samplers clip the inferred target to [-1, 1], as CREDIT
            does although data are standardized. Not in CREDIT.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "auto_normalize": "CREDIT has its effect commented out",
    }
    unavailable: ClassVar[Mapping[str, Unavailable]] = {
        "immiscible": Unavailable("remove the key", harmless=(False,)),
        "self_condition": Unavailable(
            "CREDIT's networks have no channels for it; remove the key",
            harmless=(False,),
        ),
    }

    image_size: common.Both
    timesteps: PositiveInt = 1000
    sampling_timesteps: int | None = None
    objective: Literal["pred_noise", "pred_x0", "pred_v"] = "pred_v"
    beta_schedule: Literal["sigmoid", "linear", "cosine"] = "sigmoid"
    schedule_fn_kwargs: dict[str, float] = Key(default_factory=dict)
    noise_type: Literal["normal", "log-uniform"] = "normal"
    ddim_sampling_eta: float = Key(0.0, ge=0.0, le=1.0)
    offset_noise_strength: float = 0.0
    min_snr_loss_weight: bool = False
    min_snr_gamma: float = 5.0
    condition: bool = True
    clip_denoised: bool = True

    def without_effect(self) -> dict[str, str]:
        """Returns a sampler without steps; see `StrictModel.without_effect`."""
        if self.sampling_timesteps != 0:
            return {}
        why = (
            "with 0 a sample is the noise itself, as in CREDIT, and the network has no "
            "part in validation and forecasts; give 1 to timesteps, or null for all"
        )
        return {"sampling_timesteps": why}

    @model_validator(mode="after")
    def _fits(self) -> DiffusionConfig:
        """Checks the steps and the arguments of the schedule."""
        problems, steps = [], self.sampling_timesteps
        if not self.condition:
            problems.append(
                "condition is false; expected true: without the input there is nothing "
                "to forecast from, and CREDIT's samplers fail"
            )
        if steps is not None and not 0 <= steps <= self.timesteps:
            problems.append(
                f"sampling_timesteps is {steps}; expected 1 to timesteps = "
                f"{self.timesteps}, or null for all of them"
            )
        if self.beta_schedule == "linear" and self.timesteps < FEWEST_LINEAR:
            problems.append(
                f"timesteps is {self.timesteps}; expected at least {FEWEST_LINEAR}: "
                "the last beta of the linear schedule, 20 / timesteps, is below 1"
            )
        schedule = SCHEDULES[self.beta_schedule]
        available = list(inspect.signature(schedule).parameters)[1:]
        if self.beta_schedule == "sigmoid":
            available.append("clamp_min")  # which CREDIT takes and does not read
        problems += [
            f"schedule_fn_kwargs has {name!r}; the {self.beta_schedule} schedule takes "
            f"{', '.join(available) or 'none'}"
            for name in self.schedule_fn_kwargs
            if name not in available
        ]
        if problems:
            raise ValueError("; and ".join(problems))
        return self


class DiffusionKeys(common.ModelConfig):
    """Keys of a model whose network removes noise from a target.

    Its prediction from "x" is a sample. The network has the inputs "noised" and "time"
    in addition to "x".

    Attributes:
        diffusion: see `DiffusionConfig`.
    """

    draws_noise: ClassVar[bool] = True
    output_frames: ClassVar[int] = 1

    diffusion: DiffusionConfig

    @property
    def process(self) -> Process:  # type: ignore[override]
        """See `ModelConfig.process`."""
        return Process(self.diffusion, self.output)

    @property
    def network_inputs(self) -> Mapping[str, common.InputSpec]:
        """See `ModelConfig.network_inputs`."""
        return {**self.inputs, NOISED: self.output, TIME: common.VectorSpec(1)}

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`, and settings with which CREDIT fails."""
        yield from super().problems()
        size, grid = self.diffusion.image_size, self.output.grid
        if size != grid:
            yield (
                f"model.diffusion.image_size is {list(size)}; expected the grid of the "
                f"model, {list(grid)}"
            )
        if self.x.frames != 1:
            yield (
                f"model.frames is {self.x.frames}; expected 1: CREDIT's {self.type} "
                "joins the input and the noised target, which has one frame"
            )


PerStep = Float[np.ndarray, " step"]
# Largest beta of the cosine and the sigmoid schedule.
LARGEST_BETA = 0.999


def linear_betas(timesteps: int) -> PerStep:
    """Linear schedule, betas from 0.1 / T to 20 / T: Ho et al. (2020) scaled to T."""
    scale = 1000 / timesteps
    return np.linspace(scale * 0.0001, scale * 0.02, timesteps)


def cosine_betas(timesteps: int, s: float = 0.008) -> PerStep:
    """Cosine schedule: Nichol and Dhariwal (2021)."""
    # alpha_bar(t) is proportional to cos^2((t / T + s) / (1 + s) pi / 2).
    t = np.linspace(0, timesteps, timesteps + 1) / timesteps
    return _betas_of(np.cos((t + s) / (1 + s) * np.pi * 0.5) ** 2)


def sigmoid_betas(
    timesteps: int, start: float = -3, end: float = 3, tau: float = 1
) -> PerStep:
    """Sigmoid schedule: Jabri et al. (2022), figure 8."""
    # alpha_bar(t) follows a sigmoid from `start` to `end` with temperature `tau`. The
    # values at both ends are computed in float32, as in CREDIT.
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


def ddim_times(timesteps: int, samples: int) -> list[int]:
    """Returns the steps of DDIM, from T - 1 down to -1, which is the sample itself."""
    # They are `samples` + 1 numbers from -1 to T - 1, equally spaced in float32 as by
    # torch.linspace (each half from its end, with product and sum rounded once), then
    # truncated towards 0.
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
    """Training data of the network."""

    x: NoisySample  # the noised target
    time: Float[Array, "batch 1"]  # (batch, 1) float, step t of the noise
    target: NoisySample  # the desired output of the network
    weights: Float[Array, " batch"]  # (batch,), weight of each sample in the loss


@dataclass(frozen=True)
class Process:
    """A Gaussian diffusion process, see the module."""

    config: DiffusionConfig
    output: common.FieldSpec  # spec of a target

    @cached_property
    def betas(self) -> PerStep:
        """Variances that the T steps add, float64."""
        arguments = dict(self.config.schedule_fn_kwargs)
        arguments.pop("clamp_min", None)
        return SCHEDULES[self.config.beta_schedule](self.config.timesteps, **arguments)

    @property
    def num_samples(self) -> int:
        """Number of network evaluations for a sample, 0 to T."""
        samples = self.config.sampling_timesteps
        return self.config.timesteps if samples is None else samples

    @cached_property
    def tables(self) -> dict[str, Float[np.ndarray, " step"]]:
        """All that depends only on the step: the buffers of CREDIT's checkpoints."""
        betas, config = self.betas, self.config
        alphas = 1.0 - betas
        product = np.cumprod(alphas)
        previous = np.concatenate([[1.0], product[:-1]])
        variance = betas * (1.0 - previous) / (1.0 - product)
        snr = product / (1 - product)
        # Weights of the loss: Hang et al. (2023).
        limited = config.min_snr_loss_weight
        clipped = np.minimum(snr, config.min_snr_gamma) if limited else snr
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
            "posterior_mean_coef2": (1.0 - previous)
            * np.sqrt(alphas)
            / (1.0 - product),
            "loss_weight": weights[config.objective],
        }
        return {name: table.astype(np.float32) for name, table in wide.items()}

    def noised(self, target: NoisySample, context: Context) -> Noised:
        """Adds the noise of a random step to each sample of a target."""
        # Draws "time", "noise", of log-uniform noise "noise scale", and with an offset
        # "noise offset" from the noise of the context.
        batch, channels = target.shape[:2]
        time = context.uniform_integer("time", batch, len(self.betas))
        noise = self._noise("noise", batch, context).astype(target.dtype)
        if self.config.offset_noise_strength > 0:
            offset = context.normal_vector("noise offset", batch, channels)
            offset = offset.astype(target.dtype)[:, :, None, None, None]
            noise = noise + self.config.offset_noise_strength * offset
        at = {name: jnp.asarray(table)[time] for name, table in self.tables.items()}
        signal, remainder = (
            at[name].astype(target.dtype)[:, None, None, None, None]
            for name in ("sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod")
        )
        targets = {
            "pred_noise": noise,
            "pred_x0": target,
            "pred_v": signal * noise - remainder * target,
        }
        return Noised(
            signal * target + remainder * noise,
            time[:, None].astype(target.dtype),
            targets[self.config.objective],
            at["loss_weight"],
        )

    def sample(self, network: Network, batch: int, context: Context) -> NoisySample:
        """Draws samples by DDPM or DDIM, with a `lax.scan` over the steps."""
        # With `num_samples` 0, the samples are the initial noise.
        # Draws "start", and "step" at every step that adds noise, with the index of the
        # step folded into the key. The sampler computes in float32 or wider.
        dtype = context.precision.wide
        start = self._noise("start", batch, context).astype(dtype)
        start = pvary(start, context.axes.batch)
        if not self.num_samples:
            return start
        if self.num_samples < len(self.betas):
            step = self._ddim
            # Tables at the steps of DDIM, and the factors of the terms of a step.
            times = ddim_times(len(self.betas), self.num_samples)
            time, following = np.array(times[:-1]), np.array(times[1:])
            product = self.tables["alphas_cumprod"].astype(np.float64)
            # The last step, to -1, is the inferred target itself.
            now, after = product[time], np.where(following < 0, 1.0, product[following])
            sigma = self.config.ddim_sampling_eta * np.sqrt(
                (1 - now / after) * (1 - after) / (1 - now)
            )
            tables = {name: table[time] for name, table in self.tables.items()} | {
                "time": time.astype(np.int32),
                "target": np.sqrt(after),
                "noise": np.sqrt(np.maximum(1 - after - sigma**2, 0)),
                "sigma": sigma,
            }
        else:
            step = self._ddpm
            # From T - 1 down to 0.
            tables = {name: table[::-1] for name, table in self.tables.items()}
            tables["time"] = np.arange(len(self.betas), dtype=np.int32)[::-1]

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
        if self.config.noise_type == "log-uniform":
            smallest, largest = np.log((SMALLEST_SIGMA, LARGEST_SIGMA))
            uniform = context.uniform_field(f"{name} scale", field).astype(noise.dtype)
            noise = noise * jnp.exp(smallest + (largest - smallest) * uniform)
        return noise.transpose(0, 3, 1, 2)[:, :, None]

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
        if self.config.ddim_sampling_eta == 0:
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
        objective = self.config.objective
        if objective == "pred_noise":
            target = recip * x - recipm1 * output
        elif objective == "pred_x0":
            target = output
        else:
            target = (
                at["sqrt_alphas_cumprod"] * x
                - at["sqrt_one_minus_alphas_cumprod"] * output
            )
        if self.config.clip_denoised:
            target = jnp.clip(target, -1.0, 1.0)
        elif objective == "pred_noise":
            return target, output
        return target, (recip * x - target) / recipm1
