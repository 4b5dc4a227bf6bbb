"""CREDIT's names of the parameters of `graph` (models/graph.py)."""

from __future__ import annotations

from collections.abc import Iterator

from credit_jax.models.graph.graph import GraphConfig
from credit_jax.state_dict.arrangement import LINEAR
from credit_jax.state_dict.key_table import Rule
from credit_jax.state_dict.layers import scale_and_bias, weight_and_bias
from credit_jax.state_dict.torch_model import TorchModel

GATES = ("z_x", "z_h", "r_x", "r_h", "h_x", "h_h")


def _rules() -> Iterator[Rule]:
    yield from weight_and_bias("encoder", "encoder/linear", LINEAR)
    yield from weight_and_bias("decoder", "decoder/linear", LINEAR)
    yield from weight_and_bias("edge_ln", "edges/linear", LINEAR)
    yield from scale_and_bias("edge_layer_norm", "edges/norm")
    torch, ours = "graph_blocks.{d}.transformer", "blocks/attention"
    for name in ("key", "query", "value", "skip", "edge"):
        if name == "skip":
            yield Rule(f"{torch}.lin_edge.weight", f"{ours}/edge", LINEAR)
        if name != "edge":
            yield Rule(f"{torch}.lin_{name}.weight", f"{ours}/{name}", LINEAR)
            yield Rule(f"{torch}.lin_{name}.bias", f"{ours}/{name}_bias")
    block = "graph_blocks.{d}"
    yield from weight_and_bias(f"{block}.physics_linear", "blocks/inner", LINEAR)
    yield from weight_and_bias(f"{block}.merge_linear", "blocks/outer", LINEAR)
    yield from scale_and_bias(f"{block}.norm_layer", "blocks/inner_norm")
    for name in GATES:
        yield from weight_and_bias(f"gated_unit.{name}_ln", f"gates/{name}", LINEAR)
    yield from scale_and_bias("graph_norm_layers.{d}", "blocks/norm")
    yield from scale_and_bias("enc_norm", "encoder/norm")
    yield from scale_and_bias("dec_norm", "unused_norm")


def _block_names(config: GraphConfig) -> list[str]:
    # Not compared: in credit_jax norms are parts of blocks, and CREDIT has the node dim
    # first.
    del config
    return ["encoder, normalized", "decoder, on the grid"]


def _idle_modules(config: GraphConfig) -> list[str]:
    norms = ["edge_layer_norm", "enc_norm", "dec_norm"]
    for i in range(config.n_blocks):
        norms += [f"graph_blocks.{i}.norm_layer", f"graph_norm_layers.{i}"]
    if config.n_blocks > 1:
        return norms
    return [*norms, *(f"gated_unit.{name}_ln" for name in GATES if name != "h_x")]


TORCH_MODEL = TorchModel(
    key_table=tuple(_rules()),
    block_names=_block_names,
    idle_modules=_idle_modules,
    # CREDIT's class reads the grid from its file.
    extra_keys=("image_height", "image_width"),
)
