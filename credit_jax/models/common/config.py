"""The base of every model's config: what the rest of the program reads from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from credit_jax.config.base import StrictModel
from credit_jax.models.common.array_specs import FieldSpec, InputSpec
from credit_jax.models.common.geometry import Geometry


class ModelConfig(StrictModel):
    """A `model:` section.

    A model's config has the keys of CREDIT's constructor as fields, and says:

    - `inputs` and `output`, the arrays that go in and come out; by default one field
      "x" and a field on its grid, from `input_channels`, `frames`, `output_channels`,
      `output_frames`, `image_height` and `image_width`;
    - `problems`, everything that keeps the model from running;
    - `geometry`, the sizes of its stages, for notes on a mesh, the stage table and the
      memory estimate of `credit_jax.check`; None for a model without stages.

    Spectral norm applies to the model's matrices if its key `use_spectral_norm` is
    true.

    Attributes:
        type: CREDIT's `model.type`.
    """

    type: Any

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """The inputs by name; "y" is the target's name and cannot be one."""
        keys: Any = self
        grid = keys.image_height, keys.image_width
        return {"x": FieldSpec(keys.input_channels, keys.frames, *grid)}

    @property
    def output(self) -> FieldSpec:
        """The prediction."""
        keys: Any = self
        grid = keys.image_height, keys.image_width
        return FieldSpec(keys.output_channels, keys.output_frames, *grid)

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """Sizes that do not fit, one readable line each.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree.
        """
        del tensor, domain
        return []

    def geometry(self) -> Geometry | None:
        """Sizes of the stages; None for a model without such stages."""
        return None
