"""Which mesh a model runs on.

axes         names of the mesh axes, and the axes as a step sees them
degrees      resolves a config section to the degree of every axis
dims         `ParallelDims`: checked degrees, and the mesh of them
device_mesh  meshes of named axes, and parts of them
devices      the devices of a run, simulated on a CPU-only machine
model_fit    checks model sizes against the parallel degrees
credit       CREDIT's `parallel.mesh`: functions of the section {data, tensor, domain}
"""
