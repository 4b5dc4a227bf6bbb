"""Imports CREDIT, which only comparisons require.

It makes a CUDA build of torchvision importable with CPU torch. CREDIT imports timm,
which imports torchvision. The operators of the torchvision on the package index are
compiled for CUDA and do not load with CPU torch, so that registering Python rules for
them fails. No model calls them; declaring their names is enough.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType

import torch

HOW_TO_INSTALL = "pip install miles-credit"

# The operators for which torchvision 0.28 registers a rule when it is imported.
_NAMES = (
    *("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"),
    *("_roi_align_backward", "_roi_pool_backward", "_ps_roi_align_backward"),
    *("_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward"),
)

# torch drops a library's operators when the library object is collected.
_LIBRARIES: list[torch.library.Library] = []


def import_credit(name: str = "") -> ModuleType:
    """Imports the module `credit.<name>`.

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
    _LIBRARIES.append(library)
    importlib.import_module("torchvision")
