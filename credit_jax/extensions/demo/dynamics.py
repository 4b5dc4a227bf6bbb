"""The demo climate: dinosaur's primitive equations with the forcing of `forcing`.

Spectral primitive equations on sigma levels, advanced by the implicit-explicit
Runge-Kutta scheme SIL3 (Whitaker and Kar 2013, doi:10.1175/MWR-D-13-00132.1).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dinosaur import (
    primitive_equations,
    primitive_equations_states,
    scales,
    spherical_harmonic,
    time_integration,
)
from jaxtyping import Array, Float

from credit_jax.config.config import ForcingConfig
from credit_jax.extensions.demo import physics
from credit_jax.extensions.demo.forcing import (
    DAY,
    NUM_LEVELS,
    REFERENCE_PRESSURE,
    REFERENCE_TEMPERATURE,
    Discretization,
    SpectralState,
    discretize,
    forcing_step,
)

STEP_SECONDS = {"T21": 4320.0, "T42": 2160.0}
OUTPUT_HOURS = 6
PERTURBATION = 5e3  # Pa, amplitude of the initial pressure wave


@dataclasses.dataclass(frozen=True)
class Climate:
    """The functions and constant fields of the demo climate."""

    # (state, days since 1 January 00 UTC) -> (state, rain in m of water since the last
    # output) over one output interval.
    advance: Callable[[SpectralState, float], tuple[SpectralState, Array]]
    fields: Callable[[SpectralState], dict[str, Array]]  # by name, see `fields_of`
    initial: SpectralState  # at rest, with a pressure wave
    latitude: Float[np.ndarray, " lat"]  # degrees, from north to south
    longitude: Float[np.ndarray, " lon"]
    sigma: Float[np.ndarray, " level"]  # centers, top first
    # "Z_GDS4_SFC" (surface geopotential, m2 s-2) and "LSM" (1 on land).
    static: dict[str, Float[np.ndarray, "lat lon"]]


def build_climate(
    truncation: str, seed: int, forcing: ForcingConfig | None = None
) -> Climate:
    """Builds the climate, without running it, of "T21" (32 x 64 points) or "T42"."""
    forcing = forcing or ForcingConfig()
    disc = discretize(truncation)
    # Dry, isothermal and at rest, with a pressure wave at a random position.
    make, _ = primitive_equations_states.isothermal_rest_atmosphere(
        disc.coords,
        disc.specs,
        tref=REFERENCE_TEMPERATURE * scales.units.degK,
        p0=REFERENCE_PRESSURE * scales.units.pascal,
        p1=PERTURBATION * scales.units.pascal,
        surface_height=disc.height * scales.units.m,
    )
    initial = make(jax.random.key(seed))
    dry = {"q": jnp.zeros_like(initial.temperature_variation)}
    return Climate(
        advance=jax.jit(_advance(disc, STEP_SECONDS[truncation], forcing)),
        fields=jax.jit(lambda state: fields_of(disc, state)),
        initial=dataclasses.replace(initial, tracers=dry),
        latitude=np.degrees(disc.latitude[0, ::-1]),
        longitude=np.degrees(disc.longitude[:, 0]),
        sigma=np.asarray(disc.levels.centers),
        static={
            "Z_GDS4_SFC": to_north_first(disc.height) * physics.GRAVITY,
            "LSM": to_north_first(disc.land),
        },
    )


def _advance(disc: Discretization, seconds: float, forcing: ForcingConfig) -> Callable:
    """`(state, day) -> (state, rain)` over `OUTPUT_HOURS`, in steps of `seconds`."""
    # Primitive equations, and a filter of the shortest waves.
    length = seconds * disc.second
    equations = primitive_equations.PrimitiveEquationsSigma(
        np.full(NUM_LEVELS, REFERENCE_TEMPERATURE * disc.kelvin),
        primitive_equations.truncated_modal_orography(
            disc.height * disc.meter, disc.coords
        ),
        disc.coords,
        disc.specs,
    )
    smooth = time_integration.exponential_step_filter(disc.grid, length)
    dynamics = time_integration.step_with_filters(
        time_integration.imex_rk_sil3(equations, length), [smooth]
    )
    force = forcing_step(disc, seconds, forcing)
    num_steps = round(OUTPUT_HOURS * 3600 / seconds)

    def step(carry: tuple[SpectralState, Array, Array], _: None) -> tuple:
        state, rain, day = carry
        state, new_rain = force(dynamics(state), day)
        return (state, rain + new_rain, day + seconds / DAY), None

    def advance(state: SpectralState, day: Array) -> tuple[SpectralState, Array]:
        start = (state, jnp.zeros(disc.latitude.shape), jnp.float32(day))
        (state, rain, _), _ = jax.lax.scan(step, start, length=num_steps)
        return state, to_north_first(rain)

    return advance


def fields_of(disc: Discretization, state: SpectralState) -> dict[str, Array]:
    """U, V, T, Q (level, lat, lon), SP, V500, Z500 (lat, lon), SI, north first."""
    nodal, speed = disc.grid.to_nodal, disc.meter / disc.second
    u, v = spherical_harmonic.vor_div_to_uv_nodal(
        disc.grid, state.vorticity, state.divergence
    )
    variation = nodal(state.temperature_variation) / disc.kelvin
    temperature = variation + REFERENCE_TEMPERATURE
    surface = jnp.exp(nodal(state.log_surface_pressure))[0] / disc.pascal
    native = {
        "U": u / speed,
        "V": v / speed,
        "T": temperature,
        # Spectral truncation makes negative ones.
        "Q": jnp.maximum(nodal(state.tracers["q"]), 0.0),
        "SP": surface,
        "V500": at_500_hpa(disc, v / speed, surface),
        "Z500": at_500_hpa(disc, geopotential(disc, temperature), surface),
    }
    return {name: to_north_first(field) for name, field in native.items()}


def geopotential(
    disc: Discretization, temperature: Float[Array, "level lon lat"]
) -> Float[Array, "level lon lat"]:
    """Computes the geopotential of the levels in m2 s-2, by hydrostatic balance."""
    log_sigma = np.log(disc.levels.centers)
    gas = physics.DRY_AIR_GAS
    # g z + R T_N ln(1 / sigma_N) at the lowest level N; from level k + 1 to k it
    # increases by R (T_k + T_k+1) / 2 ln(sigma_k+1 / sigma_k).
    lowest = physics.GRAVITY * disc.height - gas * temperature[-1] * log_sigma[-1]
    between = 0.5 * (temperature[1:] + temperature[:-1])
    steps = gas * between * np.diff(log_sigma)[:, None, None]
    above = jnp.cumsum(steps[::-1], axis=0)[::-1]
    return jnp.concatenate([lowest[None] + above, lowest[None]])


def at_500_hpa(
    disc: Discretization,
    field: Float[Array, "level lon lat"],
    surface_pressure: Float[Array, "lon lat"],
) -> Float[Array, "lon lat"]:
    """Interpolates to 500 hPa, linearly in log(pressure), constant beyond levels."""
    log_sigma = np.log(disc.levels.centers)
    gaps = np.diff(log_sigma)
    below = np.append(gaps, np.inf)[:, None, None]
    above = np.insert(gaps, 0, np.inf)[:, None, None]
    offset = jnp.log(5e4 / surface_pressure)[None] - log_sigma[:, None, None]
    distance = jnp.where(offset > 0, offset / below, -offset / above)
    return jnp.sum(jnp.clip(1.0 - distance, 0.0, 1.0) * field, axis=0)


def to_north_first(field: Any) -> Any:
    """Converts (..., lon, lat), south first, to (..., lat, lon), north first."""
    return field.swapaxes(-1, -2)[..., ::-1, :]
