"""The Earth2Studio adapter of docs/examples gives the forecaster's values."""

import gc
import importlib.util
import itertools
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
import torch
import xarray as xr
import yaml

from credit_jax.cli import forecast
from credit_jax.cli.commands import OK

EXAMPLE = Path(__file__).parents[2] / "docs/examples/earth2studio_model.py"
START = np.datetime64("2000-01-01", "ns")
CoordSystem = OrderedDict[str, np.ndarray]


@runtime_checkable
class PrognosticModel(Protocol):
    """`earth2studio.models.px.base.PrognosticModel` of version 0.19.0, with the two
    class methods of `earth2studio.models.auto.AutoModelMixin`; Apache-2.0, NVIDIA.

    https://nvidia.github.io/earth2studio/userguide/components/prognostic.html
    """

    def __call__(
        self, x: torch.Tensor, coords: CoordSystem
    ) -> tuple[torch.Tensor, CoordSystem]: ...

    def create_iterator(
        self, x: torch.Tensor, coords: CoordSystem
    ) -> Iterator[tuple[torch.Tensor, CoordSystem]]: ...

    def input_coords(self) -> CoordSystem: ...

    def output_coords(self, input_coords: CoordSystem) -> CoordSystem: ...

    def to(self, device: Any) -> "PrognosticModel": ...

    @classmethod
    def load_default_package(cls) -> Any: ...

    @classmethod
    def load_model(cls, package: Any) -> Any: ...


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
    return example.CreditJax.load_model(made, forcing)


@pytest.fixture(scope="package")
def state(world):
    """A function of times that returns (variable, lat, lon) as Earth2Studio does."""

    def fetch(*times):
        with xr.open_dataset(world / "w_2000.nc") as fields:
            own = fields.sel(time=list(times))
            parts = [own[v].sel(level=lev) for v in "UT" for lev in (1.0, 5.0)]
            arrays = [part.values for part in (*parts, own["SP"])]
        return torch.from_numpy(np.stack(arrays, axis=1).astype(np.float32))

    return fetch


def coords_of(model, *times, members=None):
    """Returns coordinates of ([ensemble,] time, lead_time, variable, lat, lon)."""
    own = model.input_coords()
    own["time"] = np.array(times)
    del own["batch"]
    if members is None:
        return own
    return OrderedDict([("ensemble", np.arange(members)), *own.items()])


@pytest.fixture(scope="package")
def expected(made, data, tmp_path_factory):
    """The forecast of three steps by the command."""
    out = tmp_path_factory.mktemp("forecast")
    options = ["--package", str(made), "--data", str(data), "--out", os.fspath(out)]
    options += ["--init-time", "2000-01-01", "--steps", "3", "--format", "zarr"]
    assert forecast.main([*options, "--cache", "none"]) == OK
    with xr.open_dataset(out / "forecast.zarr") as found:
        return found.load().isel(time=0)


def as_command_has_it(tensor, names, step, expected):
    """Returns the largest difference of a step from the command's forecast."""
    there = expected.isel(prediction_timedelta=step)
    worst = 0.0
    for place, name in enumerate(names):
        variable, level = name[:1].upper(), {"1": 0, "4.6": 1}.get(name[1:])
        if level is None:
            field = there[{"sp": "SP"}.get(name, name)].values
        else:
            field = there[variable].values[level]
        worst = max(worst, float(np.abs(tensor[place] - field).max()))
    return worst


def test_coordinates(model, world):
    own = model.input_coords()
    assert list(own) == ["batch", "time", "lead_time", "variable", "lat", "lon"]
    assert list(own["variable"]) == ["u1", "u4.6", "t1", "t4.6", "sp"]
    assert own["lead_time"] == np.array([np.timedelta64(0, "ns")])
    with xr.open_dataset(world / "static.nc") as static:
        np.testing.assert_array_equal(own["lat"], static.latitude)
        np.testing.assert_array_equal(own["lon"], static.longitude)
    out = model.output_coords(own)
    assert list(out) == list(own)
    assert list(out["variable"]) == ["u1", "u4.6", "t1", "t4.6", "sp", "TP"]
    assert out["lead_time"] == np.array([np.timedelta64(6, "h")])
    later = OrderedDict(own, lead_time=own["lead_time"] + np.timedelta64(12, "h"))
    assert model.output_coords(later)["lead_time"] == [np.timedelta64(18, "h")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("variable", np.array(["t1", "u1", "u4.6", "t4.6", "sp"])),
        ("lat", np.arange(6.0)),
        ("lon", np.arange(3.0)),
        ("lead_time", np.array([0, 6], "timedelta64[h]")),
    ],
)
def test_other_coordinates_are_refused(model, name, value):
    given = OrderedDict(model.input_coords(), **{name: value})
    with pytest.raises(ValueError, match=f"{name} is"):
        model.output_coords(given)
    swapped = OrderedDict(reversed(model.input_coords().items()))
    with pytest.raises(ValueError, match="the dims are"):
        model.output_coords(swapped)


def test_the_iterator_gives_the_forecast_of_the_command(model, state, expected):
    x = state(START)[:, None]
    names = list(model.output_coords(model.input_coords())["variable"])
    steps = model.create_iterator(x, coords_of(model, START))
    for number in range(4):
        y, coords = next(steps)
        assert y.shape == (1, 1, 6, 6, 10)
        assert y.dtype == torch.float32
        assert list(coords) == ["time", "lead_time", "variable", "lat", "lon"]
        assert coords["lead_time"] == [number * np.timedelta64(6, "h")]
        kept = names if number else names[:-1]
        worst = as_command_has_it(y[0, 0].numpy(), kept, number, expected)
        print(f"step {number}: {worst}")
        assert worst == 0
    first, _ = next(model.create_iterator(x, coords_of(model, START)))
    assert np.isnan(first[0, 0, -1].numpy()).all()


def test_members_and_start_dates_side_by_side(model, state):
    """Members of one date differ; each date has its own forcing."""
    times = START, START + np.timedelta64(18, "h")
    x = state(*times)[None, :, None].repeat(2, 1, 1, 1, 1, 1)
    x[1] += 1.0
    steps = model.create_iterator(x, coords_of(model, *times, members=2))
    for _ in range(3):
        y, coords = next(steps)
    assert y.shape == (2, 2, 1, 6, 6, 10)
    assert list(coords)[:2] == ["ensemble", "time"]
    for member in range(2):
        for place, time in enumerate(times):
            alone = model.create_iterator(
                x[member, place : place + 1], coords_of(model, time)
            )
            for _ in range(3):
                z, _ = next(alone)
            scale = np.abs(z.numpy()).max()
            worst = np.abs((y[member, place] - z[0]).numpy()).max() / scale
            print(f"member {member}, {time}: {worst:.1e}")
            assert worst <= 1e-6


def test_it_goes_on_from_a_later_lead_time(model, state, expected):
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


def test_two_channels_of_one_name_are_refused(example, model):
    with pytest.raises(ValueError, match="several channels are called t"):
        example.CreditJax(model.forecaster, lambda variable, *_: variable[0].lower())


@pytest.mark.slow
def test_packages_of_earth2studio_are_fetched(example, made, forcing, tmp_path):
    class Package:
        """A stand-in for `earth2studio.models.auto.Package` of a remote folder."""

        def resolve(self, name):
            cached = tmp_path / name.replace("/", "_")
            shutil.copyfile(made / name, cached)
            return str(cached)

    model = example.CreditJax.load_model(Package(), forcing)
    folder = model.forecaster.checkpoint.path
    assert folder != made
    assert folder.exists()
    del model
    gc.collect()
    assert not folder.exists(), "the files are removed with the model"


def test_the_default_package(example, made, monkeypatch):
    monkeypatch.delenv("CREDIT_JAX_PACKAGE", raising=False)
    with pytest.raises(ValueError, match="CREDIT_JAX_PACKAGE"):
        example.CreditJax.load_default_package()
    monkeypatch.setenv("CREDIT_JAX_PACKAGE", str(made))
    assert example.CreditJax.load_default_package() == str(made)


def test_forcing_without_a_place_is_an_error(example, made):
    with pytest.raises(ValueError, match="--data"):
        example.CreditJax.load_model(made)


def test_a_mesh(example, made, forcing, state, expected):
    split = example.CreditJax.load_model(
        made, forcing, parallelism="data=none,tensor=2,domain=2"
    )
    y, coords = split(state(START)[:, None], coords_of(split, START))
    names = list(coords["variable"])
    assert as_command_has_it(y[0, 0].numpy(), names, 1, expected) <= 1e-2
