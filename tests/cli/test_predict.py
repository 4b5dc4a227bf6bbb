"""The command `predict`: one forward pass on every mesh."""

import jax
import numpy as np
import pytest

from credit_jax.cli.predict import main
from credit_jax.models.registry import build
from credit_jax.nn import spectral_norm
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import SPECTRAL_NORM
from tests.forecast.tiny_run import write_weights
from tests.support import assert_close
from tests.training.tiny import tiny_config, write_yaml

# What the averages of the parameters are of them.
AVERAGED = 2.0


@pytest.fixture
def run(world, tmp_path, tiny_model):
    """A run of the tiny model: config, folder, architecture, weights."""
    mapping, folder = tiny_config(world, tmp_path / "run"), tmp_path / "run"
    config = write_yaml(tmp_path / "model.yml", mapping)
    model = mapping["model"]
    write_weights(model, folder, step=1, scale=0.5, average=AVERAGED)
    weights = write_weights(model, folder, step=2, average=AVERAGED)
    return config, folder, build(model), *weights


@pytest.fixture
def x(run, rng, tmp_path):
    """A file with an input of four samples."""
    model = run[2]
    grid = model.image_height, model.image_width
    shape = (4, model.input_channels, model.frames, *grid)
    x = rng.normal(size=shape).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return x


def predict(run, tmp_path, *flags, **changes):
    arguments = {
        "config": run[0],
        "checkpoint": run[1],
        "input": tmp_path / "x.npy",
        "output": tmp_path / "y.npy",
        "cache": "none",
    } | changes
    given = [str(part) for k, v in arguments.items() for part in (f"--{k}", v)]
    return main([*given, *flags])


def expected(run, x, scale=1.0):
    _, _, model_def, params, model_state = run
    weights = {path: scale * value for path, value in params.items()}
    weights, model_state = jax.device_put((weights, model_state))
    vectors = model_state[SPECTRAL_NORM]
    weights = spectral_norm.normalize(weights, vectors, model_def.matrices, {})
    return model_def.apply(weights, {"x": jax.device_put(x)}, Context())


def test_prediction_is_that_of_the_model_on_every_mesh(run, x, tmp_path, capsys):
    y = expected(run, x, AVERAGED)
    for parallelism in (
        *("data=none", "data=none,tensor=2,domain=2"),
        *("data=fsdp2,domain=3", "domain = 8"),
    ):
        flags = ["--devices", "6"] if "fsdp2" in parallelism else []
        code = predict(run, tmp_path, *flags, parallelism=parallelism)
        assert code == 0, capsys.readouterr().err
        found = np.load(tmp_path / "y.npy")
        assert found.dtype == np.float32
        assert_close(found, y, 1e-6, parallelism)
        assert "/run/checkpoints/2 (moving average)" in capsys.readouterr().out
        assert {p.name for p in tmp_path.glob("*.np*")} == {"x.npy", "y.npy"}
        (tmp_path / "y.npy").unlink()


def test_another_checkpoint_and_the_average(run, x, tmp_path, capsys):
    assert predict(run, tmp_path, step=1, weights="last") == 0
    assert "/run/checkpoints/1 (last weights)" in capsys.readouterr().out
    older = np.load(tmp_path / "y.npy")
    folder = run[1] / "checkpoints"
    options = {"checkpoint": folder, "output": tmp_path / "average.npy"}
    assert predict(run, tmp_path, weights="average", **options) == 0
    average = np.load(tmp_path / "average.npy")
    # Spectral norm divides by the scale; only biases differ.
    assert_close(older, expected(run, x, 0.5), 1e-6, "checkpoint 1")
    assert_close(average, expected(run, x, AVERAGED), 1e-6, "average")
    assert np.abs(older - average).max() > 1e-3
