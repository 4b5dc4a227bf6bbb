"""Physics of fields: integrals, conservation, vertical grids, advection.

Fields are (batch, level, time, lat, lon) in physical units: whole arrays on the host
(context None), or local rows of JAX arrays inside `shard_map` (with the `FieldContext`
of the step). Functions take plain arrays; callers select the variables.
"""
