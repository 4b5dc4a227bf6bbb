"""Messages of `validate_sharding_constraints`: uneven splits and moved rows."""

from types import SimpleNamespace

import pytest

from credit_jax.models.common.config import ModelConfig
from credit_jax.models.registry import build
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import (
    model_notes,
    validate_sharding_constraints,
)
from tests.parallel.mesh.cases import MODEL


class Grid(ModelConfig):
    type: str = "grid"
    image_height: int


class Transformer(ModelConfig):
    type: str = "transformer"
    num_attention_heads: int = 12
    num_key_value_heads: int = 4
    num_experts: int = 6


def config(**changes):
    return build({**MODEL, **changes}).config


def test_nothing_to_say_where_everything_divides():
    assert validate_sharding_constraints(config(), 32) == []
    assert validate_sharding_constraints(None, 32, [4, 4, 2, 2]) == []
    assert validate_sharding_constraints(None, 12, [(4, 7), (3, 5)]) == []


@pytest.mark.parametrize(
    ("local_h", "sizes", "levels"),
    [(10, [4], {0}), (12, [4, 4], {1}), (9, [3, 2, 2, 1], set()), (7, [2, 2], {0, 1})],
)
def test_windows_that_do_not_divide_the_rows(local_h, sizes, levels):
    notes = validate_sharding_constraints(None, local_h, sizes)
    assert {int(note.split("level ")[1][0]) for note in notes} == levels
    assert all("results are exact nonetheless" in note for note in notes)


def test_the_model_is_asked_for_its_windows():
    # 32 rows, strides of 2: stages of 16, 8, 4 and 2 rows, short windows of 2.
    notes = validate_sharding_constraints(config(), 8)
    assert [note.split(":")[0] for note in notes if note.startswith("level")] == [
        "level 2",
        "level 3",
    ]
    assert set(model_notes(config(), 4)) <= set(notes)
    assert any("windows of attention over domain 4 are uneven" in n for n in notes)


def test_stages_without_attention_have_no_windows():
    quiet = config(depth=[1, 1, 0, 0])
    assert not [n for n in validate_sharding_constraints(quiet, 8) if "level" in n]


def test_a_model_without_stages_has_notes_on_its_rows_only():
    model = ModelConfig(type="no stages")
    assert model.geometry() is None
    assert model_notes(model, 8) == []
    assert validate_sharding_constraints(model, 8) == []
    (note,) = model_notes(Grid(image_height=6), 8)
    assert note.startswith("6 rows over domain 8 are uneven (1, 1, 1, 1, 1, 1, 0, 0)")


def test_uneven_rows_and_rows_that_no_domain_gives():
    height = Grid(image_height=10)
    (note,) = validate_sharding_constraints(height, 5)[:1] or [""]
    assert note == "", "5 + 5 rows are even"
    notes = validate_sharding_constraints(height, 7)
    assert notes == [
        "10 rows over domain 2 are 5 a shard, not 7: equal blocks are as small as "
        "they can be"
    ]
    (note,) = validate_sharding_constraints(height, 4)
    assert "10 rows over domain 3 are uneven (4, 4, 2)" in note


def test_an_architecture_is_as_good_as_its_config():
    model_def = build(MODEL)
    assert validate_sharding_constraints(model_def, 8) == validate_sharding_constraints(
        model_def.config, 8
    )


@pytest.mark.parametrize("local_h", [0, -3])
def test_no_rows(local_h):
    with pytest.raises(ValueError, match=f"local_h is {local_h}"):
        validate_sharding_constraints(None, local_h)


def test_a_model_that_fits():
    model_def = build(MODEL)
    dims = ParallelDims(tp=2, dp_shard=-1, world_size=8)
    assert dims.validate_against_model(model_def) == []
    assert dims.validate_against_model(model_def.config) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tp": 4}, "stage 0 has 2 heads, which .* would fit: 1, 2"),
        ({"ep": 2}, "ep is 2, but wxformer has no experts to share; use ep: 1"),
    ],
)
def test_a_model_that_does_not_fit(given, message):
    dims = ParallelDims(**given, dp_shard=-1, world_size=8)
    with pytest.raises(ValueError, match=message):
        dims.validate_against_model(build(MODEL))


def test_models_that_name_their_sizes():
    model = SimpleNamespace(config=Transformer())
    ParallelDims(tp=4, ep=2, world_size=8).validate_against_model(model)
    with pytest.raises(ValueError, match="3 problems") as caught:
        ParallelDims(tp=8, ep=4, world_size=32).validate_against_model(model)
    for line in (
        "num_attention_heads is 12, which tp 8 does not divide; would fit: 1, 2, 3, 4",
        "num_key_value_heads is 4, which tp 8 does not divide; would fit: 1, 2, 4",
        "num_experts is 6, which ep 4 does not divide; would fit: 1, 2, 3, 6",
    ):
        assert line in str(caught.value), str(caught.value)


def test_every_domain_runs_and_uneven_windows_are_a_note():
    model_def = build(MODEL)
    two, three, eight = (
        ParallelDims(domain=n, world_size=n).validate_against_model(model_def)
        for n in (2, 3, 8)
    )
    assert len(two) == 1, two
    assert "stage 3 short 2.00; results are exact nonetheless" in two[0], two
    assert "32 rows over domain 3 are uneven (11, 11, 10); results" in three[0], three
    assert "windows of attention over domain 8 are uneven" in eight[0], eight
    assert "stage 3 short 8.00" in eight[0], eight
    assert "stage 0 short" not in eight[0], eight
