"""Kernels written for GPUs: Pallas programs that Triton compiles."""
