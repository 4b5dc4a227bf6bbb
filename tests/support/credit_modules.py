"""Single classes of CREDIT, for tests of one operation."""

import importlib
import warnings
from typing import Any


def credit_attribute(module: str, name: str) -> Any:
    """`credit.<module>.<name>`; for tests that use the fixture `credit`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("tests.reference.torchvision_ops").import_torchvision()
        return getattr(importlib.import_module(f"credit.{module}"), name)
