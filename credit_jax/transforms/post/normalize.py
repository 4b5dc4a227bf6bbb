"""`era5_normalizer` among the postblocks: undoes the preblock of that name.

CREDIT has none: its forecasts of several steps normalize normalized fields again. A
config of its first generation, whose forecasts feed normalized fields back as they are,
becomes one with this block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from credit_jax.fields import FieldContext
from credit_jax.transforms.base import FieldTree, change_entry
from credit_jax.transforms.pre.normalize import (
    Normalizer,
    NormalizerArgs,
    build_normalizer,
)


class DenormalizerArgs(NormalizerArgs):
    """Arguments of the postblock `era5_normalizer`.

    Attributes:
        key: entry whose fields are changed.
    """

    key: str = "y_processed"


@dataclass(frozen=True)
class Denormalizer:
    """y -> y std + mean, for the variables of both files.

    Attributes:
        normalizer: the preblock.
        key: entry whose fields are changed.
    """

    normalizer: Normalizer
    key: str = "y_processed"

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """From normalized to physical units, in the fields of `key`."""
        undo = self.normalizer.denormalize
        return change_entry(tree, undo, self.key, "era5_normalizer")


def build_denormalizer(args: DenormalizerArgs) -> Denormalizer:
    """Reads both files; see `build_normalizer` for the errors."""
    return Denormalizer(build_normalizer(args), args.key)
