"""Packs small parameters into one vector.

A WXFormer has hundreds of biases and scales and a few dozen large kernels. As separate
arrays, each needs a kernel launch for every operation of the optimizer, of the moving
average and of the gradient sum. In the training state the small parameters are one
vector, in the order of their paths. The packing does not depend on the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Array

from credit_jax.ops import packed
from credit_jax.parallel.params.spec import ParamSpec

# Path of the vector in the dict of parameters.
PACKED = "packed"


def packed_paths(param_specs: Mapping[str, ParamSpec]) -> list[str]:
    """Returns the paths of the packed parameters, in the order of the vector."""
    return sorted(path for path, d in param_specs.items() if d.is_small)


def pack(
    params: Mapping[str, Array], param_specs: Mapping[str, ParamSpec]
) -> dict[str, Array]:
    """Replaces small parameters by one vector under `PACKED`."""
    paths = packed_paths(param_specs)
    out = {path: value for path, value in params.items() if path not in set(paths)}
    if paths:
        out[PACKED] = packed.pack([params[path] for path in paths])
    return out


def unpack(
    params: Mapping[str, Array], param_specs: Mapping[str, ParamSpec]
) -> dict[str, Array]:
    """Restores small parameters: the inverse of `pack`.

    Its transpose is one concatenation.
    """
    paths = packed_paths(param_specs)
    out = {path: value for path, value in params.items() if path != PACKED}
    if paths:
        shapes = [param_specs[path].shape for path in paths]
        out |= zip(paths, packed.unpack(params[PACKED], shapes), strict=True)
    return out


def packed_param_specs(
    param_specs: Mapping[str, ParamSpec],
) -> dict[str, ParamSpec]:
    """Returns the parameter specs of the result of `pack`."""
    paths = packed_paths(param_specs)
    out = {path: d for path, d in param_specs.items() if not d.is_small}
    if paths:
        total = sum(param_specs[path].size for path in paths)
        out[PACKED] = ParamSpec((total,), (None,))
    return out
