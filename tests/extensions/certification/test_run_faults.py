"""Faults that are planted in runs on a mesh: what they log, save and read shows them.

A step on a batch, which `test_faults` looks at, has none of them.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.checkpoint import run
from credit_jax.data import Sampler
from credit_jax.data.preparation import Preparation
from credit_jax.extensions.certification.command import small_config, write_plain
from credit_jax.extensions.certification.measure import Measured
from credit_jax.extensions.certification.runs import train_config
from credit_jax.extensions.certification.verdict import FLOAT32, compare
from credit_jax.training import setup, step
from credit_jax.training.loop import EpochNumbers, TrainingLoop
from credit_jax.training.restore import RunStore
from tests.extensions.certification.test_command import small_debugger
from tests.extensions.certification.test_faults import averaged_gradient, on_shard
from tests.extensions.certification.test_measure import with_empty_moments


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The file of a small run that sums over devices in 16 bits, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    mapping = small_debugger()
    mapping["trainer"] |= {"amp": True, "fsdp2_mp_policy": {"reduce_dtype": "bfloat16"}}
    mapping["trainer"]["scheduler"] |= {"warmup_steps": 1, "total_steps": 8}
    path = write_plain(small_config(mapping, folder), folder / "config.yml")
    return path, folder


def numbers(config, mesh, *, folder, in_dtype=False):
    """What a run gives, as that of a certificate."""
    path, place = config
    reference = None if mesh == "1" else place
    with contextlib.chdir(place):
        run = train_config(
            path, mesh, jax.devices(), None, folder, reference, in_dtype=in_dtype
        )
    gradients = run.get("gradients", {"none": np.zeros(0)})
    zeros = {path: 0 * gradient for path, gradient in gradients.items()}
    return Measured(mesh, initial=zeros, **run)


@pytest.fixture(scope="module")
def expected(config):
    """The runs of one device, in float32 and in the dtype of the config."""
    return {
        narrow: numbers(config, "1", folder=config[1], in_dtype=narrow)
        for narrow in (False, True)
    }


def wrong(config, expected, mesh, folder, faults=(), *, in_dtype=False):
    """Quantities of a run with faults whose bounds are broken, and where."""
    with contextlib.ExitStack() as stack:
        for owner, name, fault in faults:
            replacement = fault(getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, replacement))
        actual = numbers(config, mesh, folder=folder, in_dtype=in_dtype)
    checks = compare(actual, expected[in_dtype], FLOAT32)[1:]
    assert checks
    return {check.quantity: check.where for check in checks if not check.passed}


def schedule_of_all_ranks(counted):
    """A schedule that counts the batches of every rank."""
    return lambda schedule, start: counted(lambda step: schedule(2 * step), start)


def metrics_of_one_shard(evaluate):
    """Errors of the first shard alone."""

    def faulty(model, rollout, metrics, *arguments):
        def of_one(tree, context):
            y = on_shard(model.axes.domain, 0, tree["y_pred"], tree["y"])
            return metrics({**tree, "y_pred": y}, context)

        return evaluate(model, rollout, of_one, *arguments)

    return faulty


def doubled_norm(record):
    """A norm that is right where the gradient is clipped, and wrong in the log."""

    def faulty(self, epoch, info, losses, norm, count):
        return record(self, epoch, info, losses, 2 * norm, count)

    return faulty


def skipped_batch(batches):
    """A run that goes on leaves a batch out."""

    def faulty(self, epoch, done=0):
        return batches(self, epoch, done + (self.samples_per_batch if done else 0))

    return faulty


def order_of_another_epoch(batches):
    """Later epochs have the order of the first, on a mesh alone."""
    return lambda self, epoch, done=0: batches(self, 0, done)


def first_ranks_twice(batches):
    """In the validation all ranks read the samples of the first."""

    def faulty(self, epoch, done=0):
        parts = batches(self, epoch, done)
        if self.shuffle:
            return parts
        ranks = len(self.local_dp_ranks)
        return [np.tile(part[: len(part) // ranks], ranks) for part in parts]

    return faulty


def last_weights(is_taken):
    """Forecasts do not read the average."""
    return lambda choice, *, has_average, origin: False


def last_batch_alone(add):
    """The mean of an epoch is that of its last micro-batch."""

    def faulty(self, losses, measured):
        self.losses.clear()
        return add(self, losses, measured)

    return faulty


def rolled_rows(prepare):
    """The raw batch of a shard is one row too far."""

    def faulty(self, batch, context):
        rolled = {
            name: jnp.roll(x, 1, -2) if name.endswith("_raw") else x
            for name, x in batch.items()
        }
        return prepare(self, rolled, context)

    return faulty


def average_begins_anew(restore):
    """The average goes on from the weights."""

    def faulty(self, number, state):
        found = restore(self, number, state)
        copies = {path: found.stored_params[path] + 0 for path in found.stored_ema}
        return replace(found, stored_ema=copies)

    return faulty


def averaged_in_16_bits(vary):
    """Sums in bfloat16 are divided by the number of ranks."""
    averaged = averaged_gradient(vary)

    def faulty(params, axes, precision):
        narrow = precision.reduce == jnp.bfloat16
        return (averaged if narrow else vary)(params, axes, precision)

    return faulty


LOGS, STATE = "logs of the run", "state at the end"
NARROW = f"{LOGS}, in its dtype"
# Name -> mesh, what is patched, the fault, the quantity that shows it, and where.
FAULTS = {
    "a schedule of all ranks": (
        "ddp2",
        (setup, "counted_from", schedule_of_all_ranks),
        (LOGS, "learning_rate"),
    ),
    "metrics of one shard": (
        "domain2",
        (step, "evaluate_forecast", metrics_of_one_shard),
        (LOGS, "valid_"),
    ),
    "a logged norm": (
        "fsdp2",
        (TrainingLoop, "_record", doubled_norm),
        (LOGS, "grad_norm"),
    ),
    "a skipped batch": ("ddp2", (Sampler, "batches", skipped_batch), (LOGS, "")),
    "the order of epochs": (
        "tp2",
        (Sampler, "batches", order_of_another_epoch),
        (LOGS, "of epoch 1"),
    ),
    "the first rank's samples twice": (
        "ddp2",
        (Sampler, "batches", first_ranks_twice),
        (LOGS, "valid_"),
    ),
    "the last weights": (
        "fsdp2",
        (run, "takes_average", last_weights),
        ("weights of a forecast", ""),
    ),
    "the mean of an epoch": (
        "domain2",
        (EpochNumbers, "add", last_batch_alone),
        (LOGS, "train_"),
    ),
    "a raw batch": ("domain2", (Preparation, "__call__", rolled_rows), (LOGS, "")),
    "moments anew": (
        "fsdp2",
        (RunStore, "restore", with_empty_moments),
        (STATE, "optimizer"),
    ),
    "an average anew": (
        "ddp2",
        (RunStore, "restore", average_begins_anew),
        (STATE, "average"),
    ),
    "sums in 16 bits": (
        "fsdp2",
        (step, "pvary_params", averaged_in_16_bits),
        (NARROW, "grad_norm"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_is_found(name, config, expected, tmp_path):
    mesh, fault, (quantity, where) = FAULTS[name]
    narrow = quantity == NARROW
    found = wrong(config, expected, mesh, tmp_path, [fault], in_dtype=narrow)
    assert where in found[quantity], found


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("mesh", ["fsdp2xdomain3", "ddp2xtp2"])
def test_passes_without_faults(mesh, narrow, config, expected, tmp_path):
    assert not wrong(config, expected, mesh, tmp_path, in_dtype=narrow)
