"""Checks of what users give a model, in the names that users have; nothing is compiled.

Arrays may be traced, or on the host. What only a device can refuse (`on_mesh`) is
explained when it is refused, as a check of every array in every call takes too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from credit_jax.models.common.array_specs import FieldSpec, InputSpec
from credit_jax.nn.model_state import BATCH_STATS, COLLECTIONS, SPECTRAL_NORM
from credit_jax.parallel.mesh.axes import MeshAxes

_FIELD = ("batch", "channel", "time", "lat", "lon")
_VECTOR = ("batch", "size")
_COUNTED = {
    "channel": "channels",
    "time": "times",
    "lat": "rows (latitudes)",
    "lon": "columns (longitudes)",
    "size": "values",
}
_MICRO = "micro-batch"


def check_inputs(
    inputs: Any,
    specs: Mapping[str, InputSpec],
    axes: MeshAxes | None = None,
    compute: Any = None,
) -> None:
    """Checks names, shapes and dtypes of the inputs of a model.

    Args:
        inputs: arrays by name.
        specs: specs of the inputs, by name.
        axes: mesh axes of global arrays; None for local arrays, whose samples, rows and
            dtype may be any.
        compute: compute dtype of the model.

    Raises:
        ValueError: an input is missing, extra, or not that of the model.
    """
    if not isinstance(inputs, Mapping):
        raise ValueError(
            f"the inputs are a {type(inputs).__name__}; expected a mapping, as in "
            f"apply(params, model_state, {_example(specs)})"
        )
    _check_names("inputs", inputs, specs, f"the model takes {_example(specs)}")
    for name, spec in specs.items():
        check_array(f"input {name}", inputs[name], spec, axes, compute)
    _check_samples(inputs, "inputs")


def check_batch(
    batch: Any,
    inputs: Mapping[str, InputSpec],
    output: FieldSpec,
    axes: MeshAxes,
    compute: Any,
    *,
    stacked: bool,
    num_steps: int = 1,
) -> None:
    """Checks the batch of a training or evaluation step.

    Args:
        batch: global arrays by name, the inputs and "y"; transforms may need more.
        inputs, output: inputs and output of the model.
        axes: axes of its mesh.
        compute: its compute dtype.
        stacked: whether there is a leading dim of micro-batches.
        num_steps: steps of the forecast. Inputs other than x are those of one step, or
            of all: fields one after the other along time, vectors along their size.

    Raises:
        ValueError: a field is missing, or not that of the model.
    """
    expected = {**inputs, "y": output}
    if not isinstance(batch, Mapping):
        raise ValueError(
            f"the batch is a {type(batch).__name__}; expected a mapping with "
            f"{_example(expected)}, as of place_batch"
        )
    present = {name: batch[name] for name in expected if name in batch}
    _check_names("batch", present, expected, f"a step takes {_example(expected)}")
    for name, spec in expected.items():
        free = ("time",) if name == "y" else ()
        repeats = num_steps if name not in ("x", "y") else 1
        options = {"stacked": stacked, "free": free, "repeats": repeats}
        check_array(f"batch {name}", batch[name], spec, axes, compute, **options)
    _check_samples(present, "batch", num_dims=2 if stacked else 1)


def check_array(
    name: str,
    array: Any,
    spec: InputSpec,
    axes: MeshAxes | None = None,
    compute: Any = None,
    *,
    stacked: bool = False,
    free: tuple[str, ...] = (),
    repeats: int = 1,
) -> None:
    """Checks the shape and the dtype of one field or vector.

    Args:
        name: name of the array, for the error.
        array: array on the host, on devices, or traced.
        spec: spec of the model.
        axes, compute: as for `check_inputs`.
        stacked: whether there is a leading dim of micro-batches.
        free: names of dims whose length is not checked.
        repeats: how many times the length of the time of a field, or the size of a
            vector, may be that of the model; once is right, too.

    Raises:
        ValueError: the shape or the dtype differs; it names the dim.
    """
    dims = _FIELD if isinstance(spec, FieldSpec) else _VECTOR
    lengths: list[Any] = ["batch", *spec.shape(1)[1:]]
    if stacked:
        dims, lengths = (_MICRO, *dims), [_MICRO, *lengths]
    expected = f"expected ({', '.join(dims)}) = ({', '.join(map(str, lengths))})"
    shape = tuple(np.shape(array))
    if len(shape) != len(dims):
        lacking = stacked and len(shape) == len(dims) - 1
        hint = "; for a single micro-batch give x[None]" if lacking else ""
        raise ValueError(f"{name} has the shape {shape}; {expected}{hint}")
    for dim, count, length in zip(dims, shape, lengths, strict=True):
        if dim not in _COUNTED or dim in free or (dim == "lat" and axes is None):
            continue
        if dim in ("time", "size") and count == repeats * length:
            continue
        padded, hint = length, ""
        if dim == "lat" and axes is not None:
            padded = -(-length // axes.num_domain) * axes.num_domain
            if padded != length:
                shards = f"{axes.num_domain} domain shards"
                hint = f", with padding {padded} on {shards}: place_batch adds it"
        if count != padded:
            raise ValueError(
                f"{name} has {count} {_COUNTED[dim]}, the model {length}{hint}; its "
                f"shape is {shape}, {expected}"
            )
    if axes is None:
        return
    samples = shape[dims.index("batch")]
    if samples % axes.num_data:
        raise ValueError(
            f"{name} has {samples} samples, which {axes.num_data} data-parallel "
            f"devices cannot share equally; {expected} with a multiple of them"
        )
    _check_dtype(name, array, compute)


def _check_dtype(name: str, array: Any, compute: Any) -> None:
    """Checks that an array is float32, or float64 where the model computes in it."""
    dtype = jnp.asarray(array).dtype if np.isscalar(array) else array.dtype
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    wide = jnp.dtype(compute) == jnp.float64
    if dtype == jnp.float32 or (wide and dtype == jnp.float64):
        return
    why = "the model casts it to its compute dtype by itself"
    if dtype == jnp.float64:
        why = f"the model computes in {jnp.dtype(compute)}, and would round it"
    raise ValueError(
        f"{name} holds {dtype}; expected float32: {why}. Cast it with "
        ".astype(jnp.float32)"
    )


def _check_names(
    what: str, actual: Mapping[str, Any], expected: Mapping[str, Any], hint: str
) -> None:
    missing = [name for name in expected if name not in actual]
    more = [str(name) for name in actual if name not in expected]
    if missing or more:
        parts = [f"lack {', '.join(missing)}"] if missing else []
        parts += [f"have {', '.join(more)}, which is not known"] if more else []
        raise ValueError(f"the {what} {' and '.join(parts)}; {hint}")


def _check_samples(arrays: Mapping[str, Any], what: str, *, num_dims: int = 1) -> None:
    """Checks that all arrays have as many samples, and as many micro-batches."""
    counts = {name: tuple(np.shape(x)[:num_dims]) for name, x in arrays.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        dims = "(batch,)" if num_dims == 1 else f"({_MICRO}, batch)"
        raise ValueError(
            f"the {what} have different leading dims {dims}: {listed}; expected the "
            "same number of samples in all"
        )


def _example(specs: Mapping[str, InputSpec]) -> str:
    """The inputs of a model with their dims, as a Python literal."""
    dims = {
        name: _FIELD if isinstance(spec, FieldSpec) else _VECTOR
        for name, spec in specs.items()
    }
    return (
        "{"
        + ", ".join(
            f'"{name}": ({", ".join(dim_names)})' for name, dim_names in dims.items()
        )
        + "}"
    )


def check_weights(
    params: Any,
    model_state: Any,
    param_shapes: Mapping[str, tuple[int, ...]],
    state_shapes: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> None:
    """Checks that parameters and state are those of a model.

    Args:
        params: arrays by path.
        model_state: collections of `nn.model_state`.
        param_shapes: shape of every parameter of the model, by path.
        state_shapes: `ModelDef.model_state_shapes` of the model.

    Raises:
        ValueError: arrays are missing, extra, or of another model, or the two arguments
            are swapped.
    """
    if not isinstance(params, Mapping) or not isinstance(model_state, Mapping):
        raise ValueError(
            f"params are a {type(params).__name__} and model_state a "
            f"{type(model_state).__name__}; expected two mappings, as of "
            "model.init(key) or credit_jax.restore"
        )
    if params.keys() <= set(COLLECTIONS) and params.keys():
        raise ValueError(
            f"params have the names {', '.join(params)} of a model's state: params "
            "and model_state are swapped; write apply(params, model_state, inputs)"
        )
    problems = name_problems(params, param_shapes)
    problems += [
        f"{path} has the shape {np.shape(params[path])}, expected {shape}"
        for path, shape in param_shapes.items()
        if path in params and np.shape(params[path]) != shape
    ]
    if problems:
        raise ValueError(_of_another("params", problems))
    problems = name_problems(model_state, state_shapes)
    for name in (SPECTRAL_NORM, BATCH_STATS):
        collection = model_state.get(name, {})
        # `fuse_spectral_norm` leaves the collection empty.
        if collection or name == BATCH_STATS:
            problems += name_problems(collection, state_shapes[name])
            problems += _state_problems(collection, state_shapes[name])
    if problems:
        raise ValueError(_of_another("model_state", problems))


def name_problems(actual: Mapping[str, Any], expected: Any) -> list[str]:
    """The names that are missing, and those that are not known, one line each."""
    missing = [f"{name} is missing" for name in expected if name not in actual]
    return missing + [f"{name} is not known" for name in actual if name not in expected]


def _state_problems(
    collection: Mapping[str, Any], shapes: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """The arrays of a collection that are not those of a model, one line each."""
    problems = []
    for path in collection.keys() & shapes.keys():
        actual = {leaf: np.shape(array) for leaf, array in collection[path].items()}
        expected = {leaf: array.shape for leaf, array in shapes[path].items()}
        if actual != expected:
            problems.append(f"{path} has {actual}, expected {expected}")
    return sorted(problems)


def _of_another(what: str, problems: list[str]) -> str:
    shown = "\n  ".join(problems[:5])
    more = f"\n  and {len(problems) - 5} more" if len(problems) > 5 else ""
    return (
        f"{what} are not those of this model:\n  {shown}{more}\nTake those of "
        "model.init(key), or of credit_jax.restore with the model that it returns"
    )


@contextmanager
def on_mesh(mesh: Mesh, **trees: Any) -> Iterator[None]:
    """Explains an error of arrays that are on other devices than the mesh.

    Args:
        mesh: mesh of the model.
        **trees: the arguments of the program, by name.
    """
    try:
        yield
    except ValueError as error:
        problem = _elsewhere(mesh, trees)
        if problem is None:
            raise
        raise ValueError(problem) from error


def _elsewhere(mesh: Mesh, trees: Mapping[str, Any]) -> str | None:
    """Says which array is not on the devices of the mesh; None if all are."""
    mesh_devices = set(mesh.devices.flat)
    for name, tree in trees.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
                continue
            devices = leaf.sharding.device_set
            if leaf.committed and devices != mesh_devices:
                where = jax.tree_util.keystr(path)
                return (
                    f"{name}{where} is on {_listed(devices)}, but the mesh of the "
                    f"model on {_listed(mesh_devices)}; place fields with "
                    "place_batch(..., model.mesh), and take weights of model.init or "
                    "credit_jax.restore"
                )
    return None


def _listed(devices: Any) -> str:
    names = sorted(map(str, devices))
    return ", ".join(names[:4]) + (f" ... ({len(names)})" if len(names) > 4 else "")
