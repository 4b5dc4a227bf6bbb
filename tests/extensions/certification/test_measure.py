"""What a certificate measures of a mesh, in the order of one device."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from credit_jax.extensions.certification import measure as certified
from credit_jax.extensions.certification.measure import FORECAST, TRAINING, measure
from credit_jax.extensions.certification.meshes import ONE_DEVICE
from credit_jax.extensions.certification.subject import NUM_SAMPLES, subject_of_model
from credit_jax.extensions.certification.verdict import FLOAT64, compare
from credit_jax.models.model_def import ModelDef
from credit_jax.nn import layers
from credit_jax.training import restore, step
from credit_jax.training.restore import RunStore
from credit_jax.transforms import ONE_STEP
from tests.models.toy import TOY
from tests.training.noisy import Noisy, NoisyConfig
from tests.training.toy_runs import CONFIG, MODEL_DEF

MEMBERS = 3
SECTION = {**CONFIG.model_dump(), "use_spectral_norm": False}
NOISY = ModelDef(NoisyConfig(**SECTION), Noisy)


@pytest.mark.slow(but=["fsdp2xdomain2"])
@pytest.mark.parametrize("mesh", ["ddp2", "fsdp4", "fsdp2xdomain2"])
def test_members_of_a_forecast(tmp_path, mesh):
    """Each sample's, adjacent, with noise that depends on no mesh."""
    with jax.enable_x64(True):
        forecast = replace(ONE_STEP, num_members=MEMBERS)
        subject = replace(subject_of_model(NOISY, x64=True), forecast=forecast)
        devices, parts = jax.devices(), (FORECAST,)
        expected = measure(
            subject, ONE_DEVICE, devices, folder=tmp_path / "one", parts=parts
        )
        actual = measure(
            subject,
            mesh,
            devices,
            folder=tmp_path / mesh,
            expected=expected,
            parts=parts,
        )
    (name,) = expected.forecast
    whole = expected.forecast[name]
    assert len(whole) == NUM_SAMPLES * MEMBERS
    assert len(np.unique(whole[:, 0, 0, 0, 0])) == len(whole)
    np.testing.assert_allclose(actual.forecast[name], whole, rtol=0, atol=1e-13)


def broken(subject, mesh, folder, target, name, fault):
    """The checks of a mesh that do not pass with a fault in the place of a function."""
    with jax.enable_x64(True):
        devices, parts, one = jax.devices(), (TRAINING,), folder / "one"
        expected = measure(subject, ONE_DEVICE, devices, folder=one, parts=parts)
        with mock.patch.object(target, name, fault(getattr(target, name))):
            actual = measure(
                subject,
                mesh,
                devices,
                folder=folder / mesh,
                reference=one,
                expected=expected,
                parts=parts,
            )
        checks = compare(actual, expected, FLOAT64)
    return {check.quantity: check.where for check in checks if not check.passed}


def with_empty_moments(restore):
    """A checkpoint whose moments are not read."""

    def faulty(store, step, state):
        restored = restore(store, step, state)
        return replace(restored, stored_opt_state=state.stored_opt_state)

    return faulty


def test_a_moment_that_is_not_restored(tmp_path):
    """The first check that fails is the cause; what follows is wrong with it."""
    subject = subject_of_model(MODEL_DEF, x64=True)
    wrong = broken(subject, "fsdp2", tmp_path, RunStore, "restore", with_empty_moments)
    first, *others = wrong
    assert first == "checkpoint restored here"
    assert wrong[first].startswith("optimizer/")
    assert "state at the end" in others


def with_the_first_shard(unpack_on_host):
    """What is written of a split vector is its first half, twice."""

    def faulty(tree, packing):
        def of_one_shard(leaf):
            if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
                return leaf
            shard = leaf.addressable_shards[0].data
            copies = [-(-n // m) for n, m in zip(leaf.shape, shard.shape, strict=True)]
            return np.tile(shard, copies)

        return unpack_on_host(jax.tree.map(of_one_shard, tree), packing)

    return faulty


def test_a_shard_that_is_not_written(tmp_path):
    """No mesh reads it in this certificate."""
    subject = subject_of_model(MODEL_DEF, x64=True)
    wrong = broken(
        subject, "fsdp2", tmp_path, restore, "unpack_on_host", with_the_first_shard
    )
    assert wrong.keys() == {"checkpoint written here"}


def statistics_of_a_shard(as_invarying):
    """Running statistics of one shard, which nothing in training reads."""

    def faulty(x):
        shard = lax.axis_index("domain").astype(x.dtype)
        return as_invarying(x + shard)

    return faulty


@pytest.mark.slow
def test_a_running_statistic_of_a_shard(tmp_path):
    subject = subject_of_model(TOY, x64=True)
    wrong = broken(
        subject,
        "domain2",
        tmp_path,
        layers,
        "_as_invarying",
        statistics_of_a_shard,
    )
    assert "batch_stats/blocks/norm_" in wrong["state of the model"]


def averaged_over_micro_batches(make):
    """A step that divides by another number of micro-batches than there are."""
    return lambda *args, accumulate, **options: make(*args, **options)


def test_gradients_of_two_micro_batches(tmp_path):
    subject = replace(subject_of_model(MODEL_DEF, x64=True), accumulate=2)
    wrong = broken(
        subject,
        "fsdp2",
        tmp_path,
        certified,
        "make_train_step",
        averaged_over_micro_batches,
    )
    assert "gradient of all weights" in wrong


def repeated_key(module):
    """The third micro-batch draws as the second."""

    class Faulty:
        def __getattr__(self, name):
            return getattr(module, name)

        @staticmethod
        def arange(count):
            return jnp.minimum(jnp.arange(count), 1)

    return Faulty()


def test_the_key_of_the_third_micro_batch(tmp_path):
    subject = replace(subject_of_model(NOISY, x64=True), accumulate=3)
    wrong = broken(subject, "ddp2", tmp_path, step, "jnp", repeated_key)
    assert "gradient of all weights" in wrong


def test_the_samples_of_a_batch_of_trees():
    """In float64 its entries are sorted by name: the first may be named fields."""
    subject = subject_of_model(MODEL_DEF)
    batch = {"forcing": {"ERA5": {}}, **subject.batches[0]}
    assert replace(subject, batches=(batch,)).num_samples == NUM_SAMPLES
