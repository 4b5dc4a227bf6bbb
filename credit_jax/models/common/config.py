"""Base class of model configs: the attributes that other packages read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Array, Float
from pydantic import model_validator

from credit_jax.config import StrictModel
from credit_jax.models.common.array_specs import FieldSpec, InputSpec
from credit_jax.models.common.geometry import Geometry
from credit_jax.nn.experts import Routing

# Maximum number of rows or columns of a grid; the globe at 1 km has 40,000.
MAX_SIDE = 100_000
# Maximum number of blocks of a stage, far more than anyone trains: detects typos.
MAX_DEPTH = 1000


@runtime_checkable
class HasGrid(Protocol):
    """A config with the size of its grid, as keys or properties."""

    image_height: int
    image_width: int


@runtime_checkable
class HasLevels(Protocol):
    """A config of a model that counts its channels by levels."""

    levels: int


@runtime_checkable
class HasSpectralNorm(Protocol):
    """A config of a model whose matrices may have spectral norm."""

    use_spectral_norm: bool


class ModelConfig(StrictModel):
    """The `model:` section of a config.

    A subclass has the keys of CREDIT's constructor as fields, and may define:

    - `input_channels` and `output_channels` of one frame, `frames` and
      `output_frames`, `image_height` and `image_width`, as keys or properties, which
      the data of a run must match;
    - `inputs` and `output`, specs of the arrays; by default one input field "x" and an
      output field on the same grid, of these sizes;
    - `problems`, which returns errors of its sizes;
    - `files` and `check_files`, for a model that reads files;
    - `auxiliary_losses`, terms of the training loss;
    - `routing`, for a model with experts;
    - `small_keys`, those of a small form, for certificates, and `small_is_padded`;
    - `geometry`, the sizes of its stages, for notes on a mesh, the stage table and the
      memory estimate of `credit_jax.check`; None for a model without stages.

    Spectral norm applies to the matrices of the model if its key `use_spectral_norm` is
    true.

    Attributes:
        type: CREDIT's `model.type`.
    """

    # Whether a forward pass draws noise (`nn.noise`), in training and evaluation.
    draws_noise: ClassVar[bool] = False

    # Whether domain shards can exchange heads for rows (`parallel.domain.heads`). If
    # so, `geometry` must give the heads of its attentions.
    trades_heads: ClassVar[bool] = False

    # Keys of a form of which a step takes seconds; none for a model that stays as large
    # as it is. Whether the grid of this form is padded where the config pads none.
    small_keys: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    small_is_padded: ClassVar[bool] = False

    type: Any

    @model_validator(mode="after")
    def _has_a_grid_of_the_earth(self) -> ModelConfig:
        # A model may define `inputs` and `output` instead of these keys.
        if not isinstance(self, HasGrid):
            return self
        sides = {"image_height": self.image_height, "image_width": self.image_width}
        for name, side in sides.items():
            if side > MAX_SIDE:
                raise ValueError(
                    f"{name} is {side:.6g}; expected at most {MAX_SIDE:,} points"
                )
        return self

    def channel_problems(self) -> list[str]:
        """Returns errors of the numbers of channels."""
        return []

    def rate_problems(self, *names: str) -> list[str]:
        """Returns errors of keys that are dropout rates."""
        return [
            f"model.{name} is {rate}; expected 0 <= {name} < 1"
            for name in names
            for rate in [getattr(self, name)]
            if not 0.0 <= rate < 1.0
        ]

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """Specs of the inputs by name; "y" is reserved for the target."""
        keys: Any = self
        grid = keys.image_height, keys.image_width
        return {"x": FieldSpec(keys.input_channels, keys.frames, *grid)}

    @property
    def output(self) -> FieldSpec:
        """Spec of the prediction."""
        keys: Any = self
        grid = keys.image_height, keys.image_width
        return FieldSpec(keys.output_channels, keys.output_frames, *grid)

    @property
    def network_inputs(self) -> Mapping[str, InputSpec]:
        """Specs of the inputs of the network: `inputs` and those of `process`."""
        return self.inputs

    @property
    def process(self) -> Any:
        """The `models.diffusion.process.Process` that samples predictions, or None."""
        return None

    @property
    def x(self) -> FieldSpec:
        """Spec of the input "x"."""
        x = self.inputs["x"]
        assert isinstance(x, FieldSpec), "the input x is a field"
        return x

    @property
    def routing(self) -> Routing | None:
        """How tokens choose experts; None for a model without experts."""
        return None

    def auxiliary_losses(
        self, batch_stats: Mapping[str, Mapping[str, Array]]
    ) -> dict[str, Float[Array, ""]]:
        """Returns the terms that the model adds to the training loss, by name.

        Args:
            batch_stats: `nnx.BatchStat` variables of layers after the forward pass, by
                path of the layer and name.
        """
        del batch_stats
        return {}

    def channel_sum(self, direction: str) -> str:
        """Returns the terms of `input_channels` or `output_channels`, for errors.

        Args:
            direction: "input" or "output".
        """
        return f"{direction}_channels"

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """Returns errors of the sizes, one line each.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree.
        """
        del tensor, domain
        return []

    @property
    def files(self) -> Mapping[str, str]:
        """Paths of the files that the forward pass reads, by key of the section."""
        return {}

    def check_files(self) -> None:
        """Reads `files` and checks them against the model.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file does not fit the model.
        """

    def geometry(self) -> Geometry | None:
        """Returns the sizes of the stages; None for a model without stages."""
        return None
