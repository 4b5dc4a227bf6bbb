"""The demo climate: dinosaur's primitive equations, Held-Suarez forcing, water vapor.

Dynamics: spectral primitive equations on sigma levels (dinosaur), SIL3 time steps.
Forcing: Held and Suarez (1994), doi:10.1175/1520-0477(1994)075<1825:APFTIO>2.0.CO;2,
whose equilibrium temperature follows the season (`SEASON`) and, over land, the Sun's
height. Moisture: one tracer as in Galewsky et al. (2005), doi:10.1175/JAS3532.1: it
evaporates over sea, is advected, and rains out above saturation; its latent heat does
not act back, so the circulation stays the well-known one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dinosaur import (
    coordinate_systems,
    primitive_equations,
    primitive_equations_states,
    scales,
    sigma_coordinates,
    spherical_harmonic,
    time_integration,
    units,
)
from jaxtyping import Array

from credit_jax.demo import physics

State = primitive_equations.State

STEP_SECONDS = {"T21": 4320.0, "T42": 2160.0}
OUTPUT_HOURS = 6
NUM_LEVELS = 8
SEASON = 0.1  # how far sin(latitude) of the warmest belt follows the Sun's
LAND_HEATING = 40.0  # K at the lowest level, Sun in the zenith against none
EVAPORATION_TIME = 21600.0  # s, towards RELATIVE_HUMIDITY over sea below SIGMA_B
RELATIVE_HUMIDITY = 0.8
SIGMA_B = 0.7  # top of the boundary layer, Held and Suarez (1994)
DAY = 86400.0  # s
REFERENCE_PRESSURE = 1e5  # Pa
REFERENCE_TEMPERATURE = 288.0  # K


@dataclasses.dataclass(frozen=True)
class Climate:
    """The model, ready to run.

    Attributes:
        advance: jitted, `(state, day) -> (state, rain)` over one output interval; day
            counts from 1 January, rain is in m of water since the last output.
        fields: jitted, `state -> {U, V, T, Q (level, lat, lon), SP, V500, Z500
            (lat, lon)}`, north first, SI units.
        initial: the state at rest, slightly perturbed by the seed.
        latitude, longitude: degrees; latitude from north to south.
        sigma: (level,) centers, top first.
        static: {"Z_GDS4_SFC": surface geopotential m2 s-2, "LSM"}, (lat, lon).
    """

    advance: Callable[[State, float], tuple[State, Array]]
    fields: Callable[[State], dict[str, Array]]
    initial: State
    latitude: np.ndarray
    longitude: np.ndarray
    sigma: np.ndarray
    static: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Setup:
    """What the functions below share: coordinates, unit scales, static fields.

    Arrays are in dinosaur's order (level, lon, lat), south first.
    """

    coords: coordinate_systems.CoordinateSystem
    specs: Any
    kelvin: float
    pascal: float
    second: float
    meter: float
    longitude: np.ndarray
    latitude: np.ndarray
    land: np.ndarray
    height: np.ndarray

    @property
    def sigma(self) -> np.ndarray:
        """(level, 1, 1) centers of the layers."""
        return self.coords.vertical.centers[:, None, None]

    @property
    def thickness(self) -> np.ndarray:
        """(level, 1, 1) of the layers, in sigma."""
        boundaries = sigma_coordinates.SigmaCoordinates.equidistant(NUM_LEVELS)
        return boundaries.layer_thickness[:, None, None]

    @property
    def grid(self) -> spherical_harmonic.Grid:
        """Transforms between points and waves."""
        return self.coords.horizontal


def _setup(truncation: str) -> _Setup:
    specs = units.SimUnits.from_si()
    make_grid = getattr(spherical_harmonic.Grid, truncation)
    grid = make_grid(
        radius=specs.radius,
        spherical_harmonics_impl=spherical_harmonic.FastSphericalHarmonics,
    )
    vertical = sigma_coordinates.SigmaCoordinates.equidistant(NUM_LEVELS)
    coords = coordinate_systems.CoordinateSystem(grid, vertical)
    lon, sin_lat = grid.nodal_mesh
    lat = np.arcsin(sin_lat)
    one = specs.nondimensionalize
    rough = physics.mountain_height(lat, lon)
    height = np.asarray(grid.to_nodal(grid.to_modal(rough.astype(np.float32))))
    return _Setup(
        coords=coords,
        specs=specs,
        kelvin=float(one(1 * scales.units.degK)),
        pascal=float(one(1 * scales.units.pascal)),
        second=float(one(1 * scales.units.s)),
        meter=float(one(1 * scales.units.m)),
        longitude=lon,
        latitude=lat,
        land=physics.land_mask(lat, lon),
        height=height,
    )


def equilibrium_temperature(setup: _Setup, pressure: Array, day: Array) -> Array:
    """Held and Suarez' radiative equilibrium in K, with season and a warm land.

    max(200, (p/p0)^kappa (315 - 60 (sin lat - s)^2 - 10 ln(p/p0) cos(lat)^2 + h)),
    s = SEASON sin(declination), h = LAND_HEATING times land times the boundary layer's
    weight times (cos(zenith) - 1/4).
    """
    lat, ratio = setup.latitude[None], pressure / REFERENCE_PRESSURE
    shift = SEASON * jnp.sin(physics.declination(day, jnp))
    sun = physics.cos_zenith(day, setup.latitude, setup.longitude, jnp)
    layer = np.maximum(0.0, (setup.sigma - SIGMA_B) / (1.0 - SIGMA_B))
    heating = LAND_HEATING * layer * setup.land[None] * (sun[None] - 0.25)
    potential = 315.0 - 60.0 * (np.sin(lat) - shift) ** 2 + heating
    potential = potential - 10.0 * jnp.log(ratio) * np.cos(lat) ** 2
    return jnp.maximum(200.0, ratio**setup.specs.kappa * potential)


def _moisture(
    setup: _Setup, q: Array, temperature: Array, pressure: Array, seconds: float
) -> tuple[Array, Array]:
    """Evaporate over sea, then remove what exceeds saturation; rain (lon, lat) in m."""
    saturated = physics.saturation_specific_humidity(temperature, pressure)
    layer = np.maximum(0.0, (setup.sigma - SIGMA_B) / (1.0 - SIGMA_B))
    rate = layer * (1.0 - setup.land[None]) * (seconds / EVAPORATION_TIME)
    q = jnp.maximum(q, 0.0)
    lacking = jnp.maximum(RELATIVE_HUMIDITY * saturated - q, 0.0)
    q = q + rate / (1.0 + rate) * lacking
    excess = jnp.maximum(q - saturated, 0.0)
    surface_pressure = pressure[:1] / setup.sigma[:1]
    thickness = setup.thickness
    mass = surface_pressure * thickness / physics.GRAVITY
    rain = jnp.sum(excess * mass, axis=0) / physics.WATER_DENSITY
    return q - excess, rain


def _physics_step(setup: _Setup, seconds: float) -> Callable:
    """`(state, day) -> (state, rain)`: drag, heating and moisture, implicit in time."""
    layer = np.maximum(0.0, (setup.sigma - SIGMA_B) / (1.0 - SIGMA_B))
    drag = 1.0 / (1.0 + seconds / DAY * layer)
    relax = 1.0 / 40.0 + (1.0 / 4.0 - 1.0 / 40.0) * (
        layer * np.cos(setup.latitude[None]) ** 4
    )
    weight = seconds / DAY * relax
    reference = REFERENCE_TEMPERATURE * setup.kelvin

    def step(state: State, day: Array) -> tuple[State, Array]:
        nodal = setup.grid.to_nodal
        kelvins = (nodal(state.temperature_variation) + reference) / setup.kelvin
        surface = jnp.exp(nodal(state.log_surface_pressure)) / setup.pascal
        pressure = jnp.asarray(setup.sigma) * surface
        target = equilibrium_temperature(setup, pressure, day)
        warmer = (kelvins + weight * target) / (1.0 + weight)
        q, rain = _moisture(
            setup, nodal(state.tracers["q"]), kelvins, pressure, seconds
        )
        modal = setup.grid.to_modal
        new = dataclasses.replace(
            state,
            vorticity=state.vorticity * drag,
            divergence=state.divergence * drag,
            temperature_variation=modal(warmer * setup.kelvin - reference),
            tracers={"q": modal(q)},
        )
        return new, rain

    return step


def _dynamics_step(setup: _Setup, seconds: float) -> Callable[[State], State]:
    """One step of the primitive equations; a filter damps the smallest waves."""
    step = seconds * setup.second
    equations = primitive_equations.PrimitiveEquationsSigma(
        np.full(NUM_LEVELS, REFERENCE_TEMPERATURE * setup.kelvin),
        primitive_equations.truncated_modal_orography(
            setup.height * setup.meter, setup.coords
        ),
        setup.coords,
        setup.specs,
    )
    smooth = time_integration.exponential_step_filter(setup.grid, step)
    return time_integration.step_with_filters(
        time_integration.imex_rk_sil3(equations, step), [smooth]
    )


def _initial_state(setup: _Setup, seed: int) -> State:
    """At rest, isothermal, with a small pressure wave that the seed places."""
    make, _ = primitive_equations_states.isothermal_rest_atmosphere(
        setup.coords,
        setup.specs,
        tref=REFERENCE_TEMPERATURE * scales.units.degK,
        p0=REFERENCE_PRESSURE * scales.units.pascal,
        p1=5e3 * scales.units.pascal,
        surface_height=setup.height * scales.units.m,
    )
    state = make(jax.random.key(seed))
    return dataclasses.replace(
        state, tracers={"q": jnp.zeros_like(state.temperature_variation)}
    )


def _fields(setup: _Setup, state: State) -> dict[str, Array]:
    nodal, grid = setup.grid.to_nodal, setup.grid
    u, v = spherical_harmonic.vor_div_to_uv_nodal(
        grid, state.vorticity, state.divergence
    )
    speed = setup.meter / setup.second
    kelvins = nodal(state.temperature_variation) / setup.kelvin
    surface = jnp.exp(nodal(state.log_surface_pressure))[0] / setup.pascal
    native = {
        "U": u / speed,
        "V": v / speed,
        "T": kelvins + REFERENCE_TEMPERATURE,
        "Q": jnp.maximum(nodal(state.tracers["q"]), 0.0),
        "SP": surface,
        "V500": _at_500(setup, v / speed, surface),
        "Z500": _at_500(
            setup, _geopotential(setup, kelvins + REFERENCE_TEMPERATURE), surface
        ),
    }
    return {name: to_north_first(field) for name, field in native.items()}


def _geopotential(setup: _Setup, temperature: Array) -> Array:
    """Geopotential of all levels, m2 s-2, (level, lon, lat): hydrostatic balance.

    g z + R T_N ln(1 / sigma_N) at the lowest level N; from level k + 1 to k it grows by
    R (T_k + T_k+1) / 2 ln(sigma_k+1 / sigma_k).
    """
    log_sigma = np.log(setup.coords.vertical.centers)
    gas = physics.DRY_AIR_GAS
    lowest = physics.GRAVITY * setup.height - gas * temperature[-1] * log_sigma[-1]
    between = 0.5 * (temperature[1:] + temperature[:-1])
    steps = gas * between * np.diff(log_sigma)[:, None, None]
    above = jnp.cumsum(steps[::-1], axis=0)[::-1]
    return jnp.concatenate([lowest[None] + above, lowest[None]])


def _at_500(setup: _Setup, field: Array, surface: Array) -> Array:
    """A field (level, lon, lat) at 500 hPa, linear in the logarithm of pressure.

    Args:
        field: on sigma levels.
        surface: surface pressure in Pa, (lon, lat).
    """
    log_sigma = np.log(setup.coords.vertical.centers)
    gaps = np.diff(log_sigma)
    below = np.append(gaps, np.inf)[:, None, None]
    over = np.insert(gaps, 0, np.inf)[:, None, None]
    offset = jnp.log(5e4 / surface)[None] - log_sigma[:, None, None]
    distance = jnp.where(offset > 0, offset / below, -offset / over)
    return jnp.sum(jnp.clip(1.0 - distance, 0.0, 1.0) * field, axis=0)


def to_north_first(field: Any) -> Any:
    """(..., lon, lat) south first -> (..., lat, lon) north first."""
    return field.swapaxes(-1, -2)[..., ::-1, :]


def build_climate(truncation: str, seed: int) -> Climate:
    """Assemble the model; nothing is run yet.

    Args:
        truncation: "T21" (32 x 64) or "T42" (64 x 128).
        seed: places the initial perturbation.
    """
    setup = _setup(truncation)
    seconds = STEP_SECONDS[truncation]
    dynamics, forcing = _dynamics_step(setup, seconds), _physics_step(setup, seconds)
    num_steps = round(OUTPUT_HOURS * 3600 / seconds)

    def one_step(carry: tuple[State, Array, Array], _: None) -> tuple:
        state, rain, day = carry
        state, new_rain = forcing(dynamics(state), day)
        return (state, rain + new_rain, day + seconds / DAY), None

    def advance(state: State, day: Array) -> tuple[State, Array]:
        start = (state, jnp.zeros(setup.latitude.shape), jnp.float32(day))
        (state, rain, _), _ = jax.lax.scan(one_step, start, length=num_steps)
        return state, to_north_first(rain)

    return Climate(
        advance=jax.jit(advance),
        fields=jax.jit(lambda state: _fields(setup, state)),
        initial=_initial_state(setup, seed),
        latitude=np.degrees(setup.latitude[0, ::-1]),
        longitude=np.degrees(setup.longitude[:, 0]),
        sigma=np.asarray(setup.coords.vertical.centers),
        static={
            "Z_GDS4_SFC": to_north_first(setup.height) * physics.GRAVITY,
            "LSM": to_north_first(setup.land),
        },
    )
