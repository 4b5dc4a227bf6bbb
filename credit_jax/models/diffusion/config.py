"""`model.diffusion`: the diffusion process of models that sample predictions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.models.common.config import (
    FieldSpec,
    InputSpec,
    ModelConfig,
    VectorSpec,
    repeated,
)
from credit_jax.models.diffusion.process import NOISED, SCHEDULES, TIME, Process

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

    image_size: Annotated[tuple[PositiveInt, PositiveInt], repeated(2)]
    timesteps: PositiveInt = 1000
    sampling_timesteps: int | None = None
    objective: Literal["pred_noise", "pred_x0", "pred_v"] = "pred_v"
    beta_schedule: Literal["sigmoid", "linear", "cosine"] = "sigmoid"
    schedule_fn_kwargs: dict[str, float] = Field(default_factory=dict)
    noise_type: Literal["normal", "log-uniform"] = "normal"
    ddim_sampling_eta: float = Field(0.0, ge=0.0, le=1.0)
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
                f"timesteps is {self.timesteps} with the linear schedule; expected at "
                f"least {FEWEST_LINEAR}: the last beta is 20 / timesteps, which must "
                "be below 1"
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

    def process(self, output: FieldSpec) -> Process:
        """Builds the process for targets with the spec `output`."""
        arguments = {
            name: value
            for name, value in self.schedule_fn_kwargs.items()
            if name != "clamp_min"
        }
        samples = self.sampling_timesteps
        return Process(
            output,
            betas=tuple(SCHEDULES[self.beta_schedule](self.timesteps, **arguments)),
            objective=self.objective,
            num_samples=self.timesteps if samples is None else samples,
            log_uniform=self.noise_type == "log-uniform",
            eta=self.ddim_sampling_eta,
            offset=self.offset_noise_strength,
            largest_snr=self.min_snr_gamma if self.min_snr_loss_weight else None,
            clip=self.clip_denoised,
        )


class DiffusionKeys(ModelConfig):
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
    def process(self) -> Process:
        """See `ModelConfig.process`."""
        return self.diffusion.process(self.output)

    @property
    def network_inputs(self) -> Mapping[str, InputSpec]:
        """See `ModelConfig.network_inputs`."""
        return {**self.inputs, NOISED: self.output, TIME: VectorSpec(1)}

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`, and settings with which CREDIT fails."""
        yield from super().problems()
        size, grid = self.diffusion.image_size, (self.output.height, self.output.width)
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


def process_buffers(config: DiffusionKeys) -> Mapping[str, np.ndarray]:
    """The buffers of the process, which precede the keys of the network."""
    return config.process.tables
