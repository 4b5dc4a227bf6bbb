"""Satellites, radars and models of NOAA: sources that a config imports by their type.

Nothing else imports this package: `credit_jax.config.sources.registry` names its
sources.
"""
