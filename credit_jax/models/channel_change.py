"""Weights of a model for another one with other channels of input and output.

A channel that both models have keeps its weights. A new input has the weight 0, so
that it changes no output; a new output begins as `ChannelChange.fill` says. The models
of `CHANNELS_FIRST` are known: all their parameters but those of the first and the last
layers have shapes that do not depend on the channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import jax
import numpy as np

from credit_jax.models.model_def import ModelDef
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.params.init import initialize
from credit_jax.parallel.params.spec import ParamSpec
from credit_jax.state_dict.key_map import Arrays, HostModelState
from credit_jax.state_dict.key_table import compare_shapes, raise_problems

Fill = Literal["zero", "mean", "copy"]
Direction = Literal["input", "output"]
# Whether the output of the last layer has the channels outermost, or innermost (of the
# points of a patch).
CHANNELS_FIRST = {
    "camulator": True,
    "crossformer": True,
    "fuxi": False,
    "wxformer": True,
    "wxformer_base": True,
}
# Power iterations of a matrix that has lost rows or columns.
ITERATIONS = 100
_KEYS: dict[Direction, str] = {
    "input": "input_only_channels",
    "output": "output_only_channels",
}


@dataclass(frozen=True)
class ChannelChange:
    """The channels of a model, by those of another."""

    # Channel of the base of each channel; None for a new one.
    input: tuple[int | None, ...]
    output: tuple[int | None, ...]
    # Numbers of channels of the base.
    base_input: int
    base_output: int
    # What new outputs begin with: "zero", the "mean" of all outputs of the base, or
    # with "copy" those of `copied`, and 0 for others.
    fill: Fill = "zero"
    # New output -> output of the base.
    copied: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _ChannelDim:
    """A dim of a parameter that has entries for each channel."""

    dim: int
    direction: Direction
    per_channel: int
    first: bool
    role: Literal["reads", "hidden", "makes"]


def other_shapes(base_def: ModelDef, model_def: ModelDef) -> list[str]:
    """Lists arrays whose shapes differ by more than the numbers of channels."""
    # Weights of a model can be those of another one if there are none.
    kind = model_def.config.type
    if kind not in CHANNELS_FIRST:
        raise ValueError(
            f"other channels than those of the base are available for "
            f"{', '.join(CHANNELS_FIRST)}; the model is {kind}"
        )
    shapes: list[dict[str, tuple[int, ...]]] = []
    for one in (base_def, model_def):
        dims = {p: [d.dim for d in ds] for p, ds in _channel_dims(one).items()}
        specs = one.param_specs.items()
        shapes.append(
            {
                path: tuple(
                    0 if dim in dims.get(path, ()) else length
                    for dim, length in enumerate(spec.shape)
                )
                for path, spec in specs
            }
        )
    return compare_shapes(*shapes)


def change_channels(
    weights: tuple[Arrays, HostModelState],
    base_def: ModelDef,
    model_def: ModelDef,
    change: ChannelChange,
) -> tuple[Arrays, HostModelState]:
    """Returns the weights of a base for a model with other channels."""
    # New hidden channels, which layers between have for each output, begin as in a new
    # model; the layer that reads them does so with the weight 0.
    differ = other_shapes(base_def, model_def)
    raise_problems(differ, "beside the channels, arrays differ")
    params, state = weights
    vectors, moved = dict(state[SPECTRAL_NORM]), dict(params)
    for path, dims in _channel_dims(model_def).items():
        spec, array = model_def.param_specs[path], params[path]
        fresh = None
        if any(dim.role == "hidden" for dim in dims):
            drawn = initialize({path: spec}, jax.random.key(0))
            fresh = np.asarray(drawn[path])
        for dim in dims:
            array = _moved(array, dim, change, fresh)
        moved[path] = array
        if path in vectors:
            vectors[path] = _vectors(vectors[path], array, spec, dims, change)
    return moved, {**state, SPECTRAL_NORM: vectors}


def change_moments(
    moments: Arrays, model_def: ModelDef, change: ChannelChange
) -> Arrays:
    """Moments of an optimizer for a model with other channels, 0 for new ones."""
    moved, zeros = dict(moments), replace(change, fill="zero", copied={})
    for path, dims in _channel_dims(model_def).items():
        for dim in dims if path in moved else ():
            moved[path] = _moved(moved[path], dim, zeros, None)
    return moved


def frozen_layers(
    model_def: ModelDef, change: ChannelChange
) -> dict[Direction, list[str]]:
    """The frozen layers of new channels: such channels stay as they are."""
    # Returns: "input" or "output" -> paths of the kernels that read new inputs or make
    # new outputs, if none of them is trained or has an adapter.
    trained = {*model_def.trainable}
    trained |= model_def.low_rank.targets if model_def.low_rank else set()
    plain = replace(model_def, low_rank=None)
    layers, roles = dict[Direction, list[str]](), {"reads": "input", "makes": "output"}
    for path, dims in _channel_dims(plain).items():
        for dim in dims:
            is_kernel = len(plain.param_specs[path].shape) > 1
            if is_kernel and roles.get(dim.role) == dim.direction:
                layers.setdefault(dim.direction, []).append(path)
    return {
        direction: paths
        for direction, paths in layers.items()
        if None in getattr(change, direction) and trained.isdisjoint(paths)
    }


def _channel_dims(model_def: ModelDef) -> dict[str, list[_ChannelDim]]:
    """The dims that one channel more makes longer, by path, reading ones first."""
    first = CHANNELS_FIRST[model_def.config.type]
    specs, by_path = model_def.param_specs, dict[str, list[_ChannelDim]]()
    for direction, key in _KEYS.items():
        more = {key: getattr(model_def.config, key) + 1}
        longer = replace(model_def, config=model_def.config.model_copy(update=more))
        grown = [
            (path, dim, length - spec.shape[dim])
            for path, spec in specs.items()
            for dim, length in enumerate(longer.param_specs[path].shape)
            if length > spec.shape[dim]
        ]
        reads = {path for path, dim, _ in grown if _is_read(specs[path], dim)}
        last = {path.rpartition("/")[0] for path in reads}
        for path, dim, number in grown:
            role: Literal["reads", "hidden", "makes"] = "makes"
            if _is_read(specs[path], dim):
                role = "reads"
            elif last and path.rpartition("/")[0] not in last:
                role = "hidden"
            outermost = direction == "input" or first
            one = _ChannelDim(dim, direction, number, outermost, role)
            by_path.setdefault(path, []).append(one)
    return {
        path: sorted(dims, key=lambda dim: dim.role != "reads")
        for path, dims in by_path.items()
    }


def _is_read(spec: ParamSpec, dim: int) -> bool:
    """Whether a dim is that of the channels that a layer reads."""
    if spec.matrix_out is None:
        return spec.dims[dim] == "conv_in"
    return dim in spec.matrix_in


def _moved(
    array: np.ndarray, dim: _ChannelDim, change: ChannelChange, fresh: np.ndarray | None
) -> np.ndarray:
    """An array with the entries of the channels of the model along a dim."""
    indices = getattr(change, dim.direction)
    base = _by_channel(array, dim)
    drawn = None if fresh is None else _by_channel(fresh, dim)
    parts = []
    for channel, index in enumerate(indices):
        part = np.zeros_like(base[0])
        if index is not None:
            part = base[index]
        elif dim.role == "hidden" and drawn is not None:
            part = drawn[channel]
        elif dim.role == "makes" and change.fill == "mean":
            part = base.mean(0, dtype=np.float64).astype(base.dtype)
        elif dim.role == "makes" and channel in change.copied:
            part = base[change.copied[channel]]
        parts.append(part)
    stacked = np.stack(parts)
    stacked = stacked if dim.first else stacked.swapaxes(0, 1)
    lead = stacked.reshape(-1, *np.moveaxis(array, dim.dim, 0).shape[1:])
    return np.ascontiguousarray(np.moveaxis(lead, 0, dim.dim))


def _by_channel(array: np.ndarray, dim: _ChannelDim) -> np.ndarray:
    """(channel, entries of a channel, other dims) of an array."""
    lead = np.moveaxis(array, dim.dim, 0)
    number, remainder = dim.per_channel, lead.shape[1:]
    if dim.first:
        return lead.reshape(-1, number, *remainder)
    return lead.reshape(number, -1, *remainder).swapaxes(0, 1)


def _vectors(
    pair: Mapping[str, np.ndarray],
    matrix: np.ndarray,
    spec: ParamSpec,
    dims: Sequence[_ChannelDim],
    change: ChannelChange,
) -> dict[str, np.ndarray]:
    """U and v of a changed matrix: 0 for new entries, so that sigma is as before."""
    # Where entries were removed, power iterations find those of the rest: with parts of
    # unit vectors sigma would be too small, and the weights too large.
    vectors = dict(pair)
    sides = {"u": spec.matrix_out or (), "v": spec.matrix_in}
    for dim in dims:
        side = "u" if dim.dim in sides["u"] else "v"
        index = replace(dim, dim=sides[side].index(dim.dim), role="reads")
        vectors[side] = _moved(vectors[side], index, change, None)
    # Whether a channel of the base is not a channel any more.
    if not any(
        len({*getattr(change, dim.direction)} - {None})
        < getattr(change, f"base_{dim.direction}")
        for dim in dims
    ):
        return vectors
    rows = np.transpose(matrix, (*sides["u"], *sides["v"])).astype(np.float64)
    rows = rows.reshape(vectors["u"].size, vectors["v"].size)
    u = np.random.default_rng(0).normal(size=len(rows))
    v = u @ rows
    for _ in range(ITERATIONS):
        v = u @ rows
        v = v / max(np.linalg.norm(v), 1e-12)
        u = rows @ v
        u = u / max(np.linalg.norm(u), 1e-12)
    return {
        side: vector.reshape(vectors[side].shape).astype(vectors[side].dtype)
        for side, vector in (("u", u), ("v", v))
    }
