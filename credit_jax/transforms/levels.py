"""`hybrid_level_interp`, before or after the model: interpolates to hybrid levels."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from credit_jax.config import StrictModel
from credit_jax.config.fields import OUTPUT_TYPES
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.physics.files import Coefficients, centers, level_numbers
from credit_jax.physics.interpolation import hybrid_to_hybrid
from credit_jax.physics.rows import fill_padding
from credit_jax.transforms.base import FieldTree, LevelFile, Transform, TreeSchema
from credit_jax.transforms.named import get_field, source_of, with_fields


class LevelInterpArgs(StrictModel):
    """Arguments that both blocks share.

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
    source_level_info_file: str
    dest_level_info_file: str = "ERA5_Lev_Info.nc"
    source_a_var: str = "a_half"
    source_b_var: str = "b_half"
    source_on_interfaces: bool = True
    source_levels: tuple[int, ...] | None = None
    dest_a_var: str = "a_half"
    dest_b_var: str = "b_half"
    dest_on_interfaces: bool = True
    dest_levels: tuple[int, ...] | None = None
    chunk_size: int = 1000


class LevelInterpPreArgs(LevelInterpArgs):
    """Interpolates the fields of the data to other hybrid levels.

    Attributes:
        data_types: entries to interpolate; missing ones are skipped.
    """

    data_types: tuple[Literal["input", "target"], ...] = ("input", "target")


class LevelInterpPostArgs(LevelInterpArgs):
    """Interpolates predicted fields to other hybrid levels.

    Attributes:
        key: entry to interpolate.
    """

    key: str = "y_processed"


@dataclasses.dataclass(frozen=True, eq=False)
class LevelInterp(Transform):
    """Interpolates variables to other hybrid levels, linearly in log(pressure).

    Attributes:
        args: see `LevelInterpArgs`.
        parts: entries of the tree to change.
        required: whether a missing entry is an error.
        source, dest: coefficients at the centers of the levels.
        numbers: numbers of the source levels in their file; None if it has none.
    """

    args: LevelInterpArgs
    parts: tuple[str, ...]
    required: bool
    source: Coefficients
    dest: Coefficients
    numbers: CoordinateValues | None = None

    @property
    def predicted(self) -> tuple[str, ...]:
        """The keys among its variables that a model predicts, on the new levels."""
        return tuple(key for key in self.args.variables if is_predicted(key))

    @property
    def moves_fields(self) -> bool:
        """See `Transform`."""
        return bool(self.predicted)

    def variables_read(self) -> tuple[str, ...]:
        """See `Transform`; pressure is among them.

        Raises:
            ValueError: it interpolates variables that are read anew in every step, for
                which it needs the pressure that is predicted there.
        """
        variables, predicted = self.args.variables, self.predicted
        others = [key for key in variables if key not in predicted]
        if others:
            raise ValueError(
                f"it interpolates {predicted[0]}, which a model predicts on the new "
                f"levels, and {others[0]}, which it does not predict; in a forecast of "
                "several steps they need blocks of their own"
            )
        return (*variables, self.args.surface_pressure_var)

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        args = self.args
        names = f"{args.source_a_var}, {args.source_b_var}"
        where = f"{args.source_level_info_file}: {names}"
        return (LevelFile(where, args.variables.__contains__, self.numbers),)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces the variables of every entry.

        Raises:
            ValueError: an entry is missing, or a variable is not on the source levels.
        """
        new = dict(tree)
        for part in self.parts:
            if part in new or self.required:
                new = with_fields(new, part, self._moved(new, part, context))
        return new

    def check(self, schema: TreeSchema) -> None:
        """Checks that variables of the data are on the source levels.

        Raises:
            ValueError: a variable has another number of levels.
        """
        for part in filter(schema.__contains__, self.parts):
            for group in schema[part]:
                if group.var_key in self.args.variables:
                    self._check_levels(part, group.var_key, group.n_levels)

    def schema_after(self, schema: TreeSchema) -> TreeSchema:
        """The variables with their new numbers of levels."""
        new_schema, count = dict(schema), len(self.dest[0])
        for part in filter(schema.__contains__, self.parts):
            new_schema[part] = [
                dataclasses.replace(group, n_levels=count, levels=None)  # type: ignore[type-var]
                if group.var_key in self.args.variables
                else group
                for group in schema[part]
            ]
        return new_schema

    def _moved(
        self, tree: FieldTree, part: str, context: FieldContext | None
    ) -> dict[str, Any]:
        if part not in tree:
            raise ValueError(
                f"hybrid_level_interp: the batch has no {part!r}; it has: "
                f"{', '.join(sorted(tree))}"
            )
        fields = tree[part]
        present = [k for k in self.args.variables if k in fields.get(source_of(k), {})]
        if not present:
            return {}
        pressure = get_field(tree, part, self.args.surface_pressure_var)
        pressure = fill_padding(pressure, 1e5, context)
        return {key: self._move(tree, part, key, pressure) for key in present}

    def _move(self, tree: FieldTree, part: str, key: str, pressure: Any) -> Any:
        field = get_field(tree, part, key)
        self._check_levels(part, key, field.shape[1])
        return hybrid_to_hybrid(field, pressure, self.source, self.dest)

    def _check_levels(self, part: str, key: str, levels: int) -> None:
        count = len(self.source[0])
        if levels != count:
            raise ValueError(
                f"hybrid_level_interp: {key} of {part} has {levels} levels, the source "
                f"coefficients ({self.args.source_level_info_file}: "
                f"{self.args.source_a_var}, {self.args.source_b_var}) are of {count}; "
                "give source_levels, counted from 1"
            )


def is_predicted(var_key: str) -> bool:
    """Whether the field type of a key is one that a model predicts.

    >>> is_predicted("ERA5/prognostic/3d/T")
    True
    """
    return var_key.split("/")[1:2] in ([kind] for kind in OUTPUT_TYPES)


def build_level_interp_pre(args: LevelInterpPreArgs) -> LevelInterp:
    """Builds the preblock; reads the coefficients."""
    return LevelInterp(args, args.data_types, False, *_coefficients(args))


def build_level_interp_post(args: LevelInterpPostArgs) -> LevelInterp:
    """Builds the postblock; reads the coefficients."""
    return LevelInterp(args, (args.key,), True, *_coefficients(args))


def _coefficients(
    args: LevelInterpArgs,
) -> tuple[Coefficients, Coefficients, CoordinateValues | None]:
    """Coefficients of the source and the destination levels; numbers of the source."""
    source = centers(
        args.source_level_info_file,
        args.source_a_var,
        args.source_b_var,
        args.source_levels,
        on_interfaces=args.source_on_interfaces,
    )
    dest = centers(
        args.dest_level_info_file,
        args.dest_a_var,
        args.dest_b_var,
        args.dest_levels,
        on_interfaces=args.dest_on_interfaces,
    )
    numbers = level_numbers(
        args.source_level_info_file,
        args.source_a_var,
        args.source_levels,
        between=args.source_on_interfaces,
    )
    return source, dest, numbers
