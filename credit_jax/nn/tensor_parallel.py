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
    """Shards the layers in the `tp_plan` of every block over tp, in place."""
    # This renames dims in the parameter specs, so it comes before they are read. It has
    # no effect on a mesh without tp.
    for _, block in nnx.iter_modules(module):
        paths = {name: getattr(block, name, None) for name in ("_tp_col", "_tp_row")}
        if any(path is not None for path in paths.values()):
            # CREDIT's attributes, which would split nothing here.
            listed = ", ".join(f"{name} = {path!r}" for name, path in paths.items())
            column, row = (path or "..." for path in paths.values())
            raise ValueError(
                f"{type(block).__name__} has {listed}, which CREDIT reads; write "
                f"tp_plan = (({column!r}, {row!r}),), (column layer, row layer)"
            )
        subject = f"{type(block).__name__}.tp_plan"
        for pair in getattr(block, "tp_plan", ()):
            is_pair = isinstance(pair, tuple) and len(pair) == 2
            if not is_pair or not all(isinstance(path, str) for path in pair):
                raise ValueError(
                    f"{subject} has the entry {pair!r}; expected a pair of dotted "
                    "paths, (column layer, row layer)"
                )
            column, row = (_layer(block, path, subject) for path in pair)
            output_width = param_spec_of(column.kernel).shape[-1]
            input_width = param_spec_of(row.kernel).shape[-2]
            if output_width != input_width:
                raise ValueError(
                    f"{subject}: {pair[0]!r} makes {output_width} channels, but "
                    f"{pair[1]!r} takes {input_width}; expected equal numbers"
                )
            column.split, row.split = "column", "row"
            column.kernel = _named(column.kernel, -1)
            if hasattr(column, "bias"):
                column.bias = _named(column.bias, -1)
            # The row's bias stays whole: it is added once, after the sum over tp.
            row.kernel = _named(row.kernel, -2)
    return module


def _layer(block: nnx.Module, path: str, subject: str) -> Any:
    """Returns the layer at a dotted path; raises ValueError if it cannot be split."""
    layer: Any = block
    for part in path.split("."):
        if isinstance(layer, nnx.List):
            children: dict[str, Any] = {str(i): child for i, child in enumerate(layer)}
        else:
            modules = vars(layer).items()
            children = {
                n: child for n, child in modules if isinstance(child, nnx.Module)
            }
        if part not in children:
            raise ValueError(
                f"{subject} names {path!r}, but {type(layer).__name__} has no "
                f"{part!r}; there are: {', '.join(children) or 'none'}"
            )
        layer = children[part]
    problem = None
    if not isinstance(layer, Linear | Conv):
        problem = f"which is a {type(layer).__name__}"
    elif layer.split:
        problem = f"which is split by {layer.split}s already"
    elif isinstance(layer, Conv):
        kernel = param_spec_of(layer.kernel).unstack().shape[:2]
        padding = [list(pad) for pad in layer.padding]
        if layer.groups > 1:
            problem = "a Conv of several groups"
        elif (*kernel, *layer.stride) != (1, 1, 1, 1) or any(map(any, padding)):
            problem = (
                f"a Conv of kernel {list(kernel)}, stride {list(layer.stride)}, "
                f"padding {padding}"
            )
    if problem:
        raise ValueError(
            f"{subject} names {path!r}, {problem}; expected a Linear, or a Conv of "
            "kernel 1 and stride 1 without padding, that no other pair names"
        )
    return layer


def _named(variable: Any, dim: int) -> Any:
    """Returns the parameter with one dim named as hidden channels."""
    param_spec = param_spec_of(variable)
    dims = list(param_spec.dims)
    dims[dim] = HIDDEN
    return from_param_spec(replace(param_spec, dims=tuple(dims)))
