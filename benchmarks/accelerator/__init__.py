"""The training step compiled for accelerators that are not there, and its roofline."""
