"""Tensor parallelism of blocks that declare pairs of layers.

A block declares `tp_plan`, pairs of dotted paths below itself:

    class MyBlock(nnx.Module):
        tp_plan = (("proj_up", "proj_out"), ("layers.0", "layers.2"))

The first layer of a pair is split by columns: each tp device computes its own output
channels. Operations between the two layers must act on each channel separately. The
second layer is split by rows: each tp device multiplies its own input channels, a
`psum` sums the products, then the bias, if there is one, is added. A layer is a
`Linear` or a 1 x 1 `Conv`. Gradients need no further code: transposition under
`shard_map` sums those of replicated parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flax import nnx

from credit_jax.nn.layers import Conv, Linear
from credit_jax.nn.parameters import from_param_spec, param_spec_of

# Dim name of the channels between a column and a row layer.
HIDDEN = "mlp"


def apply_tensor_parallel(module: nnx.Module) -> nnx.Module:
    """Shards the layers in the `tp_plan` of every block of a module over tp.

    It renames dims in the parameter specs, so it must be called before they are read.
    It has no effect on a mesh without tp.

    Args:
        module: a module without values; changed in place.

    Returns:
        The same module.

    Raises:
        ValueError: a `tp_plan` names a layer that is missing or cannot be split; or a
            block has `_tp_col` or `_tp_row`, as in CREDIT.
    """
    for _, block in nnx.iter_modules(module):
        _check_names(block)
        for pair in getattr(block, "tp_plan", ()):
            column, row = _pair(block, pair)
            _check_widths(block, pair, column, row)
            _split_columns(column)
            _split_rows(row)
    return module


def _check_names(block: nnx.Module) -> None:
    """Raises ValueError for CREDIT's attributes, which would split nothing here."""
    paths = {name: getattr(block, name, None) for name in ("_tp_col", "_tp_row")}
    if any(path is not None for path in paths.values()):
        listed = ", ".join(f"{name} = {path!r}" for name, path in paths.items())
        column, row = (path or "..." for path in paths.values())
        raise ValueError(
            f"{type(block).__name__} has {listed}, which CREDIT reads; write "
            f"tp_plan = (({column!r}, {row!r}),), pairs of (column layer, row layer)"
        )


def _pair(block: nnx.Module, pair: Any) -> tuple[Linear | Conv, Linear | Conv]:
    what = f"{type(block).__name__}.tp_plan"
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    if not is_pair or not all(isinstance(path, str) for path in pair):
        raise ValueError(
            f"{what} has the entry {pair!r}; expected a pair of dotted paths, "
            "(column layer, row layer)"
        )
    return _layer(block, pair[0], what), _layer(block, pair[1], what)


def _layer(block: nnx.Module, path: str, what: str) -> Linear | Conv:
    """Returns the layer at a dotted path; raises ValueError if it cannot be split."""
    layer: Any = block
    for part in path.split("."):
        children = _children(layer)
        if part not in children:
            raise ValueError(
                f"{what} names {path!r}, but {type(layer).__name__} has no {part!r}; "
                f"there are: {', '.join(children) or 'none'}"
            )
        layer = children[part]
    problem = _why_not(layer)
    if problem:
        raise ValueError(
            f"{what} names {path!r}, {problem}; expected a Linear, or a Conv of kernel "
            "1 and stride 1 without padding, that no other pair names"
        )
    return layer


def _children(module: Any) -> dict[str, Any]:
    if isinstance(module, nnx.List):
        return {str(index): child for index, child in enumerate(module)}
    return {
        name: child
        for name, child in vars(module).items()
        if isinstance(child, nnx.Module)
    }


def _why_not(layer: Any) -> str | None:
    """Returns the reason why a layer cannot be split, or None."""
    if not isinstance(layer, Linear | Conv):
        return f"which is a {type(layer).__name__}"
    if layer.split:
        return f"which is split by {layer.split}s already"
    if isinstance(layer, Linear):
        return None
    if layer.groups > 1:
        return "a Conv of several groups"
    kernel = param_spec_of(layer.kernel).unstack().shape[:2]
    if kernel != (1, 1) or layer.stride != (1, 1) or any(map(any, layer.padding)):
        return (
            f"a Conv of kernel {list(kernel)}, stride {list(layer.stride)}, padding "
            f"{[list(pad) for pad in layer.padding]}"
        )
    return None


def _check_widths(
    block: nnx.Module, pair: tuple[str, str], column: Any, row: Any
) -> None:
    output_width = param_spec_of(column.kernel).shape[-1]
    input_width = param_spec_of(row.kernel).shape[-2]
    if output_width != input_width:
        raise ValueError(
            f"{type(block).__name__}.tp_plan: {pair[0]!r} makes {output_width} "
            f"channels, but {pair[1]!r} takes {input_width}; a pair shares its hidden "
            "channels"
        )


def _split_columns(layer: Any) -> None:
    layer.split = "column"
    layer.kernel = _named(layer.kernel, -1)
    if layer.use_bias:
        layer.bias = _named(layer.bias, -1)


def _split_rows(layer: Any) -> None:
    # The bias stays whole: it is added once, after the sum over tp.
    layer.split = "row"
    layer.kernel = _named(layer.kernel, -2)


def _named(variable: Any, dim: int) -> Any:
    """Returns the parameter with one dim named as hidden channels."""
    param_spec = param_spec_of(variable)
    dims = list(param_spec.dims)
    dims[dim] = HIDDEN
    return from_param_spec(replace(param_spec, dims=tuple(dims)))
