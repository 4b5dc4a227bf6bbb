"""`reconstruct` and `concat`: named fields and channels equal CREDIT's."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.transforms import Phase
from credit_jax.transforms.channels import Reconstruct
from tests.support.whole_fields import field_context
from tests.transforms.cases import CONCAT, LEVELS, SP, TP, T, postblocks, preblocks
from tests.transforms.toys import INPUT, TARGET


@pytest.mark.reference
@pytest.mark.parametrize("dims", [4, 5])
def test_reconstruct_as_credit(credit, rng, dims):
    import torch
    from credit.postblock.reconstruct import Reconstruct as Theirs

    y = rng.normal(size=(2, LEVELS + 2, 1, 3, 5)).astype(np.float32)
    y = y if dims == 5 else y[:, :, 0]
    slices = {T: slice(0, 4), SP: slice(4, 5), TP: slice(5, 6)}
    shapes = {T: (4, 1), SP: (1, 1), TP: (1, 1)}
    described = {k: {"slice": slices[k], "orig_shape": shapes[k]} for k in slices}
    theirs = Theirs()(
        {
            "y_pred": torch.tensor(y),
            "metadata": {"target": {"_channel_map": described}},
        }
    )["y_processed"]
    chain = postblocks(reconstruct={"type": "reconstruct"})
    ours = chain.run(Phase.AFTER_STEP, {"y_pred": y, "channel_map": slices})[
        "y_processed"
    ]
    assert list(ours["S"]) == list(theirs["S"])
    for key, field in ours["S"].items():
        assert np.array_equal(field, theirs["S"][key].numpy()), key


@pytest.mark.parametrize("detach", [True, False])
def test_reconstruct_stops_gradients_if_asked(detach):
    block = Reconstruct(detach=detach)

    def total(y):
        done = block({"y_pred": y, "channel_map": {SP: slice(0, 1)}})
        return done["y_processed"]["S"][SP].sum()

    gradient = jax.grad(total)(jnp.ones((1, 1, 1, 2, 2)))
    assert float(gradient.sum()) == (0.0 if detach else 4.0)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"channel_map": {}}, "has no 'y_pred'; it has: ['channel_map']"),
        (
            {"y_pred": np.zeros((1, 3, 1, 2, 2)), "channel_map": {SP: slice(0, 2)}},
            "'y_pred' has 3 channels, the channel map 2",
        ),
    ],
)
def test_reconstruct_errors(entry, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Reconstruct()(entry)


def test_the_input_by_its_own_channels():
    x = np.arange(24.0).reshape(1, 3, 1, 2, 4)
    tree = {"x": x, "input_channel_map": {T: slice(0, 2), SP: slice(2, 3)}}
    block = Reconstruct(in_key="x", out_key="input")
    fields = block(tree)["input"]["S"]
    assert np.array_equal(fields[T], x[:, :2])
    assert np.array_equal(fields[SP], x[:, 2:])
    with pytest.raises(ValueError, match="has no 'input_channel_map'"):
        block({"x": x, "channel_map": {}})


def test_fields_of_different_grids(batch):
    batch["input"]["S"][SP] = batch["input"]["S"][SP][..., :4]
    with pytest.raises(ValueError, match="must agree in all but the levels"):
        preblocks(concat=CONCAT).run(Phase.BEFORE_STEP, batch)


def test_a_channel_map_gives_the_order(batch):
    """JAX sorts dicts, so that a traced step loses the order of a data set."""
    pipeline, context = preblocks(concat=CONCAT), field_context(3)
    host = pipeline.run(Phase.BEFORE_STEP, batch)
    fields = {
        part: {"S": dict(sorted(batch[part]["S"].items()))}
        for part in ("input", "target")
    }
    maps = {"input_channel_map": INPUT, "channel_map": TARGET}
    found = pipeline.run(Phase.BEFORE_STEP, {**fields, **maps}, context)
    assert np.array_equal(found["x"], host["x"])
    assert np.array_equal(found["y"], host["y"])
    with pytest.raises(ValueError, match="a traced batch needs 'input_channel_map'"):
        pipeline.run(Phase.BEFORE_STEP, fields, context)
