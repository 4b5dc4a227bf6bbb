"""The demo climate's grid, levels and units, and its forcing.

Heating and drag are those of Held and Suarez (1994),
doi:10.1175/1520-0477(1994)075<1825:APFTIO>2.0.CO;2, with an equilibrium temperature
that depends on the season and, over land, on the elevation of the sun, as much as
`ForcingConfig` says. Water vapor is
that of Galewsky et al. (2005), doi:10.1175/JAS3532.1: a tracer that evaporates over
sea, is advected, and rains out above saturation. There is no latent heating, so the
circulation remains that of Held and Suarez.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from dinosaur import (
    coordinate_systems,
    primitive_equations,
    scales,
    sigma_coordinates,
    spherical_harmonic,
    units,
)
from jaxtyping import Array, Float

from credit_jax.config.config import ForcingConfig
from credit_jax.extensions.demo import physics

SpectralState = primitive_equations.State

NUM_LEVELS = 8
REFERENCE_PRESSURE = 1e5  # Pa, p0 of Held and Suarez (1994)
REFERENCE_TEMPERATURE = 288.0  # K, of the semi-implicit scheme; the state holds T - T0


@dataclasses.dataclass(frozen=True)
class Discretization:
    """Grid, levels, unit scales and constant fields; arrays are in dinosaur's order."""

    coords: coordinate_systems.CoordinateSystem
    # Of `coords`, top first.
    levels: sigma_coordinates.SigmaCoordinates
    specs: Any
    # One SI unit in dinosaur's nondimensional units.
    kelvin: float
    pascal: float
    second: float
    meter: float
    # Radians, latitudes from south to north.
    longitude: Float[np.ndarray, "lon lat"]
    latitude: Float[np.ndarray, "lon lat"]
    land: Float[np.ndarray, "lon lat"]  # 1 on land, 0 on sea
    height: Float[np.ndarray, "lon lat"]  # m, spectrally truncated
    sigma: Float[np.ndarray, "level 1 1"]  # centers of the levels, p / surface p
    thickness: Float[np.ndarray, "level 1 1"]  # in sigma, with sum 1
    grid: spherical_harmonic.Grid


def discretize(truncation: str) -> Discretization:
    """The discretization of "T21" (32 x 64 Gaussian points) or "T42" (64 x 128)."""
    specs = units.SimUnits.from_si()
    grid = getattr(spherical_harmonic.Grid, truncation)(
        radius=specs.radius,
        spherical_harmonics_impl=spherical_harmonic.FastSphericalHarmonics,
    )
    levels = sigma_coordinates.SigmaCoordinates.equidistant(NUM_LEVELS)
    lon, sin_lat = grid.nodal_mesh
    lat = np.arcsin(sin_lat)
    rough = physics.mountain_height(lat, lon).astype(np.float32)
    one = specs.nondimensionalize
    return Discretization(
        coords=coordinate_systems.CoordinateSystem(grid, levels),
        levels=levels,
        specs=specs,
        kelvin=float(one(1 * scales.units.degK)),
        pascal=float(one(1 * scales.units.pascal)),
        second=float(one(1 * scales.units.s)),
        meter=float(one(1 * scales.units.m)),
        longitude=lon,
        latitude=lat,
        land=physics.land_mask(lat, lon),
        height=np.asarray(grid.to_nodal(grid.to_modal(rough))),
        sigma=levels.centers[:, None, None],
        thickness=levels.layer_thickness[:, None, None],
        grid=grid,
    )


DAY = 86400.0  # s
SIGMA_B = 0.7  # sigma at the top of the boundary layer, Held and Suarez (1994)
DRAG_DAYS = 1.0  # 1 / k_f, the same
COOLING_DAYS = 40.0  # 1 / k_a, the same
SURFACE_COOLING_DAYS = 4.0  # 1 / k_s, the same
# The following values are not from the literature.
EVAPORATION_TIME = 21600.0  # s, time scale of the relaxation at sigma 1
RELATIVE_HUMIDITY = 0.8  # target of the relaxation

ForcedStep = Callable[
    [SpectralState, Float[Array, ""]], tuple[SpectralState, Float[Array, "lon lat"]]
]


def forcing_step(
    disc: Discretization, seconds: float, forcing: ForcingConfig
) -> ForcedStep:
    """One time step of the forcing, (state, day) -> (state, rain in m of water)."""
    # Backward Euler.
    drag = 1.0 / (1.0 + seconds / (DRAG_DAYS * DAY) * boundary_layer(disc))
    # k_a + (k_s - k_a) times `boundary_layer` times cos(lat)^4, in 1/day.
    aloft, surface = 1.0 / COOLING_DAYS, 1.0 / SURFACE_COOLING_DAYS
    layer = boundary_layer(disc) * np.cos(disc.latitude[None]) ** 4
    weight = seconds / DAY * (aloft + (surface - aloft) * layer)
    reference = REFERENCE_TEMPERATURE * disc.kelvin
    nodal, modal = disc.grid.to_nodal, disc.grid.to_modal

    def step(
        state: SpectralState, day: Float[Array, ""]
    ) -> tuple[SpectralState, Float[Array, "lon lat"]]:
        kelvins = (nodal(state.temperature_variation) + reference) / disc.kelvin
        surface = jnp.exp(nodal(state.log_surface_pressure)) / disc.pascal
        pressure = jnp.asarray(disc.sigma) * surface
        target = equilibrium_temperature(disc, pressure, day, forcing)
        relaxed = (kelvins + weight * target) / (1.0 + weight)
        q, rain = _water_vapor(
            disc, nodal(state.tracers["q"]), kelvins, pressure, seconds
        )
        forced = dataclasses.replace(
            state,
            vorticity=state.vorticity * drag,
            divergence=state.divergence * drag,
            temperature_variation=modal(relaxed * disc.kelvin - reference),
            tracers={"q": modal(q)},
        )
        return forced, rain

    return step


def boundary_layer(disc: Discretization) -> Float[np.ndarray, "level 1 1"]:
    """Weight max(0, (sigma - sigma_b) / (1 - sigma_b)), Held and Suarez (1994)."""
    return np.maximum(0.0, (disc.sigma - SIGMA_B) / (1.0 - SIGMA_B))


def equilibrium_temperature(
    disc: Discretization,
    pressure: Float[Array, "level lon lat"],
    day: Float[Array, ""],
    forcing: ForcingConfig,
) -> Float[Array, "level lon lat"]:
    """Equilibrium temperature in K of Held and Suarez, with season and heated land."""
    # max(200, (p/p0)^kappa (315 - d (sin lat - s)^2 - 10 ln(p/p0) cos(lat)^2 + h)) with
    # d = equator_to_pole, s = season sin(declination), and h = land_heating times land
    # times `boundary_layer` times (cos(zenith) - 1/4), where 1/4 is the global mean.
    lat, ratio = disc.latitude[None], pressure / REFERENCE_PRESSURE
    shift = forcing.season * jnp.sin(physics.declination(day, jnp))
    sun = physics.cos_zenith(day, disc.latitude, disc.longitude, jnp)
    land = boundary_layer(disc) * disc.land[None]
    heating = forcing.land_heating * land * (sun[None] - 0.25)
    potential = 315.0 - forcing.equator_to_pole * (np.sin(lat) - shift) ** 2 + heating
    potential = potential - 10.0 * jnp.log(ratio) * np.cos(lat) ** 2
    return jnp.maximum(200.0, ratio**disc.specs.kappa * potential)


def _water_vapor(
    disc: Discretization,
    q: Float[Array, "level lon lat"],
    temperature: Float[Array, "level lon lat"],
    pressure: Float[Array, "level lon lat"],
    seconds: float,
) -> tuple[Float[Array, "level lon lat"], Float[Array, "lon lat"]]:
    """Adds evaporation over sea, then removes water vapor above saturation."""
    # q: specific humidity, kg kg-1.
    # pressure: Pa.
    saturated = physics.saturation_specific_humidity(temperature, pressure)
    sea = 1.0 - disc.land[None]
    rate = boundary_layer(disc) * sea * (seconds / EVAPORATION_TIME)
    q = jnp.maximum(q, 0.0)
    lacking = jnp.maximum(RELATIVE_HUMIDITY * saturated - q, 0.0)
    q = q + rate / (1.0 + rate) * lacking
    excess = jnp.maximum(q - saturated, 0.0)
    surface_pressure = pressure[:1] / disc.sigma[:1]
    mass = surface_pressure * disc.thickness / physics.GRAVITY
    rain = jnp.sum(excess * mass, axis=0) / physics.WATER_DENSITY
    return q - excess, rain
