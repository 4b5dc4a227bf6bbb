"""Notes on variables of the data that transforms lack or do not know."""

import re

from credit_jax.config.transforms import PostblocksConfig, PreblocksConfig
from credit_jax.transforms import build_pipeline, notes_on_inverses, notes_on_schema
from tests.transforms.cases import CONCAT, LEVELS, SP, TP, T, group, preblocks


def test_what_selects_nothing_is_a_note():
    """CREDIT silently ignores it."""
    logs = {"type": "log_transform", "args": {"variables": [T, "S/prognostic/2d/Sp"]}}
    text = {"type": "sqrt_transform", "args": {"variables": SP}}
    chain = preblocks(a=logs, b=text, concat=CONCAT)
    groups = [group(T, 4), group(SP, 1)]
    notes = notes_on_schema(chain, {"input": groups, "target": [*groups, group(TP, 1)]})
    assert len(notes) == 2
    assert re.search(
        r"a\.args\.variables: 'S/prognostic/2d/Sp' is no variable", notes[0]
    )
    assert f"(nearest: {SP!r})" in notes[0]
    assert f"got the string {SP!r}, expected a list" in notes[1]


def test_predicted_variables_that_the_files_lack_are_a_note(files):
    """CREDIT silently passes them on; forcing is often not normalized."""
    norm = {"type": "era5_normalizer", "args": files}
    target = [group(T, LEVELS), group("S/diagnostic/2d/rain", 1)]
    layout = {"input": [group("S/dynamic_forcing/2d/tsi", 1)], "target": target}
    chain = preblocks(norm=norm, concat=CONCAT)
    (note,) = notes_on_schema(chain, layout)
    assert "preblocks.per_step.norm: " in note
    assert "do not both have rain, which" in note
    assert notes_on_schema(chain, layout | {"target": target[:1]}) == []


def test_predicted_variables_that_no_postblock_restores_are_a_note():
    """CREDIT silently writes their logarithms."""
    log = {"type": "log_transform", "args": {"variables": [SP, TP]}}
    root = {"type": "sqrt_transform", "args": {"variables": [T]}}
    forced = {"type": "sqrt_transform", "args": {"variables": [T]}}
    forced["args"]["data_types"] = ["input"]
    new = "S/diagnostic/2d/rain"
    rename = {"type": "rename", "args": {"mapping": {TP: new}}}
    before = {"log": log, "root": root, "in": forced, "name": rename, "concat": CONCAT}
    pre = PreblocksConfig.model_validate({"per_step": before})
    groups = [group(T, 4), group(SP, 1)]
    layout = {"input": groups, "target": [*groups, group(TP, 1)]}

    def notes(**blocks):
        post = PostblocksConfig.model_validate({"per_step": blocks})
        return notes_on_inverses(build_pipeline(pre, post), layout)

    made = {"type": "reconstruct"}
    square = {"type": "square_transform", "args": {"variables": [T]}}
    power = {"type": "exp_transform", "args": {"variables": [SP]}}
    target = {"type": "exp_transform", "args": {"variables": [new], "key": "y_truth"}}
    assert notes(square=square) == [], "no fields are made"
    first, second = notes(made=made)
    assert first.startswith(f"preblocks.per_step.log (type log_transform) changes {SP}")
    assert f"{SP}, {new}, and no postblock restores it" in first
    assert "add a block of type square_transform to postblocks.per_step" in second
    (line,) = notes(made=made, square=square, power=power, target=target)
    assert f"changes {new}, and no postblock" in line
    power["args"]["variables"].append(new)
    assert notes(made=made, square=square, power=power) == []
