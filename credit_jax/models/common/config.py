"""Configs of models: their arrays, stages, channels, padding and corrections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from credit_jax.config import StrictModel
from credit_jax.config.components import Registry
from credit_jax.config.messages import divisors
from credit_jax.models.common.post_conf import Gen1PostConf
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.domain.attention import attention_layouts
from credit_jax.parallel.domain.rearrange import check_padding
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.mesh.device_mesh import DOMAIN, MeshAxes
from credit_jax.parallel.placement import array_spec, batch_spec
from credit_jax.parallel.rows.layout import block_layout
from credit_jax.state_dict.torch_model import TorchModel

# Input and output of models: local samples and rows.
Frames = Float[Array, "batch channel time rows lon"]
Prediction = Float[Array, "batch channel_out time_out rows lon"]

Module = TypeVar("Module", bound=Callable[[Any], nnx.Module])


@dataclass(frozen=True)
class FieldSpec:
    """Spec of a field (batch, channel, time, lat, lon)."""

    channels: int  # of a frame
    frames: int  # time steps
    height: int  # latitudes
    width: int  # longitudes

    @property
    def grid(self) -> tuple[int, int]:
        """Numbers of latitudes and of longitudes."""
        return self.height, self.width

    def shape(self, batch: int) -> tuple[int, ...]:
        """Returns the shape of a global array of `batch` samples."""
        return batch, self.channels, self.frames, self.height, self.width

    def partition_spec(self, axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
        """Samples over dp, rows over domain; if `stacked`, after micro-batches."""
        return batch_spec(axes, stacked=stacked)


@dataclass(frozen=True)
class VectorSpec:
    """Spec of vectors (batch, size), one for each sample."""

    size: int

    def shape(self, batch: int) -> tuple[int, ...]:
        """Returns the shape of a global array of `batch` samples."""
        return batch, self.size

    def partition_spec(self, axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
        """Samples over dp; if `stacked`, after micro-batches."""
        lead = int(stacked)
        return array_spec(axes, lead + 2, sample_dim=lead, row_dim=None)


InputSpec = FieldSpec | VectorSpec


@dataclass(frozen=True)
class StageGeometry:
    """Sizes of one encoder stage."""

    height: int
    width: int
    channels: int
    depth: int  # transformer blocks; 0 for a stage without attention
    heads: int
    head_channels: int
    local_window: int  # tokens along each side of a window
    global_window: int
    # Attentions, and feed-forward layers, of a block: 2 for short and long windows.
    attentions: int = 2

    def shares(self, domain: int, ulysses: int = 1) -> dict[str, float]:
        """Returns the load of the busiest shard relative to an even share."""
        blocks = block_layout(self.height, domain, DOMAIN)
        sides = self.local_window, self.global_window
        if self.attentions == 2:
            windows = Windows(self.height, self.width, *sides)
            both = attention_layouts(blocks, windows, ulysses)
        else:
            both = (window_layout(blocks, self.height, self.local_window),)
        kinds = ("short", "long") if self.global_window > 1 else ("short",)
        even = self.height / domain
        lengths = [layout.length / layout.strips for layout in both]
        return {k: n / even for k, n in zip(kinds, lengths, strict=False)}


@dataclass(frozen=True)
class Geometry:
    """Grid sizes along the layers of a model, (lat, lon) each."""

    grid: IntPair  # of the input
    padded: IntPair
    patched: IntPair  # after the patch embedding
    stages: tuple[StageGeometry, ...]  # of the encoder
    decoded: IntPair  # after the decoder
    output: IntPair  # of the prediction


# Maximum number of rows or columns of a grid; the globe at 1 km has 40,000.
MAX_SIDE = 100_000
# Maximum number of blocks of a stage, far more than anyone trains: detects typos.
MAX_DEPTH = 1000


# Points of a side of a grid, a dropout rate, and a number of blocks.
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
Depth = Annotated[int, Field(ge=0, le=MAX_DEPTH)]


def repeated(count: int) -> Any:
    """Returns a validator of a tuple field: an integer is repeated `count` times."""
    return BeforeValidator(lambda x: (x,) * count if isinstance(x, int) else x)


Ends = Annotated[tuple[int, int], repeated(2)]
Both = Annotated[tuple[PositiveInt, PositiveInt], repeated(2)]


class PaddingConfig(StrictModel):
    """`padding_conf`: rows beyond the poles and columns around the globe.

    Attributes:
        activate: whether to pad.
        mode: "earth" (across the pole) or "mirror" (reflected); see
            `parallel.domain.rearrange.pad_globe`.
        pad_lat: number of rows to add (north, south); an integer for both.
        pad_lon: number of columns to add (west, east); an integer for both.
    """

    activate: bool = True
    mode: Literal["earth", "mirror"] = "earth"
    pad_lat: Ends = (40, 40)
    pad_lon: Ends = (40, 40)


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

    # Whether a forward pass draws noise (`nn.context`), in training and evaluation.
    draws_noise: ClassVar[bool] = False

    # Whether domain shards can exchange heads for rows (`parallel.domain.attention`).
    # If so, `geometry` must give the heads of its attentions.
    trades_heads: ClassVar[bool] = False

    # Whether the model can only run on meshes that split nothing but samples.
    only_data_parallel: ClassVar[bool] = False

    # Keys of a form of which a step takes seconds; none for a model that stays as large
    # as it is. Whether the grid of this form is padded where the config pads none.
    small_keys: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    small_is_padded: ClassVar[bool] = False

    # Properties of some models: the `models.diffusion.process.Process` that samples
    # predictions, the active padding, how tokens choose experts, and the files that the
    # forward pass reads, by key of the section.
    process: ClassVar[Any] = None
    padding: ClassVar[Any] = None
    routing: ClassVar[Any] = None
    files: ClassVar[Any] = MappingProxyType({})

    type: Any

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
    def pads(self) -> tuple[IntPair, IntPair]:
        """Rows (north, south) and columns (west, east) to add; zeros for none."""
        pad = self.padding
        return (pad.pad_lat, pad.pad_lon) if pad else ((0, 0), (0, 0))

    @property
    def padded(self) -> IntPair:
        """Rows and columns of the padded grid."""
        lat, lon = self.pads
        return self.output.height + sum(lat), self.output.width + sum(lon)

    @property
    def x(self) -> FieldSpec:
        """Spec of the input "x"."""
        x = self.inputs["x"]
        assert isinstance(x, FieldSpec), "the input x is a field"
        return x

    def auxiliary_losses(
        self, batch_stats: Mapping[str, Mapping[str, Array]]
    ) -> dict[str, Float[Array, ""]]:
        """Returns the terms that the model adds to the training loss, by name."""
        del batch_stats
        return {}

    def channel_sum(self, direction: str) -> str:
        """Returns the terms of `input_channels` or `output_channels`, for errors."""
        return f"{direction}_channels"

    def problems(self) -> Iterator[str]:
        """Yields errors of sizes that do not fit each other, one line each."""
        # What a key by itself may be is the type of its field.
        names = "input_channels", "output_channels"
        numbers = [getattr(self, name, 1) for name in names]
        if min(numbers) < 1:
            yield (
                f"model has {numbers[0]} input and {numbers[1]} output channels; "
                f"expected at least 1 of each: {self.channel_sum('input')}; "
                f"{self.channel_sum('output')}"
            )

    def check_files(self) -> None:
        """Reads `files` and checks them against the model."""

    def geometry(self) -> Geometry | None:
        """Returns the sizes of the stages; None for a model without stages."""
        return None


def ignored_by(model: str, names: str = "", **reasons: str) -> dict[str, str]:
    """Keys that CREDIT's constructor of a model accepts and does not read, and why."""
    # Keys in one text, and by name those of which more is to be said.
    named = dict.fromkeys(names.split(), "") | reasons
    return {key: f"CREDIT's {model} ignores it{why}" for key, why in named.items()}


def divisor_problems(key: str, divisor: int, size: int, name: str) -> Iterator[str]:
    """Yields an error of a key that does not divide a size, which `name` explains."""
    if size < 1 or size % divisor:
        yield (
            f"model.{key} is {divisor}, which does not divide {size}, {name}; would "
            f"fit: {divisors(size)}"
        )


class ModelEntry(NamedTuple):
    """A registered model."""

    config: type[ModelConfig]  # class of the `model:` section
    # NNX class of the model, called with the config.
    module: Callable[[Any], nnx.Module]
    # Names of the parameters in PyTorch; None for a model that PyTorch lacks.
    key_table: TorchModel | None = None


# By `model.type`; filled as the modules of models are imported.
MODELS: Registry[ModelEntry] = Registry("model", ModelEntry)


def register_model(
    config: type[ModelConfig], key_table: TorchModel | None = None
) -> Callable[[Module], Module]:
    """Returns a decorator of the class of a model, for all types of its config."""

    def register(module: Module) -> Module:
        for name in get_args(config.model_fields["type"].annotation):
            MODELS[name] = ModelEntry(config, module, key_table)
        return module

    return register


class SummedChannels(ModelConfig):
    """A model whose numbers of channels are sums of keys.

    Attributes:
        input_terms, output_terms: keys that are added; those with a space between are
            multiplied.
    """

    input_terms: ClassVar[tuple[str, ...]]
    output_terms: ClassVar[tuple[str, ...]]

    @property
    def input_channels(self) -> int:
        """Number of channels of an input frame."""
        return self._sum(self.input_terms)

    @property
    def output_channels(self) -> int:
        """Number of channels of an output frame."""
        return self._sum(self.output_terms)

    def _sum(self, terms: tuple[str, ...]) -> int:
        return sum(prod(attrgetter(k)(self) for k in term.split()) for term in terms)

    def channel_sum(self, direction: str) -> str:
        """See `ModelConfig.channel_sum`."""
        terms = [term.split() for term in getattr(self, f"{direction}_terms")]
        return " + ".join(
            " x ".join(f"{key} {attrgetter(key)(self)}" for key in term)
            for term in terms
        )


class VariableKeys(SummedChannels):
    """Numbers of variables of input and output, with CREDIT's names and defaults.

    Attributes:
        channels: number of 3D variables.
        surface_channels, input_only_channels, output_only_channels: number of 2D
            variables of both input and output, of the input only, of the output only.
        levels: number of levels of each 3D variable.
    """

    input_terms: ClassVar = (
        "channels levels",
        "surface_channels",
        "input_only_channels",
    )
    output_terms: ClassVar = (*input_terms[:2], "output_only_channels")

    channels: int = 4
    surface_channels: int = 7
    input_only_channels: int = 3
    output_only_channels: int = 0
    levels: int = 15


class ChannelCounts(StrictModel):
    """`model.channels`, which CREDIT computes from its `data.datasets`.

    Attributes:
        boundary: number of channels of the input only.
        prognostic: number of channels of both input and output.
        diagnostic: number of channels of the output only.
    """

    boundary: NonNegativeInt
    prognostic: NonNegativeInt
    diagnostic: NonNegativeInt


class ChannelCountKeys(SummedChannels):
    """Numbers of channels of downscaling models.

    Attributes:
        channels: numbers of channels of a frame, by kind.
    """

    input_terms: ClassVar = ("channels.prognostic", "channels.boundary")
    output_terms: ClassVar = ("channels.prognostic", "channels.diagnostic")

    channels: ChannelCounts


def _active_blocks(value: Any) -> Any:
    """Returns the names of the active blocks of a `post_conf`; None if not active."""
    if not isinstance(value, Mapping):
        return value
    if not value.get("activate"):
        return None
    blocks = value.items()
    return [k for k, v in blocks if isinstance(v, Mapping) and v.get("activate")]


PostBlocks = Annotated[tuple[str, ...] | None, BeforeValidator(_active_blocks)]


class CorrectedConfig(ModelConfig):
    """Keys of corrections of the output, shared by CREDIT's models.

    Attributes:
        post_conf: names of the active blocks of `post_conf`, which has no effect, as in
            CREDIT's gen2 training.
        gen1_post_conf: corrections at the end of the forward pass, as in CREDIT's gen1
            training; not a key of CREDIT's gen2.
    """

    post_conf: PostBlocks = None
    gen1_post_conf: Gen1PostConf | None = None

    def without_effect(self) -> dict[str, str]:
        """Returns an active `post_conf`; see `StrictModel.without_effect`."""
        if not self.post_conf:
            return {}
        why = (
            f"{', '.join(self.post_conf)}: CREDIT's gen2 training drops it, too; "
            "correct in postblocks.per_step, or with gen1_post_conf as gen1 does"
        )
        return {"post_conf": why}

    @property
    def files(self) -> Mapping[str, str]:  # type: ignore[override]
        """See `ModelConfig.files`."""
        if self.gen1_post_conf is None:
            return {}
        named = self.gen1_post_conf.files.items()
        return {f"gen1_post_conf.{key}": path for key, path in named}

    def check_files(self) -> None:
        """See `ModelConfig.check_files`."""
        if self.gen1_post_conf is not None and self.gen1_post_conf.activate:
            self.gen1_post_conf.check_grid(self.output.grid)

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        if self.gen1_post_conf is not None:
            output = self.output
            yield from self.gen1_post_conf.problems(output.channels, output.frames)


class PaddedConfig(CorrectedConfig):
    """Keys of padding and of corrections of the output, shared by CREDIT's models.

    Attributes:
        padding_conf: see `PaddingConfig`.
    """

    small_is_padded: ClassVar[bool] = True

    padding_conf: PaddingConfig | None = None

    @property
    def padding(self) -> PaddingConfig | None:  # type: ignore[override]
        """The active padding, or None."""
        conf = self.padding_conf
        return conf if conf is not None and conf.activate else None

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        pad, grid = self.padding, self.output.grid
        if pad is not None:
            try:
                check_padding(pad.mode, pad.pad_lat, pad.pad_lon, *grid)
            except ValueError as error:
                yield f"model.{error}"


class FlatPaddingKeys(PaddedConfig):
    """Padding keys of older configs of fuxi and crossformer.

    Attributes:
        pad_lat, pad_lon: an error without `padding_conf`, ignored with it.
    """

    pad_lat: int | None = None
    pad_lon: int | None = None

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes = super().without_effect()
        if self.padding_conf is not None:
            flat = [k for k in ("pad_lat", "pad_lon") if getattr(self, k) is not None]
            notes |= dict.fromkeys(flat, "padding_conf is there and counts")
        return notes

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        flat = {"pad_lat": self.pad_lat, "pad_lon": self.pad_lon}
        if any(flat.values()) and self.padding_conf is None:
            yield (
                f"model has {' and '.join(f'{k}: {v}' for k, v in flat.items() if v)} "
                "and no padding_conf: CREDIT's older programs pad by reflection then, "
                "its newer ones not at all. For the weights of an older run write "
                "padding_conf: {mode: mirror, "
                f"pad_lat: {self.pad_lat or 0}, pad_lon: {self.pad_lon or 0}}}, else "
                "remove the keys"
            )
        yield from super().problems()
