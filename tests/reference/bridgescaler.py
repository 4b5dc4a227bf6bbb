"""Imports bridgescaler, which CREDIT uses, without compiling its functions at once.

numba compiles two of them at the import, which few tests call: 4 seconds of each
process that reads scalers as CREDIT does.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any
from unittest import mock


def import_bridgescaler() -> None:
    """Imports it, so that a function is compiled by its first call."""
    import numba

    def guvectorize(*options: Any) -> Callable[[Any], Any]:
        def late(function: Any) -> Any:
            @cache
            def compiled() -> Any:
                return eager(*options)(function)

            return wraps(function)(lambda *args, **given: compiled()(*args, **given))

        return late

    eager = numba.guvectorize
    with mock.patch.object(numba, "guvectorize", guvectorize):
        import bridgescaler.distributed  # noqa: F401
