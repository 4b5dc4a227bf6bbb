"""Postblocks: transforms after the model."""
