"""CREDIT's `graph` (models/graph.py): attention along the edges of a graph, gates.

The nodes are the points of the grid, the edges those of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float
from pydantic import Field as Key
from pydantic import PositiveInt, model_validator

from credit_jax.models.common.config import MAX_DEPTH, ModelConfig, Rate, register_model
from credit_jax.models.common.resampling import fold_frames
from credit_jax.models.graph.blocks import (
    GATES,
    EdgeEmbedding,
    Gates,
    GraphBlock,
    NodeNorm,
)
from credit_jax.models.graph.edge_file import read_edges
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.parameters import stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.parallel.compiler import BLOCKS, INPUT, OUTPUT
from credit_jax.parallel.domain.edges import ShardEdges, shard_edges
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.state_dict.key_table import key_table
from credit_jax.state_dict.torch_model import TorchModel


class GraphConfig(ModelConfig):
    """Constructor keys of CREDIT's GraphResTransfGRU, with its defaults.

    Attributes:
        n_variables, levels: number of 3D variables, and of their levels.
        n_surface_variables, n_static_variables: number of 2D variables of both input
            and output, and of the input only.
        hidden_size, dim_head: number of channels, and of those of an attention head.
        dropout: dropout rate of attention weights.
        n_blocks: number of blocks.
        history_len: number of time steps of the input; only 2.
        edge_path: file with the edges, see `read_edges`.
        use_spectral_norm: whether linear layers, except those of the attention, have
            spectral norm.
        use_edge_attr: whether the attention uses the attributes of edges.
        image_height, image_width: the grid; by default that of the file. Not in CREDIT.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 16,
        "dim_head": 4,
        "n_blocks": 2,
    }

    output_frames: ClassVar[int] = 1

    type: Literal["graph"] = "graph"
    n_variables: int = 4
    n_surface_variables: int = 7
    n_static_variables: int = 3
    levels: int = 15
    hidden_size: PositiveInt = 128
    dim_head: PositiveInt = 32
    dropout: Rate = 0.0
    n_blocks: int = Key(3, ge=1, le=MAX_DEPTH)
    history_len: int = 2
    edge_path: str
    use_spectral_norm: bool = True
    use_edge_attr: bool = True
    image_height: PositiveInt
    image_width: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _grid_of_file(cls, value: Any) -> Any:
        """Adds the grid of the file, if it can be read and no key gives the grid."""
        keys = ("image_height", "image_width")
        if not isinstance(value, Mapping) or any(value.get(key) for key in keys):
            return value
        try:
            file = read_edges(str(value.get("edge_path")))
        except (OSError, ValueError):
            return value
        return {**value, "image_height": file.height, "image_width": file.width}

    @property
    def frames(self) -> int:
        """Number of time steps of the input."""
        return self.history_len

    @property
    def input_channels(self) -> int:
        """Number of channels of an input frame."""
        return self.output_channels + self.n_static_variables

    @property
    def output_channels(self) -> int:
        """Number of channels of an output frame."""
        return self.n_variables * self.levels + self.n_surface_variables

    def channel_sum(self, direction: str) -> str:
        """See `ModelConfig.channel_sum`."""
        more = f" + n_static_variables {self.n_static_variables}"
        return (
            f"n_variables {self.n_variables} x levels {self.levels} + "
            f"n_surface_variables {self.n_surface_variables}"
            f"{more if direction == 'input' else ''}"
        )

    @property
    def files(self) -> Mapping[str, str]:
        """See `ModelConfig.files`."""
        return {"edge_path": self.edge_path}

    def check_files(self) -> None:
        """See `ModelConfig.check_files`."""
        file = read_edges(self.edge_path)
        if (file.height, file.width) != (self.image_height, self.image_width):
            raise ValueError(
                f"model.edge_path: {self.edge_path} has {file.height} x {file.width} "
                f"nodes; expected the grid {self.image_height} x {self.image_width}"
            )

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        if self.history_len != 2:
            yield (
                f"model.history_len is {self.history_len}; expected 2: CREDIT's graph "
                "adds its output to the frames after the first, of which the output "
                "has one"
            )
        if self.hidden_size % self.dim_head:
            yield (
                f"model.hidden_size is {self.hidden_size}, which model.dim_head = "
                f"{self.dim_head} does not divide"
            )


@lru_cache(8)
def _edges_on(layout: Layout, columns: int, path: str) -> tuple[ShardEdges, Any]:
    """Returns the edges of every shard, and their attributes (shard, edge, 3)."""
    file = read_edges(path)
    plan = shard_edges(layout, columns, file.edges)
    return plan, file.attributes[plan.number]


_KEYS = """
    encoder          encoder/linear  linear
    decoder          decoder/linear  linear
    edge_ln          edges/linear    linear
    edge_layer_norm  edges/norm      norm
    graph_blocks.{d}.transformer.lin_key.weight    blocks/attention/key    o i -> i o
    graph_blocks.{d}.transformer.lin_key.bias      blocks/attention/key_bias
    graph_blocks.{d}.transformer.lin_query.weight  blocks/attention/query  o i -> i o
    graph_blocks.{d}.transformer.lin_query.bias    blocks/attention/query_bias
    graph_blocks.{d}.transformer.lin_value.weight  blocks/attention/value  o i -> i o
    graph_blocks.{d}.transformer.lin_value.bias    blocks/attention/value_bias
    graph_blocks.{d}.transformer.lin_edge.weight   blocks/attention/edge   o i -> i o
    graph_blocks.{d}.transformer.lin_skip.weight   blocks/attention/skip   o i -> i o
    graph_blocks.{d}.transformer.lin_skip.bias     blocks/attention/skip_bias
    graph_blocks.{d}.physics_linear  blocks/inner       linear
    graph_blocks.{d}.merge_linear    blocks/outer       linear
    graph_blocks.{d}.norm_layer      blocks/inner_norm  norm
    gated_unit.z_x_ln                gates/z_x          linear
    gated_unit.z_h_ln                gates/z_h          linear
    gated_unit.r_x_ln                gates/r_x          linear
    gated_unit.r_h_ln                gates/r_h          linear
    gated_unit.h_x_ln                gates/h_x          linear
    gated_unit.h_h_ln                gates/h_h          linear
    graph_norm_layers.{d}            blocks/norm        norm
    enc_norm                         encoder/norm       norm
    dec_norm                         unused_norm        norm
"""


def _idle_modules(config: GraphConfig) -> list[str]:
    norms = ["edge_layer_norm", "enc_norm", "dec_norm"]
    for i in range(config.n_blocks):
        norms += [f"graph_blocks.{i}.norm_layer", f"graph_norm_layers.{i}"]
    if config.n_blocks > 1:
        return norms
    return [*norms, *(f"gated_unit.{name}_ln" for name in GATES if name != "h_x")]


GRAPH = TorchModel(
    key_table=key_table(_KEYS),
    # Not compared: in credit_jax norms are parts of blocks, and CREDIT has the node dim
    # first.
    block_names=lambda _: ["encoder, normalized", "decoder, on the grid"],
    idle_modules=_idle_modules,
    # CREDIT's class reads the grid from its file.
    extra_keys=("image_height", "image_width"),
)


@register_model(GraphConfig, GRAPH)
class Graph(nnx.Module):
    """The graph model; see `GraphConfig` for its keys."""

    def __init__(self, config: GraphConfig) -> None:
        self.config = config
        hidden, blocks = config.hidden_size, config.n_blocks
        self.encoder = Encoder(config.input_channels * config.frames, hidden)
        self.decoder = Decoder(hidden, config.output_channels)
        self.edges = EdgeEmbedding(hidden) if config.use_edge_attr else None
        self.blocks = stack_blocks(
            lambda: GraphBlock(
                hidden,
                config.dim_head,
                dropout=config.dropout,
                attributes=config.use_edge_attr,
            ),
            blocks,
        )
        self.gates = Gates(hidden, blocks)
        # CREDIT's model has this norm but does not call it.
        self.unused_norm = NodeNorm(hidden)

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out 1 rows lon"]:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config, x = self.config, inputs["x"]
        layout = context.rows(config.image_height)
        edges, attributes = _edges_on(layout, config.image_width, config.edge_path)
        with jax.named_scope(INPUT):
            field = Field(fold_frames(context.precision.cast(x), "channel"), layout)
        field = run_block(context, self.encoder, field)
        along = None
        if self.edges is not None:
            edge_features = context.precision.cast(edges.local(attributes))
            along = run_block(context, self.edges, edge_features, edges=edges)
        gates = run_block(context, self.gates)
        carry = {"x": field, "gates": gates, "along": along}
        with jax.named_scope(BLOCKS):
            carry = scan_blocks(
                context,
                self.blocks,
                carry,
                config.n_blocks,
                variants=({"edges": edges},),
            )
        field = run_block(context, self.decoder, carry["x"])
        with jax.named_scope(OUTPUT):
            change = field.data.transpose(0, 3, 1, 2)[:, :, None].astype(x.dtype)
            return change + x[:, : config.output_channels, 1:]


class Encoder(nnx.Module):
    """A linear layer and a norm."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.linear = Linear(channel_in, channel_out)
        self.norm = NodeNorm(channel_out)

    def __call__(self, field: Field, context: Context) -> Field:
        return self.norm(field.like(self.linear(field.data, context)))


class Decoder(nnx.Module):
    """A linear layer."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.linear = Linear(channel_in, channel_out)

    def __call__(self, field: Field, context: Context) -> Field:
        return field.like(self.linear(field.data, context))
