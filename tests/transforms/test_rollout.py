"""Preblocks that rename and scale are applied to the input of the next step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.data import ChannelGroup, ChannelSchema
from credit_jax.transforms import (
    Advance,
    Phase,
    Rollout,
    for_forecast,
    notes_on_inverses,
)
from tests.support import assert_close
from tests.support.whole_fields import field_context
from tests.transforms.cases import CONCAT, LSM, SP, TSI, T, pipeline_of
from tests.transforms.files import LAT, LON, MILD

NEW = {T: "A/prognostic/3d/T", TSI: "A/dynamic_forcing/2d/sun"}
LEVELS = {T: 3, SP: 1, LSM: 1, TSI: 1}


ROOTS = "sqrt_transform"
# `per_step` blocks; cyclic renaming; blocks before and after a rename.
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
    """Returns the blocks of a case."""
    blocks = {}
    for number, (kind, own) in enumerate(CHAINS[name]):
        key = "mapping" if kind == "rename" else "variables"
        blocks[f"b{number}"] = {"type": kind, "args": {key: own}}
    return {**blocks, "concat": CONCAT}


@pytest.mark.parametrize("name", CHAINS)
def test_renamed_variables_are_fed_back_and_forced(rng, name):
    check_next_input(pipeline_of({"per_step": chain(name)}), drawn(rng), NEW)


def drawn(rng, levels=LEVELS, rows=LAT, batch=2):
    """Returns fields by key; `rows` may be a number for each key."""
    rows = rows if isinstance(rows, dict) else dict.fromkeys(levels, rows)
    return {
        key: rng.uniform(1, 4, (batch, count, 1, rows[key], LON)).astype(np.float32)
        for key, count in levels.items()
    }


def check_next_input(pipeline, fields, new):
    """Asserts that fed-back and forcing fields are processed as in a first step.

    What is fed back has the names, the grid and the levels of the model.
    """
    groups = {key: ChannelGroup(key, count, 1) for key, count in LEVELS.items()}
    data = ChannelSchema(
        (groups[T], groups[SP], groups[LSM], groups[TSI]), (groups[T], groups[SP])
    )
    schema = data.after(pipeline)
    order = {group.var_key: 0 for group in data.as_read()["input"]}
    expected = pipeline.run(
        Phase.BEFORE_STEP, {"input": {"S": {k: fields[k] for k in order}}}
    )
    advance = Advance(pipeline, schema.input_slices(), schema.target_slices())
    given = pipeline.aligned({"input": {"S": fields}}, Phase.BEFORE_STEP)["input"]
    given = {key: x for own in given.values() for key, x in own.items()}
    predicted = {"S": {SP: given[SP]}}
    predicted.setdefault(new[T].split("/")[0], {})[new[T]] = given[new[T]]
    tree = {"x": np.zeros_like(expected["x"]), "y_processed": predicted}
    forcing = {new[TSI].split("/")[0]: {new[TSI]: given[new[TSI]]}}
    static = {"S": {LSM: given[LSM]}}
    run = jax.jit(lambda *given: advance(*given, field_context(LAT)))
    found = run(tree, forcing, static)
    assert_close(found["x"], expected["x"], 1e-6, "x of the next step")


def regridding(*before, variables=(TSI, LSM)):
    """Returns a chain that regrids fields, by default those that are not predicted."""
    args = {"weight_file": "sums.nc", "variables": [*variables]}
    blocks = {f"b{n}": own for n, own in enumerate(before)}
    blocks["regrid"] = {"type": "regrid", "args": args}
    blocks["roots"] = {"type": ROOTS, "args": {"variables": [TSI, SP]}}
    return pipeline_of({"per_step": {**blocks, "concat": CONCAT}})


def test_forcing_on_another_grid(rng):
    rows = {T: LAT, SP: LAT, TSI: 2 * LAT, LSM: 2 * LAT}
    pipeline = regridding({"type": ROOTS, "args": {"variables": [SP]}})
    check_next_input(pipeline, drawn(rng, rows=rows), {T: T, TSI: TSI})


def interpolation(*variables, dest=(100, 120, 137)):
    """Returns a block that brings variables of three levels to others."""
    args = {
        "variables": [*variables],
        "surface_pressure_var": SP,
        "source_level_info_file": "ERA5_Lev_Info.nc",
        "source_levels": [90, 110, 130],
        "dest_levels": [*dest],
    }
    return {"type": "hybrid_level_interp", "args": args}


# As many levels as before must not be interpolated again, either.
@pytest.mark.parametrize("dest", [(100, 120, 137), (80, 100, 120, 137)])
def test_predictions_on_other_levels_than_the_data(rng, dest):
    """The chain of a forecast from another center's analysis."""
    fields = drawn(rng, rows=2 * LAT)
    fields[SP] *= 2.5e4
    levels = interpolation(NEW[T], dest=dest)
    names = {"type": "rename", "args": {"mapping": {T: NEW[T]}}}
    pipeline = regridding(names, levels, variables=[NEW[T], SP, TSI, LSM])
    check_next_input(pipeline, fields, {**NEW, TSI: TSI})
    state = pipeline.aligned({"input": {"S": fields}}, Phase.BEFORE_STEP)["input"]
    alone = {"input": {"S": {T: fields[T], SP: fields[SP]}}}
    x = pipeline.run(Phase.BEFORE_STEP, alone)["x"]
    assert state["A"][NEW[T]].shape == (2, len(dest), 1, LAT, LON)
    assert np.array_equal(state["A"][NEW[T]], x[:, 1:]), "as in x"


def test_forcing_is_interpolated_in_every_step(rng):
    """With the pressure that is predicted there."""
    forcing = "S/dynamic_forcing/3d/F"
    before = {"levels": interpolation(forcing), "concat": CONCAT}
    pipeline = pipeline_of({"per_step": before})
    fields = drawn(rng, {forcing: 3, SP: 1}, batch=1)
    fields[SP] *= 2.5e4
    assert pipeline.aligned({"input": {"S": fields}}, Phase.BEFORE_STEP) == {
        "input": {"S": fields}
    }
    channels = {SP: slice(0, 1), forcing: slice(1, 4)}
    advance = Advance(pipeline, channels, {SP: slice(0, 1)})
    tree = {"x": np.zeros((1, 4, 1, LAT, LON), np.float32)}
    tree["y_processed"] = {"S": {SP: fields[SP]}}
    run = jax.jit(lambda *given: advance(*given, field_context(LAT)))
    found = run(tree, {"S": {forcing: fields[forcing]}}, {})
    expected = pipeline.run(Phase.BEFORE_STEP, {"input": {"S": {**fields}}})
    assert_close(found["x"], expected["x"], 1e-6, "x of the next step")


def test_later_targets_are_on_the_levels_of_the_model(rng):
    """Later steps of a sample do not pass through the initial phase."""
    before = {
        "ic_only": {"levels": interpolation(T, dest=(100, 120))},
        "per_step": {"concat": CONCAT},
    }
    pipeline = pipeline_of(before)
    fields = drawn(rng, {T: 3, SP: 1}, batch=1)
    fields[SP] *= 2.5e4
    tree = {"input": {"S": {TSI: fields[SP]}}, "target": {"S": fields}}
    later = pipeline.aligned(tree, Phase.INITIAL)
    assert later["target"]["S"][T].shape[1] == 2
    expected = pipeline.run(Phase.INITIAL, {"target": {"S": fields}})["target"]["S"][T]
    assert np.array_equal(later["target"]["S"][T], expected)


LOG = {"type": "log_transform", "args": {"variables": [SP], "eps": 1e-2}}
EXP = {**LOG, "type": "exp_transform"}
ROOT = {"type": ROOTS, "args": {"variables": [T, SP]}}
SQUARE = {"type": "square_transform", "args": {"variables": [T]}}
NORM = {"type": "era5_normalizer", "args": MILD}
RENAME = {"type": "rename", "args": {"mapping": {T: NEW[T]}}}
# Preblocks, those postblocks that undo some, and the blocks that nothing undoes.
FED_BACK = {
    "normalizer": ({"norm": NORM}, {}, ["norm"]),
    "logarithm, then normalizer": ({"log": LOG, "norm": NORM}, {}, ["norm", "log"]),
    "a root of two variables, of which one is undone": (
        {"root": ROOT},
        {"square": SQUARE},
        ["root"],
    ),
    "the middle one of three": (
        {"root": ROOT, "log": LOG, "norm": NORM},
        {"exp": EXP},
        ["norm", "root"],
    ),
    "renamed between": ({"root": ROOT, "name": RENAME, "norm": NORM}, {}, None),
    "everything is undone": ({"log": LOG, "norm": NORM}, {"un": NORM, "exp": EXP}, []),
}


def in_training(before, after):
    return pipeline_of(
        {"per_step": {**before, "concat": CONCAT}},
        {"per_step": {"split": {"type": "reconstruct"}, **after}},
    )


@pytest.mark.parametrize("name", FED_BACK)
def test_training_feeds_back_what_forecasts_feed_back(rng, name):
    """A model that predicts the truth takes the x of the truth in its next step."""
    before, after, missing = FED_BACK[name]
    pipeline = in_training(before, after)
    truth = {"S": drawn(rng, {T: 4, SP: 1})}
    groups = (ChannelGroup(T, 4, 1), ChannelGroup(SP, 1, 1))
    data = ChannelSchema(groups, groups)
    schema = data.after(pipeline)
    channels = schema.input_slices(), schema.target_slices()
    expected = pipeline.run(Phase.BEFORE_STEP, {"input": truth, "target": truth})
    batch = {"x": jnp.zeros_like(expected["x"]), "static": {}}

    def fed_back(rollout, y, context):
        carry = rollout.first_carry(batch, context)
        tree = rollout.outputs(batch, carry, y, y, context)
        return tree, rollout.next_carry(batch, carry, tree, {}, context)["x"]

    trees, inputs = [], []
    for each in (pipeline, for_forecast(pipeline)):
        rollout = Rollout.of(each, *channels, num_steps=2)
        tree, x = fed_back(rollout, jnp.asarray(expected["y"]), field_context(LAT))
        assert_close(x, expected["x"], 1e-5, "x of the next step")
        trees.append(tree["y_processed"])
        inputs.append(x)
    assert np.array_equal(*inputs)
    found = {k: x for fields in trees[1].values() for k, x in fields.items()}
    for key, field in truth["S"].items():
        new = NEW[T] if key == T and "name" in before else key
        assert_close(found[new], field, 1e-5, f"forecast of {key}")
    notes = notes_on_inverses(pipeline, data.as_read())
    if missing is not None:
        paths = [f"preblocks.per_step.{path} (type" for path in missing]
        assert len(notes) == bool(missing)
        assert all(path in notes[0] for path in paths)
