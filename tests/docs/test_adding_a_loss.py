"""docs/adding_a_loss.md: its code runs, and the loss it registers trains by name."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from credit_jax.config import parse
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.loss import LossConfig, MetricsConfig
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.extensions.adjoint.growth import ENERGY
from credit_jax.losses import (
    LOSSES,
    build_loss,
    initial_parameters,
    value_and_parts,
)
from credit_jax.metrics import build_metrics
from credit_jax.transforms import Phase, build_pipeline
from tests.support import assert_close
from tests.support.code_blocks import code_blocks
from tests.support.custom_objects import no_objects_left
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, of_pair

__all__ = ["no_objects_left"]

PAGE = Path(__file__).parents[2] / "docs/adding_a_loss.md"
LAT, LON, MEMBERS = 5, 8, 3
CHANNELS = {"S/prognostic/2d/T": 1, "S/prognostic/2d/Q": 1}


@pytest.fixture
def page(tmp_path, monkeypatch, no_objects_left):
    """Registers the objects of the page as its config does; returns the config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_objects.py").write_text("\n".join(blocks("python")))
    config = yaml.safe_load(blocks("yaml")[0])
    register_objects(config)
    return config


def blocks(language):
    return code_blocks(PAGE.read_text(), language)


def test_the_loss(page):
    section = parse(LossConfig, page["loss"])
    shape = (2, 2, 1, LAT, LON)
    prediction, target = draw(shape), draw(shape, seed=1)
    value = of_pair(build_loss(section))(
        jnp.asarray(prediction), jnp.asarray(target), field_context(LAT)
    )
    spectra = [np.abs(np.fft.rfft(x)).mean(axis=3) for x in (prediction, target)]
    expected = np.square(spectra[0] - spectra[1])[..., 2:].mean()
    assert_close(value, expected, 1e-6, "zonal loss of the page")


@pytest.mark.usefixtures("page")
def test_the_loss_of_parts():
    module = inspect.getmodule(LOSSES["zonal"])
    loss = module.Balanced()
    assert initial_parameters(loss).keys() == {"log_ratio"}
    prediction, target = draw((2, 2, 1, LAT, LON)), draw((2, 2, 1, LAT, LON), seed=1)
    context = field_context(LAT, loss_parameters={"log_ratio": jnp.float32(0.5)})
    tree = {"y_pred": jnp.asarray(prediction), "y": jnp.asarray(target)}
    value, parts = value_and_parts(loss, tree, context)
    error = prediction - target
    expected = {"error": np.square(error).mean(), "bias": error.mean()}
    for name, part in expected.items():
        assert_close(parts[name], part, 1e-6, f"{name} of the page")
    total = expected["error"] + expected["bias"] ** 2 * np.exp(-0.5) + 0.25
    assert_close(value, total, 1e-6, "loss of the page")


@pytest.mark.usefixtures("page")
def test_the_metric():
    prediction = draw((2 * MEMBERS, 2, 1, LAT, LON))
    metrics = build_metrics(MetricsConfig(args={"metrics": {"spread": {}}}), CHANNELS)
    found = of_pair(metrics)(
        jnp.asarray(prediction),
        jnp.zeros((2, 2, 1, LAT, LON)),
        field_context(LAT, num_members=MEMBERS),
    )
    deviations = prediction.reshape(2, MEMBERS, 2, -1).std(axis=1)
    expected = np.sqrt(np.square(deviations).mean(axis=(0, 2)))
    ours = [found[f"spread/{key}"] for key in CHANNELS]
    assert_close(ours, expected, 1e-6, "spread of the page")


@pytest.mark.usefixtures("page")
def test_the_transform():
    blocks = {
        "half": {"type": "half_transform", "args": {"variables": ["Q"]}},
        "concat": {"type": "concat"},
    }
    pipeline = build_pipeline(parse(PreblocksConfig, {"per_step": blocks}))
    fields = {key: np.full((1, 1, 1, LAT, LON), 4.0, np.float32) for key in CHANNELS}
    x = pipeline.run(Phase.BEFORE_STEP, {"input": {"S": fields}})["x"]
    assert x[0, :, 0, 0, 0].tolist() == [4.0, 2.0]


def test_the_loss_of_total_energy():
    """The section is the energy norm of singular vectors, over the variables."""
    section = parse(LossConfig, yaml.safe_load(blocks("yaml")[1])["loss"])
    names = {"U": 3, "V": 3, "T": 3, "Q": 3}
    counts = {f"ERA5/prognostic/3d/{name}": count for name, count in names.items()}
    counts["ERA5/prognostic/2d/SP"] = 1
    latitude = np.linspace(80.0, -80.0, LAT)
    ours, theirs = (
        {
            k: draw((2, n, 1, LAT, LON), seed=i + s)
            for i, (k, n) in enumerate([*counts.items()])
        }
        for s in (0, 10)
    )
    zeros = np.zeros((2, sum(counts.values()), 1, LAT, LON), np.float32)
    tree = {
        "y_pred": zeros,
        "y": zeros,
        "y_processed": {"ERA5": ours},
        "y_target_processed": {"ERA5": theirs},
    }
    loss = build_loss(section, counts, latitude=latitude)
    value = loss(jax.tree.map(jnp.asarray, tree), field_context(LAT))
    area = np.cos(np.deg2rad(latitude))[:, None]
    factors = dict(zip("UVT", [*ENERGY.values()][:3], strict=True))
    factors |= {"SP": ENERGY["surface_air_pressure"], "Q": 0.0}
    energy = sum(
        factors[key.split("/")[-1]]
        * (np.square(ours[key] - theirs[key]) * area / area.mean()).mean()
        for key in counts
    )
    assert_close(value, energy / len(counts), 1e-3, "rounded factors")
