"""x and y equal CREDIT's bit for bit, in CREDIT's order."""

import numpy as np
import pytest
import yaml

from credit_jax.data import ChannelSchema, build_loader, open_dataset
from tests.data.world import parsed, raw_config

pytestmark = pytest.mark.reference


def two_sources(raw):
    """Returns the fields of one source split into two, the second with other levels."""
    first = raw["data"]["source"]["ERA5"]
    kinds = first["variables"]
    path = kinds["prognostic"]["path"]
    second = {
        **first,
        "levels": [2.0],
        "variables": {
            "prognostic": {"vars_3D": ["T"], "path": path},
            "dynamic_forcing": kinds["dynamic_forcing"],
        },
    }
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


@pytest.mark.slow(but=["two sources"])
@pytest.mark.parametrize("name", [*CASES, "two sources"])
def test_batches(credit, world, name):
    from tests.data.credit_batches import credit_batches

    raw = case(world, name)
    loader = build_loader(
        parsed(raw), split="train", local_dp_ranks=(0,), dp_size=1, keep_partial=True
    )
    compare(list(loader.epoch(0)), credit_batches(raw))


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


@pytest.mark.slow(but=["valid"])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_batches_of_three_ranks_from_zarr(credit, world, split):
    from tests.data.credit_batches import credit_batches

    raw = case(world, "plain", "zarr")
    raw["validation_data"] = {"start_datetime": "2000-01-01"}
    for rank in range(3):
        loader = build_loader(
            parsed(raw),
            split=split,
            local_dp_ranks=(rank,),
            dp_size=3,
            keep_partial=True,
        )
        theirs = credit_batches(raw, rank, 3, split == "train")
        compare(list(loader.epoch(0)), theirs)


@pytest.mark.slow
def test_the_trainers_example(credit, tmp_path, monkeypatch):
    """The config of the comparison with CREDIT's trainer, read from its YAML file."""
    from pathlib import Path

    from credit_jax.config import load_config
    from tests.data.credit_batches import credit_batches

    monkeypatch.chdir(tmp_path)
    credit.write_dataset(tmp_path)
    path = Path(credit.__file__).parent / "gen2.yml"
    loader = build_loader(
        load_config(path), split="train", local_dp_ranks=(0,), dp_size=1
    )
    theirs = credit_batches(yaml.safe_load(path.read_text()))
    compare(list(loader.epoch(0)), theirs)


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


def test_credit_repeats_the_order_of_its_first_epoch(credit, world):
    """Later epochs differ because CREDIT's trainer finds no `set_epoch` to call."""
    from tests.data.credit_batches import credit_loader

    loader = credit_loader(case(world, "plain"), 0, 1, True)
    assert not hasattr(loader.sampler, "set_epoch")
    assert hasattr(loader.batch_sampler, "set_epoch")
