"""gen1's `post_conf` within models: against CREDIT, on every mesh, its section."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.models.registry import build, parse_model
from credit_torch_bridge import convert_config
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.models.cases import BASE
from tests.models.parity import assert_equals_credit, assert_equals_one_device, run
from tests.support.credit_modules import credit_attribute

CASES = Cases("gen1_post_conf")
LEVELS = BASE["levels"]
DEEP, SURFACE = ("U", "V", "T", "Q"), ("SP",)
DIAGNOSTIC = ("rain", "evap", "top", "olr", "sun", "longwave", "sensible", "latent")
MAGNITUDES = {"T": (260.0, 10.0), "Q": (5e-3, 1e-3), "SP": (9.5e4, 2e3)}
MAGNITUDES |= {"rain": (3e-3, 3e-4), "evap": (-2e-3, 3e-4)}
CONFIG = Path(__file__).with_name("gen1.yml").read_text()


def write_files(folder: Path) -> None:
    """Writes the grid, its hybrid levels, and mean and std of every variable."""
    lat, lon = BASE["image_height"], BASE["image_width"]
    lon2d, lat2d = np.meshgrid(
        np.arange(lon) * 360.0 / lon, 87.0 - np.arange(lat) * 174.0 / (lat - 1)
    )
    ground = 2000 * np.abs(np.random.default_rng(7).normal(size=lat2d.shape))
    halves = {"hyai": [0.0, 2e4, 0.0], "hybi": [0.0, 0.1, 1.0]}
    fields: dict[str, Any] = {"lon2d": lon2d, "lat2d": lat2d, "PHIS": ground}
    variables: dict[str, Any] = {k: (("y", "x"), v) for k, v in fields.items()}
    variables |= {k: ("ilev", np.asarray(v)) for k, v in halves.items()}
    xr.Dataset(variables).to_netcdf(folder / "physics.nc")
    for index, name in enumerate(("mean", "std")):
        values: dict[str, Any] = {}
        for key in (*DEEP, *SURFACE, *DIAGNOSTIC, "tsi"):
            default = (0.0, 10.0) if key in DEEP else (0.0, 1e6)
            value = MAGNITUDES.get(key, default)[index]
            values[key] = ("level", np.full(LEVELS, value)) if key in DEEP else value
        xr.Dataset(values).to_netcdf(folder / f"{name}.nc")


def gen1_config(folder: Path, model: dict[str, Any]) -> dict[str, Any]:
    """The config of generation 1, with these keys of its `model` section."""
    config = yaml.safe_load(CONFIG.replace("FOLDER", str(folder)))
    del config["parts"]
    names = {"": DEEP, "surface_": SURFACE, "diagnostic_": DIAGNOSTIC}
    names |= {"dynamic_forcing_": ("tsi",), "forcing_": (), "static_": ("mask",)}
    data: dict[str, Any] = {f"{k}variables": [*v] for k, v in names.items()}
    keys = [f"save_loc{'_' + k[:-1] if k else ''}" for k, v in names.items() if v]
    data |= dict.fromkeys(keys, str(folder / "fields_????.nc"))
    config["data"] |= data | {"levels": LEVELS}
    channels = {"channels": len(DEEP), "surface_channels": len(SURFACE)}
    channels |= {"output_only_channels": len(DIAGNOSTIC)}
    return config | {"model": config["model"] | copy.deepcopy(BASE) | channels | model}


MODELS = pytest.mark.parametrize("name", ["crossformer", "wxformer"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Any:
    path = tmp_path_factory.mktemp("gen1")
    write_files(path)
    return path


def converted(folder: Any, name: str = "wxformer", **keys: Any) -> dict[str, Any]:
    """Returns the `model:` section to which the bridge converts a gen1 config."""
    config = gen1_config(folder, {"type": name})
    return {**convert_config(config, to="jax")[0]["model"], **keys}


def parsed(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a gen1 config as CREDIT parses it."""
    parser = credit_attribute("parser", "credit_main_parser")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return parser(
            copy.deepcopy(config),
            parse_training=False,
            parse_predict=False,
            print_summary=False,
        )


@pytest.mark.slow
@pytest.mark.reference
@MODELS
def test_equals_credit(credit: Any, folder: Any, name: str) -> None:
    """Tracer limits, mass, water and energy, at the end of the forward pass."""
    depth = {"depth": [0, 0, 0, 0]}
    theirs = parsed(gen1_config(folder, {"type": name, **depth}))["model"]
    ours = converted(folder, name, **depth)
    assert_equals_credit(credit, ours, name, theirs=theirs)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["domain3", "2x2x2"])
def test_equals_one_device(folder: Any, mesh: str) -> None:
    """30 rows, even on 2 and 3 shards; budgets are global."""
    # Without spectral norm a fresh model's output is of the order of its input.
    section = converted(folder, depth=[0, 0, 0, 0], use_spectral_norm=False)
    assert_equals_one_device(section, mesh, "post_conf")
    humidity = 5e-3 + 1e-3 * run(section)[0][:, 6:8]
    limited = np.isclose(humidity, 4.8e-3, rtol=1e-6).mean()
    assert 0.2 < limited < 0.8, "some humidity is at its limit"
    assert humidity.min() > 4.8e-3 * (1 - 1e-6)


def test_blocks_outside_of_the_model(folder: Any) -> None:
    """gen1's trainer applies them to equal fields in the same order."""
    config = gen1_config(folder, {"type": "wxformer"})
    for name in ("global_mass_fixer", "global_water_fixer", "global_energy_fixer"):
        config["model"]["post_conf"][name]["activate_outside_model"] = True
    assert convert_config(config, to="jax")[0]["model"] == converted(folder)


def test_inactive_section_changes_nothing(folder: Any) -> None:
    section = converted(folder)
    section["gen1_post_conf"]["activate"] = False
    config = parse_model(section)
    assert config.files == {}
    assert hash(config) == hash(parse_model(section)), "equal configs, one program"


@CASES.case
def post_conf_itself_is_a_warning() -> None:
    """CREDIT's gen2 training ignores it; the warning names its blocks."""
    conf = {"activate": True, "tracer_fixer": {"activate": True}}
    for name in ("crossformer", "wxformer"):
        assert not any(
            parse_model({**BASE, "type": name, "post_conf": conf}).problems()
        )


def data(folder: Any, **change: Any) -> None:
    section = converted(folder)
    section["gen1_post_conf"]["data"] |= change
    build(section)


CASES.rows(
    data,
    {"diagnostic_variables": ["rain"]},
    {"save_loc_physics": None},
    {"std_path": None},
)


def files(folder: Any, **change: Any) -> None:
    """Files that do not fit a model of 32 rows."""
    section = converted(folder, image_height=32, padding_conf=None)
    section["gen1_post_conf"]["data"] |= change
    parse_model(section).check_files()


CASES.rows(files, {}, {"variables": ["U", "V", "T", "Z"]}, name="files")


def coordinates(change: str, folder: Any) -> None:
    """Rows and columns of the grid file are those of the data, in their order."""
    conf = parse_model(converted(folder)).gen1_post_conf
    axes = replace(conf.fixers.grids[0].axes, levels=None, where="the data")
    conf.check_coordinates(axes)
    if change == "moved":
        axes = replace(axes, latitude=tuple(x + 1 for x in axes.latitude))
    else:
        axes = replace(axes, **{change: getattr(axes, change)[::-1]})
    conf.check_coordinates(axes)


CASES.rows(coordinates, "latitude", "longitude", "moved")
