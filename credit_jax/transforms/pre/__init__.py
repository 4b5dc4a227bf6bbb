"""Preblocks: transforms before the model."""
