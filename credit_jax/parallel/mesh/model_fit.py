"""Checks model sizes against the parallel degrees."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from credit_jax.config.messages import divisors
from credit_jax.parallel.mesh.axes import DOMAIN, EP, TP

# Keys of transformer configs, and the axis whose degree must divide them.
_DIVIDED = (
    ("num_attention_heads", TP),
    ("num_key_value_heads", TP),
    ("num_experts", EP),
)

# Key of the degree that is no mesh axis: shards that trade heads for rows.
ULYSSES = "ulysses_degree"

# Share of the busiest shard, over an even one, from which there is a note.
NOTED = 1.1
# Blocks of rows whose sizes a note lists.
MOST_LISTED = 64


def model_problems(model: Any, degrees: Mapping[str, Any]) -> list[str]:
    """Reasons why a model cannot run on a mesh, one line each.

    Args:
        model: a model definition, or its config. Attributes that it lacks
            (`problems(tensor, domain)`, `num_experts`, ...) are not checked.
        degrees: degree of each mesh axis, and `ULYSSES`; 1 where there is none.
    """
    config = getattr(model, "config", model)
    name = getattr(config, "type", type(config).__name__)
    tp, domain, ep = (degrees.get(axis) or 1 for axis in (TP, DOMAIN, EP))
    own = getattr(config, "problems", None)
    found = list(own(tp, domain)) if own else []
    for key, axis in _DIVIDED:
        size, degree = getattr(config, key, None), degrees.get(axis) or 1
        if size is not None and size % degree:
            found.append(
                f"{key} is {size}, which {axis} {degree} does not divide; would fit: "
                f"{divisors(size)}"
            )
    if ep > 1 and getattr(config, "num_experts", None) is None:
        found.append(
            f"ep is {ep}, but {name} has no experts to share; use ep: 1, or "
            "wxformer_moe"
        )
    found += _ulysses_problems(config, name, tp, degrees.get(ULYSSES) or 1)
    return found


def _ulysses_problems(config: Any, name: str, tp: int, degree: int) -> list[str]:
    """Errors of heads that shards cannot share evenly, one line for all stages."""
    if degree == 1:
        return []
    if not getattr(config, "trades_heads", False):
        return [
            f"ulysses_degree is {degree}, but {name} has no attention that trades "
            "heads for rows; leave ulysses_degree out"
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
    """Notes on uneven rows and windows, which cost time but change no number.

    Args:
        model: a model definition, or its config.
        domain: number of latitude shards.
        ulysses: neighboring shards that hold whole windows together.
    """
    config = getattr(model, "config", model)
    height = getattr(config, "image_height", None)
    if domain == 1 or height is None:
        return []
    notes = []
    if height % domain:
        listed = _listed_blocks(height, domain)
        notes.append(
            f"{height} rows over domain {domain} are uneven ({listed}); exact all the "
            "same"
        )
    uneven = list(_uneven(config, domain, ulysses))
    if uneven:
        notes.append(
            f"windows of attention over domain {domain} are uneven, the busiest shard "
            f"has of an even share: {', '.join(uneven)}; exact all the same"
        )
    return notes


def validate_sharding_constraints(
    model: Any,
    local_h: int,
    window_sizes: Sequence[int | Sequence[int]] | None = None,
) -> list[str]:
    """Notes on what is uneven or idle with `local_h` rows on each domain shard.

    No size has to divide: results are exact, and the notes are about idle time.

    Args:
        model: a model definition, or its config. None, or a model without
            `image_height`: only `window_sizes` are checked.
        local_h: rows of a shard at the model's input.
        window_sizes: rows of a window at each level, or (rows, columns); each level has
            half the rows of the one before, as CREDIT assumes. None: the short windows
            of the model's stages, with the rows that they really have.

    Returns:
        One line each; empty if all shards have the same work.

    Raises:
        ValueError: `local_h` is below 1.

    Differs from CREDIT: windows that do not divide the rows work, so the notes say what
    they cost; and without `window_sizes` those of the model are checked, where CREDIT
    checks nothing.
    """
    if local_h < 1:
        raise ValueError(f"local_h is {local_h}; expected at least 1 row a shard")
    config = getattr(model, "config", model)
    height = getattr(config, "image_height", None)
    found, levels = [], []
    if height:
        domain = -(-height // local_h)
        found += [*_block_notes(height, local_h, domain), *model_notes(model, domain)]
        levels = _stage_rows(config, domain)
    if window_sizes is not None:
        levels = _halved(local_h, window_sizes)
    for level, (rows, window) in enumerate(levels):
        if window > 1 and rows % window:
            found.append(
                f"level {level}: {rows} rows a shard are no whole windows of {window}; "
                "rows move to neighbors before the attention and back after it; "
                "exact all the same"
            )
    return found


def _block_notes(height: int, local_h: int, domain: int) -> Iterator[str]:
    block = -(-height // domain)
    if block != local_h:
        yield (
            f"{height} rows over domain {domain} are {block} a shard, not {local_h}: "
            "equal blocks are as small as they can be"
        )


def _halved(
    local_h: int, window_sizes: Sequence[int | Sequence[int]]
) -> list[tuple[int, int]]:
    """(rows of a shard, rows of a window) of each level, half the rows at each."""
    return [
        (local_h // 2**level, size if isinstance(size, int) else size[0])
        for level, size in enumerate(window_sizes)
    ]


def _stage_rows(config: Any, domain: int) -> list[tuple[int, int]]:
    """The same for the stages of a model; windows of 1 where it has no attention."""
    if domain == 1:
        return []
    return [
        (-(-stage.height // domain), stage.local_window if stage.depth else 1)
        for stage in _stages(config)
    ]


def _stages(config: Any) -> Sequence[Any]:
    """The stages of a model's geometry; empty for a model without stages."""
    geometry = config.geometry() if hasattr(config, "geometry") else None
    return () if geometry is None else geometry.stages


def _uneven(config: Any, domain: int, ulysses: int) -> Iterator[str]:
    """Attentions that are far from even: a window, or a group, is on one shard."""
    for index, stage in enumerate(_stages(config)):
        shares = stage.shares(domain, ulysses) if stage.depth else {}
        for kind, share in shares.items():
            if share > NOTED:
                yield f"stage {index} {kind} {share:.2f}"


def _listed_blocks(size: int, num_shards: int) -> str:
    """Sizes of these blocks as text; those in the middle of many are left out.

    >>> _listed_blocks(32, 3)
    '11, 11, 10'
    """
    length = -(-size // num_shards)
    first = range(min(num_shards, MOST_LISTED))
    sizes = [str(min(length, max(0, size - length * shard))) for shard in first]
    return ", ".join(sizes) + (", ..." if num_shards > MOST_LISTED else "")
