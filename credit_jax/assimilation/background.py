"""The covariance of background errors, B, by its square root on the sphere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.config.messages import got
from credit_jax.forecast.outputs import OutputVariable
from credit_jax.forecast.spherical_noise import legendre_functions
from credit_jax.io.netcdf import write_netcdf
from credit_jax.named_fields.coordinates import SAME_DEGREES

# Name and level of a channel; NaN for a variable without levels.
Channel = tuple[str, float]


@dataclass(frozen=True, eq=False)
class Harmonics:
    """Real spherical harmonics on a global grid of latitudes and longitudes.

    Coefficients are (degree, channel, 2, order), of cosines and sines. Independent ones
    of variance 1 make fields of variance 2 degree + 1 for each degree.

    Attributes:
        latitude, longitude: (lat,) and (lon,) degrees.
        truncation: largest degree.
    """

    latitude: np.ndarray
    longitude: np.ndarray
    truncation: int

    def fields(
        self, coefficients: Float[np.ndarray, "degree channel 2 order"]
    ) -> Float[np.ndarray, "channel lat lon"]:
        """The fields with these coefficients."""
        degrees, channels, _, _ = coefficients.shape
        by_order = coefficients.transpose(3, 1, 2, 0).reshape(degrees, -1, degrees)
        rows = (by_order @ self._legendre).reshape(degrees, channels, 2, -1)
        return _merged(rows.transpose(1, 3, 2, 0)) @ self._waves

    def transposed(
        self, fields: Float[np.ndarray, "channel lat lon"]
    ) -> Float[np.ndarray, "degree channel 2 order"]:
        """The transpose of `fields`, which is not its inverse."""
        return self._sums(fields, self._waves, self._legendre)

    def coefficients(
        self, fields: Float[np.ndarray, "channel lat lon"]
    ) -> Float[np.ndarray, "degree channel 2 order"]:
        """The coefficients of fields, by least squares weighted by area."""
        squares = np.square(self._waves).sum(1, keepdims=True)
        # The sine of order 0 is 0 everywhere.
        scaled = self._waves / np.where(squares > 0, squares, 1.0)
        return self._sums(fields, scaled, self._inverse)

    def _sums(
        self, fields: np.ndarray, waves: np.ndarray, functions: np.ndarray
    ) -> np.ndarray:
        """Sums over longitudes, then over latitudes."""
        channels, lats, _ = fields.shape
        split = (fields @ waves.T).reshape(channels, lats, 2, -1).transpose(3, 0, 2, 1)
        orders = len(split)
        sums = split.reshape(orders, -1, lats) @ functions.transpose(0, 2, 1)
        return sums.reshape(orders, channels, 2, orders).transpose(3, 1, 2, 0)

    @cached_property
    def _inverse(self) -> np.ndarray:
        """(order, degree, lat): rows to coefficients."""
        weights = np.sqrt(np.maximum(np.cos(np.deg2rad(self.latitude)), 1e-3))
        weighted = self._legendre.transpose(0, 2, 1) * weights[:, None]
        # Degrees below the order are columns of zeros.
        return np.linalg.pinv(weighted, rcond=1e-10) * weights

    @cached_property
    def _legendre(self) -> np.ndarray:
        """(order, degree, lat)."""
        functions = legendre_functions(self.latitude, self.truncation + 1)
        return np.ascontiguousarray(functions.transpose(1, 0, 2))

    @cached_property
    def _waves(self) -> np.ndarray:
        """(2 x order, lon) cosines and sines."""
        orders = np.arange(self.truncation + 1)[:, None]
        angles = np.deg2rad(self.longitude)[None] * orders
        return np.concatenate([np.cos(angles), np.sin(angles)])


def _merged(array: np.ndarray) -> np.ndarray:
    """The array with its last two dims as one."""
    return array.reshape(*array.shape[:-2], -1)


@dataclass(frozen=True, eq=False)
class BackgroundCovariance:
    """B = R R', with R = S Y L.

    L is the root of the covariance of all channels for each degree of the spherical
    harmonics Y, so that correlations are isotropic, with the scale of each channel, and
    between channels; S are standard deviations by channel and latitude.

    Attributes:
        channels: name and level of each channel.
        harmonics: Y.
        deviation: (channel, lat) standard deviations, in units of the variables.
        root: (degree, channel, channel), L.
    """

    channels: tuple[Channel, ...]
    harmonics: Harmonics
    deviation: np.ndarray
    root: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the control variable: (degree, channel, 2, order)."""
        degrees, channels, _ = self.root.shape
        return degrees, channels, 2, degrees

    def fields(
        self, control: Float[np.ndarray, "degree channel 2 order"]
    ) -> Float[np.ndarray, "channel lat lon"]:
        """R times a control variable; independent values of variance 1 become B."""
        mixed = self.root @ _merged(control)
        return self.deviation[..., None] * self.harmonics.fields(
            mixed.reshape(self.shape)
        )

    def transposed(
        self, fields: Float[np.ndarray, "channel lat lon"]
    ) -> Float[np.ndarray, "degree channel 2 order"]:
        """R' times fields."""
        spectral = self.harmonics.transposed(self.deviation[..., None] * fields)
        mixed = self.root.transpose(0, 2, 1) @ _merged(spectral)
        return mixed.reshape(self.shape)

    def write(self, path: Path) -> None:
        """Writes it as NetCDF."""
        names, levels = zip(*self.channels, strict=True)
        dataset = xr.Dataset(
            {
                "variable": ("channel", np.array(names, object)),
                "level": ("channel", np.array(levels, float)),
                "deviation": (("channel", "latitude"), self.deviation),
                "root": (("degree", "channel", "cochannel"), self.root),
            },
            {
                "latitude": self.harmonics.latitude,
                "longitude": self.harmonics.longitude,
            },
        )
        write_netcdf(dataset, path)


def read_background(path: str, scale: float = 1.0) -> BackgroundCovariance:
    """Reads what `BackgroundCovariance.write` wrote.

    Args:
        path: the file.
        scale: factor of the standard deviations.

    Raises:
        ValueError: there is no such file, or it is another one.
    """
    if not Path(path).is_file():
        raise ValueError(
            f"assimilation.background.file: {path} does not exist; credit-jax "
            "preprocess fits it to assimilation.background.forecasts"
        )
    with xr.open_dataset(path, engine="h5netcdf") as file:
        missing = {"variable", "level", "deviation", "root"} - set(file.variables)
        if missing:
            raise ValueError(
                f"assimilation.background.file: {path} is no covariance: it lacks "
                f"{', '.join(sorted(missing))}; credit-jax preprocess writes it"
            )
        file.load()
    root = file["root"].values
    channels = zip(file["variable"].values, file["level"].values, strict=True)
    return BackgroundCovariance(
        tuple((str(name), float(level)) for name, level in channels),
        Harmonics(file["latitude"].values, file["longitude"].values, len(root) - 1),
        scale * file["deviation"].values,
        root,
    )


@dataclass(frozen=True, eq=False)
class StateCovariance:
    """A covariance for the states of a model: control variables to named fields.

    Attributes:
        covariance: B, whose channels are those of `levels` in this order.
        levels: key of a variable -> its number of levels.
    """

    covariance: BackgroundCovariance
    levels: Mapping[str, int]

    def fields(self, control: np.ndarray) -> dict[str, np.ndarray]:
        """Key -> (level, lat, lon) of a flat control variable."""
        whole = self.covariance.fields(control.reshape(self.covariance.shape))
        return dict(self._split(whole))

    def transposed(self, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        """The transpose of `fields`, flat."""
        whole = np.concatenate([np.float64(fields[key]) for key in self.levels])
        return self.covariance.transposed(whole).ravel()

    @property
    def size(self) -> int:
        """Number of control variables."""
        return int(np.prod(self.covariance.shape))

    def _split(self, whole: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        first = 0
        for key, count in self.levels.items():
            yield key, whole[first : first + count]
            first += count


def covariance_of(
    covariance: BackgroundCovariance,
    variables: Sequence[OutputVariable],
    latitude: np.ndarray,
    longitude: np.ndarray,
) -> StateCovariance:
    """The covariance with the channels of a model, in its order.

    Args:
        covariance: see `BackgroundCovariance`.
        variables: prognostic variables, with all of their levels.
        latitude, longitude: the grid of the model.

    Raises:
        ValueError: a channel is missing, or the grid is another one.
    """
    where, harmonics = "assimilation.background.file", covariance.harmonics
    for name, ours, theirs in (
        ("latitude", latitude, harmonics.latitude),
        ("longitude", longitude, harmonics.longitude),
    ):
        same = ours.shape == theirs.shape
        if not same or np.abs(ours - theirs).max() > SAME_DEGREES:
            raise ValueError(
                f"{where}: its {name}s are not those of the model: "
                f"{got(theirs.tolist())} there, {got(ours.tolist())} here; fit it to "
                "forecasts of this model"
            )
    known = {_named(*channel): k for k, channel in enumerate(covariance.channels)}
    order, levels = [], {}
    for variable in variables:
        values = [np.nan] if variable.levels is None else variable.levels.tolist()
        levels[variable.key] = len(values)
        for value in values:
            name = _named(variable.name, value)
            if name not in known:
                raise ValueError(
                    f"{where}: lacks {name}; it has {', '.join(known)}; fit it to "
                    "forecasts that have every prognostic variable"
                )
            order.append(known[name])
    chosen = replace(
        covariance,
        channels=tuple(covariance.channels[k] for k in order),
        deviation=covariance.deviation[order],
        root=_rows_of(covariance.root, order),
    )
    return StateCovariance(chosen, levels)


def _rows_of(root: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """The symmetric root of the same covariance with some channels, in an order."""
    covariance = (root @ root.transpose(0, 2, 1))[:, order][:, :, order]
    return symmetric_root(covariance)


def symmetric_root(
    covariance: Float[np.ndarray, "degree channel channel"],
) -> Float[np.ndarray, "degree channel channel"]:
    """The symmetric square roots of covariance matrices, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    roots = np.sqrt(np.maximum(values, 0.0))
    return (vectors * roots[:, None]) @ vectors.transpose(0, 2, 1)


def _named(name: str, level: float) -> str:
    return name if np.isnan(level) else f"{name}{level:g}"
