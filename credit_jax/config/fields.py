"""The variables of a source: four field types, with or without levels."""

from typing import ClassVar

from pydantic import model_validator

from credit_jax.config.base import StrictModel
from credit_jax.config.credit_keys import NEVER_READ

FIELD_TYPES = ("prognostic", "static", "dynamic_forcing", "diagnostic")
INPUT_TYPES = ("prognostic", "static", "dynamic_forcing")
OUTPUT_TYPES = ("prognostic", "diagnostic")


class FieldConfig(StrictModel):
    """Variables of one field type, and their files.

    Attributes:
        vars_3D: names of variables with levels, in channel order.
        vars_2D: names of variables without levels, in channel order.
        path: file name with strftime codes, such as "era5_%Y.zarr"; for `goes` the
            parent folder of those of the satellites. Sources that find their files in
            another way, or read none, have no path.
    """

    vars_3D: tuple[str, ...] = ()
    vars_2D: tuple[str, ...] = ()
    path: str | None = None

    ignored: ClassVar = {"filename_time_format": NEVER_READ}

    @model_validator(mode="after")
    def _has_variables(self) -> "FieldConfig":
        names = self.vars_3D + self.vars_2D
        if not names:
            raise ValueError("must name at least one variable in vars_3D or vars_2D")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"must name a variable once, got {twice} twice")
        return self


class VariablesConfig(StrictModel):
    """The four field types of a source; null means that there is none.

    Attributes:
        prognostic: read, predicted, and carried to the next step.
        dynamic_forcing: read at every time, never predicted.
        static: read once, without time.
        diagnostic: predicted only.
    """

    prognostic: FieldConfig | None = None
    dynamic_forcing: FieldConfig | None = None
    static: FieldConfig | None = None
    diagnostic: FieldConfig | None = None

    @property
    def by_type(self) -> dict[str, FieldConfig]:
        """The field types that are not null, by name."""
        fields = {kind: getattr(self, kind) for kind in FIELD_TYPES}
        return {kind: field for kind, field in fields.items() if field is not None}

    @property
    def predicted(self) -> bool:
        """Whether there are variables to predict."""
        return any(kind in self.by_type for kind in OUTPUT_TYPES)

    @property
    def has_levels(self) -> bool:
        """Whether there are variables with levels."""
        return any(field.vars_3D for field in self.by_type.values())
