"""What a certificate measures of a mesh, in the order of one device."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from credit_jax.certification.measure import FORECAST, measure
from credit_jax.certification.meshes import ONE_DEVICE
from credit_jax.certification.subject import NUM_SAMPLES, subject_of_model
from credit_jax.models.model_def import ModelDef
from credit_jax.transforms import ONE_STEP
from tests.training.noisy import Noisy, NoisyConfig
from tests.training.toy_runs import CONFIG

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
            start=expected.start,
            parts=parts,
        )
    (name,) = expected.forecast
    whole = expected.forecast[name]
    assert len(whole) == NUM_SAMPLES * MEMBERS
    assert len(np.unique(whole[:, 0, 0, 0, 0])) == len(whole)
    np.testing.assert_allclose(actual.forecast[name], whole, rtol=0, atol=1e-13)
