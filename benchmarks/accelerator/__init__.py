"""The training step compiled for accelerators without a device, and its roofline."""
