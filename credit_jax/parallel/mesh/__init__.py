"""Which mesh a model runs on.

axes         names of the mesh axes, and the axes as a step sees them
degrees      from a config block to the degree of every axis, with all that is wrong
dims         `ParallelDims`: checked degrees, and the mesh of them
device_mesh  meshes of named axes, and parts of them
devices      enough devices, simulated ones on a CPU-only machine
model_fit    checks model sizes against the parallel degrees
credit       the functions of CREDIT's `parallel.mesh`: the block {data, tensor, domain}
"""
