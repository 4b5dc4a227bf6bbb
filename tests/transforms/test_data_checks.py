"""Notes on variables of the data that transforms lack or do not know."""

import re

from credit_jax.transforms import notes_on_schema
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
