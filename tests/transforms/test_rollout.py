"""The input of the next step goes through preblocks that rename and scale."""

import jax
import numpy as np
import pytest

from credit_jax.config.base import parse
from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.data.channels import ChannelGroup, ChannelSchema
from credit_jax.transforms import build_pipeline
from credit_jax.transforms.rollout import Advance
from tests.support import assert_close
from tests.support.whole_fields import field_context
from tests.transforms.cases import CONCAT, LSM, SP, TSI, T

NEW = {T: "A/prognostic/3d/T", TSI: "A/dynamic_forcing/2d/sun"}
LEVELS = {T: 3, SP: 1, LSM: 1, TSI: 1}
LAT, LON = 5, 4


ROOTS = "sqrt_transform"
# Blocks of every step; names in a circle; blocks before and after a rename.
CHAINS = {
    "after": (("rename", NEW), (ROOTS, [*NEW.values()])),
    "before": ((ROOTS, [T, TSI]), ("rename", NEW), (ROOTS, [NEW[T]])),
    "twice": (
        ("rename", {T: "B/prognostic/3d/T"}),
        (ROOTS, ["B/prognostic/3d/T"]),
        ("rename", {"B/prognostic/3d/T": NEW[T], TSI: NEW[TSI]}),
    ),
    "exchanged": (("rename", {**NEW, NEW[T]: T}), (ROOTS, [NEW[T]])),
}


def chain(name):
    """The blocks of a case."""
    blocks = {}
    for number, (kind, own) in enumerate(CHAINS[name]):
        key = "mapping" if kind == "rename" else "variables"
        blocks[f"b{number}"] = {"type": kind, "args": {key: own}}
    return {**blocks, "concat": CONCAT}


@pytest.mark.parametrize("name", CHAINS)
def test_renamed_variables_are_fed_back_and_forced(rng, name):
    pipeline = build_pipeline(
        parse(PreblocksConfig, {"per_step": chain(name)}), PostblocksConfig()
    )
    groups = {key: ChannelGroup(key, count, 1) for key, count in LEVELS.items()}
    data = ChannelSchema(
        (groups[T], groups[SP], groups[LSM], groups[TSI]), (groups[T], groups[SP])
    )
    schema = data.after(pipeline)
    fields = {
        key: rng.uniform(1, 4, (2, count, 1, LAT, LON)).astype(np.float32)
        for key, count in LEVELS.items()
    }
    order = {group.var_key: 0 for group in data.as_read()["input"]}
    expected = pipeline.before_step({"input": {"S": {k: fields[k] for k in order}}})
    advance = Advance(pipeline, schema.input_slices(), schema.target_slices())
    predicted = {"S": {SP: fields[SP]}, "A": {NEW[T]: fields[T]}}
    tree = {"x": np.zeros_like(expected["x"]), "y_processed": predicted}
    forcing, static = {"S": {TSI: fields[TSI]}}, {"S": {LSM: fields[LSM]}}
    run = jax.jit(lambda *given: advance(*given, field_context(LAT)))
    found = run(tree, forcing, static)
    assert_close(found["x"], expected["x"], 1e-6, "x of the next step")
