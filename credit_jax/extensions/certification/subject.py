"""What a certificate is about: a model, its training, data, states, and meshes."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
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
from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.store import is_key
from credit_jax.config import Config
from credit_jax.extensions.certification.small_config import MIN_SHARD_SIZE
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, place_weights
from credit_jax.named_fields import FieldContext
from credit_jax.nn.parameters import COLLECTIONS
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_REPLICATE, DP_SHARD, EP, TP
from credit_jax.parallel.mesh.dims import ETP, ParallelDims
from credit_jax.parallel.mesh.model_fit import ULYSSES, model_problems
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import torch_uniform
from credit_jax.plan import plan_run
from credit_jax.plan.run import model_options
from credit_jax.training.optimizer import UniformTransformation, adamw, build_optimizer
from credit_jax.training.restore import RunStore
from credit_jax.training.state import TrainState, place_state, state_of, state_specs
from credit_jax.transforms import ONE_STEP, FieldTree, Rollout

ONE_DEVICE = "1"
_DEGREES: Mapping[str, str] = MappingProxyType(
    {
        "ddp": DP_REPLICATE,
        "fsdp": DP_SHARD,
        "ep": EP,
        "etp": ETP,
        "tp": TP,
        "domain": DOMAIN,
        "ulysses": ULYSSES,
    }
)
_FACTOR = re.compile(r"([a-z]+)(\d+)")
# Degrees that are no axes of a mesh: they say how others are used.
_USES = (ULYSSES, ETP)

# Devices of the largest mesh of a config that is simulated.
MAX_DEVICES = 16

# The meshes of "all", up to 8 devices. Every kind of parallelism by itself, even and
# uneven rows, then two and three kinds together.
CANDIDATES = (
    "ddp2",
    "fsdp2",
    "tp2",
    "domain2",
    "domain3",
    "fsdp4",
    "fsdp8",
    "tp4",
    "domain4",
    "domain5",
    "ddp2xfsdp2",
    "fsdp2xtp2",
    "fsdp2xdomain2",
    "tp2xdomain2",
    "tp2xdomain3",
    "domain2xulysses2",
    "domain4xulysses2",
    "ep2",
    "ep4",
    "ep2xtp2",
    "ep2xtp2xetp1",
    "ep2xdomain2",
    "fsdp2xtp2xdomain2",
    "ddp2xfsdp2xdomain2",
    "tp2xdomain4xulysses2",
    "fsdp2xdomain4",
    "domain8",
)


def dims_of(name: str) -> ParallelDims:
    """Returns the degrees of the mesh of a name; "1" is one device.

    >>> dims_of("fsdp2xdomain4").axis_degrees
    {'dp_shard': 2, 'domain': 4}
    """
    degrees: dict[str, int] = {}
    for factor in [] if name == ONE_DEVICE else name.split("x"):
        match = _FACTOR.fullmatch(factor)
        kind = _DEGREES.get(match[1]) if match else None
        if match is None or kind is None or kind in degrees or int(match[2]) < 1:
            raise ValueError(
                f"--meshes: got {name!r}; expected 1, or factors "
                f"{', '.join(f'{kind}N' for kind in _DEGREES)} joined by x, each at "
                "most once, such as fsdp2xtp2xdomain2"
            )
        degrees[kind] = int(match[2])
    world_size = 1
    for kind, degree in degrees.items():
        world_size *= 1 if kind in _USES else degree
    return ParallelDims(**degrees, world_size=world_size)


def name_of(dims: ParallelDims) -> str:
    """Returns the name of a mesh: the inverse of `dims_of`."""
    degrees = {kind: getattr(dims, degree) or 1 for kind, degree in _DEGREES.items()}
    plain = {"etp": dims.tp}
    factors = [f"{k}{n}" for k, n in degrees.items() if n != plain.get(k, 1)]
    return "x".join(factors) or ONE_DEVICE


def problems_of(name: str, model_def: ModelDef, num_devices: int) -> list[str]:
    """Returns why a model cannot run on a mesh of some devices, one line each."""
    dims = dims_of(name)
    if dims.world_size > num_devices:
        return [f"it has {dims.world_size} devices, there are {num_devices}"]
    degrees = {**dims.axis_degrees, ULYSSES: dims.ulysses_degree}
    problems = model_problems(model_def, degrees)
    return problems or model_def.validate(dims.tp)


def chosen_meshes(
    model_def: ModelDef,
    names: Sequence[str] | None,
    num_devices: int,
    *,
    num_samples: int,
    num_ranks: int | None = None,
) -> list[str]:
    """Returns the meshes to compare; all that fit, or those asked for."""
    chosen = []
    for name in CANDIDATES if names is None else names:
        ranks = dims_of(name).batch_size
        reasons = problems_of(name, model_def, num_devices)
        if not reasons and (
            num_samples % ranks if num_ranks is None else ranks != num_ranks
        ):
            reasons = [
                f"its {ranks} data-parallel ranks do not fit: expected "
                + (f"{num_ranks}" if num_ranks else f"a divisor of {num_samples}")
            ]
        if not reasons:
            chosen.append(name)
        elif names is not None:
            raise ValueError(f"--meshes: {name} does not fit: {'; '.join(reasons)}")
    return chosen


def reference_of(num_ranks: int | None) -> str:
    """Name of the mesh that others are compared with: one device if it can be."""
    return f"ddp{num_ranks}" if (num_ranks or 1) > 1 else ONE_DEVICE


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


# Samples of a batch: the degrees of data parallelism up to 8 divide them.
NUM_SAMPLES = 8
NUM_UPDATES = 3
# Of a gradient, so small that it is clipped.
MAX_NORM = 0.1
NUM_STEPS = 3


@dataclass(frozen=True)
class Subject:
    """A model, its training and its forecast, and batches of all ranks."""

    model_def: ModelDef
    optimizer: optax.GradientTransformation  # with elementwise state
    # Arrays of `num_samples` samples by name; with a config the first batch alone, as a
    # run reads its own.
    batches: tuple[Mapping[str, Any], ...]
    # Start of the forecast and what its steps need, as a batch; None for no forecast.
    first: Mapping[str, Any] | None = None
    forecast: Rollout = ONE_STEP
    accumulate: int = 1  # micro-batches of an update, without a config
    ema_decay: float | None = None
    # Of `build_parallel_model`.
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = field(default_factory=Precision)
    # Whether every data-parallel rank has all samples, as the members of one ensemble.
    shared: bool = False
    seed: int = 0
    weights: Artifact | None = None  # of a run; None for random ones
    config: Path | None = None  # None: trained on `batches` for the least mean square

    @property
    def num_samples(self) -> int:
        """Samples of a batch, of all data-parallel ranks."""
        return len(self.batches[0]["y"])

    @property
    def dtype(self) -> Any:
        """The dtype that weights are stored in: float32, or float64 with x64."""
        return jnp.promote_types(self.precision.compute, jnp.float32)


def mean_square(tree: FieldTree, context: FieldContext) -> Any:
    """The mean of (y_pred - y)^2 over all samples, channels and points."""
    # Rows weigh as those of a global grid, the cosine of their latitude.
    rows = context.reducer.rows.size
    latitude = np.deg2rad(90 - 180 * (np.arange(rows) + 0.5) / rows)
    weights = np.cos(latitude) / np.cos(latitude).mean()
    return context.reducer.mean((tree["y_pred"] - tree["y"]) ** 2, weights)


def subject_of_model(
    model_def: ModelDef, *, x64: bool = False, seed: int = 0
) -> Subject:
    """Returns any model with AdamW and random batches, in float64 with `x64`."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(NUM_UPDATES):
        specs = {**model_def.inputs, "y": model_def.output}
        batch = {
            name: rng.normal(size=spec.shape(NUM_SAMPLES)).astype(np.float32)
            for name, spec in specs.items()
        }
        batches.append(wide(batch) if x64 else batch)
    return Subject(
        model_def,
        adamw(weight_decay=0.01, max_norm=MAX_NORM),
        tuple(batches),
        first=batches[0],
        ema_decay=0.9,
        # FSDP shards the parameters of a small model, too.
        options={"min_shard_size": MIN_SHARD_SIZE},
        precision=Precision.of("float64") if x64 else Precision(),
        seed=seed,
    )


def subject_of_config(
    config: Config, path: Path, *, x64: bool = False, weights: Artifact | None = None
) -> Subject:
    """The model, the optimizer and the data of a config and of its file."""
    # Its devices are the ranks that its loss needs, by `for_any_mesh`.
    plan = plan_run(config, num_devices=config.trainer.num_devices or 1, begins=False)
    objective, trainer = plan.objective, config.trainer
    model_def = plan.model.model_def
    low_rank = model_def.low_rank
    if weights is None and low_rank is not None:
        low_rank = replace(low_rank, up_init=torch_uniform(low_rank.rank))
        model_def = replace(model_def, low_rank=low_rank)

    def first_batch(split: Any) -> Mapping[str, Any]:
        # Every mesh reads the same samples, on all of whose rows the first rank's
        # loader works as one of a single rank.
        batches = plan.loaders[split].for_ranks((0,), 1).epoch(0)
        (batch,) = itertools.islice(batches, 1)
        return wide(batch.arrays) if x64 else batch.arrays

    return Subject(
        model_def,
        build_optimizer(trainer),
        (first_batch("train"),),
        first=first_batch("valid" if "valid" in plan.loaders else "train"),
        forecast=objective.valid_rollout if model_def.process is None else ONE_STEP,
        ema_decay=trainer.ema_decay if trainer.use_ema else None,
        options=model_options(trainer),
        precision=Precision.of("float64") if x64 else Precision(),
        shared=config.loss.members_are_ranks,
        seed=config.seed,
        weights=weights,
        config=path,
    )


def wide(tree: Any) -> Any:
    """A tree of arrays with all floats in float64."""
    return jax.tree.map(
        lambda leaf: (
            leaf.astype(np.float64)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        tree,
    )
