"""The tests; the jaxtyping hook finds its type checker here."""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Imports the type checker where it is used: processes of tests have no hook."""
    if name != "typechecker":
        raise AttributeError(f"module 'tests' has no attribute '{name}'")
    return import_module("tests.typechecker")
