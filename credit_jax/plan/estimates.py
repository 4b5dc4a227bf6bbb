"""Estimated memory of one device in training, and the least time of a step.

Parameters, gradients and optimizer state are counted exactly. Activations, that is the
residuals of each layer for the backward pass, are estimated from the sizes of stages.

The least time is that of programs compiled for a device: `benchmarks.accelerator`
compiles the step of one model for its meshes, and counts kernels and bytes, which
`DEVICES` has. For another model, the number of kernels is kept, and their work is
scaled by the ratio of the operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log2
from typing import NamedTuple

from credit_jax.config import Config
from credit_jax.config.trainer import TrainerConfig
from credit_jax.models.common.config import StageGeometry
from credit_jax.models.crossformer.crossformer import WXFormerMoEConfig
from credit_jax.models.flops import gradient_flops
from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    TP,
    MeshAxes,
)
from credit_jax.parallel.params.fsdp import ShardingRules, split_axes
from credit_jax.parallel.params.spec import ParamSpec

FLOAT32 = 4
HALF = 2
ACTIVATIONS, BATCH = "activations (estimate)", "batch"
LATER_INPUTS = "inputs of later steps"
PER_SAMPLE = (ACTIVATIONS, BATCH, LATER_INPUTS)
# Ratio of XLA's temporary memory to the counted activations: 1.2 to 2.5 for the
# gradient of configs/demo.yaml, depth 1 to 4, with and without rematerialization (CPU,
# jax 0.10.2).
WORKSPACE = 1.6


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device, by purpose."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def of_samples(self) -> int:
        """Bytes that grow with the samples of a forward pass."""
        return sum(self.parts.get(name, 0) for name in PER_SAMPLE)


def estimate_memory(
    config: Config, model_def: ModelDef, axes: MeshAxes
) -> MemoryEstimate:
    """Estimates the peak memory of a training step on one device."""
    trainer = config.trainer
    param_specs = model_def.param_specs
    rules = rules_of(trainer)
    params, trained, normalized = (
        FLOAT32 * sum(local_size(d, axes, rules) for d in specs.values())
        for specs in (param_specs, model_def.trainable, model_def.matrices)
    )
    channels = model_def.input_channels * model_def.frames
    targets = model_def.output_channels * model_def.output_frames
    steps = config.data.forecast_len
    rows = -(-model_def.image_height // axes.num_domain)
    # Of a forward pass on one data-parallel rank, members included.
    samples = trainer.train_batch_size * config.num_members
    field = FLOAT32 * samples * rows * model_def.image_width
    later = steps - 1 if trainer.backprop == "full" else 0
    over_domain = 0
    if axes.num_shard == 1:
        split = [
            d for d in param_specs.values() if rules.domain_dim(d, axes) is not None
        ]
        elements = sum(local_size(d, axes, rules) for d in split)
        over_domain = _item(config) * elements * axes.num_domain
    parts = {
        "parameters": params,
        "gradients": trained,
        "optimizer (AdamW)": 2 * trained,
        "EMA": trained if trainer.use_ema else 0,
        "spectral norm": normalized,
        "gathered blocks (FSDP)": _gathered(config, param_specs, axes, rules),
        "gathered over domain": over_domain,
        ACTIVATIONS: _activations(config, model_def, axes, samples),
        BATCH: field * (channels + (steps + 1) * targets),
        LATER_INPUTS: field * channels * later,
    }
    return MemoryEstimate({name: size for name, size in parts.items() if size})


def memory_problems(
    config: Config, model_def: ModelDef, axes: MeshAxes, memory: float, origin: str
) -> Iterator[str]:
    """A problem for each stage of a run that needs more memory than a device has."""
    for index, stage in enumerate(config.stages or (config,)):
        size = estimate_memory(stage, model_def, axes).total
        key = f"trainer.curriculum.{index}" if config.stages else "trainer"
        if size > memory:
            yield (
                f"{key}: needs about {size / 1e9:.3g} GB a device, {origin} has "
                f"{memory / 1e9:.3g} GB; take a smaller train_batch_size with more "
                "grad_accum_every, a shorter forecast_len, activation_checkpoint: "
                "true, or more devices"
            )


def rules_of(trainer: TrainerConfig) -> ShardingRules:
    """The sharding rules of a run's parameters."""
    fsdp = trainer.fsdp
    return ShardingRules(
        min_shard_size=fsdp.min_shard_size, over_domain=fsdp.over_domain
    )


def local_size(
    param_spec: ParamSpec, axes: MeshAxes, rules: ShardingRules | None = None
) -> int:
    """Number of elements of one device's shard of a parameter."""
    degrees = {
        DP_REPLICATE: 1,
        DP_SHARD: axes.num_shard,
        EP: axes.num_expert,
        TP: axes.num_tensor,
        DOMAIN: axes.num_domain,
    }
    spec = (rules or ShardingRules()).spec(param_spec, axes)
    names = tuple(spec) + (None,) * (len(param_spec.shape) - len(spec))
    return math.prod(
        -(-length // math.prod(degrees[axis] for axis in split_axes(name)))
        for length, name in zip(param_spec.shape, names, strict=True)
    )


def _gathered(
    config: Config,
    param_specs: dict[str, ParamSpec],
    axes: MeshAxes,
    rules: ShardingRules,
) -> int:
    """Bytes of the parameters that FSDP keeps gathered at the same time."""
    if axes.num_shard == 1:
        return 0
    groups: dict[str, int] = {}
    for path, param_spec in param_specs.items():
        one = param_spec.unstack()
        name = "/".join(path.split("/")[:3])
        full = local_size(one, axes, replace(rules, over_domain=False))
        if rules.shard_dim(one, axes) is not None:
            full *= axes.num_shard
        groups[name] = groups.get(name, 0) + full
    reshard = config.trainer.fsdp.reshard_after_forward
    if reshard is False:
        return FLOAT32 * sum(groups.values())
    largest = sorted(groups.values(), reverse=True)
    return FLOAT32 * sum(largest[: 1 + (0 if reshard is True else reshard)])


def _activations(
    config: Config, model_def: ModelDef, axes: MeshAxes, samples: int
) -> int:
    """Bytes of the residuals that the forward pass saves for the backward pass."""
    geometry = model_def.config.geometry()
    if geometry is None:
        return 0
    mode, tensor = config.trainer.activation_checkpoint, axes.num_tensor
    saved, largest = 0, 0
    for stage in geometry.stages:
        points = local_points(stage, axes.num_domain)
        channels, heads = stage.channels, stage.heads
        # Values per point of the two attentions: the normalized input, q, k, v, logits
        # and weights (one per key), the output of the heads, and the sum.
        inner = heads * stage.head_channels
        keys = stage.local_window**2 + stage.global_window**2
        width = 2 * (2 * channels + 4 * inner // tensor) + 2 * heads * keys // tensor
        attention = points * width * stage.attentions // 2
        # Of feed-forward layers: the normalized input, the hidden units before and
        # after their nonlinearity, and the sum.
        width += 2 * (2 * channels + 8 * channels // tensor)
        block = points * width * stage.attentions // 2
        if isinstance(moe := model_def.config, WXFormerMoEConfig):
            # Of layers of experts in addition to dense ones. For each choice of the
            # tokens of the ep group, also of experts on other devices: the token, the
            # hidden units before and after their nonlinearity, and the result.
            group, units = axes.num_expert, 8 * channels // tensor
            choices = group * moe.moe_top_k * (2 * channels + units)
            shared = (moe.moe_shared_experts - 1) * units
            further = group * channels + choices + shared
            block += points * (2 // moe.moe_frequency) * further
        between = points * channels
        sums = stage.attentions * between
        again = {"none": 0, "selective": attention - sums, "full": block}[mode]
        largest = max(largest, again)
        remainder = between if mode == "full" else block - again
        saved += 2 * between + stage.depth * remainder
    saved += largest
    domain = axes.num_domain
    rows, lon = geometry.padded
    frames_in = model_def.input_channels * model_def.frames
    frames_out = model_def.output_channels * model_def.output_frames
    total = -(-rows // domain) * lon * frames_in
    width = geometry.stages[-1].channels
    for stage in reversed(geometry.stages[:-1]):
        width = width // 2
        points = -(-stage.height // domain) * stage.width
        total += points * (8 * width + stage.channels)
    rows, lon = geometry.decoded
    total += -(-rows // domain) * lon * 2 * frames_out
    saved += total
    return int(WORKSPACE * _item(config) * samples * saved)


def _item(config: Config) -> int:
    """Bytes of an element in the compute dtype."""
    policy = config.trainer.mp_policy
    return FLOAT32 if policy is None or policy.param_dtype == "float32" else HALF


def local_points(stage: StageGeometry, domain: int) -> int:
    """Largest number of points of a stage on a device, with whole windows."""
    share = max(stage.shares(domain).values())
    return math.ceil(share * stage.height * stage.width / domain)


# The compiled model, and operations of the gradient of one sample of it, without
# recomputation.
MODEL, FLOPS = "configs/wxformer_025deg.yaml", 18.3497e12
_LAUNCH = 2e-6  # seconds of a kernel launch
# A model whose operations are within this factor of the compiled model's is that model.
_SAME = 1.01


class CompiledStep(NamedTuple):
    """Counts of a compiled step of one sample in bfloat16, for a device of its mesh."""

    remat: str  # mode of activation checkpointing
    tensor: int  # degrees of the mesh
    domain: int
    kernels: int  # number of kernel launches
    work: float  # time of the kernels at the roofline, without launches, s
    waits: float  # time of transfers that nothing hides, s


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
    """Lower bound of the time of a step on a device, in seconds; see `step_bound`."""

    device: str
    launches: float  # of kernels
    work: float  # of kernels
    waits: float  # for transfers that nothing hides
    explanation: str  # of the bound and its assumptions, for the user

    @property
    def seconds(self) -> float:
        return self.launches + self.work + self.waits


def step_bound(
    name: str, config: Config, model_def: ModelDef, axes: MeshAxes
) -> StepBound:
    """A lower bound of the time of the gradient of one step of one micro-batch."""
    device, trainer = DEVICES[name], config.trainer

    def distance(step: CompiledStep) -> float:
        tensor = abs(log2(axes.num_tensor / step.tensor))
        domain = abs(log2(axes.num_domain / step.domain))
        return tensor + domain + (step.remat != trainer.activation_checkpoint) / 2

    step = min(device.steps, key=distance)
    flops = gradient_flops(model_def)
    samples = trainer.train_batch_size * config.num_members
    shards = axes.num_tensor * axes.num_domain
    ratio = flops * samples / shards / (FLOPS / (step.tensor * step.domain))
    launches, work = step.kernels * _LAUNCH, step.work * ratio
    # Without all-reduces between data-parallel ranks.
    total = launches + work + step.waits
    lines = [
        f"{device.name}: a micro-batch takes at least {1e3 * total:.1f} ms. This is no "
        f"measurement but the roofline of {MODEL} as XLA compiles it in bfloat16 for "
        f"tensor {step.tensor} x domain {step.domain}, {step.remat} remat: "
        f"{step.kernels:,} launches ({1e3 * launches:.1f} ms), memory and operations "
        f"with perfect kernels ({1e3 * work:.1f} ms), transfers that nothing hides "
        f"({1e3 * step.waits:.1f} ms)"
    ]
    if not 1 / _SAME < flops / FLOPS < _SAME or abs(ratio - 1) > _SAME - 1:
        lines.append(
            f"this run was not compiled: memory and operations are scaled by its "
            f"{ratio:.3g} times as many operations a device, the rest is taken over"
        )
    if trainer.mp_policy is None or trainer.mp_policy.param_dtype != "bfloat16":
        lines.append("this run computes in another format than bfloat16")
    explanation = "; ".join(lines) + "."
    return StepBound(device.name, launches, work, step.waits, explanation)


def update_seconds(bound: StepBound, run: Config, stage: Config) -> float:
    """Lower bound of the time of an update of a stage."""
    run_samples, samples = (
        each.trainer.train_batch_size * each.num_members for each in (run, stage)
    )
    steps, counted = stage.data.forecast_len, len(stage.backprop_on_timestep)
    # A step whose loss does not count is a forward pass, a third of a gradient.
    gradients = counted + (steps - counted) / 3
    if stage.trainer.backprop == "full" and steps > 1:
        # Gradients through a forecast compute each step again.
        gradients = steps * 4 / 3
    work = bound.work * (samples / run_samples)
    seconds = bound.launches + work + bound.waits
    return seconds * gradients * stage.trainer.grad_accum_every
