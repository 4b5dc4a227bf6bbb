"""Satellites, radars and models of NOAA: sources that a config imports by their type.

Nothing else imports this package: `credit_jax.config.custom_objects` has its entry
points.
"""
