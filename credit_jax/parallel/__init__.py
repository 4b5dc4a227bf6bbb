"""The parallel toolkit: meshes, layouts, operations on sharded fields, policies.

These are the public names of its modules. Definitions on one device are in
`credit_jax.ops`. Functions of a model are in higher layers: `build_parallel_model` in
`credit_jax.models.parallel_model`, `apply_tensor_parallel` in
`credit_jax.nn.tensor_parallel`.

Each is imported when it is first used, so that a process imports what it needs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
