"""Splits parameters into trainable and frozen parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from credit_jax.parallel.params.spec import ParamSpec


def split_frozen(
    params: Mapping[str, Any], param_specs: Mapping[str, ParamSpec]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the (trainable, frozen) parts of a dict by path, whose union is the dict.

    Args:
        params: arrays, specs or other values by path. The vector of packed
            parameters (`packing`) is trainable.
        param_specs: specs of the model's parameters, by path.
    """
    paths = [path for path in params if path in param_specs]
    frozen = {path: params[path] for path in paths if param_specs[path].frozen}
    return {path: x for path, x in params.items() if path not in frozen}, frozen


def trainable(
    params: Mapping[str, Any], param_specs: Mapping[str, ParamSpec]
) -> dict[str, Any]:
    """Returns the trainable part, which the optimizer updates; see `split_frozen`."""
    return split_frozen(params, param_specs)[0]
