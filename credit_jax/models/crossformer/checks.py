"""Checks of the sizes of models of the CrossFormer family.

Each function takes a config of the family and returns one line per error.
"""

from __future__ import annotations

from typing import Any

from credit_jax.config.messages import divisors
from credit_jax.models.common.config import MAX_DEPTH
from credit_jax.models.common.frames import mean_problems


def shape_problems(config: Any) -> list[str]:
    """Returns errors of keys that do not depend on the grid."""
    problems = []
    if len(config.cross_embed_kernel_sizes) != 4:
        problems.append(
            "model.cross_embed_kernel_sizes has "
            f"{len(config.cross_embed_kernel_sizes)} entries; expected 4, one list "
            "of kernel sizes a stage"
        )
    empty = [i for i, sizes in enumerate(config.cross_embed_kernel_sizes) if not sizes]
    for index in empty:
        problems.append(
            f"model.cross_embed_kernel_sizes[{index}] is empty; expected at least one "
            "kernel size"
        )
    if min(config.depth) < 0:
        problems.append(
            f"model.depth is {list(config.depth)}; expected no negative entry"
        )
    if max(config.depth) > MAX_DEPTH:
        problems.append(
            f"model.depth is {list(config.depth)}; expected at most {MAX_DEPTH} blocks "
            "a stage"
        )
    problems += config.channel_problems()
    for index, channels in enumerate(config.dim):
        if channels < config.dim_head:
            problems.append(
                f"model.dim[{index}] is {channels}, smaller than dim_head "
                f"{config.dim_head}; set dim_head to at most {min(config.dim)}"
            )
    return problems


def patch_problems(config: Any) -> list[str]:
    """Returns errors of patches and of frames."""
    problems = []
    if (config.patch_height == 1) != (config.patch_width == 1):
        problems.append(
            f"model.patch_height is {config.patch_height} and model.patch_width is "
            f"{config.patch_width}; expected both 1 or both above 1 (CREDIT embeds "
            "patches only then)"
        )
    mean = config.frame_fold == "mean"
    if config.patch != (1, 1) and config.frames > 1 and not mean:
        problems.append(
            f"model.frames is {config.frames} with patches of {config.patch_height} x "
            f"{config.patch_width}; expected frames: 1 (CREDIT's patch embedding "
            "cannot take more), or patch_height: 1 and patch_width: 1"
        )
    if config.patch == (1, 1) and mean:
        problems += mean_problems(config.frames)
    return problems


def dropout_problems(config: Any) -> list[str]:
    """Returns errors of dropout rates."""
    problems = []
    for name in ("attn_dropout", "ff_dropout"):
        rate = getattr(config, name)
        if not 0.0 <= rate < 1.0:
            problems.append(f"model.{name} is {rate}; expected 0 <= {name} < 1")
    return problems


def stage_problems(config: Any) -> list[str]:
    """Returns errors of embedding kernels, their channels, and window sizes."""
    problems = []
    geometry = config.geometry()
    above = geometry.patched
    for index, stage in enumerate(geometry.stages):
        problems += _embed_problems(config, index, above)
        above = stage.height, stage.width
        if config.depth[index]:
            problems += _window_problems(config, index, stage)
    return problems


def _window_problems(config: Any, index: int, stage: Any) -> list[str]:
    """Returns errors of windows that do not divide the height or width of a stage."""
    return [
        f"model.{kind}_window_size[{index}] is {window}, which does not divide the "
        f"{name} {size} of stage {index} ({_trail(config, name, index)}); would fit: "
        f"{divisors(size)}"
        for name, size in (("height", stage.height), ("width", stage.width))
        for kind in ("local", "global")
        for window in [getattr(stage, f"{kind}_window")]
        if size < 1 or size % window
    ]


def _embed_problems(config: Any, index: int, above: tuple[int, int]) -> list[str]:
    """Returns errors of kernels that do not fit the field of the previous stage."""
    problems = []
    kernels = sorted(config.cross_embed_kernel_sizes[index])
    stride = config.cross_embed_strides[index]
    where = f"model.cross_embed_kernel_sizes[{index}]"
    for points in above:
        sizes = config.scale_sizes(index, points)
        problems += [
            f"{where} has {kernel}, but stage {index} gets {above[0]} x {above[1]} "
            f"points and its stride is {stride}: no output point is left; use a larger "
            "grid or padding"
            for kernel, size in zip(kernels, sizes, strict=True)
            if size < 1
        ]
        if len(set(sizes)) > 1:
            problems.append(
                f"{where} is {kernels}, which make {sizes} of {points} points with "
                f"stride {stride}; they are joined, so they must make the same: choose "
                f"kernels that are all odd or all even"
            )
    if config.dim[index] < 2 ** len(kernels) // 2:
        problems.append(
            f"{where} has {len(kernels)} kernels for {config.dim[index]} channels; "
            f"expected 1 to {config.dim[index].bit_length()}"
        )
    return list(dict.fromkeys(problems))


def decoder_problems(config: Any) -> list[str]:
    """Returns errors of skip connections, groups and cropping."""
    problems = []
    stages = config.geometry().stages
    for index in (1, 2, 3):
        small, large = stages[index], stages[index - 1]
        if (small.height * 2, small.width * 2) != (large.height, large.width):
            problems.append(
                f"stage {index} has {small.height} x {small.width} points; the "
                f"decoder doubles it to {small.height * 2} x {small.width * 2}, "
                f"but stage {index - 1}, which it is joined with, has "
                f"{large.height} x {large.width}; "
                f"model.cross_embed_strides[{index}] must be 2 and height and "
                "width of the stage above even: change the padding"
            )
    problems += group_problems(config)
    pad, decoded = config.padding, config.geometry().decoded
    if pad and (decoded[0] <= sum(pad.pad_lat) or decoded[1] <= sum(pad.pad_lon)):
        problems.append(
            f"the decoder gives {decoded[0]} x {decoded[1]} points and the padding "
            f"to remove is {sum(pad.pad_lat)} x {sum(pad.pad_lon)}: nothing is "
            "left; use less padding or smaller strides"
        )
    output = config.geometry().output
    grid = config.image_height, config.image_width
    if not problems and output != grid:
        problems.append(
            f"model.interp is false and the decoder makes {output[0]} x {output[1]} "
            f"points of the {grid[0]} x {grid[1]} of the grid; set interp: true, or "
            "model.cross_embed_strides[0]: 2 without patches"
        )
    return problems


def group_problems(config: Any) -> list[str]:
    """Returns errors of channels that the groups of decoder norms do not divide."""
    problems = []
    for index in range(3):
        channels = config.dim[3] // 2 ** (index + 1)
        if not channels or channels % config.dim[0]:
            problems.append(
                f"decoder block {index + 1} has dim[3] / {2 ** (index + 1)} = "
                f"{channels} channels, which the {config.dim[0]} groups "
                "(model.dim[0]) of its GroupNorm do not divide; choose dim[3] a "
                f"multiple of {8 * config.dim[0]}"
            )
    return problems


def tensor_problems(config: Any, tensor: int) -> list[str]:
    """Returns errors of heads and hidden units that the tp degree does not divide."""
    problems = []
    for index, channels in enumerate(config.dim):
        heads, hidden = channels // config.dim_head, 4 * channels
        if config.depth[index] and heads % tensor:
            problems.append(
                f"stage {index} has {channels} // {config.dim_head} = {heads} heads, "
                f"which tensor = {tensor} of the parallelism does not divide; "
                f"would fit: {divisors(heads)}, or a smaller model.dim_head"
            )
        elif config.depth[index] and hidden % tensor:
            problems.append(
                f"stage {index} has 4 * {channels} = {hidden} feed-forward units, "
                f"which tensor = {tensor} of the parallelism does not divide"
            )
    return problems


def _trail(config: Any, name: str, index: int) -> str:
    """Returns the arithmetic of the size of a stage: "45 + 19 padding / 2 / 2"."""
    size = config.image_height if name == "height" else config.image_width
    pad, dim = config.padding, 0 if name == "height" else 1
    added = sum((pad.pad_lat, pad.pad_lon)[dim]) if pad else 0
    patch = config.patch[dim]
    steps = [f"{size} + {added} padding" if added else str(size)]
    steps += [f"/ patch {patch}"] if patch > 1 else []
    steps += [f"/ {stride}" for stride in config.cross_embed_strides[: index + 1]]
    return " ".join(steps)


def kernel_problems(config: Any) -> list[str]:
    """Returns errors of kernels smaller than their stride, for symmetric padding."""
    return [
        f"model.cross_embed_kernel_sizes[{index}] is {list(sizes)} with stride "
        f"{stride}; expected kernels of at least the stride"
        for index, sizes in enumerate(config.cross_embed_kernel_sizes[:4])
        for stride in [config.cross_embed_strides[index]]
        if any(size < stride for size in sizes)
    ]
