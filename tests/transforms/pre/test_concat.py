"""`concat`: the order of channels, and its errors."""

import numpy as np
import pytest

from tests.support.whole_fields import field_context
from tests.transforms.cases import CONCAT, SP, preblocks
from tests.transforms.toys import INPUT, TARGET


def test_fields_of_different_grids(batch):
    batch["input"]["S"][SP] = batch["input"]["S"][SP][..., :4]
    with pytest.raises(ValueError, match="must agree in all but the levels"):
        preblocks(concat=CONCAT).before_step(batch)


def test_a_channel_map_gives_the_order(batch):
    """JAX sorts dicts, so that a traced step loses the order of a data set."""
    pipeline, context = preblocks(concat=CONCAT), field_context(3)
    host = pipeline.before_step(batch)
    fields = {
        part: {"S": dict(sorted(batch[part]["S"].items()))}
        for part in ("input", "target")
    }
    maps = {"input_channel_map": INPUT, "channel_map": TARGET}
    found = pipeline.before_step({**fields, **maps}, context)
    assert np.array_equal(found["x"], host["x"])
    assert np.array_equal(found["y"], host["y"])
    with pytest.raises(ValueError, match="a traced batch needs 'input_channel_map'"):
        pipeline.before_step(fields, context)
