"""The postblock `era5_normalizer`: the inverse of the preblock of that name.

CREDIT has no such postblock: its forecasts of several steps normalize fields twice.
gen1 configs, whose forecasts feed back normalized fields without change, are converted
to configs with this block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import Axes
from credit_jax.transforms.base import FieldTree, LevelFile, TreeSchema, change_entry
from credit_jax.transforms.pre.normalize import (
    Normalizer,
    NormalizerArgs,
    build_normalizer,
)


class DenormalizerArgs(NormalizerArgs):
    """Arguments of the postblock `era5_normalizer`.

    Attributes:
        key: entry to change.
    """

    key: str = "y_processed"


@dataclass(frozen=True)
class Denormalizer:
    """Computes y std + mean for the variables that both files have.

    Attributes:
        normalizer: the preblock.
        key: entry to change.
        origins: key of a variable of that entry -> its key in the preblock, if it has
            another one there.
    """

    normalizer: Normalizer
    key: str = "y_processed"
    origins: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Converts the fields of the entry `key` to physical units."""
        return change_entry(tree, self._undo, self.key, "era5_normalizer")

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `HasLevelFiles`."""
        return self.normalizer.level_files

    def at(self, schema: TreeSchema, grid: Axes) -> Denormalizer:
        """Returns the block with the statistics of the levels of the data."""
        before = {
            part: [
                replace(group, var_key=self.origins.get(group.var_key, group.var_key))  # type: ignore[type-var]
                for group in groups
            ]
            for part, groups in schema.items()
        }
        normalizer = self.normalizer.at(before, grid)
        if normalizer is self.normalizer:
            return self
        return replace(self, normalizer=normalizer)

    def _undo(self, key: str, array: Any) -> Any:
        return self.normalizer.denormalize(self.origins.get(key, key), array)


def build_denormalizer(args: DenormalizerArgs) -> Denormalizer:
    """Builds the block; reads both files. See `build_normalizer` for the errors."""
    return Denormalizer(build_normalizer(args), args.key)
