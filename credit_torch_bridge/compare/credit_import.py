"""Imports CREDIT itself, which only comparisons with it need.

It lets a CUDA build of torchvision import beside CPU torch. CREDIT imports timm, timm
imports torchvision, and the torchvision of the package index is compiled for CUDA:
beside CPU torch its operators cannot load, and the import then fails where it attaches
Python rules to them by name. No model calls one, so a name is all that is missing.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType

import torch

HOW_TO_INSTALL = "pip install miles-credit"

# The operators that torchvision 0.28 attaches a rule to when it is imported.
_NAMES = (
    "nms",
    "qnms",
    "roi_align",
    "_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "deform_conv2d",
    "_deform_conv2d_backward",
)

# torch forgets a library's parameter specs when the library object is collected.
_KEPT: list[torch.library.Library] = []


def import_credit(name: str = "") -> ModuleType:
    """The module `credit.<name>`.

    Raises:
        ValueError: CREDIT is not installed.
    """
    # Suppress the warnings of CREDIT and its libraries.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import_torchvision()
            return importlib.import_module(f"credit.{name}" if name else "credit")
        except ModuleNotFoundError as error:
            raise ValueError(
                f"CREDIT is needed, and cannot be imported ({error}); install it with: "
                f"{HOW_TO_INSTALL}"
            ) from None


def import_torchvision() -> None:
    """Imports torchvision, declaring its operators first where they are missing.

    Raises:
        RuntimeError: torchvision fails to import for another reason.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    else:
        return
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    for name in _NAMES:
        library.define(f"{name}(Tensor x) -> Tensor")
    _KEPT.append(library)
    importlib.import_module("torchvision")
