"""A data section with the names that its variables have in forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from credit_jax.config.data import DataConfig
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.transforms.build import predicted_names


@dataclass(frozen=True)
class NamedData:
    """A data section, and the names of its variables in forecasts.

    Attributes:
        data: the section.
        names: key of a variable -> its key in forecasts, where a preblock `rename`
            gives it another one.
        moved: keys of variables that forecasts have on other levels, to which a
            preblock `hybrid_level_interp` brings them.
    """

    data: DataConfig
    names: Mapping[str, str] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()

    @classmethod
    def before(cls, preblocks: PreblocksConfig, data: DataConfig) -> NamedData:
        """The data that some preblocks make the model's input from.

        Raises:
            ValueError, OSError: a `rename` or `hybrid_level_interp` is invalid, or the
                file of a rename cannot be read.
        """
        return cls(data, *predicted_names(preblocks))
