"""NetCDF files against those of CREDIT's `ForecastWriter`, from the same arrays."""

from pathlib import Path
from types import SimpleNamespace

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.config import parse
from credit_jax.config.dates import duration
from credit_jax.config.inference import InferenceConfig, OutputConfig, read_attributes
from credit_jax.data.schedule import ForecastSchedule, Task, make_schedule
from credit_jax.forecast.netcdf import NetcdfStore
from credit_jax.forecast.outputs import Outputs, choose_outputs
from credit_jax.transforms import Pipeline
from tests.forecast.layouts import assert_same_layout
from tests.support.credit_modules import credit_attribute

T, U = "A/prognostic/3d/T", "A/prognostic/3d/U"
SP, TP = "A/prognostic/2d/SP", "A/diagnostic/2d/TP"
COUNTS = {T: 3, U: 3, SP: 1, TP: 1}
LEVELS = [10, 30, 137]
LATITUDE, LONGITUDE = np.linspace(80, -80, 5), np.arange(8) * 45.0
CURVED = np.linspace(30, 50, 40).reshape(5, 8), np.linspace(220, 290, 40).reshape(5, 8)
CASES = {
    "a file a step": {},
    "days": {"group_by": "D", "metadata": "era5.yaml"},
    "months": {"group_by": "monthly", "encoding": {"zlib": True, "complevel": 1}},
    "years": {"group_by": "1y"},
    "all": {"group_by": "FULL", "output_interval": "12h"},
    "levels": {"variables": [TP, {"name": T, "levels": [137, 10]}]},
    "levels of each variable": {
        "variables": [
            {"name": T, "levels": [137, 10]},
            {"name": U, "levels": [30]},
            TP,
        ],
        "metadata": "era5.yaml",
    },
    "curvilinear": {"group_by": "day", "metadata": "era5.yaml"},
    "encoding": {
        "metadata": "cam.yaml",
        "encoding": {
            "dtype": "float32",
            T: {"dtype": "float64", "zlib": True, "fletcher32": True},
            "SP": {"zlib": True, "shuffle": False},
        },
    },
}
NUM_STEPS = 8
KINDS = {1: "rectilinear", 2: "curvilinear"}


# CREDIT's writer fails for dates of cftime calendars.
BOTH = [
    (name, calendar)
    for name in CASES
    for calendar in ("standard", "noleap")
    if calendar == "standard" or CASES[name].get("group_by") not in ("D", "day")
]


@pytest.mark.slow(
    but=[
        "a file a step-standard",
        "a file a step-noleap",
        "days-standard",
        "levels-noleap",
        "curvilinear-standard",
    ]
)
@pytest.mark.parametrize(("name", "calendar"), BOTH)
def test_files_of_credit(credit, tmp_path, name, calendar):
    start = "1999-12-31T06" if calendar == "standard" else "2004-02-28T06"
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    fields = [_fields(step) for step in range(1, NUM_STEPS + 1)]
    grid = CURVED if name == "curvilinear" else (LATITUDE, LONGITUDE)
    _write_theirs(theirs, CASES[name], start, calendar, fields, grid)
    _write_ours(ours, CASES[name], start, calendar, fields, grid)
    paths = sorted(path.relative_to(theirs) for path in theirs.rglob("*.nc"))
    assert paths == sorted(path.relative_to(ours) for path in ours.rglob("*.nc"))
    assert paths
    for path in paths:
        with xr.open_dataset(ours / path) as a, xr.open_dataset(theirs / path) as b:
            assert_same_layout(a, b)
            for variable in b.variables:
                assert a[variable].equals(b[variable]), variable


def test_chunks_of_a_yaml_list(tmp_path):
    """CREDIT's files are not there then: its writer logs the error and goes on."""
    output = {"group_by": "full", "encoding": {T: {"chunksizes": [1, 1, 5, 4]}}}
    fields = [_fields(step) for step in range(1, NUM_STEPS + 1)]
    grid = LATITUDE, LONGITUDE
    _write_ours(tmp_path, output, "2000-01-01", "standard", fields, grid)
    (path,) = tmp_path.rglob("*.nc")
    with xr.open_dataset(path) as found:
        assert found["T"].encoding["chunksizes"] == (1, 1, 5, 4)


def _fields(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {
        key: rng.normal(size=(count, 5, 8)).astype(np.float32)
        for key, count in COUNTS.items()
    }


def _write_theirs(folder, output, start, calendar, fields, grid) -> None:
    schema = credit_attribute("datasets.gen_2.grid_utils", "GridSchema")
    writer = credit_attribute("output_gen2", "ForecastWriter")(
        output_conf=output,
        conf={"data": {"source": {"A": {"levels": LEVELS}}}},
        n_steps=NUM_STEPS,
        grid_schema=schema(KINDS[grid[0].ndim], *grid),
        dataset=SimpleNamespace(calendar=calendar),
        verbose=False,
    )
    first = pd.Timestamp(start)
    if calendar != "standard":
        parts = (first.year, first.month, first.day, first.hour)
        first = cftime.datetime(*parts, calendar=calendar)
    for step, arrays in enumerate(fields, 1):
        tree = {"A": {key: x[None, :, None] for key, x in arrays.items()}}
        writer(tree, first, step, 6, str(folder), None)


def _write_ours(folder: Path, output, start, calendar, fields, grid) -> None:
    config = parse(OutputConfig, output)
    inference = InferenceConfig(output=config)
    schedule: ForecastSchedule = make_schedule(
        inference, duration("6h"), calendar, init_times=[start], num_steps=NUM_STEPS
    )
    variables = choose_outputs(config, COUNTS, {"A": LEVELS}, Pipeline(()))
    attributes = read_attributes(config.metadata)
    outputs = Outputs(variables, grid[0], grid[1], calendar, attributes)
    store = NetcdfStore(folder, outputs, schedule, config)
    writer = store.writer(Task(0, 0))
    for step in schedule.written:
        arrays = {
            key: fields[step - 1][key][slice(None) if levels is None else [*levels]]
            for key, levels in outputs.selection.items()
        }
        for job in writer.add(step, arrays):
            job()
    for job in writer.finish():
        job()
