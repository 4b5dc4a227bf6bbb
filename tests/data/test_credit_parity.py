"""Start times, channels, x and y equal CREDIT's bit for bit, in CREDIT's order."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from credit_jax.data import ChannelGroup, ChannelSchema, build_loader, open_dataset
from tests.data.world import parsed, raw_config

FEW = [["1999-12-26", "1999-12-29"], ["2000-01-01", "2000-01-02"]]


@pytest.mark.reference
@pytest.mark.parametrize("history", [1, 2])
@pytest.mark.parametrize(
    "second",
    [
        None,
        {"start_datetime": "1999-12-30", "end_datetime": "2000-01-02"},
        {"timestep": "12h"},
        {"date_ranges": FEW},
    ],
    ids=["one source", "shorter source", "coarser source", "source with ranges"],
)
def test_start_times(credit, world, second, history):
    from tests.data.credit_batches import credit_loader

    raw = raw_config(world, data__history_len=history)
    if second:
        sources = raw["data"]["source"]
        sources["other"] = {**sources["ERA5"], **second}
    theirs = credit_loader(raw, 0, 1, True).dataset.datetimes
    starts = open_dataset(parsed(raw).data).starts
    assert np.array_equal(starts, theirs.to_numpy("datetime64[ns]"))
    raw["data"]["start_datetime"] += "T00:00Z"
    assert np.array_equal(open_dataset(parsed(raw).data).starts, starts), "UTC"


def two_sources(raw):
    """Returns the fields of one source split into two, the second with other levels."""
    first = raw["data"]["source"]["ERA5"]
    kinds = first["variables"]
    path = kinds["prognostic"]["path"]
    temperature = {"vars_3D": ["T"], "path": path}
    forcing = kinds.pop("dynamic_forcing")
    variables = {"prognostic": temperature, "dynamic_forcing": forcing}
    second = {**first, "levels": [2.0], "variables": variables}
    kinds["prognostic"] = {"vars_3D": ["U"], "vars_2D": ["SP"], "path": path}
    kinds["dynamic_forcing"] = None
    raw["data"]["source"] = {"upper": first, "lower": second}
    raw["model"] |= {"channels": 1, "surface_channels": 2}
    raw["preblocks"]["per_step"].pop("norm")
    return raw


CASES = {
    "plain": {},
    "history": {"data__history_len": 3, "model__frames": 3},
    "coarse": {"data__timestep": "12h", "seed": 42},
    "no normalizer": {"preblocks": {"per_step": {"concat": {"type": "concat"}}}},
    "ranges": {
        "data__start_datetime": None,
        "data__end_datetime": None,
        "data__date_ranges": [
            ["1999-12-26", "1999-12-28"],
            ["1999-12-31", "2000-01-03"],
        ],
    },
}


def case(world, name, kind="nc"):
    raw = raw_config(world, kind, **CASES.get(name, {}))
    raw["data"] = {k: v for k, v in raw["data"].items() if v is not None}
    return two_sources(raw) if name == "two sources" else raw


def compare(ours, theirs):
    assert len(ours) == len(theirs)
    for batch, expected in zip(ours, theirs, strict=True):
        assert np.array_equal(batch.input_times, expected["times"])
        for name in ("x", "y"):
            array = getattr(batch, name)
            assert array.dtype == np.float32
            assert array.tobytes() == expected[name].tobytes(), name
            assert array.shape == expected[name].shape


@pytest.mark.reference
@pytest.mark.slow(but=["two sources"])
@pytest.mark.parametrize("name", [*CASES, "two sources"])
def test_batches(credit, world, name):
    from tests.data.credit_batches import credit_batches

    raw = case(world, name)
    loader = build_loader(parsed(raw), split="train", keep_partial=True)
    compare(list(loader.epoch(0)), credit_batches(raw))


@pytest.mark.reference
@pytest.mark.slow(but=["history"])
@pytest.mark.parametrize("name", ["no normalizer", "two sources", "history"])
def test_steps_of_a_forecast(credit, world, name):
    from tests.data.credit_batches import credit_steps

    raw = case(world, name)
    raw["data"]["forecast_len"] = 3
    raw["preblocks"] = {"per_step": {"concat": {"type": "concat"}}}
    loader = build_loader(parsed(raw), split="train", keep_partial=True)
    batches, theirs = list(loader.epoch(0)), credit_steps(raw)
    assert len(batches) == len(theirs) > 2
    for batch, steps in zip(batches, theirs, strict=True):
        assert batch.y.shape[2] == batch.target_times.shape[1] == len(steps) == 3
        for k, step in enumerate(steps):
            compare_step(loader, batch, k, step)


def compare_step(loader, batch, k, step):
    """Asserts that forcing, target and times of one step equal CREDIT's."""
    for source, own in step["metadata"].items():
        if source in step["input"]:
            times = own["target_datetime"].numpy().astype("datetime64[ns]")
            assert (batch.target_times[:, k] == times).all()
    for key, place in loader.schema.target_slices().items():
        target = step["target"][key.split("/")[0]][key].numpy()[:, :, 0]
        assert np.array_equal(batch.y[:, place, k], target), key
    if not k:
        return
    for source, own in batch.fields["forcing"].items():
        for key, field in own.items():
            theirs = step["input"][source][key].numpy()[:, :, 0]
            assert np.array_equal(field[:, :, k - 1], theirs), key
    given = {key for own in step["input"].values() for key in own}
    assert given == {key for own in batch.fields["forcing"].values() for key in own}


@pytest.mark.reference
@pytest.mark.slow(but=["valid"])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_batches_of_three_ranks_from_zarr(credit, world, split):
    from tests.data.credit_batches import credit_batches

    raw = case(world, "plain", "zarr")
    raw["validation_data"] = {"start_datetime": "2000-01-01"}
    for rank in range(3):
        options = {"local_dp_ranks": (rank,), "dp_size": 3, "keep_partial": True}
        loader = build_loader(parsed(raw), split=split, **options)
        theirs = credit_batches(raw, rank, 3, split == "train")
        compare(list(loader.epoch(0)), theirs)


@pytest.mark.reference
@pytest.mark.slow
def test_the_trainers_example(credit, tmp_path, monkeypatch):
    """The config of the comparison with CREDIT's trainer, read from its YAML file."""
    from credit_jax.config import load_config
    from tests.data.credit_batches import credit_batches

    monkeypatch.chdir(tmp_path)
    credit.write_dataset(tmp_path)
    path = Path(credit.__file__).parent / "gen2.yml"
    loader = build_loader(load_config(path), split="train")
    compare(list(loader.epoch(0)), credit_batches(yaml.safe_load(path.read_text())))


@pytest.mark.reference
@pytest.mark.parametrize("name", [*CASES, "two sources"])
def test_schema_file_is_credits(credit, world, name, tmp_path):
    from credit.datasets.gen_2.channel_utils import ChannelSchema as Theirs

    raw = case(world, name)
    ours = open_dataset(parsed(raw).data).schema
    ours.save(tmp_path / "ours.yaml")
    Theirs.from_config(raw).save(str(tmp_path / "theirs.yaml"))
    texts = [(tmp_path / f"{name}.yaml").read_text() for name in ("ours", "theirs")]
    assert texts[0] == texts[1]
    assert ChannelSchema.load(tmp_path / "theirs.yaml") == ours


@pytest.mark.reference
def test_credit_repeats_the_order_of_its_first_epoch(credit, world):
    """Later epochs differ because CREDIT's trainer finds no `set_epoch` to call."""
    from tests.data.credit_batches import credit_loader

    loader = credit_loader(case(world, "plain"), 0, 1, True)
    assert not hasattr(loader.sampler, "set_epoch")
    assert hasattr(loader.batch_sampler, "set_epoch")


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


def test_levels_without_files(world):
    schema = open_dataset(parsed(raw_config(world)).data).schema
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
