"""Imports of single classes of CREDIT, for tests of one operation."""

import importlib
import warnings
from typing import Any


def credit_attribute(module: str, name: str) -> Any:
    """Returns `credit.<module>.<name>`, for tests that use the fixture `credit`."""
    bridge = importlib.import_module("credit_torch_bridge.compare.jax_side")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(bridge.import_credit(module), name)
