"""The least time of a training step on an accelerator, from programs compiled for it.

`benchmarks.accelerator` compiles the step of one model for meshes of a device and
counts kernels and bytes; the table here has its counts. The bound of another model is
scaled: as many kernels, and their work by the ratio of the operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from credit_jax.config.config import Config
from credit_jax.models.flops import gradient_flops
from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.mesh.axes import MeshAxes

# Operations within this factor of the compiled model's are those of that model.
_SAME = 1.01


@dataclass(frozen=True)
class CompiledStep:
    """Counts of a compiled step of one sample on one of its devices.

    Attributes:
        remat: activation checkpointing.
        tensor, domain: degrees of the mesh.
        kernels: that it launches.
        work: seconds of the kernels at the roofline, without launches.
        waits: seconds that it waits for transfers.
    """

    remat: str
    tensor: int
    domain: int
    kernels: int
    work: float
    waits: float

    def distance(self, axes: MeshAxes) -> float:
        """How far the mesh is from another one, in factors of two."""
        tensor = math.log2(axes.num_tensor / self.tensor)
        return abs(tensor) + abs(math.log2(axes.num_domain / self.domain))


@dataclass(frozen=True)
class Device:
    """An accelerator, and the programs of one model that were compiled for it.

    Attributes:
        name: of the device.
        launch: seconds of a kernel besides its work.
        model: config of the compiled model.
        flops: of one sample of it, nothing recomputed.
        steps: its programs, in bfloat16.
    """

    name: str
    launch: float
    model: str
    flops: float
    steps: tuple[CompiledStep, ...]


# benchmarks/reports/accelerator_025deg.json
DEVICES = {
    "h100": Device(
        "NVIDIA H100",
        2e-6,
        "configs/wxformer_025deg.yaml",
        18.5114e12,
        (
            CompiledStep("none", 1, 1, 2571, 0.03517, 0),
            CompiledStep("full", 1, 1, 3062, 0.04392, 0),
            CompiledStep("selective", 1, 1, 2702, 0.03761, 0),
            CompiledStep("none", 1, 8, 2803, 0.00646, 0.00211815),
            CompiledStep("none", 2, 4, 2933, 0.00991, 0.00465564),
        ),
    )
}


@dataclass(frozen=True)
class StepBound:
    """The least time of a step on a device; see `step_bound`.

    Attributes:
        device: its name.
        step: the compiled program that it comes from.
        model: of that program.
        ratio: operations of a device beside those of the compiled program.
        launches, work, waits: its seconds.
        same_model: whether the operations are those of the compiled model.
        bfloat16: whether the config computes in it.
    """

    device: str
    step: CompiledStep
    model: str
    ratio: float
    launches: float
    work: float
    waits: float
    same_model: bool
    bfloat16: bool

    @property
    def seconds(self) -> float:
        return self.launches + self.work + self.waits

    def to_json(self) -> dict[str, Any]:
        """Of the document of `check`."""
        return {
            "device": self.device,
            "seconds_at_least": self.seconds,
            "launches": self.launches,
            "work": self.work,
            "waits": self.waits,
            "explanation": self.explanation,
        }

    @property
    def explanation(self) -> str:
        """What the bound is, and what it is not."""
        step = self.step
        mesh = f"tensor {step.tensor} x domain {step.domain}, {step.remat} remat"
        lines = [
            f"{self.device}: a micro-batch takes at least {1e3 * self.seconds:.1f} ms. "
            f"This is no measurement but the roofline of {self.model} as XLA compiles "
            f"it in bfloat16 for {mesh}: {step.kernels:,} launches "
            f"({1e3 * self.launches:.1f} ms), memory and operations with perfect "
            f"kernels ({1e3 * self.work:.1f} ms), transfers that nothing hides "
            f"({1e3 * self.waits:.1f} ms)"
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
    """The least time of one micro-batch with its gradient, one step of the forecast.

    Args:
        name: one of `DEVICES`.
        config: batch size, members, precision, rematerialization.
        model_def: the model, which is traced.
        axes: the mesh. Sums between data-parallel ranks are not in the bound.
    """
    device, trainer = DEVICES[name], config.trainer
    remat = trainer.activation_checkpoint
    step = min(device.steps, key=lambda s: s.distance(axes) + (s.remat != remat) / 2)
    flops = gradient_flops(model_def)
    samples = trainer.train_batch_size * config.num_members
    shards = axes.num_tensor * axes.num_domain
    ratio = flops * samples / shards / (device.flops / (step.tensor * step.domain))
    policy = trainer.mp_policy
    return StepBound(
        device.name,
        step,
        device.model,
        ratio,
        step.kernels * device.launch,
        step.work * ratio,
        step.waits,
        same_model=1 / _SAME < flops / device.flops < _SAME,
        bfloat16=policy is not None and policy.param_dtype == "bfloat16",
    )
