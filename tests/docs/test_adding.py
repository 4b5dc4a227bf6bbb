"""The pages about new models and losses: their code is run as it stands there."""

import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import xarray as xr
import yaml

from credit_jax.cli.console import main
from credit_jax.config import parse
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.loss import LossConfig, MetricsConfig
from credit_jax.config.trainer import TRAINERS
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.extensions.adjoint.growth import ENERGY
from credit_jax.losses import LOSSES, build_loss, initial_parameters, value_and_parts
from credit_jax.metrics import build_metrics
from credit_jax.models import registry
from credit_jax.models.registry import build, parse_model
from credit_jax.training.state import init_state
from credit_jax.transforms import Phase, build_pipeline
from credit_torch_bridge.compare.credit_side import new_credit_model, register_models
from credit_torch_bridge.compare.jax_side import import_credit
from tests.data.world import raw_config
from tests.models.parity import (
    assert_equals_credit,
    assert_equals_one_device,
    assert_round_trip,
    assert_training_forward_equals_credit,
)
from tests.support import assert_close
from tests.support.code_blocks import code_blocks
from tests.support.gradients import draw
from tests.support.whole_fields import field_context, of_pair
from tests.training.conftest import world
from tests.training.settings import trainer_config
from tests.training.tiny import write_yaml
from tests.training.toy_runs import mse, toy_batches, toy_model

__all__ = ["world"]


DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "adding_a_model.md").read_text()
NAME = "resnet"
# Two frames, spectral norm, poles; odd rows.
PADDING = {"activate": True, "mode": "earth", "pad_lat": [2, 1], "pad_lon": [1, 2]}
BLOCK = {
    **{"type": NAME, "image_height": 11, "image_width": 10, "frames": 2},
    **{"output_frames": 2, "channels": 2, "surface_channels": 1, "levels": 2},
    **{"input_only_channels": 2, "output_only_channels": 1, "dim": 8, "depth": 2},
    **{"groups": 4, "use_spectral_norm": True, "padding_conf": PADDING},
}
PLAIN = {**BLOCK, "use_spectral_norm": False, "padding_conf": None, "frames": 1}
BLOCKS = {"padded": BLOCK, "plain": PLAIN}


class Page(NamedTuple):
    """Sections of a config that name the files of the page."""

    custom_objects: dict[str, Any]
    custom_models: list[str]


@pytest.fixture
def page(credit, monkeypatch, tmp_path):
    """Adds the model of the page, as its config does, and its PyTorch class."""
    ours, theirs = tmp_path / "resnet.py", tmp_path / "torch_resnet.py"
    codes = code_blocks(PAGE, "python")
    theirs.write_text(next(code for code in codes if "@register_model" in code))
    ours.write_text("\n".join(code for code in codes if "@register_model" not in code))
    objects = yaml.safe_load(code_blocks(PAGE, "yaml")[0])["custom_objects"]
    assert objects[NAME]["module_path"] == ours.name
    objects[NAME]["module_path"] = str(ours)
    register_objects({"custom_objects": objects})
    # Removed after the test.
    monkeypatch.setitem(import_credit("models")._MODEL_REGISTRY, NAME, None)
    register_models({"custom_models": [str(theirs)]})
    return Page(objects, [str(theirs)])


@pytest.mark.usefixtures("page")
def test_the_decorator_names_the_parts_of_the_entry(page):
    line = r"^    @register_model\((.+), TORCH_MODEL\)\n    class (\w+)\("
    ((config, module),) = re.findall(line, PAGE, re.M)
    entry = registry.MODELS[NAME]
    assert (config, module) == (entry.config.__name__, entry.module.__name__)


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("name", BLOCKS)
def test_equals_the_pytorch_class(credit, name):
    assert_round_trip(credit, BLOCKS[name])
    assert_equals_credit(credit, BLOCKS[name], name)
    if name == "padded":
        assert_equals_credit(credit, BLOCK, "padded, plain definitions", "xla")
        assert_equals_credit(credit, BLOCK, "padded", dtype="float64")
        assert_training_forward_equals_credit(credit, BLOCK)


@pytest.mark.usefixtures("page")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "dtype"),
    [("domain3", "float32"), ("domain8", "float32"), ("2x2x2", "float64")],
)
def test_equals_one_device(mesh, dtype):
    assert_equals_one_device(BLOCK, mesh, "padded", dtype=dtype, remat="full")


@pytest.mark.usefixtures("page")
def test_the_defaults_are_those_of_the_pytorch_class():
    made = import_credit("models")._MODEL_REGISTRY[NAME][0]
    signature = inspect.signature(made.__init__).parameters
    theirs = {key: p.default for key, p in signature.items() if key != "self"}
    config = parse_model({"type": NAME})
    assert {key: getattr(config, key) for key in theirs} == theirs


WRONG = {
    "sizes": ({"groups": 3}, r"groups is 3, .* model.dim 8; would fit: 1, 2, 4, 8"),
    "typing error": ({"depht": 3}, "model.depht: unknown key.* 'depth'"),
    "text": ({"dim": "wide"}, "model.dim: .*'wide'"),
    "padding": ({"padding_conf": {"pad_lat": 12}}, "model.*pad_lat"),
    "no variables": ({"channels": 0, "surface_channels": 0}, "expected at least 1"),
}


@pytest.mark.usefixtures("page")
def test_what_cannot_run_is_refused(tmp_path, monkeypatch):
    for change, message in WRONG.values():
        with pytest.raises(ValueError, match=message):
            build({**BLOCK, "output_only_channels": 0, **change})
    (problem, *_) = build(BLOCK).validate(tensor=3)
    assert "16 mlp are not divisible by tensor 3" in problem
    for wrong in [str(tmp_path / "none.py")], 3:
        with pytest.raises(ValueError, match="CREDIT does not register the classes"):
            register_models({"custom_models": wrong})
    monkeypatch.delitem(import_credit("models")._MODEL_REGISTRY, NAME)
    with pytest.raises(ValueError, match="CREDIT has no model 'resnet'; custom_models"):
        new_credit_model(BLOCK)


def run(*arguments):
    """Runs a command, and asserts that it succeeds."""
    assert main([str(word) for word in arguments]) == 0, arguments


@pytest.mark.usefixtures("page")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*custom_models")
def test_the_commands(world, page, tmp_path, capsys):
    """From the YAML to forecasts, and to PyTorch and back."""
    model = {**PLAIN, "image_height": 6, "image_width": 10, "output_frames": 1}
    changes = {
        "model": model,
        "postblocks": {"per_step": {"reconstruct": {"type": "reconstruct"}}},
        "trainer__parallelism": {"data": "fsdp2", "tensor": 2, "domain": 2},
        "trainer__batches_per_epoch": 2,
        "trainer__epochs": 1,
        "trainer__skip_validation": True,
        "save_loc": str(tmp_path / "run"),
        **page._asdict(),
    }
    config, out = tmp_path / "model.yml", tmp_path / "forecasts"
    write_yaml(config, raw_config(world, **changes))
    given = "--config", config, "--devices", 8
    run("check", *given)
    run("train", *given, "--cache", "none")
    one = "--init-time", "1999-12-30", "--length", "12h"
    run("forecast", *given, *one, "--out", out, "--format", "zarr", "--cache", "none")
    with xr.open_dataset(out / "forecast.zarr") as forecast:
        assert np.isfinite(forecast["T"].values).all()
    states, jax_run = [], tmp_path / "jax"
    for step, checkpoint in enumerate([tmp_path / "run", jax_run]):
        back = tmp_path / f"torch_{step}"
        run("convert", "--to", "torch", "--checkpoint", checkpoint, "--out", back)
        path = back / "checkpoint.pt"
        states.append(torch.load(path, weights_only=True)["model_state_dict"])
        if not step:
            run("convert", "--to", "jax", "--checkpoint", back, "--out", jax_run)
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    capsys.readouterr()
    given = "--checkpoint", tmp_path / "torch_0"
    run("inspect", *given)
    assert "every key has its place" in capsys.readouterr().out
    run("compare", *given, "--parallelism", "tensor=2,domain=2")
    shown = capsys.readouterr().out
    assert re.search(r"output of encoder +\d", shown)
    assert re.search(r"output of blocks.1 +\d", shown)


LOSS_PAGE = (DOCS / "adding_a_loss.md").read_text()
LAT, LON, MEMBERS = 5, 8, 3
CHANNELS = {"S/prognostic/2d/T": 1, "S/prognostic/2d/Q": 1}


@pytest.fixture
def loss_page(tmp_path, monkeypatch):
    """Registers the objects of the page as its config does; returns the config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_objects.py").write_text("\n".join(blocks("python")))
    config = yaml.safe_load(blocks("yaml")[0])
    register_objects(config)
    return config


def blocks(language):
    return code_blocks(LOSS_PAGE, language)


def test_the_loss(loss_page):
    section = parse(LossConfig, loss_page["loss"])
    shape = (2, 2, 1, LAT, LON)
    prediction, target = draw(shape), draw(shape, seed=1)
    value = of_pair(build_loss(section))(
        jnp.asarray(prediction), jnp.asarray(target), field_context(LAT)
    )
    spectra = [np.abs(np.fft.rfft(x)).mean(axis=3) for x in (prediction, target)]
    expected = np.square(spectra[0] - spectra[1])[..., 2:].mean()
    assert_close(value, expected, 1e-6, "zonal loss of the page")


@pytest.mark.usefixtures("loss_page")
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


@pytest.mark.usefixtures("loss_page")
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


@pytest.mark.usefixtures("loss_page")
def test_the_transform():
    blocks = {
        "half": {"type": "half_transform", "args": {"variables": ["Q"]}},
        "concat": {"type": "concat"},
    }
    pipeline = build_pipeline(parse(PreblocksConfig, {"per_step": blocks}))
    fields = {key: np.full((1, 1, 1, LAT, LON), 4.0, np.float32) for key in CHANNELS}
    x = pipeline.run(Phase.BEFORE_STEP, {"input": {"S": fields}})["x"]
    assert x[0, :, 0, 0, 0].tolist() == [4.0, 2.0]


def test_the_training_step(loss_page):
    sections = yaml.safe_load(blocks("yaml")[2])
    register_objects(sections)
    trainer = trainer_config(**sections["trainer"])
    make, model = TRAINERS[trainer.type], toy_model(dp=2)
    step = make(model, optax.sgd(1.0), mse, largest=0.05)
    state = init_state(model, optax.sgd(1.0), jax.random.key(0))
    assert max(np.abs(x).max() for x in state.params.values()) > 0.05
    state, info = jax.jit(step)(state, *toy_batches(model, 1))
    assert info["loss"].shape == (1,)
    for path, x in state.params.items():
        assert_close(np.abs(x).max(), 0.05, 1e-6, path)


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
