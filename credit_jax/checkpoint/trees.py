"""Converts trees of arrays to and from their form in checkpoints, and compares them."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

MAX_LISTED = 8


def as_nested_dict(tree: PyTree) -> Any:
    """The leaves of a tree in nested dicts, by path; nodes without leaves drop out.

    Stages of an optimizer without state, such as clipping, are therefore not in a
    checkpoint.

    Args:
        tree: tree of any nodes; keys are those of `jax.tree_util.keystr(simple=True)`.
    """
    nested: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if not path:
            return leaf
        *parents, last = _names(path)
        node = nested
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return nested


def from_nested_dict(nested: Any, like: PyTree) -> PyTree:
    """The inverse of `as_nested_dict`: a tree with the nodes of `like`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: functools.reduce(operator.getitem, _names(path), nested), like
    )


def _names(path: tuple[Any, ...]) -> list[str]:
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


def without_random_keys(tree: PyTree) -> PyTree:
    """The same tree with random keys as arrays of integers."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def restore_targets(tree: PyTree) -> PyTree:
    """Shape, dtype and sharding of every leaf of `without_random_keys(tree)`.

    Args:
        tree: arrays or `ShapeDtypeStruct`s; numpy arrays are returned as they are.
    """
    return jax.tree.map(_restore_target, tree)


def _restore_target(leaf: Any) -> jax.ShapeDtypeStruct | np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    plain = jax.eval_shape(jax.random.key_data, leaf) if is_key(leaf) else leaf
    return jax.ShapeDtypeStruct(plain.shape, plain.dtype, sharding=sharding)


def with_random_keys(stored: PyTree, model_tree: PyTree) -> PyTree:
    """The inverse of `without_random_keys`; the keys of `model_tree` are keys."""
    return jax.tree.map(
        lambda x, like: jax.random.wrap_key_data(x) if is_key(like) else x,
        stored,
        model_tree,
    )


def is_key(leaf: Any) -> bool:
    """Whether `leaf` is a typed random key, or the description of one."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def differences(stored: PyTree, expected: PyTree) -> list[str]:
    """One line for each array that is missing, unknown, or of another shape.

    Args:
        stored: shapes and dtypes in the checkpoint.
        expected: shapes and dtypes in the model.
    """
    have, want = shapes_by_path(stored), shapes_by_path(expected)
    missing = [f"{p}: missing, expected {s}" for p, s in want.items() if p not in have]
    unknown = [
        f"{p}: {s} is not in the model" for p, s in have.items() if p not in want
    ]
    other = [
        f"{p}: got {have[p]}, expected {shape}"
        for p, shape in want.items()
        if p in have and have[p] != shape
    ]
    lines = other + missing + unknown
    if len(lines) > MAX_LISTED:
        lines = [*lines[:MAX_LISTED], f"and {len(lines) - MAX_LISTED} more"]
    return lines


def shapes_by_path(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Shape of every leaf by its path, names joined by dots."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape)
        for path, leaf in leaves
    }
