"""A converted config gives the samples of CREDIT's generation 1 itself."""

import copy
import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml

from credit_jax.config import apply_overrides
from credit_jax.data import build_loader
from credit_torch_bridge import convert_config
from credit_torch_bridge.compare.jax_side import import_credit
from tests.data.world import DEEP, FLAT, GRID, NUM_LAT, NUM_LON, parsed, save
from tests.support import assert_close

pytestmark = pytest.mark.reference

STEP = 720  # hours; no year has a whole number of steps
YEARS = (1999, 2000)
FILES = "all_*.nc"
CASES = {
    "static first": [],
    "static last": ["data.static_first=false"],
    "other files at the surface": ["data.save_loc_surface=low_????.nc"],
    "two times": ["data.history_len=2", "data.valid_history_len=2", "model.frames=2"],
    "static last, nothing diagnosed": [
        *("data.static_first=false", "data.diagnostic_variables=[]"),
        *("data.save_loc_diagnostic=null", "model.output_only_channels=0"),
    ],
}


# Mean and standard deviation of each variable.
DRAWN = {"T": (280, 10), "U": (0, 5), "SP": (1e5, 1e3), "t2m": (280, 9)}
DRAWN |= {"tsi": (1, 1), "rain": (1, 1)}


def fields(times, rng):
    sizes = {"time": len(times), "level": 3, "latitude": NUM_LAT, "longitude": NUM_LON}
    variables = {}
    for name, normal in DRAWN.items():
        dims = DEEP if name in "TU" else FLAT
        values = rng.normal(*normal, [sizes[dim] for dim in dims])
        variables[name] = dims, values.astype(np.float32)
    coords = {"time": times, "level": [10, 60, 137], **GRID}
    return xr.Dataset(variables, coords=coords)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two yearly files whose time steps restart on January 1, and the other files."""
    folder = tmp_path_factory.mktemp("gen1")
    rng = np.random.default_rng(0)
    years = []
    for year in YEARS:
        times = pd.date_range(str(year), f"{year}-12-31 23:00", freq=f"{STEP}h")
        part = fields(times, rng)
        save(part, folder / f"all_{year}.nc")
        save(part[["SP", "t2m"]], folder / f"low_{year}.nc")
        years.append(part)
    whole = xr.concat(years, "time").drop_vars(["level", *GRID])
    save(whole.mean(FLAT), folder / "mean.nc")
    save(whole.std(FLAT), folder / "std.nc")
    still = years[0][["tsi", "rain"]].isel(time=0, drop=True)
    save(still.rename(tsi="LSM", rain="z"), folder / "static.nc")
    return folder


CONFIG = f"""
save_loc: run
seed: 3
data:
  variables: [U, T]
  save_loc: {FILES}
  surface_variables: [SP, t2m]
  save_loc_surface: {FILES}
  dynamic_forcing_variables: [tsi]
  save_loc_dynamic_forcing: {FILES}
  diagnostic_variables: [rain]
  save_loc_diagnostic: {FILES}
  static_variables: [LSM, z]
  save_loc_static: static.nc
  mean_path: mean.nc
  std_path: std.nc
  train_years: [1999, 2001]
  valid_years: [1999, 2001]
  scaler_type: std_new
  history_len: 1
  forecast_len: 0
  lead_time_periods: {STEP}
  static_first: true
  dataset_type: ERA5_MultiStep_Batcher
model:
  type: wxformer
  frames: 1
  image_height: {NUM_LAT}
  image_width: {NUM_LON}
  levels: 3
  channels: 2
  surface_channels: 2
  input_only_channels: 3
  output_only_channels: 1
  dim: [8, 16, 32, 64]
  dim_head: 8
  global_window_size: [1, 1, 1, 1]
  local_window_size: 1
  cross_embed_strides: [2, 2, 2, 2]
  cross_embed_kernel_sizes: [[2, 4], [2, 4], [2, 4], [2, 4]]
  pad_lat: 5
  pad_lon: 3
loss:
  {{training_loss: mse, use_latitude_weights: false, use_variable_weights: false,
    latitude_weights: null}}
trainer:
  {{type: era5, mode: none, load_weights: false, learning_rate: 1.0e-3,
    train_batch_size: 1, valid_batch_size: 1, batches_per_epoch: 0,
    valid_batches_per_epoch: 0, start_epoch: 0, epochs: 1, use_scheduler: false,
    thread_workers: 0}}
"""


def gen1_samples(config):
    """Last input time -> x and y of CREDIT's generation 1 data set."""
    parser = import_credit("parser")
    loading = import_credit("datasets.gen_1.load_dataset_and_dataloader")
    joined = import_credit("data").concat_and_reshape
    config = copy.deepcopy(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = parser.credit_main_parser(config, parse_predict=False)
        dataset = loading.load_dataset(config, is_train=False)
        dataset.set_epoch(0)
        samples = {}
        for index in range(len(dataset)):
            batch = dataset[index]
            still = batch["x_forcing_static"].permute(0, 2, 1, 3, 4)
            y = [joined(batch["y"], batch["y_surf"])]
            if "y_diag" in batch:
                y.append(batch["y_diag"].permute(0, 2, 1, 3, 4))
            x = np.concatenate([joined(batch["x"], batch["x_surf"]), still], 1)
            target = np.datetime64(int(batch["datetime"][1, 0]), "s")
            time = target - np.timedelta64(STEP, "h")
            samples[time.astype("datetime64[ns]")] = x, np.concatenate(y, 1)
    return samples


def compare(samples, times, x, y, what):
    """Asserts equal samples; only a last one, which gen1 cannot index, may be extra."""
    assert len(set(times)) == len(times)
    more = sorted(set(times) - set(samples))
    print(f"{what}: {len(samples)} samples of gen1, and {more}")
    assert set(samples) <= set(times)
    assert more == sorted(times)[len(samples) :]
    assert len(more) < len(YEARS)
    shared = [index for index, time in enumerate(times) if time in samples]
    expected = [
        np.concatenate([samples[times[index]][which] for index in shared])
        for which in (0, 1)
    ]
    assert_close(x[shared], expected[0], 1e-6, f"x of {what} and of gen1")
    assert_close(y[shared], expected[1], 1e-6, f"y of {what} and of gen1")


@pytest.mark.slow(but=["static first"])
@pytest.mark.parametrize("case", CASES)
def test_samples(credit, folder, monkeypatch, case):
    from tests.data.credit_batches import credit_batches

    monkeypatch.chdir(folder)
    config = apply_overrides(yaml.safe_load(CONFIG), CASES[case])
    samples = gen1_samples(config)
    gen2, _ = convert_config(config, to="gen2")
    assert "all_%Y*.nc" in str(gen2)
    theirs = credit_batches(gen2, train=False)
    x, y = (np.concatenate([batch[k] for batch in theirs]) for k in ("x", "y"))
    times = [batch["times"].reshape(-1)[0] for batch in theirs]
    compare(samples, times, x, y, "gen2")
    ours, _ = convert_config(config, to="jax")
    loader = build_loader(
        parsed(ours), split="valid", local_dp_ranks=(0,), dp_size=1, keep_partial=True
    )
    batches = list(loader.epoch(0))
    x, y = (np.concatenate([getattr(b, k) for b in batches]) for k in ("x", "y"))
    times = [b.input_times.reshape(-1)[0] for b in batches]
    compare(samples, times, x, y, "credit_jax")
