"""Satellites, radars and models of NOAA: sources that a config names by their type."""
