"""Constants of CREDIT's physics_constants.py, in SI units."""

EARTH_RADIUS = 6371000.0  # m
DRY_GAS_CONSTANT = 287.05  # J / kg / K
GRAVITY = 9.80665  # m / s^2
WATER_DENSITY = 1000.0  # kg / m^3
LATENT_HEAT = 2.501e6  # J / kg, of vaporization
HEAT_CAPACITY_DRY = 1004.64  # J / kg / K, at constant pressure
HEAT_CAPACITY_VAPOR = 1810.0  # J / kg / K
LAPSE_RATE = 0.0065  # K / m, of the standard atmosphere
STANDARD_PRESSURE = 101325.0  # Pa
SECONDS_PER_HOUR = 3600
