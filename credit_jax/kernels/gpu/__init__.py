"""Kernels for GPUs: Pallas kernels that are compiled by Triton."""
