"""A model package of credit_jax as a prognostic model of Earth2Studio.

    model = CreditJax.load_model(package="wxformer_6h", data="forcing.yml")
    earth2studio.run.deterministic(["2018-06-01"], 40, model, ARCO(), ZarrBackend())

Earth2Studio then brings its data sources, perturbations, ensembles and output. It asks
of a model what `earth2studio.models.px.base.PrognosticModel` says; nothing of it is
imported here, only torch, whose tensors are handed over by dlpack.

The variables of the input are the prognostic ones; those of the output are these and
the diagnostic ones, which are NaN at lead time 0. Static fields are those of the
package; dynamic forcing is read by credit_jax, from the sources that `data` names, or
computed (`tisr`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from credit_jax.forecast.stepping import StateForecaster, load_forecaster
from credit_jax.packages.manifest import MANIFEST, read_manifest
from credit_jax.packages.package import Package, open_package

Coords = OrderedDict[str, np.ndarray]
# (variable, level, number of the level) -> a name of Earth2Studio's lexicon.
Lexicon = Callable[[str, float | None, int], str]

BATCH, TIME, LEAD, VARIABLE, LAT, LON = (
    "batch",
    "time",
    "lead_time",
    "variable",
    "lat",
    "lon",
)
# Letters of the lexicon, by names of ERA5 and of CREDIT's files.
LETTERS = {
    "T": "t",
    "temperature": "t",
    "U": "u",
    "u_component_of_wind": "u",
    "V": "v",
    "v_component_of_wind": "v",
    "Q": "q",
    "specific_humidity": "q",
    "Qtot": "qtot",
    "specific_total_water": "qtot",
    "Z": "z",
    "geopotential": "z",
}
SURFACE = {
    "SP": "sp",
    "surface_pressure": "sp",
    "t2m": "t2m",
    "VAR_2T": "t2m",
    "2m_temperature": "t2m",
    "VAR_10U": "u10m",
    "10m_u_component_of_wind": "u10m",
    "VAR_10V": "v10m",
    "10m_v_component_of_wind": "v10m",
    "MSL": "msl",
    "mean_sea_level_pressure": "msl",
    "SSTK": "sst",
    "sea_surface_temperature": "sst",
    "total_precipitation": "tp06",
}


def on_pressure_levels(variable: str, level: float | None, number: int) -> str:
    """Names such as "t500", "u850", "t2m"; other variables keep their own."""
    del number
    if level is None:
        return SURFACE.get(variable, variable)
    return f"{LETTERS.get(variable, variable)}{level:g}"


def on_model_levels(variable: str, level: float | None, number: int) -> str:
    """Names such as "t0k", level 0 the first of the model, as CAMulator has them."""
    if level is None:
        return SURFACE.get(variable, variable)
    return f"{LETTERS.get(variable, variable)}{number}k"


class CreditJax:
    """A prognostic model of Earth2Studio.

    Args:
        forecaster: of a package.
        lexicon: names of the channels.
    """

    def __init__(
        self, forecaster: StateForecaster, lexicon: Lexicon = on_pressure_levels
    ) -> None:
        self.forecaster = forecaster
        self.device = torch.device("cpu")
        assert isinstance(forecaster.checkpoint, Package)
        channels = forecaster.checkpoint.channels
        states = [c for c in channels["input"] if c["key"] in forecaster.prognostic]
        self._inputs = _names(states, lexicon)
        self._outputs = _names(channels["output"], lexicon)

    @classmethod
    def load_default_package(cls) -> str:
        """The folder that the environment variable CREDIT_JAX_PACKAGE names.

        Raises:
            ValueError: it is not set.
        """
        folder = os.environ.get("CREDIT_JAX_PACKAGE")
        if not folder:
            raise ValueError(
                "there is no default package; make one with credit-jax package, and "
                "name it in CREDIT_JAX_PACKAGE or give load_model(package)"
            )
        return folder

    @classmethod
    def load_model(
        cls,
        package: Any,
        data: str | Path | None = None,
        *,
        lexicon: Lexicon = on_pressure_levels,
        overrides: Sequence[str] = (),
        parallelism: str = "data=none",
    ) -> CreditJax:
        """The model of a package.

        Args:
            package: a folder, or `earth2studio.models.auto.Package`, whose files are
                fetched.
            data: YAML file that says where dynamic forcing is, if it is in files.
            lexicon: names of the channels; `on_model_levels` for levels of a model.
            overrides: texts "KEY=VALUE" that replace values of the config.
            parallelism: the mesh, such as "data=none,domain=4".

        Raises:
            ValueError: the package is refused, or forcing has no place.
        """
        local = isinstance(package, str | Path)
        folder = Path(package) if local else _fetched(package)
        opened = open_package(folder)
        forecaster = load_forecaster(opened, data, overrides, parallelism=parallelism)
        model = cls(forecaster, lexicon)
        if not local:
            # Forcing is read from the files as long as the model is in use.
            weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
        return model

    def to(self, device: Any) -> CreditJax:
        """Where tensors are returned; the model stays on the devices of its mesh."""
        self.device = torch.device(device)
        return self

    def input_coords(self) -> Coords:
        """Coordinates of the input; batch and time are any."""
        steps = np.arange(1 - self.forecaster.history_len, 1)
        return self._coords(steps * self._step, self._inputs)

    def output_coords(self, input_coords: Coords) -> Coords:
        """Coordinates of the output of one step.

        Raises:
            ValueError: the input has other variables, another grid or other times.
        """
        own = self.input_coords()
        for place, name in enumerate((LEAD, VARIABLE, LAT, LON), start=-4):
            if list(input_coords)[place:][:1] != [name]:
                raise ValueError(
                    f"the dims are {list(input_coords)}, expected {list(own)}, where "
                    f"{BATCH} may be several or none"
                )
        lead = input_coords[LEAD]
        given = OrderedDict(input_coords)
        given[LEAD] = lead - lead[-1]
        for name in (LEAD, VARIABLE, LAT, LON):
            if not np.array_equal(given[name], own[name]):
                raise ValueError(
                    f"{name} is {given[name]}, expected {own[name]}; take "
                    "input_coords() of the model"
                )
        found = OrderedDict(input_coords)
        found[LEAD] = lead[-1:] + self._step
        found[VARIABLE] = np.array(self._outputs)
        return found

    def __call__(self, x: torch.Tensor, coords: Coords) -> tuple[torch.Tensor, Coords]:
        """One step.

        Args:
            x: (..., time, lead_time, variable, lat, lon), physical units.
            coords: of its dims.
        """
        steps = self.create_iterator(x, coords)
        next(steps)
        return next(steps)

    def create_iterator(
        self, x: torch.Tensor, coords: Coords
    ) -> Iterator[tuple[torch.Tensor, Coords]]:
        """The initial state, then the steps after it.

        The state of a forecast stays on the mesh: what is done to a returned tensor
        changes nothing.
        """
        self.output_coords(coords)
        given = OrderedDict(coords)
        batch = x.shape[:-4]
        times = np.broadcast_to(given[TIME], batch).reshape(-1) + given[LEAD][-1]
        given[VARIABLE] = np.array(self._outputs)
        state = x.reshape(-1, *x.shape[-4:])
        yield self._initial(x), OrderedDict(given, lead_time=given[LEAD][-1:])
        steps = self.forecaster.forecast(self._fields(state), times)
        for number, fields in enumerate(steps, start=1):
            lead = given[LEAD][-1:] + number * self._step
            y = _as_tensor(list(fields.values()), list(fields), self._order)
            tensor = y.reshape(*batch, 1, *y.shape[1:]).to(self.device)
            yield tensor, OrderedDict(given, lead_time=lead)

    @property
    def _step(self) -> np.timedelta64:
        return self.forecaster.timestep.astype("timedelta64[ns]")

    @property
    def _order(self) -> list[str]:
        """Keys of the output, in the order of its channels."""
        return list(self.forecaster.schema.target_slices())

    def _coords(self, lead: np.ndarray, variables: Sequence[str]) -> Coords:
        return OrderedDict(
            [
                (BATCH, np.empty(0)),
                (TIME, np.empty(0)),
                (LEAD, lead),
                (VARIABLE, np.array(variables)),
                (LAT, self.forecaster.latitude),
                (LON, self.forecaster.longitude),
            ]
        )

    def _fields(self, x: torch.Tensor) -> dict[str, np.ndarray]:
        """Key -> (batch, level, time, lat, lon) of (batch, time, variable, ...)."""
        array = np.from_dlpack(x.detach().cpu().float().contiguous())
        array = array.transpose(0, 2, 1, 3, 4)
        counts = self.forecaster.prognostic
        ends = np.cumsum(list(counts.values()))[:-1]
        return dict(zip(counts, np.split(array, ends, axis=1), strict=True))

    def _initial(self, x: torch.Tensor) -> torch.Tensor:
        """The newest state in the variables of the output."""
        shape = (*x.shape[:-4], 1, len(self._outputs), *x.shape[-2:])
        whole = torch.full(shape, float("nan"), device=self.device)
        newest = x[..., -1:, :, :, :].to(self.device, torch.float32)
        for place, name in enumerate(self._inputs):
            if name in self._outputs:
                whole[..., self._outputs.index(name), :, :] = newest[..., place, :, :]
        return whole


def _names(channels: Sequence[Mapping[str, Any]], lexicon: Lexicon) -> list[str]:
    """Names of channels by a lexicon.

    Raises:
        ValueError: two channels have one name.
    """
    numbers: dict[str, int] = {}
    names = []
    for own in channels:
        number = numbers.get(own["key"], 0)
        numbers[own["key"]] = number + 1
        names.append(lexicon(own["variable"], own["level"], number))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"lexicon: several channels are called {', '.join(twice)}")
    return names


def _as_tensor(
    fields: Sequence[jax.Array], keys: Sequence[str], order: Sequence[str]
) -> torch.Tensor:
    """(batch, variable, lat, lon) of fields (batch, level, lat, lon)."""
    by_key = dict(zip(keys, fields, strict=True))
    whole = jax.numpy.concatenate([by_key[key] for key in order], axis=1)
    if len(whole.devices()) > 1:
        return torch.from_numpy(np.array(whole))
    return torch.from_dlpack(whole)


def _fetched(package: Any) -> Path:
    """A new folder with the files of a package that is elsewhere."""
    folder = Path(tempfile.mkdtemp(prefix="credit_jax_package_"))
    shutil.copyfile(package.resolve(MANIFEST), folder / MANIFEST)
    for name in read_manifest(folder).files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package.resolve(name), folder / name)
    return folder
