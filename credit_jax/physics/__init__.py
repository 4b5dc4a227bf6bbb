"""Physics of fields: integrals, conservation, vertical grids, advection.

Fields are (batch, level, time, lat, lon) in physical units, whole numpy arrays on the
host (no context) or local rows of JAX arrays inside `shard_map` (with the
`FieldContext` of the step). Functions take arrays; which variable is which is up to the
caller.
"""
