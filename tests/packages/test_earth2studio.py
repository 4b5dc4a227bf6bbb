"""The Earth2Studio adapter of docs/examples gives the forecasts of the command."""

import importlib.util
import inspect
import itertools
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import yaml

from credit_jax.cli import forecast
from credit_jax.cli.commands import OK
from credit_jax.forecast.labeled import DatasetForecaster
from credit_jax.models import registry
from tests.data.world import MODEL, NUM_LAT, NUM_LON
from tests.forecast.test_forecaster import Newest
from tests.forecast.tiny_run import make_run, read
from tests.packages.test_labeled import regridded
from tests.training.tiny import TinyConfig

__all__ = ["regridded"]

EXAMPLE = Path(__file__).parents[2] / "docs/examples/earth2studio_model.py"
START = np.datetime64("2000-01-01", "ns")
STARTS = np.array([START, np.datetime64("2000-01-04T06")])
STEP = np.timedelta64(6, "h")
DIMS = ["time", "lead_time", "variable", "lat", "lon"]
INPUTS = ["u1", "u4.6", "t1", "t4.6", "sp"]
WXFORMER = {
    **MODEL,
    "dim": [8, 16, 32, 64],
    "depth": [1, 1, 0, 0],
    "dim_head": 8,
    "cross_embed_kernel_sizes": [[3], [2], [2], [2]],
    "cross_embed_strides": [1, 2, 2, 2],
    "global_window_size": [2, 1, 1, 1],
    "local_window_size": 2,
    "interp": True,
    "padding_conf": {
        "activate": True,
        "mode": "earth",
        "pad_lat": [8 - NUM_LAT, 0],
        "pad_lon": [16 - NUM_LON, 0],
    },
}
RUNS: dict[str, Any] = {
    "tiny": {},
    "two frames": {
        "model": {**MODEL, "type": "newest", "frames": 2},
        "data__history_len": 2,
    },
    "wxformer": {"model": WXFORMER},
}
# Arguments of `earth2studio.models.px.base.PrognosticModel` of version 0.19.0, with the
# hooks of `earth2studio.models.px.utils.PrognosticMixin`.
# https://nvidia.github.io/earth2studio/userguide/components/prognostic.html
HOOKS = "__call__", "create_iterator", "front_hook", "rear_hook"
INTERFACE = {name: ["self", "x", "coords"] for name in HOOKS}
INTERFACE |= {"input_coords": ["self"], "to": ["self", "device"]}
INTERFACE["output_coords"] = ["self", "input_coords"]


@pytest.fixture(scope="package")
def example():
    """The module of the example."""
    spec = importlib.util.spec_from_file_location("earth2studio_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="package")
def forcing(data, tmp_path_factory):
    """The YAML of the dynamic forcing; the state is given by arrays."""
    content = yaml.safe_load(data.read_text())
    del content["source"]["ERA5"]["variables"]["prognostic"]
    path = tmp_path_factory.mktemp("user") / "forcing.yml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="package")
def model(example, made, forcing):
    return example.CreditJax(made, data=forcing)


def channels(fields):
    """(..., variable, lat, lon) of a Dataset, in the order of the model's output."""
    deep = [fields[name].isel(level=i) for name in "UT" for i in range(2)]
    flat = [fields[name] for name in ("SP", "TP") if name in fields]
    return np.stack([part.values for part in (*deep, *flat)], -3, dtype=np.float32)


@pytest.fixture(scope="package")
def files(world):
    """The fields of the data set at the levels of the model."""
    with xr.open_mfdataset(sorted(world.glob("w_*.nc"))) as fields:
        return fields.sel(level=[1.0, 5.0]).drop_vars("TP").load()


@pytest.fixture(scope="package")
def state(files):
    """A function of times that returns (variable, lat, lon) as Earth2Studio does."""
    return lambda *times: torch.from_numpy(channels(files.sel(time=list(times))))


def coords_of(model, *times, members=None):
    """Returns coordinates of ([ensemble,] time, lead_time, variable, lat, lon)."""
    own = model.input_coords()
    own["time"] = np.array(times)
    del own["batch"]
    if members is None:
        return own
    return OrderedDict([("ensemble", np.arange(members)), *own.items()])


def test_the_interface(model):
    for name, arguments in INTERFACE.items():
        method = getattr(type(model), name)
        assert list(inspect.signature(method).parameters) == arguments
    assert model.to("cpu") is model


@pytest.mark.slow(but=["tiny"])
@pytest.mark.parametrize("name", RUNS)
def test_48_hours_are_those_of_the_command(
    example, world, files, tmp_path, monkeypatch, name
):
    """Two members of two start dates beside each other, bit for bit."""
    entry = registry.ModelEntry(TinyConfig, Newest)
    monkeypatch.setitem(registry.MODELS, "newest", entry)
    config = make_run(world, tmp_path / "own", **RUNS[name])
    shutil.copyfile(config, tmp_path / "own/run/model.yml")
    options = ["--out", os.fspath(tmp_path), "--format=zarr", "--cache=none"]
    options += [f"--init-time={start}"[:28] for start in STARTS]
    assert forecast.main(["--config", config, "--steps=8", *options]) == OK
    model = example.CreditJax(tmp_path / "own/run")
    frames = [model.input_coords()["lead_time"] + start for start in STARTS]
    initial = [files.sel(time=times) for times in frames]
    x = np.stack([channels(fields) for fields in initial])
    # The second member is another state, of which the command makes no forecast.
    x = torch.from_numpy(np.stack([x, x + 1]))
    wanted = [channels(read(tmp_path).isel(level=[0, 1]))[:, 1:]]
    alone = DatasetForecaster(model.states)
    second = [fields.map(lambda v: v.astype("f4") + 1) for fields in initial]
    steps = [[channels(y)[0] for y in alone(fields, 8)] for fields in second]
    wanted.append(np.stack(steps))
    coords = coords_of(model, *STARTS, members=2)
    first = model(x, coords)
    given = x.clone()
    every = list(itertools.islice(model.create_iterator(x, coords), 9))
    assert torch.equal(given, x)
    for number, (y, own) in enumerate(every):
        assert list(own) == ["ensemble", *DIMS]
        assert y.shape == tuple(map(len, own.values()))
        assert y.dtype == torch.float32
        assert own["lead_time"] == [number * STEP]
        assert list(own["variable"]) == [*INPUTS, "TP"]
        if number == 0:
            assert torch.equal(y[..., :-1, :, :], x[:, :, -1:])
            assert y[..., -1, :, :].isnan().all()
            continue
        for member in range(2):
            found = y[member, :, 0].numpy()
            np.testing.assert_array_equal(found, wanted[member][:, number - 1])
    assert torch.equal(first[0], every[1][0])
    assert all(map(np.array_equal, first[1].values(), every[1][1].values()))


def test_hooks(example, made, forcing, state):
    """A hook that looks changes no bit; one that changes a state changes what follows,
    and nothing that is done to a tensor that was returned does."""
    model = example.CreditJax(made, data=forcing)
    x, coords, seen = state(START)[:, None], coords_of(model, START), []
    plain = [y for y, _ in itertools.islice(model.create_iterator(x, coords), 5)]

    def look(x, coords):
        seen.append((int(coords["lead_time"][-1] / STEP), len(coords["variable"])))
        return x, coords

    model.front_hook = model.rear_hook = look
    for (y, _), wanted in zip(model.create_iterator(x, coords), plain, strict=False):
        assert torch.equal(y.nan_to_num(), wanted.nan_to_num())
        y.zero_()
    assert seen[:4] == [(0, 5), (1, 6), (1, 5), (2, 6)]

    def change(x, coords):
        if coords["lead_time"][-1] == 2 * STEP:
            x[..., 4, :, :] += 100  # SP, in place
        return x, coords

    del model.front_hook, model.rear_hook
    later = OrderedDict(coords, lead_time=coords["lead_time"] + 2 * STEP)
    begin, _ = change(plain[2][:, :, :-1].clone(), later)
    wanted = [y for y, _ in itertools.islice(model.create_iterator(begin, later), 3)]
    for hook in ("front_hook", "rear_hook"):
        setattr(model, hook, change)
        steps = model.create_iterator(x, coords)
        found = [y for y, _ in itertools.islice(steps, 5)]
        delattr(model, hook)
        assert torch.equal(found[1], plain[1])
        at_two = wanted[0] if hook == "rear_hook" else plain[2]
        assert torch.equal(found[2][:, :, :-1], at_two[:, :, :-1])
        for y, own in zip(found[3:], wanted[1:], strict=True):
            assert torch.equal(y, own)
        assert not torch.equal(found[4], plain[4])


def test_coordinates(model, world):
    own = model.input_coords()
    assert list(own) == ["batch", "time", "lead_time", "variable", "lat", "lon"]
    assert list(own["variable"]) == INPUTS
    assert own["lead_time"] == np.array([np.timedelta64(0, "ns")])
    with xr.open_dataset(world / "static.nc") as static:
        np.testing.assert_array_equal(own["lat"], static.latitude)
        np.testing.assert_array_equal(own["lon"], static.longitude)
    out = model.output_coords(own)
    assert list(out) == list(own)
    assert list(out["variable"]) == [*INPUTS, "TP"]
    assert out["lead_time"] == np.array([np.timedelta64(6, "h")])
    later = OrderedDict(own, lead_time=own["lead_time"] + np.timedelta64(12, "h"))
    assert model.output_coords(later)["lead_time"] == [np.timedelta64(18, "h")]
    others = {
        "variable": np.array(["t1", "u1", "u4.6", "t4.6", "sp"]),
        "lat": np.arange(6.0),
        "lon": np.arange(3.0),
        "lead_time": np.array([0, 6], "timedelta64[h]"),
    }
    for name, value in others.items():
        with pytest.raises(ValueError, match=f"{name} is"):
            model.output_coords(OrderedDict(own, **{name: value}))
    with pytest.raises(ValueError, match="the dims are"):
        model.output_coords(OrderedDict(reversed(own.items())))


def test_it_goes_on_from_a_later_lead_time(model, state):
    """A state at lead time 6 h gets the forcing of its valid time."""
    x = state(START)[:, None]
    steps = model.create_iterator(x, coords_of(model, START))
    _, (y, coords), (wanted, _) = itertools.islice(steps, 3)
    given = OrderedDict(coords, variable=coords["variable"][:-1])
    again, later = model(y[:, :, :-1], given)
    assert later["lead_time"] == [np.timedelta64(12, "h")]
    scale = np.abs(wanted.numpy()).max()
    assert np.abs((again - wanted).numpy()).max() / scale <= 1e-6


def test_forcing_that_ends(model, state):
    """The last step with complete forcing succeeds; the next names what is missing."""
    last = np.datetime64("2000-01-09T12", "ns")
    steps = model.create_iterator(state(last)[:, None], coords_of(model, last))
    for _ in range(4):
        y, _ = next(steps)
    assert np.isfinite(y.numpy()).all()
    with pytest.raises(ValueError, match="no time 2000-01-10T06"):
        next(steps)


def test_names_and_places_of_channels(example, made, forcing):
    with pytest.raises(ValueError, match=r"several channels are called \['t', 'u'\]"):
        example.CreditJax(made, data=forcing, level="")
    model = example.CreditJax(made, data=forcing, level="{number}k")
    assert model.inputs == ["u0k", "u1k", "t0k", "t1k", "sp"]
    with pytest.raises(ValueError, match="--data"):
        example.CreditJax(made)


@pytest.mark.slow
def test_two_grids_are_refused(example, regridded):
    shutil.copyfile(regridded, regridded.parent / "run/model.yml")
    with pytest.raises(ValueError, match="expected one grid"):
        example.CreditJax(regridded.parent / "run")


def test_a_mesh(example, made, forcing, model, state):
    mesh = "data=none,tensor=2,domain=2"
    split = example.CreditJax(made, data=forcing, parallelism=mesh)
    x, coords = state(START)[:, None], coords_of(split, START)
    (y, _), (wanted, _) = split(x, coords), model(x, coords)
    assert float((y - wanted).abs().max()) <= 1e-2
