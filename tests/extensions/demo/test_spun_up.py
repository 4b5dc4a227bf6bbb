"""The state after the spin-up that comes with the package."""

import io

import jax
import numpy as np
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.config.config import DemoConfig, ForcingConfig
from credit_jax.extensions.demo.dataset import (
    FILE,
    ensure_demo_data,
    is_spun_up,
    read_spun_up,
    write_spun_up,
)
from credit_jax.extensions.demo.dynamics import build_climate
from tools.spin_up import spin_up


@pytest.fixture(scope="module")
def climate():
    with jax.numpy_rank_promotion("allow"):
        yield build_climate("T21", 0)


def test_it_is_that_of_the_defaults_alone():
    """After a change of the climate (LAYOUT) the file is to be made anew."""
    assert is_spun_up(DemoConfig(out="x", days=3, held_out_days=1))
    for other in (
        {"truncation": "T42"},
        {"spinup_days": 199},
        {"seed": 1},
        {"forcing": ForcingConfig(season=0.2)},
    ):
        assert not is_spun_up(DemoConfig(out="x", **other))
    assert FILE.stat().st_size < 100_000


@pytest.mark.slow
def test_a_data_set_begins_with_it(climate, tmp_path):
    demo = DemoConfig(out=str(tmp_path / "t21"), days=2, held_out_days=1)
    text = io.StringIO()
    ensure_demo_data(demo, Console(file=text, width=200))
    assert "(after the spin-up that comes with the package)" in text.getvalue()
    state, rain = read_spun_up(climate)
    data = xr.open_dataset(tmp_path / "t21" / "demo_2000.zarr").isel(time=0)
    for name, field in climate.fields(state).items():
        assert np.array_equal(data[name], field), name
    assert np.array_equal(data["TP"], rain)
    # Weather, as after 200 days and not at rest.
    assert data["U"].max() > 25
    assert data["Q"].max() > 5e-3
    assert rain.max() > 1e-3


@pytest.mark.slow
def test_what_is_written_is_read(climate, tmp_path, monkeypatch):
    state, rain = climate.advance(climate.initial, 0.0)
    path = tmp_path / "spun_up.npz"
    write_spun_up(state, rain, path)
    monkeypatch.setattr("credit_jax.extensions.demo.dataset.FILE", path)
    again, same = read_spun_up(climate)
    assert np.array_equal(same, rain)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, again, jax.device_get(state))


@pytest.mark.slow
def test_its_climate_is_that_of_a_spin_up(climate):
    """Weather differs from machine to machine after a month, its statistics do not."""
    with jax.numpy_rank_promotion("allow"):
        new = jax.device_get(climate.fields(spin_up()[0]))
        kept = jax.device_get(climate.fields(read_spun_up(climate)[0]))
    latitude = np.deg2rad(climate.latitude)
    area = (np.cos(latitude) / np.cos(latitude).mean())[:, None]
    # The mass of the air is conserved.
    for name, bound in {"T": 1.0, "SP": 1.0}.items():
        means = ((new[name] - kept[name]) * area).mean((-2, -1))
        assert abs(means).max() < bound, name
    for name in ("U", "V", "Q"):
        ratio = new[name].std() / kept[name].std()
        assert 0.7 < ratio < 1 / 0.7, name
