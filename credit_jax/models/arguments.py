"""Checks of what users give a model, in the names that users have; nothing is compiled.

Arrays may be traced, or on the host. What only a device can refuse (`on_mesh`) is
explained when it is refused, as a check of every array in every call takes too long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh

from credit_jax.models.common.config import FieldSpec, InputSpec
from credit_jax.nn.parameters import BATCH_STATS, COLLECTIONS, SPECTRAL_NORM
from credit_jax.parallel.mesh.device_mesh import MeshAxes

_FIELD = ("batch", "channel", "time", "lat", "lon")
_VECTOR = ("batch", "size")
_MICRO = "micro-batch"


def check_arrays(
    subject: Literal["inputs", "batch"],
    arrays: Any,
    expected: Mapping[str, InputSpec],
    axes: MeshAxes | None = None,
    compute: Any = None,
    *,
    stacked: bool = False,
    num_steps: int = 1,
) -> None:
    """Checks names, shapes and dtypes of the inputs of a model, or of a step's batch.

    All have as many samples and micro-batches.
    """
    # axes: mesh axes of global arrays; None for local arrays, whose samples, rows and
    # dtype may be any.
    # num_steps: steps of the forecast. Inputs other than x are those of one step, or of
    # all: fields one after the other along time, vectors along their size.
    displayed = ", ".join(
        f'"{name}": ({", ".join(_FIELD if isinstance(spec, FieldSpec) else _VECTOR)})'
        for name, spec in expected.items()
    )
    taken = f"{'the model' if subject == 'inputs' else 'a step'} takes {{{displayed}}}"
    if not isinstance(arrays, Mapping):
        raise ValueError(
            f"the {subject} are a {type(arrays).__name__}; expected a mapping, as of "
            f"place_batch: {{{displayed}}}"
        )
    if missing := [name for name in expected if name not in arrays]:
        raise ValueError(f"the {subject} lack {', '.join(missing)}; {taken}")
    more = [str(name) for name in arrays if name not in expected]
    if more and subject == "inputs":
        raise ValueError(
            f"the inputs have {', '.join(more)}, which is not known; {taken}"
        )
    for name, spec in expected.items():
        # Targets of some steps follow one another along time.
        free = ("time",) if subject == "batch" and name == "y" else ()
        repeats = num_steps if name not in ("x", "y") else 1
        title = f"{subject.removesuffix('s')} {name}"
        _check_array(title, arrays[name], spec, axes, compute, stacked, free, repeats)
    counts = {name: np.shape(arrays[name])[: 1 + stacked] for name in expected}
    if len(set(counts.values())) > 1:
        dims = f"({_MICRO}, batch)" if stacked else "(batch,)"
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(
            f"the {subject} have different leading dims {dims}: {listed}; expected the "
            "same number of samples in all"
        )


def _check_array(
    name: str,
    array: Any,
    spec: InputSpec,
    axes: MeshAxes | None,
    compute: Any,
    stacked: bool,
    free: tuple[str, ...],  # dims of any length
    repeats: int,  # also so many times that of the model along time or size
) -> None:
    """Checks the shape and the dtype of one field or vector."""
    dims, hint = (_FIELD if isinstance(spec, FieldSpec) else _VECTOR), ""
    lengths: dict[str, Any] = dict(
        zip(dims, ("batch", *spec.shape(1)[1:]), strict=True)
    )
    if axes is not None and "lat" in lengths:
        rows = lengths["lat"]
        lengths["lat"] = -(-rows // axes.num_domain) * axes.num_domain
        if lengths["lat"] > rows:
            hint = f": place_batch pads the {rows} rows of the model"
    if stacked:
        lengths = {_MICRO: _MICRO} | lengths
    listed = ", ".join(map(str, lengths.values()))
    expected = f"expected ({', '.join(lengths)}) = ({listed})"
    shape = tuple(np.shape(array))
    free = (_MICRO, "batch", *free, *(("lat",) if axes is None else ()))
    fits = len(shape) == len(lengths) and all(
        dim in free
        or count == length
        or (dim in ("time", "size") and count == repeats * length)
        for count, (dim, length) in zip(shape, lengths.items(), strict=True)
    )
    if not fits:
        if stacked and len(shape) == len(dims):
            hint = "; for a single micro-batch give x[None]"
        raise ValueError(f"{name} has the shape {shape}; {expected}{hint}")
    if axes is None:
        return
    samples = shape[int(stacked)]
    if samples % axes.num_data:
        raise ValueError(
            f"{name} has {samples} samples, which {axes.num_data} data-parallel "
            f"devices cannot share equally; {expected} with a multiple of them"
        )
    dtype = jnp.asarray(array).dtype if np.isscalar(array) else array.dtype
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    computed = jnp.dtype(compute)
    if dtype == jnp.float32 or dtype == computed == jnp.float64:
        return
    why = "the model casts it to its compute dtype by itself"
    if dtype == jnp.float64:
        why = f"the model computes in {computed}, and would round it"
    raise ValueError(
        f"{name} holds {dtype}; expected float32: {why}. Cast it with "
        ".astype(jnp.float32)"
    )


def check_weights(
    params: Any,
    model_state: Any,
    param_shapes: Mapping[str, tuple[int, ...]],
    state_shapes: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> None:
    """Checks that parameters and state are those of a model."""
    if not isinstance(params, Mapping) or not isinstance(model_state, Mapping):
        raise ValueError(
            f"params are a {type(params).__name__}, model_state a "
            f"{type(model_state).__name__}; expected mappings, as of model.init(key)"
        )
    if params and params.keys() <= {*COLLECTIONS}:
        raise ValueError(
            f"params have the names {', '.join(params)} of a model's state: params "
            "and model_state are swapped; write apply(params, model_state, inputs)"
        )
    problems = {"params": name_problems(params, param_shapes)}
    problems["params"] += [
        f"{path} has the shape {np.shape(params[path])}, expected {shape}"
        for path, shape in param_shapes.items()
        if path in params and np.shape(params[path]) != shape
    ]
    problems["model_state"] = name_problems(model_state, state_shapes)
    for name in (SPECTRAL_NORM, BATCH_STATS):
        collection = model_state.get(name, {})
        # `fuse_spectral_norm` leaves the collection empty.
        if not collection and name == SPECTRAL_NORM:
            continue
        problems["model_state"] += name_problems(collection, state_shapes[name])
        for path in sorted(collection.keys() & state_shapes[name].keys()):
            actual = {leaf: np.shape(x) for leaf, x in collection[path].items()}
            shapes = {leaf: x.shape for leaf, x in state_shapes[name][path].items()}
            if actual != shapes:
                problems["model_state"] += [f"{path} has {actual}, expected {shapes}"]
    for subject, lines in problems.items():
        if lines:
            listed = "\n  ".join(lines[:5])
            more = f"\n  and {len(lines) - 5} more" if len(lines) > 5 else ""
            raise ValueError(
                f"{subject} are not those of this model:\n  {listed}{more}\nTake those "
                "of model.init(key), or of credit_jax.restore with its model"
            )


def name_problems(actual: Mapping[str, Any], expected: Any) -> list[str]:
    """The names that are missing, and those that are not known, one line each."""
    missing = [f"{name} is missing" for name in expected if name not in actual]
    return missing + [f"{name} is not known" for name in actual if name not in expected]


@contextmanager
def on_mesh(mesh: Mesh, **trees: Any) -> Iterator[None]:
    """Explains an error of arrays that are on other devices than the mesh."""
    try:
        yield
    except ValueError as error:
        devices = set(mesh.devices.flat)
        for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
            if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
                continue
            if leaf.committed and leaf.sharding.device_set != devices:
                name = f"{path[0].key}{jax.tree_util.keystr(path[1:])}"
                raise ValueError(
                    f"{name} is on {_listed(leaf.sharding.device_set)}, but the mesh "
                    f"of the model on {_listed(devices)}; place fields with "
                    "place_batch(..., model.mesh), take weights of model.init"
                ) from error
        raise


def _listed(devices: Any) -> str:
    names = sorted(map(str, devices))
    return ", ".join(names[:4]) + (f" ... ({len(names)})" if len(names) > 4 else "")
