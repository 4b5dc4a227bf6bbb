"""Applies bridgescaler's scalers to fields, on the host and traced."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from credit_jax.io.errors import errors_of
from credit_jax.named_fields import FieldContext, read_scalers
from credit_jax.named_fields.bridgescaler import (
    DeepStandardScaler,
    MinMaxScaler,
    QuantileScaler,
    Scaler,
    levels_of,
    take_channels,
)
from credit_jax.named_fields.coordinates import places_of
from credit_jax.transforms import quantile
from credit_jax.transforms.base import FieldTree, Group, LevelFile, change_entry
from credit_jax.transforms.pointwise import is_numpy, standardize
from credit_jax.transforms.selection import Selection, Variables

Method: TypeAlias = Literal["transform", "inverse_transform"]
INVERSE: Mapping[Method, Method] = {
    "transform": "inverse_transform",
    "inverse_transform": "transform",
}
LevelFields = Shaped[Any, "batch level time lat lon"]


@runtime_checkable
class ScalerSelection(Protocol):
    """Arguments that both blocks with scalers have."""

    @property
    def scaler_path(self) -> str:
        """Path of the JSON file of fitted scalers."""
        ...

    @property
    def variables(self) -> Variables:
        """The variables to scale."""
        ...

    @property
    def spatial_variables(self) -> Variables:
        """Those of `variables` with a scaler for each grid point."""
        ...


def open_scalers(path: str) -> dict[str, dict[str, dict[str, Scaler]]]:
    """Reads the scalers of a file; the result is cached until the file changes.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: see `read_scalers`.
    """
    path = os.path.expandvars(path)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"scaler_path: no file {path!r}; `credit-jax preprocess --config FILE` "
            "fits the scalers of a config and writes it"
        )
    return _read(path, os.stat(path).st_mtime_ns)


def target_scalers(path: str) -> Mapping[str, Mapping[str, Scaler]]:
    """Reads the scalers of the target, {source: {key: scaler}}.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no valid target scalers.
    """
    scalers = open_scalers(path)
    if "target" not in scalers:
        raise ValueError(
            f"scaler_path: {path} has no scalers of the target, only of "
            f"{', '.join(scalers) or 'nothing'}; fit them with the target, too"
        )
    return scalers["target"]


@lru_cache(maxsize=8)
def _read(path: str, changed: int) -> dict[str, dict[str, dict[str, Scaler]]]:
    del changed  # part of the cache's key
    return read_scalers(path)


def scale(
    scaler: Scaler,
    x: LevelFields,
    method: Method,
    *,
    per_point: bool = False,
    context: FieldContext | None = None,
) -> LevelFields:
    """Transforms a field, or inverts the transform.

    Args:
        scaler: the scaler of the variable.
        x: (batch, level, time, lat, lon), numpy or JAX.
        method: "transform" or "inverse_transform".
        per_point: whether a channel of the scaler is a grid point; else it is a level,
            or a longitude for a scaler with channels last.
        context: context of a traced step; None on the host.

    Returns:
        The field, in the promoted dtype of x and the scaler for numpy arrays, and in
        the dtype of x for JAX arrays.

    Raises:
        ValueError: the scaler has another number of channels than the field.
    """
    if isinstance(scaler, QuantileScaler):
        rows = _whole if context is None else partial(context.local_rows, fill=1)
        return quantile.scale(
            scaler, x, method, per_point=per_point, grid=_grid(x, context), rows=rows
        )
    shape = _shape(scaler, x, per_point, context)
    shift, factor = (part.reshape(shape) for part in _affine(scaler))
    local_rows = context.local_rows if per_point and context is not None else None
    if method == "transform":
        with np.errstate(divide="ignore", invalid="ignore"):
            return standardize(x, shift, factor, local_rows)
    if local_rows is not None:
        shift, factor = local_rows(shift), local_rows(factor, fill=1)
    if not is_numpy(x):
        shift, factor = (
            jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)
            for value in (shift, factor)
        )
    return x * factor + shift


def num_channels(scaler: Scaler) -> int:
    """Number of channels of a scaler."""
    if isinstance(scaler, QuantileScaler):
        return len(scaler.centroids)
    return _affine(scaler)[0].size


def scale_fields(
    tree: FieldTree,
    part: str,
    scalers: Mapping[str, Mapping[str, Scaler]],
    args: ScalerSelection,
    method: Method,
    context: FieldContext | None,
) -> dict[str, Any]:
    """Scales the selected fields of one entry.

    Args:
        tree: the tree; it is not modified.
        part: the entry.
        scalers: {source: {key: scaler}}.
        args: selects the variables.
        method: "transform" or "inverse_transform".
        context: context of a traced step; None on the host.

    Raises:
        ValueError: the entry is missing, a variable has no scaler or one of another
            size, or `spatial_variables` has a variable that is not selected.
    """
    selected, spatial = Selection(args.variables), _spatial(args)

    def change(key: str, x: Any) -> Any:
        if not selected(key):
            if spatial(key):
                raise ValueError(_not_selected(key))
            return x
        (scaler,) = find_scalers(scalers, [key], f"the scalers of {part}").values()
        options = {"per_point": spatial(key), "context": context}
        with errors_of(args.scaler_path, key):
            return scale(scaler, x, method, **options)

    return change_entry(tree, change, part, "bridgescaler_transform")


def check_groups(
    scalers: Mapping[str, Mapping[str, Scaler]],
    groups: Sequence[Group],
    args: ScalerSelection,
    where: str,
) -> None:
    """Checks that the selected variables have scalers that fit their levels.

    Raises:
        ValueError: a variable has no scaler, or one of another size, or
            `spatial_variables` has a variable that is not selected.
    """
    selected, spatial = Selection(args.variables), _spatial(args)
    levels = {group.var_key: group.n_levels for group in groups}
    for key in levels:
        if spatial(key) and not selected(key):
            raise ValueError(_not_selected(key))
    chosen = [key for key in levels if selected(key)]
    chosen_scalers = find_scalers(scalers, chosen, f"{where} of {args.scaler_path}")
    for key, scaler in chosen_scalers.items():
        with errors_of(args.scaler_path, key):
            _check_scaler(scaler, levels[key], spatial(key))


def level_file(
    scalers: Mapping[str, Mapping[str, Scaler]],
    path: str,
    selects: Callable[[str], bool],
) -> LevelFile:
    """The scalers whose channels are levels without values; see `LevelFile`."""
    without = {
        key
        for source_scalers in scalers.values()
        for key, scaler in source_scalers.items()
        if levels_of(scaler) is None and not scaler.channels_last
    }
    return LevelFile(path, lambda key: key in without and selects(key))


def scalers_at(
    scalers: Mapping[str, Mapping[str, Scaler]],
    groups: Sequence[Group],
    path: str,
    selects: Callable[[str], bool],
) -> Mapping[str, Mapping[str, Scaler]]:
    """Returns scalers with their channels in the order of the levels of the data.

    Args:
        scalers: {source: {key: scaler}}.
        groups: the variables, with their levels.
        path: file of the scalers, for the error.
        selects: whether a variable is scaled by level, by its key.

    Raises:
        ValueError: a scaler has other levels; names both.
    """
    located = scalers
    for group in groups:
        key = group.var_key
        source = key.split("/")[0]
        scaler = located.get(source, {}).get(key)
        if scaler is None or not selects(key) or scaler.channels_last:
            continue
        where = f"{path}: {key}", "the data"
        order = places_of(group.levels, levels_of(scaler), "level", *where, some=True)
        if order is not None:
            ordered = take_channels(scaler, order)
            located = {**located, source: {**located[source], key: ordered}}
    return located


def find_scalers(
    scalers: Mapping[str, Mapping[str, Scaler]], keys: Sequence[str], where: str
) -> dict[str, Scaler]:
    """Returns the scalers of variables.

    Args:
        scalers: {source: {key: scaler}}.
        keys: keys of the variables.
        where: what the scalers are, for the error.

    Raises:
        ValueError: a variable has no scaler.
    """
    by_source = {key: scalers.get(key.split("/")[0], {}) for key in keys}
    missing = [key for key in keys if key not in by_source[key]]
    if missing:
        known = [name for names in scalers.values() for name in names]
        raise ValueError(
            f"bridgescaler_transform: {', '.join(missing)} {_are(missing)} not among "
            f"{where}; there are: {', '.join(known) or 'none'}. Fit "
            "them again, or name those that are to be scaled in `variables`"
        )
    return {key: by_source[key][key] for key in keys}


def _spatial(args: ScalerSelection) -> Callable[[str], bool]:
    """Returns whether a variable has a scaler for each grid point, by its key."""
    if not args.spatial_variables:
        return lambda key: False
    return Selection(args.spatial_variables)


def by_level(args: ScalerSelection) -> Callable[[str], bool]:
    """Returns whether a variable is scaled by level, by its key."""
    selected, spatial = Selection(args.variables), _spatial(args)
    return lambda key: selected(key) and not spatial(key)


def _not_selected(key: str) -> str:
    return (
        f"bridgescaler_transform: {key} stands in spatial_variables, but `variables` "
        "does not select it; add it there"
    )


def _check_scaler(scaler: Scaler, num_levels: int, per_point: bool) -> None:
    """Checks that a scaler fits the levels of a variable."""
    if per_point and num_levels > 1:
        raise ValueError(
            f"it stands in spatial_variables and has {num_levels} levels; scaling by "
            "grid point takes variables of one level"
        )
    last = scaler.channels_last
    if not per_point and not last and num_channels(scaler) != num_levels:
        raise ValueError(
            f"the scaler has {num_channels(scaler)} channels, the data have "
            f"{num_levels} level{'s' if num_levels > 1 else ''}; fit it again, or name "
            "the variable in spatial_variables if its channels are grid points"
        )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _affine(scaler: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shift and factor, (channel,) each: transformed = (x - shift) / factor."""
    if isinstance(scaler, MinMaxScaler):
        return scaler.minimum, scaler.maximum - scaler.minimum
    if isinstance(scaler, DeepStandardScaler):
        return scaler.mean, scaler.deviation
    return scaler.mean, np.sqrt(scaler.variance)


def _shape(
    scaler: Any, x: Any, per_point: bool, context: FieldContext | None
) -> tuple[int, ...]:
    """Shape in which the channels of a scaler broadcast to a field."""
    grid, count = _grid(x, context), num_channels(scaler)
    last = scaler.channels_last
    expected = grid[0] * grid[1] if per_point else x.shape[-1 if last else 1]
    if count != expected:
        what = "grid points" if per_point else "longitudes" if last else "levels"
        raise ValueError(
            f"the scaler has {count} channels, the field {tuple(x.shape)} has "
            f"{expected} {what}; fit it again with scaler_params: {{channels_last: "
            "false}, or see spatial_variables"
        )
    if per_point:
        return grid
    return (count,) if last else (1, count, 1, 1, 1)


def _grid(x: Any, context: FieldContext | None) -> tuple[int, int]:
    """(lat, lon) of the whole field."""
    rows = x.shape[-2] if context is None else context.reducer.rows.size
    return rows, x.shape[-1]


def _whole(per_row: np.ndarray) -> np.ndarray:
    return per_row
