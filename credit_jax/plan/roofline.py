"""Lower bound of the time of a training step, from programs compiled for a device.

`benchmarks.accelerator` compiles the step of one model for meshes of a device and
counts kernels and bytes; `DEVICES` has these counts. For another model, the number of
kernels is kept, and their work is scaled by the ratio of the operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

from credit_jax.config import Config
from credit_jax.models.flops import gradient_flops
from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.mesh.device_mesh import MeshAxes

# The compiled model, and operations of the gradient of one sample of it, without
# recomputation.
MODEL, FLOPS = "configs/wxformer_025deg.yaml", 18.3497e12
_LAUNCH = 2e-6  # seconds of a kernel launch
# A model whose operations are within this factor of the compiled model's is that model.
_SAME = 1.01


class CompiledStep(NamedTuple):
    """Counts of a compiled step of one sample in bfloat16, for a device of its mesh.

    Attributes:
        remat: mode of activation checkpointing.
        tensor, domain: degrees of the mesh.
        kernels: number of kernel launches.
        work: time of the kernels at the roofline, without launches, s.
        waits: time of transfers that nothing hides, s.
    """

    remat: str
    tensor: int
    domain: int
    kernels: int
    work: float
    waits: float


class Device(NamedTuple):
    """An accelerator with its bytes of memory, and the steps compiled for it."""

    name: str
    memory: float
    steps: tuple[CompiledStep, ...]


# benchmarks/reports/accelerator_025deg.json and accelerator_025deg-a100.json
DEVICES = {
    "h100": Device(
        "NVIDIA H100",
        80e9,
        (
            CompiledStep("none", 1, 1, 2055, 0.041254, 0),
            CompiledStep("full", 1, 1, 2528, 0.051912, 0),
            CompiledStep("selective", 1, 1, 2173, 0.043690, 0),
            CompiledStep("none", 1, 8, 2217, 0.0073311, 0.00194649),
            CompiledStep("none", 2, 4, 2544, 0.010835, 0.00418758),
        ),
    ),
    "a100": Device(
        "NVIDIA A100",
        80e9,
        (
            CompiledStep("none", 1, 1, 2058, 0.106103, 0),
            CompiledStep("full", 1, 1, 2533, 0.133132, 0),
            CompiledStep("selective", 1, 1, 2171, 0.111664, 0),
            CompiledStep("none", 1, 8, 2196, 0.0177021, 0.00454431),
            CompiledStep("none", 2, 4, 2539, 0.0270059, 0.00810914),
        ),
    ),
}


@dataclass(frozen=True)
class StepBound:
    """Lower bound of the time of a step on a device; see `step_bound`.

    Attributes:
        device: name of the device.
        step: the compiled program that the bound is derived from.
        ratio: operations per device, relative to those of the compiled program.
        same_model: whether a sample has the operations of the compiled model.
        bfloat16: whether the config computes in bfloat16.
    """

    device: str
    step: CompiledStep
    ratio: float
    same_model: bool
    bfloat16: bool

    @property
    def launches(self) -> float:
        """Launches of kernels, s."""
        return self.step.kernels * _LAUNCH

    @property
    def work(self) -> float:
        """Kernels, s."""
        return self.step.work * self.ratio

    @property
    def seconds(self) -> float:
        """The bound, s."""
        return self.launches + self.work + self.step.waits

    def to_json(self) -> dict[str, Any]:
        """The bound as JSON values, for the report of `check`."""
        return {
            "device": self.device,
            "seconds_at_least": self.seconds,
            "launches": self.launches,
            "work": self.work,
            "waits": self.step.waits,
            "explanation": self.explanation,
        }

    @property
    def explanation(self) -> str:
        """A text for the user that explains the bound and its assumptions."""
        step = self.step
        lines = [
            f"{self.device}: a micro-batch takes at least {1e3 * self.seconds:.1f} ms. "
            f"This is no measurement but the roofline of {MODEL} as XLA compiles it in "
            f"bfloat16 for tensor {step.tensor} x domain {step.domain}, {step.remat} "
            f"remat: {step.kernels:,} launches ({1e3 * self.launches:.1f} ms), memory "
            f"and operations with perfect kernels ({1e3 * self.work:.1f} ms), "
            f"transfers that nothing hides ({1e3 * step.waits:.1f} ms)"
        ]
        if not self.same_model or abs(self.ratio - 1) > _SAME - 1:
            lines.append(
                f"this run was not compiled: memory and operations are scaled by its "
                f"{self.ratio:.3g} times as many operations a device, the rest is "
                "taken over"
            )
        if not self.bfloat16:
            lines.append("this run computes in another format than bfloat16")
        return "; ".join(lines) + "."


def step_bound(
    name: str, config: Config, model_def: ModelDef, axes: MeshAxes
) -> StepBound:
    """Computes a lower bound of the time of the gradient of one micro-batch.

    It is for one step of the forecast, and does not include all-reduces between
    data-parallel ranks.

    Args:
        name: a key of `DEVICES`.
        config: gives batch size, members, precision and rematerialization.
        model_def: the model, which is traced to count its operations.
        axes: the axes of the mesh.
    """
    device, trainer = DEVICES[name], config.trainer

    def distance(step: CompiledStep) -> float:
        tensor = abs(log2(axes.num_tensor / step.tensor))
        domain = abs(log2(axes.num_domain / step.domain))
        return tensor + domain + (step.remat != trainer.activation_checkpoint) / 2

    step = min(device.steps, key=distance)
    flops = gradient_flops(model_def)
    samples = trainer.train_batch_size * config.num_members
    shards = axes.num_tensor * axes.num_domain
    policy = trainer.mp_policy
    return StepBound(
        device.name,
        step,
        flops * samples / shards / (FLOPS / (step.tensor * step.domain)),
        same_model=1 / _SAME < flops / FLOPS < _SAME,
        bfloat16=policy is not None and policy.param_dtype == "bfloat16",
    )


def update_seconds(bound: StepBound, run: Config, stage: Config) -> float:
    """Lower bound of the time of an update of a stage.

    A step of the forecast whose loss does not count is a forward pass, a third of a
    gradient; gradients through whole forecasts compute each step again.

    Args:
        bound: bound of a micro-batch of the run.
        run: config of the run.
        stage: config of the stage.
    """
    run_samples, samples = (
        each.trainer.train_batch_size * each.num_members for each in (run, stage)
    )
    steps, counted = stage.data.forecast_len, len(stage.backprop_on_timestep)
    gradients = counted + (steps - counted) / 3
    if stage.trainer.backprop == "full" and steps > 1:
        gradients = steps * 4 / 3
    work = bound.work * (samples / run_samples)
    seconds = bound.launches + work + bound.step.waits
    return seconds * gradients * stage.trainer.grad_accum_every
