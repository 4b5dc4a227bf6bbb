"""The channel layout as a file and as a check."""

import numpy as np
import pytest
import yaml

from credit_jax.data import ChannelGroup, ChannelSchema, open_dataset
from credit_jax.models.registry import parse_model
from credit_jax.plan.channels import channel_problems
from tests.data.world import MODEL, parsed, raw_config


@pytest.fixture
def schema(world):
    return open_dataset(parsed(raw_config(world)).data).schema


def test_order_and_slices(schema):
    assert list(schema.input_slices().items()) == [
        ("ERA5/prognostic/3d/U", slice(0, 2)),
        ("ERA5/prognostic/3d/T", slice(2, 4)),
        ("ERA5/prognostic/2d/SP", slice(4, 5)),
        ("ERA5/static/2d/LSM", slice(5, 6)),
        ("ERA5/dynamic_forcing/2d/tsi", slice(6, 7)),
    ]
    assert schema.target_slices()["ERA5/diagnostic/2d/TP"] == slice(5, 6)
    assert schema.describe(3) == "T 5"
    assert schema.describe(6, "input") == "tsi"


def test_the_next_input_has_each_prediction_in_its_place():
    """Of two sources, so that prognostic channels are first neither in x nor in y."""
    keys = "A/static/2d/Z", "B/prognostic/3d/T", "B/prognostic/2d/SP"
    groups = [ChannelGroup(key, 2 if "3d" in key else 1, 2) for key in keys]
    rain = ChannelGroup("A/diagnostic/2d/TP", 1, 1)
    schema = ChannelSchema(tuple(groups), (rain, groups[2], groups[1]))
    x = np.arange(8.0).reshape(1, 4, 2, 1, 1)
    y = 10 + np.arange(4.0).reshape(1, 4, 1, 1, 1)  # TP, SP, T, T
    new = schema.advance(x, y)
    assert new[0, :, :, 0, 0].tolist() == [[1, 1], [3, 12], [5, 13], [7, 11]]
    with pytest.raises(ValueError, match=r"x has B/prognostic/3d/T, which y lacks"):
        ChannelSchema(schema.input, (rain,)).advance(x, y)


def test_round_trip(schema, tmp_path):
    path = tmp_path / "new" / "channel_schema.yaml"
    schema.save(path)
    assert ChannelSchema.load(path) == schema
    assert [p.name for p in path.parent.iterdir()] == ["channel_schema.yaml"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"schema_version": 2}, "schema_version 2 cannot be read, expected 1"),
        ({"schema_version": 1, "input": []}, "not a channel schema"),
        ([], "schema_version None"),
    ],
)
def test_other_files_are_refused(tmp_path, content, text):
    path = tmp_path / "channel_schema.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=text):
        ChannelSchema.load(path)


def test_model_channels(schema):
    assert channel_problems(schema, parse_model(MODEL)) == []
    line, other = channel_problems(
        schema, parse_model({**MODEL, "surface_channels": 2})
    )
    assert line.startswith("model: has 8 input channels, but data.source has 7: ")
    assert other.startswith("model: has 7 output channels, but data.source has 6: ")
    assert "model channels 2 x levels 2 + surface_channels 2" in other
    assert "= 7; data U 2 + T 2 + SP 1 + TP 1 = 6" in other


def test_levels_without_files(schema):
    data = parsed(raw_config("nowhere")).data
    assert ChannelSchema.from_config(data, data.num_levels(5)) == schema
    data = parsed(raw_config("nowhere", data__source__ERA5__levels=None)).data
    counts = ChannelSchema.from_config(data, data.num_levels(5)).target_counts
    assert list(counts.values()) == [5, 5, 1, 1]


def test_names_tell_variables_apart():
    """A variable that two sources have is named by its whole key."""
    keys = ["A/prognostic/3d/T", "A/static/2d/mask", "B/prognostic/3d/T"]
    groups = tuple(ChannelGroup(k, 3 if "3d" in k else 1, 1) for k in keys)
    names = ChannelSchema(groups, groups[:2]).names
    assert names == {
        "input": (f"{keys[0]} (3 levels)", "mask", f"{keys[2]} (3 levels)"),
        "target": ("T (3 levels)", "mask"),
    }
