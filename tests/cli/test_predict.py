"""The command `predict`: one forward pass on every mesh, and errors."""

import io
import zipfile

import jax
import numpy as np
import pytest

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.cli.predict import main
from credit_jax.models.registry import build
from credit_jax.nn.context import Context
from tests.support import assert_close
from tests.training.conftest import compiled_once, tiny_model, world
from tests.training.tiny import tiny_config, write_yaml

__all__ = ["compiled_once", "tiny_model", "world"]

# What the averages of the parameters are of them.
AVERAGED = 2.0


@pytest.fixture
def run(world, tmp_path, tiny_model):
    """A run of the tiny model: config, folder, architecture, weights."""
    mapping = tiny_config(world, tmp_path / "run")
    config = write_yaml(tmp_path / "model.yml", mapping)
    model_def = build(mapping["model"])
    keys = jax.random.split(jax.random.key(0))
    params = model_def.init(keys[0])
    model_state = model_def.init_model_state(keys[1], params)
    params, model_state = jax.device_get((params, model_state))
    ema = {path: AVERAGED * value for path, value in params.items()}
    store = CheckpointStore(tmp_path / "run")
    for step, scale in ((1, 0.5), (2, 1.0)):
        scaled = {path: scale * value for path, value in params.items()}
        items = {
            "weights": {"params": scaled, **model_state},
            "ema": ema,
        }
        store.save(step, items, Progress(epoch=0))
    store.close()
    return config, tmp_path / "run", model_def, params, model_state


@pytest.fixture
def x(run, tmp_path):
    """A file with an input of four samples."""
    model = run[2]
    grid = model.image_height, model.image_width
    shape = (4, model.input_channels, model.frames, *grid)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
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
    from credit_jax.nn import spectral_norm
    from credit_jax.nn.parameters import SPECTRAL_NORM

    _, _, model_def, params, model_state = run
    weights = {path: scale * value for path, value in params.items()}
    weights, model_state = jax.device_put((weights, model_state))
    vectors = model_state[SPECTRAL_NORM]
    weights = spectral_norm.normalize(weights, vectors, model_def.matrices, {})
    return model_def.apply(weights, {"x": jax.device_put(x)}, Context())


@pytest.mark.parametrize(
    "parallelism",
    ["data=none", "data=none,tensor=2,domain=2", "data=fsdp2,domain=3", "domain = 8"],
)
def test_prediction_is_that_of_the_model(run, x, tmp_path, capsys, parallelism):
    flags = ["--devices", "6"] if "fsdp2" in parallelism else []
    code = predict(run, tmp_path, *flags, parallelism=parallelism)
    assert code == 0, capsys.readouterr().err
    y = np.load(tmp_path / "y.npy")
    assert y.dtype == np.float32
    assert_close(y, expected(run, x, AVERAGED), 1e-6, parallelism)
    assert "/run/checkpoints/2 (moving average)" in capsys.readouterr().out
    assert {p.name for p in tmp_path.glob("*.np*")} == {"x.npy", "y.npy"}


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


def _save(path, array, **keywords):
    np.save(path, array, **keywords)
    return {"input": path}


def _claims(path, x):
    """A file that says to hold 10^12 samples."""
    header = io.BytesIO()
    content = {"descr": "<f4", "fortran_order": False, "shape": (10**12, *x.shape[1:])}
    np.lib.format.write_array_header_1_0(header, content)
    path.write_bytes(header.getvalue())
    if path.suffix == ".npz":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("x.npy", header.getvalue())
    return {"input": path}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d, x: {"parallelism": "tensr=2"}, "nearest known key is 'tensor'"),
        (lambda d, x: {"parallelism": "tensor"}, "'tensor', expected KEY=VALUE"),
        (lambda d, x: {"parallelism": "tensor=two"}, "--parallelism.tensor"),
        (lambda d, x: {"parallelism": "tensor=3"}, "not divisible by tensor 3"),
        (
            lambda d, x: {"parallelism": "data=ddp", "devices": 3},
            "4 samples, which 3 data-parallel devices cannot share",
        ),
        (lambda d, x: {"checkpoint": d}, "there is no checkpoint in"),
        (lambda d, x: {"step": 7}, "no checkpoint 7"),
        (lambda d, x: {"config": d / "none.yml"}, "none.yml"),
        (lambda d, x: {"output": d / "no" / "y.npy"}, "there is no folder"),
        (lambda d, x: {"precision": "int8"}, "'int8'; expected one of float32"),
        (lambda d, x: _save(d / "a.npy", x[:, :2]), "has shape (4, 2, 1,"),
        (lambda d, x: _save(d / "a.npy", x[:0]), "1 or more"),
        (lambda d, x: _save(d / "a.npy", x.astype(int)), "holds int64, expected"),
        (lambda d, x: _save(d / "a.npy", x * np.nan), "not finite"),
        (
            lambda d, x: _save(d / "a.npy", np.asarray([{}]), allow_pickle=True),
            "is no .npy or .npz file of numbers",
        ),
        (
            lambda d, x: np.savez(d / "a.npz", y=x) or {"input": d / "a.npz"},
            "holds y, expected x, the inputs of",
        ),
        (lambda d, x: {"input": __file__}, "is no .npy or .npz file of numbers"),
        (lambda d, x: _claims(d / "a.npy", x), "is no .npy or .npz file of numbers"),
        (lambda d, x: _claims(d / "a.npz", x), "a.npz asks for more memory than"),
    ],
)
def test_mistakes(run, x, tmp_path, capsys, change, words):
    assert predict(run, tmp_path, **change(tmp_path, x)) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "y.npy").exists(), "nothing is written"
