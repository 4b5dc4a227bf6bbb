"""Weights for other channels: the first forecast of what stays is the base's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.models.channel_change import (
    ChannelChange,
    change_channels,
    change_moments,
    frozen_layers,
)
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import build_parallel_model, place_weights
from credit_jax.models.registry import build
from credit_jax.nn.low_rank import LowRank
from credit_jax.nn.parameters import SPECTRAL_NORM
from tests.support import assert_close, make_mesh
from tests.support.gradients import draw

CHANNELS = {"channels": 2, "levels": 2, "surface_channels": 1}
CHANNELS |= {"input_only_channels": 2, "output_only_channels": 1}
MORE = CHANNELS | {"input_only_channels": 4, "output_only_channels": 3}
STAGES = {"dim": [8, 16, 32, 64], "depth": [1, 0, 0, 0], "dim_head": 4}
STAGES |= {"global_window_size": 1, "local_window_size": 1}
SWIN = {"dim": 8, "num_groups": 2, "num_heads": 2, "window_size": 2, "depth": 1}
SWIN |= {"patch_height": 4, "patch_width": 4, "frame_patch_size": 1}
SECTIONS: dict[str, dict[str, Any]] = {
    **{"wxformer": STAGES, "crossformer": STAGES},
    **{"camulator": STAGES | {"frames": 2}, "fuxi": SWIN},
}


def definition(kind: str, channels: dict[str, int]) -> ModelDef:
    grid = {"image_height": 32, "image_width": 64, "frames": 1}
    return build({"type": kind, **grid, **SECTIONS[kind], **channels})


@cache
def base(kind: str) -> tuple[ModelDef, Any]:
    model_def = definition(kind, CHANNELS)
    model = build_parallel_model(model_def, make_mesh())
    return model_def, jax.device_get(model.init(jax.random.key(0)))


def forecast(model_def: ModelDef, weights: Any, x: np.ndarray) -> tuple[Any, Any]:
    """Returns a prediction, and the weights divided by sigma."""
    model = build_parallel_model(model_def, make_mesh())
    fused = model.fuse_spectral_norm(*place_weights(model, *weights), compensated=True)
    y = np.asarray(model.apply(*fused, {"x": jnp.asarray(x)}))
    return y, jax.device_get(fused[0])


@pytest.mark.slow(but=["fuxi-mean"])
@pytest.mark.parametrize(
    ("kind", "fill"),
    [
        *(("wxformer", "copy"), ("crossformer", "zero"), ("camulator", "mean")),
        *(("fuxi", "copy"), ("fuxi", "mean")),
    ],
)
def test_new_channels_leave_the_function_of_the_others(kind: str, fill: Any) -> None:
    """Inputs and outputs change their order; new ones are between them.

    The weights of what stays, divided by sigma, are equal bit for bit. Forecasts are
    equal up to rounding: wider layers sum in another order.
    """
    base_def, weights = base(kind)
    assert (base_def.input_channels, base_def.output_channels) == (7, 6)
    model_def = definition(kind, MORE)
    inputs = (1, 0, None, 2, 4, 6, None, 5, 3)
    outputs = (None, 1, 0, 2, None, 4, 5, 3)
    copied = {4: 2} if fill == "copy" else {}
    change = ChannelChange(inputs, outputs, 7, 6, fill, copied)
    changed = change_channels(weights, base_def, model_def, change)
    x = draw(base_def.inputs["x"].shape(1), 3)
    expected, before = forecast(base_def, weights, x)
    new_x = draw(model_def.inputs["x"].shape(1), 4)
    new, old = np.transpose([(n, o) for n, o in enumerate(inputs) if o is not None])
    new_x[:, new] = x[:, old]
    actual, after = forecast(model_def, changed, new_x)
    first = "stages/0/embed/convs/0/kernel"
    first = first if first in after else "cube_embedding/proj/kernel"
    for path, spec in model_def.param_specs.items():
        if spec.shape == base_def.param_specs[path].shape:
            assert np.array_equal(before[path], after[path]), path
    channels = (
        np.split(weights[first], len(places), axis=-2)
        for weights, places in ((before, range(7)), (after, inputs))
    )
    was, now = map(np.stack, channels)
    assert np.array_equal(now[new], was[old])
    assert not np.delete(now, new, axis=0).any()
    new, old = np.transpose([(n, o) for n, o in enumerate(outputs) if o is not None])
    assert_close(actual[:, new], expected[:, old], 2e-6, f"{kind}: forecast")
    if fill == "copy":
        assert_close(actual[:, 4], expected[:, 2], 2e-6, "the copy")
    if fill == "mean":
        assert_close(actual[:, 0], expected.mean(1), 2e-6, "the mean of all outputs")
    else:
        assert not actual[:, 0].any()


@pytest.mark.slow(but=["fuxi"])
@pytest.mark.parametrize("kind", [*SECTIONS])
def test_frozen_layers_of_new_channels(kind: str) -> None:
    plain = definition(kind, MORE)
    every = frozenset(plain.param_specs)
    change = ChannelChange((*range(7), None, None), (*range(6), None, None), 7, 6)
    assert not frozen_layers(plain, change)
    layers = frozen_layers(replace(plain, frozen=every), change)
    first, last = layers["input"], layers["output"]
    assert all(path.endswith("kernel") for path in first)
    assert all(path.startswith("head/") for path in last)
    head = replace(plain, frozen=every.difference(last))
    assert frozen_layers(head, change) == {"input": first}
    low_rank = LowRank(1, 1.0, frozenset({first[0], last[0]}))
    assert not frozen_layers(replace(plain, frozen=every, low_rank=low_rank), change)
    same = ChannelChange((*range(9),), (*range(8),), 9, 8)
    assert not frozen_layers(replace(plain, frozen=every), same)


@pytest.mark.slow(but=["crossformer", "fuxi"])
@pytest.mark.parametrize("kind", [*SECTIONS])
def test_removed_channels_leave_sigma_that_of_what_is_left(kind: str) -> None:
    base_def, weights = base(kind)
    fewer = CHANNELS | {"input_only_channels": 1, "output_only_channels": 0}
    model_def = definition(kind, fewer)
    inputs, outputs = (0, 1, 2, 4, 5, 6), (1, 2, 3, 4, 5)
    change = ChannelChange(inputs, outputs, 7, 6)
    params, state = change_channels(weights, base_def, model_def, change)
    seen = 0
    for path, spec in model_def.matrices.items():
        assert params[path].shape == spec.shape
        before = base_def.param_specs[path].shape
        if before == spec.shape or not spec.calls:
            continue
        seen += 1
        rows = np.transpose(params[path], (*spec.matrix_out, *spec.matrix_in))
        vectors = state[SPECTRAL_NORM][path]
        rows = rows.reshape(vectors["u"].size, -1).astype(np.float64)
        sigma = vectors["u"].ravel() @ rows @ vectors["v"].ravel()
        largest = np.linalg.svd(rows, compute_uv=False)[0]
        assert_close(sigma, largest, 1e-4, path)
    assert seen > 0
    assert model_def.output_channels == 5


def test_moments_of_new_entries_are_0() -> None:
    """Whatever the weights begin with; those of entries of the base move with them."""
    model_def, (params, _) = base("wxformer")
    ours = definition("wxformer", CHANNELS | {"input_only_channels": 3})
    change = ChannelChange(
        (1, 0, *range(2, 7), None), (1, 0, *range(2, 6)), 7, 6, "mean"
    )
    moments = {path: x for path, x in params.items() if not path.endswith("bias")}
    moved = change_moments(moments, ours, change)
    assert moved.keys() == moments.keys()
    shapes = {path: spec.shape for path, spec in ours.param_specs.items()}
    assert {path: x.shape for path, x in moved.items()} == {p: shapes[p] for p in moved}
    (path,) = [p for p in moved if moved[p].shape != model_def.param_specs[p].shape][:1]
    dim = ours.param_specs[path].dims.index("conv_in")
    before, after = (np.moveaxis(x[path], dim, 0) for x in (moments, moved))
    np.testing.assert_array_equal(after[:7], before[[1, 0, *range(2, 7)]])
    assert not after[7].any()


@pytest.mark.slow
def test_the_gradient_reaches_all_that_is_new() -> None:
    """New weights that are 0 are no saddle: each has a gradient."""
    base_def, weights = base("wxformer")
    model_def = definition("wxformer", CHANNELS | {"output_only_channels": 2})
    change = ChannelChange((*range(7),), (*range(6), None), 7, 6)
    params, state = change_channels(weights, base_def, model_def, change)
    model = build_parallel_model(model_def, make_mesh())
    params, state = place_weights(model, params, state)
    x = jnp.asarray(draw(model_def.inputs["x"].shape(1), 3))

    def loss(params: Any) -> Any:
        return ((model.apply(params, state, {"x": x}) - 1.0) ** 2).mean()

    grads = jax.grad(loss)(params)
    # Of the new output by all hidden channels, and of all outputs by the new one.
    assert np.abs(grads["head/out/kernel"][..., 6]).max((0, 1)).all()
    assert np.abs(grads["head/out/kernel"][:, :, 6]).max((0, 1)).all()
