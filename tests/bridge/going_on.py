"""Runs of both sides that go on from one checkpoint, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from jax import lax

from benchmarks.small_models import NOISY, WIDE
from credit_jax.checkpoint import CheckpointStore
from credit_jax.config import load_config
from credit_jax.nn import context
from credit_jax.parallel.params.precision import Precision
from credit_jax.plan import plan_run
from credit_jax.training.restore import RunStore, start_of_run
from credit_jax.training.setup import prepare

ROOT = Path(__file__).parents[2]
# Largest relative error of a loss.
LOSS = 1e-5


@dataclass
class JaxRun:
    """The training step of a run, compiled once for all that goes on from it.

    Attributes:
        folder: of the run, or of one like it, with its `model.yml`.
        num_steps: micro-batches of an epoch. CREDIT trains the first one after a resume
            at the schedule's first rate, and so does this step.
        batch_error: largest difference of a value of a batch from CREDIT's.
    """

    folder: Path
    num_steps: int
    batch_error: float = 0.0
    store: CheckpointStore = field(init=False)

    def __post_init__(self) -> None:
        config = load_config(self.folder / "model.yml")
        plan = plan_run(config)
        self.setup = prepare(plan, jax.devices()[:1])
        if self.is_wide:
            self.setup = in_float64(self.setup)
        self.steps = self.setup.steps(first_rate_at=self.num_steps)

    @property
    def is_wide(self) -> bool:
        """Whether both sides compute in float64, see `credit_driver`."""
        return self.setup.plan.config.model["type"] in WIDE

    def fresh_state(self) -> Any:
        """Returns the state of a new run, in float32."""
        return _cast(self.setup.fresh_state(), jnp.float32)

    def start(self, folder: Path) -> Any:
        """Returns the state that `--resume` restores."""
        self.store = CheckpointStore(folder)
        runs = RunStore(self.store, self.setup.model.model_def.param_specs)
        fresh = self.fresh_state()
        return start_of_run(self.setup.plan.config.trainer, runs, fresh, resume=True)

    def train(
        self, state: Any, epoch: int, x: np.ndarray | None = None
    ) -> tuple[np.ndarray, Any]:
        """Returns the losses of an epoch, and the new state.

        Args:
            state: of the training.
            epoch: number of the epoch, from 0.
            x: inputs of the batches of CREDIT, which must be ours.
        """
        losses: list[float] = []
        config = self.setup.plan.config
        size, num_forecasts = config.trainer.grad_accum_every, config.data.forecast_len
        # With x and y made on the host, whose bits are CREDIT's, also where it is wide.
        loader = replace(self.setup.train_loader, is_raw=False)
        batches = islice(loader.epoch(epoch), self.num_steps)
        with _numbers(config.model["type"]):
            dtype = jnp.float64 if self.is_wide else jnp.float32
            state = _cast(state, dtype)
            while group := list(islice(batches, size)):
                for index, batch in enumerate(group, len(losses)):
                    members = np.repeat(batch.x, config.trainer.ensemble_size, axis=0)
                    if x is not None:
                        error = abs(members - x[index * num_forecasts]).max()
                        assert error <= self.batch_error, "another batch than CREDIT's"
                # A model computes in the dtype of its parameters, its output is of x's.
                arrays = _cast(self.steps.place_train(group), dtype)
                state, info = self.steps.train(state, arrays)
                losses += map(float, info["loss"])
        return np.array(losses), _cast(state, jnp.float32)

    def save(self, folder: Path, state: Any, progress: Any) -> None:
        """Writes a checkpoint as the training loop does."""
        store = CheckpointStore(folder)
        runs = RunStore(store, self.setup.model.model_def.param_specs)
        runs.save(int(state.micro_step), state, progress)
        store.close()


def in_float64(setup: Any) -> Any:
    """The training of a model that computes in float64."""
    parallel_config = replace(
        setup.model.parallel_config, precision=Precision.of("float64")
    )
    return replace(setup, model=replace(setup.model, parallel_config=parallel_config))


@contextmanager
def _numbers(model: str) -> Iterator[None]:
    """Float64 and draws by position for the models that `credit_driver` names."""
    with ExitStack() as stack:
        if model in WIDE:
            stack.enter_context(jax.enable_x64(True))
        if model in NOISY:
            stack.enter_context(mock.patch.object(context, "random_normal", drawn))
        yield


def drawn(key: Any, high: Any, low: Any, dtype: Any = jnp.float32) -> Any:
    """Replaces random numbers by a function of position, as `credit_driver`.

    It is of (sample, channel) or (sample, row, column, channel).
    """
    del key, dtype
    shape = jnp.broadcast_shapes(high.shape, low.shape)
    steps = (3.0, 5.0) if len(shape) == 2 else (3.0, 1.0, 2.0, 5.0)
    indices = [
        jnp.float32(lax.broadcasted_iota(int, shape, i)) for i in range(len(shape))
    ]
    return jnp.cos(1.0 + sum(step * i for step, i in zip(steps, indices, strict=True)))


def _cast(state: Any, dtype: Any) -> Any:
    """A tree with its floating point numbers in a dtype, on the same devices."""

    def cast(leaf: Any) -> Any:
        is_floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(dtype) if is_floating else leaf

    return jax.tree.map(cast, state)


def follow(losses: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Asserts that every loss is within `LOSS` of CREDIT's."""
    assert len(losses) == len(expected)
    errors = abs(losses - expected) / expected
    print(f"{what}: losses {losses}, relative errors {errors}")
    assert errors.max() < LOSS, f"{what}: {losses} against {expected}"


def credit_goes_on(folder: Path, data: Path) -> tuple[Any, str]:
    """Trains the second epoch of a run of CREDIT; returns its records and its output.

    Args:
        folder: of the run, with a `model.yml` that has CREDIT's `load_*` keys.
        data: working folder, from which the paths of the data start.
    """
    from tests.reference.training import _read_run, run_credit

    config = yaml.safe_load((folder / "model.yml").read_text())
    config["trainer"]["epochs"] = 2
    path = folder.with_suffix(".yml")
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    out = folder.with_name(f"{folder.name}_watched")
    printed = run_credit("tests.bridge.credit_driver", [str(path), str(out)], data)
    return _read_run(out), printed
