"""Fits the scalers and the means and deviations that the preblocks of a config read."""
