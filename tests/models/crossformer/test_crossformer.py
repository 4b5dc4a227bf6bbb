"""CrossFormer beside CREDIT, and its batch norms."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml

from credit_jax import from_state_dict
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build, parse_model
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import BATCH_STATS
from credit_jax.parallel.placement import place_batch
from credit_jax.training.optimizer import adamw
from credit_jax.training.state import init_state
from credit_jax.training.step import make_train_step
from tests.models.cases import BASE, CAMULATOR, CASES, CROSSFORMER, ENSEMBLE, section
from tests.support import assert_close, assert_trees_close, make_mesh

BATCH = 2


def test_four_frames_fail_in_credit_too(credit: Any, torch: Any) -> None:
    model = credit.build_credit({**CAMULATOR["two frames"].block, "frames": 4})
    x = torch.zeros(1, model.input_channels, 4, 32, 32)
    with pytest.raises(RuntimeError):
        model(x)


def test_patches_of_a_padded_grid_are_accepted() -> None:
    """CREDIT's reshape fails there."""
    block = CAMULATOR["patches"].block
    block = section(block, image_height=62, pad=("earth", [1, 1], [0, 0]))
    assert build(block).config.geometry().patched == (32, 32)


def test_one_number_pads_both_ends() -> None:
    """As CREDIT's older programs read it."""
    padding = {"activate": True, "mode": "mirror", "pad_lat": 8, "pad_lon": 4}
    config = parse_model({"type": "crossformer", "padding_conf": padding})
    assert config.pads == ((8, 8), (4, 4))


def test_heads_that_tensor_does_not_divide_are_refused() -> None:
    found = build(CASES["nextgen levels"].block).validate(tensor=3)
    assert "are not divisible by tensor 3" in found[0]


@pytest.mark.slow
def test_dropout_noise_is_scaled() -> None:
    """The mean over keys of the output with dropout is near the one without."""
    block = {**CASES["wxformer plain"].block, "attn_dropout": 0.1, "ff_dropout": 0.1}
    model_def = build(block)
    params = jax.jit(model_def.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(2), (1, 7, 1, 32, 32))

    @jax.jit
    def forward(key: Any) -> Any:
        return model_def.apply(params, {"x": x}, Context(key=key))

    still = jax.jit(lambda: model_def.apply(params, {"x": x}, Context()))()
    noisy = np.stack([forward(key) for key in jax.random.split(jax.random.key(1), 32)])
    spread = float(noisy.std(0).mean())
    shift = float(np.abs(noisy.mean(0) - still).mean())
    print(f"dropout: spread {spread:.3f}, shift of the mean {shift:.3f}")
    assert spread > 1e-3, "dropout must change the output"
    assert shift < spread, f"mean moved by {shift:.3f} with a spread of {spread:.3f}"


def test_what_is_trained_is_what_credit_trains(credit: Any) -> None:
    for name, case in ENSEMBLE.items():
        model = credit.build_credit(case.block)
        theirs = sum(p.numel() for p in model.parameters() if p.requires_grad)
        ours = sum(spec.size for spec in build(case.block).trainable.values())
        assert ours == theirs, name


@cache
def _forward() -> tuple[ModelDef, Any]:
    model_def = build(ENSEMBLE["frozen"].block)
    params = jax.jit(model_def.init)(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), model_def.inputs["x"].shape(BATCH))
    x = x.at[1].set(x[0])

    @jax.jit
    def forward(key: Any) -> Any:
        return model_def.apply(params, {"x": x}, Context(noise=Noise(key)))

    return model_def, forward


@pytest.mark.slow
def test_another_key_is_another_member() -> None:
    """In evaluation, too; members along the batch dim have different noise."""
    _, forward = _forward()
    first, again, other = (np.asarray(forward(jax.random.key(i))) for i in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).mean() > 1e-5
    assert np.abs(first[0] - first[1]).mean() > 1e-5


def test_a_forward_without_noise_is_refused() -> None:
    model_def, _ = _forward()
    params = jax.jit(model_def.init)(jax.random.key(0))
    x = jnp.zeros(model_def.inputs["x"].shape(1))
    with pytest.raises(ValueError, match=r"draws noise .* pass Noise"):
        model_def.apply(params, {"x": x}, Context())


@pytest.mark.reference
def test_weights_of_a_wxformer_are_refused(credit: Any) -> None:
    mirror = CROSSFORMER["mirror"].block
    state = credit.build_credit(mirror | {"type": "wxformer"}).state_dict()
    arrays = {key: value.numpy() for key, value in state.items()}
    with pytest.raises(ValueError, match="does not fit the architecture") as caught:
        from_state_dict(build(mirror), arrays)
    assert "unexpected: up_block1.sharp" in str(caught.value)
    assert "missing: up_block4.bias" in str(caught.value)


@pytest.mark.reference
def test_weights_of_another_size_are_refused_with_every_key(credit: Any) -> None:
    state = credit.build_credit(BASE | {"depth": [1, 0, 3, 0]}).state_dict()
    arrays = {key: value.numpy() for key, value in state.items()}
    with pytest.raises(ValueError, match="does not fit the architecture") as caught:
        from_state_dict(build(BASE), arrays)
    lines = str(caught.value).splitlines()[1:]
    assert all("unexpected: layers.2.1.layers.2." in line for line in lines)
    assert len(lines) == sum(".2.1.layers.2." in key for key in arrays)


@pytest.mark.slow
@pytest.mark.reference
def test_files_carry_running_statistics_there_and_back(
    credit: Any, torch: Any, tmp_path: Any, capsys: Any
) -> None:
    """Counters of batch norms are integers; other entries must not be."""
    from credit_torch_bridge.__main__ import main

    block = CROSSFORMER["coordinate"].block
    model = credit.build_credit(block, seed=2).train()
    with torch.no_grad():
        model(torch.randn(build(block).inputs["x"].shape(2)))
    state = model.state_dict()
    assert any(key.endswith("num_batches_tracked") for key in state)
    torch.save({"epoch": 0, "model_state_dict": state}, tmp_path / "checkpoint.pt")
    config = tmp_path / "model.yml"
    config.write_text(yaml.safe_dump({"model": block}))
    for way, given in (
        ("jax", tmp_path / "checkpoint.pt"),
        ("torch", tmp_path / "jax"),
    ):
        given = ["--to", way, "--config", str(config), "--checkpoint", str(given)]
        code = main(["convert", *given, "--out", str(tmp_path / way)])
        assert code == 0, capsys.readouterr().err
    back = torch.load(tmp_path / "torch" / "checkpoint.pt", weights_only=True)
    back = back.get("model_state_dict", back)
    assert list(back) == list(state)
    for key, value in state.items():
        assert back[key].dtype == value.dtype, key
        assert torch.equal(back[key], value), key


# Without transformer blocks, which have no batch norm and are slow to compile.
BLOCK = {**CROSSFORMER["coordinates"].block, "depth": 0}


def _train(degrees: dict[str, int]) -> tuple[Any, Any]:
    """Returns the state after an update from two micro-batches, losses, gradient."""
    mesh = make_mesh(**degrees)
    model = build_parallel_model(BLOCK, mesh)
    optimizer = adamw(max_norm=1.0)
    state = init_state(model, optimizer, jax.random.key(0))
    rng = np.random.default_rng(0)
    grid = model.model_def.image_height, model.model_def.image_width
    arrays = {
        name: rng.normal(size=(2, 4, channels, 1, *grid)).astype(np.float32)
        for name, channels in (
            ("x", model.model_def.input_channels),
            ("y", model.model_def.output_channels),
        )
    }
    step = make_train_step(
        model,
        optimizer,
        lambda tree, context: context.mean((tree["y_pred"] - tree["y"]) ** 2),
        schedule=optax.constant_schedule(1e-3),
        accumulate=2,
    )
    state, info = step(state, place_batch(arrays, mesh))
    return jax.device_get(state.model_state), jax.device_get(info)


@pytest.mark.slow
def test_two_micro_batches_on_a_mesh_leave_the_statistics_of_one_device() -> None:
    model_state, info = _train({"dp": 2, "domain": 3})
    expected, serial = _train({})
    norms = build(BLOCK).batch_stats
    assert len(norms) == 3
    ours, one = model_state[BATCH_STATS], expected[BATCH_STATS]
    for path in norms:
        assert ours[path]["count"] == one[path]["count"] == 2
        assert abs(one[path]["mean"]).max() > 1e-3, "the mean must move"
        assert_trees_close(ours[path], one[path], 1e-5, f"statistics of {path}")
    assert_close(info["loss"], serial["loss"], 1e-5, "losses of the micro-batches")
    assert_close(info["grad_norm"], serial["grad_norm"], 1e-5, "norm of the gradient")


def test_a_forward_pass_without_statistics_is_refused() -> None:
    model_def = build(BLOCK)
    x = jnp.zeros((1, 7, 1, 30, 32))
    with pytest.raises(ValueError, match=r"3 batch norms; .*batch_stats="):
        model_def.apply({}, {"x": x}, Context())
