"""The device mesh: axes, degrees, devices, and checks of model sizes.

device_mesh  meshes of named axes, submeshes, and `MeshAxes` for code in `shard_map`
dims         degrees from a config section, and `ParallelDims`, which builds meshes
devices      the devices of a run, simulated on a CPU-only machine
model_fit    checks model sizes against the parallel degrees
credit       CREDIT's `parallel.mesh`: functions of the section {data, tensor, domain}
"""
