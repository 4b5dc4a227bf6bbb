"""Fits the scalers, means and deviations that the preblocks of a config read."""
