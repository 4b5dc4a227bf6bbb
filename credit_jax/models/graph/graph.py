"""CREDIT's `graph` (models/graph.py): attention along the edges of a graph, gates.

The nodes are the points of the grid, the edges those of a file, as CREDIT's graph_edges
programs write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from flax import nnx
from jaxtyping import Array, Float, Int
from pydantic import Field as Key
from pydantic import PositiveInt, model_validator
from scipy.spatial import KDTree

from credit_jax.io.open_files import opened
from credit_jax.models.common import config as common
from credit_jax.models.common.resampling import fold_frames
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.parameters import of_call, parameter, stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.ops.dense import add_bias
from credit_jax.ops.random import drop, keep_mask
from credit_jax.parallel.compiler import ATTENTION, BLOCKS, INPUT, NORM, OUTPUT
from credit_jax.parallel.domain.edges import ShardEdges, edge_attention, shard_edges
from credit_jax.parallel.domain.norm import num_points
from credit_jax.parallel.params.spec import constant, torch_uniform
from credit_jax.parallel.reductions import field_sum
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.physics.arrays import EARTH_RADIUS
from credit_jax.state_dict.key_table import key_table
from credit_jax.state_dict.torch_model import TorchModel

EPSILON = 1e-5


@dataclass(frozen=True, eq=False)
class EdgeFile:
    """Edges in both directions and their attributes."""

    # Size of the grid, whose points are the nodes in row-major order.
    height: int
    width: int
    # (edge, 2), source and target; each ordered pair of nodes once.
    edges: Int[np.ndarray, "edge 2"]
    # (edge, 3), exp(-d^2) of the standardized differences of latitude and longitude and
    # of the standardized distance. The values of an edge that the file has in both
    # directions, or from a node to itself, are added up.
    attributes: Float[np.ndarray, "edge 3"]


def nearest_edges(
    latitude: Float[np.ndarray, " lat"],
    longitude: Float[np.ndarray, " lon"],
    neighbors: int,
) -> xr.Dataset:
    """Returns an edge file of a grid, as CREDIT's `graph_edges_knn` writes it."""
    # latitude, longitude: coordinates of the rows and columns, degrees; longitudes of
    # 180 or more become negative.
    # neighbors: number of the nearest points that each is joined to, among them itself.
    east = (longitude + 180.0) % 360.0 - 180.0
    lon, lat = (x.ravel() for x in np.meshgrid(east, latitude))
    a, b = np.deg2rad(lat), np.deg2rad(lon)
    points = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], 1)
    chords, nearest = KDTree(points).query(points, neighbors)
    ends = np.repeat(np.arange(len(points)), neighbors)
    angles = 2 * np.arcsin(np.clip(chords.ravel() / 2, 0, 1))
    return xr.Dataset(
        {
            "edges": (("node", "pair"), np.stack([nearest.ravel(), ends], 1)),
            "distances": (("node",), EARTH_RADIUS / 1000 * angles),
            "longitude": (("index",), lon),
            "latitude": (("index",), lat),
        }
    )


def read_edges(path: str) -> EdgeFile:
    """Reads an edge file; the last four files are cached until they are modified."""
    if not Path(path).exists():
        raise FileNotFoundError(
            f"model.edge_path: {path} does not exist; CREDIT's graph_edges programs "
            "write it for a grid"
        )
    return _read(path, Path(path).stat().st_mtime_ns)


@lru_cache(4)
def _read(path: str, _: int) -> EdgeFile:
    with opened(path) as dataset:
        names = ("edges", "distances", "latitude", "longitude")
        missing = [name for name in names if name not in dataset.variables]
        if missing:
            raise ValueError(
                f"{path} has no {', '.join(missing)}; expected an edge file with "
                f"{', '.join(names)}, as CREDIT's graph_edges programs write it"
            )
        pairs, *remainder = (dataset[name].values for name in names)
    distances, latitude, longitude = (x.astype(np.float32) for x in remainder)
    # Consecutive nodes of equal latitude are a row.
    ends = np.flatnonzero(np.diff(latitude))
    width = int(ends[0]) + 1 if len(ends) else len(latitude)
    if len(latitude) % width:
        raise ValueError(
            f"{path} has {len(latitude)} nodes, {width} of them in the first row; "
            "expected a grid, row by row"
        )
    edge_values = np.concatenate(
        [
            _standard(latitude + np.float32(180))[pairs].T[1:]
            - _standard(latitude + np.float32(180))[pairs].T[:1],
            _standard(longitude)[pairs].T[1:] - _standard(longitude)[pairs].T[:1],
            _standard(distances)[None],
        ]
    ).T
    edge_values = np.exp(-(edge_values**2)).astype(np.float32)
    # PyTorch Geometric's to_undirected, which sums the attributes of equal edges.
    pairs, nodes = pairs.astype(np.int64), len(latitude)
    every = np.concatenate([pairs, pairs[:, ::-1]])
    number, index = np.unique(every[:, 0] * nodes + every[:, 1], return_inverse=True)
    total = np.zeros((len(number), 3), np.float32)
    np.add.at(total, index.ravel(), np.concatenate([edge_values, edge_values]))
    edges = np.stack([number // nodes, number % nodes], 1)
    return EdgeFile(nodes // width, width, edges, total)


def _standard(x: Float[np.ndarray, " item"]) -> Float[np.ndarray, " item"]:
    """Returns (x - mean) / (unbiased standard deviation + epsilon), float32."""
    deviation = np.float32(x.std(ddof=1, dtype=np.float64)) + np.float32(EPSILON)
    return (x - np.float32(x.mean(dtype=np.float64))) / deviation


GATES = ("z_x", "z_h", "r_x", "r_h", "h_x", "h_h")


class NodeNorm(nnx.Module):
    """(x - mean) / (deviation + epsilon) over all nodes, of each sample and channel."""

    # Scale and bias exist but are not used, as in CREDIT.

    def __init__(self, channels: int) -> None:
        self.scale = parameter(constant(1.0), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))

    @jax.named_scope(NORM)
    def __call__(self, field: Field) -> Field:
        axis, count = field.layout.axis, num_points(field)
        axes = (axis,) if axis else ()

        def mean(values: Array) -> Array:
            total = field_sum(field.like(values), (1, 2), axes, keepdims=True)
            return total / count

        return field.like(_standardized(field.data, mean))


def _standardized(x: Array, mean: Callable[[Array], Array]) -> Array:
    """Returns (x - mean) / (deviation + epsilon), computed in float32 or wider."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centered = wide - mean(wide)
    deviation = jnp.sqrt(mean(centered * centered))
    return (centered / (deviation + EPSILON)).astype(x.dtype)


class EdgeEmbedding(nnx.Module):
    """A linear layer on the attributes of edges, and a norm over all edges."""

    def __init__(self, channels: int) -> None:
        self.linear = Linear(3, channels)
        self.norm = NodeNorm(channels)

    def __call__(
        self, attributes: Float[Array, "edge 3"], context: Context, *, edges: ShardEdges
    ) -> Float[Array, "edge channel"]:
        x = self.linear(attributes, context)
        return _standardized(x, lambda values: edges.mean(values)[None])


class Gates(nnx.Module):
    """The linear layers of the gates, which are shared by all blocks."""

    def __init__(self, channels: int, num_blocks: int) -> None:
        for name in GATES:
            # The first block has no state, so it does not call the "_h" layers.
            calls = num_blocks if name.endswith("_x") else num_blocks - 1
            setattr(self, name, Linear(channels, channels, calls=calls))

    def __call__(self, context: Context) -> dict[str, tuple[Array, Array]]:
        del context
        layers: dict[str, Any] = {name: getattr(self, name) for name in GATES}
        return {n: (gate.kernel[...], gate.bias[...]) for n, gate in layers.items()}


class GraphAttention(nnx.Module):
    """PyTorch Geometric's TransformerConv, without spectral norm."""

    def __init__(
        self, channels: int, dim_head: int, *, dropout: float, attributes: bool
    ) -> None:
        self.heads, self.dropout = channels // dim_head, dropout
        init, shape, dims = torch_uniform(channels), (channels,) * 2, ("embed", "embed")
        self.names = ("key", "query", "value", "skip")
        for name in self.names:
            setattr(self, name, parameter(init, shape, dims))
            setattr(self, f"{name}_bias", parameter(init, (channels,), ("embed",)))
        self.edge = parameter(init, shape, dims) if attributes else None

    @jax.named_scope(ATTENTION)
    def __call__(
        self, field: Field, along: Array | None, edges: ShardEdges, context: Context
    ) -> Field:
        x, projections = field.data, {}
        for name in self.names:
            kernel, bias = getattr(self, name), getattr(self, f"{name}_bias")
            projections[name] = add_bias(x @ kernel[...], bias[...])
        skip = projections.pop("skip")
        split = {
            name: field.like(value.reshape(*x.shape[:3], self.heads, -1))
            for name, value in projections.items()
        }
        if along is not None and self.edge is not None:
            along = (along @ self.edge[...]).reshape(len(along), self.heads, -1)

        def dropped(weights: Array) -> Array:
            # Dropout with a mask by global sample, edge and head.
            if context.key is None or self.dropout == 0.0:
                return weights
            high = context.samples(len(weights))[:, None, None]
            number = jnp.maximum(edges.layout.of_shard(edges.number), 0)
            low = number[:, None] * self.heads + jnp.arange(self.heads)[None]
            keep = keep_mask(context.key, high, low[None], self.dropout)
            return drop(weights, keep, self.dropout)

        seen = edge_attention(
            split["query"], split["key"], split["value"], along, edges, dropped
        )
        return field.like(seen.data.reshape(x.shape) + skip)


class GraphBlock(nnx.Module):
    """Attention, two linear layers, a residual sum, a norm, and gates."""

    # The carry has the field "x", which after the first block is the state of the
    # gates, the parameters "gates", and the edge embeddings "along".

    def __init__(self, channels: int, attention: GraphAttention) -> None:
        self.attention = attention
        self.inner = Linear(channels, channels)
        self.outer = Linear(channels, channels)
        self.inner_norm = NodeNorm(channels)
        self.norm = NodeNorm(channels)

    def __call__(
        self, carry: dict[str, Any], context: Context, *, edges: ShardEdges
    ) -> dict[str, Any]:
        state: Field = carry["x"]
        x = self.attention(state, carry["along"], edges, context)
        x = x.like(self.inner(jax.nn.relu(x.data), context))
        x = self.inner_norm(x)
        x = x.like(self.outer(jax.nn.relu(x.data), context) + state.data)
        x = self.norm(x).data
        # The new state: tanh(W x) in the first block, which has no state yet. In later
        # blocks it is (1 - z) h + z tanh(W (r h)).
        gates = carry["gates"]
        block = jnp.asarray(context.block)
        first = block == 0

        def linear(name: str, x: Array) -> Array:
            kernel, bias = gates[name]
            # Layers of the state are called from the second block on.
            call = block if name.endswith("_x") else jnp.maximum(block - 1, 0)
            return add_bias(x @ of_call(kernel, 2, call), bias)

        z = jax.nn.sigmoid(linear("z_x", x) + linear("z_h", state.data))
        r = jax.nn.sigmoid(linear("r_x", x) + linear("r_h", state.data))
        later = (1 - z) * state.data + z * jnp.tanh(linear("h_h", r * state.data))
        gated = jnp.where(first, jnp.tanh(linear("h_x", x)), later)
        return {**carry, "x": state.like(gated)}


class GraphConfig(common.SummedChannels):
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
    output_terms: ClassVar = ("n_variables levels", "n_surface_variables")
    input_terms: ClassVar = (*output_terms, "n_static_variables")

    type: Literal["graph"] = "graph"
    n_variables: int = 4
    n_surface_variables: int = 7
    n_static_variables: int = 3
    levels: int = 15
    hidden_size: PositiveInt = 128
    dim_head: PositiveInt = 32
    dropout: common.Rate = 0.0
    n_blocks: int = Key(3, ge=1, le=common.MAX_DEPTH)
    history_len: int = 2
    edge_path: str
    use_spectral_norm: bool = True
    use_edge_attr: bool = True
    image_height: common.Side
    image_width: common.Side

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
    def files(self) -> Mapping[str, str]:  # type: ignore[override]
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
                "adds its output, of one frame, to the frames after the first"
            )
        yield from common.divisor_problems(
            "dim_head", self.dim_head, self.hidden_size, "model.hidden_size"
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


@common.register_model(GraphConfig, GRAPH)
class Graph(nnx.Module):
    """The graph model; see `GraphConfig` for its keys."""

    def __init__(self, config: GraphConfig) -> None:
        self.config = config
        hidden, blocks = config.hidden_size, config.n_blocks
        channels = config.input_channels * config.history_len
        self.encoder = PointLayer(channels, hidden, norm=True)
        self.decoder = PointLayer(hidden, config.output_channels, norm=False)
        self.edges = EdgeEmbedding(hidden) if config.use_edge_attr else None
        how = {"dropout": config.dropout, "attributes": config.use_edge_attr}
        attention = partial(GraphAttention, hidden, config.dim_head, **how)
        self.blocks = stack_blocks(lambda: GraphBlock(hidden, attention()), blocks)
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
            edge_features = context.precision.cast(edges.layout.of_shard(attributes))
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


class PointLayer(nnx.Module):
    """A linear layer at each node, and perhaps a norm."""

    def __init__(self, channel_in: int, channel_out: int, *, norm: bool) -> None:
        self.linear = Linear(channel_in, channel_out)
        self.norm = NodeNorm(channel_out) if norm else None

    def __call__(self, field: Field, context: Context) -> Field:
        field = field.like(self.linear(field.data, context))
        return field if self.norm is None else self.norm(field)
