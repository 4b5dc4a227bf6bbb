"""Checks of the sizes of models with a U-Transformer."""

from __future__ import annotations

from credit_jax.config.messages import divisors
from credit_jax.models.common.config import MAX_DEPTH
from credit_jax.models.swin.u_transformer import UTransformerSizes
from credit_jax.ops.padding import IntPair


def stage_problems(sizes: UTransformerSizes, tensor: int) -> list[str]:
    """Returns errors of heads, groups, windows and depth.

    Args:
        sizes: sizes of the U-Transformer.
        tensor: tensor-parallel degree.
    """
    problems, dim = [], sizes.channels
    if dim % sizes.heads:
        problems.append(
            f"model.num_heads is {sizes.heads}, which does not divide dim {dim}; would "
            f"fit: {divisors(dim)}"
        )
    problems += [
        f"model.num_groups has {groups}, which does not divide dim {dim}; would fit: "
        f"{divisors(dim)}"
        for groups in dict.fromkeys(sizes.num_groups)
        if groups < 1 or dim % groups
    ]
    if sizes.window < 2:
        problems.append(
            f"model.window_size is {sizes.window}; expected at least 2: the position "
            "bias of CREDIT divides by window_size - 1"
        )
    if not 0 <= sizes.depth <= MAX_DEPTH:
        problems.append(
            f"model.depth is {sizes.depth}; expected 0 to {MAX_DEPTH} blocks"
        )
    if not problems and sizes.depth and sizes.heads % tensor:
        problems.append(
            f"model.num_heads is {sizes.heads}, which tensor = {tensor} of "
            f"the parallelism does not divide; would fit: {divisors(sizes.heads)}"
        )
    return problems


def patch_problems(
    padded: IntPair, patch: IntPair, names: IntPair | tuple[str, str]
) -> list[str]:
    """Returns errors of patches for which CREDIT's U-Transformer fails.

    Args:
        padded: rows and columns of the padded grid.
        patch: rows and columns of a patch.
        names: config keys of the patch.
    """
    problems = []
    for size, side, name in zip(padded, patch, names, strict=True):
        tokens, expected = -(-(size // side) // 2), round(size / side / 2)
        if size < side:
            problems.append(
                f"model.{name} is {side}, more than the {size} points of the padded "
                "grid; use smaller patches"
            )
        elif tokens != expected:
            fits = [
                more
                for more in range(size, size + 4 * side, side)
                if -(-(more // side) // 2) == round(more / side / 2)
            ]
            problems.append(
                f"model.{name} is {side}: {size} points make {size // side} patches, "
                f"whose half is {tokens}, but CREDIT expects round({size} / {side} / "
                f"2) = {expected} and fails; pad to {fits[0]} points"
            )
    return problems


def frame_problems(frames: int, cube: int) -> list[str]:
    """Returns an error if the frames do not make exactly one cube.

    Args:
        frames: number of frames of the input.
        cube: number of frames of a patch.
    """
    if frames // cube == 1:
        return []
    return [
        f"model.frames is {frames} and model.frame_patch_size {cube}; expected one "
        f"patch of frames: frame_patch_size from {frames // 2 + 1} to {frames}"
    ]
