"""Estimated memory of one device in training.

Parameters, gradients and optimizer state are counted exactly. Activations, that is the
residuals of each layer for the backward pass, are estimated from the sizes of stages.
"""

import math
from dataclasses import dataclass, replace

from credit_jax.config import Config
from credit_jax.config.trainer import TrainerConfig
from credit_jax.models.common.config import Geometry, ModelConfig, StageGeometry
from credit_jax.models.crossformer.crossformer import WXFormerMoEConfig
from credit_jax.models.model_def import ModelDef
from credit_jax.parallel.mesh.device_mesh import (
    DOMAIN,
    DP_REPLICATE,
    DP_SHARD,
    EP,
    TP,
    MeshAxes,
)
from credit_jax.parallel.params.fsdp import (
    ShardingRules,
    gathers_over_domain_in_blocks,
    split_degree,
)
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
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def of_samples(self) -> int:
        """Bytes that grow with the samples of a forward pass."""
        return sum(self.parts.get(name, 0) for name in PER_SAMPLE)


def estimate_memory(
    config: Config, model_def: ModelDef, axes: MeshAxes
) -> MemoryEstimate:
    """Estimates the peak memory of a training step on one device.

    Args:
        config: gives batch size, precision, EMA and rematerialization.
        model_def: the model.
        axes: the axes of the mesh.

    Returns:
        Bytes of parameters, gradients, AdamW's two moments, EMA, the normalized weights
        of spectral norm, the gathered parameters of the largest blocks, those gathered
        over domain, activations, the batch with the targets of all steps, and the input
        of each step that gradients through whole forecasts keep.
    """
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
    field = FLOAT32 * _samples(config) * rows * model_def.image_width
    later = steps - 1 if trainer.backprop == "full" else 0
    over_domain = 0
    if not gathers_over_domain_in_blocks(axes):
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
        ACTIVATIONS: _activations(config, model_def, axes),
        BATCH: field * (channels + (steps + 1) * targets),
        LATER_INPUTS: field * channels * later,
    }
    return MemoryEstimate({name: size for name, size in parts.items() if size})


def memory_problems(
    config: Config, model_def: ModelDef, axes: MeshAxes, memory: float, origin: str
) -> list[str]:
    """A problem for each stage of a run that needs more memory than a device has.

    Args:
        config, model_def, axes: see `estimate_memory`.
        memory: bytes of a device.
        origin: what has them, such as "NVIDIA H100".
    """
    lines = []
    for index, stage in enumerate(config.stages or (config,)):
        size = estimate_memory(stage, model_def, axes).total
        key = f"trainer.curriculum.{index}" if config.stages else "trainer"
        if size > memory:
            lines.append(
                f"{key}: needs about {size / 1e9:.3g} GB a device, {origin} has "
                f"{memory / 1e9:.3g} GB; take a smaller train_batch_size with more "
                "grad_accum_every, a shorter forecast_len, activation_checkpoint: "
                "true, or more devices"
            )
    return lines


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
        -(-length // split_degree(name, degrees))
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


def _activations(config: Config, model_def: ModelDef, axes: MeshAxes) -> int:
    """Bytes of the residuals that the forward pass saves for the backward pass."""
    geometry = model_def.config.geometry()
    if geometry is None:
        return 0
    mode = config.trainer.activation_checkpoint
    saved, largest = 0, 0
    for stage in geometry.stages:
        points = local_points(stage, axes.num_domain)
        block, attention = (
            points * width * stage.attentions // 2
            for width in _block_widths(stage, axes.num_tensor)
        )
        block += points * _expert_width(model_def.config, stage, axes)
        between = points * stage.channels
        inner = stage.attentions * between
        again = {"none": 0, "selective": attention - inner, "full": block}[mode]
        largest = max(largest, again)
        remainder = between if mode == "full" else block - again
        saved += 2 * between + stage.depth * remainder
    saved += largest
    saved += _edges(model_def, geometry, axes)
    return int(WORKSPACE * _item(config) * _samples(config) * saved)


def _item(config: Config) -> int:
    """Bytes of an element in the compute dtype."""
    policy = config.trainer.mp_policy
    return FLOAT32 if policy is None or policy.param_dtype == "float32" else HALF


def _samples(config: Config) -> int:
    """Samples of a forward pass on one data-parallel rank, members included."""
    return config.trainer.train_batch_size * config.num_members


def local_points(stage: StageGeometry, domain: int) -> int:
    """Largest number of points of a stage on a device, with whole windows."""
    share = max(stage.shares(domain).values())
    return math.ceil(share * stage.height * stage.width / domain)


def _block_widths(stage: StageGeometry, tensor: int) -> tuple[int, int]:
    """Values per point that a block saves, and that its two attentions save.

    Attention saves the normalized input, q, k, v, logits and weights (one per key), the
    output of the heads, and the sum; feed-forward saves the normalized input, the
    hidden units before and after their nonlinearity, and the sum.
    """
    channels, heads = stage.channels, stage.heads
    inner = heads * stage.head_channels
    keys = stage.local_window**2 + stage.global_window**2
    attention = 2 * (2 * channels + 4 * inner // tensor) + 2 * heads * keys // tensor
    feed_forward = 2 * (2 * channels + 8 * channels // tensor)
    return attention + feed_forward, attention


def _expert_width(config: ModelConfig, stage: StageGeometry, axes: MeshAxes) -> int:
    """Values per point that layers of experts save in addition to dense ones.

    They are the tokens of the ep group, and for each of their choices, including those
    of experts on other devices, the token, the hidden units before and after their
    nonlinearity, and the result.
    """
    if not isinstance(config, WXFormerMoEConfig):
        return 0
    channels, group = stage.channels, axes.num_expert
    units = 8 * channels // axes.num_tensor
    choices = group * config.moe_top_k * (2 * channels + units)
    shared = (config.moe_shared_experts - 1) * units
    return 2 // config.moe_frequency * (group * channels + choices + shared)


def _edges(model_def: ModelDef, geometry: Geometry, axes: MeshAxes) -> int:
    """Values that the padded input, the decoder and the output save."""
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
    return total
