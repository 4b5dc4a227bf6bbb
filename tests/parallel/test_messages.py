"""Wrong calls of operations, meshes, placements and launches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from credit_jax import ops
from credit_jax.kernels import use_implementation
from credit_jax.models.common.config import ModelConfig
from credit_jax.models.registry import build
from credit_jax.parallel.domain.attention import spatial_attention
from credit_jax.parallel.domain.conv import periodic_conv2d_field
from credit_jax.parallel.domain.halo_exchange import HaloExchange, halo_exchange, trim
from credit_jax.parallel.domain.norm import batch_norm_field
from credit_jax.parallel.domain.pool import resize_nearest
from credit_jax.parallel.domain.rearrange import pad_globe
from credit_jax.parallel.mesh import credit
from credit_jax.parallel.mesh.device_mesh import get_dp_mesh, mesh_of_degrees
from credit_jax.parallel.mesh.devices import ensure_devices
from credit_jax.parallel.mesh.dims import ParallelDims
from credit_jax.parallel.mesh.model_fit import (
    model_notes,
    validate_sharding_constraints,
)
from credit_jax.parallel.placement import gather_tensor, shard_batch, shard_tensor
from credit_jax.parallel.processes.launch import find_launch, launch_by_hand
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.ops.cases import avg_pool2d, max_pool2d, of_arrays
from tests.parallel.test_launch import PMI, SLURM
from tests.parallel.test_mesh import HSDP, MODEL, FakeDevice, Grid, section
from tests.support import make_mesh

CASES = Cases("parallel")


def field(rows: int, columns: int = 4, channels: int = 1) -> Field:
    return Field(jnp.zeros((1, rows, columns, channels)), block_layout(rows))


# Operations.
SQUARE = jnp.zeros((1, 4, 4, 1))
CASES.rows(
    lambda **given: ops.conv2d(
        jnp.zeros((1, 6, 6, 1)), jnp.zeros((3, 3, 1, 1)), **given
    ),
    {"padding": "same", "stride": (2, 1)},
    {"padding": "reflect"},
    {"dilation": (3, 4)},
    name="conv2d",
)
CASES.rows(
    lambda **given: ops.conv3d(
        SQUARE[:, :, :, None], jnp.zeros((2, 4, 1, 1, 1)), **given
    ),
    {"padding": "same", "stride": (1, 1, 2)},
    {"dilation": (1, 2, 1), "padding": ((0, 0), (1, 1), (0, 0))},
    name="conv3d",
)
CASES.rows(
    lambda **given: ops.conv_transpose(SQUARE, jnp.zeros((3, 3, 1, 2)), **given),
    {"output_padding": (1, 0)},
    {"output_padding": (0, -1)},
    {"padding": ((-1, 0), (0, 0))},
    {"padding": ((3, 3), (0, 0))},
    name="conv_transpose",
)
CASES.rows(
    lambda padding: of_arrays(periodic_conv2d_field)(
        jnp.zeros((1, 4, 6, 1)), jnp.zeros((3, 3, 1, 1)), padding=padding
    ),
    *(-1, 4),
    name="periodic_conv2d",
)
CASES.rows(
    lambda kernel, **given: avg_pool2d(SQUARE, kernel, **given),
    {"kernel": (3, 3), "padding": ((2, 0), (0, 0))},
    {"kernel": (5, 1)},
    {"kernel": (2, 2), "stride": (0, 1)},
    name="avg_pool2d",
)
CASES.rows(
    lambda kernel, **given: max_pool2d(SQUARE, kernel, **given),
    {"kernel": (2, 2), "padding": ((0, -1), (0, 0))},
    name="max_pool2d",
)
CASES.rows(ops.area_taps, (4, 3), name="area_taps")
CASES.rows(
    lambda **given: pad_globe(field(5), **given),
    {"mode": "polar", "lat": (1, 1), "lon": (1, 1)},
    {"mode": "earth", "lat": (6, 1), "lon": (1, 1)},
    {"mode": "mirror", "lat": (5, 1), "lon": (1, 1)},
    {"mode": "earth", "lat": (1, 1), "lon": (1, 5)},
    {"mode": "earth", "lat": (-1, 1), "lon": (1, 1)},
    name="pad_globe",
)
CASES.call("resize to 3 sizes", lambda: resize_nearest(field(4), (3, 4, 5)))
CASES.call(
    "spatial attention by an even kernel",
    lambda: spatial_attention(field(4), jnp.zeros((3, 2, 2, 1))),
)
CASES.call(
    "batch norm of one value",
    lambda: batch_norm_field(
        *(field(1, 1), jnp.ones(1), jnp.ones(1), ops.RunningStatistics.fresh(1)),
        training=True,
    ),
)
CASES.call("an axis that no mesh has", lambda: HaloExchange(2, axis="rows")(SQUARE))
CASES.rows(
    lambda **given: halo_exchange(SQUARE, axis=None, **given),
    {"halo_width": -1},
    {"halo_width": 1, "size": 5},
    name="halo_exchange",
)
CASES.rows(lambda *rows: trim(SQUARE, *rows), (3, 3), (-1, 0), name="trim")


@CASES.case
def a_halo_of_rows_in_reverse() -> None:
    layout = block_layout(4).with_rows([[3, 2, 1, 0]], 4)
    halo_exchange(Field(SQUARE, layout), 1)


def fetched(shards: int, rows: list[int]) -> None:
    have = block_layout(5, shards, "domain" if shards > 1 else None)
    need = have.with_rows([rows] * shards, 5)
    reshard(Field(jnp.zeros((1, have.length, 2)), have), need)


CASES.rows(fetched, (1, [5]), (2, [4, 5]), (3, [0, 9]), name="rows on shards")
CASES.rows(use_implementation, "cuda", name="implementation")

# Placement.


def gathered(size: int) -> None:
    mesh = make_mesh(domain=4)
    gather_tensor(shard_tensor(jnp.zeros((2, 2, 2, 13, 2)), mesh), mesh, size=size)


CASES.rows(gathered, *(17, 12, 3), name="gather_tensor")
CASES.call(
    "3 samples on 2 ranks",
    lambda: shard_batch({"x": jnp.zeros((3, 2, 1, 4, 4))}, make_mesh(dp=2)),
)

# Meshes.
WRONG: list[dict[str, Any]] = [
    *({"data": "fsdp"}, {"tensor": "two"}, {"domain": 0}, {"domain": 1.5}),
    *({"sp": 2, "dp": 1}, {"dp_shard": 0}, {"dp_replicate": 0}, {"ep": "two"}),
    *({"dp_shard": 2}, {"cp": 2, "domain": 4}, {"tensor": 4, "etp": 2}, {"tp": 2}),
    {"cp": 4, "ulysses_degree": 3},
]
CASES.rows(
    lambda trainer: credit.parse_parallelism_conf({"trainer": trainer}),
    ({},),
    *(({"parallelism": section},) for section in WRONG),
    name="parse",
)
CASES.rows(
    lambda **degrees: credit.dp_world_size(section(**degrees), 8),
    {"tensor": 2, "domain": 3},
)
CASES.rows(
    lambda **degrees: credit.build_device_mesh(section(**degrees)),
    {"domain": 3},
    name="mesh",
)
CASES.rows(
    ensure_devices,
    (HSDP | {"dp_replicate": 4, "dp_shard": 2},),
    (section(tensor=4, domain=4),),
    (0,),
    name="devices",
)
CASES.rows(
    lambda degrees: mesh_of_degrees(degrees, jax.devices()),
    ({"dp_shard": 3, "tp": 2},),
    ({"cp": 8},),
    name="mesh of degrees",
)
CASES.call(
    "no data-parallel axis",
    lambda: get_dp_mesh(ParallelDims(tp=8, world_size=8).build_mesh()),
)


@CASES.case
def a_process_outside_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [FakeDevice(g, g // 2) for g in range(4)]
    mesh, _ = credit.build_device_mesh(section("none", tensor=2), devices)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    credit.local_dp_ranks(mesh)


@CASES.case
def a_machine_with_six_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        platform = "gpu"

    monkeypatch.setattr(jax, "devices", lambda: [Gpu()] * 6)
    ensure_devices(section(tensor=2, domain=4))


@CASES.case
def no_device_is_asked_for_before_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: pytest.fail("a device is asked for"))
    ParallelDims.from_config({"tensor": 3, "pp": 5}, 8, model=build(MODEL))


CASES.rows(
    lambda count: ParallelDims(tp=2, world_size=2).build_mesh(jax.devices()[:count]),
    8,
    name="devices of a mesh of 2",
)
CASES.call(
    "more than there are", lambda: ParallelDims(dp_shard=-1, world_size=16).build_mesh()
)
SECTIONS: list[dict[str, Any]] = [
    *({"tp": 2, "domain": 3}, {"tensor": 2, "cp": 3}, {"tensor": 2, "domain": 3}),
    *({"dp_replicate": 3}, {"data": "none", "tensor": 3}, {"tp": 16}),
    *({"dp_shard": 3, "tp": 2}, {"dp": 2, "tensor": 3}, {"tp": 0}, {"cp": "two"}),
    *({"domain": 1.5}, {"dp_shard": 0}, {"dp_shard": -2}, {"tp": 2, "tensor": 4}),
    *({"domain": 2, "cp": 4}, {"dp": 2, "dp_shard": 8}, {"tensr": 2}),
    *({"data": "fsdp"}, {"data": "ddp", "dp_shard": 8}, {"tp": 4, "etp": 2}),
    *({"data": "none", "dp_replicate": 2, "dp_shard": 4}, {"etp": 2}, {"pp": 4}),
    *({"domain": 4, "ulysses_degree": 8}, {"cp": 8, "ulysses_degree": 3}),
    {"tensor": 3, "domain": 2, "etp": 2, "ulysses_degree": 4, "pp": 5, "x": 1},
]
CASES.rows(
    lambda section: ParallelDims.from_config(section, 8), *((s,) for s in SECTIONS)
)
CASES.rows(
    ParallelDims,
    *({"tp": 4, "world_size": 8}, {"domain": 2, "cp": 4, "world_size": 4}),
    *({"world_size": 0}, {"pp": 4, "world_size": 8}),
    {"pp": 4, "world_size": 8, "dp_shard": 2},
    name="ParallelDims",
)
CASES.rows(
    lambda **degrees: ParallelDims(**degrees, dp_shard=-1, world_size=8).build_mesh(),
    *({"domain": 2, "ulysses_degree": 2}, {"tp": 2, "etp": 1}),
    {"tp": 2, "domain": 4, "etp": 1, "ulysses_degree": 2},
    name="build_mesh",
)
CASES.rows(
    lambda **degrees: ParallelDims(
        **degrees, dp_shard=-1, world_size=8
    ).validate_against_model(build(MODEL)),
    {"tp": 4},
    {"ep": 2},
    name="model",
)


class Transformer(ModelConfig):
    type: str = "transformer"
    num_attention_heads: int = 12
    num_key_value_heads: int = 4
    num_experts: int = 6


CASES.call(
    "sizes that a model names",
    lambda: ParallelDims(tp=8, ep=4, world_size=32).validate_against_model(
        Transformer()
    ),
)
CASES.rows(
    lambda local_h: validate_sharding_constraints(None, local_h), *(0, -3), name="rows"
)

# Launchers.
ADDRESS = "JAX_COORDINATOR_ADDRESS"
CASES.rows(
    lambda **variables: find_launch(variables),
    PMI,
    {"JOB_COMPLETION_INDEX": "2", ADDRESS: "train-0.svc:8476"},
    {"JAX_PROCESS_ID": "3"},
    SLURM | {"SLURM_PROCID": "x"},
    name="launch",
)
CASES.rows(
    launch_by_hand,
    ("host:1", None, 8),
    ("host:1", 8, 8),
    ("host", 0, 8),
    name="by hand",
)

# Notes on uneven splits.
CASES.rows(
    lambda height, domain: model_notes(Grid(image_height=height), domain),
    (6, 8),
    name="notes of a grid",
)
CASES.rows(
    lambda height, local_h: validate_sharding_constraints(
        Grid(image_height=height), local_h
    ),
    *((10, 7), (10, 4)),
    name="rows of a grid",
)
CASES.rows(
    lambda local_h: validate_sharding_constraints(build(MODEL), local_h),
    8,
    name="rows of a model",
)
CASES.rows(
    lambda domain: ParallelDims(
        domain=domain, world_size=domain
    ).validate_against_model(build(MODEL)),
    *(2, 3, 8),
    name="domain of a model",
)
