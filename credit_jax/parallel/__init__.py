"""The parallel toolkit: meshes, layouts, operations on sharded fields, policies.

Definitions on one device are in `credit_jax.ops`. Functions of a model are in higher
layers: `build_parallel_model` in `credit_jax.models.parallel_model`,
`apply_tensor_parallel` in `credit_jax.nn.tensor_parallel`.
"""
