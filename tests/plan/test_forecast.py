"""Notes of forecasts on fields that they write otherwise than one may think."""

import pytest

from credit_jax.config import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.transforms import build_pipeline, notes_on_initial


@pytest.mark.parametrize("restored", [False, True])
def test_fields_that_are_written_without_units(restored):
    """A log of the initial state alone, which nothing undoes, is noted."""
    args = {"variables": ["ERA5/prognostic/2d/SP"]}
    preblocks = {
        "ic_only": {"log": {"type": "log_transform", "args": args}},
        "per_step": {"concat": {"type": "concat"}},
    }
    after = {"reconstruct": {"type": "reconstruct"}}
    if restored:
        after["exp"] = {"type": "exp_transform", "args": args}
    pipeline = build_pipeline(
        parse(PreblocksConfig, preblocks), parse(PostblocksConfig, {"per_step": after})
    )
    notes = notes_on_initial(pipeline)
    assert len(notes) == (not restored)
    for note in notes:
        assert "preblocks.ic_only.log (type log_transform): changes the initial" in note
        assert "not in physical units" in note
