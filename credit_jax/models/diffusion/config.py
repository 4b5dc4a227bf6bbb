"""`model.diffusion`: the diffusion process of models that sample predictions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.models.common.array_specs import FieldSpec, InputSpec, VectorSpec
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.common.padded_config import repeated
from credit_jax.models.diffusion.process import NOISED, TIME, Process
from credit_jax.models.diffusion.schedule import SCHEDULES

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
    ddim_sampling_eta: float = 0.0
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

    def problems(self, height: int, width: int) -> list[str]:
        """Returns errors of the process for a grid (height, width), one line each."""
        problems = []
        if self.image_size != (height, width):
            problems.append(
                f"model.diffusion.image_size is {list(self.image_size)}; expected "
                f"the grid of the model, [{height}, {width}]"
            )
        if not self.condition:
            problems.append(
                "model.diffusion.condition is false; expected true: without the input "
                "there is nothing to forecast from, and CREDIT's samplers fail"
            )
        steps = self.sampling_timesteps
        if steps is not None and not 0 <= steps <= self.timesteps:
            problems.append(
                f"model.diffusion.sampling_timesteps is {steps}; expected 1 to "
                f"timesteps = {self.timesteps}, or null for all of them"
            )
        if self.beta_schedule == "linear" and self.timesteps < FEWEST_LINEAR:
            problems.append(
                f"model.diffusion.timesteps is {self.timesteps} with the linear "
                f"schedule; expected at least {FEWEST_LINEAR}: the last beta is 20 / "
                "timesteps, which must be below 1"
            )
        if not 0.0 <= self.ddim_sampling_eta <= 1.0:
            problems.append(
                f"model.diffusion.ddim_sampling_eta is {self.ddim_sampling_eta}; "
                "expected 0 (no noise) to 1 (that of DDPM)"
            )
        return [*problems, *self._schedule_problems()]

    def _schedule_problems(self) -> list[str]:
        schedule = SCHEDULES[self.beta_schedule]
        known = list(inspect.signature(schedule).parameters)[1:]
        if self.beta_schedule == "sigmoid":
            known.append("clamp_min")  # which CREDIT takes and does not read
        return [
            f"model.diffusion.schedule_fn_kwargs has {name!r}; the "
            f"{self.beta_schedule} schedule takes {', '.join(known) or 'none'}"
            for name in self.schedule_fn_kwargs
            if name not in known
        ]

    def process(self, output: FieldSpec) -> Process:
        """Builds the process for targets with the spec `output`.

        It is valid only if `problems` is empty.
        """
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

    def process_problems(self) -> list[str]:
        """Returns errors of the process, and of settings with which CREDIT fails."""
        keys: Any = self
        problems = self.diffusion.problems(keys.image_height, keys.image_width)
        if keys.frames != 1:
            problems.append(
                f"model.frames is {keys.frames}; expected 1: CREDIT's {keys.type} "
                "joins the input and the noised target, which has one frame"
            )
        return problems
