"""The device mesh: axes, degrees, devices, and checks of model sizes.

axes         names of the mesh axes, and `MeshAxes` for code inside of `shard_map`
degrees      resolves a config section to the degree of every axis
dims         `ParallelDims`: validated degrees, from which meshes are built
device_mesh  meshes of named axes, and submeshes
devices      the devices of a run, simulated on a CPU-only machine
model_fit    checks model sizes against the parallel degrees
credit       CREDIT's `parallel.mesh`: functions of the section {data, tensor, domain}
"""
