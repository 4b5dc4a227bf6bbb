"""`hybrid_level_interp`, before or after the model: interpolates to hybrid levels."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import PrivateAttr

from credit_jax.config.components import PackagedFile
from credit_jax.config.sources.source import OUTPUT_TYPES
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.physics.arrays import fill_padding
from credit_jax.physics.files import Coefficients, centers, level_numbers
from credit_jax.physics.interpolation import hybrid_to_hybrid
from credit_jax.transforms.base import (
    FieldTree,
    InputBlock,
    LevelFile,
    OutputBlock,
    StepContext,
    Transform,
    TreeSchema,
    get_field,
    postblock,
    preblock,
    source_of,
    with_fields,
)


class _LevelInterp(Transform):
    """Interpolates variables to other hybrid levels, linearly in log(pressure).

    Attributes:
        variables: keys of 3-D variables; missing ones are skipped.
        surface_pressure_var: key of surface pressure, Pa.
        source_level_info_file: file with the levels of the data; a name without a
            folder may be that of a file of this package.
        dest_level_info_file: file with the levels to interpolate to.
        source_a_var, source_b_var: names of the coefficients a (Pa) and b. The same
            name for both is a variable whose first two rows are a and b.
        source_on_interfaces: whether the coefficients are those of interfaces, which
            are averaged to centers.
        source_levels: levels to take, counted from 1; null takes all.
        dest_a_var, dest_b_var, dest_on_interfaces, dest_levels: the same for
            `dest_level_info_file`.
        chunk_size: no effect; all columns are computed at once.
    """

    variables: tuple[str, ...]
    surface_pressure_var: str
    source_level_info_file: PackagedFile
    dest_level_info_file: PackagedFile = "ERA5_Lev_Info.nc"
    source_a_var: str = "a_half"
    source_b_var: str = "b_half"
    source_on_interfaces: bool = True
    source_levels: tuple[int, ...] | None = None
    dest_a_var: str = "a_half"
    dest_b_var: str = "b_half"
    dest_on_interfaces: bool = True
    dest_levels: tuple[int, ...] | None = None
    chunk_size: int = 1000

    # Coefficients at the centers of the levels.
    _source: Coefficients = PrivateAttr()
    _dest: Coefficients = PrivateAttr()
    # Numbers of the source levels in their file; None if it has none.
    _numbers: CoordinateValues | None = PrivateAttr()

    def open(self) -> None:
        """Reads the coefficients."""
        self._source = centers(
            self.source_level_info_file,
            self.source_a_var,
            self.source_b_var,
            self.source_levels,
            on_interfaces=self.source_on_interfaces,
        )
        self._dest = centers(
            self.dest_level_info_file,
            self.dest_a_var,
            self.dest_b_var,
            self.dest_levels,
            on_interfaces=self.dest_on_interfaces,
        )
        self._numbers = level_numbers(
            self.source_level_info_file,
            self.source_a_var,
            self.source_levels,
            between=self.source_on_interfaces,
        )

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        names = f"{self.source_a_var}, {self.source_b_var}"
        origin = f"{self.source_level_info_file}: {names}"
        return (LevelFile(origin, self.variables.__contains__, self._numbers),)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces the variables of every entry.

        Raises:
            ValueError: an entry is missing, or a variable is not on the source levels.
        """
        new = dict(tree)
        for part in self.entries_in(tree):
            new = self._moved(new, part, context)
        return new

    def _moved(
        self, tree: FieldTree, part: str, context: StepContext
    ) -> dict[str, Any]:
        """The tree with the variables of an entry on the new levels."""
        if part not in tree:
            raise ValueError(
                f"the batch has no {part!r}; it has: {', '.join(sorted(tree))}"
            )
        fields = tree[part]
        present = [k for k in self.variables if k in fields.get(source_of(k), {})]
        if not present:
            return dict(tree)
        pressure = get_field(tree, part, self.surface_pressure_var)
        pressure = fill_padding(pressure, 1e5, context)
        moved = {}
        for key in present:
            field = get_field(tree, part, key)
            self._check_levels(part, key, field.shape[1])
            moved[key] = hybrid_to_hybrid(field, pressure, self._source, self._dest)
        return with_fields(tree, part, moved)

    def _check_levels(self, part: str, key: str, levels: int) -> None:
        count = len(self._source[0])
        if levels != count:
            raise ValueError(
                f"{key} of {part} has {levels} levels, the source coefficients "
                f"({self.source_level_info_file}: {self.source_a_var}, "
                f"{self.source_b_var}) are of {count}; give source_levels, counted "
                "from 1"
            )


@preblock("hybrid_level_interp")
class LevelInterpPreblock(InputBlock, _LevelInterp):
    """Interpolates the fields of the data to other hybrid levels."""

    @property
    def moves(self) -> tuple[str, ...]:
        """See `Transform`; pressure is among them."""
        if not any(map(is_predicted, self.variables)):
            return ()
        return (*self.variables, self.surface_pressure_var)

    def check(self, schema: TreeSchema) -> None:
        """Checks that variables of the data are on the source levels.

        Raises:
            ValueError: a variable has another number of levels.
        """
        for part in filter(schema.__contains__, self.data_types):
            for group in schema[part]:
                if group.var_key in self.variables:
                    self._check_levels(part, group.var_key, group.n_levels)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """The variables with their new numbers of levels."""
        new_schema, count = dict(schema), len(self._dest[0])
        for part in filter(schema.__contains__, self.data_types):
            new_schema[part] = [
                dataclasses.replace(group, n_levels=count, levels=None)  # type: ignore[type-var]
                if group.var_key in self.variables
                else group
                for group in schema[part]
            ]
        return new_schema


@postblock("hybrid_level_interp")
class LevelInterpPostblock(OutputBlock, _LevelInterp):
    """Interpolates predicted fields to other hybrid levels."""


def is_predicted(var_key: str) -> bool:
    """Whether the field type of a key is one that a model predicts.

    >>> is_predicted("ERA5/prognostic/3d/T")
    True
    """
    return var_key.split("/")[1:2] in ([kind] for kind in OUTPUT_TYPES)
