"""Checks model sizes against the parallel degrees."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from credit_jax.config.messages import divisors
from credit_jax.parallel.mesh.device_mesh import DOMAIN, EP, TP

# Keys that a model may have, and the axis whose degree must divide them.
_DIVIDED = {
    "num_attention_heads": TP,
    "num_key_value_heads": TP,
    "num_experts": EP,
}

# Key of the degree that is not a mesh axis: shards that exchange heads for rows.
ULYSSES = "ulysses_degree"

# Load of the busiest shard, relative to an even share, above which a note is given.
NOTED = 1.1
# Maximum number of blocks of rows whose sizes a note lists.
MOST_LISTED = 64


def model_problems(model: Any, degrees: Mapping[str, Any]) -> list[str]:
    """Returns the reasons why a model cannot run on a mesh, one line each."""
    # The model, here and below, is a `ModelDef` or its config.
    config = getattr(model, "config", model)
    tp, ep = (degrees.get(axis) or 1 for axis in (TP, EP))
    problems = [*config.problems()]
    split = [axis for axis in (TP, DOMAIN, EP) if (degrees.get(axis) or 1) > 1]
    if config.only_data_parallel and split:
        problems.append(
            f"model.type {config.type!r} is a function of complete samples: got "
            f"{split[0]} {degrees[split[0]]}, expected 1; split samples and parameters "
            "(data: fsdp2), or use layers of credit_jax (docs/adding_a_model.md)"
        )
    # The sizes of stages are those of a config without problems.
    for index, stage in enumerate(() if problems else _stages(config)):
        if stage.depth and stage.heads % tp:
            problems.append(
                f"stage {index} has {stage.heads} heads, which tensor = {tp} of the "
                f"parallelism does not divide; would fit: {divisors(stage.heads)}"
            )
    sizes = {key: getattr(config, key, None) for key in _DIVIDED}
    for key, axis in _DIVIDED.items():
        size, degree = sizes[key], degrees.get(axis) or 1
        if size is not None and size % degree:
            problems.append(
                f"{key} is {size}, which {axis} {degree} does not divide; would fit: "
                f"{divisors(size)}"
            )
    if ep > 1 and sizes["num_experts"] is None:
        problems.append(
            f"ep is {ep}, but {config.type} has no experts to share; use ep: 1, or "
            "wxformer_moe"
        )
    return problems + _ulysses_problems(config, tp, degrees.get(ULYSSES) or 1)


def _ulysses_problems(config: Any, tp: int, degree: int) -> list[str]:
    """Returns a problem if the degree does not divide the heads of every stage."""
    if degree == 1:
        return []
    if not config.trades_heads:
        return [
            f"ulysses_degree is {degree}, but {config.type} has no attention that "
            "trades heads for rows; leave ulysses_degree out"
        ]
    heads = [stage.heads for stage in _stages(config) if stage.depth]
    if any(n % tp for n in heads) or not any(n // tp % degree for n in heads):
        return []
    listed = ", ".join(map(str, heads))
    each = f"{listed} / tp {tp} = {', '.join(str(n // tp) for n in heads)}"
    return [
        f"the stages have {listed if tp == 1 else each} heads, which ulysses_degree "
        f"{degree} does not divide; would fit: {divisors(math.gcd(*heads) // tp)}"
    ]


def model_notes(model: Any, domain: int, ulysses: int = 1) -> list[str]:
    """Returns notes on uneven rows and windows, which cost time alone."""
    config = getattr(model, "config", model)
    height: int | None = getattr(config, "image_height", None)
    if domain == 1 or height is None:
        return []
    notes = []
    if height % domain:
        length = -(-height // domain)
        first = range(min(domain, MOST_LISTED))
        sizes = [str(min(length, max(0, height - length * shard))) for shard in first]
        listed = ", ".join(sizes) + (", ..." if domain > MOST_LISTED else "")
        notes.append(
            f"{height} rows over domain {domain} are uneven ({listed}); results "
            "are exact nonetheless"
        )
    uneven = [
        f"stage {index} {kind} {share:.2f}"
        for index, stage in enumerate(_stages(config))
        if stage.depth
        for kind, share in stage.shares(domain, ulysses).items()
        if share > NOTED
    ]
    if uneven:
        notes.append(
            f"windows of attention over domain {domain} are uneven, the busiest shard "
            f"has of an even share: {', '.join(uneven)}; results are exact nonetheless"
        )
    return notes


def validate_sharding_constraints(
    model: Any,
    local_h: int,
    window_sizes: Sequence[int | Sequence[int]] | None = None,
) -> list[str]:
    """Returns notes on uneven or idle shards of `local_h` rows of the input."""
    if local_h < 1:
        raise ValueError(f"local_h is {local_h}; expected at least 1 row per shard")
    # Differs from CREDIT: windows need not divide the rows, as results are exact, so
    # the notes describe their cost; and without `window_sizes` those of the model are
    # checked, where CREDIT checks nothing.
    notes, levels = [], []
    config = getattr(model, "config", model)
    height: int | None = getattr(config, "image_height", None)
    if config is not None and height:
        domain = -(-height // local_h)
        block = -(-height // domain)
        if block != local_h:
            notes.append(
                f"{height} rows over domain {domain} are {block} a shard, not "
                f"{local_h}: equal blocks are as small as they can be"
            )
        notes += model_notes(config, domain)
        levels = [
            (-(-stage.height // domain), stage.local_window if stage.depth else 1)
            for stage in (_stages(config) if domain > 1 else ())
        ]
    if window_sizes is not None:
        levels = [
            # Each level has half the rows of the previous one, as CREDIT assumes.
            (local_h // 2**level, size if isinstance(size, int) else size[0])
            for level, size in enumerate(window_sizes)
        ]
    for level, (rows, window) in enumerate(levels):
        if window > 1 and rows % window:
            notes.append(
                f"level {level}: {rows} rows a shard are no whole windows of {window}; "
                "rows move to neighbors before the attention and back after it; "
                "results are exact nonetheless"
            )
    return notes


def _stages(config: Any) -> Sequence[Any]:
    """Returns the stages of a model's geometry; empty for a model without stages."""
    geometry = config.geometry()
    return () if geometry is None else geometry.stages
