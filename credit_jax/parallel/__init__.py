"""The parallel toolkit: meshes, layouts, operations on sharded fields, policies.

These are the public names of its modules. Definitions on one device are in
`credit_jax.ops`. Functions of a model are in higher layers: `build_parallel_model` in
`credit_jax.models.parallel_model`, `apply_tensor_parallel` in
`credit_jax.nn.tensor_parallel`.
"""

from credit_jax.parallel.domain.channel_attention import (
    coordinate_attention as coordinate_attention,
)
from credit_jax.parallel.domain.channel_attention import (
    efficient_channel_attention as efficient_channel_attention,
)
from credit_jax.parallel.domain.channel_attention import (
    squeeze_excite as squeeze_excite,
)
from credit_jax.parallel.domain.conv import conv2d_field as conv2d_field
from credit_jax.parallel.domain.conv import conv3d_field as conv3d_field
from credit_jax.parallel.domain.conv_transpose import (
    conv_transpose2d_field as conv_transpose2d_field,
)
from credit_jax.parallel.domain.conv_transpose import (
    conv_transpose3d_field as conv_transpose3d_field,
)
from credit_jax.parallel.domain.global_pool import global_max_pool as global_max_pool
from credit_jax.parallel.domain.global_pool import global_mean_pool as global_mean_pool
from credit_jax.parallel.domain.global_pool import mean_over_lat as mean_over_lat
from credit_jax.parallel.domain.global_pool import mean_over_lon as mean_over_lon
from credit_jax.parallel.domain.halo_exchange import HaloExchange as HaloExchange
from credit_jax.parallel.domain.halo_exchange import halo_exchange as halo_exchange
from credit_jax.parallel.domain.halo_exchange import trim as trim
from credit_jax.parallel.domain.norm import batch_norm_field as batch_norm_field
from credit_jax.parallel.domain.norm import group_norm as group_norm
from credit_jax.parallel.domain.padding import crop_globe as crop_globe
from credit_jax.parallel.domain.padding import pad_globe as pad_globe
from credit_jax.parallel.domain.patch_embed import (
    patch_embed2d_field as patch_embed2d_field,
)
from credit_jax.parallel.domain.patch_embed import (
    patch_embed3d_field as patch_embed3d_field,
)
from credit_jax.parallel.domain.periodic import (
    periodic_conv2d_field as periodic_conv2d_field,
)
from credit_jax.parallel.domain.pool import (
    adaptive_avg_pool2d_field as adaptive_avg_pool2d_field,
)
from credit_jax.parallel.domain.pool import avg_pool2d_field as avg_pool2d_field
from credit_jax.parallel.domain.pool import max_pool2d_field as max_pool2d_field
from credit_jax.parallel.domain.resize import resize_area as resize_area
from credit_jax.parallel.domain.resize import resize_bilinear as resize_bilinear
from credit_jax.parallel.domain.resize import resize_nearest as resize_nearest
from credit_jax.parallel.domain.roll import roll_field as roll_field
from credit_jax.parallel.domain.shuffle import add as add
from credit_jax.parallel.domain.shuffle import join as join
from credit_jax.parallel.domain.shuffle import (
    pixel_shuffle_field as pixel_shuffle_field,
)
from credit_jax.parallel.domain.spatial_attention import (
    scse as scse,
)
from credit_jax.parallel.domain.spatial_attention import (
    spatial_attention as spatial_attention,
)
from credit_jax.parallel.domain.windows import group_layout as group_layout
from credit_jax.parallel.domain.windows import merge as merge
from credit_jax.parallel.domain.windows import partition as partition
from credit_jax.parallel.domain.windows import window_layout as window_layout
from credit_jax.parallel.mesh.axes import MeshAxes as MeshAxes
from credit_jax.parallel.mesh.credit import build_device_mesh as build_device_mesh
from credit_jax.parallel.mesh.credit import data_parallel_coords as data_parallel_coords
from credit_jax.parallel.mesh.credit import dp_world_size as dp_world_size
from credit_jax.parallel.mesh.credit import local_dp_ranks as local_dp_ranks
from credit_jax.parallel.mesh.credit import (
    parse_parallelism_conf as parse_parallelism_conf,
)
from credit_jax.parallel.mesh.device_mesh import get_dp_mesh as get_dp_mesh
from credit_jax.parallel.mesh.device_mesh import has_dp_mesh as has_dp_mesh
from credit_jax.parallel.mesh.device_mesh import mesh_of_degrees as mesh_of_degrees
from credit_jax.parallel.mesh.devices import ensure_devices as ensure_devices
from credit_jax.parallel.mesh.dims import ParallelDims as ParallelDims
from credit_jax.parallel.mesh.model_fit import (
    validate_sharding_constraints as validate_sharding_constraints,
)
from credit_jax.parallel.parallel_config import ParallelConfig as ParallelConfig
from credit_jax.parallel.params.fsdp import gather as gather
from credit_jax.parallel.params.fsdp import pvary_params as pvary_params
from credit_jax.parallel.params.precision import Precision as Precision
from credit_jax.parallel.params.precision import default_mp_policy as default_mp_policy
from credit_jax.parallel.params.remat import Remat as Remat
from credit_jax.parallel.params.sharding import ShardingRules as ShardingRules
from credit_jax.parallel.params.spec import ParamSpec as ParamSpec
from credit_jax.parallel.placement import gather_tensor as gather_tensor
from credit_jax.parallel.placement import place_batch as place_batch
from credit_jax.parallel.placement import shard_batch as shard_batch
from credit_jax.parallel.placement import shard_tensor as shard_tensor
from credit_jax.parallel.reductions import FieldReducer as FieldReducer
from credit_jax.parallel.rows.layout import Field as Field
from credit_jax.parallel.rows.layout import Layout as Layout
from credit_jax.parallel.rows.layout import block_layout as block_layout
from credit_jax.parallel.rows.reshard import reshard as reshard
