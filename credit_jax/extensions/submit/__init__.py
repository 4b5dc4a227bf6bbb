"""Training as jobs of batch systems."""
