"""Converts CREDIT's PyTorch checkpoints to credit_jax and back without loss.

The public names are those of `__init__.pyi`. Each is imported when it is first used, so
that `import credit_torch_bridge` imports neither torch nor JAX.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
