"""The covariance of background errors, B, by its square root on the sphere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.config.messages import got
from credit_jax.io.mirror import local_path
from credit_jax.io.netcdf import write_netcdf
from credit_jax.named_fields.coordinates import DEGREE_TOLERANCE
from credit_jax.named_fields.variables import Variable
from credit_jax.physics.harmonics import (
    legendre_functions,
    legendre_slopes,
    neighbor_ratio,
)

# Name and level of a channel; NaN for a variable without levels.
VariableLevel = tuple[str, float]


@dataclass(frozen=True, eq=False)
class Harmonics:
    """Real spherical harmonics on a global grid of latitudes and longitudes."""

    latitude: np.ndarray
    longitude: np.ndarray
    truncation: int  # largest degree

    def fields(
        self, coefficients: Float[np.ndarray, "degree channel 2 order"]
    ) -> Float[np.ndarray, "channel lat lon"]:
        """The fields with these coefficients."""
        degrees, channels, _, _ = coefficients.shape
        # Independent coefficients of variance 1 make fields of variance 2 degree + 1
        # for each degree. The last dims are cosines and sines, and orders.
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
        return self._sums(fields, self._scaled, self._inverse)

    def winds(
        self, potentials: Float[np.ndarray, "degree channel 2 order"]
    ) -> Float[np.ndarray, "channel lat lon"]:
        """Eastward, then northward winds of stream functions, then of potentials."""
        # So that coefficients of variance 1 make winds of variance 2 degree + 1, one is
        # the potential times sqrt(degree (degree + 1)) / radius.
        psi, chi = np.split(_as_complex(potentials).transpose(2, 1, 0), 2, 1)
        rows = np.concatenate([psi, 1j * chi], 2) @ self._wind_functions
        u, v = np.split(rows, 2, 2)
        merged = np.concatenate([u, -1j * v], 1).transpose(1, 2, 0)
        return _merged(np.stack([merged.real, -merged.imag], 2)) @ self._waves

    def winds_transposed(
        self, fields: Float[np.ndarray, "channel lat lon"]
    ) -> Float[np.ndarray, "degree channel 2 order"]:
        """The transpose of `winds`."""
        functions = self._wind_functions.transpose(0, 2, 1)
        return self._wind_sums(fields, self._waves, functions)

    def potentials(
        self, fields: Float[np.ndarray, "channel lat lon"]
    ) -> Float[np.ndarray, "degree channel 2 order"]:
        """The potentials of winds, by least squares weighted by area."""
        weights = np.tile(self._weights, 2)
        inverse = np.linalg.pinv(self._wind_functions * weights, rcond=1e-10)
        return self._wind_sums(fields, self._scaled, weights[:, None] * inverse)

    def times_sine(
        self, coefficients: Float[np.ndarray, "degree channel 2 order"]
    ) -> Float[np.ndarray, "degree channel 2 order"]:
        """The coefficients of fields times the sine of latitude; symmetric."""
        ratio = neighbor_ratio(self.truncation + 1)[1:, None, None]
        product = np.zeros_like(coefficients)
        product[1:] += ratio * coefficients[:-1]
        product[:-1] += ratio * coefficients[1:]
        return product

    def _wind_sums(
        self, fields: np.ndarray, waves: np.ndarray, functions: np.ndarray
    ) -> np.ndarray:
        """Sums over longitudes, then over latitudes, of u and i v."""
        channels, lats, _ = fields.shape
        rows = _as_complex((fields @ waves.T).reshape(channels, lats, 2, -1))
        u, v = np.split(rows.transpose(2, 0, 1), 2, 1)
        sums = np.concatenate([u, 1j * v], 2) @ functions
        psi, chi = np.split(sums, 2, 2)
        merged = np.concatenate([psi, -1j * chi], 1).transpose(2, 1, 0)
        return np.stack([merged.real, -merged.imag], 2)

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
        weighted = self._legendre.transpose(0, 2, 1) * self._weights[:, None]
        # Degrees below the order are columns of zeros.
        return np.linalg.pinv(weighted, rcond=1e-10) * self._weights

    @cached_property
    def _weights(self) -> np.ndarray:
        """(lat,) roots of the areas."""
        return np.sqrt(np.maximum(np.cos(np.deg2rad(self.latitude)), 1e-3))

    @cached_property
    def _wind_functions(self) -> np.ndarray:
        """(order, 2 degree, 2 lat): psi and i chi to rows of u and i v."""
        # u = - dpsi/dlat + dchi/dlon / cos(lat), v = dpsi/dlon / cos(lat) + dchi/dlat,
        # and a derivative by longitude is i order times complex coefficients.
        # At a pole the limit, nearly.
        latitude = np.clip(self.latitude, -89.99, 89.99)
        count, cosine = self.truncation + 1, np.cos(np.deg2rad(latitude))
        functions = legendre_functions(latitude, count + 1)
        degree, order = np.arange(count)[:, None], np.arange(count)
        north = legendre_slopes(functions)
        east = order[:, None] * functions[:count, :count]
        size = np.sqrt(np.maximum(degree * (degree + 1), 1))
        resolved = (degree >= order) & (degree > 0)
        scale = np.where(resolved, 1 / size, 0.0)[..., None] / cosine
        a, b = ((x * scale).transpose(1, 0, 2) for x in (north, east))
        return np.block([[-a, -b], [b, a]])

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

    @cached_property
    def _scaled(self) -> np.ndarray:
        """(2 x order, lon): the inverse of the waves."""
        squares = np.square(self._waves).sum(1, keepdims=True)
        # The sine of order 0 is 0 everywhere.
        return self._waves / np.where(squares > 0, squares, 1.0)


def _as_complex(pairs: np.ndarray) -> np.ndarray:
    """(..., 2, order) of cosines and sines as z, whose waves are Re(z exp(i m lon))."""
    return pairs[..., 0, :] - 1j * pairs[..., 1, :]


def _merged(array: np.ndarray) -> np.ndarray:
    """The array with its last two dims as one."""
    return array.reshape(*array.shape[:-2], -1)


@dataclass(frozen=True, eq=False)
class BackgroundCovariance:
    """B = R R', with R = S Y K L, for errors of all channels on the sphere."""

    # L is the root of the covariance of channels for each degree of the harmonics Y:
    # correlations are isotropic, with the scale of each channel. S are deviations by
    # latitude. L and K have stream functions and velocity potentials in the place of
    # winds; K adds to other channels what balances the wind: linear in the stream
    # functions times the sine of latitude, as in geostrophy (Derber and Bouttier 1999).
    channels: tuple[VariableLevel, ...]
    harmonics: Harmonics  # Y
    deviation: np.ndarray  # (channel, lat), S in units of the variables
    root: np.ndarray  # (degree, channel, channel), L
    winds: tuple[int, ...] = ()  # indices of eastward, then of northward winds
    balance: np.ndarray | None = None  # (degree, channel, channel), K - 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the control variable: (degree, channel, 2, order)."""
        degrees, channels, _ = self.root.shape
        return degrees, channels, 2, degrees

    def fields(
        self, control: Float[np.ndarray, "degree channel 2 order"]
    ) -> Float[np.ndarray, "channel lat lon"]:
        """R times a control variable; independent values of variance 1 become B."""
        spectral = _times(self.root, control)
        if self.balance is not None:
            balanced = _times(self.balance, self.harmonics.times_sine(spectral))
            spectral = spectral + balanced
        fields = self.harmonics.fields(spectral)
        if self.winds:
            winds = [*self.winds]
            fields[winds] = self.harmonics.winds(spectral[:, winds])
        return self.deviation[..., None] * fields

    def transposed(
        self, fields: Float[np.ndarray, "channel lat lon"]
    ) -> Float[np.ndarray, "degree channel 2 order"]:
        """R' times fields."""
        scaled = self.deviation[..., None] * fields
        spectral = self.harmonics.transposed(scaled)
        if self.winds:
            winds = [*self.winds]
            spectral[:, winds] = self.harmonics.winds_transposed(scaled[winds])
        if self.balance is not None:
            balanced = _times(self.balance.transpose(0, 2, 1), spectral)
            spectral = spectral + self.harmonics.times_sine(balanced)
        return _times(self.root.transpose(0, 2, 1), spectral)

    def write(self, path: Path) -> None:
        """Writes it as NetCDF."""
        names, levels = zip(*self.channels, strict=True)
        further = {}
        if self.balance is not None:
            dims = "degree", "channel", "cochannel"
            further["balance"] = dims, self.balance
            further["winds"] = "wind", np.array(self.winds)
        dataset = xr.Dataset(
            {
                "variable": ("channel", np.array(names, object)),
                "level": ("channel", np.array(levels, float)),
                "deviation": (("channel", "latitude"), self.deviation),
                "root": (("degree", "channel", "cochannel"), self.root),
                **further,
            },
            {
                "latitude": self.harmonics.latitude,
                "longitude": self.harmonics.longitude,
            },
        )
        write_netcdf(dataset, path)


def read_background(path: str, scale: float = 1.0) -> BackgroundCovariance:
    """Reads what `BackgroundCovariance.write` wrote."""
    path = local_path(path)
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
    has_winds = "winds" in file
    return BackgroundCovariance(
        tuple((str(name), float(level)) for name, level in channels),
        Harmonics(file["latitude"].values, file["longitude"].values, len(root) - 1),
        scale * file["deviation"].values,
        root,
        tuple(file["winds"].values.tolist()) if has_winds else (),
        file["balance"].values if has_winds else None,
    )


@dataclass(frozen=True, eq=False)
class StateCovariance:
    """A covariance for the states of a model: control variables to named fields."""

    covariance: BackgroundCovariance  # with the channels of `levels`, in their order
    levels: Mapping[str, int]  # key of a variable -> its number of levels

    def fields(self, control: np.ndarray) -> dict[str, np.ndarray]:
        """Key -> (level, lat, lon) of a flat control variable."""
        full = self.covariance.fields(control.reshape(self.covariance.shape))
        ends = np.cumsum([*self.levels.values()])
        return dict(zip(self.levels, np.split(full, ends[:-1]), strict=True))

    def transposed(self, fields: Mapping[str, np.ndarray]) -> np.ndarray:
        """The transpose of `fields`, flat."""
        full = np.concatenate([np.float64(fields[key]) for key in self.levels])
        return self.covariance.transposed(full).ravel()

    @property
    def size(self) -> int:
        """Number of control variables."""
        return int(np.prod(self.covariance.shape))


def covariance_of(
    covariance: BackgroundCovariance,
    variables: Sequence[Variable],
    latitude: np.ndarray,
    longitude: np.ndarray,
) -> StateCovariance:
    """The covariance with the channels of a model, in its order."""
    origin, harmonics = "assimilation.background.file", covariance.harmonics
    for name, current, other in (
        ("latitude", latitude, harmonics.latitude),
        ("longitude", longitude, harmonics.longitude),
    ):
        equal = current.shape == other.shape
        if not equal or np.abs(current - other).max() > DEGREE_TOLERANCE:
            raise ValueError(
                f"{origin}: its {name}s are not those of the model: "
                f"{got(other.tolist())} there, {got(current.tolist())} here; fit it to "
                "forecasts of this model"
            )
    recognized = {_named(*channel): k for k, channel in enumerate(covariance.channels)}
    order, levels = [], {}
    for variable in variables:
        values = [np.nan] if variable.levels is None else variable.levels.tolist()
        levels[variable.key] = len(values)
        for value in values:
            name = _named(variable.name, value)
            if name not in recognized:
                raise ValueError(
                    f"{origin}: lacks {name}; it has {', '.join(recognized)}; fit it "
                    "to forecasts that have every prognostic variable"
                )
            order.append(recognized[name])
    return StateCovariance(_chosen(covariance, order), levels)


def _chosen(
    covariance: BackgroundCovariance, order: Sequence[int]
) -> BackgroundCovariance:
    """The covariance with some channels, in an order."""
    balance = covariance.balance
    missing = [k for k in covariance.winds if k not in order]
    if missing:
        names = ", ".join(_named(*covariance.channels[k]) for k in missing)
        raise ValueError(
            f"assimilation.background.file: has the winds {names}, which the model "
            "lacks; fit it to forecasts of this model"
        )
    product = covariance.root @ covariance.root.transpose(0, 2, 1)
    return replace(
        covariance,
        channels=tuple(covariance.channels[k] for k in order),
        deviation=covariance.deviation[order],
        root=symmetric_root(product[:, order][:, :, order]),
        winds=tuple(order.index(k) for k in covariance.winds),
        balance=None if balance is None else balance[:, order][:, :, order],
    )


def _times(matrices: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """The product of a matrix for each degree with coefficients."""
    return (matrices @ _merged(coefficients)).reshape(coefficients.shape)


def symmetric_root(
    covariance: Float[np.ndarray, "degree channel channel"],
) -> Float[np.ndarray, "degree channel channel"]:
    """The symmetric square roots of covariance matrices, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    roots = np.sqrt(np.maximum(values, 0.0))
    return (vectors * roots[:, None]) @ vectors.transpose(0, 2, 1)


def _named(name: str, level: float) -> str:
    return name if np.isnan(level) else f"{name}{level:g}"
