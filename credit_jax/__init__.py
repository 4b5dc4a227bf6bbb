"""CREDIT's weather models as pure JAX functions, exact on every mesh.

The public names are those of `__init__.pyi`. Each is imported when it is first used, so
that `import credit_jax` imports neither JAX nor anything else. docs/library.md shows
how they are used together.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
