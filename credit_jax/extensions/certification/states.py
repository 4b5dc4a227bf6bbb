"""Weights and training states as whole arrays on the host, and in checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.tree_util import keystr

from credit_jax.checkpoint import (
    EMA,
    EMA_STATS,
    LOSS,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
)
from credit_jax.checkpoint.store import is_key
from credit_jax.models.parallel_model import ParallelModel, place_weights
from credit_jax.nn.parameters import COLLECTIONS
from credit_jax.training.optimizer import UniformTransformation
from credit_jax.training.restore import RunStore
from credit_jax.training.state import TrainState, place_state, state_of, state_specs

Arrays = dict[str, np.ndarray]
# Names in flat dicts: part of the weights or of the state, then the path within it.
PARAMS, AVERAGE, SEPARATOR = "params", "average", "|"
# Of a training state.
_COUNTS = ("micro_step", "update_step")
_DIGESTED = ("optimizer", "average", "state", "average of the state", "loss")


class RecordedGradient(NamedTuple):
    """The state of `recorded` before that of the optimizer."""

    gradient: Any


def recorded(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer whose state has the last gradient, too, before clipping."""

    def init(params: Any) -> RecordedGradient:
        return RecordedGradient(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del state, params
        return updates, RecordedGradient(updates)

    both = optax.chain(optax.GradientTransformation(init, update), optimizer)
    is_uniform = isinstance(optimizer, UniformTransformation)
    return UniformTransformation(*both) if is_uniform else both


def first_state(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    weights: tuple[Any, Any],
    *,
    seed: int,
    **options: Any,
) -> TrainState:
    """The state before the first update; no program is compiled for it."""
    state = state_of(model, *weights, optimizer, jax.random.key(seed), **options)
    return place_state(state, state_specs(model, optimizer, **options), model.mesh)


def host(tree: Mapping[str, Any]) -> Arrays:
    """Arrays by path, whole on the host."""
    return {path: np.asarray(leaf) for path, leaf in jax.device_get(dict(tree)).items()}


def flat(params: Any, model_state: Any) -> Arrays:
    """Weights and state of a model as one dict of arrays on the host."""
    tree = {PARAMS: dict(params), **model_state}
    return host(flatten_dict(tree, sep=SEPARATOR))


def placed_weights(model: ParallelModel, arrays: Arrays) -> tuple[Any, Any]:
    """The inverse of `flat` on the mesh of a model."""
    tree: Any = unflatten_dict(arrays, sep=SEPARATOR)
    collections = {name: tree.get(name, {}) for name in COLLECTIONS}
    return place_weights(model, tree[PARAMS], collections)


def trained_arrays(state: TrainState) -> Arrays:
    """Weights, average and state of the optimizer, but for a recorded gradient."""
    optimizer = state.opt_state
    match optimizer:
        case (RecordedGradient(), inner):
            optimizer = inner
    parts = {PARAMS: state.params, AVERAGE: state.ema, OPTIMIZER: optimizer}
    return {
        name + SEPARATOR + keystr(path, simple=True, separator="/"): np.asarray(
            jax.device_get(leaf)
        )
        for name, part in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(part)
    }


def of_first_update(state: TrainState) -> dict[str, Arrays]:
    """Fields of `Measured` of the first update by an optimizer of `recorded`."""
    collections = {**state.model_state, AVERAGE: state.ema_stats or {}}
    return {
        "gradients": host(state.opt_state[0].gradient),
        "state": host(flatten_dict(collections, sep="/")),
    }


def of_run(
    state: TrainState, model: ParallelModel, folder: Path, begun: Arrays | None
) -> dict[str, Arrays]:
    """Fields of `Measured` of a run that ended with a state."""
    with run_store(folder, model) as store:
        # Others go on from the first checkpoint of the reference, which has no `begun`.
        steps = store.checkpoints.steps()
        written = read_back(store, steps[0 if begun is None else -1], state)
    saved = written if begun is None else checkpointed(state)
    numbers = {"trained": trained_arrays(state), "written": written, "saved": saved}
    return numbers | {"restored": begun or {}}


@contextmanager
def run_store(folder: Path, model: ParallelModel) -> Iterator[RunStore]:
    """The checkpoints in a folder, of runs of a model."""
    model_def, checkpoints = model.model_def, CheckpointStore(folder)
    try:
        yield RunStore(checkpoints, model_def.param_specs, low_rank=model_def.low_rank)
    finally:
        checkpoints.close()


def checkpointed(state: TrainState) -> Arrays:
    """The weights of a state, its position in the training, and digests of the rest."""
    counts = {name: getattr(state, name) for name in _COUNTS}
    loss = None if state.loss_state is None else vars(state.loss_state)
    digested = state.opt_state, state.ema, state.model_state, state.ema_stats, loss
    # A digest in the place of an array, such as a moment, costs no memory.
    return _digested({**state.params, **counts}, digested)


def read_back(store: RunStore, step: int, state: TrainState) -> Arrays:
    """What `checkpointed` gives, read as whole arrays, by another state of the run."""
    store.checkpoints.wait()
    targets = jax.tree.map(
        lambda leaf: leaf if is_key(leaf) else np.zeros(leaf.shape, leaf.dtype),
        store.items_of(state),
    )
    items = store.without_sums(store.checkpoints.restore(step, targets))
    weights, optimizer = items[WEIGHTS], items[OPTIMIZER]
    counts = {name: optimizer[name] for name in _COUNTS}
    digested = (
        optimizer["opt_state"],
        items.get(EMA),
        {name: weights[name] for name in COLLECTIONS},
        items.get(EMA_STATS, state.ema_stats),
        items.get(LOSS),
    )
    return _digested({**weights["params"], **counts}, digested)


def _digested(arrays: Mapping[str, Any], remainder: tuple[Any, ...]) -> Arrays:
    """Arrays on the host, and the SHA-256 of the leaves of other parts, (32,) each."""
    digests = {}
    parts = dict(zip(_DIGESTED, remainder, strict=True))
    for path, leaf in jax.tree_util.tree_leaves_with_path(parts):
        content = np.asarray(jax.device_get(leaf)).tobytes()
        digest = hashlib.sha256(content).digest()
        name = keystr(path, simple=True, separator="/")
        digests[name] = np.frombuffer(digest, np.uint8)
    return host(arrays) | digests
